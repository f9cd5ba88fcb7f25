//! What the first rank tells another one to run. Invariant: a rank makes its part of the step
//! itself and checks the schedules that it received against that, so nothing runs that it did not
//! check.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tightfit::check::Checked;
use tightfit::graph::Graph;
use tightfit::id::{RankId, SecondaryMap, StageId};
use tightfit::machine::Machine;
use tightfit::pipeline::{Leeway, read_csv, write_csv};
use tightfit::profile::{CallSeconds, Profile};
use tightfit::schedule;
use tightfit::sharded::Reductions;
use tightfit::units::Bytes;
use tightfit_engine::step::{Divided, Sharing};
use tightfit_engine::transport::{Link, Route};
use tightfit_engine::{Step, VERSION};

use super::chosen::{Chosen, Division};
use super::refused::Refused;
use super::share::Share;
use crate::failure::Result;

/// The message that assigns a rank its work.
#[derive(Deserialize, Serialize)]
struct Told {
    division: ToldDivision,
    machine: Machine,
    /// The known times of calls, as JSON.
    seconds: String,
    /// The plan of the rank's training graph.
    training: Value,
    /// The plan of the rank's evaluation graph.
    evaluation: Option<Value>,
    slab: u64,
    /// How long the rank waits for others.
    deadline: Duration,
}

/// How the step is divided.
#[derive(Clone, Deserialize, Serialize)]
enum ToldDivision {
    Stages {
        /// Which rank does what, as CSV.
        rows: String,
        /// The stage of each node of the forward pass.
        of_forward: Vec<u32>,
        /// The leeway of messages.
        ahead: usize,
        behind: u32,
    },
    Shards {
        ranks: u32,
        micro_batches: u32,
        /// Gradients are reduced for each micro-batch.
        each: bool,
    },
}

impl ToldDivision {
    fn of(step: &Step, division: &Division) -> ToldDivision {
        match division {
            Division::Stages { rows, of_forward, leeway } => {
                let nodes = step.training.nodes().keys();
                let of_forward = nodes.map(|node| of_forward[node].as_u32()).collect();
                let Leeway { ahead, behind } = *leeway;
                ToldDivision::Stages { rows: write_csv(rows), of_forward, ahead, behind }
            }
            Division::Shards(sharing) => ToldDivision::Shards {
                ranks: sharing.ranks,
                micro_batches: sharing.micro_batches,
                each: sharing.reductions == Reductions::EachMicroBatch,
            },
        }
    }

    /// Divides the step in this way.
    fn divide(self, step: &Step) -> Result<Divided> {
        match self {
            ToldDivision::Stages { rows, of_forward, ahead, behind } => {
                let rows = read_csv(&rows).map_err(|error| no_plan(error.to_string()))?;
                let mut stages = SecondaryMap::with_default(StageId::from_u32(0));
                for (node, &stage) in step.training.nodes().keys().zip(&of_forward) {
                    stages[node] = StageId::from_u32(stage);
                }
                Ok(step.divided(&stages, &rows, Leeway { ahead, behind })?)
            }
            ToldDivision::Shards { ranks, micro_batches, each } => {
                let reductions = if each { Reductions::EachMicroBatch } else { Reductions::Once };
                Ok(step.sharded(Sharing { ranks, micro_batches, reductions })?)
            }
        }
    }
}

/// What this rank was told makes no sense here.
fn no_plan(says: String) -> Refused {
    Refused::NoPlan { says }
}

/// Tells all other ranks what to run.
pub fn tell(link: &dyn Link, step: &Step, chosen: &Chosen, deadline: Duration) -> Result<()> {
    let division = ToldDivision::of(step, &chosen.division);
    for rank in (1..link.ranks()).map(RankId::from_u32) {
        let (step, plan) = (&chosen.divided.ranks[rank], &chosen.plans[rank]);
        let evaluation = step.evaluation.as_ref().zip(plan.evaluation.as_ref());
        let told = Told {
            division: division.clone(),
            machine: chosen.machine.clone(),
            seconds: chosen.seconds.write(),
            training: schedule::write(&step.training, plan.training.fitted.schedule()),
            evaluation: evaluation.map(|(graph, plan)| schedule::write(graph, plan.schedule())),
            slab: plan.training.slab().0,
            deadline,
        };
        let text = serde_json::to_vec(&told)?;
        link.give(rank, &(text.len() as u64).to_ne_bytes())?;
        link.give(rank, &text)?;
    }
    Ok(())
}

/// Receives from the first rank what this one is to run, the routes of all messages, and how long
/// it waits for others.
pub fn hear(link: &dyn Link, step: &Step) -> Result<(Share, Vec<Route>, Duration)> {
    let leader = RankId::from_u32(0);
    let mut length = [0; 8];
    link.take(leader, &mut length)?;
    let mut text = vec![0; usize::try_from(u64::from_ne_bytes(length))?];
    link.take(leader, &mut text)?;
    let told: Told = serde_json::from_slice(&text).map_err(|error| no_plan(error.to_string()))?;
    drop(text);
    let machine = told.machine.validate()?;
    let seconds = CallSeconds::read(told.seconds.as_bytes(), VERSION, machine.threads);
    let seconds = seconds.map_err(|error| no_plan(error.to_string()))?;
    let divided = told.division.divide(step)?;
    let slab = Bytes(told.slab);
    let checked = |graph: &Graph, plan: &Value| -> Result<Checked> {
        let profile = Profile::measured(graph, &machine, &seconds);
        let schedule = schedule::read(graph, plan.to_string().as_bytes())?;
        let checked = Checked::new(graph, &profile, schedule)?;
        let over = || no_plan(format!("its slab has more than {slab}"));
        Ok(checked.within(slab).ok_or_else(over)?)
    };
    let Divided { ranks, routes, first_of_evaluation, .. } = divided;
    let own = ranks.into_iter().find(|(rank, _)| *rank == link.rank());
    let (_, own) = own.ok_or_else(|| no_plan("it has fewer ranks".to_string()))?;
    let training = checked(&own.training, &told.training)?;
    let evaluation = own.evaluation.as_ref().zip(told.evaluation.as_ref());
    let evaluation = evaluation.map(|(graph, plan)| checked(graph, plan)).transpose()?;
    let share = Share { step: own, training, evaluation, slab, machine, first_of_evaluation };
    Ok((share, routes, told.deadline))
}
