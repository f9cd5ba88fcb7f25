//! Where a pipeline is cut, in which order its ranks perform their actions, and which layers each
//! of them recomputes, all chosen together under a budget for each rank. Invariant: a plan that is
//! returned holds no more than the budget on any rank, by the model of [`LayerCost`], and its time
//! is that of the simulation.
//!
//! For orders with one stage on each rank the cuts with the least *path bound* come first: the time
//! of a pipeline is at least that of the path of the first micro-batch to a stage and back, plus
//! that of all micro-batches on that stage. Dynamic programming finds all cuts that no other one
//! beats in both parts ([`front`]). For all orders, cuts of layers of equal time and of equal
//! memory come next, and every one is improved by moving borders as long as the simulated time gets
//! shorter.
//!
//! The model of layers ranks cuts and orders; [`staged`](crate::staged) plans every rank of the
//! best of them tensor by tensor.

mod descend;
mod evaluate;
mod front;
mod measure;
mod recompute;

use cranelift_entity::PrimaryMap;

use crate::id::RankId;
use crate::pipeline::action::Rows;
use crate::pipeline::rows::{PipelineSchedule, Unsuited};
use crate::units::{Bytes, Seconds};

pub use evaluate::{evaluate, in_time, price};
pub use front::{Front, front};
pub use measure::layer_costs;
pub use recompute::{Recomputed, recompute};

/// The costs of a layer, and the bytes that it holds, for one micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LayerCost {
    /// Time of the forward pass.
    pub forward: Seconds,
    /// Time of the part of the backward pass that the layer before waits for.
    pub input_gradient: Seconds,
    /// Time of the rest of the backward pass.
    pub weight_gradient: Seconds,
    /// Bytes of parameters, their gradients and the optimizer's state, once for all micro-batches.
    pub held: Bytes,
    /// Bytes that the forward pass leaves for backward passes.
    pub activations: Bytes,
    /// The part of these that later layers read, so that it stays if the layer is recomputed.
    pub boundary: Bytes,
    /// Bytes that the layer reads of those before it: also held on its rank, and sent there, if a
    /// stage begins with it.
    pub entering: Bytes,
    /// Bytes that a single call of it needs in addition.
    pub transient: Bytes,
}

impl LayerCost {
    /// Time of all passes.
    pub fn seconds(&self) -> Seconds {
        self.forward + self.input_gradient + self.weight_gradient
    }

    /// The fewest bytes that its rank holds, with one micro-batch in flight.
    pub fn least(&self) -> Bytes {
        let of = |again: bool| self.held + self.entering + self.kept(again) + self.working(again);
        of(false).min(of(true))
    }

    /// Bytes that it holds for each micro-batch, kept or recomputed.
    fn kept(&self, is_recomputed: bool) -> Bytes {
        if is_recomputed { self.boundary.min(self.activations) } else { self.activations }
    }

    /// Bytes that it needs once, while it runs.
    fn working(&self, is_recomputed: bool) -> Bytes {
        self.transient + if is_recomputed { self.activations } else { Bytes::ZERO }
    }
}

/// The properties of the ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Devices {
    /// The number of ranks.
    pub ranks: u32,
    /// Budget of each, in bytes.
    pub budget: Bytes,
    /// Bytes per second from one to another.
    pub bandwidth: f64,
    /// Time until the first byte arrives.
    pub latency: Seconds,
}

impl Devices {
    /// Time to transfer this many bytes.
    pub fn transfer(&self, bytes: Bytes) -> Seconds {
        if bytes == Bytes::ZERO {
            return Seconds(0.0);
        }
        Seconds(self.latency.0 + bytes.0 as f64 / self.bandwidth)
    }
}

/// A pipeline, planned.
#[derive(Clone, Debug, PartialEq)]
pub struct StagePlan {
    /// The name of the order.
    pub schedule: String,
    /// The actions of each rank.
    pub rows: Rows,
    /// One past the last layer of each stage.
    pub ends: Vec<usize>,
    /// Which layers are recomputed in each backward pass.
    pub recomputed: Vec<bool>,
    /// The time of an update, simulated.
    pub makespan: Seconds,
    /// The share of the ranks' time in which they do nothing.
    pub bubble: f64,
    /// The most bytes that each rank holds.
    pub peaks: PrimaryMap<RankId, Bytes>,
}

