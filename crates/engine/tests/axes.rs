//! The axes of each operator, tried on PyTorch's own outputs: a golden call is made for consecutive
//! parts of an axis, and what its parts give is joined, or added up. Invariant: along every axis of
//! the table that can be divided this is PyTorch's output, and along every other dimension it is
//! not; with more or fewer steps along any axis, outputs have more or fewer elements where it lies.
//! A rule that is changed in any of these respects is found.
//!
//! Tier: quick, 10 s.

use std::collections::{BTreeMap, HashMap, HashSet};

use safetensors::SafeTensors;
use tightfit::graph::{self, Graph, GraphBuilder, NodeSpec, Phase, ValueSpec};
use tightfit::id::{NodeId, StorageId, ValueId};
use tightfit::operator::{Along, Axis, Kind, Linear, Operator, Part, TypedCall, Types};
use tightfit::tensor::{Argument, DType, TensorType};
use tightfit::units::Bytes;
use tightfit_engine::StepSettings;

use crate::kernel_goldens::{DEFAULT, execute, folder, settings};

/// The largest error of a call that is made in parts, and the least by which one differs that must
/// not be.
const TOLERANCE: f64 = 1e-5;
const DIFFERENCE: f64 = 1e-3;

/// A golden call, and what PyTorch made.
struct Golden<'a> {
    graph: &'a Graph,
    tensors: &'a SafeTensors<'a>,
    node: NodeId,
    operator: Operator,
    settings: StepSettings,
}

/// The bytes of a tensor in logical order, and its shape.
#[derive(Clone, Debug, PartialEq)]
struct Tensor {
    shape: Vec<u64>,
    dtype: DType,
    bytes: Vec<u8>,
}

impl Tensor {
    /// From step `start` of an axis, `count` steps.
    fn narrowed(&self, along: Along, start: u64, count: u64) -> Tensor {
        let Along { dim, extent: Linear { outer, block, .. } } = along;
        let step = block * self.dtype.size() * self.shape[dim + 1..].iter().product::<u64>();
        let row = (self.shape[dim] / outer / block * step) as usize;
        let part = (start * step) as usize..((start + count) * step) as usize;
        let bytes = if row == 0 {
            Vec::new()
        } else {
            self.bytes.chunks(row).flat_map(|row| row[part.clone()].to_vec()).collect()
        };
        let mut shape = self.shape.clone();
        shape[dim] = outer * count * block;
        Tensor { shape, dtype: self.dtype, bytes }
    }

    /// Several tensors along an axis that is repeated `outer` times in dimension `dim`; `None` if
    /// their other extents differ.
    fn joined(parts: &[Tensor], dim: usize, outer: u64) -> Option<Tensor> {
        let first = parts.first()?;
        let others = |tensor: &Tensor| {
            let mut shape = tensor.shape.clone();
            (dim < shape.len()).then(|| shape.remove(dim)).map(|_| shape)
        };
        let shape = others(first)?;
        if parts.iter().any(|part| others(part).as_ref() != Some(&shape)) {
            return None;
        }
        let outer = outer * first.shape[..dim].iter().product::<u64>();
        let mut bytes = Vec::new();
        for row in 0..outer as usize {
            for part in parts {
                let size = part.bytes.len() / outer as usize;
                bytes.extend(&part.bytes[row * size..(row + 1) * size]);
            }
        }
        let mut shape = first.shape.clone();
        shape[dim] = parts.iter().map(|part| part.shape[dim]).sum();
        Some(Tensor { shape, dtype: first.dtype, bytes })
    }

