//! The interpreter: a checked schedule, compiled, executed step after step. Invariant: only a
//! schedule that passed the checker for this very graph and profile is compiled, executing it
//! allocates nothing but kernels for tensors that changed places, and it runs on the threads that
//! it was compiled for and on no others, except transfers, which run on the lanes attached to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rayon::ThreadPool;
use tightfit::check::{Checked, Conditions, Violation};
use tightfit::graph::Graph;
use tightfit::id::{DEVICE, EntityRef, LaneId, MicroBatchId, SecondaryMap, TransferId};
use tightfit::machine::{Reuse, Runtime};
use tightfit::schedule::{Instruction, Movement, Schedule, Transfer};
use tightfit::timeline::{CallInTime, TransferInTime};
use tightfit::units::{Bytes, Seconds};

use crate::execute::admission::admit;
use crate::execute::binding::{compile, ends, transfers_suit};
use crate::execute::error::{CompileError, StepError};
use crate::execute::lanes::{Job, Lanes, Moved, Way};
use crate::execute::placed_call::PlacedCall;
use crate::execute::placement::{Shared, Turn, lock};
use crate::execute::region::Region;
use crate::kernels::{self, FaultFlag, Kernel, Run};
use crate::memory::slab::Slab;
use crate::memory::tier::Checksums;
use crate::transport::{Link, StepUnderWay};

/// What differs from step to step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepSettings {
    /// Seed of the run: all random draws depend on it.
    pub seed: u64,
    /// Number of the step, from 0.
    pub step: u32,
    /// Learning rate.
    pub learning_rate: f64,
}

struct Compiled {
    /// The call, as it was predicted.
    predicted: CallInTime,
    micro_batch: MicroBatchId,
    kernel: Kernel,
}

/// A measurement taken while a step ran, with times from its start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Executed {
    /// A call.
    Call(CallInTime),
    /// A transfer, reported when waited for; one that crosses the border of the step began before
    /// it.
    Transfer(TransferInTime),
    /// The time for which a call waited for tensors that are placed at run time.
    Layout(Seconds),
    /// The time that the end of a collective took.
    End(Seconds),
}

/// One instruction that does something.
enum Op {
    Call(Compiled),
    Placed(CallInTime, MicroBatchId, Box<PlacedCall>),
    /// The second half of a collective.
    End(Kernel),
    Start(Start),
    Wait(Way, LaneId, TransferId),
}

/// An instruction that takes time, while it is executed.
enum Doing<'a> {
    Call(&'a CallInTime, &'a Kernel, &'a Run<'a>),
    Layout(&'a PlacedCall, &'a Shared),
    End(&'a Kernel, &'a Run<'a>),
    Wait { way: Way, lane: LaneId, id: TransferId },
}

/// A transfer to be started.
struct Start {
    id: TransferId,
    way: Way,
    lane: LaneId,
    /// First byte of the buffer in the slab, and its size.
    slab: (u64, u64),
    /// First byte of the buffer in the tier.
    below: u64,
    checksums: Option<Checksums>,
}

/// Refuses a schedule that was checked for other kernels, or for another number of threads.
fn suits_engine(checked: Conditions, threads: usize) -> Result<(), CompileError> {
    let is_suited = checked.runtime == Runtime::Engine
        && checked.reuse != Reuse::OfGraph
        && checked.threads as usize == threads;
    if is_suited { Ok(()) } else { Err(CompileError::Conditions { checked, threads }) }
}

/// A schedule, compiled for the threads of one pool, which it keeps.
pub struct Executable {
    ops: Vec<Op>,
    /// Transfers in flight when a step begins.
    crossing: Vec<TransferId>,
    /// The number that the last transfer of each kind had on its lane.
    numbers: Vec<AtomicU64>,
    lanes: Option<Arc<Lanes>>,
    /// Where it finds tensors that are placed at run time.
    placement: Option<(Shared, Turn)>,
    pool: Arc<ThreadPool>,
    slab: Bytes,
    fault: FaultFlag,
    /// The link to other ranks, and the link's number for the graph's first message.
    link: Option<(Arc<dyn Link>, u32)>,
    /// The number in the whole step of this graph's first micro-batch, and the distance from one to
    /// the next.
    share: (u32, u32),
}

impl Executable {
    /// Refuses a graph that no schedule makes executable, before one is searched for.
    pub fn admits(graph: &Graph) -> Result<(), CompileError> {
        admit(graph)
    }

