//! The memory of a CUDA device, by the runtime library that PyTorch has loaded. Invariant: an error
//! of the runtime library is read and cleared here, so that PyTorch does not take it for its own.

use std::ffi::{CStr, c_int, c_void};
use std::mem::transmute;
use std::num::NonZeroUsize;
use std::ptr;

use crate::backing::{Address, Backing, OutOfMemory, Size};
use crate::library::function;

const LIBRARIES: [&CStr; 3] = [c"libcudart.so.13", c"libcudart.so.12", c"libcudart.so.11.0"];

type Malloc = unsafe extern "C" fn(*mut *mut c_void, usize) -> c_int;
type Free = unsafe extern "C" fn(*mut c_void) -> c_int;
type LastError = unsafe extern "C" fn() -> c_int;

/// The memory of the CUDA device that is current on the calling thread.
#[derive(Debug, Default)]
pub struct Cuda {
    functions: Option<Functions>,
}

#[derive(Clone, Copy, Debug)]
struct Functions {
    malloc: Malloc,
    free: Free,
    last_error: LastError,
}

impl Cuda {
    fn functions(&mut self) -> Option<Functions> {
        if self.functions.is_none() {
            let found = |name| function(name, &LIBRARIES);
            let (malloc, free) = (found(c"cudaMalloc")?, found(c"cudaFree")?);
            let last_error = found(c"cudaGetLastError")?;
            // SAFETY: these are the signatures of the runtime library's functions of these names,
            // the same in all its versions; enumerations are `int`s in C.
            self.functions = Some(unsafe {
                Functions {
                    malloc: transmute::<*mut c_void, Malloc>(malloc.as_ptr()),
                    free: transmute::<*mut c_void, Free>(free.as_ptr()),
                    last_error: transmute::<*mut c_void, LastError>(last_error.as_ptr()),
                }
            });
        }
        self.functions
    }
}

impl Backing for Cuda {
    fn allocate(&mut self, size: Size) -> Result<Address, OutOfMemory> {
        let Some(Functions { malloc, last_error, .. }) = self.functions() else {
            return Err(OutOfMemory("CUDA's runtime library is not loaded".to_string()));
        };
        let mut block: *mut c_void = ptr::null_mut();
        // SAFETY: `block` outlives the call, which writes an address there or nothing.
        let code = unsafe { malloc(&raw mut block, size.0) };
        let address = NonZeroUsize::new(block.expose_provenance()).filter(|_| code == 0);
        address.map(Address).ok_or_else(|| {
            // SAFETY: takes nothing, and returns a number.
            unsafe { last_error() };
            OutOfMemory(format!("cudaMalloc fails with error {code}"))
        })
    }

    fn free(&mut self, address: Address, _: Size) {
        let Some(Functions { free, last_error, .. }) = self.functions() else { return };
        // SAFETY: the allocator gives back once what `allocate` gave out; when the process ends,
        // the runtime library may have shut down before, and says so with an error.
        unsafe {
            if free(ptr::with_exposed_provenance_mut(address.0.get())) != 0 {
                last_error();
            }
        }
    }
}
