//! A plan as a graph: nodes in the plan's order, with each recomputation as a node of its own.
//! Invariant: run in its own order with nothing recomputed, the rewritten graph holds what the plan
//! holds and takes as long.
//!
//! Each run makes storages of its own; a reader of a storage reads its newest copy. Views are in no
//! plan: each is placed before the first node that reads it, and made again for each copy that is
//! read through it. So anything that executes graphs node by node, and frees a tensor after its
//! last use, executes the plan.
//!
//! Source: Peng et al., "Capuchin", ASPLOS 2020, section 5.3, and the graph passes after it, which
//! copy what is recomputed before its first backward access. `doc/theory/rewritten.md` says more.

use std::collections::BTreeSet;

use cranelift_entity::SecondaryMap;
use thiserror::Error;

use crate::analysis::{Action, IntervalId, Motion, Sequence, liveness};
use crate::exit::coded;
use crate::graph::{Graph, GraphBuilder, GraphError, NodeSpec, Phase, Value, ValueSpec};
use crate::id::{NodeId, StorageId, ValueId};
use crate::profile::Profile;

/// Why a plan has no graph.
#[derive(Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum RewriteError {
    /// The storage read exists, but the view through which it is read has not run since it was
    /// made.
    #[error(
        "`{node}` reads what `{shows}` shows of a tensor that was made since `{shows}` ran; a \
         graph can say that of views only, and `{shows}` computes too"
    )]
    Shown {
        /// The name of the node that reads, or `the end of the step`.
        node: String,
        /// The name of the node whose output is read.
        shows: String,
    },
    /// The runs do not belong to any plan.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

coded!(Other: RewriteError);

/// A plan as a graph, and the moves between the nodes of that graph.
#[derive(Clone, Debug)]
pub struct Rewritten {
    /// The graph.
    pub graph: Graph,
    /// The moves, in order.
    pub moves: Vec<RewrittenMove>,
}

/// A move of a plan, in the rewritten graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RewrittenMove {
    /// The node before which it happens; after the last one, the number of nodes.
    pub before: NodeId,
    /// The copy of the storage that moves.
    pub storage: StorageId,
    /// The storage in the original graph; the copy in the lower tier serves all of its copies.
    pub original: StorageId,
    /// What happens to it.
    pub motion: Motion,
}

/// The graph that a plan's sequence makes of `graph`: it contains every node that runs, with
/// everything that each reads. A node of the new graph overwrites what its run takes over, and
/// nothing else; a move comes before the views that are made for the run after it.
pub fn rewrite(
    graph: &Graph,
    profile: &Profile,
    sequence: &Sequence,
) -> Result<Rewritten, RewriteError> {
    let mut rewriting = Rewriting {
        graph,
        builder: GraphBuilder::without_nodes(graph),
        copy: SecondaryMap::new(),
        made: SecondaryMap::new(),
        first: SecondaryMap::new(),
        names: graph.nodes().values().map(|node| node.name.clone()).collect(),
    };
    for (placeholder, _) in graph.nodes().iter().filter(|(_, node)| node.phase.is_placeholder()) {
        rewriting.append(placeholder, graph.nodes()[placeholder].phase, None)?;
    }
    let runs = sequence.runs();
    let mut of_runs = phases(graph, &runs).into_iter().zip(taken(graph, profile, &runs));
    let mut moves = Vec::new();
    for action in sequence.actions() {
        match *action {
            Action::Run(node) => {
                let (phase, taken) = of_runs.next().expect("each run has a phase");
                rewriting.append(node, phase, taken)?;
            }
            Action::Move(storage, motion) => moves.push(rewriting.moved(storage, motion)?),
        }
    }
    for &output in graph.outputs() {
        let output = rewriting.value(output, "the end of the step", Phase::Backward)?;
        rewriting.builder.output(output);
    }
    if let Some(names) = graph.output_names() {
        rewriting.builder.output_names(names.to_vec());
    }
    Ok(Rewritten { graph: rewriting.builder.build()?, moves })
}

