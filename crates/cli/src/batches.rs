//! The batches of an update: how large each is, and how many there are. Invariant: planning,
//! checking and running a step with the same options refer to the same graph.

use std::fmt;

use clap::{Args, ValueEnum};
use thiserror::Error;
use tightfit::exit::coded;
use tightfit::graph::Graph;
use tightfit::pipeline::{PipelineError, accumulate};
use tightfit::plan::Planner;
use tightfit::profile::Profile;
use tightfit::sizes::{Dimension, LEAST, SizeError, resized};
use tightfit::split::{NotParts, Parts, Sums, split};
use tightfit_engine::{Divided, Division, FitTask, Step, fit_divided, parts_tried};

use crate::failure::Result;

/// Micro-batches with which every kind of call occurs: more need not be tried.
const TRIED: u32 = 2;

/// The batches of an update, as they are given on the command line.
#[derive(Args, Clone, Copy)]
pub struct Batches {
    /// Samples in a batch, where the step was captured with others: the graph is written again for
    /// that many
    #[arg(long = "batch", value_name = "N", value_parser = clap::value_parser!(u64).range(LEAST..))]
    samples: Option<u64>,
    /// Elements of a sample along the second dimension of the batch, such as words, where the step
    /// was captured with others
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(LEAST..))]
    length: Option<u64>,
    /// Micro-batches of an update: each is one batch of the step, and the update takes the means of
    /// their gradients
    #[arg(
        long = "microbatches",
        value_name = "M",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    micro_batches: u32,
    /// Chunks of rows in which the loss is computed, so that its logits exist for some rows at a
    /// time; `N:totals`: their gradient, too, of which each chunk adds a term to that of the
    /// weight; `N+M`, `1+M`: what layers make and do not keep, such as the hidden units of an MLP,
    /// in M chunks; `off`: all rows at once; `auto`: whatever makes the fastest plan (`check`:
    /// whatever the plan is for) [default: off with one planner by name, or on several ranks, else
    /// auto]
    #[arg(
        long,
        value_name = "off|auto|N",
        value_parser = split_of,
        allow_hyphen_values = true
    )]
    split: Option<Split>,
    /// Which chunks are tried: `equal`: those with which PyTorch computes the same bits; `any`:
    /// also those that change last digits [default: any; `train`: those with which it computes the
    /// same bits]
    #[arg(long, value_name = "equal|any", hide_possible_values = true)]
    bits: Option<Bits>,
}

/// What chunks may do to the results.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Bits {
    /// Nothing.
    Equal,
    /// They may change last digits.
    Any,
}

/// How a step is divided.
#[derive(Clone, Copy, PartialEq)]
enum Split {
    /// As makes the best plan.
    Auto,
    /// Into these parts.
    Into(Parts),
}

fn split_of(text: &str) -> Result<Split, String> {
    match text {
        "auto" => Ok(Split::Auto),
        text => {
            text.parse().map(Split::Into).map_err(|error: NotParts| format!("{error}; or `auto`"))
        }
    }
}

/// How a step is divided is to be decided where there is no plan to decide it by.
#[derive(Debug, Error)]
#[error(
    "`--split auto` is for one step that one process plans; give a number of chunks here, as the \
     one that `plan` found, or `off`"
)]
struct Undecided;

coded!(Usage: Undecided);

impl Default for Batches {
    /// One batch, as captured.
    fn default() -> Batches {
        Batches::of_micro_batches(1)
    }
}

impl Batches {
    /// This many micro-batches, each as captured.
    pub fn of_micro_batches(micro_batches: u32) -> Batches {
        Batches { samples: None, length: None, micro_batches, split: None, bits: None }
    }

    /// One batch with this many samples, each of this length; where `None` is given, as captured.
    pub fn of_size(samples: Option<u64>, length: Option<u64>) -> Batches {
        Batches { samples, length, micro_batches: 1, split: None, bits: None }
    }

    /// These batches, with the sizes of `later` where it has some.
    pub fn then(self, later: Batches) -> Batches {
        let (samples, length) = (later.samples.or(self.samples), later.length.or(self.length));
        Batches { samples, length, ..self }
    }

