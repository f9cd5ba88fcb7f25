//! Pipelines planned tensor by tensor: within the budget, never slower than their layers, and with
//! what others wait for at the place that the rows give it.
//!
//! Tier: quick, since it takes less than a second.

use tightfit::analysis::Sequence;
use tightfit::effort::Effort;
use tightfit::graph::Graph;
use tightfit::id::NodeId;
use tightfit::machine::Machine;
use tightfit::pipeline::stages::{Devices, LayerCost, StagePlan, cuts, layer_costs};
use tightfit::pipeline::{Division, Layer, Leeway, Pass, PipelineSchedule, assign, layers, ranks};
use tightfit::plan::{Instance, Planner, simulate, spread};
use tightfit::profile::Profile;
use tightfit::staged::{PlannedStages, TensorPlanning, TensorPlanningError};
use tightfit::units::{Bytes, Seconds};
use tightfit::{Goal, Request};

use crate::fixtures::corpus::step;

const MICRO_BATCHES: u32 = 4;

struct Pipeline {
    graph: Graph,
    machine: Machine,
    layers: Vec<Layer>,
    costs: Vec<LayerCost>,
    devices: Devices,
}

impl Pipeline {
    /// The smallest language model on two devices.
    fn new(budget: Bytes) -> Pipeline {
        let graph = step("gpt-nano");
        let machine = Machine::unmeasured_cpu(1);
        let profile = Profile::new(&graph, &machine);
        let layers = layers(&graph, &profile, 4).unwrap();
        let costs = layer_costs(&graph, &profile, &layers, None).unwrap();
        let devices = Devices { ranks: 2, budget, bandwidth: 1e12, latency: Seconds(0.0) };
        Pipeline { graph, machine, layers, costs, devices }
    }

    fn plan(
        &self,
        schedule: PipelineSchedule,
        planner: Planner,
        state: Option<f64>,
    ) -> Vec<Result<PlannedStages, TensorPlanningError>> {
        let cuts = self.cuts(schedule);
        cuts.iter().map(|cut| self.plan_cut(cut, planner, state)).collect()
    }

    fn cuts(&self, schedule: PipelineSchedule) -> Vec<StagePlan> {
        let rows = schedule.rows(self.devices.ranks, MICRO_BATCHES).unwrap();
        let order = (schedule.name(), &rows);
        let cuts = cuts(&self.costs, &self.devices, order, &|| false);
        assert!(!cuts.is_empty(), "{}", schedule.name());
        cuts
    }

    fn plan_cut(
        &self,
        cut: &StagePlan,
        planner: Planner,
        state: Option<f64>,
    ) -> Result<PlannedStages, TensorPlanningError> {
        let planning = TensorPlanning {
            graph: &self.graph,
            layers: &self.layers,
            devices: &self.devices,
            state,
            profile: &|graph| Profile::new(graph, &self.machine),
            planner,
            effort: Effort { work: 200_000, ..Effort::default() },
        };
        planning.plan(cut)
    }

    fn best(&self, schedule: PipelineSchedule) -> PlannedStages {
        let planned = self.plan(schedule, Planner::Auto, None).into_iter().flatten();
        planned.min_by(|a, b| a.times.makespan.0.total_cmp(&b.times.makespan.0)).unwrap()
    }
}

/// If everything fits, nothing is recomputed; less memory means more time, and never more bytes
/// than that.
#[test]
fn ranks_stay_within_their_budgets() {
    for (schedule, name) in PipelineSchedule::ALL {
        let free = Pipeline::new(Bytes(1 << 40)).best(schedule);
        assert!(free.ranks.values().all(|rank| rank.recomputed == 0), "{name}");
        let most = free.ranks.values().map(|rank| rank.peak).max().unwrap();
        let less = Bytes(most.0 * 4 / 5);
        for planned in Pipeline::new(less).plan(schedule, Planner::Auto, None).into_iter().flatten()
        {
            let peaks = planned.times.peaks.values();
            assert!(peaks.clone().all(|&peak| peak <= less), "{name}: {peaks:?} of {less}");
            assert!(planned.times.makespan.0 >= free.times.makespan.0 * (1.0 - 1e-9), "{name}");
            assert!((0.0..1.0).contains(&planned.idle()), "{name}");
        }
    }
}

/// If there is too little memory for messages to have leeway, they have none.
#[test]
fn messages_give_way_to_the_budget() {
    let Pipeline { graph, machine, layers, .. } = Pipeline::new(Bytes::ZERO);
    let mut given_way = 0;
    for (schedule, name) in PipelineSchedule::ALL {
        let plan = Pipeline::new(Bytes(1 << 40)).cuts(schedule).swap_remove(0);
        let division = Division::new(&graph, &assign(&layers, &plan.ends)).unwrap();
        // The smallest budget with which every rank runs each call once.
        let least = |leeway: Leeway| {
            let graphs = ranks(&division, &plan.rows, leeway).unwrap().graphs;
            let slab = |graph: &Graph| {
                let profile = Profile::new(graph, &machine);
                let (goal, planner) = (Goal::Smallest, Planner::None);
                let request = Request { goal, planner, ..Request::default() };
                tightfit::fit(graph, &profile, &request).unwrap().schedule().slab
            };
            graphs.values().map(slab).max().unwrap()
        };
        let (with, without) = (least(Leeway::OF_SENDERS), least(Leeway::NONE));
        for budget in [with, without] {
            let planned = Pipeline::new(budget).plan_cut(&plan, Planner::None, None);
            assert!(planned.is_ok(), "{name} within {budget}: {}", planned.unwrap_err());
        }
        given_way += usize::from(without < with);
    }
    assert!(given_way > 0);
}

