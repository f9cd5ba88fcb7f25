//! The rules of module statistics. Invariant: statistics that pass form one tree under one root, in
//! which every order of modules has each module at most once; no later sum of their figures
//! overflows.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use cranelift_entity::{EntityRef, PrimaryMap, SecondaryMap};

use crate::analysis::modules::{
    LARGEST, ModuleIndex, ModuleInfo, ModuleInfoError, ModuleOrders, ModuleStats, format,
};

/// Verifies statistics, given in any order, and the orders of their modules.
pub(super) fn verify(
    stats: Vec<ModuleStats>,
    orders: &ModuleOrders,
) -> Result<ModuleInfo, ModuleInfoError> {
    let mut given = by_name(stats)?;
    let index = pre_order(&orders.forward_pre, &given)?;
    let modules: PrimaryMap<ModuleIndex, ModuleStats> =
        orders.forward_pre.iter().filter_map(|name| given.remove(name)).collect();
    let parent = parents(&modules, &index)?;
    let forward_post = ordered(&orders.forward_post, &index, "fw_post_order")?;
    let backward_pre = ordered(&orders.backward_pre, &index, "bw_pre_order")?;
    let backward_post = ordered(&orders.backward_post, &index, "bw_post_order")?;
    present(&modules, &forward_post, "fw_post_order", |_| true)?;
    for (order, name) in [(&backward_pre, "bw_pre_order"), (&backward_post, "bw_post_order")] {
        present(&modules, order, name, |stats| !order.is_empty() && stats.backward.0 > 0.0)?;
    }
    let position = post_order_positions(&modules, &parent, &forward_post)?;
    let mut milliseconds = SecondaryMap::new();
    for (module, stats) in &modules {
        let times = [stats.forward, stats.backward, stats.checkpointing_seconds];
        milliseconds[module] = times.map(format::milliseconds);
    }
    Ok(ModuleInfo {
        modules,
        forward_post,
        backward_pre,
        backward_post,
        position,
        parent,
        milliseconds,
    })
}

/// Statistics by the names of their modules.
fn by_name(stats: Vec<ModuleStats>) -> Result<BTreeMap<String, ModuleStats>, ModuleInfoError> {
    let mut given = BTreeMap::new();
    for stats in stats {
        figures(&stats)?;
        match given.entry(stats.name.clone()) {
            Entry::Vacant(free) => drop(free.insert(stats)),
            Entry::Occupied(_) => {
                return Err(ModuleInfoError::Duplicate {
                    module: stats.name,
                    place: "`mod_stats`",
                });
            }
        }
    }
    Ok(given)
}

/// The index of each module: its place in the forward pre-order, which must have every module.
fn pre_order<'a>(
    names: &'a [String],
    given: &BTreeMap<String, ModuleStats>,
) -> Result<BTreeMap<&'a str, ModuleIndex>, ModuleInfoError> {
    let order = "fw_pre_order";
    let mut index: BTreeMap<&str, ModuleIndex> = BTreeMap::new();
    for (at, name) in names.iter().enumerate() {
        if !given.contains_key(name) {
            return Err(ModuleInfoError::NoStatistics { module: name.clone(), order });
        }
        if index.insert(name, ModuleIndex::new(at)).is_some() {
            return Err(ModuleInfoError::Duplicate { module: name.clone(), place: order });
        }
    }
    match given.keys().find(|name| !index.contains_key(name.as_str())) {
        Some(left) => Err(ModuleInfoError::NotOrdered { module: left.clone(), order }),
        None => Ok(index),
    }
}

/// The nearest module above each; all but the first are below another, which begins earlier.
fn parents(
    modules: &PrimaryMap<ModuleIndex, ModuleStats>,
    index: &BTreeMap<&str, ModuleIndex>,
) -> Result<SecondaryMap<ModuleIndex, Option<ModuleIndex>>, ModuleInfoError> {
    let Some(root) = modules.values().next() else { return Err(ModuleInfoError::Empty) };
    let mut parent = SecondaryMap::new();
    for (module, stats) in modules {
        let above = above(&stats.name).find_map(|ancestor| index.get_key_value(ancestor));
        match above {
            Some((&ancestor, &above)) if above > module => {
                return Err(ModuleInfoError::Cycle {
                    module: stats.name.clone(),
                    ancestor: ancestor.to_string(),
                    when: "before",
                    order: "fw_pre_order",
                });
            }
            None if module.index() > 0 => {
                return Err(ModuleInfoError::SecondRoot {
                    module: stats.name.clone(),
                    root: root.name.clone(),
                });
            }
            above => parent[module] = above.map(|(_, &above)| above),
        }
    }
    Ok(parent)
}

