//! The allocators of this process, and the two functions by which PyTorch calls them. Invariant: no
//! panic crosses; a failure is thrown as a C++ exception, which PyTorch turns into a Python
//! exception, since it would take a null address for memory.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::transmute;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use crate::allocator::{Allocator, Stream, Thread};
use crate::backing::{Address, Backing, OutOfMemory, Size};
use crate::cuda::Cuda;
use crate::host::Host;
use crate::library::function;

/// A device: the number of a CUDA device; negative for this computer's own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device(pub c_int);

/// The memory of a device.
#[derive(Debug)]
pub enum Memory {
    /// That of this computer.
    Host(Host),
    /// That of a CUDA device.
    Cuda(Cuda),
}

impl Memory {
    fn of(Device(number): Device) -> Memory {
        if number < 0 { Memory::Host(Host) } else { Memory::Cuda(Cuda::default()) }
    }
}

impl Backing for Memory {
    fn allocate(&mut self, size: Size) -> Result<Address, OutOfMemory> {
        match self {
            Memory::Host(host) => host.allocate(size),
            Memory::Cuda(cuda) => cuda.allocate(size),
        }
    }

    fn free(&mut self, address: Address, size: Size) {
        match self {
            Memory::Host(host) => host.free(address, size),
            Memory::Cuda(cuda) => cuda.free(address, size),
        }
    }
}

static DEVICES: Mutex<BTreeMap<Device, Allocator<Memory>>> = Mutex::new(BTreeMap::new());

/// Does something with the allocator of a device, to which it has exclusive access meanwhile.
pub fn with<T>(device: Device, work: impl FnOnce(&mut Allocator<Memory>) -> T) -> T {
    let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    work(devices.entry(device).or_insert_with(|| Allocator::new(Memory::of(device))))
}

/// The calling thread.
pub fn this_thread() -> Thread {
    thread_local! {
        // Nothing is constructed or dropped, so it exists to the very end of a thread.
        static PLACE: u8 = const { 0 };
    }
    Thread(PLACE.with(|place| ptr::from_ref(place).addr()))
}

/// Memory for a tensor, as `torch.cuda.memory.CUDAPluggableAllocator` asks for it. Throws a C++
/// exception if there is none.
///
/// The exception unwinds through this frame, so nothing here is dropped and nothing caught: a frame
/// without cleanup needs no personality routine. Rust's would call the unwinder that is linked into
/// this library (zig links one statically), which cannot read the context of the one that C++ uses.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn tightfit_alloc(
    size: isize,
    device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    match allocated(size, device, stream) {
        Ok(address) => address,
        // SAFETY: the message is a terminated string, and exists for as long as the process.
        Err(Failure { throw: Some(throw), message }) => unsafe { throw(message) },
        Err(Failure { throw: None, .. }) => ptr::null_mut(),
    }
}

/// What is to be thrown.
#[derive(Clone, Copy)]
struct Failure {
    throw: Option<Throw>,
    message: *const c_char,
}

#[inline(never)]
fn allocated(size: isize, device: c_int, stream: *mut c_void) -> Result<*mut c_void, Failure> {
    let (thread, stream) = (this_thread(), Stream(stream.addr()));
    // A negative size is treated as one that no device has.
    let size = Size(usize::try_from(size).unwrap_or(usize::MAX));
    let work = || with(Device(device), |allocator| allocator.allocate(size, thread, stream));
    let failure = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(None)) => return Ok(ptr::null_mut()),
        Ok(Ok(Some(address))) => return Ok(ptr::with_exposed_provenance_mut(address.0.get())),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the allocator made a mistake; please report this".to_string(),
    };
    let message = CString::new(format!("tightfit: {failure}").replace('\0', " "));
    // Nothing can free the message once it is thrown. Each one ends a step.
    Err(Failure { throw: thrower(), message: message.unwrap_or_default().into_raw() })
}

/// Takes back what [`tightfit_alloc`] gave out. An address that is not known is left alone.
#[unsafe(no_mangle)]
pub extern "C" fn tightfit_free(block: *mut c_void, _: isize, device: c_int, _: *mut c_void) {
    let Some(address) = NonZeroUsize::new(block.expose_provenance()) else { return };
    let work = || with(Device(device), |allocator| allocator.free(Address(address), this_thread()));
    // C++ destructors must not throw: a panic ends here, and was printed.
    let _ = catch_unwind(AssertUnwindSafe(work));
}

/// The function that throws C++'s `std::runtime_error` with a message, in GNU's standard library.
const THROW: &CStr = c"_ZSt21__throw_runtime_errorPKc";

/// Whether failures can be thrown in this process.
pub fn throws() -> bool {
    thrower().is_some()
}

type Throw = unsafe extern "C-unwind" fn(*const c_char) -> !;

fn thrower() -> Option<Throw> {
    let found = function(THROW, &[c"libstdc++.so.6"])?;
    // SAFETY: that is the function's signature; it never returns.
    Some(unsafe { transmute::<*mut c_void, Throw>(found.as_ptr()) })
}
