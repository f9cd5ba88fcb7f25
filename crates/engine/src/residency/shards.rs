//! The life of one parameter's shards over a step in which the gradient takes over the bytes of the
//! parameter. Invariant: parameter and gradient never both hold bytes, except between
//! [`Shards::save_gradient`] and [`Shards::empty_parameter`]; after the step, even if it was
//! skipped, the parameter holds its bytes again.
//!
//! Source: ColossalAI's `ShardedModelV2` and `ShardedOptimizerV2` with `reuse_fp16_shard`.

use tightfit::units::Bytes;

use super::id::TensorId;
use super::ledger::{Ledger, LedgerError, Payload, Tier};
use super::state::{Phase, TensorState};

/// The shards of one parameter.
#[derive(Clone, Copy, Debug)]
pub struct Shards {
    /// What the passes compute with.
    pub parameter: TensorId,
    /// What the backward pass makes.
    pub gradient: TensorId,
    /// The parameter in the optimizer's precision.
    pub master: TensorId,
    /// The bytes of the parameter, and of the gradient.
    pub bytes: Bytes,
}

impl Shards {
    /// The backward pass is about to compute with the parameter.
    ///
    /// # Errors
    /// The parameter has no bytes.
    pub fn before_backward(&self, ledger: &mut Ledger) -> Result<(), LedgerError> {
        ledger.transition(self.parameter, TensorState::Compute)
    }

    /// Stores the new gradient in `tier`.
    ///
    /// # Errors
    /// There is a gradient already: reusing the parameter's bytes leaves no memory to add up two.
    pub fn save_gradient(&self, ledger: &mut Ledger, tier: Tier) -> Result<(), LedgerError> {
        if let Some(Payload { bytes, .. }) = ledger.payload(self.gradient)? {
            return Err(LedgerError::NotEmpty { tensor: self.gradient, bytes });
        }
        ledger.reset(self.gradient, Payload { bytes: self.bytes, tier })
    }

    /// The parameter gives up its bytes: the update remakes it from the master.
    ///
    /// # Errors
    /// A tensor is unknown.
    pub fn empty_parameter(&self, ledger: &mut Ledger) -> Result<(), LedgerError> {
        let tier = ledger.payload(self.parameter)?.map_or(Tier::Device, |payload| payload.tier);
        ledger.reset(self.parameter, Payload { bytes: Bytes::ZERO, tier })
    }

    /// The backward pass has ended.
    ///
    /// # Errors
    /// The parameter is free.
    pub fn after_backward(&self, ledger: &mut Ledger) -> Result<(), LedgerError> {
        ledger.transition(self.parameter, TensorState::after(Phase::Backward))
    }

    /// The optimizer is about to read the gradient.
    ///
    /// # Errors
    /// There is no gradient.
    pub fn take_gradient(&self, ledger: &mut Ledger) -> Result<(), LedgerError> {
        ledger.transition(self.gradient, TensorState::Compute)
    }

    /// The optimizer is about to update the master.
    ///
    /// # Errors
    /// The master has no bytes.
    pub fn take_master(&self, ledger: &mut Ledger) -> Result<(), LedgerError> {
        ledger.transition(self.master, TensorState::Compute)
    }

    /// The gradient has been used: its bytes are the parameter's from here on.
    ///
    /// # Errors
    /// There is no gradient, or the parameter was not emptied.
    pub fn relay(&self, ledger: &mut Ledger) -> Result<(), LedgerError> {
        ledger.relay(self.gradient, self.parameter)
    }

    /// The parameter has been remade from the master, and the step has ended.
    ///
    /// # Errors
    /// The master has no bytes.
    pub fn finish(&self, ledger: &mut Ledger) -> Result<(), LedgerError> {
        ledger.transition(self.master, TensorState::Hold)
    }

    /// The gradients overflowed: the step is skipped. The gradient is dropped, the master stays as
    /// it was, and the parameter gets bytes in `tier` into which the caller copies the master.
    ///
    /// # Errors
    /// A tensor is unknown, or the master has no bytes.
    pub fn skip(&self, ledger: &mut Ledger, tier: Tier) -> Result<(), LedgerError> {
        ledger.transition(self.master, TensorState::Hold)?;
        ledger.transition(self.gradient, TensorState::Free)?;
        let payload = ledger.payload(self.parameter)?.filter(|payload| payload.bytes == self.bytes);
        ledger.reset(self.parameter, payload.unwrap_or(Payload { bytes: self.bytes, tier }))?;
        ledger.transition(self.parameter, TensorState::Hold)
    }
}
