//! Optimizer updates in place. Invariant: each element of parameter and state is read and written
//! once; the formulas, and the order of their operations, are PyTorch's.

use multiversion::multiversion;

use tightfit::tensor::Argument;

use crate::kernels::nest::{BLOCK, Nest, load};
use crate::kernels::tensor::Typed;
use crate::kernels::{Kernel, KernelError, Operands};

fn constant(operands: &Operands, name: &'static str) -> Result<f64, KernelError> {
    operands
        .optional_number(usize::MAX, name)
        .ok_or(KernelError::Shapes(format!("keyword argument `{name}` is missing")))
}

/// Parameter, gradient and states, all of the parameter's shape; parameter and states lie without
/// gaps, each exactly where an output of the node does.
fn tensors(operands: &Operands, states: usize) -> Result<Vec<Typed<f32>>, KernelError> {
    let all = (0..2 + states).map(|index| operands.float(index)).collect::<Result<Vec<_>, _>>()?;
    let alike = all.iter().all(|tensor| tensor.shape == all[0].shape);
    let dense = all.iter().enumerate().all(|(i, tensor)| i == 1 || tensor.is_contiguous());
    // What is written in place must match the graph's declaration: parameter, then states.
    let written = all.iter().enumerate().filter(|&(i, _)| i != 1).map(|(_, tensor)| tensor);
    let declared = written.enumerate().all(|(i, tensor)| {
        operands.optional_output(i).is_some_and(|output| {
            output.address == tensor.address
                && output.shape == tensor.shape
                && output.dtype == tensor.dtype
        })
    });
    if !declared {
        return Err(KernelError::Shapes(
            "its outputs are not its parameter and states, in place".to_string(),
        ));
    }
    if alike && dense {
        return Ok(all);
    }
    Err(KernelError::Shapes(
        "parameter, gradient and state differ in shape, or a parameter has gaps".to_string(),
    ))
}

/// Decoupled weight decay: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019, as
/// `torch.optim.AdamW`.
pub(super) fn adamw(operands: &Operands) -> Result<Kernel, KernelError> {
    let Some(Argument::List(betas)) = operands.node.kwarg("betas") else {
        return Err(KernelError::Shapes("keyword argument `betas` is missing".to_string()));
    };
    let [Some(beta1), Some(beta2)] =
        [betas.first(), betas.get(1)].map(|beta| beta.and_then(Argument::number))
    else {
        return Err(KernelError::Shapes("`betas` must be two numbers".to_string()));
    };
    let (eps, decay) = (constant(operands, "eps")?, constant(operands, "weight_decay")?);
    let all = tensors(operands, 2)?;
    let nest = Nest::new([&all[0], &all[1], &all[2], &all[3]]);
    let steps = nest.inner();
    Ok(Box::new(move |run| {
        let update = f64::from(run.step) + 1.0;
        let rate = f64::from(run.learning_rate);
        let constants = Adam {
            shrink: (1.0 - rate * decay) as f32,
            gain1: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            gain2: (1.0 - beta2) as f32,
            root: (1.0 - beta2.powf(update)).sqrt() as f32,
            eps: eps as f32,
            size: (rate / (1.0 - beta1.powf(update))) as f32,
        };
        let [p, g, m, v] = [0, 1, 2, 3].map(|i| all[i].raw(run.base));
        nest.walk(
            || [0.0f32; BLOCK],
            |buffer, [ip, ig, im, iv], len| {
                // SAFETY: the nest stays within the tensors and visits each element once; states
                // are contiguous.
                unsafe {
                    let g = load(g, ig, steps[1], len, false, buffer);
                    constants.step(
                        p.slice_mut(ip, len),
                        g,
                        m.slice_mut(im, len),
                        v.slice_mut(iv, len),
                    );
                }
            },
        );
    }))
}

struct Adam {
    shrink: f32,
    gain1: f32,
    beta2: f32,
    gain2: f32,
    root: f32,
    eps: f32,
    size: f32,
}

impl Adam {
    fn step(&self, p: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) {
        adam_step(self, p, g, m, v);
    }
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
fn adam_step(c: &Adam, p: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) {
    let n = p.len();
    let (g, m, v) = (&g[..n], &mut m[..n], &mut v[..n]);
    for i in 0..n {
        m[i] += c.gain1 * (g[i] - m[i]);
        v[i] = c.beta2 * v[i] + c.gain2 * (g[i] * g[i]);
        let denominator = v[i].sqrt() / c.root + c.eps;
        p[i] = p[i] * c.shrink - c.size * (m[i] / denominator);
    }
}

/// Stochastic gradient descent with optional momentum, as `torch.optim.SGD`: the first update's
/// momentum is the gradient itself, which a state of zeros also results in.
pub(super) fn sgd(operands: &Operands) -> Result<Kernel, KernelError> {
    let states = operands.node.args.len().saturating_sub(2);
    let decay = operands.optional_number(usize::MAX, "weight_decay").unwrap_or(0.0) as f32;
    let momentum = operands.optional_number(usize::MAX, "momentum").unwrap_or(0.0) as f32;
    let all = tensors(operands, states)?;
    let state = all.get(2).unwrap_or(&all[0]).clone();
    let nest = Nest::new([&all[0], &all[1], &state]);
    let steps = nest.inner();
    Ok(Box::new(move |run| {
        let (p, g) = (all[0].raw(run.base), all[1].raw(run.base));
        let state = all.get(2).map(|state| state.raw(run.base));
        let rate = run.learning_rate;
        nest.walk(
            || [0.0f32; BLOCK],
            |buffer, [ip, ig, im], len| {
                // SAFETY: the nest stays within the tensors and visits each element once; states
                // are contiguous.
                unsafe {
                    let g = load(g, ig, steps[1], len, false, buffer);
                    let p = p.slice_mut(ip, len);
                    let mut m = state.map(|state| state.slice_mut(im, len));
                    for i in 0..len {
                        let mut step = g[i] + decay * p[i];
                        if let Some(m) = &mut m {
                            m[i] = momentum * m[i] + step;
                            step = m[i];
                        }
                        p[i] -= rate * step;
                    }
                }
            },
        );
    }))
}
