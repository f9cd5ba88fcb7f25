//! Random training steps that can be executed. Invariant: whatever the recipe, the graph obeys
//! tightfit-graph/1, calls only operators that have a kernel, and its backward pass is the
//! derivative of its forward pass.
//!
//! A [`Recipe`] is plain data of small numbers, so that a failing case shrinks to a few layers.

use proptest::prelude::*;
use tightfit::graph::{Graph, GraphBuilder, NodeSpec, Phase, ValueSpec};
use tightfit::id::ValueId;
use tightfit::tensor::{Argument, DType, contiguous_strides};
use tightfit::units::Bytes;

/// What a layer computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Its output is saved.
    Relu,
    /// Its input is saved.
    Gelu,
    /// Nothing is saved.
    Add,
    /// Both operands are saved.
    Mul,
    /// A product with a parameter, of another width than its input.
    Linear,
    /// The same storage with rows and columns exchanged.
    Transpose,
    /// Input and statistics are saved.
    LayerNorm,
    /// The mask is saved.
    Dropout,
}

/// One layer. Indices wrap around, so every number is legal.
#[derive(Clone, Copy, Debug)]
pub struct Layer {
    /// What it computes.
    pub kind: Kind,
    /// First operand: how many activations back.
    pub first: u8,
    /// Second operand: how many activations back, if that one has the same shape.
    pub second: u8,
    /// Width of what a product makes.
    pub width: u8,
}

/// How parameters are updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    Sgd,
    Momentum,
    Adamw,
}

/// The recipe of a step.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// Rows and columns of the batch.
    pub batch: (u8, u8),
    pub layers: Vec<Layer>,
    pub update: Update,
    /// Activations that outlive the step: how many activations back.
    pub kept: Vec<u8>,
    /// Whether gradients outlive the step.
    pub gradients: bool,
}

/// Recipes of up to `most` layers.
pub fn recipes(most: usize) -> impl Strategy<Value = Recipe> {
    let update = prop_oneof![Just(Update::Sgd), Just(Update::Momentum), Just(Update::Adamw)];
    let batch = prop_oneof![2 => (1u8..20, 1u8..20), 1 => (30u8..70, 1u8..40)];
    let kept = prop_oneof![2 => Just(vec![]), 1 => prop::collection::vec(0u8..20, 1..3)];
    (batch, prop::collection::vec(layers(), 1..=most), update, kept, prop::bool::weighted(0.2))
        .prop_map(|(batch, layers, update, kept, gradients)| Recipe {
            batch,
            layers,
            update,
            kept,
            gradients,
        })
}

fn layers() -> impl Strategy<Value = Layer> {
    let kind = prop_oneof![
        4 => Just(Kind::Relu),
        4 => Just(Kind::Gelu),
        3 => Just(Kind::Add),
        3 => Just(Kind::Mul),
        6 => Just(Kind::Linear),
        2 => Just(Kind::Transpose),
        4 => Just(Kind::LayerNorm),
        5 => Just(Kind::Dropout),
    ];
    // Mostly the newest activation, sometimes an older one: chains with skips.
    let back = || prop_oneof![3 => Just(0u8), 1 => 0u8..6];
    // Mostly one width: if one tensor dwarfs all others, there is nothing to plan.
    let width = prop_oneof![3 => Just(16u8), 1 => 1u8..40];
    (kind, back(), back(), width).prop_map(|(kind, first, second, width)| Layer {
        kind,
        first,
        second,
        width,
    })
}

/// A value with what the next call needs to know of it.
#[derive(Clone, Debug)]
struct Tensor {
    id: ValueId,
    spec: ValueSpec,
}

/// What the backward pass needs of a layer.
struct Done {
    kind: Kind,
    inputs: Vec<usize>,
    saved: Vec<Tensor>,
    parameters: Vec<usize>,
}

struct Emitter {
    builder: GraphBuilder,
    count: u32,
    slots: u32,
    parameters: Vec<Tensor>,
}

