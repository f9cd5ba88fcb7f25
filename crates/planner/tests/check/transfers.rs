//! Transfers by hand: an activation goes to the host and comes back. Invariant: each possible error
//! in a transfer is produced here, by the smallest damage to a legal schedule.
//!
//! Tier: quick, since it takes less than a second.

use expect_test::{Expect, expect};
use tightfit::Goal;
use tightfit::check::check;
use tightfit::graph::{Graph, GraphBuilder, NodeSpec, Phase, ValueSpec};
use tightfit::id::{BufferId, DEVICE, LaneId, MicroBatchId, TierId, TransferId};
use tightfit::machine::{Lane, Link, Machine, Tier};
use tightfit::plan::{Instance, Planner};
use tightfit::profile::Profile;
use tightfit::schedule::{
    self, Buffer, Call, Instruction, Lowering, Movement, Schedule, Transfer, lower,
};
use tightfit::tensor::DType;
use tightfit::timeline::Timeline;
use tightfit::units::{Bytes, Seconds};

/// Size of tensors, in bytes; a call takes a second, and so does a transfer of this size.
const BYTES: u64 = 256;

/// The tier below the device.
fn below_device() -> TierId {
    TierId::from_u32(1)
}

struct Case {
    graph: Graph,
    profile: Profile,
    schedule: Schedule,
    /// The activation on the device, its copy on the host, and its destination on return.
    buffers: [BufferId; 3],
}

/// a → b → c → loss ← d(a): `a` is needed again only at the end.
fn graph() -> Graph {
    let mut builder = GraphBuilder::new("away");
    let mut node = |name: &str, phase, inputs: &[_], bytes: u64| {
        let storage = builder.storage(Bytes(bytes));
        let mut node =
            NodeSpec::new(name, if inputs.is_empty() { "placeholder" } else { "t" }, phase);
        node.inputs = inputs.to_vec();
        node.seconds = Some(Seconds(1.0));
        let output = ValueSpec::contiguous(&[bytes / 4], DType::F32, storage);
        builder.node(node, &[Some(output)])[0]
    };
    let x = node("x", Phase::Input, &[], BYTES);
    let a = node("a", Phase::Forward, &[x], BYTES);
    let b = node("b", Phase::Forward, &[a], BYTES);
    let c = node("c", Phase::Forward, &[b], BYTES);
    let loss = node("loss", Phase::Loss, &[c], 4);
    let d = node("d", Phase::Backward, &[loss, a], 4);
    builder.output(d);
    builder.build().unwrap()
}

fn profile(graph: &Graph) -> Profile {
    let mut machine = Machine::preset("a100-80gb").unwrap();
    let host = Tier { name: "host".to_string(), capacity: Some(Bytes(BYTES)), block: Bytes(1) };
    machine.hierarchy.tiers.push(host);
    let link = Link { latency: Seconds(0.0), bandwidth: BYTES as f64 };
    machine.hierarchy.lanes.push(Lane { from: DEVICE, to: below_device(), link });
    machine.hierarchy.lanes.push(Lane { from: below_device(), to: DEVICE, link });
    Profile::new(graph, &machine)
}

fn copy(id: u32, lane: u32, from: BufferId, to: BufferId) -> Instruction {
    Instruction::Start(Transfer {
        id: TransferId::from_u32(id),
        lane: LaneId::from_u32(lane),
        movement: Movement::Copy { from, to },
    })
}

fn wait(id: u32) -> Instruction {
    Instruction::Wait(TransferId::from_u32(id))
}

/// The unplanned schedule, in which `a` leaves while `b` and `c` run and comes back for `d`.
fn away() -> Case {
    let graph = graph();
    let profile = profile(&graph);
    let program = graph.compute_nodes();
    let plan = Instance::new(&graph, &profile, &program).unplanned(Planner::None);
    let mut schedule = lower(&graph, &profile, &plan, &Lowering::to(Goal::Smallest));
    let [a, loss, d] = ["a", "loss", "d"].map(|name| graph.node_named(name).unwrap());
    let calls = |node| {
        let is = move |i: &Instruction| i.call().is_some_and(|call| call.node == node);
        schedule.instructions.iter().position(is).unwrap()
    };
    let (first, loss, last) = (calls(a), calls(loss), calls(d));
    let device = schedule.instructions[first].call().unwrap().outputs[0];
    let home = schedule.slab.0;
    let host =
        schedule.buffers.push(Buffer { bytes: Bytes(BYTES), address: 0, tier: below_device() });
    let back = schedule.buffers.push(Buffer { bytes: Bytes(BYTES), address: home, tier: DEVICE });
    schedule.slab += Bytes(BYTES);
    schedule.budget = schedule.slab;
    schedule.below[below_device()] = Bytes(BYTES);
    for instruction in &mut schedule.instructions[last..] {
        let read = |call: &mut Call| {
            call.inputs.iter_mut().filter(|b| **b == device).for_each(|b| *b = back);
        };
        match instruction {
            Instruction::Run(call) | Instruction::Recompute(call) => read(call),
            Instruction::Free(freed) if *freed == device => *freed = back,
            Instruction::Free(_) | Instruction::Start(_) | Instruction::Wait(_) => {}
        }
    }
    // From the end, so that earlier positions do not change.
    schedule.instructions.insert(last, Instruction::Free(host));
    schedule.instructions.insert(last, wait(1));
    schedule.instructions.insert(loss, copy(1, 1, host, back));
    schedule.instructions.insert(loss, Instruction::Free(device));
    schedule.instructions.insert(loss, wait(0));
    schedule.instructions.insert(first + 1, copy(0, 0, device, host));
    Case { graph, profile, schedule, buffers: [device, host, back] }
}

