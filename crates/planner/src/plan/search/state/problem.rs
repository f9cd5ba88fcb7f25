//! The planning problem of one order of first runs: operators over tensors that may come and go.
//! Invariant: what is there whatever the plan (persistent placeholders, kept outputs once they are
//! made) is folded into `base`, so a tensor here is a storage that can be dropped; views are gone.
//!
//! Operator 0 stands for the placeholders that die: the batch and the tangents. Point `t` is the
//! first run of operator `t` together with the recomputations just before it.

use cranelift_entity::{EntityRef, PrimaryMap, SecondaryMap, entity_impl};

use crate::graph::Graph;
use crate::id::{NodeId, StorageId};
use crate::plan::Instance;
use crate::plan::quantity::{ByteCount, Picoseconds};
use crate::profile::Profile;

/// An operator; also the point of its first run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(u32);
entity_impl!(OpId, "op");

/// A storage that may be dropped.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorId(u32);
entity_impl!(TensorId, "tensor");

impl OpId {
    /// The placeholders that die.
    pub const SOURCE: OpId = OpId(0);

    /// The operator at a position of the order.
    pub fn at(index: usize) -> OpId {
        OpId::new(index)
    }
}

/// One operator.
#[derive(Clone, Debug, Default)]
pub struct Op {
    /// Its node; absent for operator 0.
    pub node: Option<NodeId>,
    /// Its run time.
    pub cost: Picoseconds,
    /// Transient bytes while it runs.
    pub workspace: ByteCount,
    /// Tensors that it reads.
    pub inputs: Vec<TensorId>,
    /// Tensors that it makes.
    pub outputs: Vec<TensorId>,
    /// Inputs whose memory its first output may take over if they die there, the preferred first.
    pub takes_over: Vec<TensorId>,
    /// Bytes of that output.
    pub taken: ByteCount,
    /// Most bytes that this output can have in common with an input, even if their storages differ
    /// in size.
    pub shared: ByteCount,
    /// Bytes of outputs that outlive the step: there from the first run on, a transient copy in a
    /// recomputation.
    pub kept: ByteCount,
    /// It has outputs that outlive the step, or writes in place, or draws from the running
    /// generator, or frees a batch that no operator reads: its first run cannot be left out.
    pub anchored: bool,
    /// It may run again up to this point, whose first run ends a version that it reads or makes.
    /// 0 = never.
    pub until: u32,
    /// All operators that end such a version.
    pub ends: Vec<OpId>,
    /// It writes in place: no schedule runs it twice. (Random operators may: see `rematerialize`.)
    pub once: bool,
    /// It belongs to the forward pass.
    pub forward: bool,
    /// Operators that must have run before, in any schedule: makers of what it reads, readers of
    /// versions that it ends for good, and the last to draw from the running generator before it.
    pub after: Vec<OpId>,
    /// Readers of other versions that it ends. They run before, unless a schedule made a second
    /// copy for them, which no plan does.
    pub behind: Vec<OpId>,
}

impl Op {
    /// The operator of a node, without its tensors and its predecessors.
    fn of(graph: &Graph, profile: &Profile, node: NodeId) -> Op {
        let call = &graph.nodes()[node];
        Op {
            node: Some(node),
            cost: Picoseconds::round_down(profile.seconds[node]),
            workspace: ByteCount::of(profile.workspace[node]),
            anchored: call.mutates || call.stream,
            once: call.mutates,
            forward: call.phase.is_forward(),
            until: u32::MAX,
            ..Op::default()
        }
    }
}

/// A storage that may be dropped.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Its size.
    pub bytes: ByteCount,
    /// The operator that makes it.
    pub producer: OpId,
    /// The operators that read it, in order.
    pub readers: Vec<OpId>,
}

