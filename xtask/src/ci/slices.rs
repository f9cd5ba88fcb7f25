//! The full tier in slices, so that each landing runs one and several in a row run all. Invariant:
//! every test file is in exactly one slice; a test of this file looks.

use anyhow::{Context, Result, bail, ensure};

use crate::command::{Log, line};
use crate::workspace::Workspace;

use super::preparation::Preparation;
use super::timings::Timings;
use super::{PROFILE, Run, Tier, mpi, python, rust};

/// Tests that run together.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// Those of a package whose names contain one of these; all of them if there is none.
    Rust(&'static str, &'static [&'static str]),
    /// Those of the jobs of MPI.
    Mpi,
    /// Those in these files of `python/tests`, without `test_` and `.py`.
    Python(&'static [&'static str]),
}

use Part::{Mpi, Python, Rust};

const SLICES: [&[Part]; 8] = [
    &[Rust("tightfit", &["plan::"])],
    &[
        Rust(
            "tightfit",
            &[
                "analysis::",
                "check::",
                "graph::",
                "modules::",
                "operator::",
                "pipeline::",
                "profile::",
                "schedule::",
                "sharded::",
            ],
        ),
        Rust("tightfit-report", &[]),
        Rust("tightfit-replay", &[]),
        Rust("xtask", &[]),
        Rust("tightfit-fuzz", &[]),
    ],
    &[Rust("tightfit-engine", &[]), Mpi],
    &[Rust(
        "tightfit-cli",
        &["pages::", "stages::", "training::", "tiers::", "placement::", "widths::"],
    )],
    &[Rust(
        "tightfit-cli",
        &[
            "analyze::",
            "bounded_reading::",
            "capuchin::",
            "completions::",
            "endings::",
            "exit_codes::",
            "failures::",
            "frontier::",
            "interrupt::",
            "measuring::",
            "module_planners::",
            "modules::",
            "paths::",
            "pipeline::",
            "plan_and_check::",
            "process::",
            "report::",
            "rewritten::",
            "shards::",
            "shown_names::",
            "small_steps::",
            "written_files::",
        ],
    )],
    &[Python(&["compile_models"])],
    &[Python(&[
        "addresses",
        "compile",
        "distributed",
        "fused",
        "inplace",
        "loops",
        "measured",
        "memoryless",
        "offload",
        "step",
    ])],
    &[Python(&[
        "admitted",
        "batches",
        "capture",
        "cuda",
        "cuda_operators",
        "engine",
        "executable",
        "export",
        "goldens",
        "graph_module",
        "graphs",
        "load",
        "measure",
        "module_info",
        "native",
        "notebook",
        "optimizers",
        "originals",
        "pages_pytorch",
        "reference",
        "reference_page",
        "refusals",
        "report",
        "rewritten",
        "transformers",
    ])],
];

/// The number of the slice that is meant, from 1: `next` is another one with each commit, or, where
/// the commits are not all known, with each day.
pub fn number(workspace: &Workspace, which: &str) -> Result<usize> {
    let all = SLICES.len();
    if which == "next" {
        let count = if git(workspace, &["rev-parse", "--is-shallow-repository"])? == "true" {
            const DAY: u64 = 24 * 60 * 60;
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
            now.as_secs() / DAY
        } else {
            git(workspace, &["rev-list", "--count", "HEAD"])?.parse().context("commits")?
        };
        return Ok((count % all as u64) as usize + 1);
    }
    match which.parse() {
        Ok(number) if (1..=all).contains(&number) => Ok(number),
        _ => bail!("there is no slice `{which}`; say a number from 1 to {all}, or `next`"),
    }
}

fn git(workspace: &Workspace, arguments: &[&str]) -> Result<String> {
    let output = workspace.command("git").args(arguments).output().context("git")?;
    ensure!(output.status.success(), "git {}: {}", arguments.join(" "), output.status);
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
}

