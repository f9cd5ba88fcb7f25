//! How long each test took, from the reports that both halves write. Invariant: a report that
//! cannot be read is no failure of the tests; it lists nothing.

use std::path::PathBuf;

use crate::command::Log;
use crate::workspace::Workspace;

/// How many of the slowest tests are printed.
const SHOWN: usize = 10;

/// A test, as a report has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Test {
    /// The binary of Rust, or the file of Python as a module's path.
    pub group: String,
    pub name: String,
    pub seconds: f64,
    pub failed: bool,
}

/// The report of the tests in Rust. Only cargo-nextest writes it, always there, whatever the target
/// folder.
pub fn rust(workspace: &Workspace) -> PathBuf {
    workspace.root.join("target/nextest/ci/junit.xml")
}

/// The report of the tests in Python.
pub fn python(workspace: &Workspace) -> PathBuf {
    workspace.target.join("ci/pytest.xml")
}

/// The tests that ran so far.
#[derive(Default)]
pub struct Timings {
    rust: Vec<Test>,
    python: Vec<Test>,
}

impl Timings {
    /// None yet; the reports of earlier runs are removed.
    pub fn none(workspace: &Workspace) -> Timings {
        let mut timings = Timings::default();
        timings.collect(workspace);
        Timings::default()
    }

    /// Takes over what was reported since it was last called.
    pub fn collect(&mut self, workspace: &Workspace) {
        self.rust.extend(take(rust(workspace)));
        self.python.extend(take(python(workspace)));
    }

    /// Prints the slowest tests of each half that ran.
    pub fn show_slowest(&self, log: &mut Log) {
        for (half, tests) in [("Rust", &self.rust), ("Python", &self.python)] {
            if tests.is_empty() {
                continue;
            }
            let all: f64 = tests.iter().map(|test| test.seconds).sum();
            log.say(&format!("== slowest of {} tests of {half}, {all:.0} s together", tests.len()));
            let mut tests: Vec<&Test> = tests.iter().collect();
            tests.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
            for Test { group, name, seconds, .. } in tests.into_iter().take(SHOWN) {
                log.say(&format!("{seconds:>8.1} s  {group} {name}"));
            }
        }
    }

    /// Those in Rust that failed.
    pub fn failed_in_rust(&self) -> impl Iterator<Item = &Test> {
        self.rust.iter().filter(|test| test.failed)
    }

    /// Those in Python that failed.
    pub fn failed_in_python(&self) -> impl Iterator<Item = &Test> {
        self.python.iter().filter(|test| test.failed)
    }
}

/// The tests of a report, which is removed.
fn take(report: PathBuf) -> Vec<Test> {
    let text = std::fs::read_to_string(&report).unwrap_or_default();
    std::fs::remove_file(report).ok();
    parse(&text)
}

/// The tests of a report in JUnit's format.
fn parse(text: &str) -> Vec<Test> {
    let Ok(document) = roxmltree::Document::parse(text) else { return Vec::new() };
    let cases = document.descendants().filter(|node| node.has_tag_name("testcase"));
    cases
        .map(|case| {
            let attribute = |name| case.attribute(name).unwrap_or_default();
            Test {
                group: attribute("classname").to_string(),
                name: attribute("name").to_string(),
                seconds: attribute("time").parse().unwrap_or_default(),
                failed: case
                    .children()
                    .any(|child| child.has_tag_name("failure") || child.has_tag_name("error")),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read() {
        let text = r#"<?xml version="1.0"?><testsuites><testsuite name="a">
            <testcase classname="tightfit::it" name="plan::a" time="1.5"/>
            <testcase classname="tightfit::it" name="plan::&lt;b&gt;" time="0.25">
            <failure/></testcase>
            </testsuite></testsuites>"#;
        let test = |name: &str, seconds, failed| Test {
            group: "tightfit::it".to_string(),
            name: name.to_string(),
            seconds,
            failed,
        };
        assert_eq!(parse(text), [test("plan::a", 1.5, false), test("plan::<b>", 0.25, true)]);
    }

    #[test]
    fn no_report_lists_nothing() {
        assert_eq!(parse("<testsuites>"), []);
        assert_eq!(take(PathBuf::from("no-such-report")), []);
    }
}
