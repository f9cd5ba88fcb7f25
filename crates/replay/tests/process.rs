//! The two functions that PyTorch calls, called as C would, on this computer's own memory.
//!
//! Tier: quick, since it takes less than a second.

use std::ffi::c_void;
use std::ptr;

use tightfit_replay::Size;
use tightfit_replay::process::{Device, throws, tightfit_alloc, tightfit_free, with};

const HOST: i32 = -1;

fn beside() -> Size {
    with(Device(HOST), |allocator| allocator.counters().beside)
}

#[test]
fn blocks_come_and_go_and_nothing_else_does() {
    let none: *mut c_void = ptr::null_mut();
    let block = tightfit_alloc(1000, HOST, none);
    assert!(!block.is_null() && block.addr().is_multiple_of(64));
    assert_eq!(beside(), Size(1000));
    assert!(tightfit_alloc(0, HOST, none).is_null());

    let mut other = 0_u8;
    tightfit_free(none, 0, HOST, none);
    tightfit_free(ptr::from_mut(&mut other).cast(), 1, HOST, none);
    // The size that is given back is ignored, and another device does not know the block.
    tightfit_free(block, 1000, HOST - 1, none);
    assert_eq!(beside(), Size(1000));
    tightfit_free(block, isize::MAX, HOST, none);
    tightfit_free(block, 1000, HOST, none);
    assert_eq!(beside(), Size::ZERO);
    assert_eq!(with(Device(HOST), |allocator| allocator.counters().strays), 2);

    // If the C++ standard library is not loaded, nothing can be thrown.
    if !throws() {
        for size in [-1, isize::MIN, isize::MAX] {
            assert!(tightfit_alloc(size, HOST, none).is_null());
        }
        // CUDA's library is not loaded here, either.
        assert!(tightfit_alloc(1, 0, none).is_null());
    }
}
