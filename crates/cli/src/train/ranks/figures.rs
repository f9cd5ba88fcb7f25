//! What is known of chosen ranks. Invariant: every figure is one of the checked plans; and they are
//! all that has to stay of the other ranks' plans while a rank runs.

use tightfit::graph::Graph;
use tightfit::id::StageId;
use tightfit::pipeline::RankInTime;
use tightfit::units::{Bytes, Seconds};
use tightfit_engine::{FittedStep, Reserve};

/// Ranks in figures.
pub struct Figures {
    /// The name of the order.
    pub schedule: String,
    /// The number of stages; zero if ranks share all of the step.
    pub stages: usize,
    /// Among how many ranks parameters, gradients and state are divided.
    pub shards: Option<u32>,
    /// The micro-batches of an update.
    pub micro_batches: u32,
    /// The messages of an update.
    pub messages: u32,
    /// Threads of each rank.
    pub threads: u32,
    /// Each rank, in its order.
    pub ranks: Vec<RankFigures>,
    /// The unplanned peak of the step on one device, with accumulation.
    pub whole: Bytes,
    /// Time of the step on one device, unplanned, with as many threads as a rank has.
    pub alone: Seconds,
    /// Why nothing is evaluated although there is an evaluation.
    pub not_evaluated: Option<String>,
}

/// A rank in figures.
pub struct RankFigures {
    /// Its stages.
    pub stages: Vec<StageId>,
    /// Parameters and state.
    pub kept: Bytes,
    /// Its budget.
    pub budget: Bytes,
    /// The part of it that is not the slab's.
    pub reserve: Reserve,
    /// The slab that its plan takes.
    pub slab: Bytes,
    /// The most bytes of the slab that are used.
    pub high_water: Bytes,
    /// The most bytes that are held at once.
    pub peak: Bytes,
    /// Nodes that are computed again.
    pub recomputed: usize,
    /// Total time of its calls.
    pub seconds: Seconds,
    /// How long it waits for others.
    pub waiting: Seconds,
    /// When its last call ends.
    pub end: Seconds,
    /// Which planner planned it.
    pub planner: String,
}

impl RankFigures {
    /// A plan in figures.
    pub fn of(
        plan: &FittedStep,
        graph: &Graph,
        stages: Vec<StageId>,
        time: &RankInTime,
    ) -> RankFigures {
        let training = &plan.training;
        RankFigures {
            stages,
            kept: graph.static_bytes(),
            budget: training.budget,
            reserve: training.reserve,
            slab: training.fitted.schedule().slab,
            high_water: plan.high_water(),
            peak: plan.peak(),
            recomputed: training.fitted.schedule().recomputed(),
            seconds: training.fitted.timeline().seconds,
            waiting: time.waiting,
            end: time.end,
            planner: training.fitted.schedule().planner.clone(),
        }
    }
}

impl Figures {
    /// Predicted time of an update.
    pub fn makespan(&self) -> Seconds {
        Seconds(self.ranks.iter().map(|rank| rank.end.0).fold(0.0, f64::max))
    }

    /// The share of the ranks' time in which they wait, as predicted.
    pub fn idle(&self) -> f64 {
        let all = self.makespan().0 * self.ranks.len() as f64;
        let busy: f64 = self.ranks.iter().map(|rank| rank.end.0 - rank.waiting.0).sum();
        if all > 0.0 { 1.0 - busy / all } else { 0.0 }
    }
}
