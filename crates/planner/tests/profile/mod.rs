//! Costs: machines, and seconds that were measured.

mod machines;
mod measured_seconds;
