//! Selective checkpointing of modules on the recorded cases. Invariant: the files say what is
//! expected.
//!
//! Tier: quick, since it takes less than a second.

use serde_json::{Value, json};
use tightfit::analysis::modules::{ModuleIndex, ModuleInfo, OperatorStats, operators};
use tightfit::plan::SolverLimits;
use tightfit::plan::modules::{ModulePlanError, SelectivePlan, SelectiveTask, policy, selective};
use tightfit::units::{Bytes, Seconds};

use crate::fixtures::corpus;

fn file(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(corpus::path(&format!("cases/{name}"))).unwrap()).unwrap()
}

fn read(value: &Value) -> ModuleInfo {
    ModuleInfo::from_json(value.to_string().as_bytes()).unwrap()
}

fn sac_cases() -> Vec<Value> {
    file("ilp_sac.json")["cases"].as_array().unwrap().clone()
}

fn case(id: &str) -> Value {
    sac_cases().into_iter().find(|case| case["id"] == id).unwrap()
}

fn named(info: &ModuleInfo, names: &Value) -> Vec<ModuleIndex> {
    names.as_array().map_or(Vec::new(), |names| {
        names.iter().map(|name| info.find(name.as_str().unwrap()).unwrap()).collect()
    })
}

fn gib(budget: &Value) -> Bytes {
    Bytes((budget.as_f64().unwrap() * f64::from(1 << 30)).round() as u64)
}

fn task(info: &ModuleInfo, budget: Bytes, input: &Value) -> SelectiveTask {
    SelectiveTask {
        budget,
        world_size: input["world_size"].as_u64().unwrap() as u32,
        allowed: input.get("ac_units").map(|names| named(info, names)),
        sharded: named(info, &input["fsdp_units"]),
        limits: SolverLimits::default(),
    }
}

fn ratios(info: &ModuleInfo, plan: &SelectivePlan) -> Vec<(String, f64)> {
    plan.units
        .iter()
        .map(|unit| (info.modules()[unit.module].name.clone(), unit.discard_ratio))
        .collect()
}

#[test]
fn every_recorded_budget_has_the_recorded_answer() {
    let info = read(&case("ilp/parse_and_baseline")["input"]["module_info"]);
    let budgets: Vec<Value> = sac_cases()
        .into_iter()
        .filter(|case| case["input"]["memory_budget_gib"].is_number())
        .collect();
    assert_eq!(budgets.len(), 10);
    for case in budgets {
        let (input, expected) = (&case["input"], &case["expected"]);
        let budget = gib(&input["memory_budget_gib"]);
        match selective(&info, &task(&info, budget, input)) {
            Ok(plan) => {
                assert_eq!(expected["feasible"], json!(true), "{}", case["id"]);
                assert!(
                    (plan.recompute.0 * 1e3 - expected["recompute_ms"].as_f64().unwrap()).abs()
                        < 1e-6,
                    "{}: {plan:?}",
                    case["id"]
                );
                assert_eq!(json!(plan.peak.0), expected["true_peak"], "{}", case["id"]);
                assert_eq!(plan.gap, Some(0.0));
                let decisions = expected["decisions"].as_object().unwrap();
                assert_eq!(plan.units.len(), decisions.len(), "{}: {plan:?}", case["id"]);
                for (name, ratio) in ratios(&info, &plan) {
                    assert!(
                        (ratio - decisions[&name].as_f64().unwrap()).abs() < 1e-4,
                        "{}: {name} {ratio}",
                        case["id"]
                    );
                }
            }
            Err(ModulePlanError::Infeasible(proof)) => {
                assert_eq!(expected["feasible"], json!(false), "{}: {proof}", case["id"]);
                assert!(proof.proven && proof.least > budget);
            }
            Err(error) => panic!("{}: {error}", case["id"]),
        }
    }
}

#[test]
fn real_modules_have_the_recorded_answers() {
    let case = case("ilp/real_module_info_mlp3");
    let info = read(&case["input"]["module_info"]);
    for expected in case["expected"]["sac"].as_array().unwrap() {
        let budget = Bytes(expected["budget_bytes"].as_u64().unwrap());
        let plan = selective(&info, &task(&info, budget, &json!({ "world_size": 1 })));
        assert_eq!(json!(plan.is_ok()), expected["feasible"], "{budget}");
        let Ok(plan) = plan else { continue };
        // The layers are alike, so any layer is as good as another, except the last.
        let mut ratios: Vec<f64> =
            ratios(&info, &plan).into_iter().map(|(_, ratio)| ratio).collect();
        let mut recorded: Vec<f64> = expected["decisions"]
            .as_object()
            .unwrap()
            .values()
            .map(|ratio| ratio.as_f64().unwrap())
            .collect();
        ratios.sort_by(f64::total_cmp);
        recorded.sort_by(f64::total_cmp);
        assert_eq!(ratios.len(), recorded.len());
        assert!(
            ratios.iter().zip(&recorded).all(|(a, b)| (a - b).abs() < 1e-4),
            "{ratios:?} {recorded:?}"
        );
    }
}