    /// The sum of several tensors; `None` if they differ in shape, or are truth values.
    fn added(parts: &[Tensor]) -> Option<Tensor> {
        let first = parts.first()?;
        if parts.iter().any(|part| part.shape != first.shape) {
            return None;
        }
        let mut sum = first.clone();
        for part in &parts[1..] {
            sum.bytes = match first.dtype {
                DType::F32 => floats(&sum.bytes)
                    .zip(floats(&part.bytes))
                    .flat_map(|(a, b)| (a + b).to_le_bytes())
                    .collect(),
                DType::I64 => integers(&sum.bytes)
                    .zip(integers(&part.bytes))
                    .flat_map(|(a, b)| a.wrapping_add(b).to_le_bytes())
                    .collect(),
                _ => return None,
            };
        }
        Some(sum)
    }

    /// The largest difference from another tensor, as a share of its largest element; infinite if
    /// shapes differ, or elements that are no floats.
    fn error(&self, other: &Tensor) -> f64 {
        if self.shape != other.shape || self.dtype != other.dtype {
            return f64::INFINITY;
        }
        if self.dtype != DType::F32 {
            return if self.bytes == other.bytes { 0.0 } else { f64::INFINITY };
        }
        let scale = floats(&other.bytes)
            .filter(|x| x.is_finite())
            .fold(0.0f64, |most, x| most.max(f64::from(x.abs())));
        let scale = if scale > 0.0 { scale } else { 1.0 };
        let differences = floats(&self.bytes).zip(floats(&other.bytes)).map(|(a, b)| {
            let same = a == b || (a.is_nan() && b.is_nan());
            if same { 0.0 } else { f64::from((a - b).abs()) / scale }
        });
        differences.fold(0.0, |most, x| if x.is_nan() { f64::INFINITY } else { most.max(x) })
    }
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.chunks(4).map(|four| f32::from_le_bytes(four.try_into().unwrap()))
}

fn integers(bytes: &[u8]) -> impl Iterator<Item = i64> {
    bytes.chunks(8).map(|eight| i64::from_le_bytes(eight.try_into().unwrap()))
}

/// Types of the values of a call for a part of an axis.
struct Typed(HashMap<ValueId, TensorType>);

impl Types for Typed {
    fn type_of(&self, value: ValueId) -> &TensorType {
        &self.0[&value]
    }
}

