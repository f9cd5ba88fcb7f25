//! Training with a tier below the slab. Invariant: whatever the budget, a run with a tier computes
//! what one with enough memory computes, bit for bit; nothing is left in the folder however it
//! ends; and no wrong number is ever used.
//!
//! Tier: quick with a part of the cases, 24 s; full with all of them.

use std::path::Path;

use serde_json::Value;
use tightfit_testing::first;

use crate::program::{folder, listing, run};

/// A step whose parameters and state are larger than the slab at the budgets below.
const STEP: &str = "corpus/steps/gpt-nano";
/// The message if a run ends before it would plan again.
const NOT_YET: &str = "the run ended before";
/// A few steps of it, with an evaluation in between.
const FEW: &str = "--steps 4 --eval-every 2 --eval-batches 2 --seed 3 --threads 2 --json";

fn saved(folder: &Path, name: &str) -> Vec<u8> {
    std::fs::read(folder.join(name)).unwrap()
}

/// Trains this step.
fn train(folder: &Path, rest: &str) -> crate::program::Ran {
    run(folder, &format!("train {STEP} {FEW} {rest}"))
}

#[test]
fn any_budget_gives_the_same_bits() {
    let folder = folder();
    let folder = folder.path();
    std::fs::create_dir(folder.join("tier")).unwrap();
    let whole = train(folder, "--budget 100% --save FOLDER/whole").done();
    let slab = |ran: &crate::program::Ran| ran.result()["slab_bytes"].as_u64().unwrap();
    let smallest = slab(&train(folder, "--budget min").done());
    for &budget in first(2, &["min", "45%", "60%", "80%"]) {
        let tier = format!("--budget {budget} --tier FOLDER/tier --save FOLDER/part");
        let ran = train(folder, &tier).done();
        assert!(budget != "min" || slab(&ran) < smallest, "{} of {smallest}", slab(&ran));
        let moved = ["bytes_out", "bytes_back"].map(|key| ran.result()[key].as_u64().unwrap());
        assert!(["60%", "80%"].contains(&budget) || moved[0] > 0 && moved[1] > 0, "{moved:?}");
        assert_eq!(ran.losses(), whole.losses(), "{budget}");
        let evaluations = |ran: &crate::program::Ran| {
            let mut lines = ran.lines();
            lines.retain(|line| line.get("validation_loss").is_some());
            lines.iter().map(|line| line["validation_loss"].to_string()).collect::<Vec<_>>()
        };
        // In the smallest slab an evaluation may not fit.
        if budget != "min" {
            assert_eq!(evaluations(&ran), evaluations(&whole), "{budget}");
        }
        assert_eq!(saved(folder, "part"), saved(folder, "whole"), "{budget}");
    }
    assert_eq!(listing(&folder.join("tier")), [""; 0]);
}

#[test]
fn a_run_goes_on_through_the_tier() {
    let folder = folder();
    let folder = folder.path();
    let tier = "--budget min --tier FOLDER";
    train(folder, "--budget 100% --save FOLDER/whole").done();
    let begun = FEW.replace("--steps 4", "--steps 1");
    run(folder, &format!("train {STEP} {begun} {tier} --save FOLDER/part")).done();
    let rest = FEW.replace("--steps 4", "--steps 3");
    let resumed = "--resume FOLDER/part --save FOLDER/part";
    run(folder, &format!("train {STEP} {rest} {tier} {resumed}")).done();
    assert_eq!(saved(folder, "part"), saved(folder, "whole"));
    // And with enough memory, from what the run with the tier has saved.
    run(folder, &format!("train {STEP} {begun} {tier} --save FOLDER/part")).done();
    run(folder, &format!("train {STEP} {rest} --budget 100% {resumed}")).done();
    assert_eq!(saved(folder, "part"), saved(folder, "whole"));
}

