//! The loss of rows of classes as the loss of what was picked of each row. Invariant: the step has
//! the same results, bit for bit; afterwards no call reduces something with a column for each class
//! over the rows, the number of targets that count follows from the targets alone, and constants
//! follow from nothing.

use crate::graph::{Graph, Node};
use crate::id::ValueId;
use crate::operator::{Operator, Output};
use crate::split::SplitError;
use crate::split::writer::{Call, Writer, sizes, unknown};
use crate::tensor::{Argument, DType};

/// The loss of an image for each sample, or of a sequence: classes are its dimension 1.
const OF_IMAGES: &str = "aten.nll_loss2d_forward.default";
/// Constants that take the type of a tensor.
const CONSTANTS: [(&str, Option<i64>); 3] = [
    ("aten.new_zeros.default", Some(0)),
    ("aten.new_ones.default", Some(1)),
    ("aten.new_full.default", None),
];
const FULL: &str = "aten.full.default";
/// What the loss of what was picked ignores: its targets are the only column, or this.
const IGNORED: Argument = Argument::Int(-100);

/// The step with its losses over rows as losses over what was picked of them.
pub fn picked(graph: &Graph) -> Result<Graph, SplitError> {
    let mut writer = Writer::new(graph);
    for (id, node) in graph.nodes() {
        if is_plain(graph, node) {
            pick(graph, &mut writer, node)?;
            writer.stand_for(id);
        } else if let Some(args) = constant(node) {
            let dtype = graph.values()[node.outputs[0].expect("it has one")].tensor.dtype;
            let made = writer.typed(Call::named(node, FULL, args), dtype)?;
            writer.stand_as(id, 0, made);
        } else {
            writer.copy(id);
        }
    }
    writer.finish()
}

/// Whether it is a loss of rows of classes in which all classes weigh the same.
fn is_plain(graph: &Graph, node: &Node) -> bool {
    let [Argument::Value(x), Argument::Value(target), Argument::None, _, _] = &node.args[..] else {
        return false;
    };
    let is_index = graph.values()[*target].tensor.dtype == DType::I64;
    match graph.values()[*x].tensor.shape.len() {
        _ if !is_index => false,
        2 => node.operator == Some(Operator::NllLossForward),
        4 => node.op == OF_IMAGES,
        _ => false,
    }
}

/// The arguments of `full` for a constant of the type of a tensor, if its output is used.
fn constant(node: &Node) -> Option<Vec<Argument>> {
    let (_, number) = CONSTANTS.into_iter().find(|(op, _)| *op == node.op)?;
    node.outputs.first().copied().flatten()?;
    let number = number.map(Argument::Int).or_else(|| node.args.get(2).cloned())?;
    Some(vec![node.args.get(1)?.clone(), number])
}

/// Picks the target of each row, and makes the loss of that; how many count is the total weight of
/// a loss of zeros with the same targets.
fn pick(graph: &Graph, writer: &mut Writer<'_>, loss: &Node) -> Result<(), SplitError> {
    let named = |what: &str, op, args| Call::new(format!("{}.{what}", loss.name), op, args, loss);
    let whole = |number: Argument| vec![Argument::List(Vec::new()), number];
    let value = |value: ValueId| Argument::Value(value);
    let [Argument::Value(logarithms), Argument::Value(target), ..] = loss.args[..] else {
        return Err(unknown(loss));
    };
    let (x, ignored) = (&graph.values()[logarithms].tensor, loss.args[4].clone());
    let [logarithms, target] = [logarithms, target].map(|it| value(writer.of(it)));

    let args = vec![target.clone(), ignored];
    let counts = value(writer.first(named("counts", "aten.ne.Scalar", args))?);
    let args = whole(Argument::Int(0));
    let zero = value(writer.typed(named("zero", FULL, args), DType::I64)?);
    let args = whole(IGNORED);
    let none = value(writer.typed(named("none", FULL, args), DType::I64)?);
    // The class of each row; the first one where none counts.
    let args = vec![counts.clone(), target, zero.clone()];
    let classes = value(writer.first(named("classes", "aten.where.self", args))?);
    // The only column for each row that counts.
    let args = vec![counts, zero, none];
    let column = value(writer.first(named("column", "aten.where.self", args))?);

    let reduced = |of: Argument| {
        let rest = loss.args[2..4].iter().cloned().chain([IGNORED]);
        [of, column.clone()].into_iter().chain(rest).collect::<Vec<_>>()
    };
    let mut size = x.shape.clone();
    size[1] = 1;
    let args = vec![sizes(&size), Argument::Float(0.0)];
    let zeros = value(writer.typed(named("zeros", FULL, args), x.dtype)?);
    let total = named("total", &loss.op, reduced(zeros));
    let total = made(graph, writer, total, [true, true])?[1];
    writer.stand(loss, 1, total.expect("it was asked for"));

    let args = vec![classes, Argument::Int(1)];
    let index = value(writer.first(named("index", "aten.unsqueeze.default", args))?);
    let args = vec![logarithms, Argument::Int(1), index];
    let picked = value(writer.first(named("picked", "aten.gather.default", args))?);
    let made = made(graph, writer, Call::named(loss, &loss.op, reduced(picked)), [true, false])?[0];
    writer.stand(loss, 0, made.expect("it was asked for"));
    Ok(())
}

/// What a loss makes of something with one column: the loss, or the weight of what counts, too.
fn made(
    graph: &Graph,
    writer: &mut Writer<'_>,
    call: Call<'_>,
    used: [bool; 2],
) -> Result<Vec<Option<ValueId>>, SplitError> {
    if call.of.operator.is_some() {
        return writer.make(call, &[], &used);
    }
    let type_of = |value: ValueId| &graph.values()[value].tensor;
    let loss = call.of.outputs[0].map_or(&[][..], |loss| &type_of(loss).shape);
    let dtype = type_of(call.of.inputs[0]).dtype;
    let outputs = [loss, &[]].into_iter().zip(used);
    let outputs = outputs.map(|(shape, used)| used.then(|| Output::computed(shape, dtype)));
    let (outputs, flops) = (outputs.collect(), call.of.flops);
    Ok(writer.foreign(call, outputs, flops))
}
