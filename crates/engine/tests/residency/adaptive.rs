//! Moves executed on a simulated memory that records what lies where. Invariant: whatever a module
//! computes with is on the device with the bytes that were written last, in any order of graphs and
//! accesses and with any deviation; what does not fit is an error that changes nothing.
//!
//! Tier: quick with a part of the cases, less than a second; full with all of them.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use tightfit::id::EntityRef;
use tightfit::units::{Bytes, Seconds};
use tightfit_engine::residency::{
    Access, Ahead, Figures, GraphKey, Move, Phase, Place, Policy, Purpose, Residency,
    ResidencyError, ResidencyVariant, Settings, TensorId, TensorState,
};

/// Number of writes to each tensor of a chunk.
type Content = BTreeMap<TensorId, u64>;

/// The memory of host and device, by chunk and by slot.
struct Memory {
    host: Vec<Content>,
    slots: Vec<Content>,
}

impl Memory {
    fn make(&mut self, step: &Move) {
        for offset in 0..step.chunks as usize {
            let chunk = step.first.index() + offset;
            match (step.from, step.to) {
                (Place::Host, Place::Device(to)) => {
                    self.slots[to.index() + offset] = self.host[chunk].clone();
                }
                (Place::Device(from), Place::Host) => {
                    let content = std::mem::take(&mut self.slots[from.index() + offset]);
                    if step.copies {
                        self.host[chunk] = content;
                    }
                }
                (Place::Device(from), Place::Device(to)) => {
                    let content = std::mem::take(&mut self.slots[from.index() + offset]);
                    self.slots[to.index() + offset] = content;
                }
                (Place::Host, Place::Host) => panic!("a move from the host to the host"),
            }
        }
    }
}

#[derive(Clone, Debug)]
struct Call {
    reads: Vec<TensorId>,
    writes: Vec<TensorId>,
    non_model: u64,
    /// It ends only when the next one does.
    outlasts: bool,
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Without(usize),
    Swap(usize),
    EndAt(usize),
    Free(usize),
}

#[derive(Clone, Debug)]
struct Program {
    settings: Settings,
    sizes: Vec<u64>,
    graphs: Vec<Vec<Call>>,
    /// Graphs in turn, each with its deviation this time, and whether everything is flushed from
    /// the device after it.
    iterations: Vec<(usize, Option<Change>, bool)>,
}

fn programs() -> impl Strategy<Value = Program> {
    let sizes = vec(prop_oneof![4 => 0..6u64, 1 => 0..20u64], 1..12);
    (sizes, 1..4usize).prop_flat_map(|(sizes, graphs)| {
        let tensor = (0..sizes.len()).prop_map(TensorId::new);
        let (reads, writes) = (vec(tensor.clone(), 0..3), vec(tensor, 0..2));
        let call = (reads, writes, 0..12u64, proptest::bool::weighted(0.1)).prop_map(
            |(reads, writes, non_model, outlasts)| Call { reads, writes, non_model, outlasts },
        );
        let change = (0..4, 0..16usize).prop_map(|(kind, at)| match kind {
            0 => Change::Without(at),
            1 => Change::Swap(at),
            2 => Change::EndAt(at),
            _ => Change::Free(at),
        });
        let flushes = proptest::bool::weighted(0.2);
        let iteration = (0..graphs, proptest::option::weighted(0.3, change), flushes);
        let graphs = vec(vec(call, 0..10), graphs);
        (Just(sizes), settings(), graphs, vec(iteration, 1..12)).prop_map(
            |(sizes, settings, graphs, iterations)| Program { settings, sizes, graphs, iterations },
        )
    })
}

