//! A pipeline whose ranks are planned tensor by tensor. Invariant: the schedule of each rank was
//! checked within its budget, and the time is that of all of them together, each waiting for what
//! the others send.
//!
//! The model of layers determines the cuts and the order; it knows neither which tensors of a layer
//! are cheap to compute again nor that a backward pass frees them one after the other. So its plans
//! are planned once more, by the planner of single steps, for the graph that each rank has of all
//! micro-batches; and are ranked by the time that this takes.

use cranelift_entity::PrimaryMap;
use thiserror::Error;

use crate::effort::Effort;
use crate::exit::{Coded, Exit};
use crate::fit::{BudgetedPlanner, FitError, Fitted};
use crate::graph::{Graph, Phase};
use crate::id::{NodeId, RankId};
use crate::pipeline::stages::{Devices, StagePlan};
use crate::pipeline::{
    Action, Division, Layer, Leeway, Performed, PipelineError, RankInTime, Ranks, Simulated,
    assign, ranks, together,
};
use crate::plan::{Instance, Planner, base_order, needed};
use crate::profile::Profile;
use crate::schedule::Residents;
use crate::units::{Bytes, Seconds};

/// How ranks are planned.
#[derive(Clone, Copy)]
pub struct TensorPlanning<'a> {
    /// The step, of one micro-batch.
    pub graph: &'a Graph,
    /// The layers that it was cut into.
    pub layers: &'a [Layer],
    /// The devices of the ranks.
    pub devices: &'a Devices,
    /// Bytes per element of a parameter, its gradient and the optimizer's state included, if the
    /// graph does not contain those.
    pub state: Option<f64>,
    /// The cost of the calls of a rank's graph.
    pub profile: &'a dyn Fn(&Graph) -> Profile,
    /// The planner of each rank.
    pub planner: Planner,
    /// The effort: the time of all ranks together, the work and the floors of each.
    pub effort: Effort<'a>,
}

/// A rank, planned.
#[derive(Clone, Debug)]
pub struct PlannedRank {
    /// The most bytes that it holds at once.
    pub peak: Bytes,
    /// The number of recomputations.
    pub recomputed: usize,
    /// The time that these and moves add.
    pub recomputation: Seconds,
    /// The time of all its calls.
    pub seconds: Seconds,
    /// How long it waits for others.
    pub waiting: Seconds,
}

/// A pipeline, planned tensor by tensor.
#[derive(Clone, Debug)]
pub struct PlannedStages {
    /// The cut and the order, and what the model of layers predicts for them.
    pub plan: StagePlan,
    /// What each rank does.
    pub ranks: PrimaryMap<RankId, PlannedRank>,
    /// The times of that; recomputations belong to the action that comes next.
    pub times: Simulated,
}

impl PlannedStages {
    /// The share of the ranks' time in which they do nothing.
    pub fn idle(&self) -> f64 {
        let all = self.times.makespan.0 * self.ranks.len() as f64;
        let busy: Seconds = self.ranks.values().map(|rank| rank.seconds).sum();
        if all > 0.0 { 1.0 - busy.0 / all } else { 0.0 }
    }

    /// The time of recomputation, as a share of all calls' time.
    pub fn recomputed(&self) -> f64 {
        let all: Seconds = self.ranks.values().map(|rank| rank.seconds).sum();
        let again: Seconds = self.ranks.values().map(|rank| rank.recomputation).sum();
        if all.0 > 0.0 { again.0 / all.0 } else { 0.0 }
    }
}

/// Why a pipeline is not planned.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TensorPlanningError {
    /// The step cannot be divided like this.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// A rank does not fit.
    #[error("{schedule}: {rank}: {error}")]
    Rank {
        /// The name of the order.
        schedule: String,
        /// The first rank that does not fit.
        rank: RankId,
        /// Bytes of it that its graph does not contain.
        beside: Bytes,
        /// Why not.
        error: Box<FitError>,
    },
    /// A rank has less than it holds in every schedule.
    #[error("{schedule}: {rank} needs {needed} at least")]
    TooLittle {
        /// The name of the order.
        schedule: String,
        /// The rank that needs most.
        rank: RankId,
        /// The bytes that it needs.
        needed: Bytes,
    },
    /// The ranks wait for each other, which is a bug of this crate.
    #[error("{schedule}: the ranks wait for each other for ever; please report this")]
    Stuck {
        /// The name of the order.
        schedule: String,
    },
}

impl Coded for TensorPlanningError {
    fn exit(&self) -> Exit {
        match self {
            TensorPlanningError::Pipeline(error) => error.exit(),
            TensorPlanningError::Rank { error, .. } => error.exit(),
            TensorPlanningError::TooLittle { .. } => Exit::NotFound,
            TensorPlanningError::Stuck { .. } => Exit::Other,
        }
    }
}

