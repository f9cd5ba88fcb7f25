//! Capuchin's hybrid: swap tensors whose transfers free time hides, then recompute. Invariant: what
//! is swapped is away from its last forward access to its first backward one; both lanes hide all
//! of it, one tensor after another; and its bytes and seconds are simulated, waiting included.
//!
//! Source: Peng et al., "Capuchin", ASPLOS 2020, section 4.4 and algorithm 2: the tensor with the
//! longest free time first, as long as its transfers are hidden, and then recomputation by MSPS.
//! Departures: `doc/theory/capuchin.md`.

use cranelift_entity::SecondaryMap;

use crate::analysis::access_profile;
use crate::effort::Meter;
use crate::id::NodeId;
use crate::machine::Route;
use crate::plan::offload::Offloading;
use crate::plan::published::capuchin::msps::Choosing;
use crate::plan::published::capuchin::ours::{Greedy, capuchin};
use crate::plan::{Instance, NotFound, Plan, PlanError, Planner};
use crate::units::Bytes;

/// The hybrid; recomputation alone if the machine has no tier below the device.
///
/// Hidden transfers are added until the peak fits; what is swapped stays swapped, and is not a
/// candidate. From there on, recomputations are chosen one by one as long as there are any, and the
/// fastest of the plans is taken: the less is held, the less waits for the lanes.
pub fn capuchin_swap(
    instance: Instance<'_>,
    budget: Bytes,
    meter: &mut Meter<'_>,
) -> Result<Plan, PlanError> {
    let Instance { graph, profile, order } = instance;
    let Some(route) = profile.hierarchy.main_route() else {
        return capuchin(instance, budget, meter);
    };
    let mut greedy = Greedy::new(instance, meter);
    for node in hidden(instance, route, meter) {
        if greedy.curve.peak <= budget {
            break;
        }
        greedy.swap(node, route, meter);
    }
    let moved = |greedy: &Greedy<'_>, budget: Bytes| {
        let runs = greedy.runs();
        let offloading = Offloading::new(graph, profile, &runs, route);
        let found = offloading.of_storages(&|storage| greedy.is_swapped(storage), budget)?;
        Some(Plan { planner: Planner::CapuchinSwap, ..found })
    };
    let mut best: Option<Plan> = None;
    loop {
        meter.spend(3 * order.len() as u64);
        let found = moved(&greedy, budget).into_iter();
        best = best.into_iter().chain(found).min_by(|a, b| a.seconds.0.total_cmp(&b.seconds.0));
        let total = profile.total(&greedy.runs());
        let is_least = best.as_ref().is_some_and(|best| best.seconds <= total);
        if is_least || meter.is_late() || greedy.choose(meter).is_none() {
            break;
        }
    }
    if let Some(plan) = best {
        return Ok(plan);
    }
    // The peak never rose.
    let lowest = moved(&greedy, greedy.curve.peak)
        .unwrap_or_else(|| instance.plan(Planner::CapuchinSwap, greedy.runs()));
    if meter.is_late() {
        return Err(NotFound::error(budget, (greedy.tried, lowest)));
    }
    Err(PlanError::infeasible(instance, budget, lowest))
}

/// A node whose outputs may be away, with times in the unplanned step.
#[derive(Clone, Copy)]
struct Swap {
    node: NodeId,
    /// The end of the last forward access, and the start of the first backward one.
    idle: [f64; 2],
    out: f64,
    back: f64,
}

impl Swap {
    fn free_time(&self) -> f64 {
        self.idle[1] - self.idle[0] - self.out - self.back
    }
}

/// Nodes whose outputs can be away and back between their last forward access and their first
/// backward one, by falling free time: idle seconds less swap seconds (the case `idle_time`). The
/// lanes hide the transfers of each in addition to those of all before it, and the tier has room
/// for it.
fn hidden(instance: Instance<'_>, route: Route, meter: &mut Meter<'_>) -> Vec<NodeId> {
    let Instance { graph, profile, order } = instance;
    meter.spend(2 * order.len() as u64);
    let curve = instance.simulate(&order.into()).curve;
    let table = access_profile(graph, profile, order, &curve, None);
    let mut start: SecondaryMap<NodeId, f64> = SecondaryMap::new();
    let mut now = 0.0;
    for &node in order {
        start[node] = now;
        now += profile.seconds[node].0;
    }
    let swap = |node: NodeId| {
        let row = &table[node];
        let needed = start[row.first_backward_access?];
        let seconds = |lane| {
            let link = profile.hierarchy.lanes[lane].link;
            let fresh = graph.fresh(node).iter();
            fresh.map(|&storage| link.seconds(graph.storages()[storage]).0).sum::<f64>()
        };
        let (out, back) = (seconds(route.out), seconds(route.back));
        let swap = Swap { node, idle: [needed - row.idle?.0, needed], out, back };
        (row.swap.is_some() && swap.free_time() >= 0.0).then_some(swap)
    };
    let mut candidates: Vec<Swap> = order.iter().filter_map(|&node| swap(node)).collect();
    candidates.sort_by(|a, b| b.free_time().total_cmp(&a.free_time()));
    let tier = &profile.hierarchy.tiers[route.tier];
    let mut room = tier.capacity.unwrap_or(Bytes::LIMIT);
    let below = |node: NodeId| {
        let fresh = graph.fresh(node).iter();
        let moved = fresh.map(|&storage| graph.storages()[storage].align_up(tier.block.0.max(1)));
        moved.sum::<Bytes>()
    };
    let mut swaps: Vec<Swap> = Vec::new();
    for candidate in candidates {
        meter.spend(swaps.len() as u64);
        swaps.push(candidate);
        match below(candidate.node) {
            bytes if bytes <= room && are_hidden(&swaps) => room -= bytes,
            _ => drop(swaps.pop()),
        }
    }
    swaps.iter().map(|swap| swap.node).collect()
}

/// Whether everything that leaves as soon as possible has left before it has to begin to return,
/// with one transfer of each lane after another.
fn are_hidden(swaps: &[Swap]) -> bool {
    let mut order: Vec<usize> = (0..swaps.len()).collect();
    order.sort_by(|&a, &b| swaps[a].idle[0].total_cmp(&swaps[b].idle[0]));
    let (mut left, mut free) = (vec![0.0; swaps.len()], 0.0);
    for &index in &order {
        free = f64::max(free, swaps[index].idle[0]) + swaps[index].out;
        left[index] = free;
    }
    order.sort_by(|&a, &b| swaps[b].idle[1].total_cmp(&swaps[a].idle[1]));
    let mut begins = f64::INFINITY;
    order.into_iter().all(|index| {
        begins = f64::min(begins, swaps[index].idle[1]) - swaps[index].back;
        begins >= left[index]
    })
}
