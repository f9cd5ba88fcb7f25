//! The modules of one crate, and which file a path leads to. Invariant: a path leads to the file
//! that defines what it names, through any number of re-exports; test modules are left out.

use std::collections::BTreeMap;

use super::paths::{Mention, Use, mentions, uses, without_uses};
use super::source::{end_of_item, is_word, split, without_tests};
use super::tree::{File, Tree};

/// The modules of one crate that have a file.
pub struct Modules<'a> {
    modules: Vec<Module<'a>>,
    by_path: BTreeMap<Vec<String>, ModuleIndex>,
}

/// One of a crate's modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModuleIndex(usize);

/// A module that has a file.
pub struct Module<'a> {
    pub file: &'a File,
    /// Its code without tests.
    pub code: String,
    pub uses: Vec<Use>,
    /// Its path from the root of the crate; empty for the root.
    pub path: Vec<String>,
}

/// More re-exports than any path goes through; a longer chain is a cycle of re-exports.
const MOST_REEXPORTS: usize = 16;

impl<'a> Modules<'a> {
    /// The modules of the crate whose source lies under `folder`, which ends in `/`.
    pub fn of(tree: &'a Tree, folder: &str) -> Modules<'a> {
        let mut modules = Vec::new();
        for file in tree.rust() {
            let Some(path) = file.path.strip_prefix(folder).and_then(module_path) else {
                continue;
            };
            let code = without_tests(&split(&file.text).code);
            modules.push(Module { file, uses: uses(&code), code, path });
        }
        let by_path = modules.iter().enumerate();
        let by_path = by_path.map(|(index, module)| (module.path.clone(), ModuleIndex(index)));
        Modules { by_path: by_path.collect(), modules }
    }

    pub fn indices(&self) -> impl Iterator<Item = ModuleIndex> + use<> {
        (0..self.modules.len()).map(ModuleIndex)
    }

    pub fn get(&self, index: ModuleIndex) -> &Module<'a> {
        &self.modules[index.0]
    }

    /// Whether one of the two lies within the other, or they are the same.
    pub fn are_related(&self, a: ModuleIndex, b: ModuleIndex) -> bool {
        let (a, b) = (&self.get(a).path, &self.get(b).path);
        a.starts_with(b) || b.starts_with(a)
    }

    /// What a module uses of this crate, with the file that defines it: by the names that it
    /// imports, and by paths in its code. Its re-exports do not count, and neither do modules that
    /// it imports by name; items used through such a module do.
    pub fn used_by(&self, user: ModuleIndex) -> Vec<(Mention, ModuleIndex)> {
        let module = self.get(user);
        let imports = module.uses.iter().filter(|import| !import.is_reexport);
        let imported = imports.filter_map(|import| {
            let path = self.rooted(user, &import.path, import.at)?;
            let definer = self.definer(&path)?;
            let is_module = !import.is_glob && self.get(definer).path == path;
            (!is_module).then(|| ((import.at, import.path.clone()), definer))
        });
        let code = without_uses(&module.code);
        let starts = |word: &str| {
            let is_bound = |import: &Use| import.name.as_deref() == Some(word);
            ["crate", "self", "super"].contains(&word)
                || self.child(&module.path, word).is_some()
                || module.uses.iter().any(is_bound)
        };
        let mentioned = mentions(&code, starts).into_iter().filter_map(|(at, path)| {
            let definer = self.definer(&self.rooted(user, &path, at)?)?;
            Some(((at, path), definer))
        });
        imported.chain(mentioned).collect()
    }

    /// The module whose file defines what a path from the root names.
    pub fn definer(&self, path: &[String]) -> Option<ModuleIndex> {
        self.definer_within(path, MOST_REEXPORTS)
    }

