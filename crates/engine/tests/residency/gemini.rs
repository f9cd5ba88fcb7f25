//! The published policies against the recorded cases of ColossalAI's Gemini. Invariant: every case
//! of the file is a test here, and a case that is added without one fails.
//!
//! Tier: quick, since it takes less than a second.

use serde_json::{Value, json};
use tightfit::id::EntityRef;
use tightfit::units::Bytes;
use tightfit_engine::residency::{
    Access, BlockId, GraphKey, Ledger, LedgerError, MarginRule, Order, Payload, Phase, Place,
    Policy, Recorder, Residency, ResidencyError, Settings, Shards, TensorId, TensorState, Tier,
    by_next_use, fill_margin,
};

const POLICIES: [&str; 7] = [
    "official_stateful_tensor_mgr",
    "lru_cache_poison/correct",
    "lru_cache_poison/seed_behaviour",
    "multi_evict",
    "non_model_periods",
    "cpu_policy",
    "cuda_policy",
];
const OTHERS: [&str; 6] = [
    "state_accounting",
    "oom_error",
    "next_use_order",
    "optimizer_margin",
    "reuse_fp16_shard_lifecycle",
    "illegal_transitions",
];

fn file() -> Value {
    serde_json::from_str(include_str!("../../../../corpus/cases/gemini.json")).unwrap()
}

fn case(name: &str) -> Value {
    let id = format!("gemini/{name}");
    let file = file();
    let mut cases = file["cases"].as_array().unwrap().iter();
    cases.find(|case| case["id"] == id.as_str()).unwrap_or_else(|| panic!("no case {id}")).clone()
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().map_or(Vec::new(), |all| all.iter().map(|it| it.as_u64().unwrap()).collect())
}

/// A device has whole bytes: the published share of them is at least that of the case, and exceeds
/// it by less than one byte.
fn whole(value: &Value) -> Option<Bytes> {
    value.as_f64().map(|bytes| Bytes(bytes.ceil() as u64))
}

/// A case that runs a policy, and its results for each access.
struct Run {
    residency: Residency,
    order: Vec<u64>,
    non_model: Vec<u64>,
    sizes: Vec<u64>,
}

impl Run {
    /// Chunks of the greatest common divisor give each tensor chunks of its own.
    fn new(input: &Value, policy: Policy) -> Run {
        let sizes = numbers(&input["sizes"]);
        let chunk = sizes.iter().copied().reduce(gcd).unwrap();
        let slots = (4 * sizes.iter().sum::<u64>() / chunk) as u32;
        let capacity = whole(&input["capacity_warmup"]).unwrap_or_default();
        let published = Settings::published(Bytes(chunk), slots, capacity);
        let settings = Settings {
            warm_up_non_model: input["warmup_non_model_ratio"].as_f64().unwrap_or(0.8),
            steady_capacity: input["steady_cap_ratio"].as_f64().unwrap_or(0.9),
            policy,
            ..published
        };
        let residency = Residency::new(settings, sizes.iter().copied().map(Bytes)).unwrap();
        let (order, non_model) = (numbers(&input["order"]), numbers(&input["non_model_by_period"]));
        Run { residency, order, non_model, sizes }
    }

    fn iteration(&mut self) -> (Vec<Value>, u64) {
        self.residency.begin(GraphKey(0)).unwrap();
        let order = self.order.clone();
        let steps = order.iter().enumerate().map(|(index, &used)| self.step(index, used)).collect();
        (steps, self.residency.end().unwrap().volume().0)
    }

