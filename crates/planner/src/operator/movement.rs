//! Operators that make, copy and pick elements. Invariant: no arithmetic except conversion.

use crate::operator::call::{TypedCall, Unsuited, dimension};
use crate::operator::output::{Output, promoted};
use crate::operator::slice::limits;
use crate::tensor::{Argument, DType};

/// Extents as a call gives them: none is negative.
pub fn extents(list: &[i64]) -> Result<Vec<u64>, Unsuited> {
    let extent =
        |&x: &i64| u64::try_from(x).map_err(|_| Unsuited::Shapes(format!("an extent of {x}")));
    list.iter().map(extent).collect()
}

/// The type of a constant for which none is given.
fn type_of_number(argument: Option<&Argument>) -> DType {
    match argument {
        Some(Argument::Bool(_)) => DType::Bool,
        Some(Argument::Int(_)) => DType::I64,
        _ => DType::F32,
    }
}

/// `full(size, value)`
pub fn full(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let shape = extents(&call.integers(0, "size")?)?;
    let dtype = call.dtype(usize::MAX, "dtype")?;
    let dtype = dtype.unwrap_or_else(|| type_of_number(call.args.get(1)));
    Ok(vec![Output::computed(&shape, dtype)])
}

/// `empty(size)`: memory whose elements are not defined until they are written.
pub fn room(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let shape = extents(&call.integers(0, "size")?)?;
    formatted(call, &shape, call.dtype(usize::MAX, "dtype")?.unwrap_or(DType::F32))
}

/// Memory for a tensor that another rank makes.
pub fn incoming(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let shape = extents(&call.integers(0, "size")?)?;
    Ok(vec![Output::computed(&shape, call.dtype(usize::MAX, "dtype")?.unwrap_or(DType::F32))])
}

/// Argument 0 as it is sent, or received.
pub fn exchanged(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    Ok(vec![Output::in_place(call.tensor(0)?)])
}

/// `all_gather(shard, size, ranks, message)`: the tensor of which each rank has a piece.
pub fn whole(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let shape = extents(&call.integers(1, "size")?)?;
    let shard = call.tensor(0)?;
    let piece = piece(&shape, ranks(call, 2)?)?;
    match shard.shape[..] == [piece] {
        true => Ok(vec![Output::computed(&shape, shard.dtype)]),
        false => Err(Unsuited::Shapes(format!(
            "a shard of shape {:?}, where {piece} elements of {shape:?} are a rank's",
            shard.shape
        ))),
    }
}

/// `all_to_all(tensor, ranks, message)`: this rank's piece of each other rank's tensor.
pub fn pieces(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let (tensor, ranks) = (call.tensor(0)?, ranks(call, 1)?);
    let piece = piece(&tensor.shape, ranks)?;
    Ok(vec![Output::computed(&[ranks - 1, piece], tensor.dtype)])
}

/// `mean_pieces(tensor, pieces)`: the mean of this rank's piece of its own tensor and of those that
/// came from the others.
pub fn mean_of_pieces(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let (tensor, pieces) = (call.tensor(0)?, call.tensor(1)?);
    let &[others, elements] = &pieces.shape[..] else {
        return Err(Unsuited::Shapes(format!("pieces of shape {:?}", pieces.shape)));
    };
    let ranks = others.checked_add(1).filter(|&ranks| ranks > 1);
    let fits = match ranks {
        Some(ranks) => piece(&tensor.shape, ranks)? == elements,
        None => false,
    };
    match fits {
        true => Ok(vec![Output::computed(&[elements], tensor.dtype)]),
        false => Err(Unsuited::Shapes(format!(
            "pieces of shape {:?} of a tensor of {:?}",
            pieces.shape, tensor.shape
        ))),
    }
}

/// The number of ranks in a collective.
fn ranks(call: &TypedCall<'_>, index: usize) -> Result<u64, Unsuited> {
    let ranks = call.integer(index, "ranks")?;
    let several = u32::try_from(ranks).ok().filter(|&ranks| ranks > 1);
    several.map(u64::from).ok_or_else(|| Unsuited::Shapes(format!("a collective of {ranks} ranks")))
}

/// The elements that each rank has of a tensor.
fn piece(shape: &[u64], ranks: u64) -> Result<u64, Unsuited> {
    let elements = shape.iter().try_fold(1u64, |product, &extent| product.checked_mul(extent));
    let elements = elements.ok_or_else(|| Unsuited::Shapes(format!("{shape:?} elements")))?;
    Ok(elements.div_ceil(ranks))
}

/// No outputs.
pub fn nothing(_: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    Ok(vec![Output::computed(&[], DType::Bool)])
}

/// A single element of the given type, or else a float.
pub fn scalar(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let dtype = call.dtype(usize::MAX, "dtype")?.unwrap_or(DType::F32);
    Ok(vec![Output::computed(&[], dtype)])
}

/// Shape of argument 0, and its type unless another one is requested.
pub fn converted(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let x = call.tensor(0)?;
    let dtype = call.dtype(usize::MAX, "dtype")?.unwrap_or(x.dtype);
    formatted(call, &x.shape, dtype)
}

