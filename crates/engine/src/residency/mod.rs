//! Adaptive residency: where stateful tensors lie in runs whose order is not known ahead, such as
//! several graphs in turn. Invariant: a pure state machine; it takes accesses and returns moves,
//! without input or output, clocks or threads, and the same accesses get the same moves.
//!
//! The first iteration of a graph is its warm-up, in which the order of accesses and the non-model
//! bytes are recorded. From then on it is steady: space is made by evicting what is used farthest
//! in the future. An iteration that deviates from the record is recorded again, and is correct all
//! the same.
//!
//! Sources: Fang et al., "PatrickStar: Parallel Training of Pre-trained Models via Chunk-based
//! Dynamic Memory Management", IEEE TPDS 34(1), 2023; ColossalAI's Gemini.

mod adaptive;
mod error;
mod farthest;
mod figures;
mod forecast;
mod id;
mod ledger;
mod margin;
mod moves;
mod occupancy;
mod order;
mod ours;
mod packing;
mod placing;
mod prefetch;
mod published;
mod region;
mod room;
mod settings;
mod shards;
mod state;
mod verify;
mod violation;

pub use adaptive::{Access, Residency};
pub use error::ResidencyError;
pub use figures::Figures;
pub use id::{BlockId, ChunkId, GraphKey, SlotId, TensorId};
pub use ledger::{Ledger, LedgerError, Payload, Tier};
pub use margin::{Margin, MarginRule, fill_margin};
pub use moves::{Move, Place, Purpose};
pub use order::{Order, Recorder};
pub use packing::{Block, MOST_CHUNKS, Packing, Span};
pub use published::by_next_use;
pub use settings::{Ahead, Policy, ResidencyVariant, Settings};
pub use shards::Shards;
pub use state::{IllegalTransition, LEGAL, Phase, TensorState, transition};
pub use verify::Verifier;
pub use violation::Violation;