/// Operators in one order of first runs.
#[derive(Clone, Debug)]
pub struct Problem {
    /// The operators, in order.
    pub ops: PrimaryMap<OpId, Op>,
    /// The tensors.
    pub tensors: PrimaryMap<TensorId, Tensor>,
    /// Bytes held at each point whatever the plan.
    pub base: Vec<ByteCount>,
    /// Bytes held before anything runs that are never freed.
    pub resting: ByteCount,
    /// Time of all first runs.
    pub total: Picoseconds,
}

/// Where a storage is.
#[derive(Clone, Copy, Default, PartialEq)]
enum Track {
    #[default]
    Unborn,
    Resting,
    Tensor(TensorId),
}

impl Problem {
    /// The problem of running all nodes of `order`, inputs before users.
    pub fn new(instance: Instance<'_>) -> Problem {
        let Instance { graph, profile, order } = instance;
        let mut tracks = Tracks::new(graph);
        let mut ops: PrimaryMap<OpId, Op> = PrimaryMap::with_capacity(order.len() + 1);
        let mut source = Op { once: true, anchored: true, forward: true, ..Op::default() };
        let mut resting = ByteCount::ZERO;
        for (_, storage) in graph.placeholder_storages() {
            match tracks.begin(storage, OpId::SOURCE) {
                Some(tensor) => source.outputs.push(tensor),
                None => resting += tracks.size(storage),
            }
        }
        ops.push(source);
        let mut base = vec![resting];
        let mut kept_so_far = resting;
        let mut access = Accesses::default();
        for &node in order {
            let id = ops.next_key();
            base.push(kept_so_far);
            let mut op = Op::of(graph, profile, node);
            op.inputs = tracks.read(node, id);
            for &storage in graph.fresh(node) {
                match tracks.begin(storage, id) {
                    Some(tensor) => op.outputs.push(tensor),
                    None => {
                        op.kept += tracks.size(storage);
                        op.anchored = true;
                    }
                }
            }
            kept_so_far += op.kept;
            takes_over(graph, profile, &tracks.of, &mut op);
            if op.once {
                op.until = 0;
            }
            (op.after, op.behind) = access.predecessors(graph, node, id);
            ops.push(op);
        }
        for (earlier, writer) in access.ended {
            let op = &mut ops[earlier];
            op.until = op.until.min(writer.as_u32());
            op.ends.push(writer);
        }
        let total = ops.values().map(|op| op.cost).sum();
        let mut problem = Problem { ops, tensors: tracks.tensors, base, resting, total };
        problem.hold_unread();
        problem
    }

    /// A batch that no operator reads is held until the first operator has run, which therefore
    /// stays the first.
    fn hold_unread(&mut self) {
        let unread = self
            .tensors
            .values()
            .filter(|tensor| tensor.producer == OpId::SOURCE && tensor.readers.is_empty());
        let unread: ByteCount = unread.map(|tensor| tensor.bytes).sum();
        if unread > ByteCount::ZERO && self.ops.len() > 1 {
            self.base[1] += unread;
            self.ops[OpId::at(1)].anchored = true;
        }
    }

    /// The number of points.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Bytes of an operator's own tensors, kept outputs and workspace while it runs: no schedule
    /// needs less for it.
    pub fn working_set(&self, id: OpId) -> ByteCount {
        let op = &self.ops[id];
        let touched: ByteCount =
            op.inputs.iter().chain(&op.outputs).map(|&tensor| self.tensors[tensor].bytes).sum();
        op.kept + op.workspace + touched - op.shared
    }
}

/// The tensors of a problem under construction, and where each storage is.
struct Tracks<'a> {
    graph: &'a Graph,
    tensors: PrimaryMap<TensorId, Tensor>,
    of: SecondaryMap<StorageId, Track>,
}