    /// Every access writes, so that every eviction is a copy, as published.
    fn step(&mut self, index: usize, used: u64) -> Value {
        let tensors = [TensorId::new(used as usize)];
        let access = Access { reads: &[], writes: &tensors };
        let name = |block: BlockId| format!("p{}", block.index());
        let (mut evicted, mut moved, mut demand, mut volume) = (Vec::new(), Vec::new(), 0, 0);
        for step in self.residency.acquire(access).unwrap() {
            volume += step.bytes.0;
            match (step.from, step.to) {
                (Place::Host, Place::Device(_)) => {
                    demand += step.bytes.0;
                    moved.push(name(step.block));
                }
                (Place::Device(_), Place::Host) => evicted.push(name(step.block)),
                (from, to) => panic!("from {from:?} to {to:?}"),
            }
        }
        let non_model = Bytes(self.non_model.get(index).copied().unwrap_or(0));
        let is_there = |&tensor: &usize| self.residency.address(TensorId::new(tensor)).is_some();
        let on_device: Vec<usize> = (0..self.sizes.len()).filter(is_there).collect();
        assert!(on_device.contains(&(used as usize)), "COMPUTE implies the device");
        assert_eq!(self.residency.state(tensors[0]), Some(TensorState::Compute));
        let used_device: u64 = on_device.iter().map(|&tensor| self.sizes[tensor]).sum();
        assert_eq!(self.residency.held().0, used_device);
        self.residency.release(access, Phase::Forward, non_model).unwrap();
        json!({
            "compute": format!("p{used}"),
            "compute_idx": index,
            "cuda_demand": demand,
            "evicted": evicted,
            "moved_to_cuda": moved,
            "on_cuda": on_device.iter().map(|tensor| format!("p{tensor}")).collect::<Vec<_>>(),
            "used_cuda": used_device,
            "used_cpu": self.sizes.iter().sum::<u64>() - used_device,
            "move_volume_delta": volume,
        })
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[test]
fn every_case_is_a_test() {
    let file = file();
    let ids = file["cases"].as_array().unwrap().iter().map(|case| case["id"].as_str().unwrap());
    let mut found: Vec<&str> = ids.map(|id| id.trim_start_matches("gemini/")).collect();
    let mut known = [&POLICIES[..], &OTHERS].concat();
    found.sort_unstable();
    known.sort_unstable();
    assert_eq!(found, known);
}

/// Warm-up and steady iterations of a case, in the form of its file.
fn trace(case: &Value) -> Value {
    let input = &case["input"];
    let mut run = Run::new(input, Policy::Auto);
    let (warm_up, _) = run.iteration();
    run.residency.set_capacity(whole(&input["capacity_steady"]).unwrap());
    let iterations = input["iterations"].as_u64().unwrap();
    let steady: Vec<Value> = (0..iterations)
        .map(|_| {
            let (steps, volume) = run.iteration();
            json!({ "steps": steps, "volume": volume })
        })
        .collect();
    json!({ "warmup": warm_up, "steady": steady })
}

#[test]
fn iterations_are_as_recorded() {
    for name in ["lru_cache_poison/correct", "multi_evict", "non_model_periods"] {
        let case = case(name);
        assert_eq!(trace(&case), case["expected"], "{name}");
    }
}

#[test]
fn a_cached_layout_is_never_replayed() {
    let poisoned = case("lru_cache_poison/seed_behaviour");
    let (found, wrong) = (trace(&poisoned), &poisoned["expected"]);
    assert_eq!(found["warmup"], wrong["warmup"]);
    assert_eq!(found["steady"][0], wrong["steady"][0]);
    for iteration in [1, 2] {
        assert_ne!(found["steady"][iteration], wrong["steady"][iteration]);
        for step in found["steady"][iteration]["steps"].as_array().unwrap() {
            assert!(step["on_cuda"].as_array().unwrap().contains(&step["compute"]));
            assert!(step["used_cuda"].as_u64().unwrap() <= 60);
        }
    }
}

#[test]
fn the_official_sequence() {
    let case = case("official_stateful_tensor_mgr");
    let (input, expected) = (&case["input"], &case["expected"]);
    let mut run = Run::new(input, Policy::Auto);
    let warm_up = run.iteration();
    run.residency.set_capacity(whole(&input["capacity_steady"]).unwrap());
    let steady = run.iteration();
    assert_eq!(json!(warm_up.0), expected["warmup"]);
    assert_eq!(json!(steady.0), expected["steady"]);
    assert_eq!(json!(warm_up.1), expected["warmup_volume_bytes"]);
    assert_eq!(json!(steady.1), expected["steady_volume_bytes"]);
}

#[test]
fn host_and_device_policy() {
    for (name, policy) in [("cpu_policy", Policy::Host), ("cuda_policy", Policy::Device)] {
        let case = case(name);
        let (steps, _) = Run::new(&case["input"], policy).iteration();
        assert_eq!(json!(steps), case["expected"], "{name}");
    }
}

#[test]
fn too_little_memory_says_how_much() {
    let case = case("oom_error");
    assert!(case["expected"]["error"].as_str().unwrap().ends_with("Need 10.0, freed 0"));
    let mut run = Run::new(&case["input"], Policy::Auto);
    run.residency.begin(GraphKey(0)).unwrap();
    let access = Access { reads: &[TensorId::new(0)], writes: &[] };
    let error = run.residency.acquire(access).unwrap_err();
    assert_eq!(error, ResidencyError::NotEnough { needed: Bytes(10), freed: Bytes(0) });
    assert!(error.to_string().contains("10 B more are needed, 0 B can be freed"));
    run.residency.set_capacity(Bytes(120));
    assert_eq!(run.residency.acquire(access).unwrap().len(), 1, "nothing had changed");
}

#[test]
fn next_use_order() {
    let case = case("next_use_order");
    let (input, expected) = (&case["input"], &case["expected"]);
    let block = |name: &Value| {
        let hold = input["hold"].as_array().unwrap();
        BlockId::new(hold.iter().position(|held| held == name).unwrap())
    };
    let mut accesses = Recorder::default();
    for name in input["compute_list"].as_array().unwrap() {
        accesses.push(&[block(name)]);
    }
    let order = Order::new(accesses);
    let position = input["compute_idx"].as_u64().unwrap() as u32;
    for (name, next) in expected["next_compute_idx"].as_object().unwrap() {
        let found = order.next_use(block(&json!(name)), position + 1).unwrap_or(order.accesses());
        assert_eq!(json!(found), *next, "{name}");
    }
    let all: Vec<BlockId> = (0..4).map(BlockId::new).collect();
    let evicted: Vec<BlockId> =
        expected["evict_order"].as_array().unwrap().iter().map(block).collect();
    assert_eq!(by_next_use(&order, position, &all), evicted);
}

#[test]
fn the_margin_is_filled_in_order() {
    let case = case("optimizer_margin");
    let (input, expected) = (&case["input"], &case["expected"]);
    let rule = MarginRule {
        capacity: Bytes(input["cuda_capacity"].as_u64().unwrap()),
        peak: Bytes(input["max_overall_cuda"].as_u64().unwrap()),
        ratio: input["gpu_margin_mem_ratio"].as_f64().unwrap(),
        shards_per_parameter: input["num_fp32_shards_per_param"].as_u64().unwrap() as u32,
    };
    let shards: Vec<Bytes> = numbers(&input["shards"]).into_iter().map(Bytes).collect();
    let margin = fill_margin(rule, &shards);
    let found = json!({
        "margin": margin.bytes.0,
        "available": margin.available,
        "on_cuda": margin.on_device,
        "used": margin.used.0,
    });
    assert_eq!(found, *expected);
    for idle in [
        MarginRule { ratio: 0.0, ..rule },
        MarginRule { ratio: f64::NAN, ..rule },
        MarginRule { shards_per_parameter: 1, ..rule },
        MarginRule { peak: Bytes(1001), ..rule },
    ] {
        assert_eq!(fill_margin(idle, &shards).used, Bytes::ZERO, "{idle:?}");
    }
}

fn payload(bytes: u64, tier: Tier) -> Payload {
    Payload { bytes: Bytes(bytes), tier }
}

/// The totals that the case has at a point, as pairs of host and device.
fn totals(ledger: &Ledger, states: &Value) -> Value {
    let mut found = json!({
        "n": ledger.count(),
        "cpu": ledger.held(Tier::Host).0,
        "cuda": ledger.held(Tier::Device).0,
    });
    for state in TensorState::ALL {
        if states.get(state.to_string()).is_some() {
            let pair = [Tier::Host, Tier::Device].map(|tier| ledger.total(tier, state).0);
            found[state.to_string()] = json!(pair);
        }
    }
    found
}

#[test]
fn state_accounting() {
    use TensorState::{Compute, Free, Hold, HoldAfterBackward, HoldAfterForward};
    let expected = &case("state_accounting")["expected"];
    let mut ledger = Ledger::default();
    let mut create = |payload, state| ledger.create(payload, state).unwrap();
    let first = create(Some(payload(8, Tier::Device)), Hold);
    let second = create(Some(payload(60, Tier::Host)), Hold);
    let third = create(Some(payload(28, Tier::Device)), HoldAfterForward);
    let fourth = create(None, Free);
    assert_eq!(totals(&ledger, &expected["A"]), expected["A"]);
    ledger.reset(fourth, payload(12, Tier::Host)).unwrap();
    ledger.reset(third, payload(12, Tier::Host)).unwrap();
    assert_eq!(totals(&ledger, &expected["B"]), expected["B"]);
    ledger.move_to(first, Tier::Host).unwrap();
    ledger.move_to(second, Tier::Host).unwrap();
    ledger.move_to(third, Tier::Device).unwrap();
    assert_eq!(totals(&ledger, &expected["C"]), expected["C"]);
    ledger.transition(first, Compute).unwrap();
    ledger.transition(second, Compute).unwrap();
    ledger.transition(second, HoldAfterBackward).unwrap();
    assert_eq!(totals(&ledger, &expected["D"]), expected["D"]);
}

/// A parameter of 1000 elements: two bytes each on the device, four on the host.
fn shards(ledger: &mut Ledger) -> Shards {
    let mut create = |payload, state| ledger.create(payload, state).unwrap();
    Shards {
        parameter: create(Some(payload(2000, Tier::Device)), TensorState::Hold),
        gradient: create(None, TensorState::Free),
        master: create(Some(payload(4000, Tier::Host)), TensorState::Hold),
        bytes: Bytes(2000),
    }
}

#[test]
fn the_gradient_takes_over_the_bytes_of_its_parameter() {
    let mut ledger = Ledger::default();
    let all = shards(&mut ledger);
    for expected in case("reuse_fp16_shard_lifecycle")["expected"].as_array().unwrap() {
        match expected["step"].as_str().unwrap() {
            "init" => Ok(()),
            "pre_bwd" => all.before_backward(&mut ledger),
            "save_grad" => all.save_gradient(&mut ledger, Tier::Host),
            "reset_data_to_empty" => all.empty_parameter(&mut ledger),
            "post_bwd" => all.after_backward(&mut ledger),
            "prepare_grads" => all.take_gradient(&mut ledger),
            "point_to_master" => all.take_master(&mut ledger),
            "payload_relay" => all.relay(&mut ledger),
            "done" => all.finish(&mut ledger),
            other => panic!("unknown step {other}"),
        }
        .unwrap();
        let states = |tier| {
            let held = TensorState::ALL.into_iter().filter(|&state| state != TensorState::Free);
            let totals = held.map(|state| (state.to_string(), json!(ledger.total(tier, state).0)));
            Value::Object(totals.collect())
        };
        let tensor = |tensor| {
            let bytes = ledger.payload(tensor).unwrap().map_or(0, |payload| payload.bytes.0);
            json!([ledger.state(tensor).unwrap().to_string(), bytes])
        };
        let found = json!({
            "step": expected["step"],
            "total_cpu": ledger.held(Tier::Host).0,
            "total_cuda": ledger.held(Tier::Device).0,
            "state_cpu": states(Tier::Host),
            "state_cuda": states(Tier::Device),
            "data": tensor(all.parameter),
            "grad": tensor(all.gradient),
            "master": tensor(all.master),
        });
        assert_eq!(found, *expected);
    }
}

#[test]
fn an_overflow_skips_the_step() {
    let mut ledger = Ledger::default();
    let all = shards(&mut ledger);
    all.before_backward(&mut ledger).unwrap();
    all.save_gradient(&mut ledger, Tier::Host).unwrap();
    all.empty_parameter(&mut ledger).unwrap();
    all.after_backward(&mut ledger).unwrap();
    all.take_gradient(&mut ledger).unwrap();
    all.skip(&mut ledger, Tier::Device).unwrap();
    assert_eq!(ledger.payload(all.parameter), Ok(Some(payload(2000, Tier::Device))));
    assert_eq!(ledger.payload(all.gradient), Ok(None));
    assert_eq!(ledger.payload(all.master), Ok(Some(payload(4000, Tier::Host))));
    for tensor in [all.parameter, all.master] {
        assert_eq!(ledger.state(tensor), Ok(TensorState::Hold));
    }
    all.before_backward(&mut ledger).unwrap();
    all.save_gradient(&mut ledger, Tier::Host).unwrap();
}

#[test]
fn illegal_transitions() {
    assert_eq!(
        case("illegal_transitions")["expected"].as_str().unwrap().matches("error").count(),
        1
    );
    let mut ledger = Ledger::default();
    let free = ledger.create(None, TensorState::Free).unwrap();
    let illegal = ledger.transition(free, TensorState::Hold);
    assert!(matches!(illegal, Err(LedgerError::Illegal { tensor, .. }) if tensor == free));
    let nothing = LedgerError::NoBytes { tensor: free, purpose: "move" };
    assert_eq!(ledger.move_to(free, Tier::Host), Err(nothing));
    let some = Some(payload(8, Tier::Host));
    let creation = |state, payload| Err(LedgerError::Creation { state, payload });
    assert_eq!(ledger.create(some, TensorState::Free), creation(TensorState::Free, true));
    assert_eq!(ledger.create(None, TensorState::Hold), creation(TensorState::Hold, false));
    ledger.register(&[free]).unwrap();
    assert_eq!(ledger.register(&[free]), Err(LedgerError::RegisteredTwice));
    assert_eq!(ledger.registered(), [free]);
    let all = shards(&mut ledger);
    all.save_gradient(&mut ledger, Tier::Host).unwrap();
    let full = LedgerError::NotEmpty { tensor: all.gradient, bytes: Bytes(2000) };
    assert_eq!(all.save_gradient(&mut ledger, Tier::Host), Err(full));
    assert_eq!(ledger.transition(free, TensorState::Free), Ok(()));
    assert_eq!(ledger.held(Tier::Device), Bytes(2000));
    ledger.transition(all.parameter, TensorState::Free).unwrap();
    assert_eq!(ledger.held(Tier::Device), Bytes(0));
    let beyond = ledger.reset(free, payload(u64::MAX, Tier::Host));
    assert_eq!(beyond, Err(LedgerError::TooLarge { bytes: Bytes(u64::MAX) }));
}
