//! Training on the processes of an MPI job. Invariant: losses and weights are those of threads, and
//! each process stays within its budget; whatever fails, all ranks end, each with the cause.
//!
//! Tier: quick, 25 s, since nothing else runs jobs; tests of deadlines are in the full one.
#![allow(clippy::unwrap_used)] // a test that cannot go on panics

mod program;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tightfit_engine::transport::Link;
use tightfit_engine::transport::mpi::Job;

use program::{Ran, corpus, folder, tightfit, train};

const STEP: &str = "corpus/steps/mlp-digits --microbatches 4";
const DROPOUT: &str = "corpus/steps/gpt-nano-dropout --microbatches 3";

/// `mpirun`, in the environment of the program.
fn mpirun() -> Command {
    let mut command = Command::new("mpirun");
    let environment = tightfit();
    for (name, value) in environment.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command
        // Tests run as root in containers, and on fewer processors than there are ranks.
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("OMPI_MCA_rmaps_base_oversubscribe", "1")
        .current_dir(corpus().parent().unwrap());
    command
}

/// Adds this many processes of the program that train; `FOLDER` stands for `folder`.
fn add(command: &mut Command, folder: &Path, ranks: u32, arguments: &str) {
    let folder = folder.to_str().unwrap();
    command.args(["-n", &ranks.to_string()]).arg(env!("CARGO_BIN_EXE_tightfit")).arg("train");
    let threads = if arguments.contains("--threads") { "" } else { "--threads 1" };
    let arguments = format!("{arguments} {threads} --roofline --json --transport mpi");
    command.args(arguments.split_whitespace().map(|argument| argument.replace("FOLDER", folder)));
}

/// Trains on a job of this many processes.
fn job(folder: &Path, ranks: u32, arguments: &str) -> Ran {
    let mut command = mpirun();
    add(&mut command, folder, ranks, arguments);
    command.output().unwrap().into()
}

/// Trains on a job of two processes that are started differently.
fn pair(folder: &Path, [first, second]: [&str; 2]) -> Ran {
    let mut command = mpirun();
    add(&mut command, folder, 1, first);
    command.arg(":");
    add(&mut command, folder, 1, second);
    command.output().unwrap().into()
}

#[test]
fn processes_do_what_threads_do() {
    let folder = folder();
    let read = |name: &str| fs::read(folder.path().join(name)).unwrap();
    for (ranks, step, arguments) in [
        (2, STEP, "--stages 2 --budget 100% --schedule 1f1b"),
        (2, STEP, "--stages 2 --budget min --schedule zb-h1 --iterations 1000"),
        (4, STEP, "--stages 4 --budget 100% --schedule zb-v --eval-every 2"),
        (3, STEP, "--stages 3 --budget 100% --schedule v-min"),
        (2, DROPOUT, "--stages 2 --budget 100% --schedule gpipe"),
        (2, STEP, "--shards 2 --budget 100% --eval-every 2"),
        (4, STEP, "--shards 4 --budget min --iterations 1000"),
        (3, DROPOUT, "--shards 3 --budget 100% --reduce update"),
    ] {
        let common = format!("{step} {arguments} --steps 4");
        let threads = format!("{common} --threads {ranks} --save FOLDER/threads");
        let threads = train(folder.path(), &threads).done();
        let processes = job(folder.path(), ranks, &format!("{common} --save FOLDER/mpi")).done();
        assert_eq!(threads.losses(), processes.losses(), "{common}");
        assert!(read("threads") == read("mpi"), "{common}: other weights");
        let (threads, processes) = (threads.result(), processes.result());
        for same in ["validation_loss", "validation_accuracy", "messages"] {
            assert_eq!(threads[same], processes[same], "{common}");
        }
        for rank in processes["ranks"].as_array().unwrap() {
            let bytes = |key: &str| rank[key].as_u64().unwrap();
            assert!(bytes("high_water_bytes") <= bytes("slab_bytes"), "{common}: {rank}");
            assert!(bytes("slab_bytes") + bytes("reserve_bytes") <= bytes("budget_bytes"));
            assert!(bytes("process_peak_bytes") > 0);
        }
    }
}

#[test]
fn a_run_goes_on_on_other_ranks() {
    let folder = folder();
    let common = format!("{STEP} --budget 100% --eval-batches 0 --trace FOLDER/trace");
    let read = |name: &str| fs::read(folder.path().join(name)).unwrap();
    train(folder.path(), &format!("{common} --steps 3 --save FOLDER/whole")).done();
    train(folder.path(), &format!("{common} --steps 1 --save FOLDER/part")).done();
    let resumed = "--steps 1 --resume FOLDER/part --save FOLDER/part --stages";
    job(folder.path(), 3, &format!("{common} {resumed} 3")).done();
    let trace: Value = serde_json::from_slice(&read("trace")).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    for rank in 1..=3 {
        assert!(events.iter().any(|event| event["pid"] == rank), "rank {rank}");
    }
    // Two that are not needed.
    let ran = job(folder.path(), 4, &format!("{common} {resumed} 2")).done();
    assert!(ran.stderr.contains("rank3 of 4 is not needed by --stages 2"), "{}", ran.stderr);
    assert!(read("whole") == read("part"));
}