impl Case {
    fn verdict(&self) -> Result<Timeline, String> {
        check(&self.graph, &self.profile, &self.schedule, self.schedule.budget)
            .map_err(|violation| violation.to_string())
    }

    fn at(&self, wanted: impl Fn(&Instruction) -> bool) -> usize {
        self.schedule.instructions.iter().position(wanted).unwrap()
    }

    fn transfer(&mut self, id: u32) -> &mut Transfer {
        let wanted = TransferId::from_u32(id);
        let is_it = |i: &&mut Instruction| matches!(i, Instruction::Start(t) if t.id == wanted);
        match self.schedule.instructions.iter_mut().find(is_it) {
            Some(Instruction::Start(transfer)) => transfer,
            _ => panic!("transfer {id} is never started"),
        }
    }

    fn call(&mut self, name: &str) -> &mut Call {
        let id = self.graph.node_named(name).unwrap();
        let calls = self.schedule.instructions.iter_mut().filter_map(|i| match i {
            Instruction::Run(call) | Instruction::Recompute(call) => Some(call),
            Instruction::Free(_) | Instruction::Start(_) | Instruction::Wait(_) => None,
        });
        calls.into_iter().find(|call| call.node == id).unwrap()
    }
}

fn broken(break_it: impl FnOnce(&mut Case), expected: Expect) {
    let mut case = away();
    assert!(case.verdict().is_ok(), "{:?}", case.verdict());
    break_it(&mut case);
    expected.assert_eq(&case.verdict().unwrap_err());
}

#[test]
fn lanes_run_beside_the_calls() {
    let timeline = away().verdict().unwrap();
    let seconds = |id: usize| {
        let transfer = &timeline.transfers[id];
        (transfer.start.0, transfer.seconds.0, transfer.stall.0)
    };
    // `a` ends after one second; its copy leaves during `b`, and `c` hides the wait. The way back
    // begins with the loss and ends with it.
    assert_eq!(seconds(0), (1.0, 1.0, 0.0));
    assert_eq!(seconds(1), (3.0, 1.0, 0.0));
    assert_eq!(timeline.seconds, Seconds(5.0));
}

#[test]
fn a_slow_lane_makes_calls_wait() {
    let mut case = away();
    let lane = LaneId::from_u32(1);
    case.profile.hierarchy.lanes[lane].link.bandwidth = BYTES as f64 / 4.0;
    let timeline = case.verdict().unwrap();
    assert_eq!(timeline.transfers[1].stall, Seconds(3.0));
    assert_eq!(timeline.seconds, Seconds(8.0));
}

#[test]
fn a_lane_moves_one_thing_after_another() {
    let mut case = away();
    let [device, host, _] = case.buffers;
    // The copy leaves twice over the same lane.
    let second = case.schedule.buffers.push(Buffer {
        bytes: Bytes(BYTES),
        address: BYTES,
        tier: below_device(),
    });
    case.schedule.below[below_device()] = Bytes(2 * BYTES);
    case.profile.hierarchy.tiers[below_device()].capacity = None;
    let start = case.at(|i| *i == copy(0, 0, device, host));
    case.schedule.instructions.insert(start, copy(2, 0, device, second));
    let end = case.at(|i| *i == wait(0));
    case.schedule.instructions.insert(end, wait(2));
    case.schedule.instructions.push(Instruction::Free(second));
    let timeline = case.verdict().unwrap();
    let starts: Vec<f64> = timeline.transfers.iter().map(|t| t.start.0).collect();
    assert_eq!(starts, [1.0, 2.0, 3.0]);
}

#[test]
fn what_is_away_is_not_held() {
    let timeline = away().verdict().unwrap();
    let held: Vec<u64> = timeline.calls.iter().map(|call| call.held.0).collect();
    // x and a; a and b; a, b and c; c, the loss and the memory for a; a, the loss and d.
    assert_eq!(held, [512, 512, 768, 516, 264]);
    let away: Vec<_> = timeline.residencies.iter().filter(|r| r.tier == below_device()).collect();
    assert_eq!(away.len(), 1);
    assert_eq!((away[0].first, away[0].end), (1, Some(4)));
}

