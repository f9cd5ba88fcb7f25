//! Work outside of Python's lock. Invariant: other Python threads run while Rust works, Ctrl-C is
//! noticed within a moment, and neither a signal nor a panic leaves a thread behind.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;
use tightfit::units::Seconds;
use tightfit_cli::failure::Result;

use crate::errors;

/// Time between two checks of Python's signals.
const PATIENCE: Duration = Duration::from_millis(50);
/// Bytes of the worker's stack: as many as a program's first thread has.
const STACK: usize = 8 << 20;

/// Asks work to end.
pub struct Stop {
    raised: AtomicBool,
}

impl Stop {
    /// What a clock shows; infinite once the work is to end.
    pub fn read(&self, clock: impl Fn() -> Seconds) -> Seconds {
        if self.raised.load(Ordering::Relaxed) { Seconds(f64::INFINITY) } else { clock() }
    }
}

/// Does work on a thread of its own, while this one waits for its end or for an exception that a
/// signal raises. Then the work ends in order, and the exception is the result.
///
/// Python handles signals only on its main thread, which the work may not have released in order to
/// poll them: so this thread polls.
pub fn attended<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&Stop) -> Result<T> + Send,
) -> PyResult<T> {
    let stop = Stop { raised: AtomicBool::new(false) };
    let (raised, result) = py.detach(|| {
        thread::scope(|scope| -> PyResult<_> {
            let (working, ended) = mpsc::channel::<()>();
            let stop = &stop;
            let worker =
                thread::Builder::new().stack_size(STACK).spawn_scoped(scope, move || {
                    // Dropped at the end, even by a panic.
                    let _working = working;
                    work(stop)
                })?;
            let mut raised = None;
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(PATIENCE) {
                // An interpreter that is about to end wants no result.
                let signalled = Python::try_attach(|py| py.check_signals().err());
                if raised.is_none() && !matches!(signalled, Some(None)) {
                    stop.raised.store(true, Ordering::Relaxed);
                    raised = signalled.flatten();
                }
            }
            Ok((raised, worker.join()))
        })
    })?;
    match (raised, result) {
        (Some(raised), _) => Err(raised),
        (None, Ok(result)) => result.map_err(|error| errors::exception(py, &error)),
        (None, Err(panic)) => Err(errors::of_panic(py, said(&*panic))),
    }
}

/// The message of a panic.
fn said(panic: &(dyn Any + Send)) -> &str {
    let owned = || panic.downcast_ref::<String>().map(String::as_str);
    panic.downcast_ref::<&str>().copied().or_else(owned).unwrap_or("no message")
}
