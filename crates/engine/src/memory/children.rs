//! Programs that this process starts and waits for, and the memory that they took. Invariant: only
//! processes that were started here count.
//!
//! `getrusage(RUSAGE_CHILDREN)` does not suffice. Its figures survive `execve(2)`, so that a
//! process inherits the children of the program that ran under its id before it: `cargo run` waits
//! for compilers and then replaces itself by the program. And it is a maximum, from which nothing
//! can be subtracted.

use std::io::{self, Read};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use tightfit::units::Bytes;
use wait4::Wait4;

/// The largest peak so far, in bytes.
static PEAK: AtomicU64 = AtomicU64::new(0);
/// Id of the process that [`output`] reads from; 0 for none. It has not been waited for, so that
/// its id is not reused.
static RUNNING: AtomicI32 = AtomicI32::new(0);
/// The signal last passed to [`send`]; 0 for none.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

/// Most resident bytes of a process that [`output`] ran, or of one that it started and waited for.
pub fn peak() -> Bytes {
    Bytes(PEAK.load(Ordering::Relaxed))
}

/// From now on [`peak`] only counts processes that end later.
pub(super) fn restart_peak() {
    PEAK.store(0, Ordering::Relaxed);
}

/// Sends a signal to the process that [`output`] runs, and to each that it starts later. A signal
/// handler may call it.
pub fn send(signal: i32) {
    SIGNAL.store(signal, Ordering::SeqCst);
    pass_on();
}

fn pass_on() {
    let (id, signal) = (RUNNING.load(Ordering::SeqCst), SIGNAL.load(Ordering::SeqCst));
    if id > 0 && signal > 0 {
        #[cfg(unix)]
        // SAFETY: the process is a child that has not been waited for.
        unsafe {
            libc::kill(id, signal)
        };
    }
}

/// Runs a command to its end and returns what it printed to standard output. It has no standard
/// input, and its standard error is discarded. Its memory counts toward the peak of children.
///
/// # Errors
/// If it cannot be started, read or waited for.
pub fn output(command: &mut Command) -> io::Result<Output> {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    RUNNING.store(i32::try_from(child.id()).unwrap_or(0), Ordering::SeqCst);
    pass_on();
    let mut stdout = Vec::new();
    let read = child.stdout.take().map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut stdout));
    RUNNING.store(0, Ordering::SeqCst);
    let ended = child.wait4()?;
    PEAK.fetch_max(ended.rusage.maxrss, Ordering::Relaxed);
    read.map(|_| Output { status: ended.status, stdout, stderr: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_command_prints_and_how_it_ends_are_returned() {
        let ran = output(Command::new("sh").args(["-c", "echo printed; echo lost >&2; exit 3"]));
        let ran = ran.unwrap();
        assert_eq!((ran.stdout.as_slice(), ran.status.code()), (&b"printed\n"[..], Some(3)));
        let killed = output(Command::new("sh").args(["-c", "kill -KILL $$"])).unwrap();
        assert_eq!(killed.status.code(), None);
        assert_eq!(
            output(&mut Command::new("no-such-program")).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }

    /// More than an argument list or a pipe's buffer holds.
    #[test]
    fn long_outputs_are_read_to_their_end() {
        let ran = output(Command::new("sh").args(["-c", "yes | head -c 300000"])).unwrap();
        assert_eq!(ran.stdout.len(), 300_000);
    }
}
