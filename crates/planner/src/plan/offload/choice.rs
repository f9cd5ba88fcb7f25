//! The idle intervals over which storages are away. Invariant: with everything chosen away from
//! access to access, no run holds more than the budget, and the tier has room for it.

use fastrand::Rng;

use crate::effort::Meter;
use crate::plan::max_tree::MaxTree;
use crate::plan::offload::idle::{Course, Idle};
use crate::plan::quantity::ByteCount;
use crate::tuning::offload::{IDLE_OF_A_LOOK, STALL, UNTIMED};
use crate::units::Bytes;

/// What is chosen of the idle intervals of a course.
#[derive(Clone)]
pub(super) struct Choice {
    /// By interval.
    pub is_chosen: Vec<bool>,
    /// By group: the number of its chosen intervals.
    count: Vec<u32>,
    /// Bytes in the tier: each storage that is away at some time has a place of its own.
    below: u64,
}

impl Choice {
    /// The intervals that are away in any case.
    pub fn given(course: &Course) -> Choice {
        let mut choice = Choice {
            is_chosen: vec![false; course.idle.len()],
            count: vec![0; course.groups.len()],
            below: 0,
        };
        let given = course.given.iter().enumerate();
        given.filter(|&(_, &given)| given).for_each(|(index, _)| choice.add(course, index));
        choice
    }

    /// Every interval.
    pub fn all(course: &Course) -> Choice {
        let mut choice = Choice::given(course);
        (0..course.idle.len()).for_each(|index| choice.add(course, index));
        choice
    }

    /// Sends a storage away over an interval.
    pub fn add(&mut self, course: &Course, index: usize) {
        if !std::mem::replace(&mut self.is_chosen[index], true) {
            let group = course.idle[index].group as usize;
            self.count[group] += 1;
            if self.count[group] == 1 {
                self.below = self.below.saturating_add(course.below[group]);
            }
        }
    }

    /// Keeps a storage over an interval, unless it is away in any case.
    pub fn remove(&mut self, course: &Course, index: usize) {
        if !course.given[index] && std::mem::replace(&mut self.is_chosen[index], false) {
            let group = course.idle[index].group as usize;
            self.count[group] -= 1;
            if self.count[group] == 0 {
                self.below -= course.below[group];
            }
        }
    }

    /// Whether the tier has room for what is chosen.
    pub fn has_room(&self, course: &Course) -> bool {
        self.below <= course.capacity
    }

    /// Whether it has room for one more interval.
    fn has_room_for(&self, course: &Course, index: usize) -> bool {
        let group = course.idle[index].group as usize;
        self.count[group] > 0 || self.below.saturating_add(course.below[group]) <= course.capacity
    }

    /// Seconds of the lanes, and those for which the step waits.
    fn cost(&self, course: &Course, index: usize) -> f64 {
        let idle = &course.idle[index];
        let out = if self.is_written(course, index) { idle.out } else { 0.0 };
        let lanes = out + idle.back;
        lanes + STALL.get() * (lanes - idle.seconds).max(0.0) + f64::MIN_POSITIVE
    }

    /// Whether an interval would be written out: if nothing of its storage is away yet, it is,
    /// unless the storage is never written.
    fn is_written(&self, course: &Course, index: usize) -> bool {
        let group = course.idle[index].group as usize;
        let others = self.count[group] > u32::from(self.is_chosen[index]);
        let is_clean = (others || course.is_persistent[group]) && course.written[group].is_empty();
        !is_clean
    }
}