#[test]
#[ignore = "full tier: 16 s"]
fn ranks_that_are_not_alike_all_say_so() {
    let folder = folder();
    let alike = format!("{STEP} --budget 100% --stages 2 --steps 1");
    let other = "corpus/steps/gpt-nano-dropout --microbatches 4 --budget 100% --stages 2 --steps 1";
    for (second, says) in [
        (alike.replace("--steps 1", "--steps 2"), "--steps is 2 for rank1 and 1 for rank0"),
        (alike.replace("--microbatches 4", "--microbatches 5"), "--microbatches is 5 for rank1"),
        (format!("{alike} --seed 9"), "the seed is 9 for rank1 and 1 for rank0"),
        (alike.replace("100%", "90%"), "--budget is 90% for rank1 and 100% for rank0"),
        (format!("{alike} --schedule gpipe"), "--schedule is gpipe for rank1 and auto for rank0"),
        (other.to_string(), "the step is gpt-nano-dropout for rank1 and mlp-digits for rank0"),
    ] {
        let ran = pair(folder.path(), [&alike, &second]);
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        for rank in ["rank0", "rank1"] {
            let line = format!("error: {rank}: the ranks of a job do the same: {says}");
            assert!(ran.stderr.contains(&line), "{line}: {}", ran.stderr);
        }
    }
    // The same number of steps of the same seed, but other weights.
    for (name, rate) in [("one", 0.1), ("other", 0.2)] {
        let save = format!("{STEP} --budget 100% --steps 1 --lr {rate} --save FOLDER/{name}");
        train(folder.path(), &save).done();
    }
    let resumed = |name: &str| format!("{alike} --resume FOLDER/{name}");
    let ran = pair(folder.path(), [&resumed("one"), &resumed("other")]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("do the same: what --resume reads is "), "{}", ran.stderr);
    let ran = pair(folder.path(), [&alike, &alike.replace("--stages 2", "--stages 1")]);
    let says = "of the first 2 ranks of the job, 1 were begun for 2 ranks";
    assert!(ran.stderr.contains(says), "{}", ran.stderr);
    assert_ne!(ran.code, Some(0));
}

#[test]
#[ignore = "full tier: 11 s"]
fn a_process_that_never_begins_is_not_waited_for() {
    let folder = folder();
    let mut command = mpirun();
    let alike = format!("{STEP} --budget 100% --stages 2 --steps 1 --peer-deadline 2s");
    add(&mut command, folder.path(), 1, &alike);
    command.args([":", "-n", "1", "sleep", "3600"]);
    let ran: Ran = command.output().unwrap().into();
    assert_eq!(ran.code, Some(12), "{}", ran.stderr);
    assert!(ran.stderr.contains("after 10s some processes of the job"), "{}", ran.stderr);
}

/// The other rank is this test program, which claims to be of another version.
#[test]
fn another_version_is_refused_by_all() {
    let folder = folder();
    let mut command = mpirun();
    add(&mut command, folder.path(), 1, &format!("{STEP} --budget 100% --stages 2 --steps 1"));
    command.args([":", "-n", "1"]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "as_another_version", "--nocapture"]);
    let ran = Ran::from(command.output().unwrap());
    let says = "error: rank0: the ranks of a job do the same: the version of tightfit is";
    assert!(ran.stderr.contains(says), "{}", ran.stderr);
    assert_ne!(ran.code, Some(0));
}

/// The process of a job; started in any other way, it has nothing to do.
#[test]
fn as_another_version() {
    if std::env::var_os("OMPI_COMM_WORLD_SIZE").is_none() {
        return;
    }
    let job = Job::begin(2, Duration::from_secs(60), |cause| eprintln!("{cause}")).unwrap();
    let greeting = r#"{"alike": [["the version of tightfit", "0.0.1"]], "since": "then"}"#;
    let heard = job.link().unwrap().gather(greeting.as_bytes());
    println!("{heard:?}");
    // It continues until the first rank refuses.
    drop(job.link().unwrap().gather(&[]));
    job.end(0);
}

