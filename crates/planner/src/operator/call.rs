//! A call as the operator table sees it: constants as they are, tensors as types. Invariant: it
//! refers to no graph, so any caller that has arguments and types can use the table.

use thiserror::Error;

use crate::id::ValueId;
use crate::tensor::{Argument, DType, TensorType};

/// Gives the types of the values that a call mentions.
pub trait Types {
    /// The type of a value.
    fn type_of(&self, value: ValueId) -> &TensorType;
}

/// The arguments of a call and the types of its tensors.
#[derive(Clone, Copy)]
pub struct TypedCall<'a> {
    /// Positional arguments, in the order of the schema.
    pub args: &'a [Argument],
    /// The keyword arguments, by name.
    pub kwargs: &'a [(String, Argument)],
    /// Outputs in the order of the schema; `None` for one that is not used.
    pub outputs: &'a [Option<ValueId>],
    /// Looks up the types of all values.
    pub types: &'a dyn Types,
}

/// Why a call does not conform to its operator.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum Unsuited {
    /// The call and the schema differ in the number of arguments or outputs.
    #[error("{arguments} arguments and {outputs} outputs do not match its schema")]
    Schema {
        /// The number of positional arguments of the call.
        arguments: usize,
        /// The number of outputs of the call.
        outputs: usize,
    },
    /// An argument is missing, or is not of the kind that the schema requires.
    #[error("argument {index} must be {wanted}")]
    Argument {
        /// The position of the argument.
        index: usize,
        /// The kind that the schema requires there.
        wanted: &'static str,
    },
    /// A keyword argument is not of the kind that the schema requires.
    #[error("argument `{name}` must be {wanted}")]
    Keyword {
        /// The name of the argument.
        name: String,
        /// The kind that the schema requires there.
        wanted: &'static str,
    },
    /// A keyword argument is given twice, or the schema has none of that name.
    #[error("argument `{name}` is given twice, or its schema has none of that name")]
    UnknownKeyword {
        /// The name of the argument.
        name: String,
    },
    /// An argument without a default is not given.
    #[error("argument `{name}` is missing")]
    Missing {
        /// The name of the argument.
        name: &'static str,
    },
    /// A tensor argument has an element type that the engine's kernel does not support.
    #[error("argument {index} is a tensor of {found}; the engine takes {} there", names(.legal))]
    Type {
        /// The position of the argument.
        index: usize,
        /// The name of its element type.
        found: &'static str,
        /// The element types that the engine supports there.
        legal: &'static [DType],
    },
    /// The shapes of the inputs contradict each other; the text says how.
    #[error("{0}")]
    Shapes(String),
    /// An output does not have the type derived from the inputs.
    #[error("output {index} is {found}, but these inputs give {derived}")]
    Output {
        /// The position of the output.
        index: usize,
        /// The type that the call gives it.
        found: String,
        /// The type that follows from the inputs.
        derived: String,
    },
    /// The operator writes into its inputs, but the node does not say so.
    #[error("it writes into its inputs, but the node is not marked as mutating")]
    NotMarkedMutating,
    /// The operator writes into none of its inputs, but the node says that it does.
    #[error("it writes into none of its inputs, but the node is marked as mutating")]
    MarkedMutating,
    /// The operator computes new values, but its outputs lie in its inputs' storages, as if it were
    /// a view.
    #[error("it computes, but its outputs lie in its inputs' storages, as if it were a view")]
    TakenForView,
    /// The operator draws random numbers, but the node is not marked random.
    #[error("it draws random numbers, but the node is not marked random")]
    NotMarkedRandom,
}

fn names(types: &[DType]) -> String {
    types.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(", ")
}

