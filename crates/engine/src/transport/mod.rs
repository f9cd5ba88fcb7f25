//! Messages from one rank of a pipeline to another. Invariant: a message arrives in the memory that
//! the receiver's schedule has for it, whole, or not at all; and once one rank fails, every other
//! one that waits is told so, with the cause.
//!
//! A link carries tensors between slabs. The sender lends the bytes in place and asks later whether
//! they were taken; the receiver may say early where they are to be put, and waits for them. So no
//! memory is held besides the slabs, and what a message takes is in both schedules. Between two
//! steps ranks exchange small amounts of data: the loss, whether to go on, a piece of the weights
//! that are saved.

#[cfg(feature = "mpi")]
pub mod mpi;
mod thread;

use std::fmt;
use std::time::Duration;

use thiserror::Error;
use tightfit::exit::coded;
use tightfit::id::RankId;

pub use thread::{ThreadLink, thread_links};

/// Identifies a message of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Header {
    /// Number of the step.
    pub step: u32,
    /// Number of the message within the step, the same on both sides.
    pub message: u32,
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "message {} of step {}", self.message, self.step + 1)
    }
}

/// A message of every step, as all ranks know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The rank that sends it.
    pub from: RankId,
    /// The rank that receives it.
    pub to: RankId,
    /// The tensor, in words.
    pub what: String,
}

/// What a rank waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Awaited {
    /// A message from another rank.
    Message(Header, Route),
    /// The end of a message's transfer to its receiver.
    Taken(Header, Route),
    /// What all ranks say between two steps.
    Everybody,
    /// Bytes from a rank between two steps.
    From(RankId),
    /// The end of a transfer of bytes to a rank between two steps.
    To(RankId),
}

impl fmt::Display for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Awaited::Message(header, Route { from, what, .. }) => {
                write!(f, "{header}, {what}, from {from}")
            }
            Awaited::Taken(header, Route { to, what, .. }) => {
                write!(f, "{to} to take {header}, {what}")
            }
            Awaited::Everybody => f.write_str("what the other ranks have to say"),
            Awaited::From(rank) => write!(f, "bytes from {rank}"),
            Awaited::To(rank) => write!(f, "{rank} to take bytes"),
        }
    }
}

/// Bytes that a sender lends until they were taken.
#[derive(Clone, Copy, Debug)]
pub struct Lent {
    pub(crate) bytes: *const u8,
    pub(crate) length: usize,
}

impl Lent {
    /// Bytes that other code reads.
    ///
    /// # Safety
    /// They are neither moved nor changed until the transfer that they are lent for has ended.
    pub unsafe fn new(bytes: &[u8]) -> Lent {
        Lent { bytes: bytes.as_ptr(), length: bytes.len() }
    }
}

// SAFETY: the bytes are only read, and their lender changes nothing until they were taken.
unsafe impl Send for Lent {}

/// Bytes that belong to a link until what they are for was received.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "mpi"), expect(dead_code, reason = "threads copy when they wait"))]
pub struct Awaiting {
    pub(crate) bytes: *mut u8,
    pub(crate) length: usize,
}

impl Awaiting {
    /// Bytes that a link fills.
    ///
    /// # Safety
    /// No other code touches them until the transfer that they are for has ended, and they do not
    /// move.
    pub unsafe fn new(bytes: &mut [u8]) -> Awaiting {
        Awaiting { bytes: bytes.as_mut_ptr(), length: bytes.len() }
    }
}

// SAFETY: only the link touches the bytes until it has answered that they are there.
unsafe impl Send for Awaiting {}

/// Why nothing arrives.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkError {
    /// Nothing came for too long.
    #[error(
        "{rank} waited {} s for {awaited}: nothing came; where the others are only slow, pass a \
         longer --peer-deadline",
        waited.as_secs()
    )]
    Deadline {
        /// The rank that waited.
        rank: RankId,
        /// What it waited for.
        awaited: Awaited,
        /// How long it waited.
        waited: Duration,
    },
    /// Another rank failed first.
    #[error("{rank} failed: {cause}")]
    Aborted {
        /// The rank that failed first.
        rank: RankId,
        /// Why it did.
        cause: String,
    },
    /// The ranks do not exchange this many messages.
    #[error("{header} is none of the {messages} of a step: the ranks run different plans")]
    Unknown {
        /// The message.
        header: Header,
        /// The messages of a step.
        messages: usize,
    },
    /// There are more messages than can be told apart.
    #[error("a step has {messages} messages, and this MPI numbers them up to {most}")]
    Numbers {
        /// The messages of a step.
        messages: usize,
        /// The largest number.
        most: u32,
    },
    /// A call of MPI failed.
    #[error("MPI says: {says}")]
    Mpi {
        /// MPI's message.
        says: String,
    },
    /// A message has another size than expected: the ranks run different plans.
    #[error(
        "{awaited}: {found} bytes came, {expected} are expected: the ranks run different plans"
    )]
    Size {
        /// The message.
        awaited: Awaited,
        /// The bytes that came.
        found: usize,
        /// The bytes that were waited for.
        expected: usize,
    },
}

coded!(OtherRank: LinkError);

/// One rank's end of the link to all others.
pub trait Link: fmt::Debug + Send + Sync {
    /// This rank.
    fn rank(&self) -> RankId;

    /// The number of ranks.
    fn ranks(&self) -> u32;

    /// Lends bytes to the receiver of the message. They must not be changed until [`Link::sent`]
    /// has returned.
    fn send(&self, header: Header, bytes: Lent) -> Result<(), LinkError>;

    /// Says where a message that is waited for later is to be put: until [`Link::receive`] has
    /// returned, with the same bytes, no other code may touch them.
    fn post(&self, header: Header, into: Awaiting) -> Result<(), LinkError>;

    /// Waits for a message, and puts it into `into`.
    fn receive(&self, header: Header, into: &mut [u8]) -> Result<(), LinkError>;

    /// Waits until what was sent was taken.
    fn sent(&self, header: Header) -> Result<(), LinkError>;

    /// What each rank says, in the order of the ranks; all of them must call this.
    fn gather(&self, said: &[u8]) -> Result<Vec<Vec<u8>>, LinkError>;

    /// Waits until a rank has [taken](Link::take) these bytes.
    fn give(&self, to: RankId, bytes: &[u8]) -> Result<(), LinkError>;

    /// Waits for bytes that a rank [gives](Link::give) to this one.
    fn take(&self, from: RankId, into: &mut [u8]) -> Result<(), LinkError>;

    /// Tells all other ranks that this one has failed; the first cause counts. When it returns, no
    /// one reads what this rank has lent.
    fn abort(&self, cause: &str);

    /// Why the link no longer works, if it does not.
    fn failure(&self) -> Option<LinkError>;
}

/// A step in progress: if it is left before its end, for any reason, this rank aborts, so that no
/// one reads what it has lent once its slab is gone.
pub(crate) struct StepUnderWay<'a>(pub Option<&'a dyn Link>);

impl StepUnderWay<'_> {
    /// The step has reached its end, at which nothing is lent any more.
    pub fn end(mut self) {
        self.0 = None;
    }
}

impl Drop for StepUnderWay<'_> {
    fn drop(&mut self) {
        if let Some(link) = self.0 {
            link.abort("it left a step before its end");
        }
    }
}
