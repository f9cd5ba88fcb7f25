//! The part of a step that makes logits, and takes their gradient. Invariant: along the rows, each
//! of its calls computes each row by itself, or adds something up over all rows; nothing else reads
//! what has a row for each target and a column for each class.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};

use crate::graph::{Graph, Node};
use crate::id::{NodeId, ValueId};
use crate::split::SplitError;
use crate::tensor::Argument;

/// What a call of the part does along the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It computes rows, from rows.
    Rows,
    /// It shows rows with other leading dimensions.
    Shown,
    /// It shows rows as columns.
    Exchanged,
    /// It picks the target of each row, and reduces what was picked.
    Loss,
    /// It adds up a product over all rows.
    Term,
    /// It makes rows that are narrow, and kept.
    Kept,
}

/// A loss head.
pub struct Head {
    /// Its calls, in the order of the step; the first makes the logits.
    pub calls: Vec<(NodeId, Role)>,
    /// The call that makes the loss.
    pub loss: NodeId,
    /// Rows of the logits.
    pub rows: u64,
}

/// Operators that show the same rows.
const SHOWN: [&str; 5] = [
    "aten.view.default",
    "aten._unsafe_view.default",
    "aten.reshape.default",
    "aten.alias.default",
    "aten.detach.default",
];
/// Operators that show a matrix as its transpose.
const EXCHANGED: [&str; 3] = ["aten.permute.default", "aten.t.default", "aten.transpose.int"];
/// Operators that compute each row of a matrix by itself, and which argument says along which
/// dimension.
const OF_ROWS: [(&str, usize); 2] =
    [("aten._log_softmax.default", 1), ("aten._log_softmax_backward_data.default", 2)];
/// Operators that compute each element by itself.
const OF_ELEMENTS: [&str; 12] = [
    "aten._to_copy.default",
    "aten.add.Tensor",
    "aten.clone.default",
    "aten.div.Tensor",
    "aten.exp.default",
    "aten.mul.Tensor",
    "aten.neg.default",
    "aten.pow.Tensor_Scalar",
    "aten.rsub.Scalar",
    "aten.sub.Tensor",
    "aten.tanh.default",
    "aten.where.self",
];
const LOSS: &str = "aten.nll_loss_forward.default";
const LOSS_GRADIENT: &str = "aten.nll_loss_backward.default";
const PRODUCT: &str = "aten.mm.default";

/// The numbers that ATen gives to a mean and to a sum.
const REDUCED: [i64; 2] = [1, 2];

impl Head {
    /// The head of the largest loss.
    pub fn of(graph: &Graph) -> Result<Head, SplitError> {
        let losses = graph.nodes().iter().filter(|(_, node)| is_loss(graph, node));
        let size = |node: &Node| graph.values()[node.inputs[0]].tensor.elements();
        let (loss, node) =
            losses.max_by_key(|&(id, node)| (size(node), Reverse(id))).ok_or(SplitError::NoLoss)?;
        let &[rows, columns] = &graph.values()[node.inputs[0]].tensor.shape[..] else {
            return Err(SplitError::NoLoss);
        };
        let (wide, calls) = (BTreeMap::new(), Vec::new());
        let mut search = Search { graph, loss, rows, columns, wide, calls };
        search.backwards()?;
        search.forwards()?;
        Ok(Head { calls: search.calls, loss, rows })
    }
}

/// Whether it is a loss of rows of classes, reduced, in which all classes weigh the same.
fn is_loss(graph: &Graph, node: &Node) -> bool {
    let [
        Argument::Value(x),
        Argument::Value(_),
        Argument::None,
        Argument::Int(reduction),
        Argument::Int(_),
    ] = &node.args[..]
    else {
        return false;
    };
    node.op == LOSS
        && node.inputs.first() == Some(x)
        && REDUCED.contains(reduction)
        && graph.values()[*x].tensor.shape.len() == 2
}

struct Search<'a> {
    graph: &'a Graph,
    loss: NodeId,
    rows: u64,
    columns: u64,
    /// Values with a row for each target and a column for each class; whether rows are columns.
    wide: BTreeMap<ValueId, bool>,
    calls: Vec<(NodeId, Role)>,
}

