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
    /// PyTorch's kernels: the graph says what they were measured to need, and an output may be
    /// written over a dying input where the operator table allows it.
    Torch,
    /// Unknown kernels: nothing holds but what the graph records.
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

/// What holds for memory and time under a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Where workspaces are found.
    pub workspaces: Workspaces,
    /// An output may take over the memory of a dying input where the operator allows it.
    pub in_place: bool,
    /// The operands of matrix products are packed into memory beside the slab.
    pub packs: bool,
    /// The budget is memory of this computer, and seconds measured for the engine's calls hold.
    pub runs_here: bool,
    /// Bytes that the process takes before the first call.
    pub base: Bytes,
}

impl Runtime {
    /// Its rules.
    pub const fn rules(self) -> Rules {
        let recorded = Rules {
            workspaces: Workspaces::OfGraph,
            in_place: false,
            packs: false,
            runs_here: false,
            base: Bytes::ZERO,
        };
        match self {
            Runtime::Engine => Rules {
                workspaces: Workspaces::OfTable,
                in_place: true,
                packs: true,
                runs_here: true,
                ..recorded
            },
            Runtime::Torch => Rules { in_place: true, ..recorded },
            Runtime::Recorded => recorded,
        }
    }
}
