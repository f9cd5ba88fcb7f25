//! What a rank sends and receives, as calls of its graph. Invariant: what is sent does not change
//! from `tightfit.send` to `tightfit.sent`: the first writes a version of it, so that it cannot be
//! computed again, and the second reads that.
//!
//! `tightfit.incoming` is memory for a tensor; `tightfit.receive` fills it, which makes a version
//! of it too. So a tensor that came from elsewhere is never taken for one that can be made here.
//! Between the two, `tightfit.post` may announce early where the tensor is to be put: from then on
//! the memory belongs to the link, which is again expressed by a version. All but the first keep
//! their order in every plan, as the checker ensures, since ranks that wait for each other in
//! another order might wait forever.

use crate::graph::{NodeSpec, Phase, ValueSpec};
use crate::id::{MicroBatchId, ModuleId, ValueId};
use crate::operator::{Operator, to_torch};
use crate::pipeline::action::Action;
use crate::pipeline::exchange::UnderWay;
use crate::pipeline::unroll::{Unroll, dense_like};
use crate::tensor::Argument;

impl Unroll<'_> {
    /// Waits for those messages in flight for which `is_due` is true.
    pub fn wait(&mut self, is_due: impl Fn(&UnderWay) -> bool) {
        let (due, left) = self.under_way.drain(..).partition(is_due);
        self.under_way = left;
        for UnderWay { value, micro_batch, message } in due {
            // The newest version: it may have been sent to others since.
            let Some(sent) = *self.place_of(value, micro_batch) else { continue };
            let of = &self.graph.nodes()[self.graph.values()[value].producer];
            let name = format!("{}_sent_{message}", of.name);
            let spec = NodeSpec {
                micro_batch: micro_batch.unwrap_or(MicroBatchId::WHOLE),
                args: vec![Argument::Value(sent), Argument::Int(message as i64)],
                inputs: vec![sent],
                stream: true,
                ..NodeSpec::new(name, Operator::Sent.name(), Phase::Backward)
            };
            self.builder.node(spec, &[None]);
        }
    }

    /// Begins to send a value that was just made, or its mean, to all ranks that read it.
    pub(super) fn send(&mut self, value: ValueId, micro_batch: Option<MicroBatchId>) {
        let (exchange, division) = (self.exchange, self.division);
        if exchange.home(division, value) != self.rank {
            return;
        }
        for to in exchange.readers(value, micro_batch.is_none()) {
            let made = *self.place_of(value, micro_batch);
            let (Some(made), Some(message)) = (made, exchange.number(value, to, micro_batch))
            else {
                continue;
            };
            let sent = self.exchanged(Operator::Send, value, micro_batch, message, made);
            *self.place_of(value, micro_batch) = Some(sent);
            self.under_way.push(UnderWay { value, micro_batch, message });
        }
    }

    /// Announces where the values that an action receives are to be put, unless that was done
    /// already.
    pub fn post(&mut self, action: &Action) {
        let micro_batch = Some(action.micro_batch);
        for (value, message) in self.exchange.received_by(self.rank, action) {
            if self.place_of(value, micro_batch).is_none() && !self.posted.contains_key(&message) {
                let place = self.incoming(value, micro_batch, message);
                let posted = self.exchanged(Operator::Post, value, micro_batch, message, place);
                self.posted.insert(message, posted);
            }
        }
    }

    /// Appends the call that sends a tensor, announces where it is to be put, or fills it with what
    /// was received; returns the new version of it that this makes.
    fn exchanged(
        &mut self,
        operator: Operator,
        value: ValueId,
        micro_batch: Option<MicroBatchId>,
        message: usize,
        made: ValueId,
    ) -> ValueId {
        let producer = &self.graph.nodes()[self.graph.values()[value].producer];
        let what = operator.name().trim_start_matches("tightfit.");
        let spec = NodeSpec {
            module: module_of(micro_batch, producer.module),
            micro_batch: micro_batch.unwrap_or(MicroBatchId::WHOLE),
            args: vec![Argument::Value(made), Argument::Int(message as i64)],
            inputs: vec![made],
            mutates: true,
            stream: true,
            ..NodeSpec::new(
                format!("{}_{what}_{message}", producer.name),
                operator.name(),
                pass_of(producer.phase),
            )
        };
        let version = self.tensors[made].clone();
        let exchanged = self.builder.node(spec, std::slice::from_ref(&version))[0];
        self.tensors[exchanged] = version;
        exchanged
    }

    /// Receives a value from the rank that makes it.
    pub(super) fn receive(
        &mut self,
        value: ValueId,
        micro_batch: Option<MicroBatchId>,
        message: usize,
    ) -> ValueId {
        let place = match self.posted.remove(&message) {
            Some(posted) => posted,
            None => self.incoming(value, micro_batch, message),
        };
        self.exchanged(Operator::Receive, value, micro_batch, message, place)
    }

    /// Appends memory for a value that will arrive.
    fn incoming(
        &mut self,
        value: ValueId,
        micro_batch: Option<MicroBatchId>,
        message: usize,
    ) -> ValueId {
        let of = &self.graph.values()[value];
        let producer = &self.graph.nodes()[of.producer];
        let is_mean = micro_batch.is_none() && self.division.summed.contains(&value);
        let bytes = if is_mean { of.tensor.bytes() } else { self.graph.storages()[of.storage] };
        let storage = self.builder.storage(bytes);
        let output = match is_mean {
            true => dense_like(&of.tensor, storage),
            false => ValueSpec { storage, ..ValueSpec::from(of) },
        };
        let extents = of.tensor.shape.iter().map(|&extent| Argument::Int(extent as i64));
        let dtype = Argument::Text(to_torch(of.tensor.dtype).to_string());
        let spec = NodeSpec {
            module: module_of(micro_batch, producer.module),
            micro_batch: micro_batch.unwrap_or(MicroBatchId::WHOLE),
            args: vec![Argument::List(extents.collect())],
            kwargs: vec![("dtype".to_string(), dtype)],
            ..NodeSpec::new(
                format!("{}_incoming_{message}", producer.name),
                Operator::Incoming.name(),
                pass_of(producer.phase),
            )
        };
        let place = self.builder.node(spec, &[Some(output.clone())])[0];
        self.tensors[place] = Some(output);
        place
    }
}

/// Messages of updates belong to no module: the modules of their parameters may never be called.
fn module_of(micro_batch: Option<MicroBatchId>, module: ModuleId) -> ModuleId {
    micro_batch.map_or(ModuleId::from_u32(0), |_| module)
}

/// Messages keep their place among the passes, which updates do not.
fn pass_of(phase: Phase) -> Phase {
    if phase.is_forward() { Phase::Forward } else { Phase::Backward }
}
