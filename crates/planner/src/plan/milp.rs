//! Mixed integer programs: variables, rows, the objective, and the solver. Invariant: the solver is
//! named here and nowhere else; without a limit of seconds, the same program has the same answer on
//! every machine; and the caller goes on when time is up, whatever the solver does.
//!
//! The solver checks its own clock once in a thousand pivots, which may take seconds, and cannot be
//! interrupted. So it works on a thread of its own, is told the remaining time, and is abandoned
//! when time is up: it then ends at its next check of the clock, or with the process.

use std::collections::HashMap;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

#[cfg(feature = "highs")]
use good_lp::highs as solver;
use good_lp::solvers::SolutionStatus;
#[cfg(not(feature = "highs"))]
use good_lp::{
    Constraint, Expression, ProblemVariables, ResolutionError, Solution, SolverModel, Variable,
    VariableDefinition, WithMipGap, WithTimeLimit, microlp as solver, variable,
};

use crate::analysis::modules::ModuleInfo;
use crate::effort::{Effort, Meter};
use crate::units::{Bytes, Seconds};

/// The solver of this build.
pub const SOLVER: &str = if cfg!(feature = "highs") { "HiGHS" } else { "microlp" };

/// What is asked of a solver; by default the optimum, however long it takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SolverLimits {
    /// How far above the optimum an answer may be, as a share of it.
    pub gap: f64,
    /// Time that a plan may take, all of its programs together; absent: unlimited. The best answer
    /// by then need not be optimal, nor the same on every machine.
    pub seconds: Option<Seconds>,
}

impl SolverLimits {
    /// The effort of a plan, on the caller's clock.
    pub(super) fn effort<'a>(&self, clock: &'a (dyn Fn() -> Seconds + Sync)) -> Effort<'a> {
        let deadline = self.seconds.unwrap_or(Seconds(f64::INFINITY));
        Effort { deadline, clock, work: u64::MAX, ..Effort::default() }
    }
}

/// Time since an origin of its own, for plans that are not interrupted: the clock that the solver
/// has anyway.
pub(super) fn own_clock() -> impl Fn() -> Seconds + Sync {
    let start = Instant::now();
    move || Seconds(start.elapsed().as_secs_f64())
}

/// Gaps that are requested in turn when the solver fails with a smaller one.
const LARGER_GAPS: [f64; 7] = [0.0, 0.0, 0.0, 1e-4, 1e-3, 1e-2, 0.1];

/// The longest time limit that solvers accept, in seconds: thirty years.
const LONGEST: f64 = 1e9;
/// Fraction of the remaining time that the solver is told, so that its answer comes in time.
const TOLD: f64 = 0.9;
/// Time between checks of whether time is up while the solver works.
const LOOK: Duration = Duration::from_millis(5);
/// The gap of the coarse program that is solved first if time is limited. A program without
/// integers has no gap, and needs no coarse one.
pub const COARSE: f64 = 0.01;

/// What a program on modules counts as one byte and one second, so that its numbers are neither
/// large nor small.
pub struct Scale {
    pub bytes: f64,
    pub seconds: f64,
}

impl Scale {
    /// The baseline peakand a hundredth of the baseline's seconds.
    pub fn of(info: &ModuleInfo) -> Scale {
        let seconds = info.baseline_seconds().0 / 100.0;
        Scale {
            bytes: info.baseline_peak().0.max(1) as f64,
            seconds: if seconds > 0.0 { seconds } else { 1.0 },
        }
    }

    /// Bytes as the program counts them.
    pub fn bytes(&self, bytes: Bytes) -> f64 {
        bytes.0 as f64 / self.bytes
    }
}

/// What a plan's program minimises.
#[derive(Clone, Copy)]
pub enum Goal {
    /// Seconds, within a budget.
    Fastest(Bytes),
    /// The peak.
    Lowest,
}

impl Goal {
    /// The lowest peak is always sought exactly, whatever gap is accepted in seconds.
    pub fn gap(self, accepted: f64) -> f64 {
        match self {
            Goal::Fastest(_) => accepted,
            Goal::Lowest => 0.0,
        }
    }
}

/// Most times that a solver is asked, each time for less because its answer did not fit.
const MOST_ATTEMPTS: usize = 3;

/// An answer within a budget although the solver may exceed its rows by a tolerance: if its answer
/// takes more, it is asked again for that much less. `ask` answers for a target with a plan and the
/// bytes that it really takes; `None` if it has no answer, or none that fits.
pub fn within_tolerance<P, E>(
    budget: Bytes,
    mut ask: impl FnMut(Bytes) -> Result<Option<(P, Bytes)>, E>,
) -> Result<Option<P>, E> {
    let mut target = budget;
    for _ in 0..MOST_ATTEMPTS {
        match ask(target)? {
            None => return Ok(None),
            Some((plan, reached)) if reached <= budget => return Ok(Some(plan)),
            Some((_, reached)) => target = target.saturating_sub(reached - budget),
        }
    }
    Ok(None)
}

/// A mixed integer program under construction.
pub struct Milp {
    variables: ProblemVariables,
    added: Vec<Variable>,
    rows: Vec<Constraint>,
    /// The objective, which is minimised.
    pub objective: Expression,
}

impl Milp {
    pub fn new() -> Milp {
        let mut variables = ProblemVariables::new();
        // HiGHS has no answer to a program without variables, though there may be nothing to
        // decide.
        variables.add(variable().min(0.0).max(0.0));
        let objective = Expression::from(0.0);
        Milp { variables, added: Vec::new(), rows: Vec::new(), objective }
    }

    /// A variable that is 0 or 1.
    pub fn binary(&mut self) -> Variable {
        self.add(variable().binary())
    }

