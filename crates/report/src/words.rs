//! Peaks and prices in sentences. Invariant: plain text, to be escaped by the caller that shows it;
//! every number is read off a course.

use tightfit::graph::Phase;
use tightfit::id::NodeId;
use tightfit::units::Bytes;

use crate::axis::{duration, grouped};
use crate::course::{Course, Residency};
use crate::role::Role;
use crate::savings::Saving;

/// Most tensors that one sentence lists.
const LISTED: usize = 3;

/// Where a step peaks, and what lies there.
pub fn peak(course: &Course<'_>) -> Vec<String> {
    let Some(call) = course.calls.get(course.at) else {
        return vec![format!("Nothing runs in this step; it holds {}.", course.peak)];
    };
    let node = &course.graph.nodes()[call.node];
    let again = if call.recomputed { "runs again" } else { "runs" };
    let first = format!(
        "The peak is {} ({} bytes). It is reached {} into the step, when {} ({}, {}) {again} in \
         {}.",
        course.peak,
        grouped(course.peak.0),
        duration(call.start.0),
        quoted(&node.name),
        node.op,
        node.phase.name(),
        place(course.graph.module_of(call.node)),
    );
    let mut roles: Vec<(Role, Bytes)> = Role::ALL
        .into_iter()
        .map(|role| (role, course.by_role[course.at][role as usize]))
        .collect();
    roles.retain(|(_, bytes)| *bytes > Bytes::ZERO);
    roles.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let roles = roles.into_iter().map(|(role, bytes)| format!("{bytes} {}", role.name()));
    let second = format!("Held there: {}.", list(roles.collect()));
    let groups = groups(course).into_iter().take(LISTED).map(|group| group.describe(course));
    let mut sentences =
        vec![first, second, format!("The largest: {}.", groups.collect::<Vec<_>>().join("; "))];
    sentences.extend(of_loss(course));
    sentences
}

/// What chunks of rows would save, if the loss holds much of a peak.
fn of_loss(course: &Course<'_>) -> Option<String> {
    /// Number of parts that the rows are cut into.
    const CHUNKS: u64 = 16;
    let nodes = course.graph.nodes();
    // If the model computes the loss itself, its operators show that.
    let names = ["log_softmax", "nll_loss", "cross_entropy"];
    let is_named = |node: NodeId| names.iter().any(|name| nodes[node].op.contains(name));
    let is_loss = |node: NodeId| nodes[node].phase == Phase::Loss || is_named(node);
    let is_of_loss = |node| is_loss(node) || nodes[node].differentiates.is_some_and(is_loss);
    let held: Bytes = course
        .alive(course.at)
        .into_iter()
        .filter(|held| is_of_loss(held.node))
        .map(|held| held.bytes)
        .sum();
    // A tenth of the peak: less is not worth writing the model in another way.
    (held.0 >= course.peak.0 / 10 && held > Bytes::ZERO).then(|| {
        format!(
            "At least {held} of it belong to the loss. A plan may compute it in chunks of rows \
             (`--split`): in {CHUNKS}, one after another, it holds about {} less.",
            Bytes(held.0 / CHUNKS * (CHUNKS - 1))
        )
    })
}

/// What chunks do to a peak before anything is planned, and what they cost.
pub fn chunks(whole: &Course<'_>, chunks: &Course<'_>) -> String {
    let share = (chunks.seconds.0 / whole.seconds.0.max(f64::MIN_POSITIVE) - 1.0) * 100.0;
    format!(
        "The loss is computed in chunks of rows: without a plan, the step would peak at {} instead \
         of {}, and take {} ({share:+.1} %). ",
        chunks.peak,
        whole.peak,
        duration(chunks.seconds.0)
    )
}