impl Recipe {
    /// The graph.
    pub fn graph(&self) -> Graph {
        let mut emitter = Emitter {
            builder: GraphBuilder::new("random"),
            count: 0,
            slots: 0,
            parameters: Vec::new(),
        };
        let batch = [u64::from(self.batch.0), u64::from(self.batch.1)];
        let mut activations = vec![emitter.placeholder("input", Phase::Input, None, &batch)];
        // All parameters first, as in exports.
        let mut shapes = vec![batch];
        let mut plan = Vec::new();
        for layer in &self.layers {
            let first = back(&shapes, layer.first);
            let second = Some(back(&shapes, layer.second))
                .filter(|&second| shapes[second] == shapes[first])
                .unwrap_or(first);
            let [rows, columns] = shapes[first];
            let width = u64::from(layer.width);
            let parameters = match layer.kind {
                Kind::Linear => vec![emitter.parameter(&[columns, width])],
                Kind::LayerNorm => {
                    vec![emitter.parameter(&[columns]), emitter.parameter(&[columns])]
                }
                _ => vec![],
            };
            shapes.push(match layer.kind {
                Kind::Linear => [rows, width],
                Kind::Transpose => [columns, rows],
                _ => [rows, columns],
            });
            plan.push((layer.kind, first, second, parameters));
        }
        let states = emitter.states(self.update);
        let mut done = Vec::new();
        for (kind, first, second, parameters) in plan {
            let layer = emitter.forward(kind, &activations, first, second, parameters);
            activations.push(layer.saved[0].clone());
            done.push(layer);
        }
        let loss = emitter.call(
            "aten.sum.default",
            Phase::Loss,
            &[&activations[done.len()]],
            vec![],
            &[&[]],
        );
        emitter.builder.output(loss[0].id);
        let gradients = emitter.backward(&activations, &done);
        emitter.update(self.update, &gradients, &states);
        for &kept in &self.kept {
            // The batch is not kept: a session fills it again.
            emitter
                .builder
                .output(activations[activations.len() - 1 - usize::from(kept) % done.len()].id);
        }
        for gradient in gradients.iter().flatten().filter(|_| self.gradients) {
            emitter.builder.output(gradient.id);
        }
        emitter.builder.build().unwrap()
    }
}

fn back<T>(all: &[T], steps: u8) -> usize {
    all.len() - 1 - usize::from(steps) % all.len()
}

impl Emitter {
    fn name(&mut self, op: &str) -> String {
        self.count += 1;
        format!("{}_{}", op.split('.').nth(1).unwrap_or(op), self.count)
    }

    fn placeholder(
        &mut self,
        name: &str,
        phase: Phase,
        parameter: Option<String>,
        shape: &[u64],
    ) -> Tensor {
        let storage = self.builder.storage(Bytes(4 * shape.iter().product::<u64>()));
        let spec = ValueSpec::contiguous(shape, DType::F32, storage);
        let node = NodeSpec { parameter, ..NodeSpec::new(name, "placeholder", phase) };
        Tensor { id: self.builder.node(node, &[Some(spec.clone())])[0], spec }
    }

    fn parameter(&mut self, shape: &[u64]) -> usize {
        let name = format!("p{}", self.parameters.len());
        let parameter = self.placeholder(&name, Phase::Parameter, Some(name.clone()), shape);
        self.parameters.push(parameter);
        self.parameters.len() - 1
    }

    /// State of each parameter.
    fn states(&mut self, update: Update) -> Vec<Vec<Tensor>> {
        let kinds: &[&str] = match update {
            Update::Sgd => &[],
            Update::Momentum => &["momentum"],
            Update::Adamw => &["exp_avg", "exp_avg_sq"],
        };
        let shapes: Vec<Vec<u64>> =
            self.parameters.iter().map(|parameter| parameter.spec.shape.clone()).collect();
        let mut state = |index: usize, kind: &str, shape: &[u64]| {
            self.placeholder(
                &format!("p{index}_{kind}"),
                Phase::State,
                Some(format!("p{index}.{kind}")),
                shape,
            )
        };
        shapes
            .iter()
            .enumerate()
            .map(|(index, shape)| kinds.iter().map(|kind| state(index, kind, shape)).collect())
            .collect()
    }

    fn node(
        &mut self,
        mut node: NodeSpec,
        inputs: &[&Tensor],
        rest: Vec<Argument>,
        outputs: &[ValueSpec],
    ) -> Vec<Tensor> {
        for input in inputs {
            if !node.inputs.contains(&input.id) {
                node.inputs.push(input.id);
            }
        }
        node.args = inputs.iter().map(|input| Argument::Value(input.id)).chain(rest).collect();
        let made: Vec<Option<ValueSpec>> = outputs.iter().cloned().map(Some).collect();
        self.builder
            .node(node, &made)
            .into_iter()
            .zip(outputs)
            .map(|(id, spec)| Tensor { id, spec: spec.clone() })
            .collect()
    }

