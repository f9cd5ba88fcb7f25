//! A training run: one slab, the compiled step, the compiled evaluation, and where everything lies.
//! Invariant: parameters and state stay at their addresses from the first step to the last;
//! evaluation runs in what training leaves free.

use std::collections::BTreeMap;

use rayon::{ThreadPool, ThreadPoolBuilder};
use thiserror::Error;
use tightfit::graph::{Graph, Phase};
use tightfit::id::{NodeId, ValueId};
use tightfit::profile::Profile;
use tightfit::schedule::{Instruction, Schedule};
use tightfit::tensor::DType;
use tightfit::units::Bytes;

use crate::execute::executable::{CompileError, Executable, MeasuredCall, StepError, StepSettings};
use crate::memory::slab::{Slab, SlabError};
use crate::step;
use crate::step::Step;
use crate::step::data::Dataset;
use crate::step::initialise;

/// Why a run cannot start or go on.
#[derive(Debug, Error)]
#[allow(missing_docs)] // each message says what its fields are
pub enum SessionError {
    #[error(transparent)]
    Compile(#[from] CompileError),
    #[error(transparent)]
    Slab(#[from] SlabError),
    #[error("the worker threads could not be started: {0}")]
    Threads(#[from] rayon::ThreadPoolBuildError),
    #[error("a parameter could not be initialised: {0}")]
    Initialise(String),
    #[error("step {step}: {error}")]
    Step { step: u32, error: StepError },
}

/// A tensor that stays in the slab between steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Resident {
    /// Parameter, buffer or state.
    pub phase: Phase,
    /// First byte in the slab.
    pub address: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// Extent of each dimension.
    pub shape: Vec<usize>,
    /// Element type.
    pub dtype: DType,
}

/// A value at an address.
#[derive(Clone, Debug, PartialEq)]
pub struct Located {
    /// First byte of its first element in the slab.
    pub address: u64,
    /// Extent of each dimension.
    pub shape: Vec<u64>,
    /// Steps of each dimension, in elements.
    pub strides: Vec<u64>,
    /// Element type.
    pub dtype: DType,
}

/// One compiled graph with the places that a run reads and writes.
struct Compiled {
    program: Executable,
    input: Span,
    target: Span,
    /// Rows of a batch.
    rows: usize,
    outputs: Vec<Located>,
}

#[derive(Clone, Copy)]
struct Span {
    address: u64,
    bytes: u64,
}

/// The result of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// Mean loss over all batches, weighted by their rows.
    pub loss: f64,
    /// Share of predictions whose largest entry is the target.
    pub accuracy: Option<f64>,
    /// Batches evaluated, and batches there are.
    pub batches: (usize, usize),
}

/// A running training.
pub struct Session {
    slab: Slab,
    pool: ThreadPool,
    training: Compiled,
    evaluation: Option<Compiled>,
    residents: BTreeMap<String, Resident>,
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
        training: (&Profile, &Schedule),
        evaluation: Option<(&Profile, &Schedule)>,
        slab: Bytes,
        threads: usize,
        seed: u64,
    ) -> Result<Session, SessionError> {
        let compiled = compile(&step.training, training.0, training.1, threads)?;
        let evaluation = match (&step.evaluation, evaluation) {
            (Some(graph), Some((profile, schedule))) => {
                Some(compile(graph, profile, schedule, threads)?)
            }
            _ => None,
        };
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads)
            .stack_size(1 << 20)
            .thread_name(|i| format!("tightfit-{i}"))
            .build()?;
        let mut session = Session {
            slab: Slab::new(slab)?,
            pool,
            training: compiled,
            evaluation,
            residents: residents(&step.training, training.1),
            seed,
            next_step: 0,
            learning_rate: step.optimizer.learning_rate,
        };
        session.initialise(step)?;
        Ok(session)
    }

    fn initialise(&mut self, step: &Step) -> Result<(), SessionError> {
        for (index, (name, recipe)) in step.parameters.iter().enumerate() {
            let Some(resident) = self.residents.get(name) else { continue };
            let out = self.slab.write(resident.address, resident.bytes);
            initialise::fill(
                recipe,
                name,
                index as u32,
                self.seed,
                &step.folder,
                out,
                resident.dtype == DType::F32,
            )
            .map_err(SessionError::Initialise)?;
        }
        Ok(())
    }

    /// Draws a batch, executes one step and returns the loss before the update.
    pub fn step(&mut self, data: &mut Dataset) -> Result<f32, SessionError> {
        self.draw(data);
        let settings = StepSettings {
            seed: self.seed,
            step: self.next_step,
            learning_rate: self.learning_rate,
        };
        self.training
            .program
            .run(&mut self.slab, &self.pool, &settings)
            .map_err(|error| SessionError::Step { step: self.next_step + 1, error })?;
        self.next_step += 1;
        Ok(loss_of(&self.slab, &self.training))
    }

    /// Like [`Session::step`], with the seconds of every call.
    pub fn step_timed(
        &mut self,
        data: &mut Dataset,
        report: &mut (dyn FnMut(MeasuredCall) + Send),
    ) -> Result<f32, SessionError> {
        self.draw(data);
        let settings = StepSettings {
            seed: self.seed,
            step: self.next_step,
            learning_rate: self.learning_rate,
        };
        self.training
            .program
            .run_timed(&mut self.slab, &self.pool, &settings, report)
            .map_err(|error| SessionError::Step { step: self.next_step + 1, error })?;
        self.next_step += 1;
        Ok(loss_of(&self.slab, &self.training))
    }

    fn draw(&mut self, data: &mut Dataset) {
        let (input, target) = pair(&mut self.slab, self.training.input, self.training.target);
        data.training_batch(self.seed, self.next_step, input, target);
    }

    /// Loss and accuracy over the validation split, or over its first `most` batches; `None` where
    /// the step has no evaluation that fits.
    pub fn evaluate(
        &mut self,
        data: &Dataset,
        most: usize,
    ) -> Result<Option<Evaluation>, SessionError> {
        let Some(compiled) = &self.evaluation else { return Ok(None) };
        let settings = StepSettings { seed: self.seed, step: self.next_step, learning_rate: 0.0 };
        let all = data.validation_batches(compiled.rows);
        let (mut loss, mut rows, mut hits, mut predictions) = (0.0, 0.0, 0u64, 0u64);
        for index in 0..all.min(most) {
            let (input, target) = pair(&mut self.slab, compiled.input, compiled.target);
            let drawn = data.validation_batch(index, input, target);
            let targets: Vec<i64> =
                target.as_chunks::<8>().0.iter().map(|&class| i64::from_ne_bytes(class)).collect();
            compiled
                .program
                .run(&mut self.slab, &self.pool, &settings)
                .map_err(|error| SessionError::Step { step: self.next_step, error })?;
            loss += f64::from(loss_of(&self.slab, compiled)) * drawn.rows as f64;
            rows += drawn.rows as f64;
            if let Some(prediction) = compiled.outputs.get(1) {
                let counted = targets.len() * drawn.rows / compiled.rows;
                hits += hits_among(&self.slab, prediction, &targets[..counted]);
                predictions += counted as u64;
            }
        }
        let accuracy = (predictions > 0).then(|| hits as f64 / predictions as f64);
        Ok(Some(Evaluation { loss: loss / rows, accuracy, batches: (all.min(most), all) }))
    }

    /// Everything that stays in the slab, by name.
    pub fn residents(&self) -> &BTreeMap<String, Resident> {
        &self.residents
    }

    /// The bytes of a resident tensor.
    pub fn resident_bytes(&self, resident: &Resident) -> &[u8] {
        self.slab.read(resident.address, resident.bytes)
    }

    /// The bytes of a resident tensor, to be written.
    pub fn resident_bytes_mut(&mut self, name: &str) -> Option<&mut [u8]> {
        let resident = self.residents.get(name)?;
        Some(self.slab.write(resident.address, resident.bytes))
    }

    /// Elements of a batch's targets: tokens, or rows.
    pub fn units_per_batch(&self) -> u64 {
        self.training.target.bytes / 8
    }

    /// Size of the slab.
    pub fn slab_bytes(&self) -> Bytes {
        self.slab.bytes()
    }

    /// The training graph's outputs after a step, contiguous.
    pub fn training_output(&self, index: usize) -> Option<Vec<u8>> {
        self.training.outputs.get(index).map(|located| gather(&self.slab, located))
    }
}

