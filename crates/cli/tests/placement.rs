//! Training with parameters and state that are placed while the run goes on. Invariant: whatever
//! decides where they lie, a run computes what one with enough memory computes, bit for bit; the
//! reported moves add up; and no wrong number is ever used.
//!
//! Tier: quick with a part of the cases, 27 s; full with all of them.

use std::path::Path;

use serde_json::Value;
use tightfit_testing::first;

use crate::program::{Ran, folder, listing, run};

const STEP: &str = "corpus/steps/gpt-nano";
const FEW: &str = "--steps 4 --eval-every 2 --eval-batches 2 --seed 3 --threads 2";
const VOLUMES: [&str; 4] = ["bytes_out", "bytes_back", "bytes_dropped", "bytes_within"];

fn saved(folder: &Path, name: &str) -> Vec<u8> {
    std::fs::read(folder.join(name)).unwrap()
}

fn train(folder: &Path, rest: &str) -> Ran {
    run(folder, &format!("train {STEP} {FEW} --json {rest}"))
}

/// Lines that have this field.
fn with(ran: &Ran, field: &str) -> Vec<Value> {
    let mut lines = ran.lines();
    lines.retain(|line| line.get(field).is_some() && line.get("budget_bytes").is_none());
    lines
}

fn losses_of_validation(ran: &Ran) -> Vec<String> {
    let lines = with(ran, "validation_loss");
    lines.iter().map(|line| line["validation_loss"].to_string()).collect()
}

fn volumes(moved: &Value) -> [u64; 4] {
    VOLUMES.map(|name| moved[name].as_u64().unwrap())
}

#[test]
fn any_placement_gives_the_same_bits() {
    let folder = folder();
    let folder = folder.path();
    std::fs::create_dir(folder.join("tier")).unwrap();
    let whole = train(folder, "--budget 100% --save FOLDER/whole").done();
    assert!(whole.result()["placement"].is_null());
    assert!(with(&whole, "loss").iter().all(|line| line.get("moved").is_none()));
    for placement in ["planned", "auto", "host", "device"] {
        for &budget in first(2, &["50%", "100%", "min", "80%"]) {
            if (placement, budget) == ("device", "50%") {
                continue;
            }
            let placed = format!("--budget {budget} --tier FOLDER/tier --placement {placement}");
            let ran = train(folder, &format!("{placed} --save FOLDER/part")).done();
            let result = ran.result();
            if !cfg!(debug_assertions) {
                let bytes = |key: &str| result[key].as_u64().unwrap();
                assert!(bytes("process_peak_bytes") <= bytes("budget_bytes"), "{placed}: {result}");
                assert!(bytes("high_water_bytes") <= bytes("slab_bytes"), "{placed}: {result}");
            }
            assert_eq!(ran.losses(), whole.losses(), "{placed}");
            // In the smallest slab of a plan an evaluation may not fit.
            if (placement, budget) != ("planned", "min") {
                assert_eq!(losses_of_validation(&ran), losses_of_validation(&whole), "{placed}");
            }
            assert_eq!(saved(folder, "part"), saved(folder, "whole"), "{placed}");
        }
    }
    assert_eq!(listing(&folder.join("tier")), [""; 0]);
}

