//! The plan of ranks that share a step. Invariant: all of them run one plan, which was checked
//! within the budget. Which bits come out depends on the number of ranks and on when gradients are
//! exchanged, both of which are asked for, and on nothing that is chosen here.

use tightfit::analysis::modules::{ModuleIndex, measure};
use tightfit::id::RankId;
use tightfit::machine::Link;
use tightfit::pipeline::RankInTime;
use tightfit::plan::SolverLimits;
use tightfit::plan::modules::{ShardTask, ShardVariant, shard_on};
use tightfit::profile::Profile;
use tightfit::sharded::{Reductions, Units, in_time};
use tightfit::units::Seconds;
use tightfit_engine::step::Sharing;

use super::chosen::{Asked, Chosen, Division, Known, better, the_best};
use super::figures::{Figures, RankFigures};
use super::{Reduce, Transport};
use crate::effort::clock;

/// How long modules are chosen for that gather their parameters by themselves.
const SOLVER: Seconds = Seconds(5.0);
/// How far above the optimum that choice may be.
const GAP: f64 = 0.05;
/// Collectives of a unit that go on beside another one take memory for both, so each is tried.
const OVERLAPS: [bool; 2] = [true, false];

/// Chooses.
pub fn choose(asked: &Asked<'_>, ranks: u32) -> anyhow::Result<Chosen> {
    let micro_batches = asked.arguments.accumulation.micro_batches();
    let reductions = match asked.arguments.ranks.reduce {
        Reduce::MicroBatch => Reductions::EachMicroBatch,
        Reduce::Update => Reductions::Once,
    };
    let sharing = |overlaps, units: &Units| Sharing {
        ranks,
        micro_batches,
        units: units.clone(),
        overlaps,
        reductions,
    };
    // Before anything is measured.
    asked.step.sharded(&sharing(false, &Units::default()))?;
    let known = Known::of(asked)?;
    let units = units(asked, &known, ranks);
    let (mut best, mut refused) = (None, None);
    for overlaps in OVERLAPS {
        let planned = plan(asked, &known, sharing(overlaps, &units));
        better(&mut best, &mut refused, planned, known.budget);
    }
    the_best(best, refused)
}

/// The modules that gather their parameters by themselves, as the sharding planner chooses them;
/// where by its model nothing fits, which the planner of single tensors may well do, all that have
/// parameters.
fn units(asked: &Asked<'_>, known: &Known, ranks: u32) -> Units {
    let profile = Profile::measured(&asked.step.training, &known.machine, &known.seconds);
    let Ok(info) = measure(&asked.step.training, &profile) else { return Units::default() };
    let link = Link { latency: Seconds(0.0), bandwidth: known.machine.bandwidth };
    let task = ShardTask {
        budget: known.slab(),
        world_size: ranks,
        all_gather: link,
        reduce_scatter: link,
        variant: ShardVariant::Ours,
        units: None,
        checkpointing: true,
        host: None,
        limits: SolverLimits { gap: GAP, seconds: Some(SOLVER) },
    };
    let name = |module: ModuleIndex| info.modules()[module].name.clone();
    match shard_on(&info, &task, &clock) {
        Ok(plan) => Units::new(plan.units.iter().map(|unit| name(unit.module))),
        Err(_) => {
            let modules = info.modules().iter();
            Units::new(modules.filter(|(_, it)| it.is_leaf).map(|(module, _)| name(module)))
        }
    }
}

/// One way with its plan.
fn plan(asked: &Asked<'_>, known: &Known, sharing: Sharing) -> anyhow::Result<Chosen> {
    let divided = asked.step.sharded(&sharing)?;
    let step = &divided.ranks[RankId::from_u32(0)];
    let plan = known.plan(asked, step, OVERLAPS.len())?;
    let fitted = &plan.training.fitted;
    let time = match asked.arguments.ranks.transport {
        Transport::Mpi => in_time(&step.training, fitted.schedule(), fitted.timeline()),
        // Threads copy when they wait, so nothing goes on beside calls.
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
        machine: known.machine.clone(),
        seconds: known.seconds.clone(),
    })
}
