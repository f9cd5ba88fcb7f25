//! The graphs of the ranks of a pipeline. Invariant: together they compute the step over all
//! micro-batches, each rank in the order of its row; and executing each graph in its order, with
//! `tightfit.receive` waiting until the message was sent and `tightfit.sent` until it was received,
//! reaches the end of all of them.
//!
//! That holds because the rows were simulated: a send is waited for after an action of the sender
//! that ends later than the beginning of the action that receives it, so on no path from one rank
//! to another does that time go backwards. It is not the first such action: in the simulation all
//! passes take equally long, and if one takes longer its sender would stall merely to save memory.

use std::collections::BTreeMap;

use cranelift_entity::{PrimaryMap, SecondaryMap};

use crate::graph::Graph;
use crate::id::{NodeId, RankId, StageId};
use crate::pipeline::action::{Pass, Rows};
use crate::pipeline::divide::{Division, Role};
use crate::pipeline::error::PipelineError;
use crate::pipeline::exchange::{Exchange, Message};
use crate::pipeline::simulate::{Simulated, StageCost, simulate};
use crate::pipeline::unroll::Unroll;
use crate::pipeline::validate::RowsError;
use crate::units::Seconds;

/// How much longer messages occupy memory than the order of the rows requires. Passes do not all
/// take equally long, so ranks that send or receive early wait less for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leeway {
    /// The number of actions before the one that reads a message at which its memory is ready, so
    /// that it can arrive during these; with 0 it is ready when the receiver waits.
    pub ahead: usize,
    /// The number of passes by which the wait for the end of a message is later than it would be if
    /// all passes took equally long.
    pub behind: u32,
}

impl Leeway {
    /// The least memory.
    pub const NONE: Leeway = Leeway { ahead: 0, behind: 0 };
    /// Enough that senders do not stall for receivers that take a little longer.
    pub const OF_SENDERS: Leeway = Leeway { ahead: 0, behind: 2 };
}

/// The graphs of all ranks.
#[derive(Clone, Debug)]
pub struct Ranks {
    /// The graph of each rank; nodes keep the names of the step.
    pub graphs: PrimaryMap<RankId, Graph>,
    /// Which outputs of the step each rank makes: those of its graph, by their numbers.
    pub outputs: PrimaryMap<RankId, Vec<usize>>,
    /// The first node of each action of a rank's row, and of its update.
    pub begins: PrimaryMap<RankId, Vec<NodeId>>,
    /// The messages between ranks, by the numbers that the graphs use.
    pub messages: Vec<Message>,
}

/// The graphs of the ranks that perform `rows` of a divided step.
///
/// # Errors
/// [`PipelineError`] if the rows are invalid or belong to another division, or if what stays from
/// step to step would have to be in two places.
pub fn ranks(division: &Division<'_>, rows: &Rows, leeway: Leeway) -> Result<Ranks, PipelineError> {
    let Rows { placement, micro_batches, .. } = rows;
    if division.stages > placement.len() {
        let (stages, rows) = (division.stages, placement.len());
        return Err(PipelineError::OtherStages { stages, rows });
    }
    if let Some(action) = division.backward().filter(|_| rows.is_forward()) {
        let rank = placement[action.stage];
        return Err(RowsError::Missing { rank, action }.into());
    }
    let times = in_unit_time(rows)?.ranks;
    let exchange = Exchange::new(division, placement, rows.rows.len(), *micro_batches)?;
    let read = exchange.first_reads(rows, |rank, index| times[rank][index].start);
    let mut passes: BTreeMap<(StageId, Pass), Vec<NodeId>> = BTreeMap::new();
    for id in division.graph.nodes().keys() {
        let Role::Pass(stage, pass) = division.roles[id] else { continue };
        passes.entry((stage, pass)).or_default().push(id);
        if pass != Pass::Forward {
            // Both parts in the order of the program.
            passes.entry((stage, Pass::Backward)).or_default().push(id);
        }
    }
    let (mut graphs, mut outputs) = (PrimaryMap::new(), PrimaryMap::new());
    let mut begins = PrimaryMap::new();
    for (rank, row) in &rows.rows {
        let mut unroll = Unroll::new(division, &exchange, rank, *micro_batches);
        let mut firsts = Vec::with_capacity(row.len() + 1);
        for (index, action) in row.iter().enumerate() {
            firsts.push(unroll.builder.next_node());
            for next in row.iter().skip(index + 1).take(leeway.ahead) {
                unroll.post(next);
            }
            for &id in passes.get(&(action.stage, action.pass)).into_iter().flatten() {
                unroll.run(id, action.micro_batch)?;
            }
            let end = times[rank][index].end;
            unroll.wait(|sent| end.0 > read[sent.message].0 + f64::from(leeway.behind));
        }
        firsts.push(unroll.builder.next_node());
        begins.push(firsts);
        for id in division.graph.nodes().keys() {
            if division.roles[id] == Role::Update && exchange.runs(id, rank) {
                unroll.update(id)?;
            }
        }
        let (graph, here) = unroll.build()?;
        graphs.push(graph);
        outputs.push(here);
    }
    Ok(Ranks { graphs, outputs, begins, messages: exchange.messages })
}

/// Times of rows, if each pass of each stage takes equally long.
fn in_unit_time(rows: &Rows) -> Result<Simulated, PipelineError> {
    let cost = StageCost {
        forward: Seconds(1.0),
        input_gradient: Seconds(1.0),
        weight_gradient: Seconds(1.0),
        ..StageCost::default()
    };
    Ok(simulate(rows, &SecondaryMap::with_default(cost))?)
}
