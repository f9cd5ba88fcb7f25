//! The traces of several ranks in one file. Invariant: each rank is a process of its own, with the
//! events of its trace; one that has no trace keeps its number.

use serde_json::{Value as Json, json};

/// The format of traces of several ranks.
pub const FORMAT: &str = "tightfit-traces/1";

/// Joins what [`Trace::write`](crate::Trace::write) has written for each rank; `None` if none of
/// the texts is a trace.
pub fn join<'a>(texts: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let mut about: Vec<Json> = Vec::new();
    let mut events = String::new();
    for (rank, text) in texts.into_iter().enumerate() {
        let trace: Json = serde_json::from_str(text).unwrap_or_default();
        let Some(own) = trace["traceEvents"].as_array() else { continue };
        about.push(json!({ "rank": rank, "trace": trace["otherData"] }));
        for event in own {
            let mut event = event.clone();
            event["pid"] = json!(rank + 1);
            let is_name = event["ph"] == "M" && event["name"] == "process_name";
            if let Some(name) = event["args"]["name"].as_str().filter(|_| is_name) {
                event["args"]["name"] = json!(format!("rank {rank}: {name}"));
            }
            events += if events.is_empty() { "" } else { ",\n" };
            events += &event.to_string();
        }
    }
    let other = json!({ "format": FORMAT, "ranks": about });
    (!events.is_empty()).then(|| {
        format!(
            "{{\"displayTimeUnit\":\"ms\",\"otherData\":{other},\"traceEvents\":[\n{events}\n]}}\n"
        )
    })
}
