//! tightfit fits a training step into a budget of bytes, and proves that it does.
//!
//! A step is one graph: forward pass, loss, backward pass and optimizer. Its budget is the peak of
//! everything that the step touches: parameters, optimizer state, gradients, activations,
//! workspaces and the batch. [`fit()`] answers with a schedule that stays within the budget and a
//! lower bound on the time of every other one, or with a refusal that says which budget would do.
//!
//! This crate is pure: no files, no clock. The thread of a search ends before the search returns;
//! that of a mixed integer solver ends by itself, soon after its time is up. No schedule leaves
//! [`fit()`] unchecked.
//!
//! # A tour
//! A perceptron with twelve layers, written down node by node, costed on a machine, and fitted into
//! 70 % of the memory that it takes if nothing is recomputed:
//!
//! ```
//! use tightfit::graph::{GraphBuilder, NodeSpec, Phase, ValueSpec};
//! use tightfit::id::{StorageId, ValueId};
//! use tightfit::machine::Machine;
//! use tightfit::profile::Profile;
//! use tightfit::schedule::Instruction;
//! use tightfit::tensor::DType;
//! use tightfit::units::{Bytes, Flops};
//! use tightfit::{Request, fit, unplanned};
//!
//! const LAYERS: usize = 12;
//! const BATCH: [u64; 2] = [8192, 1024];
//! const WEIGHT: [u64; 2] = [1024, 1024];
//! const PRODUCT: Flops = Flops(2 * 8192 * 1024 * 1024);
//! const CHEAP: Flops = Flops(0); // such a node takes as long as its bytes take to move
//!
//! #[derive(Clone, Copy)]
//! struct Tensor(ValueId, StorageId, Bytes);
//!
//! // The graph. A node reads tensors and makes one; an update writes over the weight it reads.
//! let mut step = GraphBuilder::new("perceptron");
//! let mut node = |phase: Phase, name: &str, reads: &[Tensor], shape: [u64; 2], flops| {
//!     let bytes = Bytes(4 * shape[0] * shape[1]);
//!     let mutates = phase == Phase::Optimizer;
//!     let storage = if mutates { reads[0].1 } else { step.storage(bytes) };
//!     let op = if phase.is_placeholder() { "placeholder" } else { name };
//!     let mut spec = NodeSpec::new(name, op, phase);
//!     spec.inputs = reads.iter().map(|read| read.0).collect();
//!     spec.bytes_read = reads.iter().map(|read| read.2).sum();
//!     (spec.bytes_written, spec.flops, spec.mutates) = (bytes, flops, mutates);
//!     let output = ValueSpec::contiguous(&shape, DType::F32, storage);
//!     Tensor(step.node(spec, &[Some(output)])[0], storage, bytes)
//! };
//! let (mut weights, mut products) = (Vec::new(), Vec::new());
//! let mut activations = vec![node(Phase::Input, "batch", &[], BATCH, CHEAP)];
//! for i in 0..LAYERS {
//!     weights.push(node(Phase::Parameter, &format!("weight{i}"), &[], WEIGHT, CHEAP));
//!     let mut forward =
//!         |name: &str, reads: &[_], flops| node(Phase::Forward, name, reads, BATCH, flops);
//!     products.push(forward(&format!("product{i}"), &[activations[i], weights[i]], PRODUCT));
//!     activations.push(forward(&format!("gelu{i}"), &[products[i]], CHEAP));
//! }
//! let last = activations[LAYERS];
//! let loss = node(Phase::Loss, "loss", &[last], [1, 1], CHEAP);
//! let mut gradient = node(Phase::Backward, "gradient of loss", &[last, loss], BATCH, CHEAP);
//! for i in (0..LAYERS).rev() {
//!     let mut gradient_of = |what: &str, reads: [_; 2], shape, flops| {
//!         node(Phase::Backward, &format!("gradient of {what}{i}"), &reads, shape, flops)
//!     };
//!     gradient = gradient_of("gelu", [gradient, products[i]], BATCH, CHEAP);
//!     let change = gradient_of("weight", [gradient, activations[i]], WEIGHT, PRODUCT);
//!     gradient = gradient_of("product", [gradient, weights[i]], BATCH, PRODUCT);
//!     node(Phase::Optimizer, &format!("sgd{i}"), &[weights[i], change], WEIGHT, CHEAP);
//! }
//! step.output(loss.0);
//! let graph = step.build()?;
//!
//! // What its nodes cost on a machine, and what the step takes as it stands.
//! let profile = Profile::new(&graph, &Machine::preset("a100-80gb")?);
//! let whole = unplanned(&graph, &profile)?.timeline().peak;
//!
//! // A schedule within the budget.
//! let budget = Bytes(whole.0 * 7 / 10);
//! let fitted = fit(&graph, &profile, &Request::within(budget))?;
//! for instruction in &fitted.schedule().instructions {
//!     if let Instruction::Recompute(call) = instruction {
//!         println!("recomputes {}", graph.nodes()[call.node].name);
//!     }
//! }
//! let timeline = fitted.timeline();
//! println!("holds {} of {whole} for {:.3} ms", timeline.peak, timeline.seconds.0 * 1e3);
//! let bound = fitted.bound().expect("the budget planner proves a bound");
//! println!("no schedule that only recomputes takes less than {:.3} ms", bound.seconds.0 * 1e3);
//! assert!(timeline.peak <= budget && bound.seconds <= timeline.seconds);
//!
//! // A refusal: what the step needs at least, what would do, and where it binds.
//! let refused = fit(&graph, &profile, &Request::within(Bytes(100 << 20))).unwrap_err();
//! let proof = refused.infeasible().expect("the budget is the reason");
//! println!("needs {}; {} would do", proof.needed, proof.reached);
//! if let Some(binding) = &proof.binding {
//!     println!("binds at {}: {} tensors are alive", binding.name, proof.live.len());
//! }
//! assert!(fit(&graph, &profile, &Request::within(proof.reached)).is_ok());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Nine of the cheap activations are recomputed and none of the products, and to three digits the
//! bound says that no other choice is faster. [`Bound`] says which schedules a bound holds for. The
//! program prints:
//!
//! ```text
//! recomputes gelu8
//! recomputes gelu7
//! ...
//! recomputes gelu0
//! holds 592.0 MiB of 880.0 MiB for 5.372 ms
//! no schedule that only recomputes takes less than 5.372 ms
//! needs 144.0 MiB; 272.0 MiB would do
//! binds at gradient of loss: 20 tensors are alive
//! ```
//!
//! The folder `examples` has a program that plans a graph file, and one that checks a schedule
//! written by hand, which moves an activation to the host and back.
//!
//! # The flow
//! Graph → Profile → Plan → Schedule → Checked. Each is plain data, made by a plain function from
//! those before it:
//!
//! 1. A [`Graph`] is a step, verified once and never changed. It comes from a [`GraphBuilder`] or
//!    from a tightfit-graph/1 file ([`graph::read`]). Analyses and decisions are separate tables.
//! 2. A [`Profile`] has the seconds and the workspace of each node on a [`Machine`].
//! 3. A [`Plan`] says which nodes run, in which order and how often. First, updates move up to
//!    follow their gradients ([`plan::base_order`]), then one [`Planner`] decides what runs again
//!    ([`plan::plan`]).
//! 4. A [`Schedule`] is the plan as instructions over buffers, each with an address in one slab
//!    ([`schedule::lower`]).
//! 5. A [`Checked`] schedule is one that the checker executed abstractly and accepted; its
//!    [`Timeline`] says what runs when and what is held. The checker shares no code with the
//!    planners, with lowering or with layout, so its verdict does not depend on theirs.
//!
//! [`fit()`] takes all of these steps, and returns to the planner if addresses do not fit;
//! [`frontier`] does so for several budgets, and [`hold()`] does without addresses, for runtimes
//! whose allocator places tensors. [`plan::modules`] plans by whole modules, from their statistics
//! alone.
//!
//! # Ids and tables
//! Nodes, values, storages, buffers and so on have ids of their own types, in [`id`]. An id indexes
//! a [`PrimaryMap`](id::PrimaryMap), the table of what exists, or a
//! [`SecondaryMap`](id::SecondaryMap), a table of what is known about it. Both are types of the
//! crate `cranelift-entity`, which also makes the ids; [`id`] exports them again with the trait
//! [`EntityRef`](id::EntityRef), so that reading or building a table does not require a dependency
//! on that crate.
//!
//! # Errors
//! Each module has an error enum of its own ([`GraphError`](graph::GraphError),
//! [`ReadError`](graph::ReadError), [`MachineError`](machine::MachineError),
//! [`PlanError`](plan::PlanError), [`PlanFileError`](schedule::PlanFileError) and others), in which
//! each variant is one thing that can be wrong: its documentation says what, and its fields say
//! where, and what was found instead. `Display` makes a sentence of them. These enums may gain
//! variants, so a `match` needs a wildcard arm. [`Violation`] may be matched in full: code that
//! judges schedules should notice when there is a new way to be wrong.
//!
//! A budget that cannot be met is an answer rather than a failure: [`FitError::infeasible`] returns
//! its proof, an [`Infeasible`](plan::Infeasible), which has a field for each figure. No input
//! makes this crate panic.
//!
//! [`GraphBuilder`]: graph::GraphBuilder
//! [`Machine`]: machine::Machine
//! [`Plan`]: plan::Plan
//! [`Schedule`]: schedule::Schedule
//! [`Checked`]: check::Checked
//! [`Timeline`]: timeline::Timeline

