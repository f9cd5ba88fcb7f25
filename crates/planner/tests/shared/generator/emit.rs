//! From a recipe to a graph. Invariant: a value is read only while its storage holds its version,
//! which is the one rule of the format that an arbitrary choice of operands would break.

use tightfit::graph::{Graph, GraphBuilder, NodeSpec, Phase, ValueSpec};
use tightfit::id::{ModuleId, ValueId};
use tightfit::tensor::{Argument, DType};
use tightfit::units::{Bytes, Flops, Seconds};

use super::{Kind, Layer, Recipe, Updates};

/// A tensor of the forward pass.
#[derive(Clone, Debug)]
struct Tensor {
    id: ValueId,
    spec: ValueSpec,
    /// Its storage was written since.
    is_stale: bool,
    gradient: Option<(ValueId, ValueSpec)>,
}

/// A forward node, as the backward pass needs it.
struct Record {
    layer: Layer,
    /// Tensors that gradients flow to.
    to: Vec<usize>,
    /// Tensors that gradients come from.
    from: Vec<usize>,
    /// Tensors that the backward node reads.
    saved: Vec<usize>,
}

struct Emitter<'a> {
    recipe: &'a Recipe,
    builder: GraphBuilder,
    modules: Vec<ModuleId>,
    tensors: Vec<Tensor>,
    parameters: Vec<usize>,
    states: Vec<Vec<(ValueId, ValueSpec)>>,
    running: Option<usize>,
    records: Vec<Record>,
    names: u32,
    seeds: u32,
}

/// The graph of a recipe.
pub(super) fn graph(recipe: &Recipe) -> Graph {
    let mut builder = GraphBuilder::new("generated");
    let modules = (0..6)
        .map(|i| builder.module(["embed", "h.0", "h.1", "h.2.mlp", "h.3", "head"][i]))
        .collect();
    let mut emitter = Emitter {
        recipe,
        builder,
        modules,
        tensors: Vec::new(),
        parameters: Vec::new(),
        states: Vec::new(),
        running: None,
        records: Vec::new(),
        names: 0,
        seeds: 0,
    };
    emitter.placeholders();
    for layer in &recipe.layers {
        emitter.forward(*layer);
    }
    emitter.loss_and_backward();
    emitter.builder.build().expect("the generator obeys the rules")
}