impl<'a> TypedCall<'a> {
    /// Positional argument `index`, if it is a tensor.
    pub fn optional_tensor(&self, index: usize) -> Option<&'a TensorType> {
        match self.args.get(index) {
            Some(Argument::Value(value)) => Some(self.types.type_of(*value)),
            _ => None,
        }
    }

    /// Positional argument `index`, which must be a tensor.
    pub fn tensor(&self, index: usize) -> Result<&'a TensorType, Unsuited> {
        self.optional_tensor(index).ok_or(Unsuited::Argument { index, wanted: "a tensor" })
    }

    /// Tensors of positional argument `index`: one, or a list of them.
    pub fn tensors(&self, index: usize) -> Vec<&'a TensorType> {
        let values = self.args.get(index).map_or(Vec::new(), Argument::values);
        values.into_iter().map(|value| self.types.type_of(value)).collect()
    }

    /// The first output that is used.
    pub fn first_output(&self) -> Option<&'a TensorType> {
        self.outputs.iter().flatten().next().map(|&value| self.types.type_of(value))
    }

    /// Positional argument `index`, or keyword `name`; `None` if missing or `Argument::None`.
    pub fn argument(&self, index: usize, name: &str) -> Option<&'a Argument> {
        let keyword = || self.kwargs.iter().find(|(key, _)| key == name).map(|(_, value)| value);
        self.args.get(index).or_else(keyword).filter(|argument| !matches!(argument, Argument::None))
    }

    /// Positional argument `index`, or keyword `name`, as a whole number.
    pub fn optional_integer(&self, index: usize, name: &str) -> Result<Option<i64>, Unsuited> {
        match self.argument(index, name) {
            None => Ok(None),
            Some(Argument::Int(x)) => Ok(Some(*x)),
            Some(_) => Err(Unsuited::Argument { index, wanted: "a whole number" }),
        }
    }

    /// Positional argument `index`, or keyword `name`, as a whole number, which is required.
    pub fn integer(&self, index: usize, name: &str) -> Result<i64, Unsuited> {
        self.optional_integer(index, name)?
            .ok_or(Unsuited::Argument { index, wanted: "a whole number" })
    }

    /// Positional argument `index`, or keyword `name`, as whole numbers; a single number counts as
    /// a list of one. `None` if it is missing.
    pub fn optional_integers(
        &self,
        index: usize,
        name: &str,
    ) -> Result<Option<Vec<i64>>, Unsuited> {
        let wrong = Unsuited::Argument { index, wanted: "a list of whole numbers" };
        match self.argument(index, name) {
            None => Ok(None),
            Some(Argument::Int(x)) => Ok(Some(vec![*x])),
            Some(Argument::List(list)) => list
                .iter()
                .map(|argument| match argument {
                    Argument::Int(x) => Ok(*x),
                    _ => Err(wrong.clone()),
                })
                .collect::<Result<_, _>>()
                .map(Some),
            Some(_) => Err(wrong),
        }
    }

    /// Positional argument `index`, or keyword `name`, as whole numbers, which are required.
    pub fn integers(&self, index: usize, name: &str) -> Result<Vec<i64>, Unsuited> {
        self.optional_integers(index, name)?
            .ok_or(Unsuited::Argument { index, wanted: "a list of whole numbers" })
    }

    /// Positional argument `index`, or keyword `name`, as a truth value; false if it is missing.
    pub fn flag(&self, index: usize, name: &str) -> bool {
        match self.argument(index, name) {
            Some(Argument::Bool(x)) => *x,
            Some(Argument::Int(x)) => *x != 0,
            _ => false,
        }
    }

    /// The element type that positional argument `index` or keyword `name` requests, as PyTorch
    /// prints it (`torch.float32`).
    pub fn dtype(&self, index: usize, name: &str) -> Result<Option<DType>, Unsuited> {
        let wrong = Unsuited::Argument { index, wanted: "an element type" };
        match self.argument(index, name) {
            None => Ok(None),
            Some(Argument::Text(text)) => from_torch(text).map(Some).ok_or(wrong),
            Some(_) => Err(wrong),
        }
    }
}

/// How PyTorch prints an element type.
pub fn to_torch(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "torch.float64",
        DType::F32 => "torch.float32",
        DType::F16 => "torch.float16",
        DType::Bf16 => "torch.bfloat16",
        DType::I64 => "torch.int64",
        DType::I32 => "torch.int32",
        DType::I16 => "torch.int16",
        DType::I8 => "torch.int8",
        DType::U64 => "torch.uint64",
        DType::U8 => "torch.uint8",
        DType::Bool => "torch.bool",
    }
}

/// The element type that PyTorch prints like this, or whose alias this is (`torch.half`).
pub fn from_torch(text: &str) -> Option<DType> {
    Some(match text.strip_prefix("torch.")? {
        "float64" | "double" => DType::F64,
        "float32" | "float" => DType::F32,
        "float16" | "half" => DType::F16,
        "bfloat16" => DType::Bf16,
        "int64" | "long" => DType::I64,
        "int32" | "int" => DType::I32,
        "int16" | "short" => DType::I16,
        "int8" => DType::I8,
        "uint64" => DType::U64,
        "uint8" => DType::U8,
        "bool" => DType::Bool,
        _ => return None,
    })
}

/// The index of a dimension that is given as in ATen, where negative numbers count from the end and
/// a tensor without dimensions is treated as having one.
pub fn dimension(dim: i64, rank: usize) -> Result<usize, Unsuited> {
    let index = if dim < 0 { dim.checked_add(rank.max(1) as i64) } else { Some(dim) };
    index
        .and_then(|index| usize::try_from(index).ok())
        .filter(|&index| index < rank.max(1))
        .ok_or_else(|| Unsuited::Shapes(format!("a tensor of rank {rank} has no dimension {dim}")))
}
