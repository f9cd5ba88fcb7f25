//! A tensor as rows along its last dimensions. Invariant: a row's elements follow each other without gaps.

use super::KernelError;
use crate::tensor::Tensor;

/// Where the rows of a tensor begin.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    extents: Vec<usize>,
    strides: Vec<usize>,
    /// Number of rows.
    pub count: usize,
    /// Elements of a row.
    pub len: usize,
}

impl Rows {
    /// Rows over all but the last `inner` dimensions, which must be contiguous.
    pub fn new(tensor: &Tensor, inner: usize) -> Result<Rows, KernelError> {
        let outer = tensor
            .shape
            .len()
            .checked_sub(inner)
            .ok_or_else(|| KernelError::Shapes(format!("{:?} has no {inner} dimensions", tensor.shape)))?;
        let row = Tensor { shape: tensor.shape[outer..].to_vec(), strides: tensor.strides[outer..].to_vec(), ..tensor.clone() };
        if !row.is_contiguous() {
            return Err(KernelError::Unsupported(format!("rows of {:?} with strides {:?}", row.shape, row.strides)));
        }
        Ok(Rows {
            extents: tensor.shape[..outer].to_vec(),
            strides: tensor.strides[..outer].to_vec(),
            count: tensor.shape[..outer].iter().product(),
            len: row.elements(),
        })
    }

    /// First element of row `index`, in elements from the tensor's first.
    pub fn at(&self, mut index: usize) -> usize {
        let mut offset = 0;
        for d in (0..self.extents.len()).rev() {
            offset += index % self.extents[d] * self.strides[d];
            index /= self.extents[d];
        }
        offset
    }
}
