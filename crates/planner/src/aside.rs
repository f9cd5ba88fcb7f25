//! Work beside other work, on a thread of its own. Invariant: it ends within its scope, and it is
//! done where the system gives no thread as well: at once, on the thread that asks for it.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, Scope, ScopedJoinHandle};

/// Work that was begun in a scope of threads.
pub enum Aside<'scope, T> {
    /// It has a thread.
    Begun(ScopedJoinHandle<'scope, Option<T>>),
    /// There was none, and it has ended.
    Done(Option<T>),
}

impl<'scope, T: Send + 'scope> Aside<'scope, T> {
    /// Begins work, which may wait for nothing that is done behind this call.
    pub fn begin(
        scope: &'scope Scope<'scope, '_>,
        work: impl FnOnce() -> T + Send + 'scope,
    ) -> Self {
        // What a thread was to run is lost where the system refuses one, so it is kept here.
        let kept = Arc::new(Mutex::new(Some(work)));
        let taken = Arc::clone(&kept);
        match Builder::new().spawn_scoped(scope, move || done(&taken)) {
            Ok(thread) => Aside::Begun(thread),
            Err(_) => Aside::Done(done(&kept)),
        }
    }

    /// What it came to; nothing where its thread panicked, which leaves its message.
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