fn settings() -> impl Strategy<Value = Settings> {
    let policy = prop_oneof![1 => Just(Policy::Host), 1 => Just(Policy::Device),
        6 => Just(Policy::Auto)];
    let variant = prop_oneof![1 => Just(ResidencyVariant::Published),
        4 => Just(ResidencyVariant::Ours)];
    let ahead = prop_oneof![Just(Ahead::Conservative), Just(Ahead::Aggressive)];
    (0..14u32, 0..60u64, policy, variant, (ahead, 0..20u64), 0..4u32).prop_map(
        |(slots, capacity, policy, variant, (ahead, prefetch), share)| Settings {
            ahead,
            alignment: 2,
            capacity: Bytes(capacity),
            warm_up_non_model: f64::from(share) / 4.0,
            steady_capacity: 0.9,
            policy,
            variant,
            prefetch: Bytes(prefetch),
            ..Settings::region(Bytes(4), slots)
        },
    )
}

/// A run of a program, with what is known of its memory.
struct Run {
    residency: Residency,
    memory: Memory,
    /// Number of writes to each tensor; unknown if it was given new bytes.
    written: BTreeMap<TensorId, u64>,
    trace: Vec<Move>,
    tensors: Vec<TensorId>,
}

impl Run {
    fn new(program: &Program) -> Run {
        let sizes = program.sizes.iter().copied().map(Bytes);
        let residency = Residency::new(program.settings, sizes).unwrap();
        let packing = residency.packing();
        let mut host = vec![Content::new(); packing.chunks as usize];
        for (tensor, span) in &packing.tensors {
            for chunk in 0..span.bytes.0.div_ceil(4) as usize {
                host[span.first.index() + chunk].insert(tensor, 0);
            }
        }
        let tensors: Vec<TensorId> = packing.tensors.keys().collect();
        let memory = Memory { host, slots: vec![Content::new(); program.settings.slots as usize] };
        let written = tensors.iter().map(|&tensor| (tensor, 0)).collect();
        Run { residency, memory, written, trace: Vec::new(), tensors }
    }

    fn iteration(&mut self, graph: usize, calls: &[Call], change: Option<Change>) {
        self.residency.begin(GraphKey(graph as u64)).unwrap();
        let mut calls = calls.to_vec();
        let count = calls.len().max(1);
        let mut freed = None;
        match change {
            Some(Change::Without(at)) if !calls.is_empty() => drop(calls.remove(at % count)),
            Some(Change::Swap(at)) if !calls.is_empty() => calls.swap(at % count, 0),
            Some(Change::EndAt(at)) => calls.truncate(at % count),
            Some(Change::Free(at)) => freed = Some(TensorId::new(at % self.tensors.len())),
            Some(Change::Without(_) | Change::Swap(_)) | None => {}
        }
        let mut outlasting: Option<Call> = None;
        for call in calls {
            let is_held = self.call(&call);
            if let Some(before) = outlasting.take() {
                self.over(&before);
            }
            match is_held {
                true if call.outlasts => outlasting = Some(call),
                true => self.over(&call),
                false => {}
            }
            if let Some(tensor) = freed.take_if(|_| outlasting.is_none()) {
                self.free(tensor);
            }
        }
        if let Some(before) = outlasting.take() {
            self.over(&before);
        }
        let figures = self.residency.end().unwrap();
        assert!(figures.moves > 0 || figures.volume() == Bytes::ZERO);
    }

    /// Reports an access, and returns whether it may compute.
    fn call(&mut self, call: &Call) -> bool {
        let access = Access { reads: &call.reads, writes: &call.writes };
        let before = self.addresses();
        let moves = match self.residency.acquire(access) {
            Ok(moves) => moves.to_vec(),
            Err(ResidencyError::NotEnough { .. } | ResidencyError::Fragmented { .. }) => {
                assert_eq!(self.addresses(), before, "an error changes nothing");
                return false;
            }
            Err(error) => panic!("{error}"),
        };
        let demand = moves.iter().take_while(|step| step.purpose == Purpose::Demand).count();
        for (index, step) in moves.iter().enumerate() {
            assert_eq!(step.purpose == Purpose::Demand, index < demand);
            self.memory.make(step);
        }
        for &tensor in call.reads.iter().chain(&call.writes) {
            assert_eq!(self.residency.state(tensor), Some(TensorState::Compute));
            let known = self.written.get(&tensor).copied();
            for slot in self.slots(tensor) {
                let found = self.memory.slots[slot].get(&tensor).copied();
                assert!(known.is_none_or(|known| found == Some(known)), "{tensor} is not current");
            }
        }
        for &tensor in &call.writes {
            let count = self.written.get(&tensor).copied().unwrap_or(1_000) + 1;
            self.written.insert(tensor, count);
            for slot in self.slots(tensor) {
                self.memory.slots[slot].insert(tensor, count);
            }
        }
        self.trace.extend(moves);
        true
    }

