//! What others read of a part in chunks. Invariant: once all chunks are written, one value stands
//! for all rows of it: their rows next to each other, a tensor of its size into which each chunk
//! wrote its own, or the sum of all terms.

use crate::graph::Node;
use crate::id::{NodeId, ValueId};
use crate::split::SplitError;
use crate::split::emit::{Chunk, Emitter};
use crate::split::writer::{Call, EMPTY, SLICE_SCATTER, sizes};
use crate::tensor::{Argument, DType};

const TO_COPY: &str = "aten._to_copy.default";

impl Emitter<'_, '_> {
    /// Notes what stands for the chunk's rows of a value. If others read them, they go where the
    /// rows of all chunks are.
    pub(super) fn keep(
        &mut self,
        node: &Node,
        value: ValueId,
        made: ValueId,
        chunk: &mut Chunk,
    ) -> Result<(), SplitError> {
        chunk.made.insert(value, made);
        if !self.cut.leaving.contains(&value) {
            return Ok(());
        }
        // What others add up, they add up in the order in which it lies.
        if !self.graph.values()[value].tensor.contiguous {
            let why = "makes rows that do not lie in order, and others read them";
            return Err(SplitError::Unsuited { node: node.name.clone(), why });
        }
        match self.cut.region.into {
            Some((result, target)) if result == value => {
                let whole = match self.part.totals.get(&target) {
                    Some(&whole) => whole,
                    None => self.before(target, node)?,
                };
                let whole = self.put(node, value, (made, whole), chunk)?;
                self.part.totals.insert(target, whole);
            }
            _ if self.cut.region.wide.contains(&value) => {
                let whole = match self.part.totals.get(&value) {
                    Some(&whole) => whole,
                    None => self.room(node, value)?,
                };
                let whole = self.put(node, value, (made, whole), chunk)?;
                self.part.totals.insert(value, whole);
            }
            _ => self.part.kept.entry(value).or_default().push(made),
        }
        Ok(())
    }

    /// A tensor for the rows of all chunks of a value.
    fn room(&mut self, node: &Node, value: ValueId) -> Result<ValueId, SplitError> {
        let tensor = &self.graph.values()[value].tensor;
        let shape = self.cut.region.spans[&value].flat(&tensor.shape, self.cut.region.rows);
        let name = format!("{}.rows", self.name_of(value));
        let call = Call::new(name, EMPTY, vec![sizes(&shape)], node);
        self.writer.typed(call, tensor.dtype)
    }

    /// Puts the rows of a chunk in their place among those of all.
    fn put(
        &mut self,
        node: &Node,
        value: ValueId,
        (part, whole): (ValueId, ValueId),
        chunk: &Chunk,
    ) -> Result<ValueId, SplitError> {
        let number = |number: u64| Argument::Int(number.cast_signed());
        let span = self.cut.region.spans[&value];
        let args = vec![
            Argument::Value(whole),
            Argument::Value(part),
            number(span.first as u64),
            number(chunk.first * span.each),
            number(chunk.end * span.each),
        ];
        let name = format!("{}.into{}", self.name_of(value), chunk.suffix());
        self.writer.first(Call::new(name, SLICE_SCATTER, args, node).over(whole))
    }

    /// A product over the rows of a chunk, which continues the sum over those before.
    pub(super) fn continued_product(
        &mut self,
        id: NodeId,
        output: ValueId,
        mut args: Vec<Argument>,
        chunk: &Chunk,
    ) -> Result<(), SplitError> {
        let total = self.part.totals.get(&output).copied();
        let op = if total.is_some() { "aten.addmm.default" } else { "aten.mm.default" };
        args.splice(0..0, total.map(Argument::Value));
        let call = chunk.call(&self.graph.nodes()[id], op, args);
        let made = self.writer.first(Call { over: total, ..call })?;
        self.part.totals.insert(output, made);
        Ok(())
    }

