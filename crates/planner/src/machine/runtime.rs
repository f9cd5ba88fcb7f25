//! Whose kernels execute a schedule, and what follows from that. Invariant: plain data; the
//! operator table and the profile consult the rules, and no code asks for the runtime itself if a
//! rule answers the question.

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// Whose kernels run on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Runtime {
    /// The engine of this project: the operator table says what its kernels need.
    Engine,
    /// Kernels that the graph describes, such as PyTorch's: only what it records applies.
    Recorded,
}

/// Where the transient bytes of calls come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workspaces {
    /// In the operator table, for the engine's kernels; in the graph for operators without a row.
    OfTable,
    /// In the graph, as measured or stated.
    OfGraph,
}

/// Where to find which inputs a call's first output may take over, if they die with the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// Nowhere: every output has memory of its own.
    Nothing,
    /// In the operator table, for the engine's kernels.
    OfTable,
    /// In the graph, as tried out.
    OfGraph,
}

impl Reuse {
    /// Whether any output may take over an input.
    pub const fn is_any(self) -> bool {
        !matches!(self, Reuse::Nothing)
    }
}

/// The rules for memory and time under a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The source of workspaces.
    pub workspaces: Workspaces,
    /// The source of reuse of dying inputs.
    pub reuse: Reuse,
    /// Whether the operands of matrix products are packed into memory outside the slab.
    pub packs: bool,
    /// Whether the budget is memory of this computer, so that seconds measured for the engine's
    /// calls apply.
    pub runs_here: bool,
    /// Bytes that the process takes before the first call.
    pub base: Bytes,
    /// Bytes of tables for each call that computes a node again.
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
                // For schedule, timeline and kernel: measured, with a margin.
                repeated: Bytes(1280),
                ..recorded
            },
            Runtime::Recorded => recorded,
        }
    }
}
