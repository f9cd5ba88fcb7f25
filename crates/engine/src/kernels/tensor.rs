//! Tensors bound to addresses. Invariant: a tensor's elements lie inside its buffer; the verifier
//! fitted shape, strides and offset into the storage, and the checker the storage into the buffer.
//! Only a tensor that is known to hold `T`s gives a pointer to them.

use std::marker::PhantomData;
use std::ops::Deref;

use tightfit::graph::Value;
use tightfit::tensor::{DType, contiguous_strides};

use crate::kernels::parts::touch;

/// A Rust type that stores elements of one element type.
pub(crate) trait Element: Copy + Send + Sync + Default + PartialOrd + 'static {
    /// The element type.
    const DTYPE: DType;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
}

impl Element for i64 {
    const DTYPE: DType = DType::I64;
}

/// Truth values are bytes, 0 or 1.
impl Element for u8 {
    const DTYPE: DType = DType::Bool;
}

/// Strides of dimensions of extent one are never used; larger ones are clamped to this.
const LARGEST_IDLE_STRIDE: u64 = 1 << 32;

/// A tensor at an address of the slab.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    /// First element, in bytes from the start of the slab.
    pub address: usize,
    /// Element type.
    pub dtype: DType,
    /// Extent of each dimension.
    pub shape: Vec<usize>,
    /// Step of each dimension, in elements.
    pub strides: Vec<usize>,
}

/// A tensor whose elements are `T`s, as was verified when the kernel was compiled.
#[derive(Clone, Debug)]
pub(crate) struct Typed<T> {
    tensor: Tensor,
    element: PhantomData<fn() -> T>,
}

impl<T> Deref for Typed<T> {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        &self.tensor
    }
}

impl<T: Element> Typed<T> {
    /// Its first element within a slab that starts at `base`.
    pub fn raw(&self, base: *mut u8) -> Raw<T> {
        // wrapping: an empty tensor may sit at the very end
        Raw(base.wrapping_add(self.address).cast())
    }

    /// [`Tensor::broadcast`], which keeps the type.
    pub fn broadcast(&self, shape: &[usize]) -> Option<Typed<T>> {
        self.tensor.broadcast(shape).and_then(|tensor| tensor.typed())
    }
}

/// A pointer that kernels hand to worker threads.
#[derive(Clone, Copy)]
pub(crate) struct Raw<T>(pub *mut T);

// SAFETY: kernels split their outputs into disjoint parts before they hand pointers to workers.
unsafe impl<T> Send for Raw<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Raw<T> {}

impl<T> Raw<T> {
    /// The pointer `offset` elements further, which must not be dereferenced outside the tensor.
    pub fn shifted(self, offset: usize) -> Raw<T> {
        Raw(self.0.wrapping_add(offset))
    }

    /// The element `offset` further.
    ///
    /// # Safety
    /// It must lie within the tensor, and nothing may write it meanwhile.
    pub unsafe fn read(self, offset: usize) -> T
    where
        T: Copy,
    {
        // SAFETY: the caller's promise.
        unsafe {
            touch(self.0.add(offset), 1, false);
            *self.0.add(offset)
        }
    }

    /// Replaces the element `offset` further.
    ///
    /// # Safety
    /// It must lie within the tensor, and nothing else may touch it meanwhile.
    pub unsafe fn write(self, offset: usize, element: T)
    where
        T: Copy,
    {
        // SAFETY: the caller's promise.
        unsafe {
            touch(self.0.add(offset), 1, true);
            *self.0.add(offset) = element;
        }
    }

    /// Copies elements from `offset` on into a slice, and keeps no reference to them.
    ///
    /// # Safety
    /// They must lie within the tensor, and nothing may write them meanwhile.
    pub unsafe fn copy_to(self, offset: usize, to: &mut [T])
    where
        T: Copy,
    {
        // SAFETY: the caller's promise.
        unsafe {
            touch(self.0.add(offset), to.len(), false);
            std::ptr::copy_nonoverlapping(self.0.add(offset), to.as_mut_ptr(), to.len());
        }
    }

    /// `len` elements from `offset` on.
    ///
    /// # Safety
    /// They must lie within the tensor, and nothing may write them meanwhile.
    pub unsafe fn slice<'a>(self, offset: usize, len: usize) -> &'a [T] {
        // SAFETY: the caller's promise.
        unsafe {
            touch(self.0.add(offset), len, false);
            std::slice::from_raw_parts(self.0.add(offset), len)
        }
    }

    /// `len` elements from `offset` on, to be written.
    ///
    /// # Safety
    /// They must lie within the tensor, and nothing else may touch them meanwhile.
    pub unsafe fn slice_mut<'a>(self, offset: usize, len: usize) -> &'a mut [T] {
        // SAFETY: the caller's promise.
        unsafe {
            touch(self.0.add(offset), len, true);
            std::slice::from_raw_parts_mut(self.0.add(offset), len)
        }
    }
}

impl Tensor {
    /// Binds a value whose storage lies at `address`.
    ///
    /// The verifier bounds offset and strides only if they lead to elements. The offset and the
    /// strides of a tensor without elements, and the stride of an extent of one, may be any number;
    /// they are replaced or clamped, so that arithmetic with them cannot overflow.
    pub fn bind(value: &Value, address: u64) -> Tensor {
        let (offset, strides) = if value.tensor.shape.contains(&0) {
            (0, contiguous_strides(&value.tensor.shape))
        } else {
            (value.tensor.offset, value.tensor.strides_or_contiguous())
        };
        let bounded =
            value.tensor.shape.iter().zip(strides).map(|(&extent, stride)| match extent {
                1 => stride.min(LARGEST_IDLE_STRIDE) as usize,
                _ => stride as usize,
            });
        Tensor {
            address: (address + offset * value.tensor.dtype.size()) as usize,
            dtype: value.tensor.dtype,
            shape: value.tensor.shape.iter().map(|&x| x as usize).collect(),
            strides: bounded.collect(),
        }
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it is row-major without gaps; strides of dimensions of extent one do not count, nor
    /// those of a tensor without elements.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        for (&extent, &stride) in self.shape.iter().zip(&self.strides).rev() {
            if extent != 1 && stride != expected {
                return self.shape.contains(&0);
            }
            expected *= extent;
        }
        true
    }

    /// The same, if its elements are `T`s.
    pub fn typed<T: Element>(&self) -> Option<Typed<T>> {
        let typed = || Typed { tensor: self.clone(), element: PhantomData };
        (self.dtype == T::DTYPE).then(typed)
    }

    /// The same elements seen with `shape`, to whose trailing dimensions its own are matched;
    /// extents of one (and missing dimensions) repeat with stride 0.
    pub fn broadcast(&self, shape: &[usize]) -> Option<Tensor> {
        let missing = shape.len().checked_sub(self.shape.len())?;
        let mut strides = vec![0; missing];
        for ((&extent, &stride), &wanted) in
            self.shape.iter().zip(&self.strides).zip(&shape[missing..])
        {
            match extent {
                _ if extent == wanted => strides.push(stride),
                1 => strides.push(0),
                _ => return None,
            }
        }
        Some(Tensor { address: self.address, dtype: self.dtype, shape: shape.to_vec(), strides })
    }
}