    /// Adds what a chunk gives of a sum over the rows. Sums of short numbers are rounded once all
    /// terms are there.
    pub(super) fn add(
        &mut self,
        node: &Node,
        output: ValueId,
        term: ValueId,
        chunk: &Chunk,
    ) -> Result<(), SplitError> {
        let name = format!("{}.total{}", self.name_of(output), chunk.suffix());
        let made = match self.part.totals.get(&output) {
            Some(&total) => {
                let args = vec![Argument::Value(total), Argument::Value(term)];
                let call = Call::new(name, "aten.add.Tensor", args, node);
                self.writer.first(call.over(total))?
            }
            None if self.is_short(output) => {
                let call = Call::new(name, TO_COPY, vec![Argument::Value(term)], node);
                self.writer.typed(call, DType::F32)?
            }
            None => term,
        };
        self.part.totals.insert(output, made);
        Ok(())
    }

    /// Lets what all chunks made stand for what a call of the part made.
    pub(super) fn leave(&mut self, id: NodeId) -> Result<(), SplitError> {
        let node = &self.graph.nodes()[id];
        for (index, output) in node.outputs.iter().enumerate() {
            let Some(output) = *output else { continue };
            let into = self.cut.region.into.filter(|&(result, _)| result == output);
            if let Some((_, target)) = into {
                self.writer.stand(node, index, self.part.totals[&target]);
            } else if self.cut.region.wide.contains(&output) {
                let Some(&rows) = self.part.totals.get(&output) else { continue };
                let made = self.unflat(node, output, rows)?;
                self.writer.stand_as(id, index, made);
            } else if let Some(&total) = self.part.totals.get(&output) {
                let made = self.whole_total(node, output, total)?;
                self.writer.stand_as(id, index, made);
            } else if let Some(parts) = self.part.kept.remove(&output) {
                let made = self.joined(node, output, &parts)?;
                self.writer.stand_as(id, index, made);
            }
        }
        Ok(())
    }

    /// A total in the type of the sum, and in its shape, which keeps more dimensions if several
    /// number the rows.
    fn whole_total(
        &mut self,
        node: &Node,
        output: ValueId,
        mut total: ValueId,
    ) -> Result<ValueId, SplitError> {
        let (tensor, name) = (&self.graph.values()[output].tensor, self.name_of(output));
        let is_flat = self.writer.shape(total) != tensor.shape;
        if self.is_short(output) {
            let name = if is_flat { format!("{name}.flat") } else { name.clone() };
            let call = Call::new(name, TO_COPY, vec![Argument::Value(total)], node);
            total = self.writer.typed(call, tensor.dtype)?;
        }
        if !is_flat {
            return Ok(total);
        }
        let args = vec![Argument::Value(total), sizes(&tensor.shape)];
        self.writer.first(Call::new(name, "aten.view.default", args, node))
    }

    /// Rows of all chunks as one.
    fn joined(
        &mut self,
        node: &Node,
        output: ValueId,
        parts: &[ValueId],
    ) -> Result<ValueId, SplitError> {
        let span = self.cut.region.spans[&output];
        let parts = parts.iter().map(|&part| Argument::Value(part)).collect();
        let args = vec![Argument::List(parts), Argument::Int(span.first as i64)];
        let name = self.name_of(output);
        let name = if span.dims > 1 { format!("{name}.rows") } else { name };
        let rows = self.writer.first(Call::new(name, "aten.cat.default", args, node))?;
        self.unflat(node, output, rows)
    }

    /// All rows of a value in its shape.
    fn unflat(
        &mut self,
        node: &Node,
        value: ValueId,
        rows: ValueId,
    ) -> Result<ValueId, SplitError> {
        if self.cut.region.spans[&value].dims == 1 {
            return Ok(rows);
        }
        let args = vec![Argument::Value(rows), sizes(&self.graph.values()[value].tensor.shape)];
        self.writer.first(Call::new(self.name_of(value), "aten.view.default", args, node))
    }

    /// The name of what makes a value, with the number of the output if it is not the first.
    pub(super) fn name_of(&self, value: ValueId) -> String {
        let producer = &self.graph.nodes()[self.graph.values()[value].producer];
        match producer.outputs.iter().position(|&output| output == Some(value)) {
            None | Some(0) => producer.name.clone(),
            Some(place) => format!("{}.{place}", producer.name),
        }
    }

    /// Whether sums of a value's type lose what they are added to.
    pub(super) fn is_short(&self, value: ValueId) -> bool {
        self.graph.values()[value].tensor.dtype.is_short()
    }
}