/// What a run reports of its second plan: whether it was taken; if so, it has to be faster.
fn planned_again(ran: &crate::program::Ran) -> bool {
    let result = ran.result();
    let again = &result["replan"];
    assert_eq!(again["after_steps"], 2, "{again}");
    let predicted = |side: &str| again[side]["predicted_step_seconds"].as_f64().unwrap();
    let is_taken = again["taken"].as_bool().unwrap();
    assert_eq!(is_taken, again["why_not"].is_null(), "{again}");
    assert!(predicted("before") > 0.0);
    assert!(!is_taken || predicted("after") < predicted("before"), "{again}");
    is_taken
}

#[test]
fn planning_again_costs_no_bit() {
    let folder = folder();
    let folder = folder.path();
    let whole = train(folder, "--budget 100% --save FOLDER/whole").done();
    let begun = FEW.replace("--steps 4", "--steps 1");
    let rest = FEW.replace("--steps 4", "--steps 3");
    let more = "--output FOLDER/plan --trace FOLDER/trace --replan=2";
    let runs = [
        "--budget 45% --tier FOLDER --throttle 50MB/s",
        "--budget 80%",
        "--budget min --tier FOLDER",
        "--budget 60% --tier FOLDER",
        "--budget min",
    ];
    for with in first(2, &runs) {
        let ran = train(folder, &format!("{with} {more} --save FOLDER/part")).done();
        planned_again(&ran);
        let result = ran.result();
        if !cfg!(debug_assertions) {
            let bytes = |key: &str| result[key].as_u64().unwrap();
            assert!(bytes("process_peak_bytes") <= bytes("budget_bytes"), "{with}: {result}");
        }
        assert_eq!(ran.losses(), whole.losses(), "{with}");
        assert_eq!(saved(folder, "part"), saved(folder, "whole"), "{with}");
        // The written plan is the one that ran to the end, and so is the traced one.
        let read = |name: &str| serde_json::from_slice::<Value>(&saved(folder, name)).unwrap();
        let (plan, trace) = (read("plan"), read("trace"));
        let calls = |verb: &str| {
            let instructions = plan["instructions"].as_array().unwrap().iter();
            instructions.filter(|instruction| instruction[0] == verb).count()
        };
        let traced = |cat: &str| {
            trace["traceEvents"].as_array().unwrap().iter().filter(|e| e["cat"] == cat).count()
        };
        assert_eq!(calls("recompute"), traced("recompute"), "{with}");
        // And with a run that is resumed.
        let part = "--save FOLDER/part";
        run(folder, &format!("train {STEP} {begun} {with} {part}")).done();
        let resumed = format!("{with} {part} --resume FOLDER/part --replan=2");
        planned_again(&run(folder, &format!("train {STEP} {rest} {resumed}")).done());
        assert_eq!(saved(folder, "part"), saved(folder, "whole"), "{with}");
    }
}

#[test]
fn a_run_that_ends_before_it_would_plan_again() {
    let folder = folder();
    let folder = folder.path();
    let whole = train(folder, "--budget 100%").done();
    for after in [4, 9] {
        let ran = train(folder, &format!("--budget 60% --tier FOLDER --replan={after}")).done();
        let again = &ran.result()["replan"];
        assert_eq!((&again["taken"], &again["why_not"]), (&false.into(), &NOT_YET.into()));
        assert_eq!(ran.losses(), whole.losses());
    }
    // Nor is there space for what would have to be set aside.
    let ran = train(folder, "--budget 60% --tier FOLDER:1MiB --replan=2").done();
    let again = &ran.result()["replan"];
    let why = again["why_not"].as_str().unwrap();
    assert!(again["taken"] == false && why.contains("has no room for that"), "{again}");
    assert_eq!(ran.losses(), whole.losses());
}

