//! A changed plan, given to the checker. Invariant: what the checker accepts is executed, and must
//! give the bits of the step as captured; that is a judge that shares no code with it.

use tightfit::check::Checked;
use tightfit::graph::{Graph, read};
use tightfit::machine::Machine;
use tightfit::profile::Profile;
use tightfit::schedule;
use tightfit::unplanned;

use crate::target::{raw, refused};
use crate::verdict::Verdict;

const THREADS: u32 = 2;

/// The profile with which plans of this target are made and judged.
pub fn profile(graph: &Graph) -> Profile {
    Profile::new(graph, &Machine::unmeasured_cpu(THREADS))
}

/// Reads, checks and executes a plan.
pub fn judge(graph: &[u8], plan: &[u8]) -> Verdict {
    let graph = match read(graph) {
        Ok(graph) => graph,
        Err(error) => return refused("reading the graph", &error),
    };
    let planned = match schedule::read(&graph, plan) {
        Ok(planned) => planned,
        Err(error) => return refused("reading", &error),
    };
    let profile = profile(&graph);
    if let Err(violation) = Checked::new(&graph, &profile, planned.clone()) {
        return refused("checking", &violation);
    }
    if let Some(verdict) = raw::too_large(&graph) {
        return verdict;
    }
    // A slab may be larger than what lies in it.
    if u128::from(planned.slab.0) > super::MOST_BYTES {
        return Verdict::Skipped("a slab too large to be executed here".to_string());
    }
    let one = Profile::new(&graph, &Machine::unmeasured_cpu(1));
    let captured = match unplanned(&graph, &one) {
        Ok(fitted) => fitted.schedule().clone(),
        Err(violation) => return Verdict::Wrong(format!("unplanned: {violation}")),
    };
    match raw::execute(&graph, &profile, &planned, THREADS as usize, 0x00) {
        // The engine executes calls and nothing else, on aligned addresses.
        Err(verdict) if !verdict.is_finding() => verdict,
        left => raw::same(&raw::execute(&graph, &one, &captured, 1, 0xff), &left),
    }
}
