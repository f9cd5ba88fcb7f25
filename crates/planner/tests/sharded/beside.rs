//! When collectives have to have ended, compared block by block with what each instruction touches.
//!
//! Tier: quick, since it takes 1 s.

use std::collections::BTreeSet;

use tightfit::effort::Effort;
use tightfit::operator::Operator;
use tightfit::profile::Profile;
use tightfit::schedule::{Instruction, Schedule};
use tightfit::sharded::{Ending, Sharded, endings, in_time};
use tightfit::units::Bytes;
use tightfit::{Request, fit, unplanned};

use crate::fixtures::corpus::profile;
use crate::sharded::shard::{REDUCTIONS, shared};

/// Blocks of 64 bytes that an instruction reads, and those that it writes.
fn touched(schedule: &Schedule, instruction: &Instruction) -> [BTreeSet<u64>; 2] {
    let mut blocks = [BTreeSet::new(), BTreeSet::new()];
    let Some(call) = instruction.call() else { return blocks };
    let written = call.outputs.iter().chain(&call.workspace);
    let all = call.inputs.iter().map(|buffer| (0, buffer)).chain(written.map(|it| (1, it)));
    for (kind, &buffer) in all {
        let place = schedule.buffers[buffer];
        blocks[kind].extend(place.address / 64..(place.address + place.bytes.0).div_ceil(64));
    }
    blocks
}

#[test]
fn collectives_end_before_what_needs_their_end() {
    for reductions in REDUCTIONS {
        let (_, Sharded { graph, .. }) = shared(reductions);
        let profile: Profile = profile(&graph);
        let whole = unplanned(&graph, &profile).unwrap().timeline().peak;
        for percent in [100, 70, 55] {
            let request = Request {
                effort: Effort::work(1, 5_000),
                ..Request::within(Bytes(whole.0 * percent / 100))
            };
            let fitted = fit(&graph, &profile, &request);
            let fitted = fitted.map_err(|error| error.to_string()).unwrap();
            let schedule = fitted.schedule();
            let touched: Vec<_> =
                schedule.instructions.iter().map(|one| touched(schedule, one)).collect();
            let node = |index: usize| schedule.instructions[index].call().map(|call| call.node);
            let is_collective = |index: &usize| {
                let operator = node(*index).and_then(|node| graph.nodes()[node].operator);
                operator.is_some_and(Operator::is_collective)
            };
            let indices = 0..schedule.instructions.len();
            let mut expected: Vec<Ending> = Vec::new();
            for call in indices.clone().filter(is_collective) {
                let [takes, brings] = &touched[call];
                let needs = |&later: &usize| {
                    let [reads, writes] = &touched[later];
                    node(later) == node(call)
                        || !brings.is_disjoint(reads)
                        || !brings.is_disjoint(writes)
                        || !takes.is_disjoint(writes)
                };
                let before = indices.clone().skip(call + 1).find(needs).unwrap_or(indices.end);
                expected.push(Ending { call, before });
            }
            expected.sort_by_key(|ending| (ending.before, ending.call));
            assert_eq!(endings(&graph, schedule), expected);
            // No step takes longer with collectives overlapped than with calls in turn.
            let alone = in_time(&graph, schedule, fitted.timeline());
            assert!(alone.end.0 <= fitted.timeline().seconds.0 * (1.0 + 1e-9));
            assert_eq!(alone.starts.len(), fitted.timeline().calls.len());
        }
    }
}
