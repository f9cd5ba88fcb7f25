//! A sharded step in time, with its collectives running at the same time as other calls. Invariant:
//! a collective begins as soon as it is called and the one before it has ended; and nothing that
//! needs its end begins before that.

use crate::graph::Graph;
use crate::pipeline::RankInTime;
use crate::schedule::Schedule;
use crate::sharded::beside::endings;
use crate::timeline::Timeline;
use crate::units::Seconds;

/// When a rank runs each call, if all ranks are alike, and how long it waits for collectives.
pub fn in_time(graph: &Graph, schedule: &Schedule, timeline: &Timeline) -> RankInTime {
    let mut rank = RankInTime::default();
    let endings = endings(graph, schedule);
    let mut due = endings.iter().peekable();
    // When collectives end, by their positions among the instructions.
    let mut ends: Vec<f64> = vec![0.0; schedule.instructions.len()];
    let (mut now, mut free, mut lane) = (0.0f64, 0.0f64, 0.0f64);
    let mut calls = timeline.calls.iter();
    for index in 0..=schedule.instructions.len() {
        while let Some(ending) = due.next_if(|ending| ending.before == index) {
            let waiting = (ends[ending.call] - now).max(0.0);
            rank.waiting = Seconds(rank.waiting.0 + waiting);
            now += waiting;
        }
        let instruction = schedule.instructions.get(index);
        let is_call = instruction.is_some_and(|instruction| instruction.call().is_some());
        let Some(call) = is_call.then(|| calls.next()).flatten() else { continue };
        // Waits for transfers are in the timeline, as gaps between calls.
        now += (call.start.0 - free).max(0.0);
        free = call.start.0 + call.seconds.0;
        rank.starts.push(Seconds(now));
        let operator = graph.nodes()[call.node].operator;
        if operator.is_some_and(|operator| operator.is_collective()) {
            lane = lane.max(now) + call.seconds.0;
            ends[index] = lane;
        } else {
            now += call.seconds.0;
        }
    }
    rank.end = Seconds(now);
    rank
}
