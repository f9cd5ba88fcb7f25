//! Parts of a kernel, which may run at the same time. Invariant: no part writes what another one
//! reads or writes. Tests record every access and compare them ([`assert_disjoint`]), except those
//! of the matrix product's own threads.

#[cfg(debug_assertions)]
mod recorded;

#[cfg(debug_assertions)]
pub(super) use recorded::{Parts, scratch, touch};
#[cfg(not(debug_assertions))]
pub(super) use unrecorded::{Parts, scratch, touch};

/// From now on, every kernel of this process panics if one of its parts writes what another one
/// touches. Recording takes time and memory, so no program does it; without debug assertions
/// nothing is recorded.
pub fn assert_disjoint() {
    #[cfg(debug_assertions)]
    recorded::start();
}

/// The same functions, without effect.
#[cfg(not(debug_assertions))]
mod unrecorded {
    #[derive(Default)]
    pub struct Parts;

    impl Parts {
        pub fn run<R>(&self, _: usize, body: impl FnOnce() -> R) -> R {
            body()
        }
    }

    pub fn touch<T>(_: *const T, _: usize, _: bool) {}

    pub fn scratch<T>(_: *const T, _: usize, _: usize) {}
}
