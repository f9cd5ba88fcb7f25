//! A step over several micro-batches, on one device or on the ranks of a pipeline. Invariant: the
//! parts together are the step; a rank's evaluation reads only what its training keeps there.

use std::collections::BTreeSet;

use thiserror::Error;
use tightfit::exit::coded;
use tightfit::graph::{Graph, Phase};
use tightfit::id::{MicroBatchId, NodeId, PrimaryMap, RankId, SecondaryMap, StageId};
use tightfit::pipeline::{
    Division, Leeway, Message, PipelineError, Ranks, Rows, accumulate, follow, name_of, ranks,
};
use tightfit::sharded::ShardingError;
use tightfit::sizes::{Dimension, SizeError, resized};
use tightfit::split::{Parts, SplitError, split};

use crate::step::{Part, Step};
use crate::transport::Route;

/// A step divided among ranks.
#[derive(Debug)]
pub struct Divided {
    /// Each rank's part of it: the evaluation graph too, unless that cannot be divided this way.
    pub ranks: PrimaryMap<RankId, Step>,
    /// The messages of a step, followed by those of an evaluation.
    pub routes: Vec<Route>,
    /// The number of the evaluation's first message.
    pub first_of_evaluation: u32,
    /// Why no rank has an evaluation graph although the step has one.
    pub not_evaluated: Option<NotDivided>,
}

/// Why a step is not divided among ranks.
#[derive(Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum DivisionError {
    /// It has no stages, or no micro-batches.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// It cannot be shared.
    #[error(transparent)]
    Sharding(#[from] ShardingError),
}

coded!(Usage: DivisionError);

/// Why an evaluation is not divided as its training is.
#[derive(Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum NotDivided {
    /// It cannot be cut there.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// It reads what another rank keeps.
    #[error("it reads `{name}` on {rank}, where training does not keep it")]
    Elsewhere {
        /// The parameter or buffer.
        name: String,
        /// The rank.
        rank: RankId,
    },
}

impl Step {
    /// The step whose batch has another size. Along the length, batches of the evaluation have it
    /// too; how many samples they have is their own matter.
    ///
    /// # Errors
    /// [`SizeError`] if it is not known what the step would be.
    pub fn resized(mut self, sizes: &[(Dimension, u64)]) -> Result<Step, SizeError> {
        self.training = resized(&self.training, sizes)?;
        let is_length = |(dimension, _): &&(Dimension, u64)| *dimension == Dimension::Length;
        let lengths: Vec<(Dimension, u64)> = sizes.iter().filter(is_length).copied().collect();
        let evaluation = self.evaluation.as_ref().map(|graph| resized(graph, &lengths));
        self.evaluation = evaluation.transpose()?;
        for &(dimension, size) in sizes {
            self.data = self.data.resized(dimension, size);
        }
        self.part = Part::whole(&self.training);
        self.evaluation_part = self.evaluation.as_ref().map(Part::whole).unwrap_or_default();
        Ok(self)
    }

    /// The same step with its loss computed in as many chunks of rows.
    ///
    /// # Errors
    /// [`SplitError`] if the loss of the training graph cannot be divided.
    pub fn split(mut self, parts: Parts) -> Result<Step, SplitError> {
        self.training = split(&self.training, parts)?;
        self.part = Part::whole(&self.training);
        Ok(self)
    }

    /// The step of this many micro-batches, on one device.
    ///
    /// # Errors
    /// [`PipelineError`] if it has outputs for which a mean makes no sense, or there are too many.
    pub fn accumulated(mut self, micro_batches: u32) -> Result<Step, PipelineError> {
        if micro_batches != 1 {
            self.training = accumulate(&self.training, micro_batches)?;
        }
        self.part.micro_batches = micro_batches;
        Ok(self)
    }

    /// The step of one micro-batch divided among the ranks that perform `rows`; forward nodes
    /// belong to the stages that `of_forward` says; `leeway` says how much longer messages hold
    /// memory.
    ///
    /// # Errors
    /// [`PipelineError`] if it cannot be divided this way.
    pub fn divided(
        &self,
        of_forward: &SecondaryMap<NodeId, StageId>,
        rows: &Rows,
        leeway: Leeway,
    ) -> Result<Divided, PipelineError> {
        let division = Division::new(&self.training, of_forward)?;
        let Ranks { graphs, outputs, messages, .. } = ranks(&division, rows, leeway)?;
        let mut routes: Vec<Route> =
            messages.iter().map(|message| route(&self.training, message)).collect();
        let first_of_evaluation = routes.len() as u32;
        let mut not_evaluated = None;
        let evaluated = self.evaluation.as_ref().and_then(|graph| {
            let divided = evaluation(&division, graph, rows, &graphs);
            divided.map_err(|error| not_evaluated = Some(error)).ok()
        });
        if let (Some(graph), Some(evaluated)) = (&self.evaluation, &evaluated) {
            routes.extend(evaluated.messages.iter().map(|message| route(graph, message)));
        }
        let part = |micro_batches, whole: &Part, outputs: &[usize]| Part {
            micro_batches,
            outputs: Some(outputs.to_vec()),
            ..whole.clone()
        };
        let step = |(rank, training): (RankId, Graph)| Step {
            training,
            part: part(rows.micro_batches, &self.part, &outputs[rank]),
            evaluation: evaluated.as_ref().map(|ranks| ranks.graphs[rank].clone()),
            evaluation_part: part(
                1,
                &self.evaluation_part,
                evaluated.as_ref().map_or(&[], |ranks| &ranks.outputs[rank]),
            ),
            ..self.clone()
        };
        let ranks = graphs.into_iter().map(step).collect();
        Ok(Divided { ranks, routes, first_of_evaluation, not_evaluated })
    }
}

/// The graphs of an evaluation, which follows the parameters to their ranks.
fn evaluation(
    division: &Division<'_>,
    graph: &Graph,
    rows: &Rows,
    training: &PrimaryMap<RankId, Graph>,
) -> Result<Ranks, NotDivided> {
    let evaluated = Division::of_one_batch(graph, &follow(division, graph))?;
    let evaluated =
        ranks(&evaluated, &Rows::forward(&rows.placement, rows.rows.len()), Leeway::NONE)?;
    for (rank, graph) in &evaluated.graphs {
        let kept: BTreeSet<&str> = persistent(&training[rank]).collect();
        if let Some(name) = persistent(graph).find(|name| !kept.contains(name)) {
            return Err(NotDivided::Elsewhere { name: name.to_string(), rank });
        }
    }
    Ok(evaluated)
}

/// The names of what stays from step to step.
fn persistent(graph: &Graph) -> impl Iterator<Item = &str> {
    let placeholders = graph.nodes().values().filter(|node| node.phase.is_persistent());
    placeholders.filter_map(|node| node.parameter.as_deref())
}

/// A message in words.
fn route(graph: &Graph, message: &Message) -> Route {
    let producer = &graph.nodes()[graph.values()[message.value].producer];
    let kind = match (producer.phase, message.micro_batch) {
        (_, None) => "summed for the update",
        (Phase::Backward, Some(_)) => "a gradient",
        (_, Some(_)) => "an activation",
    };
    let name = name_of(&producer.name, message.micro_batch.unwrap_or(MicroBatchId::from_u32(0)));
    Route { from: message.from, to: message.to, what: format!("`{name}` ({kind})") }
}