impl Golden<'_> {
    fn call(&self) -> TypedCall<'_> {
        let node = &self.graph.nodes()[self.node];
        TypedCall {
            args: &node.args,
            kwargs: &node.kwargs,
            outputs: &node.outputs,
            types: self.graph,
        }
    }

    /// A value as PyTorch made it; numbered elements if none is on record, as of what is only seen
    /// through a view.
    fn tensor(&self, value: ValueId) -> Tensor {
        let tensor = &self.graph.values()[value].tensor;
        let (shape, dtype) = (tensor.shape.clone(), tensor.dtype);
        let numbered = |index: u64| match dtype {
            DType::F32 => (index as f32).to_le_bytes().to_vec(),
            DType::I64 => index.to_le_bytes().to_vec(),
            _ => vec![(index % 2) as u8; dtype.size() as usize],
        };
        let bytes = match self.tensors.tensor(&format!("value.{}", value.as_u32())) {
            Ok(tensor) => tensor.data().to_vec(),
            Err(_) => (0..tensor.elements()).flat_map(numbered).collect(),
        };
        Tensor { shape, dtype, bytes }
    }

    /// The outputs of the call with other arguments and tensors; `Err` if it cannot be made.
    fn made(
        &self,
        args: &[Argument],
        tensors: &HashMap<ValueId, Tensor>,
    ) -> Result<Vec<Option<Tensor>>, String> {
        let node = &self.graph.nodes()[self.node];
        let mut builder = GraphBuilder::new("part");
        let mut ids: HashMap<ValueId, ValueId> = HashMap::new();
        let mut storages: HashMap<ValueId, StorageId> = HashMap::new();
        let mut given: HashMap<ValueId, Vec<u8>> = HashMap::new();
        let mut types = HashMap::new();
        for &value in node.inputs.iter().collect::<HashSet<_>>() {
            let tensor = &tensors[&value];
            let storage = builder.storage(Bytes(tensor.bytes.len() as u64));
            let spec = ValueSpec::contiguous(&tensor.shape, tensor.dtype, storage);
            let name = format!("given_{}", value.as_u32());
            let made =
                builder.node(NodeSpec::new(name, "placeholder", Phase::Input), &[Some(spec)]);
            ids.insert(value, made[0]);
            storages.insert(value, storage);
            given.insert(made[0], tensor.bytes.clone());
            let (shape, dtype) = (tensor.shape.clone(), tensor.dtype);
            let contiguous =
                TensorType { shape, dtype, contiguous: true, strides: None, offset: 0 };
            types.insert(value, contiguous);
        }
        let typed = Typed(types);
        let call = TypedCall { args, kwargs: &node.kwargs, outputs: &node.outputs, types: &typed };
        let row = self.operator.row();
        let derived = (row.outputs)(&call).map_err(|error| error.to_string())?;
        let mut outputs = Vec::new();
        for (index, (output, used)) in derived.iter().zip(&node.outputs).enumerate() {
            let bytes = Bytes(output.dtype.size() * output.shape.iter().product::<u64>());
            let over = match row.kind {
                Kind::View | Kind::Mutating => Some(args[0].values()[0]),
                Kind::Update => Some(args[if index == 0 { 0 } else { index + 1 }].values()[0]),
                Kind::Pure | Kind::Random => None,
            };
            let storage = over.map_or_else(|| builder.storage(bytes), |value| storages[&value]);
            let mut spec = ValueSpec::contiguous(&output.shape, output.dtype, storage);
            if let Some(place) = output.place.as_ref().filter(|_| row.kind == Kind::View) {
                (spec.contiguous, spec.strides) = (false, Some(place.strides.clone()));
                spec.offset = place.offset;
            }
            outputs.push(used.map(|_| spec));
        }
        let renamed = |argument: &Argument| argument.renamed(&|value| ids[&value]);
        let spec = NodeSpec {
            inputs: node.inputs.iter().map(|value| ids[value]).collect(),
            args: args.iter().map(renamed).collect(),
            kwargs: node.kwargs.iter().map(|(name, item)| (name.clone(), renamed(item))).collect(),
            mutates: node.mutates,
            random: node.random,
            seed_slot: node.seed_slot,
            ..NodeSpec::new("call", node.op.clone(), node.phase)
        };
        let made = builder.node(spec, &outputs);
        for &value in &made {
            builder.output(value);
        }
        let graph = builder.build().map_err(|error| error.to_string())?;
        let mut found =
            execute(&graph, &|value| given[&value].clone(), &self.settings, false, 1)?.into_iter();
        let tensor = |spec: &ValueSpec, bytes| Tensor {
            shape: spec.shape.clone(),
            dtype: spec.dtype,
            bytes,
        };
        Ok(outputs
            .iter()
            .map(|output| output.as_ref().map(|spec| tensor(spec, found.next().unwrap())))
            .collect())
    }

    /// The tensors among the arguments that lie along an axis.
    fn members(&self, axis: &Axis) -> HashMap<ValueId, Along> {
        let node = &self.graph.nodes()[self.node];
        let mut found = HashMap::new();
        for (argument, along) in node.args.iter().zip(&axis.arguments) {
            for (value, along) in argument.values().into_iter().zip(along.iter().cycle()) {
                // A vector without elements lies along no axis of a concatenation.
                if self.graph.values()[value].tensor.shape != [0] || argument.values().len() == 1 {
                    found.insert(value, *along);
                }
            }
        }
        for (name, along) in &axis.keywords {
            let (_, argument) = node.kwargs.iter().find(|(other, _)| other == name).unwrap();
            found.insert(argument.values()[0], *along);
        }
        found
    }

    /// The call for the part of an axis that begins at `start` and has `count` steps.
    fn part(&self, axis: &Axis, start: u64, count: u64) -> Result<Vec<Option<Tensor>>, String> {
        let node = &self.graph.nodes()[self.node];
        let mut tensors: HashMap<ValueId, Tensor> =
            node.inputs.iter().map(|&value| (value, self.tensor(value))).collect();
        for (value, along) in self.members(axis) {
            let whole = &tensors[&value];
            tensors.insert(value, whole.narrowed(along, start, count));
        }
        self.made(&with_literals(&node.args, axis, count), &tensors)
    }

    /// The shapes of the outputs if an axis has `extent` steps, from the types of the arguments.
    fn shapes(&self, axis: &Axis, extent: u64) -> Result<Vec<Vec<u64>>, String> {
        let node = &self.graph.nodes()[self.node];
        let typed = |value: &ValueId| (*value, self.graph.values()[*value].tensor.clone());
        let mut types: HashMap<ValueId, TensorType> = node.inputs.iter().map(typed).collect();
        for (value, along) in self.members(axis) {
            let tensor = types.get_mut(&value).unwrap();
            tensor.shape[along.dim] = along.extent.at(extent).unwrap();
            (tensor.contiguous, tensor.strides) = (true, None);
        }
        let args = with_literals(&node.args, axis, extent);
        let (kwargs, outputs) = (&node.kwargs, &node.outputs);
        let call = TypedCall { args: &args, kwargs, outputs, types: &Typed(types) };
        let derived = (self.operator.row().outputs)(&call).map_err(|error| error.to_string())?;
        Ok(derived.into_iter().map(|output| output.shape).collect())
    }

    /// PyTorch's outputs; of a view, the elements that it shows.
    fn expected(&self) -> Vec<Option<Tensor>> {
        let node = &self.graph.nodes()[self.node];
        if self.operator.row().kind == Kind::View {
            let whole = node.inputs.iter().map(|&value| (value, self.tensor(value))).collect();
            return self.made(&node.args, &whole).unwrap();
        }
        node.outputs.iter().map(|output| output.map(|value| self.tensor(value))).collect()
    }
}

