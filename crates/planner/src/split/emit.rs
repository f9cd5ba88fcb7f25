//! Writes a step of which a part is computed in chunks of rows. Invariant: what a chunk's call
//! makes is what its operator derives from its inputs; all other calls are as before, and those
//! that need nothing of the part come before it. Of a part on both sides of a barrier, all chunks
//! of one side come before those of the other, with what lies between the sides.

mod results;

use std::collections::{HashMap, HashSet};

use cranelift_entity::SecondaryMap;

use crate::graph::{Graph, Node};
use crate::id::{NodeId, StorageId, ValueId};
use crate::operator::{Operator, Output};
use crate::split::SplitError;
use crate::split::along::{Along, Piece, Written, is_transposed};
use crate::split::region::{Region, Whole};
use crate::split::span::Span;
use crate::split::writer::{Call, Writer, sizes};
use crate::tensor::Argument;
use crate::units::Flops;

/// Writes the step.
pub struct Emitter<'a> {
    graph: &'a Graph,
    region: &'a Region,
    writer: Writer<'a>,
    /// What others read of the part, and the views of it that they read.
    leaving: HashSet<ValueId>,
    shown: Vec<NodeId>,
    /// Values from outside whose rows lie along one dimension, if that had to be made so.
    flat: HashMap<ValueId, ValueId>,
    /// Sums over the rows of all chunks so far, and what has their rows in place of its own.
    totals: HashMap<ValueId, ValueId>,
    /// Narrow rows of each chunk so far.
    kept: HashMap<ValueId, Vec<ValueId>>,
    /// The calls on each side of a barrier.
    sides: Vec<Vec<NodeId>>,
}

/// What was made of the rows of one chunk.
struct Chunk {
    whole: Whole,
    number: usize,
    first: u64,
    end: u64,
    /// Rows of all chunks.
    rows: u64,
    /// What stands for each value of the part.
    made: HashMap<ValueId, ValueId>,
    /// What stands for each call of it.
    calls: Vec<(NodeId, NodeId)>,
    /// Parts of values from outside, by the value and the dimension that is cut.
    parts: HashMap<(ValueId, usize), ValueId>,
}

