//! Programs whose shapes are written with the size as a symbol, so that each can be made at any
//! size. Invariant: what a program makes at a size is what its model would be captured as there.

use proptest::prelude::*;
use tightfit::graph::{Graph, GraphBuilder, NodeSpec, Phase, ValueSpec};
use tightfit::id::{StorageId, ValueId};
use tightfit::operator::{Kind, Operator, TypedCall, Types};
use tightfit::tensor::{Argument, DType, TensorType};
use tightfit::units::Bytes;

/// An extent: a multiple of the size, and more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    times: i64,
    more: i64,
}

impl Extent {
    const SIZE: Extent = Extent { times: 1, more: 0 };

    fn number(more: i64) -> Extent {
        Extent { times: 0, more }
    }

    fn at(self, size: i64) -> Option<i64> {
        let extent = self.times * size + self.more;
        // One element more or less is another matter: it may be broadcast.
        let least = if self.times == 0 { 1 } else { 2 };
        (least..=1 << 20).contains(&extent).then_some(extent)
    }

    fn plus(self, more: i64) -> Extent {
        Extent { more: self.more + more, ..self }
    }

    fn and(self, other: Extent) -> Extent {
        Extent { times: self.times + other.times, more: self.more + other.more }
    }

    /// The product, if it is still of this form.
    fn by(self, other: Extent) -> Option<Extent> {
        match (self.times, other.times) {
            (_, 0) => Some(Extent { times: self.times * other.more, more: self.more * other.more }),
            (0, _) => other.by(self),
            _ => None,
        }
    }
}

/// A step of a program; tensors, dimensions and numbers are chosen among those there are.
#[derive(Clone, Debug)]
pub struct Step {
    kind: u8,
    first: usize,
    second: usize,
    dim: usize,
    number: usize,
    flag: bool,
}

pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (0u8..17, 0usize..64, 0usize..64, 0usize..8, 0usize..8, any::<bool>()).prop_map(
        |(kind, first, second, dim, number, flag)| Step { kind, first, second, dim, number, flag },
    );
    prop::collection::vec(step, 2..14)
}

/// A graph that is being made at a size.
pub struct Making {
    builder: GraphBuilder,
    size: i64,
    /// The numbers that programs use: some are the size at which they are captured.
    numbers: [i64; 8],
    tensors: Vec<Made>,
    names: usize,
}

#[derive(Clone)]
struct Made {
    value: ValueId,
    storage: StorageId,
    shape: Vec<Extent>,
    tensor: TensorType,
}

impl Types for Making {
    fn type_of(&self, value: ValueId) -> &TensorType {
        &self.tensors.iter().find(|made| made.value == value).unwrap().tensor
    }
}

/// The graph of a program at a size, where its numbers are those of a capture at `captured`; `None`
/// if it has none.
pub fn made(steps: &[Step], captured: i64, size: i64) -> Option<Graph> {
    let numbers = [2, 3, 5, captured, captured, 2 * captured, captured - 1, captured * 3];
    let builder = GraphBuilder::new("program");
    let mut making = Making { builder, size, numbers, tensors: Vec::new(), names: 0 };
    making.placeholder(Phase::Input, &[Extent::SIZE, Extent::number(3)], DType::F32)?;
    for step in steps {
        making.step(step)?;
    }
    let last = making.tensors.last()?.value;
    making.builder.output(last);
    Some(making.builder.build().unwrap())
}

impl Making {
    fn numbers_of(&self, shape: &[Extent]) -> Option<Vec<i64>> {
        shape.iter().map(|extent| extent.at(self.size)).collect()
    }

    fn placeholder(&mut self, phase: Phase, shape: &[Extent], dtype: DType) -> Option<ValueId> {
        self.names += 1;
        let spec = NodeSpec::new(format!("given_{}", self.names), "placeholder", phase);
        let named = phase != Phase::Input;
        let spec = NodeSpec { parameter: named.then(|| spec.name.clone()), ..spec };
        self.add(spec, shape, dtype, None)
    }

    /// A call of `op`, whose output has this shape.
    fn call(
        &mut self,
        op: &str,
        args: Vec<Argument>,
        shape: &[Extent],
        dtype: DType,
    ) -> Option<()> {
        self.names += 1;
        let mut spec = NodeSpec::new(format!("call_{}", self.names), op, Phase::Forward);
        for argument in &args {
            for value in argument.values() {
                if !spec.inputs.contains(&value) {
                    spec.inputs.push(value);
                }
            }
        }
        spec.args = args;
        let over = spec.inputs.first().copied();
        self.add(spec, shape, dtype, over).map(|_| ())
    }

