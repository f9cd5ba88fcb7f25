//! The training step of a large Llama as a graph: shapes, operations and bytes, without weights.
//! Invariant: every node says which forward node it differentiates, and operations are counted as
//! model FLOPs are: two for each multiplication of a product, half of the attention matrix.

use tightfit::graph::{Graph, GraphBuilder, NodeSpec, Phase, ValueSpec};
use tightfit::id::{ModuleId, NodeId, ValueId};
use tightfit::tensor::DType;
use tightfit::units::{Bytes, Flops};
use tightfit_cli::failure::{Context, Result};

/// Shapes of a Llama.
#[derive(Clone, Copy, Debug)]
pub struct Llama {
    pub name: &'static str,
    pub layers: u64,
    pub width: u64,
    /// Width of all keys, and of all values.
    pub keys: u64,
    pub hidden: u64,
    pub vocabulary: u64,
    /// Tokens of a micro-batch, which is one sequence.
    pub tokens: u64,
}

/// Llama 3.1 405B: "The Llama 3 Herd of Models" (2024), table 3, with sequences of 8,192 tokens.
pub const LLAMA_405B: Llama = Llama {
    name: "llama_405b_b1_s8192",
    layers: 126,
    width: 16_384,
    keys: 1_024,
    hidden: 53_248,
    vocabulary: 128_256,
    tokens: 8_192,
};

/// A tensor.
#[derive(Clone, Copy)]
struct Tensor {
    value: ValueId,
    bytes: Bytes,
}

/// A forward call that has to be differentiated.
struct Call {
    node: NodeId,
    module: ModuleId,
    name: String,
    /// The activations that it reads; `true` if the backward call reads them again.
    reads: Vec<(Tensor, bool)>,
    weight: Option<Tensor>,
    made: Tensor,
    flops: u64,
}

struct Step {
    builder: GraphBuilder,
    calls: Vec<Call>,
}

impl Step {
    fn tensor(&mut self, shape: &[u64], dtype: DType) -> (ValueSpec, Bytes) {
        let bytes = Bytes(shape.iter().product::<u64>() * dtype.size());
        let storage = self.builder.storage(bytes);
        (ValueSpec::contiguous(shape, dtype, storage), bytes)
    }

    fn leaf(&mut self, name: &str, phase: Phase, shape: &[u64], dtype: DType) -> Tensor {
        let (made, bytes) = self.tensor(shape, dtype);
        let parameter = phase.is_persistent().then(|| name.to_string());
        let spec = NodeSpec { parameter, ..NodeSpec::new(name, "placeholder", phase) };
        let value = self.builder.node(spec, &[Some(made)])[0];
        Tensor { value, bytes }
    }

    /// A node that reads and makes tensors, with this many operations.
    fn node(&mut self, spec: NodeSpec, reads: &[Tensor], shapes: &[&[u64]]) -> Vec<Tensor> {
        let made: Vec<(ValueSpec, Bytes)> =
            shapes.iter().map(|shape| self.tensor(shape, DType::Bf16)).collect();
        let mut inputs: Vec<ValueId> = reads.iter().map(|tensor| tensor.value).collect();
        inputs.sort();
        inputs.dedup();
        let spec = NodeSpec {
            inputs,
            bytes_read: reads.iter().map(|tensor| tensor.bytes).sum(),
            bytes_written: made.iter().map(|(_, bytes)| *bytes).sum(),
            ..spec
        };
        let outputs: Vec<Option<ValueSpec>> =
            made.iter().map(|(value, _)| Some(value.clone())).collect();
        let values = self.builder.node(spec, &outputs);
        let tensors = values.into_iter().zip(made);
        tensors.map(|(value, (_, bytes))| Tensor { value, bytes }).collect()
    }

    /// A forward call; its backward call reads again what `reads` says.
    fn call(
        &mut self,
        (name, module): (String, ModuleId),
        reads: &[(Tensor, bool)],
        weight: Option<Tensor>,
        shape: &[u64],
        flops: u64,
    ) -> Tensor {
        let node = self.builder.next_node();
        let spec = NodeSpec {
            module,
            flops: Flops(flops),
            ..NodeSpec::new(name.clone(), "llama.call", Phase::Forward)
        };
        let inputs: Vec<Tensor> = reads.iter().map(|(tensor, _)| *tensor).chain(weight).collect();
        let made = self.node(spec, &inputs, &[shape])[0];
        self.calls.push(Call { node, module, name, reads: reads.to_vec(), weight, made, flops });
        made
    }
}