/// The phase of each run: a node that runs again serves the next node that runs for the first time,
/// and belongs to its pass.
fn phases(graph: &Graph, runs: &[NodeId]) -> Vec<Phase> {
    let mut ran: SecondaryMap<NodeId, bool> = SecondaryMap::new();
    let again: Vec<bool> =
        runs.iter().map(|&node| std::mem::replace(&mut ran[node], true)).collect();
    let mut next = Phase::Backward;
    let mut phases: Vec<Phase> = Vec::with_capacity(runs.len());
    for (&node, again) in runs.iter().zip(again).rev() {
        let own = graph.nodes()[node].phase;
        if !again {
            next = own;
        }
        phases.push(if again && !next.is_forward() { Phase::Backward } else { own });
    }
    phases.reverse();
    phases
}

/// The input that each run overwrites, if any.
fn taken(graph: &Graph, profile: &Profile, runs: &[NodeId]) -> Vec<Option<ValueId>> {
    let lives = liveness(graph, profile, &runs.into());
    let of_run = |(&node, made): (&NodeId, &Vec<IntervalId>)| {
        let from = made.iter().find_map(|&made| lives.intervals[made].in_place_of)?;
        let storage = lives.intervals[from].storage;
        let inputs = profile.overwritable(graph, node);
        inputs.into_iter().find(|&input| graph.values()[input].storage == storage)
    };
    runs.iter().zip(&lives.fresh).map(of_run).collect()
}

struct Rewriting<'a> {
    graph: &'a Graph,
    builder: GraphBuilder,
    /// The newest copy of each storage.
    copy: SecondaryMap<StorageId, Option<StorageId>>,
    /// What represents each value, and the copy of its storage that it lies in.
    made: SecondaryMap<ValueId, Option<(StorageId, ValueId)>>,
    /// The first run of each node, and of each view.
    first: SecondaryMap<NodeId, Option<NodeId>>,
    names: BTreeSet<String>,
}

