//! Training on several ranks. Invariant: losses and weights are those of one device with as many
//! micro-batches, whatever the order and the number of ranks; each rank stays within its slab; and
//! whatever fails, all ranks end, with one message.
//!
//! Tier: quick, since it takes 15 s.

use std::fs;

use serde_json::Value;

use crate::program::{Ran, folder, run, train};

/// Losses of four steps, the run's messages, and the weights after it.
fn trained(step: &str, arguments: &str) -> (Ran, Vec<u8>) {
    let folder = folder();
    let ran = train(
        folder.path(),
        &format!("corpus/steps/{step} --steps 4 --save FOLDER/weights {arguments}"),
    )
    .done();
    assert_eq!(ran.losses().len(), 4, "{step} {arguments}");
    (ran, fs::read(folder.path().join("weights")).unwrap())
}

#[test]
fn ranks_and_orders_do_not_change_a_bit() {
    let alone = trained("mlp-digits", "--microbatches 4 --budget 100%");
    for arguments in [
        "--stages 1 --schedule 1f1b",
        "--stages 2",
        "--stages 2 --schedule gpipe --budget 90% --iterations 1000",
        "--stages 2 --schedule zb-h1 --budget min --iterations 1000",
        "--stages 4 --schedule zb-v --eval-every 2",
        "--stages 3 --schedule v-min --threads 3",
        "--stages 4 --schedule greedy",
        "--stages 2 --schedule 1f1b --planner checkpoint-always",
        "--stages 3 --schedule gpipe --planner checkpoint-except-last",
    ] {
        let budget = if arguments.contains("--budget") { "" } else { "--budget 100%" };
        let ranks = trained("mlp-digits", &format!("--microbatches 4 {budget} {arguments}"));
        assert_eq!(alone.0.losses(), ranks.0.losses(), "{arguments}");
        assert!(alone.1 == ranks.1, "{arguments}: other weights");
        let (one, several) = (alone.0.result(), ranks.0.result());
        assert_eq!(one["validation_loss"], several["validation_loss"], "{arguments}");
        assert_eq!(one["validation_accuracy"], several["validation_accuracy"], "{arguments}");
        for rank in several["ranks"].as_array().unwrap() {
            let bytes = |key: &str| rank[key].as_u64().unwrap();
            assert!(bytes("high_water_bytes") <= bytes("slab_bytes"), "{arguments}: {rank}");
            assert!(bytes("slab_bytes") + bytes("reserve_bytes") <= bytes("budget_bytes"));
        }
    }
}

/// Gradients of what is shared are summed in another order than on one device, so weights differ in
/// their last bits; but they are the same for all orders and numbers of ranks.
#[test]
fn a_tied_embedding_is_the_same_for_all_orders() {
    let step = "gpt-nano-dropout";
    let first = trained(step, "--microbatches 3 --budget 100% --stages 2 --schedule 1f1b");
    for arguments in ["--stages 2 --schedule gpipe", "--stages 3 --schedule zb-h1 --threads 3"] {
        let other = trained(step, &format!("--microbatches 3 --budget 100% {arguments}"));
        assert_eq!(first.0.losses(), other.0.losses(), "{arguments}");
        assert!(first.1 == other.1, "{arguments}");
    }
    // One gradient there and one sum back, for each update.
    assert_eq!(first.0.result()["messages"], 3 * 2 + 2);
}

#[test]
fn a_run_goes_on_with_another_number_of_ranks() {
    let folder = folder();
    let go = |arguments: &str| {
        let common = "corpus/steps/mlp-digits --microbatches 4 --budget 100%";
        train(folder.path(), &format!("{common} --eval-batches 0 {arguments}")).done()
    };
    go("--steps 3 --save FOLDER/whole");
    go("--steps 1 --stages 2 --schedule 1f1b --save FOLDER/part");
    go("--steps 1 --resume FOLDER/part --save FOLDER/part");
    go("--steps 1 --stages 3 --schedule gpipe --resume FOLDER/part --save FOLDER/part");
    let read = |name: &str| fs::read(folder.path().join(name)).unwrap();
    assert!(read("whole") == read("part"));
}

