//! Softmax along a dimension, and its gradients. Invariant: a line is computed by one task, in
//! order.

use tightfit::operator::Operator;

use crate::kernels::tensor::Tensor;
use crate::kernels::{Kernel, KernelError, Operands, dimension, math, shaped, tasks};

/// Lines of a tensor along one dimension.
#[derive(Clone)]
struct Lines {
    extents: Vec<usize>,
    strides: Vec<usize>,
    count: usize,
    len: usize,
    step: usize,
}

impl Lines {
    fn new(tensor: &Tensor, dim: usize) -> Lines {
        let others = |list: &[usize]| {
            list.iter().enumerate().filter(|(d, _)| *d != dim).map(|(_, &x)| x).collect::<Vec<_>>()
        };
        let extents = others(&tensor.shape);
        Lines {
            count: extents.iter().product(),
            extents,
            strides: others(&tensor.strides),
            len: tensor.shape.get(dim).copied().unwrap_or(1),
            step: tensor.strides.get(dim).copied().unwrap_or(1),
        }
    }

    fn at(&self, mut index: usize) -> usize {
        let mut offset = 0;
        for d in (0..self.extents.len()).rev() {
            offset += index % self.extents[d] * self.strides[d];
            index /= self.extents[d];
        }
        offset
    }
}

/// softmax or log_softmax along argument 1.
pub(super) fn forward(operator: Operator, operands: &Operands) -> Result<Kernel, KernelError> {
    let (x, out) = (operands.float(0)?, operands.float_output(0)?);
    shaped(&out, "the output", &x.shape)?;
    let dim = dimension(operands.number(1, "dim")? as i64, x.shape.len())?;
    let (from, to) = (Lines::new(&x, dim), Lines::new(&out, dim));
    let log = operator == Operator::LogSoftmax;
    Ok(Box::new(move |run| {
        let (x, y) = (x.raw(run.base), out.raw(run.base));
        tasks::for_each(from.count, from.len.saturating_mul(4), |i| {
            let (a, b) = (from.at(i), to.at(i));
            // SAFETY: lines are disjoint.
            unsafe {
                if from.step == 1 && to.step == 1 {
                    let x = x.slice(a, from.len);
                    let most = math::largest(x);
                    if log {
                        let shift = most + math::sum_exp_shifted(x, most).ln();
                        math::shifted(x, shift, y.slice_mut(b, to.len));
                    } else {
                        let y = y.slice_mut(b, to.len);
                        y.copy_from_slice(x);
                        let total = math::exp_shifted(y, 1.0, most);
                        math::scale(y, 1.0 / total);
                    }
                    return;
                }
                let value = |j: usize| x.read(a + j * from.step);
                let most = (0..from.len).map(value).fold(f32::NEG_INFINITY, f32::max);
                let total: f32 = (0..from.len).map(|j| math::exp_negative(value(j) - most)).sum();
                for j in 0..from.len {
                    let element = if log {
                        value(j) - (most + total.ln())
                    } else {
                        math::exp_negative(value(j) - most) / total
                    };
                    y.write(b + j * to.step, element);
                }
            }
        });
    }))
}

/// softmax: (dy − Σ dy·y) y; log_softmax: dy − e^y Σ dy.
pub(super) fn backward(operator: Operator, operands: &Operands) -> Result<Kernel, KernelError> {
    let (dy, y, out) = (operands.float(0)?, operands.float(1)?, operands.float_output(0)?);
    shaped(&dy, "the gradient", &y.shape)?;
    shaped(&out, "the output", &y.shape)?;
    let dim = dimension(operands.number(2, "dim")? as i64, y.shape.len())?;
    let (from_dy, from_y, to) = (Lines::new(&dy, dim), Lines::new(&y, dim), Lines::new(&out, dim));
    let log = operator == Operator::LogSoftmaxBackward;
    Ok(Box::new(move |run| {
        let (dy, y, dx) = (dy.raw(run.base), y.raw(run.base), out.raw(run.base));
        tasks::for_each(to.count, to.len.saturating_mul(2), |i| {
            let (a, b, c) = (from_dy.at(i), from_y.at(i), to.at(i));
            // SAFETY: lines are disjoint.
            unsafe {
                if from_dy.step == 1 && from_y.step == 1 && to.step == 1 {
                    let (dy, y, dx) =
                        (dy.slice(a, to.len), y.slice(b, to.len), dx.slice_mut(c, to.len));
                    if log {
                        math::log_softmax_gradient(dy, y, math::sum(dy), dx);
                    } else {
                        math::softmax_backward(dy, y, math::dot(dy, y), dx);
                    }
                    return;
                }
                let (g, v) = (
                    |j: usize| dy.read(a + j * from_dy.step),
                    |j: usize| y.read(b + j * from_y.step),
                );
                let total: f32 = (0..to.len).map(|j| if log { g(j) } else { g(j) * v(j) }).sum();
                for j in 0..to.len {
                    let element =
                        if log { g(j) - math::exp(v(j)) * total } else { (g(j) - total) * v(j) };
                    dx.write(c + j * to.step, element);
                }
            }
        });
    }))
}
