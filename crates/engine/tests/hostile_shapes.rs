//! Graphs whose shapes and types do not match. Invariant: such a graph is refused, or it runs
//! without a panic, reads only the elements of its inputs, and writes only the elements of its
//! outputs and its workspace.
//!
//! Tier: quick with a part of the cases, 4 s; full with all of them.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::{ThreadPool, ThreadPoolBuilder};
use tightfit::Goal;
use tightfit::check::Checked;
use tightfit::graph::{self, Graph, GraphBuilder, NodeSpec, Phase, Value, ValueSpec};
use tightfit::id::{BufferId, ModuleId, NodeId, StorageId, ValueId};
use tightfit::machine::{Machine, Runtime};
use tightfit::operator::Unsuited;
use tightfit::plan::{Instance, Planner};
use tightfit::profile::Profile;
use tightfit::schedule::{Lowering, Schedule, lower};
use tightfit::tensor::{Argument, DType};
use tightfit::units::Bytes;
use tightfit_engine::{
    CompileError, Executable, Slab, Step, StepError, StepSettings, assert_disjoint,
};

const SETTINGS: StepSettings = StepSettings { seed: 1, step: 0, learning_rate: 1e-3 };
/// Bytes after the slab that nothing may touch.
const GUARD: u64 = 1 << 16;

fn pool(threads: usize) -> Arc<ThreadPool> {
    Arc::new(ThreadPoolBuilder::new().num_threads(threads).build().unwrap())
}

fn lowered(graph: &Graph, threads: usize) -> (Profile, Schedule) {
    let machine = Machine::unmeasured_cpu(threads as u32);
    let profile = Profile::new(graph, &machine).without_reuse();
    let program = graph.compute_nodes();
    let plan = Instance::new(graph, &profile, &program).unplanned(Planner::None);
    let mut schedule = lower(graph, &profile, &plan, &Lowering::to(Goal::Within(Bytes(1 << 40))));
    schedule.budget = schedule.slab;
    (profile, schedule)
}

/// Bytes of a value's elements, from the start of its storage.
fn places(value: &Value) -> Vec<u64> {
    let (strides, size) = (value.tensor.strides_or_contiguous(), value.tensor.dtype.size());
    let first = |mut index: u64| {
        let mut offset = value.tensor.offset;
        for (extent, stride) in value.tensor.shape.iter().zip(&strides).rev() {
            offset += index % extent * stride;
            index /= extent;
        }
        offset * size
    };
    (0..value.tensor.elements()).flat_map(|index| first(index)..first(index) + size).collect()
}

/// Compiles and runs a graph of one node, whose inputs are zero and around which all bytes are
/// `filler`; returns the bytes of its outputs, or why it was refused.
fn outcome(
    graph: &Graph,
    pool: &Arc<ThreadPool>,
    filler: u8,
) -> Result<Result<Vec<u8>, StepError>, CompileError> {
    let (profile, schedule) = lowered(graph, pool.current_num_threads());
    let checked = Checked::new(graph, &profile, schedule.clone())?;
    assert_disjoint();
    let executable = Executable::compile(graph, &checked, pool)?;
    let mut slab = Slab::new(schedule.slab + Bytes(GUARD)).unwrap();
    let end = schedule.slab.0 + GUARD;
    slab.write(0, end).fill(filler);
    let mut buffers: BTreeMap<StorageId, BufferId> = BTreeMap::new();
    for &(node, buffer) in &schedule.placeholders {
        let value = &graph.values()[graph.nodes()[node].outputs[0].unwrap()];
        buffers.insert(value.storage, buffer);
        for place in places(value) {
            slab.write(schedule.buffers[buffer].address + place, 1).fill(0);
        }
    }
    let mut mine: Vec<u64> = Vec::new();
    let mut written = vec![false; end as usize];
    for call in schedule.instructions.iter().filter_map(|instruction| instruction.call()) {
        let outputs = graph.nodes()[call.node].outputs.iter().flatten();
        for (&value, &buffer) in outputs.zip(&call.outputs) {
            let address = schedule.buffers[buffer].address;
            mine.extend(places(&graph.values()[value]).into_iter().map(|place| address + place));
        }
        if let Some(buffer) = call.workspace {
            let scratch = schedule.buffers[buffer];
            let (first, bytes) = (scratch.address as usize, scratch.bytes.0 as usize);
            written[first..first + bytes].fill(true);
        }
    }
    mine.iter().for_each(|&place| written[place as usize] = true);
    let before = slab.read(0, end).to_vec();
    if let Err(error) = executable.run(&mut slab, &SETTINGS) {
        return Ok(Err(error));
    }
    let after = slab.read(0, end);
    for (place, written) in written.into_iter().enumerate() {
        assert!(written || after[place] == before[place], "byte {place} of {end} was written");
    }
    Ok(Ok(mine.into_iter().map(|place| after[place as usize]).collect()))
}