/// Every action is there, in the order of its row, at most one at a time.
#[test]
fn actions_follow_their_rows_in_time() {
    for (schedule, name) in PipelineSchedule::ALL {
        let planned = Pipeline::new(Bytes(1 << 40)).best(schedule);
        for (rank, done) in &planned.times.ranks {
            let row = &planned.plan.rows.rows[rank];
            // A first stage's inputs have no gradients to be sent.
            let has_calls = |pass: Pass, stage: u32| stage > 0 || pass != Pass::InputGradient;
            for action in row {
                let is_there = done.iter().any(|it| it.action == *action);
                assert!(is_there || !has_calls(action.pass, action.stage.as_u32()), "{name}");
            }
            assert!(done.windows(2).all(|pair| pair[0].end.0 <= pair[1].start.0 + 1e-12), "{name}");
            assert!(done.iter().all(|it| it.end.0 <= planned.times.makespan.0), "{name}");
        }
    }
}

/// State that is not in the graph is counted, and refusals name the rank.
#[test]
fn state_counts_as_if_the_graph_had_it() {
    let room = Pipeline::new(Bytes(1 << 40));
    let peaks = |state| {
        let planned = room.plan(PipelineSchedule::OneFOneB, Planner::Auto, state);
        planned.into_iter().flatten().next().unwrap().times.peaks
    };
    let (without, with) = (peaks(None), peaks(Some(1000.0)));
    for (without, with) in without.values().zip(with.values()) {
        assert!(with.0 > without.0 * 2, "{with} and {without}");
    }
    let tiny = Pipeline::new(Bytes(1000));
    for refused in tiny.plan(PipelineSchedule::OneFOneB, Planner::Auto, None) {
        let refused = refused.unwrap_err();
        assert!(refused.to_string().starts_with("1f1b: rank"), "{refused}");
        let TensorPlanningError::TooLittle { needed, .. } = refused else { panic!("{refused}") };
        // Enough for any run by itself, but not for a whole step without recomputation.
        let planner = Planner::None;
        for refused in Pipeline::new(needed).plan(PipelineSchedule::OneFOneB, planner, None) {
            let refused = refused.unwrap_err();
            assert!(matches!(refused, TensorPlanningError::Rank { .. }), "{refused}");
        }
    }
}

/// Weights' gradients that a plan has before a message which comes earlier in the row move back
/// after it if there is memory, and stay if there is none.
#[test]
fn messages_come_first_where_there_is_room() {
    let Pipeline { graph, machine, layers, .. } = Pipeline::new(Bytes::ZERO);
    let rows = PipelineSchedule::ZbH1.rows(2, MICRO_BATCHES).unwrap();
    let division = Division::new(&graph, &assign(&layers, &[layers.len() / 2, layers.len()]));
    let mut moved = 0;
    for graph in ranks(&division.unwrap(), &rows, Leeway::NONE).unwrap().graphs.values() {
        let profile = Profile::new(graph, &machine);
        let program = graph.compute_nodes();
        let peak = |runs: &[NodeId]| simulate(graph, &profile, &Sequence::from(runs)).curve.peak;
        let early = as_early_as_may_be(graph, &program);
        let instance = Instance::new(graph, &profile, &program);
        let plan = instance.plan(Planner::Auto, &early);
        let room = spread(instance, &plan, Bytes(1 << 40)).runs();
        assert_eq!(before_messages(graph, &room), before_messages(graph, &program));
        moved += usize::from(early != room);
        // The same number of runs, no more than the budget, and messages in their order.
        let budget = peak(&early);
        let tight = spread(instance, &plan, budget).runs();
        assert!(peak(&tight) <= budget);
        for runs in [&room, &tight] {
            let (mut once, mut all) = (runs.clone(), program.clone());
            once.sort();
            all.sort();
            assert_eq!(once, all);
            let messages = |runs: &[NodeId]| -> Vec<NodeId> {
                runs.iter().copied().filter(|&node| graph.nodes()[node].stream).collect()
            };
            assert_eq!(messages(runs), messages(&program));
        }
    }
    assert_eq!(moved, 2, "on both ranks something was early");
}

/// Every run right after what it depends on, except that messages keep their order.
fn as_early_as_may_be(graph: &Graph, program: &[NodeId]) -> Vec<NodeId> {
    let mut order: Vec<NodeId> = Vec::new();
    for &node in program {
        let touches = |other: NodeId| {
            let writes = |node: NodeId| {
                graph.fresh(node).iter().chain(graph.mutated(node)).copied().collect::<Vec<_>>()
            };
            let all = |node: NodeId| {
                let mut all = writes(node);
                all.extend(graph.reads(node));
                all
            };
            let both = graph.nodes()[node].stream && graph.nodes()[other].stream;
            both || writes(other).iter().any(|it| all(node).contains(it))
                || writes(node).iter().any(|it| all(other).contains(it))
        };
        let place = order.iter().rposition(|&other| touches(other)).map_or(0, |last| last + 1);
        // Forward passes and messages stay.
        let stays = graph.nodes()[node].stream || graph.nodes()[node].phase.is_forward();
        order.insert(if stays { order.len() } else { place }, node);
    }
    order
}

/// The number of runs before each message that the program has after it.
fn before_messages(graph: &Graph, runs: &[NodeId]) -> Vec<usize> {
    let messages = runs.iter().enumerate().filter(|(_, node)| graph.nodes()[**node].stream);
    messages.map(|(at, message)| runs[..at].iter().filter(|&node| node > message).count()).collect()
}
