//! Which optimizer states lie on the device permanently, in the margin that the warm-up left.
//! Invariant: what is put there takes less than the requested share of the margin.
//!
//! Source: ColossalAI's `ShardedOptimizerV2._maybe_move_fp32_shards`.

use tightfit::units::Bytes;

/// How the margin is filled.
#[derive(Clone, Copy, Debug)]
pub struct MarginRule {
    /// The bytes of the device.
    pub capacity: Bytes,
    /// The most bytes that the warm-up had on the device at any instant, model and non-model data.
    pub peak: Bytes,
    /// The share of the margin that is filled, from 0 to 1; if it is not positive, nothing is.
    pub ratio: f64,
    /// The shards that the optimizer has for each parameter, such as the master and two moments. If
    /// there are fewer than two, nothing is filled: there is no state to go with the master.
    pub shards_per_parameter: u32,
}

/// What fits into the margin.
#[derive(Clone, Debug, PartialEq)]
pub struct Margin {
    /// The bytes that were never in use.
    pub bytes: Bytes,
    /// The part of them that master shards may take, such that the other shards of the same
    /// parameters fit too.
    pub available: f64,
    /// For each master shard, whether it lies on the device, together with the other shards of its
    /// parameter and with its gradient.
    pub on_device: Vec<bool>,
    /// The bytes of the master shards that do.
    pub used: Bytes,
}

/// Fills the margin with master shards, in their order. This is done once, after the warm-up.
pub fn fill_margin(rule: MarginRule, shards: &[Bytes]) -> Margin {
    let bytes = rule.capacity.saturating_sub(rule.peak);
    let mut margin =
        Margin { bytes, available: 0.0, on_device: vec![false; shards.len()], used: Bytes::ZERO };
    if rule.shards_per_parameter < 2 || rule.ratio.is_nan() || rule.ratio <= 0.0 {
        return margin;
    }
    let ratio = rule.ratio.min(1.0);
    margin.available = bytes.0 as f64 * ratio / f64::from(rule.shards_per_parameter);
    for (shard, on_device) in shards.iter().zip(&mut margin.on_device) {
        let used = margin.used.0.saturating_add(shard.0);
        if (used as f64) < margin.available {
            (margin.used, *on_device) = (Bytes(used), true);
        }
    }
    margin
}