/// Runs all parts of a slice, and says of each test that failed how to run it alone.
pub fn slice(workspace: Workspace, number: usize, log: &mut Log) -> Result<()> {
    println!("slice {number} of {} of the full tier", SLICES.len());
    let parts = SLICES[number - 1];
    let needs = |step: &str| {
        parts.iter().any(|part| match part {
            Rust(..) => false,
            Mpi => step == "mpi",
            Python(_) => step == "python" || step == "browser",
        })
    };
    let preparation = Preparation::begin(&workspace, needs);
    let timings = Timings::none(&workspace);
    let mut run = Run { workspace, tier: Tier::Full, preparation, timings };
    let mut result = Ok(());
    for part in parts {
        // All parts run, so that a red slice names every test.
        let name = format!("slice {number}");
        result = result.and(log.step(&name, |log| part.run(&mut run, log)));
    }
    run.timings.show_slowest();
    name_the_failed(&run);
    result
}

impl Part {
    fn run(self, run: &mut Run, log: &mut Log) -> Result<()> {
        match self {
            Rust(package, filters) => {
                let of = ["--package", package];
                run.tests(rust::tests(&run.workspace, Tier::Full, &of, filters), log)
            }
            Mpi => mpi::mpi(run, log),
            Python(files) => {
                run.preparation.finish(log)?;
                let program = ["build", PROFILE, "--package", "tightfit-cli"];
                log.run(run.workspace.cargo(&program))?;
                python::install(&run.workspace, log)?;
                let files: Vec<String> =
                    files.iter().map(|file| format!("python/tests/test_{file}.py")).collect();
                let files: Vec<&str> = files.iter().map(String::as_str).collect();
                run.tests(python::tests(&run.workspace, Tier::Full, &files), log)
            }
        }
    }
}

fn name_the_failed(run: &Run) {
    let (variable, value) = Tier::Full.variable();
    for test in run.timings.failed_in_rust() {
        // `package::binary`, or the package alone for its unit tests.
        let (package, binary) = test.group.split_once("::").unwrap_or((&test.group, ""));
        let binary = if binary.is_empty() { "--lib".into() } else { format!("--test {binary}") };
        println!(
            "FAILED {}: {variable}={value} cargo test {PROFILE} --package {package} {binary} -- \
             --include-ignored --exact {}",
            test.name, test.name
        );
    }
    for test in run.timings.failed_in_python() {
        let file = test.group.rsplit('.').next().unwrap_or_default();
        let path = format!("python/tests/{file}.py::{}", test.name);
        let command = python::tests(&run.workspace, Tier::Full, &[&path]);
        println!("FAILED {}: {variable}={value} {}", test.name, line(&command));
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

    /// The filters for a package, each once.
    fn filters(of: &str) -> BTreeSet<String> {
        let mut seen = BTreeSet::new();
        for part in parts() {
            if let Rust(package, filters) = part
                && package == of
            {
                for filter in filters {
                    assert!(seen.insert(filter.trim_end_matches("::").to_string()), "{filter}");
                }
            }
        }
        seen
    }

    #[test]
    fn every_module_of_tests_in_rust_is_in_one_slice() {
        for (package, folder, shared) in
            [("tightfit", "planner", "fixtures"), ("tightfit-cli", "cli", "program")]
        {
            let file = root().join("crates").join(folder).join("tests/main.rs");
            let text = std::fs::read_to_string(file).unwrap();
            let modules = text.lines().filter_map(|line| line.strip_prefix("mod "));
            let modules = modules.map(|line| line.trim_end_matches([';', ' ', '{']).to_string());
            let modules: BTreeSet<String> = modules.filter(|module| module != shared).collect();
            assert_eq!(modules, filters(package), "{package}");
        }
    }

    #[test]
    fn every_package_with_tests_is_in_a_slice() {
        let packages: BTreeSet<&str> = parts()
            .filter_map(|part| if let Rust(package, _) = part { Some(package) } else { None })
            .collect();
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
        for part in parts() {
            if let Python(files) = part {
                for file in files {
                    assert!(seen.insert(file.to_string()), "{file}");
                }
            }
        }
        let entries = std::fs::read_dir(root().join("python/tests")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let files: BTreeSet<String> = names
            .filter_map(|name| Some(name.strip_prefix("test_")?.strip_suffix(".py")?.to_string()))
            .collect();
        assert_eq!(files, seen);
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