#[test]
fn plans_say_what_they_move() {
    let folder = folder();
    let folder = folder.path();
    let of = |tier: &str| {
        let (on, effort) = ("--machine a100-80gb", "--iterations 20000");
        let plan = format!("plan {STEP} {on} --budget min {tier} {effort} -o FOLDER/plan --json");
        let planned = run(folder, &plan).done().result();
        let check = format!("check {STEP} FOLDER/plan {on} --budget 4MiB {tier}");
        let checked = run(folder, &format!("{check} --json")).done().result();
        for name in ["bytes_out", "bytes_back", "tier_bytes", "stall_seconds"] {
            assert_eq!(planned[name], checked[name], "{name}");
        }
        (planned, run(folder, &check).done().stdout)
    };
    let (planned, words) = of("--tier pcie4");
    let bytes = |name: &str| planned[name].as_u64().unwrap();
    // What leaves comes back; what was not changed has its copy there already.
    assert!(0 < bytes("bytes_out") && bytes("bytes_out") <= bytes("bytes_back"), "{planned}");
    assert!(0 < bytes("tier_bytes") && bytes("tier_bytes") <= bytes("bytes_back"), "{planned}");
    assert!(words.contains(" of the tier, "), "{words}");
    let (planned, words) = of("");
    assert_eq!([&planned["bytes_out"], &planned["tier_bytes"]], [0, 0]);
    assert!(!words.contains("tier"), "{words}");
}

#[test]
fn folders_that_take_no_tier() {
    let folder = folder();
    let folder = folder.path();
    std::fs::write(folder.join("file"), "").unwrap();
    for (tier, code, what) in [
        ("FOLDER/none", 4, "no tier can be made in"),
        ("FOLDER/file", 4, "no tier can be made in"),
        ("/proc", 4, "no tier can be made in"),
        ("FOLDER:12XB", 2, "`12XB` is not a size; write bytes, 320MiB or 64GB"),
    ] {
        let ran = train(folder, &format!("--budget min --tier {tier} --save FOLDER/save"));
        assert_eq!(ran.code, Some(code), "{tier}: {}", ran.stderr);
        assert!(ran.stderr.contains(what), "{tier}: {}", ran.stderr);
    }
    assert_eq!(listing(folder), ["file"]);
}

#[cfg(target_os = "linux")]
mod faults {
    use std::fs::{self, File};
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::program::slowed::{after, damage, damaged};

    fn started(folder: &Path, steps: u32) -> Child {
        crate::program::slowed::started(STEP, folder, steps, "--eval-batches 0")
    }

    #[test]
    fn killed_in_the_middle_of_a_transfer() {
        let folder = folder();
        let folder = folder.path();
        let mut child = started(folder, 1);
        assert!(child.wait().unwrap().success());
        let before = saved(folder, "save");
        let mut child = started(folder, 1000);
        after(&mut child, 2);
        child.kill().unwrap();
        child.wait().unwrap();
        // The save of the run before is all that there is, and a run can resume from it.
        assert_eq!((listing(folder), saved(folder, "save")), (vec!["save".to_string()], before));
        let resumed = "--resume FOLDER/save --budget min --tier FOLDER";
        run(folder, &format!("train {STEP} --steps 1 --threads 2 {resumed}")).done();
    }

