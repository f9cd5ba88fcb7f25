//! Processor time, which other work on the machine changes little. Invariant: it counts all threads
//! of this process.

use rustix::time::{ClockId, clock_gettime};
use tightfit::units::Seconds;

/// Processor time of this process, all threads together.
pub fn time() -> Seconds {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Seconds(time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9)
}
