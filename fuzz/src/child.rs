//! Workers as their parent sees them: started, listened to with a limit of time, and ended.
//! Invariant: whatever happens in a worker becomes a verdict here; no worker outlives the parent's
//! need for it.

use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use crate::target::Target;
use crate::verdict::Verdict;

/// How workers are started.
#[derive(Clone, Debug)]
pub struct Workers {
    /// The program that is also the worker.
    pub program: PathBuf,
    /// The part that is tested.
    pub target: Target,
    /// The seed of the campaign.
    pub seed: u64,
    /// How long one case may take.
    pub limit: Duration,
}

/// What a worker reports.
enum Said {
    /// It has begun this case, which consists of this many changes.
    Case(u64, usize),
    /// The verdict on it.
    Verdict(Verdict),
}

/// One case and its verdict.
#[derive(Clone, Debug)]
pub struct Judged {
    /// Its number.
    pub number: u64,
    /// Number of its changes; 0 if it could not be made.
    pub changes: usize,
    /// The verdict on it.
    pub verdict: Verdict,
}

impl Workers {
    /// Judges cases from `first` to before `end` in workers with `scratch` as their folder. After
    /// each one `report` is called, and returns whether to go on. A worker that dies is started
    /// again after the case that it had begun.
    pub fn run(
        &self,
        first: u64,
        end: u64,
        scratch: &Path,
        report: &mut dyn FnMut(&Judged) -> bool,
    ) -> io::Result<()> {
        let mut next = first;
        while next < end {
            let arguments = [
                "--first".to_string(),
                next.to_string(),
                "--cases".to_string(),
                (end - next).to_string(),
            ];
            let mut worker = Worker::start(self, &arguments, scratch)?;
            while let Some(judged) = worker.judged(self.limit, next)? {
                next = judged.number + 1;
                if !report(&judged) {
                    return Ok(());
                }
                if worker.has_ended {
                    break;
                }
            }
        }
        Ok(())
    }

    /// The verdict on one case with only some of its changes made.
    pub fn some_changes(&self, number: u64, kept: &[usize], scratch: &Path) -> io::Result<Verdict> {
        let kept: Vec<String> = kept.iter().map(usize::to_string).collect();
        let arguments = [
            "--first".to_string(),
            number.to_string(),
            "--cases".to_string(),
            "1".to_string(),
            "--kept".to_string(),
            kept.join(","),
        ];
        let mut worker = Worker::start(self, &arguments, scratch)?;
        Ok(worker.judged(self.limit, number)?.map_or(Verdict::Hang, |judged| judged.verdict))
    }

    /// The verdict on the files of a folder.
    pub fn folder(&self, folder: &Path) -> io::Result<Verdict> {
        let arguments = ["--file".to_string(), folder.display().to_string()];
        let mut worker = Worker::start(self, &arguments, folder)?;
        Ok(worker.judged(self.limit, 0)?.map_or(Verdict::Hang, |judged| judged.verdict))
    }
}

/// A process and its lines of output.
struct Worker {
    process: Child,
    lines: Receiver<String>,
    /// Whether it was ended, or ended by itself.
    has_ended: bool,
}

impl Worker {
    fn start(workers: &Workers, arguments: &[String], scratch: &Path) -> io::Result<Worker> {
        let mut process = Command::new(&workers.program)
            .arg(workers.target.name())
            .args(["--seed", &workers.seed.to_string(), "--worker"])
            .arg(scratch)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let (sender, lines) = channel();
        if let Some(out) = process.stdout.take() {
            thread::spawn(move || {
                for line in BufReader::new(out).split(b'\n').map_while(Result::ok) {
                    if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                        break;
                    }
                }
            });
        }
        Ok(Worker { process, lines, has_ended: false })
    }

    /// The next verdict; `None` if all cases are done. `expected` is the case that it has begun if
    /// it has not said so.
    fn judged(&mut self, limit: Duration, expected: u64) -> io::Result<Option<Judged>> {
        let (mut number, mut changes, mut begun) = (expected, 0, false);
        loop {
            let verdict = match self.lines.recv_timeout(limit) {
                Ok(line) => match parse(&line) {
                    Some(Said::Case(at, of)) => {
                        (number, changes, begun) = (at, of, true);
                        continue;
                    }
                    Some(Said::Verdict(verdict)) => verdict,
                    None => continue,
                },
                Err(RecvTimeoutError::Timeout) => {
                    self.process.kill()?;
                    self.has_ended = true;
                    Verdict::Hang
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.process.wait()?;
                    self.has_ended = true;
                    if status.success() && !begun {
                        return Ok(None);
                    }
                    Verdict::Died(ending(status))
                }
            };
            return Ok(Some(Judged { number, changes, verdict }));
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // One that has ended already cannot be ended.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn parse(line: &str) -> Option<Said> {
    if let Some(verdict) = line.strip_prefix("verdict ") {
        return Verdict::parse(verdict).map(Said::Verdict);
    }
    let (number, changes) = line.strip_prefix("case ")?.split_once(' ')?;
    Some(Said::Case(number.parse().ok()?, changes.parse().ok()?))
}

/// How a process ended, in words.
fn ending(status: ExitStatus) -> String {
    #[cfg(unix)]
    {
        use std::os::unix::process::ExitStatusExt;
        if let Some(signal) = status.signal() {
            return format!("by signal {signal}");
        }
    }
    status.to_string()
}
