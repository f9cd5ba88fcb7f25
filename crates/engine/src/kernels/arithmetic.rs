//! Sums, differences, products and quotients. Invariant: one table says which types of operands may
//! be combined, and into which type; an operator's scalar and tensor overloads round alike.

use tightfit::operator::Operator;
use tightfit::tensor::DType;

use crate::kernels::elementwise::{map1, map2};
use crate::kernels::pointwise::{binary, constant};
use crate::kernels::tensor::Tensor;
use crate::kernels::{Kernel, KernelError, Operands, math};

/// The four operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
}

impl Arithmetic {
    fn of(operator: Operator) -> Result<Arithmetic, KernelError> {
        match operator {
            Operator::AddTensor | Operator::AddScalar => Ok(Arithmetic::Add),
            Operator::SubTensor | Operator::SubScalar => Ok(Arithmetic::Subtract),
            Operator::MulTensor | Operator::MulScalar => Ok(Arithmetic::Multiply),
            Operator::DivTensor | Operator::DivScalar => Ok(Arithmetic::Divide),
            other => Err(KernelError::Unsupported(format!("{} as arithmetic", other.name()))),
        }
    }

    /// A float and a number; `alpha` scales the number in a sum or a difference.
    fn with_number(self, alpha: f32, x: f32, number: f32) -> f32 {
        match self {
            Arithmetic::Add => x + number * alpha,
            Arithmetic::Subtract => x - number * alpha,
            Arithmetic::Multiply => x * number,
            Arithmetic::Divide => x / number,
        }
    }
}

/// Arithmetic on whole numbers, which wraps around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whole {
    /// x + alpha · y
    Sum { alpha: i64 },
    /// x · y
    Product,
}

impl Whole {
    fn of(kind: Arithmetic, alpha: i64) -> Result<Whole, KernelError> {
        match kind {
            Arithmetic::Add => Ok(Whole::Sum { alpha }),
            Arithmetic::Subtract => Ok(Whole::Sum { alpha: alpha.wrapping_neg() }),
            Arithmetic::Multiply => Ok(Whole::Product),
            Arithmetic::Divide => {
                Err(KernelError::Unsupported("a whole quotient of whole numbers".to_string()))
            }
        }
    }

    fn apply(self, x: i64, y: i64) -> i64 {
        match self {
            Whole::Sum { alpha } => x.wrapping_add(y.wrapping_mul(alpha)),
            Whole::Product => x.wrapping_mul(y),
        }
    }
}

/// How the types of two operands are combined in a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Promotion {
    /// Floats with floats.
    Floats,
    /// Floats with a number.
    FloatsNumber,
    /// A number with floats, as in the derivatives of tanh and sigmoid: 1 − x².
    NumberFloats,
    /// Whole numbers with whole numbers.
    Integers,
    /// Whole numbers with a number that leaves them whole.
    IntegersNumber,
    /// Whole numbers with a number that turns them into floats.
    IntegersToFloats,
    /// Whole numbers times floats.
    IntegersFloats,
    /// Floats times truth values: a gradient and a mask.
    FloatsMask,
}

/// An operand's element type; `None` for a number.
type Side = Option<DType>;

/// The promotions that networks need, out of all that PyTorch has.
fn promotion(
    kind: Arithmetic,
    left: Side,
    right: Side,
    out: DType,
) -> Result<Promotion, KernelError> {
    use DType::{Bool, F32, I64};
    let times = kind == Arithmetic::Multiply;
    match (left, right, out) {
        (Some(F32), Some(F32), F32) => Ok(Promotion::Floats),
        (Some(F32), None, F32) => Ok(Promotion::FloatsNumber),
        (None, Some(F32), F32) => Ok(Promotion::NumberFloats),
        (Some(I64), Some(I64), I64) => Ok(Promotion::Integers),
        (Some(I64), None, I64) => Ok(Promotion::IntegersNumber),
        (Some(I64), None, F32) => Ok(Promotion::IntegersToFloats),
        (Some(I64), Some(F32), F32) if times => Ok(Promotion::IntegersFloats),
        (Some(F32), Some(Bool), F32) if times => Ok(Promotion::FloatsMask),
        (left, right, out) => {
            let name = |side: Side| side.map_or("a number", DType::name);
            Err(KernelError::Unsupported(format!(
                "arithmetic of {} and {} into {}",
                name(left),
                name(right),
                out.name()
            )))
        }
    }
}