/// Adds intervals to the choice until the budget is met: at the run with the most bytes too many,
/// the interval that frees the most bytes at runs that hold too much, relative to the seconds that
/// it takes the lanes. False if the budget cannot be met, or not within the tier, or not in time.
/// With a random generator, each interval is weighted a little differently. Bytes in `wanted` count
/// as held.
pub(super) fn cover(
    course: &Course,
    choice: &mut Choice,
    (budget, wanted): (Bytes, &[ByteCount]),
    mut random: Option<&mut Rng>,
    meter: &Meter<'_>,
) -> bool {
    let budget = ByteCount::of(budget);
    let mut held = held_and_wanted(course, choice, wanted);
    let weights: Vec<f64> = course
        .idle
        .iter()
        .map(|_| random.as_mut().map_or(1.0, |random| 0.5 + random.f64()))
        .collect();
    let mut crowded = vec![0u32; held.len() + 1];
    let at_once = (course.idle.len() / IDLE_OF_A_LOOK.get()).max(1);
    let (mut by_score, mut looked_at) = (Vec::<(f64, usize)>::new(), 0);
    loop {
        let most = held.iter().copied().max().unwrap_or_default();
        let Some(at) = held.iter().position(|&bytes| bytes == most && bytes > budget) else {
            return true;
        };
        looked_at += course.idle.len();
        if looked_at > UNTIMED.get() && meter.is_late() {
            return false;
        }
        for (position, &bytes) in held.iter().enumerate() {
            crowded[position + 1] = crowded[position] + u32::from(bytes > budget);
        }
        let score = |index: usize| {
            let idle = &course.idle[index];
            let freed: u32 = course.away(idle).map(|(from, to)| crowded[to] - crowded[from]).sum();
            let missing = (most - budget).min(idle.bytes).as_f64();
            missing * f64::from(freed) / choice.cost(course, index) * weights[index]
        };
        by_score.clear();
        by_score.extend(
            (0..course.idle.len())
                .filter(|&index| {
                    !choice.is_chosen[index]
                        && is_away_at(course, &course.idle[index], at)
                        && choice.has_room_for(course, index)
                })
                .map(|index| (score(index), index)),
        );
        if by_score.is_empty() {
            return false;
        }
        // A few at once if there are very many.
        let order = |a: &(f64, usize), b: &(f64, usize)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
        if at_once < by_score.len() {
            by_score.select_nth_unstable_by(at_once, order);
            by_score.truncate(at_once);
        }
        by_score.sort_by(order);
        for &(_, index) in &by_score {
            if held[at] <= budget || !choice.has_room_for(course, index) {
                break;
            }
            choice.add(course, index);
            let idle = &course.idle[index];
            for (from, to) in course.away(idle) {
                held[from..to].iter_mut().for_each(|held| *held -= idle.bytes);
            }
        }
    }
}

/// Removes from the choice, dearest first, what the budget can do without.
pub(super) fn prune(course: &Course, choice: &mut Choice, (budget, wanted): (Bytes, &[ByteCount])) {
    let budget = ByteCount::of(budget);
    let mut held = MaxTree::new(&held_and_wanted(course, choice, wanted));
    let chosen = (0..course.idle.len()).filter(|&index| choice.is_chosen[index]);
    let mut order: Vec<(f64, usize)> = chosen
        .filter(|&index| !course.given[index])
        .map(|index| (choice.cost(course, index), index))
        .collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (_, index) in order {
        let idle = &course.idle[index];
        let most = course.away(idle).map(|(from, to)| held.max_in(from, to)).max();
        if most.is_none_or(|most| most + idle.bytes <= budget) {
            course.away(idle).for_each(|(from, to)| held.add(from, to, idle.bytes));
            choice.remove(course, index);
        }
    }
}

/// Bytes held at each run, plus those that are to stay free in addition to the budget.
fn held_and_wanted(course: &Course, choice: &Choice, wanted: &[ByteCount]) -> Vec<ByteCount> {
    let held = course.held_without(&choice.is_chosen);
    held.into_iter().zip(wanted).map(|(held, &wanted)| held + wanted).collect()
}

fn is_away_at(course: &Course, idle: &Idle, at: usize) -> bool {
    let within = |at: usize| (idle.last as usize) < at && at < idle.next as usize;
    within(at) || within(at + course.positions())
}
