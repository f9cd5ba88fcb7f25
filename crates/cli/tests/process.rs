//! The whole process within its budget. Invariant: what is judged is the largest resident set that
//! the system counted, of the process and of those that it started, and, if a control group can be
//! made, that the run completes in one that allows the budget and no byte more.
//!
//! Tier: quick, since it takes 21 s.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::program::{corpus, folder, run, tightfit};

const STEPS: [&str; 3] = ["gpt-nano", "gpt-nano-dropout", "mlp-digits"];
/// The arguments of the run that [`inner`] measures, one a line.
const ARGUMENTS: &str = "TIGHTFIT_TEST_ARGUMENTS";
/// The folder that it writes into.
const FOLDER: &str = "TIGHTFIT_TEST_FOLDER";
/// The bytes that [`large`] takes.
const BYTES: &str = "TIGHTFIT_TEST_BYTES";

/// Not a test by itself: a small process between the tests and the program. At its start, a process
/// is charged with the memory of the one that starts it, and this one has little.
#[test]
fn inner() {
    let (Ok(arguments), Ok(folder)) = (std::env::var(ARGUMENTS), std::env::var(FOLDER)) else {
        return;
    };
    let folder = Path::new(&folder);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tightfit"));
    command.args(arguments.lines()).current_dir(corpus().parent().unwrap());
    command.stdout(File::create(folder.join("stdout")).unwrap()).stderr(Stdio::inherit());
    #[allow(clippy::zombie_processes)] // `wait4` waits for it, and says what it took
    let child = command.spawn().unwrap();
    let (mut status, pid) = (0, child.id() as libc::pid_t);
    // SAFETY: the numbers are filled by the call, which waits for the child that was just started.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::wait4(pid, &mut status, 0, &mut usage), pid);
        usage
    };
    assert_eq!(status, 0, "{arguments}");
    std::fs::write(folder.join("peak"), (usage.ru_maxrss * 1024).to_string()).unwrap();
}

/// Runs the program with arguments separated by spaces, `FOLDER` standing for `folder`, and returns
/// its last line of JSON and the largest resident set in bytes.
fn measured(folder: &Path, cache: Option<&Path>, arguments: &str) -> (Value, u64) {
    let path = folder.to_str().unwrap();
    let arguments: Vec<String> =
        arguments.split_whitespace().map(|argument| argument.replace("FOLDER", path)).collect();
    let mut command = Command::new(std::env::current_exe().unwrap());
    let known = tightfit();
    let known = known.get_envs().find(|(name, _)| *name == "XDG_CACHE_HOME").unwrap().1.unwrap();
    command.env("XDG_CACHE_HOME", cache.map_or(known, |cache| cache.as_os_str()));
    command.env(ARGUMENTS, arguments.join("\n")).env(FOLDER, folder);
    let output =
        command.args(["--exact", "process::inner", "--test-threads", "1"]).output().unwrap();
    let told = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", told(&output.stdout), told(&output.stderr));
    let lines = std::fs::read_to_string(folder.join("stdout")).unwrap();
    let peak = std::fs::read_to_string(folder.join("peak")).unwrap().parse().unwrap();
    (serde_json::from_str(lines.lines().last().unwrap()).unwrap(), peak)
}

#[track_caller]
fn stays_within(folder: &Path, cache: Option<&Path>, arguments: &str) {
    let (result, peak) = measured(folder, cache, &format!("train {arguments} --threads 2 --json"));
    let number = |key: &str| result[key].as_u64().unwrap_or_else(|| panic!("{key}: {result}"));
    let budget = number("budget_bytes");
    println!(
        "{arguments}: {peak} of {budget} bytes; base {}, {} of it used",
        number("base_bytes"),
        (peak + number("base_bytes")).saturating_sub(budget)
    );
    assert!(peak <= budget, "{arguments}: {peak} bytes are more than the budget of {budget}");
    // The process takes at least what base and packing leave of the budget, within 6 MiB.
    let room = budget - number("base_bytes") - number("packing_bytes");
    assert!(peak + (6 << 20) > room, "{arguments}: {peak} bytes");
    assert!(number("slab_bytes") <= room, "{arguments}: {result}");
}

#[test]
fn every_step_stays_within_every_budget() {
    let folder = folder();
    for step in STEPS {
        for budget in ["100%", "90%", "min"] {
            let arguments = format!("corpus/steps/{step} --budget {budget} --steps 3 --roofline");
            stays_within(folder.path(), None, &arguments);
        }
    }
}

#[test]
fn nothing_that_is_written_or_read_exceeds_the_budget() {
    let folder = folder();
    for arguments in [
        "--save FOLDER/w",
        "--resume FOLDER/w --save FOLDER/w",
        "--trace FOLDER/t.json --output FOLDER/p.json",
        "--profile",
        "--dump FOLDER/d",
    ] {
        let arguments =
            format!("corpus/steps/gpt-nano --budget min --steps 3 --roofline {arguments}");
        stays_within(folder.path(), None, &arguments);
    }
}

/// Neither processor nor step is known: both are measured first, in processes of their own.
#[test]
fn measuring_stays_within_the_budget() {
    let (folder, cache) = (folder(), self::folder());
    for arguments in ["--budget min --steps 3", "--budget 95% --steps 1"] {
        let arguments = format!("corpus/steps/gpt-nano {arguments}");
        stays_within(folder.path(), Some(cache.path()), &arguments);
    }
}

