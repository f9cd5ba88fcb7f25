//! The outputs of a call, derived from its inputs as by PyTorch's meta functions. Invariant: shapes
//! and element types are derived from the inputs alone. Views have a place, and so has what is
//! written over an input; outputs that are computed newly have none, since they may lie in any
//! layout.

use crate::operator::call::{TypedCall, Unsuited};
use crate::tensor::{DType, TensorType};

/// One output, as derived from the inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// Extent of each dimension, in elements.
    pub shape: Vec<u64>,
    /// Element type.
    pub dtype: DType,
    /// Where a view, or what is written over an input, lies in its storage; `None` for everything
    /// that is computed newly, and if the strides of that input are not known.
    pub place: Option<Place>,
}

/// A place within a storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Step of each dimension, in elements.
    pub strides: Vec<u64>,
    /// First element.
    pub offset: u64,
}

/// The outputs of a call, one for each output of the schema.
pub type Derive = fn(&TypedCall<'_>) -> Result<Vec<Output>, Unsuited>;

impl Output {
    /// A computed output.
    pub fn computed(shape: &[u64], dtype: DType) -> Output {
        Output { shape: shape.to_vec(), dtype, place: None }
    }

    /// A computed output of the type and shape of `tensor`.
    pub fn like(tensor: &TensorType) -> Output {
        Output::computed(&tensor.shape, tensor.dtype)
    }

    /// The new version of `tensor`, which is written in place.
    pub fn in_place(tensor: &TensorType) -> Output {
        let known = tensor.contiguous || tensor.strides.is_some();
        let place =
            known.then(|| Place { strides: tensor.strides_or_contiguous(), offset: tensor.offset });
        Output { place, ..Output::like(tensor) }
    }
}

/// The shape to which all shapes broadcast: from the last dimension on, extents agree or are one.
pub fn broadcast<'a>(shapes: impl IntoIterator<Item = &'a [u64]>) -> Result<Vec<u64>, Unsuited> {
    let mut joint: Vec<u64> = Vec::new();
    for shape in shapes {
        if shape.len() > joint.len() {
            joint.splice(0..0, std::iter::repeat_n(1, shape.len() - joint.len()));
        }
        let missing = joint.len() - shape.len();
        for (extent, &other) in joint[missing..].iter_mut().zip(shape) {
            if *extent == 1 {
                *extent = other;
            } else if other != 1 && other != *extent {
                return Err(Unsuited::Shapes(format!(
                    "extents {extent} and {other} do not broadcast"
                )));
            }
        }
    }
    Ok(joint)
}

/// Truth values, whole numbers, floats: a higher category always wins.
fn category(dtype: DType) -> u8 {
    match dtype {
        DType::Bool => 0,
        DType::I64 | DType::I32 | DType::I16 | DType::I8 | DType::U64 | DType::U8 => 1,
        DType::F64 | DType::F32 | DType::F16 | DType::Bf16 => 2,
    }
}

/// The wider of two types of one category.
fn wider(a: DType, b: DType) -> DType {
    match (a, b) {
        _ if a == b => a,
        (DType::F16, DType::Bf16) | (DType::Bf16, DType::F16) => DType::F32,
        (DType::U8, DType::I8) | (DType::I8, DType::U8) => DType::I16,
        _ if b.size() > a.size() => b,
        _ => a,
    }
}

/// The type in which tensors are computed together (PyTorch's type promotion): tensors without
/// dimensions matter only if their category is higher.
pub fn promoted(tensors: &[&TensorType]) -> Option<DType> {
    let of = |dimensioned: bool| {
        let types = tensors.iter().filter(|t| t.shape.is_empty() != dimensioned).map(|t| t.dtype);
        types.reduce(|a, b| match category(a).cmp(&category(b)) {
            std::cmp::Ordering::Less => b,
            std::cmp::Ordering::Greater => a,
            std::cmp::Ordering::Equal => wider(a, b),
        })
    };
    match (of(true), of(false)) {
        (Some(a), Some(b)) => Some(if category(b) > category(a) { b } else { a }),
        (a, b) => a.or(b),
    }
}

/// The type of a tensor and a number together: a number matters only if its category is higher.
pub fn promoted_with(tensor: DType, number: DType) -> DType {
    match (category(number) > category(tensor), number) {
        (false, _) => tensor,
        (true, DType::I64) => DType::I64,
        (true, _) => DType::F32,
    }
}

/// The type of functions whose values are not whole: floats stay, everything else becomes `f32`.
pub fn floating(dtype: DType) -> DType {
    if dtype.is_float() { dtype } else { DType::F32 }
}
