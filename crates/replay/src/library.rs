//! Functions of other libraries of this process: found at run time, so that this crate builds and
//! loads without them. Invariant: a function is looked for among the libraries that are loaded
//! already, and none is loaded for it.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

/// A function of a library that this process has loaded, by its name; `libraries` are those to
/// search if it is not globally visible.
#[cfg(unix)]
pub fn function(name: &CStr, libraries: &[&CStr]) -> Option<NonNull<c_void>> {
    // SAFETY: the name is a terminated string; a handle is only used if it is the default one, or a
    // non-null one that `dlopen` gave out and that is never closed.
    unsafe {
        let found = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
        NonNull::new(found).or_else(|| {
            libraries.iter().find_map(|library| {
                let mode = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
                let handle = NonNull::new(libc::dlopen(library.as_ptr(), mode))?;
                NonNull::new(libc::dlsym(handle.as_ptr(), name.as_ptr()))
            })
        })
    }
}

/// There is no way to look it up here.
#[cfg(not(unix))]
pub fn function(_: &CStr, _: &[&CStr]) -> Option<NonNull<c_void>> {
    None
}
