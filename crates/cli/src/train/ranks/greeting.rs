//! What the processes of a job tell each other before anything is planned. Invariant: if ranks were
//! not started alike, all of them say so, with the first thing that differs, and none goes on.

use serde::{Deserialize, Serialize};
use tightfit::id::RankId;
use tightfit::units::Bytes;
use tightfit_engine::transport::Link;
use tightfit_engine::weights::Progress;
use tightfit_engine::{Dataset, Step, VERSION, process};

use super::refused::Refused;
use crate::failure::Result;
use crate::processor;
use crate::train::Arguments;

/// The information that a process gives about itself.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct Greeting {
    /// What has to be the same on all ranks, with its name; the first difference is reported.
    alike: Vec<(String, String)>,
    /// The first process on the same computer.
    first_nearby: u32,
    /// The processors that this one may use.
    processors: String,
    /// The number of these, or of the threads that were requested.
    threads: u32,
    /// Whether they were requested.
    is_asked: bool,
    /// Bytes that MPI has taken of this process's memory.
    beside: u64,
}

/// What all ranks know afterwards.
pub struct Agreed {
    /// Threads of each rank.
    pub threads: u32,
    /// The most memory that MPI has taken in any process.
    pub beside: Bytes,
}

impl Greeting {
    /// The greeting of this process.
    pub fn new(
        arguments: &Arguments,
        (step, data): (&Step, &Dataset),
        begins: &Progress,
        first_nearby: u32,
        beside: Bytes,
    ) -> Greeting {
        let evaluation = step.evaluation.as_ref().map_or("none", |graph| graph.hash());
        let rows = data.training_rows();
        let alike = [
            ("the version of tightfit", VERSION.to_string()),
            ("the step", step.name.clone()),
            ("the training graph", step.training.hash().to_string()),
            ("the evaluation graph", evaluation.to_string()),
            (
                "the number of rows of the data",
                rows.map_or("unlimited".to_string(), |rows| rows.to_string()),
            ),
            (
                "how the step is divided",
                arguments.ranks.way().map_or(String::new(), |way| way.to_string()),
            ),
            ("--budget", arguments.budget.clone()),
            ("--schedule", arguments.ranks.schedule.clone()),
            ("--planner", arguments.planner.name().to_string()),
            ("--reduce", arguments.ranks.reduce.to_string()),
            ("--microbatches", arguments.batches.micro_batches().to_string()),
            ("--steps", arguments.steps.to_string()),
            ("--lr", step.optimizer.learning_rate.to_string()),
            ("the seed", begins.seed.to_string()),
            ("the steps that are done", begins.steps.to_string()),
            ("what --resume reads", begins.checksum.clone().unwrap_or_default()),
            ("--eval-every", arguments.eval_every.unwrap_or(0).to_string()),
            ("--eval-batches", arguments.eval_batches.to_string()),
            ("--keep-going", arguments.keep_going.to_string()),
            ("whether --save is given", arguments.save.is_some().to_string()),
            ("whether --trace is given", arguments.trace.is_some().to_string()),
            ("whether --resume is given", arguments.resume.is_some().to_string()),
        ];
        Greeting {
            alike: alike.map(|(what, value)| (what.to_string(), value)).to_vec(),
            first_nearby,
            processors: process::processors().unwrap_or_default(),
            threads: processor::threads(arguments.threads),
            is_asked: arguments.threads.is_some(),
            beside: beside.0,
        }
    }

    /// Sends it, and receives what the others say.
    pub fn exchange(&self, link: &dyn Link) -> Result<Agreed> {
        let said = serde_json::to_vec(self)?;
        let mut all: Vec<Greeting> = Vec::new();
        for (rank, said) in (0..).map(RankId::from_u32).zip(link.gather(&said)?) {
            let unknown = |_| Refused::Other {
                rank,
                what: "the version of tightfit".to_string(),
                theirs: "another one".to_string(),
                first: VERSION.to_string(),
            };
            all.push(serde_json::from_slice(&said).map_err(unknown)?);
        }
        let first = &all[0];
        for (rank, other) in (0..).map(RankId::from_u32).zip(&all) {
            let pairs = other.alike.iter().zip(&first.alike);
            if let Some(((what, theirs), (_, first))) = pairs.clone().find(|(a, b)| a != b) {
                let (what, theirs, first) = (what.clone(), theirs.clone(), first.clone());
                return Err(Refused::Other { rank, what, theirs, first }.into());
            }
        }
        Ok(Agreed {
            threads: all.iter().map(|one| one.share(&all)).min().unwrap_or(1),
            beside: Bytes(all.iter().map(|one| one.beside).max().unwrap_or(0)),
        })
    }

    /// The threads of a process: those that were requested, or its part of the processors that it
    /// shares with others on its computer.
    fn share(&self, all: &[Greeting]) -> u32 {
        if self.is_asked {
            return self.threads;
        }
        let shares = |other: &&Greeting| {
            (other.first_nearby, &other.processors) == (self.first_nearby, &self.processors)
        };
        let sharing = all.iter().filter(shares).count() as u32;
        (self.threads / sharing.max(1)).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_divided_among_those_who_share_them() {
        let of = |first_nearby, processors: &str, threads| Greeting {
            first_nearby,
            processors: processors.to_string(),
            threads,
            ..Greeting::default()
        };
        // Two on one computer that share all, and one on another whose processors have the same
        // names.
        let all = [of(0, "0-7", 8), of(0, "0-7", 8), of(2, "0-7", 8)];
        assert_eq!(all.iter().map(|one| one.share(&all)).collect::<Vec<_>>(), [4, 4, 8]);
        // Two processes, each bound to its own processor.
        let all = [of(0, "0", 1), of(0, "1", 1)];
        assert_eq!(all.iter().map(|one| one.share(&all)).collect::<Vec<_>>(), [1, 1]);
        let asked = Greeting { is_asked: true, threads: 3, ..of(0, "0", 1) };
        assert_eq!(asked.share(&[of(0, "0", 1)]), 3);
    }
}
