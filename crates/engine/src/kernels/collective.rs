//! Collectives, in two halves. Invariant: the first half only says what is sent and where received
//! data is to be put, and never waits; between the halves, the memory for received data belongs to
//! the link, and sent data stays unchanged. The result of the second half is the same on every
//! transport.
//!
//! A collective of w ranks is w (w − 1) messages: one from each rank to each other one, numbered by
//! the sender, then by the receiver. Pieces past the end of a tensor are empty, and not sent.

use tightfit::operator::Operator;
use tightfit::tensor::Argument;

use crate::kernels::nest::BLOCK;
use crate::kernels::operands::{float_bytes, shaped};
use crate::kernels::tensor::{Raw, Tensor};
use crate::kernels::{Fault, Kernel, KernelError, Operands, Run, tasks};
use crate::transport::{Awaiting, Header, Lent, Link, LinkError};

/// A collective with its operands bound.
#[derive(Clone, Copy)]
struct Collective {
    operator: Operator,
    /// Address of the first byte of the input, and of the output.
    takes: usize,
    brings: usize,
    /// Elements of the whole tensor, and of a piece.
    whole: usize,
    piece: usize,
    ranks: usize,
    message: u32,
}

/// The first half of a call.
pub(super) fn begin(operator: Operator, operands: &Operands) -> Result<Kernel, KernelError> {
    let collective = Collective::new(operator, operands)?;
    Ok(Box::new(move |run| collective.with_link(run, |link| collective.begin(run, link))))
}

/// The second half of a call, if it has one.
pub(crate) fn end(operator: Operator, operands: &Operands) -> Result<Option<Kernel>, KernelError> {
    if !operator.is_collective() {
        return Ok(None);
    }
    let collective = Collective::new(operator, operands)?;
    Ok(Some(Box::new(move |run| collective.with_link(run, |link| collective.end(run, link)))))
}

/// The mean of the pieces of all ranks, summed in their order; zeros past the end of the tensor.
pub(super) fn mean(operands: &Operands) -> Result<Kernel, KernelError> {
    let (whole, pieces, out) = (operands.float(0)?, operands.float(1)?, operands.float_output(0)?);
    let &[others, piece] = &pieces.shape[..] else {
        return Err(KernelError::Shapes("pieces of some ranks are rows".to_string()));
    };
    shaped(&out, "the mean", &[piece])?;
    let all = [&whole, &pieces, &out];
    let elements = whole.shape.iter().product::<usize>();
    if !all.iter().all(|tensor| tensor.is_contiguous()) || elements.div_ceil(others + 1) != piece {
        return Err(KernelError::Shapes("pieces are those of another tensor".to_string()));
    }
    let share = 1.0 / (others + 1) as f32;
    Ok(Box::new(move |run| {
        let Some(own) = rank_among(run, others + 1) else {
            run.fault.raise(Fault::Link);
            return;
        };
        let (whole, pieces, out) = (whole.raw(run.base), pieces.raw(run.base), out.raw(run.base));
        let there = elements.saturating_sub(own * piece).min(piece);
        tasks::for_each(piece.div_ceil(BLOCK), BLOCK * (others + 1), |block| {
            let (from, to) = (block * BLOCK, ((block + 1) * BLOCK).min(piece));
            let (inside, length) = (to.min(there).max(from) - from, to - from);
            // SAFETY: blocks are disjoint parts of the output, which lies in its buffer as the
            // inputs do in theirs; own · piece + there is no more than the tensor has, unless there
            // is none.
            unsafe {
                let sums = out.slice_mut(from, length);
                sums.fill(0.0);
                for rank in 0..=others {
                    if inside == 0 {
                        break;
                    }
                    let row = rank - usize::from(rank > own);
                    let summands = match rank == own {
                        true => whole.slice(own * piece + from, inside),
                        false => pieces.slice(row * piece + from, inside),
                    };
                    sums.iter_mut().zip(summands).for_each(|(sum, summand)| *sum += summand);
                }
                sums.iter_mut().for_each(|sum| *sum *= share);
            }
        });
    }))
}

impl Collective {
    fn new(operator: Operator, operands: &Operands) -> Result<Collective, KernelError> {
        let (takes, brings) = (operands.float(0)?, operands.float_output(0)?);
        let gathers = operator == Operator::AllGather;
        let (whole, shard) = if gathers { (&brings, &takes) } else { (&takes, &brings) };
        let place = if gathers { 2 } else { 1 };
        let number = |index: usize| match operands.node.args.get(index) {
            Some(&Argument::Int(number)) => u32::try_from(number).ok(),
            _ => None,
        };
        let ranks = number(place).filter(|&ranks| ranks > 1);
        let ranks = ranks.ok_or_else(|| operands.wrong(place, "a number of ranks"))?;
        let message = number(place + 1);
        let message =
            message.ok_or_else(|| operands.wrong(place + 1, "the number of a message"))?;
        let elements = |tensor: &Tensor| tensor.shape.iter().product::<usize>();
        let (whole_elements, ranks) = (elements(whole), ranks as usize);
        let piece = whole_elements.div_ceil(ranks);
        let expected = if gathers { vec![piece] } else { vec![ranks - 1, piece] };
        shaped(shard, "a shard", &expected)?;
        for tensor in [whole, shard] {
            if !tensor.is_contiguous() {
                let what = "a tensor with gaps between its elements has no pieces".to_string();
                return Err(KernelError::Shapes(what));
            }
        }
        let (takes, brings) = (takes.address, brings.address);
        Ok(Collective { operator, takes, brings, whole: whole_elements, piece, ranks, message })
    }

