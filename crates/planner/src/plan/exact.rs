//! The fastest plan of a small step, as a mixed integer program. Invariant: the memory in the
//! program is that of the simulation, moment by moment; so its optimum is the best of all plans
//! that repeat a forward node at most once before each node of the step, and in program order.
//!
//! Source: Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor
//! Rematerialization", MLSys 2020: stages and the variables R. Departures: see
//! `doc/theory/exact.md`.

use cranelift_entity::SecondaryMap;
use good_lp::{Expression, Variable, constraint};

use crate::analysis::{Liveness, held, liveness};
use crate::effort::Meter;
use crate::graph::Graph;
use crate::id::{NodeId, StorageId};
use crate::plan::milp::{Goal, Milp, within_tolerance};
use crate::plan::rematerialize::{Versions, legal};
use crate::plan::{Instance, Plan, PlanError, Planner, none};
use crate::profile::Profile;
use crate::units::Bytes;

/// Most nodes that run; the program grows with their square.
const MOST_NODES: usize = 80;

/// The fastest plan, or the proof that even the lowest one does not fit. The work of a solver
/// cannot be counted, so the deadline has no floor; the best plan found by then need not be the
/// fastest.
pub fn exact(instance: Instance<'_>, budget: Bytes, meter: &Meter<'_>) -> Result<Plan, PlanError> {
    let order = instance.order;
    if let Ok(plan) = none(instance, budget) {
        return Ok(Plan { planner: Planner::Exact, ..plan });
    }
    if order.len() > MOST_NODES {
        return Err(PlanError::TooLarge { nodes: order.len(), most: MOST_NODES });
    }
    let meter = meter.uncounted();
    let fastest = within_tolerance(budget, |target| {
        let runs = Formulation::new(instance, Goal::Fastest(target)).solve(&meter)?;
        Ok(runs.map(|runs| {
            let plan = instance.plan(Planner::Exact, runs);
            let reached = plan.peak;
            (plan, reached)
        }))
    })?;
    if let Some(plan) = fastest {
        return Ok(plan);
    }
    let lowest =
        Formulation::new(instance, Goal::Lowest).solve(&meter)?.unwrap_or_else(|| order.to_vec());
    instance.within(budget, instance.plan(Planner::Exact, lowest))
}

/// A run that may take place: a node of the step, or a repetition before one.
struct PossibleRun {
    node: NodeId,
    /// The node of the step that it belongs to, by position.
    point: usize,
    /// R: whether it takes place; absent for the step's own runs.
    run: Option<Variable>,
}

/// The program of one order.
struct Formulation<'a> {
    graph: &'a Graph,
    profile: &'a Profile,
    order: &'a [NodeId],
    milp: Milp,
    moments: Vec<PossibleRun>,
    /// P: for each moment and storage, whether it is held there; absent if it is not a decision.
    held: Vec<SecondaryMap<StorageId, Option<Variable>>>,
}

