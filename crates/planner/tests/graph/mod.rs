//! The graph: its rules, as a builder or a file breaks them.

mod documented;
mod limits;
mod links;
mod rules;
