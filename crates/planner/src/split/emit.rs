//! Writes a step whose loss is computed in chunks. Invariant: what a chunk's call makes is what its
//! operator derives from its inputs; all other calls are as before, and those that need nothing of
//! the loss come before it.

use std::collections::HashMap;

use cranelift_entity::SecondaryMap;

use crate::graph::{Graph, Node};
use crate::id::{NodeId, ValueId};
use crate::operator::Operator;
use crate::split::SplitError;
use crate::split::head::{Head, Role};
use crate::split::writer::{Call, Writer, unknown};
use crate::tensor::{Argument, DType};

/// Writes the step.
pub struct Emitter<'a> {
    graph: &'a Graph,
    head: &'a Head,
    writer: Writer<'a>,
}

/// What was made of the rows of one chunk.
struct Chunk {
    number: usize,
    first: u64,
    end: u64,
    /// What stands for each wide value.
    wide: HashMap<ValueId, ValueId>,
    /// Parts of narrow tensors, by the value and the dimension that is cut.
    parts: HashMap<(ValueId, usize), ValueId>,
}

/// What concerns all rows of the targets.
struct Targets {
    /// The class of each row; the first one where none counts.
    classes: ValueId,
    /// The first class of each row that counts, and what is ignored elsewhere.
    first: ValueId,
    /// How many rows count.
    total: ValueId,
}

