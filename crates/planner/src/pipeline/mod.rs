//! A step over several micro-batches, on one device or on several. Invariant: everything that a
//! pipeline does becomes a graph, one for each rank, in which every micro-batch has nodes of its
//! own; so planners, checker and engine need not know about it.

mod accumulate;
mod action;
mod csv;
mod cut;
mod decide;
mod divide;
mod error;
mod exchange;
mod layers;
mod messages;
mod ranks;
mod rows;
mod simulate;
mod span;
pub mod stages;
mod together;
mod unroll;
mod validate;

pub use accumulate::accumulate;
pub use action::{Action, Pass, Rows};
pub use csv::{CsvError, read_csv, write_csv};
pub use cut::{CutError, beginnings, ends};
pub use decide::{Decided, LayeredModel, Order, Planning, Time};
pub use divide::{Division, Role};
pub use error::PipelineError;
pub use exchange::Message;
pub use layers::{
    Entry, Layer, assign, at_modules, cut_evenly, follow, is_within, layers, layers_beginning_with,
    layers_for_all_orders,
};
pub use ranks::{Leeway, Ranks, ranks};
pub use rows::{PipelineSchedule, Unsuited, greedy, in_turn, interleaved};
pub use simulate::{Performed, Simulated, StageCost, simulate};
pub use span::span;
pub use together::{RankInTime, together};
pub use unroll::name_of;
pub use validate::{RowsError, Waiting, validate};
