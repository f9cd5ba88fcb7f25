//! A part of a step that can be computed for some rows at a time. Invariant: it begins with a
//! product of matrices and ends with others; it holds every call that reads what the first one
//! makes, or something as wide that follows from it, and every call between two of its own; each
//! computes rows from the same rows, or adds up a term for each of them. If a barrier separates the
//! forward pass from the backward pass, each pass has calls of it, and what lies between them stays
//! outside, and so does whatever makes something wide that is a result. The gradient of a table is
//! such a part along its columns.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use cranelift_entity::SecondaryMap;

use crate::graph::{Graph, Node, Phase};
use crate::id::{NodeId, StorageId, ValueId};
use crate::operator::{Axis, Kind, Operator, axes_of};
use crate::split::along::{Along, Piece, Written, is_transposed};
use crate::split::span::Span;
use crate::split::{BLOCK, SplitError, Sums};

/// A part of a step, along its rows.
pub struct Region {
    /// The product that it begins with.
    pub product: NodeId,
    /// The rows.
    pub rows: u64,
    /// Its calls, in the order of the step.
    pub calls: BTreeMap<NodeId, Along>,
    /// The first call that follows from a barrier between the passes, if there is one.
    pub border: Option<NodeId>,
    /// Where what it makes has its rows.
    pub spans: BTreeMap<ValueId, Span>,
    /// What is wide; what others read of that is written into a tensor of its size.
    pub wide: BTreeSet<ValueId>,
    /// What it makes in the end, and what it reads that is as large and not needed afterwards: the
    /// rows of the one may replace those of the other.
    pub into: Option<(ValueId, ValueId)>,
}

/// Why a call keeps a part from being divided.
struct Obstacle(NodeId, &'static str);

impl Region {
    /// What `write` makes of the part around the largest product of the forward pass that can be
    /// divided: what reads it, and what takes its gradient. If nothing can be, the error is that of
    /// the last product, which makes the logits.
    pub fn first<T>(
        graph: &Graph,
        sums: Sums,
        write: impl Fn(&Region) -> Result<T, SplitError>,
    ) -> Result<T, SplitError> {
        let step = Step::of(graph);
        let mut products: Vec<(NodeId, ValueId)> =
            graph.nodes().iter().filter_map(product).collect();
        let shape = |value: ValueId| &graph.values()[value].tensor.shape;
        let Some(most) = products.iter().map(|&(_, value)| shape(value)[0]).max() else {
            return Err(SplitError::NoProduct);
        };
        products.retain(|&(_, value)| shape(value)[0] > BLOCK);
        if products.is_empty() {
            return Err(SplitError::Few { rows: most });
        }
        let last = products.iter().map(|&(id, _)| id).max();
        products.sort_by_key(|&(id, value)| Reverse((graph.values()[value].tensor.elements(), id)));
        let mut refused = None;
        for (id, value) in products {
            let grown = Growth::of(&step, (id, value)).grown(sums);
            let grown = grown.map_err(|Obstacle(id, why)| SplitError::Unsuited {
                node: graph.nodes()[id].name.clone(),
                why,
            });
            match grown.and_then(|region| write(&region)) {
                Ok(made) => return Ok(made),
                Err(error) if refused.is_none() || last == Some(id) => refused = Some(error),
                Err(_) => {}
            }
        }
        Err(refused.expect("there is a product"))
    }
}

impl Region {
    /// Whether only products sum over its rows.
    pub fn sums_products(&self, graph: &Graph) -> bool {
        self.calls.iter().all(|(&id, along)| {
            let is_product = graph.nodes()[id].operator == Some(Operator::Mm);
            is_product || !along.outputs.contains(&Piece::Term)
        })
    }
}

/// What separates the passes: all that the forward pass returns is there, and its gradients come.
const BARRIER: &str = "tightfit.barrier";
/// What adds rows of a gradient up into a table, by their indices.
const SCATTERS: [&str; 3] = [
    "aten.embedding_dense_backward.default",
    "aten.index_put.default",
    "aten._unsafe_index_put.default",
];

impl Region {
    /// The gradient of the largest table that is looked up in, by columns: what adds it up, and
    /// what becomes of that, up to the last tensor of its size. `None` if nothing becomes of it.
    pub fn of_table(graph: &Graph) -> Option<Region> {
        let step = Step::of(graph);
        let scatters = graph.nodes().iter().filter(|(_, node)| SCATTERS.contains(&&*node.op));
        let tables = scatters.filter_map(|(id, node)| Some((id, node.outputs.first().copied()??)));
        let elements = |value: ValueId| graph.values()[value].tensor.elements();
        let (id, value) = tables.max_by_key(|&(id, value)| (elements(value), Reverse(id)))?;
        Growth::of(&step, (id, value)).along_columns()
    }
}

/// A product of two matrices of the forward pass, and its output.
fn product((id, node): (NodeId, &Node)) -> Option<(NodeId, ValueId)> {
    let is_one = matches!(node.operator, Some(Operator::Mm | Operator::Addmm))
        && node.phase == Phase::Forward;
    Some((id, node.outputs.first().copied().flatten()?)).filter(|_| is_one)
}

fn is_product(node: &Node) -> bool {
    matches!(node.operator, Some(Operator::Mm | Operator::Addmm | Operator::Bmm))
}

/// A step with what is known of its calls.
struct Step<'a> {
    graph: &'a Graph,
    axes: SecondaryMap<NodeId, Vec<Axis>>,
    readers: SecondaryMap<ValueId, Vec<NodeId>>,
    /// The last barrier between the passes.
    barrier: Option<NodeId>,
}

