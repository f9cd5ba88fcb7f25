//! What a kernel is given when it is compiled: its node, its tensors, its workspace. Invariant: an
//! argument is returned as the kind of thing that the kernel requests, or refused by an error that
//! says which argument it is; and a workspace is as large as the kernel says it needs.

use tightfit::graph::Node;
use tightfit::tensor::Argument;

use crate::kernels::KernelError;
use crate::kernels::tensor::{Element, Raw, Tensor, Typed};

/// A node with its operands bound.
pub(crate) struct Operands<'a> {
    pub node: &'a Node,
    /// Tensors of [`Node::inputs`], in that order.
    pub inputs: Vec<Tensor>,
    /// Tensors of [`Node::outputs`].
    pub outputs: Vec<Option<Tensor>>,
    /// The schedule's scratch memory; kernels get it from [`Operands::workspace`].
    pub scratch: Option<Scratch>,
}

/// Scratch memory that a schedule gives to a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scratch {
    /// First byte, from the start of the slab.
    pub address: usize,
    /// Size in bytes.
    pub bytes: usize,
}

/// A workspace that is as large as the kernel requested.
#[derive(Clone, Copy, Debug)]
pub(super) struct Workspace {
    address: usize,
}

impl Workspace {
    /// Its first element within a slab that starts at `base`.
    pub fn raw<T: Element>(self, base: *mut u8) -> Raw<T> {
        Raw(base.wrapping_add(self.address).cast())
    }
}

/// Bytes of `buffers` × `rows` × `columns` 32-bit floats; saturates if there are too many to count.
pub(super) fn float_bytes(buffers: usize, rows: usize, columns: usize) -> usize {
    buffers.saturating_mul(rows).saturating_mul(columns).saturating_mul(size_of::<f32>())
}

