//! Matrix products. Invariant: operations count two for each multiply-add, as
//! `torch.utils.flop_counter` does.

use crate::operator::call::{TypedCall, Unsuited};
use crate::operator::output::Output;
use crate::operator::{Product, Workers};
use crate::tensor::{Argument, TensorType};
use crate::units::Flops;

fn mismatch(a: &TensorType, b: &TensorType) -> Unsuited {
    Unsuited::Shapes(format!("{:?} times {:?}", a.shape, b.shape))
}

/// `mm(a, b)`
pub fn matrices(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    product(call, 0)
}

/// `addmm(bias, a, b)`
pub fn biased(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    for name in ["beta", "alpha"] {
        let factor = call.argument(usize::MAX, name).and_then(Argument::number);
        if factor.is_some_and(|factor| !factor.is_finite()) {
            return Err(Unsuited::Keyword { name: name.to_string(), wanted: "a finite number" });
        }
    }
    product(call, 1)
}

fn product(call: &TypedCall<'_>, left: usize) -> Result<Vec<Output>, Unsuited> {
    let (a, b) = (call.tensor(left)?, call.tensor(left + 1)?);
    match (&a.shape[..], &b.shape[..]) {
        (&[m, k], &[inner, n]) if k == inner => Ok(vec![Output::computed(&[m, n], a.dtype)]),
        _ => Err(mismatch(a, b)),
    }
}

/// `bmm(a, b)`
pub fn batched(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let (a, b) = (call.tensor(0)?, call.tensor(1)?);
    match (&a.shape[..], &b.shape[..]) {
        (&[batch, m, k], &[other, inner, n]) if batch == other && k == inner => {
            Ok(vec![Output::computed(&[batch, m, n], a.dtype)])
        }
        _ => Err(mismatch(a, b)),
    }
}

/// Operations of a product whose left operand is argument `LEFT`.
pub fn flops<const LEFT: usize>(call: &TypedCall<'_>) -> Flops {
    let (Some(a), Some(b)) = (call.optional_tensor(LEFT), call.optional_tensor(LEFT + 1)) else {
        return Flops(0);
    };
    let columns = b.shape.last().copied().unwrap_or(0);
    Flops(columns.saturating_mul(2).saturating_mul(a.elements()))
}

/// The product that is packed if the left operand is argument `LEFT`.
pub fn packing<const LEFT: usize>(call: &TypedCall<'_>) -> Vec<Product> {
    let (Some(a), Some(b)) = (call.optional_tensor(LEFT), call.optional_tensor(LEFT + 1)) else {
        return Vec::new();
    };
    match (&a.shape[..], &b.shape[..]) {
        (&[.., m, k], &[.., n]) => vec![Product { m, n, k, workers: Workers::Together }],
        _ => Vec::new(),
    }
}
