//! Operators that work element by element: which function, which constants. Invariant: an
//! operator's scalar and tensor overloads round alike.

use tightfit::operator::Operator;
use tightfit::tensor::{Argument, DType};

pub(super) use crate::kernels::arithmetic::arithmetic;
use crate::kernels::elementwise::{map1, map2, select};
use crate::kernels::tensor::{Element, Tensor};
use crate::kernels::{Kernel, KernelError, Operands, math};

/// A function of the elements of one tensor of floats.
pub(super) fn constant(
    x: &Tensor,
    out: &Tensor,
    f: impl Fn(f32) -> f32 + Send + Sync + 'static,
) -> Result<Kernel, KernelError> {
    map1::<f32, f32>(x, out, move |x, y| {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = f(x);
        }
    })
}

/// A function of one tensor, of floats or of whole numbers.
pub(super) fn real_or_whole(
    operands: &Operands,
    real: fn(&[f32], &mut [f32]),
    whole: fn(i64) -> i64,
) -> Result<Kernel, KernelError> {
    if operands.tensor(0)?.dtype != DType::I64 {
        return super::elementwise::unary(operands, real);
    }
    map1::<i64, i64>(operands.tensor(0)?, operands.output(0)?, move |x, y| {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = whole(x);
        }
    })
}

/// A function of two tensors.
pub(super) fn binary(
    operands: &Operands,
    f: fn(&[f32], &[f32], &mut [f32]),
) -> Result<Kernel, KernelError> {
    map2::<f32, f32, f32>(operands.tensor(0)?, operands.tensor(1)?, operands.output(0)?, f)
}

/// xᵉ; common exponents have their own formulas, as in PyTorch.
pub(super) fn power(operands: &Operands) -> Result<Kernel, KernelError> {
    let (x, out) = (operands.tensor(0)?, operands.output(0)?);
    let exponent = operands.number(1, "exponent")? as f32;
    match exponent {
        2.0 => constant(x, out, |x| x * x),
        3.0 => constant(x, out, |x| x * x * x),
        0.5 => constant(x, out, f32::sqrt),
        -0.5 => constant(x, out, |x| 1.0 / x.sqrt()),
        -1.0 => constant(x, out, |x| 1.0 / x),
        _ => constant(x, out, move |x| x.powf(exponent)),
    }
}

/// Natural logarithm.
pub(super) fn log(operands: &Operands) -> Result<Kernel, KernelError> {
    constant(operands.tensor(0)?, operands.output(0)?, f32::ln)
}

/// Limits to a range, of which one end may be missing; NaN stays, and a limit of NaN gives NaN.
pub(super) fn clamp(operands: &Operands) -> Result<Kernel, KernelError> {
    let low = operands.optional_number(1, "min");
    let high = operands.optional_number(2, "max");
    if operands.tensor(0)?.dtype == DType::I64 {
        let (low, high) = (low.map_or(i64::MIN, |x| x as i64), high.map_or(i64::MAX, |x| x as i64));
        return map1::<i64, i64>(operands.tensor(0)?, operands.output(0)?, move |x, y| {
            for (y, &x) in y.iter_mut().zip(x) {
                *y = x.max(low).min(high);
            }
        });
    }
    let (low, high) =
        (low.unwrap_or(f64::NEG_INFINITY) as f32, high.unwrap_or(f64::INFINITY) as f32);
    if low.is_nan() || high.is_nan() {
        return constant(operands.tensor(0)?, operands.output(0)?, |_| f32::NAN);
    }
    constant(operands.tensor(0)?, operands.output(0)?, move |x| {
        let x = if x < low { low } else { x };
        if x > high { high } else { x }
    })
}

/// Keyword `approximate`: `true` for the hyperbolic tangent.
fn is_approximate(operands: &Operands, index: usize) -> Result<bool, KernelError> {
    match operands.argument(index, "approximate") {
        None => Ok(false),
        Some(Argument::Text(text)) if text == "none" => Ok(false),
        Some(Argument::Text(text)) if text == "tanh" => Ok(true),
        Some(other) => Err(KernelError::Unsupported(format!("GELU with approximate = {other:?}"))),
    }
}

/// x Φ(x)
pub(super) fn gelu(operands: &Operands) -> Result<Kernel, KernelError> {
    super::elementwise::unary(
        operands,
        if is_approximate(operands, 1)? { math::gelu_tanh } else { math::gelu },
    )
}

