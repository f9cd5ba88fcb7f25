//! Transfers from one rank to another, as calls. Invariant: a tensor that is sent or received takes
//! the bytes of its elements and no others, and is read or written whole; a call that fails raises
//! a fault, and the link says why.

use tightfit::tensor::Argument;

use crate::kernels::tensor::Tensor;
use crate::kernels::{Fault, Kernel, KernelError, Operands, Run};
use crate::transport::{Awaiting, Header, Lent, Link, LinkError};

/// Memory for an incoming tensor; the schedule has placed it, so there is nothing to do.
pub(super) fn incoming(_: &Operands) -> Result<Kernel, KernelError> {
    Ok(Box::new(|_| {}))
}

pub(super) fn send(operands: &Operands) -> Result<Kernel, KernelError> {
    let (span, message) = (span(operands)?, message(operands)?);
    Ok(Box::new(move |run| {
        with_link(run, message, |link, header| {
            let bytes = run.base.wrapping_add(span.address).cast_const();
            link.send(header, Lent { bytes, length: span.bytes })
        });
    }))
}

/// From here to `receive` the bytes belong to the link.
pub(super) fn post(operands: &Operands) -> Result<Kernel, KernelError> {
    let (span, message) = (span(operands)?, message(operands)?);
    Ok(Box::new(move |run| {
        with_link(run, message, |link, header| {
            let bytes = run.base.wrapping_add(span.address);
            link.post(header, Awaiting { bytes, length: span.bytes })
        });
    }))
}

pub(super) fn receive(operands: &Operands) -> Result<Kernel, KernelError> {
    let (span, message) = (span(operands)?, message(operands)?);
    Ok(Box::new(move |run| {
        with_link(run, message, |link, header| {
            let first = run.base.wrapping_add(span.address);
            // SAFETY: the tensor lies in its buffer, without gaps, and no other code accesses it.
            let into = unsafe { std::slice::from_raw_parts_mut(first, span.bytes) };
            link.receive(header, into)
        });
    }))
}

pub(super) fn sent(operands: &Operands) -> Result<Kernel, KernelError> {
    let message = message(operands)?;
    Ok(Box::new(move |run| with_link(run, message, |link, header| link.sent(header))))
}

fn with_link(
    run: &Run<'_>,
    message: u32,
    act: impl FnOnce(&dyn Link, Header) -> Result<(), LinkError>,
) {
    let done = run.link.map(|(link, first)| {
        act(link, Header { step: run.step, message: first.saturating_add(message) })
    });
    if !matches!(done, Some(Ok(()))) {
        run.fault.raise(Fault::Link);
    }
}

fn message(operands: &Operands) -> Result<u32, KernelError> {
    match operands.node.args.get(1) {
        Some(&Argument::Int(number)) => u32::try_from(number).ok(),
        _ => None,
    }
    .ok_or_else(|| operands.wrong(1, "the number of a message"))
}

/// The bytes of a tensor.
#[derive(Clone, Copy)]
struct Span {
    address: usize,
    bytes: usize,
}

fn span(operands: &Operands) -> Result<Span, KernelError> {
    let tensor: &Tensor = operands.tensor(0)?;
    let mut order: Vec<(usize, usize)> =
        tensor.strides.iter().copied().zip(tensor.shape.iter().copied()).collect();
    order.retain(|&(_, extent)| extent != 1);
    order.sort_unstable();
    let mut elements = 1;
    for (stride, extent) in order {
        if stride != elements && extent > 0 {
            let what = "a tensor with gaps between its elements cannot be sent".to_string();
            return Err(KernelError::Shapes(what));
        }
        elements *= extent;
    }
    Ok(Span { address: tensor.address, bytes: elements * tensor.dtype.size() as usize })
}
