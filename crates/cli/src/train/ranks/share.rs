//! What one of several ranks runs. Invariant: its schedules were checked for its own graphs, and
//! fit into its slab.

use std::sync::Arc;

use tightfit::check::Checked;
use tightfit::machine::Machine;
use tightfit::units::Bytes;
use tightfit_engine::transport::Link;
use tightfit_engine::{Session, SessionError, Step};

/// What a rank runs.
pub struct Share {
    /// Its part of the step.
    pub step: Step,
    /// The schedule of its training graph.
    pub training: Checked,
    /// That of its evaluation graph, if it fits.
    pub evaluation: Option<Checked>,
    /// The bytes that it runs in.
    pub slab: Bytes,
    /// The machine that it runs on.
    pub machine: Machine,
    /// The number of the evaluation's first message.
    pub first_of_evaluation: u32,
}

impl Share {
    /// The session of the rank, connected to the others.
    pub fn session(&self, link: Arc<dyn Link>, seed: u64) -> Result<Session, SessionError> {
        let Share { step, training, evaluation, slab, machine, .. } = self;
        let mut session = Session::builder(step, training)
            .evaluation(evaluation.as_ref())
            .slab(*slab)
            .threads(machine.threads as usize)
            .seed(seed)
            .start()?;
        session.connect(link, self.first_of_evaluation)?;
        Ok(session)
    }
}
