//! Why a graph is refused. Invariant: every rule that a graph can break has a variant of its own,
//! which names the node and the value.

use thiserror::Error;

use crate::graph::limits::{DEEPEST_LIST, FORMAT, MOST_OPERANDS};
use crate::graph::node::Phase;
use crate::graph::recapture::RecaptureError;
use crate::reading::Excess;
use crate::tensor::DType;
use crate::units::{Bytes, Seconds};

/// A rule of tightfit-graph/1 that a graph breaks.
#[derive(Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum GraphError {
    /// The module table is empty.
    #[error("the graph has no modules: the first one must be the root")]
    NoModules,
    /// Two nodes have the same name.
    #[error("two nodes are called `{name}`: node names are unique")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// A node belongs to a module that is not in the module table.
    #[error("node `{node}` belongs to module {module}, but the graph has {count} modules")]
    UnknownModule {
        /// The name of the node.
        node: String,
        /// The module that it names.
        module: u32,
        /// The number of modules of the graph.
        count: usize,
    },
    /// An output lies in a storage that does not exist.
    #[error(
        "node `{node}`, output {output}: storage {storage} does not exist (the graph has {count} \
         storages)"
    )]
    UnknownStorage {
        /// The name of the node.
        node: String,
        /// The position of the output in the operator's schema.
        output: usize,
        /// The storage that it names.
        storage: u32,
        /// The number of storages of the graph.
        count: usize,
    },
    /// A node reads a value that no node before it produces.
    #[error(
        "node `{node}` reads value {value} before it is produced: nodes must come after what they \
         read (is there a cycle?)"
    )]
    ReadBeforeProduced {
        /// The name of the node.
        node: String,
        /// The number of the value.
        value: u64,
    },
    /// A node lists a value twice among its inputs.
    #[error("node `{node}` lists {value} twice among its inputs")]
    DuplicateInput {
        /// The name of the node.
        node: String,
        /// The value, as an output of the node that produces it.
        value: String,
    },
    /// An argument of a call mentions a value that the node does not list as an input.
    #[error("node `{node}`: its arguments mention {value}, which is not among its inputs")]
    ArgumentNotInput {
        /// The name of the node.
        node: String,
        /// The value, as an output of the node that produces it.
        value: String,
    },
    /// A node of a phase that computes nothing is not built like a placeholder.
    #[error(
        "node `{node}`: a placeholder must have op `placeholder`, one output and no inputs, and \
         must not mutate (op `{op}`, {inputs} inputs, {outputs} outputs)"
    )]
    Placeholder {
        /// The name of the node.
        node: String,
        /// The name of its operator.
        op: String,
        /// The number of its inputs.
        inputs: usize,
        /// The number of its outputs.
        outputs: usize,
    },
    /// A node with the operator `placeholder` is in a phase that computes.
    #[error("node `{node}` has op `placeholder`, but its phase `{phase}` is one that computes")]
    PlaceholderPhase {
        /// The name of the node.
        node: String,
        /// The name of its phase.
        phase: &'static str,
    },
    /// Two placeholders hold the same tensor of the model.
    #[error(
        "nodes `{first}` and `{second}` both hold `{parameter}`: names in the model are unique"
    )]
    DuplicateParameter {
        /// The name of the first node.
        first: String,
        /// The name of the second node.
        second: String,
        /// The name of the tensor in the model.
        parameter: String,
    },
    /// A tensor reaches beyond the end of its storage.
    #[error(
        "node `{node}`, output {output}: {tensor} needs {needed} bytes, but storage {storage} \
         holds {held}"
    )]
    DoesNotFit {
        /// The name of the node.
        node: String,
        /// The position of the output in the operator's schema.
        output: usize,
        /// The tensor, by its type and shape.
        tensor: String,
        /// The bytes up to its last element.
        needed: u128,
        /// The number of the storage.
        storage: u32,
        /// The bytes of the storage.
        held: u64,
    },
    /// A tensor has more elements than any tensor may have.
    #[error(
        "node `{node}`, output {output}: shape {shape:?} is too large: extents other than 0 may \
         multiply to 2^60 at most"
    )]
    TooManyElements {
        /// The name of the node.
        node: String,
        /// The position of the output in the operator's schema.
        output: usize,
        /// The extents of the tensor.
        shape: Vec<u64>,
    },
    /// A tensor has another number of strides than of dimensions.
    #[error(
        "node `{node}`, output {output}: its {dims} dimensions need as many strides, but there \
         are {strides}"
    )]
    StrideCount {
        /// The name of the node.
        node: String,
        /// The position of the output in the operator's schema.
        output: usize,
        /// The number of strides.
        strides: usize,
        /// The number of dimensions.
        dims: usize,
    },
    /// A tensor is marked contiguous, but its strides say otherwise.
    #[error(
        "node `{node}`, output {output}: it is marked contiguous, but its strides are {strides:?} \
         for shape {shape:?}"
    )]
    NotContiguous {
        /// The name of the node.
        node: String,
        /// The position of the output in the operator's schema.
        output: usize,
        /// The strides of the tensor, in elements.
        strides: Vec<u64>,
        /// The extents of the tensor.
        shape: Vec<u64>,
    },
    /// Two nodes create the same storage.
    #[error(
        "node `{node}`, output {output}: storage {storage} was already produced by `{producer}`, \
         of which this node reads nothing"
    )]
    TwoProducers {
        /// The name of the second node.
        node: String,
        /// The position of its output in the operator's schema.
        output: usize,
        /// The number of the storage.
        storage: u32,
        /// The name of the first node.
        producer: String,
    },
    /// A node that mutates has an output outside of the storages of its inputs.
    #[error(
        "node `{node}` mutates, but its output {output} does not lie in a storage of its inputs"
    )]
    MutatesNothing {
        /// The name of the node.
        node: String,
        /// The position of the output in the operator's schema.
        output: usize,
    },
    /// A node that mutates a storage does not have exactly one output in it.
    #[error(
        "node `{node}` mutates storage {storage}, but has {count} outputs in it: there must be \
         one, its new version"
    )]
    MutatedOutputs {
        /// The name of the node.
        node: String,
        /// The number of the storage.
        storage: u32,
        /// The number of outputs in it.
        count: usize,
    },
    /// A node that mutates has no outputs.
    #[error("node `{node}` mutates, but has no outputs: one is needed for each storage written")]
    MutatesWithoutOutput {
        /// The name of the node.
        node: String,
    },
    /// A node reads a version of a storage that has been overwritten.
    #[error("node `{node}` reads {value}, which `{writer}` has overwritten")]
    ReadsOverwritten {
        /// The name of the node.
        node: String,
        /// The value, as an output of the node that produces it.
        value: String,
        /// The name of the node that has overwritten it.
        writer: String,
    },
    /// A measured run time is not a duration.
    #[error("node `{node}`: run time {seconds} is not a finite, non-negative number of seconds")]
    Seconds {
        /// The name of the node.
        node: String,
        /// The run time, in seconds.
        seconds: f64,
    },
    /// The measured run times add up to more than any step takes.
    #[error(
        "node `{node}`: with its run time of {seconds:e} seconds those of the graph add up to more \
         than {:e} seconds; no step takes as long",
        Seconds::LIMIT.0
    )]
    TotalSeconds {
        /// The name of the node.
        node: String,
        /// Its run time, in seconds.
        seconds: f64,
    },
    /// A node says that it draws from the running generator, but draws none or has its own seed,
    /// and neither sends nor receives.
    #[error(
        "node `{node}` says that it draws from the running generator; such a node is random and \
         has no seed slot, or sends or receives"
    )]
    Stream {
        /// The name of the node.
        node: String,
    },
    /// A node may overwrite a value that it does not read, or names one twice.
    #[error(
        "node `{node}` may overwrite {value}; such values are inputs of the node, each named once"
    )]
    Overwrites {
        /// The name of the node.
        node: String,
        /// The value, by its place in the graph.
        value: String,
    },
    /// A node has a seed slot, but draws no random numbers.
    #[error("node `{node}` has seed slot {slot}, but is not marked random")]
    SeedWithoutRandom {
        /// The name of the node.
        node: String,
        /// The seed slot.
        slot: u32,
    },
    /// A node claims to differentiate something that no backward node can.
    #[error(
        "node `{node}` says that it differentiates `{target}`: only a backward node does, and what \
         it names is a forward or loss node before it"
    )]
    Differentiates {
        /// The name of the node.
        node: String,
        /// The name of the node that it claims to differentiate.
        target: String,
    },
    /// A node claims to recompute something that it does not.
    #[error(
        "node `{node}` says that it recomputes `{target}`: that is a node before it of the same \
         operator and seed slot, no recomputation itself, and neither of them mutates"
    )]
    Recomputes {
        /// The name of the node.
        node: String,
        /// The name of the node that it claims to recompute.
        target: String,
    },
    /// A node of the forward or the backward pass belongs to a module that is never called.
    #[error("node `{node}` belongs to module `{module}`, which is listed as never called")]
    Uncalled {
        /// The name of the node.
        node: String,
        /// The fully qualified name of the module.
        module: String,
    },
    /// Two nodes draw with the same seed slot.
    #[error("nodes `{first}` and `{second}` draw with the same seed slot {slot}")]
    DuplicateSeedSlot {
        /// The name of the first node.
        first: String,
        /// The name of the second node.
        second: String,
        /// The seed slot.
        slot: u32,
    },
    /// There are more or fewer names of outputs than outputs.
    #[error("the graph names {names} outputs, but has {outputs}")]
    OutputNames {
        /// The number of names.
        names: usize,
        /// The number of outputs.
        outputs: usize,
    },
    /// What a second capture showed is none that there can be.
    #[error(transparent)]
    Recapture(#[from] RecaptureError),
    /// A value is declared to outlive the step, but no node produces it.
    #[error("value {value} is to outlive the step, but no node produces it")]
    UnknownOutput {
        /// The number of the value.
        value: u64,
    },
    /// A value is declared to outlive the step, but a node overwrites it.
    #[error("{value} is to outlive the step, but `{writer}` overwrites it")]
    OutputOverwritten {
        /// The value, as an output of the node that produces it.
        value: String,
        /// The name of that node.
        writer: String,
    },
    /// The sums of the graph's figures exceed [`Bytes::LIMIT`].
    #[error(
        "the graph's storages and workspaces add up to more than 2^60 bytes, or one node's \
         operations or traffic exceed 2^60"
    )]
    TooLarge,
}

