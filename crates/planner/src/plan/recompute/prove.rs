//! What happens beside the race, on a second thread: the bound rises, and the other planners plan. Invariant: nothing here
//! waits for the race, and with a limit of work alone nothing here depends on how fast the race is.

use std::cmp::Reverse;
use std::sync::Mutex;

use super::bound::Instant;
use super::meter::Meter;
use super::problem::{OpId, Picoseconds, Problem, Size};
use crate::graph::{Graph, NodeId};
use crate::plan::{self, PlanError, Planner};
use crate::profile::Profile;
use crate::units::Bytes;

/// The other planners, the quicker ones first.
const PEERS: [Planner; 6] = [Planner::Chen, Planner::Dtr, Planner::Knapsack, Planner::Rotor, Planner::Capuchin, Planner::Xla];
/// Parts of the effort at whose ends branch and bound goes on to the next instant.
pub const PROOF: [f64; 4] = [0.5, 0.7, 0.85, 0.95];

/// Operators that run again after an instant.
pub type LateSet = (OpId, Vec<OpId>);

/// What the prover found out so far.
pub struct News(Mutex<(Picoseconds, Vec<LateSet>)>);

impl News {
    /// The bound at the start.
    pub fn new(floor: Picoseconds) -> News {
        News(Mutex::new((floor, Vec::new())))
    }

    /// A bound, and sets of operators that make plans.
    fn write(&self, floor: Picoseconds, sets: impl Iterator<Item = LateSet>) {
        if let Ok(mut news) = self.0.lock() {
            news.0 = news.0.max(floor);
            news.1.extend(sets);
        }
    }

    /// The bound so far, and the sets since the last time.
    pub fn read(&self) -> (Picoseconds, Vec<LateSet>) {
        self.0.lock().map_or((0, Vec::new()), |mut news| (news.0, std::mem::take(&mut news.1)))
    }
}

/// The plans of the other planners, as far as there is time for them.
pub fn peers(graph: &Graph, profile: &Profile, problem: &Problem, limit: Size, meter: &mut Meter) -> Vec<Vec<NodeId>> {
    let order: Vec<NodeId> = problem.ops.values().filter_map(|op| op.node).collect();
    // None of them takes much more than this.
    let work = (order.len() * order.len()) as u64 / 32;
    let mut plans = Vec::new();
    for planner in PEERS {
        if meter.left() / 8 < work || meter.until(PROOF[0]).is_over() {
            break;
        }
        meter.spend(work);
        match plan::plan(graph, profile, &order, Bytes(limit as u64), planner) {
            Ok(plan) => plans.push(plan.steps),
            Err(PlanError::Infeasible(proof)) => plans.push(proof.plan.steps),
            Err(_) => {}
        }
    }
    plans
}

/// Raises the bound at one budget by branch and bound at the instants that bind.
pub fn prove(problem: &Problem, instants: &mut [Instant], limit: Size, enough: Picoseconds, news: Option<&News>, meter: &mut Meter) {
    let mut branched: Vec<OpId> = Vec::new();
    for share in PROOF {
        let open = instants.iter_mut().filter(|instant| !branched.contains(&instant.at));
        let Some(instant) = open.max_by_key(|instant| (instant.bound(limit), Reverse(instant.at))) else { return };
        branched.push(instant.at);
        let sets = instant.branch(problem, limit, enough, &mut meter.until(share));
        if let (Some(news), Some(floor)) = (news, instant.bound(limit)) {
            let at = instant.at;
            news.write(floor, sets.into_iter().rev().take(2).map(|set| (at, set)));
        }
    }
}
