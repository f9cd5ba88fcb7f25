//! The data of the page's script. Invariant: every call and every residency is in it, once; names,
//! sizes and times stand in tables and are cited by index, so that the file grows with the step and
//! not with its length times its width.

use std::collections::HashMap;
use std::hash::Hash;

use cranelift_entity::SecondaryMap;
use serde_json::{Value as Json, json};
use tightfit::id::NodeId;
use tightfit::units::{Bytes, Seconds};

use super::{Report, Side};
use crate::course::{Course, Residency, tensor_name};
use crate::role::Role;

/// The data as JSON that may stand within a script element.
///
/// `calls` holds twice the node's index, plus one for a recomputation. Of a residency, `first` is
/// the distance from the residency before, and `span` the number of calls after the first. Sizes
/// are bytes, times seconds; measured times are whole nanoseconds.
///
/// If anything moves, a side has more members: `waits`, before which call and for how many
/// nanoseconds; `below`, what lies in the tier, as `held`; `moves`, for each transfer the node's
/// index, whether it leaves, its start and duration in nanoseconds, and the index of its size.
pub fn embedded(report: &Report<'_>, sides: &[Side<'_>]) -> String {
    let mut nodes = Nodes::default();
    let places: Vec<SecondaryMap<NodeId, u32>> =
        sides.iter().map(|(_, _, course)| nodes.places(course)).collect();
    let mut sizes: Table<Bytes> = Table::default();
    let mut drawn: Vec<Json> = sides
        .iter()
        .zip(&places)
        .map(|((key, name, course), place)| side(key, name, course, place, &mut sizes))
        .collect();
    if let (Some(measured), Some(last)) = (&report.measured, drawn.last_mut()) {
        let whole = |seconds: Seconds| (seconds.0 * 1e9).round() as u64;
        let (starts, durations): (Vec<u64>, Vec<u64>) =
            measured.times.iter().map(|&(start, taken)| (whole(start), whole(taken))).unzip();
        last["measured"] = json!({ "start": starts, "time": durations });
    }
    let data = json!({
        "graph": report.unplanned.graph.name(),
        "roles": Role::ALL.map(Role::name),
        "ops": nodes.ops.rows,
        "modules": nodes.modules.rows,
        "phases": nodes.phases.rows,
        "sizes": sizes.rows,
        "times": nodes.times.rows.iter().map(|&bits| f64::from_bits(bits)).collect::<Vec<_>>(),
        "nodes": nodes.columns(),
        "sides": drawn,
    });
    // Within a script nothing may look like markup; in JSON `<` occurs only in strings.
    data.to_string().replace('<', "\\u003c")
}

/// The nodes of all courses. Courses of a step as it is, and in chunks, share those that are alike.
#[derive(Default)]
struct Nodes<'a> {
    rows: Table<Row<'a>>,
    ops: Table<&'a str>,
    modules: Table<&'a str>,
    phases: Table<&'a str>,
    /// Seconds, as bits.
    times: Table<u64>,
}

/// A node: its name, and the places of its operator, module, phase and time.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Row<'a> {
    name: &'a str,
    op: usize,
    module: usize,
    phase: usize,
    time: usize,
}

impl<'a> Nodes<'a> {
    /// Where the nodes of a course stand.
    fn places(&mut self, course: &Course<'a>) -> SecondaryMap<NodeId, u32> {
        let graph = course.graph;
        let count = graph.nodes().len();
        let mut seconds: SecondaryMap<NodeId, Seconds> = SecondaryMap::with_capacity(count);
        for call in &course.calls {
            seconds[call.node] = call.seconds;
        }
        let mut places = SecondaryMap::with_capacity(count);
        for (id, node) in graph.nodes().iter().filter(|&(id, _)| !graph.is_view(id)) {
            let home = graph.fresh(id).iter().find_map(|&storage| course.homes[storage]);
            let module = home.map_or(graph.module_of(id), |home| &graph.modules()[home]);
            let row = Row {
                name: tensor_name(graph, id),
                op: self.ops.place(node.op.as_str()),
                module: self.modules.place(module),
                phase: self.phases.place(node.phase.name()),
                time: self.times.place(seconds[id].0.to_bits()),
            };
            places[id] = self.rows.place(row) as u32;
        }
        places
    }

    /// As lists of the same length, each for one of their fields.
    fn columns(&self) -> Json {
        let column = |field: fn(&Row<'_>) -> usize| -> Vec<usize> {
            self.rows.rows.iter().map(field).collect()
        };
        json!({
            "name": self.rows.rows.iter().map(|row| row.name).collect::<Vec<_>>(),
            "op": column(|row| row.op),
            "module": column(|row| row.module),
            "phase": column(|row| row.phase),
            "time": column(|row| row.time),
        })
    }
}

fn side(
    key: &str,
    name: &str,
    course: &Course<'_>,
    place: &SecondaryMap<NodeId, u32>,
    sizes: &mut Table<Bytes>,
) -> Json {
    let calls: Vec<u32> =
        course.calls.iter().map(|call| place[call.node] * 2 + u32::from(call.recomputed)).collect();
    let mut side = json!({
        "key": key, "name": name, "peak": course.at, "calls": calls,
        "held": held(&course.residencies, place, sizes),
    });
    if !course.transfers.is_empty() {
        let nanoseconds = |seconds: f64| (seconds * 1e9).round() as i64;
        let waits = course.waits();
        let waits = waits.iter().map(|(call, from, to)| json!([call, nanoseconds(to.0 - from.0)]));
        side["waits"] = waits.collect();
        side["below"] = held(&course.below.residencies, place, sizes);
        let moves = course.transfers.iter().map(|carried| {
            let (start, seconds) = (carried.time.start.0, carried.time.seconds.0);
            json!([
                place[carried.node],
                u32::from(carried.leaves),
                nanoseconds(start),
                nanoseconds(seconds),
                sizes.place(carried.bytes),
            ])
        });
        side["moves"] = moves.collect();
    }
    side
}

/// Residencies as lists of the same length, each for one of their fields.
fn held(
    residencies: &[Residency],
    place: &SecondaryMap<NodeId, u32>,
    sizes: &mut Table<Bytes>,
) -> Json {
    let (mut node, mut first, mut span, mut size, mut role) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut before = 0;
    for residency in residencies.iter().filter(|residency| residency.bytes > Bytes::ZERO) {
        node.push(place[residency.node]);
        first.push(residency.first - before);
        before = residency.first;
        span.push(residency.last - residency.first);
        size.push(sizes.place(residency.bytes));
        role.push(residency.role as u32);
    }
    json!({ "node": node, "first": first, "span": span, "size": size, "role": role })
}

/// Each row once.
struct Table<T> {
    rows: Vec<T>,
    places: HashMap<T, usize>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table { rows: Vec::new(), places: HashMap::new() }
    }
}

impl<T: Copy + Eq + Hash> Table<T> {
    fn place(&mut self, row: T) -> usize {
        let rows = &mut self.rows;
        *self.places.entry(row).or_insert_with(|| {
            rows.push(row);
            rows.len() - 1
        })
    }
}
