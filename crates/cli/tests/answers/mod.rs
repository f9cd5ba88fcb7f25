//! Answers that stay as they are when code is moved, renamed or rewritten: plans, smallest budgets,
//! tiers, micro-batches, stages, and plans without addresses, each with limited work and no
//! deadline. Invariant: `corpus/answers.jsonl` has a line for each case: the request, its main
//! figures, and a hash of the whole answer, including the file of the plan.
//!
//! A change that is meant to give different answers records them again, with `TIGHTFIT_TESTS=full
//! UPDATE_EXPECT=1`, in a commit of its own that lists which ones differ, and why.
//!
//! Tier: quick with a tenth of the cases, 7 s; full with all of them, a minute.

mod cases;
mod held;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tightfit_testing::either;

use crate::program::{corpus, folder, run};

const RECORDED: &str = "answers.jsonl";
/// Members that are measured, and the words of a refusal.
const LEFT_OUT: [&str; 5] =
    ["building_seconds", "error", "planning_seconds", "search_seconds", "seconds"];
/// The most informative members of an answer.
const FIGURES: [&str; 6] = [
    "peak_bytes",
    "slab_bytes",
    "step_seconds",
    "predicted_step_seconds",
    "bound_step_seconds",
    "recomputed_nodes",
];

#[test]
fn answers_are_as_recorded() {
    let all = cases::cases();
    assert_eq!(all.len(), 600);
    let asked: Vec<&String> = all.iter().step_by(either(10, 1)).collect();
    let answers = in_parallel(&asked);
    let path = corpus().join(RECORDED);
    if std::env::var("UPDATE_EXPECT").is_ok_and(|update| update == "1") {
        assert_eq!(asked.len(), all.len(), "all answers are recorded, in the full tier");
        let lines: String = answers.iter().map(|answer| format!("{answer}\n")).collect();
        return std::fs::write(path, lines).unwrap();
    }
    let text = std::fs::read_to_string(path).unwrap();
    let recorded: BTreeMap<String, Value> = text.lines().map(by_case).collect();
    assert_eq!(recorded.len(), all.len(), "cases are missing in {RECORDED}");
    let mut different = String::new();
    for answer in &answers {
        let (case, now) = by_case(&answer.to_string());
        let before = &recorded[&case];
        if *before != now {
            writeln!(different, "{case}\n  before {before}\n  now    {now}").unwrap();
        }
    }
    assert!(different.is_empty(), "these answers differ from those recorded:\n{different}");
}

/// A recorded line, as its case and its content.
fn by_case(line: &str) -> (String, Value) {
    let mut line: Value = serde_json::from_str(line).unwrap();
    let case = line.as_object_mut().unwrap().remove("case").unwrap();
    (case.as_str().unwrap().to_string(), line)
}

/// The answers, in the order of the cases.
fn in_parallel(asked: &[&String]) -> Vec<Value> {
    const THREADS: usize = 2;
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let index = next.fetch_add(1, Relaxed)
            && let Some(case) = asked.get(index)
        {
            done.push((index, recorded(case)));
        }
        done
    };
    let mut answers: Vec<(usize, Value)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    answers.sort_by_key(|&(index, _)| index);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// The line to record for a case.
fn recorded(case: &str) -> Value {
    let (code, answer, plan) = match case.split(' ').next() {
        Some("hold") => (0, held::answer(case), None),
        _ => asked_of_the_program(case),
    };
    let mut hash = Sha256::new();
    hash.update(answer.to_string());
    hash.update(plan.unwrap_or_default());
    let figures = FIGURES.iter().filter(|&&figure| !answer[figure].is_null());
    let figures: BTreeMap<&str, &Value> =
        figures.map(|&figure| (figure, &answer[figure])).collect();
    let hash = hash.finalize().iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
    json!({ "case": case, "code": code, "figures": figures, "sha256": hash })
}

/// The exit code, the output without what is measured, and the file of the plan.
fn asked_of_the_program(case: &str) -> (i32, Value, Option<Vec<u8>>) {
    let folder = folder();
    let verb = case.split(' ').next().unwrap();
    let output = if verb == "plan" { " -o FOLDER/plan.json" } else { "" };
    let ran = run(folder.path(), &format!("{case}{output} --json"));
    let lines = ran.stdout.lines().chain(ran.stderr.lines());
    let mut answers = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut answer = answers.rfind(|line| line.get("format").is_some()).unwrap();
    strip(&mut answer);
    let plan = std::fs::read(folder.path().join("plan.json")).ok();
    (ran.code.unwrap(), answer, plan)
}

/// Removes what is measured. The seconds of steps are predicted.
fn strip(answer: &mut Value) {
    match answer {
        Value::Object(members) => {
            members.retain(|name, _| !LEFT_OUT.contains(&name.as_str()));
            members.values_mut().for_each(strip);
        }
        Value::Array(values) => values.iter_mut().for_each(strip),
        _ => {}
    }
}
