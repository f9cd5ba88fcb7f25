//! A process that makes and judges cases, and reports on stdout which one it has begun. Invariant:
//! the files of a case lie in the scratch folder before it is judged, so that the parent process
//! has them, however this one ends. It ends after a finding.
//!
//! ```text
//! case 17 3          number, and of how many changes it is made
//! verdict refused …  as crate::verdict writes it
//! ```

use std::io::{self, Write};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use tightfit_engine::process;

use crate::target::{Judge, Target, make};
use crate::verdict::Verdict;

/// Resident bytes above which a small input counts as taking too much memory.
const MOST_RESIDENT: u64 = 1 << 30;

/// The last panic of this process: what, and where.
static PANIC: Mutex<String> = Mutex::new(String::new());

/// Which cases to judge.
pub struct Task<'a> {
    /// The part that is tested.
    pub target: Target,
    /// The seed of the campaign.
    pub seed: u64,
    /// Numbers of the cases.
    pub cases: Range<u64>,
    /// Which changes of each to make; all if `None`.
    pub kept: make::Kept<'a>,
}

/// Makes and judges all cases of a task in `scratch`.
pub fn work(task: &Task<'_>, scratch: &Path) -> io::Result<()> {
    remember_panics();
    let mut judge = Judge::default();
    let mut out = io::stdout().lock();
    for number in task.cases.clone() {
        writeln!(out, "case {number} 0")?;
        out.flush()?;
        let made = caught(|| make::case(task.target, task.seed, number, task.kept));
        let verdict = match made {
            Ok(Ok(made)) => {
                made.case.write(scratch)?;
                writeln!(out, "case {number} {}", made.changes)?;
                out.flush()?;
                judged(&mut judge, task.target, scratch)
            }
            Ok(Err(error)) => Verdict::Wrong(format!("a case cannot be made: {error:#}")),
            Err(verdict) => verdict,
        };
        writeln!(out, "verdict {verdict}")?;
        out.flush()?;
        if verdict.is_finding() {
            // The state after a panic cannot be trusted, and the parent reads the scratch folder.
            return Ok(());
        }
    }
    Ok(())
}

/// Judges the files of a folder.
pub fn judge_folder(target: Target, folder: &Path) -> Verdict {
    remember_panics();
    judged(&mut Judge::default(), target, folder)
}

fn judged(judge: &mut Judge, target: Target, folder: &Path) -> Verdict {
    process::restart_peak();
    let verdict = match caught(|| judge.judge(target, folder)) {
        Ok(verdict) | Err(verdict) => verdict,
    };
    match process::peak_resident() {
        Some(peak) if peak.0 > MOST_RESIDENT && !verdict.is_finding() => {
            Verdict::Memory(format!("{peak} resident"))
        }
        _ => verdict,
    }
}

fn caught<T>(run: impl FnOnce() -> T) -> Result<T, Verdict> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|_| {
        let text = PANIC.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Verdict::Panic(text)
    })
}

/// Keeps panics as a sentence instead of printing them.
fn remember_panics() {
    set_hook(Box::new(|info| {
        let place = info
            .location()
            .map_or(String::new(), |place| format!("{}:{}", place.file(), place.line()));
        let what = info.payload_as_str().unwrap_or_default();
        let text = format!("at {place}: {what}").replace('\n', " ");
        *PANIC.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }));
}
