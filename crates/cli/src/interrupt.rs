//! Ctrl-C. Invariant: the first one asks whatever runs to come to its end in order, the second one
//! ends the program.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::exit;

static RAISED: AtomicBool = AtomicBool::new(false);

/// From now on Ctrl-C asks instead of killing; without effect when done again.
pub fn listen() {
    static LISTENING: Once = Once::new();
    LISTENING.call_once(|| {
        let handler = || {
            if RAISED.swap(true, Ordering::SeqCst) {
                std::process::exit(i32::from(exit::INTERRUPTED))
            }
        };
        if ctrlc::set_handler(handler).is_err() {
            eprintln!("note: Ctrl-C will end the run at once, without saving");
        }
    });
}

/// The program was asked to come to its end.
pub fn raised() -> bool {
    RAISED.load(Ordering::SeqCst)
}
