//! Whose kernels execute a schedule, and what follows from that. Invariant: plain data; the
//! operator table and the profile consult the rules, and nothing asks for the runtime itself that a
//! rule could answer.

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// Whose kernels run on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Runtime {
    /// The engine of this project: the operator table says what its kernels need.
    Engine,
    /// Kernels that the graph speaks of, such as PyTorch's: what it records holds, and nothing
    /// else.
    Recorded,
}

/// Where the transient bytes of calls are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workspaces {
    /// In the operator table, for the engine's kernels; in the graph for operators without a row.
    OfTable,
    /// In the graph, as they were measured or stated.
    OfGraph,
}

/// Where it is said which inputs a call's first output may take over the memory of, where they die
/// with the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// Nowhere: every output has memory of its own.
    Nothing,
    /// In the operator table, for the engine's kernels.
    OfTable,
    /// In the graph, as it was tried.
    OfGraph,
}

impl Reuse {
    /// Whether any output may take over an input.
    pub const fn is_any(self) -> bool {
        !matches!(self, Reuse::Nothing)
    }
}

/// What holds for memory and time under a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Where workspaces are found.
    pub workspaces: Workspaces,
    /// Where reuse of dying inputs is found.
    pub reuse: Reuse,
    /// The operands of matrix products are packed into memory beside the slab.
    pub packs: bool,
    /// The budget is memory of this computer, and seconds measured for the engine's calls hold.
    pub runs_here: bool,
    /// Bytes that the process takes before the first call.
    pub base: Bytes,
    /// Bytes of tables that a call takes which computes a node again.
    pub repeated: Bytes,
}

impl Runtime {
    /// Its rules.
    pub const fn rules(self) -> Rules {
        let recorded = Rules {
            workspaces: Workspaces::OfGraph,
            reuse: Reuse::OfGraph,
            packs: false,
            runs_here: false,
            base: Bytes::ZERO,
            repeated: Bytes::ZERO,
        };
        match self {
            Runtime::Engine => Rules {
                workspaces: Workspaces::OfTable,
                reuse: Reuse::OfTable,
                packs: true,
                runs_here: true,
                // Schedule, timeline and kernel: measured, with a margin.
                repeated: Bytes(1280),
                ..recorded
            },
            Runtime::Recorded => recorded,
        }
    }
}
