//! How the program ends if its output cannot be printed, or a loss is not finite. Invariant:
//! weights are saved before anything else is done, a save that was good stays, and no verb panics.
//!
//! Tier: quick, since it takes 5 s.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::program::{Ran, corpus, folder, listing, run, tightfit, train};

/// The update of its first step exceeds every number that a weight can hold.
const DIVERGING: &str = "corpus/steps/mlp-digits --budget 100% --lr 1e30 --eval-batches 0";

fn read(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name)).unwrap()
}

#[test]
fn a_loss_that_is_not_finite_ends_the_run_and_keeps_the_earlier_save() {
    let folder = folder();
    let folder = folder.path();
    std::fs::write(folder.join("save"), "earlier").unwrap();
    let json = train(folder, &format!("{DIVERGING} --steps 40 --save FOLDER/save"));
    assert_eq!(json.code, Some(11), "{}", json.stderr);
    let result = json.result();
    let steps = json.losses().len();
    assert!((2..40).contains(&steps), "{steps} steps");
    assert_eq!(json.losses().last().unwrap(), "null");
    assert_eq!(result["first_not_finite_step"], steps);
    assert_eq!(result["saved"], Value::Null);
    assert_eq!(read(folder, "save"), "earlier");
    let said = |ran: &Ran, what: &str| assert!(ran.stderr.contains(what), "{}", ran.stderr);
    said(&json, &format!("error: step {steps}: the loss is "));
    said(&json, "save stays as it was");

    let words = run(folder, &format!("train {DIVERGING} --steps 40 --save FOLDER/new"));
    assert_eq!(words.code, Some(11), "{}", words.stderr);
    assert!(words.stdout.contains("not saved"), "{}", words.stdout);
    said(&words, "new was not written");
    assert_eq!(listing(folder), ["save"]);
}

/// The update of the last step is the only one that no loss of the run reflects.
#[test]
fn weights_whose_validation_loss_is_not_finite_replace_no_save() {
    let folder = folder();
    let folder = folder.path();
    std::fs::write(folder.join("save"), "earlier").unwrap();
    let diverging = DIVERGING.replace(" --eval-batches 0", " --steps 1 --save FOLDER/save");
    let ran = run(folder, &format!("train {diverging}"));
    assert_eq!(ran.code, Some(11), "{}", ran.stderr);
    assert!(ran.stderr.contains("error: step 1: the validation loss is "), "{}", ran.stderr);
    assert_eq!(read(folder, "save"), "earlier");
    run(folder, &format!("train {diverging} --keep-going")).done();
    assert!(std::fs::read(folder.join("save")).unwrap().len() > 1000);
}

/// A row of the validation data has a class that the model does not have.
#[test]
fn an_evaluation_that_fails_between_two_steps_leaves_the_weights_saved() {
    let folder = folder();
    let folder = folder.path();
    let digits = std::fs::read_to_string(corpus().join("data/digits.csv")).unwrap();
    let (names, rows) = digits.split_once('\n').unwrap();
    // The first row is one of the validation split.
    let (first, rest) = rows.split_once('\n').unwrap();
    let (features, _) = first.rsplit_once(',').unwrap();
    std::fs::write(folder.join("table.csv"), format!("{names}\n{features},10\n{rest}")).unwrap();
    let step = format!("{STEP} --budget 100% --data FOLDER/table.csv");
    let ran = train(folder, &format!("{step} --steps 3 --eval-every 1 --save FOLDER/save"));
    assert_eq!((ran.code, ran.losses().len()), (Some(7), 1), "{}", ran.stderr);
    assert!(ran.stderr.contains("the weights after step 1 were saved to "), "{}", ran.stderr);
    train(folder, &format!("{step} --steps 1 --eval-batches 0 --save FOLDER/whole")).done();
    let saved = |name: &str| std::fs::read(folder.join(name)).unwrap();
    assert!(saved("save") == saved("whole"));
}