fn renamed(argument: &Argument, names: &BTreeMap<ValueId, ValueId>) -> Argument {
    match argument {
        Argument::Value(value) => Argument::Value(names[value]),
        Argument::List(list) => {
            Argument::List(list.iter().map(|argument| renamed(argument, names)).collect())
        }
        other => other.clone(),
    }
}

/// A graph of one call: placeholders for what `node` reads, and the node. Value `changed` (inputs
/// first, then outputs) goes through `change`; storages have space for whatever it becomes. `None`
/// if the graph itself is refused.
fn alone(
    graph: &Graph,
    node: NodeId,
    changed: usize,
    change: &dyn Fn(&mut ValueSpec),
) -> Option<Graph> {
    let call = &graph.nodes()[node];
    let mut builder = GraphBuilder::new("alone");
    let mut storages: BTreeMap<StorageId, StorageId> = BTreeMap::new();
    let mut names: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    let mut position = 0;
    let mut specified = |value: ValueId, builder: &mut GraphBuilder| {
        let value = &graph.values()[value];
        let storage = *storages.entry(value.storage).or_insert_with(|| {
            builder.storage(Bytes(graph.storages()[value.storage].0 * 16 + 256))
        });
        let mut spec = ValueSpec { storage, ..ValueSpec::from(value) };
        if position == changed {
            change(&mut spec);
        }
        position += 1;
        spec
    };
    for &input in &call.inputs {
        let output = specified(input, &mut builder);
        let name = format!("input_{}", input.as_u32());
        let placeholder = NodeSpec::new(name, "placeholder", Phase::Input);
        names.insert(input, builder.node(placeholder, &[Some(output)])[0]);
    }
    let rename = |argument: &Argument| renamed(argument, &names);
    let here = NodeSpec {
        module: ModuleId::from_u32(0),
        inputs: call.inputs.iter().map(|input| names[input]).collect(),
        args: call.args.iter().map(rename).collect(),
        kwargs: (call.kwargs.iter())
            .map(|(name, argument)| (name.clone(), rename(argument)))
            .collect(),
        ..NodeSpec::from(call)
    };
    let outputs: Vec<Option<ValueSpec>> = (call.outputs.iter())
        .map(|output| output.map(|value| specified(value, &mut builder)))
        .collect();
    for value in builder.node(here, &outputs) {
        builder.output(value);
    }
    builder.build().ok()
}

/// Sets a shape, and makes it dense.
fn reshape(spec: &mut ValueSpec, shape: Vec<u64>) {
    spec.shape = shape;
    spec.contiguous = true;
    spec.strides = None;
}

type Change = (String, Box<dyn Fn(&mut ValueSpec)>);

/// One extent or the type changed, a dimension more or less, or strides of zero.
fn changes(value: &Value) -> Vec<Change> {
    let mut changes: Vec<Change> = Vec::new();
    for dtype in
        [DType::F32, DType::I64, DType::Bool].into_iter().filter(|&d| d != value.tensor.dtype)
    {
        let change = move |spec: &mut ValueSpec| spec.dtype = dtype;
        changes.push((format!("type {}", dtype.name()), Box::new(change)));
    }
    let mut shapes: Vec<Vec<u64>> = Vec::new();
    for (d, &extent) in value.tensor.shape.iter().enumerate() {
        for other in [0, 1, extent.saturating_sub(1), extent + 1, extent * 2] {
            let mut shape = value.tensor.shape.clone();
            shape[d] = other;
            shapes.push(shape);
        }
    }
    shapes.push([&[2], value.tensor.shape.as_slice()].concat());
    shapes.push([value.tensor.shape.as_slice(), &[2]].concat());
    shapes.extend(value.tensor.shape.split_last().map(|(_, rest)| rest.to_vec()));
    shapes.push(value.tensor.shape.iter().rev().copied().collect());
    shapes.sort();
    shapes.dedup();
    shapes.retain(|shape| *shape != value.tensor.shape);
    for shape in shapes {
        let name = format!("shape {shape:?}");
        let change = move |spec: &mut ValueSpec| reshape(spec, shape.clone());
        changes.push((name, Box::new(change)));
    }
    changes.push((
        "strides of zero".to_string(),
        Box::new(|spec| {
            spec.contiguous = spec.shape.iter().all(|&extent| extent <= 1);
            spec.strides = Some(vec![0; spec.shape.len()]);
        }),
    ));
    changes
}

