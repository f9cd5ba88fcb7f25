//! Small random graphs of no particular shape, one for each seed. Invariant: they obey all rules of
//! tightfit-graph/1 and use every freedom that those leave: several outputs, views of a part,
//! storages larger than what lies in them, writes in place, outputs of the step, phases in any
//! order, nodes that read nothing, placeholders that nobody reads.
#![allow(dead_code)] // each test binary uses its part

use fastrand::Rng;
use tightfit::graph::{Graph, GraphBuilder, NodeSpec, Phase, ValueSpec};
use tightfit::id::{StorageId, ValueId};
use tightfit::tensor::{Argument, DType};
use tightfit::units::{Bytes, Seconds};

/// Which freedoms a graph uses.
#[derive(Clone, Copy, Debug)]
pub struct Freedoms {
    /// Nodes write activations in place.
    pub writes: bool,
    /// An output and an input that it may take over lie in storages of different sizes.
    pub uneven: bool,
}

/// A graph whose program has at most `most` nodes.
pub fn graph(seed: u64, most: usize, freedoms: Freedoms) -> Graph {
    let mut dag = Dag {
        random: Rng::with_seed(seed),
        freedoms,
        builder: GraphBuilder::new("dag"),
        values: Vec::new(),
        names: 0,
    };
    dag.placeholders();
    let nodes = dag.random.usize(1..=most);
    let phases = dag.phases(nodes);
    for phase in phases {
        dag.node(phase);
    }
    dag.outputs();
    dag.builder.build().expect("the generator obeys the rules")
}

/// Branches that are alike, or nearly: each makes one or two tensors early, and reads them late.
/// Between the two, one node reads what the first branches made, if anything.
pub fn branches(seed: u64) -> Graph {
    let mut random = Rng::with_seed(seed);
    let mut builder = GraphBuilder::new("branches");
    let tensor = |builder: &mut GraphBuilder, bytes: u64| {
        let storage = builder.storage(Bytes(bytes));
        [Some(ValueSpec::contiguous(&[bytes], DType::U8, storage))]
    };
    let spec = |name: String, phase: Phase, inputs: Vec<ValueId>, seconds: f64| {
        let op = if phase.is_placeholder() { "placeholder" } else { "test.node" };
        NodeSpec { inputs, seconds: Some(Seconds(seconds)), ..NodeSpec::new(name, op, phase) }
    };
    let mut parameter = spec("weight".to_string(), Phase::Parameter, Vec::new(), 0.0);
    parameter.parameter = Some("weight".to_string());
    let bytes = tensor(&mut builder, 1);
    let weight = builder.node(parameter, &bytes)[0];
    let kinds: Vec<(u64, f64, bool)> = (0..2)
        .map(|_| {
            (random.u64(1..6), [1.0, 1.0, 2.0, 3.5][random.usize(..4)], random.usize(..3) == 0)
        })
        .collect();
    let branches: Vec<_> =
        (0..random.usize(2..=4)).map(|_| kinds[usize::from(random.usize(..3) == 0)]).collect();
    let mut nodes = 2 * branches.len() + 1;
    let mut made: Vec<Vec<ValueId>> = Vec::new();
    for (index, &(bytes, seconds, is_long)) in branches.iter().enumerate() {
        let outputs = tensor(&mut builder, bytes);
        let mut all = builder
            .node(spec(format!("make_{index}"), Phase::Forward, vec![weight], seconds), &outputs);
        if is_long && nodes < 10 {
            nodes += 1;
            let outputs = tensor(&mut builder, 2);
            all.extend(
                builder.node(
                    spec(format!("more_{index}"), Phase::Forward, all.clone(), 0.5),
                    &outputs,
                ),
            );
        }
        made.push(all);
    }
    let read: Vec<ValueId> =
        made.iter().take(random.usize(..3)).flat_map(|all| all.last().copied()).collect();
    let inputs = [vec![weight], read].concat();
    let outputs = tensor(&mut builder, random.u64(1..12));
    let mut last =
        builder.node(spec("middle".to_string(), Phase::Forward, inputs, 1.0), &outputs)[0];
    for (index, all) in made.into_iter().enumerate() {
        let outputs = tensor(&mut builder, 1);
        let inputs = [vec![last], all].concat();
        last =
            builder.node(spec(format!("use_{index}"), Phase::Backward, inputs, 1.0), &outputs)[0];
    }
    builder.output(last);
    builder.build().expect("the generator obeys the rules")
}