#[test]
fn answers_are_no_worse_than_those_of_pytorch() {
    for name in ["llama_tiny_4l", "torchtest_4l"] {
        let info = read(&file(&format!("module_info/module_info_{name}.json")));
        for answer in
            file(&format!("module_info/sac_answers_{name}.json"))["milp"].as_array().unwrap()
        {
            let budget = gib(&answer["budget_gib"]);
            let recorded = answer["peak_bytes"].as_i64().unwrap();
            match selective(&info, &task(&info, budget, answer)) {
                Ok(plan) => {
                    assert!(recorded > 0, "{name} {answer}");
                    // Recorded figures are rounded to a hundredth of a millisecond.
                    let milliseconds = plan.recompute.0 * 1e3;
                    assert!(
                        milliseconds <= answer["recompute_ms"].as_f64().unwrap() + 0.005,
                        "{name}: {milliseconds} {answer}"
                    );
                    assert!(plan.peak <= budget);
                }
                Err(ModulePlanError::Infeasible(proof)) => {
                    assert!(
                        recorded == -1 && proof.proven && proof.least > budget,
                        "{name} {answer}"
                    )
                }
                Err(error) => panic!("{name}: {error}"),
            }
        }
    }
}

#[test]
fn the_least_budget_of_a_proof_is_enough_and_one_byte_less_is_not() {
    for name in ["llama_tiny_4l", "torchtest_4l"] {
        let info = read(&file(&format!("module_info/module_info_{name}.json")));
        let answer = |budget| selective(&info, &task(&info, budget, &json!({ "world_size": 1 })));
        let Err(ModulePlanError::Infeasible(proof)) = answer(Bytes(1)) else {
            panic!("a byte is enough")
        };
        assert_eq!(answer(proof.least).unwrap().peak, proof.least);
        let Err(ModulePlanError::Infeasible(below)) = answer(Bytes(proof.least.0 - 1)) else {
            panic!("less than the least is enough")
        };
        assert_eq!((below.least, &below.module), (proof.least, &proof.module));
        assert_eq!(proof.held.iter().map(|held| held.1).sum::<Bytes>(), proof.least);
    }
}

/// The operators of the recorded policy case.
fn recorded_operators() -> Vec<OperatorStats> {
    let case = case("ilp/per_module_policy");
    let ops = case["input"]["ops"].as_array().unwrap();
    let column = |key: &str| ops.iter().map(|op| op[key].clone()).collect::<Value>();
    let stats = json!({
        "func_names": column("name"), "runtimes": column("runtime"), "memory": column("memory"),
        "view_like_ops": case["input"]["view_like"], "rand_ops": case["input"]["rand"],
        "inplace_ops": case["input"]["inplace"],
        "force_store_random": case["input"]["force_store_random"],
    });
    operators("case", &stats).unwrap().0
}

#[test]
fn policies_are_the_recorded_ones() {
    let operators = recorded_operators();
    for expected in case("ilp/per_module_policy")["expected"].as_array().unwrap() {
        let policy =
            policy(&operators, false, expected["memory_budget"].as_f64().unwrap()).unwrap();
        assert_eq!(
            json!(policy.saved.iter().map(|&saved| u8::from(saved)).collect::<Vec<_>>()),
            expected["policy"]
        );
        assert!(
            (policy.recompute.0 * 1e3 - expected["recompute_time"].as_f64().unwrap()).abs() < 1e-9
        );
    }
}

#[test]
fn policies_of_real_modules_are_no_worse_than_those_of_pytorch() {
    for name in ["llama_tiny_4l", "torchtest_4l"] {
        let stats = &file(&format!("module_info/module_info_{name}.json"))["sac_stats"];
        for recorded in
            file(&format!("module_info/sac_answers_{name}.json"))["policy"].as_array().unwrap()
        {
            let module = recorded["module"].as_str().unwrap();
            let (operators, save_random) = operators(module, &stats[module]).unwrap();
            let share = recorded["budget"].as_f64().unwrap();
            let ours = policy(&operators, save_random, share).unwrap();
            let kept = |at: usize| recorded["policy"][at].as_u64().unwrap() == 1;
            let theirs: f64 = (0..operators.len())
                .filter(|&at| !kept(at))
                .map(|at| operators[at].seconds.0)
                .sum();
            assert!(
                ours.recompute.0 <= theirs + 1e-12,
                "{name} {share}: {} {theirs}",
                ours.recompute.0
            );
            let all: u64 = operators.iter().map(|operator| operator.bytes.0).sum();
            assert!(ours.bytes.0 as f64 <= (share * all as f64).ceil());
        }
        // Whole models, with hundreds of operators.
        for (module, stats) in stats.as_object().unwrap() {
            let (operators, save_random) = operators(module, stats).unwrap();
            let curve: Vec<f64> = (0..=10)
                .map(|tenth| {
                    policy(&operators, save_random, f64::from(tenth) / 10.0).unwrap().recompute.0
                })
                .collect();
            assert!(curve.is_sorted_by(|more, less| more >= less), "{module}: {curve:?}");
        }
    }
}