/// add, sub, mul, div of a tensor and a tensor or a number; `alpha` scales the second operand of
/// add and sub.
pub(super) fn arithmetic(operator: Operator, operands: &Operands) -> Result<Kernel, KernelError> {
    operands.known_keywords(&["alpha"])?;
    let kind = Arithmetic::of(operator)?;
    let alpha = operands.optional_number(2, "alpha").unwrap_or(1.0);
    let out = operands.output(0)?;
    let number = match (operands.optional(0), operands.optional(1)) {
        (Some(_), Some(_)) => 0.0,
        (None, _) => operands.number(0, "self")?,
        (Some(_), None) => operands.number(1, "other")?,
    };
    let side = |index: usize| operands.optional(index).map(|tensor| tensor.dtype);
    let promotion = promotion(kind, side(0), side(1), out.dtype)?;
    let (left, right) = (operands.tensor(0), operands.tensor(1));
    match promotion {
        Promotion::Floats => floats(kind, alpha as f32, operands),
        Promotion::FloatsNumber => {
            let (alpha, number) = (alpha as f32, number as f32);
            constant(left?, out, move |x| kind.with_number(alpha, x, number))
        }
        Promotion::NumberFloats => number_first(kind, alpha as f32, number as f32, right?, out),
        Promotion::Integers => {
            let operation = Whole::of(kind, alpha as i64)?;
            map2::<i64, i64, i64>(left?, right?, out, move |x, y, z| {
                for ((z, &x), &y) in z.iter_mut().zip(x).zip(y) {
                    *z = operation.apply(x, y);
                }
            })
        }
        Promotion::IntegersNumber => {
            let (operation, number) = (Whole::of(kind, alpha as i64)?, number as i64);
            map1::<i64, i64>(left?, out, move |x, y| {
                for (y, &x) in y.iter_mut().zip(x) {
                    *y = operation.apply(x, number);
                }
            })
        }
        Promotion::IntegersToFloats => {
            let (alpha, number) = (alpha as f32, number as f32);
            map1::<i64, f32>(left?, out, move |x, y| {
                for (y, &x) in y.iter_mut().zip(x) {
                    *y = kind.with_number(alpha, x as f32, number);
                }
            })
        }
        Promotion::IntegersFloats => map2::<i64, f32, f32>(left?, right?, out, |x, y, z| {
            for ((z, &x), &y) in z.iter_mut().zip(x).zip(y) {
                *z = x as f32 * y;
            }
        }),
        Promotion::FloatsMask => map2::<f32, u8, f32>(left?, right?, out, |x, y, z| {
            for ((z, &x), &y) in z.iter_mut().zip(x).zip(y) {
                *z = x * f32::from(y);
            }
        }),
    }
}

/// Two tensors of floats.
fn floats(kind: Arithmetic, alpha: f32, operands: &Operands) -> Result<Kernel, KernelError> {
    let scaled = |alpha: f32| {
        let (left, right, out) = (operands.tensor(0)?, operands.tensor(1)?, operands.output(0)?);
        map2::<f32, f32, f32>(left, right, out, move |x, y, z| {
            for ((z, &x), &y) in z.iter_mut().zip(x).zip(y) {
                *z = x + alpha * y;
            }
        })
    };
    match (kind, alpha == 1.0) {
        (Arithmetic::Add, true) => binary(operands, math::add),
        (Arithmetic::Subtract, true) => binary(operands, math::sub),
        (Arithmetic::Add, false) => scaled(alpha),
        (Arithmetic::Subtract, false) => scaled(-alpha),
        (Arithmetic::Multiply, _) => binary(operands, math::mul),
        (Arithmetic::Divide, _) => binary(operands, math::div),
    }
}

/// A number and floats.
fn number_first(
    kind: Arithmetic,
    alpha: f32,
    number: f32,
    x: &Tensor,
    out: &Tensor,
) -> Result<Kernel, KernelError> {
    match kind {
        Arithmetic::Add => constant(x, out, move |x| number + alpha * x),
        Arithmetic::Subtract => constant(x, out, move |x| number - alpha * x),
        Arithmetic::Multiply => constant(x, out, move |x| number * x),
        Arithmetic::Divide => constant(x, out, move |x| number / x),
    }
}
