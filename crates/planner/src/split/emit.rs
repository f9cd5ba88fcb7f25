//! Writes a step of which parts are computed in chunks of rows. Invariant: what a chunk's call
//! makes is what its operator derives from its inputs; all other calls are as before, and those
//! that need nothing of a part come before it. Of a part on both sides of a barrier, all chunks
//! of one side come before those of the other, with what lies between the sides.

mod results;

use std::collections::HashMap;

use crate::graph::{Graph, Node};
use crate::id::{NodeId, ValueId};
use crate::operator::{Operator, Output};
use crate::split::SplitError;
use crate::split::along::{Along, Piece, Written, is_transposed};
use crate::split::cut::Cut;
use crate::split::order::{Cycle, order};
use crate::split::region::{Region, Whole};
use crate::split::span::Span;
use crate::split::writer::{Call, Writer, sizes};
use crate::tensor::Argument;
use crate::units::Flops;

/// Why a step could not be written: one of the parts cannot be in chunks.
#[derive(Debug)]
pub struct Unwritten {
    pub part: usize,
    pub error: SplitError,
}

impl From<Unwritten> for SplitError {
    fn from(Unwritten { error, .. }: Unwritten) -> SplitError {
        error
    }
}

/// The step with these parts in chunks, which have no call in common.
pub fn written(graph: &Graph, parts: &[&Cut]) -> Result<Graph, Unwritten> {
    let sides: Vec<(usize, &[NodeId])> = parts
        .iter()
        .enumerate()
        .flat_map(|(part, cut)| cut.sides.iter().map(move |side| (part, &side[..])))
        .collect();
    let order = order(graph, &sides).map_err(|Cycle { part, node }| {
        let node = graph.nodes()[node].name.clone();
        Unwritten { part, error: SplitError::Unsuited { node, why: "must keep its place" } }
    })?;
    let ends: HashMap<NodeId, (usize, &[NodeId])> =
        sides.iter().filter_map(|&(part, side)| Some((*side.last()?, (part, side)))).collect();
    let mut writer = Writer::new(graph);
    let mut made: Vec<Part> = parts.iter().map(|cut| Part::of(cut)).collect();
    for id in order {
        let Some(&(part, side)) = ends.get(&id) else {
            writer.copy(id);
            continue;
        };
        let (cut, made) = (parts[part], &mut made[part]);
        Emitter { graph, cut, writer: &mut writer, part: made }
            .write(side)
            .map_err(|error| Unwritten { part, error })?;
    }
    writer.finish().map_err(|error| Unwritten { part: parts.len() - 1, error })
}

/// Writes a part.
struct Emitter<'w, 'a> {
    graph: &'a Graph,
    cut: &'a Cut,
    writer: &'w mut Writer<'a>,
    part: &'w mut Part,
}

/// What was made of a part so far.
#[derive(Default)]
struct Part {
    chunks: Vec<Chunk>,
    /// Values from outside whose rows lie along one dimension, if that had to be made so.
    flat: HashMap<ValueId, ValueId>,
    /// Sums over the rows of all chunks so far, and what has their rows in place of its own.
    totals: HashMap<ValueId, ValueId>,
    /// Narrow rows of each chunk so far.
    kept: HashMap<ValueId, Vec<ValueId>>,
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

impl Emitter<'_, '_> {
    /// All chunks of one side of the part, and what others read of them.
    fn write(&mut self, side: &[NodeId]) -> Result<(), SplitError> {
        let mut chunks = std::mem::take(&mut self.part.chunks);
        for chunk in &mut chunks {
            chunk.calls.iter().for_each(|&(id, made)| self.writer.stand_in(id, made));
            for &id in side {
                self.call(id, &self.cut.region.calls[&id], chunk)?;
                chunk.calls.extend(self.writer.stands_in(id).map(|made| (id, made)));
            }
        }
        self.part.chunks = chunks;
        side.iter().try_for_each(|&id| self.leave(id))?;
        let shown = self.cut.shown.iter().rev().filter(|id| side.contains(id));
        shown.for_each(|&id| self.writer.copy(id));
        Ok(())
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
        let share = u128::from(node.flops.0) * u128::from(rows) / u128::from(self.cut.region.rows);
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
        let replaced = self.cut.region.into.filter(|&(_, target)| target == value);
        if let Some(&whole) = replaced.and_then(|(_, target)| self.part.totals.get(&target)) {
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
        if let Some(&flat) = self.part.flat.get(&value) {
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
        let args =
            vec![Argument::Value(whole), sizes(&span.flat(&tensor.shape, self.cut.region.rows))];
        let name = format!("{}.rows", self.name_of(value));
        let call = Call::new(name, "aten.view.default", args, reader);
        let flat = self.writer.first(call).map_err(|_| scattered())?;
        self.part.flat.insert(value, flat);
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

impl Part {
    fn of(cut: &Cut) -> Part {
        let ends = cut.borders.windows(2).enumerate();
        let chunk =
            |(number, ends): (usize, &[u64])| Chunk::new(&cut.region, number, (ends[0], ends[1]));
        Part { chunks: ends.map(chunk).collect(), ..Part::default() }
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
