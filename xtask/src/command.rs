//! Runs commands and steps, and remembers how long each took. Invariant: a command is printed
//! before it runs, and one that fails is an error.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// What was done so far.
#[derive(Default)]
pub struct Log {
    steps: Vec<(String, Duration, bool)>,
}

impl Log {
    /// Does one step.
    pub fn step(&mut self, name: &str, work: impl FnOnce(&mut Log) -> Result<()>) -> Result<()> {
        println!("== {name}");
        let start = Instant::now();
        let result = work(self);
        self.steps.push((name.to_string(), start.elapsed(), result.is_ok()));
        result.with_context(|| format!("step {name}"))
    }

    /// Runs one command.
    pub fn run(&mut self, mut command: Command) -> Result<()> {
        let line = line(&command);
        println!("$ {line}");
        let start = Instant::now();
        let status = command.status().with_context(|| format!("cannot run {line}"))?;
        println!("  {:.1} s", start.elapsed().as_secs_f64());
        ensure!(status.success(), "{line}: {status}");
        Ok(())
    }

    /// Prints every step with its time.
    pub fn summary(&self) {
        println!("== summary");
        for (name, duration, passed) in &self.steps {
            println!(
                "{name:<8} {:>8.1} s  {}",
                duration.as_secs_f64(),
                if *passed { "ok" } else { "FAILED" }
            );
        }
    }
}

/// The command as one would type it.
fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
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
    fn a_step_that_fails_is_remembered() {
        let mut log = Log::default();
        assert!(log.step("fmt", |_| Ok(())).is_ok());
        assert!(log.step("test", |log| log.run(Command::new("false"))).is_err());
        assert_eq!(
            log.steps.iter().map(|(name, _, passed)| (name.as_str(), *passed)).collect::<Vec<_>>(),
            [("fmt", true), ("test", false)]
        );
    }
}
