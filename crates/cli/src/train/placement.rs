//! `--placement`: what decides where persistent tensors lie, and how much had to be moved for that.
//! Invariant: figures of an iteration are those that its manager of residency counted.

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
    /// The plan, which knows the order of all calls and moves what they need ahead of them
    Planned,
    /// A manager that learns the order of calls while they run: what is needed comes from the tier,
    /// and what is needed last goes there if space is short
    Auto,
    /// The same, but everything goes back to the tier after each call: the least that the slab can
    /// have
    Host,
    /// The same, but nothing goes: everything fits into the slab, or the run does not begin
    Device,
}

impl Placement {
    /// What a manager does with tensors that no call computes with; none if the plan says where
    /// they lie.
    pub fn policy(self) -> Option<Policy> {
        match self {
            Placement::Planned => None,
            Placement::Auto => Some(Policy::Auto),
            Placement::Host => Some(Policy::Host),
            Placement::Device => Some(Policy::Device),
        }
    }
}

/// Options that do not go with `--placement`.
#[derive(Debug, Error)]
pub enum Contradiction {
    /// It needs a plan of all moves.
    #[error("{0} needs a plan of everything that moves, which only `--placement planned` has")]
    Plan(&'static str),
    /// There is no place for what does not lie in the slab.
    #[error(
        "without a plan, parameters and optimizer state come from a tier and go there: name a \
         folder for it with `--tier DIR`"
    )]
    Tier,
}

/// Refuses options that are about a plan of all moves if there is none.
pub fn consistent(arguments: &Arguments) -> Result<(), Contradiction> {
    if arguments.placement == Placement::Planned {
        return Ok(());
    }
    let options = [
        ("--replan", arguments.replan.is_some()),
        ("--output", arguments.output.is_some()),
        ("--trace", arguments.trace.is_some()),
    ];
    if let Some((option, _)) = options.into_iter().find(|&(_, is_asked)| is_asked) {
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
    /// All iterations of the training and of the evaluation.
    all: [Iterations; 2],
    /// The volumes that were last shown of each.
    shown: [Option<[Bytes; 4]>; 2],
}

/// What one step moved, or one evaluation.
pub struct Moved {
    figures: Figures,
    iterations: u64,
    /// It moved other volumes than the one before.
    pub is_new: bool,
}

impl Placed {
    /// Adds what was moved since the last step or the last evaluation.
    pub fn add(&mut self, done: &[Iterations; 2]) -> Option<Moved> {
        let mut moved = None;
        for (graph, iterations) in done.iter().enumerate().filter(|(_, it)| it.count > 0) {
            let &Iterations { count, figures } = iterations;
            let all = &mut self.all[graph];
            all.count += count;
            all.figures += figures;
            let Figures { to_device, to_host, dropped, within_device, .. } = figures;
            let volumes = Some([to_device, to_host, dropped, within_device]);
            let is_new = std::mem::replace(&mut self.shown[graph], volumes) != volumes;
            if graph == 0 {
                self.first.get_or_insert(figures);
                self.last = figures;
            }
            moved = Some(Moved { figures, iterations: count, is_new });
        }
        moved
    }

    /// Bytes that left the region in the last step, and those that came.
    pub fn moved(&self) -> [Bytes; 2] {
        [self.last.to_host, self.last.to_device]
    }

    /// For programs.
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

    /// For people.
    pub fn show(&self) -> output::Printed {
        for (name, moved) in [("first", self.first), ("last", self.first.map(|_| self.last))] {
            let Some(Figures { to_device, to_host, layout, eviction, .. }) = moved else {
                continue;
            };
            row!(
                if name == "first" { "moved" } else { "" },
                Bytes(to_device.0 + to_host.0),
                "the {name} step: {to_host} out, {to_device} back; {} until all was \
                 there, {} of it for evictions",
                output::milliseconds(layout),
                output::milliseconds(eviction)
            )?;
        }
        Ok(())
    }
}

impl Moved {
    /// For programs.
    pub fn json(&self) -> Value {
        let mut moved = figures(&self.figures);
        moved["iterations"] = json!(self.iterations);
        moved
    }
}

/// For people.
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

/// What was moved, for programs.
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
