//! Optimizers: `tightfit.*` operators that update a parameter and its state where they lie.
//! Invariant: each tensor that is written is an argument, and its new version an output.

use crate::operator::call::{TypedCall, Unsuited};
use crate::operator::output::Output;

/// The arguments, which must have one shape.
fn alike(call: &TypedCall<'_>) -> Result<(), Unsuited> {
    let parameter = call.tensor(0)?;
    for index in 1..call.args.len() {
        let other = call.tensor(index)?;
        if other.shape != parameter.shape {
            return Err(Unsuited::Shapes(format!(
                "a parameter of shape {:?} beside {:?}",
                parameter.shape, other.shape
            )));
        }
    }
    Ok(())
}

/// `adamw(parameter, gradient, mean, mean of squares)`
pub fn adamw(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    alike(call)?;
    [0, 2, 3].into_iter().map(|index| call.tensor(index).map(Output::like)).collect()
}

/// `sgd(parameter, gradient, momentum)`, the last one where there is momentum.
pub fn sgd(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    alike(call)?;
    let momentum = (call.args.len() > 2).then_some(2);
    [Some(0), momentum]
        .into_iter()
        .flatten()
        .map(|index| call.tensor(index).map(Output::like))
        .collect()
}
