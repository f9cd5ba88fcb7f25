//! The readers: what they accept obeys the laws of its format, and what they refuse they refuse
//! with a message. Invariant: nothing is executed here.

use std::path::Path;

use tightfit::analysis::modules::{ModuleInfo, measure};
use tightfit::graph::{Graph, read, write, write_file};
use tightfit::machine::Machine;
use tightfit::profile::Profile;
use tightfit::schedule;
use tightfit_engine::Session;
use tightfit_engine::weights;

use crate::target::{execute, refused};
use crate::verdict::Verdict;

fn wrong(what: &str) -> Verdict {
    Verdict::Wrong(what.to_string())
}

/// A graph: written again it reads the same, and no analysis fails on it.
pub fn graph(bytes: &[u8]) -> Verdict {
    let graph = match read(bytes) {
        Ok(graph) => graph,
        Err(error) => return refused("reading", &error),
    };
    for packed in [false, true] {
        match read(&write_file(&graph, packed)) {
            Ok(again) if again == graph => {}
            // NaN is not equal to itself.
            Ok(again) if write(&again) == write(&graph) => {}
            Ok(_) => return wrong("a graph that was written reads as another"),
            Err(error) => return Verdict::Wrong(format!("a written graph is refused: {error}")),
        }
    }
    analyse(&graph)
}

fn analyse(graph: &Graph) -> Verdict {
    let Ok(preset) = Machine::preset("a100-80gb") else { return wrong("a preset is gone") };
    for machine in [Machine::unmeasured_cpu(2), preset] {
        let profile = Profile::new(graph, &machine);
        if let Err(error) = tightfit::unplanned(graph, &profile) {
            return refused("checking as captured", &error);
        }
        let info = match measure(graph, &profile.without_reuse()) {
            Ok(info) => info,
            Err(error) => return refused("measuring modules", &error),
        };
        if let Err(error) = ModuleInfo::from_json(info.to_json().as_bytes()) {
            return Verdict::Wrong(format!("statistics that were made are refused: {error}"));
        }
    }
    Verdict::Accepted
}

/// A step's folder with its data.
pub fn step(folder: &Path) -> Verdict {
    match execute::open(folder) {
        Ok(_) => Verdict::Accepted,
        Err(verdict) => verdict,
    }
}

/// A plan for a graph, read only.
pub fn plan(graph: &[u8], plan: &[u8]) -> Verdict {
    let graph = match read(graph) {
        Ok(graph) => graph,
        Err(error) => return refused("reading the graph", &error),
    };
    let schedule = match schedule::read(&graph, plan) {
        Ok(schedule) => schedule,
        Err(error) => return refused("reading", &error),
    };
    match schedule::read(&graph, schedule::write(&graph, &schedule).to_string().as_bytes()) {
        Ok(again) if again == schedule => Verdict::Accepted,
        Ok(_) => wrong("a plan that was written reads as another"),
        Err(error) => Verdict::Wrong(format!("a plan that was written is refused: {error}")),
    }
}

/// Statistics of modules.
pub fn modules(bytes: &[u8]) -> Verdict {
    let info = match ModuleInfo::from_json(bytes) {
        Ok(info) => info,
        Err(error) => return refused("reading", &error),
    };
    let text = info.to_json();
    match ModuleInfo::from_json(text.as_bytes()) {
        Ok(again) if again.to_json() == text => {}
        Ok(_) => return wrong("statistics that were written read as others"),
        Err(error) => return Verdict::Wrong(format!("written statistics are refused: {error}")),
    }
    // Sums over modules must not fail either.
    let _ = (info.baseline_peak(), info.baseline_seconds(), info.ancestor_matrix().len());
    Verdict::Accepted
}

/// Weights for a session: all of them, or none.
pub fn weights(file: &Path, session: &mut Session, name: &str) -> Verdict {
    let held = |session: &Session| -> Vec<u8> {
        let residents = session.residents().values();
        residents
            .flat_map(|resident| session.resident_bytes(resident).unwrap_or_default())
            .collect()
    };
    let before = (held(session), session.next_step, session.seed);
    match weights::load(file, session, name) {
        Ok(_) => Verdict::Accepted,
        Err(error) if (held(session), session.next_step, session.seed) == before => {
            refused("reading", &error)
        }
        Err(error) => Verdict::Wrong(format!("refused, but weights changed: {error}")),
    }
}