impl Operands<'_> {
    /// The tensor that `argument` mentions.
    pub fn tensor_of(&self, argument: &Argument) -> Option<&Tensor> {
        let Argument::Value(value) = argument else { return None };
        self.node.inputs.iter().position(|input| input == value).map(|index| &self.inputs[index])
    }

    /// Positional argument `index`, if it is a tensor.
    pub fn optional(&self, index: usize) -> Option<&Tensor> {
        self.node.args.get(index).and_then(|argument| self.tensor_of(argument))
    }

    pub fn argument(&self, index: usize, name: &str) -> Option<&Argument> {
        self.node.args.get(index).or_else(|| self.node.kwarg(name))
    }

    pub fn wrong(&self, index: usize, wanted: &'static str) -> KernelError {
        let found = self
            .node
            .args
            .get(index)
            .map_or("missing".to_string(), |argument| format!("{argument:?}"));
        KernelError::Argument { index, found, wanted }
    }

    /// Positional argument `index`, a tensor.
    pub fn tensor(&self, index: usize) -> Result<&Tensor, KernelError> {
        self.optional(index).ok_or_else(|| self.wrong(index, "a tensor"))
    }

    /// Positional argument `index`, a tensor of 32-bit floats.
    pub fn float(&self, index: usize) -> Result<Typed<f32>, KernelError> {
        typed(self.tensor(index)?)
    }

    /// Positional argument `index`, a tensor of 32-bit floats or nothing.
    pub fn optional_float(&self, index: usize) -> Result<Option<Typed<f32>>, KernelError> {
        self.optional(index).map(typed).transpose()
    }

    /// Positional argument `index`, a tensor of 64-bit integers.
    pub fn integer(&self, index: usize) -> Result<Typed<i64>, KernelError> {
        typed(self.tensor(index)?)
    }

    /// Positional argument `index`, or keyword `name`, a number.
    pub fn number(&self, index: usize, name: &str) -> Result<f64, KernelError> {
        self.argument(index, name)
            .and_then(Argument::number)
            .ok_or_else(|| self.wrong(index, "a number"))
    }

    /// Positional argument `index`, or keyword `name`, a number or nothing.
    pub fn optional_number(&self, index: usize, name: &str) -> Option<f64> {
        self.argument(index, name).and_then(Argument::number)
    }

    /// Positional argument `index`, or keyword `name`, a list of whole numbers (a single one counts
    /// as a list).
    pub fn integers(&self, index: usize, name: &str) -> Result<Vec<i64>, KernelError> {
        match self.argument(index, name) {
            Some(Argument::Int(x)) => Ok(vec![*x]),
            Some(Argument::List(list)) => list
                .iter()
                .map(|argument| match argument {
                    Argument::Int(x) => Ok(*x),
                    _ => Err(self.wrong(index, "a list of whole numbers")),
                })
                .collect(),
            _ => Err(self.wrong(index, "a list of whole numbers")),
        }
    }

    /// Positional argument `index`, or keyword `name`, a truth value; `default` if it is
    /// missing.
    pub fn flag(&self, index: usize, name: &str, default: bool) -> bool {
        match self.argument(index, name) {
            Some(Argument::Bool(x)) => *x,
            Some(Argument::Int(x)) => *x != 0,
            _ => default,
        }
    }

    /// Output `index`, which must be used.
    pub fn output(&self, index: usize) -> Result<&Tensor, KernelError> {
        self.outputs
            .get(index)
            .and_then(Option::as_ref)
            .ok_or_else(|| KernelError::Shapes(format!("output {index} is missing")))
    }

    /// Output `index`, if anything uses it.
    pub fn optional_output(&self, index: usize) -> Option<&Tensor> {
        self.outputs.get(index).and_then(Option::as_ref)
    }

    /// Output `index`, which must be used and hold 32-bit floats.
    pub fn float_output(&self, index: usize) -> Result<Typed<f32>, KernelError> {
        typed(self.output(index)?)
    }

    /// Output `index`, if anything uses it; it must hold 32-bit floats.
    pub fn optional_float_output(&self, index: usize) -> Result<Option<Typed<f32>>, KernelError> {
        self.optional_output(index).map(typed).transpose()
    }

    /// The workspace, of which the kernel uses `needed` bytes and no more. If it needs none, the
    /// address that it gets must not be accessed.
    pub(super) fn workspace(&self, needed: usize) -> Result<Workspace, KernelError> {
        let (address, given) =
            self.scratch.map_or((0, 0), |scratch| (scratch.address, scratch.bytes));
        if given < needed {
            return Err(KernelError::Shapes(format!(
                "its workspace has {given} bytes, but it needs {needed}"
            )));
        }
        Ok(Workspace { address })
    }

    /// Refuses keyword arguments that would change the result and that no kernel knows.
    pub fn known_keywords(&self, known: &[&str]) -> Result<(), KernelError> {
        const HARMLESS: [&str; 6] =
            ["device", "layout", "pin_memory", "memory_format", "dtype", "non_blocking"];
        for (key, value) in &self.node.kwargs {
            if !known.contains(&key.as_str())
                && !HARMLESS.contains(&key.as_str())
                && !matches!(value, Argument::None)
            {
                return Err(KernelError::Unsupported(format!(
                    "keyword argument `{key}` = {value:?}"
                )));
            }
        }
        Ok(())
    }
}

/// The tensor, if it has the type.
pub(super) fn typed<T: Element>(tensor: &Tensor) -> Result<Typed<T>, KernelError> {
    let (found, wanted) = (tensor.dtype.name(), T::DTYPE.name());
    tensor.typed().ok_or(KernelError::DType { found, wanted })
}

/// The index of a dimension that ATen calls `dim`, where negative numbers count from the end.
pub(super) fn dimension(dim: i64, dims: usize) -> Result<usize, KernelError> {
    let index = if dim < 0 { dim + dims as i64 } else { dim };
    usize::try_from(index).ok().filter(|&index| index < dims.max(1)).ok_or_else(|| {
        KernelError::Shapes(format!("a tensor of rank {dims} has no dimension {dim}"))
    })
}

