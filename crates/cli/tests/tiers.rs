//! Training with a tier below the slab. Invariant: whatever the budget, a run with a tier computes
//! what one with memory enough computes, bit for bit; nothing is left in the folder however it
//! ends; and no wrong number is ever used.
#![allow(clippy::unwrap_used)] // a test that cannot go on panics

mod program;

use std::path::Path;

use program::{folder, listing, run};

/// A step whose parameters and state are larger than the slab at the budgets below.
const STEP: &str = "corpus/steps/gpt-nano";
/// A few steps of it, with an evaluation in between.
const FEW: &str = "--steps 4 --eval-every 2 --eval-batches 2 --seed 3 --threads 2 --json";

fn saved(folder: &Path, name: &str) -> Vec<u8> {
    std::fs::read(folder.join(name)).unwrap()
}

/// Trains with memory enough.
fn train(folder: &Path, rest: &str) -> program::Ran {
    run(folder, &format!("train {STEP} {FEW} {rest}"))
}

#[test]
fn any_budget_gives_the_same_bits() {
    let folder = folder();
    let folder = folder.path();
    std::fs::create_dir(folder.join("tier")).unwrap();
    let whole = train(folder, "--budget 100% --save FOLDER/whole").done();
    let slab = |ran: &program::Ran| ran.result()["slab_bytes"].as_u64().unwrap();
    let smallest = slab(&train(folder, "--budget min").done());
    for budget in ["min", "45%", "60%", "80%"] {
        let tier = format!("--budget {budget} --tier FOLDER/tier --save FOLDER/part");
        let ran = train(folder, &tier).done();
        assert!(budget != "min" || slab(&ran) < smallest, "{} of {smallest}", slab(&ran));
        let moved = ["bytes_out", "bytes_back"].map(|key| ran.result()[key].as_u64().unwrap());
        assert!(["60%", "80%"].contains(&budget) || moved[0] > 0 && moved[1] > 0, "{moved:?}");
        assert_eq!(ran.losses(), whole.losses(), "{budget}");
        let evaluations = |ran: &program::Ran| {
            let mut lines = ran.lines();
            lines.retain(|line| line.get("validation_loss").is_some());
            lines.iter().map(|line| line["validation_loss"].to_string()).collect::<Vec<_>>()
        };
        // In the smallest slab there may be no room for an evaluation.
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
    let first = FEW.replace("--steps 4", "--steps 1");
    run(folder, &format!("train {STEP} {first} {tier} --save FOLDER/part")).done();
    let rest = FEW.replace("--steps 4", "--steps 3");
    let resumed = "--resume FOLDER/part --save FOLDER/part";
    run(folder, &format!("train {STEP} {rest} {tier} {resumed}")).done();
    assert_eq!(saved(folder, "part"), saved(folder, "whole"));
    // And with memory enough from what the tier has saved.
    run(folder, &format!("train {STEP} {first} {tier} --save FOLDER/part")).done();
    run(folder, &format!("train {STEP} {rest} --budget 100% {resumed}")).done();
    assert_eq!(saved(folder, "part"), saved(folder, "whole"));
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
    use std::fs::{self, File, OpenOptions};
    use std::io::{BufRead, BufReader};
    use std::os::unix::fs::FileExt;
    use std::path::PathBuf;
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::program::tightfit;

    /// A run of many steps, slowed down so that there are transfers at any time.
    fn started(folder: &Path, steps: u32) -> Child {
        let mut command = tightfit();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        command.current_dir(root).args(["train", STEP, "--budget", "min", "--json", "--roofline"]);
        command.args(["--steps", &steps.to_string(), "--eval-batches", "0", "--threads", "2"]);
        command.arg("--tier").arg(folder).args(["--throttle", "20MB/s"]);
        command.arg("--save").arg(folder.join("save"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Goes on when so many steps are done.
    fn after(child: &mut Child, steps: usize) {
        let stdout = child.stdout.as_mut().unwrap();
        let mut lines = BufReader::with_capacity(1, stdout).lines();
        (0..steps).for_each(|_| assert!(lines.next().unwrap().unwrap().contains("loss")));
    }

    /// The file of a run's tier.
    fn tier_of(child: &Child) -> PathBuf {
        let open = fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap();
        let is_tier = |path: &PathBuf| {
            fs::read_link(path).is_ok_and(|to| {
                to.to_string_lossy().ends_with("(deleted)")
                    && fs::metadata(path).is_ok_and(|known| known.len() > 1 << 16)
            })
        };
        open.map(|entry| entry.unwrap().path()).find(is_tier).unwrap()
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
        // The save of the run before is all that there is, and a run can begin from it.
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
        let file = OpenOptions::new().read(true).write(true).open(tier_of(&child)).unwrap();
        // All over, so that something that is brought back is hit.
        for _ in 0..200 {
            let length = file.metadata().unwrap().len();
            for at in (0..length).step_by(4096) {
                let mut byte = [0];
                file.read_exact_at(&mut byte, at).unwrap();
                file.write_all_at(&[!byte[0]], at).unwrap();
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
            if child.try_wait().unwrap().is_some() {
                break;
            }
        }
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(5), "{stderr}");
        assert!(stderr.contains("is damaged: bytes "), "{stderr}");
        assert!(!folder.join("save").exists());
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
        // The run does not need it; its save does.
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(4), "{stderr}");
        assert!(stderr.contains("the weights after step 6 could not be saved"), "{stderr}");
    }

    /// A file system of one megabyte, where this test may make one.
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