    fn fresh(&mut self, shape: &[u64], dtype: DType) -> ValueSpec {
        let storage = self.builder.storage(Bytes(dtype.size() * shape.iter().product::<u64>()));
        ValueSpec::contiguous(shape, dtype, storage)
    }

    /// A call whose tensors come first and whose outputs are new.
    fn call(
        &mut self,
        op: &str,
        phase: Phase,
        inputs: &[&Tensor],
        rest: Vec<Argument>,
        shapes: &[&[u64]],
    ) -> Vec<Tensor> {
        let outputs: Vec<ValueSpec> =
            shapes.iter().map(|shape| self.fresh(shape, DType::F32)).collect();
        let name = self.name(op);
        self.node(NodeSpec::new(name, op, phase), inputs, rest, &outputs)
    }

    fn transpose(&mut self, phase: Phase, x: &Tensor) -> Tensor {
        let old = x.spec.strides.clone().unwrap_or_else(|| contiguous_strides(&x.spec.shape));
        let (shape, strides) = (vec![x.spec.shape[1], x.spec.shape[0]], vec![old[1], old[0]]);
        let contiguous = strides == contiguous_strides(&shape);
        let spec = ValueSpec {
            shape,
            strides: Some(strides).filter(|_| !contiguous),
            contiguous,
            ..x.spec.clone()
        };
        let name = self.name("aten.permute.default");
        let order = Argument::List(vec![Argument::Int(1), Argument::Int(0)]);
        self.node(NodeSpec::new(name, "aten.permute.default", phase), &[x], vec![order], &[spec])
            .remove(0)
    }

    fn contiguous(&mut self, phase: Phase, x: &Tensor) -> Tensor {
        if x.spec.contiguous {
            return x.clone();
        }
        let format =
            ("memory_format".to_string(), Argument::Text("torch.contiguous_format".to_string()));
        let name = self.name("aten.clone.default");
        let output = self.fresh(&x.spec.shape, DType::F32);
        let node =
            NodeSpec { kwargs: vec![format], ..NodeSpec::new(name, "aten.clone.default", phase) };
        self.node(node, &[x], vec![], &[output]).remove(0)
    }

    fn forward(
        &mut self,
        kind: Kind,
        activations: &[Tensor],
        first: usize,
        second: usize,
        parameters: Vec<usize>,
    ) -> Done {
        let phase = Phase::Forward;
        let (x, y) = (activations[first].clone(), activations[second].clone());
        let [rows, columns] = x.spec.shape[..] else {
            unreachable!("activations have two dimensions")
        };
        let shape: &[u64] = &[rows, columns];
        let (inputs, saved) = match kind {
            Kind::Relu => {
                (vec![first], self.call("aten.relu.default", phase, &[&x], vec![], &[shape]))
            }
            Kind::Gelu => {
                (vec![first], self.call("aten.gelu.default", phase, &[&x], vec![], &[shape]))
            }
            Kind::Add => (
                vec![first, second],
                self.call("aten.add.Tensor", phase, &[&x, &y], vec![], &[shape]),
            ),
            Kind::Mul => (
                vec![first, second],
                self.call("aten.mul.Tensor", phase, &[&x, &y], vec![], &[shape]),
            ),
            Kind::Linear => {
                let parameter = self.parameters[parameters[0]].clone();
                let width = parameter.spec.shape[1];
                (
                    vec![first],
                    self.call(
                        "aten.mm.default",
                        phase,
                        &[&x, &parameter],
                        vec![],
                        &[&[rows, width]],
                    ),
                )
            }
            Kind::Transpose => (vec![first], vec![self.transpose(phase, &x)]),
            Kind::LayerNorm => {
                let x = self.contiguous(phase, &x);
                let (weight, bias) = (
                    self.parameters[parameters[0]].clone(),
                    self.parameters[parameters[1]].clone(),
                );
                let shapes: [&[u64]; 3] = [shape, &[rows, 1], &[rows, 1]];
                let outputs: Vec<ValueSpec> =
                    shapes.iter().map(|shape| self.fresh(shape, DType::F32)).collect();
                let name = self.name("aten.native_layer_norm.default");
                let mut node = NodeSpec::new(name, "aten.native_layer_norm.default", phase);
                node.inputs = vec![x.id, weight.id, bias.id];
                node.args = vec![
                    value(&x),
                    sizes(&[columns]),
                    value(&weight),
                    value(&bias),
                    Argument::Float(1e-5),
                ];
                let made: Vec<Option<ValueSpec>> = outputs.iter().cloned().map(Some).collect();
                let ids = self.builder.node(node, &made);
                let mut saved: Vec<Tensor> =
                    ids.into_iter().zip(outputs).map(|(id, spec)| Tensor { id, spec }).collect();
                saved.push(x);
                (vec![first], saved)
            }
            Kind::Dropout => {
                let x = self.contiguous(phase, &x);
                let outputs = [self.fresh(shape, DType::F32), self.fresh(shape, DType::Bool)];
                let name = self.name("aten.native_dropout.default");
                let node = NodeSpec {
                    random: true,
                    seed_slot: Some(self.slots),
                    ..NodeSpec::new(name, "aten.native_dropout.default", phase)
                };
                self.slots += 1;
                (
                    vec![first],
                    self.node(
                        node,
                        &[&x],
                        vec![Argument::Float(0.25), Argument::Bool(true)],
                        &outputs,
                    ),
                )
            }
        };
        Done { kind, inputs, saved, parameters }
    }

