//! Machines known without measuring. Invariant: every rate has its source.

use crate::machine::{Hierarchy, Link, Machine, Runtime, Tier};
use crate::units::{Bytes, Seconds};

impl Machine {
    /// The machine if kernels reach a share of its rates, `0 < share <= 1`; its name shows the
    /// share.
    ///
    /// The same share for products and for memory traffic changes no ratio between calls: what is
    /// recomputed stays the same, and transfers over a link are hidden more easily.
    pub fn at_efficiency(self, share: f64) -> Machine {
        Machine {
            name: format!("{} at {} % of its rates", self.name, (share * 1e3).round() / 10.0),
            flops_16: self.flops_16 * share,
            flops_32: self.flops_32 * share,
            bandwidth: self.bandwidth * share,
            ..self
        }
    }
}

/// Machines known without measuring, at an efficiency of 1. Rates from the vendor's data sheets
/// (dense, without sparsity): A100 80GB SXM 312 / 156 (TF32) TFLOP/s and 2.039 TB/s; H100 SXM 989 /
/// 494.5 TFLOP/s and 3.35 TB/s.
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

/// A tier that is known without measuring, and its links.
#[derive(Clone, Debug, PartialEq)]
pub struct TierPreset {
    /// The name of the connection.
    pub name: &'static str,
    /// The tier.
    pub tier: Tier,
    /// From the device.
    pub out: Link,
    /// To the device.
    pub back: Link,
}

/// Tiers known without measuring, rates for each direction:
/// - `pcie4`, `pcie5`: host memory over 16 lanes of PCI Express 4.0 or 5.0, 31.5 and 63 GB/s by the
///   specification, of which copies from and to pinned memory reach some 25 and 50; a copy's launch
///   and completion take some 10 µs.
/// - `nvlink-c2c`: host memory of a Grace Hopper superchip, 450 GB/s each way (NVIDIA Grace Hopper
///   Superchip Architecture, 2023: 900 GB/s in all).
/// - `nvme`: a file on a solid state drive with four lanes of PCI Express 4.0: 6.9 GB/s of reads,
///   4.1 of writes, 80 µs (Samsung PM9A3 3.84 TB, data sheet).
pub fn tier_presets() -> [TierPreset; 4] {
    let host = |name, bandwidth| {
        let link = Link { latency: Seconds(10e-6), bandwidth };
        let tier = Tier { name: "host".to_string(), capacity: None, block: Bytes(1) };
        TierPreset { name, tier, out: link, back: link }
    };
    let latency = Seconds(80e-6);
    let nvme = TierPreset {
        name: "nvme",
        tier: Tier { name: "disk".to_string(), capacity: None, block: Bytes(4096) },
        out: Link { latency, bandwidth: 4.1e9 },
        back: Link { latency, bandwidth: 6.9e9 },
    };
    [host("pcie4", 25e9), host("pcie5", 50e9), host("nvlink-c2c", 450e9), nvme]
}
