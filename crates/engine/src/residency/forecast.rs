//! What is known of later accesses. Invariant: a graph is expected to run as it did last time, and
//! to be followed by the graph that followed it last time, or by itself if none has yet; from the
//! first access that differs until the end of the iteration nothing is known.

use std::collections::BTreeMap;

use cranelift_entity::PrimaryMap;
use tightfit::units::Bytes;

use super::error::ResidencyError;
use super::id::{BlockId, GraphKey, RecordId};
use super::order::{Order, Recorder};

/// The key of a block that is not used again, as far as is known.
pub const NEVER: u64 = u64::MAX;

/// An access, past, present or future.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    record: RecordId,
    /// The position in the order of its graph.
    pub position: u32,
    /// Number of accesses before the graph began.
    start: u64,
}

#[derive(Clone, Default)]
struct Record {
    order: Option<Order>,
    /// The graph that came next the last time.
    follower: Option<RecordId>,
    /// Where the last iteration ended, if that was before the end of the order.
    cut_off: Option<u32>,
}

/// The records of all graphs, and the place in the one that is running.
#[derive(Clone, Default)]
pub struct Forecast {
    records: PrimaryMap<RecordId, Record>,
    by_key: BTreeMap<GraphKey, RecordId>,
    /// The access that comes next; absent before the first iteration.
    now: Option<Cursor>,
    /// The accesses of this iteration, if they are not those of the record.
    recorder: Option<Recorder>,
    /// Whether the next uses as of the end of the last iteration still hold.
    holds: bool,
}

impl Cursor {
    /// Number of accesses before this one.
    pub fn time(self) -> u64 {
        self.start + u64::from(self.position)
    }

    /// The access after this one, or the end of the order.
    pub fn after(self) -> Cursor {
        Cursor { position: self.position.saturating_add(1), ..self }
    }
}

impl Forecast {
    /// Begins a graph. Returns whether the next uses computed before still hold.
    pub fn begin(&mut self, key: GraphKey) -> bool {
        let records = &mut self.records;
        let record = *self.by_key.entry(key).or_insert_with(|| records.push(Record::default()));
        let mut holds = self.holds;
        let mut start = 0;
        if let Some(last) = self.now {
            holds &= self.follower(last.record) == record;
            self.records[last.record].follower = Some(record);
            start = last.time();
        }
        self.now = Some(Cursor { record, position: 0, start });
        let is_new = self.records[record].order.is_none();
        self.recorder = is_new.then(Recorder::default);
        holds && !is_new
    }

    /// Ends the graph. Its accesses are recorded if they were not as expected. An iteration that
    /// only ended early, such as one whose update was skipped, leaves the record as it is, unless
    /// the one before ended there too.
    pub fn end(&mut self) {
        let Some(now) = self.now else { return };
        let record = &mut self.records[now.record];
        let length = record.order.as_ref().map_or(0, Order::accesses);
        self.holds = self.recorder.is_none() && now.position == length;
        if self.recorder.is_none() && now.position < length {
            let again = record.cut_off.replace(now.position) == Some(now.position);
            self.recorder =
                record.order.as_ref().filter(|_| again).map(|it| it.prefix(now.position));
        } else {
            record.cut_off = None;
        }
        if let Some(recorder) = self.recorder.take() {
            *record = Record { order: Some(Order::new(recorder)), cut_off: None, ..*record };
        }
    }

    /// The order that is followed; absent in the warm-up of a graph, and once it has deviated.
    pub fn order(&self) -> Option<&Order> {
        let now = self.now.filter(|_| self.recorder.is_none())?;
        self.records[now.record].order.as_ref()
    }

    /// The non-model bytes of the next access: those of the record, the most of them if it is not
    /// followed, none if there is no record yet.
    pub fn non_model(&self) -> Option<Bytes> {
        let record = self.records.get(self.now?.record)?;
        let order = record.order.as_ref()?;
        let is_followed = self.recorder.is_none();
        Some(if is_followed { order.non_model(self.position()) } else { order.most_non_model() })
    }

    /// The position of the access that comes next.
    pub fn position(&self) -> u32 {
        self.now.map_or(0, |now| now.position)
    }