/// Refuses a tensor of another shape than the kernel expects.
pub(super) fn shaped(tensor: &Tensor, what: &str, wanted: &[usize]) -> Result<(), KernelError> {
    if tensor.shape == wanted {
        Ok(())
    } else {
        Err(KernelError::Shapes(format!(
            "{what} has shape {:?}, but must have {wanted:?}",
            tensor.shape
        )))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test that cannot go on panics
mod tests {
    use tightfit::graph::{Graph, GraphBuilder, NodeSpec, Phase, ValueSpec};
    use tightfit::id::ValueId;
    use tightfit::machine::Machine;
    use tightfit::profile::Profile;
    use tightfit::tensor::DType;
    use tightfit::units::Bytes;

    use super::*;
    use crate::kernels::compile;

    const THREADS: usize = 3;

    /// A call over tensors of floats; `args` makes its arguments from them.
    fn call(
        op: &str,
        inputs: &[&[u64]],
        args: impl Fn(&[ValueId]) -> Vec<Argument>,
        outputs: &[&[u64]],
    ) -> Graph {
        let mut builder = GraphBuilder::new(op);
        let floats = |builder: &mut GraphBuilder, shape: &[u64]| {
            let storage = builder.storage(Bytes(shape.iter().product::<u64>() * 4));
            ValueSpec::contiguous(shape, DType::F32, storage)
        };
        let mut read = Vec::new();
        for (index, shape) in inputs.iter().enumerate() {
            let spec = floats(&mut builder, shape);
            let node = NodeSpec::new(format!("x{index}"), "placeholder", Phase::Input);
            read.push(builder.node(node, &[Some(spec)])[0]);
        }
        let outputs: Vec<Option<ValueSpec>> =
            outputs.iter().map(|shape| Some(floats(&mut builder, shape))).collect();
        let node = NodeSpec {
            inputs: read.clone(),
            args: args(&read),
            ..NodeSpec::new("call", op, Phase::Forward)
        };
        builder.node(node, &outputs);
        builder.build().unwrap()
    }

    /// Compiles the graph's only call with `bytes` of workspace.
    fn compiled(graph: &Graph, bytes: u64) -> Result<(), KernelError> {
        let node = &graph.nodes()[graph.compute_nodes()[0]];
        let bind = |value: &ValueId| Tensor::bind(&graph.values()[*value], 0);
        let operands = Operands {
            node,
            inputs: node.inputs.iter().map(bind).collect(),
            outputs: node.outputs.iter().map(|output| output.as_ref().map(bind)).collect(),
            scratch: (bytes > 0).then_some(Scratch { address: 0, bytes: bytes as usize }),
        };
        compile(node.operator.unwrap(), &operands, THREADS).map(drop)
    }

    #[test]
    fn a_workspace_of_one_byte_less_is_refused() {
        let values = |values: &[ValueId]| -> Vec<Argument> {
            values.iter().map(|&value| Argument::Value(value)).collect()
        };
        let list = |extents: &[i64]| {
            Argument::List(extents.iter().map(|&extent| Argument::Int(extent)).collect())
        };
        let sum = call(
            "aten.sum.dim_IntList",
            &[&[300, 7]],
            |x| vec![Argument::Value(x[0]), list(&[0])],
            &[&[7]],
        );
        let layer_norm = call(
            "aten.native_layer_norm_backward.default",
            &[&[300, 8], &[300, 8], &[300, 1], &[300, 1], &[8], &[8]],
            |x| {
                let [dy, input, mean, rstd, weight, bias] =
                    [0, 1, 2, 3, 4, 5].map(|i| Argument::Value(x[i]));
                let masks = Argument::List(vec![Argument::Bool(true); 3]);
                vec![dy, input, list(&[8]), mean, rstd, weight, bias, masks]
            },
            &[&[300, 8], &[8], &[8]],
        );
        let (q, k, sums) = (&[1, 2, 9, 4][..], &[1, 2, 5, 4][..], &[1, 2, 9][..]);
        let attention = call(
            "aten._scaled_dot_product_flash_attention_for_cpu.default",
            &[q, k, k],
            values,
            &[q, sums],
        );
        let gradient = call(
            "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
            &[q, q, k, k, q, sums],
            |x| [values(x), vec![Argument::Float(0.0), Argument::Bool(false)]].concat(),
            &[q, k, k],
        );
        for graph in [sum, layer_norm, attention, gradient] {
            let profile = Profile::new(&graph, &Machine::unmeasured_cpu(THREADS as u32));
            let needed = profile.workspace[graph.compute_nodes()[0]].0;
            assert!(needed > 0, "{}", graph.name());
            assert!(compiled(&graph, needed).is_ok(), "{}", graph.name());
            for bytes in [needed - 1, 0] {
                assert!(
                    matches!(compiled(&graph, bytes), Err(KernelError::Shapes(_))),
                    "{} with {bytes} bytes",
                    graph.name()
                );
            }
        }
    }
}