#[test]
fn no_result_replaces_another_or_what_the_run_begins_from() {
    let folder = folder();
    let folder = folder.path();
    let refused = |arguments: &str, what: &str| {
        let ran = run(folder, arguments);
        assert_eq!(ran.code, Some(2), "{arguments}: {}", ran.stderr);
        assert!(ran.stderr.contains(what), "{arguments}: {}", ran.stderr);
    };
    let train = format!("train {STEP} --budget 100% --steps 1");
    for second in ["dump", "trace", "output"] {
        let what = format!("--save and --{second} name the same file");
        refused(&format!("{train} --save FOLDER/x --{second} FOLDER/x"), &what);
    }
    refused(&format!("{train} --save FOLDER/x --trace FOLDER/../{}/x", name_of(folder)), "--trace");
    refused(&format!("{train} --save {STEP}/step.json"), "step.json, which is read here");
    refused(&format!("{train} --save corpus/data/digits.csv"), "digits.csv, which is read here");
    let graph = "corpus/synthetic/unet2_1.json.gz";
    refused(&format!("plan {graph} --budget 90% -o {graph}"), "which is read here");
    refused(&format!("plan {graph} --budget 90% -o FOLDER/x --svg FOLDER/x"), "--svg");
    assert!(listing(folder).is_empty());
}

fn name_of(folder: &Path) -> String {
    folder.file_name().unwrap().to_string_lossy().into_owned()
}

#[test]
fn a_run_goes_on_behind_a_loss_that_is_not_finite_where_that_is_asked_for() {
    let folder = folder();
    let folder = folder.path();
    std::fs::write(folder.join("save"), "earlier").unwrap();
    let arguments = format!("{DIVERGING} --steps 6 --keep-going --save FOLDER/save");
    let json = train(folder, &arguments).done();
    assert_eq!(json.losses().len(), 6);
    let first = json.result()["first_not_finite_step"].as_u64().unwrap();
    assert!(json.stderr.contains(&format!("step {first}: the loss is")), "{}", json.stderr);
    assert!(std::fs::read(folder.join("save")).unwrap().len() > 1000);
    let finite = train(folder, &format!("{STEP} --budget 100% --steps 2 --eval-batches 0"));
    assert_eq!(finite.done().result()["first_not_finite_step"], Value::Null);
}

const STEP: &str = "corpus/steps/mlp-digits";

/// A command of each verb that prints, with whatever it reads.
fn printing(folder: &Path) -> Vec<String> {
    run(folder, &format!("plan {STEP} --budget 100% --threads 2 --iterations 1 -o FOLDER/plan"))
        .done();
    let quick = "--threads 2 --iterations 1";
    let link = "--bandwidth 10GB/s --latency 1us";
    vec![
        format!("plan {STEP} --budget 100% {quick}"),
        format!("plan {STEP} --budget 100% {quick} --json"),
        format!("plan {STEP} --budget 100% {quick} --planner capuchin --explain"),
        format!("check {STEP} FOLDER/plan --budget 100% --threads 2"),
        format!("analyze {STEP} --threads 2"),
        format!("analyze {STEP} --threads 2 --nodes --budget 90%"),
        format!("analyze {STEP} --threads 2 --json"),
        format!("modules {STEP} --threads 2"),
        format!("modules {STEP} --threads 2 --json"),
        format!("pareto {STEP} --points 2 {quick}"),
        format!("sac {STEP} --budget 100% --threads 2"),
        format!("shard {STEP} --budget 100% --world-size 2 --threads 2 {link}"),
        "--help".to_string(),
        "train --help".to_string(),
        "--version".to_string(),
    ]
}

/// Runs with standard output, and standard error if one is given, as they are.
fn into(folder: &Path, arguments: &str, output: Stdio, error: Stdio) -> Ran {
    let folder = folder.to_str().unwrap();
    let roofline = arguments.starts_with("plan ");
    let mut command = tightfit();
    command.current_dir(corpus().parent().unwrap());
    command.args(arguments.split_whitespace().map(|word| word.replace("FOLDER", folder)));
    command.args(roofline.then_some("--roofline"));
    command.stdout(output).stderr(error).spawn().unwrap().wait_with_output().unwrap().into()
}

#[cfg(target_os = "linux")]
fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