    fn definer_within(&self, path: &[String], reexports: usize) -> Option<ModuleIndex> {
        let mut here = *self.by_path.get(&[][..])?;
        for (depth, name) in path.iter().enumerate() {
            let module = self.get(here);
            let bound = module.uses.iter().find(|import| import.name.as_ref() == Some(name));
            let child = self.child(&path[..depth], name);
            // A module and an item of it may share a name; a path that ends there means the item.
            let is_item = depth + 1 == path.len() && bound.is_some();
            if let Some(child) = child.filter(|_| !is_item) {
                here = child;
                continue;
            }
            let globs = || module.uses.iter().filter(|import| import.is_glob);
            let through = |import: &Use, from: usize| {
                let mut target = self.rooted(here, &import.path, import.at)?;
                target.extend_from_slice(&path[from..]);
                self.definer_within(&target, reexports.checked_sub(1)?)
            };
            return match bound {
                Some(bound) => through(bound, depth + 1),
                None if defines(&module.code, name) => Some(here),
                None => globs()
                    .filter_map(|import| through(import, depth))
                    .find(|&definer| defines(&self.get(definer).code, name))
                    .or(Some(here)),
            };
        }
        Some(here)
    }

    /// The path from the root that `path`, at a position of a module, stands for; `None` if that
    /// leads out of the crate.
    pub fn rooted(&self, from: ModuleIndex, path: &[String], at: usize) -> Option<Vec<String>> {
        self.rooted_within(from, path, at, MOST_REEXPORTS)
    }

    fn rooted_within(
        &self,
        from: ModuleIndex,
        path: &[String],
        at: usize,
        reexports: usize,
    ) -> Option<Vec<String>> {
        let module = self.get(from);
        let own = &module.path;
        match path.first()?.as_str() {
            "crate" => Some(path[1..].to_vec()),
            "self" => Some([own, &path[1..]].concat()),
            "super" => {
                let ups = path.iter().take_while(|word| *word == "super").count();
                let out = ups.saturating_sub(inline_depth(&module.code, at));
                let kept = own.len().checked_sub(out)?;
                Some([&own[..kept], &path[ups..]].concat())
            }
            first if self.child(own, first).is_some() => Some([own, path].concat()),
            first => {
                let bound = |import: &&Use| {
                    import.name.as_deref() == Some(first)
                        && import.path.first().is_some_and(|word| word != first)
                };
                let import = module.uses.iter().find(bound)?;
                let less = reexports.checked_sub(1)?;
                let mut target = self.rooted_within(from, &import.path, import.at, less)?;
                target.extend_from_slice(&path[1..]);
                Some(target)
            }
        }
    }

    fn child(&self, parent: &[String], name: &str) -> Option<ModuleIndex> {
        self.by_path.get(&[parent, &[name.to_string()]].concat()).copied()
    }
}

/// The path of a file's module, given below `src`; `None` for tests and other programs.
fn module_path(file: &str) -> Option<Vec<String>> {
    let mut path: Vec<String> = file.strip_suffix(".rs")?.split('/').map(str::to_string).collect();
    if path.iter().any(|part| part == "tests") || path.len() > 1 && path[0] == "bin" {
        return None;
    }
    let is_root = path.len() == 1 && ["lib", "main"].contains(&path[0].as_str());
    if is_root || path.len() > 1 && path.last().is_some_and(|part| part == "mod") {
        path.pop();
    }
    Some(path)
}

/// How many inline modules of the file enclose a position.
fn inline_depth(code: &str, at: usize) -> usize {
    let opens = |start: usize| {
        let item = &code[start..];
        let named = item["mod ".len()..].trim_start();
        let after = named[named.find(|c: char| !is_word(c)).unwrap_or(named.len())..].trim_start();
        let is_word_start = !code[..start].ends_with(is_word);
        is_word_start && after.starts_with('{') && start + end_of_item(item) > at
    };
    code[..at].match_indices("mod ").filter(|&(start, _)| opens(start)).count()
}

