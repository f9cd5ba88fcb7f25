//! Less recomputation if some of what is held is away. Invariant: the result is a legal sequence;
//! it is within the budget as long as no less is away than was stated.

use cranelift_entity::EntityRef;
use fastrand::Rng;

use crate::effort::{Effort, Meter};
use crate::id::NodeId;
use crate::plan::Instance;
use crate::plan::quantity::{ByteCount, Picoseconds};
use crate::plan::search::neighbourhood::improve;
use crate::plan::search::repair::{polish, repair};
use crate::plan::search::state::State;
use crate::plan::search::state::problem::OpId;
use crate::plan::search::state::runs::{rebase, sequence};
use crate::units::Bytes;

/// A sequence that recomputes less than `runs`, given the bytes that are away at each of them;
/// `runs` if none is found.
pub fn relieved(
    instance: Instance<'_>,
    runs: &[NodeId],
    away: &[Bytes],
    budget: Bytes,
    effort: &Effort<'_>,
) -> Vec<NodeId> {
    let (mut problem, events) = rebase(instance, runs);
    // For each point, what is away at all of its runs.
    let mut seen = vec![false; instance.graph.nodes().len()];
    let (mut point, mut least) = (1, ByteCount(i64::MAX));
    for (&node, &away) in runs.iter().zip(away) {
        least = least.min(ByteCount::of(away));
        if !std::mem::replace(&mut seen[node.index()], true) {
            problem.base[OpId::at(point).index()] -= least;
            (point, least) = (point + 1, ByteCount(i64::MAX));
        }
    }
    let (limit, mut meter) = (ByteCount::of(budget), Meter::new(effort));
    let mut random = Rng::with_seed(effort.seed);
    let mut state = State::new(&problem);
    state.set(&events);
    if !repair(&mut state, limit, 0.0, &mut random, &mut meter) {
        return runs.to_vec();
    }
    polish(&mut state, limit, 0.0, &mut random, &mut meter);
    improve(&mut state, limit, &mut random, &mut meter, u64::MAX, Picoseconds::ZERO);
    sequence(&problem, &state.events())
}
