//! The costs of a call apart from its inputs and outputs. Invariant: every operator states each of
//! these facts; a cost of nothing is stated, never assumed.

use crate::operator::call::TypedCall;
use crate::units::{Bytes, Flops};

/// The costs of an operator, as functions of the call if they depend on shapes.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Floating-point operations: two for each multiply-add of a matrix product, as
    /// `torch.utils.flop_counter` counts; zero for everything else.
    pub flops: fn(&TypedCall<'_>) -> Flops,
    /// The time of the call's arithmetic, as a number of exponential-like functions.
    pub elementary: fn(&TypedCall<'_>) -> u64,
    /// Transient bytes of the engine's kernel on a given number of threads.
    pub workspace: fn(&TypedCall<'_>, u32) -> Bytes,
    /// The matrix products whose operands the engine packs, any of which may be in progress.
    pub packing: fn(&TypedCall<'_>) -> Vec<Product>,
}

/// An m × k matrix times a k × n matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// Rows of the result.
    pub m: u64,
    /// Columns of the result.
    pub n: u64,
    /// The extent that is summed over.
    pub k: u64,
    /// How threads share it.
    pub workers: Workers,
}

/// How threads share products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// All threads compute one product together.
    Together,
    /// Each thread computes a product of its own.
    Alone,
}

/// Only reading and writing.
pub const MOVES: Cost = Cost { flops: no_flops, elementary: plain, workspace: none, packing: no };

/// The arithmetic takes as long as `N` exponential-like functions for each element of the first
/// output.
pub const fn per_element<const N: u64>() -> Cost {
    Cost { elementary: each::<N>, ..MOVES }
}

fn no_flops(_: &TypedCall<'_>) -> Flops {
    Flops(0)
}

fn plain(_: &TypedCall<'_>) -> u64 {
    0
}

fn none(_: &TypedCall<'_>, _: u32) -> Bytes {
    Bytes::ZERO
}

fn no(_: &TypedCall<'_>) -> Vec<Product> {
    Vec::new()
}

fn each<const N: u64>(call: &TypedCall<'_>) -> u64 {
    call.first_output().map_or(0, |output| output.elements().saturating_mul(N))
}