/// One step's base and packing are the same to every verb, so what `plan` promises is what `train`
/// takes, and what `check` checks a plan against.
#[test]
fn plan_check_and_train_speak_of_the_same_base() {
    let folder = folder();
    for step in STEPS {
        let folder = folder.path();
        let of = |arguments: &str| {
            run(folder, &format!("{arguments} --threads 2 --json")).done().result()
        };
        let planned = of(&format!("plan corpus/steps/{step} --budget 90% -o FOLDER/plan"));
        let checked = of(&format!("check corpus/steps/{step} FOLDER/plan --budget 90%"));
        let trained = of(&format!("train corpus/steps/{step} --budget 90% --steps 1"));
        for key in ["budget_bytes", "base_bytes", "packing_bytes", "reserve_bytes"] {
            assert!(planned[key].as_u64() > Some(0), "{step} {key}");
            assert_eq!(planned[key], checked[key], "{step} {key}");
            assert_eq!(planned[key], trained[key], "{step} {key}");
        }
    }
}

/// A control group of this test, removed at the end.
struct Group(PathBuf);

impl Group {
    /// One that allows `bytes`, of either version; `None` if none can be made.
    fn of(bytes: u64) -> Option<Group> {
        let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let own = |found: &dyn Fn(&str) -> bool| {
            let mut lines = groups.lines().map(|line| line.splitn(3, ':').collect::<Vec<_>>());
            lines
                .find(|fields| fields.len() == 3 && found(fields[1]))
                .map(|fields| fields[2].trim_start_matches('/').to_string())
        };
        let first = own(&|controllers| controllers.split(',').any(|name| name == "memory"))
            .map(|group| ("/sys/fs/cgroup/memory", group, "memory.limit_in_bytes"));
        let second = own(&|controllers| controllers.is_empty())
            .map(|group| ("/sys/fs/cgroup", group, "memory.max"));
        [first, second].into_iter().flatten().find_map(|(root, group, limit)| {
            let name = format!("tightfit-test-{}-{bytes}", std::process::id());
            // In a container the path may be the host's; the hierarchy's root is then its own.
            let parents = [Path::new(root).join(group), PathBuf::from(root)];
            parents.into_iter().find_map(|parent| {
                let group = Group(parent.join(&name));
                std::fs::create_dir(&group.0).ok()?;
                std::fs::write(group.0.join(limit), bytes.to_string()).ok()?;
                Some(group)
            })
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        std::fs::remove_dir(&self.0).ok();
    }
}

/// Not a test by itself: a process that takes this many bytes.
#[test]
fn large() {
    let Ok(bytes) = std::env::var(BYTES) else { return };
    let held = vec![1_u8; bytes.parse().unwrap()];
    assert_eq!(std::hint::black_box(&held).last(), Some(&1));
}

/// `cargo run` waits for compilers, and then replaces itself by the program, which inherits what
/// the system counted of them.
#[test]
fn children_of_what_ran_before_under_the_same_id_do_not_count() {
    const LARGE: u64 = 900 << 20;
    let folder = folder();
    // Neither processor nor step is known at first: the program starts two processes of its own.
    for _ in 0..2 {
        let before = format!("{BYTES}={LARGE} \"$0\" --exact process::large");
        let peaks = peaks_of_a_run_after(&before, folder.path()).unwrap();
        assert!(peaks.iter().all(|&peak| peak < LARGE / 2), "{peaks:?}");
    }
}

/// As on many clusters. Mappings are then at other addresses.
#[test]
fn stacks_without_a_limit_change_nothing() {
    if peaks_of_a_run_after("ulimit -s unlimited", folder().path()).is_none() {
        eprintln!("skipped: the system's own limit of a stack cannot be lifted");
    }
}

/// Runs a shell command, in which `$0` is these tests, and then the program in its place. Checks
/// that what the program took is within its budget and returns it; `None` if the command fails.
fn peaks_of_a_run_after(before: &str, cache: &Path) -> Option<[u64; 2]> {
    const FAILED: i32 = 100;
    let script = format!(
        "{before} || exit {FAILED}; exec \"$1\" train corpus/steps/gpt-nano --budget 90% --steps 2 \
         --threads 2 --json"
    );
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).arg(std::env::current_exe().unwrap());
    shell.arg(env!("CARGO_BIN_EXE_tightfit"));
    shell.env("XDG_CACHE_HOME", cache).current_dir(corpus().parent().unwrap());
    let output = shell.output().unwrap();
    if output.status.code() == Some(FAILED) {
        return None;
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && !said.contains("more than its budget"), "{said}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let result: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    Some(["process_peak_bytes", "planning_peak_bytes"].map(|key| {
        let peak = result[key].as_u64().unwrap();
        assert!(peak > 0 && peak <= result["budget_bytes"].as_u64().unwrap(), "{result}");
        peak
    }))
}

/// Work rather than time, so that the second search finds what the first one found.
const WORK: &str = "--iterations 1000000";

#[test]
fn a_run_completes_in_a_group_that_allows_exactly_its_budget() {
    let folder = folder();
    for step in STEPS {
        let planned = run(
            folder.path(),
            &format!("plan corpus/steps/{step} --budget min --threads 2 {WORK} --json"),
        );
        let budget = planned.done().result()["budget_bytes"].as_u64().unwrap();
        let Some(group) = Group::of(budget) else {
            eprintln!("skipped: this system lets the test make no control group");
            return;
        };
        let script = format!(
            "echo $$ > {}/cgroup.procs && exec \"$0\" train corpus/steps/{step} \
             --budget {budget} --steps 3 --threads 2 --roofline {WORK} --json",
            group.0.display()
        );
        let mut command = Command::new("sh");
        let known = tightfit();
        command.envs(known.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.args(["-c", &script, env!("CARGO_BIN_EXE_tightfit")]);
        command.current_dir(corpus().parent().unwrap());
        let output = command.output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{step}: {:?} {told}", output.status);
    }
}