impl Llama {
    /// Operations of a micro-batch that count as the model's: those of the forward pass, three
    /// times.
    pub fn flops(&self) -> f64 {
        let &Llama { layers, width, keys, hidden, vocabulary, tokens, .. } = self;
        let products = 2 * width * width + 2 * width * keys + 3 * width * hidden;
        let attention = 2 * tokens * width;
        let forward = layers * (2 * products + attention) + 2 * width * vocabulary;
        3.0 * (forward * tokens) as f64
    }

    /// Forward and backward pass of a micro-batch.
    pub fn graph(&self) -> Result<Graph> {
        let &Llama { name, layers, width, keys, hidden, vocabulary, tokens } = self;
        let mut step = Step { builder: GraphBuilder::new(name), calls: Vec::new() };
        let words = step.leaf("input", Phase::Input, &[tokens], DType::I64);
        let weight = |step: &mut Step, name: String, shape: &[u64]| {
            step.leaf(&name, Phase::Parameter, shape, DType::Bf16)
        };
        // Placeholders come before all calls.
        let embedding = weight(&mut step, "embed.weight".to_string(), &[vocabulary, width]);
        let shapes: [(&str, [u64; 2]); 7] = [
            ("q", [width, width]),
            ("k", [width, keys]),
            ("v", [width, keys]),
            ("o", [width, width]),
            ("gate", [width, hidden]),
            ("up", [width, hidden]),
            ("down", [hidden, width]),
        ];
        let mut weights: Vec<Vec<Tensor>> = Vec::new();
        for layer in 0..layers {
            let own = shapes.iter().map(|(what, shape)| {
                weight(&mut step, format!("layers.{layer}.{what}.weight"), shape)
            });
            weights.push(own.collect());
        }
        let head = weight(&mut step, "head.weight".to_string(), &[width, vocabulary]);
        let embed = step.builder.module("embed");
        let of_embedding = ("embedding".to_string(), embed);
        let (wide, narrow) = ([tokens, width], [tokens, keys]);
        let mut x = step.call(of_embedding, &[(words, true)], Some(embedding), &wide, 0);
        for (layer, own) in weights.iter().enumerate() {
            let attention = step.builder.module(format!("layers.{layer}.attention"));
            let feed = step.builder.module(format!("layers.{layer}.feed_forward"));
            let at = |module, what: &str| (format!("{what}_{layer}"), module);
            let product = |width: u64, other: u64| 2 * tokens * width * other;
            let flops = product(width, width);
            let &[wq, wk, wv, wo, wg, wu, wd] = own.as_slice() else { continue };
            let n = step.call(at(attention, "norm_attention"), &[(x, true)], None, &wide, 0);
            let q = step.call(at(attention, "q"), &[(n, true)], Some(wq), &wide, flops);
            let flops = product(width, keys);
            let k = step.call(at(attention, "k"), &[(n, true)], Some(wk), &narrow, flops);
            let v = step.call(at(attention, "v"), &[(n, true)], Some(wv), &narrow, flops);
            let q = step.call(at(attention, "rotate_q"), &[(q, false)], None, &wide, 0);
            let k = step.call(at(attention, "rotate_k"), &[(k, false)], None, &narrow, 0);
            let flops = 2 * tokens * tokens * width;
            let all = [(q, true), (k, true), (v, true)];
            let a = step.call(at(attention, "attention"), &all, None, &wide, flops);
            let flops = product(width, width);
            let o = step.call(at(attention, "o"), &[(a, true)], Some(wo), &wide, flops);
            let both = [(x, false), (o, false)];
            let h = step.call(at(attention, "add_attention"), &both, None, &wide, 0);
            let n = step.call(at(feed, "norm_feed_forward"), &[(h, true)], None, &wide, 0);
            let (broad, flops) = ([tokens, hidden], product(width, hidden));
            let g = step.call(at(feed, "gate"), &[(n, true)], Some(wg), &broad, flops);
            let u = step.call(at(feed, "up"), &[(n, true)], Some(wu), &broad, flops);
            let s = step.call(at(feed, "swish"), &[(g, true), (u, true)], None, &broad, 0);
            let d = step.call(at(feed, "down"), &[(s, true)], Some(wd), &wide, flops);
            let both = [(h, false), (d, false)];
            x = step.call(at(feed, "add_feed_forward"), &both, None, &wide, 0);
        }
        let module = step.builder.module("head");
        let n = step.call(("norm".to_string(), module), &[(x, true)], None, &wide, 0);
        let flops = 2 * tokens * width * vocabulary;
        let logits = step.call(
            ("logits".to_string(), module),
            &[(n, true)],
            Some(head),
            &[tokens, vocabulary],
            flops,
        );
        let loss = step.call(("loss".to_string(), module), &[(logits, true)], None, &[1], 0);
        backward(&mut step, loss)?;
        step.builder.output(loss.value);
        step.builder.build().context("the generated graph")
    }
}

