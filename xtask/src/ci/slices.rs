//! The full tier in slices, so that each landing runs one and several in a row run all. Invariant:
//! every test is in exactly one slice; the tests of this file check that.

use std::iter;
use std::time::SystemTime;

use anyhow::{Result, bail};

use crate::command::{Log, line_with_environment};
use crate::workspace::Workspace;

use super::rust::Names;
use super::{PROFILE, Run, Tier, mpi, python, rust};

/// Tests that run together.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// Those of a package that have these names.
    Rust(&'static str, Names),
    /// Those in documentation.
    Documented,
    /// Those of the jobs of MPI.
    Mpi,
    /// Those in these files of `python/tests`, without `test_` and `.py`.
    Python(&'static [&'static str]),
    /// Those in all other files of that folder.
    OtherPython,
}

use Names::{All, With, Without};
use Part::{Documented, Mpi, OtherPython, Python, Rust};

const PLANS: &[&str] = &["plan::"];
const LONG_RUNS: &[&str] =
    &["pages::", "stages::", "training::", "tiers::", "placement::", "widths::"];

const SLICES: [&[Part]; 8] = [
    &[Rust("tightfit", With(PLANS))],
    &[
        Rust("tightfit", Without(PLANS)),
        Rust("tightfit-report", All),
        Rust("tightfit-replay", All),
        Rust("tightfit-bench", All),
        Rust("xtask", All),
        Rust("tightfit-fuzz", All),
        Documented,
    ],
    &[Rust("tightfit-engine", All), Mpi],
    &[Rust("tightfit-cli", With(LONG_RUNS))],
    &[Rust("tightfit-cli", Without(LONG_RUNS))],
    &[Python(&["compile_models"])],
    &[Python(&[
        "addresses",
        "compile",
        "distributed",
        "fused",
        "inplace",
        "loops",
        "losses",
        "measured",
        "memoryless",
        "offload",
        "step",
    ])],
    &[OtherPython],
];

const FOLDER_IN_PYTHON: &str = "python/tests";

fn path_of(file: &str) -> String {
    format!("{FOLDER_IN_PYTHON}/test_{file}.py")
}

/// The files of tests in Python that a slice names.
fn named_in_python() -> impl Iterator<Item = &'static str> {
    let files = SLICES.iter().flat_map(|parts| parts.iter()).filter_map(|part| match part {
        Python(files) => Some(files.iter().copied()),
        _ => None,
    });
    files.flatten()
}

/// The number of the requested slice, from 1: `next` changes with each commit, or, if the history
/// is not complete, with each day.
pub fn number(workspace: &Workspace, which: &str) -> Result<usize> {
    let all = SLICES.len();
    if which == "next" {
        let is_whole =
            git(workspace, &["rev-parse", "--is-shallow-repository"]).as_deref() == Some("false");
        // A merge counts once, however many commits it brings.
        let count = git(workspace, &["rev-list", "--count", "--first-parent", "HEAD"]);
        let commits = count.filter(|_| is_whole).and_then(|count| count.parse().ok());
        let count = commits.unwrap_or_else(days);
        return Ok((count % all as u64) as usize + 1);
    }
    match which.parse() {
        Ok(number) if (1..=all).contains(&number) => Ok(number),
        _ => bail!("there is no slice `{which}`; say a number from 1 to {all}, or `next`"),
    }
}

/// Days since 1970.
fn days() -> u64 {
    const DAY: u64 = 24 * 60 * 60;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs() / DAY)
}

/// The output of git; `None` if it fails, such as outside a repository.
fn git(workspace: &Workspace, arguments: &[&str]) -> Option<String> {
    let output = workspace.command("git").args(arguments).output().ok()?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_string();
    output.status.success().then_some(said)
}

/// Runs all parts of a slice, and says of each test that failed how to run it alone.
pub fn slice(workspace: Workspace, number: usize, log: &mut Log) -> Result<()> {
    log.say(&format!("slice {number} of {} of the full tier", SLICES.len()));
    let parts = SLICES[number - 1];
    let needs = |step: &str| {
        parts.iter().any(|part| match part {
            Rust(..) | Documented => false,
            Mpi => step == "mpi",
            Python(_) | OtherPython => step == "python" || step == "browser",
        })
    };
    let mut run = Run::begin(workspace, Tier::Full, needs);
    let mut result = Ok(());
    for part in parts {
        // All parts run, so that a red slice names every test.
        let name = format!("slice {number}");
        result = result.and(log.step(&name, |log| part.run(&mut run, log)));
    }
    run.timings.show_slowest(log);
    name_the_failed(&run, log);
    result
}