fn goldens() -> Vec<Graph> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus/kernels");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .collect();
    files.sort();
    files.iter().map(|path| graph::read(&std::fs::read(path).unwrap()).unwrap()).collect()
}

#[test]
fn no_change_of_a_shape_or_a_type_makes_a_kernel_panic_or_stray() {
    let pool = pool(2);
    let (mut refused, mut ran, mut failures) = (0, 0, Vec::new());
    for graph in goldens() {
        for id in graph.compute_nodes() {
            let node = &graph.nodes()[id];
            let values: Vec<ValueId> =
                node.inputs.iter().chain(node.outputs.iter().flatten()).copied().collect();
            // Large cases exist to test threads and blocks, and pass the same checks as small ones.
            if values.iter().any(|&value| graph.values()[value].tensor.elements() > 2048) {
                continue;
            }
            for (position, &value) in values.iter().enumerate() {
                for (name, change) in changes(&graph.values()[value]) {
                    let Some(changed) = alone(&graph, id, position, &*change) else { continue };
                    let both = catch_unwind(AssertUnwindSafe(|| {
                        [0u8, 0xff].map(|filler| outcome(&changed, &pool, filler))
                    }));
                    let what = || format!("{} `{}`, value {position}: {name}", node.op, node.name);
                    match both {
                        Ok([Ok(Ok(first)), Ok(Ok(second))]) if first == second => ran += 1,
                        // An index out of its table is reported, whatever lies after the inputs.
                        Ok([Ok(Err(_)), Ok(Err(_))]) => ran += 1,
                        Ok([Ok(_), Ok(_)]) => {
                            failures.push(format!("{}: reads beyond its inputs", what()));
                        }
                        Ok(_) => refused += 1,
                        Err(_) => failures.push(what()),
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    assert!(refused > 5000 && ran > 500, "{refused} refused, {ran} ran");
}

/// A graph of one call over inputs of the given shapes and types, with outputs of their own.
fn call(
    op: &str,
    inputs: &[(&[u64], DType)],
    args: &dyn Fn(&[ValueId]) -> Vec<Argument>,
    outputs: &[(&[u64], DType)],
) -> Graph {
    let mut builder = GraphBuilder::new("call");
    let dense = |builder: &mut GraphBuilder, &(shape, dtype): &(&[u64], DType)| {
        let storage = builder.storage(Bytes(shape.iter().product::<u64>() * 8));
        ValueSpec::contiguous(shape, dtype, storage)
    };
    let mut read = Vec::new();
    for (index, input) in inputs.iter().enumerate() {
        let spec = dense(&mut builder, input);
        let node = NodeSpec::new(format!("x{index}"), "placeholder", Phase::Input);
        read.push(builder.node(node, &[Some(spec)])[0]);
    }
    let outputs: Vec<Option<ValueSpec>> =
        outputs.iter().map(|output| Some(dense(&mut builder, output))).collect();
    let node = NodeSpec {
        inputs: read.clone(),
        args: args(&read),
        ..NodeSpec::new("call", op, Phase::Forward)
    };
    for value in builder.node(node, &outputs) {
        builder.output(value);
    }
    builder.build().unwrap()
}

fn compiled(graph: &Graph) -> Result<Executable, CompileError> {
    let (profile, schedule) = lowered(graph, 1);
    Executable::compile(graph, &Checked::new(graph, &profile, schedule)?, &pool(1))
}

fn refused(graph: &Graph) -> String {
    match compiled(graph) {
        Ok(_) => panic!("the graph was compiled"),
        Err(CompileError::Kernel { reason, .. }) => reason.to_string(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn each_operator_refuses_what_its_kernel_does_not_expect() {
    use DType::{Bool, F32, I64};
    let plain = |values: &[ValueId]| values.iter().map(|&v| Argument::Value(v)).collect();
    let followed = |rest: Vec<Argument>| {
        move |values: &[ValueId]| -> Vec<Argument> {
            values.iter().map(|&v| Argument::Value(v)).chain(rest.clone()).collect()
        }
    };
    let (int, off) = (Argument::Int, Argument::Bool(false));
    let parts = |values: &[ValueId]| {
        let list = values.iter().map(|&v| Argument::Value(v)).collect();
        vec![Argument::List(list), Argument::Int(0)]
    };
    let loss = |values: &[ValueId]| {
        let [x, target] = [values[0], values[1]].map(Argument::Value);
        vec![x, target, Argument::None, Argument::Int(1), Argument::Int(-100)]
    };
    let float = |shape: &'static [u64]| (shape, F32);
    let dropout = |values: &[ValueId]| {
        vec![Argument::Value(values[0]), Argument::Float(0.0), Argument::Bool(true)]
    };
    let graphs = [
        call("aten.cat.default", &[float(&[2, 3]), float(&[2, 4])], &parts, &[float(&[4, 3])]),
        call("aten.cat.default", &[float(&[2]), float(&[2])], &parts, &[float(&[])]),
        call("aten.native_dropout.default", &[float(&[8])], &dropout, &[float(&[9])]),
        call("aten.native_dropout.default", &[float(&[8])], &dropout, &[float(&[8]), (&[7], Bool)]),
        call(
            "aten.nll_loss_forward.default",
            &[float(&[4, 3]), (&[4], I64)],
            &loss,
            &[float(&[4])],
        ),
        call(
            "aten.nll_loss_forward.default",
            &[float(&[4, 3]), (&[4], I64)],
            &loss,
            &[float(&[]), float(&[2])],
        ),
        call("aten.embedding.default", &[float(&[5, 2]), (&[3], I64)], &plain, &[float(&[4, 2])]),
        call(
            "aten._softmax.default",
            &[float(&[2, 3])],
            &followed(vec![int(1), off.clone()]),
            &[float(&[2, 2])],
        ),
        call(
            "aten._log_softmax_backward_data.default",
            &[float(&[2, 2]), float(&[2, 3])],
            &followed(vec![int(1), int(6)]),
            &[float(&[2, 3])],
        ),
        call("aten.exp.default", &[float(&[8])], &plain, &[(&[8], Bool)]),
        call("aten.mean.default", &[float(&[8])], &plain, &[float(&[8])]),
        call("aten.mm.default", &[float(&[2, 3]), float(&[4, 2])], &plain, &[float(&[2, 2])]),
    ];
    for graph in &graphs {
        let node = &graph.nodes()[graph.compute_nodes()[0]];
        let reason = refused(graph);
        assert!(!reason.is_empty(), "{}", node.op);
    }
    assert_eq!(
        refused(&graphs[0]),
        "node `call` (aten.cat.default): [2, 4] and [2, 3] along dimension 0"
    );
    assert_eq!(
        refused(&graphs[5]),
        "node `call` (aten.nll_loss_forward.default): output 1 is f32 [2], strides [1] from \
         element 0, but these inputs give f32 []"
    );
}

/// x + x into an output with these strides.
fn into(shape: &[u64], strides: &[u64]) -> Graph {
    let mut builder = GraphBuilder::new("into");
    let (from, to) = (builder.storage(Bytes(4096)), builder.storage(Bytes(4096)));
    let x = builder.node(
        NodeSpec::new("x", "placeholder", Phase::Input),
        &[Some(ValueSpec::contiguous(shape, DType::F32, from))],
    )[0];
    let spec = ValueSpec {
        contiguous: false,
        strides: Some(strides.to_vec()),
        ..ValueSpec::contiguous(shape, DType::F32, to)
    };
    let node = NodeSpec {
        inputs: vec![x],
        args: vec![Argument::Value(x)],
        ..NodeSpec::new("written", "aten.exp.default", Phase::Forward)
    };
    let y = builder.node(node, &[Some(spec)])[0];
    builder.output(y);
    builder.build().unwrap()
}

#[test]
fn outputs_whose_elements_overlap_are_refused() {
    for (shape, strides) in [(vec![4, 8], vec![0, 1]), (vec![4], vec![0]), (vec![2, 2], vec![1, 1])]
    {
        let error = compiled(&into(&shape, &strides)).err().unwrap();
        let CompileError::NotExecutable { node, what } = &error else { panic!("{error}") };
        assert_eq!(node, "written");
        assert!(what.contains("overlap"), "{what}");
    }
    for (shape, strides) in
        [(vec![4, 8], vec![1, 4]), (vec![4, 8], vec![20, 2]), (vec![1, 8], vec![0, 1])]
    {
        assert!(compiled(&into(&shape, &strides)).is_ok(), "{shape:?} by {strides:?}");
    }
}

/// A dropout whose output and mask lie in one storage, the mask from byte `offset`.
fn together(offset: u64) -> Graph {
    let mut builder = GraphBuilder::new("together");
    let (from, to) = (builder.storage(Bytes(64)), builder.storage(Bytes(256)));
    let x = builder.node(
        NodeSpec::new("x", "placeholder", Phase::Input),
        &[Some(ValueSpec::contiguous(&[16], DType::F32, from))],
    )[0];
    let node = NodeSpec {
        inputs: vec![x],
        args: vec![Argument::Value(x), Argument::Float(0.0), Argument::Bool(true)],
        random: true,
        seed_slot: Some(0),
        ..NodeSpec::new("both", "aten.native_dropout.default", Phase::Forward)
    };
    let outputs = [
        ValueSpec::contiguous(&[16], DType::F32, to),
        ValueSpec { offset, ..ValueSpec::contiguous(&[16], DType::Bool, to) },
    ];
    for value in builder.node(node, &outputs.map(Some)) {
        builder.output(value);
    }
    builder.build().unwrap()
}

#[test]
fn two_outputs_in_the_same_bytes_are_refused() {
    assert!(matches!(
        compiled(&together(63)),
        Err(CompileError::NotExecutable { node, .. }) if node == "both"
    ));
    assert!(compiled(&together(64)).is_ok());
}

/// A copy into the first or the second half of a storage, from its first half.
fn within(offset: u64) -> Graph {
    let mut builder = GraphBuilder::new("within");
    let storage = builder.storage(Bytes(64));
    let x = builder.node(
        NodeSpec::new("x", "placeholder", Phase::Input),
        &[Some(ValueSpec::contiguous(&[16], DType::F32, storage))],
    )[0];
    let int = |x: u64| Argument::Int(x as i64);
    let part = |offset| ValueSpec { offset, ..ValueSpec::contiguous(&[8], DType::F32, storage) };
    let mut view = |name: &str, offset: u64| {
        let node = NodeSpec {
            inputs: vec![x],
            args: [vec![Argument::Value(x)], [0, offset, offset + 8].map(int).to_vec()].concat(),
            ..NodeSpec::new(name, "aten.slice.Tensor", Phase::Forward)
        };
        builder.node(node, &[Some(part(offset))])[0]
    };
    let (to, from) = (view("to", offset), view("from", 0));
    let node = NodeSpec {
        inputs: vec![to, from],
        args: vec![Argument::Value(to), Argument::Value(from)],
        mutates: true,
        ..NodeSpec::new("copied", "aten.copy_.default", Phase::Forward)
    };
    let y = builder.node(node, &[Some(part(offset))])[0];
    builder.output(y);
    builder.build().unwrap()
}

#[test]
fn an_output_over_an_input_that_is_read_meanwhile_is_refused() {
    for offset in [1, 4, 7] {
        assert!(matches!(
            compiled(&within(offset)),
            Err(CompileError::NotExecutable { node, .. }) if node == "copied"
        ));
    }
    assert!(compiled(&within(8)).is_ok());
}

/// A view of `x`, 16 floats in a storage of 32, from element `offset` on.
fn strided(op: &str, offset: u64) -> Graph {
    let mut builder = GraphBuilder::new("strided");
    let (from, to) = (builder.storage(Bytes(128)), builder.storage(Bytes(16)));
    let x = builder.node(
        NodeSpec::new("x", "placeholder", Phase::Input),
        &[Some(ValueSpec::contiguous(&[16], DType::F32, from))],
    )[0];
    let list = |x: i64| Argument::List(vec![Argument::Int(x)]);
    let node = NodeSpec {
        inputs: vec![x],
        args: vec![Argument::Value(x), list(4), list(1), Argument::Int(offset as i64)],
        ..NodeSpec::new("view", op, Phase::Forward)
    };
    let part = ValueSpec { offset, ..ValueSpec::contiguous(&[4], DType::F32, from) };
    let view = builder.node(node, &[Some(part)])[0];
    let node = NodeSpec {
        inputs: vec![view],
        args: vec![Argument::Value(view)],
        ..NodeSpec::new("read", "aten.exp.default", Phase::Forward)
    };
    let y = builder.node(node, &[Some(ValueSpec::contiguous(&[4], DType::F32, to))])[0];
    builder.output(y);
    builder.build().unwrap()
}

/// Bytes that nothing writes keep their previous content, which depends on the budget.
#[test]
fn a_view_of_what_nothing_wrote_is_refused() {
    assert!(compiled(&strided("aten.as_strided.default", 12)).is_ok());
    for offset in [13, 16, 28] {
        assert!(matches!(
            compiled(&strided("aten.as_strided.default", offset)),
            Err(CompileError::NotExecutable { node, .. }) if node == "view"
        ));
    }
}

/// No one knows which elements an operator without a row would show.
#[test]
fn a_view_by_an_operator_without_a_row_is_refused() {
    let error = compiled(&strided("aten.unfold.default", 12)).err().unwrap();
    let CompileError::UnknownOperators { operators } = &error else { panic!("{error}") };
    assert_eq!(
        (operators[0].op.as_str(), operators[0].first.as_str()),
        ("aten.unfold.default", "view")
    );
}

/// A copy whose new version is declared to lie elsewhere than what was copied into.
#[test]
fn a_new_version_lies_where_the_old_one_did() {
    let mut builder = GraphBuilder::new("moved");
    let (to, from) = (builder.storage(Bytes(64)), builder.storage(Bytes(16)));
    let mut input = |name: &str, storage| {
        let node = NodeSpec::new(name, "placeholder", Phase::Input);
        builder.node(node, &[Some(ValueSpec::contiguous(&[4], DType::F32, storage))])[0]
    };
    let (x, y) = (input("x", to), input("y", from));
    let node = NodeSpec {
        inputs: vec![x, y],
        args: vec![Argument::Value(x), Argument::Value(y)],
        mutates: true,
        ..NodeSpec::new("copied", "aten.copy_.default", Phase::Forward)
    };
    let spec = ValueSpec { offset: 4, ..ValueSpec::contiguous(&[4], DType::F32, to) };
    let moved = builder.node(node, &[Some(spec)])[0];
    builder.output(moved);
    let refused = compiled(&builder.build().unwrap()).err();
    assert!(matches!(
        refused,
        Some(CompileError::Unsuited { reason: Unsuited::Output { index: 0, .. }, .. })
    ));
}

#[test]
fn an_executable_runs_on_the_threads_it_was_compiled_for() {
    let graph = into(&[4, 8], &[8, 1]);
    for threads in [1, 3] {
        let (profile, schedule) = lowered(&graph, threads);
        let pool = pool(threads);
        let checked = Checked::new(&graph, &profile, schedule.clone()).unwrap();
        let executable = Executable::compile(&graph, &checked, &pool).unwrap();
        drop(pool);
        assert_eq!(executable.threads(), threads);
        let mut slab = Slab::new(schedule.slab).unwrap();
        assert!(executable.run(&mut slab, &SETTINGS).is_ok());
    }
    // A schedule for one thread has no workspace for three.
    let floats = |shape: &'static [u64]| (shape, DType::F32);
    let heads = [floats(&[1, 2, 3, 4]), floats(&[1, 2, 5, 4]), floats(&[1, 2, 5, 4])];
    let attention = call(
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        &heads,
        &|values| values.iter().map(|&value| Argument::Value(value)).collect(),
        &[floats(&[1, 2, 3, 4]), floats(&[1, 2, 3])],
    );
    let (profile, schedule) = lowered(&attention, 1);
    let checked = Checked::new(&attention, &profile, schedule).unwrap();
    assert!(Executable::compile(&attention, &checked, &pool(1)).is_ok());
    assert!(matches!(
        Executable::compile(&attention, &checked, &pool(3)),
        Err(CompileError::Conditions { threads: 3, .. })
    ));
}

/// PyTorch's softmax may write over its input if a graph says so; the engine's reads its input
/// again after the first write.
#[test]
fn a_schedule_that_was_checked_for_other_kernels_is_refused() {
    let mut builder = GraphBuilder::new("overwritten");
    let storages = [0; 2].map(|_| builder.storage(Bytes(64)));
    let rows = |index: usize| [Some(ValueSpec::contiguous(&[2, 8], DType::F32, storages[index]))];
    let x = builder.node(NodeSpec::new("x", "placeholder", Phase::Input), &rows(0))[0];
    let softmax = NodeSpec {
        inputs: vec![x],
        args: vec![Argument::Value(x), Argument::Int(1), Argument::Bool(false)],
        overwrites: vec![x],
        ..NodeSpec::new("softmax", "aten._softmax.default", Phase::Forward)
    };
    let y = builder.node(softmax, &rows(1))[0];
    builder.output(y);
    let graph = builder.build().unwrap();
    let engine = Machine::unmeasured_cpu(1);
    for (runtime, runs) in [(Runtime::Engine, true), (Runtime::Recorded, false)] {
        let machine = Machine { runtime, ..engine.clone() };
        let profile = Profile::new(&graph, &machine);
        let program = graph.compute_nodes();
        let plan = Instance::new(&graph, &profile, &program).unplanned(Planner::None);
        let goal = Lowering::to(Goal::Within(Bytes(1 << 40)));
        let mut schedule = lower(&graph, &profile, &plan, &goal);
        schedule.budget = schedule.slab;
        let checked = Checked::new(&graph, &profile, schedule).unwrap();
        let compiled = Executable::compile(&graph, &checked, &pool(1)).map(drop);
        match compiled {
            Ok(()) => assert!(runs),
            Err(error) => {
                assert!(!runs && matches!(error, CompileError::Conditions { .. }), "{error}");
            }
        }
    }
}

#[test]
fn the_steps_of_the_corpus_are_compiled() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus/steps");
    let mut graphs = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let folder = entry.unwrap().path();
        if !folder.join("step.json").exists() {
            continue;
        }
        let step = Step::open(&folder).unwrap();
        for graph in [Some(&step.training), step.evaluation.as_ref()].into_iter().flatten() {
            if let Err(error) = compiled(graph) {
                panic!("{}: {error}", folder.display());
            }
            graphs += 1;
        }
    }
    assert!(graphs > 3, "only {graphs} graphs");
}

/// One call over `x`, whose output lies where the case says.
fn one(op: &str, args: &[Argument], marks: impl Fn(&mut NodeSpec), over_input: bool) -> Graph {
    let mut builder = GraphBuilder::new("one");
    let (from, to) = (builder.storage(Bytes(64)), builder.storage(Bytes(64)));
    let x = builder.node(
        NodeSpec::new("x", "placeholder", Phase::Input),
        &[Some(ValueSpec::contiguous(&[16], DType::F32, from))],
    )[0];
    let mut node = NodeSpec {
        inputs: vec![x],
        args: [&[Argument::Value(x)], args].concat(),
        ..NodeSpec::new("call", op, Phase::Forward)
    };
    marks(&mut node);
    let storage = if over_input { from } else { to };
    let y = builder.node(node, &[Some(ValueSpec::contiguous(&[16], DType::F32, storage))])[0];
    builder.output(y);
    builder.build().unwrap()
}

/// A call that computes is never skipped because it looks like a view, and one that writes is never
/// run again because it is not marked.
#[test]
fn calls_are_marked_as_what_they_are() {
    let refused = |graph: &Graph| match compiled(graph).err() {
        Some(CompileError::Unsuited { reason, .. }) => Some(reason),
        _ => None,
    };
    let scalar = [Argument::Float(0.0)];
    let disguised = one("aten.mul.Scalar", &scalar, |_| {}, true);
    assert_eq!(refused(&disguised), Some(Unsuited::TakenForView));
    let marked = one("aten.mul.Scalar", &scalar, |node| node.mutates = true, true);
    assert_eq!(refused(&marked), Some(Unsuited::MarkedMutating));
    assert_eq!(refused(&one("aten.mul.Scalar", &scalar, |_| {}, false)), None);
    let dropout = [Argument::Float(0.5), Argument::Bool(true)];
    let unmarked = one("aten.native_dropout.default", &dropout, |_| {}, false);
    assert_eq!(refused(&unmarked), Some(Unsuited::NotMarkedRandom));
    let sgd = one("tightfit.sgd", &[], |_| {}, true);
    assert_eq!(refused(&sgd), Some(Unsuited::NotMarkedMutating));
}
