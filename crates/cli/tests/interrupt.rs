//! A run that is asked to end: by Ctrl-C, by a batch system, by a terminal that closes, by the
//! reader of its output. Invariant: it ends in order after the current step, with what it had
//! learned on disk; resuming it gives the losses of a run that was never interrupted.
//!
//! Tier: quick, since it takes 9 s.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::program::{Ran, folder, tightfit, train};

/// More steps than anyone waits for.
const ENDLESS: &str = "4000000000";

fn interrupt(child: &Child) {
    send(child, libc::SIGINT);
}

fn send(child: &Child, signal: libc::c_int) {
    let id = libc::pid_t::try_from(child.id()).unwrap();
    // SAFETY: the process is a child that has not been waited for, so its id is its own.
    assert_eq!(unsafe { libc::kill(id, signal) }, 0);
}

/// An endless run that has just printed its first line.
fn started(folder: &TempDir, json: bool) -> (Child, BufReader<ChildStdout>, String) {
    endless(tightfit(), folder, json)
}

/// [`started`], with a command that finally runs the program.
fn endless(
    mut command: Command,
    folder: &TempDir,
    json: bool,
) -> (Child, BufReader<ChildStdout>, String) {
    command.args([
        "train",
        "corpus/steps/gpt-nano",
        "--budget",
        "min",
        "--roofline",
        "--threads",
        "2",
        "--eval-batches",
        "1",
        "--steps",
        ENDLESS,
    ]);
    command
        .arg("--save")
        .arg(folder.path().join("weights"))
        .current_dir(crate::program::corpus().parent().unwrap());
    if json {
        command.arg("--json");
    }
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    output.read_line(&mut first).unwrap();
    (child, output, first)
}

#[test]
fn an_interrupted_run_saves_and_can_be_resumed() {
    let folder = folder();
    let (mut child, mut output, mut text) = started(&folder, true);
    interrupt(&child);
    output.read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let losses = |lines: &[Value]| {
        lines.iter().filter_map(|line| line.get("loss").map(Value::to_string)).collect::<Vec<_>>()
    };
    let (result, before) = (lines.last().unwrap(), losses(&lines));
    assert_eq!(result["interrupted"], true);
    assert_eq!(result["steps"], before.len());
    assert_eq!(crate::program::listing(folder.path()), ["weights"]);

    let resumed = train(
        folder.path(),
        "corpus/steps/gpt-nano --budget 90% --steps 4 --eval-batches 1 --resume FOLDER/weights",
    )
    .done();
    assert_eq!(resumed.result()["steps"], before.len() + 4);
    let unbroken = format!(
        "corpus/steps/gpt-nano --budget 100% --steps {} --eval-batches 1",
        before.len() + 4
    );
    assert_eq!(
        [before, resumed.losses()].concat(),
        train(folder.path(), &unbroken).done().losses()
    );
}

#[test]
fn what_was_saved_stays_where_no_step_was_run() {
    let folder = folder();
    let step = "corpus/steps/mlp-digits --microbatches 4 --eval-batches 0 --save FOLDER/weights";
    train(folder.path(), &format!("{step} --budget 100% --steps 2")).done();
    let weights = folder.path().join("weights");
    let saved = std::fs::read(&weights).unwrap();
    for ranks in ["--stages", "--shards"] {
        let mut command = tightfit();
        command.args(["train", "corpus/steps/mlp-digits", "--microbatches", "4", ranks, "2"]);
        command.args(["--budget", "min", "--roofline", "--steps", ENDLESS, "--save"]);
        command.arg(&weights).current_dir(crate::program::corpus().parent().unwrap());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // A note on the data comes before all planning.
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut says = String::new();
        errors.read_line(&mut says).unwrap();
        assert!(says.contains("fewer than the 2880 of a batch"), "{says}");
        interrupt(&child);
        errors.read_to_string(&mut says).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(130), "{says}");
        assert!(says.contains("interrupted before the first step; nothing was saved"), "{says}");
        assert!(std::fs::read(&weights).unwrap() == saved, "{ranks}");
    }
}

