//! How many bytes of stateful tensors lie in which tier and in which state. Invariant: the totals
//! are those of the tensors, at every instant; a tensor is free exactly if it has no payload.
//!
//! This is the bookkeeping of ColossalAI's `StatefulTensor`, in which the optimizer may compute on
//! the host: code that computes has to ensure itself that a tensor in COMPUTE is on the device.

use cranelift_entity::PrimaryMap;
use thiserror::Error;
use tightfit::units::Bytes;

use super::id::TensorId;
use super::state::{IllegalTransition, TensorState, transition};

/// A memory that tensors may lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// The memory of the device that computes.
    Device,
    /// The tier below.
    Host,
}

/// The bytes of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    /// How many there are; zero if another tensor has taken them over.
    pub bytes: Bytes,
    /// Where they lie.
    pub tier: Tier,
}

/// Why an operation on a tensor is refused.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum LedgerError {
    /// The ledger does not have the tensor.
    #[error("{tensor} is unknown: the ledger has {count} tensors")]
    Unknown {
        /// The tensor.
        tensor: TensorId,
        /// The number of tensors in the ledger.
        count: usize,
    },
    /// A tensor with bytes was to begin as free, or one without as anything else.
    #[error(
        "a new tensor cannot be {state} {}: it is FREE exactly where it has no bytes",
        if *.payload { "with bytes" } else { "without bytes" }
    )]
    Creation {
        /// What the tensor was to be.
        state: TensorState,
        /// Whether it was to have bytes.
        payload: bool,
    },
    /// The table of transitions does not have the change.
    #[error("{tensor}: {illegal}")]
    Illegal {
        /// The tensor.
        tensor: TensorId,
        /// The transition.
        illegal: IllegalTransition,
    },
    /// A tensor without bytes was to be moved or to be taken over.
    #[error("{tensor} is FREE and has no bytes to {purpose}: give it some first")]
    NoBytes {
        /// The tensor.
        tensor: TensorId,
        /// What its bytes were needed for.
        purpose: &'static str,
    },
    /// A tensor was to take over bytes while it has its own.
    #[error("{tensor} has {bytes} of its own: empty it before it takes over other bytes")]
    NotEmpty {
        /// The tensor.
        tensor: TensorId,
        /// Its bytes.
        bytes: Bytes,
    },
    /// More bytes than any machine has.
    #[error("{bytes} more would be beyond {} in all", Bytes::LIMIT)]
    TooLarge {
        /// The bytes that were to be added.
        bytes: Bytes,
    },
    /// The tensors were registered before.
    #[error("the tensors are registered already: register all of them at once")]
    RegisteredTwice,
}

#[derive(Clone, Copy)]
struct Entry {
    state: TensorState,
    payload: Option<Payload>,
}

/// All stateful tensors, with their totals.
#[derive(Clone, Default)]
pub struct Ledger {
    tensors: PrimaryMap<TensorId, Entry>,
    totals: [[Bytes; 5]; 2],
    registered: Option<Vec<TensorId>>,
}

impl Ledger {
    /// A new tensor.
    ///
    /// # Errors
    /// It is free and has bytes, or it is not free and has none; there are too many bytes.
    pub fn create(
        &mut self,
        payload: Option<Payload>,
        state: TensorState,
    ) -> Result<TensorId, LedgerError> {
        if payload.is_some() == (state == TensorState::Free) {
            return Err(LedgerError::Creation { state, payload: payload.is_some() });
        }
        self.admit(Bytes::ZERO, payload)?;
        let tensor = self.tensors.push(Entry { state: TensorState::Free, payload: None });
        self.put(tensor, Entry { state, payload });
        Ok(tensor)
    }

    /// Hands the tensors over to placement, in the order in which they are evicted in the warm-up.
    ///
    /// # Errors
    /// A tensor is unknown, or this was done before.
    pub fn register(&mut self, tensors: &[TensorId]) -> Result<(), LedgerError> {
        if self.registered.is_some() {
            return Err(LedgerError::RegisteredTwice);
        }
        for &tensor in tensors {
            self.entry(tensor)?;
        }
        self.registered = Some(tensors.to_vec());
        Ok(())
    }

    /// The tensors that were registered, in their order.
    pub fn registered(&self) -> &[TensorId] {
        self.registered.as_deref().unwrap_or_default()
    }

