//! Deliberate faults. Invariant: each kind of finding is here, so that a test can see a campaign
//! report it.

use crate::verdict::Verdict;

/// The kinds of faults.
pub const FAULTS: [&str; 5] = ["nothing", "panic", "abort", "hang", "wrong"];

/// Does what the file says.
pub fn judge(fault: &[u8]) -> Verdict {
    let fault = String::from_utf8_lossy(fault);
    match FAULTS.iter().position(|&known| fault.contains(known) && known != "nothing") {
        Some(1) => panic!("planted"),
        Some(2) => std::process::abort(),
        Some(3) => loop {
            std::thread::park();
        },
        Some(_) => Verdict::Wrong("planted".to_string()),
        None => Verdict::Accepted,
    }
}