impl TensorPlanning<'_> {
    /// Plans every rank of a pipeline within its budget, with leeway for senders if there is room
    /// for it.
    ///
    /// # Errors
    /// [`TensorPlanningError`] if a rank does not fit.
    pub fn plan(&self, plan: &StagePlan) -> Result<PlannedStages, TensorPlanningError> {
        let (effort, start) = (self.effort, (self.effort.clock)());
        // Both attempts share a chosen deadline: a refusal takes as long as it may.
        let attempt = |deadline: f64| match effort.grace {
            Some(grace) => Effort {
                deadline: Seconds(deadline.max(0.0)),
                grace: Some(Seconds(grace.0 / 2.0)),
                ..effort
            },
            None => effort,
        };
        let half = effort.deadline.0 / 2.0;
        self.with(plan, Leeway::OF_SENDERS, &attempt(half)).or_else(|_| {
            let spent = (effort.clock)().0 - start.0;
            self.with(plan, Leeway::NONE, &attempt(effort.deadline.0 - spent))
        })
    }

    fn with(
        &self,
        plan: &StagePlan,
        leeway: Leeway,
        effort: &Effort<'_>,
    ) -> Result<PlannedStages, TensorPlanningError> {
        let division = Division::new(self.graph, &assign(self.layers, &plan.ends))?;
        let Ranks { graphs, begins, messages, .. } = ranks(&division, &plan.rows, leeway)?;
        let schedule = || plan.schedule.clone();
        let profiles: PrimaryMap<RankId, Profile> = graphs.values().map(self.profile).collect();
        // Checked before any search.
        let needed = |(rank, graph): (RankId, &Graph)| {
            (needed(graph, &profiles[rank], self.planner) + self.beside(graph), rank)
        };
        let most = graphs.iter().map(needed).max();
        if let Some((needed, rank)) = most.filter(|(needed, _)| *needed > self.devices.budget) {
            let schedule = schedule();
            return Err(TensorPlanningError::TooLittle { schedule, rank, needed });
        }
        let (mut fitted, mut ranks) = (Vec::new(), PrimaryMap::new());
        let start = (effort.clock)();
        for (rank, graph) in &graphs {
            let beside = self.beside(graph);
            let budget = self.devices.budget.saturating_sub(beside);
            let profile = &profiles[rank];
            let order = base_order(graph, profile);
            let instance = Instance::new(graph, profile, &order);
            let mut planner = BudgetedPlanner::new(instance, self.planner, Residents::none());
            let effort = of_next_rank(effort, start, graphs.len() - ranks.len(), graphs.len());
            let found =
                planner.fit(budget, &effort).0.map_err(|error| TensorPlanningError::Rank {
                    schedule: schedule(),
                    rank,
                    beside,
                    error: error.into(),
                })?;
            let once = profile.total(&graph.compute_nodes());
            ranks.push(PlannedRank {
                peak: found.timeline().peak + beside,
                recomputed: found.schedule().recomputed(),
                recomputation: Seconds((found.timeline().seconds.0 - once.0).max(0.0)),
                seconds: found.timeline().seconds,
                waiting: Seconds(0.0),
            });
            fitted.push(found);
        }
        let transfers: Vec<Seconds> = messages
            .iter()
            .map(|message| self.devices.transfer(self.graph.values()[message.value].tensor.bytes()))
            .collect();
        let timelines = fitted.iter().map(Fitted::timeline);
        let times = together(graphs.values().zip(timelines), &transfers)
            .ok_or_else(|| TensorPlanningError::Stuck { schedule: schedule() })?;
        let mut performed = PrimaryMap::new();
        for ((rank, time), found) in times.iter().zip(&fitted) {
            ranks[rank].waiting = time.waiting;
            performed.push(actions(&plan.rows.rows[rank], &begins[rank], found, time));
        }
        let end = times.values().map(|time| time.end.0).fold(0.0, f64::max);
        let peaks = ranks.values().map(|rank| rank.peak).collect();
        let times = Simulated { ranks: performed, makespan: Seconds(end), peaks };
        Ok(PlannedStages { plan: plan.clone(), ranks, times })
    }

    /// The bytes of a rank's parameters that its graph does not contain, if gradients are as large
    /// as their parameters.
    fn beside(&self, graph: &Graph) -> Bytes {
        let Some(state) = self.state else { return Bytes::ZERO };
        let (mut whole, mut known) = (0.0, graph.static_bytes());
        for (id, storage) in graph.placeholder_storages() {
            if graph.nodes()[id].phase == Phase::Parameter {
                let outputs = graph.nodes()[id].outputs.iter().flatten();
                let elements = |&value: &_| graph.values()[value].tensor.elements() as f64;
                whole += outputs.map(elements).sum::<f64>() * state;
                known += graph.storages()[storage];
            }
        }
        Bytes(whole as u64).saturating_sub(known)
    }
}

/// The effort for the next rank: what one does not need is for those after it. If the deadline was
/// not chosen, each has at least as much as if all took equally long.
fn of_next_rank<'a>(
    effort: &Effort<'a>,
    start: Seconds,
    waiting: usize,
    ranks: usize,
) -> Effort<'a> {
    let left = effort.deadline.0 - ((effort.clock)().0 - start.0);
    let (left, equal) = (left.max(0.0) / waiting as f64, effort.deadline.0 / ranks as f64);
    match effort.grace {
        Some(grace) => {
            let grace = Some(Seconds(grace.0 / ranks as f64));
            Effort { deadline: Seconds(left), grace, ..*effort }
        }
        None => Effort { deadline: Seconds(left.max(equal)), ..*effort },
    }
}

/// What a rank does, and when: stretches of calls of one action. The update belongs to none.
fn actions(
    row: &[Action],
    begins: &[NodeId],
    fitted: &Fitted,
    time: &RankInTime,
) -> Vec<Performed> {
    let mut done: Vec<Performed> = Vec::new();
    // The start of recomputations whose action is not known yet.
    let mut again: Option<Seconds> = None;
    for (call, &start) in fitted.timeline().calls.iter().zip(&time.starts) {
        let end = Seconds(start.0 + call.seconds.0);
        if call.recomputed {
            again = again.or(Some(start));
            continue;
        }
        let before = begins.partition_point(|&first| first <= call.node);
        let Some(&action) = before.checked_sub(1).and_then(|index| row.get(index)) else {
            continue;
        };
        let start = again.take().unwrap_or(start);
        let goes_on = |last: &&mut Performed| last.action == action && start.0 - last.end.0 < 1e-9;
        match done.last_mut().filter(goes_on) {
            Some(last) => last.end = end,
            None => done.push(Performed { action, start, end }),
        }
    }
    done
}
