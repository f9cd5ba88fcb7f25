//! Which module of the planner, and which crate, may import which others. Invariant: what is not in
//! the tables below is refused, so a new module or crate has to find its place first;
//! ARCHITECTURE.md shows the same tables.

use super::modules::{Module, ModuleIndex, Modules};
use super::paths::mentions;
use super::source::line_of;
use super::tree::{File, Finding, Tree};

/// The top-level modules of the planner ("rooms"), each with those that it may import. One may be
/// listed here before it is written.
const ROOMS: [(&str, &[&str]); 25] = [
    ("aside", &[]),
    ("units", &[]),
    ("reading", &[]),
    ("exit", &["units", "reading"]),
    ("id", &["units"]),
    ("effort", &["units"]),
    ("goal", &["units"]),
    ("tuning", &[]),
    ("tensor", &["units", "id"]),
    ("operator", &["units", "id", "tensor"]),
    ("graph", &["units", "exit", "id", "reading", "tensor", "operator"]),
    ("sizes", &["units", "exit", "id", "tensor", "operator", "graph"]),
    ("split", &["units", "exit", "id", "tensor", "operator", "graph"]),
    ("pipeline", &["units", "exit", "id", "tensor", "operator", "graph", "profile", "timeline"]),
    ("machine", &["units", "exit", "id"]),
    ("profile", &["units", "id", "tensor", "operator", "graph", "machine"]),
    (
        "analysis",
        &["units", "exit", "id", "reading", "tensor", "operator", "graph", "machine", "profile"],
    ),
    (
        "plan",
        &[
            "aside", "units", "exit", "id", "effort", "tuning", "goal", "tensor", "operator",
            "graph", "machine", "profile", "analysis",
        ],
    ),
    (
        "schedule",
        &[
            "units", "exit", "id", "reading", "effort", "tuning", "goal", "tensor", "operator",
            "graph", "machine", "profile", "analysis", "plan",
        ],
    ),
    (
        "check",
        &[
            "units", "exit", "id", "tensor", "operator", "graph", "machine", "profile", "schedule",
            "timeline",
        ],
    ),
    ("timeline", &["units", "id", "graph", "machine", "profile", "schedule"]),
    (
        "sharded",
        &["units", "id", "tensor", "operator", "graph", "pipeline", "schedule", "timeline"],
    ),
    (
        "fit",
        &[
            "aside", "units", "exit", "id", "effort", "tuning", "goal", "tensor", "operator",
            "graph", "machine", "profile", "analysis", "plan", "schedule", "check", "timeline",
        ],
    ),
    (
        "staged",
        &[
            "units", "exit", "id", "effort", "graph", "profile", "plan", "schedule", "pipeline",
            "fit",
        ],
    ),
    (
        "hold",
        &[
            "units", "id", "effort", "tuning", "goal", "tensor", "operator", "graph", "machine",
            "profile", "analysis", "plan", "schedule", "check", "timeline", "fit",
        ],
    ),
];

/// Modules that may know only the parts of `schedule` that are defined in [`DATA`].
const JUDGES: [&str; 2] = ["check", "timeline"];

/// The data of schedules, without the passes that make them.
const DATA: [&str; 2] =
    ["crates/planner/src/schedule/instruction.rs", "crates/planner/src/schedule/transfer.rs"];

/// Crates below `crates/`, and `fuzz`, each with the packages of this workspace that it may depend
/// on.
const CRATES: [(&str, &[&str]); 9] = [
    ("testing", &[]),
    ("planner", &[]),
    ("engine", &["tightfit"]),
    ("report", &["tightfit"]),
    ("replay", &[]),
    ("cli", &["tightfit", "tightfit-engine", "tightfit-report"]),
    ("bench", &["tightfit", "tightfit-engine", "tightfit-cli", "tightfit-report"]),
    (
        "python",
        &["tightfit", "tightfit-engine", "tightfit-report", "tightfit-replay", "tightfit-cli"],
    ),
    ("fuzz", &["tightfit", "tightfit-engine"]),
];