    /// Compiles a checked schedule of `graph` for the threads of `pool`, on which it will run:
    /// kernels divide their workspace among that many.
    ///
    /// # Errors
    /// If the graph is another one, the schedule was checked for other kernels or another number of
    /// threads, or the graph uses what the engine cannot execute.
    pub fn compile(
        graph: &Graph,
        checked: &Checked,
        pool: &Arc<ThreadPool>,
    ) -> Result<Executable, CompileError> {
        Executable::compile_around(graph, checked, None, pool)
    }

    /// The same with a region in place of the bottom of the slab; what lies there in the schedule
    /// is placed at run time.
    pub(super) fn compile_around(
        graph: &Graph,
        checked: &Checked,
        region: Option<&Region>,
        pool: &Arc<ThreadPool>,
    ) -> Result<Executable, CompileError> {
        let schedule = checked.schedule();
        if schedule.graph != graph.hash() {
            return Err(Violation::OtherGraph.into());
        }
        let threads = pool.current_num_threads();
        suits_engine(checked.conditions(), threads)?;
        admit(graph)?;
        transfers_suit(schedule)?;
        let mut predicted = checked.timeline().calls.iter();
        let mut ops = Vec::with_capacity(schedule.instructions.len());
        let mut ends = ends(graph, (schedule, region))?.into_iter().peekable();
        let mut ways: SecondaryMap<TransferId, Option<(Way, LaneId)>> = SecondaryMap::new();
        for instruction in &schedule.instructions {
            if let Instruction::Start(transfer) = instruction {
                let Start { way, lane, .. } = start(schedule, transfer);
                ways[transfer.id] = Some((way, lane));
            }
        }
        for (index, instruction) in schedule.instructions.iter().enumerate() {
            while let Some((_, end)) = ends.next_if(|(before, _)| *before == index) {
                ops.push(Op::End(end));
            }
            match instruction {
                Instruction::Run(call) | Instruction::Recompute(call) => {
                    let predicted = *predicted.next().expect("a timeline has every call");
                    let micro_batch = call.micro_batch;
                    let within = region.map(|region| (schedule, region));
                    let placed = within
                        .and_then(|within| {
                            PlacedCall::new(graph, within, call, threads).transpose()
                        })
                        .transpose()?;
                    ops.push(match placed {
                        Some(placed) => {
                            placed.probe()?;
                            Op::Placed(predicted, micro_batch, Box::new(placed))
                        }
                        None => {
                            let kernel = compile(graph, (schedule, region), call, threads)?;
                            Op::Call(Compiled { predicted, micro_batch, kernel })
                        }
                    });
                }
                // Buffers have fixed addresses, so there is nothing to give back.
                Instruction::Free(_) => {}
                Instruction::Start(transfer) => ops.push(Op::Start(start(schedule, transfer))),
                Instruction::Wait(id) => {
                    let (way, lane) = ways[*id].expect("the checker found the start of every wait");
                    ops.push(Op::Wait(way, lane, *id));
                }
            }
        }
        ops.extend(ends.map(|(_, end)| Op::End(end)));
        let crossing = schedule.crossing().iter().map(|transfer| transfer.id).collect();
        Ok(Executable {
            ops,
            share: (0, 1),
            crossing,
            numbers: ways.keys().map(|_| AtomicU64::new(0)).collect(),
            lanes: None,
            placement: None,
            pool: Arc::clone(pool),
            slab: region.map_or(schedule.slab, |region| region.slab(schedule)),
            fault: FaultFlag::default(),
            link: None,
        })
    }

    /// Number of threads that it was compiled for and runs on.
    pub fn threads(&self) -> usize {
        self.pool.current_num_threads()
    }

    /// The threads that it was compiled for.
    pub(super) fn pool(&self) -> &Arc<ThreadPool> {
        &self.pool
    }

    /// Has its transfers carried by `lanes` from now on.
    pub(super) fn attach(&mut self, lanes: &Arc<Lanes>) {
        for op in &mut self.ops {
            if let Op::Start(start) = op {
                start.checksums = lanes.file().checksums(start.below);
            }
        }
        self.lanes = Some(Arc::clone(lanes));
    }

    /// From now on sends to other ranks through `link`, and waits there for what they send; the
    /// link numbers the messages of the graph from `first` on.
    pub fn connect(&mut self, link: Arc<dyn Link>, first: u32) {
        self.link = Some((link, first));
    }

