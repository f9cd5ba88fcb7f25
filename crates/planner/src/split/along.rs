//! What a call does with rows. Invariant: calls for consecutive parts of the rows, with the other
//! arguments whole, make the rows of the outputs that are [`Piece::Rows`], and terms of those that
//! are [`Piece::Term`]; that is what the axes of its operator say.

use crate::graph::{Graph, Node};
use crate::id::{NodeId, ValueId};
use crate::operator::{Along as OfAxis, Axis, Form, Kind, Linear, Part};
use crate::split::SplitError;
use crate::split::span::{Span, at};
use crate::tensor::{Argument, TensorType};

/// What some rows of the arguments give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// The same rows of the output.
    Rows(Span),
    /// A term of it.
    Term,
    /// Nothing: it is not used.
    Unused,
}

/// A call along the rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Along {
    /// For each positional argument, where its tensors have their rows.
    pub arguments: Vec<Option<Span>>,
    /// The outputs.
    pub outputs: Vec<Piece>,
    /// Numbers of rows among the arguments.
    pub literals: Vec<Literal>,
    /// How it is written for some rows.
    pub form: Written,
}

/// A number of rows among the arguments of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Literal {
    /// The argument.
    argument: usize,
    /// The item, if that is a list, and how many items together say how many rows there are.
    items: Option<(usize, usize)>,
    /// How many indices each row has there.
    each: u64,
}

/// How a call is written for some rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// As it is.
    Call,
    /// Not at all: it only numbers the rows otherwise.
    Omitted,
    /// As a view: it shows the same elements in the same order.
    View,
}

impl Along {
    /// The call, in which `value` has its rows along `span`; `None` if it does not compute rows by
    /// themselves.
    pub fn of(
        graph: &Graph,
        id: NodeId,
        axes: &[Axis],
        (value, span): (ValueId, Span),
        rows: u64,
    ) -> Option<Along> {
        let node = &graph.nodes()[id];
        let call = Call { graph, node, rows };
        call.shown(value, span).or_else(|| call.divided(axes, value, span))
    }

    /// Where a value has its rows: as an argument, or as an output.
    pub fn span(&self, node: &Node, value: ValueId) -> Option<Span> {
        let mut read = node.args.iter().zip(&self.arguments);
        let read =
            read.find_map(|(argument, span)| span.filter(|_| argument.values().contains(&value)));
        let mut made = node.outputs.iter().zip(&self.outputs);
        read.or_else(|| {
            made.find_map(|(output, piece)| match piece {
                Piece::Rows(span) if *output == Some(value) => Some(*span),
                _ => None,
            })
        })
    }
}

impl Along {
    /// Writes the numbers of dimensions among the arguments for tensors whose rows lie along one.
    pub fn renumber(
        &self,
        graph: &Graph,
        node: &Node,
        args: &mut [Argument],
    ) -> Result<(), SplitError> {
        let of_rows = self
            .arguments
            .iter()
            .zip(&node.args)
            .find_map(|(span, argument)| Some(((*span)?, *argument.values().first()?)));
        let Some((span, value)) = of_rows.filter(|(span, _)| span.dims > 1) else { return Ok(()) };
        let shape = &graph.values()[value].tensor.shape;
        let place = match node.operator {
            Some(operator) => {
                let mut parameters = operator.row().signature.positional.iter();
                parameters.position(|parameter| parameter.name == "dim")
            }
            None => foreign_dimension(node),
        };
        let Some(argument) = place.and_then(|place| args.get_mut(place)) else { return Ok(()) };
        let why = "names a dimension of its rows";
        renumber(argument, span, shape).ok_or(SplitError::Unsuited { node: node.name.clone(), why })
    }
}

/// Writes a number of a dimension, or some, for the flat form of a tensor. Those of its rows can
/// only be named together.
fn renumber(argument: &mut Argument, span: Span, shape: &[u64]) -> Option<()> {
    match argument {
        Argument::Int(dim) => *dim = span.renumbered(*dim, shape.len())?,
        Argument::List(dims) => {
            let named = dims.iter().map(|dim| match dim {
                Argument::Int(dim) => at(*dim, shape.len()),
                _ => None,
            });
            let named = named.collect::<Option<Vec<usize>>>()?;
            let (of_rows, others): (Vec<usize>, Vec<usize>) =
                named.into_iter().partition(|&dim| span.contains(dim));
            if !of_rows.is_empty() && !span.long(shape).all(|dim| of_rows.contains(&dim)) {
                return None;
            }
            let mut flat: Vec<i64> =
                of_rows.first().map(|_| span.first as i64).into_iter().collect();
            for dim in others {
                flat.push(span.renumbered(dim as i64, shape.len())?);
            }
            flat.sort_unstable();
            *dims = flat.into_iter().map(Argument::Int).collect();
        }
        _ => {}
    }
    Some(())
}