/// A package that the tests of every crate may depend on.
const TESTING: &str = "tightfit-testing";

const PLANNER: &str = "crates/planner/src/";

/// Paths that reach outside of the process, or ask for the time.
const IMPURE: [&[&str]; 7] = [
    &["std", "env"],
    &["std", "fs"],
    &["std", "net"],
    &["std", "process"],
    &["std", "thread"],
    &["std", "time", "Instant"],
    &["std", "time", "SystemTime"],
];

/// The file that waits for a solver, which has a clock of its own and cannot be stopped.
const SOLVER: &str = "crates/planner/src/plan/milp.rs";
/// The file that starts scoped threads.
const ASIDE: &str = "crates/planner/src/aside.rs";
/// The paths among these that they need.
const NEEDED: [(&str, &[&[&str]]); 2] =
    [(SOLVER, &[&["std", "thread"], &["std", "time", "Instant"]]), (ASIDE, &[&["std", "thread"]])];

/// Threads that end before their caller does, and change nothing but how long it takes.
const SCOPED: [&str; 3] = ["std", "thread", "scope"];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let planner = Modules::of(tree, PLANNER);
    for module in planner.indices() {
        room(&planner, module, &mut findings);
    }
    for file in &tree.files {
        let path = file.path.strip_prefix("crates/").unwrap_or(&file.path);
        if let Some((name, "Cargo.toml")) =
            path.split_once('/').filter(|(name, _)| *name != "xtask")
        {
            dependencies(file, name, &mut findings);
        }
    }
    findings
}

fn room(planner: &Modules<'_>, module: ModuleIndex, findings: &mut Vec<Finding>) {
    let Module { file, code, path: own, .. } = planner.get(module);
    let mut finding =
        |at: usize, what: String| findings.push(Finding::new(file, line_of(code, at), what));
    // The root of the crate is not in the table, and may use all modules.
    let room = own.first().map_or("", String::as_str);
    let table = ROOMS.iter().find(|(name, _)| *name == room);
    if table.is_none() && !room.is_empty() {
        finding(
            0,
            format!(
                "room `{room}` is not in the import table; give it a row in \
                 xtask/src/tidy/imports/mod.rs and in ARCHITECTURE.md"
            ),
        );
    }
    for (at, words) in mentions(code, |word| ["crate", "super", "std"].contains(&word)) {
        let path: Vec<&str> = words.iter().map(String::as_str).collect();
        let is_needed = NEEDED.iter().any(|(of, needed)| {
            file.path == *of && needed.iter().any(|needed| path.starts_with(needed))
        });
        if IMPURE.iter().any(|impure| path.starts_with(impure)) && path != SCOPED && !is_needed {
            finding(
                at,
                format!(
                    "`{}`: the planner is pure; let the caller pass in what it reads there",
                    path.join("::")
                ),
            );
        }
        let inside = planner.rooted(module, &words, at);
        if let (Some((_, allowed)), Some(inside)) = (table, inside) {
            refused(planner, room, allowed, &inside).into_iter().for_each(|what| finding(at, what));
        }
    }
}