/// Its derivative times the incoming gradient.
pub(super) fn gelu_backward(operands: &Operands) -> Result<Kernel, KernelError> {
    binary(
        operands,
        if is_approximate(operands, 2)? { math::gelu_tanh_backward } else { math::gelu_backward },
    )
}

/// The larger or the smaller of two.
pub(super) fn extremum(operator: Operator, operands: &Operands) -> Result<Kernel, KernelError> {
    let larger = operator == Operator::Maximum;
    if operands.output(0)?.dtype != DType::I64 {
        return binary(operands, if larger { math::maximum } else { math::minimum });
    }
    map2::<i64, i64, i64>(
        operands.tensor(0)?,
        operands.tensor(1)?,
        operands.output(0)?,
        move |x, y, z| {
            for ((z, &x), &y) in z.iter_mut().zip(x).zip(y) {
                *z = if larger { x.max(y) } else { x.min(y) };
            }
        },
    )
}

fn relation(operator: Operator) -> fn(f64, f64) -> bool {
    use Operator as Op;
    match operator {
        Op::EqScalar | Op::EqTensor => |x, y| x == y,
        Op::NeScalar | Op::NeTensor => |x, y| x != y,
        Op::LtScalar | Op::LtTensor => |x, y| x < y,
        Op::LeScalar | Op::LeTensor => |x, y| x <= y,
        Op::GtScalar | Op::GtTensor => |x, y| x > y,
        _ => |x, y| x >= y,
    }
}

/// Comparison with a number.
pub(super) fn compare_scalar(
    operator: Operator,
    operands: &Operands,
) -> Result<Kernel, KernelError> {
    fn against<T: Element>(
        x: &Tensor,
        out: &Tensor,
        f: impl Fn(T) -> bool + Send + Sync + 'static,
    ) -> Result<Kernel, KernelError> {
        map1::<T, u8>(x, out, move |x, y| {
            for (y, &x) in y.iter_mut().zip(x) {
                *y = u8::from(f(x));
            }
        })
    }
    use Operator as Op;
    let (x, out, number) = (operands.tensor(0)?, operands.output(0)?, operands.number(1, "other")?);
    if x.dtype == DType::F32 {
        let number = number as f32;
        return match operator {
            Op::EqScalar => against::<f32>(x, out, move |x| x == number),
            Op::NeScalar => against::<f32>(x, out, move |x| x != number),
            Op::LtScalar => against::<f32>(x, out, move |x| x < number),
            Op::LeScalar => against::<f32>(x, out, move |x| x <= number),
            Op::GtScalar => against::<f32>(x, out, move |x| x > number),
            _ => against::<f32>(x, out, move |x| x >= number),
        };
    }
    let relation = relation(operator);
    match x.dtype {
        DType::I64 => against::<i64>(x, out, move |x| relation(x as f64, number)),
        DType::Bool => against::<u8>(x, out, move |x| relation(f64::from(x), number)),
        other => Err(KernelError::DType { found: other.name(), wanted: "f32, i64 and bool" }),
    }
}

/// Comparison of two tensors of the same type.
pub(super) fn compare(operator: Operator, operands: &Operands) -> Result<Kernel, KernelError> {
    fn both<T: Element>(
        x: &Tensor,
        y: &Tensor,
        out: &Tensor,
        f: impl Fn(T, T) -> bool + Send + Sync + 'static,
    ) -> Result<Kernel, KernelError> {
        map2::<T, T, u8>(x, y, out, move |x, y, z| {
            for ((z, &x), &y) in z.iter_mut().zip(x).zip(y) {
                *z = u8::from(f(x, y));
            }
        })
    }
    let (x, y, out) = (operands.tensor(0)?, operands.tensor(1)?, operands.output(0)?);
    let relation = relation(operator);
    match (x.dtype, y.dtype) {
        (DType::F32, DType::F32) => {
            both::<f32>(x, y, out, move |x, y| relation(f64::from(x), f64::from(y)))
        }
        (DType::I64, DType::I64) => {
            both::<i64>(x, y, out, move |x, y| relation(x as f64, y as f64))
        }
        (DType::Bool, DType::Bool) => {
            both::<u8>(x, y, out, move |x, y| relation(f64::from(x), f64::from(y)))
        }
        (left, right) => Err(KernelError::Unsupported(format!(
            "comparing {} with {}",
            left.name(),
            right.name()
        ))),
    }
}