    #[test]
    fn a_byte_that_changes_in_the_tier_is_noticed() {
        let folder = folder();
        let folder = folder.path();
        let mut child = started(folder, 1000);
        after(&mut child, 1);
        let output = damaged(child);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(5), "{stderr}");
        assert!(stderr.contains("is damaged: bytes "), "{stderr}");
        assert!(stderr.contains("/save was not written"), "{stderr}");
        assert!(!folder.join("save").exists());
    }

    /// The save waits for a reader of its pipe, and with it the run, until the tier is damaged.
    #[test]
    fn damage_that_only_the_save_finds_is_damage_all_the_same() {
        let folder = folder();
        let folder = folder.path();
        let pipe = folder.join("save");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let rest = "--eval-batches 0 --iterations 20000";
        let mut child = crate::program::slowed::started(STEP, folder, 1, rest);
        after(&mut child, 1);
        damage(&child);
        let mut reader = Command::new("cat").arg(&pipe).stdout(Stdio::null()).spawn().unwrap();
        let output = child.wait_with_output().unwrap();
        // If the run ended before, the reader waits forever.
        reader.kill().unwrap();
        reader.wait().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(5), "{stderr}");
        assert!(stderr.contains("the weights after step 1 could not be saved"), "{stderr}");
        assert!(stderr.contains("is damaged: bytes "), "{stderr}");
    }

    #[test]
    fn a_folder_that_is_removed_meanwhile() {
        let folder = folder();
        let tier = folder.path().join("tier");
        fs::create_dir(&tier).unwrap();
        let mut child = started(&tier, 6);
        after(&mut child, 1);
        fs::remove_dir(&tier).unwrap();
        let output = child.wait_with_output().unwrap();
        // The run does not need the folder; its save does.
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(4), "{stderr}");
        assert!(stderr.contains("the weights after step 6 could not be saved"), "{stderr}");
    }

    /// A file system of one megabyte, if this test may make one.
    #[test]
    fn a_disk_that_is_full() {
        let folder = folder();
        let small = folder.path().join("small");
        fs::create_dir(&small).unwrap();
        let mount = |size: &str| {
            let mut command = Command::new("mount");
            command.args(["-t", "tmpfs", "-o", size, "tmpfs"]).arg(&small);
            command.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
        };
        if !mount("size=300k") {
            eprintln!("no file system can be mounted here: not tested");
            return;
        }
        let ran = run(&small, &format!("train {STEP} --steps 2 --budget min --tier FOLDER"));
        Command::new("umount").arg(&small).status().unwrap();
        assert_eq!(ran.code, Some(4), "{}", ran.stderr);
        let what = "has no room for that: No space left on device";
        assert!(ran.stderr.contains(what), "{}", ran.stderr);
        drop(File::open(folder.path()));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_tier_in_memory_is_pointed_out() {
    let folder = folder();
    let said = |tier: &str| {
        let plan = format!("plan {STEP} --budget 80% --iterations 100 --tier {tier}");
        run(folder.path(), &plan).done().stderr
    };
    assert!(said("/dev/shm").contains("/dev/shm lies in memory"));
    assert!(!said(env!("CARGO_MANIFEST_DIR")).contains("lies in memory"));
}

/// Tensors kept in the tier by a planner that only offloads are found there by an evaluation.
#[test]
fn an_evaluation_follows_whatever_planner_there_is() {
    let folder = folder();
    std::fs::create_dir(folder.path().join("tier")).unwrap();
    let losses = |rest: &str| {
        let arguments = format!("--deadline 300ms {rest}");
        train(folder.path(), &arguments).done().losses()
    };
    let whole = losses("--budget 100%");
    for planner in ["offload", "capuchin-swap"] {
        let tier = format!("--budget min --planner {planner} --tier FOLDER/tier");
        assert_eq!(losses(&tier), whole, "{planner}");
    }
}

/// If there was no time to find a plan that uses its memory, the output says so; but not if no
/// deadline ended the search, or if the plan uses what it may.
#[test]
fn a_search_that_was_cut_short_says_what_it_leaves() {
    let folder = folder();
    std::fs::create_dir(folder.path().join("tier")).unwrap();
    let said = |rest: &str| {
        let train = "train corpus/steps/gpt-small --steps 0 --eval-batches 0";
        run(folder.path(), &format!("{train} {rest}")).done().stdout
    };
    let slow = "--budget 120MiB --tier FOLDER/tier --throttle 10MB/s";
    let cut = said(&format!("{slow} --deadline 1ms"));
    assert!(cut.contains("\nsearch             cut short  the plan uses "), "{cut}");
    for whole in [format!("{slow} --iterations 200"), "--budget 60% --deadline 1ms".to_string()] {
        let whole = said(&whole);
        assert!(whole.contains("\nplanned peak") && !whole.contains("cut short"), "{whole}");
    }
}
