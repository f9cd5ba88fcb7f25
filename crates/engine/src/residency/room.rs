//! Space for an access, by the chosen policy and rules. Invariant: on success, what is wanted is on
//! the device, within the limit that is returned; on failure, the state is unspecified, and the
//! caller undoes all moves.

use tightfit::units::Bytes;

use super::error::ResidencyError;
use super::forecast::Forecast;
use super::id::BlockId;
use super::moves::Purpose;
use super::occupancy::Occupancy;
use super::settings::{Policy, ResidencyVariant, Settings};
use super::{ours, placing, prefetch, published};

/// Evicts what has to go for the wanted blocks, and brings them. Returns the bytes of the device
/// that chunks may take during the access.
///
/// # Errors
/// There is not enough space, or not in a row.
pub fn lay_out(
    settings: &Settings,
    occupancy: &mut Occupancy,
    forecast: &Forecast,
    wanted: &[BlockId],
) -> Result<Bytes, ResidencyError> {
    let absent = wanted.iter().filter(|&&block| !occupancy.is_on_device(block));
    let demand: u64 = absent.map(|&block| u64::from(occupancy.chunks(block))).sum();
    let region = settings.bytes(u64::from(settings.slots));
    let (evicted, limit) = match (settings.policy, settings.variant) {
        (Policy::Host, _) => (everything(occupancy), region),
        (Policy::Device, _) => (Vec::new(), region),
        (Policy::Auto, ResidencyVariant::Published) => {
            as_published(settings, occupancy, forecast, demand)?
        }
        (Policy::Auto, ResidencyVariant::Ours) => {
            let limit = limit(settings, forecast.non_model());
            let with = u64::from(occupancy.region.taken()).saturating_add(demand);
            let needed = with.saturating_sub(limit);
            let time = forecast.order().map(|_| forecast.time());
            let chosen = ours::farthest(occupancy, needed, time).map_err(|freed| {
                let (needed, freed) = (settings.bytes(needed), settings.bytes(freed));
                ResidencyError::NotEnough { needed, freed }
            })?;
            (chosen, settings.bytes(limit))
        }
    };
    for block in evicted {
        occupancy.evict(block, Purpose::Demand);
    }
    let free = u64::from(occupancy.region.slots() - occupancy.region.taken());
    if demand > free {
        let needed = settings.bytes(demand - free);
        return Err(ResidencyError::NotEnough { needed, freed: Bytes::ZERO });
    }
    placing::place(occupancy, wanted, forecast.time())?;
    Ok(limit)
}

/// Brings blocks ahead of later accesses, if the rules do so. `current` is what the access that is
/// about to compute uses, and `now` its limit.
pub fn look_ahead(
    settings: &Settings,
    occupancy: &mut Occupancy,
    forecast: &Forecast,
    current: &[BlockId],
    now: Bytes,
) {
    let does = settings.prefetch > Bytes::ZERO
        && settings.policy == Policy::Auto
        && settings.variant == ResidencyVariant::Ours;
    if does {
        let now = now.0 / settings.chunk.0;
        let then = |non_model| limit(settings, Some(non_model));
        let rule = (settings.ahead, settings.prefetch);
        prefetch::bring_ahead(occupancy, forecast, current, rule, now, then);
    }
}

/// Number of slots that chunks may take during an access with this many non-model bytes, if known.
fn limit(settings: &Settings, non_model: Option<Bytes>) -> u64 {
    let unknown = settings.capacity.0 as f64 * settings.warm_up_non_model;
    let non_model = non_model.unwrap_or(Bytes(unknown.ceil() as u64));
    let bytes = settings.capacity.saturating_sub(non_model);
    (bytes.0 / settings.chunk.0).min(u64::from(settings.slots))
}

/// Everything that nothing computes with, in the order of registration.
fn everything(occupancy: &mut Occupancy) -> Vec<BlockId> {
    let mut all = Vec::new();
    while let Some((block, _)) = occupancy.farthest.pop() {
        all.push(block);
    }
    all.sort_unstable();
    all
}

/// What the published policy evicts, and its budget.
fn as_published(
    settings: &Settings,
    occupancy: &Occupancy,
    forecast: &Forecast,
    demand: u64,
) -> Result<(Vec<BlockId>, Bytes), ResidencyError> {
    let mut candidates: Vec<BlockId> = occupancy
        .blocks()
        .filter(|(_, standing)| standing.slot.is_some() && standing.users == 0 && !standing.wanted)
        .map(|(block, _)| block)
        .collect();
    let budget = match forecast.order() {
        Some(order) => {
            let position = forecast.position();
            candidates = published::by_next_use(order, position, &candidates);
            let share = settings.steady_capacity;
            published::steady_budget(settings.capacity, share, order.non_model(position))
        }
        None => published::warm_up_budget(settings.capacity, settings.warm_up_non_model),
    };
    let sizes = candidates.iter().map(|&block| (block, occupancy.packing.footprint(block)));
    let used = settings.bytes(u64::from(occupancy.region.taken()));
    let evicted = published::evictions(sizes, budget, used, settings.bytes(demand))?;
    Ok((evicted, Bytes(budget as u64)))
}
