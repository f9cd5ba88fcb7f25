//! The built program, run on a machine whose rates are given. Invariant: nothing is measured, so
//! every plan is the same on every computer; and a test writes into a folder of its own.
#![allow(dead_code)] // each test binary uses its part

#[cfg(target_os = "linux")]
pub mod slowed;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::Value;
use tempfile::{NamedTempFile, TempDir};
use tightfit::machine::Machine;

/// The planning graphs of the corpus.
pub const GRAPHS: [&str; 7] = [
    "bert_base_drop_b16_s512",
    "gpt2_medium_b4_s1024",
    "gpt2_small_b8_s512",
    "llama_1b_b2_s2048",
    "mobilenet_v3_large_b64",
    "resnet50_b32",
    "vit_b16_b32",
];

/// The same, the smallest first.
pub const BY_SIZE: [&str; 7] = [
    "resnet50_b32",
    "vit_b16_b32",
    "mobilenet_v3_large_b64",
    "gpt2_small_b8_s512",
    "bert_base_drop_b16_s512",
    "llama_1b_b2_s2048",
    "gpt2_medium_b4_s1024",
];

/// The result of running the program.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

impl Ran {
    /// Panics if it did not succeed.
    pub fn done(self) -> Ran {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self
    }

    /// Every line of standard output.
    pub fn lines(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The last line: the result of the run.
    pub fn result(&self) -> Value {
        self.lines().pop().unwrap()
    }

    /// The loss of each step, with all digits.
    pub fn losses(&self) -> Vec<String> {
        self.lines().iter().filter_map(|line| line.get("loss").map(Value::to_string)).collect()
    }
}

/// The exit code that goes with what a refusal claims: that no plan fits, or that none was found.
#[allow(dead_code)] // each test binary uses its part
pub fn code_of_refusal(stderr: &str) -> i32 {
    let claims = |claim| stderr.contains(claim);
    match (claims("no plan fits "), claims("no plan was found ")) {
        (true, false) => 3,
        (false, true) => 10,
        _ => panic!("no refusal: {stderr}"),
    }
}

/// The program; its cache holds machines of up to four threads. It ignores no signal, even if this
/// test is run by `nohup` or in the background.
pub fn tightfit() -> Command {
    static CACHE: OnceLock<PathBuf> = OnceLock::new();
    let cache = CACHE.get_or_init(|| {
        let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("machines");
        let folder = cache.join("tightfit");
        std::fs::create_dir_all(&folder).unwrap();
        for threads in 1..=4 {
            let name = format!("cpu-{}-{threads}.json", env!("CARGO_PKG_VERSION"));
            // Test binaries may run side by side, so the file appears at once.
            let mut file = NamedTempFile::new_in(&folder).unwrap();
            file.write_all(
                serde_json::to_string(&Machine::unmeasured_cpu(threads)).unwrap().as_bytes(),
            )
            .unwrap();
            file.persist(folder.join(name)).unwrap();
        }
        cache
    });
    let mut command = Command::new(env!("CARGO_BIN_EXE_tightfit"));
    command.env("XDG_CACHE_HOME", cache);
    heed_signals(&mut command);
    command
}

#[cfg(unix)]
fn heed_signals(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    // SAFETY: between fork and exec the child makes no call but this one, which is allowed there.
    unsafe {
        command.pre_exec(|| {
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::signal(signal, libc::SIG_DFL);
            }
            Ok(())
        });
    }
}

#[cfg(not(unix))]
fn heed_signals(_: &mut Command) {}

/// Runs the program with arguments separated by spaces; `FOLDER` stands for `folder`. No step is
/// measured.
pub fn run(folder: &Path, arguments: &str) -> Ran {
    let folder = folder.to_str().unwrap();
    let roofline = if ["train ", "plan "].iter().any(|verb| arguments.starts_with(verb)) {
        " --roofline"
    } else {
        ""
    };
    let arguments = format!("{arguments}{roofline}{}", work(arguments));
    let arguments = arguments.split_whitespace().map(|argument| argument.replace("FOLDER", folder));
    tightfit().current_dir(corpus().parent().unwrap()).args(arguments).output().unwrap().into()
}

/// In the quick tier, the search for the smallest budget is limited to work that takes a fraction
/// of the second that it takes by default.
fn work(arguments: &str) -> &'static str {
    let says = |option: &str| arguments.contains(option);
    let is_said = ["--iterations", "--deadline", "--planner", "--output"].into_iter().any(says);
    let searches = ["train ", "plan "].iter().any(|verb| arguments.starts_with(verb));
    if searches && says("--budget min") && !is_said {
        tightfit_testing::either(" --iterations 20000", "")
    } else {
        ""
    }
}

/// Trains with two threads and lines of JSON.
pub fn train(folder: &Path, arguments: &str) -> Ran {
    let threads = if arguments.contains("--threads") { "" } else { "--threads 2" };
    run(folder, &format!("train {arguments} {threads} --json"))
}

pub fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus").canonicalize().unwrap()
}

pub fn folder() -> TempDir {
    TempDir::new().unwrap()
}

/// Long lines in parts, each but the last with a backslash at its end, as in a Rust string literal.
/// Nothing else is changed, so two texts are the same if their parts are.
pub fn folded(text: &str) -> String {
    const WIDTH: usize = 80;
    let mut folded = String::new();
    for line in text.split_inclusive('\n') {
        let mut rest = line;
        while rest.trim_end_matches('\n').chars().count() > WIDTH {
            let start = rest.len() - rest.trim_start().len();
            let spaces = rest.char_indices().enumerate().filter(|&(_, (at, c))| {
                c == ' ' && at >= start && !rest[at + 1..].trim_end_matches('\n').is_empty()
            });
            let (near, far): (Vec<_>, Vec<_>) = spaces.partition(|&(column, _)| column < WIDTH - 1);
            let Some(&(_, (at, _))) = near.last().or(far.first()) else { break };
            folded += &rest[..=at];
            folded += "\\\n";
            rest = &rest[at + 1..];
        }
        folded += rest;
    }
    folded
}

/// Names of the files in a folder.
pub fn listing(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Tags of an XML text without comments, CDATA or entities beyond the five; panics if they do not
/// nest.
pub fn tags(text: &str) -> Vec<String> {
    let (mut open, mut all) = (Vec::new(), Vec::new());
    let mut rest = text.trim();
    assert!(rest.starts_with('<') && rest.ends_with('>'));
    while let Some(start) = rest.find('<') {
        let content = &rest[..start];
        for entity in content.split('&').skip(1) {
            assert!(
                ["amp;", "lt;", "gt;", "quot;", "apos;"]
                    .iter()
                    .any(|known| entity.starts_with(known)),
                "&{entity}"
            );
        }
        let end = start + rest[start..].find('>').unwrap();
        let tag = &rest[start + 1..end];
        assert_eq!(tag.matches('"').count() % 2, 0, "<{tag}>");
        let name = tag.trim_matches('/').split_whitespace().next().unwrap().to_string();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "</…> of something else");
        } else {
            if !tag.ends_with('/') {
                open.push(name.clone());
            }
            all.push(name);
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty(), "{open:?} not closed");
    all
}