    /// Gradients of all parameters; `None` if the loss does not depend on one.
    fn backward(&mut self, activations: &[Tensor], done: &[Done]) -> Vec<Option<Tensor>> {
        let phase = Phase::Backward;
        let mut of_parameter: Vec<Option<Tensor>> = vec![None; self.parameters.len()];
        let mut of: Vec<Option<Tensor>> = vec![None; activations.len()];
        let shape = activations[done.len()].spec.shape.clone();
        let ones = self.fresh(&shape, DType::F32);
        let name = self.name("aten.full.default");
        let node = NodeSpec {
            args: vec![sizes(&shape), Argument::Float(1.0)],
            ..NodeSpec::new(name, "aten.full.default", phase)
        };
        let id = self.builder.node(node, &[Some(ones.clone())])[0];
        of[done.len()] = Some(Tensor { id, spec: ones });
        for (index, layer) in done.iter().enumerate().rev() {
            let Some(gradient) = of[index + 1].take() else { continue };
            let x = activations[layer.inputs[0]].clone();
            let shape: &[u64] = &x.spec.shape.clone();
            let into: Vec<Tensor> = match layer.kind {
                Kind::Relu => {
                    let zero = vec![Argument::Int(0)];
                    self.call(
                        "aten.threshold_backward.default",
                        phase,
                        &[&gradient, &layer.saved[0]],
                        zero,
                        &[shape],
                    )
                }
                Kind::Gelu => self.call(
                    "aten.gelu_backward.default",
                    phase,
                    &[&gradient, &x],
                    vec![],
                    &[shape],
                ),
                Kind::Add => vec![gradient.clone(), gradient],
                Kind::Mul => {
                    let y = activations[layer.inputs[1]].clone();
                    let mut into =
                        self.call("aten.mul.Tensor", phase, &[&gradient, &y], vec![], &[shape]);
                    into.extend(self.call(
                        "aten.mul.Tensor",
                        phase,
                        &[&gradient, &x],
                        vec![],
                        &[shape],
                    ));
                    into
                }
                Kind::Linear => {
                    let parameter = self.parameters[layer.parameters[0]].clone();
                    let turned = self.transpose(phase, &x);
                    let size = parameter.spec.shape.clone();
                    of_parameter[layer.parameters[0]] = Some(
                        self.call(
                            "aten.mm.default",
                            phase,
                            &[&turned, &gradient],
                            vec![],
                            &[&size],
                        )
                        .remove(0),
                    );
                    let turned = self.transpose(phase, &parameter);
                    self.call("aten.mm.default", phase, &[&gradient, &turned], vec![], &[shape])
                }
                Kind::Transpose => vec![self.transpose(phase, &gradient)],
                Kind::LayerNorm => self.norm_backward(layer, &gradient, &mut of_parameter),
                Kind::Dropout => {
                    let gradient = self.contiguous(phase, &gradient);
                    let scale = vec![Argument::Float(1.0 / 0.75)];
                    self.call(
                        "aten.native_dropout_backward.default",
                        phase,
                        &[&gradient, &layer.saved[1]],
                        scale,
                        &[shape],
                    )
                }
            };
            for (&input, part) in layer.inputs.iter().zip(into) {
                of[input] = Some(match of[input].take() {
                    Some(sum) => self
                        .call("aten.add.Tensor", phase, &[&sum, &part], vec![], &[&part.spec.shape])
                        .remove(0),
                    None => part,
                });
            }
        }
        of_parameter
    }

