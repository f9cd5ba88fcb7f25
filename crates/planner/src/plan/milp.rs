//! Mixed integer programs: variables, rows, what is minimised, and the solver behind it. Invariant:
//! the solver is named here and nowhere else; without a limit of seconds, the same program has the
//! same answer on every machine.

#[cfg(feature = "highs")]
use good_lp::highs as solver;
use good_lp::solvers::SolutionStatus;
#[cfg(not(feature = "highs"))]
use good_lp::{
    Constraint, Expression, ProblemVariables, ResolutionError, Solution, SolverModel, Variable,
    WithMipGap, WithTimeLimit, microlp as solver, variable,
};

use crate::analysis::modules::ModuleInfo;
use crate::units::{Bytes, Seconds};

/// The solver of this build.
pub const SOLVER: &str = if cfg!(feature = "highs") { "HiGHS" } else { "microlp" };

/// How much a solver may be asked for; by default the optimum, however long it takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SolverLimits {
    /// How far above the optimum an answer may be, as a share of it.
    pub gap: f64,
    /// Time that the solver may take for one program, by its own clock; absent: as long as it
    /// needs. The best answer until then is no optimum, and not the same on every machine.
    pub seconds: Option<Seconds>,
}

/// What gap is asked for where the solver fails with a smaller one.
const LARGER_GAPS: [f64; 7] = [0.0, 0.0, 0.0, 1e-4, 1e-3, 1e-2, 0.1];

/// The longest time that solvers can be told, in seconds: thirty years.
const LONGEST: f64 = 1e9;
/// The gap of the coarse question that comes first where time is limited.
const COARSE: f64 = 0.01;

/// What a program on modules counts as one byte and one second, so that its figures are neither
/// large nor small.
pub struct Scale {
    pub bytes: f64,
    pub seconds: f64,
}

impl Scale {
    /// The baseline peak, and a hundredth of the baseline's seconds.
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
    /// What is least is asked for exactly, whatever gap is accepted in seconds.
    pub fn limits(self, limits: &SolverLimits) -> SolverLimits {
        match self {
            Goal::Fastest(_) => *limits,
            Goal::Lowest => SolverLimits { gap: 0.0, ..*limits },
        }
    }
}

/// How often a solver is asked for less because its answer did not fit.
const MOST_ATTEMPTS: usize = 3;

/// An answer within a budget although the solver's rows may be exceeded by a tolerance: where what
/// it says takes more, it is asked again for as much less. `ask` answers for a target with a plan
/// and the bytes that it really takes; `None` where it has no answer, or none that fits.
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

/// A mixed integer program in the making.
pub struct Milp {
    variables: ProblemVariables,
    rows: Vec<Constraint>,
    /// What is minimised.
    pub objective: Expression,
}

impl Milp {
    pub fn new() -> Milp {
        let mut variables = ProblemVariables::new();
        // HiGHS has no answer to a program without variables, though there may be nothing to
        // decide.
        variables.add(variable().min(0.0).max(0.0));
        Milp { variables, rows: Vec::new(), objective: Expression::from(0.0) }
    }

    /// A variable that is 0 or 1.
    pub fn binary(&mut self) -> Variable {
        self.variables.add(variable().binary())
    }

    /// A variable between two bounds.
    pub fn within(&mut self, least: f64, most: f64) -> Variable {
        self.variables.add(variable().min(least).max(most))
    }

    pub fn row(&mut self, row: Constraint) {
        self.rows.push(row);
    }

    /// The minimum; `None` where nothing satisfies all rows; else why the solver has no answer.
    ///
    /// Where time is limited, a coarse question comes first, for half of it: that is often answered
    /// in a hundredth of what the fine one takes, and what the fine one does not prove in its half,
    /// the coarse one has.
    pub fn solve(self, limits: &SolverLimits) -> Result<Option<MilpAnswer>, String> {
        let Some(Seconds(seconds)) = limits.seconds.filter(|_| limits.gap < COARSE) else {
            return self.insist(limits);
        };
        let half = Some(Seconds(seconds / 2.0));
        let Some(coarse) = self.insist(&SolverLimits { gap: COARSE, seconds: half })? else {
            return Ok(None);
        };
        let fine = match self.insist(&SolverLimits { seconds: half, ..*limits }) {
            Ok(Some(fine)) if fine.gap.is_some_and(|gap| gap <= COARSE) => return Ok(Some(fine)),
            Ok(Some(fine)) => fine,
            Ok(None) | Err(_) => return Ok(Some(coarse)),
        };
        // Gaps are shares of the upper or of the lower bound; this holds for both.
        let least = coarse.gap.map(|gap| coarse.minimum * (1.0 - gap));
        let best = if fine.minimum < coarse.minimum { fine } else { coarse };
        let gap =
            least.filter(|least| *least > 0.0).map(|least| (best.minimum - least) / best.minimum);
        Ok(Some(MilpAnswer { gap, ..best }))
    }

    /// A solver in floating-point numbers may run into a basis that it cannot factor; then it is
    /// asked the same with the rows in another order, which takes it another way, and with a larger
    /// gap, which ends it sooner.
    fn insist(&self, limits: &SolverLimits) -> Result<Option<MilpAnswer>, String> {
        let mut failed = String::new();
        for (turn, least) in LARGER_GAPS.into_iter().enumerate() {
            let mut rows = self.rows.clone();
            let middle = rows.len() * turn / LARGER_GAPS.len();
            rows.rotate_left(middle);
            let gap = limits.gap.max(least);
            // A failure may be that time was up, so another turn gets little of it.
            let seconds = limits
                .seconds
                .map(|Seconds(seconds)| Seconds(if turn == 0 { seconds } else { seconds / 16.0 }));
            match self.attempt(rows, &SolverLimits { gap, seconds }) {
                Ok(solution) => {
                    let proven = !matches!(solution.status(), SolutionStatus::TimeLimit);
                    let minimum = solution.eval(&self.objective);
                    let value = Box::new(move |variable| solution.value(variable));
                    return Ok(Some(MilpAnswer { gap: proven.then_some(gap), minimum, value }));
                }
                Err(ResolutionError::Infeasible) => return Ok(None),
                Err(error) => failed = error.to_string(),
            }
        }
        Err(failed)
    }

    fn attempt(
        &self,
        rows: Vec<Constraint>,
        limits: &SolverLimits,
    ) -> Result<impl Solution + 'static, ResolutionError> {
        let mut model = self.variables.clone().minimise(self.objective.clone()).using(solver);
        model = model
            .with_mip_gap(limits.gap as f32)
            .map_err(|error| ResolutionError::Str(error.to_string()))?;
        if let Some(Seconds(seconds)) = limits.seconds {
            model = model.with_time_limit(seconds.clamp(0.0, LONGEST));
        }
        for row in rows {
            model.add_constraint(row);
        }
        model.solve()
    }
}

/// Values of the variables.
pub struct MilpAnswer {
    /// How far above the optimum it may be, as a share of it; absent where time was up.
    pub gap: Option<f64>,
    /// What the objective comes to.
    minimum: f64,
    value: Box<dyn Fn(Variable) -> f64>,
}

impl MilpAnswer {
    pub fn value(&self, variable: Variable) -> f64 {
        (self.value)(variable)
    }

    /// Whether a binary variable is 1.
    pub fn is_one(&self, variable: Variable) -> bool {
        self.value(variable) > 0.5
    }
}
