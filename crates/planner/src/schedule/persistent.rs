//! Where parameters, buffers and optimizer state lie. Invariant: persistent placeholders come first
//! in the slab, in the order of the graph, unless another schedule has put them somewhere already;
//! there they stay.

use std::collections::BTreeMap;

use cranelift_entity::PrimaryMap;

use crate::graph::Graph;
use crate::id::{BufferId, NodeId};
use crate::schedule::instruction::{ALIGNMENT, Buffer, Schedule};
use crate::schedule::layout::Lifetime;
use crate::units::Bytes;

/// What another schedule keeps in the slab between steps: the addresses of its persistent
/// placeholders, by the name that they have in the model.
#[derive(Clone, Debug, Default)]
pub struct Residents {
    /// Address of each parameter, buffer and state.
    pub addresses: BTreeMap<String, u64>,
    /// First byte behind them all.
    pub end: u64,
}

impl Residents {
    /// Nothing is in the slab yet.
    pub const fn none() -> &'static Residents {
        const NONE: &Residents = &Residents { addresses: BTreeMap::new(), end: 0 };
        NONE
    }

    /// The residents of a schedule.
    pub fn of(graph: &Graph, schedule: &Schedule) -> Residents {
        let mut residents = Residents::default();
        for &(node, buffer) in &schedule.placeholders {
            let placeholder = &graph.nodes()[node];
            if let Some(name) =
                placeholder.parameter.as_ref().filter(|_| placeholder.phase.is_persistent())
            {
                let Buffer { bytes, address, .. } = schedule.buffers[buffer];
                residents.addresses.insert(name.clone(), address);
                residents.end = residents.end.max((Bytes(address) + bytes.align_up(ALIGNMENT)).0);
            }
        }
        residents
    }
}

/// The addresses of persistent placeholders' buffers, and the first byte behind them all.
pub(super) fn persistent_addresses(
    graph: &Graph,
    lifetimes: &PrimaryMap<BufferId, Lifetime>,
    placeholders: &[(NodeId, BufferId)],
    residents: &Residents,
) -> (Vec<Option<u64>>, u64) {
    let mut fixed: Vec<Option<u64>> = vec![None; lifetimes.len()];
    let mut floor = residents.end;
    for &(node, buffer) in placeholders {
        let placeholder = &graph.nodes()[node];
        if !placeholder.phase.is_persistent() {
            continue;
        }
        let name = placeholder.parameter.as_ref();
        let known = name.and_then(|name| residents.addresses.get(name)).copied();
        let address = known.unwrap_or(floor);
        if known.is_none() {
            floor += lifetimes[buffer].bytes.align_up(ALIGNMENT).0;
        }
        fixed[buffer.as_u32() as usize] = Some(address);
    }
    (fixed, floor)
}
