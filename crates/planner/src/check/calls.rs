//! One call. Invariant: it reads every input at its version, and no output overwrites anything that
//! is still needed.

use crate::check::state::{AbstractMachine, Content};
use crate::check::violation::Violation;
use crate::id::{BufferId, DEVICE, StorageId, ValueId};
use crate::schedule::Call;
use crate::units::Bytes;

impl AbstractMachine<'_> {
    /// Executes a call; returns the bytes held on the device during it.
    pub fn call(&mut self, call: &Call, again: bool) -> Result<Bytes, Violation> {
        let (graph, index, node) = (self.graph, self.index, call.node);
        let name = &graph.nodes()[node].name;
        if !graph.runs(node) {
            return Err(Violation::DoesNotRun { index, node: name.clone() });
        }
        if self.ran[node] != again {
            let (marked, history) = if again {
                ("recomputation", "never ran before")
            } else {
                ("first run", "ran before")
            };
            return Err(Violation::Marked { index, node: name.clone(), marked, history });
        }
        if again && graph.nodes()[node].mutates {
            return Err(Violation::MutatesAgain { index, node: name.clone() });
        }
        if graph.nodes()[node].stream && !again {
            if let Some(later) = self.drew.filter(|&last| last > node) {
                let (node, later) = (name.clone(), graph.nodes()[later].name.clone());
                return Err(Violation::DrawsOutOfOrder { index, node, later });
            }
            self.drew = Some(node);
        }
        self.ran[node] = true;
        for &buffer in call.inputs.iter().chain(&call.outputs).chain(&call.workspace) {
            self.on_device(name, buffer)?;
        }
        self.inputs_are_there(call)?;
        if let Some(buffer) = call.workspace {
            self.fits(name, "its workspace", self.profile.workspace[node], buffer)?;
            self.allocate(buffer, Content::Scratch, name)?;
        } else if self.profile.workspace[node] > Bytes::ZERO {
            let (node, what) = (name.clone(), "workspace");
            return Err(Violation::Operands { index, node, what, given: 0, needed: 1 });
        }
        self.write_outputs(call)?;
        let held = self.held[DEVICE];
        if let Some(buffer) = call.workspace {
            self.release(buffer);
        }
        Ok(held)
    }

    fn counts(
        &self,
        node: &str,
        what: &'static str,
        given: usize,
        needed: usize,
    ) -> Result<(), Violation> {
        if given == needed {
            return Ok(());
        }
        let node = node.to_string();
        Err(Violation::Operands { index: self.index, node, what, given, needed })
    }

    /// Every input's buffer holds the input's storage at the input's version.
    fn inputs_are_there(&self, call: &Call) -> Result<(), Violation> {
        let node = &self.graph.nodes()[call.node];
        self.counts(&node.name, "input", call.inputs.len(), node.inputs.len())?;
        for (&input, &buffer) in node.inputs.iter().zip(&call.inputs) {
            let value = &self.graph.values()[input];
            if self.content[buffer] != Content::Holds(value.storage, value.version) {
                return Err(Violation::NotThere {
                    index: self.index,
                    node: node.name.clone(),
                    value: self.graph.nodes()[value.producer].name.clone(),
                    buffer,
                    found: self.describe(buffer),
                });
            }
        }
        Ok(())
    }

    fn write_outputs(&mut self, call: &Call) -> Result<(), Violation> {
        let (graph, index) = (self.graph, self.index);
        let node = &graph.nodes()[call.node];
        let outputs: Vec<_> = node.outputs.iter().flatten().copied().collect();
        self.counts(&node.name, "output", call.outputs.len(), outputs.len())?;
        let mut written: Vec<BufferId> = Vec::new();
        for (&output, &buffer) in outputs.iter().zip(&call.outputs) {
            let value = &graph.values()[output];
            self.fits(&node.name, "its output", graph.storages()[value.storage], buffer)?;
            let next = Content::Holds(value.storage, value.version);
            if graph.mutated(call.node).contains(&value.storage) {
                if !self.aliases_input(call, value.storage, buffer) {
                    let first = graph.producer(value.storage);
                    let value = first.map_or("?", |first| &graph.nodes()[first].name).to_string();
                    let node = node.name.clone();
                    return Err(Violation::NewVersionElsewhere { index, node, value });
                }
                self.stays(&node.name, buffer)?;
                self.put(buffer, next);
            } else if self.content[buffer] == next && written.contains(&buffer)
                || self.aliases_input(call, value.storage, buffer)
            {
                // Another value of a storage that this call makes, or a view of an input returned
                // along with a fresh output.
            } else if graph.reads(call.node).contains(&value.storage) {
                // Only a part of the storage would be written there, but all of it would count as
                // being there.
                return Err(Violation::ViewElsewhere { index, node: node.name.clone() });
            } else if self.may_overwrite(call, output, buffer) && !written.contains(&buffer) {
                self.stays(&node.name, buffer)?;
                self.put(buffer, next);
            } else {
                self.allocate(buffer, next, &node.name)?;
            }
            written.push(buffer);
        }
        Ok(())
    }

    /// The buffer is that of an input in the storage.
    fn aliases_input(&self, call: &Call, storage: StorageId, buffer: BufferId) -> bool {
        let mut inputs = self.graph.nodes()[call.node].inputs.iter().zip(&call.inputs);
        inputs
            .any(|(&input, &from)| from == buffer && self.graph.values()[input].storage == storage)
    }

    /// The operator allows its first output to be written over an input of the same layout, and
    /// `buffer` holds one that is not kept.
    fn may_overwrite(&self, call: &Call, output: ValueId, buffer: BufferId) -> bool {
        let (graph, node) = (self.graph, &self.graph.nodes()[call.node]);
        if node.outputs.first() != Some(&Some(output)) {
            return false;
        }
        let allowed = self.profile.overwritable(graph, call.node);
        node.inputs.iter().zip(&call.inputs).any(|(input, &from)| {
            from == buffer
                && allowed.contains(input)
                && !graph.is_kept(graph.values()[*input].storage)
        })
    }
}
