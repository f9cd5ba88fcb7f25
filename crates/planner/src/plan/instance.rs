//! What is planned, and what a planner makes of it. Invariant: an instance's order has each node
//! that computes once, after all of its inputs; a plan's peak and seconds are those of its
//! sequence, simulated.

use crate::analysis::{MemoryCurve, Sequence, held, seconds};
use crate::graph::Graph;
use crate::id::NodeId;
use crate::machine::Route;
use crate::plan::{PlanError, Planner};
use crate::profile::Profile;
use crate::units::{Bytes, Seconds};

/// A step with its costs, and the order in which its nodes run for the first time.
#[derive(Clone, Copy, Debug)]
pub struct Instance<'a> {
    /// The step.
    pub graph: &'a Graph,
    /// What its nodes cost.
    pub profile: &'a Profile,
    /// The nodes that compute, in the order of their first runs.
    pub order: &'a [NodeId],
}

/// What a planner decided.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The planner that made it.
    pub planner: Planner,
    /// Runs and moves, in order.
    pub sequence: Sequence,
    /// The most bytes that it holds at once.
    pub peak: Bytes,
    /// How long it takes.
    pub seconds: Seconds,
}

impl Plan {
    /// A sequence as the plan of a planner, simulated.
    pub fn new(graph: &Graph, profile: &Profile, planner: Planner, sequence: Sequence) -> Plan {
        let Simulation { curve, seconds } = simulate(graph, profile, &sequence);
        Plan { planner, sequence, peak: curve.peak, seconds }
    }

    /// The nodes that it runs, in order.
    pub fn runs(&self) -> Vec<NodeId> {
        self.sequence.runs()
    }
}

/// Bytes and seconds of a sequence.
#[derive(Clone, Debug)]
pub struct Simulation {
    /// The bytes that are held at each run.
    pub curve: MemoryCurve,
    /// The seconds of all runs together, including those in which they wait for transfers.
    pub seconds: Seconds,
}

/// Simulates a sequence.
pub fn simulate(graph: &Graph, profile: &Profile, sequence: &Sequence) -> Simulation {
    let curve = held(graph, profile, sequence);
    Simulation { curve, seconds: seconds(graph, profile, sequence) }
}

impl<'a> Instance<'a> {
    /// A step with its costs and an order, such as [`base_order`](crate::plan::base_order).
    pub fn new(graph: &'a Graph, profile: &'a Profile, order: &'a [NodeId]) -> Instance<'a> {
        Instance { graph, profile, order }
    }

    /// The route over which plans may move tensors, if the machine has a tier.
    pub fn route(&self) -> Option<Route> {
        self.profile.hierarchy.main_route()
    }

    /// Bytes and seconds of a sequence.
    pub fn simulate(&self, sequence: &Sequence) -> Simulation {
        simulate(self.graph, self.profile, sequence)
    }

    /// The most bytes that a sequence holds at once.
    pub fn peak(&self, sequence: impl Into<Sequence>) -> Bytes {
        held(self.graph, self.profile, &sequence.into()).peak
    }

    /// A sequence as the plan of a planner.
    pub fn plan(&self, planner: Planner, sequence: impl Into<Sequence>) -> Plan {
        Plan::new(self.graph, self.profile, planner, sequence.into())
    }

    /// A plan, if it fits a budget, and otherwise a refusal with it as the lowest one known.
    pub(crate) fn within(self, budget: Bytes, plan: Plan) -> Result<Plan, PlanError> {
        match plan.peak <= budget {
            true => Ok(plan),
            false => Err(PlanError::infeasible(self, budget, plan)),
        }
    }

    /// The order of first runs alone, as a plan.
    pub fn unplanned(&self, planner: Planner) -> Plan {
        self.plan(planner, self.order)
    }

    /// Seconds of all first runs together; no schedule is faster.
    pub fn seconds(&self) -> Seconds {
        self.profile.total(self.order)
    }
}