fn operator(seconds: f64, bytes: u64) -> OperatorStats {
    let (name, seconds) = (String::new(), Seconds(seconds));
    OperatorStats {
        name,
        seconds,
        bytes: Bytes(bytes),
        is_view: false,
        is_random: false,
        in_place_of: None,
    }
}

#[test]
fn the_knapsack_of_plain_operators_has_the_recorded_optima() {
    let case = case("ilp/knapsack");
    let numbers = |list: &Value| -> Vec<f64> {
        list.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
    };
    let (memory, runtime) = (numbers(&case["input"]["memory"]), numbers(&case["input"]["runtime"]));
    // Shares of 1.25 bytes of memory in total, in hundredths.
    let items: Vec<OperatorStats> = memory
        .iter()
        .zip(&runtime)
        .map(|(&memory, &runtime)| operator(runtime, (memory * 100.0).round() as u64))
        .collect();
    let total: f64 = memory.iter().sum();
    let optima = numbers(&case["expected"]["optimal_saved_runtime"]);
    for (at, (budget, optimum)) in
        numbers(&case["input"]["budgets"]).into_iter().zip(optima).enumerate()
    {
        let policy = policy(&items, false, budget / total).unwrap();
        assert!(
            (runtime.iter().sum::<f64>() - policy.recompute.0 - optimum).abs() < 1e-9,
            "{budget}"
        );
        let saved: Vec<usize> = (0..items.len()).filter(|&item| policy.saved[item]).collect();
        assert!(
            case["expected"]["optimal_saved_sets"][at].as_array().unwrap().contains(&json!(saved)),
            "{budget}: {saved:?}"
        );
    }
}

#[test]
fn policies_are_optimal_beside_all_subsets() {
    let mut random = fastrand::Rng::with_seed(5);
    for _ in 0..300 {
        let count = random.usize(1..=8);
        let mut items: Vec<OperatorStats> =
            (0..count).map(|_| operator(f64::from(random.u32(0..20)), random.u64(0..30))).collect();
        for (at, item) in items.iter_mut().enumerate() {
            match random.u32(0..8) {
                0 => item.is_view = true,
                1 | 2 => item.is_random = true,
                3 => item.in_place_of = Some(random.usize(0..=at)),
                _ => {}
            }
        }
        let (save_random, share) = (random.bool(), random.f64());
        let capacity =
            (share * items.iter().map(|item| item.bytes.0).sum::<u64>() as f64).ceil() as u64;
        let legal = |kept: u32| {
            let is = |at: usize| kept >> at & 1 == 1;
            let mut draws = (0..count).filter(|&at| items[at].is_random).map(is);
            let grouped = if save_random {
                draws.all(|kept| kept)
            } else {
                draws.clone().all(|kept| kept) || draws.all(|kept| !kept)
            };
            let follows = (0..count).all(|at| match items[at].in_place_of {
                Some(parent) if parent == at => is(at),
                Some(parent) => is(at) == is(parent),
                None => true,
            });
            let bytes: u64 = (0..count).filter(|&at| is(at)).map(|at| items[at].bytes.0).sum();
            grouped
                && follows
                && (0..count).all(|at| !(items[at].is_view && is(at)))
                && bytes <= capacity
        };
        let again = |kept: u32| -> f64 {
            (0..count).filter(|&at| kept >> at & 1 == 0).map(|at| items[at].seconds.0).sum()
        };
        let least =
            (0..1 << count).filter(|&kept| legal(kept)).map(again).fold(f64::INFINITY, f64::min);
        if least.is_finite() {
            assert_eq!(
                policy(&items, save_random, share).unwrap().recompute.0,
                least,
                "{items:?} {share}"
            );
        }
    }
}

#[test]
fn what_is_no_policy_is_refused() {
    let mut items = vec![operator(1.0, 10)];
    assert!(policy(&items, false, 1.5).unwrap_err().to_string().contains("from 0 to 1"));
    items[0].in_place_of = Some(0);
    assert!(policy(&items, false, 0.5).unwrap_err().to_string().contains("10 B have to be saved"));
    let wrong = json!({
        "func_names": ["a"], "runtimes": [1.0], "memory": [1], "view_like_ops": [1],
        "rand_ops": [], "inplace_ops": [],
    });
    assert!(
        operators("M.a", &wrong)
            .unwrap_err()
            .to_string()
            .contains("module `M.a`: `view_like_ops` names operator 1 of 1")
    );
}
