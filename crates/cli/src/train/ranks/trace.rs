//! The fastest step of all ranks as Chrome trace events, a process for each rank. Invariant: all
//! ranks show the same step, from the moment at which they began it.

use std::path::Path;

use tightfit::units::Seconds;
use tightfit_engine::{FastestStep, Session};
use tightfit_report::{Course, Trace, join};

use super::share::Share;
use crate::failure::Result;
use crate::output;

/// Has the first rank write what all of them have measured.
pub fn write(path: &Path, session: &Session, share: &Share, fastest: &FastestStep) -> Result<()> {
    let Share { step, training, machine, .. } = share;
    let own = fastest.calls().map(|calls| {
        let times: Vec<(Seconds, Seconds)> =
            calls.iter().map(|call| (call.start, call.seconds)).collect();
        let course = Course::of(&step.training, training.schedule(), training.timeline());
        Trace::measured(&course, &machine.name, &times, fastest.transfers()).write()
    });
    let all = session.gather(own.unwrap_or_default().as_bytes())?;
    if !session.leads() {
        return Ok(());
    }
    let texts = all.iter().map(|text| std::str::from_utf8(text).unwrap_or_default());
    match join(texts) {
        Some(joined) => output::write_whole(path, joined.as_bytes()),
        None => {
            note!("note: no step was measured, so {} was not written", path.display());
            Ok(())
        }
    }
}
