//! A step that ranks share. Invariant: each rank computes its own micro-batches with parameters
//! that all of them hold together; an update is that of one device with all micro-batches, except
//! for the order of sums.

use tightfit::id::RankId;
use tightfit::operator::Operator;
use tightfit::pipeline::accumulate;
use tightfit::sharded::{Collective, Reductions, Sharded, Sharding, ShardingError, shard};

use crate::step::divide::{Divided, DivisionError};
use crate::step::{Part, Share, Step};
use crate::transport::Route;

/// How a step is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// The number of ranks.
    pub ranks: u32,
    /// The micro-batches of an update, of all ranks together.
    pub micro_batches: u32,
    /// When gradients are reduced.
    pub reductions: Reductions,
}

impl Step {
    /// The step of one micro-batch, shared among ranks.
    ///
    /// # Errors
    /// [`DivisionError`] if it cannot be.
    pub fn sharded(&self, sharing: Sharing) -> Result<Divided, DivisionError> {
        let Sharing { ranks, micro_batches, reductions } = sharing;
        if ranks == 0 || !micro_batches.is_multiple_of(ranks) || micro_batches == 0 {
            return Err(ShardingError::Uneven { micro_batches, ranks }.into());
        }
        let own = micro_batches / ranks;
        let sharding = Sharding { ranks, reductions };
        let Sharded { graph, collectives, shapes } =
            shard(&accumulate(&self.training, own)?, sharding)?;
        let mut routes = routes(ranks, &collectives);
        let first_of_evaluation = routes.len() as u32;
        let evaluated = self.evaluation.as_ref().map(|graph| shard(graph, sharding)).transpose()?;
        routes.extend(evaluated.iter().flat_map(|it| self::routes(ranks, &it.collectives)));
        let evaluation = evaluated.map(|evaluated| evaluated.graph);
        let part = |rank: u32, micro_batches, whole: &Part| {
            let share = Some(Share { rank, ranks, shapes: shapes.clone() });
            Part { micro_batches, share, ..whole.clone() }
        };
        let step = |rank| Step {
            training: graph.clone(),
            part: part(rank, own, &self.part),
            evaluation: evaluation.clone(),
            evaluation_part: part(rank, 1, &self.evaluation_part),
            ..self.clone()
        };
        let ranks = (0..ranks).map(step).collect();
        Ok(Divided { ranks, routes, first_of_evaluation, not_evaluated: None })
    }
}

/// The messages of collectives, in their order.
fn routes(ranks: u32, collectives: &[Collective]) -> Vec<Route> {
    let mut routes = Vec::new();
    for Collective { operator, of } in collectives {
        let what = match operator {
            Operator::AllGather => format!("a shard of `{of}`"),
            _ => format!("a piece of the gradient that `{of}` makes"),
        };
        for from in (0..ranks).map(RankId::from_u32) {
            for to in (0..ranks).map(RankId::from_u32).filter(|&to| to != from) {
                routes.push(Route { from, to, what: what.clone() });
            }
        }
    }
    routes
}