#[test]
#[ignore = "full tier: 16 s"]
fn what_one_rank_fails_of_all_say() {
    let folder = folder();
    let alike = format!("{STEP} --budget 100% --stages 2 --steps 1");
    let missing = alike.replace("corpus/steps/mlp-digits", "FOLDER/nothing");
    let ran = pair(folder.path(), [&alike, &missing]);
    assert_eq!(ran.code, Some(4), "{}", ran.stderr);
    assert!(ran.stderr.contains("error: rank1: "), "{}", ran.stderr);
    assert!(ran.stderr.contains("error: rank0: rank1 failed: "), "{}", ran.stderr);
    assert!(ran.stderr.contains("nothing/step.json: No such file"), "{}", ran.stderr);
    for (arguments, code, says) in [
        ("--budget 1% --steps 1", 10, "no plan was found that fits 2 devices"),
        ("--budget 100% --steps 1 --save /dev/full", 4, "No space left on device"),
        ("--budget 100% --steps 1 --schedule nonsense", 2, "there is no schedule `nonsense`"),
    ] {
        // One that is not needed ends as the others do.
        let ran = job(folder.path(), 3, &format!("{STEP} --stages 2 {arguments}"));
        assert_eq!(ran.code, Some(code), "{arguments}: {}", ran.stderr);
        assert!(ran.stderr.contains(says), "{arguments}: {}", ran.stderr);
        assert!(ran.stderr.contains("error: rank1: "), "{arguments}: {}", ran.stderr);
    }
    let ran = job(folder.path(), 1, &alike);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("ranks are asked for, and the job has 1"), "{}", ran.stderr);
}

/// A long run on two processes, of which two steps are done, with a save to resume from.
struct Long {
    folder: tempfile::TempDir,
    saved: Vec<u8>,
    running: Child,
    /// The processes of its ranks.
    ranks: Vec<i32>,
}

impl Long {
    fn begin(arguments: &str) -> Long {
        let folder = folder();
        let common = format!("{STEP} --budget 100% --eval-batches 0 --save FOLDER/weights");
        train(folder.path(), &format!("{common} --steps 1")).done();
        let saved = fs::read(folder.path().join("weights")).unwrap();
        let mut command = mpirun();
        let resumed = "--resume FOLDER/weights --steps 1000000 --stages 2";
        add(&mut command, folder.path(), 2, &format!("{common} {resumed} {arguments}"));
        let mut running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(running.stdout.as_mut().unwrap()).lines();
        for _ in 0..2 {
            assert!(lines.next().unwrap().unwrap().contains("loss"));
        }
        let ranks = children(running.id().cast_signed());
        assert_eq!(ranks.len(), 2, "{ranks:?}");
        // Its output is read, so that it does not block.
        let mut stdout = running.stdout.take().unwrap();
        std::thread::spawn(move || drop(stdout.read_to_end(&mut Vec::new())));
        Long { folder, saved, running, ranks }
    }

    fn signal(&self, rank: usize, signal: i32) {
        // SAFETY: sends a signal to a process that this one has started.
        assert_eq!(unsafe { libc::kill(self.ranks[rank], signal) }, 0);
    }

    /// The messages, the exit code, and the files in the folder.
    fn end(mut self) -> (String, Option<i32>, bool, Vec<String>) {
        let mut says = String::new();
        self.running.stderr.take().unwrap().read_to_string(&mut says).unwrap();
        let code = self.running.wait().unwrap().code();
        let is_intact = fs::read(self.folder.path().join("weights")).unwrap() == self.saved;
        (says, code, is_intact, program::listing(self.folder.path()))
    }
}

/// Processes that a process has started, in the order of their start.
fn children(parent: i32) -> Vec<i32> {
    let all = fs::read_dir("/proc").unwrap();
    let ids = all.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<i32>().ok());
    let is_child = |id: &i32| {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        // proc(5): the name, which may have anything in it, ends at the last parenthesis.
        let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        rest.split_whitespace().nth(1) == Some(&parent.to_string())
    };
    let mut found: Vec<i32> = ids.filter(is_child).collect();
    found.sort_unstable();
    found
}

#[test]
fn a_killed_rank_ends_the_job_and_leaves_the_save() {
    let long = Long::begin("");
    long.signal(1, libc::SIGKILL);
    let (says, code, is_intact, listing) = long.end();
    assert!(says.contains("signal 9"), "{says}");
    assert_ne!(code, Some(0));
    assert!(is_intact);
    assert_eq!(listing, ["weights"]);
}

#[test]
fn a_silent_rank_ends_the_job_at_the_deadline() {
    let long = Long::begin("--peer-deadline 5");
    long.signal(1, libc::SIGSTOP);
    let (says, code, is_intact, listing) = long.end();
    assert!(says.contains("rank0 waited 5 s for "), "{says}");
    assert_eq!(code, Some(12), "{says}");
    assert!(is_intact);
    assert_eq!(listing, ["weights"]);
}

#[test]
fn a_signal_to_any_rank_ends_them_all_after_the_same_step() {
    let long = Long::begin("");
    long.signal(1, libc::SIGTERM);
    let (says, code, is_intact, listing) = long.end();
    assert!(!says.contains("error: "), "{says}");
    assert_eq!(code, Some(143), "{says}");
    assert!(!is_intact, "it saves what it has");
    assert_eq!(listing, ["weights"]);
}
