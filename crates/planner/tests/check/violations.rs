//! The checker's verdicts: a legal schedule, broken in every possible way. Invariant: each variant
//! of [`Violation`] is produced here, by the smallest change that produces it; [`variant`] does not
//! compile when one is added.
//!
//! Tier: quick with a part of the cases, less than a second; full with all of them.
use expect_test::{Expect, expect};
use tightfit::check::{Violation, check};
use tightfit::graph::{Graph, GraphBuilder, NodeSpec, Phase, ValueSpec};
use tightfit::id::{BufferId, DEVICE, MicroBatchId, NodeId, StorageId, ValueId};
use tightfit::machine::{Machine, Reuse};
use tightfit::plan::Planner;
use tightfit::profile::Profile;
use tightfit::schedule::{Buffer, Call, Instruction, Schedule};
use tightfit::tensor::{Argument, DType};
use tightfit::units::{Bytes, Seconds};
use tightfit::{Goal, Request};

/// A graph, its costs, and a legal schedule for it, to be broken.
struct Case {
    graph: Graph,
    profile: Profile,
    schedule: Schedule,
}

/// Builds graphs whose nodes have the names that the tests use.
struct Sketch(GraphBuilder);

impl Sketch {
    fn node(
        &mut self,
        name: &str,
        op: &str,
        phase: Phase,
        inputs: &[ValueId],
        elements: &[u64],
    ) -> Vec<ValueId> {
        let outputs: Vec<Option<ValueSpec>> = elements
            .iter()
            .map(|&count| {
                let storage = self.0.storage(Bytes(count * 4));
                Some(ValueSpec::contiguous(&[count], DType::F32, storage))
            })
            .collect();
        self.spec(name, op, phase, inputs, &outputs, |_| {})
    }

    fn spec(
        &mut self,
        name: &str,
        op: &str,
        phase: Phase,
        inputs: &[ValueId],
        outputs: &[Option<ValueSpec>],
        adjust: impl Fn(&mut NodeSpec),
    ) -> Vec<ValueId> {
        let mut node = NodeSpec::new(name, op, phase);
        node.inputs = inputs.to_vec();
        node.args = inputs.iter().map(|&value| Argument::Value(value)).collect();
        node.seconds = Some(Seconds(1.0));
        adjust(&mut node);
        self.0.node(node, outputs)
    }

    /// Writes `value`, of `elements` in the storage numbered `storage`, in place.
    fn writes(
        &mut self,
        name: &str,
        op: &str,
        phase: Phase,
        inputs: &[ValueId],
        written: &[(u32, u64)],
    ) -> Vec<ValueId> {
        let outputs: Vec<_> = written
            .iter()
            .map(|&(storage, elements)| {
                Some(ValueSpec::contiguous(&[elements], DType::F32, StorageId::from_u32(storage)))
            })
            .collect();
        self.spec(name, op, phase, inputs, &outputs, |node| node.mutates = true)
    }
}

/// x·w, two layers, a loss, their mirror images and an update with momentum. `a` is made again
/// before `ga`.
fn step() -> Case {
    let mut sketch = Sketch(GraphBuilder::new("step"));
    let x = sketch.node("x", "placeholder", Phase::Input, &[], &[64])[0];
    let w = sketch.node("w", "placeholder", Phase::Parameter, &[], &[64])[0];
    let m = sketch.node("m", "placeholder", Phase::State, &[], &[64])[0];
    let a = sketch.node("a", "test.product", Phase::Forward, &[x, w], &[256])[0];
    let b = sketch.node("b", "test.layer", Phase::Forward, &[a], &[256])[0];
    let storage = StorageId::from_u32(4);
    let view = sketch.spec(
        "view",
        "aten.view",
        Phase::Forward,
        &[b],
        &[Some(ValueSpec::contiguous(&[2, 128], DType::F32, storage))],
        |_| {},
    )[0];
    let c = sketch.node("c", "test.layer", Phase::Forward, &[view], &[256])[0];
    let loss = sketch.node("loss", "test.loss", Phase::Loss, &[c], &[1])[0];
    let one = sketch.node("one", "aten.full.default", Phase::Backward, &[], &[1])[0];
    let gc = sketch.node("gc", "test.layer", Phase::Backward, &[one, c], &[256])[0];
    let gb = sketch.node("gb", "test.layer", Phase::Backward, &[gc, b], &[256])[0];
    let ga = sketch.node("ga", "test.layer", Phase::Backward, &[gb, a], &[256])[0];
    let gw = sketch.node("gw", "test.product", Phase::Backward, &[x, ga], &[64])[0];
    sketch.node("gx", "test.product", Phase::Backward, &[ga, w], &[64]);
    sketch.writes("update", "tightfit.sgd", Phase::Optimizer, &[w, gw, m], &[(1, 64), (2, 64)]);
    sketch.0.output(loss);
    case(sketch, &Machine::preset("a100-80gb").unwrap())
}

