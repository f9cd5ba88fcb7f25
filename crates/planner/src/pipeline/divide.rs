//! A step divided into stages: the role of each of its nodes. Invariant: every node that computes
//! belongs to one pass of one stage, or to the update, or depends on the batch and on constants
//! alone; the backward pass of a stage computes the derivatives of its forward pass.
//!
//! The forward pass decides: the stage of each of its nodes is given. A backward node follows the
//! node whose derivative it computes. If the graph does not say which one that is, it follows the
//! parameter that it reads, else its module, else the latest activation that it reads; but it is
//! never later than the earliest gradient. If a parameter is read in several stages, its gradients
//! are not summed for each micro-batch: each stage sums its own over the micro-batches, and their
//! means are summed once, in the update.

use std::collections::BTreeSet;

use cranelift_entity::SecondaryMap;

use crate::graph::{Graph, Phase};
use crate::id::{ModuleId, NodeId, StageId, StorageId, ValueId};
use crate::operator::Operator;
use crate::pipeline::action::{Action, Pass};
use crate::pipeline::error::PipelineError;
use crate::pipeline::simulate::StageCost;
use crate::profile::Profile;

/// The role of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Computes nothing: a placeholder or a view.
    #[default]
    Nothing,
    /// Depends on the batch and on constants alone, and is made wherever it is read.
    Anywhere,
    /// A pass of a stage; a backward pass in its two parts.
    Pass(StageId, Pass),
    /// Runs once for all micro-batches.
    Update,
}

/// A step divided into stages.
#[derive(Clone, Debug)]
pub struct Division<'a> {
    /// The step.
    pub graph: &'a Graph,
    /// The number of stages.
    pub stages: usize,
    /// The role of each node.
    pub roles: SecondaryMap<NodeId, Role>,
    /// What is summed over the micro-batches, in the order of the values.
    pub summed: BTreeSet<ValueId>,
}

impl<'a> Division<'a> {
    /// One stage.
    pub fn whole(graph: &'a Graph) -> Result<Division<'a>, PipelineError> {
        Division::new(graph, &SecondaryMap::with_default(StageId::from_u32(0)))
    }

    /// Nodes of the forward pass belong to the stages given by `of_forward`.
    ///
    /// # Errors
    /// [`PipelineError::NoMean`] if the update, or a reader of the step's outputs, needs a value
    /// that has no mean over micro-batches.
    pub fn new(
        graph: &'a Graph,
        of_forward: &SecondaryMap<NodeId, StageId>,
    ) -> Result<Division<'a>, PipelineError> {
        Division::of(graph, of_forward, true)
    }

