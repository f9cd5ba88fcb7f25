//! That the program is at work. Invariant: nothing is drawn in the first second, nor where standard
//! error is no terminal, and what was drawn is gone when the work is done.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use tightfit::units::Seconds;

use crate::interrupt;

/// Work that ends sooner shows nothing.
const QUIET: Duration = Duration::from_secs(1);
/// Between two drawings.
const FRAME: Duration = Duration::from_millis(200);

/// Does work, and says meanwhile that it is being done, for how long already, and at most how long
/// where that is known.
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
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
        bar.set_style(style);
    }
    loop {
        bar.set_message(message(doing, start.elapsed(), most));
        bar.tick();
        if done.recv_timeout(FRAME) != Err(RecvTimeoutError::Timeout) {
            return bar.finish_and_clear();
        }
    }
}

fn message(doing: &str, elapsed: Duration, most: Seconds) -> String {
    let passed = elapsed.as_secs();
    if interrupt::raised() {
        return format!("{doing}: interrupted, {passed} s");
    }
    match most.0.is_finite() {
        true => format!("{doing}: {passed} s of some {:.0}; Ctrl-C ends it", most.0.max(1.0)),
        false => format!("{doing}: {passed} s; Ctrl-C ends it"),
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
    }

    #[test]
    fn work_is_done_and_answered() {
        assert_eq!(during("adding", Seconds(1.0), || 1 + 1), 2);
    }
}