/// The arguments of a call with `count` steps along an axis.
fn with_literals(args: &[Argument], axis: &Axis, count: u64) -> Vec<Argument> {
    let mut args = args.to_vec();
    for literal in &axis.literals {
        let number = Argument::Int(literal.extent.at(count).unwrap() as i64);
        match (&mut args[literal.argument], literal.item) {
            (Argument::List(items), Some(item)) => items[item] = number,
            (argument, _) => *argument = number,
        }
    }
    args
}

/// Calls `check` for every golden call of an operator of the table, with its name.
fn for_each(mut check: impl FnMut(&str, &Golden<'_>)) {
    let mut files: Vec<_> =
        std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    for path in files {
        let graph = graph::read(&std::fs::read(&path).unwrap()).unwrap();
        let bytes = std::fs::read(path.with_extension("safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let by_case = settings(&bytes);
        for node in graph.nodes().keys() {
            let Some(operator) = graph.nodes()[node].operator else { continue };
            let settings = by_case.get(&graph.nodes()[node].name).copied().unwrap_or(DEFAULT);
            let name = format!("{} {}", graph.nodes()[node].op, graph.nodes()[node].name);
            // Values that other calls make have no bytes on record.
            let is_recorded =
                |value: &ValueId| tensors.tensor(&format!("value.{}", value.as_u32())).is_ok();
            let call = &graph.nodes()[node];
            let is_view = operator.row().kind == Kind::View;
            if is_view || call.inputs.iter().chain(call.outputs.iter().flatten()).all(is_recorded) {
                check(
                    &name,
                    &Golden { graph: &graph, tensors: &tensors, node, operator, settings },
                );
            }
        }
    }
}

/// Lists of extents of parts: of one step, ragged, one that is empty.
fn divisions(extent: u64) -> Vec<Vec<u64>> {
    let mut found =
        vec![vec![1, extent - 1], vec![extent - 1, 1], vec![extent / 2, extent - extent / 2]];
    found.push(vec![extent, 0]);
    if extent <= 7 {
        found.push(vec![1; extent as usize]);
    }
    found
}

/// The outputs that parts of a call give, and the largest error of each against the whole.
fn assembled(golden: &Golden<'_>, axis: &Axis, division: &[u64]) -> Result<f64, String> {
    let mut parts = Vec::new();
    let mut start = 0;
    for &count in division {
        parts.push(golden.part(axis, start, count)?);
        start += count;
    }
    let mut worst = 0.0f64;
    for (index, (part, whole)) in axis.outputs.iter().zip(golden.expected()).enumerate() {
        let Some(whole) = whole else { continue };
        let of: Vec<Tensor> = parts.iter().map(|part| part[index].clone().unwrap()).collect();
        let found = match part {
            Part::Rows(along) => {
                for (part, count) in of.iter().zip(division) {
                    if part.shape.get(along.dim).copied() != along.extent.at(*count) {
                        return Err(format!("a part of {:?}", part.shape));
                    }
                }
                Tensor::joined(&of, along.dim, along.extent.outer)
            }
            Part::Terms => Tensor::added(&of),
            Part::Whole => return Err("an output that no part helps to make".into()),
        };
        worst = worst.max(found.ok_or("the parts do not fit")?.error(&whole));
    }
    Ok(worst)
}

#[test]
fn along_every_axis_parts_make_the_whole() {
    let (mut failures, mut tried, mut operators) = (Vec::new(), 0, HashSet::new());
    for_each(|name, golden| {
        let axes = (golden.operator.row().axes)(&golden.call()).unwrap();
        for axis in axes.into_iter().filter(|axis| axis.divides) {
            operators.insert(golden.operator);
            for division in divisions(axis.extent) {
                tried += 1;
                match assembled(golden, &axis, &division) {
                    Ok(error) if error <= TOLERANCE => {}
                    found => failures.push(format!("{name}, {division:?} of {axis:?}: {found:?}")),
                }
            }
        }
    });
    let shown =
        failures.iter().step_by(1 + failures.len() / 20).cloned().collect::<Vec<_>>().join("\n");
    assert!(failures.is_empty(), "{} of {tried} failed:\n{shown}", failures.len());
    // Drawn or counted as a whole, or of ranks; the mean of a part is no term.
    let others = [
        "aten.scalar_tensor.default",
        "aten.arange.start_step",
        "aten.mean.default",
        "aten.native_dropout.default",
        "tightfit.incoming",
        "tightfit.mean_pieces",
        "aten.as_strided.default",
    ];
    let is_of_ranks = |operator: &Operator| operator.exchanges() || operator.is_collective();
    let without: Vec<&str> = Operator::ALL
        .iter()
        .filter(|operator| !operators.contains(operator) && !is_of_ranks(operator))
        .map(|operator| operator.name())
        .collect();
    assert_eq!(without, others, "operators without an axis in any golden call");
}

/// Outputs that differ from those of the whole call, in whatever way the parts are put together.
fn differs(golden: &Golden<'_>, parts: &[Vec<Option<Tensor>>]) -> bool {
    golden.expected().into_iter().enumerate().any(|(index, whole)| {
        let Some(whole) = whole else { return false };
        let of: Vec<Tensor> = parts.iter().map(|part| part[index].clone().unwrap()).collect();
        let joined = (0..whole.shape.len()).filter_map(|dim| Tensor::joined(&of, dim, 1));
        let mut ways = joined.chain(Tensor::added(&of));
        ways.all(|found| found.error(&whole) > DIFFERENCE)
    })
}

#[test]
fn along_every_other_dimension_they_do_not() {
    // With some elements parts make the whole by chance, but not in all calls of an operator.
    let (mut found, mut tried): (BTreeMap<(&str, usize, usize), bool>, u64) = Default::default();
    for_each(|_, golden| {
        let node = &golden.graph.nodes()[golden.node];
        let axes = (golden.operator.row().axes)(&golden.call()).unwrap();
        for (position, argument) in node.args.iter().enumerate() {
            let [value] = argument.values()[..] else { continue };
            let shape = golden.tensor(value).shape;
            for (dim, &extent) in shape.iter().enumerate() {
                let lies = |axis: &Axis| {
                    let along = axis.arguments.get(position).copied().flatten();
                    axis.divides && along.is_some_and(|along| along.dim == dim)
                };
                if extent < 2 || shape.contains(&0) || axes.iter().any(lies) {
                    continue;
                }
                // All tensors that have this extent there go along.
                let along = |argument: &Argument| match argument.values()[..] {
                    [value] if golden.tensor(value).shape.get(dim) == Some(&extent) => {
                        Some(Along { dim, extent: Linear::ONE })
                    }
                    _ => None,
                };
                let axis = Axis {
                    extent,
                    divides: true,
                    arguments: node.args.iter().map(along).collect(),
                    keywords: Vec::new(),
                    literals: Vec::new(),
                    outputs: Vec::new(),
                };
                tried += 1;
                let parts = |first: u64| -> Result<Vec<_>, String> {
                    Ok(vec![
                        golden.part(&axis, 0, first)?,
                        golden.part(&axis, first, extent - first)?,
                    ])
                };
                let is_other = [1, extent / 2, extent - 1]
                    .map(|first| parts(first).map_or(true, |parts| differs(golden, &parts)))
                    .contains(&true);
                *found.entry((golden.operator.name(), position, dim)).or_default() |= is_other;
            }
        }
    });
    assert!(tried > 100, "only {tried} dimensions were tried");
    // The golden call that weights rows by how often they occur has no row twice.
    found.retain(|&(name, ..), _| name != Operator::EmbeddingDenseBackward.name());
    let alike: Vec<_> =
        found.iter().filter(|&(_, &differs)| !differs).map(|(key, _)| key).collect();
    assert!(
        alike.is_empty(),
        "parts along these dimensions of these arguments make the whole: {alike:?}"
    );
}

#[test]
fn outputs_grow_and_shrink_with_every_axis() {
    let (mut failures, mut tried) = (Vec::new(), 0);
    for_each(|name, golden| {
        let axes = (golden.operator.row().axes)(&golden.call()).unwrap();
        for axis in &axes {
            let before = golden.shapes(axis, axis.extent).unwrap();
            for extent in [axis.extent - 1, axis.extent + 1, 3 * axis.extent] {
                tried += 1;
                let mut followed = before.clone();
                for (shape, part) in followed.iter_mut().zip(&axis.outputs) {
                    if let Part::Rows(along) = part {
                        shape[along.dim] = along.extent.at(extent).unwrap();
                    }
                }
                let found = golden.shapes(axis, extent);
                if found.as_ref() != Ok(&followed) {
                    failures.push(format!("{name}, {extent} steps along {axis:?}: {found:?}"));
                }
            }
        }
    });
    let shown =
        failures.iter().step_by(1 + failures.len() / 20).cloned().collect::<Vec<_>>().join("\n");
    assert!(failures.is_empty(), "{} of {tried} failed:\n{shown}", failures.len());
}

/// What is changed in an axis, and the axis with that change.
fn mutants(golden: &Golden<'_>, axis: &Axis) -> Vec<(String, Axis)> {
    let mut found = Vec::new();
    let mut mutant = |what: String, change: &dyn Fn(&mut Axis)| {
        let mut axis = axis.clone();
        change(&mut axis);
        found.push((what, axis));
    };
    let node = &golden.graph.nodes()[golden.node];
    let rank = |value: ValueId| golden.graph.values()[value].tensor.shape.len();
    for (position, along) in axis.arguments.iter().enumerate() {
        let Some(along) = *along else { continue };
        // Without it, nothing would be known of that dimension of a call that needs it whole.
        if axis.divides {
            let what = format!("argument {position} left out");
            mutant(what, &|axis| axis.arguments[position] = None);
        }
        let [value] = node.args[position].values()[..] else { continue };
        for dim in (0..rank(value)).filter(|&dim| dim != along.dim) {
            let moved = Some(Along { dim, ..along });
            let what = format!("argument {position} along another dimension");
            mutant(what, &|axis| axis.arguments[position] = moved);
        }
    }
    for (index, part) in axis.outputs.iter().enumerate() {
        let Some(Some(value)) = node.outputs.get(index) else { continue };
        let dims = 0..rank(*value);
        match *part {
            Part::Rows(along) => {
                mutant(format!("output {index} added up"), &|axis| {
                    axis.outputs[index] = Part::Terms;
                });
                for dim in dims.filter(|&dim| dim != along.dim) {
                    let moved = Part::Rows(Along { dim, ..along });
                    let what = format!("output {index} along another dimension");
                    mutant(what, &|axis| axis.outputs[index] = moved);
                }
            }
            Part::Terms | Part::Whole => {
                for dim in dims {
                    let rows = Part::Rows(Along { dim, extent: Linear::ONE });
                    mutant(format!("output {index} joined"), &|axis| axis.outputs[index] = rows);
                }
            }
        }
    }
    if !axis.literals.is_empty() {
        mutant("its numbers left out".to_string(), &|axis| axis.literals.clear());
    }
    found
}

/// Whether the checks of this file find that an axis is wrong.
fn is_found(golden: &Golden<'_>, axis: &Axis) -> bool {
    let lies = |(value, along): (ValueId, Along)| {
        let extent = golden.graph.values()[value].tensor.shape.get(along.dim);
        extent.copied() == along.extent.at(axis.extent)
    };
    if !golden.members(axis).into_iter().all(lies) {
        return true;
    }
    if axis.divides {
        let division = [1, axis.extent - 1];
        return assembled(golden, axis, &division).map_or(true, |error| error > TOLERANCE);
    }
    let before = golden.shapes(axis, axis.extent).unwrap();
    [axis.extent - 1, axis.extent + 1, 3 * axis.extent].into_iter().any(|extent| {
        let mut followed = before.clone();
        for (shape, part) in followed.iter_mut().zip(&axis.outputs) {
            if let Part::Rows(along) = part
                && let Some(place) = shape.get_mut(along.dim)
            {
                *place = along.extent.at(extent).unwrap_or(0);
            }
        }
        golden.shapes(axis, extent) != Ok(followed)
    })
}

#[test]
fn a_wrong_rule_is_found() {
    let (mut found, mut tried): (BTreeMap<(&str, bool, String), bool>, u64) = Default::default();
    for_each(|_, golden| {
        let is_empty = |value: &ValueId| golden.graph.values()[*value].tensor.elements() == 0;
        let node = &golden.graph.nodes()[golden.node];
        if node.inputs.iter().chain(node.outputs.iter().flatten()).any(is_empty) {
            return;
        }
        for axis in (golden.operator.row().axes)(&golden.call()).unwrap() {
            for (what, mutant) in mutants(golden, &axis) {
                tried += 1;
                let key = (golden.operator.name(), axis.divides, what);
                *found.entry(key).or_default() |= is_found(golden, &mutant);
            }
        }
    });
    assert!(tried > 1000, "only {tried} were tried");
    let alike: Vec<_> = found.iter().filter(|&(_, &found)| !found).map(|(key, _)| key).collect();
    assert!(
        alike.is_empty(),
        "{} changes of {} are not found: {alike:#?}",
        alike.len(),
        found.len()
    );
}