    /// The same for one micro-batch alone, such as that of an evaluation, whose outputs may be
    /// anything.
    pub fn of_one_batch(
        graph: &'a Graph,
        of_forward: &SecondaryMap<NodeId, StageId>,
    ) -> Result<Division<'a>, PipelineError> {
        Division::of(graph, of_forward, false)
    }

    fn of(
        graph: &'a Graph,
        of_forward: &SecondaryMap<NodeId, StageId>,
        has_means: bool,
    ) -> Result<Division<'a>, PipelineError> {
        let mut division =
            Division { graph, stages: 1, roles: SecondaryMap::new(), summed: BTreeSet::new() };
        division.passes(of_forward);
        division.summed = summed(graph, has_means)?;
        for &value in &division.summed {
            let producer = graph.values()[division.root(value)].producer;
            if division.roles[producer] == Role::Anywhere {
                division.roles[producer] = Role::Pass(StageId::from_u32(0), Pass::Forward);
            }
        }
        division.sum_in_updates();
        division.divide_backward();
        division.flows()?;
        Ok(division)
    }

    /// The costs of each stage for a micro-batch if nothing is recomputed; bytes held and sent are
    /// not filled in.
    pub fn costs(&self, profile: &Profile) -> SecondaryMap<StageId, StageCost> {
        let mut costs: SecondaryMap<StageId, StageCost> = SecondaryMap::new();
        for (id, &role) in self.roles.iter() {
            let Role::Pass(stage, pass) = role else { continue };
            let cost = &mut costs[stage];
            let time = match pass {
                Pass::Forward => &mut cost.forward,
                Pass::InputGradient => &mut cost.input_gradient,
                Pass::Backward | Pass::WeightGradient => &mut cost.weight_gradient,
            };
            *time = *time + profile.seconds[id];
        }
        costs
    }

    /// The first backward pass, if the step has any.
    pub fn backward(&self) -> Option<Action> {
        let stages = self.roles.values().filter_map(|&role| match role {
            Role::Pass(stage, pass) if pass != Pass::Forward => Some(stage),
            _ => None,
        });
        stages.min().map(|stage| Action::new(stage.as_u32(), Pass::Backward, 0))
    }

    /// The value that a value is a view of, through any number of views: it is made by a call or a
    /// placeholder.
    pub fn root(&self, value: ValueId) -> ValueId {
        let (nodes, values) = (self.graph.nodes(), self.graph.values());
        let mut root = value;
        while self.graph.is_view(values[root].producer) {
            let storage = values[root].storage;
            let inputs = &nodes[values[root].producer].inputs;
            let shown = inputs.iter().find(|&&input| values[input].storage == storage);
            match shown {
                Some(&shown) => root = shown,
                None => break,
            }
        }
        root
    }

    /// The role of the node that makes a value, or what it is a view of.
    pub fn role_of(&self, value: ValueId) -> Role {
        self.roles[self.graph.values()[self.root(value)].producer]
    }

    /// The stage in whose passes a value is made.
    pub fn stage_of(&self, value: ValueId) -> Option<StageId> {
        match self.role_of(value) {
            Role::Pass(stage, _) => Some(stage),
            Role::Nothing | Role::Anywhere | Role::Update => None,
        }
    }

    fn passes(&mut self, of_forward: &SecondaryMap<NodeId, StageId>) {
        let graph = self.graph;
        let (nodes, values) = (graph.nodes(), graph.values());
        let mut is_written: SecondaryMap<StorageId, bool> = SecondaryMap::new();
        for node in nodes.keys() {
            graph.mutated(node).iter().for_each(|&storage| is_written[storage] = true);
        }
        let known = Known::of(graph, of_forward);
        // Values that depend on the batch and on constants alone.
        let mut is_given: SecondaryMap<ValueId, bool> = SecondaryMap::new();
        for (id, node) in nodes {
            let stays = |value: &ValueId| !is_written[values[*value].storage];
            let outputs = || node.outputs.iter().flatten();
            let given = match node.phase {
                Phase::Input | Phase::Buffer => true,
                Phase::Parameter | Phase::State | Phase::Tangent | Phase::Optimizer => false,
                Phase::Forward | Phase::Loss | Phase::Backward => {
                    !node.random
                        && !node.mutates
                        && node.inputs.iter().all(|&input| is_given[input])
                }
            };
            if given && outputs().all(stays) {
                outputs().for_each(|&output| is_given[output] = true);
            }
            let anywhere = outputs().all(|&output| is_given[output]);
            self.roles[id] = match node.phase {
                _ if !graph.runs(id) => Role::Nothing,
                Phase::Optimizer => Role::Update,
                _ if anywhere => Role::Anywhere,
                Phase::Forward | Phase::Loss => Role::Pass(of_forward[id], Pass::Forward),
                _ => {
                    let stage = match node.differentiates {
                        Some(target) => of_forward[target],
                        None => self.follow(id, &known),
                    };
                    Role::Pass(stage, Pass::WeightGradient)
                }
            };
            if let Role::Pass(stage, _) = self.roles[id] {
                self.stages = self.stages.max(stage.as_u32() as usize + 1);
            }
        }
    }

    /// The stage of a backward node for which the graph does not say whose derivative it computes.
    fn follow(&self, id: NodeId, known: &Known) -> StageId {
        let (graph, node) = (self.graph, &self.graph.nodes()[id]);
        let (mut gradients, mut activations): (Option<StageId>, Option<StageId>) = (None, None);
        let mut parameter = None;
        for &input in &node.inputs {
            if let Some(Some(stage)) = known.parameters[graph.values()[input].storage] {
                parameter = parameter.max(Some(stage));
            }
            let Role::Pass(stage, pass) = self.role_of(input) else { continue };
            if pass == Pass::Forward {
                activations = activations.max(Some(stage));
            } else {
                gradients = Some(gradients.map_or(stage, |least| least.min(stage)));
            }
        }
        // Nodes that sum gradients may be marked with any module.
        let is_sum = node.operator == Some(Operator::AddTensor) && activations.is_none();
        let module = known.modules[node.module].flatten().filter(|_| !is_sum);
        let stage = parameter.or(module).or(activations);
        match (stage, gradients) {
            (Some(stage), Some(gradients)) => stage.min(gradients),
            (Some(stage), None) | (None, Some(stage)) => stage,
            // It begins the backward pass.
            (None, None) => known.last,
        }
    }

    /// Sums of gradients of several stages that only the update reads are part of the update.
    fn sum_in_updates(&mut self) {
        let mut readers: SecondaryMap<ValueId, Vec<NodeId>> = SecondaryMap::new();
        for (id, node) in self.graph.nodes() {
            node.inputs.iter().for_each(|&input| readers[input].push(id));
        }
        let mut left: Vec<ValueId> = self.summed.iter().copied().collect();
        while let Some(value) = left.pop() {
            let producer = self.graph.values()[value].producer;
            let node = &self.graph.nodes()[producer];
            let is_sum = node.operator == Some(Operator::AddTensor)
                && node.phase == Phase::Backward
                && node.differentiates.is_none()
                && node.kwargs.is_empty()
                && node.inputs.len() == 2;
            let stages: BTreeSet<_> =
                node.inputs.iter().map(|&input| self.stage_of(input)).collect();
            let is_for_updates =
                readers[value].iter().all(|&reader| self.roles[reader] == Role::Update);
            if is_sum && is_for_updates && stages.len() > 1 && !stages.contains(&None) {
                self.roles[producer] = Role::Update;
                self.summed.remove(&value);
                self.summed.extend(&node.inputs);
                left.extend(&node.inputs);
            }
        }
    }

    /// Activations go to later stages, and gradients to earlier ones.
    fn flows(&self) -> Result<(), PipelineError> {
        for (id, node) in self.graph.nodes() {
            let Role::Pass(stage, pass) = self.roles[id] else { continue };
            for &input in &node.inputs {
                let Role::Pass(from, made) = self.role_of(input) else { continue };
                let turns_back = match (made == Pass::Forward, pass == Pass::Forward) {
                    (true, true) => from > stage,
                    (false, false) => from < stage,
                    (false, true) => true,
                    (true, false) => false,
                };
                if turns_back {
                    let made = self.graph.values()[self.root(input)].producer;
                    let made = self.graph.nodes()[made].name.clone();
                    return Err(PipelineError::TurnsBack {
                        node: node.name.clone(),
                        stage,
                        made,
                        from,
                    });
                }
            }
        }
        Ok(())
    }

    /// The first part of a backward pass is what other stages wait for.
    fn divide_backward(&mut self) {
        let graph = self.graph;
        let ids: Vec<NodeId> = graph.nodes().keys().collect();
        for &id in ids.iter().rev() {
            let Role::Pass(stage, pass) = self.roles[id] else { continue };
            if pass == Pass::Forward {
                continue;
            }
            for &input in &graph.nodes()[id].inputs {
                let producer = graph.values()[self.root(input)].producer;
                if let Role::Pass(made, Pass::WeightGradient) = self.roles[producer]
                    && (made != stage || pass == Pass::InputGradient)
                {
                    self.roles[producer] = Role::Pass(made, Pass::InputGradient);
                }
            }
        }
    }
}

