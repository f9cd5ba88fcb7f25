//! The loss of rows of classes as the loss of what was picked of each row. Invariant: the step has
//! the same results, bit for bit; afterwards no call reduces something with a column for each class
//! over the rows, and the number of targets that count follows from the targets alone.

use crate::graph::{Graph, Node};
use crate::id::ValueId;
use crate::operator::Operator;
use crate::split::SplitError;
use crate::split::writer::{Call, Writer, unknown};
use crate::tensor::{Argument, DType};

const LOSS: &str = "aten.nll_loss_forward.default";
/// What the loss of what was picked ignores: its targets are the only column, or this.
const IGNORED: Argument = Argument::Int(-100);
/// The step with its losses over rows as losses over what was picked of them.
pub fn picked(graph: &Graph) -> Result<Graph, SplitError> {
    let mut writer = Writer::new(graph);
    for (id, node) in graph.nodes() {
        if is_plain(graph, node) {
            pick(graph, &mut writer, node)?;
            writer.stand_for(id);
        } else {
            writer.copy(id);
        }
    }
    writer.finish()
}

/// Whether it is a loss of rows of classes in which all classes weigh the same.
fn is_plain(graph: &Graph, node: &Node) -> bool {
    let [Argument::Value(x), Argument::Value(_), Argument::None, _, _] = &node.args[..] else {
        return false;
    };
    let is_matrix = graph.values()[*x].tensor.shape.len() == 2;
    node.operator == Some(Operator::NllLossForward) && is_matrix
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
    let zero = value(writer.typed(named("zero", "aten.full.default", args), DType::I64)?);
    let args = whole(IGNORED);
    let none = value(writer.typed(named("none", "aten.full.default", args), DType::I64)?);
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
    let size = [x.shape[0], 1].map(|extent| Argument::Int(extent.cast_signed()));
    let args = vec![Argument::List(size.to_vec()), Argument::Float(0.0)];
    let zeros = value(writer.typed(named("zeros", "aten.full.default", args), x.dtype)?);
    let made = writer.make(named("total", LOSS, reduced(zeros)), &[], &[true, true])?;
    writer.stand(loss, 1, made[1].expect("it was asked for"));

    let args = vec![classes, Argument::Int(1)];
    let index = value(writer.first(named("index", "aten.unsqueeze.default", args))?);
    let args = vec![logarithms, Argument::Int(1), index];
    let picked = value(writer.first(named("picked", "aten.gather.default", args))?);
    let made = writer.make(Call::named(loss, LOSS, reduced(picked)), &[], &[true, false])?;
    writer.stand(loss, 0, made[0].expect("it was asked for"));
    Ok(())
}
