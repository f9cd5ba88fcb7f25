//! Steps that end where they begin: a weight that lies in the tier below between steps, and one
//! that is in flight at the border. Invariant: each possible error in this is produced here, by the
//! smallest damage to a legal schedule.
//!
//! Tier: quick, since it takes less than a second.

use expect_test::{Expect, expect};
use tightfit::Goal;
use tightfit::analysis::{Motion, Move, Sequence};
use tightfit::check::{check, lanes};
use tightfit::graph::{Graph, GraphBuilder, NodeSpec, Phase, ValueSpec};
use tightfit::id::{BufferId, DEVICE, LaneId, NodeId, TransferId};
use tightfit::machine::Machine;
use tightfit::plan::{Instance, Planner};
use tightfit::profile::Profile;
use tightfit::schedule::{
    Buffer, Instruction, Lowering, Movement, Residents, Schedule, Transfer, lower,
};
use tightfit::tensor::DType;
use tightfit::timeline::{Swapped, Timeline};
use tightfit::units::{Bytes, Seconds};

use crate::fixtures::moves::{host, with_host};

const BYTES: u64 = 4096;

struct Case {
    graph: Graph,
    profile: Profile,
    schedule: Schedule,
}

/// loss(x, w, v), a gradient, and an update of w; each takes a second.
fn graph() -> Graph {
    let mut builder = GraphBuilder::new("cycle");
    let mut node = |name: &str, phase: Phase, inputs: &[_], bytes: u64| {
        let mut spec =
            NodeSpec::new(name, if phase.is_placeholder() { "placeholder" } else { "t" }, phase);
        spec.inputs = inputs.to_vec();
        spec.seconds = Some(Seconds(1.0));
        spec.mutates = phase == Phase::Optimizer;
        spec.parameter = (phase == Phase::Parameter).then(|| name.to_owned());
        let storage = if spec.mutates { 1 } else { builder.storage(Bytes(bytes)).as_u32() };
        let storage = tightfit::id::StorageId::from_u32(storage);
        let output = ValueSpec::contiguous(&[bytes / 4], DType::F32, storage);
        builder.node(spec, &[Some(output)])[0]
    };
    let x = node("x", Phase::Input, &[], 64);
    let w = node("w", Phase::Parameter, &[], BYTES);
    let v = node("v", Phase::Parameter, &[], BYTES);
    let loss = node("loss", Phase::Loss, &[x, w, v], 64);
    let gradient = node("gradient", Phase::Backward, &[loss, x], BYTES);
    node("update", Phase::Optimizer, &[w, gradient], BYTES);
    builder.output(loss);
    builder.build().unwrap()
}

/// A case in which weights are away as the moves say; copying a whole weight takes a second.
fn case(moves: &[(&str, u32, Motion)]) -> Case {
    let graph = graph();
    let machine = Machine::preset("a100-80gb").unwrap();
    let mut machine = with_host(machine, BYTES as f64, BYTES);
    machine.hierarchy.lanes.values_mut().for_each(|lane| lane.link.latency = Seconds(0.0));
    let profile = Profile::new(&graph, &machine);
    let storage = |name: &str| graph.fresh(graph.node_named(name).unwrap())[0];
    let mut moves: Vec<Move> = moves
        .iter()
        .map(|&(name, before, motion)| Move { before, storage: storage(name), motion })
        .collect();
    moves.sort_by_key(|next| next.before);
    let program = graph.compute_nodes();
    let instance = Instance::new(&graph, &profile, &program);
    let plan = instance.plan(Planner::None, Sequence::with_moves(&program, &moves));
    let schedule = lower(&graph, &profile, &plan, &Lowering::to(Goal::Smallest));
    Case { graph, profile, schedule }
}

/// Away between steps.
const AWAY: &[(&str, u32, Motion)] =
    &[("w", 0, Motion::Prefetch), ("w", 3, Motion::Offload), ("w", 3, Motion::Release)];
/// It leaves at the end of one step, and is away from the loss of the next one on.
const LEAVING: &[(&str, u32, Motion)] =
    &[("w", 1, Motion::Release), ("w", 1, Motion::Prefetch), ("w", 3, Motion::Offload)];
/// It is not written, so it is released at once; it comes back at the end of the step.
const COMING: &[(&str, u32, Motion)] = &[("v", 1, Motion::Release), ("v", 3, Motion::Prefetch)];

impl Case {
    fn verdict(&self) -> Result<Timeline, String> {
        check(&self.graph, &self.profile, &self.schedule, self.schedule.budget)
            .map_err(|violation| violation.to_string())
    }

