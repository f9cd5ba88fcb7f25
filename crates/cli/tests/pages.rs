//! Pages of the documentation about the program. Invariant: every command that a page shows runs
//! and ends as the page says; every member of an answer stands on the page about JSON, and nothing
//! else does; the page about verbs is the program's help.
#![allow(clippy::unwrap_used)] // a test that cannot go on panics

mod program;

use std::collections::BTreeSet;
use std::path::PathBuf;

use expect_test::expect_file;
use program::{corpus, folder, run};
use serde_json::Value;

const LLAMA: &str = "corpus/graphs/llama_1b_b2_s2048.json.gz";
const VERBS: [&str; 15] = [
    "train",
    "plan",
    "pareto",
    "check",
    "analyze",
    "modules",
    "sac",
    "shard",
    "report",
    "stages",
    "trace",
    "calibrate",
    "bench",
    "completions",
    "man",
];

fn page(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap()
}

fn path(name: &str) -> PathBuf {
    corpus().join("../doc").join(name).canonicalize().unwrap()
}

/// Commands write into a folder of the test, and find there what earlier ones wrote.
#[test]
fn commands_run() {
    let mut ran = 0;
    for name in ["program.md", "clusters.md", "json.md"] {
        let folder = folder();
        let page = page(name);
        for block in page.split("```sh\n").skip(1) {
            for line in block.split("```").next().unwrap().lines() {
                let (command, comment) = line.split_once('#').unwrap_or((line, ""));
                let command = command.strip_prefix("tightfit ").unwrap();
                let expected = comment
                    .trim()
                    .strip_prefix("exit code ")
                    .map_or(0, |code| code.parse().unwrap());
                let files = ["plan.json", "weights.safetensors", "report.html"];
                let in_folder = files.iter().fold(command.to_string(), |command, file| {
                    command.replace(file, &format!("FOLDER/{file}"))
                });
                let ended = run(folder.path(), &in_folder);
                assert_eq!(ended.code, Some(expected), "{name}: {line}: {}", ended.stderr);
                ran += 1;
            }
        }
    }
    assert!(ran > 10, "{ran}");
}

/// The list of the README runs, but for what takes minutes; training takes two steps of it.
#[test]
fn commands_of_the_readme_run() {
    const MINUTES: [&str; 4] = ["tightfit bench ", "corpus/steps/gpt-base", "cargo ", "my-step"];
    const RESULTS: [&str; 9] = [
        "plan.json",
        "planned.json.gz",
        "memory.svg",
        "frontier.svg",
        "pipeline.svg",
        "report.html",
        "trace.json",
        "digits.safetensors",
        "out.svg",
    ];
    let (folder, readme) = (folder(), page("../README.md"));
    let blocks = readme.split("```").skip(1).step_by(2);
    let lines = blocks.flat_map(str::lines).filter(|line| line.starts_with("tightfit "));
    let mut ran = 0;
    for line in lines.filter(|line| MINUTES.iter().all(|slow| !line.contains(slow))) {
        let mut words: Vec<String> = line.split_whitespace().skip(1).map(String::from).collect();
        for at in 0..words.len() {
            if RESULTS.contains(&words[at].as_str()) {
                words[at] = format!("FOLDER/{}", words[at]);
            }
            if words[at] == "--steps" {
                words[at + 1] = "2".to_string();
            }
        }
        let ended = run(folder.path(), &words.join(" "));
        assert_eq!(ended.code, Some(0), "{line}: {}", ended.stderr);
        ran += 1;
    }
    assert!(ran >= 15, "{ran}");
}

/// The members that a section names in the first column of its table.
fn documented(page: &str, section: &str) -> BTreeSet<String> {
    let text = page.split(&format!("\n## {section}\n")).nth(1).unwrap();
    let text = text.split("\n## ").next().unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    let names = rows.flat_map(|row| row.split('|').nth(1).unwrap().split(','));
    names.map(|name| name.trim().trim_matches('`').to_string()).collect()
}

fn members(answer: &Value) -> BTreeSet<String> {
    answer.as_object().unwrap().keys().filter(|key| *key != "format").cloned().collect()
}

