//! Steps at the edges of what the format allows: empty ones, weightless ones, enormous ones.
//! Invariant: each of them is planned like any other, or refused with a reason, almost instantly.
//!
//! Tier: quick, since it takes less than a second.
use tightfit::graph::{Graph, GraphBuilder, NodeSpec, Phase, ValueSpec};
use tightfit::id::ValueId;
use tightfit::machine::Machine;
use tightfit::plan::{PlanError, Planner};
use tightfit::profile::Profile;
use tightfit::tensor::{Argument, DType};
use tightfit::units::Bytes;
use tightfit::{FitError, Fitted, Goal, Request};

struct Step(GraphBuilder);

impl Step {
    fn new() -> Step {
        Step(GraphBuilder::new("degenerate"))
    }

    /// A node that makes one contiguous tensor of `bytes` bytes.
    fn node(&mut self, name: &str, phase: Phase, inputs: &[ValueId], bytes: u64) -> ValueId {
        let mut node = NodeSpec::new(
            name,
            if phase.is_placeholder() { "placeholder" } else { "test.node" },
            phase,
        );
        node.inputs = inputs.to_vec();
        let storage = self.0.storage(Bytes(bytes));
        self.0.node(node, &[Some(ValueSpec::contiguous(&[bytes], DType::U8, storage))])[0]
    }

    fn graph(self) -> Graph {
        self.0.build().unwrap()
    }
}

fn fit(graph: &Graph, budget: Bytes, planner: Planner) -> Result<Fitted, FitError> {
    let profile = Profile::new(graph, &Machine::unmeasured_cpu(2));
    tightfit::fit(
        graph,
        &profile,
        &Request {
            goal: Goal::Within(budget),
            planner,
            effort: tightfit::effort::Effort::work(1, 3_000),
            ..Request::default()
        },
    )
}

/// Those that plan a step without modules.
fn planners() -> impl Iterator<Item = Planner> {
    Planner::ALL.into_iter().map(|(planner, _)| planner).filter(|&planner| planner != Planner::Sac)
}

#[test]
fn a_step_without_nodes_fits_into_nothing() {
    let graph = Step::new().graph();
    for planner in planners() {
        let fitted = fit(&graph, Bytes::ZERO, planner).unwrap();
        assert_eq!((fitted.timeline().peak, fitted.schedule().slab), (Bytes::ZERO, Bytes::ZERO));
    }
}

#[test]
fn a_step_that_computes_nothing_holds_its_placeholders() {
    let mut step = Step::new();
    step.node("x", Phase::Input, &[], 100);
    step.node("w", Phase::Parameter, &[], 28);
    let graph = step.graph();
    for planner in planners() {
        assert_eq!(fit(&graph, Bytes(192), planner).unwrap().timeline().peak, Bytes(128));
        let Err(FitError::Plan(PlanError::Infeasible(proof))) = fit(&graph, Bytes(127), planner)
        else {
            panic!("128 bytes in 127")
        };
        assert_eq!(
            proof.reached,
            Bytes(192),
            "{planner:?}: the slab, whose addresses are multiples of 64"
        );
        assert_eq!(proof.binding, None, "{planner:?}: nothing runs");
        assert_eq!(proof.live.len(), 2, "{planner:?}: both placeholders are alive");
    }
}

#[test]
fn weightless_tensors_need_nothing() {
    let mut step = Step::new();
    let x = step.node("x", Phase::Input, &[], 0);
    let a = step.node("a", Phase::Forward, &[x], 0);
    let b = step.node("b", Phase::Backward, &[a, x], 0);
    step.0.output(b);
    let graph = step.graph();
    for planner in planners() {
        assert_eq!(fit(&graph, Bytes::ZERO, planner).unwrap().schedule().slab, Bytes::ZERO);
    }
}

#[test]
fn an_enormous_step_does_not_wrap_around() {
    let mut step = Step::new();
    let third = 1 << 58;
    let x = step.node("x", Phase::Parameter, &[], third);
    let a = step.node("a", Phase::Forward, &[x], third);
    let b = step.node("b", Phase::Backward, &[a], third);
    step.0.output(b);
    let graph = step.graph();
    assert_eq!(fit(&graph, Bytes::LIMIT, Planner::Auto).unwrap().timeline().peak, Bytes(3 << 58));
    assert!(fit(&graph, Bytes(1 << 59), Planner::Auto).is_err());
}

/// Keys expanded to any length take no bytes themselves; the scores of a block of queries against
/// them would.
#[test]
fn attention_over_expanded_keys_does_not_wrap_around() {
    let mut step = Step::new();
    let storage = step.0.storage(Bytes(4));
    let expanded = ValueSpec {
        shape: vec![1, 1, 1 << 59, 1],
        dtype: DType::F32,
        storage,
        contiguous: false,
        strides: Some(vec![0; 4]),
        offset: 0,
    };
    let keys =
        step.0.node(NodeSpec::new("keys", "placeholder", Phase::Parameter), &[Some(expanded)])[0];
    let mut attention = NodeSpec::new(
        "attention",
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        Phase::Forward,
    );
    attention.inputs = vec![keys];
    attention.args = vec![Argument::Value(keys); 3];
    let out = step.0.storage(Bytes(4));
    step.0.node(attention, &[Some(ValueSpec::contiguous(&[1], DType::F32, out)), None]);
    assert!(fit(&step.graph(), Bytes(1 << 40), Planner::Auto).is_err());
}

/// If the slab misses the budget by little and the planner has nothing better, small reductions
/// must not be requested again and again.
#[test]
fn a_slab_that_nearly_fits_is_refused_at_once() {
    let gigabytes = |count: u64| count << 30;
    let mut step = Step::new();
    let mut previous = Vec::new();
    // Lifetimes of three steps each, of sizes that do not pack: they need 17 although 15 are held.
    for (i, size) in [5, 2, 8, 3, 4, 3, 8, 1, 6].into_iter().enumerate() {
        let value = step.node(&format!("n{i}"), Phase::Forward, &previous, gigabytes(size));
        previous.push(value);
        if previous.len() > 2 {
            previous.remove(0);
        }
    }
    let graph = step.graph();
    let profile = Profile::new(&graph, &Machine::unmeasured_cpu(2));
    let smallest = tightfit::fit(
        &graph,
        &profile,
        &Request {
            goal: Goal::Smallest,
            planner: Planner::None,
            effort: tightfit::effort::Effort::work(1, 3_000),
            ..Request::default()
        },
    )
    .unwrap();
    let (slab, peak) = (smallest.schedule().slab, smallest.timeline().peak);
    assert!(slab > peak + Bytes(gigabytes(1)), "these lifetimes pack: {slab} for {peak}");
    let budget = slab.saturating_sub(Bytes(1));
    for planner in planners() {
        let Err(FitError::Plan(PlanError::Infeasible(proof))) = fit(&graph, budget, planner) else {
            panic!("{planner:?} fits")
        };
        assert_eq!((proof.budget, proof.reached), (budget, slab));
    }
}
