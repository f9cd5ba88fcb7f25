//! Earlier findings. Invariant: each of these cases is refused with a message or executed; none of
//! them is a finding again.
//!
//! Tier: quick, since it takes less than a second.
#![allow(clippy::unwrap_used)] // a test that cannot go on panics

use std::path::{Path, PathBuf};
use std::time::Duration;

use tightfit_fuzz::child::Workers;
use tightfit_fuzz::target::Target;
use tightfit_fuzz::verdict::Verdict;

/// The folders in a folder of the workspace; none if it does not exist.
fn cases(folder: &Path) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder);
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut cases: Vec<PathBuf> =
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect();
    cases.sort();
    cases
}

#[test]
fn nothing_that_was_found_is_a_finding_again() {
    let mut tried = 0;
    for (target, name) in Target::ALL {
        let mut cases = cases(Path::new(&format!("fuzz/corpus/{name}")));
        let own = cases.len();
        if target == Target::Execute {
            cases.extend(self::cases(Path::new("corpus/hostile")));
        }
        let program = env!("CARGO_BIN_EXE_tightfit-fuzz").into();
        let workers = Workers { program, target, seed: 1, limit: Duration::from_secs(120) };
        for (number, case) in cases.into_iter().enumerate() {
            let verdict = workers.folder(&case).unwrap();
            assert!(!verdict.is_finding(), "{name}: {}: {verdict}", case.display());
            // Steps that are too large for a campaign are trained by the program's own tests.
            let is_judged = number >= own || !matches!(verdict, Verdict::Skipped(_));
            assert!(is_judged, "{name}: {}: {verdict}", case.display());
            tried += 1;
        }
    }
    assert!(tried > 10, "only {tried} cases lie in the corpus");
}