pub mod analysis;
mod aside;
pub mod check;
pub mod effort;
pub mod exit;
mod fit;
pub mod goal;
pub mod graph;
mod hold;
pub mod id;
pub mod machine;
pub mod operator;
pub mod pipeline;
pub mod plan;
pub mod profile;
pub mod reading;
pub mod schedule;
pub mod sharded;
pub mod sizes;
pub mod split;
pub mod staged;
pub mod tensor;
pub mod timeline;
#[cfg(not(feature = "ablation"))]
mod tuning;
#[cfg(feature = "ablation")]
pub mod tuning;
pub mod units;

pub use fit::{Actions, Bound, FitError, Fitted, ScheduleClass, SecondHalf};
pub use goal::Goal;
pub use hold::{Held, HoldRequest, hold};
pub use plan::BoundOrder;

use check::Violation;
use effort::Effort;
use fit::{BudgetedPlanner, carry_to_smaller_budgets, checked};
use graph::Graph;
use plan::{Instance, Planner};
use profile::Profile;
use schedule::{Lowering, Residents, lower};
use units::{Bytes, Seconds};

/// What a caller requests.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The number of bytes that the slab may have.
    pub goal: Goal,
    /// The planner that decides what runs again.
    pub planner: Planner,
    /// What stays in the slab between steps, and where.
    pub residents: &'a Residents,
    /// The limits of the search for something better.
    pub effort: Effort<'a>,
}

