//! The arguments of a call. Invariant: constants are kept as PyTorch prints them; the operator
//! gives them their meaning.

use crate::id::ValueId;

/// One argument of a call, in ATen schema order. Constants are kept as PyTorch prints them.
#[derive(Clone, Debug, PartialEq)]
pub enum Argument {
    /// A tensor.
    Value(ValueId),
    /// `None`.
    None,
    /// A truth value.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number with a fraction.
    Float(f64),
    /// A string: an enumeration such as `torch.float32`, or `inf`, `-inf`, `nan`.
    Text(String),
    /// A list of arguments.
    List(Vec<Argument>),
}

impl Argument {
    /// The values that it mentions, in order.
    pub fn values(&self) -> Vec<ValueId> {
        match self {
            Argument::Value(value) => vec![*value],
            Argument::List(list) => list.iter().flat_map(Argument::values).collect(),
            _ => Vec::new(),
        }
    }

    /// The same argument with its values replaced.
    pub fn renamed(&self, other: &impl Fn(ValueId) -> ValueId) -> Argument {
        match self {
            Argument::Value(value) => Argument::Value(other(*value)),
            Argument::List(list) => {
                Argument::List(list.iter().map(|item| item.renamed(other)).collect())
            }
            Argument::None
            | Argument::Bool(_)
            | Argument::Int(_)
            | Argument::Float(_)
            | Argument::Text(_) => self.clone(),
        }
    }

    /// As a number: integers, floats, truth values and the texts `inf`, `-inf`, `nan`.
    pub fn number(&self) -> Option<f64> {
        match self {
            Argument::Int(x) => Some(*x as f64),
            Argument::Float(x) => Some(*x),
            Argument::Bool(x) => Some(f64::from(u8::from(*x))),
            Argument::Text(text) => match text.as_str() {
                "inf" => Some(f64::INFINITY),
                "-inf" => Some(f64::NEG_INFINITY),
                "nan" => Some(f64::NAN),
                _ => None,
            },
            _ => None,
        }
    }
}

/// A positional argument, or an item of it if it is a list.
pub fn placed(args: &[Argument], argument: usize, item: Option<usize>) -> Option<&Argument> {
    match (args.get(argument)?, item) {
        (Argument::List(items), Some(item)) => items.get(item),
        (argument, None) => Some(argument),
        _ => None,
    }
}

/// The same, to be replaced.
pub fn placed_mut(
    args: &mut [Argument],
    argument: usize,
    item: Option<usize>,
) -> Option<&mut Argument> {
    match (args.get_mut(argument)?, item) {
        (Argument::List(items), Some(item)) => items.get_mut(item),
        (argument, None) => Some(argument),
        _ => None,
    }
}
