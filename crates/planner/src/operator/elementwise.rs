//! Operators that work element by element. Invariant: an output has the broadcast shape of its
//! inputs, and their promoted type unless the operator has a type of its own.

use crate::operator::call::{TypedCall, Unsuited};
use crate::operator::output::{Output, broadcast, floating, promoted, promoted_with};
use crate::tensor::{Argument, DType, TensorType};

/// The type of a number as PyTorch sees it, if argument `index` is one.
fn number(call: &TypedCall<'_>, index: usize) -> Option<DType> {
    of_number(call.args.get(index)?)
}

fn of_number(argument: &Argument) -> Option<DType> {
    match argument {
        Argument::Bool(_) => Some(DType::Bool),
        Argument::Int(_) => Some(DType::I64),
        Argument::Float(_) | Argument::Text(_) => Some(DType::F32),
        Argument::Value(_) | Argument::None | Argument::List(_) => None,
    }
}

/// Shape and type of arguments 0 and 1 together, each a tensor or a number.
fn two(call: &TypedCall<'_>) -> Result<(Vec<u64>, DType), Unsuited> {
    let tensors: Vec<&TensorType> =
        [0, 1].into_iter().filter_map(|index| call.optional_tensor(index)).collect();
    let wrong = Unsuited::Argument { index: 0, wanted: "a tensor" };
    let mut dtype = promoted(&tensors).ok_or(wrong)?;
    if tensors.len() == 1 {
        let other = if call.optional_tensor(0).is_some() { 1 } else { 0 };
        let wrong = Unsuited::Argument { index: other, wanted: "a tensor or a number" };
        dtype = promoted_with(dtype, number(call, other).ok_or(wrong)?);
    }
    Ok((broadcast(tensors.iter().map(|tensor| tensor.shape.as_slice()))?, dtype))
}

/// add, sub, mul and others: a tensor with a tensor or a number.
pub fn arithmetic(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let (shape, dtype) = two(call)?;
    Ok(vec![Output::computed(&shape, dtype)])
}

/// Sums: the factor of the second operand is whole if the result is.
pub fn sum(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let (shape, dtype) = two(call)?;
    match call.argument(2, "alpha") {
        Some(Argument::Int(_)) | None => {}
        Some(_) if dtype.is_float() => {}
        Some(_) => {
            return Err(Unsuited::Keyword { name: "alpha".to_string(), wanted: "a whole number" });
        }
    }
    Ok(vec![Output::computed(&shape, dtype)])
}

/// Differences, which do not exist for truth values.
pub fn difference(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    for index in [0, 1] {
        let tensor = call.optional_tensor(index).map(|tensor| tensor.dtype);
        if tensor.or(number(call, index)) == Some(DType::Bool) {
            return Err(Unsuited::Argument { index, wanted: "a number, or a tensor of numbers" });
        }
    }
    sum(call)
}

/// The gradient of a function of argument 1, which has the shape of argument 0.
pub fn gradient(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let (incoming, x) = (call.tensor(0)?, call.tensor(1)?);
    if incoming.shape != x.shape {
        return Err(Unsuited::Shapes(format!(
            "a gradient of shape {:?} for {:?}",
            incoming.shape, x.shape
        )));
    }
    arithmetic(call)
}

/// Division: whole numbers give floats.
pub fn quotient(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let (shape, dtype) = two(call)?;
    Ok(vec![Output::computed(&shape, floating(dtype))])
}

/// Comparisons and logic, a tensor with a tensor or a number: truth values.
pub fn truth(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let (shape, _) = two(call)?;
    Ok(vec![Output::computed(&shape, DType::Bool)])
}

/// Shape and type of argument 0.
pub fn same(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    Ok(vec![Output::like(call.tensor(0)?)])
}

/// Argument 0, overwritten in place by an operand that broadcasts to it.
pub fn overwritten(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let (to, from) = (call.tensor(0)?, call.tensor(1)?);
    if broadcast([to.shape.as_slice(), from.shape.as_slice()])? != to.shape {
        return Err(Unsuited::Shapes(format!("{:?} copied into {:?}", from.shape, to.shape)));
    }
    Ok(vec![Output::in_place(to)])
}

/// Shape of argument 0, as truth values.
pub fn negation(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    Ok(vec![Output::computed(&call.tensor(0)?.shape, DType::Bool)])
}

/// Functions of argument 0 whose values are not whole.
pub fn function(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let x = call.tensor(0)?;
    Ok(vec![Output::computed(&x.shape, floating(x.dtype))])
}

/// Argument 0 within limits that are numbers.
pub fn clamp(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let x = call.tensor(0)?;
    let limits: Vec<DType> = [(1, "min"), (2, "max")]
        .into_iter()
        .filter_map(|(index, name)| of_number(call.argument(index, name)?))
        .collect();
    if limits.is_empty() {
        return Err(Unsuited::Argument { index: 1, wanted: "a number, or the one after it" });
    }
    let limits = limits.into_iter();
    Ok(vec![Output::computed(&x.shape, limits.fold(x.dtype, promoted_with))])
}

/// `where(condition, a, b)`
pub fn choice(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let (condition, a, b) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
    let shape = broadcast([condition, a, b].map(|tensor| tensor.shape.as_slice()))?;
    let dtype = promoted(&[a, b]).unwrap_or(a.dtype);
    Ok(vec![Output::computed(&shape, dtype)])
}
