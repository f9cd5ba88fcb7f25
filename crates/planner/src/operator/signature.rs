//! The parameters of an operator's schema, and checks of the arguments of a call against them.
//! Invariant: in a call that passes, every argument is of its parameter's form, none is missing,
//! and none is given that the schema does not have.

use crate::operator::call::{TypedCall, Unsuited, from_torch};
use crate::tensor::Argument;

/// The parameters of an operator.
#[derive(Clone, Copy, Debug)]
pub struct Signature {
    /// Those given by position, or by name after the last positional argument.
    pub positional: &'static [Parameter],
    /// Those given only by name.
    pub keyword: &'static [Parameter],
}

/// One parameter of a schema.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// What may be given.
    pub form: Form,
    /// Whether `None` may be given instead.
    pub nullable: bool,
    /// Whether it may be omitted.
    pub has_default: bool,
}

/// The forms of arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A tensor.
    Tensor,
    /// A tensor, or a number in its place.
    Operand,
    /// A list of tensors.
    Tensors,
    /// A whole number.
    Integer,
    /// Whole numbers.
    Integers,
    /// Whole numbers; a single one stands for a list of itself.
    IntegerOrMore,
    /// A number or a truth value.
    Number,
    /// A real number.
    Real,
    /// A number in floating-point form, even if its fraction is zero.
    Fraction,
    /// Two numbers in floating-point form.
    Pair,
    /// A truth value.
    Flag,
    /// Three truth values.
    Flags,
    /// An element type.
    Type,
    /// A device; the engine ignores which one.
    Device,
    /// Whether memory is pinned; it must not be.
    Pinned,
    /// The layout of a tensor, which must be strided.
    Layout,
    /// The memory format: the order of an output's dimensions.
    Format,
    /// `none` or `tanh`.
    Approximation,
}

/// A parameter that must be given.
pub const fn given(name: &'static str, form: Form) -> Parameter {
    Parameter { name, form, nullable: false, has_default: false }
}

/// A parameter that must be given, even if as `None`.
pub const fn nullable(name: &'static str, form: Form) -> Parameter {
    Parameter { nullable: true, ..given(name, form) }
}

/// A parameter with a default.
pub const fn defaulted(name: &'static str, form: Form) -> Parameter {
    Parameter { has_default: true, ..given(name, form) }
}

/// A parameter whose default is `None`.
pub const fn optional(name: &'static str, form: Form) -> Parameter {
    Parameter { nullable: true, ..defaulted(name, form) }
}

/// Parameters by position alone.
pub const fn by_place(positional: &'static [Parameter]) -> Signature {
    Signature { positional, keyword: &[] }
}

impl Signature {
    /// Refuses a call whose arguments are not those of the schema.
    pub fn check(&self, call: &TypedCall<'_>) -> Result<(), Unsuited> {
        if call.args.len() > self.positional.len() {
            let (arguments, outputs) = (call.args.len(), call.outputs.len());
            return Err(Unsuited::Schema { arguments, outputs });
        }
        for (index, (parameter, argument)) in self.positional.iter().zip(call.args).enumerate() {
            if !parameter.takes(argument) {
                return Err(Unsuited::Argument { index, wanted: parameter.form.words() });
            }
        }
        let by_name = || self.positional[call.args.len()..].iter().chain(self.keyword);
        for (index, (name, argument)) in call.kwargs.iter().enumerate() {
            let twice = call.kwargs[..index].iter().any(|(earlier, _)| earlier == name);
            let Some(parameter) = by_name().find(|p| p.name == name).filter(|_| !twice) else {
                return Err(Unsuited::UnknownKeyword { name: name.clone() });
            };
            if !parameter.takes(argument) {
                return Err(Unsuited::Keyword {
                    name: name.clone(),
                    wanted: parameter.form.words(),
                });
            }
        }
        let is_given = |p: &&Parameter| call.kwargs.iter().any(|(name, _)| name == p.name);
        match by_name().find(|p| !p.has_default && !is_given(p)) {
            Some(missing) => Err(Unsuited::Missing { name: missing.name }),
            None => Ok(()),
        }
    }
}

/// A kind of device, optionally with an index.
fn is_device(text: &str) -> bool {
    let (kind, index) = text.split_once(':').unwrap_or((text, "0"));
    ["cpu", "cuda", "mps", "xpu", "meta"].contains(&kind) && index.parse::<u8>().is_ok()
}

impl Parameter {
    fn takes(&self, argument: &Argument) -> bool {
        self.form.matches(argument) || self.nullable && matches!(argument, Argument::None)
    }
}

impl Form {
    fn matches(self, argument: &Argument) -> bool {
        let text = |known: &[&str]| matches!(argument, Argument::Text(x) if known.contains(&&**x));
        let all = |form: Form| match argument {
            Argument::List(list) => list.iter().all(|item| form.matches(item)),
            Argument::Value(_)
            | Argument::None
            | Argument::Bool(_)
            | Argument::Int(_)
            | Argument::Float(_)
            | Argument::Text(_) => false,
        };
        let count = || if let Argument::List(list) = argument { list.len() } else { 0 };
        match self {
            Form::Tensor => matches!(argument, Argument::Value(_)),
            Form::Operand => Form::Tensor.matches(argument) || Form::Number.matches(argument),
            Form::Tensors => all(Form::Tensor),
            Form::Integer => matches!(argument, Argument::Int(_)),
            Form::Integers => all(Form::Integer),
            Form::IntegerOrMore => all(Form::Integer) || Form::Integer.matches(argument),
            Form::Number => argument.number().is_some(),
            Form::Real => argument.number().is_some() && !Form::Flag.matches(argument),
            Form::Fraction => matches!(argument, Argument::Float(_)),
            Form::Pair => count() == 2 && all(Form::Fraction),
            Form::Flag => matches!(argument, Argument::Bool(_)),
            Form::Flags => count() == 3 && all(Form::Flag),
            Form::Type => matches!(argument, Argument::Text(x) if from_torch(x).is_some()),
            Form::Device => matches!(argument, Argument::Text(x) if is_device(x)),
            Form::Pinned => *argument == Argument::Bool(false),
            Form::Layout => text(&["torch.strided"]),
            Form::Format => text(&[
                "torch.contiguous_format",
                "torch.preserve_format",
                "torch.channels_last",
                "torch.channels_last_3d",
            ]),
            Form::Approximation => text(&["none", "tanh"]),
        }
    }

    fn words(self) -> &'static str {
        match self {
            Form::Tensor => "a tensor",
            Form::Operand => "a tensor or a number",
            Form::Tensors => "a list of tensors",
            Form::Integer => "a whole number",
            Form::Integers => "a list of whole numbers",
            Form::IntegerOrMore => "a whole number or a list of them",
            Form::Number => "a number or a truth value",
            Form::Real => "a number",
            Form::Fraction => "a number with a fraction",
            Form::Pair => "a list of two numbers with fractions",
            Form::Flag => "a truth value",
            Form::Flags => "a list of three truth values",
            Form::Type => "an element type",
            Form::Device => "a device",
            Form::Pinned => "false",
            Form::Layout => "`torch.strided`",
            Form::Format => "a memory format",
            Form::Approximation => "`none` or `tanh`",
        }
    }
}