fn case(sketch: Sketch, machine: &Machine) -> Case {
    let graph = sketch.0.build().unwrap();
    let profile = Profile::new(&graph, machine);
    let schedule = tightfit::fit(
        &graph,
        &profile,
        &Request { goal: Goal::Smallest, planner: Planner::Capuchin, ..Request::default() },
    )
    .unwrap()
    .schedule()
    .clone();
    Case { graph, profile, schedule }
}

impl Case {
    fn id(&self, name: &str) -> NodeId {
        self.graph.node_named(name).unwrap()
    }

    /// Where a node runs for the first time.
    fn first(&self, name: &str) -> usize {
        self.runs(name).next().unwrap()
    }

    /// Where a node runs again.
    fn again(&self, name: &str) -> usize {
        self.runs(name).nth(1).unwrap()
    }

    fn runs(&self, name: &str) -> impl Iterator<Item = usize> + '_ {
        let id = self.id(name);
        let is_run =
            move |instruction: &Instruction| instruction.call().is_some_and(|call| call.node == id);
        self.schedule
            .instructions
            .iter()
            .enumerate()
            .filter(move |(_, instruction)| is_run(instruction))
            .map(|(index, _)| index)
    }

    fn call(&mut self, index: usize) -> &mut Call {
        match &mut self.schedule.instructions[index] {
            Instruction::Run(call) | Instruction::Recompute(call) => call,
            Instruction::Free(_) | Instruction::Start(_) | Instruction::Wait(_) => {
                panic!("instruction {index} is no call")
            }
        }
    }

    /// The buffer that a node writes its first output into, at its first run.
    fn buffer(&mut self, name: &str) -> BufferId {
        let index = self.first(name);
        self.call(index).outputs[0]
    }

    fn placeholder(&self, name: &str) -> BufferId {
        let id = self.id(name);
        self.schedule.placeholders.iter().find(|(node, _)| *node == id).unwrap().1
    }

    /// Where a buffer is freed.
    fn freed(&self, buffer: BufferId) -> usize {
        self.schedule
            .instructions
            .iter()
            .position(|instruction| *instruction == Instruction::Free(buffer))
            .unwrap()
    }

    fn verdict(&self, budget: Bytes) -> String {
        match check(&self.graph, &self.profile, &self.schedule, budget) {
            Ok(_) => "legal".to_string(),
            Err(violation) => format!("{}: {violation}", variant(&violation)),
        }
    }
}

/// Breaks the step and expects a verdict.
fn broken(break_it: impl FnOnce(&mut Case), expected: Expect) {
    let mut case = step();
    assert_eq!(case.verdict(case.schedule.slab), "legal");
    break_it(&mut case);
    expected.assert_eq(&case.verdict(case.schedule.budget));
}

