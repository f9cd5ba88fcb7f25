//! A training run: one slab, a tier below it where the schedule moves anything, the compiled step,
//! the compiled evaluation. Invariant: between two steps parameters and state lie where they always
//! do, or where the manager of residency has put them; evaluation runs in what training leaves free.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use rayon::{ThreadPool, ThreadPoolBuilder};
use thiserror::Error;
use tightfit::check::Checked;
use tightfit::id::DEVICE;
use tightfit::schedule::{Instruction, Schedule};
use tightfit::tensor::DType;
use tightfit::units::Bytes;

use crate::execute::error::{CompileError, StepError};
use crate::execute::executable::{Executable, Executed, StepSettings};
use crate::execute::lanes::{Lanes, Traffic};
use crate::execute::placement::{self, Iterations, Placement, Shared, Turn, lock};
use crate::execute::places::{Compiled, compile, loss_of, pair};
use crate::execute::region::Region;
use crate::execute::residents::{Place, Reach, Resident, Staging, moved, residents};
use crate::execute::set_aside::within;
use crate::execute::settle::{gather, settle};
use crate::kernels::take_panel;
use crate::memory::slab::{Slab, SlabError};
use crate::memory::tier::{TierError, TierFile};
use crate::residency::ResidencyError;
use crate::step::Step;
use crate::step::data::{DataError, Dataset};
use crate::step::initialise::{self, Unfilled};