    /// A variable between two bounds.
    pub fn within(&mut self, least: f64, most: f64) -> Variable {
        self.add(variable().min(least).max(most))
    }

    fn add(&mut self, definition: VariableDefinition) -> Variable {
        let variable = self.variables.add(definition);
        self.added.push(variable);
        variable
    }

    pub fn row(&mut self, row: Constraint) {
        self.rows.push(row);
    }

    /// The minimum, up to a gap; `None` if nothing satisfies all rows; an error says why the solver
    /// has no answer.
    ///
    /// If time is limited, a coarse program is solved first, often in a hundredth of the time of
    /// the fine one; if the fine one proves nothing in half of the remaining time, the better of
    /// the two answers counts, with the gap that the coarse one proves. The time left after that is
    /// for the caller's next program.
    pub fn solve(self, gap: f64, meter: &Meter<'_>) -> Result<Option<MilpAnswer>, String> {
        if gap >= COARSE || meter.time_left().is_none() {
            return self.insist(gap, meter);
        }
        let Some(coarse) = self.insist(COARSE, meter)? else {
            return Ok(None);
        };
        let fine = match self.insist(gap, &meter.half()) {
            Ok(Some(fine)) if fine.gap.is_some_and(|gap| gap <= COARSE) => return Ok(Some(fine)),
            Ok(Some(fine)) => fine,
            Ok(None) | Err(_) => return Ok(Some(coarse)),
        };
        // Gaps are shares of the upper or of the lower bound; this covers both.
        let least = coarse.gap.map(|gap| coarse.minimum * (1.0 - gap));
        let best = if fine.minimum < coarse.minimum { fine } else { coarse };
        let gap =
            least.filter(|least| *least > 0.0).map(|least| (best.minimum - least) / best.minimum);
        Ok(Some(MilpAnswer { gap, ..best }))
    }

    /// A floating-point solver may run into a basis that it cannot factor; it is then given the
    /// same program with the rows in another order, which takes it another way, and with a larger
    /// gap, which ends it sooner.
    fn insist(&self, accepted: f64, meter: &Meter<'_>) -> Result<Option<MilpAnswer>, String> {
        let mut failed = TIME_IS_UP.to_string();
        for (turn, least) in LARGER_GAPS.into_iter().enumerate() {
            if meter.is_late() {
                break;
            }
            let mut rows = self.rows.clone();
            let middle = rows.len() * turn / LARGER_GAPS.len();
            rows.rotate_left(middle);
            let gap = accepted.max(least);
            match self.attempt(rows, gap, meter) {
                Ok((is_proven, values)) => {
                    let minimum = self.objective.eval_with(&values);
                    let gap = is_proven.then_some(gap);
                    return Ok(Some(MilpAnswer { gap, minimum, values }));
                }
                Err(Failure::Infeasible) => return Ok(None),
                Err(Failure::Unanswered(reason)) => failed = reason,
            }
        }
        Err(failed)
    }

    /// Asks the solver once: whether it proved its answer, and the values of all variables.
    fn attempt(
        &self,
        rows: Vec<Constraint>,
        gap: f64,
        meter: &Meter<'_>,
    ) -> Result<(bool, HashMap<Variable, f64>), Failure> {
        let mut model = self.variables.clone().minimise(self.objective.clone()).using(solver);
        model = model
            .with_mip_gap(gap as f32)
            .map_err(|error| Failure::Unanswered(error.to_string()))?;
        if let Some(Seconds(seconds)) = meter.time_left() {
            model = model.with_time_limit((seconds * TOLD).clamp(0.0, LONGEST));
        }
        for row in rows {
            model.add_constraint(row);
        }
        let (answer, answered) = sync_channel(1);
        let added = self.added.clone();
        let work = move || {
            let solved = model.solve().map(|solution| {
                let is_proven = !matches!(solution.status(), SolutionStatus::TimeLimit);
                let value = |variable| (variable, solution.value(variable));
                (is_proven, added.into_iter().map(value).collect())
            });
            // If the caller no longer waits, the answer is dropped.
            answer.send(solved).unwrap_or_default();
        };
        let failed = |error: std::io::Error| Failure::Unanswered(error.to_string());
        thread::Builder::new().name("solver".to_string()).spawn(work).map_err(failed)?;
        loop {
            match answered.recv_timeout(LOOK) {
                Ok(solved) => return solved.map_err(Failure::from),
                Err(RecvTimeoutError::Timeout) if meter.is_late() => {
                    return Err(Failure::Unanswered(TIME_IS_UP.to_string()));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let stopped = "it stopped without an answer";
                    return Err(Failure::Unanswered(stopped.to_string()));
                }
            }
        }
    }
}

/// Why the solver has no values.
enum Failure {
    /// Nothing satisfies all rows.
    Infeasible,
    /// The solver did not decide that; the reason.
    Unanswered(String),
}

impl From<ResolutionError> for Failure {
    fn from(error: ResolutionError) -> Failure {
        match error {
            ResolutionError::Infeasible => Failure::Infeasible,
            error => Failure::Unanswered(error.to_string()),
        }
    }
}

/// Why there is no answer when time is up.
const TIME_IS_UP: &str = "time is up";

/// Values of the variables.
pub struct MilpAnswer {
    /// How far above the optimum it may be, as a share of it; absent if time was up.
    pub gap: Option<f64>,
    /// The value of the objective.
    minimum: f64,
    values: HashMap<Variable, f64>,
}

impl MilpAnswer {
    /// The value of a variable of the program.
    pub fn value(&self, variable: Variable) -> f64 {
        self.values.get(&variable).copied().unwrap_or_default()
    }

    /// Whether a binary variable is 1.
    pub fn is_one(&self, variable: Variable) -> bool {
        self.value(variable) > 0.5
    }
}
