//! The negative log-likelihood of targets. Invariant: a target outside the classes touches no
//! memory; it is reported through [`Run::fault`].

use crate::kernels::tensor::{Tensor, Typed};
use crate::kernels::{Fault, Kernel, KernelError, Operands, Run, shaped, tasks};

/// How row losses are combined into the loss, as ATen numbers it.
#[derive(Clone, Copy, PartialEq)]
enum Reduction {
    None,
    Mean,
    Sum,
}

#[derive(Clone)]
struct Targets {
    target: Typed<i64>,
    weight: Option<Typed<f32>>,
    classes: usize,
    ignored: i64,
    reduction: Reduction,
}

impl Targets {
    /// Arguments from `index`: target, weight, reduction, ignore_index.
    fn new(operands: &Operands, index: usize, logits: &Tensor) -> Result<Targets, KernelError> {
        let target = operands.integer(index)?;
        if logits.shape.len() != 2 || target.shape != logits.shape[..1] {
            return Err(KernelError::Shapes(format!(
                "loss of {:?} against {:?}",
                logits.shape, target.shape
            )));
        }
        let reduction = match operands.number(index + 2, "reduction")? as i64 {
            0 => Reduction::None,
            1 => Reduction::Mean,
            2 => Reduction::Sum,
            other => return Err(KernelError::Unsupported(format!("reduction {other} of a loss"))),
        };
        let weight = operands.optional_float(index + 1)?;
        if let Some(weight) = &weight {
            shaped(weight, "the weight of the classes", &logits.shape[1..])?;
        }
        let ignored = operands.number(index + 3, "ignore_index")? as i64;
        Ok(Targets { target, weight, classes: logits.shape[1], ignored, reduction })
    }

    /// Refuses a loss, or the gradient of one, that does not have the shape of the reduction.
    fn reduced(&self, tensor: &Tensor, what: &str) -> Result<(), KernelError> {
        match self.reduction {
            Reduction::None => shaped(tensor, what, &self.target.shape),
            Reduction::Mean | Reduction::Sum => single(tensor, what),
        }
    }

    /// Class and weight of row `i`; `None` if it does not count.
    fn row(&self, run: &Run, i: usize) -> Option<(usize, f32)> {
        // SAFETY: row i of the targets; the class is checked before it is followed.
        let class = unsafe { self.target.raw(run.base).read(i * self.target.strides[0]) };
        if class == self.ignored {
            return None;
        }
        let class = usize::try_from(class).ok().filter(|&class| class < self.classes);
        if class.is_none() {
            run.fault.raise(Fault::Index);
        }
        let weight = |class: usize| {
            self.weight.as_ref().map_or(1.0, |w| {
                // SAFETY: the class lies below the number of weights.
                unsafe { w.raw(run.base).read(class * w.strides[0]) }
            })
        };
        class.map(|class| (class, weight(class)))
    }
}

/// Refuses a tensor of several elements.
fn single(tensor: &Tensor, what: &str) -> Result<(), KernelError> {
    if tensor.elements() == 1 {
        return Ok(());
    }
    Err(KernelError::Shapes(format!("{what} has shape {:?}, but must be a scalar", tensor.shape)))
}

/// (loss, total weight)
pub(super) fn forward(operands: &Operands) -> Result<Kernel, KernelError> {
    let logits = operands.float(0)?;
    let targets = Targets::new(operands, 1, &logits)?;
    let (out, total) = (operands.float_output(0)?, operands.optional_float_output(1)?);
    targets.reduced(&out, "the loss")?;
    if let Some(total) = &total {
        single(total, "the total weight")?;
    }
    Ok(Box::new(move |run| {
        let (x, y) = (logits.raw(run.base), out.raw(run.base));
        // In double precision and in row order: one addition per row is nothing compared to the
        // logarithms.
        let (mut sum, mut weights) = (0.0f64, 0.0f64);
        for i in 0..logits.shape[0] {
            let row = targets.row(run, i);
            let loss = row.map_or(0.0, |(class, weight)| {
                let place = i * logits.strides[0] + class * logits.strides[1];
                // SAFETY: the class is inside the row.
                -weight * unsafe { x.read(place) }
            });
            sum += f64::from(loss);
            weights += f64::from(row.map_or(0.0, |(_, weight)| weight));
            if targets.reduction == Reduction::None {
                // SAFETY: row i of the output.
                unsafe { y.write(i * out.strides[0], loss) };
            }
        }
        // SAFETY: scalars have one element.
        unsafe {
            match targets.reduction {
                Reduction::None => {}
                Reduction::Mean => y.write(0, (sum / weights) as f32),
                Reduction::Sum => y.write(0, sum as f32),
            }
            if let Some(total) = &total {
                let weights =
                    if targets.reduction == Reduction::None { 0.0 } else { weights as f32 };
                total.raw(run.base).write(0, weights);
            }
        }
    }))
}

/// The gradient: −weight · gradient (/ total weight) at the target, zero elsewhere.
pub(super) fn backward(operands: &Operands) -> Result<Kernel, KernelError> {
    let (gradient, logits, out) =
        (operands.float(0)?, operands.float(1)?, operands.float_output(0)?);
    let targets = Targets::new(operands, 2, &logits)?;
    let total = operands.float(6)?;
    targets.reduced(&gradient, "the incoming gradient")?;
    single(&total, "the total weight")?;
    shaped(&out, "the output", &logits.shape)?;
    Ok(Box::new(move |run| {
        let (g, y) = (gradient.raw(run.base), out.raw(run.base));
        tasks::for_each(out.shape[0], out.shape[1], |i| {
            // SAFETY: row i belongs to this task; the class is inside the row; scalars have one
            // element.
            unsafe {
                for class in 0..out.shape[1] {
                    y.write(i * out.strides[0] + class * out.strides[1], 0.0);
                }
                let Some((class, weight)) = targets.row(run, i) else { return };
                let incoming = if targets.reduction == Reduction::None {
                    g.read(i * gradient.strides[0])
                } else {
                    g.read(0)
                };
                let divisor = if targets.reduction == Reduction::Mean {
                    total.raw(run.base).read(0)
                } else {
                    1.0
                };
                y.write(i * out.strides[0] + class * out.strides[1], -weight * incoming / divisor);
            }
        });
    }))
}
