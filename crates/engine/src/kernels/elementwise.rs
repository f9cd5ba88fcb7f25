//! Element-by-element kernels: a function over blocks, applied along a loop nest. Invariant: each
//! output element depends on the input elements at its own place only, so an output may overwrite
//! an input of the same layout.

use crate::kernels::nest::{BLOCK, Nest, load, store};
use crate::kernels::tensor::{Element, Tensor, Typed};
use crate::kernels::{Kernel, KernelError, Operands, typed};

/// out = f(a)
pub(super) fn map1<A: Element, O: Element>(
    a: &Tensor,
    out: &Tensor,
    f: impl Fn(&[A], &mut [O]) + Send + Sync + 'static,
) -> Result<Kernel, KernelError> {
    let (a, out) = (broadcast::<A>(a, out)?, typed::<O>(out)?);
    let nest = Nest::new([&out, &a]);
    let [to, from] = nest.inner();
    let staged = a.address == out.address;
    Ok(Box::new(move |run| {
        let (source, target) = (a.raw(run.base), out.raw(run.base));
        nest.walk(
            || ([A::default(); BLOCK], [O::default(); BLOCK]),
            |(x, y), [o, i], len| {
                // SAFETY: the nest stays within the tensors and writes each place once.
                unsafe {
                    let x = load(source, i, from, len, staged, x);
                    store(target, o, to, len, y, |y| f(x, y));
                }
            },
        );
    }))
}

/// out = f(a, b), both broadcast to the output's shape.
pub(super) fn map2<A: Element, B: Element, O: Element>(
    a: &Tensor,
    b: &Tensor,
    out: &Tensor,
    f: impl Fn(&[A], &[B], &mut [O]) + Send + Sync + 'static,
) -> Result<Kernel, KernelError> {
    let (a, b, out) = (broadcast::<A>(a, out)?, broadcast::<B>(b, out)?, typed::<O>(out)?);
    let nest = Nest::new([&out, &a, &b]);
    let [to, from_a, from_b] = nest.inner();
    let (staged_a, staged_b) = (a.address == out.address, b.address == out.address);
    Ok(Box::new(move |run| {
        let (left, right, target) = (a.raw(run.base), b.raw(run.base), out.raw(run.base));
        nest.walk(
            || ([A::default(); BLOCK], [B::default(); BLOCK], [O::default(); BLOCK]),
            |(x, y, z), [o, i, j], len| {
                // SAFETY: the nest stays within the tensors and writes each place once.
                unsafe {
                    let x = load(left, i, from_a, len, staged_a, x);
                    let y = load(right, j, from_b, len, staged_b, y);
                    store(target, o, to, len, z, |z| f(x, y, z));
                }
            },
        );
    }))
}

/// out = condition ? a : b, all broadcast to the output's shape.
pub(super) fn select<T: Element>(
    condition: &Tensor,
    a: &Tensor,
    b: &Tensor,
    out: &Tensor,
) -> Result<Kernel, KernelError> {
    let (condition, a, b, out) = (
        broadcast::<u8>(condition, out)?,
        broadcast::<T>(a, out)?,
        broadcast::<T>(b, out)?,
        typed::<T>(out)?,
    );
    let nest = Nest::new([&out, &condition, &a, &b]);
    let [to, from_c, from_a, from_b] = nest.inner();
    let (staged_c, staged_a, staged_b) =
        (condition.address == out.address, a.address == out.address, b.address == out.address);
    Ok(Box::new(move |run| {
        let (test, left, right, target) =
            (condition.raw(run.base), a.raw(run.base), b.raw(run.base), out.raw(run.base));
        nest.walk(
            || ([0u8; BLOCK], [T::default(); BLOCK], [T::default(); BLOCK], [T::default(); BLOCK]),
            |(c, x, y, z), [o, i, j, k], len| {
                // SAFETY: the nest stays within the tensors and writes each place once.
                unsafe {
                    let c = load(test, i, from_c, len, staged_c, c);
                    let x = load(left, j, from_a, len, staged_a, x);
                    let y = load(right, k, from_b, len, staged_b, y);
                    store(target, o, to, len, z, |z| {
                        for (((z, &c), &x), &y) in z.iter_mut().zip(c).zip(x).zip(y) {
                            *z = if c != 0 { x } else { y };
                        }
                    });
                }
            },
        );
    }))
}

/// out = value
pub(super) fn fill<T: Element>(out: &Tensor, value: T) -> Result<Kernel, KernelError> {
    let out = typed::<T>(out)?;
    let nest = Nest::new([&out]);
    let [to] = nest.inner();
    Ok(Box::new(move |run| {
        let target = out.raw(run.base);
        nest.walk(
            || [T::default(); BLOCK],
            |buffer, [o], len| {
                // SAFETY: the nest stays within the tensor and writes each place once.
                unsafe { store(target, o, to, len, buffer, |y| y.fill(value)) }
            },
        );
    }))
}

/// A tensor of elements `T`, seen with the output's shape.
fn broadcast<T: Element>(tensor: &Tensor, out: &Tensor) -> Result<Typed<T>, KernelError> {
    typed::<T>(tensor)?.broadcast(&out.shape).ok_or_else(|| {
        KernelError::Shapes(format!("{:?} does not broadcast to {:?}", tensor.shape, out.shape))
    })
}

/// Element-wise operators of one input.
pub(super) fn unary(operands: &Operands, f: fn(&[f32], &mut [f32])) -> Result<Kernel, KernelError> {
    map1::<f32, f32>(operands.tensor(0)?, operands.output(0)?, f)
}