/// A tensor of this shape, in the memory format that is given.
fn formatted(call: &TypedCall<'_>, shape: &[u64], dtype: DType) -> Result<Vec<Output>, Unsuited> {
    let rank = match call.argument(usize::MAX, "memory_format") {
        Some(Argument::Text(format)) if format == "torch.channels_last" => Some(4),
        Some(Argument::Text(format)) if format == "torch.channels_last_3d" => Some(5),
        _ => None,
    };
    if rank.is_some_and(|rank| rank != shape.len()) {
        let name = "memory_format".to_string();
        return Err(Unsuited::Keyword { name, wanted: "one for this many dimensions" });
    }
    Ok(vec![Output::computed(shape, dtype)])
}

/// `arange(start, end, step = 1)`: ⌈(end − start) / step⌉ elements.
pub fn range(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let number = |index: usize| {
        let number = call.args.get(index).and_then(Argument::number);
        number.ok_or(Unsuited::Argument { index, wanted: "a number" })
    };
    let (start, end) = (number(0)?, number(1)?);
    let step = if call.args.len() > 2 { number(2)? } else { 1.0 };
    let whole = call.args.iter().all(|argument| matches!(argument, Argument::Int(_)));
    let implied = if whole { DType::I64 } else { DType::F32 };
    let dtype = call.dtype(usize::MAX, "dtype")?.unwrap_or(implied);
    // For whole numbers, limits and step are cast before they are counted.
    let integer = |index: usize| match call.args.get(index) {
        Some(Argument::Int(x)) => i128::from(*x),
        Some(other) => other.number().unwrap_or(0.0) as i64 as i128,
        None => 1,
    };
    let count = if dtype.is_float() {
        ((end - start) / step).ceil()
    } else {
        let (span, step) = (integer(1) - integer(0), integer(2));
        if step == 0 { f64::NAN } else { (span + step - step.signum()).div_euclid(step) as f64 }
    };
    if !(0.0..=(1u64 << 53) as f64).contains(&count) {
        return Err(Unsuited::Shapes(format!("a range of {count} elements")));
    }
    Ok(vec![Output::computed(&[count as u64], dtype)])
}

/// `cat(tensors, dim = 0)`: an empty vector is ignored.
pub fn concatenation(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let tensors = call.tensors(0);
    let dtype =
        promoted(&tensors).ok_or(Unsuited::Argument { index: 0, wanted: "a list of tensors" })?;
    let parts: Vec<_> = tensors.into_iter().filter(|tensor| tensor.shape != [0]).collect();
    let Some(first) = parts.first() else { return Ok(vec![Output::computed(&[0], dtype)]) };
    let dim = dimension(call.optional_integer(1, "dim")?.unwrap_or(0), first.shape.len())?;
    if first.shape.is_empty() {
        return Err(Unsuited::Shapes("tensors without dimensions side by side".to_string()));
    }
    let mut shape = first.shape.clone();
    for part in &parts[1..] {
        let agrees = part.shape.len() == shape.len()
            && (0..shape.len()).all(|d| d == dim || part.shape[d] == shape[d]);
        if !agrees {
            return Err(Unsuited::Shapes(format!(
                "{:?} and {:?} along dimension {dim}",
                part.shape, first.shape
            )));
        }
        shape[dim] = shape[dim].saturating_add(part.shape[dim]);
    }
    Ok(vec![Output::computed(&shape, dtype)])
}

/// `gather(x, dim, index)`: the index's shape, the type of x.
pub fn gathered(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    Ok(vec![Output::computed(&call.tensor(2)?.shape, call.tensor(0)?.dtype)])
}

/// `embedding(table, indices)`: a row of the table for each index.
pub fn rows(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let (table, indices) = (call.tensor(0)?, call.tensor(1)?);
    let [_, columns] = table.shape[..] else {
        return Err(Unsuited::Shapes(format!("a table of shape {:?}", table.shape)));
    };
    let mut shape = indices.shape.clone();
    shape.push(columns);
    Ok(vec![Output::computed(&shape, table.dtype)])
}

/// `embedding_dense_backward(gradient, indices, rows, …)`: the gradient of the table.
pub fn table_gradient(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let gradient = call.tensor(0)?;
    let columns = gradient.shape.last().copied().unwrap_or(1);
    let rows = extents(&[call.integer(2, "num_weights")?])?[0];
    Ok(vec![Output::computed(&[rows, columns], gradient.dtype)])
}

/// `slice_scatter(x, patch, dim = 0, start = 0, end = ∞, step = 1)`: x with a slice replaced.
pub fn patched(call: &TypedCall<'_>) -> Result<Vec<Output>, Unsuited> {
    let (x, patch) = (call.tensor(0)?, call.tensor(1)?);
    let dim = dimension(call.optional_integer(2, "dim")?.unwrap_or(0), x.shape.len())?;
    let mut slice = x.shape.clone();
    if let Some(extent) = slice.get_mut(dim) {
        *extent = limits(call, 3, *extent)?.count;
    }
    if patch.shape != slice {
        return Err(Unsuited::Shapes(format!(
            "a patch of shape {:?} for a slice of {slice:?}",
            patch.shape
        )));
    }
    Ok(vec![Output::like(x)])
}
