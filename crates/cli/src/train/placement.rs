//! `--placement`: what decides where persistent tensors lie, and how much it moved. Invariant: the
//! figures of an iteration are those that the residency manager counted.

use std::fmt;

use clap::ValueEnum;
use serde_json::{Value, json};
use thiserror::Error;
use tightfit::exit::coded;
use tightfit::units::{Bytes, Seconds};
use tightfit_engine::residency::{Figures, Policy};
use tightfit_engine::{Iterations, Region};

use super::Arguments;
use crate::output;

/// What decides where parameters, buffers and optimizer state lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Placement {
    /// The plan, which knows the order of all calls and moves what they need before they run
    Planned,
    /// A manager that learns the order of calls while they run: it fetches what is needed from the
    /// tier and, if space is short, sends back what is needed latest
    Auto,
    /// The same, but everything goes back to the tier after each call, so that the slab can be as
    /// small as possible
    Host,
    /// The same, but nothing goes back: everything fits into the slab, or the run does not begin
    Device,
}

impl Placement {
    /// What the manager does with tensors while no call computes with them; `None` if the plan says
    /// where they lie.
    pub fn policy(self) -> Option<Policy> {
        match self {
            Placement::Planned => None,
            Placement::Auto => Some(Policy::Auto),
            Placement::Host => Some(Policy::Host),
            Placement::Device => Some(Policy::Device),
        }
    }
}

/// Options that contradict `--placement`.
#[derive(Debug, Error)]
pub enum Contradiction {
    /// The option needs a plan of all moves.
    #[error("{0} needs a plan of everything that moves, which only `--placement planned` has")]
    Plan(&'static str),
    /// There is no tier for what does not lie in the slab.
    #[error(
        "without a plan, parameters and optimizer state come from a tier and go back to it: name a \
         folder for it with `--tier DIR`"
    )]
    Tier,
}

/// If no plan says what moves, refuses options that need one, and a run without a tier.
pub fn consistent(arguments: &Arguments) -> Result<(), Contradiction> {
    if arguments.placement == Placement::Planned {
        return Ok(());
    }
    let options = [
        ("--replan", arguments.replan.is_some()),
        ("--output", arguments.output.is_some()),
        ("--trace", arguments.trace.is_some()),
    ];
    if let Some((option, _)) = options.into_iter().find(|&(_, is_given)| is_given) {
        return Err(Contradiction::Plan(option));
    }
    arguments.tier.as_ref().map_or(Err(Contradiction::Tier), |_| Ok(()))
}

/// Figures of what a run has moved.
#[derive(Debug, Default)]
pub struct Placed {
    /// The first step, which is its graph's warm-up.
    first: Option<Figures>,
    /// The last step.
    last: Figures,
    /// All iterations of the training, and all of the evaluation.
    all: [Iterations; 2],
    /// The volumes that were last added to each of these.
    volumes: [Option<[Bytes; 4]>; 2],
}

/// What one step moved, or one evaluation.
pub struct Moved {
    figures: Figures,
    iterations: u64,
    /// Whether it moved other volumes than the one before.
    pub is_new: bool,
}

impl Placed {
    /// Adds what was moved since the previous call; `None` if no iteration ran since.
    pub fn add(&mut self, done: &[Iterations; 2]) -> Option<Moved> {
        let mut moved = None;
        for (graph, iterations) in done.iter().enumerate().filter(|(_, it)| it.count > 0) {
            let &Iterations { count, figures } = iterations;
            let all = &mut self.all[graph];
            all.count += count;
            all.figures += figures;
            let Figures { to_device, to_host, dropped, within_device, .. } = figures;
            let volumes = Some([to_device, to_host, dropped, within_device]);
            let is_new = std::mem::replace(&mut self.volumes[graph], volumes) != volumes;
            if graph == 0 {
                self.first.get_or_insert(figures);
                self.last = figures;
            }
            moved = Some(Moved { figures, iterations: count, is_new });
        }
        moved
    }

    /// Bytes that left the region in the last step, and bytes that came back.
    pub fn moved(&self) -> [Bytes; 2] {
        [self.last.to_host, self.last.to_device]
    }

    /// What `train --json` answers as `placement`.
    pub fn json(&self, region: &Region) -> Value {
        let [training, evaluation] = &self.all;
        let policy = match region.policy {
            Policy::Auto => "auto",
            Policy::Host => "host",
            Policy::Device => "device",
        };
        json!({
            "policy": policy,
            "region_bytes": region.bytes(),
            "chunk_bytes": region.chunk,
            "tensor_bytes": region.tensor_bytes(),
            "first_step": self.first.as_ref().map(figures),
            "last_step": self.first.is_some().then(|| figures(&self.last)),
            "all_steps": figures(&training.figures),
            "all_evaluations": figures(&evaluation.figures),
            "evaluated_batches": evaluation.count,
        })
    }

    /// Prints what the first step and the last one moved.
    pub fn show(&self) -> output::Printed {
        for (name, moved) in [("first", self.first), ("last", self.first.map(|_| self.last))] {
            let Some(Figures { to_device, to_host, layout, eviction, .. }) = moved else {
                continue;
            };
            row!(
                if name == "first" { "moved" } else { "" },
                Bytes(to_device.0 + to_host.0),
                "the {name} step: {to_host} out, {to_device} back; calls waited {}, {} of it for \
                 evictions",
                output::milliseconds(layout),
                output::milliseconds(eviction)
            )?;
        }
        Ok(())
    }
}

impl Moved {
    /// What `train --json` has as `moved` for a step or an evaluation.
    pub fn json(&self) -> Value {
        let mut moved = figures(&self.figures);
        moved["iterations"] = json!(self.iterations);
        moved
    }
}

/// The line of a step or an evaluation.
impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Figures { to_device, to_host, dropped, layout, eviction, .. } = self.figures;
        write!(
            f,
            "{to_host} out, {to_device} back, {dropped} dropped; layout {}, of which eviction {}",
            output::milliseconds(layout),
            output::milliseconds(eviction)
        )
    }
}

/// What was moved, as JSON.
fn figures(moved: &Figures) -> Value {
    let Seconds(layout) = moved.layout;
    let Seconds(eviction) = moved.eviction;
    json!({
        "accesses": moved.accesses,
        "moves": moved.moves,
        "bytes_out": moved.to_host,
        "bytes_back": moved.to_device,
        "bytes_dropped": moved.dropped,
        "bytes_within": moved.within_device,
        "layout_seconds": layout,
        "eviction_seconds": eviction,
    })
}

coded!(Usage: Contradiction);