    fn norm_backward(
        &mut self,
        layer: &Done,
        gradient: &Tensor,
        of_parameter: &mut [Option<Tensor>],
    ) -> Vec<Tensor> {
        let gradient = self.contiguous(Phase::Backward, gradient);
        let [_, mean, rstd, x] = &layer.saved[..] else {
            unreachable!("a norm saves its statistics and its input")
        };
        let (weight, bias) = (
            self.parameters[layer.parameters[0]].clone(),
            self.parameters[layer.parameters[1]].clone(),
        );
        let columns = x.spec.shape[1];
        let shapes: [&[u64]; 3] = [&x.spec.shape, &[columns], &[columns]];
        let outputs: Vec<ValueSpec> =
            shapes.iter().map(|shape| self.fresh(shape, DType::F32)).collect();
        let op = "aten.native_layer_norm_backward.default";
        let name = self.name(op);
        let mut node = NodeSpec::new(name, op, Phase::Backward);
        node.inputs = vec![gradient.id, x.id, mean.id, rstd.id, weight.id, bias.id];
        let all = Argument::List(vec![Argument::Bool(true); 3]);
        node.args = vec![
            value(&gradient),
            value(x),
            sizes(&[columns]),
            value(mean),
            value(rstd),
            value(&weight),
            value(&bias),
            all,
        ];
        let made: Vec<Option<ValueSpec>> = outputs.iter().cloned().map(Some).collect();
        let mut parts = self
            .builder
            .node(node, &made)
            .into_iter()
            .zip(outputs)
            .map(|(id, spec)| Tensor { id, spec });
        let into = parts.next().into_iter().collect();
        for (&parameter, part) in layer.parameters.iter().zip(parts) {
            of_parameter[parameter] = Some(part);
        }
        into
    }

    fn update(&mut self, update: Update, gradients: &[Option<Tensor>], states: &[Vec<Tensor>]) {
        for (index, (gradient, states)) in gradients.iter().zip(states).enumerate() {
            let Some(gradient) = gradient else { continue };
            let parameter = self.parameters[index].clone();
            let number = |name: &str, x: f64| (name.to_string(), Argument::Float(x));
            let (op, kwargs) = match update {
                Update::Sgd => {
                    ("tightfit.sgd", vec![number("momentum", 0.0), number("weight_decay", 0.0)])
                }
                Update::Momentum => {
                    ("tightfit.sgd", vec![number("momentum", 0.9), number("weight_decay", 0.01)])
                }
                Update::Adamw => {
                    let betas = Argument::List(vec![Argument::Float(0.9), Argument::Float(0.999)]);
                    (
                        "tightfit.adamw",
                        vec![
                            ("betas".to_string(), betas),
                            number("eps", 1e-8),
                            number("weight_decay", 0.01),
                        ],
                    )
                }
            };
            let node = NodeSpec {
                mutates: true,
                kwargs,
                ..NodeSpec::new(format!("update_p{index}"), op, Phase::Optimizer)
            };
            let inputs: Vec<&Tensor> = [&parameter, gradient].into_iter().chain(states).collect();
            let outputs: Vec<ValueSpec> =
                [&parameter].into_iter().chain(states).map(|tensor| tensor.spec.clone()).collect();
            self.node(node, &inputs, vec![], &outputs);
        }
    }
}

fn value(tensor: &Tensor) -> Argument {
    Argument::Value(tensor.id)
}

fn sizes(shape: &[u64]) -> Argument {
    Argument::List(shape.iter().map(|&extent| Argument::Int(extent as i64)).collect())
}