    fn over(&mut self, call: &Call) {
        let access = Access { reads: &call.reads, writes: &call.writes };
        self.residency.release(access, Phase::Backward, Bytes(call.non_model)).unwrap();
    }

    /// Makes a tensor give up its bytes, and gives it new ones.
    fn free(&mut self, tensor: TensorId) {
        let moves = self.residency.free(tensor).unwrap().to_vec();
        moves.iter().for_each(|step| self.memory.make(step));
        assert_eq!(self.residency.state(tensor), Some(TensorState::Free));
        self.trace.extend(moves);
        let access = Access { reads: &[tensor], writes: &[] };
        let illegal = self.residency.acquire(access).unwrap_err();
        assert!(matches!(illegal, ResidencyError::Illegal { .. }));
        self.residency.refill(tensor).unwrap();
        self.written.remove(&tensor);
    }

    /// Flushes the device, and checks that nothing that was written is lost.
    fn flush(&mut self) {
        let moves = self.residency.flush().unwrap().to_vec();
        moves.iter().for_each(|step| self.memory.make(step));
        self.trace.extend(moves);
        assert!(self.addresses().iter().all(Option::is_none));
        assert_eq!(self.residency.held(), Bytes::ZERO);
        for (tensor, written) in &self.written {
            let span = self.residency.packing().tensors[*tensor];
            for chunk in 0..span.bytes.0.div_ceil(4) as usize {
                let found = self.memory.host[span.first.index() + chunk].get(tensor);
                assert_eq!(found, Some(written), "{tensor} is not current");
            }
        }
    }

    /// The slots of a tensor, which has bytes and is on the device.
    fn slots(&self, tensor: TensorId) -> std::ops::Range<usize> {
        let span = self.residency.packing().tensors[tensor];
        if span.block.is_none() {
            return 0..0;
        }
        let address = self.residency.address(tensor).expect("COMPUTE implies the device").0;
        assert!(address.is_multiple_of(2));
        address as usize / 4..(address + span.bytes.0).div_ceil(4) as usize
    }

    fn addresses(&self) -> Vec<Option<Bytes>> {
        self.tensors.iter().map(|&tensor| self.residency.address(tensor)).collect()
    }
}

fn run(program: &Program) -> Vec<Move> {
    let mut run = Run::new(program);
    for &(graph, change, flushes) in &program.iterations {
        run.iteration(graph, &program.graphs[graph], change);
        if flushes {
            run.flush();
        }
    }
    run.trace
}

proptest! {
    #![proptest_config(tightfit_testing::config(1000))]

    #[test]
    fn every_access_finds_what_was_written_last(program in programs()) {
        let moves = run(&program);
        prop_assert_eq!(moves, run(&program), "the same accesses get the same moves");
    }
}

/// Numbers as a malicious caller might pass them.
fn hostile() -> impl Strategy<Value = u64> {
    prop_oneof![0..4u64, (0..64u32).prop_map(|bits| 1 << bits), any::<u64>()]
}

