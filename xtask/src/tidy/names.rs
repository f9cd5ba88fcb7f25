//! A file is named after its one concept. Invariant: no source file or folder has a name that would
//! fit any content.

use super::tree::{Finding, Tree};

const REFUSED: [&str; 8] =
    ["util", "utils", "helper", "helpers", "common", "base", "manager", "managers"];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust().chain(tree.python()) {
        for name in file.path.split('/').map(|part| part.split('.').next().unwrap_or(part)) {
            let refused = REFUSED
                .iter()
                .any(|refused| name == *refused || name.ends_with(&format!("_{refused}")));
            if refused {
                findings.push(Finding::new(
                    file,
                    1,
                    format!(
                        "`{name}` says nothing of what is inside; name the concept, or move \
                        each part where it is used"
                    ),
                ));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_fit_anything_are_found() {
        for path in [
            "crates/engine/src/utils.rs",
            "crates/engine/tests/common/mod.rs",
            "python/tests/helpers.py",
            "crates/engine/src/slab_manager.rs",
            "base.rs",
        ] {
            assert_eq!(check(&Tree::of(&[(path, "")])).len(), 1, "{path}");
        }
    }

    #[test]
    fn names_of_concepts_are_not() {
        for path in [
            "crates/planner/src/database.rs",
            "crates/planner/src/common_subexpression.rs",
            "corpus/graphs/base.json",
        ] {
            assert!(check(&Tree::of(&[(path, "")])).is_empty(), "{path}");
        }
    }
}
