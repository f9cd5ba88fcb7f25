//! Bytes during each module's backward pass, from the statistics and from what is discarded.
//! Invariant: plain sums of whole bytes; the rows of a program leave out only what other rows
//! imply.

use crate::analysis::modules::{ModuleIndex, ModuleInfo};
use crate::plan::modules::candidate::CheckpointCandidate;
use crate::units::Bytes;

/// The peak, and the first module where it is reached, with `persistent` bytes of each module in
/// addition to activations.
pub fn binding(
    info: &ModuleInfo,
    discards: &[(ModuleIndex, Bytes)],
    persistent: impl Fn(ModuleIndex) -> Bytes,
) -> (Bytes, ModuleIndex) {
    let held = info
        .modules()
        .keys()
        .map(|module| (persistent(module) + activations(info, discards, module), module));
    held.fold(
        (Bytes::ZERO, info.root()),
        |highest, here| if here.0 > highest.0 { here } else { highest },
    )
}

/// Activations and their gradients during a module's backward pass: those without checkpointing,
/// less what modules that end before it discard.
pub fn activations(
    info: &ModuleInfo,
    discards: &[(ModuleIndex, Bytes)],
    module: ModuleIndex,
) -> Bytes {
    let (stats, position) = (&info.modules()[module], info.forward_post_position(module));
    let before = discards.iter().filter(|&&(unit, _)| info.forward_post_position(unit) < position);
    let discarded: Bytes = before.map(|&(_, bytes)| bytes).sum();
    (stats.total_activations + stats.activation_gradients).saturating_sub(discarded)
}

/// Bytes during one module's backward pass, as far as no discard and no unit of sharding changes
/// them.
pub struct MemoryRow {
    /// The module.
    pub module: ModuleIndex,
    /// Discards of modules that end before this place of the forward post-order count.
    pub position: usize,
    /// All bytes held there.
    pub bytes: Bytes,
}

impl MemoryRow {
    /// The rows that no other row implies. A row implies another that has at most its bytes, counts
    /// at least its discards, and whose modules among `sharded` on the path to the root are among
    /// its own.
    pub fn binding(
        info: &ModuleInfo,
        candidates: &[CheckpointCandidate],
        sharded: &[ModuleIndex],
        persistent: impl Fn(ModuleIndex) -> Bytes,
    ) -> Vec<MemoryRow> {
        let mut rows: Vec<MemoryRow> = Vec::new();
        for (module, stats) in info.modules() {
            let (position, activations) = (
                info.forward_post_position(module),
                stats.total_activations + stats.activation_gradients,
            );
            rows.push(MemoryRow { module, position, bytes: persistent(module) + activations });
            // However much is discarded, activations are not negative.
            let before = candidates.iter().filter(|unit| unit.position < position);
            if before.map(|unit| unit.most).sum::<Bytes>() > activations {
                rows.push(MemoryRow { module, position: 0, bytes: persistent(module) });
            }
        }
        // The number of candidates that a row counts, and its modules that may be sharded.
        let counted =
            |row: &MemoryRow| candidates.iter().filter(|unit| unit.position < row.position).count();
        let above = |row: &MemoryRow| -> Vec<ModuleIndex> {
            info.lineage(row.module).filter(|module| sharded.contains(module)).collect()
        };
        let keys: Vec<_> = rows.iter().map(|row| (row.bytes, counted(row), above(row))).collect();
        let implied = |at: usize| {
            let (bytes, count, above) = &keys[at];
            keys.iter().enumerate().any(|(other, (more, fewer, wider))| {
                let implies = more >= bytes
                    && fewer <= count
                    && above.iter().all(|module| wider.contains(module));
                // Of rows that imply each other, the first stays.
                implies
                    && other != at
                    && (other < at || (more, fewer, wider.len()) != (bytes, count, above.len()))
            })
        };
        let kept: Vec<bool> = (0..rows.len()).map(|at| !implied(at)).collect();
        rows.into_iter().zip(kept).filter_map(|(row, kept)| kept.then_some(row)).collect()
    }
}
