//! Who may import whom: the rooms of the planner, and the crates. Invariant: what is not in the
//! tables below is refused, so a new room or crate has to find its place first; ARCHITECTURE.md
//! shows the same tables.

mod paths;

use super::source::{line_of, split, without_tests};
use super::tree::{File, Finding, Tree};
use paths::paths;

/// The rooms of the planner, each with the rooms that it may import.
const ROOMS: [(&str, &[&str]); 8] = [
    ("units", &[]),
    ("graph", &["units"]),
    ("machine", &["units"]),
    ("profile", &["units", "graph", "machine"]),
    ("plan", &["units", "graph", "machine", "profile"]),
    ("schedule", &["units", "graph", "machine", "profile", "plan"]),
    ("check", &["units", "graph", "machine", "profile", "schedule"]),
    ("fit", &["units", "graph", "machine", "profile", "plan", "schedule", "check"]),
];

/// What `check` may know of `schedule`: the data of its file `instruction`, none of its passes.
const INSTRUCTION: [&str; 5] = ["Buffer", "BufferId", "Call", "Instruction", "Schedule"];

/// Crates below `crates/`, each with the packages of this workspace that it may depend on.
const CRATES: [(&str, &[&str]); 5] = [
    ("planner", &[]),
    ("engine", &["tightfit"]),
    ("report", &["tightfit"]),
    ("cli", &["tightfit", "tightfit-engine", "tightfit-report"]),
    ("python", &["tightfit", "tightfit-engine", "tightfit-report"]),
];

/// What reaches outside of the process, or asks for the time.
const IMPURE: [&[&str]; 7] = [
    &["std", "env"],
    &["std", "fs"],
    &["std", "net"],
    &["std", "process"],
    &["std", "thread"],
    &["std", "time", "Instant"],
    &["std", "time", "SystemTime"],
];

/// Threads that end before their caller does, and change nothing but how long it takes.
const SCOPED: [&str; 3] = ["std", "thread", "scope"];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        if let Some(module) =
            file.path.strip_prefix("crates/planner/src/").and_then(|path| path.strip_suffix(".rs"))
        {
            room(file, module.trim_end_matches("/mod"), &mut findings);
        }
    }
    for file in &tree.files {
        if let Some((name, "Cargo.toml")) =
            file.path.strip_prefix("crates/").and_then(|path| path.split_once('/'))
        {
            dependencies(file, name, &mut findings);
        }
    }
    findings
}

fn room(file: &File, module: &str, findings: &mut Vec<Finding>) {
    let code = without_tests(&split(&file.text).code);
    let mut finding =
        |at: usize, what: String| findings.push(Finding::new(file, line_of(&code, at), what));
    let room = module.split('/').next().unwrap_or(module);
    let table = ROOMS.iter().find(|(name, _)| *name == room);
    if table.is_none() && room != "lib" {
        finding(
            0,
            format!(
                "room `{room}` is not in the import table; give it a row in \
                 xtask/src/tidy/imports/mod.rs and in ARCHITECTURE.md"
            ),
        );
    }
    for (at, path) in paths(&code) {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        if IMPURE.iter().any(|impure| path.starts_with(impure)) && path != SCOPED {
            finding(
                at,
                format!(
                    "`{}`: the planner is pure; let the caller pass in what it reads there",
                    path.join("::")
                ),
            );
        }
        if let (Some((_, allowed)), Some(inside)) = (table, below_the_root(&path, module)) {
            refused(room, allowed, inside).into_iter().for_each(|what| finding(at, what));
        }
    }
}

