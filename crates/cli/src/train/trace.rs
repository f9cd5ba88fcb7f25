//! The fastest step of a run as Chrome trace events. Invariant: times are measured, memory is that
//! of the checked timeline.

use std::path::Path;

use tightfit::Fitted;
use tightfit::graph::Graph;
use tightfit::machine::Machine;
use tightfit::units::Seconds;
use tightfit_engine::FastestStep;
use tightfit_report::{Course, Trace};

use crate::failure::Result;
use crate::output;

/// Writes the calls and transfers of the fastest step.
pub fn write(
    path: &Path,
    graph: &Graph,
    fitted: &Fitted,
    machine: &Machine,
    fastest: &FastestStep,
) -> Result<()> {
    let Some(calls) = fastest.calls() else {
        note!("note: no step was measured, so {} was not written", path.display());
        return Ok(());
    };
    let times: Vec<(Seconds, Seconds)> =
        calls.iter().map(|call| (call.start, call.seconds)).collect();
    let course = Course::of(graph, fitted.schedule(), fitted.timeline());
    let trace = Trace::measured(&course, &machine.name, &times, fastest.transfers());
    output::write_whole(path, trace.write().as_bytes())
}