    /// The step made of these batches.
    pub fn of(self, graph: Graph) -> Result<Graph> {
        Ok(self.accumulated(self.split(self.sized(graph)?)?)?)
    }

    /// How the step is divided; `None`: as makes the best plan. A planner that is asked for by name
    /// plans the step as it is.
    pub fn parts(self, planner: Planner) -> Option<Parts> {
        match self.split {
            Some(Split::Into(parts)) => Some(parts),
            None if planner != Planner::Auto => Some(Parts::WHOLE),
            Some(Split::Auto) | None => None,
        }
    }

    /// Whether these parts may be tried.
    pub fn may_try(self, parts: Parts) -> bool {
        self.bits != Some(Bits::Equal) || parts.sums == Sums::AtOnce
    }

    /// Whether parts may be tried that change bits, since it was asked for.
    pub fn may_change_bits(self) -> bool {
        self.bits == Some(Bits::Any)
    }

    /// These batches, in these parts.
    pub fn in_parts(self, parts: Parts) -> Batches {
        Batches { split: Some(Split::Into(parts)), ..self }
    }

    /// The step of these batches, of which one has the size of `sized`, as a plan was made for it,
    /// and the plan, which `read` reads for a step.
    pub fn of_plan<T>(
        self,
        sized: &Graph,
        read: impl Fn(&Graph) -> Result<T>,
    ) -> Result<(Graph, T)> {
        let given = match self.split {
            Some(Split::Into(parts)) => Some(parts),
            Some(Split::Auto) | None => None,
        };
        let graph = self.accumulated(split(sized, given.unwrap_or(Parts::WHOLE))?)?;
        let refused = match read(&graph) {
            Ok(plan) => return Ok((graph, plan)),
            Err(error) => error,
        };
        for parts in parts_tried().filter(|_| given.is_none()) {
            let Ok(graph) = split(sized, parts) else { continue };
            let graph = self.accumulated(graph)?;
            if let Ok(plan) = read(&graph) {
                return Ok((graph, plan));
            }
        }
        Err(refused)
    }

    /// Plans the step of these batches, one of which has the size of `sized`, divided as these say.
    pub fn fit(
        self,
        sized: &Graph,
        profile: &dyn Fn(Parts, &Graph) -> Profile,
        task: &FitTask<'_>,
    ) -> Result<Divided> {
        let whole = self.accumulated(sized.clone())?;
        let given = self.parts(task.planner);
        given.map_or(Ok(()), |parts| split(sized, parts).map(drop))?;
        let graph = &|parts| {
            let tried = given.is_some() || self.may_try(parts);
            self.accumulated(tried.then(|| split(sized, parts).ok()).flatten()?).ok()
        };
        Ok(fit_divided(whole, Division { given, graph, profile }, task))
    }

    /// The step made of as many micro-batches, each as the graph has it.
    pub fn accumulated(self, graph: Graph) -> Result<Graph, PipelineError> {
        if self.micro_batches == 1 { Ok(graph) } else { accumulate(&graph, self.micro_batches) }
    }

    /// The step of one of these batches.
    pub fn sized(self, graph: Graph) -> Result<Graph, SizeError> {
        let resized = self.resized(&graph)?;
        self.unseen(&graph).for_each(Unseen::tell);
        Ok(resized)
    }

    /// The same, without a word about what is not known.
    pub fn resized(self, graph: &Graph) -> Result<Graph, SizeError> {
        resized(graph, &self.sizes().collect::<Vec<_>>())
    }

    /// A step that can be trained, of one of these batches.
    pub fn sized_step(self, step: Step) -> Result<Step> {
        let unseen: Vec<Unseen> = self.unseen(&step.training).collect();
        let resized = step.resized(&self.sizes().collect::<Vec<_>>())?;
        unseen.into_iter().for_each(Unseen::tell);
        Ok(resized)
    }

    /// The same with its loss in chunks.
    pub fn split_step(self, step: Step) -> Result<Step> {
        Ok(match self.asked()? {
            Some(parts) => step.split(parts)?,
            None => step,
        })
    }

