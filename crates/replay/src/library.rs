//! What other libraries of this process can do: found while it runs, so that this crate builds and
//! loads without them. Invariant: a function is looked for among the libraries that are loaded
//! already, and none is loaded for it.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

/// A function of a library that this process has loaded, by its name; `libraries` are those in
/// which it may be where it is not visible to all.
#[cfg(unix)]
pub fn function(name: &CStr, libraries: &[&CStr]) -> Option<NonNull<c_void>> {
    // SAFETY: the name is a string that ends; a handle is only used where it is none but the
    // default one, or was given out by `dlopen` and is never closed.
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

/// There is no way to look for it here.
#[cfg(not(unix))]
pub fn function(_: &CStr, _: &[&CStr]) -> Option<NonNull<c_void>> {
    None
}
