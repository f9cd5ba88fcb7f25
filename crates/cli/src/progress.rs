//! Progress display. Invariant: nothing is drawn in the first second, nor if standard error is no
//! terminal, and what was drawn is gone when the work is done.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use console::{Term, truncate_str};
use tightfit::units::Seconds;

use crate::interrupt;

/// Work that ends sooner shows nothing.
const QUIET: Duration = Duration::from_secs(1);
/// Time between two drawings.
const FRAME: Duration = Duration::from_millis(200);
/// What is drawn first, in turn.
const FRAMES: [char; 4] = ['|', '/', '-', '\\'];
/// Columns left free at the end of the line.
const ROOM: usize = 4;

/// Does work, and says meanwhile that it is being done, for how long so far, and at most how long
/// if that is known.
pub fn during<T>(doing: &str, most: Seconds, work: impl FnOnce() -> T) -> T {
    if !io::stderr().is_terminal() {
        return work();
    }
    thread::scope(|scope| {
        // The channel is closed when this ends, in a panic as well.
        let (working, done) = mpsc::channel::<()>();
        let drawn = thread::Builder::new().spawn_scoped(scope, move || draw(doing, most, &done));
        // Without a thread nothing is drawn.
        drop(drawn);
        let result = work();
        drop(working);
        result
    })
}

fn draw(doing: &str, most: Seconds, done: &Receiver<()>) {
    let start = Instant::now();
    if done.recv_timeout(QUIET) != Err(RecvTimeoutError::Timeout) {
        return;
    }
    let terminal = Term::stderr();
    for frame in FRAMES.iter().cycle() {
        let text = format!("{frame} {}", message(doing, start.elapsed(), most));
        // A narrower line, so that `^C` after it does not begin another one.
        let width = usize::from(terminal.size().1).saturating_sub(ROOM);
        let drawn = terminal
            .clear_line()
            .and_then(|()| terminal.write_str(&truncate_str(&text, width, "…")));
        let is_done = done.recv_timeout(FRAME) != Err(RecvTimeoutError::Timeout);
        if is_done || drawn.is_err() {
            // If the terminal is gone, no one is watching it.
            let _ = terminal.clear_line();
            return;
        }
    }
}

fn message(doing: &str, elapsed: Duration, most: Seconds) -> String {
    let passed = elapsed.as_secs();
    if interrupt::raised() {
        return format!("{doing}: interrupted, {passed} s");
    }
    if !most.0.is_finite() {
        return format!("{doing}: {passed} s; Ctrl-C ends it");
    }
    match elapsed.as_secs_f64() <= most.0 + 1.0 {
        true => format!("{doing}: {passed} s of some {:.0}; Ctrl-C ends it", most.0.max(1.0)),
        false => format!("{doing}: {passed} s, finishing what is done in any case"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_says_for_how_long() {
        let says = |most| message("planning", Duration::from_millis(2900), Seconds(most));
        assert_eq!(says(10.0), "planning: 2 s of some 10; Ctrl-C ends it");
        assert_eq!(says(f64::INFINITY), "planning: 2 s; Ctrl-C ends it");
        assert_eq!(says(1.0), "planning: 2 s, finishing what is done in any case");
    }

    #[test]
    fn work_is_done_and_answered() {
        assert_eq!(during("adding", Seconds(1.0), || 1 + 1), 2);
    }
}
