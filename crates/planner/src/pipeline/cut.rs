//! Cuts by hand: stages that begin where modules are called. Invariant: the results are places of
//! the forward pass in its order, none of them its beginning.

use thiserror::Error;

use crate::exit::coded;
use crate::graph::Graph;
use crate::id::NodeId;
use crate::pipeline::layers::{Layer, forward, is_within};

/// Why stages do not begin with these modules.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CutError {
    /// Nothing of the forward pass lies in the module.
    #[error(
        "no operator of the forward pass lies in a module `{module}`, so no stage begins with it; \
         `tightfit modules` lists those that there are"
    )]
    NoCall {
        /// Its path.
        module: String,
    },
    /// The first stage begins with it.
    #[error(
        "the model begins with `{module}`, and so does the first stage; name the modules with \
         which the stages after it begin"
    )]
    First {
        /// Its path.
        module: String,
    },
    /// It is not called after the module before it.
    #[error(
        "`{module}` is not called after `{before}`; name modules in the order of the forward pass"
    )]
    NotInOrder {
        /// Its path.
        module: String,
        /// The path of the one before it.
        before: String,
    },
}

coded!(Usage: CutError);

/// The nodes with which the first calls of modules begin.
///
/// # Errors
/// [`CutError`] if stages cannot begin there.
pub fn beginnings(graph: &Graph, modules: &[String]) -> Result<Vec<NodeId>, CutError> {
    let forward = forward(graph);
    let mut places: Vec<usize> = Vec::new();
    for (index, module) in modules.iter().enumerate() {
        let module = module.clone();
        let is_in = |&node: &NodeId| is_within(graph.module_of(node), &module);
        match (forward.iter().position(is_in), places.last()) {
            (None, _) => return Err(CutError::NoCall { module }),
            (Some(0), _) => return Err(CutError::First { module }),
            (Some(at), Some(&last)) if at <= last => {
                return Err(CutError::NotInOrder { module, before: modules[index - 1].clone() });
            }
            (Some(at), _) => places.push(at),
        }
    }
    Ok(places.into_iter().map(|at| forward[at]).collect())
}

/// One past the last layer of each stage, where all stages but the first begin with the layers of
/// these nodes.
pub fn ends(layers: &[Layer], beginnings: &[NodeId]) -> Vec<usize> {
    let of = |node: &NodeId| layers.iter().position(|layer| layer.nodes.contains(node));
    beginnings.iter().filter_map(of).chain([layers.len()]).collect()
}