/// The path from the root of the crate, where it leads there.
fn below_the_root<'a>(path: &'a [&'a str], module: &str) -> Option<&'a [&'a str]> {
    let supers = path.iter().take_while(|part| **part == "super").count();
    let names_a_room = |path: &[&str]| {
        path.first().is_some_and(|first| ROOMS.iter().any(|(room, _)| room == first))
    };
    match path {
        ["crate", inside @ ..] => Some(inside),
        // An inline module adds a level that the path of the file does not show; so only rooms
        // count here.
        [..] if supers >= module.split('/').count() && names_a_room(&path[supers..]) => {
            Some(&path[supers..])
        }
        _ => None,
    }
}

/// Why `room` must not import what lies at `inside`.
fn refused(room: &str, allowed: &[&str], inside: &[&str]) -> Option<String> {
    match inside {
        [other, ..] if *other == room => None,
        ["schedule", rest @ ..] if room == "check" => {
            let data = if rest.first() == Some(&"instruction") {
                rest.len() > 1
            } else {
                rest.first().is_some_and(|name| INSTRUCTION.contains(name))
            };
            (!data).then(|| {
                format!(
                    "`check` may know of `schedule` only {}; judge without the code that is judged",
                    INSTRUCTION.join(", ")
                )
            })
        }
        [other, ..] if allowed.contains(other) => None,
        [other, ..] => Some(format!(
            "`{room}` must not import `crate::{other}`; it may import {}",
            list(allowed)
        )),
        [] => None,
    }
}

/// Packages of this workspace among the dependencies of a manifest.
fn dependencies(file: &File, name: &str, findings: &mut Vec<Finding>) {
    let Some((_, allowed)) = CRATES.iter().find(|(known, _)| *known == name) else {
        findings.push(Finding::new(
            file,
            1,
            format!(
                "crate `{name}` is not in the import table; give it a row in \
                xtask/src/tidy/imports/mod.rs and in ARCHITECTURE.md"
            ),
        ));
        return;
    };
    let mut in_dependencies = false;
    for (index, line) in file.text.lines().enumerate() {
        let mut package = line.split(['=', '.', ' ']).next().unwrap_or("");
        if let Some(header) = line.trim().strip_prefix('[') {
            let (section, table) = header
                .trim_end_matches(']')
                .rsplit_once("dependencies")
                .map_or((header, ""), |(_, table)| ("dependencies", table));
            in_dependencies = section == "dependencies";
            package = table.trim_start_matches('.');
        }
        if in_dependencies && package.starts_with("tightfit") && !allowed.contains(&package) {
            findings.push(Finding::new(
                file,
                index + 1,
                format!(
                    "`{name}` must not depend on `{package}`; of this workspace it may depend \
                    on {}",
                    list(allowed)
                ),
            ));
        }
    }
}

fn list(names: &[&str]) -> String {
    if names.is_empty() { "nothing".to_string() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        check(&Tree::of(&[(path, text)]))
            .into_iter()
            .map(|finding| (finding.line, finding.what))
            .collect()
    }

    #[track_caller]
    fn refuses(path: &str, text: &str, line: usize, what: &str) {
        let found = found(path, text);
        assert!(found.len() == 1 && found[0].0 == line && found[0].1.contains(what), "{found:?}");
    }

    #[track_caller]
    fn allows(path: &str, text: &str) {
        assert_eq!(found(path, text), []);
    }

    #[test]
    fn every_room_is_held_to_its_row() {
        for (room, allowed) in ROOMS {
            for (other, _) in ROOMS {
                let found = found(
                    &format!("crates/planner/src/{room}.rs"),
                    &format!("use crate::{other}::Schedule;"),
                );
                assert_eq!(
                    found.is_empty(),
                    other == room || allowed.contains(&other),
                    "{room} imports {other}: {found:?}"
                );
            }
        }
    }

    #[test]
    fn imports_are_found_however_they_are_written() {
        let path = "crates/planner/src/graph/verify.rs";
        refuses(
            path,
            "//! x\nuse crate::{graph::Graph,\n    plan::Plan};",
            2,
            "`graph` must not import `crate::plan`",
        );
        refuses(path, "fn f() {\n    crate::plan::plan() }", 2, "crate::plan");
        refuses(path, "use super::super::plan::Plan;", 1, "crate::plan");
        refuses("crates/planner/src/machine.rs", "use super::graph::Graph;", 1, "crate::graph");
        refuses(path, "use crate::fit;", 1, "crate::fit");
        allows(path, "use super::node::Node; use crate::units::Bytes; // crate::plan\n");
        allows(path, "#[cfg(test)]\nmod tests { use crate::plan::Plan; }");
        allows("crates/planner/src/lib.rs", "use crate::plan::Plan;");
        allows("crates/planner/tests/a.rs", "use crate::plan::Plan;");
    }

    #[test]
    fn the_checker_sees_instructions_and_no_passes() {
        let path = "crates/planner/src/check.rs";
        allows(path, "use crate::schedule::{BufferId, Call};");
        allows(path, "use crate::schedule::instruction::Buffer;");
        refuses(path, "use crate::schedule::{BufferId, lower};", 1, "only Buffer, BufferId");
        refuses(path, "use crate::schedule::layout::best_fit;", 1, "only Buffer, BufferId");
        refuses(path, "use crate::schedule;", 1, "only Buffer, BufferId");
        refuses(path, "use crate::plan::Plan;", 1, "`check` must not import `crate::plan`");
    }

    #[test]
    fn the_planner_is_pure() {
        let path = "crates/planner/src/plan/mod.rs";
        refuses(path, "use std::{fmt, fs::File};", 1, "std::fs::File");
        refuses(path, "let x = std::time::Instant::now();", 1, "std::time::Instant");
        refuses("crates/planner/src/lib.rs", "use std::thread;", 1, "std::thread");
        allows(path, "use std::time::Duration; use std::fmt;");
        allows("crates/engine/src/slab.rs", "use std::fs::File;");
    }

    #[test]
    fn an_unknown_room_or_crate_is_found() {
        refuses(
            "crates/planner/src/offload.rs",
            "",
            1,
            "room `offload` is not in the import table",
        );
        refuses("crates/server/Cargo.toml", "", 1, "crate `server` is not in the import table");
    }

    #[test]
    fn crates_depend_on_what_their_row_says() {
        refuses(
            "crates/report/Cargo.toml",
            "[dependencies]\ntightfit.workspace = true\ntightfit-engine = { path = \"../engine\" }",
            3,
            "`tightfit-engine`",
        );
        refuses(
            "crates/planner/Cargo.toml",
            "[dev-dependencies]\ntightfit-engine.workspace = true",
            2,
            "may depend on nothing",
        );
        refuses(
            "crates/engine/Cargo.toml",
            "[dependencies.tightfit-report]\nworkspace = true",
            1,
            "`tightfit-report`",
        );
        refuses(
            "crates/engine/Cargo.toml",
            "[target.'cfg(unix)'.dependencies]\ntightfit-cli = \"1\"",
            2,
            "`tightfit-cli`",
        );
        allows(
            "crates/cli/Cargo.toml",
            "[package]\nname = \"tightfit-cli\"\n[dependencies]\ntightfit.workspace = \
             true\ntightfit-engine.workspace = true",
        );
        allows("crates/planner/Cargo.toml", "[package]\ntightfit = 1\n[features]\ntightfit-x = []");
    }
}