/// The best plan of each order that has one within the budget, the fastest first; only of the
/// orders before `is_over` becomes true.
///
/// # Errors
/// [`Unsuited`] if no order supports this number of ranks and micro-batches.
pub fn plan_stages(
    layers: &[LayerCost],
    devices: &Devices,
    micro_batches: u32,
    schedules: &[PipelineSchedule],
    is_over: &dyn Fn() -> bool,
) -> Result<Vec<StagePlan>, Unsuited> {
    let plan = |order: (&str, &Rows)| plan_rows(layers, devices, order, is_over);
    of_each(devices.ranks, micro_batches, schedules, &plan, is_over)
}

/// The same for stages that end after these layers: the plans of the orders with this number of
/// stages.
///
/// # Errors
/// [`Unsuited`] if no order supports this number of ranks and micro-batches.
pub fn plan_cut(
    (layers, ends): (&[LayerCost], &[usize]),
    devices: &Devices,
    micro_batches: u32,
    schedules: &[PipelineSchedule],
    is_over: &dyn Fn() -> bool,
) -> Result<Vec<StagePlan>, Unsuited> {
    let has_as_many = |rows: &Rows| rows.placement.len() == ends.len();
    let plan = |order: (&str, &Rows)| {
        has_as_many(order.1).then(|| evaluate(layers, devices, order, ends)).flatten()
    };
    of_each(devices.ranks, micro_batches, schedules, &plan, is_over)
}

/// A plan of each order that has one, the fastest first.
fn of_each(
    ranks: u32,
    micro_batches: u32,
    schedules: &[PipelineSchedule],
    plan: &dyn Fn((&str, &Rows)) -> Option<StagePlan>,
    is_over: &dyn Fn() -> bool,
) -> Result<Vec<StagePlan>, Unsuited> {
    let mut plans = Vec::new();
    let (mut first, mut is_suited) = (None, false);
    // With very many micro-batches, rows alone take seconds.
    for schedule in schedules.iter().take_while(|_| !is_over()) {
        match schedule.rows(ranks, micro_batches) {
            Ok(rows) => {
                is_suited = true;
                plans.extend(plan((schedule.name(), &rows)));
            }
            Err(error) => first = first.or(Some(error)),
        }
    }
    if let Some(error) = first.filter(|_| !is_suited) {
        return Err(error);
    }
    plans.sort_by(|a, b| a.makespan.0.total_cmp(&b.makespan.0));
    Ok(plans)
}

/// The best plan found of one order, whose rows are [valid](crate::pipeline::validate); `None` if
/// none fits.
pub fn plan_rows(
    layers: &[LayerCost],
    devices: &Devices,
    (name, rows): (&str, &Rows),
    is_over: &dyn Fn() -> bool,
) -> Option<StagePlan> {
    let plan = |ends: &[usize]| match is_over() {
        true => None,
        false => evaluate(layers, devices, (name, rows), ends),
    };
    let starts = if is_over() { Vec::new() } else { descend::starts(layers, devices, rows) };
    let found = starts.into_iter().filter_map(|ends| descend::descend(layers.len(), ends, &plan));
    found.min_by(|a, b| a.makespan.0.total_cmp(&b.makespan.0))
}

/// The cuts of one order that are worth planning tensor by tensor: the best one if whole layers are
/// recomputed, and the best one if nothing had to be, since tensors may fit where layers do not.
/// Empty if there are fewer layers than stages, or if time is over.
pub fn cuts(
    layers: &[LayerCost],
    devices: &Devices,
    order: (&str, &Rows),
    is_over: &dyn Fn() -> bool,
) -> Vec<StagePlan> {
    distinct(devices, &|devices| plan_rows(layers, devices, order, is_over))
}

/// The requested cut: within the budget if whole layers fit, and otherwise as if they did.
pub fn given_cut(
    (layers, ends): (&[LayerCost], &[usize]),
    devices: &Devices,
    order: (&str, &Rows),
) -> Vec<StagePlan> {
    distinct(devices, &|devices| evaluate(layers, devices, order, ends))
}

/// Plans within the budget of each rank and without one; the second only if its cut differs.
fn distinct(devices: &Devices, plan: &dyn Fn(&Devices) -> Option<StagePlan>) -> Vec<StagePlan> {
    let boundless = Devices { budget: Bytes::LIMIT, ..*devices };
    let mut plans: Vec<StagePlan> = Vec::new();
    for devices in [devices, &boundless] {
        let found = plan(devices);
        plans.extend(found.filter(|found| plans.iter().all(|plan| plan.ends != found.ends)));
    }
    plans
}