    /// Elements of a rank's piece.
    fn elements(&self, rank: usize) -> usize {
        self.whole.saturating_sub(rank * self.piece).min(self.piece)
    }

    /// Where this rank has what it sends to another one, and its elements.
    fn goes(&self, own: usize, to: usize) -> (usize, usize) {
        match self.operator {
            Operator::AllGather => (self.takes, self.elements(own)),
            _ => (self.takes + float_bytes(1, to, self.piece), self.elements(to)),
        }
    }

    /// Where this rank puts what comes from another one, and its elements; if a tensor is gathered,
    /// from itself too.
    fn comes(&self, own: usize, from: usize) -> (usize, usize) {
        let (row, piece) = match self.operator {
            Operator::AllGather => (from, from),
            _ => (from - usize::from(from > own), own),
        };
        (self.brings + float_bytes(1, row, self.piece), self.elements(piece))
    }

    fn begin(&self, run: &Run<'_>, link: &dyn Link) -> Result<(), LinkError> {
        let own = link.rank().as_u32() as usize;
        for from in self.others(own) {
            let (place, elements) = self.comes(own, from);
            if elements > 0 {
                let (bytes, length) = (run.base.wrapping_add(place), float_bytes(1, 1, elements));
                link.post(self.header(run, from, own), Awaiting { bytes, length })?;
            }
        }
        for to in self.others(own) {
            let (place, elements) = self.goes(own, to);
            if elements > 0 {
                let bytes = run.base.wrapping_add(place).cast_const();
                let length = float_bytes(1, 1, elements);
                link.send(self.header(run, own, to), Lent { bytes, length })?;
            }
        }
        if self.operator == Operator::AllGather {
            let ((from, elements), (to, _)) = (self.goes(own, own), self.comes(own, own));
            let raw = |address| Raw::<f32>(run.base.wrapping_add(address).cast());
            // SAFETY: both lie in their buffers, which the checker proved disjoint, and no other
            // rank's piece is put where the own one is.
            unsafe {
                raw(to).slice_mut(0, elements).copy_from_slice(raw(from).slice(0, elements));
            }
        }
        Ok(())
    }

    fn end(&self, run: &Run<'_>, link: &dyn Link) -> Result<(), LinkError> {
        let own = link.rank().as_u32() as usize;
        for from in self.others(own) {
            let (place, elements) = self.comes(own, from);
            if elements > 0 {
                let first = run.base.wrapping_add(place);
                let length = float_bytes(1, 1, elements);
                // SAFETY: these bytes belong to the link alone until it has answered.
                let into = unsafe { std::slice::from_raw_parts_mut(first, length) };
                link.receive(self.header(run, from, own), into)?;
            }
        }
        for to in self.others(own) {
            if self.goes(own, to).1 > 0 {
                link.sent(self.header(run, own, to))?;
            }
        }
        Ok(())
    }

    /// All other ranks, beginning with the next one, so that not all begin with the same one.
    fn others(&self, own: usize) -> impl Iterator<Item = usize> + use<> {
        let ranks = self.ranks;
        (1..ranks).map(move |distance| (own + distance) % ranks)
    }

    fn header(&self, run: &Run<'_>, from: usize, to: usize) -> Header {
        let first = run.link.map_or(0, |(_, first)| first).saturating_add(self.message);
        let number = from * (self.ranks - 1) + to - usize::from(to > from);
        Header { step: run.step, message: first.saturating_add(number as u32) }
    }

    fn with_link(&self, run: &Run<'_>, act: impl FnOnce(&dyn Link) -> Result<(), LinkError>) {
        let link = run.link.filter(|_| rank_among(run, self.ranks).is_some());
        let done = link.map(|(link, _)| act(link));
        if !matches!(done, Some(Ok(()))) {
            run.fault.raise(Fault::Link);
        }
    }
}

/// This rank, if there are exactly this many.
fn rank_among(run: &Run<'_>, ranks: usize) -> Option<usize> {
    let (link, _) = run.link?;
    (link.ranks() as usize == ranks).then_some(link.rank().as_u32() as usize)
}
