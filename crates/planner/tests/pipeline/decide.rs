//! Deciding among pipelines: what is planned, in which order, and what is kept.
//!
//! Tier: quick, since it takes less than a second.

use std::cell::Cell;

use tightfit::pipeline::stages::{Devices, LayerCost, StagePlan};
use tightfit::pipeline::{Decided, LayeredModel, Order, PipelineSchedule, Planning, Time};
use tightfit::units::{Bytes, Seconds};

/// Plans as the model of layers predicts, within a budget; refusals ask for what is held.
struct Predicted {
    budget: Bytes,
    time: Cell<Time>,
    /// The time after the first candidate.
    afterwards: Time,
    tried: Vec<Bytes>,
}

impl Predicted {
    fn new(budget: Bytes, time: Time, afterwards: Time) -> Predicted {
        Predicted { budget, time: Cell::new(time), afterwards, tried: Vec::new() }
    }
}

impl Planning for Predicted {
    type Planned = StagePlan;
    type Refusal = Bytes;
    type Need = Bytes;

    fn plan(&mut self, candidate: &StagePlan, _: usize) -> Result<StagePlan, Bytes> {
        let held = held(candidate);
        self.tried.push(held);
        self.time.set(self.afterwards);
        if held <= self.budget { Ok(candidate.clone()) } else { Err(held) }
    }

    fn cost(&self, planned: &StagePlan) -> f64 {
        planned.makespan.0
    }

    fn may_beat(&self, least: Seconds, best: &StagePlan) -> bool {
        least.0 < best.makespan.0
    }

    fn need(&self, refusal: &Bytes) -> Bytes {
        *refusal
    }

    fn time(&self) -> Time {
        self.time.get()
    }
}

fn held(plan: &StagePlan) -> Bytes {
    plan.peaks.values().copied().max().unwrap()
}

/// Candidates of all orders for eight layers on two devices, and what became of them.
fn decided(mut predicted: Predicted) -> (Vec<StagePlan>, Predicted, Decided<Predicted>) {
    let cost = |layer: u64| LayerCost {
        forward: Seconds(1.0 + layer as f64),
        input_gradient: Seconds(1.0),
        weight_gradient: Seconds(1.0),
        held: Bytes(10),
        activations: Bytes(100),
        boundary: Bytes(10),
        ..LayerCost::default()
    };
    let layers: Vec<LayerCost> = (0..8).map(cost).collect();
    let budget = Bytes::LIMIT;
    let devices = Devices { ranks: 2, budget, bandwidth: 1e9, latency: Seconds(0.0) };
    let model = LayeredModel { layers: &layers, ends: None, devices: &devices };
    let orders: Vec<Order> = PipelineSchedule::with_equal_sums().map(Order::Known).collect();
    let candidates = model.candidates(&orders, 4, &|| Time::Unlimited).unwrap();
    let decided = model.decide(candidates.clone(), &mut predicted);
    (candidates, predicted, decided)
}

#[test]
fn the_fastest_is_planned_and_what_cannot_beat_it_is_skipped() {
    let all = Predicted::new(Bytes::LIMIT, Time::Unlimited, Time::Unlimited);
    let (candidates, _, decided) = decided(all);
    assert_eq!(decided.planned[0], candidates[0]);
    assert_eq!(decided.planned.len() + decided.skipped.len(), candidates.len());
    assert!(!decided.skipped.is_empty() && decided.refused.is_none());
    let best = decided.planned[0].makespan.0;
    assert!(decided.skipped.iter().all(|(_, least)| least.0 >= best));
}

#[test]
fn of_refusals_the_one_that_asks_least_is_kept() {
    let none = Predicted::new(Bytes::ZERO, Time::Unlimited, Time::Unlimited);
    let (candidates, predicted, decided) = decided(none);
    assert_eq!(predicted.tried, candidates.iter().map(held).collect::<Vec<_>>());
    assert_eq!(decided.refused, predicted.tried.iter().min().copied());
    assert!(decided.planned.is_empty() && decided.skipped.is_empty());
}

#[test]
fn in_little_time_the_one_that_holds_least_comes_after_a_refusal() {
    let (candidates, predicted, _) = decided(Predicted::new(Bytes::ZERO, Time::Left, Time::Left));
    let least = candidates[1..].iter().map(held).min().unwrap();
    assert_eq!(predicted.tried[..2], [held(&candidates[0]), least]);
    assert!(least < held(&candidates[1]), "by the model of layers it does not come second");
}

#[test]
fn one_candidate_is_planned_when_time_is_up_and_none_after_an_interruption() {
    for budget in [Bytes::ZERO, Bytes::LIMIT] {
        let (candidates, predicted, decided) = decided(Predicted::new(budget, Time::Up, Time::Up));
        assert_eq!(predicted.tried.len(), 1);
        assert_eq!(decided.skipped.len(), candidates.len() - 1);
    }
    let late = Predicted::new(Bytes::LIMIT, Time::Interrupted, Time::Interrupted);
    let (candidates, predicted, decided) = decided(late);
    assert!(predicted.tried.is_empty() && decided.planned.is_empty());
    assert_eq!(decided.skipped.len(), candidates.len());
}
