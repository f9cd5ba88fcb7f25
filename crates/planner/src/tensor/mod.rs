//! Tensors as types: element type, shape, and place within a storage; and the arguments of calls.
//! Invariant: nothing here knows a graph, so the operator table can speak of calls without one.

mod argument;

pub use argument::{Argument, placed, placed_mut};

use crate::units::Bytes;

/// Element types of tightfit-graph/1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DType {
    /// 64-bit float.
    F64,
    /// 32-bit float.
    F32,
    /// IEEE 16-bit float.
    F16,
    /// bfloat16.
    Bf16,
    /// 64-bit signed integer.
    I64,
    /// 32-bit signed integer.
    I32,
    /// 16-bit signed integer.
    I16,
    /// 8-bit signed integer.
    I8,
    /// 64-bit unsigned integer, as seeds on CUDA are.
    U64,
    /// 8-bit unsigned integer.
    U8,
    /// A truth value in one byte, 0 or 1.
    Bool,
}

impl DType {
    /// Every type with its name in tightfit-graph/1 and its size in bytes.
    pub const ALL: [(DType, &'static str, u64); 11] = [
        (DType::F64, "f64", 8),
        (DType::F32, "f32", 4),
        (DType::F16, "f16", 2),
        (DType::Bf16, "bf16", 2),
        (DType::I64, "i64", 8),
        (DType::I32, "i32", 4),
        (DType::I16, "i16", 2),
        (DType::I8, "i8", 1),
        (DType::U64, "u64", 8),
        (DType::U8, "u8", 1),
        (DType::Bool, "bool", 1),
    ];

    /// The type called `name` in tightfit-graph/1.
    pub fn from_name(name: &str) -> Option<DType> {
        Self::ALL.iter().find(|(_, n, _)| *n == name).map(|(dtype, _, _)| *dtype)
    }

    /// Its name in tightfit-graph/1.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Bytes of one element.
    pub fn size(self) -> u64 {
        Self::ALL[self as usize].2
    }

    /// Whether it is a floating-point type.
    pub fn is_float(self) -> bool {
        self <= DType::Bf16
    }

    /// Whether it is a floating-point type of 16 bits: long sums lose what is added last.
    pub fn is_short(self) -> bool {
        matches!(self, DType::F16 | DType::Bf16)
    }
}

/// Shape and element type of a tensor, and where it lies in its storage.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorType {
    /// The extent of each dimension, in elements.
    pub shape: Vec<u64>,
    /// The element type.
    pub dtype: DType,
    /// Whether the elements lie in row-major order without gaps.
    pub contiguous: bool,
    /// Step of each dimension, in elements; absent in planning-only graphs and for contiguous
    /// tensors.
    pub strides: Option<Vec<u64>>,
    /// The position of the first element within the storage, in elements.
    pub offset: u64,
}

impl TensorType {
    /// A contiguous tensor at the start of its storage.
    pub fn contiguous(shape: &[u64], dtype: DType) -> TensorType {
        TensorType { shape: shape.to_vec(), dtype, contiguous: true, strides: None, offset: 0 }
    }

    /// Number of elements. Bounded: the verifier fits every value into its storage or refuses it.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Bytes of all elements, as if contiguous.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.elements() * self.dtype.size())
    }

    /// Strides in elements: the recorded ones, or row-major ones.
    pub fn strides_or_contiguous(&self) -> Vec<u64> {
        self.strides.clone().unwrap_or_else(|| contiguous_strides(&self.shape))
    }

    /// Whether shape, type and place within the storage are the same, so that one may take the
    /// other's memory element by element.
    pub fn same_layout(&self, other: &TensorType) -> bool {
        self.shape == other.shape
            && self.dtype == other.dtype
            && self.offset == other.offset
            && self.contiguous == other.contiguous
            && self.strides_or_contiguous() == other.strides_or_contiguous()
    }
}

/// Row-major strides of a shape, in elements.
pub fn contiguous_strides(shape: &[u64]) -> Vec<u64> {
    let mut strides = vec![1u64; shape.len()];
    for d in (0..shape.len().saturating_sub(1)).rev() {
        strides[d] = strides[d + 1].saturating_mul(shape[d + 1].max(1));
    }
    strides
}

/// Whether elements lie in row-major order without gaps; strides of extents of one do not matter.
pub fn is_contiguous(shape: &[u64], strides: &[u64]) -> bool {
    let mut expected = 1u64;
    shape.contains(&0)
        || shape.iter().zip(strides).rev().all(|(&extent, &stride)| {
            let follows = extent == 1 || stride == expected;
            expected = expected.saturating_mul(extent);
            follows
        })
}