    fn add(
        &mut self,
        spec: NodeSpec,
        shape: &[Extent],
        dtype: DType,
        over: Option<ValueId>,
    ) -> Option<ValueId> {
        let extents: Vec<u64> = self.numbers_of(shape)?.iter().map(|&it| it as u64).collect();
        let operator = Operator::from_name(&spec.op).filter(|_| !spec.phase.is_placeholder());
        let place = operator.and_then(|operator| {
            let row = operator.row();
            let outputs = [None];
            let call =
                TypedCall { args: &spec.args, kwargs: &[], outputs: &outputs, types: &*self };
            let found = (row.outputs)(&call).unwrap().remove(0);
            assert_eq!(found.shape, extents, "{} is not written as the operator is", spec.op);
            found.place
        });
        let is_view = place.is_some() && operator.is_some_and(|it| it.row().kind == Kind::View);
        let (storage, mut value) = match over.filter(|_| is_view) {
            Some(over) => {
                let storage = self.tensors.iter().find(|it| it.value == over).unwrap().storage;
                (storage, ValueSpec::contiguous(&extents, dtype, storage))
            }
            None => {
                let bytes = dtype.size() * extents.iter().product::<u64>();
                let storage = self.builder.storage(Bytes(bytes));
                (storage, ValueSpec::contiguous(&extents, dtype, storage))
            }
        };
        if let Some(place) = place.filter(|_| is_view) {
            value.contiguous = is_contiguous(&extents, &place.strides);
            value.strides = (!value.contiguous).then_some(place.strides);
            value.offset = place.offset;
        }
        let tensor = TensorType {
            shape: extents,
            dtype,
            contiguous: value.contiguous,
            strides: value.strides.clone(),
            offset: value.offset,
        };
        let value = self.builder.node(spec, &[Some(value)])[0];
        self.tensors.push(Made { value, storage, shape: shape.to_vec(), tensor });
        Some(value)
    }

