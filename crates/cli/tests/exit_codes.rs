//! Every exit code that `--help` lists, produced once. Invariant: what is documented is what the
//! program answers, and no code is listed that nothing produces.
//!
//! Tier: quick, since it takes less than a second.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Stdio;

use crate::program::{corpus, folder, run, tightfit};

const STEP: &str = "corpus/steps/mlp-digits";

/// Codes at the start of the lines below `Exit codes:`.
fn documented() -> Vec<i32> {
    let help = tightfit().arg("--help").output().unwrap().stdout;
    let help = String::from_utf8(help).unwrap();
    let (_, codes) = help.split_once("Exit codes:").unwrap();
    codes.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect()
}

/// A step like mlp-digits with an unknown operator, as `FOLDER/step`.
fn unknown_operator(folder: &Path) {
    let from = corpus().join("steps/mlp-digits");
    let to = folder.join("step");
    std::fs::create_dir(&to).unwrap();
    for file in ["step.json", "eval.json.gz", "train.json.gz"] {
        std::fs::copy(from.join(file), to.join(file)).unwrap();
    }
    let packed = std::fs::read(from.join("train.json.gz")).unwrap();
    let mut graph = String::new();
    flate2::read::GzDecoder::new(&packed[..]).read_to_string(&mut graph).unwrap();
    let graph = graph.replace("aten.relu.default", "aten.erf.default");
    std::fs::write(to.join("train.json.gz"), graph).unwrap();
}

/// The exit code of an endless run after a signal.
fn asked_to_end(folder: &Path, signal: libc::c_int) -> Option<i32> {
    let options = "--budget 100% --threads 2 --roofline --eval-batches 0 --steps 4000000000 --json";
    let mut command = tightfit();
    command.current_dir(corpus().parent().unwrap()).args(["train", STEP]).args(options.split(' '));
    command.arg("--save").arg(folder.join("asked")).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut String::new()).unwrap();
    // SAFETY: the process is a child that has not been waited for, so its id is its own.
    unsafe { libc::kill(child.id().try_into().unwrap(), signal) };
    output.read_to_end(&mut Vec::new()).unwrap();
    child.wait().unwrap().code()
}

#[test]
fn every_code_that_is_documented_is_produced() {
    let folder = folder();
    let folder = folder.path();
    let train = format!("train {STEP} --budget 100% --threads 2 --steps 3 --eval-batches 0");
    run(folder, &format!("{train} --save FOLDER/weights")).done();
    unknown_operator(folder);
    std::fs::write(folder.join("table.csv"), "1,2,3\n").unwrap();
    std::fs::write(folder.join("damaged"), "{").unwrap();
    run(folder, &format!("plan {STEP} --budget 100% --threads 2 -o FOLDER/plan")).done();
    let plan = std::fs::read_to_string(folder.join("plan")).unwrap();
    let mut plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    plan["instructions"].as_array_mut().unwrap().remove(0);
    std::fs::write(folder.join("plan"), plan.to_string()).unwrap();
    let published = "corpus/synthetic/unet2_1.json.gz";
    let answers = [
        (0, "--version".to_string()),
        (2, format!("{train} --resume FOLDER/weights --seed 2")),
        (3, format!("plan {published} --budget 1KiB")),
        (4, "analyze FOLDER/nowhere".to_string()),
        (5, "analyze FOLDER/damaged".to_string()),
        (6, train.replace(STEP, "FOLDER/step") + " --data corpus/data/digits.csv"),
        (7, format!("{train} --data FOLDER/table.csv")),
        (8, format!("plan {STEP} --budget 0")),
        (9, format!("check {STEP} FOLDER/plan --budget 1GiB --threads 2")),
        (10, format!("plan {published} --budget 80% --planner capuchin --variant published")),
        (11, format!("{train} --lr 1e30 --steps 40").replace("--steps 3 ", "")),
        (12, format!("{train} --stages 2 --peer-deadline 1us")),
    ];
    // Only a defect ends with 1, and none is known.
    let mut produced = BTreeMap::from([(1, String::new())]);
    for (code, arguments) in answers {
        let ran = run(folder, &arguments);
        assert_eq!(ran.code, Some(code), "{arguments}: {}", ran.stderr);
        produced.insert(code, arguments);
    }
    for (code, signal) in [(130, libc::SIGINT), (143, libc::SIGTERM), (129, libc::SIGHUP)] {
        assert_eq!(asked_to_end(folder, signal), Some(code));
        produced.insert(code, String::new());
    }
    let mut documented = documented();
    documented.sort();
    assert_eq!(documented, produced.into_keys().collect::<Vec<_>>());
}
