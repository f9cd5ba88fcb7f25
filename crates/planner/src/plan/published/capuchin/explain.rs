//! Why Capuchin recomputes what it does: the candidates before the first choice, and every choice
//! with its savings, as simulated. Invariant: the choices are made by the rule that plans, so an
//! explanation of a plan's runs ends with these runs and their peak.

use crate::effort::{Effort, Meter};
use crate::graph::Graph;
use crate::id::NodeId;
use crate::plan::Instance;
use crate::plan::published::capuchin::msps::{Candidates, Choosing, Chosen, Figures};
use crate::plan::published::capuchin::ours::Greedy;
use crate::plan::published::capuchin::published::{End, PredictedSavings};
use crate::plan::rematerialize::Retention;
use crate::plan::simulate;
use crate::profile::Profile;
use crate::units::{Bytes, Seconds};

/// Which rule chooses, and when it stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Ours: until the simulated peak fits.
    Ours {
        /// The budget.
        budget: Bytes,
    },
    /// The published one: until the predicted savings cover the need.
    Published {
        /// The unplanned peak less the budget.
        need: Bytes,
    },
}

/// A candidate before the first choice.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The node.
    pub node: NodeId,
    /// Bytes that are freed when it is dropped.
    pub bytes: Bytes,
    /// Candidates that it is made from, in program order.
    pub activation_sources: Vec<NodeId>,
    /// Placeholders that it is made from, in program order.
    pub parameter_sources: Vec<NodeId>,
    /// Other nodes that run again with it, in program order.
    pub other_sources: Vec<NodeId>,
    /// Last forward node that reads it.
    pub last_forward_access: NodeId,
    /// First backward node that reads it.
    pub first_backward_access: NodeId,
    /// Its cost and benefit.
    pub figures: Figures,
}

/// One choice.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The candidate that is chosen.
    pub node: NodeId,
    /// Its bytes.
    pub bytes: Bytes,
    /// Its figures, after the choices before.
    pub figures: Figures,
    /// How it is dropped.
    pub retention: Retention,
    /// The published rule only: bytes still to be saved after this choice, as predicted.
    pub remaining: Option<Bytes>,
    /// The published rule only: the peak after this choice, as predicted.
    pub predicted: Option<Bytes>,
    /// The peak before, simulated.
    pub peak_before: Bytes,
    /// The peak after, simulated.
    pub peak: Bytes,
    /// Seconds of the whole step after this choice.
    pub step: Seconds,
    /// Open candidates whose sources or executions the choice changes, with their figures after it,
    /// in program order.
    pub changed: Vec<(NodeId, Figures)>,
}

/// All choices of a rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The peak of the order that the planner was given, simulated.
    pub unplanned_peak: Bytes,
    /// Seconds of the step in that order.
    pub unplanned_step: Seconds,
    /// All candidates, in program order.
    pub candidates: Vec<Candidate>,
    /// The choices, in their order.
    pub choices: Vec<Choice>,
    /// The published rule only: the outcome for the chosen nodes, in the order of the choices.
    pub ends: Vec<End>,
    /// The sequence that results.
    pub runs: Vec<NodeId>,
}

impl Explanation {
    /// The peak after the last choice, simulated.
    pub fn peak(&self) -> Bytes {
        self.choices.last().map_or(self.unplanned_peak, |choice| choice.peak)
    }
}

/// The choices of a rule over `order`: as many as it takes to make the sequence `shown` or, without
/// one, as many as the rule itself makes.
pub fn explain(instance: Instance<'_>, rule: Rule, shown: Option<&[NodeId]>) -> Explanation {
    let Instance { graph, profile, order } = instance;
    let step = Step { graph, profile, order };
    let effort = Effort::default();
    let mut meter = Meter::new(&effort);
    match rule {
        Rule::Ours { budget } => {
            let ends_at = |now: &Now| match shown {
                Some(shown) => now.runs == shown,
                None => now.peak <= budget,
            };
            let mut greedy = Greedy::new(instance, &mut meter);
            follow(&step, &mut greedy, None, ends_at, &mut meter)
        }
        Rule::Published { need } => {
            let mut savings = PredictedSavings::new(instance, &mut meter);
            let ends_at =
                |now: &Now| now.saved >= need && shown.is_none_or(|shown| now.runs == shown);
            let explanation = follow(&step, &mut savings, Some(need), ends_at, &mut meter);
            Explanation { ends: savings.ends(), ..explanation }
        }
    }
}

/// The step that is explained.
struct Step<'a> {
    graph: &'a Graph,
    profile: &'a Profile,
    order: &'a [NodeId],
}

/// The state after some of the choices.
struct Now {
    runs: Vec<NodeId>,
    /// Bytes of the chosen candidates.
    saved: Bytes,
    peak: Bytes,
    seconds: Seconds,
}

/// Lets a rule choose to the end, and records its choices; given a need, its predictions as well.
fn follow(
    step: &Step<'_>,
    rule: &mut impl Choosing,
    need: Option<Bytes>,
    ends_at: impl Fn(&Now) -> bool,
    meter: &mut Meter<'_>,
) -> Explanation {
    let now = |runs: Vec<NodeId>, saved| {
        let simulation = simulate(step.graph, step.profile, &(&runs).into());
        Now { runs, saved, peak: simulation.curve.peak, seconds: simulation.seconds }
    };
    let mut before = now(step.order.to_vec(), Bytes::ZERO);
    let (unplanned_peak, unplanned_step) = (before.peak, before.seconds);
    let candidates = table(rule.candidates());
    let mut choices = Vec::new();
    while !ends_at(&before) {
        let Some(Chosen { node, figures, retention, changed }) = rule.choose(meter) else { break };
        let bytes = rule.candidates().candidate(node).bytes;
        let after = now(rule.runs(), before.saved + bytes);
        let figures_of = |node| (node, rule.candidates().figures(node));
        choices.push(Choice {
            node,
            bytes,
            figures,
            retention,
            remaining: need.map(|need| need.saturating_sub(after.saved)),
            predicted: need.map(|_| unplanned_peak.saturating_sub(after.saved)),
            peak_before: before.peak,
            peak: after.peak,
            step: after.seconds,
            changed: changed.into_iter().map(figures_of).collect(),
        });
        before = after;
    }
    let (ends, runs) = (Vec::new(), before.runs);
    Explanation { unplanned_peak, unplanned_step, candidates, choices, ends, runs }
}

/// All candidates, in program order.
fn table(candidates: &Candidates<'_>) -> Vec<Candidate> {
    let row = |&node: &NodeId| {
        let state = candidates.candidate(node);
        Candidate {
            node,
            bytes: state.bytes,
            activation_sources: state.activation_sources.iter().copied().collect(),
            parameter_sources: state.parameter_sources.iter().copied().collect(),
            other_sources: state.other_sources.iter().copied().collect(),
            last_forward_access: state.last_forward_access,
            first_backward_access: state.first_backward_access,
            figures: candidates.figures(node),
        }
    };
    candidates.open.iter().map(row).collect()
}
