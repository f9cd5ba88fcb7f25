//! Requests to end: Ctrl-C, and the signals SIGTERM and SIGHUP, which batch systems and closed
//! terminals send. Invariant: the first one asks whatever runs to end in order, a later one ends
//! the program at once; the exit code names the first. Those that come together are one request:
//! `timeout` and shells send theirs to the program and to its group. A process that the program
//! waits for is asked too, and does not outlive it.

use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::exit_code::{self, ExitCode};

/// The number of the signal that asked; 0 for none.
static RAISED: AtomicI32 = AtomicI32::new(0);

/// From now on requests ask instead of killing; repeated calls have no effect.
pub fn listen() {
    static LISTENING: Once = Once::new();
    LISTENING.call_once(|| {
        if !signals::listen() {
            note!("note: Ctrl-C will end the run at once, without saving");
        }
    });
}

/// Whether the program was asked to end.
pub fn raised() -> bool {
    RAISED.load(Ordering::SeqCst) != 0
}

/// The exit code of a run that ended in order, whether it was asked to or not.
pub fn code() -> ExitCode {
    code_of(signal())
}

/// The signal that asked for the end; zero if none did.
pub fn signal() -> i32 {
    RAISED.load(Ordering::SeqCst)
}

/// The exit code of a run that ended in order because of this signal, or of none.
pub fn code_of(signal: i32) -> ExitCode {
    match signal {
        0 => ExitCode::SUCCESS,
        signal => exit_code::asked_by(signal),
    }
}

/// Undoes what a parent's handling of signals leaves behind, which survives `execve(2)`: requests
/// that it blocked arrive, and children can be waited for even if it ignored the end of its own.
pub fn heed() {
    signals::heed();
}

/// From now on a write to a file that may not grow (`ulimit -f`) fails, instead of ending the
/// program.
pub fn outlive_full_files() {
    signals::outlive_full_files();
}

#[cfg(unix)]
mod signals {
    use std::sync::atomic::AtomicI64;

    use tightfit_engine::process;

    use super::{Ordering, RAISED};

    /// When the first request came, in nanoseconds of the system's clock; 0 before.
    static FIRST: AtomicI64 = AtomicI64::new(0);
    /// Signals that come no later than this belong to the first request, in nanoseconds.
    const TOGETHER: i64 = 500_000_000;

    /// The signals that are requests.
    const REQUESTS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

    pub fn heed() {
        // SAFETY: an all-zero set is a valid one, which the calls fill; no handler is called.
        unsafe {
            let mut requests: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut requests);
            for signal in REQUESTS {
                libc::sigaddset(&mut requests, signal);
            }
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &requests, std::ptr::null_mut());
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        }
    }

    /// Takes them as requests, and says whether that worked.
    pub fn listen() -> bool {
        let handler: extern "C" fn(libc::c_int) = ask;
        let listens = |signal: libc::c_int| {
            // SAFETY: an all-zero `sigaction` is a valid one, and both calls get pointers to those
            // on this stack, or none. The handler does only what handlers may do.
            unsafe {
                let mut known: libc::sigaction = std::mem::zeroed();
                if libc::sigaction(signal, std::ptr::null(), &mut known) != 0 {
                    return false;
                }
                // Whatever started the program wants it so: `nohup`, or a shell in the background.
                if known.sa_sigaction == libc::SIG_IGN {
                    return true;
                }
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = handler as libc::sighandler_t;
                action.sa_flags = libc::SA_RESTART;
                libc::sigaction(signal, &action, std::ptr::null_mut()) == 0
            }
        };
        REQUESTS.into_iter().all(listens)
    }

    pub fn outlive_full_files() {
        // SAFETY: no handler is called: the signal is ignored, and the write reports the error.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        }
    }

    /// The time, in nanoseconds since the system began.
    fn now() -> i64 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: POSIX lets a handler call it; the time is filled by the call.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
        time.tv_sec * 1_000_000_000 + time.tv_nsec
    }

    extern "C" fn ask(signal: libc::c_int) {
        const ENDED: &[u8] = b"\nended at once; what was not saved before is lost\n";
        let now = now();
        if RAISED.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            FIRST.store(now, Ordering::SeqCst);
            process::send(signal);
            return;
        }
        // Another thread may have counted the first one and not yet stored its time.
        let first = FIRST.load(Ordering::SeqCst);
        if first == 0 || now - first < TOGETHER {
            return;
        }
        process::send(libc::SIGKILL);
        // SAFETY: POSIX lets a handler call both; the text is a constant of that length.
        unsafe {
            libc::write(libc::STDERR_FILENO, ENDED.as_ptr().cast(), ENDED.len());
            libc::_exit(128 + signal);
        }
    }
}

#[cfg(not(unix))]
mod signals {
    use super::{Ordering, RAISED};

    const CTRL_C: i32 = 2;

    pub fn listen() -> bool {
        let handler = || {
            if RAISED.swap(CTRL_C, Ordering::SeqCst) != 0 {
                std::process::exit(128 + CTRL_C)
            }
        };
        ctrlc::set_handler(handler).is_ok()
    }

    pub fn heed() {}

    pub fn outlive_full_files() {}
}