struct Tensor {
    id: ValueId,
    spec: ValueSpec,
    is_parameter: bool,
}

struct Dag {
    random: Rng,
    freedoms: Freedoms,
    builder: GraphBuilder,
    /// What may be read: values whose storage holds their version.
    values: Vec<Tensor>,
    names: u32,
}

impl Dag {
    fn one_in(&mut self, count: usize) -> bool {
        self.random.usize(..count) == 0
    }

    fn spec(&mut self, name: &str, op: &str, phase: Phase) -> NodeSpec {
        self.names += 1;
        let mut spec = NodeSpec::new(format!("{name}_{}", self.names), op, phase);
        if !phase.is_placeholder() {
            // Few different times, some of them none, so that much ties.
            spec.seconds =
                Some(Seconds([0.0, 0.5, 1.0, 1.0, 2.0, 3.5, 7.0][self.random.usize(..7)]));
            spec.workspace = Bytes(if self.one_in(3) { self.random.u64(1..4) } else { 0 });
        }
        spec
    }

    /// A tensor of `bytes` bytes in a storage of its own.
    fn fresh(&mut self, bytes: u64) -> ValueSpec {
        let spare = if self.freedoms.uneven && self.one_in(6) { self.random.u64(1..4) } else { 0 };
        let storage = self.builder.storage(Bytes(bytes + spare));
        ValueSpec::contiguous(&[bytes], DType::U8, storage)
    }

    fn bytes(&mut self) -> u64 {
        // Mostly alike, as in a stack of equal layers.
        if self.one_in(2) { 4 } else { self.random.u64(0..9) }
    }

    fn add(&mut self, spec: NodeSpec, outputs: &[Option<ValueSpec>]) {
        let is_parameter = spec.phase.is_persistent();
        let ids = self.builder.node(spec, outputs);
        let made = ids.into_iter().zip(outputs.iter().flatten().cloned());
        self.values.extend(made.map(|(id, spec)| Tensor { id, spec, is_parameter }));
    }

    fn placeholders(&mut self) {
        let mut phases = vec![Phase::Parameter, Phase::Input];
        phases.extend(
            [Phase::Input, Phase::Tangent, Phase::Buffer]
                .into_iter()
                .filter(|_| self.random.usize(..3) == 0),
        );
        for phase in phases {
            let bytes = self.bytes();
            let mut spec = self.spec(phase.name(), "placeholder", phase);
            spec.parameter = phase.is_persistent().then(|| format!("model.{}", spec.name));
            let output = ValueSpec {
                storage: self.builder.storage(Bytes(bytes)),
                ..ValueSpec::contiguous(&[bytes], DType::U8, StorageId::from_u32(0))
            };
            self.add(spec, &[Some(output)]);
        }
    }

    /// Half of the graphs go forward and back; in the others anything goes.
    fn phases(&mut self, nodes: usize) -> Vec<Phase> {
        let all = [
            Phase::Forward,
            Phase::Forward,
            Phase::Loss,
            Phase::Backward,
            Phase::Backward,
            Phase::Optimizer,
        ];
        let turn = self.random.usize(..=nodes);
        let is_wild = self.one_in(2);
        (0..nodes)
            .map(|index| match is_wild {
                true => all[self.random.usize(..all.len())],
                false if index < turn => Phase::Forward,
                false => Phase::Backward,
            })
            .collect()
    }

