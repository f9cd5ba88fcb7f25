//! A training run: one slab, a tier below it if the schedule moves anything, the compiled step, the
//! compiled evaluation. Invariant: between two steps parameters and state lie where they always do,
//! or where the residency manager has put them; evaluation runs in the memory that training
//! leaves free.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use rayon::ThreadPoolBuilder;
use tightfit::check::Checked;
use tightfit::id::MicroBatchId;
use tightfit::tensor::DType;
use tightfit::units::Bytes;

use crate::execute::error::{SessionError, StepError, of_tier};
use crate::execute::executable::{Executable, Executed, StepSettings};
use crate::execute::lanes::Lanes;
use crate::execute::placement::{Iterations, Shared, lock};
use crate::execute::places::{Compiled, halves};
use crate::execute::ready::{TierFolder, ready};
use crate::execute::region::Region;
use crate::execute::residents::{Place, Reach, Resident, Staging, within};
use crate::execute::settle::{gather, settle};
use crate::kernels::take_panel;
use crate::memory::slab::Slab;
use crate::memory::tier::TierError;
use crate::step::Step;
use crate::step::data::{Dataset, MicroBatch};
use crate::step::initialise::{self, Unfilled, Unset};
use crate::transport::Link;

/// A running training.
pub struct Session {
    // All holders of the lanes come before the slab, in which the lanes read and write: fields are
    // dropped in their order, and the last holder ends the lanes' threads.
    pub(super) lanes: Option<Arc<Lanes>>,
    pub(super) placement: Option<Shared>,
    pub(super) training: Compiled,
    pub(super) evaluation: Option<Compiled>,
    pub(super) slab: Slab,
    pub(super) staging: Staging,
    pub(super) residents: BTreeMap<String, Resident>,
    /// Whether what is in flight between two steps was started.
    has_begun: bool,
    /// The link to the other ranks of a pipeline.
    pub(super) link: Option<Arc<dyn Link>>,
    /// Whether a step failed, so that no other may follow.
    pub(super) has_failed: bool,
    /// Seed of the run.
    pub seed: u64,
    /// Number of the next step.
    pub next_step: u32,
    /// Learning rate.
    pub learning_rate: f64,
}

/// What a run is started with.
#[derive(Clone, Copy)]
pub struct SessionBuilder<'a> {
    step: &'a Step,
    training: &'a Checked,
    evaluation: Option<&'a Checked>,
    slab: Bytes,
    tier: Option<&'a TierFolder>,
    region: Option<&'a Region>,
    threads: usize,
    seed: u64,
}

impl<'a> SessionBuilder<'a> {
    /// The schedule of the evaluation, if there is one.
    pub fn evaluation(self, evaluation: Option<&'a Checked>) -> Self {
        SessionBuilder { evaluation, ..self }
    }

    /// The bytes of the slab.
    pub fn slab(self, slab: Bytes) -> Self {
        SessionBuilder { slab, ..self }
    }

    /// A tier below the slab, which is created if the schedules move anything.
    pub fn tier(self, tier: Option<&'a TierFolder>) -> Self {
        SessionBuilder { tier, ..self }
    }

    /// Persistent tensors lie in this region of the slab, into which a residency manager brings
    /// them from the tier when a call computes with them. The schedules are those of a slab that
    /// has space for all of them, and move nothing.
    pub fn region(self, region: Option<&'a Region>) -> Self {
        SessionBuilder { region, ..self }
    }

    /// The number of threads that compute.
    pub fn threads(self, threads: usize) -> Self {
        SessionBuilder { threads, ..self }
    }

    /// The seed of the run.
    pub fn seed(self, seed: u64) -> Self {
        SessionBuilder { seed, ..self }
    }

    /// Compiles both schedules, allocates the slab and fills the parameters; state begins at zero.
    ///
    /// # Errors
    /// [`SessionError`] if what is needed is not there: memory, a tier, initial values, or kernels
    /// for what the schedules run.
    pub fn start(self) -> Result<Session, SessionError> {
        Session::start(&self)
    }
}

impl Session {
    /// A run of a step with the schedule of its training: with a slab as large as that needs, on
    /// one thread, without evaluation and tier, with seed 0, unless told otherwise.
    pub fn builder<'a>(step: &'a Step, training: &'a Checked) -> SessionBuilder<'a> {
        SessionBuilder {
            step,
            training,
            evaluation: None,
            slab: training.schedule().slab,
            tier: None,
            region: None,
            threads: 1,
            seed: 0,
        }
    }