/// The argument with which a call of an operator that is not in the table names a dimension, or
/// some, if that is known: its other whole numbers name none.
fn foreign_dimension(node: &Node) -> Option<usize> {
    Some(match &*node.op {
        "aten._safe_softmax.default"
        | "aten.amin.default"
        | "aten.argmax.default"
        | "aten.argmin.default"
        | "aten.index_select.default"
        | "aten.logsumexp.default"
        | "aten.max.dim"
        | "aten.min.dim"
        | "aten.scatter.src"
        | "aten.scatter_add.default"
        | "aten.sort.default" => 1,
        "aten.topk.default" => 2,
        _ => return None,
    })
}

/// Whether it shows a matrix as its transpose, which the table knows as a permutation.
pub fn is_transposed(node: &Node) -> bool {
    node.op == "aten.t.default"
}

struct Call<'a> {
    graph: &'a Graph,
    node: &'a Node,
    rows: u64,
}

impl Call<'_> {
    fn tensor(&self, value: ValueId) -> &TensorType {
        &self.graph.values()[value].tensor
    }

    /// A view of the same elements in the same order.
    fn shown(&self, value: ValueId, span: Span) -> Option<Along> {
        let (&[from], &[Some(to)]) = (&self.node.inputs[..], &self.node.outputs[..]) else {
            return None;
        };
        let of = [from, to].map(|value| self.tensor(value));
        let is_view = self.node.operator.is_some_and(|operator| operator.row().kind == Kind::View)
            || self.node.op == "aten._unsafe_view.default";
        let in_order =
            of.iter().all(|tensor| tensor.contiguous) && of[0].elements() == of[1].elements();
        if !is_view || !in_order {
            return None;
        }
        let viewed =
            |other: &TensorType| span.viewed(&self.tensor(value).shape, self.rows, &other.shape);
        let spans = [viewed(of[0])?, viewed(of[1])?];
        let flat = |index: usize| spans[index].flat(&of[index].shape, self.rows);
        let argument = |it: &Argument| (it.values() == [from]).then_some(spans[0]);
        Some(Along {
            arguments: self.node.args.iter().map(argument).collect(),
            outputs: vec![Piece::Rows(spans[1])],
            literals: Vec::new(),
            form: if flat(0) == flat(1) { Written::Omitted } else { Written::View },
        })
    }

    /// A call along axes that divide, one for each dimension of the span.
    fn divided(&self, axes: &[Axis], value: ValueId, span: Span) -> Option<Along> {
        let chosen: Option<Vec<&Axis>> = span
            .long(&self.tensor(value).shape)
            .map(|dim| axes.iter().find(|axis| axis.divides && self.lies(axis, value, dim)))
            .collect();
        let chosen = chosen.filter(|chosen| !chosen.is_empty())?;
        if self.node.kwargs.iter().any(|(_, argument)| !argument.values().is_empty()) {
            return None;
        }
        let mut arguments = Vec::new();
        for (index, argument) in self.node.args.iter().enumerate() {
            let dims =
                dims_of(chosen.iter().map(|axis| axis.arguments.get(index).copied().flatten()))?;
            arguments.push(match dims {
                None => None,
                Some(dims) => Some(self.span_of(&argument.values(), &dims)?),
            });
        }
        let mut outputs = Vec::new();
        for (index, output) in self.node.outputs.iter().enumerate() {
            outputs.push(match output {
                None => Piece::Unused,
                Some(output) => self.piece(&chosen, index, *output)?,
            });
        }
        let made = outputs.iter().find_map(|piece| match piece {
            Piece::Rows(span) => Some(*span),
            _ => None,
        });
        let counted = made.or_else(|| arguments.iter().copied().flatten().next());
        let literals = literals(&chosen, counted?)?;
        let along = Along { arguments, outputs, literals, form: Written::Call };
        self.can_be_flat(&along).then_some(along)
    }

    /// Whether dimension `dim` of a value lies along an axis.
    fn lies(&self, axis: &Axis, value: ValueId, dim: usize) -> bool {
        let along = OfAxis { dim, extent: Linear::ONE };
        let mut read = self.node.args.iter().zip(&axis.arguments);
        let mut made = self.node.outputs.iter().zip(&axis.outputs);
        read.any(|(argument, it)| *it == Some(along) && argument.values().contains(&value))
            || made.any(|(output, part)| *output == Some(value) && *part == Part::Rows(along))
    }

    /// The span that these dimensions are in all these values.
    fn span_of(&self, values: &[ValueId], dims: &[usize]) -> Option<Span> {
        let mut spans =
            values.iter().map(|&value| Span::of(dims, self.rows, &self.tensor(value).shape));
        let first = spans.next()??;
        spans.all(|span| span == Some(first)).then_some(first)
    }

    fn piece(&self, chosen: &[&Axis], index: usize, output: ValueId) -> Option<Piece> {
        let parts: Option<Vec<Part>> =
            chosen.iter().map(|axis| axis.outputs.get(index).copied()).collect();
        let parts = parts?;
        if parts.iter().all(|part| *part == Part::Terms) {
            return Some(Piece::Term);
        }
        let dims = dims_of(parts.iter().map(|part| match part {
            Part::Rows(along) => Some(*along),
            Part::Terms | Part::Whole => None,
        }))??;
        self.span_of(&[output], &dims).map(Piece::Rows)
    }

    /// Whether the arguments of a call that are no tensors can be written for tensors whose rows
    /// lie along one dimension.
    fn can_be_flat(&self, along: &Along) -> bool {
        let spans = along.arguments.iter().flatten();
        let made = along.outputs.iter().filter_map(|piece| match piece {
            Piece::Rows(span) => Some(span),
            _ => None,
        });
        if spans.chain(made).all(|span| span.dims == 1) {
            return true;
        }
        let is_rows = |index: usize| along.literals.iter().any(|literal| literal.argument == index);
        if foreign_dimension(self.node).is_some() {
            return true;
        }
        let Some(operator) = self.node.operator else {
            // Dimensions may be among its whole numbers; which, is not known.
            let mut args = self.node.args.iter().enumerate();
            return args.all(|(index, argument)| is_rows(index) || !has_integers(argument));
        };
        let parameters = operator.row().signature.positional.iter().enumerate();
        parameters.take(self.node.args.len()).all(|(index, parameter)| match parameter.form {
            Form::Integer | Form::Integers | Form::IntegerOrMore => {
                is_rows(index) || ["dim", "normalized_shape"].contains(&parameter.name)
            }
            _ => true,
        })
    }
}

