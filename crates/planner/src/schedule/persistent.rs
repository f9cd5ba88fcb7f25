//! Where parameters, buffers and optimizer state lie. Invariant: those on the device when a step
//! begins come first in the slab, the ones that stay there throughout before the ones that leave in
//! between, and those below come first there; except that those which another schedule has placed
//! already stay where they are.

use std::collections::BTreeMap;

use cranelift_entity::SecondaryMap;

use crate::graph::Graph;
use crate::id::{BufferId, DEVICE, NodeId};
use crate::schedule::instruction::{ALIGNMENT, Schedule};
use crate::units::Bytes;

/// What another schedule keeps between steps: where its persistent placeholders lie when a step
/// begins, by their names in the model.
#[derive(Clone, Debug, Default)]
pub struct Residents {
    /// Address of each parameter, buffer and state that is on the device.
    pub addresses: BTreeMap<String, u64>,
    /// One past the last byte of all of them.
    pub end: u64,
    /// Address of each one in the tier below that is not on the device.
    pub below: BTreeMap<String, u64>,
    /// One past the last byte of those.
    pub end_below: u64,
}

impl Residents {
    /// Nothing is placed yet.
    pub const fn none() -> &'static Residents {
        const NONE: &Residents =
            &Residents { addresses: BTreeMap::new(), end: 0, below: BTreeMap::new(), end_below: 0 };
        NONE
    }

    /// The residents of a schedule. A storage on its way to the device when a step begins counts as
    /// being there.
    pub fn of(graph: &Graph, schedule: &Schedule) -> Residents {
        let mut residents = Residents::default();
        let mut arriving: BTreeMap<BufferId, BufferId> = BTreeMap::new();
        let take = |residents: &mut Residents, buffer: BufferId| {
            let lies = schedule.buffers[buffer];
            let end = (Bytes(lies.address) + lies.bytes.align_up(ALIGNMENT)).0;
            let most = match lies.tier {
                DEVICE => &mut residents.end,
                _ => &mut residents.end_below,
            };
            *most = (*most).max(end);
            lies
        };
        // A storage in flight has its place at both ends.
        for transfer in schedule.crossing() {
            let [from, to] = transfer.movement.buffers();
            if take(&mut residents, to).tier == DEVICE {
                arriving.insert(from, to);
            }
        }
        for &(node, buffer) in &schedule.placeholders {
            let placeholder = &graph.nodes()[node];
            let name = placeholder.parameter.as_ref();
            let Some(name) = name.filter(|_| placeholder.phase.is_persistent()) else { continue };
            take(&mut residents, buffer);
            let lies = schedule.buffers[*arriving.get(&buffer).unwrap_or(&buffer)];
            if lies.tier == DEVICE {
                residents.below.remove(name);
                residents.addresses.insert(name.clone(), lies.address);
            } else if !residents.addresses.contains_key(name) {
                residents.below.insert(name.clone(), lies.address);
            }
        }
        residents
    }
}

/// Given addresses, and one past the last byte.
pub(super) struct Fixed {
    pub addresses: SecondaryMap<BufferId, Option<u64>>,
    pub floor: u64,
}

/// The addresses of persistent placeholders on the device, those of `wrapped` buffers last and in
/// their order: these are not held all the time, so that others may lie in the same place. `bytes`
/// gives the size of each.
pub(super) fn on_device(
    graph: &Graph,
    placeholders: &[(NodeId, BufferId)],
    wrapped: &[BufferId],
    residents: &Residents,
    bytes: impl Fn(BufferId) -> Bytes,
) -> Fixed {
    let staying: Vec<_> =
        placeholders.iter().copied().filter(|(_, buffer)| !wrapped.contains(buffer)).collect();
    let mut fixed = fixed(graph, &staying, (&residents.addresses, residents.end), &bytes);
    let floor = fixed.floor;
    for &buffer in wrapped {
        if fixed.addresses[buffer].is_none() {
            fixed.addresses[buffer] = Some(fixed.floor);
            fixed.floor += bytes(buffer).0;
        }
    }
    Fixed { floor, ..fixed }
}

/// The addresses of persistent placeholders in the tier below.
pub(super) fn homes(
    graph: &Graph,
    placeholders: &[(NodeId, BufferId)],
    residents: &Residents,
    bytes: impl Fn(BufferId) -> Bytes,
) -> Fixed {
    fixed(graph, placeholders, (&residents.below, residents.end_below), &bytes)
}

/// Residents where they are, and the others one after another above their end.
fn fixed(
    graph: &Graph,
    placeholders: &[(NodeId, BufferId)],
    (known, end): (&BTreeMap<String, u64>, u64),
    bytes: &impl Fn(BufferId) -> Bytes,
) -> Fixed {
    let mut fixed = Fixed { addresses: SecondaryMap::new(), floor: end };
    for &(node, buffer) in placeholders {
        let name = graph.nodes()[node].parameter.as_ref();
        let address = name.and_then(|name| known.get(name)).copied().unwrap_or_else(|| {
            let address = fixed.floor;
            fixed.floor += bytes(buffer).0;
            address
        });
        fixed.addresses[buffer] = Some(address);
    }
    fixed
}
