//! An exported step: a folder with its graphs and `step.json` (tightfit-step/1), as
//! `tightfit.export` writes it. Invariant: a [`Step`] has verified graphs, an initialisation for
//! every parameter and buffer of either graph, and the two inputs and the loss where a run expects
//! them.

pub mod data;
mod divide;
pub(crate) mod initialise;
mod part;
mod reach;
mod rows;
mod shard;
mod spec;
pub(crate) mod stream;
mod unsuitable;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;
use tightfit::exit::{Coded, Exit};
use tightfit::graph::limits::{LONGEST_NAME, MOST_OF_A_SOURCE, MOST_PARAMETERS, MOST_STEP};
use tightfit::graph::{self, Graph, Phase, ReadError};
use tightfit::id::{MicroBatchId, NodeId, ValueId};
use tightfit::pipeline;
use tightfit::reading::{Bounded, Excess, Table, Text, excess, in_full};
use tightfit::tensor::DType;

pub use divide::{Divided, DivisionError, NotDivided};
pub use part::{Part, Share};
pub use shard::Sharing;
pub use spec::{DataSpec, EveryRow, Initialisation, LastFraction, OptimizerSpec, OtherBatch};

/// The format that is read.
pub const FORMAT: &str = "tightfit-step/1";

/// Why a folder is not a step.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StepFileError {
    /// A file cannot be read.
    #[error("{}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// A graph's file does not hold a graph.
    #[error("{}: {error}", path.display())]
    Graph {
        /// The file.
        path: PathBuf,
        /// Why it is not a graph.
        error: ReadError,
    },
    /// A folder has no `step.json`.
    #[error(
        "{}: there is no step.json in this folder, so it is no step's; `tightfit.export` writes \
         steps", path.display()
    )]
    NoStep {
        /// The folder.
        path: PathBuf,
    },
    /// `step.json` is longer than any valid one.
    #[error("{}: {excess}", path.display())]
    Excess {
        /// The file.
        path: PathBuf,
        /// The limit that it exceeds.
        excess: Excess,
    },
    /// `step.json` is not JSON, or lacks a field.
    #[error("{}: not a {FORMAT} file: {error}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why reading ended.
        error: serde_json::Error,
    },
    /// `step.json` is of another format or version.
    #[error("{}: the format is \"{found}\", but this program reads \"{FORMAT}\"", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// The format that it names.
        found: String,
    },
    /// A file stands where the step's folder should.
    #[error("{}: a step is a folder, as `tightfit.export` writes it; a graph alone can be \
        planned, but not trained", path.display())]
    NotAFolder {
        /// The file.
        path: PathBuf,
    },
    /// `step.json` names a graph that lies elsewhere.
    #[error(
        "{}: it names the graph {}, which lies neither in the step's folder nor in the repository \
         around it nor below the working directory; move it there",
        path.display(), file.display()
    )]
    Outside {
        /// The step's `step.json`.
        path: PathBuf,
        /// The graph.
        file: PathBuf,
    },
    /// The graphs cannot be trained with what the step says.
    #[error("{}: {what}", path.display())]
    Incomplete {
        /// The step's `step.json`.
        path: PathBuf,
        /// What is missing or wrong.
        what: String,
    },
}

impl Coded for StepFileError {
    fn exit(&self) -> Exit {
        match self {
            StepFileError::Read { .. } | StepFileError::NoStep { .. } => Exit::File,
            _ => Exit::Content,
        }
    }
}

#[derive(Deserialize)]
struct RawStep {
    format: Name,
    name: Name,
    #[serde(default)]
    description: Name,
    training: Name,
    evaluation: Option<Name>,
    parameters: Table<Name, Initialisation, MOST_PARAMETERS>,
    optimizer: OptimizerSpec,
    #[serde(deserialize_with = "spec::data")]
    data: DataSpec,
    #[serde(default)]
    provenance: Bounded<MOST_OF_A_SOURCE>,
}

type Name = Text<LONGEST_NAME>;