/// Why a run cannot start or go on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SessionError {
    /// A schedule cannot be executed here.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The system refused the slab's memory.
    #[error(transparent)]
    Slab(#[from] SlabError),
    /// The tier cannot be made, or failed.
    #[error(transparent)]
    Tier(#[from] TierError),
    /// The schedule moves tensors to a tier, and none was named.
    #[error("the schedule moves tensors to a tier below the slab: name a folder for it")]
    NoTier,
    /// Tensors cannot be placed in such a region.
    #[error(transparent)]
    Residency(#[from] ResidencyError),
    /// There is no plan of moves that another one could replace.
    #[error("tensors are placed while the run goes on: there is no plan of their moves to replace")]
    Placed,
    /// The schedule moves tensors that are to be placed while the run goes on.
    #[error("the schedule moves tensors by itself: plan it without a tier")]
    MovesByItself,
    /// The system refused the threads of the lanes.
    #[error("the lanes' threads could not be started: {0}")]
    Lanes(std::io::Error),
    /// The system refused the worker threads.
    #[error("the worker threads could not be started: {0}")]
    Threads(#[from] rayon::ThreadPoolBuildError),
    /// A parameter's first values are not of its type, or their file is damaged.
    #[error("a parameter could not be initialised: {0}")]
    Initialise(String),
    /// The file of a parameter's first values cannot be read.
    #[error("a parameter could not be initialised: {}: {error}", path.display())]
    InitialValues {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// The evaluation's schedule was made for another layout than the training's.
    #[error(
        "`{name}` lies elsewhere in the evaluation's schedule than in the training's; plan the \
         evaluation with the residents of the training"
    )]
    Moved {
        /// The parameter, buffer or state.
        name: String,
    },
    /// A batch could not be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// No number is left for another step.
    #[error("the run has done {} steps, and there are no numbers for more", u32::MAX)]
    NoMoreSteps,
    /// A step failed.
    #[error("step {step}: {error}")]
    Step {
        /// Number of the step, from 1.
        step: u32,
        /// Why it failed.
        error: StepError,
    },
}

/// Where the tier of a run is made.
#[derive(Clone, Debug, PartialEq)]
pub struct TierFolder {
    /// The folder.
    pub folder: PathBuf,
    /// How the lanes to it are used.
    pub traffic: Traffic,
    /// The most bytes that the run may take in the folder.
    pub size: Option<Bytes>,
}

/// A running training.
pub struct Session {
    // All who hold the lanes come before the slab, in which these read and write: fields are
    // dropped in their order, and with the last holder the lanes' threads end.
    pub(super) lanes: Option<Arc<Lanes>>,
    pub(super) placement: Option<Shared>,
    pub(super) training: Compiled,
    pub(super) evaluation: Option<Compiled>,
    pub(super) slab: Slab,
    pub(super) staging: Staging,
    pub(super) residents: BTreeMap<String, Resident>,
    /// What is under way between two steps was started.
    has_begun: bool,
    /// A step failed, so no other may follow.
    pub(super) has_failed: bool,
    /// Seed of the run.
    pub seed: u64,
    /// Number of the next step.
    pub next_step: u32,
    /// Learning rate.
    pub learning_rate: f64,
}

impl Session {
    /// Compiles both schedules, allocates the slab and fills the parameters; state begins at zero.
    pub fn new(
        step: &Step,
        training: &Checked,
        evaluation: Option<&Checked>,
        slab: Bytes,
        threads: usize,
        seed: u64,
    ) -> Result<Session, SessionError> {
        Session::with_tier(step, (training, evaluation), slab, None, threads, seed)
    }

    /// The same with a tier below the slab, which is made where the schedules move anything.
    pub fn with_tier(
        step: &Step,
        (training, evaluation): (&Checked, Option<&Checked>),
        slab: Bytes,
        tier: Option<&TierFolder>,
        threads: usize,
        seed: u64,
    ) -> Result<Session, SessionError> {
        Session::start(step, (training, evaluation), slab, (tier, None), threads, seed)
    }

    /// The same where persistent tensors lie in a region of the slab, into which a manager of
    /// residency brings them from the tier when a call computes with them. The schedules are those
    /// of a slab that has room for all of them, and move nothing.
    pub fn with_region(
        step: &Step,
        (training, evaluation): (&Checked, Option<&Checked>),
        slab: Bytes,
        (tier, region): (&TierFolder, &Region),
        threads: usize,
        seed: u64,
    ) -> Result<Session, SessionError> {
        let placed = (Some(tier), Some(region));
        Session::start(step, (training, evaluation), slab, placed, threads, seed)
    }

    fn start(
        step: &Step,
        schedules: (&Checked, Option<&Checked>),
        slab: Bytes,
        placed: (Option<&TierFolder>, Option<&Region>),
        threads: usize,
        seed: u64,
    ) -> Result<Session, SessionError> {
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads)
            .stack_size(1 << 20)
            .thread_name(|i| format!("tightfit-{i}"))
            .build()?;
        let pool = Arc::new(pool);
        pool.broadcast(|_| take_panel());
        let ready = ready(step, schedules, placed, &pool)?;
        let staging = Staging::new(ready.lanes.is_some())?;
        if let Some(placement) = &ready.placement {
            lock(placement).clear(&staging).map_err(of_tier)?;
        }
        let mut session = Session {
            slab: Slab::new(slab)?,
            staging,
            lanes: ready.lanes,
            placement: ready.placement,
            training: ready.training,
            evaluation: ready.evaluation,
            residents: ready.residents,
            has_begun: false,
            has_failed: false,
            seed,
            next_step: 0,
            learning_rate: step.optimizer.learning_rate,
        };
        session.initialise(step)?;
        Ok(session)
    }

    fn initialise(&mut self, step: &Step) -> Result<(), SessionError> {
        let names: Vec<String> = self.residents.keys().cloned().collect();
        for name in names {
            let recipe = step.parameters.iter().enumerate().find(|(_, (other, _))| **other == name);
            let resident = &self.residents[&name];
            let (is_float, whole) = (resident.dtype == DType::F32, resident.bytes);
            let mut unfilled = None;
            let seed = self.seed;
            let filled = self.fill(&name, &mut |from, out| {
                // State begins at zero, and so does what is in the slab.
                let Some((index, (_, recipe))) = recipe else {
                    out.fill(0);
                    return Ok(());
                };
                let what = (name.as_str(), index as u32, whole);
                initialise::fill(recipe, what, seed, &step.folder, (from, out), is_float).map_err(
                    |refused| {
                        unfilled = Some(refused);
                        std::io::Error::other("unfilled")
                    },
                )
            });
            match (filled, unfilled) {
                (Ok(()), _) => {}
                (Err(_), Some(Unfilled::Read { path, error })) => {
                    return Err(SessionError::InitialValues { path, error });
                }
                (Err(_), Some(Unfilled::Wrong(what))) => {
                    return Err(SessionError::Initialise(what));
                }
                (Err(error), None) => {
                    return Err(match error.downcast::<TierError>() {
                        Ok(error) => SessionError::Tier(error),
                        Err(error) => SessionError::Initialise(error.to_string()),
                    });
                }
            }
        }
        Ok(())
    }

    /// Draws a batch, executes one step and returns the loss before the update.
    pub fn step(&mut self, data: &mut Dataset) -> Result<f32, SessionError> {
        self.advance(data, |executable, slab, settings| executable.run(slab, settings))
    }

    /// Like [`Session::step`], with the seconds of every call and of every transfer.
    pub fn step_timed(
        &mut self,
        data: &mut Dataset,
        report: &mut (dyn FnMut(Executed) + Send),
    ) -> Result<f32, SessionError> {
        self.advance(data, |executable, slab, settings| {
            executable.run_timed(slab, settings, report)
        })
    }

    /// Draws a batch, has `run` execute the step and goes on to the next one.
    fn advance(
        &mut self,
        data: &mut Dataset,
        run: impl FnOnce(&Executable, &mut Slab, &StepSettings) -> Result<(), StepError>,
    ) -> Result<f32, SessionError> {
        let number = self.next_step.checked_add(1).ok_or(SessionError::NoMoreSteps)?;
        let failed = |error| SessionError::Step { step: number, error };
        if self.has_failed {
            return Err(failed(StepError::Tier(TierError::Failed)));
        }
        self.begin().map_err(failed)?;
        let (input, target) = pair(&mut self.slab, self.training.input, self.training.target);
        data.training_batch(self.seed, self.next_step, input, target)?;
        let settings = StepSettings {
            seed: self.seed,
            step: self.next_step,
            learning_rate: self.learning_rate,
        };
        for output in &mut self.training.outputs {
            output.settled = false;
        }
        let ran = run(&self.training.executable, &mut self.slab, &settings);
        self.has_failed = matches!(
            ran,
            Err(StepError::Tier(_) | StepError::Residency(_) | StepError::Absent { .. })
        );
        ran.map_err(failed)?;
        self.next_step = number;
        Ok(loss_of(&self.slab, &self.training))
    }

    /// Starts what is under way when a step begins, unless a step has.
    fn begin(&mut self) -> Result<(), StepError> {
        if !self.has_begun {
            self.training.executable.begin(&self.slab)?;
            self.has_begun = true;
        }
        Ok(())
    }

    /// Has everything be where it is between two steps, with nothing under way.
    pub(super) fn settle(&mut self) -> Result<(), StepError> {
        self.begin()?;
        self.rest()
    }

    /// Waits for what is under way.
    pub(super) fn rest(&self) -> Result<(), StepError> {
        Ok(self.lanes.as_ref().map_or(Ok(()), |lanes| lanes.settle())?)
    }

    /// Ends the run: gives the slab's memory back, and with it every weight.
    pub fn release(&mut self) {
        // What the lanes still move nobody will ask for.
        let _ = self.rest();
        self.slab.clear();
    }

    /// Everything that stays from step to step, by name.
    pub fn residents(&self) -> &BTreeMap<String, Resident> {
        &self.residents
    }

    /// Hands the bytes of a tensor that stays on, in order and in parts, wherever it lies.
    ///
    /// # Errors
    /// What `sink` answers, or what the tier says.
    pub fn stream(
        &self,
        resident: &Resident,
        sink: &mut dyn FnMut(&[u8]) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        let Some(&place) = resident.places.first() else { return Ok(()) };
        let place = match (place, &self.placement) {
            (Place::Placed(tensor), Some(placement)) => lock(placement).place(tensor)?,
            (place, _) => place,
        };
        match place {
            Place::Slab(address) => sink(self.slab.read(address, resident.bytes)),
            Place::Tier(below) => self.reach().stream(below, resident.bytes, sink),
            Place::Placed(_) => Err(std::io::Error::other(TierError::Failed)),
        }
    }

    /// What iterations of the training and of the evaluation have moved since this was asked last,
    /// where tensors are placed while the run goes on.
    pub fn take_figures(&mut self) -> Option<[Iterations; 2]> {
        self.placement.as_ref().map(|placement| lock(placement).take_figures())
    }

    /// The bytes of a tensor that stays.
    ///
    /// # Errors
    /// What the tier says.
    pub fn resident_bytes(&self, resident: &Resident) -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(resident.bytes as usize);
        self.stream(resident, &mut |part| {
            bytes.extend_from_slice(part);
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Has a tensor that stays filled in all its places, part by part: `source` is given the first
    /// byte of each part.
    pub(super) fn fill(
        &mut self,
        name: &str,
        source: &mut dyn FnMut(u64, &mut [u8]) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        let Some(resident) = self.residents.get(name) else { return Ok(()) };
        // What is under way would carry what was there before.
        let lanes = self.lanes.as_ref();
        lanes.map_or(Ok(()), |lanes| lanes.settle()).map_err(std::io::Error::other)?;
        self.has_begun = false;
        if let Some(placement) = &self.placement {
            lock(placement).flush(&self.slab)?;
        }
        for &place in &resident.places {
            let place = match (place, &self.placement) {
                (Place::Placed(tensor), Some(placement)) => lock(placement).place(tensor)?,
                (place, _) => place,
            };
            match place {
                Place::Slab(address) => source(0, self.slab.write(address, resident.bytes))?,
                Place::Tier(below) => self.reach().fill(below, resident.bytes, source)?,
                Place::Placed(_) => return Err(std::io::Error::other(TierError::Failed)),
            }
        }
        Ok(())
    }

    /// Whether the tier failed, so that no further step can follow.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// What is under way when a step begins has to be started anew.
    pub(super) fn begin_anew(&mut self) {
        self.has_begun = false;
    }

    fn reach(&self) -> Reach<'_> {
        let tier = self.lanes.as_ref().map(|lanes| &**lanes.file());
        Reach { tier, staging: &self.staging }
    }

    /// Elements of a batch's targets: tokens, or rows.
    pub fn units_per_batch(&self) -> u64 {
        self.training.target.bytes / 8
    }

    /// Size of the slab.
    pub fn slab_bytes(&self) -> Bytes {
        self.slab.bytes()
    }

    /// A training graph's output after a step, contiguous: as it lies in the slab where
    /// [`Session::settle_outputs`] could bring it into that order, else a copy.
    pub fn training_output(&self, index: usize) -> Option<Cow<'_, [u8]>> {
        let located = self.training.outputs.get(index)?;
        Some(match located.is_contiguous() {
            true => Cow::Borrowed(self.slab.read(located.address, located.bytes())),
            false => Cow::Owned(gather(&self.slab, located)),
        })
    }

    /// Brings the elements of the training graph's outputs from the number `first` on into the
    /// order of their indices, each where it lies, so that they can be read without a copy. The
    /// next step finds nothing of it.
    pub fn settle_outputs(&mut self, first: usize) {
        settle(&mut self.slab, &mut self.training.outputs, first);
    }
}

/// Both schedules of a step, compiled, with the lanes that they need.
pub(super) struct Ready {
    pub lanes: Option<Arc<Lanes>>,
    pub placement: Option<Shared>,
    pub training: Compiled,
    pub evaluation: Option<Compiled>,
    pub residents: BTreeMap<String, Resident>,
}

/// Compiles both schedules, and makes a tier where they move anything or where tensors are placed
/// in a region.
pub(super) fn ready(
    step: &Step,
    (training, evaluation): (&Checked, Option<&Checked>),
    (tier, region): (Option<&TierFolder>, Option<&Region>),
    pool: &Arc<ThreadPool>,
) -> Result<Ready, SessionError> {
    let mut compiled = compile(&step.training, training, region, pool)?;
    let stay = residents(&step.training, training.schedule(), region);
    let mut evaluated = None;
    if let (Some(graph), Some(checked)) = (&step.evaluation, evaluation) {
        let there = residents(graph, checked.schedule(), region);
        if let Some(name) = moved((&step.training, training.schedule()), &there) {
            return Err(SessionError::Moved { name });
        }
        evaluated = Some(compile(graph, checked, region, pool)?);
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

/// The lanes for what schedules move; none where they move nothing.
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

/// What the tier said, which went through a stream of bytes.
pub(super) fn of_tier(error: std::io::Error) -> SessionError {
    SessionError::Tier(error.downcast().unwrap_or(TierError::Failed))
}
