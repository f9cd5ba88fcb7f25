//! A plan in the making: a set of recompute events, each "run this operator again just before that
//! point". Invariant: residency is implied (a tensor is held from each access to the next, unless
//! the next access makes it again), so every set of events is a legal schedule and only its peak
//! has to be watched; `peak` is exact, within points too.
//!
//! Toggling an event costs O(degree · log n). A journal undoes whatever was tried.

pub mod problem;
pub mod runs;

use cranelift_entity::EntityRef;

use crate::plan::max_tree::MaxTree;
use crate::plan::quantity::{ByteCount, Picoseconds};
use crate::plan::search::state::problem::{OpId, Problem, TensorId};

/// Run `op` again in `point`, before the first run that gives the point its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Event {
    /// The point.
    pub point: OpId,
    /// The operator that runs again.
    pub op: OpId,
}

/// A point that touches a tensor.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The point.
    pub point: OpId,
    /// Runs of the point that read it.
    pub uses: u16,
    /// Some run of the point makes it, rather than finding it there.
    pub made: bool,
}

enum Toggle {
    Added(Event),
    Removed(Event),
}

/// A position in a journal.
#[derive(Clone, Copy)]
pub struct Mark(usize);

/// Events over a problem, and what follows from them.
pub struct State<'a> {
    /// What is planned.
    pub problem: &'a Problem,
    /// Work done so far, in the unit of [`crate::effort::Effort::work`].
    pub work: u64,
    accesses: Vec<Vec<Access>>,
    again: Vec<Vec<OpId>>,
    tree: MaxTree,
    within: Vec<ByteCount>,
    extra: Picoseconds,
    events: usize,
    /// No run reads the first run before the operator runs again: it can be left out, so it costs
    /// nothing.
    is_first_run_dead: Vec<bool>,
    journal: Vec<Toggle>,
    dirty: Vec<OpId>,
    is_dirty: Vec<bool>,
    scratch: Scratch,
}

/// Memory of [`State::point_peak`], kept between calls.
#[derive(Default)]
struct Scratch {
    touched: Vec<(TensorId, u32)>,
    place: Vec<u32>,
    stamp: Vec<u32>,
    clock: u32,
    freed: Vec<ByteCount>,
}