/// A training step, ready to be planned.
#[derive(Clone, Debug)]
pub struct Step {
    /// Its folder.
    pub folder: PathBuf,
    /// Its name.
    pub name: String,
    /// One sentence: what model on what data.
    pub description: String,
    /// Forward, loss, backward, optimizer.
    pub training: Graph,
    /// The part of a step that the training graph executes.
    pub part: Part,
    /// Loss and prediction without gradients.
    pub evaluation: Option<Graph>,
    /// The part of an evaluation that the evaluation graph executes.
    pub evaluation_part: Part,
    /// How each parameter and buffer is initialised.
    pub parameters: BTreeMap<String, Initialisation>,
    /// The optimizer's defaults.
    pub optimizer: OptimizerSpec,
    /// How batches are drawn.
    pub data: DataSpec,
    /// Where model and data come from.
    pub provenance: serde_json::Value,
    /// Every file that it consists of; files of first values and data may be missing.
    pub files: Vec<PathBuf>,
}

/// The inputs of a step's graphs that its data fill.
const INPUTS: [&str; 2] = ["input", "target"];

fn opened(path: &Path) -> Result<File, StepFileError> {
    File::open(path).map_err(|error| StepFileError::Read { path: path.to_path_buf(), error })
}

/// Reads a graph file.
pub fn read_graph(path: &Path) -> Result<Graph, StepFileError> {
    let at = || path.to_path_buf();
    graph::read_from(opened(path)?).map_err(|error| match error {
        ReadError::Io(error) => StepFileError::Read { path: at(), error },
        error => StepFileError::Graph { path: at(), error },
    })
}

impl Step {
    /// Opens a step's folder.
    pub fn open(folder: &Path) -> Result<Step, StepFileError> {
        if folder.is_file() {
            return Err(StepFileError::NotAFolder { path: folder.to_path_buf() });
        }
        let path = folder.join("step.json");
        if folder.is_dir() && !path.exists() {
            return Err(StepFileError::NoStep { path: folder.to_path_buf() });
        }
        #[derive(Deserialize)]
        struct Header {
            #[serde(default)]
            format: Name,
        }
        let bytes = in_full(opened(&path)?, MOST_STEP, "a step.json").map_err(|error| {
            let path = path.clone();
            match excess(&error).cloned() {
                Some(excess) => StepFileError::Excess { path, excess },
                None => StepFileError::Read { path, error },
            }
        })?;
        let wrong = |error| StepFileError::Json { path: path.clone(), error };
        let header: Header = serde_json::from_slice(&bytes).map_err(wrong)?;
        if header.format.0 != FORMAT {
            return Err(StepFileError::Version { path, found: header.format.0 });
        }
        let raw: RawStep = serde_json::from_slice(&bytes).map_err(wrong)?;
        debug_assert_eq!(raw.format.0, FORMAT);
        let graphs = [Some(&raw.training.0), raw.evaluation.as_ref().map(|file| &file.0)];
        let named: Vec<PathBuf> = graphs.iter().flatten().map(|file| folder.join(file)).collect();
        if let Some(file) = named.into_iter().find(|file| reach::is_outside(folder, file)) {
            return Err(StepFileError::Outside { path, file });
        }
        let values = raw.parameters.0.iter().filter_map(|(_, how)| match how {
            Initialisation::File(file) => Some(file),
            _ => None,
        });
        let others = graphs.into_iter().flatten().chain(values).chain([raw.data.file()]);
        let mut files: Vec<PathBuf> = others.map(|file| folder.join(file)).collect();
        files.push(path.clone());
        files.sort();
        files.dedup();
        let training = read_graph(&folder.join(raw.training.0))?;
        let evaluation = raw.evaluation.map(|file| read_graph(&folder.join(file.0))).transpose()?;
        let step = Step {
            part: Part::whole(&training),
            evaluation_part: evaluation.as_ref().map(Part::whole).unwrap_or_default(),
            files,
            folder: folder.to_path_buf(),
            name: raw.name.0,
            description: raw.description.0,
            training,
            evaluation,
            parameters: raw.parameters.0.into_iter().map(|(name, how)| (name.0, how)).collect(),
            optimizer: raw.optimizer,
            data: raw.data,
            provenance: raw.provenance.0,
        };
        match step.senseless().or_else(|| step.missing()) {
            Some(what) => Err(StepFileError::Incomplete { path, what }),
            None => Ok(step),
        }
    }