impl<'a> Formulation<'a> {
    fn new(instance: Instance<'a>, goal: Goal) -> Formulation<'a> {
        let Instance { graph, profile, order } = instance;
        let mut formulation = Formulation {
            graph,
            profile,
            order,
            milp: Milp::new(),
            moments: Vec::new(),
            held: Vec::new(),
        };
        formulation.runs();
        formulation.residency();
        formulation.memory(goal);
        formulation
    }

    /// The moments, in order; repetitions are included where they can still be of use.
    fn runs(&mut self) {
        let graph = self.graph;
        let mut versions = Versions::default();
        for (point, &node) in self.order.iter().enumerate() {
            let mut wanted: SecondaryMap<StorageId, bool> = SecondaryMap::new();
            for &storage in self.order[point..].iter().flat_map(|&later| graph.reads(later)) {
                wanted[storage] = true;
            }
            let mut repeated = Vec::new();
            for &earlier in self.order[..point].iter().rev() {
                let useful = graph
                    .fresh(earlier)
                    .iter()
                    .any(|&storage| wanted[storage] && !graph.is_kept(storage));
                if useful && versions.allow(graph, earlier) {
                    repeated.push(earlier);
                    for &storage in graph.reads(earlier) {
                        wanted[storage] = true;
                    }
                }
            }
            for again in repeated.into_iter().rev() {
                let run = self.milp.binary();
                self.moments.push(PossibleRun { node: again, point, run: Some(run) });
            }
            self.moments.push(PossibleRun { node, point, run: None });
            versions.advance(graph, node);
        }
    }

    /// Storages whose residency is decided: what may be made again, and the inputs of that.
    fn decided(&self) -> SecondaryMap<StorageId, bool> {
        let mut decided: SecondaryMap<StorageId, bool> = SecondaryMap::new();
        for moment in self.moments.iter().filter(|moment| moment.run.is_some()) {
            for &storage in
                self.graph.fresh(moment.node).iter().chain(self.graph.reads(moment.node))
            {
                decided[storage] = !self.graph.is_kept(storage);
            }
        }
        decided
    }

    /// What is read is held; what is held was held the moment before, or is made.
    fn residency(&mut self) {
        let decided = self.decided();
        let mut last: SecondaryMap<StorageId, Option<usize>> = SecondaryMap::new();
        for (at, moment) in self.moments.iter().enumerate() {
            for &storage in
                self.graph.fresh(moment.node).iter().chain(self.graph.reads(moment.node))
            {
                last[storage] = Some(at);
            }
        }
        let mut there: SecondaryMap<StorageId, bool> = SecondaryMap::new();
        for (_, storage) in self.graph.placeholder_storages() {
            there[storage] = true;
        }
        let mut before: SecondaryMap<StorageId, Option<Variable>> = SecondaryMap::new();
        for (at, moment) in self.moments.iter().enumerate() {
            let (reads, fresh) = (self.graph.reads(moment.node), self.graph.fresh(moment.node));
            let mut here: SecondaryMap<StorageId, Option<Variable>> = SecondaryMap::new();
            for storage in self.graph.storages().keys().filter(|&storage| decided[storage]) {
                let made = fresh.contains(&storage);
                if !(there[storage] || made) || last[storage].is_none_or(|last| last < at) {
                    continue;
                }
                let touched = made || reads.contains(&storage);
                let least = if touched && moment.run.is_none() { 1.0 } else { 0.0 };
                let held = self.milp.within(least, 1.0);
                here[storage] = Some(held);
                if let (Some(run), true) = (moment.run, touched) {
                    self.milp.row(constraint!(held >= run));
                }
                match (there[storage], made, moment.run) {
                    // It is held from the start, or made here for the first time.
                    (true, false, _) if before[storage].is_none() => {}
                    (false, ..) => there[storage] = true,
                    (true, made, run) => {
                        let mut from = Expression::from(0.0);
                        if let Some(before) = before[storage] {
                            from += before;
                        }
                        match run.filter(|_| made) {
                            Some(run) => from += run,
                            None if made => from += 1.0,
                            None => {}
                        }
                        self.milp.row(constraint!(held <= from));
                    }
                }
            }
            before = here.clone();
            self.held.push(here);
        }
    }

    /// Bytes at each moment, and what is minimised.
    fn memory(&mut self, goal: Goal) {
        let decided = self.decided();
        let plain = self.profile.clone().without_reuse();
        let unplanned = self.order.into();
        let lives = liveness(self.graph, &plain, &unplanned);
        let unplanned = held(self.graph, self.profile, &unplanned).peak;
        let (limit, scale) = match goal {
            Goal::Fastest(budget) => (
                Expression::from(budget.0 as f64 / unplanned.0.max(1) as f64),
                unplanned.0.max(1) as f64,
            ),
            Goal::Lowest => {
                let peak = self.milp.within(0.0, f64::INFINITY);
                self.milp.objective = peak.into();
                (peak.into(), unplanned.0.max(1) as f64)
            }
        };
        let bytes = |storage: StorageId| self.graph.storages()[storage].0 as f64 / scale;
        let longest = self
            .order
            .iter()
            .map(|&node| self.profile.seconds[node].0)
            .fold(f64::MIN_POSITIVE, f64::max);
        for (at, moment) in self.moments.iter().enumerate() {
            let mut sum = Expression::from(others(&lives, moment, &decided, &bytes));
            for (storage, held) in self.held[at].iter() {
                if let Some(held) = held {
                    sum += bytes(storage) * *held;
                }
            }
            let workspace = self.profile.workspace[moment.node].0 as f64 / scale;
            match moment.run {
                None => sum += workspace,
                Some(run) => {
                    // A second copy of a kept storage exists while the node runs.
                    let copies: f64 = self
                        .graph
                        .fresh(moment.node)
                        .iter()
                        .filter(|&&s| self.held[at][s].is_none())
                        .map(|&s| bytes(s))
                        .sum();
                    sum += (workspace + copies) * run;
                    if let Goal::Fastest(_) = goal {
                        self.milp.objective += self.profile.seconds[moment.node].0 / longest * run;
                    }
                }
            }
            if self.profile.reuse.is_any() {
                let mut taken = Expression::from(0.0);
                for (storage, most) in
                    overwritable((self.graph, self.profile), &lives, moment, &decided)
                {
                    let take = self.milp.within(0.0, most);
                    if let Some(run) = moment.run {
                        self.milp.row(constraint!(take <= run));
                    }
                    if let Some(later) = self.held.get(at + 1).and_then(|later| later[storage]) {
                        self.milp.row(constraint!(take + later <= 1.0));
                    }
                    sum -= bytes(storage) * take;
                    taken += take;
                }
                self.milp.row(constraint!(taken <= 1.0));
            }
            self.milp.row(constraint!(sum <= limit.clone()));
        }
    }

    /// The optimum as a sequence of runs; `None` if there is none.
    fn solve(self, meter: &Meter<'_>) -> Result<Option<Vec<NodeId>>, PlanError> {
        let answer =
            self.milp.solve(0.0, meter).map_err(|reason| PlanError::Unsolved { reason })?;
        let Some(answer) = answer else { return Ok(None) };
        let runs =
            self.moments.iter().filter(|moment| moment.run.is_none_or(|run| answer.is_one(run)));
        let runs: Vec<NodeId> = runs.map(|moment| moment.node).collect();
        Ok(Some(legal(self.graph, &runs)))
    }
}

/// Bytes at a moment of the storages that are not decided: those of the unplanned step. A
/// repetition runs between two nodes, where what dies at the first is gone and what the second
/// makes does not exist yet.
fn others(
    lives: &Liveness,
    moment: &PossibleRun,
    decided: &SecondaryMap<StorageId, bool>,
    bytes: &impl Fn(StorageId) -> f64,
) -> f64 {
    let point = moment.point as u32;
    let alive =
        lives.intervals.values().filter(|life| !decided[life.storage]).filter(|life| match moment
            .run
        {
            None => life.born.is_none_or(|born| born <= point) && point <= life.dies,
            Some(_) => life.born.is_none_or(|born| born < point) && point <= life.dies,
        });
    alive.map(|life| bytes(life.storage)).sum()
}

/// Storages whose bytes the first output of a node may take over if they are no longer held, with 0
/// if they are.
fn overwritable(
    (graph, profile): (&Graph, &Profile),
    lives: &Liveness,
    moment: &PossibleRun,
    decided: &SecondaryMap<StorageId, bool>,
) -> Vec<(StorageId, f64)> {
    let call = &graph.nodes()[moment.node];
    let Some(&Some(output)) = call.outputs.first() else { return Vec::new() };
    let made = graph.values()[output].storage;
    if !graph.fresh(moment.node).contains(&made) {
        return Vec::new();
    }
    let inputs = profile
        .overwritable(graph, moment.node)
        .into_iter()
        .map(|input| graph.values()[input].storage);
    let fits = inputs
        .filter(|&from| !graph.is_kept(from) && graph.storages()[from] == graph.storages()[made]);
    let dies = |from| {
        lives
            .intervals
            .values()
            .any(|life| life.storage == from && life.dies as usize == moment.point)
    };
    fits.map(|from| (from, if decided[from] || dies(from) { 1.0 } else { 0.0 })).collect()
}