impl<'a> Tracks<'a> {
    fn new(graph: &'a Graph) -> Tracks<'a> {
        Tracks { graph, tensors: PrimaryMap::new(), of: SecondaryMap::new() }
    }

    fn size(&self, storage: StorageId) -> ByteCount {
        ByteCount::of(self.graph.storages()[storage])
    }

    /// A storage begins to exist: as a tensor, unless it is kept.
    fn begin(&mut self, storage: StorageId, producer: OpId) -> Option<TensorId> {
        if self.graph.is_kept(storage) {
            self.of[storage] = Track::Resting;
            return None;
        }
        let bytes = self.size(storage);
        let tensor = self.tensors.push(Tensor { bytes, producer, readers: Vec::new() });
        self.of[storage] = Track::Tensor(tensor);
        Some(tensor)
    }

    /// The tensors that a node reads, which are noted to be read by its operator.
    fn read(&mut self, node: NodeId, reader: OpId) -> Vec<TensorId> {
        let mut inputs = Vec::new();
        for &storage in self.graph.reads(node) {
            if let Track::Tensor(tensor) = self.of[storage] {
                inputs.push(tensor);
                self.tensors[tensor].readers.push(reader);
            }
        }
        inputs
    }
}

/// Finds the inputs whose memory the first output of a node may take over. Plans do that only if
/// both storages have one size; a schedule may do it wherever the operator allows it, in a buffer
/// as large as the larger one.
fn takes_over(
    graph: &Graph,
    profile: &Profile,
    track: &SecondaryMap<StorageId, Track>,
    op: &mut Op,
) {
    let Some(node) = op.node.filter(|_| profile.reuse.is_any()) else { return };
    let Some(&Some(output)) = graph.nodes()[node].outputs.first() else { return };
    let made = graph.values()[output].storage;
    if !graph.fresh(node).contains(&made) {
        return;
    }
    op.taken = ByteCount::of(graph.storages()[made]);
    for input in profile.overwritable(graph, node) {
        let storage = graph.values()[input].storage;
        let Track::Tensor(tensor) = track[storage] else { continue };
        let bytes = ByteCount::of(graph.storages()[storage]);
        op.shared = op.shared.max(bytes.min(op.taken));
        if bytes == op.taken {
            op.takes_over.push(tensor);
        }
    }
}

/// The operators that touched each storage so far.
#[derive(Default)]
struct Accesses {
    /// The maker of the current version.
    last_write: SecondaryMap<StorageId, Option<OpId>>,
    /// The operators that read it since.
    readers: SecondaryMap<StorageId, Vec<OpId>>,
    /// A reader or the maker of a version, and the operator that overwrites that version.
    ended: Vec<(OpId, OpId)>,
    /// The last to draw from the running generator.
    drew: Option<OpId>,
}

impl Accesses {
    /// The operators that `id` must follow in every schedule, and those that it must also follow in
    /// plans.
    fn predecessors(&mut self, graph: &Graph, node: NodeId, id: OpId) -> (Vec<OpId>, Vec<OpId>) {
        let (mut after, mut behind) = (Vec::new(), Vec::new());
        for &storage in graph.reads(node) {
            after.extend(self.last_write[storage]);
        }
        if graph.nodes()[node].stream {
            after.extend(self.drew.replace(id));
        }
        for &storage in graph.mutated(node) {
            let readers = std::mem::take(&mut self.readers[storage]);
            let maker = self.last_write[storage];
            self.ended.extend(readers.iter().copied().chain(maker).map(|earlier| (earlier, id)));
            // What a placeholder brought exists once; anything else can be made again, and read at
            // its new place.
            let is_unique = graph.producer(storage).is_some_and(|maker| !graph.runs(maker));
            if is_unique { after.extend(readers) } else { behind.extend(readers) }
        }
        for &storage in graph.reads(node) {
            self.readers[storage].push(id);
        }
        for &storage in graph.mutated(node).iter().chain(graph.fresh(node)) {
            self.last_write[storage] = Some(id);
        }
        for list in [&mut after, &mut behind] {
            list.sort_unstable();
            list.dedup();
        }
        (after, behind)
    }
}