    /// Number of accesses so far.
    pub fn time(&self) -> u64 {
        self.now.map_or(0, Cursor::time)
    }

    /// Whether an access to these blocks is what comes next as far as is known. If nothing is
    /// known, every access is as expected.
    pub fn expects(&self, blocks: &[BlockId]) -> bool {
        let position = self.position();
        self.order().is_none_or(|it| position < it.accesses() && it.blocks(position) == blocks)
    }

    /// Stops following the order from here on.
    pub fn deviate(&mut self) {
        if let Some(order) = self.order() {
            self.recorder = Some(order.prefix(self.position()));
        }
    }

    /// Whether one more access to this many blocks can be recorded.
    ///
    /// # Errors
    /// The iteration is too long to be numbered.
    pub fn admit(&self, blocks: usize) -> Result<(), ResidencyError> {
        self.recorder.as_ref().map_or(Ok(()), |recorder| recorder.admit(blocks))
    }

    /// Advances past the next access.
    pub fn advance(&mut self, blocks: &[BlockId]) {
        if let Some(recorder) = &mut self.recorder {
            recorder.push(blocks);
        }
        if let Some(now) = &mut self.now {
            *now = now.after();
        }
    }

    /// Records non-model bytes seen since the last access; a record is only ever raised.
    pub fn observe(&mut self, bytes: Bytes) {
        let Some(now) = self.now else { return };
        let Some(position) = now.position.checked_sub(1) else { return };
        match (&mut self.recorder, &mut self.records[now.record].order) {
            (Some(recorder), _) => recorder.observe(position, bytes),
            (None, Some(order)) => order.observe(position, bytes),
            (None, None) => {}
        }
    }

    /// How soon a block that was last used at `last` is used again: the larger, the later. If the
    /// order is not known, the block used last comes last, as a backward pass comes back to what
    /// the forward pass computed with last.
    pub fn key(&self, block: BlockId, last: u64) -> u64 {
        match self.now.filter(|_| self.order().is_some()) {
            Some(now) => self.next_use(now, block),
            None => NEVER - 1 - last.min(NEVER - 1),
        }
    }

    /// When a block is used at `from` or for the first time after it, as the number of accesses
    /// before that; [`NEVER`] if that is not known.
    pub fn next_use(&self, from: Cursor, block: BlockId) -> u64 {
        let mut cursor = from;
        for _ in 0..=self.records.len() {
            let Some(order) = &self.records[cursor.record].order else { return NEVER };
            if let Some(position) = order.next_use(block, cursor.position) {
                return Cursor { position, ..cursor }.time();
            }
            cursor = self.next_graph(cursor, order);
        }
        NEVER
    }

    /// The next access, as far as is known.
    pub fn coming(&self) -> Option<Cursor> {
        self.now.filter(|_| self.order().is_some()).and_then(|now| self.settle(now))
    }

    /// The access after this one, as far as is known.
    pub fn behind(&self, cursor: Cursor) -> Option<Cursor> {
        self.settle(cursor.after())
    }

    /// The blocks of a later access and its non-model bytes.
    pub fn access(&self, cursor: Cursor) -> (&[BlockId], Bytes) {
        let order = self.records[cursor.record].order.as_ref();
        order.map_or((&[], Bytes::ZERO), |order| {
            (order.blocks(cursor.position), order.non_model(cursor.position))
        })
    }

    /// From the end of an order to the first access of what follows.
    fn settle(&self, mut cursor: Cursor) -> Option<Cursor> {
        for _ in 0..=self.records.len() {
            let order = self.records[cursor.record].order.as_ref()?;
            if cursor.position < order.accesses() {
                return Some(cursor);
            }
            cursor = self.next_graph(cursor, order);
        }
        None
    }

    fn next_graph(&self, cursor: Cursor, order: &Order) -> Cursor {
        Cursor {
            record: self.follower(cursor.record),
            position: 0,
            start: cursor.start + u64::from(order.accesses()),
        }
    }

    fn follower(&self, record: RecordId) -> RecordId {
        self.records[record].follower.unwrap_or(record)
    }
}