fn has_integers(argument: &Argument) -> bool {
    match argument {
        Argument::Int(_) => true,
        Argument::List(items) => items.iter().any(has_integers),
        _ => false,
    }
}

/// The dimensions along some axes: `None` within, if none has one; `None`, if some have.
fn dims_of(alongs: impl Iterator<Item = Option<OfAxis>>) -> Option<Option<Vec<usize>>> {
    let alongs: Vec<Option<OfAxis>> = alongs.collect();
    if alongs.iter().all(Option::is_none) {
        return Some(None);
    }
    let dim = |along: Option<OfAxis>| along.filter(|it| it.extent == Linear::ONE).map(|it| it.dim);
    alongs.into_iter().map(dim).collect::<Option<Vec<usize>>>().map(Some)
}

/// The numbers of rows among the arguments of a call that has its rows along `span`.
fn literals(chosen: &[&Axis], span: Span) -> Option<Vec<Literal>> {
    let mut all = chosen.iter().flat_map(|axis| &axis.literals);
    if all.clone().any(|literal| literal.extent != Linear::ONE) {
        return None;
    }
    let literal = |argument, items| Literal { argument, items, each: span.each };
    if span.dims == 1 {
        return Some(all.map(|it| literal(it.argument, it.item.map(|item| (item, 1)))).collect());
    }
    let Some(first) = all.next() else { return Some(Vec::new()) };
    let (argument, item) = (first.argument, first.item?);
    let mut count = 1;
    for literal in all {
        if (literal.argument, literal.item) != (argument, Some(item + count)) {
            return None;
        }
        count += 1;
    }
    (count == span.dims).then(|| vec![literal(argument, Some((item, count)))])
}

impl Literal {
    /// Writes it among these arguments for as many rows.
    pub fn write(self, args: &mut [Argument], rows: u64) {
        let count = Argument::Int((rows * self.each).cast_signed());
        match (&mut args[self.argument], self.items) {
            (Argument::List(items), Some((item, together))) => {
                items.splice(item..item + together, [count]);
            }
            (argument, _) => *argument = count,
        }
    }
}