    /// The step with its loss in chunks. A step at another size has other chunks.
    pub fn split(self, graph: Graph) -> Result<Graph> {
        Ok(match self.asked()? {
            Some(parts) => split(&graph, parts)?,
            None => graph,
        })
    }

    /// The chunks that are asked for, where no plan decides.
    fn asked(self) -> Result<Option<Parts>, Undecided> {
        if self.split == Some(Split::Auto) { Err(Undecided) } else { Ok(self.chunks()) }
    }

    /// What no capture of the step shows of these sizes.
    pub fn unseen(self, graph: &Graph) -> impl Iterator<Item = Unseen> + '_ {
        let both = (self.samples.is_some() && self.length.is_some()).then_some(Unseen::Both);
        let each = self.sizes().filter_map(|(dimension, size)| Unseen::of(graph, dimension, size));
        each.chain(both)
    }

    /// The number of micro-batches.
    pub fn micro_batches(self) -> u32 {
        self.micro_batches
    }

    /// The chunks that are asked for, if any are.
    pub fn chunks(self) -> Option<Parts> {
        match self.split {
            Some(Split::Into(parts)) if parts != Parts::WHOLE => Some(parts),
            _ => None,
        }
    }

    /// Whether a step that could be in chunks may not be.
    pub fn forbid_chunks(self, graph: &Graph) -> bool {
        self.split == Some(Split::Into(Parts::WHOLE)) && split(graph, Parts::of_loss(2)).is_ok()
    }

    /// The options for the fewest micro-batches whose step has every call that the requested number
    /// has.
    pub fn tried(self) -> Vec<String> {
        let sizes = self.sizes().map(|(dimension, size)| (dimension.name(), size));
        let micro_batches = ("microbatches", u64::from(self.micro_batches.min(TRIED)));
        let parts = self.chunks().map(|parts| ("split", parts.to_string()));
        let numbers = sizes.chain([micro_batches]);
        let all = numbers.map(|(name, number)| (name, number.to_string())).chain(parts);
        all.flat_map(|(name, value)| [format!("--{name}"), value]).collect()
    }

    /// The fraction of the step that those are.
    pub fn share_tried(self) -> f64 {
        f64::from(self.micro_batches.min(TRIED)) / f64::from(self.micro_batches)
    }

    /// The dimensions along which the step is to have another size.
    fn sizes(self) -> impl Iterator<Item = (Dimension, u64)> {
        let all = [(Dimension::Batch, self.samples), (Dimension::Length, self.length)];
        all.into_iter().filter_map(|(dimension, size)| Some((dimension, size?)))
    }
}

/// What no capture of a step shows of the sizes that are asked for. Displays what may be wrong.
pub enum Unseen {
    /// The step was not captured with another size along a dimension.
    Once(Dimension),
    /// It was, but only with sizes between these.
    Outside(Dimension, u64, (u64, u64)),
    /// It was not captured with another batch and another length at once.
    Both,
}

impl Unseen {
    /// What is not seen of a size, if anything is not.
    pub fn of(graph: &Graph, dimension: Dimension, size: u64) -> Option<Unseen> {
        match graph.recapture(dimension).map(|seen| seen.between) {
            Some(Some((least, most))) if (least..=most).contains(&size) => None,
            Some(Some(between)) => Some(Unseen::Outside(dimension, size, between)),
            None | Some(None) => Some(Unseen::Once(dimension)),
        }
    }

    /// Says so.
    pub fn tell(self) {
        note!("note: {self}");
    }
}

impl fmt::Display for Unseen {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unseen::Once(dimension) => write!(
                formatter,
                "the graph does not say that the step was captured with another {}: numbers that \
                 the model computes from it may be taken for constants; export the step again to \
                 have them compared",
                dimension.name()
            ),
            Unseen::Outside(dimension, size, (least, most)) => write!(
                formatter,
                "the step was captured with a {0} of {least} to {most}, and with {size} it is \
                 taken to be alike; a model that limits or rounds the {0} may do something else \
                 there",
                dimension.name()
            ),
            Unseen::Both => write!(
                formatter,
                "the step was captured with other batches and with other lengths, but not with \
                 both at once; a model that limits or rounds their product may do something else"
            ),
        }
    }
}