    fn start(built: &SessionBuilder<'_>) -> Result<Session, SessionError> {
        let &SessionBuilder { step, training, evaluation, slab, tier, region, threads, seed } =
            built;
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads)
            .stack_size(1 << 20)
            .thread_name(|i| format!("tightfit-{i}"))
            .build()?;
        let pool = Arc::new(pool);
        pool.broadcast(|_| take_panel());
        let ready = ready(step, (training, evaluation), (tier, region), &pool)?;
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
            link: None,
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
            let is_float = resident.dtype == DType::F32;
            let (kept, whole) = (resident.kept.clone(), resident.whole);
            let mut unfilled = None;
            let seed = self.seed;
            let filled = self.fill(&name, &mut |from, out| {
                // State begins at zero, and so does the slab.
                let Some((index, (_, recipe))) = recipe else {
                    out.fill(0);
                    return Ok(());
                };
                let what = Unset { name: &name, index: index as u32, whole, is_float };
                let (is_first, part) = (from == 0, within(&kept, (from, out)));
                initialise::fill(recipe, &what, seed, &step.folder, part, is_first).map_err(
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
        let drawn = self.draw(data);
        self.agree(drawn)?;
        let settings = StepSettings {
            seed: self.seed,
            step: self.next_step,
            learning_rate: self.learning_rate,
        };
        for output in &mut self.training.outputs {
            output.settled = false;
        }
        let ran = run(&self.training.executable, &mut self.slab, &settings);
        self.has_failed = ran.as_ref().is_err_and(|error| self.is_fatal(error));
        let agreed = self.agree(ran.map_err(failed));
        // Ranks that have not done the same steps have no common state to go on from.
        self.has_failed |= agreed.is_err() && self.link.is_some();
        agreed?;
        self.next_step = number;
        self.loss()
    }

    /// Draws the batch of the next step, as far as the graph reads it.
    fn draw(&mut self, data: &mut Dataset) -> Result<(), SessionError> {
        let part = &self.training.part;
        let of = part.all_micro_batches();
        let numbers = (0..).map(MicroBatchId::from_u32).map(|number| part.number_of(number));
        for (number, &batch) in numbers.zip(&self.training.batches) {
            let halves = &mut halves(&mut self.slab, batch);
            let part = MicroBatch { index: number.as_u32(), of };
            data.training_batch(self.seed, self.next_step, part, halves)?;
        }
        Ok(())
    }

    /// Starts what is in flight when a step begins, unless an earlier step has.
    fn begin(&mut self) -> Result<(), StepError> {
        if !self.has_begun {
            self.training.executable.begin(&self.slab)?;
            self.has_begun = true;
        }
        Ok(())
    }

    /// Brings everything to its place between two steps, with nothing in flight.
    pub(super) fn settle(&mut self) -> Result<(), StepError> {
        self.begin()?;
        self.rest()
    }

    /// Waits for what is in flight.
    pub(super) fn rest(&self) -> Result<(), StepError> {
        Ok(self.lanes.as_ref().map_or(Ok(()), |lanes| lanes.settle())?)
    }

    /// Ends the run: gives the slab's memory back, and with it every weight.
    pub fn release(&mut self) {
        // No one needs what the lanes still move.
        let _ = self.rest();
        self.slab.clear();
    }

    /// Everything that stays from step to step, by name.
    pub fn residents(&self) -> &BTreeMap<String, Resident> {
        &self.residents
    }

    /// Passes on the bytes of a persistent tensor, in order and in parts, wherever it lies.
    ///
    /// # Errors
    /// What `sink` returns, or an error of the tier.
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

    /// The same, but of a shard without the bytes past the end of the whole tensor.
    pub(super) fn stream_kept(
        &self,
        resident: &Resident,
        sink: &mut dyn FnMut(&[u8]) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        let mut left = (resident.kept.end - resident.kept.start) as usize;
        self.stream(resident, &mut |part| {
            let kept = &part[..part.len().min(left)];
            left -= kept.len();
            sink(kept)
        })
    }

    /// What iterations of the training and of the evaluation have moved since the last call, if
    /// tensors are placed at run time.
    pub fn take_figures(&mut self) -> Option<[Iterations; 2]> {
        self.placement.as_ref().map(|placement| lock(placement).take_figures())
    }

    /// The bytes of a persistent tensor.
    ///
    /// # Errors
    /// An error of the tier.
    pub fn resident_bytes(&self, resident: &Resident) -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(resident.bytes as usize);
        self.stream(resident, &mut |part| {
            bytes.extend_from_slice(part);
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Fills a persistent tensor in all its places, part by part: `source` is given the first byte
    /// of each part.
    pub(super) fn fill(
        &mut self,
        name: &str,
        source: &mut dyn FnMut(u64, &mut [u8]) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        let Some(resident) = self.residents.get(name) else { return Ok(()) };
        // Transfers in flight would carry the old bytes.
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

    /// What is in flight when a step begins has to be started again.
    pub(super) fn begin_anew(&mut self) {
        self.has_begun = false;
    }

    fn reach(&self) -> Reach<'_> {
        let tier = self.lanes.as_ref().map(|lanes| &**lanes.file());
        Reach { tier, staging: &self.staging }
    }

    /// Elements of the targets of all micro-batches of an update: tokens, or rows.
    pub fn units_per_step(&self) -> u64 {
        let part = &self.training.part;
        u64::from(part.all_micro_batches()) * part.targets
    }

    /// Size of the slab.
    pub fn slab_bytes(&self) -> Bytes {
        self.slab.bytes()
    }

    /// A training graph's output after a step, contiguous: borrowed from the slab if
    /// [`Session::settle_outputs`] could bring it into that order, else a copy.
    pub fn training_output(&self, index: usize) -> Option<Cow<'_, [u8]>> {
        let located = self.training.outputs.get(index)?;
        Some(match located.is_contiguous() {
            true => Cow::Borrowed(self.slab.read(located.address, located.bytes())),
            false => Cow::Owned(gather(&self.slab, located)),
        })
    }

    /// Brings the elements of the training graph's outputs from the number `first` on into the
    /// order of their indices, each where it lies, so that they can be read without a copy. This
    /// does not affect the next step.
    pub fn settle_outputs(&mut self, first: usize) {
        settle(&mut self.slab, &mut self.training.outputs, first);
    }
}