    /// A value that may be read, more often a new one.
    fn pick(&mut self) -> usize {
        let count = self.values.len();
        let reach = if self.one_in(2) { count } else { count.min(3) };
        count - 1 - self.random.usize(..reach)
    }

    fn node(&mut self, phase: Phase) {
        match self.random.usize(..12) {
            0 => self.view(phase),
            1 if self.freedoms.writes => self.write(phase),
            2..=5 => self.element_wise(phase),
            _ => self.anything(phase),
        }
    }

    /// The whole, or the first part.
    fn view(&mut self, phase: Phase) {
        let index = self.pick();
        let (id, mut output) = (self.values[index].id, self.values[index].spec.clone());
        if self.freedoms.uneven && self.one_in(2) {
            output.shape[0] /= 2;
        }
        let mut spec = self.spec("view", "test.view", phase);
        spec.inputs = vec![id];
        self.add(spec, &[Some(output)]);
    }

    /// A new version of one input; nobody may read the old one afterwards.
    fn write(&mut self, phase: Phase) {
        let (to, from) = (self.pick(), self.pick());
        let output = self.values[to].spec.clone();
        let mut spec = self.spec("write", "test.write_", phase);
        spec.inputs = vec![self.values[to].id];
        if from != to {
            spec.inputs.push(self.values[from].id);
        }
        spec.mutates = true;
        let is_parameter = self.values[to].is_parameter;
        self.values.retain(|value| value.spec.storage != output.storage);
        self.add(spec, &[Some(output)]);
        self.values.last_mut().expect("just made").is_parameter = is_parameter;
    }

    /// One of the operators whose output may take over an input.
    fn element_wise(&mut self, phase: Phase) {
        let first = self.pick();
        let shape = self.values[first].spec.shape.clone();
        let second = self.pick();
        let is_sum = second != first && self.values[second].spec.shape == shape;
        let mut spec = match is_sum {
            true => self.spec("add", "aten.add.Tensor", phase),
            false => self.spec("relu", "aten.relu.default", phase),
        };
        spec.inputs = vec![self.values[first].id];
        if is_sum {
            spec.inputs.push(self.values[second].id);
        }
        spec.args = spec.inputs.iter().map(|&value| Argument::Value(value)).collect();
        let output = self.fresh(shape[0]);
        self.add(spec, &[Some(output)]);
    }

    /// Up to three inputs; up to three outputs, of which some are of no use, lie in one storage, or
    /// in an input's.
    fn anything(&mut self, phase: Phase) {
        let mut spec = self.spec("node", "test.node", phase);
        let inputs = if self.one_in(8) { 0 } else { self.random.usize(1..4) };
        for _ in 0..inputs {
            let index = self.pick();
            if !spec.inputs.contains(&self.values[index].id) {
                spec.inputs.push(self.values[index].id);
            }
        }
        spec.random = self.one_in(10);
        let count = [1, 1, 2, 3][self.random.usize(..4)];
        let mut outputs: Vec<Option<ValueSpec>> = Vec::new();
        for index in 0..count {
            let sibling = outputs.iter().flatten().next().cloned();
            let output = match self.random.usize(..10) {
                0 if index > 0 => None,
                1 if sibling.is_some() => sibling,
                _ => {
                    let bytes = self.bytes();
                    Some(self.fresh(bytes))
                }
            };
            outputs.push(output);
        }
        if let Some(&input) = spec.inputs.first().filter(|_| self.random.usize(..10) == 0) {
            let beside =
                self.values.iter().find(|value| value.id == input).map(|value| value.spec.clone());
            outputs.push(beside);
        }
        self.add(spec, &outputs);
    }

    fn outputs(&mut self) {
        for index in 0..self.values.len() {
            if self.one_in(7) {
                self.builder.output(self.values[index].id);
            }
        }
    }
}