fn compile(
    graph: &Graph,
    profile: &Profile,
    schedule: &Schedule,
    threads: usize,
) -> Result<Compiled, SessionError> {
    let program = Executable::compile(graph, profile, schedule, threads)?;
    let buffers: BTreeMap<NodeId, _> = schedule.placeholders.iter().copied().collect();
    let span = |name: &str| {
        let (node, value) = step::input(graph, name).expect("a step's graphs have both inputs");
        let value = &graph.values()[value];
        Span { address: schedule.buffers[buffers[&node]].address, bytes: value.tensor.bytes().0 }
    };
    let rows = step::input(graph, "input")
        .and_then(|(_, value)| graph.values()[value].tensor.shape.first().copied())
        .unwrap_or(1);
    Ok(Compiled {
        program,
        input: span("input"),
        target: span("target"),
        rows: rows as usize,
        outputs: graph.outputs().iter().map(|&value| locate(graph, schedule, value)).collect(),
    })
}

/// Where an output of the graph lies at the end of the step: its storage's first buffer, which is
/// kept.
fn locate(graph: &Graph, schedule: &Schedule, output: ValueId) -> Located {
    let value = &graph.values()[output];
    let calls = schedule.instructions.iter().filter_map(Instruction::call);
    let made = calls.filter_map(|call| {
        let outputs = graph.nodes()[call.node].outputs.iter().flatten();
        outputs
            .zip(&call.outputs)
            .find(|(made, _)| graph.values()[**made].storage == value.storage)
            .map(|(_, &buffer)| buffer)
    });
    let given = schedule
        .placeholders
        .iter()
        .find(|(node, _)| graph.fresh(*node).contains(&value.storage))
        .map(|&(_, buffer)| buffer);
    let buffer =
        given.or_else(|| made.into_iter().next()).expect("the checker found every output in place");
    Located {
        address: schedule.buffers[buffer].address + value.tensor.offset * value.tensor.dtype.size(),
        shape: value.tensor.shape.clone(),
        strides: value.tensor.strides_or_contiguous(),
        dtype: value.tensor.dtype,
    }
}

