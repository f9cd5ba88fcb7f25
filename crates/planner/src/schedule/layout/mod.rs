//! Lifetimes become addresses. Invariant: two buffers that are alive at the same time never overlap, every address is
//! aligned, and with a limit of work alone the result depends on nothing but the arguments.

mod best_fit;
mod branch_and_bound;
mod local_search;
mod sections;

use crate::plan::Effort;
use crate::units::{Bytes, Seconds};
use best_fit::Placement;
use branch_and_bound::{Outcome, Search};

/// Addresses are multiples of this: a cache line, and the widest vector register.
pub const ALIGNMENT: u64 = 64;

/// When a buffer is held, in positions, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// First position.
    pub first: u32,
    /// Last position.
    pub last: u32,
    /// Size.
    pub bytes: Bytes,
}

impl Lifetime {
    /// Whether both are held at some position.
    fn meets(&self, other: &Lifetime) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Where buffers lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packing {
    /// An address for each lifetime.
    pub addresses: Vec<u64>,
    /// The first byte that none of them uses, a multiple of the alignment.
    pub end: Bytes,
    /// No packing ends before this: the most bytes held at once, or more where a search has excluded that.
    pub bound: Bytes,
}

impl Packing {
    /// Whether no packing ends lower.
    pub fn is_optimal(&self) -> bool {
        self.end <= self.bound
    }
}

/// An address for each lifetime: a multiple of `alignment`, a power of two.
///
/// `fixed` lifetimes have their address already, and no other is placed below `floor`. The search ends as soon as all
/// addresses lie below `capacity`, or when nothing better is possible, or with the effort; a capacity of zero asks for
/// the smallest end.
pub fn pack(lifetimes: &[Lifetime], fixed: &[Option<u64>], floor: u64, alignment: u64, capacity: u64, effort: &Effort<'_>) -> Packing {
    let blocks: Vec<Lifetime> = lifetimes.iter().map(|&life| Lifetime { bytes: life.bytes.align_up(alignment), ..life }).collect();
    let floor = Bytes(floor).align_up(alignment).0;
    let mut budget = Budget { effort, start: (effort.clock)(), spent: 0, over: false };
    let mut bound = lower_bound(&blocks, fixed, floor);
    let target = bound.max(capacity);

    // The largest first is nearly always enough.
    let free: Vec<u32> = (0..blocks.len() as u32).filter(|&i| fixed[i as usize].is_none()).collect();
    let mut best: Option<Placement> = None;
    for order in local_search::orders(&blocks, &free) {
        if best.is_some() && !budget.spend(free.len() as u64) {
            break;
        }
        let placement = best_fit::best_fit(&blocks, fixed, floor, &order);
        if best.as_ref().is_none_or(|known| placement.end < known.end) {
            best = Some(placement);
        }
        if best.as_ref().is_some_and(|known| known.end <= target) {
            break;
        }
    }
    let mut best = best.unwrap_or(Placement { addresses: Vec::new(), end: floor });
    if best.end > target {
        best = local_search::improve(&blocks, fixed, floor, &free, target, best, &mut budget);
    }
    if best.end > target {
        bound = exact(&blocks, fixed, floor, &free, bound, capacity, &mut best, &mut budget);
    }
    Packing { addresses: best.addresses, end: Bytes(best.end), bound: Bytes(bound) }
}
/// What a search has used of its effort.
struct Budget<'a> {
    effort: &'a Effort<'a>,
    start: Seconds,
    spent: u64,
    over: bool,
}

impl Budget<'_> {
    /// Takes some steps of work; false where they are no longer allowed.
    fn spend(&mut self, work: u64) -> bool {
        let before = self.spent / CLOCK;
        self.spent = self.spent.saturating_add(work);
        let in_time = before == self.spent / CLOCK || (self.effort.clock)().0 - self.start.0 < self.effort.deadline.0;
        self.over |= !in_time || self.spent > self.effort.work;
        !self.over
    }
}
const CLOCK: u64 = 1024;

fn lower_bound(blocks: &[Lifetime], fixed: &[Option<u64>], floor: u64) -> u64 {
    let mut changes: Vec<(u32, bool, u64)> = Vec::new();
    let mut bound = floor;
    for (block, fixed) in blocks.iter().zip(fixed) {
        let above = match fixed {
            None => block.bytes.0,
            Some(address) => {
                bound = bound.max(address + block.bytes.0);
                (address + block.bytes.0).saturating_sub((*address).max(floor))
            }
        };
        changes.push((block.first, true, above));
        changes.push((block.last, false, above));
    }
    // At one position births come before deaths: a position holds what it frees.
    changes.sort_unstable_by_key(|&(position, birth, _)| (position, !birth));
    let mut now = floor;
    for (_, birth, bytes) in changes {
        if birth {
            now += bytes
        } else {
            now -= bytes
        }
        bound = bound.max(now);
    }
    bound
}

#[allow(clippy::too_many_arguments)]
fn exact(
    blocks: &[Lifetime],
    fixed: &[Option<u64>],
    floor: u64,
    free: &[u32],
    bound: u64,
    capacity: u64,
    best: &mut Placement,
    budget: &mut Budget,
) -> u64 {
    let rest: Vec<u32> = free.iter().copied().filter(|&i| blocks[i as usize].bytes.0 > 0).collect();
    let chosen: Vec<Lifetime> = rest.iter().map(|&i| blocks[i as usize]).collect();
    let cut = sections::sections(&chosen);
    let near = branch_and_bound::neighbours(&cut);
    let target = bound.max(capacity);
    let unit = chosen.len() as u64 * 4;
    let _ = fixed;
    let mut random = budget.effort.seed ^ 0x9E37_79B9_7F4A_7C15;
    let set: Option<Vec<u64>> = std::env::var("SET").ok().map(|s| s.split(',').map(|x| x.parse().unwrap()).collect());
    let env = |name: &str| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    let grow = env("GROW").unwrap_or(0);
    for round in 0.. {
        let (rule, mode, any) = match &set {
            Some(s) => {
                let k = s[round as usize % s.len()];
                (k / 100, k / 10 % 10, k % 10)
            }
            None => (round % 4, round / 4 % 4, round / 16 % 2),
        };
        let count = set.as_ref().map_or(32, |s| s.len() as u64);
        let pass = round / count;
        let noise = if pass == 0 { 0.0 } else { env("NOISE").unwrap_or(30) as f64 / 100.0 };
        let rank = local_search::rank(&chosen, rule as u32, &cut, noise, &mut random);
        let nodes = if grow == 0 { unit * luby(pass + 1) } else { unit * (1 << pass.min(30)) };
        let Some(mut search) = Search::new(&chosen, &cut, &near, rank, target - floor) else { return bound };
        search.mode = mode as u32;
        search.any = any == 1;
        let out = search.run(nodes, budget);
        if out != Outcome::Spent && std::env::var("V").is_ok() {
            eprintln!("round {round} rule {rule} mode {mode} any {any} spent {}", budget.spent);
        }
        match out {
            Outcome::Found(addresses) => {
                for (&i, address) in rest.iter().zip(addresses) {
                    best.addresses[i as usize] = address + floor;
                }
                best.end = target;
                return bound;
            }
            Outcome::Impossible => return target + 1,
            Outcome::Spent => {}
        }
        if !budget.spend(0) {
            return bound;
        }
    }
    bound
}
fn luby(mut i: u64) -> u64 {
    loop {
        let k = 64 - i.leading_zeros() as u64;
        if i == (1 << k) - 1 {
            return 1 << (k - 1);
        }
        i -= (1 << (k - 1)) - 1;
    }
}