#[test]
fn reads_before_arrival() {
    broken(
        |case| {
            let at = case.at(|i| *i == wait(1));
            let waited = case.schedule.instructions.remove(at);
            case.schedule.instructions.push(waited);
        },
        expect!["instruction 11 (free) changes buffer6 while transfer1 is under way"],
    );
    broken(
        |case| {
            let [.., back] = case.buffers;
            case.call("loss").inputs[0] = back;
        },
        expect![
            "instruction 9: `loss` reads `c` from buffer7, which holds what transfer1 is bringing"
        ],
    );
}

#[test]
fn changes_while_under_way() {
    broken(
        |case| {
            let at = case.at(|i| *i == wait(0));
            case.schedule.instructions.swap(at, at + 1);
        },
        expect!["instruction 6 (free) changes buffer1 while transfer0 is under way"],
    );
}

#[test]
fn numbers_of_transfers() {
    broken(
        |case| case.transfer(1).id = TransferId::from_u32(0),
        expect!["instruction 8: transfer0 was started before"],
    );
    broken(
        |case| {
            let at = case.at(|i| *i == wait(0));
            case.schedule.instructions.insert(at, wait(0));
        },
        expect!["instruction 7 waits for transfer0, which is not under way"],
    );
    broken(
        |case| {
            let gone = [wait(0), Instruction::Free(case.buffers[0])];
            case.schedule.instructions.retain(|i| !gone.contains(i));
        },
        expect!["instruction 6: transfer1 moves buffer6, which holds what transfer0 is bringing"],
    );
    broken(
        |case| {
            let [_, host, back] = case.buffers;
            let more = Buffer { bytes: Bytes(BYTES), address: 0, tier: below_device() };
            let second = case.schedule.buffers.push(more);
            let freed = case.at(|i| *i == Instruction::Free(host));
            case.schedule.instructions.insert(freed + 1, copy(2, 0, back, second));
            let at = case.at(|i| *i == Instruction::Free(back));
            case.schedule.instructions.remove(at);
        },
        expect!["transfer2 is never waited for"],
    );
}

#[test]
fn ends_of_lanes() {
    broken(
        |case| case.transfer(0).lane = LaneId::from_u32(1),
        expect!["instruction 1: transfer0 occupies lane1, but buffer1 lies in tier0"],
    );
    broken(
        |case| case.transfer(0).lane = LaneId::from_u32(2),
        expect!["transfer0 occupies lane2, but the machine has 2 lanes"],
    );
    broken(
        |case| {
            let host = case.buffers[1];
            case.schedule.buffers[host].tier = TierId::from_u32(2);
        },
        expect![[
            "the schedule moves tensors to tier2, which the machine does not have: 2 tiers of \
             memory in all; name a machine with the tier that the plan was made for (--tier)"
        ]],
    );
}

#[test]
fn what_a_transfer_finds() {
    broken(
        |case| {
            let start = case.at(|i| *i == copy(0, 0, case.buffers[0], case.buffers[1]));
            case.schedule.instructions.swap(start, start - 1);
        },
        expect!["instruction 0: transfer0 moves buffer1, which holds nothing"],
    );
    broken(
        |case| {
            let host = case.buffers[1];
            case.schedule.buffers[host].bytes = Bytes(BYTES - 4);
        },
        expect![
            "instruction 1: `transfer0` needs 256 bytes for what it moves, but buffer6 has 252"
        ],
    );
    broken(
        |case| {
            case.profile.hierarchy.tiers[below_device()].capacity = Some(Bytes(BYTES - 1));
        },
        expect!["the schedule takes 256 bytes of tier1, more than its capacity of 255"],
    );
}

#[test]
fn calls_compute_on_the_device() {
    broken(
        |case| {
            let host = case.buffers[1];
            case.call("d").inputs[1] = host;
        },
        expect!["instruction 13: `d` uses buffer6 in tier1: calls compute on the device"],
    );
}

#[test]
fn a_call_computes_the_micro_batch_of_its_node() {
    broken(
        |case| case.call("d").micro_batch = MicroBatchId::from_u32(1),
        expect!["a call of `d` is of micro-batch1, but the node belongs to micro-batch0"],
    );
}

#[test]
fn addresses_are_aligned() {
    broken(
        |case| {
            let back = case.buffers[2];
            case.schedule.buffers[back].address += 4;
            case.schedule.slab += Bytes(64);
            case.schedule.budget = case.schedule.slab;
        },
        expect!["buffer7 lies at byte 772, which is no multiple of 64"],
    );
}

#[test]
fn a_file_says_the_same() {
    let case = away();
    let text = schedule::write(&case.graph, &case.schedule).to_string();
    let read = schedule::read(&case.graph, text.as_bytes()).unwrap();
    assert_eq!(read, case.schedule);
}
