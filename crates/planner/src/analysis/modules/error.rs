//! Why statistics of modules are refused. Invariant: every way of being wrong has a variant of its
//! own, which names the module and says what to record.

use thiserror::Error;

use crate::exit::coded;

/// What is wrong with statistics of modules.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ModuleInfoError {
    /// The text is not JSON, or does not have the structure of module statistics.
    #[error(
        "it is no JSON of module statistics: {reason}; `mod_order` and `mod_stats` are expected, \
         bare or under `module_info`"
    )]
    Json {
        /// The JSON reader's message.
        reason: String,
    },
    /// No module has statistics.
    #[error("there is no module: `mod_stats` is empty; record at least the root")]
    Empty,
    /// An entry does not name its module.
    #[error("`mod_stats` has an entry without `fqn` at place {at}; name its module")]
    Unnamed {
        /// The position of the entry.
        at: usize,
    },
    /// A module lacks a figure.
    #[error("module `{module}` has no figure `{field}`; record it")]
    Missing {
        /// The fully qualified name of the module.
        module: String,
        /// The name of the figure.
        field: &'static str,
    },
    /// A figure is out of range.
    #[error("module `{module}`: `{field}` is {found}; expected {expected}")]
    Figure {
        /// The fully qualified name of the module.
        module: String,
        /// The name of the figure.
        field: &'static str,
        /// The figure that was given.
        found: String,
        /// The range that it must lie in.
        expected: &'static str,
    },
    /// The parts of a trade-off curve contradict each other in number.
    #[error("module `{module}` has {segments} slopes, but {found} {what}; expected {expected}")]
    Curve {
        /// The fully qualified name of the module.
        module: String,
        /// The number of slopes of the curve.
        segments: usize,
        /// The number of the other parts.
        found: usize,
        /// What the other parts are.
        what: &'static str,
        /// The number that there must be.
        expected: usize,
    },
    /// A module is listed twice.
    #[error("module `{module}` stands twice in {place}; list every module once")]
    Duplicate {
        /// The fully qualified name of the module.
        module: String,
        /// The list that has it twice.
        place: &'static str,
    },
    /// A module has statistics, but is missing from an order.
    #[error("module `{module}` has statistics but does not stand in {order}; add it there")]
    NotOrdered {
        /// The fully qualified name of the module.
        module: String,
        /// The name of the order.
        order: &'static str,
    },
    /// A module is in an order, but has no statistics.
    #[error("module `{module}` stands in {order} but has no statistics; add them to `mod_stats`")]
    NoStatistics {
        /// The fully qualified name of the module.
        module: String,
        /// The name of the order.
        order: &'static str,
    },
    /// A name of a module has an empty component.
    #[error(
        "`{module}` is no fully qualified name: a component is empty; join components by single \
         dots"
    )]
    Name {
        /// The name.
        module: String,
    },
    /// A module lies outside of the root.
    #[error(
        "module `{module}` is not below the root `{root}`; one module has to contain all others"
    )]
    SecondRoot {
        /// The fully qualified name of the module.
        module: String,
        /// The fully qualified name of the root.
        root: String,
    },
    /// The orders contradict the names about which of two modules contains the other.
    #[error(
        "module `{module}` comes {when} its ancestor `{ancestor}` in {order}, so each would \
         contain the other; record the order again"
    )]
    Cycle {
        /// The fully qualified name of the module.
        module: String,
        /// The fully qualified name of the module that should contain it.
        ancestor: String,
        /// Whether the module comes `before` or `after` its ancestor.
        when: &'static str,
        /// The name of the order.
        order: &'static str,
    },
}

coded!(Content: ModuleInfoError);
