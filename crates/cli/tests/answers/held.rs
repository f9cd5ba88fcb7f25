//! Answers of `hold`, which no verb calls: `hold GRAPH --budget BUDGET [--tier NAME]`, within a
//! percentage of the unplanned peak or as small as possible. With a tier, everything may move.

use std::fs::File;
use std::path::Path;

use serde_json::{Value, json};
use tightfit::analysis::Motion;
use tightfit::effort::Effort;
use tightfit::graph::{self, Graph};
use tightfit::id::StorageId;
use tightfit::machine::Machine;
use tightfit::plan::Planner;
use tightfit::profile::Profile;
use tightfit::units::Bytes;
use tightfit::{FitError, Goal, Held, HoldRequest, hold, unplanned};

use crate::program::corpus;

const WORK: u64 = 3_000;

/// The answer as a value, refused or not.
pub fn answer(case: &str) -> Value {
    let words: Vec<&str> = case.split(' ').collect();
    let after = |option: &str| {
        let at = words.iter().position(|word| *word == option)?;
        words.get(at + 1).copied()
    };
    let graph = read(words[1]);
    let machine = Machine::preset("a100-80gb").unwrap();
    let tier = after("--tier");
    let machine = tier.map_or(machine.clone(), |tier| machine.with_tier(tier, None).unwrap());
    let profile = Profile::new(&graph, &machine);
    let goal = match after("--budget").unwrap() {
        "min" => Goal::Smallest,
        percent => {
            let percent: u64 = percent.trim_end_matches('%').parse().unwrap();
            let whole = unplanned(&graph, &profile).unwrap().timeline().peak;
            Goal::Within(Bytes(whole.0 * percent / 100))
        }
    };
    let effort = Effort::work(1, WORK);
    let may_move = tier.map(|_| &(|_| true) as &dyn Fn(StorageId) -> bool);
    let request = HoldRequest { goal, planner: Planner::Auto, may_move, effort };
    told(&graph, hold(&graph, &profile, &request))
}

fn read(path: &str) -> Graph {
    let path = corpus().parent().unwrap().join(path);
    let train = path.join("train.json.gz");
    let path: &Path = if path.is_dir() { &train } else { &path };
    graph::read_from(File::open(path).unwrap()).unwrap()
}

fn told(graph: &Graph, held: Result<Held, FitError>) -> Value {
    match held {
        Ok(held) => {
            let name = |node| graph.nodes()[node].name.clone();
            let moves = held.sequence().moves().into_iter().map(|it| {
                let motion = match it.motion {
                    Motion::Offload => "offload",
                    Motion::Release => "release",
                    Motion::Prefetch => "prefetch",
                };
                json!([it.before, it.storage.to_string(), motion])
            });
            json!({
                "budget_bytes": held.budget().0,
                "peak_bytes": held.timeline().peak.0,
                "step_seconds": held.timeline().seconds.0,
                "bound_step_seconds": held.bound().map(|bound| bound.seconds.0),
                "runs": held.sequence().runs().into_iter().map(name).collect::<Vec<String>>(),
                "moves": moves.collect::<Vec<Value>>(),
            })
        }
        Err(error) => {
            let proof = error.infeasible().unwrap();
            json!({ "needed_bytes": proof.needed.0, "reached_bytes": proof.reached.0 })
        }
    }
}