#[test]
fn what_is_said_to_be_moved_adds_up() {
    let folder = folder();
    let folder = folder.path();
    let mut in_last_steps = Vec::new();
    for placement in ["device", "auto", "host"] {
        let budget = if placement == "device" { "100%" } else { "50%" };
        let placed = format!("--budget {budget} --tier FOLDER --placement {placement}");
        let ran = train(folder, &placed).done();
        let result = ran.result();
        let said = &result["placement"];
        let steps: Vec<Value> = with(&ran, "loss").iter().map(|it| it["moved"].clone()).collect();
        assert_eq!(steps.len(), 4);
        for moved in &steps {
            let seconds = |name: &str| moved[name].as_f64().unwrap();
            assert!(seconds("layout_seconds") >= seconds("eviction_seconds"), "{moved}");
            assert!(moved["iterations"] == 1 && moved["accesses"].as_u64() > Some(0), "{moved}");
        }
        let mut all = [0; 4];
        for moved in steps.iter().map(volumes) {
            all.iter_mut().zip(moved).for_each(|(sum, bytes)| *sum += bytes);
        }
        assert_eq!(volumes(&said["all_steps"]), all, "{placement}");
        assert_eq!(volumes(&said["first_step"]), volumes(&steps[0]), "{placement}");
        assert_eq!(volumes(&said["last_step"]), volumes(&steps[3]), "{placement}");
        let [out, back, ..] = volumes(&steps[3]);
        assert_eq!((&result["bytes_out"], &result["bytes_back"]), (&out.into(), &back.into()));
        // Tensors that are not there have to come once, and all are read or written in a step.
        let tensors = said["tensor_bytes"].as_u64().unwrap();
        assert!(volumes(&steps[0])[1] >= tensors, "{placement}");
        assert_eq!(said["policy"], placement);
        let evaluations = with(&ran, "validation_loss");
        assert!(evaluations.iter().all(|line| line["moved"]["iterations"] == 2));
        in_last_steps.push(out + back);
    }
    let [device, auto, host] = in_last_steps[..] else { panic!("three placements") };
    assert!(device == 0 && auto <= host && host > 0, "{device}, {auto}, {host}");
}

#[test]
fn a_run_goes_on_with_another_placement() {
    let folder = folder();
    let folder = folder.path();
    train(folder, "--budget 100% --save FOLDER/whole").done();
    let first = FEW.replace("--steps 4", "--steps 1");
    let mut before = "--budget 100%";
    std::fs::remove_file(folder.join("part")).ok();
    for (number, placed) in [
        "--budget 50% --tier FOLDER --placement host",
        "--budget min --tier FOLDER --placement auto",
        "--budget 100% --tier FOLDER --placement device",
    ]
    .into_iter()
    .enumerate()
    {
        let resumed = if number == 0 { "" } else { "--resume FOLDER/part" };
        let save = "--save FOLDER/part";
        run(folder, &format!("train {STEP} {first} {placed} {resumed} {save}")).done();
        before = placed;
    }
    assert!(before.contains("device"));
    let last = "--budget 60% --tier FOLDER --resume FOLDER/part --save FOLDER/part";
    run(folder, &format!("train {STEP} {first} {last}")).done();
    assert_eq!(saved(folder, "part"), saved(folder, "whole"));
}

#[test]
fn what_is_dumped_is_what_was_computed() {
    let folder = folder();
    let folder = folder.path();
    let few = "--steps 2 --eval-batches 0 --seed 3 --threads 2";
    let train = |rest: &str| run(folder, &format!("train {STEP} {few} {rest}")).done();
    train("--budget 100% --dump FOLDER/whole");
    for placement in ["auto", "host", "device"] {
        let ran = train(&format!(
            "--budget 100% --tier FOLDER --placement {placement} --dump FOLDER/part --profile"
        ));
        assert_eq!(saved(folder, "part"), saved(folder, "whole"), "{placement}");
        for what in ["\nregion  ", "\nstep 1: ", "the first step: ", "the last step: "] {
            assert!(ran.stdout.contains(what), "{what}: {}", ran.stdout);
        }
        // Only `host` still moves tensors in the second step.
        assert_eq!(ran.stdout.contains("\nstep 2: 0 B out, 0 B back"), placement != "host");
    }
}

#[test]
fn what_does_not_go_together_is_refused() {
    let folder = folder();
    let folder = folder.path();
    for (rest, code, what) in [
        ("--budget 50% --placement auto", 2, "name a folder for it with `--tier DIR`"),
        ("--budget 50% --placement device", 2, "name a folder for it with `--tier DIR`"),
        ("--budget 50% --tier FOLDER --placement elsewhere", 2, "possible values: planned, auto"),
        ("--budget 50% --tier FOLDER --placement auto --replan", 2, "--replan needs a plan"),
        ("--budget 50% --tier FOLDER --placement host --output FOLDER/p", 2, "--output needs"),
        ("--budget 50% --tier FOLDER --placement host --trace FOLDER/t", 2, "--trace needs a plan"),
        ("--budget 50% --tier FOLDER:1MiB --placement auto", 4, "has no room for that"),
        ("--budget 50% --tier FOLDER/none --placement auto", 4, "no tier can be made in"),
        ("--budget 50% --tier FOLDER --placement device", 3, "if nothing is evicted, "),
        ("--budget 1% --tier FOLDER --placement auto", 3, "there is no room in a budget of"),
        ("--budget 1% --tier FOLDER --placement host", 3, "while the run goes on: the process"),
        ("--budget 1MiB --tier FOLDER --placement host", 3, "while the run goes on: the process"),
    ] {
        let ran = run(folder, &format!("train {STEP} {FEW} {rest}"));
        assert_eq!(ran.code, Some(code), "{rest}: {}", ran.stderr);
        assert!(ran.stderr.contains(what), "{rest}: {}", ran.stderr);
    }
    assert_eq!(listing(folder), [""; 0]);
}