/// The position of each module in the forward post-order, in which it comes before its parent.
fn post_order_positions(
    modules: &PrimaryMap<ModuleIndex, ModuleStats>,
    parent: &SecondaryMap<ModuleIndex, Option<ModuleIndex>>,
    forward_post: &[ModuleIndex],
) -> Result<SecondaryMap<ModuleIndex, u32>, ModuleInfoError> {
    let mut position = SecondaryMap::new();
    for (at, &module) in (0..).zip(forward_post) {
        position[module] = at;
    }
    for (module, stats) in modules {
        if let Some(above) = parent[module].filter(|&above| position[above] < position[module]) {
            return Err(ModuleInfoError::Cycle {
                module: stats.name.clone(),
                ancestor: modules[above].name.clone(),
                when: "after",
                order: "fw_post_order",
            });
        }
    }
    Ok(position)
}

/// The names that may contain `name`, nearest first: its prefixes of whole components.
fn above(name: &str) -> impl Iterator<Item = &str> {
    name.rmatch_indices('.').map(|(at, _)| &name[..at])
}

/// Converts an order to indices.
fn ordered(
    names: &[String],
    index: &BTreeMap<&str, ModuleIndex>,
    order: &'static str,
) -> Result<Vec<ModuleIndex>, ModuleInfoError> {
    let mut seen: SecondaryMap<ModuleIndex, bool> = SecondaryMap::new();
    let place = |name: &String| {
        let &module = index
            .get(name.as_str())
            .ok_or_else(|| ModuleInfoError::NoStatistics { module: name.clone(), order })?;
        if std::mem::replace(&mut seen[module], true) {
            return Err(ModuleInfoError::Duplicate { module: name.clone(), place: order });
        }
        Ok(module)
    };
    names.iter().map(place).collect()
}

/// Refuses an order that lacks a module that must be there.
fn present(
    modules: &PrimaryMap<ModuleIndex, ModuleStats>,
    order: &[ModuleIndex],
    name: &'static str,
    must: impl Fn(&ModuleStats) -> bool,
) -> Result<(), ModuleInfoError> {
    let mut seen: SecondaryMap<ModuleIndex, bool> = SecondaryMap::new();
    order.iter().for_each(|&module| seen[module] = true);
    match modules.iter().find(|&(module, stats)| must(stats) && !seen[module]) {
        Some((_, stats)) => {
            Err(ModuleInfoError::NotOrdered { module: stats.name.clone(), order: name })
        }
        None => Ok(()),
    }
}

/// Refuses names, figures and curves that are invalid.
fn figures(stats: &ModuleStats) -> Result<(), ModuleInfoError> {
    if stats.name.split('.').any(str::is_empty) {
        return Err(ModuleInfoError::Name { module: stats.name.clone() });
    }
    let refuse = |field, found: String, expected| {
        Err(ModuleInfoError::Figure { module: stats.name.clone(), field, found, expected })
    };
    let bytes = [
        ("param_per_module", stats.parameters),
        ("grad_per_module", stats.gradients),
        ("grad_total", stats.total_gradients),
        ("act_fw_per_module", stats.forward_activations),
        ("act_bw_per_module", stats.backward_activations),
        ("act_grad_per_module", stats.activation_gradients),
        ("act_total", stats.total_activations),
        ("input_per_module", stats.input),
        ("output_per_module", stats.output),
        ("sac_memory", stats.checkpointing_bytes),
    ];
    if let Some((field, bytes)) = bytes.into_iter().find(|&(_, bytes)| bytes > LARGEST) {
        return refuse(field, bytes.0.to_string(), "at most 16 TiB");
    }
    let seconds = [
        ("fw_runtime_per_module", stats.forward),
        ("bw_runtime_per_module", stats.backward),
        ("sac_runtime", stats.checkpointing_seconds),
    ];
    if let Some((field, seconds)) =
        seconds.into_iter().find(|(_, seconds)| !(0.0..=1e9).contains(&seconds.0))
    {
        return refuse(field, format!("{} s", seconds.0), "a time from 0 to 1e9 seconds");
    }
    let curve = &stats.tradeoff;
    let slopes = curve.segments.iter().map(|segment| ("slopes", segment.slope));
    let intercepts = curve.segments.iter().map(|segment| ("intercepts", segment.intercept));
    if let Some((field, found)) = slopes.chain(intercepts).find(|(_, x)| !(-1e9..=1e9).contains(x))
    {
        return refuse(field, found.to_string(), "a number of at most 1e9 either way");
    }
    let breakpoints = curve.breakpoints.iter().map(|&at| ("breakpoints", at));
    let points = curve.points.iter().flat_map(|&(x, y)| [x, y]).map(|x| ("tradeoff_curve", x));
    if let Some((field, found)) = breakpoints.chain(points).find(|(_, x)| !(0.0..=1e9).contains(x))
    {
        return refuse(field, found.to_string(), "a share from 0 to 1e9");
    }
    let (segments, found) = (curve.segments.len(), curve.breakpoints.len());
    if found > 0 && found != segments + 1 {
        let (what, expected) = ("breakpoints", segments + 1);
        return Err(ModuleInfoError::Curve {
            module: stats.name.clone(),
            segments,
            found,
            what,
            expected,
        });
    }
    Ok(())
}
