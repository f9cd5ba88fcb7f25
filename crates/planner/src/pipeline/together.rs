//! The schedules of all ranks in time, each waiting for what the others send. Invariant: a call
//! begins as soon as the one before it has ended and what it waits for has happened, and takes as
//! long as in its own timeline.

use cranelift_entity::PrimaryMap;

use crate::graph::{Graph, Node};
use crate::id::RankId;
use crate::operator::Operator;
use crate::tensor::Argument;
use crate::timeline::Timeline;
use crate::units::Seconds;

/// The times of one rank that runs together with the others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankInTime {
    /// When each call of its schedule begins.
    pub starts: Vec<Seconds>,
    /// How long it waits for others.
    pub waiting: Seconds,
    /// When its last call ends.
    pub end: Seconds,
}

/// What a rank waits for.
#[derive(Clone, Copy, Debug, Default)]
struct Message {
    arrived: Option<Seconds>,
    received: Option<Seconds>,
}

/// When each rank runs its calls if all begin at once and messages take as long as `transfers` says
/// by their numbers, and no time if it does not name them; `None` if they wait for each other
/// forever, which the schedules of [`ranks`](crate::pipeline::ranks) never do.
pub fn together<'a>(
    ranks: impl IntoIterator<Item = (&'a Graph, &'a Timeline)>,
    transfers: &[Seconds],
) -> Option<PrimaryMap<RankId, RankInTime>> {
    let ranks: PrimaryMap<RankId, (&Graph, &Timeline)> = ranks.into_iter().collect();
    let mut times: PrimaryMap<RankId, RankInTime> =
        ranks.values().map(|_| RankInTime::default()).collect();
    let mut messages: Vec<Message> = Vec::new();
    let mut left: usize = ranks.values().map(|(_, timeline)| timeline.calls.len()).sum();
    while left > 0 {
        let before = left;
        for (rank, (graph, timeline)) in &ranks {
            let time = &mut times[rank];
            while let Some(call) = timeline.calls.get(time.starts.len()) {
                let node = &graph.nodes()[call.node];
                let number = message(node);
                let place = number.unwrap_or(0);
                messages.resize(messages.len().max(place + 1), Message::default());
                // Waits for transfers are in the timeline, as gaps between calls.
                let last = time.starts.len().checked_sub(1).map(|last| timeline.calls[last]);
                let free = last.map_or(0.0, |last| (last.start + last.seconds).0);
                let ready = time.end.0 + (call.start.0 - free).max(0.0);
                let awaited = match node.operator.filter(|_| number.is_some()) {
                    Some(Operator::Receive) => messages[place].arrived,
                    Some(Operator::Sent) => messages[place].received,
                    _ => Some(Seconds(0.0)),
                };
                let Some(Seconds(awaited)) = awaited else { break };
                let start = ready.max(awaited);
                time.waiting = Seconds(time.waiting.0 + start - ready);
                time.starts.push(Seconds(start));
                time.end = Seconds(start + call.seconds.0);
                match node.operator.filter(|_| number.is_some()) {
                    Some(Operator::Send) => {
                        let transfer = transfers.get(place).map_or(0.0, |transfer| transfer.0);
                        messages[place].arrived = Some(Seconds(time.end.0 + transfer));
                    }
                    Some(Operator::Receive) => messages[place].received = Some(time.end),
                    _ => {}
                }
                left -= 1;
            }
        }
        if left == before {
            return None;
        }
    }
    Some(times)
}

/// The number of the message that a call sends or waits for.
fn message(node: &Node) -> Option<usize> {
    let exchanges = node.operator.is_some_and(|operator| operator.exchanges());
    match node.args.get(1) {
        Some(&Argument::Int(number)) if exchanges => usize::try_from(number).ok(),
        _ => None,
    }
}