proptest! {
    #[test]
    fn no_number_makes_it_panic(
        (chunk, alignment, capacity, prefetch) in (hostile(), hostile(), hostile(), hostile()),
        slots in prop_oneof![0..80u32, Just(u32::MAX)],
        shares in (any::<f64>(), 0.0..=1.0f64, 0.0..=1.0f64),
        sizes in vec(hostile(), 0..6),
        accesses in vec((0..7usize, hostile()), 0..12),
        published in any::<bool>(),
    ) {
        let settings = Settings {
            alignment,
            capacity: Bytes(capacity),
            warm_up_non_model: shares.1,
            steady_capacity: if shares.2 < 0.9 { shares.2 } else { shares.0 },
            variant: if published { ResidencyVariant::Published } else { ResidencyVariant::Ours },
            prefetch: Bytes(prefetch),
            ..Settings::region(Bytes(chunk), slots)
        };
        let Ok(mut residency) = Residency::new(settings, sizes.into_iter().map(Bytes)) else {
            return Ok(());
        };
        for _ in 0..3 {
            residency.begin(GraphKey(capacity)).unwrap();
            for &(index, non_model) in &accesses {
                let tensors = [tensor(index)];
                let access = Access { reads: &[], writes: &tensors };
                match residency.acquire(access) {
                    Ok(_) => residency.release(access, Phase::Forward, Bytes(non_model)).unwrap(),
                    Err(ResidencyError::Refused(violation)) => panic!("{violation}"),
                    Err(_) => residency.set_capacity(Bytes(non_model)),
                }
            }
            residency.end().unwrap();
        }
    }
}

fn tensor(index: usize) -> TensorId {
    TensorId::new(index)
}

/// Reads tensors of one chunk each, one after another. Returns the bytes moved to the device.
fn read(residency: &mut Residency, graph: u64, order: &[usize]) -> u64 {
    residency.begin(GraphKey(graph)).unwrap();
    for &index in order {
        let tensors = [tensor(index)];
        let access = Access { reads: &tensors, writes: &[] };
        residency.acquire(access).unwrap();
        residency.release(access, Phase::Forward, Bytes::ZERO).unwrap();
    }
    residency.end().unwrap().to_device.0
}

fn of_one_chunk(tensors: usize, slots: u32) -> Residency {
    Residency::new(Settings::region(Bytes(1), slots), vec![Bytes(1); tensors]).unwrap()
}

#[test]
fn graphs_in_turn_are_seen_as_one_order() {
    let mut residency = of_one_chunk(5, 3);
    for _ in 0..4 {
        read(&mut residency, 0, &[0, 1, 2]);
        read(&mut residency, 1, &[3, 0, 4]);
    }
    let mut as_one = of_one_chunk(5, 3);
    for _ in 0..4 {
        read(&mut as_one, 0, &[0, 1, 2, 3, 0, 4]);
    }
    for _ in 0..6 {
        let in_turn = read(&mut residency, 0, &[0, 1, 2]) + read(&mut residency, 1, &[3, 0, 4]);
        assert_eq!(in_turn, read(&mut as_one, 0, &[0, 1, 2, 3, 0, 4]));
    }
}

#[test]
fn nothing_leaves_in_the_middle_of_an_iteration() {
    let mut residency = of_one_chunk(2, 2);
    residency.begin(GraphKey(0)).unwrap();
    assert_eq!(residency.flush().unwrap_err(), ResidencyError::Inside);
    residency.end().unwrap();
    assert_eq!(residency.flush().unwrap(), []);
    // The recorded order stays known.
    let before = [read(&mut residency, 0, &[0, 1]), read(&mut residency, 0, &[0, 1])];
    assert_eq!(residency.flush().unwrap().len(), 2);
    residency.begin(GraphKey(0)).unwrap();
    assert!(residency.is_steady());
    residency.end().unwrap();
    assert_eq!((before, read(&mut residency, 0, &[0, 1])), ([2, 0], 2));
}

#[test]
fn a_changed_order_is_recorded_anew() {
    let mut residency = of_one_chunk(4, 2);
    let mut fresh = of_one_chunk(4, 2);
    for _ in 0..3 {
        read(&mut residency, 0, &[0, 1, 2, 3]);
    }
    for _ in 0..8 {
        read(&mut residency, 0, &[3, 0, 3, 1, 2]);
        read(&mut fresh, 0, &[3, 0, 3, 1, 2]);
    }
    assert_eq!(read(&mut residency, 0, &[3, 0, 3, 1, 2]), read(&mut fresh, 0, &[3, 0, 3, 1, 2]));
}