/// The derivatives of all calls, the last ones first.
fn backward(step: &mut Step, loss: Tensor) -> Result<()> {
    let calls = std::mem::take(&mut step.calls);
    let mut gradients = std::collections::BTreeMap::from([(loss.value, loss)]);
    for call in calls.iter().rev() {
        let gradient = gradients.remove(&call.made.value).context("every call is read")?;
        let saved = call.reads.iter().filter(|(_, again)| *again).map(|(tensor, _)| *tensor);
        let saved: Vec<Tensor> = saved.collect();
        let spec = |what: &str, flops: u64| NodeSpec {
            module: call.module,
            flops: Flops(flops),
            differentiates: Some(call.node),
            ..NodeSpec::new(format!("{}_{what}", call.name), "llama.derivative", Phase::Backward)
        };
        if let Some(weight) = call.weight {
            let elements = [weight.bytes.0 / DType::Bf16.size()];
            let reads: Vec<Tensor> = saved.iter().copied().chain([gradient]).collect();
            let made = step.node(spec("of_weight", call.flops), &reads, &[&elements])[0];
            step.builder.output(made.value);
        }
        // Attention's backward pass takes two and a half times as many as its forward pass.
        let is_attention = call.weight.is_none();
        let flops = if is_attention { call.flops * 5 / 2 } else { call.flops };
        // Token indices have no derivative.
        let floats = if call.name == "embedding" { &[][..] } else { call.reads.as_slice() };
        for (index, (tensor, _)) in floats.iter().enumerate() {
            let first = if index == 0 { flops } else { 0 };
            let mut reads = vec![gradient];
            match call.weight {
                Some(weight) => reads.push(weight),
                None => reads.extend(&saved),
            }
            let elements = [tensor.bytes.0 / DType::Bf16.size()];
            let what = format!("of_input_{index}");
            let mut made = step.node(spec(&what, first), &reads, &[&elements])[0];
            if let Some(other) = gradients.remove(&tensor.value) {
                let what = format!("sum_{index}");
                made = step.node(spec(&what, 0), &[made, other], &[&elements])[0];
            }
            gradients.insert(tensor.value, made);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_graph_has_the_models_parameters_and_operations() {
        let graph = LLAMA_405B.graph().unwrap();
        let nodes = graph.nodes().values();
        let parameters = nodes.clone().filter(|node| node.phase == Phase::Parameter);
        let elements: u64 = parameters
            .flat_map(|node| node.outputs.iter().flatten())
            .map(|&value| graph.values()[value].tensor.elements())
            .sum();
        // "405B trainable parameters", apart from norms.
        assert_eq!(elements / 1_000_000_000, 405);
        let forward: u64 =
            nodes.filter(|node| node.phase == Phase::Forward).map(|node| node.flops.0).sum();
        assert_eq!(3.0 * forward as f64, LLAMA_405B.flops());
        // Every derivative belongs to a parameter, and every parameter has one.
        let gradients = graph.outputs().len() - 1;
        assert_eq!(gradients, 126 * 7 + 2);
    }
}