#[test]
fn the_members_of_answers_are_those_of_the_page() {
    let page = page("json.md");
    let folder = folder();
    let link = "--world-size 8 --bandwidth 300GB --latency 10us";
    let answers = [
        ("plan", "plan corpus/steps/mlp-digits --budget 90% -o FOLDER/plan".to_string()),
        ("check", "check corpus/steps/mlp-digits FOLDER/plan --budget 90%".to_string()),
        ("pareto", "pareto corpus/steps/mlp-digits --planner chen --points 2".to_string()),
        ("train", "train corpus/steps/mlp-digits --budget 90% --steps 1".to_string()),
        ("sac, shard", format!("sac {LLAMA} --budget 70%")),
        ("sac, shard", format!("shard {LLAMA} --budget 100% {link}")),
    ];
    for (section, command) in answers {
        let answer = run(folder.path(), &format!("{command} --json")).done().result();
        assert_eq!(answer["format"], "tightfit-answer/1", "{command}");
        let mut documented = documented(&page, section);
        if command.starts_with("sac ") {
            documented.retain(|name| !["exposed_ms", "checkpointed"].contains(&name.as_str()));
        }
        if command.starts_with("shard ") {
            documented.remove("sac_milp");
        }
        assert_eq!(members(&answer), documented, "{command}");
    }
    let refused = run(folder.path(), "plan corpus/steps/mlp-digits --budget 9MB --json").result();
    let mut failure = documented(&page, "Failures");
    assert!(failure.remove("interrupted"));
    assert_eq!(members(&refused), failure);
    let analyzed = run(folder.path(), "analyze corpus/steps/mlp-digits --json").done().result();
    assert!(documented(&page, "analyze").is_subset(&members(&analyzed)), "{analyzed}");
}

#[test]
fn verbs_are_those_of_the_help() {
    let mut page = String::from(
        "# Every verb\n\nWhat `tightfit VERB --help` prints.\n\n`--wide` goes with each verb: \
         lines have 80 columns otherwise, long names are\nshortened, and some columns are left \
         out.\n",
    );
    for verb in VERBS {
        let help = run(folder().path(), &format!("help {verb}")).done().stdout;
        let help: Vec<&str> = help.lines().map(str::trim_end).collect();
        page += &format!("\n## {verb}\n```text\n{}\n```\n", help.join("\n").trim_end());
    }
    let known = run(folder().path(), "--help").done().stdout;
    for verb in VERBS {
        assert!(known.contains(&format!("\n  {verb} ")), "{verb}");
    }
    expect_file![corpus().join("../doc/verbs.md")].assert_eq(&page);
}

#[test]
fn every_exit_code_has_its_advice() {
    let help = run(folder().path(), "--help").done().stdout;
    let codes = help.split("Exit codes:").nth(1).unwrap().lines();
    let codes = codes.filter_map(|line| line.split_whitespace().next()?.parse::<u8>().ok());
    let page = page("troubleshooting.md");
    let rows: String = page.lines().filter_map(|line| line.split('|').nth(1)).collect();
    let rows: Vec<&str> = rows.split([' ', ',']).collect();
    for code in codes.filter(|&code| code != 0) {
        assert!(rows.contains(&code.to_string().as_str()), "{code}");
    }
}

#[test]
fn the_book_has_every_page() {
    let summary = page("SUMMARY.md");
    for folder in ["", "pytorch", "theory"] {
        for entry in std::fs::read_dir(path(".").join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let link = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
            if name.ends_with(".md") && name != "SUMMARY.md" {
                assert!(summary.contains(&format!("({link})")), "{link}");
            }
        }
    }
}

/// The picture of the README is today's; `UPDATE_EXPECT=1` draws it again.
#[test]
fn the_picture_of_a_report_is_what_the_program_draws() {
    let folder = folder();
    let plan = format!("plan {LLAMA} --budget 60% --iterations 300000 -o FOLDER/plan.json");
    run(folder.path(), &plan).done();
    let draw = format!("report {LLAMA} --plan FOLDER/plan.json --svg memory -o FOLDER/drawn.svg");
    run(folder.path(), &draw).done();
    let drawn = std::fs::read_to_string(folder.path().join("drawn.svg")).unwrap();
    expect_file![corpus().join("../doc/report-llama-1b.svg")].assert_eq(&drawn);
}