/// A step whose update is skipped ends early, and its record stays; a step that has become shorter
/// is recorded.
#[test]
fn an_iteration_that_is_cut_off_leaves_the_record() {
    let mut residency = of_one_chunk(4, 4);
    let is_steady_at_the_end = |residency: &mut Residency, order: &[usize]| {
        residency.begin(GraphKey(0)).unwrap();
        for &index in order {
            let tensors = [tensor(index)];
            let access = Access { reads: &tensors, writes: &[] };
            residency.acquire(access).unwrap();
            residency.release(access, Phase::Forward, Bytes::ZERO).unwrap();
        }
        let is_steady = residency.is_steady();
        residency.end().unwrap();
        is_steady
    };
    let mut expect = |order: &[usize], steady| {
        assert_eq!(is_steady_at_the_end(&mut residency, order), steady, "{order:?}");
    };
    expect(&[0, 1, 2, 3], false);
    expect(&[0, 1, 2], true);
    expect(&[0, 1, 2, 3], true);
    expect(&[0, 1, 2], true);
    expect(&[0, 1, 2], true);
    expect(&[0, 1, 2, 3], false);
}

/// Chunks that one iteration of a steady order brings on demand, and ahead of their use.
fn demand_and_ahead(ahead: Ahead, order: &[usize]) -> (usize, usize) {
    let settings = Settings { prefetch: Bytes(2), ahead, ..Settings::region(Bytes(1), 4) };
    let mut residency = Residency::new(settings, vec![Bytes(1); 8]).unwrap();
    for _ in 0..4 {
        read(&mut residency, 0, order);
    }
    residency.begin(GraphKey(0)).unwrap();
    let mut brought = (0, 0);
    for &index in order {
        let tensors = [tensor(index)];
        let access = Access { reads: &tensors, writes: &[] };
        for step in residency.acquire(access).unwrap() {
            match (step.to, step.purpose) {
                (Place::Device(_), Purpose::Demand) => brought.0 += 1,
                (Place::Device(_), Purpose::Prefetch) => brought.1 += 1,
                (Place::Host, _) => {}
            }
        }
        assert!(residency.ahead() <= Bytes(2));
        residency.release(access, Phase::Forward, Bytes::ZERO).unwrap();
    }
    brought
}

/// A forward pass alone evicts what was used just before: what is brought ahead takes the slots of
/// what would have stayed. Back and forth, both rules bring the same bytes.
#[test]
fn blocks_come_ahead_within_the_budget() {
    let forward = [0, 1, 2, 3, 4, 5, 6, 7];
    let back_and_forth = [0, 1, 2, 3, 4, 5, 6, 7, 7, 6, 5, 4, 3, 2, 1, 0];
    assert_eq!(demand_and_ahead(Ahead::Conservative, &forward), (5, 0));
    assert_eq!(demand_and_ahead(Ahead::Aggressive, &forward), (0, 7));
    assert_eq!(demand_and_ahead(Ahead::Conservative, &back_and_forth), (0, 8));
    assert_eq!(demand_and_ahead(Ahead::Aggressive, &back_and_forth), (0, 8));
}