    /// From now on draws random numbers for micro-batches by their numbers in the whole step: that
    /// of the first one, and the distance from one to the next.
    pub(super) fn share(&mut self, first: u32, step: u32) {
        self.share = (first, step);
    }

    /// The number of a micro-batch in the whole step.
    fn number_of(&self, micro_batch: MicroBatchId) -> MicroBatchId {
        let (first, step) = self.share;
        MicroBatchId::from_u32(micro_batch.as_u32() * step + first)
    }

    /// Finds tensors where `placement` puts them from now on.
    pub(super) fn place_by(&mut self, placement: &Shared, turn: Turn) {
        self.placement = Some((Arc::clone(placement), turn));
    }

    /// Starts what is in flight when a step begins, as the end of the step before would have.
    ///
    /// # Errors
    /// [`StepError::NoLanes`] if the schedule has transfers and there are no lanes.
    pub(super) fn begin(&self, slab: &Slab) -> Result<(), StepError> {
        for op in &self.ops {
            if let Op::Start(start) = op
                && self.crossing.contains(&start.id)
            {
                self.start(slab, start)?;
                if !self.overlaps() {
                    self.wait(start.way, start.id)?;
                }
            }
        }
        Ok(())
    }

    /// Executes one step.
    ///
    /// # Errors
    /// [`StepError`] if the batch does not suit the model, or the tier failed.
    ///
    /// # Panics
    /// If the slab is smaller than the schedule's.
    pub fn run(&self, slab: &mut Slab, settings: &StepSettings) -> Result<(), StepError> {
        self.execute(slab, settings, |what, laid_out| {
            match what {
                Doing::Call(_, kernel, run) | Doing::End(kernel, run) => kernel(run),
                Doing::Layout(call, placement) => {
                    lock(placement).acquire(&call.operands, laid_out)?;
                }
                Doing::Wait { way, id, .. } => {
                    self.wait(way, id)?;
                }
            }
            Ok(())
        })
    }

    /// Executes one step and reports the seconds of each call and of each transfer.
    ///
    /// # Errors
    /// As [`Executable::run`].
    pub fn run_timed(
        &self,
        slab: &mut Slab,
        settings: &StepSettings,
        report: &mut (dyn FnMut(Executed) + Send),
    ) -> Result<(), StepError> {
        let begun = Instant::now();
        self.execute(slab, settings, |what, laid_out| {
            let start = Instant::now();
            match what {
                Doing::Call(predicted, kernel, run) => {
                    kernel(run);
                    let seconds = Seconds(start.elapsed().as_secs_f64());
                    let start = Seconds(start.duration_since(begun).as_secs_f64());
                    report(Executed::Call(CallInTime { start, seconds, ..*predicted }));
                }
                Doing::End(kernel, run) => {
                    kernel(run);
                    report(Executed::End(Seconds(start.elapsed().as_secs_f64())));
                }
                Doing::Layout(call, placement) => {
                    report(Executed::Layout(lock(placement).acquire(&call.operands, laid_out)?));
                }
                Doing::Wait { way, lane, id } => {
                    let moved = self.wait(way, id)?;
                    let stall = Seconds(start.elapsed().as_secs_f64());
                    if let Some(Moved { start, seconds }) = moved {
                        let before = begun.saturating_duration_since(start).as_secs_f64();
                        let start = start.saturating_duration_since(begun).as_secs_f64() - before;
                        let (start, seconds) = (Seconds(start), Seconds(seconds));
                        let transfer = TransferInTime { id, lane, start, seconds, stall };
                        report(Executed::Transfer(transfer));
                    }
                }
            }
            Ok(())
        })
    }

    fn start(&self, slab: &Slab, start: &Start) -> Result<(), StepError> {
        let lanes = self.lanes.as_ref().ok_or(StepError::NoLanes)?;
        let checksums = start.checksums.clone().ok_or(StepError::NoLanes)?;
        let (address, bytes) = start.slab;
        let slab = slab.part(address, bytes);
        let job = Job { slab, below: start.below, checksums, after: 0 };
        let number = lanes.start(start.way, job);
        self.numbers[start.id.index()].store(number, Ordering::Relaxed);
        Ok(())
    }

    /// Whether calls go on during transfers.
    fn overlaps(&self) -> bool {
        self.lanes.as_ref().is_none_or(|lanes| lanes.overlaps())
    }