/// Why `room` must not import what lies at `inside`, below the root.
fn refused(
    planner: &Modules<'_>,
    room: &str,
    allowed: &[&str],
    inside: &[String],
) -> Option<String> {
    let other = inside.first()?.as_str();
    if other == room {
        return None;
    }
    if !allowed.contains(&other) {
        return Some(format!(
            "`{room}` must not import `crate::{other}`; it may import {}",
            list(allowed)
        ));
    }
    if other == "schedule" && JUDGES.contains(&room) {
        let file = planner.definer(inside).map(|definer| planner.get(definer).file);
        if !file.is_some_and(|file| DATA.contains(&file.path.as_str())) {
            return Some(format!(
                "`{room}` may know of `schedule` only what is in {}; judge without the code that \
                 is judged",
                DATA.map(|path| path.trim_start_matches(PLANNER)).join(" and ")
            ));
        }
    }
    None
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
    let (mut in_dependencies, mut in_tests) = (false, false);
    for (index, line) in file.text.lines().enumerate() {
        let mut package = line.split(['=', '.', ' ']).next().unwrap_or("");
        if let Some(header) = line.trim().strip_prefix('[') {
            let (section, table) = header
                .trim_end_matches(']')
                .rsplit_once("dependencies")
                .map_or((header, ""), |(_, table)| ("dependencies", table));
            in_dependencies = section == "dependencies";
            in_tests = header.contains("dev-dependencies");
            package = table.trim_start_matches('.');
        }
        let is_allowed = allowed.contains(&package) || in_tests && package == TESTING;
        if in_dependencies && package.starts_with("tightfit") && !is_allowed {
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

    const SCHEDULE: [(&str, &str); 3] = [
        (
            "crates/planner/src/schedule/mod.rs",
            "pub mod layout; pub use instruction::{Buffer, Call}; pub use lower::lower; mod lower;",
        ),
        ("crates/planner/src/schedule/instruction.rs", "pub struct Buffer; pub struct Call;"),
        ("crates/planner/src/schedule/lower.rs", "pub fn lower() {}"),
    ];

    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        let mut files = vec![(path, text), ("crates/planner/src/lib.rs", "")];
        files.extend(SCHEDULE.into_iter().filter(|(other, _)| *other != path));
        files.dedup_by_key(|(path, _)| *path);
        check(&Tree::of(&files)).into_iter().map(|finding| (finding.line, finding.what)).collect()
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
                    &format!("use crate::{other}::Buffer;"),
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
    fn no_room_may_import_one_that_may_import_it() {
        let row = |room: &str| ROOMS.iter().find(|(name, _)| *name == room).unwrap().1;
        for (room, allowed) in ROOMS {
            for other in allowed {
                let mutual = row(other).contains(&room);
                assert!(!mutual, "{room} and {other}");
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
    fn judges_see_the_data_of_schedules_and_no_passes() {
        for path in ["crates/planner/src/check.rs", "crates/planner/src/timeline/mod.rs"] {
            let only = "only what is in schedule/instruction.rs and schedule/transfer.rs";
            allows(path, "use crate::schedule::{Buffer, Call};");
            allows(path, "use crate::schedule::instruction::Buffer;");
            refuses(path, "use crate::schedule::{Buffer, lower};", 1, only);
            refuses(path, "use crate::schedule::layout::best_fit;", 1, only);
            refuses(path, "use crate::schedule;", 1, only);
            refuses(path, "use crate::plan::Plan;", 1, "must not import `crate::plan`");
        }
    }

    #[test]
    fn the_planner_is_pure() {
        let path = "crates/planner/src/plan/mod.rs";
        refuses(path, "use std::{fmt, fs::File};", 1, "std::fs::File");
        refuses(path, "let x = std::time::Instant::now();", 1, "std::time::Instant");
        refuses("crates/planner/src/lib.rs", "use std::thread;", 1, "std::thread");
        allows(SOLVER, "use std::thread; use std::time::Instant;");
        refuses(SOLVER, "use std::fs;", 1, "std::fs");
        allows(ASIDE, "use std::thread::Builder;");
        refuses(ASIDE, "use std::time::Instant;", 1, "std::time::Instant");
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
        refuses(
            "crates/engine/Cargo.toml",
            "[dev-dependencies]\n[dependencies]\ntightfit-testing.workspace = true",
            3,
            "`tightfit-testing`",
        );
        allows("crates/engine/Cargo.toml", "[dev-dependencies]\ntightfit-testing.workspace = true");
        allows(
            "crates/cli/Cargo.toml",
            "[package]\nname = \"tightfit-cli\"\n[dependencies]\ntightfit.workspace = \
             true\ntightfit-engine.workspace = true",
        );
        allows("crates/planner/Cargo.toml", "[package]\ntightfit = 1\n[features]\ntightfit-x = []");
    }
}
