//! Outputs in the order of their indices, for files that need them so. Invariant: an output is
//! settled where it lies, with one bit an element and no copy, if its elements are the bytes from
//! its first to its last and nothing else is among them; other outputs are copied.

use crate::execute::places::{Located, offsets};
use crate::memory::slab::Slab;

/// Settles those outputs from number `first` on that can be settled.
pub(super) fn settle(slab: &mut Slab, outputs: &mut [Located], first: usize) {
    for index in first..outputs.len() {
        let output = &outputs[index];
        if !output.is_contiguous() && is_dense(output) && is_alone(output, index, outputs) {
            permute(slab, output);
            outputs[index].settled = true;
        }
    }
}

/// Whether every byte from its first to its last element belongs to exactly one of its elements:
/// its strides are those of a contiguous tensor with its dimensions in some other order.
fn is_dense(output: &Located) -> bool {
    let mut dimensions: Vec<(u64, u64)> = output
        .strides
        .iter()
        .copied()
        .zip(output.shape.iter().copied())
        .filter(|&(_, extent)| extent != 1)
        .collect();
    dimensions.sort_unstable();
    let mut next = 1;
    dimensions.into_iter().all(|(stride, extent)| {
        let expected = next;
        next *= extent;
        stride == expected
    })
}

/// Whether no other output has a byte of its span.
fn is_alone(output: &Located, index: usize, outputs: &[Located]) -> bool {
    let span = |located: &Located| {
        let steps = located.shape.iter().zip(&located.strides);
        let last: u64 = steps.map(|(extent, stride)| extent.saturating_sub(1) * stride).sum();
        (located.address, located.address + (last + 1) * located.dtype.size())
    };
    let (from, to) = span(output);
    outputs.iter().enumerate().all(|(other, located)| {
        let (begin, end) = span(located);
        other == index || end <= from || to <= begin
    })
}

/// Moves every element to the place of its index, cycle by cycle.
fn permute(slab: &mut Slab, output: &Located) {
    let size = output.dtype.size() as usize;
    let bytes = slab.write(output.address, output.bytes());
    let count = bytes.len() / size;
    let mut is_placed = vec![0u64; count.div_ceil(64)];
    let mut held = [0; 8];
    for start in 0..count {
        if is_placed[start / 64] >> (start % 64) & 1 != 0 {
            continue;
        }
        held[..size].copy_from_slice(&bytes[start * size..(start + 1) * size]);
        let mut place = start;
        loop {
            is_placed[place / 64] |= 1 << (place % 64);
            let from = offset(output, place as u64) as usize;
            if from == start {
                bytes[place * size..(place + 1) * size].copy_from_slice(&held[..size]);
                break;
            }
            bytes.copy_within(from * size..(from + 1) * size, place * size);
            place = from;
        }
    }
}

/// The place of the element with an index, in elements from the first.
fn offset(located: &Located, mut index: u64) -> u64 {
    let mut offset = 0;
    for (extent, stride) in located.shape.iter().zip(&located.strides).rev() {
        offset += index % extent * stride;
        index /= extent;
    }
    offset
}

/// The bytes of a value, contiguous.
pub(super) fn gather(slab: &Slab, located: &Located) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(located.bytes() as usize);
    for offset in offsets(located) {
        bytes.extend_from_slice(slab.read(located.address + offset, located.dtype.size()));
    }
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tightfit::tensor::DType;
    use tightfit::units::Bytes;

    use super::*;

    fn located(shape: &[u64], order: &[usize], address: u64) -> Located {
        let mut strides = vec![0; shape.len()];
        let mut next = 1;
        for &dimension in order.iter().rev() {
            strides[dimension] = next;
            next *= shape[dimension];
        }
        let shape = shape.to_vec();
        Located { address, shape, strides, dtype: DType::F32, settled: false }
    }

    proptest! {
        #[test]
        fn a_settled_output_is_its_copy(
            shape in proptest::collection::vec(1u64..7, 1..5),
            order in any::<u64>(),
        ) {
            let mut dimensions: Vec<usize> = (0..shape.len()).collect();
            dimensions.sort_by_key(|&dimension| order.rotate_left(dimension as u32 * 13) % 97);
            let mut outputs = [located(&shape, &dimensions, 64)];
            let mut slab = Slab::new(Bytes(64 << 10)).unwrap();
            for (index, byte) in slab.write(0, 64 << 10).iter_mut().enumerate() {
                *byte = (index * 31 / 8) as u8;
            }
            let before = slab.read(0, 64 << 10).to_vec();
            let expected = gather(&slab, &outputs[0]);
            settle(&mut slab, &mut outputs, 0);
            prop_assert!(outputs[0].is_contiguous());
            let (address, bytes) = (outputs[0].address, outputs[0].bytes());
            prop_assert_eq!(slab.read(address, bytes), &expected[..]);
            prop_assert_eq!(slab.read(0, 64), &before[..64]);
            let rest = address + bytes;
            prop_assert_eq!(slab.read(rest, (64 << 10) - rest), &before[rest as usize..]);
        }
    }

    #[test]
    fn what_others_lie_among_is_left_alone() {
        let mut slab = Slab::new(Bytes(4096)).unwrap();
        let transposed = || located(&[4, 6], &[1, 0], 0);
        let wide = Located { strides: vec![2, 8], ..transposed() };
        let repeated = Located { strides: vec![0, 1], ..transposed() };
        for outputs in [vec![wide], vec![repeated], vec![transposed(), located(&[2], &[0], 8)]] {
            let mut settled = outputs.clone();
            settle(&mut slab, &mut settled, 0);
            assert_eq!(outputs, settled);
        }
    }
}