impl<'a> Emitter<'a> {
    pub fn new(graph: &'a Graph, head: &'a Head) -> Emitter<'a> {
        Emitter { graph, head, writer: Writer::new(graph) }
    }

    /// The step in chunks between these borders.
    pub fn split(mut self, borders: &[u64]) -> Result<Graph, SplitError> {
        let (before, after) = self.around();
        before.iter().for_each(|&id| self.writer.copy(id));
        self.head_in_chunks(borders)?;
        after.iter().for_each(|&id| self.writer.copy(id));
        self.writer.finish()
    }

    /// The calls that need nothing of the loss and are made before its last one, and all others.
    fn around(&self) -> (Vec<NodeId>, Vec<NodeId>) {
        let mut is_in: SecondaryMap<NodeId, bool> = SecondaryMap::new();
        self.head.calls.iter().for_each(|&(id, _)| is_in[id] = true);
        let last = self.head.calls.last().map(|&(id, _)| id);
        let mut depends = is_in.clone();
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for (id, node) in self.graph.nodes() {
            let mut inputs = node.inputs.iter().map(|&value| self.graph.values()[value].producer);
            depends[id] |= inputs.any(|producer| depends[producer]);
            match is_in[id] {
                true => {}
                false if depends[id] || Some(id) > last => after.push(id),
                false => before.push(id),
            }
        }
        (before, after)
    }

    fn head_in_chunks(&mut self, borders: &[u64]) -> Result<(), SplitError> {
        let (graph, head) = (self.graph, self.head);
        let loss = &graph.nodes()[head.loss];
        let targets = self.targets(loss)?;
        let mut totals: HashMap<NodeId, ValueId> = HashMap::new();
        let mut kept: HashMap<NodeId, Vec<ValueId>> = HashMap::new();
        for (number, ends) in borders.windows(2).enumerate() {
            let (first, end) = (ends[0], ends[1]);
            let (wide, parts) = (HashMap::new(), HashMap::new());
            let mut chunk = Chunk { number, first, end, wide, parts };
            for &(id, role) in &head.calls {
                let node = &graph.nodes()[id];
                match role {
                    Role::Shown => {
                        let shown = chunk.wide[&node.inputs[0]];
                        chunk.wide.extend(node.outputs.iter().flatten().map(|&it| (it, shown)));
                    }
                    Role::Exchanged => {
                        let order = Argument::List(vec![Argument::Int(1), Argument::Int(0)]);
                        let args = vec![Argument::Value(chunk.wide[&node.inputs[0]]), order];
                        let call = chunk.call(node, "aten.permute.default", args);
                        let made = self.writer.first(call)?;
                        self.writer.stand_for(id);
                        chunk.wide.extend(node.outputs.iter().flatten().map(|&it| (it, made)));
                    }
                    Role::Loss => {
                        let picked = self.picked(node, &chunk, targets.classes)?;
                        self.writer.stand_for(id);
                        kept.entry(id).or_default().push(picked);
                    }
                    Role::Rows | Role::Kept => {
                        let made = self.rows(id, &mut chunk, &targets)?;
                        self.writer.stand_for(id);
                        match role {
                            Role::Kept => kept.entry(id).or_default().push(made),
                            _ => {
                                let outputs = node.outputs.iter().flatten();
                                chunk.wide.extend(outputs.map(|&it| (it, made)));
                            }
                        }
                    }
                    Role::Term => {
                        let total = self.term(node, &mut chunk, totals.get(&id).copied())?;
                        totals.insert(id, total);
                    }
                }
            }
        }
        for &(id, role) in &head.calls {
            let node = &graph.nodes()[id];
            match role {
                Role::Kept => {
                    let made = self.joined(node, &kept[&id])?;
                    self.writer.stand(node, 0, made);
                }
                Role::Term => self.writer.stand(node, 0, totals[&id]),
                Role::Loss => {
                    let picked = self.joined(node, &kept[&id])?;
                    self.reduced(node, picked, &targets)?;
                }
                Role::Rows | Role::Shown | Role::Exchanged => {}
            }
        }
        Ok(())
    }

    /// The targets of all rows, without those that are ignored.
    fn targets(&mut self, loss: &Node) -> Result<Targets, SplitError> {
        let target = Argument::Value(self.before(values_of(loss)[1], loss)?);
        let ignored = loss.args[4].clone();
        let named = |what: &str, op, args| Call {
            name: format!("{}.{what}", loss.name),
            op,
            args,
            of: loss,
        };
        let whole = |number: Argument| vec![Argument::List(Vec::new()), number];
        let integer = DType::I64;
        let counts = self.writer.first(named(
            "counts",
            "aten.ne.Scalar",
            vec![target.clone(), ignored.clone()],
        ))?;
        let zero = self
            .writer
            .full(named("zero", "aten.full.default", whole(Argument::Int(0))), integer)?;
        let none = self.writer.full(named("none", "aten.full.default", whole(ignored)), integer)?;
        let [counts, zero, none] = [counts, zero, none].map(Argument::Value);
        let args = vec![counts.clone(), target, zero.clone()];
        let classes = self.writer.first(named("classes", "aten.where.self", args))?;
        let first =
            self.writer.first(named("first", "aten.where.self", vec![counts, zero, none]))?;
        let float = self.graph.values()[values_of(loss)[0]].tensor.dtype;
        let rows = Argument::Int(self.head.rows.cast_signed());
        let size = vec![Argument::List(vec![rows, Argument::Int(1)]), Argument::Float(0.0)];
        let nothing = self.writer.full(named("nothing", "aten.full.default", size), float)?;
        let args = reduction(loss, nothing, first);
        let made = self.writer.make(named("total", LOSS, args), &[], &[true, true])?;
        Ok(Targets { classes, first, total: made[1].expect("it was asked for") })
    }

    /// What the loss picks of each row of a chunk.
    fn picked(
        &mut self,
        loss: &Node,
        chunk: &Chunk,
        classes: ValueId,
    ) -> Result<ValueId, SplitError> {
        let call = chunk.slice(format!("{}.classes", loss.name), classes, 0, loss);
        let classes = self.writer.first(call)?;
        let column = Argument::Int(1);
        let args = vec![Argument::Value(classes), column.clone()];
        let index =
            self.writer.first(chunk.called(loss, "index", "aten.unsqueeze.default", args))?;
        let logarithms = chunk.wide[&values_of(loss)[0]];
        let args = vec![Argument::Value(logarithms), column, Argument::Value(index)];
        self.writer.first(chunk.called(loss, "picked", "aten.gather.default", args))
    }

    /// The loss of what was picked of all rows.
    fn reduced(
        &mut self,
        loss: &Node,
        picked: ValueId,
        targets: &Targets,
    ) -> Result<(), SplitError> {
        let call = Call {
            name: loss.name.clone(),
            op: LOSS,
            args: reduction(loss, picked, targets.first),
            of: loss,
        };
        let made = self.writer.make(call, &[], &[true, false])?;
        self.writer.stand(loss, 0, made[0].expect("it was asked for"));
        self.writer.stand(loss, 1, targets.total);
        Ok(())
    }

    /// A call on the rows of a chunk.
    fn rows(
        &mut self,
        id: NodeId,
        chunk: &mut Chunk,
        targets: &Targets,
    ) -> Result<ValueId, SplitError> {
        let (graph, node) = (self.graph, &self.graph.nodes()[id]);
        let operator = node.operator.ok_or_else(|| unknown(node))?;
        let total = graph.nodes()[self.head.loss].outputs.get(1).copied().flatten();
        let mut stands: HashMap<ValueId, ValueId> = HashMap::new();
        for (position, argument) in node.args.iter().enumerate() {
            for value in argument.values() {
                let made = match chunk.wide.get(&value) {
                    Some(&made) => made,
                    None if Some(value) == total => targets.total,
                    None if OF_ROWS.contains(&(operator, position)) => {
                        self.part(chunk, value, 0, node)?
                    }
                    None => self.before(value, node)?,
                };
                stands.insert(value, made);
            }
        }
        let renamed = |value: ValueId| stands[&value];
        let args = node.args.iter().map(|argument| argument.renamed(&renamed)).collect();
        let call = chunk.call(node, operator.name(), args);
        self.writer.first(call)
    }

    /// A product over the rows of a chunk, added to the total of those before.
    fn term(
        &mut self,
        node: &Node,
        chunk: &mut Chunk,
        total: Option<ValueId>,
    ) -> Result<ValueId, SplitError> {
        let mut args: Vec<Argument> = total.map(Argument::Value).into_iter().collect();
        // Rows are the columns of the left operand.
        for (position, value) in values_of(node).into_iter().enumerate() {
            let made = match chunk.wide.get(&value) {
                Some(&made) => made,
                None => self.part(chunk, value, 1 - position, node)?,
            };
            args.push(Argument::Value(made));
        }
        let op = if total.is_some() { "aten.addmm.default" } else { "aten.mm.default" };
        self.writer.first(chunk.call(node, op, args))
    }

    /// The rows of a chunk of a narrow value of the graph, along a dimension.
    fn part(
        &mut self,
        chunk: &mut Chunk,
        value: ValueId,
        dim: usize,
        reader: &Node,
    ) -> Result<ValueId, SplitError> {
        if let Some(&made) = chunk.parts.get(&(value, dim)) {
            return Ok(made);
        }
        let whole = self.before(value, reader)?;
        let producer = &self.graph.nodes()[self.graph.values()[value].producer];
        let place = producer.outputs.iter().position(|&output| output == Some(value)).unwrap_or(0);
        let of = ["", ".columns"][dim.min(1)];
        let of = if place == 0 { of.to_string() } else { format!(".{place}{of}") };
        let call = chunk.slice(format!("{}{of}", producer.name), whole, dim, reader);
        let made = self.writer.first(call)?;
        chunk.parts.insert((value, dim), made);
        Ok(made)
    }

    /// What stands for a value that must be there before the loss is.
    fn before(&self, value: ValueId, reader: &Node) -> Result<ValueId, SplitError> {
        self.writer.stands(value).ok_or_else(|| SplitError::Unsuited {
            node: reader.name.clone(),
            why: "needs the loss of all rows before there is one",
        })
    }

    /// Rows of all chunks as one.
    fn joined(&mut self, node: &Node, parts: &[ValueId]) -> Result<ValueId, SplitError> {
        let parts = parts.iter().map(|&part| Argument::Value(part)).collect();
        let name = if node.op == LOSS { format!("{}.rows", node.name) } else { node.name.clone() };
        let args = vec![Argument::List(parts), Argument::Int(0)];
        self.writer.first(Call { name, op: "aten.cat.default", args, of: node })
    }
}

