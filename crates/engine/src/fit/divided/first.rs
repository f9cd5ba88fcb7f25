//! First plans of a step as it is and in chunks, each for a small part of the effort. Invariant:
//! none is made that cannot be better than what is there; if nothing fits, what needs least is
//! tried whatever the time.

use tightfit::effort::Effort;
use tightfit::graph::Graph;
use tightfit::profile::Profile;
use tightfit::split::Parts;
use tightfit::units::{Bytes, Seconds};

use crate::fit::divided::{Divided, Division, Search};

/// The part of the effort for a first plan.
const FIRST: f64 = 0.06;

/// The same where little fits: in chunks if the smallest plan is requested, and with layers in
/// chunks.
const FIRST_LONG: f64 = 0.25;

/// The most seconds of a first plan, however long the search may take.
const FIRST_SECONDS: f64 = 5.0;

/// The first plans of a step as it is and in chunks.
pub(super) struct First<'a> {
    pub search: Search<'a>,
    division: Division<'a>,
    /// How much longer measured calls take than their rates say.
    measured: f64,
    /// What is to be planned.
    forms: Vec<Form>,
    pub planned: Vec<Divided>,
    /// A budget that every plan of any form needs.
    pub least: Bytes,
    /// What no plan can do without, and the same if there was no time to try all forms.
    resting: Bytes,
    pub untried: Option<Bytes>,
    /// Those for which it was too late.
    late: Vec<Form>,
}

impl<'a> First<'a> {
    /// None yet, of a step as it is, with what it costs.
    pub fn of(
        search: Search<'a>,
        division: Division<'a>,
        (graph, profile): (Graph, Profile),
    ) -> First<'a> {
        let measured = profile.total(&graph.compute_nodes()).0 / search.rates(&graph).0;
        let least = search.least(&graph);
        let resting = graph.static_bytes();
        let forms = vec![Form { parts: Parts::WHOLE, graph, profile: Some(profile), least }];
        First {
            search,
            division,
            measured,
            forms,
            planned: Vec::new(),
            least,
            resting,
            untried: None,
            late: Vec::new(),
        }
    }

    /// Plans what is yet to be planned, and the step in these parts, each for a part of the effort,
    /// unless it cannot be better than what is there. Whether it can be divided so.
    pub fn plan(&mut self, all: &[Parts]) -> bool {
        let mut is_made = false;
        for &parts in all {
            // Whether nothing fits depends on all forms.
            if self.search.is_smallest() && !self.planned.is_empty() && self.search.is_late() {
                self.untried = Some(self.resting);
                continue;
            }
            let Some(graph) = (self.division.graph)(parts) else { continue };
            // There may not be that many blocks of rows.
            let planned = self.planned.iter().map(|known| &known.graph);
            let mut known = planned.chain(self.forms.iter().map(|form| &form.graph));
            if known.all(|known| known.hash() != graph.hash()) {
                let least = self.search.least(&graph);
                self.forms.push(Form { parts, graph, profile: None, least });
                is_made = true;
            }
        }
        if self.search.is_smallest() {
            // Where least is needed, least will be reached; often that is less than others need.
            self.forms.sort_by_key(|form| (form.parts != Parts::WHOLE, form.least));
        }
        for form in std::mem::take(&mut self.forms) {
            self.least = self.least.min(form.least);
            self.plan_form(form);
        }
        is_made
    }

    /// Whether nothing fits so far.
    pub fn has_none(&self) -> bool {
        self.planned.iter().all(|known| known.planned.is_err())
    }

    /// Feasibility comes first: if nothing fits, plans the form that needs least of those for which
    /// it was too late.
    pub fn plan_late(&mut self) {
        if self.has_none()
            && let Some(form) = std::mem::take(&mut self.late).into_iter().min_by_key(|it| it.least)
        {
            self.plan_now(form);
        }
    }

    /// Plans one form, unless it cannot be better than what is there, or it is too late.
    fn plan_form(&mut self, form: Form) {
        let search = &self.search;
        let best = self.planned.iter_mut().min_by(|one, other| search.compare(one, other));
        if let Some(best) = best {
            // Rates say what measuring would be wasted on.
            let at_least = Seconds(search.rates(&form.graph).0 * self.measured);
            if !search.can_be_better(at_least, best) || search.needs_more(&form.graph, best) {
                return;
            }
            if search.is_late() {
                best.admit_any(form.least);
                self.late.push(form);
                return;
            }
        }
        self.plan_now(form);
    }

    fn plan_now(&mut self, Form { parts, graph, profile, .. }: Form) {
        let task = self.search.task;
        let search = &mut self.search;
        let is_long = search.is_smallest() && parts != Parts::WHOLE || parts.layers > 1;
        let share = if is_long { FIRST_LONG } else { FIRST };
        let before = (task.effort.clock)().0;
        let profile = profile.unwrap_or_else(|| (self.division.profile)(parts, &graph));
        search.start.0 += (task.effort.clock)().0 - before;
        let calls = profile.total(&graph.compute_nodes());
        if self.planned.iter().all(|known| search.can_be_better(calls, known)) {
            let effort = first_effort(task.effort, share);
            self.planned.push(search.plan(parts, (graph, profile), effort));
        }
    }
}

/// The effort for a first plan.
fn first_effort(effort: Effort<'_>, share: f64) -> Effort<'_> {
    let part = effort.part(share);
    let is_timed = part.deadline.0.is_finite();
    let deadline = if is_timed { part.deadline.0.min(FIRST_SECONDS) } else { part.deadline.0 };
    Effort { deadline: Seconds(deadline), ..part }
}

/// A step in some parts, before it is planned.
struct Form {
    parts: Parts,
    graph: Graph,
    /// What it costs, if that is known.
    profile: Option<Profile>,
    /// A budget that every plan of it needs.
    least: Bytes,
}