impl<'a> Step<'a> {
    fn of(graph: &'a Graph) -> Step<'a> {
        let mut axes: SecondaryMap<NodeId, Vec<Axis>> = SecondaryMap::new();
        let mut readers: SecondaryMap<ValueId, Vec<NodeId>> = SecondaryMap::new();
        for (id, node) in graph.nodes() {
            let known = axes_of(&node.op).and_then(|axes| axes(&graph.call(id)).ok());
            axes[id] = known.unwrap_or_default();
            node.inputs.iter().for_each(|&input| readers[input].push(id));
        }
        let barriers = graph.nodes().iter().filter(|(_, node)| node.op == BARRIER);
        Step { graph, axes, readers, barrier: barriers.map(|(id, _)| id).next_back() }
    }

    /// Whether two calls are on the same side of the barrier.
    fn are_together(&self, one: NodeId, other: NodeId) -> bool {
        self.barrier.is_none_or(|barrier| (one < barrier) == (other < barrier))
    }

    /// Whether what a call makes lies in storages of its own, in order.
    fn makes_its_own(&self, node: &Node) -> bool {
        let values = self.graph.values();
        let reads = |storage| node.inputs.iter().any(|&input| values[input].storage == storage);
        node.outputs.iter().flatten().all(|&output| {
            let output = &values[output];
            output.tensor.contiguous && !reads(output.storage)
        })
    }
}

/// A part that grows.
struct Growth<'a> {
    step: &'a Step<'a>,
    start: ValueId,
    /// What has as many elements is wide.
    least: u64,
    region: Region,
    /// What is wide, and whose readers are not looked at yet.
    pending: Vec<ValueId>,
    /// What is wide and is read, and whose producers are not looked at yet.
    sources: BTreeSet<(ValueId, NodeId)>,
}