#[test]
fn the_budget_that_a_refusal_names_is_enough() {
    let folder = folder();
    let folder = folder.path();
    for placement in ["auto", "host", "device"] {
        let placed = format!("--tier FOLDER --placement {placement} --iterations 100000");
        let refused = train(folder, &format!("--budget 1% {placed}"));
        assert_eq!(refused.code, Some(3), "{}", refused.stderr);
        let (before, _) = refused.stderr.split_once(" bytes) are enough").unwrap();
        let bytes = before.rsplit_once('(').unwrap().1;
        train(folder, &format!("--budget {bytes} {placed}")).done();
    }
}

#[cfg(target_os = "linux")]
mod faults {
    use std::io::Read;
    use std::process::Child;

    use super::*;
    use crate::program::slowed::{after, damaged};

    fn started(folder: &Path, steps: u32, placement: &str) -> Child {
        let rest = "--seed 3 --eval-every 1 --eval-batches 1 --placement";
        crate::program::slowed::started(STEP, folder, steps, &format!("{rest} {placement}"))
    }

    /// Runs a test with each placement that moves anything, in a folder of its own.
    fn by_each(test: impl Fn(&Path, &str)) {
        ["auto", "host"].into_iter().for_each(|placement| test(folder().path(), placement));
    }

    #[test]
    fn killed_in_the_middle_of_a_transfer() {
        by_each(|folder, placement| {
            let mut child = started(folder, 1, placement);
            assert!(child.wait().unwrap().success());
            let before = saved(folder, "save");
            let mut child = started(folder, 1000, placement);
            after(&mut child, 3);
            child.kill().unwrap();
            child.wait().unwrap();
            // The save of the run before is all that there is, and a run resumes from it.
            assert_eq!((listing(folder), saved(folder, "save")), (vec!["save".into()], before));
            let rest = "--steps 3 --threads 2 --save FOLDER/save";
            let again = format!("--budget min --tier FOLDER --placement {placement}");
            run(folder, &format!("train {STEP} {rest} --resume FOLDER/save {again}")).done();
            let whole = "--steps 4 --threads 2 --seed 3 --budget 100% --save FOLDER/whole";
            run(folder, &format!("train {STEP} {whole}")).done();
            assert_eq!(saved(folder, "save"), saved(folder, "whole"));
        });
    }

    #[test]
    fn a_byte_that_changes_in_the_tier_is_noticed() {
        by_each(|folder, placement| {
            let mut child = started(folder, 1000, placement);
            after(&mut child, 2);
            let output = damaged(child);
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(5), "{placement}: {stderr}");
            assert!(stderr.contains("is damaged: bytes "), "{placement}: {stderr}");
            assert!(!folder.join("save").exists());
        });
    }

    #[test]
    fn what_is_interrupted_saves_what_it_has() {
        by_each(|folder, placement| {
            let mut child = started(folder, 1000, placement);
            after(&mut child, 3);
            // SAFETY: a signal to a child of this test.
            unsafe { libc::kill(i32::try_from(child.id()).unwrap(), libc::SIGINT) };
            let mut rest = String::new();
            child.stdout.as_mut().unwrap().read_to_string(&mut rest).unwrap();
            let output = child.wait_with_output().unwrap();
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(130), "{placement}: {stderr}");
            let result: Value = serde_json::from_str(rest.lines().last().unwrap()).unwrap();
            let steps = result["steps"].as_u64().unwrap();
            let whole = format!("--steps {steps} --threads 2 --seed 3 --budget 100%");
            run(folder, &format!("train {STEP} {whole} --save FOLDER/whole")).done();
            assert_eq!(saved(folder, "save"), saved(folder, "whole"), "{placement}");
        });
    }
}