fn variant(violation: &Violation) -> &'static str {
    match violation {
        Violation::OtherGraph => "OtherGraph",
        Violation::UnknownBuffer { .. } => "UnknownBuffer",
        Violation::UnknownNode { .. } => "UnknownNode",
        Violation::NotPlaceholder { .. } => "NotPlaceholder",
        Violation::Placeholder { .. } => "Placeholder",
        Violation::DoesNotRun { .. } => "DoesNotRun",
        Violation::Marked { .. } => "Marked",
        Violation::MutatesAgain { .. } => "MutatesAgain",
        Violation::DrawsOutOfOrder { .. } => "DrawsOutOfOrder",
        Violation::Operands { .. } => "Operands",
        Violation::NotThere { .. } => "NotThere",
        Violation::Overwrites { .. } => "Overwrites",
        Violation::NewVersionElsewhere { .. } => "NewVersionElsewhere",
        Violation::ViewElsewhere { .. } => "ViewElsewhere",
        Violation::TooSmall { .. } => "TooSmall",
        Violation::Overlap { .. } => "Overlap",
        Violation::OutsideSlab { .. } => "OutsideSlab",
        Violation::FreesNothing { .. } => "FreesNothing",
        Violation::FreesKept { .. } => "FreesKept",
        Violation::OverBudget { .. } => "OverBudget",
        Violation::SlabOverBudget { .. } => "SlabOverBudget",
        Violation::NeverRuns { .. } => "NeverRuns",
        Violation::Missing { .. } => "Missing",
        Violation::Leaked { .. } => "Leaked",
        Violation::Misaligned { .. } => "Misaligned",
        Violation::UnknownTier { .. } => "UnknownTier",
        Violation::UnknownLane { .. } => "UnknownLane",
        Violation::OtherMicroBatch { .. } => "OtherMicroBatch",
        Violation::StartedBefore { .. } => "StartedBefore",
        Violation::WaitsForNothing { .. } => "WaitsForNothing",
        Violation::NeverWaitedFor { .. } => "NeverWaitedFor",
        Violation::MovesNothing { .. } => "MovesNothing",
        Violation::WrongTier { .. } => "WrongTier",
        Violation::OffDevice { .. } => "OffDevice",
        Violation::InFlight { .. } => "InFlight",
        Violation::OverCapacity { .. } => "OverCapacity",
        Violation::NotWhereItBegan { .. } => "NotWhereItBegan",
        Violation::CrossesUnkept { .. } => "CrossesUnkept",
        Violation::ArrivesTooSoon { .. } => "ArrivesTooSoon",
        Violation::MovesStale { .. } => "MovesStale",
        Violation::PartOfBlock { .. } => "PartOfBlock",
        Violation::LaneTwice { .. } => "LaneTwice",
        Violation::OutOfTime { .. } => "OutOfTime",
        Violation::CallOutOfTime { .. } => "CallOutOfTime",
    }
}

/// A fresh output as well as a view of the input, which is then read for the whole input.
#[test]
fn a_view_written_elsewhere() {
    let mut sketch = Sketch(GraphBuilder::new("view"));
    let x = sketch.node("x", "placeholder", Phase::Input, &[], &[64])[0];
    let view = |builder: &mut GraphBuilder| {
        let fresh = builder.storage(Bytes(4));
        let outputs = [(1, fresh), (64, StorageId::from_u32(0))];
        outputs.map(|(count, storage)| Some(ValueSpec::contiguous(&[count], DType::F32, storage)))
    };
    let outputs = view(&mut sketch.0);
    let made = sketch.spec("both", "test.both", Phase::Forward, &[x], &outputs, |_| {});
    let loss = sketch.node("loss", "test.loss", Phase::Loss, &[made[0], made[1]], &[1])[0];
    sketch.0.output(loss);
    let mut case = case(sketch, &Machine::preset("a100-80gb").unwrap());
    let (both, loss) = (case.first("both"), case.first("loss"));
    let elsewhere = case.schedule.buffers.push(tightfit::schedule::Buffer {
        bytes: Bytes(256),
        address: 1 << 20,
        tier: DEVICE,
    });
    case.schedule.slab = Bytes(1 << 21);
    case.schedule.budget = case.schedule.slab;
    case.call(both).outputs[1] = elsewhere;
    case.call(loss).inputs[1] = elsewhere;
    let violation =
        tightfit::check::check(&case.graph, &case.profile, &case.schedule, case.schedule.budget)
            .unwrap_err();
    expect!["instruction 0: `both` must leave the view that it makes where its input lies"]
        .assert_eq(&violation.to_string());
}