    /// Changes the state; becoming free gives up the bytes.
    ///
    /// # Errors
    /// The tensor is unknown, or the table does not have the transition.
    pub fn transition(&mut self, tensor: TensorId, to: TensorState) -> Result<(), LedgerError> {
        let Entry { state, payload } = self.entry(tensor)?;
        let state =
            transition(state, to).map_err(|illegal| LedgerError::Illegal { tensor, illegal })?;
        self.put(tensor, Entry { state, payload: payload.filter(|_| state != TensorState::Free) });
        Ok(())
    }

    /// Gives a tensor other bytes in place of its own; one that was free is now in HOLD.
    ///
    /// # Errors
    /// The tensor is unknown, or there are too many bytes.
    pub fn reset(&mut self, tensor: TensorId, payload: Payload) -> Result<(), LedgerError> {
        let old = self.entry(tensor)?;
        self.admit(old.payload.map_or(Bytes::ZERO, |payload| payload.bytes), Some(payload))?;
        let state = match old.state {
            TensorState::Free => TensorState::Hold,
            state => state,
        };
        self.put(tensor, Entry { state, payload: Some(payload) });
        Ok(())
    }

    /// Moves a tensor to a tier.
    ///
    /// # Errors
    /// The tensor is unknown or free.
    pub fn move_to(&mut self, tensor: TensorId, tier: Tier) -> Result<(), LedgerError> {
        let Entry { state, payload } = self.entry(tensor)?;
        let payload = payload.ok_or(LedgerError::NoBytes { tensor, purpose: "move" })?;
        self.put(tensor, Entry { state, payload: Some(Payload { tier, ..payload }) });
        Ok(())
    }

    /// Lets an emptied tensor take over the bytes of another one: the first is then in HOLD, the
    /// second free.
    ///
    /// # Errors
    /// A tensor is unknown, the giver is free, or the taker still has bytes.
    pub fn relay(&mut self, giver: TensorId, taker: TensorId) -> Result<(), LedgerError> {
        let payload = self.entry(giver)?.payload;
        let payload =
            payload.ok_or(LedgerError::NoBytes { tensor: giver, purpose: "hand over" })?;
        let own = self.entry(taker)?.payload.map_or(Bytes::ZERO, |payload| payload.bytes);
        if own > Bytes::ZERO || giver == taker {
            return Err(LedgerError::NotEmpty { tensor: taker, bytes: own });
        }
        self.put(giver, Entry { state: TensorState::Free, payload: None });
        self.put(taker, Entry { state: TensorState::Hold, payload: Some(payload) });
        Ok(())
    }

    /// The state of a tensor.
    ///
    /// # Errors
    /// The tensor is unknown.
    pub fn state(&self, tensor: TensorId) -> Result<TensorState, LedgerError> {
        Ok(self.entry(tensor)?.state)
    }

    /// The bytes of a tensor; none if it is free.
    ///
    /// # Errors
    /// The tensor is unknown.
    pub fn payload(&self, tensor: TensorId) -> Result<Option<Payload>, LedgerError> {
        Ok(self.entry(tensor)?.payload)
    }

    /// Number of tensors.
    pub fn count(&self) -> usize {
        self.tensors.len()
    }

    /// The bytes in a tier that are in a state.
    pub fn total(&self, tier: Tier, state: TensorState) -> Bytes {
        self.totals[tier as usize][state.index()]
    }

    /// The bytes in a tier.
    pub fn held(&self, tier: Tier) -> Bytes {
        self.totals[tier as usize].iter().copied().sum()
    }

    fn entry(&self, tensor: TensorId) -> Result<Entry, LedgerError> {
        let unknown = LedgerError::Unknown { tensor, count: self.tensors.len() };
        self.tensors.get(tensor).copied().ok_or(unknown)
    }

    /// Whether sums can hold the total of all bytes once `old` ones are replaced.
    fn admit(&self, old: Bytes, new: Option<Payload>) -> Result<(), LedgerError> {
        let bytes = new.map_or(Bytes::ZERO, |payload| payload.bytes);
        let others = (self.held(Tier::Host) + self.held(Tier::Device)).saturating_sub(old);
        if bytes > Bytes::LIMIT.saturating_sub(others) {
            return Err(LedgerError::TooLarge { bytes });
        }
        Ok(())
    }

    /// Replaces the entry of a tensor, and updates the totals.
    fn put(&mut self, tensor: TensorId, entry: Entry) {
        let old = std::mem::replace(&mut self.tensors[tensor], entry);
        if let Some(Payload { bytes, tier }) = old.payload {
            self.totals[tier as usize][old.state.index()] -= bytes;
        }
        if let Some(Payload { bytes, tier }) = entry.payload {
            self.totals[tier as usize][entry.state.index()] += bytes;
        }
    }
}
