//! A tensor as rows along its last dimensions. Invariant: a row's elements lie a constant step
//! apart; kernels that need them adjacent use [`Rows::contiguous`].

use crate::kernels::KernelError;
use crate::kernels::tensor::Tensor;

/// Where the rows of a tensor begin.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    extents: Vec<usize>,
    strides: Vec<usize>,
    /// Number of rows.
    pub count: usize,
    /// Elements of a row.
    pub len: usize,
    /// Step from one element of a row to the next.
    pub step: usize,
}

impl Rows {
    /// Rows over all but the last `inner` dimensions.
    pub fn new(tensor: &Tensor, inner: usize) -> Result<Rows, KernelError> {
        let outer = tensor.shape.len().checked_sub(inner).ok_or_else(|| {
            KernelError::Shapes(format!("{:?} has no {inner} dimensions", tensor.shape))
        })?;
        let row = Tensor {
            shape: tensor.shape[outer..].to_vec(),
            strides: tensor.strides[outer..].to_vec(),
            ..tensor.clone()
        };
        let step = match (row.is_contiguous(), row.strides.last()) {
            (true, _) => 1,
            (false, Some(&step)) if inner == 1 => step,
            _ => {
                return Err(KernelError::Unsupported(format!(
                    "rows of {:?} with strides {:?}",
                    row.shape, row.strides
                )));
            }
        };
        Ok(Rows {
            extents: tensor.shape[..outer].to_vec(),
            strides: tensor.strides[..outer].to_vec(),
            count: tensor.shape[..outer].iter().product(),
            len: row.elements(),
            step,
        })
    }

    /// Rows whose elements are adjacent.
    pub fn contiguous(tensor: &Tensor, inner: usize) -> Result<Rows, KernelError> {
        let rows = Rows::new(tensor, inner)?;
        if rows.step == 1 {
            Ok(rows)
        } else {
            Err(KernelError::Unsupported(format!(
                "rows of {} elements {} apart",
                rows.len, rows.step
            )))
        }
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