#[test]
fn two_instructions_swapped() {
    broken(
        |case| {
            let (a, b) = (case.first("a"), case.first("b"));
            case.schedule.instructions.swap(a, b);
        },
        expect!["NotThere: instruction 0: `b` reads `a` from buffer3, which holds nothing"],
    );
}

#[test]
fn a_recomputation_dropped() {
    broken(
        |case| {
            let again = case.again("a");
            case.schedule.instructions.remove(again);
        },
        expect!["NotThere: instruction 12: `ga` reads `a` from buffer10, which holds nothing"],
    );
}

#[test]
fn freed_too_early() {
    broken(
        |case| {
            let buffer = case.buffer("a");
            let free = case.freed(buffer);
            let free = case.schedule.instructions.remove(free);
            let after = case.first("a") + 1;
            case.schedule.instructions.insert(after, free);
        },
        expect!["NotThere: instruction 2: `b` reads `a` from buffer3, which holds nothing"],
    );
}

#[test]
fn a_wrong_buffer_read() {
    broken(
        |case| {
            let (gb, w) = (case.first("gb"), case.placeholder("w"));
            case.call(gb).inputs[0] = w;
        },
        expect![
            "NotThere: instruction 9: `gb` reads `gc` from buffer1, which holds what `w` made \
             (version 0)"
        ],
    );
}

#[test]
fn updated_before_the_last_reader() {
    broken(
        |case| {
            let update = case.first("update");
            let update = case.schedule.instructions.remove(update);
            let reader = case.first("gx");
            case.schedule.instructions.insert(reader, update);
        },
        expect![
            "NotThere: instruction 19: `gx` reads `w` from buffer1, which holds what `w` made \
             (version 1)"
        ],
    );
}

#[test]
fn freed_twice() {
    broken(
        |case| {
            let buffer = case.buffer("a");
            let free = case.freed(buffer);
            case.schedule.instructions.insert(free, Instruction::Free(buffer));
        },
        expect!["FreesNothing: instruction 3 frees buffer3, which is not held"],
    );
}

#[test]
fn a_parameter_freed() {
    broken(
        |case| {
            let w = case.placeholder("w");
            case.schedule.instructions.push(Instruction::Free(w));
        },
        expect![
            "FreesKept: instruction 23 frees buffer1, which holds what `w` made (version 1): it \
             must outlive the step"
        ],
    );
}

#[test]
fn an_output_freed() {
    broken(
        |case| {
            let loss = case.buffer("loss");
            case.schedule.instructions.push(Instruction::Free(loss));
        },
        expect![
            "FreesKept: instruction 23 frees buffer6, which holds what `loss` made (version 0): \
             it must outlive the step"
        ],
    );
}

#[test]
fn an_address_moved_onto_another() {
    broken(
        |case| {
            let (a, b) = (case.buffer("a"), case.buffer("b"));
            case.schedule.buffers[b].address = case.schedule.buffers[a].address + 64;
        },
        expect!["Overlap: instruction 1: buffer4 overlaps buffer3, which is held"],
    );
}

#[test]
fn an_address_moved_below_another() {
    broken(
        |case| {
            let (a, b) = (case.buffer("a"), case.buffer("b"));
            let far = case.schedule.slab.0 + 1024;
            case.schedule.slab += Bytes(4096);
            case.schedule.buffers[a].address = far;
            case.schedule.buffers[b].address = far - 64;
        },
        expect!["Overlap: instruction 1: buffer4 overlaps buffer3, which is held"],
    );
}

#[test]
fn a_slab_one_byte_short() {
    broken(
        |case| {
            let timeline =
                check(&case.graph, &case.profile, &case.schedule, case.schedule.slab).unwrap();
            case.schedule.slab = timeline.high_water.saturating_sub(Bytes(1));
        },
        expect!["OutsideSlab: buffer7 ends at byte 3908, outside the slab of 3907 bytes"],
    );
}

