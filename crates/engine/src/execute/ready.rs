//! What a run consists of before it has memory: its schedules, compiled, with the tier and the
//! lanes that they need. Invariant: both schedules have persistent tensors in the same places; and
//! the tier holds all of them, within the size that it may have.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use rayon::ThreadPool;
use tightfit::check::Checked;
use tightfit::id::DEVICE;
use tightfit::schedule::{Instruction, Schedule};
use tightfit::units::Bytes;

use crate::execute::error::{SessionError, StepError};
use crate::execute::lanes::{Lanes, Traffic};
use crate::execute::placement::{self, Placement, Shared, Turn};
use crate::execute::places::{Compiled, compile};
use crate::execute::region::Region;
use crate::execute::residents::{Resident, moved, residents};
use crate::memory::tier::{TierError, TierFile};
use crate::step::Step;

/// Where the tier of a run is created.
#[derive(Clone, Debug, PartialEq)]
pub struct TierFolder {
    /// The folder.
    pub folder: PathBuf,
    /// How the lanes to it are used.
    pub traffic: Traffic,
    /// The most bytes that the run may take in the folder.
    pub size: Option<Bytes>,
}

/// Both schedules of a step, compiled, with the lanes that they need.
pub(super) struct Ready {
    pub lanes: Option<Arc<Lanes>>,
    pub placement: Option<Shared>,
    pub training: Compiled,
    pub evaluation: Option<Compiled>,
    pub residents: BTreeMap<String, Resident>,
}

/// Compiles both schedules, and creates a tier if they move anything or if tensors are placed in a
/// region.
pub(super) fn ready(
    step: &Step,
    (training, evaluation): (&Checked, Option<&Checked>),
    (tier, region): (Option<&TierFolder>, Option<&Region>),
    pool: &Arc<ThreadPool>,
) -> Result<Ready, SessionError> {
    let mut compiled = compile(&step.training, training, region, (&step.part, pool))?;
    let stay = residents(&step.training, training.schedule(), region, step.part.share.as_ref());
    let mut evaluated = None;
    if let (Some(graph), Some(checked)) = (&step.evaluation, evaluation) {
        let there = residents(graph, checked.schedule(), region, step.part.share.as_ref());
        if let Some(name) = moved((&step.training, training.schedule()), &there) {
            return Err(SessionError::Moved { name });
        }
        evaluated = Some(compile(graph, checked, region, (&step.evaluation_part, pool))?);
    }
    let schedules = [Some(training), evaluation];
    let moved = lanes(schedules.into_iter().flatten().map(Checked::schedule), tier)?;
    let lanes = match region {
        None => moved,
        Some(_) if moved.is_some() => return Err(SessionError::MovesByItself),
        Some(region) => Some(lanes_to(region, tier.ok_or(SessionError::NoTier)?)?),
    };
    let lanes = lanes.map(Arc::new);
    let mut placement = None;
    if let (Some(lanes), Some(region)) = (&lanes, region) {
        let placed = Placement::new(region, lanes).map_err(|error| match error {
            StepError::Residency(error) => SessionError::Residency(error),
            _ => SessionError::Tier(TierError::Failed),
        })?;
        placement = Some(Arc::new(Mutex::new(placed)));
    }
    let both = [(Some(&mut compiled), Turn::Training), (evaluated.as_mut(), Turn::Evaluation)];
    for (compiled, turn) in both {
        let Some(Compiled { executable, .. }) = compiled else { continue };
        lanes.iter().for_each(|lanes| executable.attach(lanes));
        placement.iter().for_each(|placement| executable.place_by(placement, turn));
    }
    Ok(Ready { lanes, placement, training: compiled, evaluation: evaluated, residents: stay })
}

/// The lanes for the schedules' transfers; none if they have none.
fn lanes<'a>(
    schedules: impl Iterator<Item = &'a Schedule> + Clone,
    tier: Option<&TierFolder>,
) -> Result<Option<Lanes>, SessionError> {
    let buffers = || schedules.clone().flat_map(|schedule| schedule.buffers.values());
    let below = || buffers().filter(|buffer| buffer.tier != DEVICE);
    let Some(bytes) = below().map(|buffer| Bytes(buffer.address) + buffer.bytes).max() else {
        return Ok(None);
    };
    let TierFolder { folder, traffic, .. } = tier.ok_or(SessionError::NoTier)?;
    let mut file = TierFile::create(folder, bytes)?;
    for buffer in below() {
        file.declare(buffer.address, buffer.bytes.0);
    }
    let started = |schedule: &Schedule| {
        let is_start = |instruction: &&Instruction| matches!(instruction, Instruction::Start(_));
        schedule.instructions.iter().filter(is_start).count()
    };
    let transfers = schedules.map(started).max().unwrap_or(0);
    let lanes = Lanes::new(file, transfers, *traffic);
    lanes.map(Some).map_err(SessionError::Lanes)
}

/// The lanes to a tier that has all tensors of a region.
fn lanes_to(region: &Region, tier: &TierFolder) -> Result<Lanes, SessionError> {
    let bytes = region.whole()?;
    within(tier, bytes)?;
    let mut file = TierFile::create(&tier.folder, bytes)?;
    placement::declare(region, &mut file)?;
    Lanes::new(file, placement::UNDER_WAY, tier.traffic).map_err(SessionError::Lanes)
}

/// Refuses to take more bytes of a folder than allowed.
pub(super) fn within(tier: &TierFolder, needed: Bytes) -> Result<(), TierError> {
    let over = tier.size.filter(|&size| needed > size);
    over.map_or(Ok(()), |_| {
        let error = io::Error::other("more than its size");
        Err(TierError::Room { folder: tier.folder.clone(), needed, error })
    })
}
