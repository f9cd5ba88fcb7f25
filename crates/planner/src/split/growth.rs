//! How a part of a step grows from its first product. Invariant: whatever is added computes each
//! row by itself, or adds up a term for each; in the end the part holds all that [`Region`] says.

use std::collections::{BTreeMap, BTreeSet};

use cranelift_entity::EntityRef;

use crate::id::{NodeId, StorageId, ValueId};
use crate::operator::Kind;
use crate::split::Sums;
use crate::split::along::{Along, Piece, Written, is_transposed};
use crate::split::region::{BARRIER, Form, Obstacle, Region, Step, Whole, is_product};
use crate::split::span::Span;

/// A part that grows.
pub struct Growth<'a> {
    step: &'a Step<'a>,
    start: ValueId,
    /// Where the backward pass begins, if the passes are separate.
    border: Option<NodeId>,
    /// What has as many elements is wide.
    least: u64,
    region: Region,
    /// What is wide, and whose readers are not looked at yet.
    pending: Vec<ValueId>,
    /// What is wide and is read, and whose producers are not looked at yet.
    sources: BTreeSet<(ValueId, NodeId)>,
}

impl<'a> Growth<'a> {
    /// Nothing yet, around a matrix that is divided in this way.
    pub fn of(step: &'a Step<'a>, (product, start): (NodeId, ValueId), form: Form) -> Growth<'a> {
        let tensor = &step.graph.values()[start].tensor;
        let (calls, spans) = (BTreeMap::new(), BTreeMap::new());
        Growth {
            step,
            start,
            border: form.border,
            least: tensor.elements() / 2,
            region: Region {
                product,
                rows: form.rows,
                each: 1,
                whole: form.whole,
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

    pub fn grown(mut self, sums: Sums) -> Result<Region, Obstacle> {
        self.region.each = self.step.graph.values()[self.start].tensor.shape[0] / self.region.rows;
        let span = Span { first: 0, dims: 1, each: self.region.each };
        self.add(self.region.product, self.start, span)?;
        loop {
            while let Some(value) = self.pending.pop() {
                let span = self.region.spans[&value];
                for &reader in &self.step.readers[value] {
                    // What the forward pass returns, others read.
                    if self.step.graph.nodes()[reader].op == BARRIER {
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
        let mut calls = self.region.calls.keys();
        let border = self.border;
        self.region.border = calls.find(|id| border.is_some_and(|it| it <= **id)).copied();
        Ok(self.region)
    }

    /// Whether two calls are on the same side of the border.
    fn are_together(&self, one: NodeId, other: NodeId) -> bool {
        self.border.is_none_or(|border| (one < border) == (other < border))
    }

    /// Whether all that a call makes are sums over the rows.
    fn is_sum(&self, id: NodeId, value: ValueId, span: Span) -> bool {
        let along = self.along(id, value, span);
        along.is_ok_and(|along| along.outputs.iter().all(|piece| *piece == Piece::Term))
    }

    /// Follows a matrix by its columns as long as one call reads it and makes as much of it.
    pub fn along_columns(mut self) -> Option<Region> {
        let graph = self.step.graph;
        let elements = |value: ValueId| graph.values()[value].tensor.elements();
        let (mut id, mut value) = (self.region.product, self.start);
        self.add(id, value, Span { first: 1, dims: 1, each: 1 }).ok()?;
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
            || self.region.whole == Whole::Step && is_product(&self.step.graph.nodes()[id]);
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
    /// of the border.
    fn between(&self) -> Vec<NodeId> {
        let graph = self.step.graph;
        let is_in = |id: &NodeId| self.region.calls.contains_key(id);
        let producers = |id: NodeId| {
            let all = graph.nodes()[id].inputs.iter().map(|&value| graph.values()[value].producer);
            all.filter(move |&producer| self.are_together(id, producer))
        };
        let mut found = Vec::new();
        for (first, last) in self.ends() {
            let within = || (first.index()..=last.index()).map(NodeId::new);
            let (mut follows, mut leads) = (BTreeSet::new(), BTreeSet::new());
            for id in within() {
                if is_in(&id) || producers(id).any(|producer| follows.contains(&producer)) {
                    follows.insert(id);
                }
            }
            for id in within().rev() {
                if leads.contains(&id) || is_in(&id) {
                    leads.extend(producers(id));
                }
            }
            found.extend(follows.intersection(&leads).filter(|id| !is_in(id)));
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

    /// The first and the last call, on each side of the border that has any.
    fn ends(&self) -> Vec<(NodeId, NodeId)> {
        let mut ends: Vec<(NodeId, NodeId)> = Vec::new();
        for &id in self.region.calls.keys() {
            match ends.last_mut() {
                Some((first, last)) if self.are_together(*first, id) => *last = id,
                _ => ends.push((id, id)),
            }
        }
        ends
    }

    fn is_wide(&self, value: ValueId) -> bool {
        self.step.graph.values()[value].tensor.elements() >= self.least
    }
}