#[test]
fn people_are_told_that_the_run_was_interrupted() {
    let folder = folder();
    let (mut child, mut output, mut text) = started(&folder, false);
    interrupt(&child);
    output.read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{text}");
    assert!(text.contains("interrupted after step"), "{text}");
    // If the signal came before the first step, there is nothing to save.
    let saved: &[&str] = if text.contains("after step 0\n") { &[] } else { &["weights"] };
    assert_eq!(crate::program::listing(folder.path()), saved);
    let says = text.lines().any(|line| line.starts_with("weights ") && line.contains(" saved to "));
    assert_eq!(says, !saved.is_empty(), "{text}");
}

fn stderr(child: &mut Child) -> String {
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    text
}

#[test]
fn what_ends_a_process_from_outside_is_a_request_like_ctrl_c() {
    for (signal, code) in [(libc::SIGINT, 130), (libc::SIGTERM, 143), (libc::SIGHUP, 129)] {
        let folder = folder();
        let (mut child, mut output, mut text) = started(&folder, true);
        send(&child, signal);
        output.read_to_string(&mut text).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code));
        let result: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!(result["interrupted"], true, "{signal}");
        assert!(result["saved"].as_str().unwrap().ends_with("/weights"), "{signal}");
        assert_eq!(crate::program::listing(folder.path()), ["weights"], "{signal}");
    }
}

