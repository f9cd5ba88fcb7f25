//! Training on ranks that share a step. Invariant: losses and weights are those of one device with
//! as many micro-batches, apart from the order of sums, which neither budget nor plan changes; each
//! rank stays within its slab; and whatever is refused is refused before anything runs.
//!
//! Tier: quick, since it takes 5 s.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use safetensors::SafeTensors;

use crate::program::{Ran, folder, run, train};

/// Elements of everything that was saved, by name.
fn weights(path: &Path) -> BTreeMap<String, Vec<f32>> {
    let bytes = fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let floats = |bytes: &[u8]| {
        bytes.as_chunks::<4>().0.iter().map(|word| f32::from_ne_bytes(*word)).collect()
    };
    tensors.tensors().into_iter().map(|(name, tensor)| (name, floats(tensor.data()))).collect()
}

/// Trains, and saves into the folder under a name.
fn trained(folder: &Path, name: &str, arguments: &str) -> Ran {
    let save = folder.join(name);
    train(folder, &format!("{arguments} --save {}", save.display())).done()
}

/// Two saves within 1e-5 of each other.
#[track_caller]
fn alike(folder: &Path, names: [&str; 2]) {
    let [ours, theirs] = names.map(|name| weights(&folder.join(name)));
    assert!(ours.keys().eq(theirs.keys()), "{names:?}");
    for (name, own) in &ours {
        assert_eq!(own.len(), theirs[name].len(), "{names:?}: {name}");
        for (our, their) in own.iter().zip(&theirs[name]) {
            assert!((our - their).abs() <= 1e-5, "{names:?}: {name}: {our} and {their}");
        }
    }
}

#[test]
fn ranks_that_share_a_step_learn_what_one_device_does() {
    let folder = folder();
    let folder = folder.path();
    // After more steps, a rounding may have switched a unit of the perceptron on or off.
    for (step, steps) in [("mlp-digits", 2), ("gpt-nano-dropout", 4)] {
        let common = format!("corpus/steps/{step} --microbatches 4 --steps {steps}");
        let alone = trained(folder, "alone", &format!("{common} --budget 100%"));
        let mut same: Option<Vec<u8>> = None;
        for arguments in [
            "--shards 2 --budget 100%",
            "--shards 2 --budget min --iterations 1000",
            "--shards 2 --budget 90% --iterations 1000 --threads 4 --eval-every 2",
            "--shards 2 --reduce update --budget 100%",
            "--shards 4 --budget 100% --planner none",
        ] {
            let ran = trained(folder, "shared", &format!("{common} {arguments}"));
            alike(folder, ["alone", "shared"]);
            let losses = |ran: &Ran| -> Vec<f64> {
                ran.losses().iter().map(|loss| loss.parse().unwrap()).collect()
            };
            for (our, their) in losses(&ran).into_iter().zip(losses(&alone)) {
                assert!((our - their).abs() < 1e-5, "{step} {arguments}: {our} and {their}");
            }
            let (own, one) = (ran.result(), alone.result());
            let judged = |key: &str| [&own, &one].map(|result| result[key].as_f64().unwrap());
            let [ours, theirs] = judged("validation_loss");
            assert!((ours - theirs).abs() < 1e-5, "{step} {arguments}");
            for rank in own["ranks"].as_array().unwrap() {
                let bytes = |key: &str| rank[key].as_u64().unwrap();
                assert!(bytes("high_water_bytes") <= bytes("slab_bytes"), "{arguments}: {rank}");
                assert!(bytes("slab_bytes") + bytes("reserve_bytes") <= bytes("budget_bytes"));
            }
            if arguments.starts_with("--shards 2 --budget") {
                let bytes = fs::read(folder.join("shared")).unwrap();
                let same = same.get_or_insert_with(|| bytes.clone());
                assert!(*same == bytes, "{step} {arguments}: other bits");
            }
        }
    }
}

/// Saved weights are whole tensors, on any number of ranks.
#[test]
fn a_run_goes_on_on_another_number_of_ranks() {
    let folder = folder();
    let folder = folder.path();
    let common = "corpus/steps/gpt-nano --microbatches 4 --budget 100%";
    trained(folder, "whole", &format!("{common} --steps 6"));
    trained(folder, "two", &format!("{common} --steps 2 --shards 2"));
    let go_on = |name: &str, from: &str, arguments: &str| {
        let from = folder.join(from);
        let arguments = format!("{common} {arguments} --steps 2 --resume {}", from.display());
        trained(folder, name, &arguments);
    };
    go_on("four", "two", "--shards 4 --reduce update");
    go_on("one", "four", "--stages 2");
    alike(folder, ["whole", "one"]);
}

#[test]
fn wrong_usage_is_refused() {
    let folder = folder();
    for (arguments, code, says) in [
        ("--microbatches 3 --shards 2", 2, "take a multiple of 2, not 3"),
        ("--shards 2", 2, "take a multiple of 2, not 1"),
        ("--microbatches 2 --shards 1", 2, "1 is not in 2..=64"),
        ("--microbatches 2 --shards 0", 2, "0 is not in 2..=64"),
        ("--microbatches 2 --shards 2 --stages 2", 2, "cannot be used with"),
        ("--microbatches 2 --shards 2 --tier FOLDER", 2, "cannot be used with"),
        ("--microbatches 2 --shards 2 --schedule 1f1b", 2, "cannot be used with"),
        ("--microbatches 2 --stages 2 --reduce update", 2, "cannot be used with"),
        ("--microbatches 2 --transport thread", 2, "--stages"),
        (
            "--microbatches 2 --shards 2 --budget 1MiB",
            3,
            "the smallest budget known to be feasible is",
        ),
        (
            "--microbatches 2 --shards 2 --budget 1%",
            3,
            "the smallest budget known to be feasible is",
        ),
        ("--microbatches 2 --shards 2 --save /dev/full", 4, "could not be saved"),
    ] {
        let budget = if arguments.contains("--budget") { "" } else { "--budget 100%" };
        let common = "train corpus/steps/mlp-digits --steps 1";
        let ran = run(folder.path(), &format!("{common} {budget} {arguments}"));
        assert_eq!(ran.code, Some(code), "{arguments}: {}", ran.stderr);
        assert!(ran.stderr.contains(says), "{arguments}: {}", ran.stderr);
    }
}
