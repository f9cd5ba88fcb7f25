//! What is planned. Invariant: an instance's order has each node that computes once, after
//! everything that it reads.

use crate::graph::Graph;
use crate::id::NodeId;
use crate::machine::Route;
use crate::plan::{Plan, Simulation, simulate, simulate_plan};
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

impl<'a> Instance<'a> {
    /// A step with its costs and an order, such as [`base_order`](crate::plan::base_order).
    pub fn new(graph: &'a Graph, profile: &'a Profile, order: &'a [NodeId]) -> Instance<'a> {
        Instance { graph, profile, order }
    }

    /// The way over which plans may move what they hold, where the machine has a tier.
    pub fn route(&self) -> Option<Route> {
        self.profile.hierarchy.main_route()
    }

    /// Bytes and seconds of a sequence of runs.
    pub fn simulate(&self, runs: &[NodeId]) -> Simulation {
        simulate(self.graph, self.profile, runs)
    }

    /// Bytes and seconds of a plan, with what it moves.
    pub fn simulate_plan(&self, plan: &Plan) -> Simulation {
        simulate_plan(self.graph, self.profile, plan)
    }

    /// The most bytes that a sequence of runs holds at once.
    pub fn peak(&self, runs: &[NodeId]) -> Bytes {
        self.simulate(runs).curve.peak
    }

    /// Seconds of all first runs together, which no schedule is faster than.
    pub fn seconds(&self) -> Seconds {
        self.profile.total(self.order)
    }
}