#[test]
fn bytes_count_in_the_direction_in_which_they_went() {
    let settings = Settings { capacity: Bytes(20), ..Settings::region(Bytes(8), 2) };
    let mut residency = Residency::new(settings, [6, 7, 8].map(Bytes)).unwrap();
    residency.begin(GraphKey(0)).unwrap();
    for (index, writes) in [(0, true), (1, false), (2, false), (0, false), (1, false)] {
        let tensors = [tensor(index)];
        let (reads, writes) =
            if writes { (&[][..], &tensors[..]) } else { (&tensors[..], &[][..]) };
        let access = Access { reads, writes };
        residency.acquire(access).unwrap();
        residency.took(Seconds(0.5), Seconds(0.25));
        residency.release(access, Phase::Optimizer, Bytes(3)).unwrap();
        assert_eq!(residency.state(tensor(index)), Some(TensorState::Hold));
    }
    assert_eq!(residency.peak(), Bytes(19));
    let expected = Figures {
        accesses: 5,
        moves: 8,
        to_device: Bytes(6 + 7 + 8 + 6 + 7),
        to_host: Bytes(6),
        dropped: Bytes(7 + 8),
        within_device: Bytes(0),
        layout: Seconds(2.5),
        eviction: Seconds(1.25),
    };
    assert_eq!(residency.figures(), &expected);
    assert_eq!(residency.end().unwrap(), expected);
    assert_eq!(expected.volume(), Bytes(40));
    assert_eq!(
        expected.to_string(),
        "5 accesses, 8 moves: 34 B to the device, 6 B to the host, 15 B dropped, 0 B within the \
         device; layout 2.500000 s, of which eviction 1.250000 s"
    );
}

/// Four slots in a row are needed, and a block lies between the two pairs that become free.
#[test]
fn blocks_make_way_within_the_device() {
    let settings = Settings::region(Bytes(4), 8);
    let mut residency = Residency::new(settings, [8, 8, 8, 8, 16].map(Bytes)).unwrap();
    residency.begin(GraphKey(0)).unwrap();
    let mut relocated = 0;
    for index in [0, 1, 2, 3, 1, 4] {
        let tensors = [tensor(index)];
        let access = Access { reads: &tensors, writes: &[] };
        residency.acquire(access).unwrap();
        residency.release(access, Phase::Forward, Bytes::ZERO).unwrap();
        relocated = residency.figures().within_device.0;
    }
    assert_eq!(relocated, 8);
    assert!([1, 3, 4].map(tensor).iter().all(|&tensor| residency.address(tensor).is_some()));
}

#[test]
fn misuse_is_an_error_and_changes_nothing() {
    let mut residency = of_one_chunk(2, 2);
    let (first, unknown) = ([tensor(0)], [tensor(9)]);
    let access = Access { reads: &first, writes: &[] };
    let release =
        |residency: &mut Residency, access| residency.release(access, Phase::Forward, Bytes::ZERO);
    assert_eq!(residency.acquire(access).unwrap_err(), ResidencyError::Outside);
    assert_eq!(residency.end().unwrap_err(), ResidencyError::Outside);
    residency.begin(GraphKey(0)).unwrap();
    assert_eq!(residency.begin(GraphKey(1)), Err(ResidencyError::Inside));
    let error = residency.acquire(Access { reads: &unknown, writes: &[] }).unwrap_err();
    assert_eq!(error, ResidencyError::UnknownTensor { tensor: tensor(9), count: 2 });
    residency.acquire(access).unwrap();
    assert_eq!(residency.end().unwrap_err(), ResidencyError::InUse { tensor: tensor(0) });
    assert_eq!(residency.free(tensor(0)).unwrap_err(), ResidencyError::InUse { tensor: tensor(0) });
    let twice = [tensor(0), tensor(0)];
    let error = release(&mut residency, Access { reads: &twice, writes: &[] });
    assert_eq!(error, Err(ResidencyError::NotInUse { tensor: tensor(0) }));
    release(&mut residency, access).unwrap();
    let error = release(&mut residency, access);
    assert_eq!(error, Err(ResidencyError::NotInUse { tensor: tensor(0) }));
    assert_eq!(residency.state(tensor(0)), Some(TensorState::HoldAfterForward));
    residency.end().unwrap();
    assert_eq!(residency.state(tensor(0)), Some(TensorState::Hold));
}

#[test]
fn settings_that_describe_no_region_are_errors() {
    let region = Settings::region(Bytes(1 << 40), 1 << 22);
    assert!(matches!(region.check(), Err(ResidencyError::Region { .. })));
    let share = Settings { steady_capacity: f64::NAN, ..Settings::region(Bytes(1), 1) };
    assert!(matches!(share.check(), Err(ResidencyError::Share { .. })));
}
