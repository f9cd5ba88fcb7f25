//! Which operators under a checkpointed module to save. Invariant: the optimum of a 0/1 knapsack
//! over groups of operators that can only be saved together.
//!
//! Source: PyTorch, `torch/distributed/_tools/sac_ilp.py`
//! (`get_optimal_checkpointing_policy_per_module`); the list of undominated fillings: Nemhauser and
//! Ullmann, "Discrete Dynamic Programming and Capital Allocation", 1969.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::analysis::DisjointSets;
use crate::analysis::modules::OperatorStats;
use crate::units::{Bytes, Seconds};

/// What to save under one module.
#[derive(Clone, Debug, PartialEq)]
pub struct OperatorPolicy {
    /// For each operator whether its output is kept; else it runs again.
    pub saved: Vec<bool>,
    /// Seconds of everything that runs again.
    pub recompute: Seconds,
    /// Bytes of everything that is kept.
    pub bytes: Bytes,
}

/// Why there is no policy.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The share of all bytes that may be saved is not between 0 and 1.
    #[error("a share of {share} of the bytes cannot be saved; give one from 0 to 1")]
    Share {
        /// The share that was given.
        share: f64,
    },
    /// More has to be saved than may be saved.
    #[error("{needed} have to be saved, and {capacity} may be; give a larger share")]
    Forced {
        /// The bytes of the outputs that cannot be made again.
        needed: Bytes,
        /// The bytes that the share allows.
        capacity: Bytes,
    },
}

/// The policy that recomputes least if at most `share` of all the operators' bytes are kept.
///
/// Views run again. An in-place operator is saved if the operator whose output it overwrites is;
/// one that overwrites something from outside is always saved. Random operators are saved together
/// or not at all, or always if `save_random`.
pub fn policy(
    operators: &[OperatorStats],
    save_random: bool,
    share: f64,
) -> Result<OperatorPolicy, PolicyError> {
    if !(0.0..=1.0).contains(&share) {
        return Err(PolicyError::Share { share });
    }
    let total: Bytes = operators.iter().map(|operator| operator.bytes).sum();
    let capacity = Bytes((share * total.0 as f64).ceil() as u64);
    let groups = groups(operators, save_random);
    let forced: Vec<&OperatorGroup> = groups.iter().filter(|group| group.forced).collect();
    let needed: Bytes = forced.iter().map(|group| group.bytes).sum();
    if needed > capacity {
        return Err(PolicyError::Forced { needed, capacity });
    }
    // Operators that take no bytes are saved in any case.
    let (free, weightless): (Vec<&OperatorGroup>, Vec<&OperatorGroup>) = groups
        .iter()
        .filter(|group| !group.forced && !group.is_view)
        .partition(|group| group.bytes > Bytes::ZERO);
    let mut saved = vec![false; operators.len()];
    for group in best(&free, capacity - needed).into_iter().chain(weightless).chain(forced) {
        group.operators.iter().for_each(|&at| saved[at] = true);
    }
    let sum = |kept: bool| {
        operators
            .iter()
            .zip(&saved)
            .filter(move |&(_, &saved)| saved == kept)
            .map(|(operator, _)| operator)
    };
    let (recompute, bytes) = (
        sum(false).map(|operator| operator.seconds).sum(),
        sum(true).map(|operator| operator.bytes).sum(),
    );
    Ok(OperatorPolicy { saved, recompute, bytes })
}

/// Operators that are saved together.
#[derive(Default)]
struct OperatorGroup {
    operators: Vec<usize>,
    seconds: f64,
    bytes: Bytes,
    forced: bool,
    is_view: bool,
}

/// The groups, by the first of their operators.
fn groups(operators: &[OperatorStats], save_random: bool) -> Vec<OperatorGroup> {
    let mut together = DisjointSets::new(operators.len());
    let random = operators.iter().position(|operator| operator.is_random);
    for (at, operator) in operators.iter().enumerate() {
        operator.in_place_of.into_iter().for_each(|parent| together.join(at, parent));
        if let Some(random) = random.filter(|_| operator.is_random && !save_random) {
            together.join(at, random);
        }
    }
    let mut groups: BTreeMap<usize, OperatorGroup> = BTreeMap::new();
    for (at, operator) in operators.iter().enumerate() {
        let group = groups.entry(together.head(at)).or_default();
        group.operators.push(at);
        group.seconds += operator.seconds.0;
        group.bytes += operator.bytes;
        group.forced |= operator.in_place_of == Some(at) || (operator.is_random && save_random);
        group.is_view |= operator.is_view;
    }
    groups.into_values().collect()
}

/// A way to fill the knapsack with some of the first groups.
#[derive(Clone, Copy)]
struct Filling {
    bytes: Bytes,
    seconds: f64,
    /// The last group in it, and the filling that it was added to.
    last: Option<(usize, usize)>,
}

/// The groups that take longest to run again and fit, out of groups that all take some bytes.
fn best<'a>(groups: &[&'a OperatorGroup], capacity: Bytes) -> Vec<&'a OperatorGroup> {
    let mut rising: Vec<&OperatorGroup> = groups.to_vec();
    // The longest per byte first; then a bound excludes all but few fillings.
    let per_byte = |group: &OperatorGroup| group.seconds / group.bytes.0 as f64;
    rising.sort_by(|a, b| per_byte(b).total_cmp(&per_byte(a)));
    // Most seconds that the groups from `from` on can add, fractions allowed.
    let bound = |from: usize, room: Bytes| {
        let mut room = room.0 as f64;
        let parts = rising[from..].iter().map(|group| {
            let part = (room / group.bytes.0 as f64).min(1.0);
            room -= part * group.bytes.0 as f64;
            part * group.seconds
        });
        parts.sum::<f64>()
    };
    let mut all = vec![Filling { bytes: Bytes::ZERO, seconds: 0.0, last: None }];
    let mut open = vec![0];
    for (at, group) in rising.iter().enumerate() {
        let reached = open.iter().map(|&filling: &usize| all[filling].seconds).fold(0.0, f64::max);
        let mut next = Vec::with_capacity(2 * open.len());
        for &filling in &open {
            let Filling { bytes, seconds, .. } = all[filling];
            next.push(filling);
            if bytes + group.bytes <= capacity {
                all.push(Filling {
                    bytes: bytes + group.bytes,
                    seconds: seconds + group.seconds,
                    last: Some((at, filling)),
                });
                next.push(all.len() - 1);
            }
        }
        next.sort_by(|&a, &b| {
            all[a].bytes.cmp(&all[b].bytes).then(all[b].seconds.total_cmp(&all[a].seconds))
        });
        let mut most = f64::NEG_INFINITY;
        next.retain(|&filling| {
            let Filling { bytes, seconds, .. } = all[filling];
            let unbeaten = seconds > most
                && seconds + bound(at + 1, capacity - bytes) >= reached * (1.0 - 1e-12);
            most = most.max(seconds);
            unbeaten
        });
        open = next;
    }
    let longest = open.into_iter().max_by(|&a, &b| all[a].seconds.total_cmp(&all[b].seconds));
    let mut chosen = Vec::new();
    let mut at = longest.and_then(|filling| all[filling].last);
    while let Some((group, before)) = at {
        chosen.push(rising[group]);
        at = all[before].last;
    }
    chosen
}
