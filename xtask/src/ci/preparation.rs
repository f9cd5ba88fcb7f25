//! What the later steps need and Rust's do not: programs of the system, and an environment of
//! Python. Invariant: it is made while the earlier steps run, by commands that the network limits
//! more than the processor, and its output goes into a file of its own.

use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};

use crate::command::Log;
use crate::environment::Environment;
use crate::workspace::Workspace;

use super::debian::{install, installs};
use super::{browser, mpi};

/// Where its output goes, in the target folder.
const FILE: &str = "prepare.log";

/// Work in progress.
pub struct Preparation {
    thread: Option<JoinHandle<(Log, Result<()>)>>,
    /// The result, until a step that depends on it asks.
    result: Result<()>,
}

impl Preparation {
    /// Starts preparing what the chosen steps need.
    pub fn begin(
        workspace: &Workspace,
        environment: &Environment,
        is_chosen: impl Fn(&str) -> bool,
    ) -> Preparation {
        let chosen = ["mpi", "browser", "python"].map(is_chosen);
        let (workspace, environment) = (workspace.clone(), environment.clone());
        let thread = chosen.contains(&true).then(|| {
            std::thread::spawn(move || {
                let mut log = Log::in_file(&workspace.target.join(FILE)).unwrap_or_default();
                let result =
                    log.step("prepare", |log| prepare(&workspace, &environment, chosen, log));
                (log, result.with_context(|| format!("{FILE} in the target folder says more")))
            })
        });
        Preparation { thread, result: Ok(()) }
    }

    /// No work.
    pub fn none() -> Preparation {
        Preparation { thread: None, result: Ok(()) }
    }

    /// Waits for its end.
    pub fn wait(&mut self, log: &mut Log) {
        let Some(thread) = self.thread.take() else { return };
        self.result = match thread.join() {
            Ok((done, result)) => {
                log.append(done);
                result
            }
            Err(_) => Err(anyhow!("the preparation panicked")),
        };
    }

    /// Waits for its end, and says whether it succeeded, once.
    pub fn finish(&mut self, log: &mut Log) -> Result<()> {
        self.wait(log);
        std::mem::replace(&mut self.result, Ok(()))
    }
}

fn prepare(
    workspace: &Workspace,
    environment: &Environment,
    [mpi, browser, python]: [bool; 3],
    log: &mut Log,
) -> Result<()> {
    let mut packages = Vec::new();
    if mpi && !mpi::is_there() {
        packages.extend(mpi::PACKAGES);
    }
    if browser && browser::found().is_none() {
        packages.push(browser::PACKAGE);
    }
    // Without the packages the run goes on, and the steps that would need them say so.
    if installs()
        && !packages.is_empty()
        && let Err(error) = install(workspace, log, &packages)
    {
        log.say(&format!("{} could not be installed: {error:#}", packages.join(", ")));
    }
    if python { environment.make(workspace, log) } else { Ok(()) }
}