#[test]
fn an_address_moved_out_of_the_slab() {
    broken(
        |case| {
            let b = case.buffer("b");
            case.schedule.buffers[b].address = u64::MAX;
        },
        expect![
            "OutsideSlab: buffer4 ends at byte 18446744073709551615, outside the slab of 3968 bytes"
        ],
    );
}

#[test]
fn a_buffer_shrunk() {
    broken(
        |case| {
            let b = case.buffer("b");
            case.schedule.buffers[b].bytes = Bytes(1023);
        },
        expect![
            "TooSmall: instruction 1: `b` needs 1024 bytes for its output, but buffer4 has 1023"
        ],
    );
}

#[test]
fn a_placeholders_buffer_shrunk() {
    broken(
        |case| {
            let x = case.placeholder("x");
            case.schedule.buffers[x].bytes = Bytes(255);
        },
        expect!["TooSmall: instruction 0: `x` needs 256 bytes for its value, but buffer0 has 255"],
    );
}

#[test]
fn one_byte_less_than_is_held() {
    broken(
        |case| {
            let peak =
                check(&case.graph, &case.profile, &case.schedule, case.schedule.slab).unwrap().peak;
            case.schedule.budget = peak.saturating_sub(Bytes(1));
        },
        expect![
            "OverBudget: instruction 6 (`gc`): 3.8 KiB are held, 1 B more than the budget of 3.8 \
             KiB (in bytes: 3848, 1, 3847)"
        ],
    );
}

#[test]
fn one_byte_less_than_the_slab() {
    broken(
        |case| {
            case.schedule.slab += Bytes(64);
            case.schedule.budget = case.schedule.slab.saturating_sub(Bytes(1));
        },
        expect![
            "SlabOverBudget: the slab of 3.9 KiB exceeds the budget of 3.9 KiB (in bytes: 4032, \
             4031)"
        ],
    );
}

#[test]
fn a_node_forgotten() {
    broken(
        |case| {
            let update = case.first("update");
            case.schedule.instructions.remove(update);
        },
        expect!["NeverRuns: `update` never runs"],
    );
}

#[test]
fn a_recomputation_marked_as_a_run() {
    broken(
        |case| {
            let again = case.again("a");
            let call = case.call(again).clone();
            case.schedule.instructions[again] = Instruction::Run(call);
        },
        expect!["Marked: instruction 12: `a` is marked as a first run, but ran before"],
    );
}

#[test]
fn a_first_run_marked_as_a_recomputation() {
    broken(
        |case| {
            let first = case.first("b");
            let call = case.call(first).clone();
            case.schedule.instructions[first] = Instruction::Recompute(call);
        },
        expect!["Marked: instruction 1: `b` is marked as a recomputation, but never ran before"],
    );
}

#[test]
fn an_update_repeated() {
    broken(
        |case| {
            let update = case.first("update");
            let call = case.call(update).clone();
            case.schedule.instructions.insert(update + 1, Instruction::Recompute(call));
        },
        expect!["MutatesAgain: instruction 22: `update` writes in place and must not run again"],
    );
}

#[test]
fn a_buffer_never_freed() {
    broken(
        |case| {
            let buffer = case.buffer("one");
            let free = case.freed(buffer);
            case.schedule.instructions.remove(free);
        },
        expect!["Leaked: buffer7 still holds what `one` made (version 0) at the end of the step"],
    );
}

#[test]
fn written_over_what_is_held() {
    broken(
        |case| {
            let (b, a) = (case.first("b"), case.buffer("a"));
            case.call(b).outputs[0] = a;
        },
        expect![
            "Overwrites: instruction 1: `b` writes over buffer3, which holds what `a` made \
             (version 0)"
        ],
    );
}