impl Emitter<'_> {
    fn name(&mut self, stem: &str) -> String {
        self.names += 1;
        format!("{stem}_{}", self.names)
    }

    /// A contiguous tensor in a storage of its own.
    fn fresh(&mut self, elements: u64, dtype: DType) -> ValueSpec {
        let storage = self.builder.storage(Bytes(elements * dtype.size()));
        ValueSpec::contiguous(&[elements], dtype, storage)
    }

    fn placeholder(&mut self, phase: Phase, elements: u64) -> usize {
        let name = self.name(phase.name());
        let spec = self.fresh(elements, DType::F32);
        let mut node = NodeSpec::new(name.clone(), "placeholder", phase);
        node.parameter = phase.is_persistent().then(|| format!("model.{name}"));
        let id = self.builder.node(node, &[Some(spec.clone())])[0];
        self.tensors.push(Tensor { id, spec, is_stale: false, gradient: None });
        self.tensors.len() - 1
    }

    fn placeholders(&mut self) {
        let linear = self.recipe.layers.iter().filter(|layer| layer.kind == Kind::Linear);
        for layer in linear.copied().collect::<Vec<_>>() {
            let parameter = self.placeholder(Phase::Parameter, elements(layer.size) + 3);
            self.parameters.push(parameter);
            let count = match self.recipe.updates {
                Updates::Leave | Updates::Sgd => 0,
                Updates::Momentum => 1,
                Updates::Adamw => 2,
            };
            let size = self.tensors[parameter].spec.shape[0];
            let states =
                (0..count).map(|_| self.placeholder(Phase::State, size)).collect::<Vec<_>>();
            self.states.push(
                states
                    .into_iter()
                    .map(|state| (self.tensors[state].id, self.tensors[state].spec.clone()))
                    .collect(),
            );
        }
        if self.recipe.layers.iter().any(|layer| layer.kind == Kind::Track) {
            self.running = Some(self.placeholder(Phase::Buffer, 8));
        }
        if self.recipe.unread {
            self.placeholder(Phase::Input, 32);
        }
        let sizes = if self.recipe.batch.is_empty() { vec![4] } else { self.recipe.batch.clone() };
        for size in sizes {
            self.placeholder(Phase::Input, elements(size));
        }
    }

    /// The activation `back` places before the newest one that can still be read.
    fn activation(&self, back: u8) -> usize {
        let persistent = |i: &usize| {
            self.parameters.contains(i)
                || self.states.iter().flatten().any(|(id, _)| *id == self.tensors[*i].id)
        };
        let live: Vec<usize> = (0..self.tensors.len())
            .filter(|&i| !self.tensors[i].is_stale)
            .filter(|i| !persistent(i))
            .collect();
        live[live.len() - 1 - usize::from(back) % live.len()]
    }

    /// Emits a node of the forward or loss phase.
    fn node(
        &mut self,
        op: &str,
        phase: Phase,
        layer: Layer,
        inputs: &[usize],
        outputs: &[Option<ValueSpec>],
        adjust: impl Fn(&mut NodeSpec),
    ) -> Vec<usize> {
        let ids: Vec<ValueId> = inputs.iter().map(|&i| self.tensors[i].id).collect();
        let made = self.call(op, phase, layer, &ids, outputs, adjust);
        let specs = outputs.iter().flatten().cloned();
        let first = self.tensors.len();
        self.tensors.extend(made.into_iter().zip(specs).map(|(id, spec)| Tensor {
            id,
            spec,
            is_stale: false,
            gradient: None,
        }));
        (first..self.tensors.len()).collect()
    }

    fn call(
        &mut self,
        op: &str,
        phase: Phase,
        layer: Layer,
        inputs: &[ValueId],
        outputs: &[Option<ValueSpec>],
        adjust: impl Fn(&mut NodeSpec),
    ) -> Vec<ValueId> {
        let stem = op.split('.').nth(1).unwrap_or(op).to_string();
        let name = self.name(&stem);
        let mut node = NodeSpec::new(name, op, phase);
        node.module = self.modules[usize::from(layer.module) % self.modules.len()];
        node.args = inputs.iter().map(|&value| Argument::Value(value)).collect();
        for &input in inputs {
            if !node.inputs.contains(&input) {
                node.inputs.push(input);
            }
        }
        node.seconds = layer.milliseconds.map(|x| Seconds(f64::from(x) * 1e-3));
        node.flops = Flops(u64::from(layer.size) * 1_000_000);
        node.bytes_read = Bytes(u64::from(layer.size) * 64);
        node.bytes_written = Bytes(64);
        node.workspace = Bytes(layer.workspace.into());
        adjust(&mut node);
        self.builder.node(node, outputs)
    }

    fn like(&mut self, tensor: usize) -> ValueSpec {
        let Tensor { spec, .. } = &self.tensors[tensor];
        let (shape, dtype) = (spec.shape.clone(), spec.dtype);
        let storage = self.builder.storage(Bytes(shape.iter().product::<u64>() * dtype.size()));
        ValueSpec::contiguous(&shape, dtype, storage)
    }

    fn forward(&mut self, layer: Layer) {
        let (x, y) = (self.activation(layer.first), self.activation(layer.second));
        let plain = |_: &mut NodeSpec| {};
        let phase = Phase::Forward;
        let (to, from, saved) = match layer.kind {
            Kind::Relu => {
                let out = self.like(x);
                let made = self.node("aten.relu.default", phase, layer, &[x], &[Some(out)], plain);
                (vec![x], made.clone(), made)
            }
            Kind::Add | Kind::Mul => {
                let out = self.like(x);
                let op =
                    if layer.kind == Kind::Add { "aten.add.Tensor" } else { "aten.mul.Tensor" };
                let made = self.node(op, phase, layer, &[x, y], &[Some(out)], plain);
                (vec![x, y], made, if layer.kind == Kind::Add { vec![] } else { vec![x, y] })
            }
            Kind::Linear => {
                let count =
                    self.records.iter().filter(|record| record.layer.kind == Kind::Linear).count();
                let parameter = self.parameters[count];
                let dtype = if layer.size.is_multiple_of(3) { DType::Bf16 } else { DType::F32 };
                let out = self.fresh(elements(layer.size), dtype);
                let made = self.node(
                    "test.linear.default",
                    phase,
                    layer,
                    &[x, parameter],
                    &[Some(out)],
                    plain,
                );
                (vec![x, parameter], made, vec![x, parameter])
            }
            Kind::Norm => {
                let (out, statistics) = (self.like(x), self.fresh(4, DType::F32));
                let made = self.node(
                    "test.norm.default",
                    phase,
                    layer,
                    &[x],
                    &[Some(out), None, Some(statistics)],
                    plain,
                );
                (vec![x], vec![made[0]], vec![x, made[1]])
            }
            Kind::View => {
                let mut out = self.tensors[x].spec.clone();
                out.shape.insert(0, 1);
                if let Some(strides) = &mut out.strides {
                    strides.insert(0, 7);
                }
                (
                    vec![x],
                    self.node("aten.view.default", phase, layer, &[x], &[Some(out)], plain),
                    vec![],
                )
            }
            Kind::Slice => {
                let spec = &self.tensors[x].spec;
                let elements = if spec.contiguous { spec.shape.iter().product() } else { 0u64 };
                let out = ValueSpec {
                    shape: vec![elements / 2],
                    contiguous: false,
                    strides: Some(vec![2]),
                    offset: spec.offset + elements % 2,
                    ..spec.clone()
                };
                (
                    vec![x],
                    self.node("aten.slice.Tensor", phase, layer, &[x], &[Some(out)], plain),
                    vec![],
                )
            }
            Kind::Split => {
                let half = self.tensors[x].spec.shape.iter().product::<u64>() / 2;
                let halves =
                    [Some(self.fresh(half, DType::F32)), Some(self.fresh(half, DType::F32))];
                (
                    vec![x],
                    self.node("test.split.default", phase, layer, &[x], &halves, plain),
                    vec![],
                )
            }
            Kind::Dropout => {
                let (out, mask) = (self.like(x), self.like(x));
                let seed = self.seeds;
                self.seeds += 1;
                let draw = |node: &mut NodeSpec| {
                    (node.random, node.seed_slot) = (true, Some(seed));
                    node.args.extend([Argument::Float(0.125), Argument::Bool(true)]);
                };
                let made = self.node(
                    "aten.native_dropout.default",
                    phase,
                    layer,
                    &[x],
                    &[Some(out), Some(mask)],
                    draw,
                );
                (vec![x], vec![made[0]], vec![made[1]])
            }
            Kind::Track => {
                let running = self.running.expect("a recipe that tracks has a buffer");
                self.overwrite(running, x, layer);
                (vec![], vec![], vec![])
            }
            Kind::Overwrite => {
                // Placeholders of the batch may be written too; views of one storage go stale
                // together.
                let made = self.overwrite(x, y, layer);
                (vec![y], vec![made], vec![])
            }
            Kind::FreshAndView => {
                let (out, view) = (self.like(x), self.tensors[x].spec.clone());
                let made = self.node(
                    "test.fresh_and_view.default",
                    phase,
                    layer,
                    &[x],
                    &[Some(out), Some(view)],
                    plain,
                );
                (vec![x], vec![made[0]], vec![made[1]])
            }
        };
        self.records.push(Record { layer, to, from, saved });
    }

    fn overwrite(&mut self, target: usize, source: usize, layer: Layer) -> usize {
        let spec = self.tensors[target].spec.clone();
        let storage = spec.storage;
        let was = self.tensors.len();
        let made = self.node(
            "aten.copy_.default",
            Phase::Forward,
            layer,
            &[target, source],
            &[Some(spec)],
            |node| node.mutates = true,
        );
        for tensor in self.tensors[..was].iter_mut().filter(|tensor| tensor.spec.storage == storage)
        {
            tensor.is_stale = true;
        }
        if self.running.is_some_and(|running| self.tensors[running].spec.storage == storage) {
            self.running = Some(made[0]);
        }
        made[0]
    }

    fn loss_and_backward(&mut self) {
        let layer = Layer {
            kind: Kind::Relu,
            first: 0,
            second: 0,
            size: 1,
            milliseconds: Some(1),
            workspace: 0,
            module: 5,
        };
        let plain = |_: &mut NodeSpec| {};
        let last = self.activation(0);
        let out = self.fresh(1, DType::F32);
        let loss =
            self.node("test.loss.default", Phase::Loss, layer, &[last], &[Some(out)], plain)[0];
        self.builder.output(self.tensors[loss].id);
        for &kept in &self.recipe.kept {
            let kept = self.activation(kept);
            self.builder.output(self.tensors[kept].id);
        }
        let start = if self.recipe.updates == Updates::Leave {
            let tangent = self.placeholder(Phase::Tangent, 1);
            self.tensors[tangent].id
        } else {
            let one = self.fresh(1, DType::F32);
            self.call("aten.full.default", Phase::Backward, layer, &[], &[Some(one)], plain)[0]
        };
        let spec = self.gradient_spec(last);
        let mut reads = vec![start];
        if !self.tensors[last].is_stale {
            reads.push(self.tensors[last].id);
        }
        let gradient = self.call(
            "test.loss_backward.default",
            Phase::Backward,
            layer,
            &reads,
            &[Some(spec.clone())],
            plain,
        )[0];
        self.tensors[last].gradient = Some((gradient, spec));
        if self.recipe.late_metric {
            let (metric, of) = (self.fresh(2, DType::F32), self.activation(3));
            let made =
                self.node("test.metric.default", Phase::Loss, layer, &[of], &[Some(metric)], plain);
            self.builder.output(self.tensors[made[0]].id);
        }
        for record in std::mem::take(&mut self.records).iter().rev() {
            self.backward(record);
        }
        self.updates(layer);
    }

    /// Gradients are contiguous and have the type of what they belong to.
    fn gradient_spec(&mut self, tensor: usize) -> ValueSpec {
        self.like(tensor)
    }

    fn backward(&mut self, record: &Record) {
        let layer = record.layer;
        let incoming: Vec<ValueId> = record
            .from
            .iter()
            .filter_map(|&i| self.tensors[i].gradient.as_ref().map(|(id, _)| *id))
            .collect();
        if incoming.is_empty() {
            return;
        }
        let saved = record
            .saved
            .iter()
            .filter(|&&i| !self.tensors[i].is_stale)
            .map(|&i| self.tensors[i].id);
        let reads: Vec<ValueId> =
            incoming.iter().copied().chain(saved.collect::<Vec<_>>()).collect();
        if layer.kind == Kind::Add {
            // The same gradient flows to both operands.
            for &to in &record.to {
                let spec = self.gradient_spec(to);
                let made = self.call(
                    "aten.clone.default",
                    Phase::Backward,
                    layer,
                    &incoming,
                    &[Some(spec.clone())],
                    |_| {},
                )[0];
                self.accumulate(to, made, spec, layer);
            }
            return;
        }
        for (i, &to) in record.to.iter().enumerate() {
            let spec = self.gradient_spec(to);
            let reads = match (layer.kind, i) {
                (Kind::Mul, i) => incoming.iter().chain(reads.get(2 - i)).copied().collect(),
                (Kind::Linear, 0) => incoming.iter().chain(reads.last()).copied().collect(),
                _ => reads.clone(),
            };
            let op = match layer.kind {
                Kind::Mul if reads.len() == 2 => "aten.mul.Tensor",
                Kind::View => "aten.clone.default",
                _ => "test.backward.default",
            };
            let made =
                self.call(op, Phase::Backward, layer, &reads, &[Some(spec.clone())], |_| {})[0];
            self.accumulate(to, made, spec, layer);
        }
    }

    fn accumulate(&mut self, to: usize, gradient: ValueId, spec: ValueSpec, layer: Layer) {
        let Some((before, _)) = self.tensors[to].gradient.clone() else {
            self.tensors[to].gradient = Some((gradient, spec));
            return;
        };
        let sum = self.gradient_spec(to);
        let made = self.call(
            "aten.add.Tensor",
            Phase::Backward,
            layer,
            &[before, gradient],
            &[Some(sum.clone())],
            |_| {},
        )[0];
        self.tensors[to].gradient = Some((made, sum));
    }

    fn updates(&mut self, layer: Layer) {
        let gradients: Vec<(usize, ValueId)> = self
            .parameters
            .iter()
            .enumerate()
            .filter_map(|(i, &p)| Some((i, self.tensors[p].gradient.as_ref()?.0)))
            .collect();
        if self.recipe.updates == Updates::Leave {
            for (_, gradient) in gradients {
                self.builder.output(gradient);
            }
            return;
        }
        let norm = (self.recipe.clip && !gradients.is_empty()).then(|| {
            let norm = self.fresh(1, DType::F32);
            let all: Vec<ValueId> = gradients.iter().map(|(_, gradient)| *gradient).collect();
            self.call(
                "test.norm_of_gradients.default",
                Phase::Optimizer,
                layer,
                &all,
                &[Some(norm)],
                |_| {},
            )[0]
        });
        let mut updated = None;
        for (i, gradient) in gradients {
            let parameter = self.tensors[self.parameters[i]].clone();
            let states = self.states[i].clone();
            let mut outputs = vec![Some(parameter.spec)];
            outputs.extend(states.iter().map(|(_, spec)| Some(spec.clone())));
            if self.recipe.updates == Updates::Sgd {
                outputs.push(None);
            }
            let inputs: Vec<ValueId> = [parameter.id, gradient]
                .into_iter()
                .chain(states.iter().map(|(id, _)| *id))
                .collect();
            let op = if self.recipe.updates == Updates::Adamw {
                "tightfit.adamw"
            } else {
                "tightfit.sgd"
            };
            let wait = |node: &mut NodeSpec| {
                node.mutates = true;
                node.inputs.extend(norm);
            };
            updated = Some((
                self.call(op, Phase::Optimizer, layer, &inputs, &outputs, wait)[0],
                self.parameters[i],
            ));
        }
        if let Some((value, parameter)) = updated.filter(|_| self.recipe.epilogue) {
            let phase = if self.recipe.clip { Phase::Optimizer } else { Phase::Backward };
            let copy = self.like(parameter);
            let made =
                self.call("aten.clone.default", phase, layer, &[value], &[Some(copy)], |_| {})[0];
            self.builder.output(made);
        }
    }
}

/// Elements of a tensor, from a small number: zero, odd and even ones, over two orders of
/// magnitude.
fn elements(size: u8) -> u64 {
    [16, 0, 5, 16, 24, 32, 48, 64, 64, 96, 128, 160, 200, 256, 384, 512][usize::from(size) % 16]
}