/// Whether an item of this name is defined in the code.
fn defines(code: &str, name: &str) -> bool {
    const KINDS: [&str; 10] = [
        "fn",
        "struct",
        "enum",
        "trait",
        "type",
        "const",
        "static",
        "union",
        "mod",
        "macro_rules!",
    ];
    code.match_indices(name).any(|(at, _)| {
        let before = &code[..at];
        let is_whole = !before.ends_with(is_word) && !code[at + name.len()..].starts_with(is_word);
        let kind = before.trim_end();
        is_whole && before.len() > kind.len() && KINDS.iter().any(|word| kind.ends_with(word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks which files the crate's file `user` uses, given below `src`.
    #[track_caller]
    fn uses_of(user: &str, files: &[(&str, &str)], expected: &[&str]) {
        let files: Vec<(String, &str)> =
            files.iter().map(|&(path, text)| (format!("a/src/{path}"), text)).collect();
        let files: Vec<(&str, &str)> =
            files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let tree = Tree::of(&files);
        let modules = Modules::of(&tree, "a/src/");
        let path = format!("a/src/{user}");
        let user = modules.indices().find(|&index| modules.get(index).file.path == path).unwrap();
        let mut used: Vec<&str> = modules
            .used_by(user)
            .into_iter()
            .map(|(_, definer)| &modules.get(definer).file.path["a/src/".len()..])
            .collect();
        used.sort_unstable();
        used.dedup();
        assert_eq!(used, expected);
    }

    #[test]
    fn reexports_lead_to_the_definition() {
        let room = ("room/mod.rs", "mod inner;\npub use inner::Thing;\npub fn own() {}");
        let inner = ("room/inner.rs", "pub struct Thing;");
        let root = ("lib.rs", "mod room;\nmod user;\npub use room::Thing as Renamed;");
        for (text, definer) in [
            ("use crate::room::Thing;", "room/inner.rs"),
            ("use super::room::{self as r}; fn f() { r::Thing::new() }", "room/inner.rs"),
            ("use crate::Renamed;", "room/inner.rs"),
            ("fn f() -> crate::room::inner::Thing {}", "room/inner.rs"),
            ("use crate::room::own;", "room/mod.rs"),
            ("use crate::room::*;", "room/mod.rs"),
        ] {
            uses_of("user.rs", &[root, room, inner, ("user.rs", text)], &[definer]);
        }
    }

    #[test]
    fn globs_are_searched() {
        let files = [
            ("main.rs", "mod a; mod b; mod user;"),
            ("a.rs", "pub use crate::b::*;\npub fn other() {}"),
            ("b.rs", "pub fn wanted() {}"),
            ("user.rs", "use crate::a::wanted;"),
        ];
        uses_of("user.rs", &files, &["b.rs"]);
    }

    #[test]
    fn a_module_that_is_imported_is_used_where_it_is_mentioned() {
        let a = ("a.rs", "pub fn f() {}");
        uses_of("user.rs", &[("lib.rs", ""), a, ("user.rs", "use crate::a;")], &[]);
        let user = ("user.rs", "use crate::a;\nfn g() { a::f() }");
        uses_of("user.rs", &[("lib.rs", ""), a, user], &["a.rs"]);
        // A module that contains a function of the same name.
        let files =
            [("lib.rs", ""), ("a.rs", "pub fn a() {}"), ("user.rs", "use crate::a::a; a();")];
        uses_of("user.rs", &files, &["a.rs"]);
    }

    #[test]
    fn reexports_tests_and_other_crates_do_not_count() {
        for text in [
            "pub use crate::a::f;",
            "#[cfg(test)]\nmod tests { use crate::a::f; }",
            "use serde::a; fn g() { a::f(); std::a::f() }",
            "// crate::a::f\nconst X: &str = \"crate::a::f\";",
        ] {
            uses_of("user.rs", &[("lib.rs", ""), ("a.rs", "fn f() {}"), ("user.rs", text)], &[]);
        }
        let tests = ("user/tests.rs", "use crate::a::f;");
        uses_of("user.rs", &[("lib.rs", ""), ("a.rs", ""), ("user.rs", ""), tests], &[]);
    }

    #[test]
    fn super_counts_the_modules_of_the_file() {
        let files = [
            ("lib.rs", ""),
            ("room/mod.rs", ""),
            ("room/a.rs", "pub fn f() {}"),
            ("room/user.rs", "mod inside { use super::super::a::f; }"),
        ];
        uses_of("room/user.rs", &files, &["room/a.rs"]);
    }

    #[test]
    fn reexports_of_each_other_end_somewhere() {
        let files = [
            ("lib.rs", ""),
            ("a.rs", "pub use crate::b::X;\npub use crate::b::*;"),
            ("b.rs", "pub use crate::a::X;\npub use crate::a::*;"),
            ("user.rs", "use crate::a::X;\nuse crate::a::Y;"),
        ];
        uses_of("user.rs", &files, &["a.rs"]);
    }
}