impl<'a> Growth<'a> {
    /// Nothing yet, around the rows of a matrix.
    fn of(step: &'a Step<'a>, (product, start): (NodeId, ValueId)) -> Growth<'a> {
        let tensor = &step.graph.values()[start].tensor;
        let (calls, spans) = (BTreeMap::new(), BTreeMap::new());
        Growth {
            step,
            start,
            least: tensor.elements() / 2,
            region: Region {
                product,
                rows: tensor.shape[0],
                calls,
                border: None,
                spans,
                wide: BTreeSet::new(),
                into: None,
            },
            pending: Vec::new(),
            sources: BTreeSet::new(),
        }
    }

    fn grown(mut self, sums: Sums) -> Result<Region, Obstacle> {
        self.add(self.region.product, self.start, Span { first: 0, dims: 1 })?;
        loop {
            while let Some(value) = self.pending.pop() {
                let span = self.region.spans[&value];
                for &reader in &self.step.readers[value] {
                    // What the forward pass returns, others read.
                    if Some(reader) == self.step.barrier {
                        continue;
                    }
                    if sums == Sums::Totals || !self.is_sum(reader, value, span) {
                        self.add(reader, value, span)?;
                    }
                }
            }
            match self.sources.pop_first() {
                Some((value, reader)) => self.add_producer(value, reader)?,
                None if self.add_between()? => {}
                None => break,
            }
        }
        self.check_rows()?;
        self.leave_results();
        self.check_order()?;
        let mut calls = self.region.calls.keys();
        let barrier = self.step.barrier;
        self.region.border = calls.find(|id| barrier.is_some_and(|it| it < **id)).copied();
        Ok(self.region)
    }

    /// Whether all that a call makes are sums over the rows.
    fn is_sum(&self, id: NodeId, value: ValueId, span: Span) -> bool {
        let along = self.along(id, value, span);
        along.is_ok_and(|along| along.outputs.iter().all(|piece| *piece == Piece::Term))
    }

    /// Follows a matrix by its columns as long as one call reads it and makes as much of it.
    fn along_columns(mut self) -> Option<Region> {
        let graph = self.step.graph;
        let elements = |value: ValueId| graph.values()[value].tensor.elements();
        let &[_, columns] = &graph.values()[self.start].tensor.shape[..] else { return None };
        let (mut id, mut value) = (self.region.product, self.start);
        self.region.rows = columns;
        self.add(id, value, Span { first: 1, dims: 1 }).ok()?;
        self.add_only_sources();
        while let &[reader] = &self.step.readers[value][..] {
            if graph.outputs().contains(&value) {
                break;
            }
            let &[Some(made)] = &graph.nodes()[reader].outputs[..] else { break };
            let span = self.region.spans[&value];
            let is_next = elements(made) == elements(value)
                && self.add(reader, value, span).is_ok()
                && self.region.spans.contains_key(&made);
            if !is_next {
                break;
            }
            (id, value) = (reader, made);
        }
        if id == self.region.product {
            return None;
        }
        self.check_order().ok()?;
        self.region.into = self.replaced(id, value).map(|target| (value, target));
        Some(self.region)
    }

    /// Adds what makes something wide that only the part reads, from nothing that has its rows.
    fn add_only_sources(&mut self) {
        for (value, reader) in std::mem::take(&mut self.sources) {
            let producer = self.step.graph.values()[value].producer;
            let is_new = self.step.graph.nodes()[producer].inputs.is_empty();
            if is_new && self.step.readers[value] == [reader] {
                self.add_producer(value, reader).ok();
            }
        }
    }

    /// What the last call reads from outside that has the layout of what it makes, and that no
    /// later call reads.
    fn replaced(&self, last: NodeId, result: ValueId) -> Option<ValueId> {
        let graph = self.step.graph;
        let values = graph.values();
        let node = &graph.nodes()[last];
        let mut outside = node.inputs.iter().copied().filter(|input| {
            !self.region.spans.contains_key(input)
                && self.region.calls[&last].span(node, *input) == Some(self.region.spans[&result])
        });
        outside.find(|&input| {
            let storage = values[input].storage;
            let mut others = values.iter().filter(|(_, value)| value.storage == storage);
            values[input].tensor.same_layout(&values[result].tensor)
                && !graph.is_kept(storage)
                && others
                    .all(|(value, _)| self.step.readers[value].iter().all(|&reader| reader <= last))
        })
    }

    /// Adds a call, in which `value` has its rows along `span`.
    fn add(&mut self, id: NodeId, value: ValueId, span: Span) -> Result<(), Obstacle> {
        let graph = self.step.graph;
        let node = &graph.nodes()[id];
        if let Some(along) = self.region.calls.get(&id) {
            let agrees = along.span(node, value) == Some(span);
            return agrees.then_some(()).ok_or(Obstacle(id, "reads its rows in two ways"));
        }
        let along = self.along(id, value, span)?;
        let (is_first, is_product) =
            (value == self.start && self.region.calls.is_empty(), is_product(node));
        for (argument, span) in node.args.iter().zip(&along.arguments) {
            for value in argument.values() {
                match (self.region.spans.get(&value), span) {
                    (Some(known), given) if Some(known) != given.as_ref() => {
                        return Err(Obstacle(id, "needs other rows, too"));
                    }
                    (None, Some(_)) if !is_product && self.is_wide(value) => {
                        self.sources.insert((value, id));
                    }
                    _ => {}
                }
            }
        }
        for (output, piece) in node.outputs.iter().zip(&along.outputs) {
            let (&Some(output), Piece::Rows(span)) = (output, piece) else { continue };
            self.region.spans.insert(output, *span);
            if is_first || !is_product && self.is_wide(output) {
                self.region.wide.insert(output);
                self.pending.push(output);
            }
        }
        self.region.calls.insert(id, along);
        Ok(())
    }

    fn along(&self, id: NodeId, value: ValueId, span: Span) -> Result<Along, Obstacle> {
        let graph = self.step.graph;
        let node = &graph.nodes()[id];
        if node.operator.is_some_and(|operator| operator.row().kind == Kind::Random) {
            return Err(Obstacle(id, "draws random numbers for all rows at once"));
        }
        if node.mutates || node.stream {
            return Err(Obstacle(id, "changes what it reads"));
        }
        let along = Along::of(graph, id, &self.step.axes[id], (value, span), self.region.rows)
            .ok_or(Obstacle(id, "is not known to compute each row by itself"))?;
        let makes = |term: bool| {
            let mut pieces = along.outputs.iter().filter(|piece| **piece != Piece::Unused);
            pieces.any(|piece| (*piece == Piece::Term) == term)
        };
        if makes(true) && makes(false) {
            return Err(Obstacle(id, "adds up all rows while it computes them"));
        }
        let is_known = node.operator.is_some() || is_transposed(node);
        if along.form == Written::Call && !is_known && !self.step.makes_its_own(node) {
            return Err(Obstacle(id, "calls an operator that is not known"));
        }
        Ok(along)
    }

    /// Adds the call that makes something wide that is read along its rows, if it makes rows. A
    /// placeholder and a product of its own stay outside.
    fn add_producer(&mut self, value: ValueId, reader: NodeId) -> Result<(), Obstacle> {
        let node = &self.step.graph.nodes()[reader];
        let id = self.step.graph.values()[value].producer;
        let span = self.region.calls[&reader].span(node, value);
        let stays = self.step.graph.nodes()[id].phase.is_placeholder()
            || is_product(&self.step.graph.nodes()[id]);
        match span {
            Some(span) if !stays && self.along(id, value, span).is_ok() => {
                self.add(id, value, span)
            }
            _ => Ok(()),
        }
    }

    /// Adds the calls between two others; whether there are any.
    fn add_between(&mut self) -> Result<bool, Obstacle> {
        let graph = self.step.graph;
        let between = self.between();
        for &id in &between {
            let mut inputs = graph.nodes()[id].inputs.iter();
            let rows = inputs.find_map(|&input| Some((input, *self.region.spans.get(&input)?)));
            let why = "needs all rows before the rest is computed";
            let (value, span) = rows.ok_or(Obstacle(id, why))?;
            self.add(id, value, span)?;
        }
        Ok(!between.is_empty())
    }

    /// The calls that need something of the part, and that the part needs something of, on one side
    /// of the barrier.
    fn between(&self) -> Vec<NodeId> {
        let graph = self.step.graph;
        let is_in = |id: &NodeId| self.region.calls.contains_key(id);
        let producers = |id: NodeId| {
            let all = graph.nodes()[id].inputs.iter().map(|&value| graph.values()[value].producer);
            all.filter(move |&producer| self.step.are_together(id, producer))
        };
        let mut found = Vec::new();
        for (first, last) in self.ends() {
            let within: Vec<NodeId> =
                graph.nodes().keys().filter(|id| (first..=last).contains(id)).collect();
            let mut follows: SecondaryMap<NodeId, bool> = SecondaryMap::new();
            let mut leads: SecondaryMap<NodeId, bool> = SecondaryMap::new();
            for &id in &within {
                follows[id] = is_in(&id) || producers(id).any(|producer| follows[producer]);
            }
            for &id in within.iter().rev() {
                if leads[id] || is_in(&id) {
                    producers(id).for_each(|producer| leads[producer] = true);
                }
            }
            let is_between = |id: &NodeId| !is_in(id) && follows[*id] && leads[*id];
            found.extend(within.into_iter().filter(is_between));
        }
        found
    }

    /// What a call reads of the part are the same rows.
    fn check_rows(&self) -> Result<(), Obstacle> {
        let producer = |value: ValueId| self.step.graph.values()[value].producer;
        for (&id, along) in &self.region.calls {
            let args = self.step.graph.nodes()[id].args.iter().zip(&along.arguments);
            for (value, span) in args.flat_map(|(argument, span)| {
                argument.values().into_iter().map(move |value| (value, *span))
            }) {
                let is_made_here = self.region.calls.contains_key(&producer(value));
                if is_made_here
                    && (span.is_none() || self.region.spans.get(&value) != span.as_ref())
                {
                    return Err(Obstacle(id, "needs other rows, too"));
                }
            }
        }
        Ok(())
    }

    /// What is wide and a result of the step exists for all rows in any case: what makes it stays
    /// outside.
    fn leave_results(&mut self) {
        let graph = self.step.graph;
        let storage = |value: ValueId| graph.values()[value].storage;
        let results: BTreeSet<StorageId> = graph.outputs().iter().map(|&it| storage(it)).collect();
        let mut needed: BTreeSet<ValueId> = BTreeSet::new();
        let calls: Vec<NodeId> = self.region.calls.keys().rev().copied().collect();
        for id in calls {
            let node = &graph.nodes()[id];
            let is_result = |output: &ValueId| {
                needed.contains(output)
                    || self.region.wide.contains(output) && results.contains(&storage(*output))
            };
            if node.outputs.iter().flatten().any(is_result) {
                needed.extend(&node.inputs);
                self.region.calls.remove(&id);
                for output in node.outputs.iter().flatten() {
                    self.region.wide.remove(output);
                }
            }
        }
    }

    /// No call in between must keep its place.
    fn check_order(&self) -> Result<(), Obstacle> {
        let graph = self.step.graph;
        for (first, last) in self.ends() {
            let mut between = graph.nodes().iter().filter(|(id, _)| first < *id && *id < last);
            if let Some((id, _)) = between.find(|(_, node)| node.mutates || node.stream) {
                return Err(Obstacle(id, "must keep its place among the calls of the loss"));
            }
        }
        Ok(())
    }

    /// The first and the last call, on each side of the barrier that has any.
    fn ends(&self) -> Vec<(NodeId, NodeId)> {
        let mut ends: Vec<(NodeId, NodeId)> = Vec::new();
        for &id in self.region.calls.keys() {
            match ends.last_mut() {
                Some((first, last)) if self.step.are_together(*first, id) => *last = id,
                _ => ends.push((id, id)),
            }
        }
        ends
    }

    fn is_wide(&self, value: ValueId) -> bool {
        self.step.graph.values()[value].tensor.elements() >= self.least
    }
}
