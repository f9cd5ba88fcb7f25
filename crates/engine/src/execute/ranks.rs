//! A run on one rank of a pipeline. Invariant: whatever all ranks must agree on between two steps,
//! each of them is told before it goes on: whether any rank failed, and what the loss is; so all of
//! them end after the same step.

use std::fmt::Display;
use std::sync::Arc;

use tightfit::id::RankId;

use crate::execute::error::{OtherRank, SessionError, StepError};
use crate::execute::places::loss_of;
use crate::execute::session::Session;
use crate::transport::{Link, LinkError};

impl Session {
    /// Goes on as one rank of a pipeline, whose evaluation's messages the link numbers from
    /// `first_of_evaluation` on. All ranks have to step, evaluate, save and load together; if the
    /// evaluation of one does not fit, none evaluates.
    ///
    /// # Errors
    /// [`SessionError::Link`] if a rank has failed.
    pub fn connect(
        &mut self,
        link: Arc<dyn Link>,
        first_of_evaluation: u32,
    ) -> Result<(), SessionError> {
        self.training.executable.connect(Arc::clone(&link), 0);
        self.link = Some(Arc::clone(&link));
        if self.any(self.evaluation.is_none())? {
            self.evaluation = None;
        }
        if let Some(evaluation) = &mut self.evaluation {
            evaluation.executable.connect(link, first_of_evaluation);
        }
        Ok(())
    }

    /// Whether evaluations are computed, that is, whether they fit.
    pub fn evaluates(&self) -> bool {
        self.evaluation.is_some()
    }

    /// This rank; the first one if there are no others.
    pub fn rank(&self) -> RankId {
        self.link.as_ref().map_or(RankId::from_u32(0), |link| link.rank())
    }

    /// What each rank says, in the order of the ranks; all of them must call this.
    ///
    /// # Errors
    /// [`SessionError::Link`] if a rank has failed.
    pub fn gather(&self, said: &[u8]) -> Result<Vec<Vec<u8>>, SessionError> {
        match &self.link {
            None => Ok(vec![said.to_vec()]),
            Some(link) => Ok(link.gather(said)?),
        }
    }

    /// Whether this rank speaks for all: the first one does, and so does a single one.
    pub fn leads(&self) -> bool {
        self.link.as_ref().is_none_or(|link| link.rank() == RankId::from_u32(0))
    }

    /// Whether `flag` is set on any rank.
    ///
    /// # Errors
    /// [`SessionError::Link`] if a rank has failed.
    pub fn any(&self, flag: bool) -> Result<bool, SessionError> {
        let Some(link) = &self.link else { return Ok(flag) };
        Ok(link.gather(&[flag.into()])?.iter().any(|said| said == &[1]))
    }

    /// The largest of the numbers of all ranks.
    ///
    /// # Errors
    /// [`SessionError::Link`] if a rank has failed.
    pub fn largest(&self, number: f64) -> Result<f64, SessionError> {
        let Some(link) = &self.link else { return Ok(number) };
        let all = link.gather(&number.to_ne_bytes())?;
        Ok(all.iter().filter_map(|said| float(said)).fold(number, f64::max))
    }

    /// The result of this rank, unless another one could not go on.
    pub(super) fn agree<T>(&self, own: Result<T, SessionError>) -> Result<T, SessionError> {
        agree(self.link.as_deref(), own)
    }

    /// Whether no further step can follow; none can once ranks may differ in what they have done.
    pub(super) fn is_fatal(&self, error: &StepError) -> bool {
        error.is_fatal() || self.link.is_some()
    }

    /// The loss of the last step, which one rank has; or the mean if each has that of its own
    /// micro-batches.
    pub(super) fn loss(&self) -> Result<f32, SessionError> {
        let own = loss_of(&self.slab, &self.training);
        let Some(link) = &self.link else { return Ok(own.unwrap_or(f32::NAN)) };
        let said = link.gather(own.map(f32::to_ne_bytes).as_ref().map_or(&[], |bytes| bytes))?;
        let losses = said.iter().filter_map(|said| Some(f32::from_ne_bytes(*said.first_chunk()?)));
        let losses: Vec<f64> = losses.map(f64::from).collect();
        // The mean of nothing is NaN.
        Ok((losses.iter().sum::<f64>() / losses.len() as f64) as f32)
    }
}

/// The result of a rank, unless another one could not go on: then all of them return its error.
pub(super) fn agree<T, E: From<LinkError> + From<OtherRank> + Display>(
    link: Option<&dyn Link>,
    own: Result<T, E>,
) -> Result<T, E> {
    let Some(link) = link else { return own };
    let cause = own.as_ref().err().map(ToString::to_string).unwrap_or_default();
    // If the link has failed, every rank has been told why.
    if link.failure().is_some() && own.is_err() {
        return own;
    }
    let said = link.gather(cause.as_bytes());
    // A rank that knows of the failure may have closed its link before all ranks have read it.
    let value = own?;
    let said = said?;
    match said.iter().position(|said| !said.is_empty()) {
        None => Ok(value),
        Some(first) => {
            let rank = RankId::from_u32(first as u32);
            let cause = String::from_utf8_lossy(&said[first]).into_owned();
            Err(OtherRank { rank, cause }.into())
        }
    }
}

/// A number that a rank has sent.
fn float(said: &[u8]) -> Option<f64> {
    said.first_chunk().map(|bytes| f64::from_ne_bytes(*bytes))
}