    fn wait(&self, way: Way, id: TransferId) -> Result<Option<Moved>, StepError> {
        let lanes = self.lanes.as_ref().ok_or(StepError::NoLanes)?;
        Ok(lanes.wait(way, self.numbers[id.index()].load(Ordering::Relaxed))?)
    }

    /// Executes one step, of which `act` does what takes time.
    fn execute(
        &self,
        slab: &mut Slab,
        settings: &StepSettings,
        mut act: impl FnMut(Doing<'_>, &Slab) -> Result<(), StepError> + Send,
    ) -> Result<(), StepError> {
        assert!(
            slab.bytes() >= self.slab,
            "the slab has {}, the schedule needs {}",
            slab.bytes(),
            self.slab
        );
        let step = Run {
            base: slab.base(),
            fault: &self.fault,
            seed: settings.seed,
            step: settings.step,
            micro_batch: MicroBatchId::WHOLE,
            learning_rate: settings.learning_rate as f32,
            link: self.link.as_ref().map(|(link, first)| (&**link, *first)),
        };
        let (step, slab) = (&step, &*slab);
        if let Some((placement, turn)) = &self.placement {
            lock(placement).begin(*turn)?;
        }
        let under_way = StepUnderWay(self.link.as_ref().map(|(link, _)| &**link));
        let ran = self.pool.install(|| -> Result<(), StepError> {
            for op in &self.ops {
                if step.fault.is_cut_off() {
                    break;
                }
                self.execute_op(op, step, slab, &mut act)?;
            }
            Ok(())
        });
        if let (Err(error), Some((link, _))) = (&ran, &self.link) {
            link.abort(&error.to_string());
        }
        ran?;
        if !self.fault.is_cut_off() {
            under_way.end();
        }
        if let Some((placement, _)) = &self.placement {
            lock(placement).end()?;
        }
        self.take_fault()
    }

    /// Executes one instruction, of which `act` does what takes time.
    fn execute_op(
        &self,
        op: &Op,
        step: &Run<'_>,
        slab: &Slab,
        act: &mut impl FnMut(Doing<'_>, &Slab) -> Result<(), StepError>,
    ) -> Result<(), StepError> {
        match op {
            Op::Call(compiled) => {
                let run = Run { micro_batch: self.number_of(compiled.micro_batch), ..*step };
                act(Doing::Call(&compiled.predicted, &compiled.kernel, &run), slab)
            }
            Op::Placed(predicted, micro_batch, call) => {
                let run = Run { micro_batch: self.number_of(*micro_batch), ..*step };
                let (placement, _) = self.placement.as_ref().ok_or(StepError::NoLanes)?;
                act(Doing::Layout(call, placement), slab)?;
                let mut placed = lock(placement);
                call.with_kernel(&placed, |kernel| {
                    act(Doing::Call(predicted, kernel, &run), slab)
                })??;
                placed.release(&call.operands, call.phase)
            }
            Op::End(end) => act(Doing::End(end, step), slab),
            Op::Start(start) => {
                self.start(slab, start)?;
                if !self.overlaps() {
                    let &Start { way, lane, id, .. } = start;
                    act(Doing::Wait { way, lane, id }, slab)?;
                }
                Ok(())
            }
            // Without overlap, nothing is in flight any more.
            Op::Wait(..) if !self.overlaps() => Ok(()),
            &Op::Wait(way, lane, id) => act(Doing::Wait { way, lane, id }, slab),
        }
    }

    /// The fault that a kernel raised in the step, if any did.
    fn take_fault(&self) -> Result<(), StepError> {
        match self.fault.take() {
            Some(kernels::Fault::Index) => Err(StepError::Index),
            Some(kernels::Fault::Link) => {
                let failure = self.link.as_ref().and_then(|(link, _)| link.failure());
                Err(failure.map_or(StepError::NoLink, StepError::Link))
            }
            None => Ok(()),
        }
    }
}

/// A transfer with its addresses.
fn start(schedule: &Schedule, transfer: &Transfer) -> Start {
    let Movement::Copy { from, to } = transfer.movement;
    let [from, to] = [from, to].map(|buffer| schedule.buffers[buffer]);
    let (way, slab, below) =
        if from.tier == DEVICE { (Way::Out, from, to) } else { (Way::Back, to, from) };
    let slab = (slab.address, slab.bytes.0);
    let Transfer { id, lane, .. } = *transfer;
    Start { id, way, lane, slab, below: below.address, checksums: None }
}