fn residents(graph: &Graph, schedule: &Schedule) -> BTreeMap<String, Resident> {
    let mut residents = BTreeMap::new();
    for &(id, buffer) in &schedule.placeholders {
        let node = &graph.nodes()[id];
        let (Some(name), Some(&Some(value))) = (&node.parameter, node.outputs.first()) else {
            continue;
        };
        let value = &graph.values()[value];
        if node.phase.is_persistent() {
            let resident = Resident {
                phase: node.phase,
                address: schedule.buffers[buffer].address,
                bytes: value.tensor.bytes().0,
                shape: value.tensor.shape.iter().map(|&x| x as usize).collect(),
                dtype: value.tensor.dtype,
            };
            residents.insert(name.clone(), resident);
        }
    }
    residents
}

/// Two disjoint spans of the slab, to be written.
fn pair(slab: &mut Slab, first: Span, second: Span) -> (&mut [u8], &mut [u8]) {
    let swapped = second.address < first.address;
    let (low, high) = if swapped { (second, first) } else { (first, second) };
    let all = slab.write(low.address, high.address + high.bytes - low.address);
    let (left, right) = all.split_at_mut((high.address - low.address) as usize);
    let left = &mut left[..low.bytes as usize];
    if swapped { (right, left) } else { (left, right) }
}

fn loss_of(slab: &Slab, compiled: &Compiled) -> f32 {
    f32::from_ne_bytes(
        slab.read(compiled.outputs[0].address, 4).try_into().expect("a loss has four bytes"),
    )
}

/// Offsets of all elements in logical order, in bytes from the first.
fn offsets(located: &Located) -> impl Iterator<Item = u64> + '_ {
    let count: u64 = located.shape.iter().product();
    (0..count).map(|mut index| {
        let mut offset = 0;
        for (extent, stride) in located.shape.iter().zip(&located.strides).rev() {
            offset += index % extent * stride;
            index /= extent;
        }
        offset * located.dtype.size()
    })
}

fn gather(slab: &Slab, located: &Located) -> Vec<u8> {
    offsets(located)
        .flat_map(|offset| slab.read(located.address + offset, located.dtype.size()).to_vec())
        .collect()
}

/// How many rows of a prediction (classes last) have their largest entry at the target.
fn hits_among(slab: &Slab, prediction: &Located, targets: &[i64]) -> u64 {
    let classes = prediction.shape.last().copied().unwrap_or(1) as usize;
    let at = |offset: u64| {
        f32::from_ne_bytes(
            slab.read(prediction.address + offset, 4).try_into().expect("four bytes"),
        )
    };
    let mut entries = offsets(prediction).map(at);
    let mut hits = 0;
    for &target in targets {
        let mut best = (0, f32::NEG_INFINITY);
        for class in 0..classes {
            let Some(entry) = entries.next() else { return hits };
            if entry > best.1 {
                best = (class, entry);
            }
        }
        hits += u64::from(best.0 as i64 == target);
    }
    hits
}
