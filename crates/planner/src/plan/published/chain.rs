//! The forward pass as a chain of units: module paths up to their first number (`h.3`), with
//! consecutive equal units counted once. Invariant: units never fall along the order of the forward
//! nodes.

use crate::graph::Graph;
use crate::id::NodeId;

/// The unit of each forward node, counted from 0: a new one begins wherever the path of units
/// changes, and nodes of the root belong to the preceding unit.
pub(super) fn units(graph: &Graph, forward: &[NodeId]) -> Vec<usize> {
    let mut units = Vec::with_capacity(forward.len());
    let (mut unit, mut previous) = (0, None);
    for &node in forward {
        let path = unit_path(graph.module_of(node));
        if !path.is_empty() {
            if previous.is_some_and(|previous| previous != path) {
                unit += 1;
            }
            previous = Some(path);
        }
        units.push(unit);
    }
    units
}

/// A module path up to and including its first numeric component; the whole path if there is none.
fn unit_path(path: &str) -> &str {
    let mut end = 0;
    for component in path.split('.') {
        end += component.len();
        if !component.is_empty() && component.bytes().all(|byte| byte.is_ascii_digit()) {
            return &path[..end];
        }
        end += 1;
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_ends_at_the_first_number() {
        assert_eq!(unit_path("model.h.3.attn.c_proj"), "model.h.3");
        assert_eq!(unit_path("wte"), "wte");
        assert_eq!(unit_path("layers.10"), "layers.10");
        assert_eq!(unit_path(""), "");
    }
}
