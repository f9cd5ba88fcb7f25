//! Machines: the cost of a node on them, whose kernels run there, and which memories they have.
//! Invariant: every rate is finite and at least one a second, so every cost is a finite time.

mod hierarchy;
mod presets;
mod runtime;
mod steady;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::exit::coded;
use crate::units::Bytes;

pub use hierarchy::{Hierarchy, Lane, Link, Route, Tier};
pub use presets::{TierPreset, presets, tier_presets};
pub use runtime::{Reuse, Rules, Runtime, Workspaces};
pub(crate) use steady::steady;

/// A device with its rates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The name, such as `a100-80gb`, `h100-80gb` or `cpu`.
    pub name: String,
    /// Floating-point operations per second if every float input has at most 2 bytes.
    pub flops_16: f64,
    /// Floating-point operations per second otherwise.
    pub flops_32: f64,
    /// Bytes per second to and from memory.
    pub bandwidth: f64,
    /// Elements per second of one exponential-like function; absent if memory is always the slower
    /// part.
    pub elementary: Option<f64>,
    /// Seconds that every call costs whatever its size.
    pub launch: f64,
    /// Worker threads: per-thread workspace multiplies by this.
    pub threads: u32,
    /// Whose kernels run here, and so which rules hold for workspaces, reuse and packing.
    pub runtime: Runtime,
    /// The memories below the device and the lanes between them.
    #[serde(skip)]
    pub hierarchy: Hierarchy,
}

/// A machine that cannot be used.
#[derive(Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum MachineError {
    /// There is no preset of this name.
    #[error(
        "machine `{name}` is not known; known: cpu, {}",
        presets().map(|machine| machine.name).join(", ")
    )]
    Unknown {
        /// The name that was given.
        name: String,
    },
    /// A rate of a machine cannot be used in calculations.
    #[error("machine `{name}`: {field} is {found}, but must be {expected}")]
    Rate {
        /// The name of the machine.
        name: String,
        /// The name of the rate.
        field: &'static str,
        /// The rate.
        found: f64,
        /// What it must be.
        expected: &'static str,
    },
    /// There is no preset of a tier of this name.
    #[error(
        "tier `{name}` is not known; known: {}",
        tier_presets().map(|tier| tier.name).join(", ")
    )]
    UnknownTier {
        /// The name that was given.
        name: String,
    },
    /// A machine has no worker threads.
    #[error("machine `{name}` has no threads: it needs at least one")]
    NoThreads {
        /// The name of the machine.
        name: String,
    },
}

coded!(Usage: MachineError);

impl Machine {
    /// The preset called `name`.
    pub fn preset(name: &str) -> Result<Machine, MachineError> {
        presets()
            .into_iter()
            .find(|machine| machine.name == name)
            .ok_or_else(|| MachineError::Unknown { name: name.to_string() })
    }

    /// The same machine with the tier called `name` below the device, of at most `capacity` bytes.
    pub fn with_tier(
        mut self,
        name: &str,
        capacity: Option<Bytes>,
    ) -> Result<Machine, MachineError> {
        let unknown = || MachineError::UnknownTier { name: name.to_string() };
        let preset = tier_presets().into_iter().find(|tier| tier.name == name);
        let TierPreset { tier, out, back, .. } = preset.ok_or_else(unknown)?;
        self.hierarchy.add(Tier { capacity, ..tier }, out, back);
        Ok(self)
    }

    /// A processor that has not been measured: ratios between operators are plausible, absolute
    /// times are not.
    pub fn unmeasured_cpu(threads: u32) -> Machine {
        let threads = threads.max(1);
        let all = f64::from(threads);
        Machine {
            name: "cpu".to_string(),
            flops_16: 50e9 * all,
            flops_32: 50e9 * all,
            bandwidth: 10e9 * all,
            elementary: Some(0.5e9 * all),
            launch: 2e-6,
            threads,
            runtime: Runtime::Engine,
            hierarchy: Hierarchy::default(),
        }
    }

    /// Refuses impossible rates; for machines read from a file.
    pub fn validate(self) -> Result<Machine, MachineError> {
        let rates = [
            ("flops_16", self.flops_16),
            ("flops_32", self.flops_32),
            ("bandwidth", self.bandwidth),
            ("elementary", self.elementary.unwrap_or(1.0)),
        ];
        // A finite rate may be so slow that the sum of its times is not finite.
        let wrong = rates
            .into_iter()
            .find(|(_, rate)| !(rate.is_finite() && *rate >= 1.0))
            .map(|(field, rate)| (field, rate, "finite and at least 1 a second"));
        let launch = Some(self.launch)
            .filter(|seconds| !(0.0..=1.0).contains(seconds))
            .map(|seconds| ("launch", seconds, "from 0 to 1 seconds"));
        match wrong.or(launch) {
            None if self.threads == 0 => Err(MachineError::NoThreads { name: self.name }),
            Some((field, found, expected)) => {
                Err(MachineError::Rate { name: self.name, field, found, expected })
            }
            None => Ok(self),
        }
    }
}
