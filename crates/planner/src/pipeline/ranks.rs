//! The graphs of the ranks of a pipeline. Invariant: together they compute the step over all
//! micro-batches, each rank in the order of its row; and who executes each graph in its order,
//! where `tightfit.receive` waits until the message was sent and `tightfit.sent` until it was
//! received, comes to the end of all of them.
//!
//! That holds since the rows were simulated: what is sent is waited for behind the first action of
//! the sender that ends later than the one begins that receives it, so on no way from one rank to
//! another does that time go back.

use std::collections::BTreeMap;

use cranelift_entity::{PrimaryMap, SecondaryMap};

use crate::graph::Graph;
use crate::id::{NodeId, RankId, StageId};
use crate::pipeline::action::{Action, Pass, Rows};
use crate::pipeline::divide::{Division, Role};
use crate::pipeline::error::PipelineError;
use crate::pipeline::exchange::{Exchange, Message, UnderWay};
use crate::pipeline::simulate::{Performed, StageCost, simulate};
use crate::pipeline::unroll::Unroll;
use crate::units::Seconds;

/// The graphs of all ranks.
#[derive(Clone, Debug)]
pub struct Ranks {
    /// The graph of each rank; nodes keep the names of the step.
    pub graphs: PrimaryMap<RankId, Graph>,
    /// What goes from one to another, by the numbers that the graphs name.
    pub messages: Vec<Message>,
}

/// The graphs of the ranks that perform `rows` of a divided step.
///
/// # Errors
/// [`PipelineError`] where the rows make no sense or are those of another division, or where what
/// stays from step to step would have to be in two places.
pub fn ranks(division: &Division<'_>, rows: &Rows) -> Result<Ranks, PipelineError> {
    let Rows { placement, micro_batches, .. } = rows;
    if division.stages > placement.len() {
        let (stages, rows) = (division.stages, placement.len());
        return Err(PipelineError::OtherStages { stages, rows });
    }
    let ends = Ends::of(rows)?;
    let exchange = Exchange::new(division, placement, rows.rows.len(), *micro_batches)?;
    let mut passes: BTreeMap<(StageId, Pass), Vec<NodeId>> = BTreeMap::new();
    for id in division.graph.nodes().keys() {
        let Role::Pass(stage, pass) = division.roles[id] else { continue };
        passes.entry((stage, pass)).or_default().push(id);
        if pass != Pass::Forward {
            // Both parts in the order of the program.
            passes.entry((stage, Pass::Backward)).or_default().push(id);
        }
    }
    let mut graphs = PrimaryMap::new();
    for (rank, row) in &rows.rows {
        let mut unroll = Unroll::new(division, &exchange, rank, *micro_batches);
        for (index, action) in row.iter().enumerate() {
            for &id in passes.get(&(action.stage, action.pass)).into_iter().flatten() {
                unroll.run(id, action.micro_batch)?;
            }
            unroll.wait(|sent| is_due(rows, &exchange, &ends, (rank, index), sent));
        }
        for id in division.graph.nodes().keys() {
            if division.roles[id] == Role::Update && exchange.runs(id, rank) {
                unroll.update(id)?;
            }
        }
        graphs.push(unroll.build()?);
    }
    Ok(Ranks { graphs, messages: exchange.messages })
}

/// When actions begin and end where each pass of each stage takes as long.
struct Ends(PrimaryMap<RankId, Vec<(f64, f64)>>);

impl Ends {
    fn of(rows: &Rows) -> Result<Ends, PipelineError> {
        let cost = StageCost {
            forward: Seconds(1.0),
            input_gradient: Seconds(1.0),
            weight_gradient: Seconds(1.0),
            ..StageCost::default()
        };
        let simulated = simulate(rows, &SecondaryMap::with_default(cost))?;
        let times =
            |row: &Vec<Performed>| row.iter().map(|done| (done.start.0, done.end.0)).collect();
        Ok(Ends(simulated.ranks.values().map(times).collect()))
    }
}

/// What was sent is waited for behind an action: of the sender's, the first that ends later than
/// the one begins that receives it.
fn is_due(
    rows: &Rows,
    exchange: &Exchange,
    ends: &Ends,
    (rank, index): (RankId, usize),
    sent: &UnderWay,
) -> bool {
    let Some(micro_batch) = sent.micro_batch else { return false };
    let row: &[Action] = &rows.rows[sent.to];
    let Some(reader) = exchange.first_reader(sent.value, (sent.to, micro_batch), row) else {
        return false;
    };
    ends.0[rank][index].1 > ends.0[sent.to][reader].0
}