impl Request<'static> {
    /// The fastest schedule that the budget planner finds with the default effort within a budget.
    pub fn within(budget: Bytes) -> Request<'static> {
        Request { goal: Goal::Within(budget), ..Request::default() }
    }
}

/// The smallest slab that the budget planner reaches with the default effort.
impl Default for Request<'static> {
    fn default() -> Request<'static> {
        Request {
            goal: Goal::Smallest,
            planner: Planner::Auto,
            residents: Residents::none(),
            effort: Effort::default(),
        }
    }
}

/// One point of the frontier: a budget, and the result for it.
#[derive(Debug)]
pub struct FittedPoint {
    /// The budget of this point.
    pub budget: Bytes,
    /// The schedule within it, or why there is none.
    pub result: Result<Fitted, FitError>,
    /// The time until the first plan within the budget was known, by the effort's clock.
    pub first: Seconds,
    /// The time until the schedule was made and checked, by the same clock.
    pub total: Seconds,
}

/// Fits one step into the requested number of bytes.
///
/// If lifetimes do not pack, addresses take more than the bytes held; the planner then plans again
/// for less, by as much as was missing. In the end, its plan with the smallest peak decides: either
/// its addresses fit, or its slab is the smallest budget known to be feasible.
///
/// # Errors
/// [`FitError::Plan`] if the planner has no plan, with a proof if the budget is infeasible.
/// [`FitError::Violation`] if the checker refuses the schedule, which is a bug of this crate.
pub fn fit(graph: &Graph, profile: &Profile, request: &Request<'_>) -> Result<Fitted, FitError> {
    let order = plan::base_order(graph, profile);
    let instance = Instance::new(graph, profile, &order);
    let &Request { goal, planner, residents, ref effort } = request;
    let mut planner = BudgetedPlanner::new(instance, planner, residents);
    match goal {
        Goal::Within(budget) => planner.fit(budget, effort).0,
        Goal::Smallest => planner.smallest(effort),
    }
}

/// Fits one step into each of several budgets, given in rising order, with the request's effort for
/// each; the request's goal is ignored. What fits into a smaller budget is a candidate for every
/// larger one, and so is `known`; a larger budget never gives a slower schedule, nor a higher bound
/// of the same class.
pub fn frontier(
    graph: &Graph,
    profile: &Profile,
    budgets: &[Bytes],
    known: Option<Fitted>,
    request: &Request<'_>,
) -> Vec<FittedPoint> {
    let order = plan::base_order(graph, profile);
    let instance = Instance::new(graph, profile, &order);
    let &Request { planner, residents, ref effort, .. } = request;
    let mut budgeted = BudgetedPlanner::new(instance, planner, residents);
    let mut fastest = known;
    let mut points = Vec::with_capacity(budgets.len());
    for &budget in budgets {
        let start = (effort.clock)();
        let (mut result, first) = budgeted.fit(budget, effort);
        let seconds = |fitted: &Fitted| fitted.timeline().seconds;
        if let Some(smaller) = &fastest
            && result.as_ref().map_or(true, |fitted| seconds(fitted) > seconds(smaller))
            && let Some(smaller) = smaller.within(budget, budgeted.bound(budget))
        {
            result = Ok(smaller);
        }
        fastest = result.as_ref().ok().cloned().or(fastest);
        let total = Seconds((effort.clock)().0 - start.0);
        points.push(FittedPoint { budget, result, first, total });
    }
    let fitted = points.iter_mut().filter_map(|point| point.result.as_mut().ok());
    carry_to_smaller_budgets(fitted.filter_map(Fitted::bound_mut));
    points
}

/// The step as the graph states it: program order, nothing recomputed, nothing moved. Its peak is
/// the unplanned one.
///
/// # Errors
/// The checker refuses the schedule, which is a bug of this crate.
pub fn unplanned(graph: &Graph, profile: &Profile) -> Result<Fitted, Violation> {
    let profile = profile.clone().without_reuse();
    let program = graph.compute_nodes();
    let plan = plan::Instance::new(graph, &profile, &program).unplanned(Planner::None);
    // The first addresses will do.
    let mut schedule = lower(graph, &profile, &plan, &Lowering::to(Goal::Within(Bytes::LIMIT)));
    schedule.budget = schedule.slab;
    checked(graph, &profile, schedule, None)
}
