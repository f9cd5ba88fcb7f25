//! Machines known without measuring. Invariant: every rate has its source.

use crate::machine::{Hierarchy, Machine, Runtime};

/// Machines known without measuring. Rates from the vendor's data sheets (dense, without sparsity):
/// A100 80GB SXM 312 / 156 (TF32) TFLOP/s and 2.039 TB/s; H100 SXM 989 / 494.5 TFLOP/s and 3.35
/// TB/s.
pub fn presets() -> [Machine; 2] {
    let gpu = |name: &str, flops_16, flops_32, bandwidth| Machine {
        name: name.to_string(),
        flops_16,
        flops_32,
        bandwidth,
        elementary: None,
        launch: 0.0,
        threads: 1,
        runtime: Runtime::Recorded,
        hierarchy: Hierarchy::default(),
    };
    [gpu("a100-80gb", 312e12, 156e12, 2.039e12), gpu("h100-80gb", 989e12, 494.5e12, 3.35e12)]
}