impl<'a> State<'a> {
    /// The state in which nothing runs again.
    pub fn new(problem: &'a Problem) -> State<'a> {
        let (points, tensors) = (problem.len(), problem.tensors.len());
        let mut accesses = Vec::with_capacity(tensors);
        let mut held = problem.base.clone();
        let mut change = vec![ByteCount::ZERO; points + 1];
        for tensor in problem.tensors.values() {
            let first = Access { point: tensor.producer, uses: 0, made: true };
            let reads = tensor.readers.iter().map(|&point| Access { point, uses: 1, made: false });
            accesses.push(std::iter::once(first).chain(reads).collect::<Vec<_>>());
            // Between its accesses; at them, the point itself accounts for it.
            for pair in accesses.last().into_iter().flat_map(|list| list.windows(2)) {
                change[pair[0].point.index() + 1] += tensor.bytes;
                change[pair[1].point.index()] -= tensor.bytes;
            }
        }
        let mut now = ByteCount::ZERO;
        for (held, change) in held.iter_mut().zip(&change) {
            now += *change;
            *held += now;
        }
        let scratch =
            Scratch { place: vec![0; tensors], stamp: vec![0; tensors], ..Scratch::default() };
        let mut state = State {
            problem,
            work: 0,
            accesses,
            again: vec![Vec::new(); points],
            tree: MaxTree::new(&held),
            within: vec![ByteCount::ZERO; points],
            extra: Picoseconds::ZERO,
            events: 0,
            is_first_run_dead: vec![false; points],
            journal: Vec::new(),
            dirty: Vec::new(),
            is_dirty: vec![false; points],
            scratch,
        };
        for (point, held) in held.iter_mut().enumerate() {
            state.within[point] = state.point_peak(OpId::at(point));
            *held += state.within[point];
        }
        state.tree = MaxTree::new(&held);
        state
    }

    /// The peak over all points.
    pub fn peak(&mut self) -> ByteCount {
        self.flush();
        self.tree.max()
    }

    /// Bytes over the points; exact after [`State::peak`].
    pub fn tree(&self) -> &MaxTree {
        &self.tree
    }

    /// Time of all recomputations, less that of first runs that can be left out.
    pub fn extra(&self) -> Picoseconds {
        self.extra
    }

    /// The number of events.
    pub fn len(&self) -> usize {
        self.events
    }

    /// The accesses of a tensor, by point.
    pub fn accesses(&self, tensor: TensorId) -> &[Access] {
        &self.accesses[tensor.index()]
    }

    /// The access of a tensor at a point, or where it would stand.
    pub fn find(&self, tensor: TensorId, point: OpId) -> Result<usize, usize> {
        self.accesses[tensor.index()].binary_search_by_key(&point, |access| access.point)
    }

    /// Is a tensor held beyond its access number `index`?
    pub fn leaves(&self, tensor: TensorId, index: usize) -> bool {
        self.accesses[tensor.index()].get(index + 1).is_some_and(|next| !next.made)
    }

    /// Does `op` run again in `point`?
    pub fn has(&self, event: Event) -> bool {
        self.again[event.point.index()].binary_search(&event.op).is_ok()
    }

    /// May `op` run again in `point`?
    pub fn allows(&self, event: Event) -> bool {
        let op = &self.problem.ops[event.op];
        event.op < event.point && event.point.as_u32() <= op.until && !op.outputs.is_empty()
    }

    /// Would the event, if added, make the operator's first run dead?
    pub fn defers(&self, event: Event) -> bool {
        let op = &self.problem.ops[event.op];
        !op.anchored
            && op.outputs.iter().all(|&tensor| {
                let next = self.accesses(tensor).get(1);
                next.is_none_or(|next| next.point >= event.point || next.made)
            })
    }

    /// Adds an event, if it is allowed and new.
    pub fn add(&mut self, event: Event) -> bool {
        if !self.allows(event) || self.has(event) {
            return false;
        }
        self.put(event);
        self.journal.push(Toggle::Added(event));
        true
    }

    /// Removes an event, and with it each recomputation of that point that only served it.
    pub fn remove(&mut self, event: Event) -> bool {
        if !self.has(event) {
            return false;
        }
        let problem = self.problem;
        let mut going = vec![event.op];
        while let Some(op) = going.pop() {
            let event = Event { op, ..event };
            self.take(event);
            self.journal.push(Toggle::Removed(event));
            for &tensor in &problem.ops[op].inputs {
                let source = Event { op: problem.tensors[tensor].producer, ..event };
                if source.op < event.point
                    && !going.contains(&source.op)
                    && self.has(source)
                    && self.is_dead(source)
                {
                    going.push(source.op);
                }
            }
        }
        true
    }

    /// Is what this recomputation makes never read?
    pub fn is_dead(&self, event: Event) -> bool {
        self.problem.ops[event.op].outputs.iter().all(|&tensor| {
            self.find(tensor, event.point).is_ok_and(|index| {
                self.accesses(tensor)[index].uses == 0 && !self.leaves(tensor, index)
            })
        })
    }

    /// The present position in the journal.
    pub fn mark(&self) -> Mark {
        Mark(self.journal.len())
    }

    /// Undoes everything since `mark`.
    pub fn undo_to(&mut self, mark: Mark) {
        while self.journal.len() > mark.0 {
            match self.journal.pop() {
                Some(Toggle::Added(event)) => self.take(event),
                Some(Toggle::Removed(event)) => self.put(event),
                None => return,
            }
        }
    }

    /// Makes what was done permanent.
    pub fn commit(&mut self) {
        self.journal.clear();
    }

    /// All events, by point and operator.
    pub fn events(&self) -> Vec<Event> {
        let mut events = Vec::with_capacity(self.events);
        for (point, again) in self.again.iter().enumerate() {
            events.extend(again.iter().map(|&op| Event { point: OpId::at(point), op }));
        }
        events
    }

    /// Sets exactly these events, which are sorted.
    pub fn set(&mut self, events: &[Event]) {
        for &event in self.events().iter().rev() {
            if events.binary_search(&event).is_err() {
                self.take(event);
            }
        }
        for &event in events {
            if self.allows(event) && !self.has(event) {
                self.put(event);
            }
        }
        self.commit();
        self.flush();
    }

    /// Could the plan fit without the event? A cheap necessary condition: its outputs would be held
    /// since their last access, and at most the inputs that are read only here would be freed.
    /// Cascades are not followed; the answer is then yes.
    pub fn removal_may_fit(&self, event: Event, budget: ByteCount) -> bool {
        let op = &self.problem.ops[event.op];
        let mut let_go = ByteCount::ZERO;
        for &tensor in &op.inputs {
            let Ok(index) = self.find(tensor, event.point) else { return true };
            let access = self.accesses(tensor)[index];
            if access.made {
                return true;
            }
            if access.uses == 1 && !self.leaves(tensor, index) {
                let_go += self.problem.tensors[tensor].bytes;
            }
        }
        op.outputs.iter().all(|&tensor| {
            let Ok(index) = self.find(tensor, event.point) else { return true };
            let access = self.accesses(tensor)[index];
            if access.uses == 0 && !self.leaves(tensor, index) {
                return true;
            }
            let since = self.accesses(tensor)[index - 1].point.index() + 1;
            let until = event.point.index();
            since >= until
                || self.tree.max_in(since, until)
                    <= budget - self.problem.tensors[tensor].bytes + let_go
        })
    }

    fn put(&mut self, event: Event) {
        let problem = self.problem;
        let (Event { point, op }, call) = (event, &problem.ops[event.op]);
        let Err(slot) = self.again[point.index()].binary_search(&op) else { return };
        self.again[point.index()].insert(slot, op);
        self.extra += call.cost;
        self.events += 1;
        self.work += 1;
        for &tensor in &call.outputs {
            let found = self.find(tensor, point);
            let (Ok(index) | Err(index)) = found;
            self.hold(tensor, index - 1, -1);
            if found.is_ok() {
                self.accesses[tensor.index()][index].made = true;
            } else {
                let made = Access { point, uses: 0, made: true };
                self.accesses[tensor.index()].insert(index, made);
                self.hold(tensor, index, 1);
            }
            self.touch(self.accesses(tensor)[index - 1].point);
        }
        if let Some(&tensor) = call.outputs.first() {
            self.review_first_run(tensor);
        }
        for &tensor in &call.inputs {
            self.add_use(tensor, point);
        }
        self.touch(point);
    }

    fn take(&mut self, event: Event) {
        let problem = self.problem;
        let (Event { point, op }, call) = (event, &problem.ops[event.op]);
        let Ok(slot) = self.again[point.index()].binary_search(&op) else { return };
        self.again[point.index()].remove(slot);
        self.extra -= call.cost;
        self.events -= 1;
        self.work += 1;
        for &tensor in &call.outputs {
            let Ok(index) = self.find(tensor, point) else { continue };
            self.accesses[tensor.index()][index].made = false;
            if self.accesses(tensor)[index].uses == 0 {
                self.hold(tensor, index, -1);
                self.accesses[tensor.index()].remove(index);
                self.hold(tensor, index - 1, 1);
            } else {
                self.hold(tensor, index - 1, 1);
            }
            self.touch(self.accesses(tensor)[index - 1].point);
        }
        if let Some(&tensor) = call.outputs.first() {
            self.review_first_run(tensor);
        }
        for &tensor in &call.inputs {
            self.drop_use(tensor, point);
        }
        self.touch(point);
    }

    fn add_use(&mut self, tensor: TensorId, point: OpId) {
        match self.find(tensor, point) {
            Ok(index) => self.accesses[tensor.index()][index].uses += 1,
            Err(index) => {
                self.hold(tensor, index - 1, -1);
                self.accesses[tensor.index()].insert(index, Access { point, uses: 1, made: false });
                self.hold(tensor, index - 1, 1);
                self.hold(tensor, index, 1);
                self.touch(self.accesses(tensor)[index - 1].point);
                if index == 1 {
                    self.review_first_run(tensor);
                }
            }
        }
        self.touch(point);
    }

    fn drop_use(&mut self, tensor: TensorId, point: OpId) {
        let Ok(index) = self.find(tensor, point) else { return };
        let access = &mut self.accesses[tensor.index()][index];
        access.uses -= 1;
        let gone = access.uses == 0 && !access.made;
        self.touch(point);
        if gone {
            self.hold(tensor, index - 1, -1);
            self.hold(tensor, index, -1);
            self.accesses[tensor.index()].remove(index);
            self.hold(tensor, index - 1, 1);
            self.touch(self.accesses(tensor)[index - 1].point);
            if index == 1 {
                self.review_first_run(tensor);
            }
        }
    }

    /// Adds (1) or takes away (-1) the residency between an access and the next.
    fn hold(&mut self, tensor: TensorId, index: usize, sign: i64) {
        let list = &self.accesses[tensor.index()];
        if let Some(&[from, to]) =
            list.get(index..index + 2).and_then(|pair| pair.first_chunk::<2>())
            && !to.made
        {
            self.tree.add(
                from.point.index() + 1,
                to.point.index(),
                self.problem.tensors[tensor].bytes * sign,
            );
        }
    }

    /// Brings `extra` up to date after the accesses next to a first run have changed.
    fn review_first_run(&mut self, tensor: TensorId) {
        let op = self.problem.tensors[tensor].producer;
        let call = &self.problem.ops[op];
        if call.anchored || call.until == 0 {
            return;
        }
        let runs_again = call.outputs.iter().any(|&output| self.accesses(output).len() > 1);
        let is_dead = runs_again && call.outputs.iter().all(|&output| !self.leaves(output, 0));
        if std::mem::replace(&mut self.is_first_run_dead[op.index()], is_dead) != is_dead {
            self.extra += if is_dead { -call.cost } else { call.cost };
        }
    }

    fn touch(&mut self, point: OpId) {
        if !std::mem::replace(&mut self.is_dirty[point.index()], true) {
            self.dirty.push(point);
        }
    }

    fn flush(&mut self) {
        while let Some(point) = self.dirty.pop() {
            let index = point.index();
            self.is_dirty[index] = false;
            let now = self.point_peak(point);
            self.tree.add(index, index + 1, now - self.within[index]);
            self.within[index] = now;
        }
    }

    /// The peak within a point of the tensors touched there; all others are in the tree already.
    fn point_peak(&mut self, point: OpId) -> ByteCount {
        let problem = self.problem;
        let runs = self.again[point.index()].len() + 1;
        self.work += 1 + runs as u64 / 2;
        let mut scratch = std::mem::take(&mut self.scratch);
        let op_of = |run: usize| self.again[point.index()].get(run).copied().unwrap_or(point);
        scratch.clock += 1;
        scratch.touched.clear();
        for run in 0..runs {
            let call = &problem.ops[op_of(run)];
            for &tensor in call.inputs.iter().chain(&call.outputs) {
                let index = tensor.index();
                if scratch.stamp[index] == scratch.clock {
                    scratch.touched[scratch.place[index] as usize].1 = run as u32;
                } else {
                    scratch.stamp[index] = scratch.clock;
                    scratch.place[index] = scratch.touched.len() as u32;
                    scratch.touched.push((tensor, run as u32));
                }
            }
        }
        scratch.freed.clear();
        scratch.freed.resize(runs, ByteCount::ZERO);
        let mut now = ByteCount::ZERO;
        for slot in 0..scratch.touched.len() {
            let (tensor, last) = scratch.touched[slot];
            let Ok(index) = self.find(tensor, point) else { continue };
            let bytes = problem.tensors[tensor].bytes;
            if !self.accesses(tensor)[index].made {
                now += bytes;
            }
            if self.leaves(tensor, index) {
                scratch.touched[slot].1 = u32::MAX; // it does not die here
            } else {
                scratch.freed[last as usize] += bytes;
            }
        }
        let mut peak = ByteCount::ZERO;
        for run in 0..runs {
            let call = &problem.ops[op_of(run)];
            now +=
                call.outputs.iter().map(|&tensor| problem.tensors[tensor].bytes).sum::<ByteCount>();
            let dies_here = |tensor: &TensorId| {
                scratch.touched[scratch.place[tensor.index()] as usize].1 == run as u32
            };
            let taken =
                if call.takes_over.iter().any(dies_here) { call.taken } else { ByteCount::ZERO };
            peak = peak.max(now + call.workspace + call.kept - taken);
            now -= scratch.freed[run];
        }
        self.scratch = scratch;
        peak
    }
}

#[cfg(test)]
mod tests;
