//! The cases: command lines of the program, and calls of the library that no verb makes. Invariant:
//! no answer depends on time, on the machine, its caches or the number of its processors.

const STEPS: [&str; 4] = [
    "corpus/steps/mlp-digits",
    "corpus/steps/gpt-nano",
    "corpus/steps/gpt-nano-dropout",
    "corpus/steps/gpt-small",
];
const SYNTHETIC: [&str; 7] = [
    "corpus/synthetic/tight-1.json.gz",
    "corpus/synthetic/tight-2.json.gz",
    "corpus/synthetic/chain24.json.gz",
    "corpus/synthetic/chain50.json.gz",
    "corpus/synthetic/tf2.json.gz",
    "corpus/synthetic/unet2_1.json.gz",
    "corpus/synthetic/unet3_1.json.gz",
];
const MODELS: [&str; 8] = [
    "corpus/graphs/resnet50_b32.json.gz",
    "corpus/graphs/cuda/resnet50_b32.json.gz",
    "corpus/graphs/vit_b16_b32.json.gz",
    "corpus/graphs/mobilenet_v3_large_b64.json.gz",
    "corpus/graphs/gpt2_small_b8_s512.json.gz",
    "corpus/graphs/cuda/gpt2_small_b8_s512.json.gz",
    "corpus/graphs/bert_base_drop_b16_s512.json.gz",
    "corpus/graphs/llama_1b_b2_s2048.json.gz",
];
const RULES: [&str; 6] = ["chen", "capuchin", "xla", "dtr", "knapsack", "rotor"];
const ORDERS: [&str; 10] = [
    "gpipe",
    "1f1b",
    "interleaved",
    "zb-h1",
    "zb-v",
    "v-half",
    "v-min",
    "greedy-v",
    "greedy",
    "asyncpipe",
];

/// All cases, always in the same order.
pub fn cases() -> Vec<String> {
    let mut cases = Vec::new();
    plans(&mut cases);
    smallest(&mut cases);
    tiers(&mut cases);
    micro_batches(&mut cases);
    stages(&mut cases);
    held(&mut cases);
    cases.into_iter().map(on_any_processor).collect()
}

/// What a step's matrix products pack depends on the caches of the processor that runs them, so
/// steps are planned for a machine that is known without measuring.
fn on_any_processor(case: String) -> String {
    let (verb, rest) = case.split_once(' ').unwrap();
    let is_step = rest.starts_with("corpus/steps/");
    if verb == "hold" || !is_step || rest.contains("--machine") {
        return case;
    }
    let (graph, options) = rest.split_once(' ').unwrap();
    format!("{verb} {graph} --machine a100-80gb {options}")
}

fn plans(cases: &mut Vec<String>) {
    for graph in STEPS.iter().chain(&SYNTHETIC).chain(&MODELS) {
        for percent in [90, 75, 60, 50, 40] {
            cases.push(format!("plan {graph} --budget {percent}% --iterations 20000"));
        }
    }
    for graph in &MODELS[4..] {
        for percent in [90, 60, 40] {
            let options = format!("--budget {percent}% --split off --iterations 20000");
            cases.push(format!("plan {graph} {options}"));
        }
    }
    for graph in STEPS[1..].iter().chain(&SYNTHETIC[..2]) {
        for seed in [2, 3] {
            for work in [100, 100_000] {
                let limits = format!("--seed {seed} --iterations {work}");
                cases.push(format!("plan {graph} --budget 55% {limits}"));
            }
        }
    }
    for planner in RULES.iter().chain(&["none", "capuchin-published"]) {
        for graph in STEPS[1..3].iter().chain(&SYNTHETIC[4..]).chain(&MODELS[1..4]) {
            for percent in [80, 60] {
                cases.push(format!(
                    "plan {graph} --planner {planner} --budget {percent}% --iterations 20000"
                ));
            }
        }
    }
    for graph in STEPS[1..3].iter().chain(&SYNTHETIC[5..]).chain(&MODELS[..2]) {
        for options in ["--iterations 2000", "--planner capuchin --iterations 2000"] {
            cases.push(format!("pareto {graph} --points 5 {options}"));
        }
    }
}

fn smallest(cases: &mut Vec<String>) {
    for graph in STEPS.iter().chain(&SYNTHETIC).chain(&MODELS[..5]) {
        cases.push(format!("plan {graph} --budget min --iterations 2000"));
    }
    for planner in RULES {
        for graph in STEPS[1..3].iter().chain(&SYNTHETIC[5..]).chain(&MODELS[..2]) {
            cases.push(format!("plan {graph} --planner {planner} --budget min --iterations 20000"));
        }
    }
}

fn tiers(cases: &mut Vec<String>) {
    let graphs = || STEPS[..3].iter().chain(&SYNTHETIC[4..]).chain(&MODELS[..2]);
    for graph in graphs() {
        for tier in ["pcie4", "nvme"] {
            for budget in ["70%", "50%", "35%", "min"] {
                let options = format!("--tier {tier} --budget {budget} --iterations 2000");
                cases.push(format!("plan {graph} --machine a100-80gb {options}"));
            }
        }
    }
    for graph in graphs().skip(1) {
        for percent in [80, 70, 60, 50] {
            let options = format!("--tier pcie4 --planner capuchin-swap --budget {percent}%");
            cases.push(format!("plan {graph} --machine a100-80gb {options} --iterations 2000"));
        }
    }
}

fn micro_batches(cases: &mut Vec<String>) {
    for graph in STEPS[..3].iter().chain(&MODELS[..2]) {
        for count in [2, 3] {
            for percent in [90, 80, 70] {
                let options = format!("--microbatches {count} --budget {percent}%");
                cases.push(format!("plan {graph} {options} --iterations 2000"));
            }
        }
    }
    for planner in ["checkpoint-always", "checkpoint-except-last"] {
        for graph in STEPS[1..3].iter().chain(&MODELS[..1]) {
            let options =
                format!("--microbatches 4 --planner {planner} --budget 60% --iterations 2000");
            cases.push(format!("plan {graph} {options}"));
        }
    }
}

fn stages(cases: &mut Vec<String>) {
    for graph in &STEPS[..3] {
        for devices in [2, 3] {
            for percent in [80, 60] {
                let options = format!("--devices {devices} --microbatches 4 --budget {percent}%");
                cases.push(format!("stages {graph} {options} --iterations 200"));
            }
        }
    }
    for order in ORDERS {
        for graph in &STEPS[..2] {
            let options = format!("--devices 2 --microbatches 4 --budget 80% --schedule {order}");
            cases.push(format!("stages {graph} {options} --iterations 200"));
        }
    }
    for graph in STEPS[..3].iter().chain(&MODELS) {
        for (devices, percent) in [(2, 80), (2, 60), (4, 60), (4, 35)] {
            let options = format!("--devices {devices} --microbatches 8 --budget {percent}%");
            cases.push(format!("stages {graph} {options} --whole-layers --iterations 200"));
        }
    }
}

fn held(cases: &mut Vec<String>) {
    for graph in STEPS[1..].iter().chain(&SYNTHETIC).chain(&MODELS[..4]) {
        for budget in ["80%", "60%", "45%", "min"] {
            cases.push(format!("hold {graph} --budget {budget}"));
        }
    }
    for graph in STEPS[1..3].iter().chain(&SYNTHETIC[4..]).chain(&MODELS[..2]) {
        for budget in ["60%", "40%", "min"] {
            cases.push(format!("hold {graph} --budget {budget} --tier pcie4"));
        }
    }
}