impl Part {
    fn run(self, run: &mut Run, log: &mut Log) -> Result<()> {
        match self {
            Rust(package, names) => {
                let of = ["--package", package];
                run.tests(rust::tests(&run.workspace, Tier::Full, &of, names), log)
            }
            Documented => rust::documented(run, log),
            Mpi => mpi::mpi(run, log),
            Python(files) => in_python(run, files.iter().map(|file| path_of(file)).collect(), log),
            OtherPython => {
                let ignored = named_in_python().map(|file| format!("--ignore={}", path_of(file)));
                let all = iter::once(FOLDER_IN_PYTHON.to_string());
                in_python(run, all.chain(ignored).collect(), log)
            }
        }
    }
}

/// Runs the tests that these arguments of pytest name.
fn in_python(run: &mut Run, tests: Vec<String>, log: &mut Log) -> Result<()> {
    run.preparation.finish(log)?;
    python::program(run, log)?;
    python::install(run, log)?;
    let tests: Vec<&str> = tests.iter().map(String::as_str).collect();
    run.tests(python::tests(run, &tests), log)
}

fn name_the_failed(run: &Run, log: &mut Log) {
    let (variable, value) = Tier::Full.variable();
    for test in run.timings.failed_in_rust() {
        // `package::binary`, or the package alone for its unit tests.
        let (package, binary) = test.group.split_once("::").unwrap_or((&test.group, ""));
        let (of, binary) = match (binary, binary.strip_prefix("bin/")) {
            ("mpi", _) => (mpi::TESTED.join(" "), "--test mpi".to_string()),
            ("", _) => (format!("--package {package}"), "--lib".to_string()),
            (_, Some(program)) => (format!("--package {package}"), format!("--bin {program}")),
            (name, None) => (format!("--package {package}"), format!("--test {name}")),
        };
        log.say(&format!(
            "FAILED {}: {variable}={value} cargo test {PROFILE} {of} {binary} -- \
             --include-ignored --exact {}",
            test.name, test.name
        ));
    }
    for test in run.timings.failed_in_python() {
        let file = test.group.rsplit('.').next().unwrap_or_default();
        // xdist appends the group of a test to its name.
        let name = test.name.split_once(&format!("@{file}")).map_or(&*test.name, |(name, _)| name);
        let path = format!("python/tests/{file}.py::{name}");
        let command = python::tests(run, &[&path]);
        log.say(&format!("FAILED {name}: {}", line_with_environment(&command)));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn root() -> std::path::PathBuf {
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
    }

    fn parts() -> impl Iterator<Item = Part> {
        SLICES.iter().flat_map(|parts| parts.iter().copied())
    }

    fn packages() -> BTreeSet<&'static str> {
        parts()
            .filter_map(|part| if let Rust(package, _) = part { Some(package) } else { None })
            .collect()
    }

    #[test]
    fn what_one_slice_leaves_out_of_a_package_others_run() {
        let of = |package: &str| -> Vec<Names> {
            parts()
                .filter_map(|part| match part {
                    Rust(of, names) if of == package => Some(names),
                    _ => None,
                })
                .collect()
        };
        for package in packages() {
            let (mut run, mut left_out) = (Vec::<&str>::new(), None);
            for names in of(package) {
                match names {
                    All => assert_eq!(of(package).len(), 1, "{package}"),
                    With(names) => run.extend(names),
                    Without(names) => assert!(left_out.replace(names).is_none(), "{package}"),
                }
            }
            assert_eq!(run, left_out.unwrap_or_default(), "{package}");
        }
    }

    #[test]
    fn every_package_with_tests_is_in_a_slice() {
        let packages = packages();
        let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
        let members = manifest.split("members = [").nth(1).unwrap().split(']').next().unwrap();
        for member in members.split(',').map(|member| member.trim().trim_matches('"')) {
            let manifest = root().join(member).join("Cargo.toml");
            let Ok(text) = std::fs::read_to_string(manifest) else { continue };
            let name = text.split("name = \"").nth(1).unwrap().split('"').next().unwrap();
            // These two have no tests of their own.
            let has_tests = !text.contains("\ntest = false");
            assert_eq!(has_tests, packages.contains(name), "{name}");
        }
    }

    #[test]
    fn every_file_of_tests_in_python_is_in_one_slice() {
        let mut seen = BTreeSet::new();
        for file in named_in_python() {
            assert!(seen.insert(file), "{file} is in two slices");
            assert!(root().join(path_of(file)).is_file(), "there is no {}", path_of(file));
        }
        let others = parts().filter(|part| matches!(part, OtherPython)).count();
        assert_eq!(others, 1, "slices of the files that none names");
    }

    #[test]
    fn slices_have_numbers_from_one() {
        let workspace = Workspace::at(&root()).unwrap();
        assert_eq!(number(&workspace, "1").unwrap(), 1);
        assert!(number(&workspace, "0").is_err() && number(&workspace, "x").is_err());
        let next = number(&workspace, "next").unwrap();
        assert!((1..=SLICES.len()).contains(&next));
    }
}
