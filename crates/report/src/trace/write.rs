//! A trace, written event by event. Invariant: each event is text as soon as it is made, since a
//! run that is traced has little memory left; and each has a line of its own.

use serde_json::{Map, Value as Json, json};
use tightfit::units::{Bytes, Seconds};

use crate::role::Role;
use crate::trace::within::{self, CATEGORY};
use crate::trace::{
    BELOW, BUDGET, FORMAT, LANES, MEMORY, MemoryMark, TOTAL, Trace, TracedCall, TracedTransfer,
};

/// All of a trace as JSON.
pub(super) fn whole(trace: &Trace) -> String {
    let about = json!({
        "format": FORMAT, "graph": trace.graph, "name": trace.name, "machine": trace.machine,
        "planner": trace.planner, "budget_bytes": trace.budget, "measured": trace.measured,
    });
    let mut events =
        Events(format!("{{\"displayTimeUnit\":\"ms\",\"otherData\":{about},\"traceEvents\":[\n"));
    events.lanes(if trace.transfers.is_empty() { 2 } else { LANES.len() });
    events.slices(&trace.calls);
    events.calls(&trace.calls);
    events.transfers(&trace.transfers);
    events.waits(&trace.transfers);
    events.memory(trace);
    // This comes last, since no comma may follow.
    let what = if trace.measured { "measured" } else { "predicted" };
    let process = format!("{} on {} ({what})", trace.name, trace.machine);
    let name = json!({ "ph": "M", "name": "process_name", "pid": 1, "args": { "name": process } });
    events.0 + &format!("{name}\n]}}\n")
}

/// The text of a trace up to the last event so far.
struct Events(String);

impl Events {
    fn push(&mut self, event: Json) {
        self.0.push_str(&event.to_string());
        self.0.push_str(",\n");
    }

    /// The names of the first lanes, and their order.
    fn lanes(&mut self, count: usize) {
        for (index, (_, lane)) in LANES.iter().take(count).enumerate() {
            for (name, args) in [
                ("thread_name", json!({ "name": lane })),
                ("thread_sort_index", json!({ "sort_index": index })),
            ] {
                self.push(
                    json!({ "ph": "M", "name": name, "pid": 1, "tid": index + 1, "args": args }),
                );
            }
        }
    }

    /// The phases and modules around calls.
    fn slices(&mut self, calls: &[TracedCall]) {
        for slice in within::slices(calls) {
            let lane = usize::from(slice.recomputed);
            let seconds = Seconds(slice.end.0 - slice.start.0);
            self.push(complete(slice.name, CATEGORY, lane, slice.start, seconds));
        }
    }

    fn calls(&mut self, calls: &[TracedCall]) {
        for call in calls {
            let lane = usize::from(call.recomputed);
            let mut event = complete(&call.op, LANES[lane].0, lane, call.start, call.seconds);
            event["args"] = json!({
                "node": call.node, "module": call.module, "phase": call.phase, "bytes": call.held,
            });
            if call.recomputed {
                event["cname"] = json!("terrible");
            }
            self.push(event);
        }
    }

    fn transfers(&mut self, transfers: &[TracedTransfer]) {
        for TracedTransfer { tensor, leaves, bytes, start, seconds, stall } in transfers {
            let lane = if *leaves { 2 } else { 3 };
            let mut event = complete(tensor, LANES[lane].0, lane, *start, *seconds);
            event["args"] = json!({ "bytes": bytes, "stall": micros(*stall) });
            self.push(event);
        }
    }

    /// When calls wait for transfers.
    fn waits(&mut self, transfers: &[TracedTransfer]) {
        for transfer in transfers {
            let Some((from, to)) = transfer.wait() else { continue };
            let seconds = Seconds(to.0 - from.0);
            let mut event = complete(&transfer.tensor, LANES[4].0, 4, from, seconds);
            event["cname"] = json!("bad");
            self.push(event);
        }
    }

    /// Bytes over time: those held on the device, what they may be, and those below it.
    fn memory(&mut self, trace: &Trace) {
        let [above, below] = [&trace.memory, &trace.below].map(|marks| roles(marks));
        for mark in &trace.memory {
            let total: Bytes = mark.bytes.iter().copied().sum();
            self.push(counter(MEMORY, mark.at, by_role(&above, mark)));
            self.push(counter(TOTAL, mark.at, json!({ "bytes": total })));
        }
        for mark in trace.memory.first().into_iter().chain(trace.memory.last()) {
            self.push(counter(BUDGET, mark.at, json!({ "bytes": trace.budget })));
        }
        for mark in &trace.below {
            self.push(counter(BELOW, mark.at, by_role(&below, mark)));
        }
    }
}

/// An event with a duration, without arguments.
fn complete(name: &str, category: &str, lane: usize, start: Seconds, seconds: Seconds) -> Json {
    json!({
        "ph": "X", "name": name, "cat": category, "pid": 1, "tid": lane + 1,
        "ts": micros(start), "dur": micros(seconds),
    })
}

/// Values from a moment on.
fn counter(name: &str, at: Seconds, args: Json) -> Json {
    json!({ "ph": "C", "name": name, "pid": 1, "ts": micros(at), "args": args })
}

/// The roles that have bytes at any time.
fn roles(marks: &[MemoryMark]) -> Vec<Role> {
    let is_used = |&role: &Role| marks.iter().any(|mark| mark.bytes[role as usize] > Bytes::ZERO);
    Role::ALL.into_iter().filter(is_used).collect()
}

fn by_role(roles: &[Role], mark: &MemoryMark) -> Json {
    let bytes = |role: &Role| (role.name().to_string(), json!(mark.bytes[*role as usize]));
    Json::Object(roles.iter().map(bytes).collect::<Map<_, _>>())
}

fn micros(seconds: Seconds) -> f64 {
    (seconds.0 * 1e9).round() / 1e3
}
