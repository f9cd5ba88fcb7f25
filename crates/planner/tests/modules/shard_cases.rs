//! Sharding of modules on the recorded cases. Invariant: the file says what is expected.
//!
//! Tier: quick, since it takes less than a second.

use serde_json::{Value, json};
use tightfit::analysis::modules::ModuleInfo;
use tightfit::machine::Link;
use tightfit::plan::SolverLimits;
use tightfit::plan::modules::{ModulePlanError, ShardTask, ShardVariant, shard};
use tightfit::units::{Bytes, Seconds};

use crate::fixtures::corpus;

#[test]
fn every_recorded_case_has_the_recorded_answer_by_the_published_rules() {
    let file: Value =
        serde_json::from_slice(&std::fs::read(corpus::path("cases/ilp_fsdp.json")).unwrap())
            .unwrap();
    let info = ModuleInfo::from_json(file["module_info"].to_string().as_bytes()).unwrap();
    assert_eq!(file["cases"].as_array().unwrap().len(), 5);
    for case in file["cases"].as_array().unwrap() {
        let (input, expected) = (&case["input"], &case["expected"]);
        let number = |key: &str| input[key].as_f64().unwrap();
        let link = Link {
            latency: Seconds(number("latency_ms") / 1e3),
            bandwidth: number("bandwidth_bytes_per_ms") * 1e3,
        };
        let units = input["fsdp_units"].as_array();
        let task = ShardTask {
            budget: Bytes((number("memory_budget_gib") * f64::from(1 << 30)).round() as u64),
            world_size: input["world_size"].as_u64().unwrap() as u32,
            all_gather: link,
            reduce_scatter: link,
            variant: ShardVariant::Published,
            units: units.map(|units| {
                units.iter().map(|unit| info.find(unit.as_str().unwrap()).unwrap()).collect()
            }),
            checkpointing: false,
            host: None,
            limits: SolverLimits::default(),
        };
        match shard(&info, &task) {
            Ok(plan) => {
                // Recorded seconds have four decimal digits.
                let milliseconds = plan.exposed.0 * 1e3;
                assert!(
                    (milliseconds - expected["exposed_comm_ms"].as_f64().unwrap()).abs()
                        <= 0.00005 + 1e-9,
                    "{}: {plan:?}",
                    case["id"]
                );
                // Recorded peaks are sums of the solver's variables, and differ by a few dozen
                // bytes from those of the statistics.
                assert!(
                    (plan.peak.0 as i64 - expected["peak_mem"].as_i64().unwrap()).abs() <= 50,
                    "{}: {plan:?}",
                    case["id"]
                );
                let names: Vec<&str> = plan
                    .units
                    .iter()
                    .map(|unit| info.modules()[unit.module].name.as_str())
                    .collect();
                assert_eq!(json!(names), expected["fsdp_units"], "{}", case["id"]);
            }
            Err(ModulePlanError::Infeasible(proof)) => {
                assert_eq!(expected["peak_mem"], json!(-1), "{}: {proof}", case["id"]);
                assert!(proof.proven && proof.least > task.budget);
                let least = shard(&info, &ShardTask { budget: proof.least, ..task }).unwrap();
                assert_eq!(least.peak, proof.least);
            }
            Err(error) => panic!("{}: {error}", case["id"]),
        }
    }
}
