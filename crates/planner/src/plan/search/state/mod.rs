//! A plan in the making: a set of recompute events, each "run this operator again just before that
//! stage". Invariant: residency is implied (a tensor is held from each access to the next, unless
//! the next access makes it anew), so every set of events is a legal schedule and only its peak has
//! to be watched; `peak` is exact, within stages too.
//!
//! Toggling an event costs O(degree · log n). A journal takes back whatever was tried.

pub mod problem;
pub mod runs;
mod tree;

use cranelift_entity::EntityRef;

use crate::plan::search::state::problem::{OpId, Picoseconds, Problem, Size, TensorId};
use crate::plan::search::state::tree::MaxTree;

/// Run `op` again in `stage`, before the first run that gives the stage its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Event {
    /// When.
    pub stage: OpId,
    /// What.
    pub op: OpId,
}

/// A stage that touches a tensor.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The stage.
    pub stage: OpId,
    /// Runs of the stage that read it.
    pub uses: u16,
    /// Some run of the stage makes it, rather than finding it there.
    pub made: bool,
}

enum Toggle {
    Added(Event),
    Removed(Event),
}

/// Where a journal stood.
#[derive(Clone, Copy)]
pub struct Mark(usize);

/// Events over a problem, and what follows from them.
pub struct State<'a> {
    /// What is planned.
    pub problem: &'a Problem,
    /// Steps done so far, in the unit of [`crate::effort::Effort::work`].
    pub work: u64,
    accesses: Vec<Vec<Access>>,
    again: Vec<Vec<OpId>>,
    tree: MaxTree,
    within: Vec<Size>,
    extra: Picoseconds,
    events: usize,
    /// The first run is read by nobody before the operator runs again: it can be left out, so it
    /// costs nothing.
    is_idle_first: Vec<bool>,
    journal: Vec<Toggle>,
    dirty: Vec<OpId>,
    is_dirty: Vec<bool>,
    scratch: Scratch,
}

/// Memory of [`State::stage_peak`], kept between calls.
struct Scratch {
    touched: Vec<(TensorId, u32)>,
    place: Vec<u32>,
    stamp: Vec<u32>,
    clock: u32,
    freed: Vec<Size>,
}