impl<'a> Emitter<'a> {
    pub fn new(graph: &'a Graph, region: &'a Region) -> Emitter<'a> {
        let others = graph.nodes().iter().filter(|(id, _)| !region.calls.contains_key(id));
        let read = others.flat_map(|(_, node)| &node.inputs).chain(graph.outputs());
        let mut leaving: HashSet<ValueId> = read.copied().collect();
        // A view that others read is made again, of what it shows.
        let mut shown = Vec::new();
        for &id in region.calls.keys().rev() {
            let node = &graph.nodes()[id];
            let outputs = node.outputs.iter().flatten();
            if is_view(graph, node) && outputs.filter(|&output| leaving.remove(output)).count() > 0
            {
                leaving.extend(&node.inputs);
                shown.push(id);
            }
        }
        let late = |&id: &NodeId| region.border.is_some_and(|border| border <= id);
        let (after, before): (Vec<NodeId>, Vec<NodeId>) =
            region.calls.keys().partition(|id| late(id));
        let sides = [before, after].into_iter().filter(|side| !side.is_empty()).collect();
        Emitter {
            graph,
            region,
            writer: Writer::new(graph),
            leaving,
            shown,
            flat: HashMap::new(),
            totals: HashMap::new(),
            kept: HashMap::new(),
            sides,
        }
    }

    /// Whether something wide exists for some rows at a time: others read none of it.
    pub fn saves(&self) -> bool {
        let storage = |value: &ValueId| self.graph.values()[*value].storage;
        let left: HashSet<StorageId> = self.leaving.iter().map(storage).collect();
        !self.region.wide.iter().all(|value| left.contains(&storage(value)))
    }

    /// The step in chunks between these borders.
    pub fn split(mut self, borders: &[u64]) -> Result<Graph, SplitError> {
        let mut chunks: Vec<Chunk> = borders
            .windows(2)
            .enumerate()
            .map(|(number, ends)| Chunk::new(self.region, number, (ends[0], ends[1])))
            .collect();
        let (region, around) = (self.region, self.around());
        let sides = std::mem::take(&mut self.sides);
        for (side, before) in sides.iter().zip(&around) {
            before.iter().for_each(|&id| self.writer.copy(id));
            for chunk in &mut chunks {
                chunk.calls.iter().for_each(|&(id, made)| self.writer.stand_in(id, made));
                for &id in side {
                    self.call(id, &region.calls[&id], chunk)?;
                    chunk.calls.extend(self.writer.stands_in(id).map(|made| (id, made)));
                }
            }
            self.end(side)?;
        }
        let last = around.last().expect("what follows the last side");
        last.iter().for_each(|&id| self.writer.copy(id));
        self.writer.finish()
    }

    /// All rows of what others read of one side.
    fn end(&mut self, side: &[NodeId]) -> Result<(), SplitError> {
        for &id in side {
            self.leave(id)?;
        }
        let shown: Vec<NodeId> =
            self.shown.iter().rev().filter(|id| side.contains(id)).copied().collect();
        shown.into_iter().for_each(|id| self.writer.copy(id));
        Ok(())
    }

    /// The other calls: those before each side, and those after the last one. A call comes as early
    /// as what it needs, but after a side if all of that was before it.
    fn around(&self) -> Vec<Vec<NodeId>> {
        let count = self.sides.len();
        let side_of = |id: NodeId| self.sides.iter().position(|side| side.contains(&id));
        let mut around = vec![Vec::new(); count + 1];
        let mut places: SecondaryMap<NodeId, usize> = SecondaryMap::new();
        for (id, node) in self.graph.nodes() {
            let producers = node.inputs.iter().map(|&value| self.graph.values()[value].producer);
            places[id] = match self.region.calls.contains_key(&id) {
                // What reads it comes after its side.
                true => side_of(id).map_or(count, |side| side + 1),
                false => {
                    let passed = self.sides.iter().take_while(|side| side.last() < Some(&id));
                    let place = producers.map(|producer| places[producer]).max().unwrap_or(0);
                    let place = place.max(passed.count());
                    around[place].push(id);
                    place
                }
            };
        }
        around
    }

    /// A call on the rows of a chunk.
    fn call(&mut self, id: NodeId, along: &Along, chunk: &mut Chunk) -> Result<(), SplitError> {
        let node = &self.graph.nodes()[id];
        if along.form != Written::Call {
            return self.view(id, along, chunk);
        }
        let args = self.arguments(node, along, chunk)?;
        if let (Some(Operator::Mm), &[Some(output)], [Piece::Term]) =
            (node.operator, &node.outputs[..], &along.outputs[..])
            && !self.is_short(output)
        {
            return self.continued_product(id, output, args, chunk);
        }
        let made = self.made(node, along, args, chunk)?;
        self.writer.stand_for(id);
        for ((output, piece), made) in node.outputs.iter().zip(&along.outputs).zip(made) {
            let (&Some(output), Some(made)) = (output, made) else { continue };
            match piece {
                Piece::Rows(_) => self.keep(node, output, made, chunk)?,
                Piece::Term => self.add(node, output, made, chunk)?,
                Piece::Unused => {}
            }
        }
        Ok(())
    }

    /// A view of the rows of a chunk.
    fn view(&mut self, id: NodeId, along: &Along, chunk: &mut Chunk) -> Result<(), SplitError> {
        let node = &self.graph.nodes()[id];
        let (from, span) = (node.inputs[0], along.arguments.iter().copied().flatten().next());
        let mut shown = self.rows_of(from, span, chunk, node)?;
        let (Some(&Some(to)), [Piece::Rows(span)]) = (node.outputs.first(), &along.outputs[..])
        else {
            return Ok(());
        };
        if along.form == Written::View {
            let shape = &self.graph.values()[to].tensor.shape;
            let size = sizes(&span.flat(shape, chunk.end - chunk.first));
            let args = vec![Argument::Value(shown), size];
            shown = self.writer.first(chunk.call(node, "aten.view.default", args))?;
            self.writer.stand_for(id);
        }
        self.keep(node, to, shown, chunk)
    }

    /// What a call makes of arguments for the rows of a chunk.
    fn made(
        &mut self,
        node: &Node,
        along: &Along,
        mut args: Vec<Argument>,
        chunk: &Chunk,
    ) -> Result<Vec<Option<ValueId>>, SplitError> {
        let used: Vec<bool> = node.outputs.iter().map(Option::is_some).collect();
        if let Some(operator) = node.operator {
            return self.writer.make(chunk.call(node, operator.name(), args), &[], &used);
        }
        if is_transposed(node) {
            args.push(Argument::List(vec![Argument::Int(1), Argument::Int(0)]));
            return self.writer.make(chunk.call(node, "aten.permute.default", args), &[], &used);
        }
        let rows = chunk.end - chunk.first;
        let output = |(output, piece): (&Option<ValueId>, &Piece)| {
            let tensor = &self.graph.values()[(*output)?].tensor;
            let shape = match piece {
                Piece::Rows(span) => span.flat(&tensor.shape, rows),
                Piece::Term | Piece::Unused => tensor.shape.clone(),
            };
            Some(Output::computed(&shape, tensor.dtype))
        };
        let outputs = node.outputs.iter().zip(&along.outputs).map(output).collect();
        let share = u128::from(node.flops.0) * u128::from(rows) / u128::from(self.region.rows);
        let flops = Flops(u64::try_from(share).unwrap_or(u64::MAX));
        Ok(self.writer.foreign(chunk.call(node, &node.op, args), outputs, flops))
    }

    /// The arguments of a call for the rows of a chunk.
    fn arguments(
        &mut self,
        node: &Node,
        along: &Along,
        chunk: &mut Chunk,
    ) -> Result<Vec<Argument>, SplitError> {
        let mut args = Vec::new();
        for (argument, &span) in node.args.iter().zip(&along.arguments) {
            let mut stands: HashMap<ValueId, ValueId> = HashMap::new();
            for value in argument.values() {
                stands.insert(value, self.rows_of(value, span, chunk, node)?);
            }
            args.push(argument.renamed(&|value| stands[&value]));
        }
        along.renumber(self.graph, node, &mut args)?;
        for literal in &along.literals {
            literal.write(&mut args, chunk.end - chunk.first);
        }
        Ok(args)
    }

    /// What a call of a chunk reads: the chunk's rows, or all of it where its rows lie nowhere.
    fn rows_of(
        &mut self,
        value: ValueId,
        span: Option<Span>,
        chunk: &mut Chunk,
        reader: &Node,
    ) -> Result<ValueId, SplitError> {
        match (chunk.made.get(&value), span) {
            (Some(&made), Some(_)) => Ok(made),
            (Some(_), None) => Err(SplitError::Unsuited {
                node: reader.name.clone(),
                why: "needs other rows, too",
            }),
            (None, Some(span)) => self.part(chunk, value, span, reader),
            (None, None) => self.before(value, reader),
        }
    }

    /// The rows of a chunk of a value from outside.
    fn part(
        &mut self,
        chunk: &mut Chunk,
        value: ValueId,
        span: Span,
        reader: &Node,
    ) -> Result<ValueId, SplitError> {
        if let Some(&made) = chunk.parts.get(&(value, span.first)) {
            return Ok(made);
        }
        let replaced = self.region.into.filter(|&(_, target)| target == value);
        if let Some(&whole) = replaced.and_then(|(_, target)| self.totals.get(&target)) {
            return self.slice(chunk, (value, whole), span, reader);
        }
        let whole = self.flat(value, span, reader)?;
        self.slice(chunk, (value, whole), span, reader)
    }

    /// The rows of a chunk of what stands for a value.
    fn slice(
        &mut self,
        chunk: &mut Chunk,
        (value, whole): (ValueId, ValueId),
        span: Span,
        reader: &Node,
    ) -> Result<ValueId, SplitError> {
        let of = ["", ".columns"][span.first.min(1)];
        let number = |number: u64| Argument::Int(number.cast_signed());
        let args = vec![
            Argument::Value(whole),
            number(span.first as u64),
            number(chunk.first * span.each),
            number(chunk.end * span.each),
        ];
        let name = format!("{}{of}{}", self.name_of(value), chunk.suffix());
        let made = self.writer.first(Call::new(name, "aten.slice.Tensor", args, reader))?;
        chunk.parts.insert((value, span.first), made);
        Ok(made)
    }

    /// A value from outside with its rows along one dimension.
    fn flat(&mut self, value: ValueId, span: Span, reader: &Node) -> Result<ValueId, SplitError> {
        let whole = self.before(value, reader)?;
        if span.dims == 1 {
            return Ok(whole);
        }
        if let Some(&flat) = self.flat.get(&value) {
            return Ok(flat);
        }
        let tensor = &self.graph.values()[value].tensor;
        let scattered = || SplitError::Unsuited {
            node: reader.name.clone(),
            why: "reads rows that do not lie in order",
        };
        if !tensor.contiguous && tensor.strides.is_none() {
            return Err(scattered());
        }
        let args = vec![Argument::Value(whole), sizes(&span.flat(&tensor.shape, self.region.rows))];
        let name = format!("{}.rows", self.name_of(value));
        let call = Call::new(name, "aten.view.default", args, reader);
        let flat = self.writer.first(call).map_err(|_| scattered())?;
        self.flat.insert(value, flat);
        Ok(flat)
    }

    /// What stands for a value that must be there before the part is computed.
    fn before(&self, value: ValueId, reader: &Node) -> Result<ValueId, SplitError> {
        self.writer.stands(value).ok_or_else(|| SplitError::Unsuited {
            node: reader.name.clone(),
            why: "needs all rows before the rest is computed",
        })
    }
}

impl Chunk {
    fn new(region: &Region, number: usize, (first, end): (u64, u64)) -> Chunk {
        let (made, calls, parts) = (HashMap::new(), Vec::new(), HashMap::new());
        Chunk { whole: region.whole, number, first, end, rows: region.rows, made, calls, parts }
    }

    /// What the names of its calls end in.
    fn suffix(&self) -> String {
        format!("{}{}", self.whole.suffix(), self.number)
    }

    /// A call of this chunk that stands for another one.
    fn call<'n>(&self, of: &'n Node, op: &'n str, args: Vec<Argument>) -> Call<'n> {
        let share = Some((self.end - self.first) as f64 / self.rows as f64);
        Call { share, ..Call::new(format!("{}{}", of.name, self.suffix()), op, args, of) }
    }
}

/// Whether a call shows what it reads.
fn is_view(graph: &Graph, node: &Node) -> bool {
    let storage = |value: ValueId| graph.values()[value].storage;
    let mut outputs = node.outputs.iter().flatten();
    outputs.any(|&output| node.inputs.iter().any(|&input| storage(input) == storage(output)))
}