/// Where the forward pass uses its modules and parameters: in one stage, or in several.
struct Known {
    modules: SecondaryMap<ModuleId, Option<Option<StageId>>>,
    parameters: SecondaryMap<StorageId, Option<Option<StageId>>>,
    last: StageId,
}

impl Known {
    fn of(graph: &Graph, of_forward: &SecondaryMap<NodeId, StageId>) -> Known {
        let last = StageId::from_u32(0);
        let mut known =
            Known { modules: SecondaryMap::new(), parameters: SecondaryMap::new(), last };
        let forward = graph.nodes().iter().filter(|(_, node)| node.phase.is_forward());
        for (id, node) in forward {
            let stage = of_forward[id];
            let one = |entry: &mut Option<Option<StageId>>| {
                let is_same = entry.is_none_or(|known| known == Some(stage));
                *entry = Some(is_same.then_some(stage));
            };
            one(&mut known.modules[node.module]);
            for &storage in graph.reads(id).iter().filter(|&&storage| graph.is_persistent(storage))
            {
                one(&mut known.parameters[storage]);
            }
            known.last = known.last.max(stage);
        }
        known
    }
}

/// What the micro-batches make and the update, or a reader of the step's outputs, reads; if
/// `has_means`, it must have a mean.
fn summed(graph: &Graph, has_means: bool) -> Result<BTreeSet<ValueId>, PipelineError> {
    let (nodes, values) = (graph.nodes(), graph.values());
    let updates = nodes.values().filter(|node| node.phase == Phase::Optimizer);
    let read = updates
        .flat_map(|node| node.inputs.iter().map(|&value| (value, format!("`{}`", node.name))));
    let outputs =
        graph.outputs().iter().map(|&value| (value, "a reader of the outputs".to_string()));
    let mut summed = BTreeSet::new();
    for (value, reader) in read.chain(outputs) {
        let tensor = &values[value].tensor;
        let producer = &nodes[values[value].producer];
        if graph.is_persistent(values[value].storage) || producer.phase == Phase::Optimizer {
            continue;
        }
        let is_gradient = producer.phase == Phase::Backward;
        let is_scalar = !producer.phase.is_placeholder() && tensor.elements() == 1;
        if !has_means && producer.phase.is_placeholder() {
            continue;
        }
        if has_means && (!tensor.dtype.is_float() || !(is_gradient || is_scalar)) {
            let what = format!("{} {:?}", tensor.dtype.name(), tensor.shape);
            return Err(PipelineError::NoMean { node: producer.name.clone(), what, reader });
        }
        summed.insert(value);
    }
    Ok(summed)
}