impl Rewriting<'_> {
    /// A move of the newest copy of a storage, before the next appended node.
    fn moved(&self, storage: StorageId, motion: Motion) -> Result<RewrittenMove, RewriteError> {
        let before = self.builder.next_node();
        let copy = self.copy[storage].ok_or_else(|| {
            let made = self.graph.values().iter().find(|(_, value)| value.storage == storage);
            let value = made.map_or(0, |(value, _)| value.as_u32());
            GraphError::ReadBeforeProduced { node: "a move".to_string(), value: value.into() }
        })?;
        Ok(RewrittenMove { before, storage: copy, original: storage, motion })
    }

    /// What represents a value in the newest copy of its storage.
    fn current(&self, value: ValueId) -> Option<ValueId> {
        let (copy, made) = self.made[value]?;
        (Some(copy) == self.copy[self.graph.values()[value].storage]).then_some(made)
    }

    /// The same, for a reader of some phase; missing views are made.
    fn value(
        &mut self,
        value: ValueId,
        reader: &str,
        phase: Phase,
    ) -> Result<ValueId, RewriteError> {
        // Views of views: the outermost is wanted, the innermost comes first.
        let mut missing = vec![value];
        while let Some(&wanted) = missing.last() {
            if self.current(wanted).is_some() {
                missing.pop();
                continue;
            }
            let producer = self.graph.values()[wanted].producer;
            let inputs = &self.graph.nodes()[producer].inputs;
            let below = inputs.iter().copied().find(|&input| self.current(input).is_none());
            match below {
                _ if !self.graph.is_view(producer) => return Err(self.unreadable(wanted, reader)),
                Some(input) => missing.push(input),
                None => self.append(producer, self.of_pass(producer, phase), None)?,
            }
        }
        self.current(value).ok_or_else(|| self.unreadable(value, reader))
    }

    /// Why a value is missing: its storage exists, but the node that makes the value has not run
    /// since; or nothing exists.
    fn unreadable(&self, value: ValueId, reader: &str) -> RewriteError {
        let (node, made) = (reader.to_string(), &self.graph.values()[value]);
        match self.copy[made.storage] {
            Some(_) => {
                RewriteError::Shown { node, shows: self.graph.nodes()[made.producer].name.clone() }
            }
            None => GraphError::ReadBeforeProduced { node, value: value.as_u32().into() }.into(),
        }
    }

    /// The phase of a view that is made for a reader: its own, or, if it was made before and the
    /// forward pass is over, that of the backward pass.
    fn of_pass(&self, view: NodeId, reader: Phase) -> Phase {
        match self.first[view] {
            Some(_) if !reader.is_forward() => Phase::Backward,
            _ => self.graph.nodes()[view].phase,
        }
    }

    /// Appends a node that reads the newest copies, and overwrites what it takes over.
    fn append(
        &mut self,
        id: NodeId,
        phase: Phase,
        taken: Option<ValueId>,
    ) -> Result<(), RewriteError> {
        let node = &self.graph.nodes()[id];
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for &input in &node.inputs {
            inputs.push(self.value(input, &node.name, phase)?);
        }
        let renamed = |value: ValueId| {
            let at = node.inputs.iter().position(|&input| input == value);
            // The verifier ensures that arguments mention only what is among the inputs.
            at.map_or(value, |at| inputs[at])
        };
        let kwargs = node.kwargs.iter();
        let mut spec = NodeSpec {
            phase,
            args: node.args.iter().map(|argument| argument.renamed(&renamed)).collect(),
            kwargs: kwargs.map(|(key, value)| (key.clone(), value.renamed(&renamed))).collect(),
            overwrites: taken.map(&renamed).into_iter().collect(),
            inputs,
            differentiates: node.differentiates.and_then(|target| self.first[target]),
            recomputes: node.recomputes.and_then(|target| self.first[target]),
            ..NodeSpec::from(node)
        };
        match self.first[id] {
            None => self.first[id] = Some(self.builder.next_node()),
            first => {
                spec.name = self.unused(&node.name);
                spec.differentiates = None;
                spec.recomputes = spec.recomputes.or(first);
            }
        }

        // A kept storage stays from its first run and serves all reads; the same storage of a
        // second run is not read.
        let mut fresh: Vec<(StorageId, StorageId)> = Vec::new();
        for &storage in self.graph.fresh(id) {
            let copy = self.builder.storage(self.graph.storages()[storage]);
            fresh.push((storage, copy));
            if self.copy[storage].is_none() || !self.graph.is_kept(storage) {
                self.copy[storage] = Some(copy);
            }
        }
        let place = |value: &Value| {
            let made = fresh.iter().find(|(storage, _)| *storage == value.storage);
            made.map(|&(_, copy)| copy).or(self.copy[value.storage])
        };
        let mut outputs = Vec::with_capacity(node.outputs.len());
        let mut lies = Vec::new();
        for output in &node.outputs {
            let Some(output) = *output else {
                outputs.push(None);
                continue;
            };
            let value = &self.graph.values()[output];
            let storage = place(value).ok_or_else(|| self.unreadable(output, &node.name))?;
            lies.push((output, storage));
            outputs.push(Some(ValueSpec { storage, ..ValueSpec::from(value) }));
        }
        let made = self.builder.node(spec, &outputs);
        for ((output, storage), made) in lies.into_iter().zip(made) {
            if self.copy[self.graph.values()[output].storage] == Some(storage) {
                self.made[output] = Some((storage, made));
            }
        }
        Ok(())
    }

    /// A name for a further run of the node called `name`.
    fn unused(&mut self, name: &str) -> String {
        let mut again = format!("{name}_recomputed");
        let mut count = 1;
        while !self.names.insert(again.clone()) {
            count += 1;
            again = format!("{name}_recomputed_{count}");
        }
        again
    }
}
