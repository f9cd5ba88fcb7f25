//! A campaign: thousands of cases in several workers, counted, with every finding minimised and
//! kept. Invariant: counts and findings do not depend on the number of workers; only a few findings
//! of one cause are kept, but all are counted.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::child::{Judged, Workers};
use crate::minimise::minimise;

/// Findings of one cause that are kept.
const KEPT: u64 = 2;
/// Cases that a worker is given at once.
const BATCH: u64 = 100;
/// Time between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(5);

/// The settings of a campaign.
pub struct Campaign<'a> {
    /// How workers are started.
    pub workers: Workers,
    /// The first case.
    pub first: u64,
    /// Number of cases.
    pub cases: u64,
    /// Number of workers that run in parallel.
    pub jobs: u64,
    /// Where findings are kept; created at the first one.
    pub findings: &'a Path,
}

/// The results of a campaign.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Cases by kind of verdict; refusals also by the part that refused.
    pub counts: BTreeMap<String, u64>,
    /// Findings by cause, and the folders that were kept.
    pub findings: BTreeMap<String, (u64, Vec<PathBuf>)>,
}

impl Outcome {
    /// Cases with this kind of verdict.
    pub fn count(&self, kind: &str) -> u64 {
        self.counts.get(kind).copied().unwrap_or(0)
    }

    /// One line of counts.
    pub fn line(&self) -> String {
        let is_kind = |name: &&String| !name.contains(' ');
        let kinds: Vec<String> = (self.counts.keys().filter(is_kind))
            .map(|kind| format!("{} {kind}", self.count(kind)))
            .collect();
        kinds.join(", ")
    }
}

/// Runs a campaign; `progress` is given a line from time to time.
pub fn run(campaign: &Campaign<'_>, progress: &(dyn Fn(&str) + Sync)) -> io::Result<Outcome> {
    let outcome = Mutex::new(Outcome::default());
    let next = AtomicU64::new(campaign.first);
    let end = campaign.first + campaign.cases;
    let said = Mutex::new(Instant::now());
    let one = || -> io::Result<()> {
        let scratch = tempfile::tempdir()?;
        loop {
            let first = next.fetch_add(BATCH, Ordering::Relaxed);
            if first >= end {
                return Ok(());
            }
            let last = (first + BATCH).min(end);
            let mut failed = Ok(());
            campaign.workers.run(first, last, scratch.path(), &mut |judged| {
                failed = note(campaign, judged, scratch.path(), &outcome);
                let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
                if said.elapsed() > PROGRESS {
                    *said = Instant::now();
                    progress(&outcome.lock().unwrap_or_else(PoisonError::into_inner).line());
                }
                failed.is_ok()
            })?;
            failed?;
        }
    };
    std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..campaign.jobs.max(1)).map(|_| scope.spawn(one)).collect();
        jobs.into_iter().try_for_each(|job| {
            job.join().unwrap_or_else(|_| Err(io::Error::other("a job of the campaign panicked")))
        })
    })?;
    Ok(outcome.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Counts a case, and keeps it if it is a finding whose cause is new or rare.
fn note(
    campaign: &Campaign<'_>,
    judged: &Judged,
    scratch: &Path,
    outcome: &Mutex<Outcome>,
) -> io::Result<()> {
    let verdict = &judged.verdict;
    let cause = verdict.cause();
    {
        let mut outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner);
        *outcome.counts.entry(verdict.kind().to_string()).or_default() += 1;
        if !verdict.detail().is_empty() && !verdict.is_finding() {
            *outcome.counts.entry(verdict.to_string()).or_default() += 1;
        }
        if !verdict.is_finding() {
            return Ok(());
        }
        let (count, _) = outcome.findings.entry(cause.clone()).or_default();
        *count += 1;
        if *count > KEPT {
            return Ok(());
        }
    }
    // Minimising it takes a folder of its own.
    let folder = campaign.findings.join(format!(
        "{}-{}-{}-{}",
        campaign.workers.target.name(),
        verdict.kind(),
        campaign.workers.seed,
        judged.number
    ));
    let room = tempfile::tempdir()?;
    if judged.changes > 0 {
        crate::case::Case::read(scratch)?.write(room.path())?;
    }
    let case = minimise(&campaign.workers, judged, room.path())?;
    case.write(&folder)?;
    let text = format!(
        "{verdict}\ncargo run -p tightfit-fuzz --release -- {} --seed {} --first {} --cases 1\n",
        campaign.workers.target.name(),
        campaign.workers.seed,
        judged.number
    );
    std::fs::write(folder.join("verdict.txt"), text)?;
    let mut outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner);
    outcome.findings.entry(cause).or_default().1.push(folder);
    Ok(())
}