    /// A file of first values or, unless `data` replaces it, of data that lies neither in the
    /// step's folder, nor in the repository around it, nor below the working directory.
    pub fn outside(&self, data: Option<&Path>) -> Option<PathBuf> {
        let values = self.parameters.values().filter_map(|how| match how {
            Initialisation::File(file) => Some(file),
            _ => None,
        });
        let named = values.chain(data.is_none().then(|| self.data.file()));
        let mut files = named.map(|file| self.folder.join(file));
        files.find(|file| reach::is_outside(&self.folder, file))
    }

    /// What is invalid in `step.json` whatever the graphs are, if anything.
    fn senseless(&self) -> Option<String> {
        let optimizer = self.optimizer.senseless().map(|what| format!("`optimizer`: {what}"));
        optimizer.or_else(|| {
            self.parameters.iter().find_map(|(name, how)| {
                how.senseless().map(|what| format!("`parameters`: `{name}`: {what}"))
            })
        })
    }

    /// What keeps the step from being trained, if anything.
    fn missing(&self) -> Option<String> {
        for (kind, graph) in
            [("training", Some(&self.training)), ("evaluation", self.evaluation.as_ref())]
        {
            let Some(graph) = graph else { continue };
            for node in graph.nodes().values().filter(|node| node.phase.is_placeholder()) {
                match (node.phase, &node.parameter) {
                    (Phase::Tangent, _) => {
                        return Some(format!(
                            "the {kind} graph starts from a tangent (`{}`); a step must compute \
                             its own loss gradient",
                            node.name
                        ));
                    }
                    (Phase::Input, _) if !INPUTS.contains(&node.name.as_str()) => {
                        return Some(format!(
                            "the {kind} graph has an input called `{}`, which no data fill; a \
                             step has one called `input` and one called `target`",
                            node.name
                        ));
                    }
                    (Phase::Parameter | Phase::Buffer | Phase::State, None) => {
                        return Some(format!(
                            "the {kind} graph's placeholder `{}` has no name in the model",
                            node.name
                        ));
                    }
                    (Phase::Parameter | Phase::Buffer, Some(name))
                        if !self.parameters.contains_key(name) =>
                    {
                        return Some(format!("`parameters` does not say how `{name}` begins"));
                    }
                    _ => {}
                }
            }
            for name in INPUTS {
                if input(graph, name).is_none() {
                    return Some(format!("the {kind} graph has no input called `{name}`"));
                }
            }
            let loss = graph.outputs().first().map(|&value| &graph.values()[value]);
            if !loss
                .is_some_and(|loss| loss.tensor.dtype == DType::F32 && loss.tensor.elements() == 1)
            {
                return Some(format!(
                    "the {kind} graph's first output is not a scalar loss of type f32"
                ));
            }
        }
        None
    }

    /// Number of trained parameters.
    pub fn parameter_count(&self) -> u64 {
        let parameters =
            self.training.nodes().values().filter(|node| node.phase == Phase::Parameter);
        parameters
            .flat_map(|node| node.outputs.iter().flatten())
            .map(|&value| self.training.values()[value].tensor.elements())
            .sum()
    }
}

/// The input placeholder called `name` and its value; that of the first micro-batch if there are
/// several.
pub fn input(graph: &Graph, name: &str) -> Option<(NodeId, ValueId)> {
    let id = graph.node_named(name).filter(|&id| graph.nodes()[id].phase == Phase::Input)?;
    graph.nodes()[id].outputs.first().copied().flatten().map(|value| (id, value))
}

/// The input placeholders called `name`, one micro-batch after another, with their values.
pub fn inputs(graph: &Graph, name: &str) -> Vec<(NodeId, ValueId)> {
    let numbers = (0..).map(MicroBatchId::from_u32);
    numbers.map_while(|number| input(graph, &pipeline::name_of(name, number))).collect()
}