/// A pipe whose reader has gone.
fn unread() -> Stdio {
    std::io::pipe().unwrap().1.into()
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_behind_standard_output_is_one_message_of_every_verb() {
    let folder = folder();
    let folder = folder.path();
    for arguments in printing(folder) {
        let ran = into(folder, &arguments, full(), Stdio::piped());
        assert_eq!(ran.code, Some(4), "{arguments}: {}", ran.stderr);
        let message = "error: standard output: No space left on device (os error 28)\n";
        assert_eq!(ran.stderr, message, "{arguments}");
        let both = into(folder, &arguments, full(), full());
        assert_eq!(both.code, Some(4), "{arguments}, standard error full as well");
    }
}

#[test]
fn a_reader_that_goes_away_ends_every_verb_quietly() {
    let folder = folder();
    let folder = folder.path();
    for arguments in printing(folder) {
        let ran = into(folder, &arguments, unread(), Stdio::piped());
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(4), ""), "{arguments}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_run_whose_output_finds_no_place_saves_and_says_so() {
    let folder = folder();
    let folder = folder.path();
    let options = "--budget 100% --threads 2 --roofline --eval-batches 0 --steps 3";
    for (name, output) in [("full", full as fn() -> Stdio), ("pipe", unread)] {
        let json = format!("train {STEP} {options} --json --save FOLDER/{name}");
        let ran = into(folder, &json, output(), Stdio::piped());
        assert_eq!(ran.code, Some(4), "{}", ran.stderr);
        assert!(ran.stderr.contains("the weights after step 1 were saved to "), "{}", ran.stderr);
        let resumed =
            train(folder, &format!("{STEP} --budget 100% --steps 1 --resume FOLDER/{name}"));
        assert_eq!(resumed.done().result()["steps"], 2);
        // If it fails before the first step, nothing is lost.
        let words = format!("train {STEP} {options} --save FOLDER/words");
        let ran = into(folder, &words, output(), Stdio::piped());
        assert_eq!(ran.code, Some(4), "{}", ran.stderr);
        assert!(ran.stderr.contains("nothing was saved"), "{}", ran.stderr);
        assert!(!folder.join("words").exists());
    }
    // Both outputs full: no message arrives, but the weights are there.
    let json = format!("train {STEP} {options} --json --save FOLDER/both");
    assert_eq!(into(folder, &json, full(), full()).code, Some(4));
    assert_eq!(listing(folder), ["both", "full", "pipe"]);
}

#[test]
#[cfg(unix)]
fn closed_standard_output_is_no_place_that_anything_is_missed_in() {
    let folder = folder();
    let folder = folder.path();
    let save =
        format!("train {STEP} --budget 100% --threads 2 --roofline --steps 2 --save FOLDER/w");
    for arguments in [printing(folder), vec![save]].concat() {
        let inner = tightfit();
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" \"$@\" >&- 2>&-"]).arg(inner.get_program());
        command.envs(inner.get_envs().filter_map(|(key, value)| Some((key, value?))));
        command.args(
            arguments
                .split_whitespace()
                .map(|word| word.replace("FOLDER", folder.to_str().unwrap())),
        );
        command.args(arguments.starts_with("plan ").then_some("--roofline"));
        let status = command.current_dir(corpus().parent().unwrap()).status().unwrap();
        assert_eq!(status.code(), Some(0), "{arguments}");
    }
    train(folder, &format!("{STEP} --budget 100% --steps 1 --resume FOLDER/w")).done();
}

/// A stack that is larger than all memory: the system refuses threads with the default stack size.
#[test]
fn a_system_without_threads_to_give_makes_plans_slower_and_no_worse_than_legal() {
    let graph = corpus().join("graphs/vit_b16_b32.json.gz");
    for options in ["--budget min", "--budget 60%", "--budget 50% --tier pcie4"] {
        let mut plan = tightfit();
        plan.arg("plan").arg(&graph).args(["--machine", "a100-80gb", "--json"]);
        plan.args(options.split(' ')).env("RUST_MIN_STACK", (1_u64 << 46).to_string());
        let ran = Ran::from(plan.output().unwrap()).done();
        assert_eq!(ran.stderr, "");
        let result = ran.result();
        let bytes = |name: &str| result[name].as_u64().unwrap();
        assert!(bytes("slab_bytes") <= bytes("budget_bytes"), "{result}");
    }
}
