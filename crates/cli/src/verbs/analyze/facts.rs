//! All that is known of an unplanned step, as every output of the verb shows it. Invariant: a node
//! is listed under the module that it belongs to, and a filter keeps a module with everything below
//! it, by whole path components.

use std::sync::Arc;

use thiserror::Error;
use tightfit::analysis::modules::{ModuleIndex, Parameters, parameters};
use tightfit::analysis::{
    AccessTable, Dataflow, MemoryCurve, Operator, PeakInterval, access_profile, dataflow, operators,
};
use tightfit::exit::{Coded, Exit};
use tightfit::graph::{Graph, Phase};
use tightfit::id::NodeId;
use tightfit::machine::Machine;
use tightfit::plan::{LiveTensor, live_tensors};
use tightfit::profile::Profile;
use tightfit::units::{Bytes, Seconds};
use tightfit_engine::{Budget, BudgetError, Reserve};

use crate::failure::Result;
use crate::input;
use crate::values::BelowReserve;

/// What is requested, but does not exist.
#[derive(Debug, Error)]
pub enum Refused {
    /// No module has this path.
    #[error("there is no module `{name}`; {place} has {}", some(below))]
    Module {
        /// The name that was requested.
        name: String,
        /// The lowest existing module on the way to it.
        place: String,
        /// The modules in that one.
        below: Vec<String>,
    },
    /// The smallest budget is for verbs that plan.
    #[error(
        "this verb takes no `min`, which is the smallest budget that one device is planned into; \
         write bytes, 320MiB, 2.5GB or 60%"
    )]
    Smallest,
}

/// A list in words, cut off so that no message is longer than a screen.
fn some(names: &[String]) -> String {
    const MOST: usize = 24;
    let list = names.iter().take(MOST).map(|name| format!("`{name}`")).collect::<Vec<_>>();
    match names.len() {
        0 => "no modules in it".to_string(),
        count if count > MOST => format!("{} and {} more", list.join(", "), count - MOST),
        _ => list.join(", "),
    }
}

/// A budget against which the step is held.
#[derive(Clone, Copy)]
pub struct Limit {
    /// The whole budget.
    pub budget: Bytes,
    /// The part of it that is not the slab's: the process itself, and what products pack.
    pub reserve: Reserve,
}

/// Results of analyses of a step, in its own order.
pub struct Facts {
    /// The step.
    pub graph: Arc<Graph>,
    /// Where it would run.
    pub machine: Machine,
    /// The costs of its nodes there.
    pub profile: Profile,
    /// The nodes that run.
    pub order: Vec<NodeId>,
    /// Where the bytes come from.
    pub flow: Dataflow,
    /// When nodes run, and when their outputs are accessed.
    pub access: AccessTable,
    /// Which module parameters belong to.
    pub parameters: Parameters,
    /// Forward nodes with the backward nodes that differentiate them.
    pub operators: Vec<Operator>,
    /// The budget against which the step is held.
    pub limit: Option<Limit>,
    /// Where more than that is held, or, without a limit, the peak.
    pub intervals: Vec<PeakInterval>,
    /// The module whose rows are requested, with everything below it.
    pub within: ModuleIndex,
}

impl Facts {
    /// Analyzes a step, against a budget if there is one; `within` is the module to show.
    pub fn new(
        graph: Arc<Graph>,
        machine: Machine,
        budget: Option<Budget>,
        within: Option<&str>,
    ) -> Result<Facts> {
        if budget == Some(Budget::Smallest) {
            return Err(Refused::Smallest.into());
        }
        let profile = input::profile(&graph, &machine).without_reuse();
        let order = graph.compute_nodes();
        let flow = dataflow(&graph, &profile);
        let within = module(&flow, within.unwrap_or_default())?;
        let peak = flow.curve.peak;
        let reserve = tightfit_engine::reserve(&graph, &machine);
        let limit = match budget.and_then(|budget| budget.bytes(peak, reserve)) {
            None => None,
            Some(Bytes::ZERO) => return Err(BudgetError::Zero.into()),
            Some(budget) if budget <= reserve.total() => {
                return Err(BelowReserve { budget, reserve }.into());
            }
            Some(budget) => Some(Limit { budget, reserve }),
        };
        let slab = limit.map(|limit| limit.budget - limit.reserve.total());
        let intervals = flow.curve.above(slab.unwrap_or(peak.saturating_sub(Bytes(1))));
        Ok(Facts {
            access: access_profile(&graph, &profile, &order, &flow.curve, slab),
            parameters: parameters(&graph, &flow),
            operators: operators(&graph, &profile, &flow),
            graph,
            machine,
            profile,
            order,
            flow,
            limit,
            intervals,
            within,
        })
    }

