//! The operator table: one row for each operator that the engine executes, and for each view.
//! Invariant: verifier, profile, planner and engine read this table and no other. A row states
//! every fact of [`OperatorRow`], or it does not compile; the engine matches on [`Operator`], so a
//! row without a kernel does not compile either.
//!
//! Facts are functions of a call: of its arguments and of the types of its tensors, never of a
//! graph. A graph may call operators that are not here, and use element types that the engine does
//! not support: it can be planned, but not executed.

mod attention;
mod axes;
mod call;
mod conform;
mod cost;
mod elementwise;
mod loss;
mod movement;
mod normalization;
mod optimizer;
mod output;
mod product;
mod reduction;
mod schema;
mod signature;
mod slice;
mod table;
mod view;

pub use attention::QUERY_BLOCK;
pub use axes::{Along, Axes, Axis, Linear, Literal, Part};
pub use call::{TypedCall, Types, Unsuited, to_torch};
pub use cost::{Cost, Product, Workers};
pub use output::{Derive, Output, Place};
pub use reduction::ROW_BLOCK;
pub use signature::{Form, Parameter, Signature};
pub use table::Operator;

use crate::tensor::DType;

/// The table's facts about an operator.
#[derive(Clone, Copy, Debug)]
pub struct OperatorRow {
    /// ATen overload name or `tightfit.*`.
    pub name: &'static str,
    /// The parameters of a call.
    pub signature: Signature,
    /// Shape, element type and, for views, place of every output.
    pub outputs: Derive,
    /// Dimensions of its tensors that go together.
    pub axes: Axes,
    /// Element types that the engine supports, for each positional argument that is a tensor or a
    /// list of tensors; the last entry holds for all that follow.
    pub legal: &'static [&'static [DType]],
    /// Positional arguments that the first output may overwrite element by element.
    pub in_place: &'static [usize],
    /// Operations, workspace and packing.
    pub cost: Cost,
    /// How it uses memory and random numbers.
    pub kind: Kind,
}

/// What a call does in addition to making its outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Computes new storages from its inputs, always the same ones.
    Pure,
    /// Computes new storages from its inputs and from random numbers.
    Random,
    /// Writes into storages of its inputs.
    Mutating,
    /// An optimizer's update of each element by itself: its first output lies in its first
    /// argument, the parameter; its second argument is the gradient, and each further output, a
    /// state, lies in the argument that follows.
    Update,
    /// Computes nothing: its outputs lie in its input's storage.
    View,
}

/// What is known of the axes of calls of `name`, an operator of the table or another one.
pub fn axes_of(name: &str) -> Option<Axes> {
    Operator::from_name(name)
        .map(|operator| operator.row().axes)
        .or_else(|| axes::foreign_rule(name))
}

impl Operator {
    /// ATen overload name or `tightfit.*`.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Whether it is an optimizer's update of each element by itself.
    pub fn is_update(self) -> bool {
        self.row().kind == Kind::Update
    }

    /// Whether it takes part in communication between ranks, each of which keeps the order of such
    /// calls.
    pub fn exchanges(self) -> bool {
        matches!(self, Operator::Post | Operator::Send | Operator::Sent | Operator::Receive)
    }

    /// Whether all ranks call it, each for its part; it continues while other calls run, until one
    /// of them touches what it brings or changes what it takes.
    pub fn is_collective(self) -> bool {
        matches!(self, Operator::AllGather | Operator::AllToAll)
    }
}
