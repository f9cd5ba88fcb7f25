//! Pages of the documentation about the program. Invariant: every command that a page shows runs
//! and ends as the page says; the page about JSON lists every member of an answer, and no others;
//! the page about verbs is the program's help.
//!
//! Tier: quick, 28 s; what takes minutes is of the full one.

use std::collections::BTreeSet;
use std::path::PathBuf;

use expect_test::expect_file;
use serde_json::Value;

use crate::program::{corpus, folder, run};

const LLAMA: &str = "corpus/graphs/llama_1b_b2_s2048.json.gz";
const VERBS: [&str; 15] = [
    "train",
    "plan",
    "pareto",
    "largest",
    "check",
    "analyze",
    "modules",
    "sac",
    "shard",
    "report",
    "stages",
    "trace",
    "calibrate",
    "completions",
    "man",
];

fn page(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap()
}

fn path(name: &str) -> PathBuf {
    corpus().join("../doc").join(name).canonicalize().unwrap()
}

/// Pages that tests in Python run.
const IN_PYTHON: [&str; 3] = ["doc/pytorch/", "doc/originals.md", "doc/theory/rewritten.md"];
/// The page that another test compares word by word.
const HELP: &str = "doc/verbs.md";
/// Commands that take minutes, and one that stands for the reader's own step.
const NOT_RUN: [&str; 2] = ["corpus/steps/gpt-base ", "tightfit train my-step "];

/// Every page of the repository with commands, README first.
fn pages() -> Vec<(String, String)> {
    let root = corpus().join("..").canonicalize().unwrap();
    let mut names = vec!["README.md".to_string()];
    for folder in ["doc", "doc/pytorch", "doc/theory"] {
        let entries = std::fs::read_dir(root.join(folder)).unwrap();
        let found = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.extend(
            found.filter(|name| name.ends_with(".md")).map(|name| format!("{folder}/{name}")),
        );
    }
    let is_ours = |name: &String| name != HELP && !IN_PYTHON.iter().any(|p| name.starts_with(p));
    let ours = names.into_iter().filter(is_ours);
    ours.map(|name| (name.clone(), std::fs::read_to_string(root.join(name)).unwrap())).collect()
}

/// Every command of a page runs, in the page's order, and ends as the page says: results go into a
/// folder of the test, where later commands find them, and training does only one step.
#[test]
#[ignore = "full tier: minutes"]
fn commands_run() {
    let ran: usize = pages().iter().map(|(name, page)| commands_of_a_page_run(name, page)).sum();
    assert!(ran >= 35, "{ran}");
}

/// The commands of the page that is read first.
#[test]
fn commands_of_the_readme_run() {
    let (name, page) = &pages()[0];
    assert!(name == "README.md" && commands_of_a_page_run(name, page) > 0);
}

fn commands_of_a_page_run(name: &str, page: &str) -> usize {
    const RESULTS: [&str; 10] = [
        "plan.json",
        "planned.json.gz",
        "memory.svg",
        "frontier.svg",
        "pipeline.svg",
        "report.html",
        "trace.json",
        "measured.json",
        "weights.safetensors",
        "digits.safetensors",
    ];
    let mut ran = 0;
    let folder = folder();
    let blocks = page.split("```").skip(1).step_by(2);
    // The README's first command builds the program, too.
    let lines = blocks.flat_map(str::lines);
    let lines = lines.map(|line| {
        line.strip_prefix("cargo run --release -p tightfit-cli -- ")
            .map_or(line.to_string(), |rest| format!("tightfit {rest}"))
    });
    let lines: Vec<String> = lines.filter(|line| line.starts_with("tightfit ")).collect();
    for line in lines.iter().filter(|line| NOT_RUN.iter().all(|other| !line.contains(other))) {
        let (command, comment) = line.split_once('#').unwrap_or((line, ""));
        let expected = comment.trim().strip_prefix("exit code ");
        let expected = expected.map_or(0, |code| code.parse().unwrap());
        let mut words: Vec<String> = command.split_whitespace().skip(1).map(String::from).collect();
        for at in 0..words.len() {
            if RESULTS.contains(&words[at].as_str()) {
                words[at] = format!("FOLDER/{}", words[at]);
            }
            if words[at] == "--steps" {
                words[at + 1] = "1".to_string();
            }
        }
        let ended = run(folder.path(), &words.join(" "));
        assert_eq!(ended.code, Some(expected), "{name}: {line}: {}", ended.stderr);
        ran += 1;
    }
    ran
}

/// What a page shows after a command is what the command prints, as far as the page shows it.
#[test]
fn shown_output_is_printed() {
    let mut ran = 0;
    for (name, page) in pages() {
        for block in page.split("```").skip(1).step_by(2) {
            let mut lines = block.lines().skip(1);
            let first = lines.next().unwrap_or_default();
            let Some(command) = first.strip_prefix("$ tightfit ") else { continue };
            // A refusal may be shown, too.
            let ended = run(folder().path(), command);
            assert!([Some(0), Some(3), Some(10)].contains(&ended.code), "{}", ended.stderr);
            let mut printed = ended.stdout.lines();
            for line in lines {
                assert!(printed.any(|other| other == line), "{name}: {command}: {line}");
            }
            ran += 1;
        }
    }
    assert!(ran >= 2, "{ran}");
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
        ("largest", "largest corpus/steps/mlp-digits --budget 60MB".to_string()),
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
    assert_eq!(members(&analyzed), documented(&page, "analyze"));
}

#[test]
fn verbs_are_those_of_the_help() {
    let mut page = String::from(
        "# Every verb\n\nWhat `tightfit VERB --help` prints.\n\n`--wide` and `--color` go \
         with each verb. Lines have 80 columns, for which long\nnames are shortened and some \
         columns left out; with `--wide` they are as long as\nwhat they say. `--color` is auto, \
         always or never.\n",
    );
    for verb in VERBS {
        let help = run(folder().path(), &format!("help {verb}")).done().stdout;
        let help: Vec<&str> = help.lines().map(str::trim_end).collect();
        page += &format!("\n## {verb}\n```text\n{}\n```\n", help.join("\n").trim_end());
    }
    let help = run(folder().path(), "--help").done().stdout;
    let known = help.split("Commands:").nth(1).unwrap().split("Options:").next().unwrap().lines();
    let known = known.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let known: Vec<&str> = known.filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(known, [&VERBS[..], &["help"]].concat());
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

/// The pictures of the README are up to date; `UPDATE_EXPECT=1` draws them again.
#[test]
fn pictures_are_what_the_program_draws() {
    let folder = folder();
    let drawn = |name: &str| {
        let drawn = std::fs::read_to_string(folder.path().join("drawn.svg")).unwrap();
        expect_file![corpus().join("../doc").join(name)].assert_eq(&drawn);
    };
    let small = "plan corpus/steps/gpt-small --budget 320MiB --machine a100-80gb";
    run(folder.path(), &format!("{small} --iterations 300000 --svg FOLDER/drawn.svg")).done();
    drawn("memory-gpt-small.svg");
    let plan = format!("plan {LLAMA} --budget 60% --iterations 300000 -o FOLDER/plan.json");
    run(folder.path(), &plan).done();
    let draw = format!("report {LLAMA} --plan FOLDER/plan.json --svg memory -o FOLDER/drawn.svg");
    run(folder.path(), &draw).done();
    drawn("report-llama-1b.svg");
}