impl Chunk {
    /// A call of this chunk that stands for another one.
    fn call<'n>(&self, of: &'n Node, op: &'static str, args: Vec<Argument>) -> Call<'n> {
        Call { name: format!("{}.chunk{}", of.name, self.number), op, args, of }
    }

    /// The rows of this chunk, along a dimension.
    fn slice<'n>(&self, name: String, of: ValueId, dim: usize, reader: &'n Node) -> Call<'n> {
        let number = |number: u64| Argument::Int(number.cast_signed());
        let args =
            vec![Argument::Value(of), number(dim as u64), number(self.first), number(self.end)];
        let name = format!("{name}.chunk{}", self.number);
        Call { name, op: "aten.slice.Tensor", args, of: reader }
    }

    /// A call that prepares one.
    fn called<'n>(
        &self,
        of: &'n Node,
        what: &str,
        op: &'static str,
        args: Vec<Argument>,
    ) -> Call<'n> {
        Call { name: format!("{}.{what}.chunk{}", of.name, self.number), op, args, of }
    }
}

const LOSS: &str = "aten.nll_loss_forward.default";
/// Arguments with a row for each target: of the product that makes the logits, and the targets.
const OF_ROWS: [(Operator, usize); 2] = [(Operator::Mm, 0), (Operator::NllLossBackward, 2)];

/// The arguments of a loss like another one.
fn reduction(loss: &Node, of: ValueId, targets: ValueId) -> Vec<Argument> {
    let rest = loss.args[2..].iter().cloned();
    [Argument::Value(of), Argument::Value(targets)].into_iter().chain(rest).collect()
}

/// The tensors among the arguments.
fn values_of(node: &Node) -> Vec<ValueId> {
    node.args.iter().flat_map(Argument::values).collect()
}
