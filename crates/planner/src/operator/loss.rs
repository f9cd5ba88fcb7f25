//! Losses. Invariant: classes are the dimension after the batch, or the only one.

use crate::operator::call::{TypedCall, Unsuited};
use crate::operator::output::Output;

/// The reduction of `nll_loss` that keeps a loss for each row; others are a mean over all rows and
/// a sum.
const EACH_ROW: i64 = 0;

/// `nll_loss_forward(log-probabilities, targets, weight, reduction, ignored)`: the loss, and the
/// total weight of the rows that count.
pub fn negative_log_likelihood(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let (x, targets) = (call.tensor(0)?, call.tensor(1)?);
    suits(&x.shape, &targets.shape)?;
    let each_row = call.integer(3, "reduction")? == EACH_ROW;
    let loss = if each_row { targets.shape.as_slice() } else { &[] };
    Ok(vec![Output::computed(loss, x.dtype), Output::computed(&[], x.dtype)])
}

/// `nll_loss_backward(gradient, log-probabilities, targets, …)`
pub fn negative_log_likelihood_gradient(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let (x, targets) = (call.tensor(1)?, call.tensor(2)?);
    suits(&x.shape, &targets.shape)?;
    Ok(vec![Output::like(x)])
}

fn suits(x: &[u64], targets: &[u64]) -> Result<(), Unsuited> {
    match x {
        [_] if targets.is_empty() || targets == [1] => Ok(()),
        [rows, _] if targets == [*rows] => Ok(()),
        _ => Err(Unsuited::Shapes(format!("targets {targets:?} for rows of classes {x:?}"))),
    }
}
