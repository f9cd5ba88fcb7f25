//! Runs commands and steps, and remembers how long each took. Invariant: a command is printed
//! before it runs, and one that fails is an error.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use wait4::Wait4;

/// What was done so far.
#[derive(Default)]
pub struct Log {
    steps: Vec<Step>,
    /// Processor seconds of all commands so far, with those of the processes that they waited for.
    processor: Duration,
    /// Where commands print, if not to this program's own output.
    file: Option<File>,
}

struct Step {
    name: String,
    wall: Duration,
    processor: Duration,
    passed: bool,
}

impl Log {
    /// A log whose steps and commands print into a file.
    pub fn in_file(path: &Path) -> Result<Log> {
        let file = File::create(path).with_context(|| path.display().to_string())?;
        Ok(Log { file: Some(file), ..Log::default() })
    }

    /// Prints a line.
    pub fn say(&mut self, line: &str) {
        match &mut self.file {
            // Output that cannot be written is lost, as on a standard output that no one reads.
            Some(file) => writeln!(file, "{line}").unwrap_or_default(),
            None => say(line),
        }
    }

    /// Does one step.
    pub fn step<T>(&mut self, name: &str, work: impl FnOnce(&mut Log) -> Result<T>) -> Result<T> {
        self.say(&format!("== {name}"));
        let (start, processor) = (Instant::now(), self.processor);
        let result = work(self);
        self.steps.push(Step {
            name: name.to_string(),
            wall: start.elapsed(),
            processor: self.processor - processor,
            passed: result.is_ok(),
        });
        result.with_context(|| format!("step {name}"))
    }

    /// Runs one command.
    pub fn run(&mut self, mut command: Command) -> Result<()> {
        let line = line(&command);
        self.say(&format!("$ {line}"));
        if let Some(file) = &self.file {
            command.stdout(file.try_clone()?).stderr(file.try_clone()?);
        }
        let start = Instant::now();
        let child = command.spawn().with_context(|| format!("cannot run {line}"))?;
        let ended = child.wait4().with_context(|| format!("cannot wait for {line}"))?;
        let processor = ended.rusage.utime + ended.rusage.stime;
        self.processor += processor;
        let (wall, processor) = (start.elapsed().as_secs_f64(), processor.as_secs_f64());
        self.say(&format!("  {wall:.1} s, {processor:.1} s of processor"));
        ensure!(ended.status.success(), "{line}: {}", ended.status);
        Ok(())
    }

    /// Adds the steps of a log that was kept meanwhile.
    pub fn append(&mut self, other: Log) {
        self.steps.extend(other.steps);
    }

    /// Prints every step, and the whole run since `began`, with elapsed time and processor time.
    pub fn summary(&self, began: Instant) {
        say("== summary");
        say(&format!("{:<12} {:>10} {:>12}", "step", "wall", "processor"));
        for Step { name, wall, processor, passed } in &self.steps {
            let result = if *passed { "ok" } else { "FAILED" };
            row(name, *wall, *processor, result);
        }
        let processor = self.steps.iter().map(|step| step.processor).sum();
        row("all", began.elapsed(), processor, "");
    }
}

fn row(name: &str, wall: Duration, processor: Duration, result: &str) {
    let (wall, processor) = (wall.as_secs_f64(), processor.as_secs_f64());
    say(&format!("{name:<12} {wall:>8.1} s {processor:>10.1} s  {result}"));
}

/// Prints a line; it is lost if the reader has gone, as with `| head`.
pub fn say(line: &str) {
    writeln!(std::io::stdout(), "{line}").unwrap_or_default();
}

/// The command as a user would type it.
pub fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// The same with the variables that are set for it, quoted for a shell.
pub fn line_with_environment(command: &Command) -> String {
    let set = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let set =
        set.map(|(name, value)| format!("{}={}", name.display(), quoted(&value.to_string_lossy())));
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words = words.map(|word| quoted(&word.to_string_lossy()));
    set.chain(words).collect::<Vec<_>>().join(" ")
}

/// A program on the search path.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-+=./:,@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_string();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_fails_is_an_error_that_names_it() {
        let error = Log::default().run(Command::new("false")).unwrap_err();
        assert!(error.to_string().starts_with("false: "), "{error}");
        let error = Log::default().run(Command::new("no-such-program")).unwrap_err();
        assert_eq!(error.to_string(), "cannot run no-such-program");
    }

    #[test]
    fn programs_are_found_by_name() {
        assert!(find("sh").is_some());
        assert!(find("no-such-program-as-this").is_none());
    }

    #[test]
    fn a_step_that_fails_is_remembered() {
        let mut log = Log::default();
        assert!(log.step("fmt", |_| Ok(())).is_ok());
        assert!(log.step("test", |log| log.run(Command::new("false"))).is_err());
        assert_eq!(
            log.steps.iter().map(|step| (step.name.as_str(), step.passed)).collect::<Vec<_>>(),
            [("fmt", true), ("test", false)]
        );
    }

    #[test]
    fn processor_seconds_are_those_of_the_step() {
        let mut log = Log::default();
        let busy = || {
            let mut command = Command::new("sh");
            command.args(["-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"]);
            command
        };
        log.step("busy", |log| log.run(busy())).unwrap();
        log.step("idle", |log| log.run(Command::new("true"))).unwrap();
        let [busy, idle] = log.steps.as_slice() else { panic!() };
        assert!(
            busy.processor > idle.processor && busy.processor + idle.processor == log.processor
        );
    }
}
