//! Which idle intervals a storage is away for. Invariant: with everything chosen away from access
//! to access, no run finds more held than the budget.

use fastrand::Rng;

use crate::plan::offload::idle::{Course, Idle};

/// A transfer that no idle time hides counts so many times: the step stalls for it.
const STALL: f64 = 4.0;

/// For so many idle intervals, and at least for all of them, one is chosen at each look at them: a
/// look takes longer the more there are.
const IDLE_OF_A_LOOK: usize = 2048;

/// Adds intervals to what is chosen until the budget is met: at the run where the most is missing,
/// the one that frees the most bytes at runs where too much is held, for the seconds that it takes
/// the lanes. False where it cannot be met, or not within the tier. With a random generator each is
/// weighed a little differently.
pub(super) fn cover(
    course: &Course,
    chosen: &mut [bool],
    budget: u64,
    mut random: Option<&mut Rng>,
) -> bool {
    let budget = budget as i64;
    let mut held = course.held_without(chosen);
    let weights: Vec<f64> = course
        .idle
        .iter()
        .map(|_| random.as_mut().map_or(1.0, |random| 0.5 + random.f64()))
        .collect();
    let mut crowded = vec![0u32; held.len() + 1];
    let mut below = course.held_below(chosen);
    loop {
        let Some((at, &most)) = held.iter().enumerate().max_by_key(|&(at, most)| (most, !at))
        else {
            return true;
        };
        if most <= budget {
            return true;
        }
        for (position, &bytes) in held.iter().enumerate() {
            crowded[position + 1] = crowded[position] + u32::from(bytes > budget);
        }
        let score = |index: usize| {
            let idle = &course.idle[index];
            let missing = (most - budget).min(idle.bytes as i64) as f64;
            let freed = missing * f64::from(crowded_over(&crowded, idle));
            freed / cost(course, chosen, index) * weights[index]
        };
        let has_room = |index: usize| {
            let group = course.group(index);
            let (from, to) = course.groups[group];
            chosen[from..to].contains(&true)
                || below.saturating_add(course.below[group]) <= course.capacity
        };
        let candidates = (0..course.idle.len()).filter(|&index| {
            !chosen[index] && is_away_at(course, &course.idle[index], at) && has_room(index)
        });
        let mut by_score: Vec<(f64, usize)> =
            candidates.map(|index| (score(index), index)).collect();
        by_score.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        if by_score.is_empty() {
            return false;
        }
        // A few of them at once, where there are very many.
        by_score.truncate((course.idle.len() / IDLE_OF_A_LOOK).max(1));
        for (_, index) in by_score {
            let group = course.group(index);
            let (from, to) = course.groups[group];
            let is_below = chosen[from..to].contains(&true);
            let more = if is_below { 0 } else { course.below[group] };
            if held[at] <= budget || below.saturating_add(more) > course.capacity {
                break;
            }
            (chosen[index], below) = (true, below + more);
            let idle = course.idle[index];
            course.away(&idle, |position| held[position] -= idle.bytes as i64);
        }
    }
}

/// Takes out of what is chosen whatever the budget is met without, the dearest first.
pub(super) fn prune(course: &Course, chosen: &mut [bool], budget: u64) {
    let mut held = course.held_without(chosen);
    let mut order: Vec<usize> =
        (0..chosen.len()).filter(|&index| chosen[index] && !course.given[index]).collect();
    let price = |index: usize| cost(course, chosen, index);
    order.sort_by(|&a, &b| price(b).total_cmp(&price(a)));
    for index in order {
        let idle = course.idle[index];
        let mut most = i64::MIN;
        course.away(&idle, |position| most = most.max(held[position]));
        if most + idle.bytes as i64 <= budget as i64 {
            course.away(&idle, |position| held[position] += idle.bytes as i64);
            chosen[index] = false;
        }
    }
}

/// Seconds of the lanes, and those for which the step waits.
fn cost(course: &Course, chosen: &[bool], index: usize) -> f64 {
    let idle = &course.idle[index];
    let out = if is_written(course, chosen, index) { idle.out } else { 0.0 };
    let lanes = out + idle.back;
    let hidden = course.seconds_idle(idle);
    lanes + STALL * (lanes - hidden).max(0.0) + f64::MIN_POSITIVE
}

/// Whether an interval would be written out: where nothing of its storage is away yet, it is unless
/// nobody ever writes it.
fn is_written(course: &Course, chosen: &[bool], index: usize) -> bool {
    let group = course.group(index);
    let (from, to) = course.groups[group];
    let others = (from..to).any(|other| other != index && chosen[other]);
    if others || course.is_persistent[group] { !course.written[group].is_empty() } else { true }
}

/// Runs over which too much is held while a storage is away.
fn crowded_over(crowded: &[u32], idle: &Idle) -> u32 {
    let runs = crowded.len() - 1;
    let (from, to) = (idle.last as usize + 1, idle.next as usize);
    let within = |from: usize, to: usize| crowded[to] - crowded[from];
    match to <= runs {
        true => within(from, to),
        false => within(from.min(runs), runs) + within(0, to - runs),
    }
}

fn is_away_at(course: &Course, idle: &Idle, at: usize) -> bool {
    let within = |at: usize| (idle.last as usize) < at && at < idle.next as usize;
    within(at) || within(at + course.runs())
}