    /// One step; nothing where it cannot be done.
    fn step(&mut self, step: &Step) -> Option<()> {
        let floats: Vec<Made> =
            self.tensors.iter().filter(|made| made.tensor.dtype == DType::F32).cloned().collect();
        let x = floats[step.first % floats.len()].clone();
        let rank = x.shape.len();
        let number = self.numbers[step.number];
        let free = if step.flag { Extent::SIZE } else { Extent::number(number) };
        let value = Argument::Value(x.value);
        let int = |number: i64| Argument::Int(number);
        let dim = if rank == 0 { 0 } else { step.dim % rank };
        match step.kind {
            0 => self.call("aten.relu.default", vec![value], &x.shape, DType::F32),
            1 => {
                let alike = floats.iter().filter(|made| made.shape == x.shape);
                let others: Vec<&Made> = alike.collect();
                let other = Argument::Value(others[step.second % others.len()].value);
                self.call("aten.add.Tensor", vec![value, other], &x.shape, DType::F32)
            }
            2 if rank == 2 => {
                let shape = [x.shape[1], Extent::number(number)];
                if shape[0].times != 0 {
                    return Some(());
                }
                let weight = self.placeholder(Phase::Parameter, &shape, DType::F32)?;
                let args = vec![value, Argument::Value(weight)];
                self.call("aten.mm.default", args, &[x.shape[0], shape[1]], DType::F32)
            }
            3 if rank > 1 && dim + 1 < rank && x.tensor.contiguous => {
                let Some(merged) = x.shape[dim].by(x.shape[dim + 1]) else { return Some(()) };
                let mut shape = x.shape.clone();
                shape.splice(dim..dim + 2, [merged]);
                self.viewed(&x, &shape, step.flag.then_some(dim))
            }
            4 if rank > 0 && x.tensor.contiguous => {
                // A factor of a number, or of the times of the size.
                let (extent, factor) = (x.shape[dim], [2, 3, number][step.second % 3]);
                if extent.times % factor != 0 || extent.more % factor != 0 {
                    return Some(());
                }
                let part = Extent { times: extent.times / factor, more: extent.more / factor };
                // Where both can be exchanged, what lies where the size does is taken for it; that
                // a program shuffles elements instead cannot be seen.
                if extent.times != 0 && gcd(part.at(self.numbers[3])?, factor) > 1 {
                    return Some(());
                }
                let mut shape = x.shape.clone();
                let factor = Extent::number(factor);
                shape.splice(dim..=dim, if step.flag { [part, factor] } else { [factor, part] });
                self.viewed(&x, &shape, None)
            }
            5 if rank > 1 => {
                let mut order: Vec<usize> = (0..rank).collect();
                order.swap(dim, step.second % rank);
                let shape: Vec<Extent> = order.iter().map(|&dim| x.shape[dim]).collect();
                let dims = order.iter().map(|&dim| int(dim as i64)).collect();
                let args = vec![value, Argument::List(dims)];
                self.call("aten.permute.default", args, &shape, DType::F32)
            }
            6 => self.call("aten.clone.default", vec![value], &x.shape, DType::F32),
            7 => {
                let mut shape = x.shape.clone();
                shape.insert(0, Extent::number(1));
                self.call("aten.unsqueeze.default", vec![value, int(0)], &shape, DType::F32)?;
                let unsqueezed = self.tensors.last()?.value;
                shape[0] = free;
                let size = self.numbers_of(&shape)?.into_iter().map(int).collect();
                let args = vec![Argument::Value(unsqueezed), Argument::List(size)];
                self.call("aten.expand.default", args, &shape, DType::F32)
            }
            8 => {
                let shape = [free, Extent::number(3)];
                let size = self.numbers_of(&shape)?.into_iter().map(int).collect();
                let args = vec![Argument::List(size), Argument::Float(0.5)];
                self.call("aten.full.default", args, &shape, DType::F32)
            }
            9 if rank > 0 => {
                // Counted from the start, as a number or not at all, or back from the end.
                let (extent, lost) = (x.shape[dim], 1 + (step.second % 2) as i64);
                let kept = extent.plus(-lost);
                let (start, end, kept) = match step.number % 4 {
                    0 => (lost, extent.at(self.size)?, kept),
                    1 => (lost, i64::MAX, kept),
                    2 => (0, -lost, kept),
                    _ => (0, kept.at(self.size)?, kept),
                };
                let args = vec![value, int(dim as i64), int(start), int(end)];
                let mut shape = x.shape.clone();
                shape[dim] = kept;
                self.call("aten.slice.Tensor", args, &shape, DType::F32)
            }
            10 if rank > 0 => {
                let fits = |other: &&Made| {
                    other.shape.len() == rank
                        && (0..rank).all(|at| at == dim || other.shape[at] == x.shape[at])
                };
                let others: Vec<&Made> = floats.iter().filter(fits).collect();
                let other = others[step.second % others.len()];
                let parts = vec![value, Argument::Value(other.value)];
                let mut shape = x.shape.clone();
                shape[dim] = shape[dim].and(other.shape[dim]);
                let args = vec![Argument::List(parts), int(dim as i64)];
                self.call("aten.cat.default", args, &shape, DType::F32)
            }
            11 if rank > 1 => {
                let mut shape = x.shape.clone();
                let gone = shape.remove(dim);
                let args = vec![value, Argument::List(vec![int(dim as i64)])];
                self.call("aten.sum.dim_IntList", args, &shape, DType::F32)?;
                // As a mean that the model computes by itself, or a factor of its own.
                let count = if step.flag { gone.at(self.size)? } else { number };
                let sum = Argument::Value(self.tensors.last()?.value);
                let args = match step.second % 3 {
                    0 => return Some(()),
                    1 => vec![sum, int(count)],
                    _ => vec![sum, Argument::Float(count as f64)],
                };
                self.call("aten.div.Tensor", args, &shape, DType::F32)
            }
            12 if rank > 1 => {
                let mut shape = x.shape.clone();
                shape.remove(dim);
                let args = vec![value, Argument::List(vec![int(dim as i64)])];
                self.call("aten.mean.dim", args, &shape, DType::F32)
            }
            13 => {
                let args = vec![int(0), int(free.at(self.size)?)];
                self.call("aten.arange.start_step", args, &[free], DType::I64)
            }
            14 if rank > 0 => {
                let indices: Vec<Made> = self
                    .tensors
                    .iter()
                    .filter(|made| made.tensor.dtype == DType::I64 && made.shape == [x.shape[0]])
                    .cloned()
                    .collect();
                if indices.is_empty() {
                    return Some(());
                }
                let index = &indices[step.second % indices.len()];
                let args = vec![value, Argument::List(vec![Argument::Value(index.value)])];
                self.call("aten.index.Tensor", args, &x.shape, DType::F32)
            }
            15 => {
                let shape = [Extent::number(number), Extent::number(3)];
                self.placeholder(Phase::Parameter, &shape, DType::F32).map(|_| ())
            }
            16 => {
                // All tensors of the batch that have the size have another one together.
                if free == Extent::number(self.numbers[3]) {
                    return Some(());
                }
                let shape = [free, Extent::number(3)];
                self.placeholder(Phase::Input, &shape, DType::F32).map(|_| ())
            }
            _ => Some(()),
        }
    }

    /// A view of another shape, one of whose extents may be left to be inferred.
    fn viewed(&mut self, x: &Made, shape: &[Extent], inferred: Option<usize>) -> Option<()> {
        let mut size = self.numbers_of(shape)?;
        if let Some(dim) = inferred {
            size[dim] = -1;
        }
        let size = size.into_iter().map(Argument::Int).collect();
        let args = vec![Argument::Value(x.value), Argument::List(size)];
        self.call("aten.view.default", args, shape, DType::F32)
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn is_contiguous(shape: &[u64], strides: &[u64]) -> bool {
    let mut next = 1;
    shape.iter().zip(strides).rev().all(|(&extent, &stride)| {
        let follows = extent == 1 || stride == next;
        next *= extent;
        follows
    })
}