/// Why bytes are not a graph.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The bytes begin like gzip, but cannot be unpacked.
    #[error("the gzip data is damaged or cut short: {0}")]
    Gzip(std::io::Error),
    /// The file cannot be read.
    #[error("{0}")]
    Io(std::io::Error),
    /// The text, unpacked if it is packed, is longer than the limit, or a name in it is.
    #[error(transparent)]
    Excess(#[from] Excess),
    /// The nodes of the file have more operands than the limit.
    #[error(
        "with node `{node}` the graph has more than {MOST_OPERANDS} inputs, outputs, extents and \
         arguments; no real one has that many"
    )]
    Operands {
        /// The name of the node.
        node: String,
    },
    /// The text is not JSON, or does not have the structure of the format.
    #[error("not a {FORMAT} file: {0}")]
    Json(#[from] serde_json::Error),
    /// The file is of another format, or of another version of it.
    #[error("the format is {found}, but this program reads \"{FORMAT}\"")]
    Version {
        /// The format that the file names, as JSON.
        found: String,
    },
    /// A node names another, but no node before it has that name.
    #[error("node `{node}`: {field} names `{found}`, but no node before it is called so")]
    UnknownLink {
        /// The name of the node.
        node: String,
        /// The name of the field.
        field: &'static str,
        /// The name that the field has.
        found: String,
    },
    /// A number of a node is out of range.
    #[error("node `{node}`: {field} is {found}, but must be a whole number from 0 to {most}")]
    Size {
        /// The name of the node.
        node: String,
        /// The name of the field.
        field: &'static str,
        /// The number, as the file has it.
        found: String,
        /// The largest number that the field takes.
        most: u64,
    },
    /// The size of a storage is out of range.
    #[error(
        "storage {index}: its size is {found}, but must be a whole number from 0 to {}",
        Bytes::LIMIT.0
    )]
    StorageSize {
        /// The number of the storage.
        index: usize,
        /// The size, as the file has it.
        found: String,
    },
    /// A node is in a phase that does not exist.
    #[error("node `{node}`: phase `{found}` does not exist; the phases are {}", phases())]
    Phase {
        /// The name of the node.
        node: String,
        /// The phase that it names.
        found: String,
    },
    /// A value has an element type that the format does not know.
    #[error(
        "node `{node}`, value {value}: element type `{found}` is not supported; the types are {}",
        dtypes()
    )]
    DType {
        /// The name of the node.
        node: String,
        /// The number of the value.
        value: u64,
        /// The element type that it names.
        found: String,
    },
    /// A node reads a value that no node produces.
    #[error("node `{node}` reads value {value}, which no node produces")]
    DanglingInput {
        /// The name of the node.
        node: String,
        /// The number of the value.
        value: u64,
    },
    /// Two nodes produce a value of the same number.
    #[error("node `{node}`: value {value} is already produced by another node")]
    DuplicateValue {
        /// The name of the second node.
        node: String,
        /// The number of the value.
        value: u64,
    },
    /// An output of the graph is a value that no node produces.
    #[error("output {value} of the graph is not produced by any node")]
    DanglingOutput {
        /// The number of the value.
        value: u64,
    },
    /// An argument of a call is of a kind that the format does not know.
    #[error(
        "node `{node}`: an argument is {found}, which is neither a constant, a list nor \
         {{\"value\": id}}"
    )]
    Argument {
        /// The name of the node.
        node: String,
        /// The argument, as JSON.
        found: String,
    },
    /// The lists of an argument nest too deep.
    #[error("node `{node}`: the lists of an argument nest more than {DEEPEST_LIST} deep")]
    Nesting {
        /// The name of the node.
        node: String,
    },
    /// The file has the right structure, but its graph breaks a rule.
    #[error(transparent)]
    Rule(#[from] GraphError),
}

impl ReadError {
    /// The refusal of an unsupported format.
    pub(super) fn version(found: &serde_json::Value) -> ReadError {
        let found = if found.is_null() { "missing".to_string() } else { found.to_string() };
        ReadError::Version { found }
    }
}

fn phases() -> String {
    Phase::ALL.map(|(_, name)| name).join(", ")
}

fn dtypes() -> String {
    DType::ALL.map(|(_, name, _)| name).join(", ")
}
