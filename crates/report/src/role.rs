//! What bytes are there for. Invariant: every storage of a step has one role, according to its
//! producer and its readers; only a schedule says what is a recomputation or workspace.

use cranelift_entity::SecondaryMap;
use tightfit::graph::{Graph, Phase};
use tightfit::id::StorageId;

/// What bytes are there for, in the order in which drawings stack them: what stays lies at the
/// bottom.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Trained weights.
    Parameters,
    /// Constants and running statistics of the model.
    Buffers,
    /// What the optimizer keeps, and what its nodes make.
    OptimizerState,
    /// Inputs, targets and the gradient that the step starts from.
    Batch,
    /// Gradients of parameters: kept, or read by the optimizer.
    Gradients,
    /// Made by the forward pass or the loss, for the first time.
    #[default]
    Activations,
    /// Made again.
    Recomputed,
    /// Everything else that the backward pass makes.
    ActivationGradients,
    /// Scratch memory of the call that runs.
    Workspace,
}

/// Bytes of each role, in the order of [`Role::ALL`].
pub type ByRole<T> = [T; Role::ALL.len()];

impl Role {
    /// Every role, from the bottom of a stack to its top.
    pub const ALL: [Role; 9] = [
        Role::Parameters,
        Role::Buffers,
        Role::OptimizerState,
        Role::Batch,
        Role::Gradients,
        Role::Activations,
        Role::Recomputed,
        Role::ActivationGradients,
        Role::Workspace,
    ];

    /// Its name in prose, legends and traces.
    pub fn name(self) -> &'static str {
        match self {
            Role::Parameters => "parameters",
            Role::Buffers => "buffers",
            Role::OptimizerState => "optimizer state",
            Role::Batch => "batch",
            Role::Gradients => "gradients",
            Role::Activations => "activations",
            Role::Recomputed => "recomputed",
            Role::ActivationGradients => "activation gradients",
            Role::Workspace => "workspace",
        }
    }

    /// The meaning of the name, for readers who do not know it.
    pub fn meaning(self) -> &'static str {
        match self {
            Role::Parameters => "trained weights",
            Role::Buffers => "constants and running statistics of the model",
            Role::OptimizerState => "what the optimizer keeps from step to step",
            Role::Batch => "inputs, targets and the gradient that the step starts from",
            Role::Gradients => "gradients of parameters",
            Role::Activations => "made by the forward pass or the loss",
            Role::Recomputed => "activations made again",
            Role::ActivationGradients => "all else that the backward pass makes",
            Role::Workspace => "scratch memory of the operator that runs",
        }
    }

    /// Its colour on a light and on a dark ground, after Paul Tol's schemes that colour-blind
    /// people can tell apart; on a light ground, adjacent ones also differ in brightness, for print
    /// without colours.
    pub fn colours(self) -> (&'static str, &'static str) {
        match self {
            Role::Parameters => ("#4477aa", "#5b8fc7"),
            Role::Buffers => ("#8fb8de", "#a9cbea"),
            Role::OptimizerState => ("#0a5360", "#2fa5b8"),
            Role::Batch => ("#8c8c8c", "#9c9c9c"),
            Role::Gradients => ("#4fae5f", "#3faa52"),
            Role::Activations => ("#e9ac3a", "#d99a2b"),
            Role::Recomputed => ("#aa3377", "#cf5f9f"),
            Role::ActivationGradients => ("#c3e6ad", "#9ad07a"),
            Role::Workspace => ("#cc3311", "#ee6a4d"),
        }
    }
}

/// The role of each storage when it is made for the first time.
pub fn roles(graph: &Graph) -> SecondaryMap<StorageId, Role> {
    let mut updated: SecondaryMap<StorageId, bool> =
        SecondaryMap::with_capacity(graph.storages().len());
    for (node, _) in graph.nodes().iter().filter(|(_, node)| node.phase == Phase::Optimizer) {
        for &storage in graph.reads(node) {
            updated[storage] = true;
        }
    }
    let mut roles = SecondaryMap::with_capacity(graph.storages().len());
    for storage in graph.storages().keys() {
        let Some(producer) = graph.producer(storage) else { continue };
        roles[storage] = match graph.nodes()[producer].phase {
            Phase::Parameter => Role::Parameters,
            Phase::Buffer => Role::Buffers,
            Phase::State | Phase::Optimizer => Role::OptimizerState,
            Phase::Input | Phase::Tangent => Role::Batch,
            Phase::Forward | Phase::Loss => Role::Activations,
            Phase::Backward if updated[storage] || graph.is_kept(storage) => Role::Gradients,
            Phase::Backward => Role::ActivationGradients,
        };
    }
    roles
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_all_roles_is_their_own() {
        for (index, role) in Role::ALL.into_iter().enumerate() {
            assert_eq!(role as usize, index, "{}", role.name());
        }
    }

    #[test]
    fn neighbours_differ_on_paper_without_colours() {
        let brightness = |role: Role| {
            let hex = role.colours().0;
            let part = |at: usize| f64::from(u8::from_str_radix(&hex[at..at + 2], 16).unwrap());
            // Rec. 601: red, green and blue as grey.
            (0.299 * part(1) + 0.587 * part(3) + 0.114 * part(5)) / 255.0
        };
        use Role::*;
        for (one, other) in [
            (Parameters, OptimizerState),
            (Parameters, Gradients),
            (Parameters, Activations),
            (OptimizerState, Gradients),
            (OptimizerState, Activations),
            (Gradients, Activations),
            (Activations, Recomputed),
            (Activations, ActivationGradients),
            (Recomputed, ActivationGradients),
        ] {
            let apart = (brightness(one) - brightness(other)).abs();
            assert!(apart > 0.09, "{one:?} and {other:?}: {apart:.2}");
        }
    }
}