impl Search<'_> {
    /// From the loss back to the product that makes the logits.
    fn backwards(&mut self) -> Result<(), SplitError> {
        let mut value = self.graph.nodes()[self.loss].inputs[0];
        loop {
            let id = self.graph.values()[value].producer;
            let node = &self.graph.nodes()[id];
            if !self.is_wide(value) {
                return Err(unsuited(node, "makes no row for each target"));
            }
            if node.op == PRODUCT {
                self.add(id, Role::Rows);
                break;
            }
            let rows = node.inputs.iter().copied().filter(|&input| self.is_wide(input));
            let [input] = rows.collect::<Vec<_>>()[..] else {
                return Err(unsuited(node, "makes logits of more than a product of matrices"));
            };
            value = input;
        }
        Ok(())
    }

    /// From the logits on to whatever reads something wide.
    fn forwards(&mut self) -> Result<(), SplitError> {
        let first = self.calls[0].0;
        for (id, node) in self.graph.nodes().iter().filter(|(id, _)| *id > first) {
            if node.inputs.iter().any(|input| self.wide.contains_key(input)) {
                let role = self.role(id).map_err(|why| unsuited(node, why))?;
                self.add(id, role);
            }
        }
        let outlives = |value: &&ValueId| self.wide.contains_key(value);
        if let Some(value) = self.graph.outputs().iter().find(outlives) {
            let node = &self.graph.nodes()[self.graph.values()[*value].producer];
            return Err(unsuited(node, "makes a result of the step for all rows"));
        }
        let region: HashSet<NodeId> = self.calls.iter().map(|&(id, _)| id).collect();
        let last = self.calls.last().map_or(first, |&(id, _)| id);
        let between = self.graph.nodes().iter().filter(|(id, _)| first < *id && *id < last);
        for (_, node) in between.filter(|(id, _)| !region.contains(id)) {
            if node.mutates || node.stream {
                return Err(unsuited(node, "must keep its place among the calls of the loss"));
            }
        }
        Ok(())
    }

    fn add(&mut self, id: NodeId, role: Role) {
        let outputs = self.graph.nodes()[id].outputs.iter().flatten();
        if matches!(role, Role::Rows | Role::Shown | Role::Exchanged) {
            let is_exchanged = role == Role::Exchanged;
            self.wide.extend(outputs.map(|&output| (output, is_exchanged)));
        }
        self.calls.push((id, role));
    }

    /// What a call that reads something wide does along the rows.
    fn role(&self, id: NodeId) -> Result<Role, &'static str> {
        let node = &self.graph.nodes()[id];
        let op = node.op.as_str();
        let wide = |argument: usize| match node.args.get(argument) {
            Some(Argument::Value(value)) => self.wide.get(value).copied(),
            _ => None,
        };
        let makes_rows = || node.outputs.iter().flatten().all(|&output| self.is_wide(output));
        let is_exchanged = node.inputs.iter().any(|input| self.wide.get(input) == Some(&true));
        if op == PRODUCT {
            return match (wide(0), wide(1)) {
                (Some(false), None) => Ok(Role::Kept),
                (Some(true), None) | (None, Some(false)) => Ok(Role::Term),
                _ => Err("is a product of logits in which rows are no longer apart"),
            };
        }
        if is_exchanged {
            return Err("reads logits whose rows and columns are exchanged");
        }
        if SHOWN.contains(&op) && makes_rows() {
            return Ok(Role::Shown);
        }
        if EXCHANGED.contains(&op) && self.swaps(node) {
            return Ok(Role::Exchanged);
        }
        if op == LOSS {
            return if id == self.loss { Ok(Role::Loss) } else { Err("is another loss") };
        }
        if op == LOSS_GRADIENT {
            let is_plain = matches!(node.args.get(3), Some(Argument::None));
            return if is_plain { Ok(Role::Rows) } else { Err("weighs the classes") };
        }
        let is_matrix = || node.inputs.iter().all(|&input| self.shape(input).len() == 2);
        let is_last = |at: usize| matches!(node.args.get(at), Some(Argument::Int(1 | -1)));
        if OF_ROWS.iter().any(|&(name, at)| name == op && is_last(at)) && is_matrix() {
            return Ok(Role::Rows);
        }
        let mut others = node.inputs.iter().filter(|input| !self.wide.contains_key(input));
        let are_numbers = others.all(|&input| self.elements(input) == 1);
        if OF_ELEMENTS.contains(&op) && makes_rows() && are_numbers {
            return Ok(Role::Rows);
        }
        Err("reads logits in a way that is not known to keep rows apart")
    }

    /// Whether a call exchanges the dimensions of a matrix.
    fn swaps(&self, node: &Node) -> bool {
        let shape = |value: &ValueId| self.shape(*value);
        let (from, to) = (node.inputs.first().map(shape), node.outputs.first());
        let to = to.copied().flatten().map(|value| self.shape(value));
        matches!((from, to), (Some(&[a, b]), Some(&[c, d])) if (a, b) == (d, c) && a != b)
            || matches!(node.args.get(1), Some(Argument::List(dims))
                if dims[..] == [Argument::Int(1), Argument::Int(0)])
    }

    /// Whether a value has a row for each target and a column for each class.
    fn is_wide(&self, value: ValueId) -> bool {
        let shape = self.shape(value);
        shape.last() == Some(&self.columns)
            && shape[..shape.len() - 1].iter().product::<u64>() == self.rows
            && shape.len() > 1
    }

    fn shape(&self, value: ValueId) -> &[u64] {
        &self.graph.values()[value].tensor.shape
    }

    fn elements(&self, value: ValueId) -> u64 {
        self.graph.values()[value].tensor.elements()
    }
}

fn unsuited(node: &Node, why: &'static str) -> SplitError {
    SplitError::Unsuited { node: node.name.clone(), why }
}
