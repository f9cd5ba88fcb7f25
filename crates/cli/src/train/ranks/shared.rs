//! The plan of ranks that share a step. Invariant: all of them run one plan, which was checked
//! within the budget. Which bits come out depends on the number of ranks and on when gradients are
//! exchanged, both of which are requested, and on nothing that is chosen here.

use tightfit::id::RankId;
use tightfit::pipeline::RankInTime;
use tightfit::sharded::{Reductions, in_time};
use tightfit::units::Seconds;
use tightfit_engine::step::Sharing;

use super::chosen::{Asked, Chosen, Division, Known};
use super::figures::{Figures, RankFigures};
use super::{Reduce, Transport};
use crate::failure::Result;

/// Plans.
pub fn choose(asked: &Asked<'_>, ranks: u32) -> Result<Chosen> {
    let micro_batches = asked.arguments.batches.micro_batches();
    let reductions = match asked.arguments.ranks.reduce {
        Reduce::MicroBatch => Reductions::EachMicroBatch,
        Reduce::Update => Reductions::Once,
    };
    let sharing = Sharing { ranks, micro_batches, reductions };
    // Whether the step can be divided so is known before anything is measured.
    let divided = asked.step.sharded(sharing)?;
    let known = Known::of(asked)?;
    let step = &divided.ranks[RankId::from_u32(0)];
    let plan = known.plan(asked, step, 1)?;
    let fitted = &plan.training.fitted;
    let time = match asked.arguments.ranks.transport {
        Transport::Mpi => in_time(&step.training, fitted.schedule(), fitted.timeline()),
        // Threads copy when they wait, so nothing moves at the same time as calls.
        Transport::Thread => {
            let of_ranks = |node| step.training.nodes()[node].operator;
            let collectives = fitted.timeline().calls.iter().filter(|call| {
                of_ranks(call.node).is_some_and(|operator| operator.is_collective())
            });
            let waiting = collectives.fold(0.0, |sum, call| sum + call.seconds.0);
            let end = fitted.timeline().seconds;
            RankInTime { end, waiting: Seconds(waiting), ..RankInTime::default() }
        }
    };
    let ranks = divided.ranks.values();
    let ranks = ranks.map(|step| RankFigures::of(&plan, &step.training, Vec::new(), &time));
    let how = match sharing.reductions {
        Reductions::Once => "gradients reduced once an update",
        Reductions::EachMicroBatch => "gradients reduced for each micro-batch",
    };
    let figures = Figures {
        schedule: how.to_string(),
        stages: 0,
        shards: Some(sharing.ranks),
        micro_batches: sharing.micro_batches,
        messages: divided.first_of_evaluation,
        threads: known.machine.threads,
        ranks: ranks.collect(),
        whole: known.unplanned.timeline().peak,
        alone: known.unplanned.timeline().seconds,
        not_evaluated: None,
    };
    Ok(Chosen {
        figures,
        plans: divided.ranks.values().map(|_| plan.clone()).collect(),
        division: Division::Shards(sharing),
        divided,
        machine: known.machine,
        seconds: known.seconds,
    })
}