#[test]
fn a_new_version_written_elsewhere() {
    broken(
        |case| {
            let (update, m) = (case.first("update"), case.placeholder("m"));
            case.call(update).outputs[0] = m;
        },
        expect![
            "NewVersionElsewhere: instruction 21: `update` must write the new version of `w` \
             where the old one lies"
        ],
    );
}

#[test]
fn operands_missing() {
    broken(
        |case| {
            let gb = case.first("gb");
            case.call(gb).inputs.pop();
        },
        expect!["Operands: instruction 9: `gb` has 1 input buffers, but needs 2"],
    );
    broken(
        |case| {
            let update = case.first("update");
            case.call(update).outputs.pop();
        },
        expect!["Operands: instruction 21: `update` has 1 output buffers, but needs 2"],
    );
    broken(
        |case| {
            let a = case.id("a");
            case.profile.workspace[a] = Bytes(1);
        },
        expect!["Operands: instruction 0: `a` has 0 workspace buffers, but needs 1"],
    );
}

#[test]
fn a_workspace_too_small() {
    broken(
        |case| {
            let (a, index) = (case.id("a"), case.first("a"));
            case.profile.workspace[a] = Bytes(65);
            let address = case.schedule.slab.0;
            case.schedule.slab += Bytes(64);
            let workspace =
                case.schedule.buffers.push(Buffer { bytes: Bytes(64), address, tier: DEVICE });
            case.call(index).workspace = Some(workspace);
        },
        expect![
            "TooSmall: instruction 0: `a` needs 65 bytes for its workspace, but buffer14 has 64"
        ],
    );
}

#[test]
fn a_view_run() {
    broken(
        |case| {
            let (view, b) = (case.id("view"), case.buffer("b"));
            let call = Call {
                node: view,
                micro_batch: MicroBatchId::WHOLE,
                inputs: vec![b],
                outputs: vec![b],
                workspace: None,
            };
            let after = case.first("b") + 1;
            case.schedule.instructions.insert(after, Instruction::Run(call));
        },
        expect![
            "DoesNotRun: instruction 2: `view` is a placeholder or a view: such nodes do not run"
        ],
    );
}

#[test]
fn placeholders_without_a_buffer_of_their_own() {
    broken(
        |case| case.schedule.placeholders.truncate(2),
        expect![
            "Placeholder: placeholder `m` has 0 buffers: it must have one, or several where it is \
             kept"
        ],
    );
    broken(
        |case| case.schedule.placeholders.push(case.schedule.placeholders[0]),
        expect![
            "Placeholder: placeholder `x` has 2 buffers: it must have one, or several where it is \
             kept"
        ],
    );
    broken(
        |case| {
            let (x, w) = (case.placeholder("x"), case.id("w"));
            case.schedule.placeholders.iter_mut().find(|(node, _)| *node == w).unwrap().1 = x;
        },
        expect![
            "Overwrites: instruction 0: `w` writes over buffer0, which holds what `x` made \
             (version 0)"
        ],
    );
    broken(
        |case| {
            let (a, buffer) = (case.id("a"), case.buffer("a"));
            case.schedule.placeholders.push((a, buffer));
        },
        expect![
            "NotPlaceholder: the schedule gives `a` a buffer before the step, but it is no \
             placeholder"
        ],
    );
}

#[test]
fn ids_from_nowhere() {
    broken(
        |case| case.schedule.instructions.push(Instruction::Free(BufferId::from_u32(99))),
        expect!["UnknownBuffer: the schedule mentions buffer99, but has 14 buffers"],
    );
    broken(
        |case| {
            let a = case.first("a");
            case.call(a).node = NodeId::from_u32(99);
        },
        expect!["UnknownNode: the schedule mentions node 99, but the graph has 15 nodes"],
    );
    broken(
        |case| case.schedule.graph = "0".repeat(64),
        expect!["OtherGraph: the schedule was made for another graph"],
    );
}

