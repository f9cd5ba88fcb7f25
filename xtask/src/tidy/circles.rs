//! No files of a crate use each other in a circle, so that each can be understood after those that
//! it uses. Invariant: what counts is where an item is defined; a module and what lies within it
//! belong together, and re-exports and tests do not count.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::modules::{ModuleIndex, Modules};
use super::source::line_of;
use super::tree::{Finding, Tree};

/// For each file, the files that define what it uses, each with the line and the path used there.
type Edges = BTreeMap<ModuleIndex, BTreeMap<ModuleIndex, (usize, String)>>;

pub fn check(tree: &Tree) -> Vec<Finding> {
    let folders = tree.rust().filter_map(|file| file.path.split_once("/src/"));
    let crates: BTreeSet<String> = folders.map(|(name, _)| format!("{name}/src/")).collect();
    crates.iter().flat_map(|folder| circles(&Modules::of(tree, folder))).collect()
}

/// Circles that together contain every file of the crate that is in one; each is a shortest circle
/// through one of its files.
fn circles(modules: &Modules<'_>) -> Vec<Finding> {
    let edges = edges(modules);
    let mut findings = Vec::new();
    let mut seen: BTreeSet<ModuleIndex> = BTreeSet::new();
    for start in modules.indices() {
        if seen.contains(&start) {
            continue;
        }
        if let Some(circle) = circle(&edges, start) {
            seen.extend(&circle);
            findings.push(finding(modules, &edges, &circle));
        }
    }
    findings
}

fn edges(modules: &Modules<'_>) -> Edges {
    let mut edges = Edges::new();
    for user in modules.indices() {
        for ((at, path), definer) in modules.used_by(user) {
            if !modules.are_related(user, definer) {
                let line = line_of(&modules.get(user).code, at);
                let used = edges.entry(user).or_default();
                used.entry(definer).or_insert((line, path.join("::")));
            }
        }
    }
    edges
}

/// A shortest circle from `start` back to it, with `start` first.
fn circle(edges: &Edges, start: ModuleIndex) -> Option<Vec<ModuleIndex>> {
    let mut reached_from: BTreeMap<ModuleIndex, ModuleIndex> = BTreeMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(user) = queue.pop_front() {
        for &definer in edges.get(&user).into_iter().flat_map(BTreeMap::keys) {
            if definer == start {
                let before = |&file: &ModuleIndex| reached_from.get(&file).copied();
                let mut circle: Vec<_> = std::iter::successors(Some(user), before).collect();
                circle.reverse();
                return Some(circle);
            }
            if let Entry::Vacant(entry) = reached_from.entry(definer) {
                entry.insert(user);
                queue.push_back(definer);
            }
        }
    }
    None
}

fn finding(modules: &Modules<'_>, edges: &Edges, circle: &[ModuleIndex]) -> Finding {
    let next = circle.iter().cycle().skip(1);
    let steps: Vec<(usize, String)> = circle
        .iter()
        .zip(next)
        .map(|(user, definer)| {
            let (line, path) = &edges[user][definer];
            let (user, definer) = (modules.get(*user).file, modules.get(*definer).file);
            (*line, format!("{}:{line} uses `{path}` of {}", user.path, definer.path))
        })
        .collect();
    let shown: Vec<&str> = steps.iter().map(|(_, step)| step.as_str()).collect();
    Finding::new(
        modules.get(circle[0]).file,
        steps[0].0,
        format!(
            "files use each other in a circle: {}; move what several of them need into a file of \
             its own",
            shown.join(", ")
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::of(files)).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_circle_is_printed_as_a_whole() {
        let files = [
            ("crates/a/src/main.rs", "mod x; mod y; mod z;"),
            ("crates/a/src/x.rs", "//! X.\nuse crate::y::{Y, other};"),
            ("crates/a/src/y/mod.rs", "mod inner;\npub use inner::Y;\npub fn other() {}"),
            ("crates/a/src/y/inner.rs", "pub struct Y;\nfn f() { crate::z::g() }"),
            ("crates/a/src/z.rs", "use super::x;\npub fn g() { x::f() }"),
        ];
        assert_eq!(
            found(&files),
            ["crates/a/src/x.rs:2: files use each other in a circle: \
              crates/a/src/x.rs:2 uses `crate::y::Y` of crates/a/src/y/inner.rs, \
              crates/a/src/y/inner.rs:2 uses `crate::z::g` of crates/a/src/z.rs, \
              crates/a/src/z.rs:2 uses `x::f` of crates/a/src/x.rs; \
              move what several of them need into a file of its own"]
        );
    }

    #[test]
    fn every_file_in_a_circle_is_in_one_that_is_printed() {
        let files = [
            ("xtask/src/main.rs", ""),
            ("xtask/src/a.rs", "use crate::b::B;"),
            ("xtask/src/b.rs", "use crate::a::A; use crate::c::C;"),
            ("xtask/src/c.rs", "use crate::b::B; use crate::d::D;"),
            ("xtask/src/d.rs", ""),
        ];
        let found = found(&files);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("a.rs:1 uses `crate::b::B`"), "{}", found[0]);
        assert!(found[1].contains("c.rs:1 uses `crate::b::B`"), "{}", found[1]);
    }

    #[test]
    fn what_belongs_together_and_other_crates_are_no_circle() {
        for files in [
            // A module and its parts.
            [
                ("a/src/lib.rs", "mod x;"),
                ("a/src/x/mod.rs", "mod y; use y::Y; pub struct X;"),
                ("a/src/x/y.rs", "use super::X; use crate::x::X as Z; pub struct Y;"),
            ],
            // The same names in another crate.
            [
                ("a/src/lib.rs", ""),
                ("a/src/x.rs", "use crate::y::Y;"),
                ("b/src/y.rs", "use crate::x::X;"),
            ],
            // A re-export, and a test.
            [
                ("a/src/lib.rs", ""),
                ("a/src/x.rs", "pub use crate::y::Y;\nuse crate::y::Z;"),
                ("a/src/y.rs", "pub struct Y;\n#[cfg(test)]\nmod tests { use crate::x::f; }"),
            ],
        ] {
            assert_eq!(found(&files), [] as [&str; 0]);
        }
    }
}
