//! Work on another thread. Invariant: it ends within its scope, and it is done even if the system
//! gives no thread: then at once, on the calling thread.

use std::sync::{Arc, Mutex, PoisonError};
pub use std::thread::Scope;
use std::thread::{Builder, ScopedJoinHandle};

/// Work that was begun in a scope of threads.
pub enum Aside<'scope, T> {
    /// It has a thread.
    Begun(ScopedJoinHandle<'scope, Option<T>>),
    /// There was no thread, and it has ended.
    Done(Option<T>),
}

impl<'scope, T: Send + 'scope> Aside<'scope, T> {
    /// Begins work, which must not wait for anything that is done after this call.
    pub fn begin(
        scope: &'scope Scope<'scope, '_>,
        work: impl FnOnce() -> T + Send + 'scope,
    ) -> Self {
        // If the system refuses a thread, the closure passed to it is lost, so the work is kept
        // here.
        let kept = Arc::new(Mutex::new(Some(work)));
        let taken = Arc::clone(&kept);
        match Builder::new().spawn_scoped(scope, move || done(&taken)) {
            Ok(thread) => Aside::Begun(thread),
            Err(_) => Aside::Done(done(&kept)),
        }
    }

    /// Whether it is done.
    pub fn has_ended(&self) -> bool {
        match self {
            Aside::Begun(thread) => thread.is_finished(),
            Aside::Done(_) => true,
        }
    }

    /// The result; `None` if its thread panicked, which prints its message.
    pub fn end(self) -> Option<T> {
        match self {
            Aside::Begun(thread) => thread.join().ok().flatten(),
            Aside::Done(result) => result,
        }
    }
}

fn done<T>(kept: &Mutex<Option<impl FnOnce() -> T>>) -> Option<T> {
    let work = kept.lock().unwrap_or_else(PoisonError::into_inner).take();
    work.map(|work| work())
}
