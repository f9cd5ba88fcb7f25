//! Measuring a step's calls. Invariant: what is measured once is not measured again, a damaged
//! cache is measured again, a trial stays within the budget that it is given, and no measurement
//! changes a loss. No test checks a time.
//!
//! Tier: quick, since it takes 18 s.

use std::path::{Path, PathBuf};

use tightfit::machine::Machine;
use tightfit::profile::{CallSeconds, Profile};
use tightfit_engine::{Step, VERSION};

use crate::program::{Ran, corpus, folder, tightfit};

const STEP: &str = "corpus/steps/mlp-digits";

/// A cache of its own that holds only the machine's rates.
fn cache(folder: &Path) -> PathBuf {
    let cache = folder.join("tightfit");
    std::fs::create_dir_all(&cache).unwrap();
    let machine = serde_json::to_string(&Machine::unmeasured_cpu(2)).unwrap();
    std::fs::write(cache.join(format!("cpu-{VERSION}-2.json")), machine).unwrap();
    cache.join(format!("calls-{VERSION}-2.json"))
}

fn run(cache: &Path, arguments: &str) -> Ran {
    let mut command = tightfit();
    command.env("XDG_CACHE_HOME", cache).current_dir(corpus().parent().unwrap());
    command.args(arguments.split_whitespace()).args(["--threads", "2"]).output().unwrap().into()
}

fn table(path: &Path) -> CallSeconds {
    CallSeconds::read(&std::fs::read(path).unwrap(), VERSION, 2).unwrap()
}

fn asked(ran: &Ran) -> bool {
    ran.stderr.contains("measuring the calls")
}

/// Ctrl-C in a terminal goes to the program and to the trial alike.
#[cfg(unix)]
#[test]
fn an_interrupted_trial_is_not_tried_again() {
    use std::io::{BufRead, BufReader, Read};
    use std::os::unix::process::CommandExt;
    use std::process::Stdio;

    // A terminal's signal reaches what the program waits for, too; that of a batch system does not.
    for group in [true, false] {
        let folder = folder();
        let calls = cache(folder.path());
        let mut command = tightfit();
        command.env("XDG_CACHE_HOME", folder.path()).current_dir(corpus().parent().unwrap());
        let arguments = format!("train {STEP} --budget 90% --threads 2 --steps 4000000000");
        command.args(arguments.split(' ')).process_group(0);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut says = String::new();
        while !says.contains("measuring the calls") {
            assert_ne!(errors.read_line(&mut says).unwrap(), 0, "{says}");
        }
        let id = libc::pid_t::try_from(child.id()).unwrap();
        let children = format!("/proc/{id}/task/{id}/children");
        while std::fs::read_to_string(&children).unwrap().is_empty() {
            std::thread::yield_now();
        }
        let to = if group { -id } else { id };
        // SAFETY: the child, or its group, has not been waited for.
        assert_eq!(unsafe { libc::kill(to, libc::SIGINT) }, 0);
        errors.read_to_string(&mut says).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(130), "{says}");
        assert!(!calls.exists(), "{says}");
    }
}

/// A parent that does not wait for its children ignores SIGCHLD, and what it starts inherits that.
#[cfg(unix)]
#[test]
fn a_step_is_measured_where_nobody_waited_for_children() {
    use std::os::unix::process::CommandExt;

    let folder = folder();
    cache(folder.path());
    let mut command = tightfit();
    // SAFETY: between fork and exec the child makes no call but this one, which is allowed there.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGCHLD, libc::SIG_IGN);
            Ok(())
        });
    }
    command.env("XDG_CACHE_HOME", folder.path()).current_dir(corpus().parent().unwrap());
    let arguments = format!("plan {STEP} --budget 90% --threads 2");
    let ran: Ran = command.args(arguments.split(' ')).output().unwrap().into();
    let ran = ran.done();
    assert!(asked(&ran) && !ran.stderr.contains("could not be tried"), "{}", ran.stderr);
}

#[test]
fn a_step_is_measured_once() {
    let folder = folder();
    let calls = cache(folder.path());
    let first = run(folder.path(), &format!("plan {STEP} --budget 90% --json")).done();
    assert!(asked(&first));
    let step = Step::open(&corpus().join("steps/mlp-digits")).unwrap();
    assert!(table(&calls).covers(&step.training));
    for verb in
        [format!("plan {STEP} --budget min"), format!("train {STEP} --budget 80% --steps 1")]
    {
        assert!(!asked(&run(folder.path(), &verb).done()), "{verb}");
    }
    // Predictions are those of the table.
    let table = table(&calls);
    let predicted = Profile::measured(&step.training, &Machine::unmeasured_cpu(2), &table)
        .total(&step.training.compute_nodes());
    let planned = run(folder.path(), &format!("plan {STEP} --budget 100% --json")).done().result();
    let seconds = planned["unplanned_step_seconds"].as_f64().unwrap();
    assert!((seconds / predicted.0 - 1.0).abs() < 1e-9, "{seconds} instead of {}", predicted.0);
}

#[test]
fn a_run_that_is_long_enough_teaches_the_next_prediction() {
    let folder = folder();
    let calls = cache(folder.path());
    for (steps, learns) in [(2, false), (6, true)] {
        run(folder.path(), &format!("calibrate {STEP}")).done();
        let before = table(&calls);
        let result =
            run(folder.path(), &format!("train {STEP} --budget 100% --steps {steps} --json"))
                .done()
                .result();
        assert_eq!(table(&calls) != before, learns, "{steps} steps");
        assert!(result["step_ratio"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn a_damaged_cache_is_measured_anew() {
    let folder = folder();
    let calls = cache(folder.path());
    std::fs::write(&calls, "{\"format\":").unwrap();
    let ran = run(folder.path(), &format!("train {STEP} --budget 100% --steps 1 --json")).done();
    assert!(ran.stderr.contains("is not used: it cannot be read") && asked(&ran), "{}", ran.stderr);
    assert!(!table(&calls).is_empty());
}

#[test]
fn measuring_does_not_change_a_loss() {
    let folder = folder();
    cache(folder.path());
    let train = |more: &str| {
        run(
            folder.path(),
            &format!("train {STEP} --budget 70% --steps 5 --eval-batches 0 --json {more}"),
        )
        .done()
    };
    let predicted = train("--roofline");
    assert!(!asked(&predicted));
    assert_eq!(train("").losses(), predicted.losses());
}

#[test]
fn a_trial_keeps_to_its_budget() {
    let folder = folder();
    let calls = cache(folder.path());
    let smallest = run(folder.path(), &format!("calibrate {STEP} --budget min")).done();
    assert!(smallest.stdout.contains("kinds of calls"), "{}", smallest.stdout);
    std::fs::remove_file(&calls).unwrap();
    // Neither the trial nor the plan that started it runs in less than it needs.
    let refused = run(folder.path(), &format!("calibrate {STEP} --budget 30%"));
    assert_eq!(refused.code, Some(crate::program::code_of_refusal(&refused.stderr)));
    let refused = run(folder.path(), &format!("plan {STEP} --budget 30%"));
    assert_eq!(refused.code, Some(crate::program::code_of_refusal(&refused.stderr)));
    assert!(!calls.exists());
}