/// 1 if the element is zero.
pub(super) fn logical_not(operands: &Operands) -> Result<Kernel, KernelError> {
    fn not<T: Element>(x: &Tensor, out: &Tensor) -> Result<Kernel, KernelError> {
        map1::<T, u8>(x, out, |x, y| {
            for (y, x) in y.iter_mut().zip(x) {
                *y = u8::from(*x == T::default());
            }
        })
    }
    let (x, out) = (operands.tensor(0)?, operands.output(0)?);
    match x.dtype {
        DType::F32 => not::<f32>(x, out),
        DType::I64 => not::<i64>(x, out),
        DType::Bool => not::<u8>(x, out),
        other => Err(KernelError::DType { found: other.name(), wanted: "f32, i64 and bool" }),
    }
}

/// 1 if both elements are not zero.
pub(super) fn logical_and(operands: &Operands) -> Result<Kernel, KernelError> {
    fn and<T: Element>(x: &Tensor, y: &Tensor, out: &Tensor) -> Result<Kernel, KernelError> {
        map2::<T, T, u8>(x, y, out, |x, y, z| {
            for ((z, x), y) in z.iter_mut().zip(x).zip(y) {
                *z = u8::from(*x != T::default() && *y != T::default());
            }
        })
    }
    let (x, y, out) = (operands.tensor(0)?, operands.tensor(1)?, operands.output(0)?);
    match (x.dtype, y.dtype) {
        (DType::F32, DType::F32) => and::<f32>(x, y, out),
        (DType::I64, DType::I64) => and::<i64>(x, y, out),
        (DType::Bool, DType::Bool) => and::<u8>(x, y, out),
        (x, y) => {
            Err(KernelError::Unsupported(format!("logical_and of {} and {}", x.name(), y.name())))
        }
    }
}

/// Bit by bit; a truth value is one bit.
pub(super) fn bitwise_and(operands: &Operands) -> Result<Kernel, KernelError> {
    fn and<T: Element + std::ops::BitAnd<Output = T>>(
        x: &Tensor,
        y: &Tensor,
        out: &Tensor,
    ) -> Result<Kernel, KernelError> {
        map2::<T, T, T>(x, y, out, |x, y, z| {
            for ((z, &x), &y) in z.iter_mut().zip(x).zip(y) {
                *z = x & y;
            }
        })
    }
    let (x, y, out) = (operands.tensor(0)?, operands.tensor(1)?, operands.output(0)?);
    match (x.dtype, y.dtype) {
        (DType::I64, DType::I64) => and::<i64>(x, y, out),
        (DType::Bool, DType::Bool) => and::<u8>(x, y, out),
        (x, y) => {
            Err(KernelError::Unsupported(format!("bitwise_and of {} and {}", x.name(), y.name())))
        }
    }
}

/// Bit by bit; a truth value turns into its opposite.
pub(super) fn bitwise_not(operands: &Operands) -> Result<Kernel, KernelError> {
    let (x, out) = (operands.tensor(0)?, operands.output(0)?);
    match x.dtype {
        DType::Bool => logical_not(operands),
        DType::I64 => map1::<i64, i64>(x, out, |x, y| {
            for (y, &x) in y.iter_mut().zip(x) {
                *y = !x;
            }
        }),
        other => Err(KernelError::DType { found: other.name(), wanted: "i64 and bool" }),
    }
}

/// The gradient if x is above the threshold, else 0; for NaN in x the gradient, as in ATen.
pub(super) fn threshold_backward(operands: &Operands) -> Result<Kernel, KernelError> {
    let threshold = operands.number(2, "threshold")? as f32;
    map2::<f32, f32, f32>(
        operands.tensor(0)?,
        operands.tensor(1)?,
        operands.output(0)?,
        move |g, x, y| {
            for ((y, &g), &x) in y.iter_mut().zip(g).zip(x) {
                *y = if x <= threshold { 0.0 } else { g };
            }
        },
    )
}

/// where(condition, a, b)
pub(super) fn choose(operands: &Operands) -> Result<Kernel, KernelError> {
    let (condition, a, b, out) =
        (operands.tensor(0)?, operands.tensor(1)?, operands.tensor(2)?, operands.output(0)?);
    match (a.dtype, b.dtype, out.dtype) {
        (DType::F32, DType::F32, DType::F32) => select::<f32>(condition, a, b, out),
        (DType::I64, DType::I64, DType::I64) => select::<i64>(condition, a, b, out),
        (DType::Bool, DType::Bool, DType::Bool) => select::<u8>(condition, a, b, out),
        (a, b, _) => {
            Err(KernelError::Unsupported(format!("choosing between {} and {}", a.name(), b.name())))
        }
    }
}