/// What a plan does to a peak, and what that costs; `step` says which step has that peak.
pub fn price(
    (unplanned, step): (&Course<'_>, &str),
    planned: &Course<'_>,
    rows: &[Saving],
) -> String {
    let less = unplanned.peak.saturating_sub(planned.peak);
    let waits: f64 = planned.waits().iter().map(|(_, from, to)| to.0 - from.0).sum();
    let waits = if planned.transfers.is_empty() { 0.0 } else { waits };
    let extra = planned.seconds.0 - unplanned.seconds.0 - waits;
    let share = extra / unplanned.seconds.0.max(f64::MIN_POSITIVE) * 100.0;
    let paid = match planned.recomputed() {
        0 => "Nothing is recomputed.".to_string(),
        1 => format!("One recomputation takes {} ({share:+.1} %).", duration(extra.max(0.0))),
        count => format!(
            "{} recomputations take {} ({share:+.1} %).",
            grouped(count as u64),
            duration(extra.max(0.0))
        ),
    };
    let mut text = format!("The plan holds {less} less at its peak than {step}. ");
    let there = unplanned
        .calls
        .get(unplanned.at)
        .and_then(|call| Some((call.node, planned.first_call(call.node)?)));
    if let Some((node, at)) = there {
        let gone: Bytes = rows.iter().map(|row| row.saved).sum();
        let instead = (planned.calls[at].held + gone).saturating_sub(unplanned.peak);
        let other = if instead > Bytes::ZERO {
            format!(", and {instead} are held instead")
        } else {
            String::new()
        };
        let name = quoted(&unplanned.graph.nodes()[node].name);
        text.push_str(&format!(
            "At {name}, where that one peaks, {gone} of what it holds are gone{other}. "
        ));
    }
    text + &paid
}

/// What moves in a step, and what that costs; `None` if nothing moves.
pub fn moves(course: &Course<'_>) -> Option<String> {
    if course.transfers.is_empty() {
        return None;
    }
    let [out, back] = course.moved();
    let waits = course.waits();
    let seconds: f64 = waits.iter().map(|(_, from, to)| to.0 - from.0).sum();
    let waiting = match waits.len() {
        0 => "No call waits for them.".to_string(),
        count => format!(
            "Calls wait for them {} ({:.1} % of the step), {}.",
            duration(seconds),
            seconds / course.seconds.0.max(f64::MIN_POSITIVE) * 100.0,
            if count == 1 {
                "once".to_string()
            } else {
                format!("{} times", grouped(count as u64))
            },
        ),
    };
    Some(format!(
        "Up to {} lie below the slab. In a step {out} leave the slab and {back} return, in {} \
         transfers. {waiting}",
        course.below.peak(),
        grouped(course.transfers.len() as u64),
    ))
}

/// Tensors of one size that the same operator made for the same purpose.
struct Group<'a> {
    first: &'a Residency,
    count: u64,
}

impl Group<'_> {
    fn bytes(&self) -> Bytes {
        Bytes(self.first.bytes.0 * self.count)
    }

    fn describe(&self, course: &Course<'_>) -> String {
        let (first, role) = (self.first, self.first.role.name());
        if self.count == 1 {
            return format!(
                "{} ({}, {role}, {})",
                quoted(course.name(first)),
                first.bytes,
                place(course.module(first))
            );
        }
        let op = match first.role {
            Role::Workspace => role.to_string(),
            _ if course.graph.nodes()[first.node].phase.is_placeholder() => role.to_string(),
            _ => format!("{role} made by {}", course.graph.nodes()[first.node].op),
        };
        format!("{} {op} of {} each, {} together", grouped(self.count), first.bytes, self.bytes())
    }
}

/// What is alive at the peak, equal tensors grouped, the largest first.
fn groups<'a>(course: &'a Course<'_>) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    let alive = course.alive(course.at);
    let key = |held: &Residency| (held.role, &course.graph.nodes()[held.node].op, held.bytes);
    let mut places: std::collections::BTreeMap<_, usize> = Default::default();
    for held in alive {
        let place = *places.entry(key(held)).or_insert_with(|| {
            groups.push(Group { first: held, count: 0 });
            groups.len() - 1
        });
        groups[place].count += 1;
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.bytes()));
    groups
}

fn quoted(name: &str) -> String {
    format!("“{name}”")
}

/// A module as a sentence names it.
fn place(module: &str) -> String {
    if module.is_empty() {
        "the root module".to_string()
    } else {
        format!("module {}", quoted(module))
    }
}

fn list(mut parts: Vec<String>) -> String {
    let Some(last) = parts.pop() else { return "nothing".to_string() };
    if parts.is_empty() { last } else { format!("{} and {last}", parts.join(", ")) }
}
