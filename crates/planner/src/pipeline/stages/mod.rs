//! Where a pipeline is cut, in which order its ranks perform what, and which layers each of them
//! recomputes, all chosen together under a budget for each rank. Invariant: what is answered holds
//! no more than the budget on any rank, by the model of [`LayerCost`], and its time is that of the
//! simulation.
//!
//! For orders with one stage on each rank the cuts with the least *path bound* come first: the time
//! of a pipeline is at least that of the way of the first micro-batch to a stage and back, and of
//! all micro-batches on that stage. Dynamic programming finds all of them that no other one beats
//! in both parts ([`front`]). For all orders, cuts of layers of equal time and of equal memory come
//! next, and every one is improved by moving borders as long as the simulation gets shorter.
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

/// What a layer costs, and what it holds, for one micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LayerCost {
    /// Time of the forward pass.
    pub forward: Seconds,
    /// Time of the part of the backward pass that the layer before waits for.
    pub input_gradient: Seconds,
    /// Time of the rest of the backward pass.
    pub weight_gradient: Seconds,
    /// Parameters, their gradients and the optimizer's state, once for all micro-batches.
    pub held: Bytes,
    /// What the forward pass leaves for backward passes.
    pub activations: Bytes,
    /// What of that later layers read, so that it stays where the layer is recomputed.
    pub boundary: Bytes,
    /// What the layer reads of those before it: held on its rank, too, where a stage begins with
    /// it, and sent there.
    pub entering: Bytes,
    /// What a single call of it needs beside that.
    pub transient: Bytes,
}

impl LayerCost {
    /// Time of all passes.
    pub fn seconds(&self) -> Seconds {
        self.forward + self.input_gradient + self.weight_gradient
    }

    /// The least that its rank holds, with one micro-batch in flight.
    pub fn least(&self) -> Bytes {
        let of = |again: bool| self.held + self.entering + self.kept(again) + self.working(again);
        of(false).min(of(true))
    }

    /// What it holds for each micro-batch, kept or recomputed.
    fn kept(&self, is_recomputed: bool) -> Bytes {
        if is_recomputed { self.boundary.min(self.activations) } else { self.activations }
    }

    /// What it needs once, while it runs.
    fn working(&self, is_recomputed: bool) -> Bytes {
        self.transient + if is_recomputed { self.activations } else { Bytes::ZERO }
    }
}

/// What ranks are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Devices {
    /// How many there are.
    pub ranks: u32,
    /// Bytes of each.
    pub budget: Bytes,
    /// Bytes that go from one to another in a second.
    pub bandwidth: f64,
    /// How long the first of them takes.
    pub latency: Seconds,
}

impl Devices {
    /// How long so many bytes take.
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
    /// Who does what.
    pub rows: Rows,
    /// The layer behind the last one of each stage.
    pub ends: Vec<usize>,
    /// Which layers are recomputed in each backward pass.
    pub recomputed: Vec<bool>,
    /// The time of an update, simulated.
    pub makespan: Seconds,
    /// The share of the ranks' time in which they do nothing.
    pub bubble: f64,
    /// What each rank holds at most.
    pub peaks: PrimaryMap<RankId, Bytes>,
}

/// The best plan of each order that has one within the budget, the fastest first; where `is_over`
/// says so, of the orders up to there.
///
/// # Errors
/// [`Unsuited`] where no order is for so many ranks and micro-batches.
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

/// The same for stages that end behind these layers: the plans of the orders with so many stages.
///
/// # Errors
/// [`Unsuited`] where no order is for so many ranks and micro-batches.
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
    // Of very many micro-batches rows alone take seconds.
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

/// The best plan found of one order, whose rows are [valid](crate::pipeline::validate); `None`
/// where none fits.
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

/// The cuts of one order that are worth to be planned tensor by tensor: the one that is best where
/// whole layers are recomputed, and the one that were best if nothing had to be, since tensors may
/// fit where layers do not. None where there are fewer layers than stages, or it is over.
pub fn cuts(
    layers: &[LayerCost],
    devices: &Devices,
    order: (&str, &Rows),
    is_over: &dyn Fn() -> bool,
) -> Vec<StagePlan> {
    distinct(devices, &|devices| plan_rows(layers, devices, order, is_over))
}

/// The one cut that is asked for: within the budget if whole layers fit, and else as if they did.
pub fn given_cut(
    (layers, ends): (&[LayerCost], &[usize]),
    devices: &Devices,
    order: (&str, &Rows),
) -> Vec<StagePlan> {
    distinct(devices, &|devices| evaluate(layers, devices, order, ends))
}

/// Plans within the budget of each rank and without one, of which the second differs in its cut.
fn distinct(devices: &Devices, plan: &dyn Fn(&Devices) -> Option<StagePlan>) -> Vec<StagePlan> {
    let boundless = Devices { budget: Bytes::LIMIT, ..*devices };
    let mut plans: Vec<StagePlan> = Vec::new();
    for devices in [devices, &boundless] {
        let found = plan(devices);
        plans.extend(found.filter(|found| plans.iter().all(|plan| plan.ends != found.ends)));
    }
    plans
}