    /// Bytes held over the step.
    pub fn curve(&self) -> &MemoryCurve {
        &self.flow.curve
    }

    /// The name of a node.
    pub fn name(&self, node: NodeId) -> &str {
        &self.graph.nodes()[node].name
    }

    /// The path of the module that a node belongs to.
    pub fn module(&self, node: NodeId) -> &str {
        &self.flow.tree.branches()[self.parameters.module[node]].path
    }

    /// Whether a node's row is requested.
    pub fn is_shown(&self, node: NodeId) -> bool {
        self.flow.tree.contains(self.within, self.parameters.module[node])
    }

    /// The requested modules, in forward pre-order, down to `depth` levels.
    pub fn modules(&self, depth: usize) -> impl Iterator<Item = ModuleIndex> + '_ {
        let branches = self.flow.tree.branches();
        let top = branches[self.within].depth as usize;
        branches.keys().filter(move |&module| {
            self.flow.tree.contains(self.within, module)
                && branches[module].depth as usize - top <= depth
        })
    }

    /// What is alive at the peak, largest first, with the modules that it belongs to.
    pub fn live(&self) -> Vec<LiveTensor> {
        let unplanned = (&self.order).into();
        let mut live = live_tensors(&self.graph, &self.profile, &unplanned, self.curve().at);
        let owned: std::collections::BTreeMap<&str, &str> = self
            .graph
            .nodes()
            .iter()
            .filter(|(_, node)| node.phase.is_persistent())
            .map(|(id, node)| (node.parameter.as_deref().unwrap_or(&node.name), self.module(id)))
            .collect();
        let persistent = |phase| Phase::from_name(phase).is_some_and(|phase| phase.is_persistent());
        for tensor in live.iter_mut().filter(|tensor| persistent(tensor.phase)) {
            if let Some(module) = owned.get(tensor.name.as_str()) {
                tensor.module = module.to_string();
            }
        }
        let within = &self.flow.tree.branches()[self.within].path;
        live.retain(|tensor| match tensor.module.strip_prefix(within.as_str()) {
            Some(rest) => within.is_empty() || rest.is_empty() || rest.starts_with('.'),
            None => false,
        });
        live
    }

    /// Seconds of the nodes that run.
    pub fn seconds(&self) -> Seconds {
        self.profile.total(&self.order)
    }
}

/// The module with this path.
fn module(flow: &Dataflow, name: &str) -> Result<ModuleIndex, Refused> {
    let branches = flow.tree.branches();
    let mut at = flow.tree.root();
    for component in name.split('.').filter(|component| !component.is_empty()) {
        let last = |path: &str| path.rsplit('.').next().unwrap_or_default().to_string();
        let children = || branches.iter().filter(|(_, branch)| branch.parent == Some(at));
        let found = children().find(|(_, branch)| last(&branch.path) == component);
        at = found.map(|(module, _)| module).ok_or_else(|| Refused::Module {
            name: name.to_string(),
            place: match branches[at].path.as_str() {
                "" => "the model".to_string(),
                path => format!("`{path}`"),
            },
            below: children().map(|(_, branch)| last(&branch.path)).collect(),
        })?;
    }
    Ok(at)
}

impl Coded for Refused {
    fn exit(&self) -> Exit {
        match self {
            Refused::Module { .. } => Exit::Usage,
            Refused::Smallest => Exit::Budget,
        }
    }
}
