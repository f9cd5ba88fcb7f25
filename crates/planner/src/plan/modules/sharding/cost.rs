//! What units of sharding cost: bytes of every device, and communication that no computation hides.
//! Invariant: plain sums over the statistics, the same for a plan and for the program.

use crate::analysis::modules::{ModuleIndex, ModuleInfo};
use crate::machine::Link;
use crate::plan::modules::memory::{activations, binding};
use crate::plan::modules::sharding::{ShardTask, ShardUnit, ShardVariant};
use crate::units::Bytes;

/// Costs of one model under one task.
pub struct Costs<'a> {
    pub info: &'a ModuleInfo,
    pub task: &'a ShardTask,
}

impl<'a> Costs<'a> {
    pub fn new(info: &'a ModuleInfo, task: &'a ShardTask) -> Costs<'a> {
        Costs { info, task }
    }

    /// A device's part of some bytes.
    pub fn shard(&self, bytes: Bytes) -> Bytes {
        Bytes(bytes.0.div_ceil(u64::from(self.task.world_size)))
    }

    /// Seconds for all devices to share `bytes`, of which each holds its part.
    fn collective(&self, link: Link, bytes: f64) -> f64 {
        let world_size = f64::from(self.task.world_size);
        match self.task.variant {
            ShardVariant::Published => link.latency.0 + bytes / link.bandwidth,
            ShardVariant::Ours if self.task.world_size == 1 => 0.0,
            ShardVariant::Ours => {
                link.latency.0 + bytes * (world_size - 1.0) / world_size / link.bandwidth
            }
        }
    }

    /// Seconds until `parameters` bytes are gathered: from the host to the device first if they are
    /// offloaded, then from all devices.
    pub fn gather(&self, parameters: f64, offloaded: bool) -> f64 {
        let shard = parameters / f64::from(self.task.world_size);
        let transfer = self
            .task
            .host
            .filter(|_| offloaded)
            .map_or(0.0, |host| host.latency.0 + shard / host.bandwidth);
        transfer + self.collective(self.task.all_gather, parameters)
    }

    /// Seconds until `gradients` bytes are reduced.
    pub fn reduce(&self, gradients: f64) -> f64 {
        self.collective(self.task.reduce_scatter, gradients)
    }

    /// Seconds of waiting after the last unit of a pass: in the published rules, the latency of a
    /// nonexistent unit. `is_end`: the module is the last of all.
    pub fn ghost(&self, link: Link, is_end: bool) -> f64 {
        if self.task.variant == ShardVariant::Published && !is_end { link.latency.0 } else { 0.0 }
    }

    /// Whether a module is the last to begin its forward pass, or the last to begin its backward
    /// pass.
    pub fn ends(&self, module: ModuleIndex) -> (bool, bool) {
        (
            self.info.modules().keys().next_back() == Some(module),
            self.info.forward_post_order().first() == Some(&module),
        )
    }

    /// Parameters and gradients that the root gathers: those of no other unit.
    pub fn of_the_root(&self, units: &[ShardUnit]) -> (Bytes, Bytes) {
        let modules = self.info.modules();
        let root = &modules[self.info.root()];
        let others = || {
            units
                .iter()
                .filter(|unit| unit.module != self.info.root())
                .map(|unit| &modules[unit.module])
        };
        let parameters =
            root.parameters.saturating_sub(others().map(|stats| stats.parameters).sum());
        (parameters, root.gradients.saturating_sub(others().map(|stats| stats.gradients).sum()))
    }

    /// Parameters and gradients that a unit gathers.
    fn of(&self, units: &[ShardUnit], unit: &ShardUnit) -> (Bytes, Bytes) {
        let stats = &self.info.modules()[unit.module];
        if unit.module == self.info.root() {
            self.of_the_root(units)
        } else {
            (stats.parameters, stats.gradients)
        }
    }

    /// Everything but activations during a module's backward pass, by kind.
    fn parts(&self, units: &[ShardUnit], module: ModuleIndex) -> [(&'static str, Bytes); 3] {
        let modules = self.info.modules();
        let sharded = modules[self.info.root()].parameters + modules[module].total_gradients;
        let offloaded =
            units.iter().filter(|unit| unit.offloaded).map(|unit| self.of(units, unit).0).sum();
        let gathered = units
            .iter()
            .filter(|unit| self.info.contains(unit.module, module))
            .map(|unit| self.of(units, unit));
        // Two units are in flight at a time, each with its parameters and with a shard that comes
        // from the host.
        let on_the_way = units.iter().map(|unit| {
            let parameters = self.of(units, unit).0;
            if unit.offloaded { parameters + self.shard(parameters) } else { parameters }
        });
        let largest = on_the_way.max().unwrap_or_default();
        [
            ("shards of parameters and gradients", self.shard(sharded.saturating_sub(offloaded))),
            (
                "gathered parameters and their gradients",
                gathered.map(|(parameters, gradients)| parameters + gradients).sum(),
            ),
            ("parameters on the way", largest + largest),
        ]
    }

    /// The sum of these.
    pub fn persistent(&self, units: &[ShardUnit], module: ModuleIndex) -> Bytes {
        self.parts(units, module).into_iter().map(|(_, bytes)| bytes).sum()
    }

    /// The peak, and the first module where it is reached.
    pub fn peak(
        &self,
        units: &[ShardUnit],
        discards: &[(ModuleIndex, Bytes)],
    ) -> (Bytes, ModuleIndex) {
        binding(self.info, discards, |module| self.persistent(units, module))
    }

    /// What is held during a module's backward pass.
    pub fn held(
        &self,
        units: &[ShardUnit],
        discards: &[(ModuleIndex, Bytes)],
        module: ModuleIndex,
    ) -> Vec<(&'static str, Bytes)> {
        let kept = activations(self.info, discards, module);
        let gradients = self.info.modules()[module].activation_gradients.min(kept);
        let mut held = self.parts(units, module).to_vec();
        held.extend([("activations", kept - gradients), ("gradients of activations", gradients)]);
        held
    }

    /// Communication that no computation hides. None of the root's is hidden, nor are the first
    /// unit's first gather and last reduction; the others overlap with the computation of the unit
    /// before them.
    pub fn exposed(&self, units: &[ShardUnit]) -> crate::units::Seconds {
        let gathers: Vec<f64> = units
            .iter()
            .map(|unit| self.gather(self.of(units, unit).0.0 as f64, unit.offloaded))
            .collect();
        let reduces: Vec<f64> =
            units.iter().map(|unit| self.reduce(self.of(units, unit).1.0 as f64)).collect();
        let link = |link: Link, is_end: bool| self.ghost(link, is_end);
        let mut sum = 0.0;
        for (at, unit) in units.iter().enumerate() {
            let (last, first) = self.ends(unit.module);
            let next_gather =
                gathers.get(at + 1).copied().unwrap_or_else(|| link(self.task.all_gather, last));
            let next_reduce = reduces
                .get(at + 1)
                .copied()
                .unwrap_or_else(|| link(self.task.reduce_scatter, last));
            if at == 0 {
                sum += gathers[0] + reduces[0] + next_gather + next_reduce;
                continue;
            }
            let previous_gather =
                if at > 1 { gathers[at - 1] } else { link(self.task.all_gather, first) };
            let stats = &self.info.modules()[unit.module];
            sum += (next_gather - stats.forward.0).max(0.0)
                + (previous_gather + next_reduce - stats.backward.0).max(0.0);
        }
        crate::units::Seconds(sum)
    }
}