impl<'a> State<'a> {
    /// Nothing runs again.
    pub fn new(problem: &'a Problem) -> State<'a> {
        let (stages, tensors) = (problem.len(), problem.tensors.len());
        let mut accesses = Vec::with_capacity(tensors);
        let mut held = problem.base.clone();
        let mut change = vec![0; stages + 1];
        for tensor in problem.tensors.values() {
            let first = Access { stage: tensor.producer, uses: 0, made: true };
            let reads = tensor.readers.iter().map(|&stage| Access { stage, uses: 1, made: false });
            accesses.push(std::iter::once(first).chain(reads).collect::<Vec<_>>());
            // Between its accesses; at them, the stage itself accounts for it.
            for pair in accesses.last().into_iter().flat_map(|list| list.windows(2)) {
                change[pair[0].stage.index() + 1] += tensor.bytes;
                change[pair[1].stage.index()] -= tensor.bytes;
            }
        }
        let mut now = 0;
        for (held, change) in held.iter_mut().zip(&change) {
            now += change;
            *held += now;
        }
        let scratch = Scratch {
            touched: Vec::new(),
            place: vec![0; tensors],
            stamp: vec![0; tensors],
            clock: 0,
            freed: Vec::new(),
        };
        let mut state = State {
            problem,
            work: 0,
            accesses,
            again: vec![Vec::new(); stages],
            tree: MaxTree::new(&held),
            within: vec![0; stages],
            extra: 0,
            events: 0,
            is_idle_first: vec![false; stages],
            journal: Vec::new(),
            dirty: Vec::new(),
            is_dirty: vec![false; stages],
            scratch,
        };
        for (stage, held) in held.iter_mut().enumerate() {
            state.within[stage] = state.stage_peak(OpId::at(stage));
            *held += state.within[stage];
        }
        state.tree = MaxTree::new(&held);
        state
    }

    /// The peak over all stages.
    pub fn peak(&mut self) -> Size {
        self.flush();
        self.tree.max()
    }

    /// Bytes over the stages; exact after [`State::peak`].
    pub fn tree(&self) -> &MaxTree {
        &self.tree
    }

    /// Time of all recomputations, less that of first runs that can be left out.
    pub fn extra(&self) -> Picoseconds {
        self.extra
    }

    /// How many events there are.
    pub fn len(&self) -> usize {
        self.events
    }

    /// The accesses of a tensor, by stage.
    pub fn accesses(&self, tensor: TensorId) -> &[Access] {
        &self.accesses[tensor.index()]
    }

    /// The access of a tensor at a stage, or where it would stand.
    pub fn find(&self, tensor: TensorId, stage: OpId) -> Result<usize, usize> {
        self.accesses[tensor.index()].binary_search_by_key(&stage, |access| access.stage)
    }

    /// Is a tensor held beyond its access number `index`?
    pub fn leaves(&self, tensor: TensorId, index: usize) -> bool {
        self.accesses[tensor.index()].get(index + 1).is_some_and(|next| !next.made)
    }

    /// Does `op` run again in `stage`?
    pub fn has(&self, event: Event) -> bool {
        self.again[event.stage.index()].binary_search(&event.op).is_ok()
    }

    /// May `op` run again in `stage`?
    pub fn allows(&self, event: Event) -> bool {
        let op = &self.problem.ops[event.op];
        event.op < event.stage && event.stage.as_u32() <= op.until && !op.outputs.is_empty()
    }

    /// Would the event, if added, make the operator's first run idle?
    pub fn defers(&self, event: Event) -> bool {
        let op = &self.problem.ops[event.op];
        !op.anchored
            && op.outputs.iter().all(|&tensor| {
                let next = self.accesses(tensor).get(1);
                next.is_none_or(|next| next.stage >= event.stage || next.made)
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

    /// Takes an event out, and with it each recomputation of that stage that only served it.
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
                if source.op < event.stage
                    && !going.contains(&source.op)
                    && self.has(source)
                    && self.is_idle(source)
                {
                    going.push(source.op);
                }
            }
        }
        true
    }

    /// Does nobody read what this recomputation makes?
    pub fn is_idle(&self, event: Event) -> bool {
        self.problem.ops[event.op].outputs.iter().all(|&tensor| {
            self.find(tensor, event.stage).is_ok_and(|index| {
                self.accesses(tensor)[index].uses == 0 && !self.leaves(tensor, index)
            })
        })
    }

    /// Where the journal stands.
    pub fn mark(&self) -> Mark {
        Mark(self.journal.len())
    }

    /// Takes back everything since `mark`.
    pub fn undo_to(&mut self, mark: Mark) {
        while self.journal.len() > mark.0 {
            match self.journal.pop() {
                Some(Toggle::Added(event)) => self.take(event),
                Some(Toggle::Removed(event)) => self.put(event),
                None => return,
            }
        }
    }

    /// What was done stays done.
    pub fn commit(&mut self) {
        self.journal.clear();
    }

    /// All events, by stage and operator.
    pub fn events(&self) -> Vec<Event> {
        let mut events = Vec::with_capacity(self.events);
        for (stage, again) in self.again.iter().enumerate() {
            events.extend(again.iter().map(|&op| Event { stage: OpId::at(stage), op }));
        }
        events
    }

    /// Exactly these events, sorted.
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
    /// since their last access, and at most the inputs that are read only here would go. Cascades
    /// are not followed: the answer is yes.
    pub fn removal_may_fit(&self, event: Event, budget: Size) -> bool {
        let op = &self.problem.ops[event.op];
        let mut let_go = 0;
        for &tensor in &op.inputs {
            let Ok(index) = self.find(tensor, event.stage) else { return true };
            let access = self.accesses(tensor)[index];
            if access.made {
                return true;
            }
            if access.uses == 1 && !self.leaves(tensor, index) {
                let_go += self.problem.tensors[tensor].bytes;
            }
        }
        op.outputs.iter().all(|&tensor| {
            let Ok(index) = self.find(tensor, event.stage) else { return true };
            let access = self.accesses(tensor)[index];
            if access.uses == 0 && !self.leaves(tensor, index) {
                return true;
            }
            let since = self.accesses(tensor)[index - 1].stage.index() + 1;
            let until = event.stage.index();
            since >= until
                || self.tree.max_in(since, until)
                    <= budget - self.problem.tensors[tensor].bytes + let_go
        })
    }

    fn put(&mut self, event: Event) {
        let problem = self.problem;
        let (Event { stage, op }, call) = (event, &problem.ops[event.op]);
        let Err(slot) = self.again[stage.index()].binary_search(&op) else { return };
        self.again[stage.index()].insert(slot, op);
        self.extra += call.cost;
        self.events += 1;
        self.work += 1;
        for &tensor in &call.outputs {
            match self.find(tensor, stage) {
                Ok(index) => {
                    self.hold(tensor, index - 1, -1);
                    self.accesses[tensor.index()][index].made = true;
                    self.touch(self.accesses(tensor)[index - 1].stage);
                }
                Err(index) => {
                    self.hold(tensor, index - 1, -1);
                    self.accesses[tensor.index()]
                        .insert(index, Access { stage, uses: 0, made: true });
                    self.hold(tensor, index, 1);
                    self.touch(self.accesses(tensor)[index - 1].stage);
                }
            }
        }
        if let Some(&tensor) = call.outputs.first() {
            self.review_first_run(tensor);
        }
        for &tensor in &call.inputs {
            self.add_use(tensor, stage);
        }
        self.touch(stage);
    }

    fn take(&mut self, event: Event) {
        let problem = self.problem;
        let (Event { stage, op }, call) = (event, &problem.ops[event.op]);
        let Ok(slot) = self.again[stage.index()].binary_search(&op) else { return };
        self.again[stage.index()].remove(slot);
        self.extra -= call.cost;
        self.events -= 1;
        self.work += 1;
        for &tensor in &call.outputs {
            let Ok(index) = self.find(tensor, stage) else { continue };
            self.accesses[tensor.index()][index].made = false;
            if self.accesses(tensor)[index].uses == 0 {
                self.hold(tensor, index, -1);
                self.accesses[tensor.index()].remove(index);
                self.hold(tensor, index - 1, 1);
            } else {
                self.hold(tensor, index - 1, 1);
            }
            self.touch(self.accesses(tensor)[index - 1].stage);
        }
        if let Some(&tensor) = call.outputs.first() {
            self.review_first_run(tensor);
        }
        for &tensor in &call.inputs {
            self.drop_use(tensor, stage);
        }
        self.touch(stage);
    }

    fn add_use(&mut self, tensor: TensorId, stage: OpId) {
        match self.find(tensor, stage) {
            Ok(index) => self.accesses[tensor.index()][index].uses += 1,
            Err(index) => {
                self.hold(tensor, index - 1, -1);
                self.accesses[tensor.index()].insert(index, Access { stage, uses: 1, made: false });
                self.hold(tensor, index - 1, 1);
                self.hold(tensor, index, 1);
                self.touch(self.accesses(tensor)[index - 1].stage);
                if index == 1 {
                    self.review_first_run(tensor);
                }
            }
        }
        self.touch(stage);
    }

    fn drop_use(&mut self, tensor: TensorId, stage: OpId) {
        let Ok(index) = self.find(tensor, stage) else { return };
        let access = &mut self.accesses[tensor.index()][index];
        access.uses -= 1;
        let gone = access.uses == 0 && !access.made;
        self.touch(stage);
        if gone {
            self.hold(tensor, index - 1, -1);
            self.hold(tensor, index, -1);
            self.accesses[tensor.index()].remove(index);
            self.hold(tensor, index - 1, 1);
            self.touch(self.accesses(tensor)[index - 1].stage);
            if index == 1 {
                self.review_first_run(tensor);
            }
        }
    }

    /// Adds (1) or takes away (-1) the residency between an access and the next.
    fn hold(&mut self, tensor: TensorId, index: usize, sign: Size) {
        let list = &self.accesses[tensor.index()];
        if let Some(&[from, to]) =
            list.get(index..index + 2).and_then(|pair| pair.first_chunk::<2>())
            && !to.made
        {
            self.tree.add(
                from.stage.index() + 1,
                to.stage.index(),
                sign * self.problem.tensors[tensor].bytes,
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
        let is_idle = runs_again && call.outputs.iter().all(|&output| !self.leaves(output, 0));
        if std::mem::replace(&mut self.is_idle_first[op.index()], is_idle) != is_idle {
            self.extra += if is_idle { -call.cost } else { call.cost };
        }
    }

    fn touch(&mut self, stage: OpId) {
        if !std::mem::replace(&mut self.is_dirty[stage.index()], true) {
            self.dirty.push(stage);
        }
    }

    fn flush(&mut self) {
        while let Some(stage) = self.dirty.pop() {
            let index = stage.index();
            self.is_dirty[index] = false;
            let now = self.stage_peak(stage);
            self.tree.add(index, index + 1, now - self.within[index]);
            self.within[index] = now;
        }
    }

    /// The peak within a stage of the tensors touched there; all others are in the tree already.
    fn stage_peak(&mut self, stage: OpId) -> Size {
        let problem = self.problem;
        let runs = self.again[stage.index()].len() + 1;
        self.work += 1 + runs as u64 / 2;
        let mut scratch = std::mem::replace(
            &mut self.scratch,
            Scratch {
                touched: Vec::new(),
                place: Vec::new(),
                stamp: Vec::new(),
                clock: 0,
                freed: Vec::new(),
            },
        );
        let run = |step: usize| self.again[stage.index()].get(step).copied().unwrap_or(stage);
        scratch.clock += 1;
        scratch.touched.clear();
        for step in 0..runs {
            let call = &problem.ops[run(step)];
            for &tensor in call.inputs.iter().chain(&call.outputs) {
                let index = tensor.index();
                if scratch.stamp[index] == scratch.clock {
                    scratch.touched[scratch.place[index] as usize].1 = step as u32;
                } else {
                    scratch.stamp[index] = scratch.clock;
                    scratch.place[index] = scratch.touched.len() as u32;
                    scratch.touched.push((tensor, step as u32));
                }
            }
        }
        scratch.freed.clear();
        scratch.freed.resize(runs, 0);
        let mut now = 0;
        for slot in 0..scratch.touched.len() {
            let (tensor, last) = scratch.touched[slot];
            let Ok(index) = self.find(tensor, stage) else { continue };
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
        let mut peak = 0;
        for step in 0..runs {
            let call = &problem.ops[run(step)];
            now += call.outputs.iter().map(|&tensor| problem.tensors[tensor].bytes).sum::<Size>();
            let dies_here = |tensor: &TensorId| {
                scratch.touched[scratch.place[tensor.index()] as usize].1 == step as u32
            };
            let taken = if call.takes_over.iter().any(dies_here) { call.taken } else { 0 };
            peak = peak.max(now + call.workspace + call.kept - taken);
            now -= scratch.freed[step];
        }
        self.scratch = scratch;
        peak
    }
}

#[cfg(test)]
mod tests;