#[test]
fn orders_come_from_files_too() {
    let folder = folder();
    let order = |text: &str| {
        fs::write(folder.path().join("order.csv"), text).unwrap();
        train(
            folder.path(),
            "corpus/steps/mlp-digits --microbatches 2 --stages 2 --budget 100% --steps 1 \
             --schedule FOLDER/order.csv",
        )
    };
    order("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1I1,1W1\n").done();
    // The file as an editor may save it.
    order("\u{feff}0F0,0F1,0B0,0B1\r\n1F0,1B0,1F1,1B1\r\n\r\n\n").done();
    for (text, code, says) in [
        ("0F0,0B0\n1F0,1B0\n", 2, "it is for --stages 2 and --microbatches 1"),
        ("0F0,0F1,0B0,0B1\n1F0,1F1,1B0\n", 5, "rank1 never performs 1B1"),
        ("0F0,0F1\n1F0,1F1\n", 2, "rank0 never performs 0B0"),
        ("0B0,0F0,0F1,0B1\n1F0,1F1,1B0,1B1\n", 5, "deadlock: rank0 waits with 0B0 for 0F0"),
        ("what?\n", 5, "what?"),
    ] {
        let ran = order(text);
        assert_eq!(ran.code, Some(code), "{}", ran.stderr);
        assert!(ran.stderr.contains(says), "{}", ran.stderr);
    }
}

#[test]
fn wrong_usage_is_refused() {
    let folder = folder();
    for (arguments, code, says) in [
        ("--stages 0", 2, "0 is not in 1..=256"),
        ("--stages 41", 2, "41 stages are asked for, and the forward pass has"),
        ("--stages 2 --schedule nonsense", 2, "schedules are gpipe, 1f1b, interleaved"),
        ("--schedule gpipe", 2, "--stages"),
        ("--peer-deadline 10", 2, "--stages"),
        ("--stages 2 --tier FOLDER", 2, "cannot be used with"),
        ("--stages 2 --replan", 2, "cannot be used with"),
        ("--stages 2 --schedule interleaved --microbatches 5", 2, "take a multiple of 2"),
        ("--stages 2 --budget 1MiB --deadline 50ms", 10, "is known to fit in"),
        // Other cuts may fit.
        (
            "--stages 2 --budget 1% --microbatches 4 --deadline 50ms",
            10,
            "of the cuts that were tried",
        ),
        ("--stages 2 --tier FOLDER --throttle 1MB/s", 2, "cannot be used with"),
        ("--stages 2 --tier FOLDER --no-overlap", 2, "cannot be used with"),
        ("--stages 2 --peer-deadline 0", 2, "a deadline of zero"),
        ("--stages 2 --planner nobody", 2, "checkpoint-always"),
        ("--stages 2 --microbatches 4 --deadline 50ms --save /dev/full", 4, "could not be saved"),
    ] {
        let budget = if arguments.contains("--budget") { "" } else { "--budget 100%" };
        let common = "train corpus/steps/mlp-digits --steps 1";
        let ran = run(folder.path(), &format!("{common} {budget} {arguments}"));
        assert_eq!(ran.code, Some(code), "{arguments}: {}", ran.stderr);
        assert!(ran.stderr.contains(says), "{arguments}: {}", ran.stderr);
    }
}

#[test]
fn a_trace_shows_every_rank() {
    let folder = folder();
    train(
        folder.path(),
        "corpus/steps/mlp-digits --microbatches 4 --stages 2 --schedule 1f1b --budget 100% \
         --steps 3 --trace FOLDER/trace.json",
    )
    .done();
    let text = fs::read(folder.path().join("trace.json")).unwrap();
    let trace: Value = serde_json::from_slice(&text).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    for rank in [1, 2] {
        let own = |op: &str| {
            let is_own = |event: &&Value| event["pid"] == rank && event["name"] == op;
            events.iter().filter(is_own).count()
        };
        assert_eq!(own("tightfit.send"), 4, "rank {rank}");
        assert_eq!(own("tightfit.receive"), 4, "rank {rank}");
        assert_eq!(own("tightfit.sent"), 4, "rank {rank}");
    }
    // Such a file is for trace viewers: the report shows one schedule.
    run(folder.path(), "plan corpus/steps/mlp-digits --budget 90% -o FOLDER/plan.json").done();
    let shown = run(
        folder.path(),
        "report corpus/steps/mlp-digits --plan FOLDER/plan.json --measured FOLDER/trace.json \
         -o FOLDER/r.html",
    );
    assert_eq!(shown.code, Some(5), "{}", shown.stderr);
    assert!(shown.stderr.contains("tightfit-traces/1"), "{}", shown.stderr);
}