    fn list(&self) -> Vec<String> {
        let word = |instruction: &Instruction| match instruction {
            Instruction::Run(call) | Instruction::Recompute(call) => {
                self.graph.nodes()[call.node].name.clone()
            }
            Instruction::Free(buffer) => format!("free {buffer}"),
            Instruction::Start(Transfer { id, movement, .. }) => {
                let [from, to] = movement.buffers();
                format!("{id}: {from} to {to}")
            }
            Instruction::Wait(id) => format!("wait {id}"),
        };
        self.schedule.instructions.iter().map(word).collect()
    }

    fn at_start(&mut self, name: &str) -> &mut BufferId {
        let node = self.graph.node_named(name).unwrap();
        let mut placeholders = self.schedule.placeholders.iter_mut();
        &mut placeholders.find(|(placeholder, _)| *placeholder == node).unwrap().1
    }

    fn at(&self, wanted: &Instruction) -> usize {
        self.schedule.instructions.iter().position(|found| found == wanted).unwrap()
    }

    fn remove(&mut self, wanted: &Instruction) -> Instruction {
        let at = self.at(wanted);
        self.schedule.instructions.remove(at)
    }
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

fn broken(moves: &[(&str, u32, Motion)], damage: impl FnOnce(&mut Case), expected: Expect) {
    let mut case = case(moves);
    assert!(case.verdict().is_ok(), "{:?}", case.verdict());
    damage(&mut case);
    expected.assert_eq(&case.verdict().unwrap_err());
}

#[test]
fn a_weight_that_is_away_between_steps() {
    let case = case(AWAY);
    expect![[r#"
        transfer0: buffer5 to buffer2
        wait transfer0
        free buffer5
        loss
        gradient
        free buffer0
        update
        free buffer4
        transfer1: buffer2 to buffer5
        wait transfer1
        free buffer2"#]]
    .assert_eq(&case.list().join("\n"));
    let timeline = case.verdict().unwrap();
    // A second to bring it, three of calls, and a second to take it away.
    assert_eq!(timeline.seconds, Seconds(5.0));
    // The other weight and the loss.
    assert_eq!(timeline.held_at_end, Bytes(64 + BYTES));
}

#[test]
fn what_crosses_the_border_takes_time_of_both_steps() {
    let leaving = case(LEAVING);
    expect![[r#"
        loss
        wait transfer1
        free buffer3
        transfer0: buffer5 to buffer3
        gradient
        free buffer0
        wait transfer0
        free buffer5
        update
        free buffer4
        transfer1: buffer3 to buffer5"#]]
    .assert_eq(&leaving.list().join("\n"));
    let timeline = leaving.verdict().unwrap();
    // It leaves during the loss of the next step, and comes back during the gradient.
    assert_eq!(timeline.seconds, Seconds(3.0));
    let crossing = timeline.transfers.last().unwrap();
    assert_eq!((crossing.start, crossing.stall), (Seconds(3.0), Seconds(0.0)));
}

#[test]
fn what_comes_back_for_the_next_step() {
    let coming = case(COMING);
    expect![[r#"
        wait transfer0
        loss
        free buffer4
        gradient
        free buffer0
        update
        free buffer3
        transfer0: buffer5 to buffer4"#]]
    .assert_eq(&coming.list().join("\n"));
    let timeline = coming.verdict().unwrap();
    // It is started when the step is over, so the next one waits for all of it.
    assert_eq!(timeline.seconds, Seconds(4.0));
    assert_eq!(timeline.transfers[0].stall, Seconds(1.0));
}

/// Idle, free and waiting seconds, with the accesses and the in-trigger between them.
fn swapped(moves: &[(&str, u32, Motion)]) -> String {
    let case = case(moves);
    let rows = case.verdict().unwrap().swapped(&case.graph, &case.schedule);
    let name = |node: Option<NodeId>| node.map_or("-", |node| &case.graph.nodes()[node].name);
    let row = |row: &Swapped| {
        let [last, trigger, next] = [row.last_access, row.in_trigger, row.next_access].map(name);
        let out = row.out.map_or("-".to_string(), |out| out.0.to_string());
        format!(
            "{} after {last}, returns after {trigger} for {next}: idle {}, out {out}, back {}, \
             free {}, waits {}",
            name(Some(row.node)),
            row.idle.0,
            row.back.0,
            row.free().0,
            row.stall.0
        )
    };
    rows.iter().map(row).collect::<Vec<_>>().join("\n")
}

#[test]
fn what_is_swapped_over_the_border_is_idle_in_both_steps() {
    expect!["w after update, returns after - for loss: idle 2, out 1, back 1, free 0, waits 2"]
        .assert_eq(&swapped(AWAY));
    expect!["w after loss, returns after loss for update: idle 1, out 1, back 1, free -1, waits 0"]
        .assert_eq(&swapped(LEAVING));
    expect!["v after loss, returns after update for loss: idle 3, out -, back 1, free 2, waits 1"]
        .assert_eq(&swapped(COMING));
}

fn below(case: &Case) -> BufferId {
    case.schedule.buffers.iter().find(|(_, buffer)| buffer.tier == host()).unwrap().0
}

#[test]
fn a_copy_that_is_older_than_what_it_is_of() {
    // The copy from before the update is kept instead of a new one.
    broken(
        AWAY,
        |case| {
            let home = below(case);
            case.remove(&Instruction::Free(home));
        },
        expect![
            "instruction 7: `transfer1` writes over buffer5, which holds what `w` made (version 0)"
        ],
    );
    broken(
        AWAY,
        |case| {
            let home = below(case);
            case.remove(&Instruction::Free(home));
            let at = case.at(&wait(1));
            let place = case.schedule.slab;
            case.schedule.slab += Bytes(BYTES);
            case.schedule.budget = case.schedule.slab;
            let bytes = Bytes(BYTES);
            let address = place.0.next_multiple_of(BYTES);
            case.schedule.slab = Bytes(address) + bytes;
            case.schedule.budget = case.schedule.slab;
            let other = case.schedule.buffers.push(Buffer { bytes, address, tier: DEVICE });
            case.schedule.instructions[at - 1] = copy(1, 1, home, other);
        },
        expect![
            "instruction 7: transfer1 moves buffer5, which holds what `w` made (version 0), but \
             version 1 is the newest"
        ],
    );
}

#[test]
fn a_step_that_ends_elsewhere() {
    // It stays on the device.
    broken(
        AWAY,
        |case| {
            let at = case.at(&wait(1));
            case.schedule.instructions.drain(at - 1..=at + 1);
        },
        expect![
            "when the step is over, buffer5 holds nothing; the next step looks for the last \
             version of `w` there"
        ],
    );
    // Only its last copy is freed.
    broken(
        AWAY,
        |case| {
            let at = case.at(&wait(1));
            case.schedule.instructions.drain(at - 1..=at);
        },
        expect![
            "instruction 8 frees buffer2, which holds what `w` made (version 1): it must outlive \
             the step"
        ],
    );
    // The next step expects it on the device.
    broken(
        COMING,
        |case| {
            let at = case.at(&wait(0));
            case.schedule.instructions.remove(at);
        },
        expect!["instruction 0: `loss` reads `v` from buffer4, which holds nothing"],
    );
}

#[test]
fn what_is_under_way_at_the_border() {
    broken(
        LEAVING,
        |case| {
            case.remove(&wait(1));
        },
        expect![
            "instruction 1 frees buffer3, which holds what `w` made (version 0): it must outlive \
             the step"
        ],
    );
    broken(
        LEAVING,
        |case| {
            let waited = case.remove(&wait(1));
            case.schedule.instructions.insert(0, waited);
            let home = below(case);
            *case.at_start("w") = home;
        },
        expect![
            "transfer1 is under way when a step begins, and moves buffer3, in which nothing is \
             kept from step to step"
        ],
    );
}

/// Schedules that share its memory, such as an evaluation's, avoid all its places.
#[test]
fn what_is_under_way_has_its_place_at_both_ends() {
    for moves in [AWAY, LEAVING, COMING] {
        let case = case(moves);
        let residents = Residents::of(&case.graph, &case.schedule);
        let home = case.schedule.buffers[below(&case)];
        assert_eq!(residents.end_below, home.address + home.bytes.0);
        let on_device = residents.addresses.len();
        assert_eq!((on_device, residents.below.len()), if moves == AWAY { (1, 1) } else { (2, 0) });
    }
}

#[test]
fn what_crosses_comes_from_where_something_is_kept() {
    // It arrives within the step, so the next one would wait for a transfer that is not in flight.
    broken(
        LEAVING,
        |case| {
            case.schedule.instructions.push(wait(1));
        },
        expect!["transfer1 is under way when a step begins, but has arrived when the step is over"],
    );
    // The contents of the batch's buffer at the end of a step would be brought into the next one.
    broken(
        AWAY,
        |case| {
            let x = *case.at_start("x");
            case.schedule.buffers[x].bytes = Bytes(BYTES);
            case.schedule.buffers[x].address = 1 << 20;
            let (bytes, address, tier) = (Bytes(BYTES), BYTES, host());
            let below = case.schedule.buffers.push(Buffer { bytes, address, tier });
            (case.schedule.slab, case.schedule.budget) = (Bytes(2 << 20), Bytes(2 << 20));
            case.schedule.below[host()] = Bytes(2 * BYTES);
            case.schedule.instructions.insert(0, wait(7));
            case.schedule.instructions.push(copy(7, 0, x, below));
        },
        expect![
            "transfer7 is under way when a step begins, and moves buffer0, in which nothing is \
             kept from step to step"
        ],
    );
}

#[test]
fn an_arena_larger_than_its_tier() {
    broken(
        AWAY,
        |case| case.profile.hierarchy.tiers[host()].capacity = Some(Bytes(BYTES - 1)),
        expect!["the schedule takes 4096 bytes of tier1, more than its capacity of 4095"],
    );
}

#[test]
fn an_output_below() {
    let mut case = case(AWAY);
    let loss = case.graph.node_named("loss").unwrap();
    let made = case.schedule.instructions.iter().filter_map(Instruction::call);
    let from = made.into_iter().find(|call| call.node == loss).unwrap().outputs[0];
    case.schedule.buffers[from].bytes = Bytes(BYTES);
    case.schedule.buffers[from].address = 1 << 20;
    (case.schedule.slab, case.schedule.budget) = (Bytes(2 << 20), Bytes(2 << 20));
    case.schedule.below[host()] = Bytes(2 * BYTES);
    let (bytes, address, tier) = (Bytes(BYTES), BYTES, host());
    let to = case.schedule.buffers.push(Buffer { bytes, address, tier });
    case.schedule.instructions.extend([copy(2, 0, from, to), wait(2), Instruction::Free(from)]);
    expect!["`loss` is missing at the end of the step"].assert_eq(&case.verdict().unwrap_err());
}

#[test]
fn parts_of_blocks() {
    broken(
        AWAY,
        |case| {
            let home = below(case);
            case.schedule.buffers[home].address = 64;
            case.schedule.below[host()] = Bytes(64 + BYTES);
        },
        expect![
            "instruction 0: transfer0 moves buffer5, whose address and size must be multiples of \
             4096 bytes, the block of the tier"
        ],
    );
}

#[test]
fn times_that_cannot_be() {
    let damaged = |moves, damage: &dyn Fn(&mut Timeline), expected: Expect| {
        let case = case(moves);
        let mut timeline = case.verdict().unwrap();
        lanes(&case.profile, &case.schedule, &timeline).unwrap();
        damage(&mut timeline);
        let refused = lanes(&case.profile, &case.schedule, &timeline).unwrap_err();
        expected.assert_eq(&refused.to_string());
    };
    // Both on the lane back.
    const BOTH: &[(&str, u32, Motion)] = &[
        ("w", 0, Motion::Prefetch),
        ("v", 0, Motion::Prefetch),
        ("v", 1, Motion::Release),
        ("w", 3, Motion::Offload),
        ("w", 3, Motion::Release),
    ];
    damaged(
        BOTH,
        &|timeline| timeline.transfers[1].start = Seconds(0.5),
        expect![
            "lane1 takes up transfer1 before transfer0 has arrived: it moves one after another"
        ],
    );
    damaged(
        AWAY,
        &|timeline| timeline.transfers[0].seconds = Seconds(0.5),
        expect!["instruction 0: transfer0 is timed sooner than it can begin or arrive"],
    );
    damaged(
        AWAY,
        &|timeline| timeline.transfers[1].start = Seconds(3.5),
        expect!["instruction 8: transfer1 is timed sooner than it can begin or arrive"],
    );
    damaged(
        AWAY,
        &|timeline| timeline.calls[0].start = Seconds(0.5),
        expect!["instruction 3 is timed before what it waits for is over"],
    );
    damaged(
        AWAY,
        &|timeline| timeline.transfers.clear(),
        expect!["instruction 0: transfer0 is timed sooner than it can begin or arrive"],
    );
    damaged(
        LEAVING,
        &|timeline| timeline.transfers[0].start = Seconds(0.5),
        expect!["instruction 3: transfer0 is timed sooner than it can begin or arrive"],
    );
}
