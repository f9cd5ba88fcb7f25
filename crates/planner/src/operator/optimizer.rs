//! Optimizers: `tightfit.*` operators that update a parameter and its state in place. Invariant:
//! each tensor that is written is an argument, and its new version an output in the same place;
//! settings are those that PyTorch's optimizers take.

use crate::operator::call::{TypedCall, Unsuited};
use crate::operator::output::Output;
use crate::tensor::Argument;

/// The arguments, which must have one shape.
fn alike(call: &TypedCall<'_>) -> Result<(), Unsuited> {
    let parameter = call.tensor(0)?;
    for index in 1..call.args.len() {
        let other = call.tensor(index)?;
        if other.shape != parameter.shape {
            return Err(Unsuited::Shapes(format!(
                "a parameter of shape {:?} with {:?}",
                parameter.shape, other.shape
            )));
        }
    }
    Ok(())
}

/// Keyword `name`, if it is given: at least zero.
fn rate(call: &TypedCall<'_>, name: &'static str) -> Result<Option<f64>, Unsuited> {
    let number = call.argument(usize::MAX, name).and_then(Argument::number);
    match number {
        Some(x) if x.is_nan() || x < 0.0 => {
            Err(Unsuited::Keyword { name: name.to_string(), wanted: "a number from 0 on" })
        }
        _ => Ok(number),
    }
}

/// `adamw(parameter, gradient, mean, mean of squares)`
pub fn adamw(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    alike(call)?;
    rate(call, "eps")?;
    rate(call, "weight_decay")?;
    let betas = call.argument(usize::MAX, "betas");
    let Some(Argument::List(betas)) = betas else {
        return Err(Unsuited::Missing { name: "betas" });
    };
    let share = |beta: &Argument| beta.number().is_some_and(|x| (0.0..1.0).contains(&x));
    if !betas.iter().all(share) {
        let name = "betas".to_string();
        return Err(Unsuited::Keyword { name, wanted: "two numbers from 0 to below 1" });
    }
    [0, 2, 3].into_iter().map(|index| call.tensor(index).map(Output::in_place)).collect()
}

/// `sgd(parameter, gradient, momentum)`, the last one if there is momentum.
pub fn sgd(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    alike(call)?;
    rate(call, "weight_decay")?;
    let keeps = rate(call, "momentum")?.is_some_and(|momentum| momentum > 0.0);
    if keeps != (call.args.len() > 2) {
        let name = "momentum".to_string();
        return Err(Unsuited::Keyword { name, wanted: "above 0 where there is a buffer, else 0" });
    }
    let momentum = (call.args.len() > 2).then_some(2);
    [Some(0), momentum]
        .into_iter()
        .flatten()
        .map(|index| call.tensor(index).map(Output::in_place))
        .collect()
}