/// An output that is written in place after a copy of its first version was made: the copy does not
/// replace it.
#[test]
fn the_last_version_lost() {
    let mut sketch = Sketch(GraphBuilder::new("lost"));
    let x = sketch.node("x", "placeholder", Phase::Parameter, &[], &[16])[0];
    let h = sketch.node("h", "test.layer", Phase::Forward, &[x], &[16])[0];
    let last = sketch.writes("write", "aten.copy_.default", Phase::Forward, &[h, x], &[(1, 16)])[0];
    sketch.0.output(last);
    let mut case = case(sketch, &Machine::unmeasured_cpu(1));
    let (h, index) = (case.buffer("h"), case.first("h"));
    let copy = case.schedule.buffers.push(Buffer {
        bytes: Bytes(64),
        address: case.schedule.slab.0,
        tier: DEVICE,
    });
    case.schedule.slab += Bytes(64);
    let mut again = case.call(index).clone();
    again.outputs = vec![copy];
    case.schedule.instructions.insert(index + 1, Instruction::Recompute(again));
    // Its first version must not stay in addition to the last one: a reader of `h` might find it.
    expect!["Leaked: buffer2 still holds what `h` made (version 0) at the end of the step"]
        .assert_eq(&case.verdict(case.schedule.slab));
    let mut freed = case.schedule.clone();
    freed.instructions.push(Instruction::Free(copy));
    std::mem::swap(&mut freed, &mut case.schedule);
    assert_eq!(case.verdict(case.schedule.slab), "legal");
    std::mem::swap(&mut freed, &mut case.schedule);
    case.schedule.instructions.push(Instruction::Free(h));
    expect![
        "FreesKept: instruction 3 frees buffer1, which holds what `h` made (version 1): it must \
         outlive the step"
    ]
    .assert_eq(&case.verdict(case.schedule.slab));
}

/// Only what the operator table allows, and only over an input that is not kept.
#[test]
fn in_place_where_it_is_not_allowed() {
    let relu = |input: Phase| {
        let mut sketch = Sketch(GraphBuilder::new("relu"));
        let x = sketch.node("x", "placeholder", input, &[], &[16])[0];
        let out = sketch.node("out", "aten.relu.default", Phase::Forward, &[x], &[16])[0];
        sketch.0.output(out);
        let mut case = case(sketch, &Machine::unmeasured_cpu(1));
        let (index, x) = (case.first("out"), case.placeholder("x"));
        case.call(index).outputs = vec![x];
        case
    };
    let mut allowed = relu(Phase::Input);
    assert_eq!(allowed.verdict(allowed.schedule.slab), "legal");
    allowed.profile.reuse = Reuse::Nothing;
    expect![
        "Overwrites: instruction 0: `out` writes over buffer0, which holds what `x` made \
        (version 0)"
    ]
    .assert_eq(&allowed.verdict(allowed.schedule.slab));
    let kept = relu(Phase::Parameter);
    expect![
        "Overwrites: instruction 0: `out` writes over buffer0, which holds what `x` made \
        (version 0)"
    ]
    .assert_eq(&kept.verdict(kept.schedule.slab));
}

/// Two calls that draw from the running generator, the second one first.
#[test]
fn drawn_out_of_order() {
    let mut sketch = Sketch(GraphBuilder::new("drawing"));
    let mut made = Vec::new();
    for name in ["first", "second"] {
        let storage = sketch.0.storage(Bytes(256));
        let output = Some(ValueSpec::contiguous(&[64], DType::F32, storage));
        let draw = |node: &mut NodeSpec| (node.random, node.stream) = (true, true);
        made.extend(sketch.spec(name, "test.draw", Phase::Forward, &[], &[output], draw));
    }
    let loss = sketch.node("loss", "test.loss", Phase::Loss, &made, &[1])[0];
    sketch.0.output(loss);
    let mut case = case(sketch, &Machine::preset("a100-80gb").unwrap());
    assert_eq!(case.verdict(case.schedule.slab), "legal");
    case.schedule.instructions.swap(0, 1);
    expect![[
        "DrawsOutOfOrder: instruction 1: `first` draws from the running generator after `second`, \
         which comes after it in the graph"
    ]]
    .assert_eq(&case.verdict(case.schedule.slab));
}