/// As with `nohup`, or a shell in the background: whatever started the run wants it to go on.
#[test]
fn a_signal_that_is_ignored_from_the_start_stays_ignored() {
    let folder = folder();
    let inner = tightfit();
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP INT; exec \"$0\" \"$@\""]).arg(inner.get_program());
    command.envs(inner.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let (mut child, mut output, mut text) = endless(command, &folder, true);
    send(&child, libc::SIGHUP);
    interrupt(&child);
    for _ in 0..20 {
        output.read_line(&mut text).unwrap();
    }
    assert_eq!(text.lines().count(), 21);
    send(&child, libc::SIGTERM);
    output.read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

/// A parent that handles a signal by itself may block it, and what it starts inherits that.
#[test]
fn a_signal_that_is_blocked_from_the_start_arrives() {
    let folder = folder();
    let mut command = tightfit();
    // SAFETY: between fork and exec the child calls only what is allowed there.
    unsafe {
        command.pre_exec(|| {
            let mut all: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::sigprocmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
            Ok(())
        });
    }
    let (mut child, mut output, mut text) = endless(command, &folder, true);
    send(&child, libc::SIGTERM);
    output.read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert_eq!(crate::program::listing(folder.path()), ["weights"]);
}

/// `timeout` sends its signal to the program and then to its group, a shell whose terminal closes
/// sends SIGHUP after the system has.
#[test]
fn signals_that_come_together_are_one_request() {
    for [first, second] in [[libc::SIGTERM; 2], [libc::SIGHUP; 2], [libc::SIGTERM, libc::SIGHUP]] {
        let folder = folder();
        let (mut child, _output, _) = started(&folder, true);
        send(&child, first);
        send(&child, second);
        let said = stderr(&mut child);
        let code = child.wait().unwrap().code();
        assert!(code == Some(128 + first) || code == Some(128 + second), "{code:?}: {said}");
        assert!(!said.contains("ended at once"), "{said}");
        assert_eq!(crate::program::listing(folder.path()), ["weights"]);
    }
}

#[test]
fn a_run_whose_reader_goes_away_saves() {
    let folder = folder();
    let (mut child, output, _) = started(&folder, true);
    drop(output);
    let said = stderr(&mut child);
    assert_eq!(child.wait().unwrap().code(), Some(4), "{said}");
    assert!(said.contains("were saved to") && said.contains("weights"), "{said}");
    assert_eq!(crate::program::listing(folder.path()), ["weights"]);
    let resumed = "corpus/steps/gpt-nano --budget 90% --steps 1 --eval-batches 0 --resume";
    train(folder.path(), &format!("{resumed} FOLDER/weights")).done();
}

/// The end in order takes forever here: it waits for a reader of the pipe to which it saves.
#[test]
fn a_second_signal_ends_the_run_at_once_and_claims_nothing() {
    let folder = folder();
    let pipe = folder.path().join("weights");
    assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
    let (mut child, _output, _) = started(&folder, true);
    send(&child, libc::SIGINT);
    // Those that come together are one request.
    std::thread::sleep(std::time::Duration::from_secs(1));
    send(&child, libc::SIGTERM);
    let said = stderr(&mut child);
    assert_eq!(child.wait().unwrap().code(), Some(143), "{said}");
    assert!(said.contains("ended at once") && !said.contains("saved to"), "{said}");
    assert_eq!(crate::program::listing(folder.path()), ["weights"]);
}

/// Waits until the program treats Ctrl-C as a request.
#[cfg(target_os = "linux")]
fn until_it_listens(child: &Child) {
    const SIGINT: u64 = 1 << (libc::SIGINT - 1);
    let caught = || {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let mask = status
            .lines()
            .find_map(|line| line.strip_prefix("SigCgt:"))
            .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        // A program that has ended no longer has a mask.
        mask.is_none_or(|mask| mask & SIGINT != 0)
    };
    while !caught() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
#[cfg(target_os = "linux")]
fn an_interrupted_search_gives_the_best_plan_so_far() {
    let folder = folder();
    let mut command = tightfit();
    command.args([
        "plan",
        "corpus/graphs/gpt2_medium_b4_s1024.json.gz",
        "--budget",
        "45%",
        "--deadline",
        "100000s",
        "--json",
        "-o",
    ]);
    command.arg(folder.path().join("plan")).current_dir(crate::program::corpus().parent().unwrap());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    until_it_listens(&child);
    interrupt(&child);
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    let code = child.wait().unwrap().code();
    let result: Value = serde_json::from_str(text.trim()).unwrap();
    // On a fast machine the plan may have been ready before the signal.
    assert_eq!(code, Some(if result["interrupted"] == true { 130 } else { 0 }), "{text}");
    assert!(result["slab_bytes"].as_u64() <= result["budget_bytes"].as_u64());
    assert_eq!(crate::program::listing(folder.path()), ["plan"]);
}

/// No plan that small is known, and it cannot be proven that there is none.
#[test]
#[cfg(target_os = "linux")]
fn a_search_that_is_interrupted_without_a_plan_says_so_to_programs_too() {
    let verb = ["plan", "corpus/synthetic/tf2.json.gz", "--budget", "770MiB"];
    let (failure, ran) = interrupted_without_a_plan(&verb);
    let said = failure["error"].as_str().unwrap();
    assert!(said.starts_with("interrupted before a plan was found; "), "{said}");
    assert!(ran.stderr.contains(&format!("error: {said}")), "{}", ran.stderr);
}

/// A pipeline has no plan before all of its ranks have one.
#[test]
#[cfg(target_os = "linux")]
fn stages_that_are_interrupted_without_a_plan_say_so_to_programs_too() {
    let graph = "corpus/graphs/cuda/vit_b16_b32.json.gz";
    let verb = ["stages", graph, "--devices", "4", "--budget", "50%", "--microbatches", "8"];
    interrupted_without_a_plan(&verb);
}

/// Interrupts a search at once; returns the failure that it prints for programs, and all it said.
#[cfg(target_os = "linux")]
fn interrupted_without_a_plan(verb: &[&str]) -> (Value, Ran) {
    let mut command = tightfit();
    command.args(verb).args(["--deadline", "100000s", "--json"]);
    command.current_dir(crate::program::corpus().parent().unwrap());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until_it_listens(&child);
    interrupt(&child);
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{}", ran.stderr);
    let failure = ran.result();
    assert_eq!(failure["exit_code"], 130, "{failure}");
    assert_eq!(failure["interrupted"], true, "{failure}");
    (failure, ran)
}
