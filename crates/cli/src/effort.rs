//! How hard the planner searches for something better. Invariant: without a deadline, which the
//! solver always has, the same options give the same plan; an interruption ends the search like a
//! deadline, and what was found until then counts.

use clap::Args;
use tightfit::effort::Effort;
use tightfit::plan::Planner;
use tightfit::units::Seconds;

use crate::planners::planner;
use crate::values::duration;
use crate::{clock, frontier};

/// Deadline of a search that nothing else limits.
const DEADLINE: Seconds = Seconds(1.0);

/// Operations of a rule that any processor does in a second.
const OPERATIONS_OF_A_SECOND: f64 = 1e7;

/// Limits of a search.
#[derive(Args, Clone, Copy, Default)]
pub struct Limits {
    /// Search no longer than this for a better plan: 10, 10s or 500ms [default: 1s of processor
    /// time, at most 4s, for stages 1s for each cut; none for auto with --iterations, and none for
    /// planners other than auto, exact and offload, which end by themselves]. If it is not given, a
    /// planner may take a second or two more, and auto asks all of them: half a minute on 50,000
    /// nodes
    #[arg(long, value_name = "SECONDS", value_parser = duration, allow_hyphen_values = true)]
    pub deadline: Option<Seconds>,
    /// Search no more than this many elementary steps; without --deadline the result is the same on
    /// every machine; planners other than auto count no steps
    #[arg(long, value_name = "N")]
    pub iterations: Option<u64>,
}

impl Limits {
    /// The effort of a planner, on the program's clock.
    pub fn effort(self, planner: Planner, seed: u64) -> Effort<'static> {
        self.timed(planner, seed, self.clock(planner))
    }

    /// The clock of the deadline: with the default one, a search on a busy machine gets more
    /// time. A solver keeps its own time.
    pub fn clock(self, planner: Planner) -> &'static (dyn Fn() -> Seconds + Sync) {
        match self.deadline.is_none() && planner != Planner::Exact {
            true => &clock::patient,
            false => &clock::wall,
        }
    }

    /// The effort of a planner, on a clock given by the caller.
    pub fn timed(
        self,
        planner: Planner,
        seed: u64,
        clock: &(dyn Fn() -> Seconds + Sync),
    ) -> Effort<'_> {
        // These count no steps, and may take hours if not stopped: a solver, and the search for
        // what to offload.
        let needs_deadline = matches!(planner, Planner::Exact | Planner::Offload);
        let is_endless = self.iterations.is_some() && !needs_deadline;
        let default = if is_endless { Seconds(f64::INFINITY) } else { DEADLINE };
        let limit = self.deadline.or(needs_deadline.then_some(DEADLINE));
        let floor = match limit {
            // All floors together take at most about as long as the search itself.
            Some(deadline) => {
                let all = (deadline.0 * operations_of_a_second(planner)) as u64;
                Effort::FLOOR.min(all / planner.floor(1))
            }
            None if planner == Planner::Auto => Effort::FLOOR,
            None => u64::MAX,
        };
        Effort {
            seed,
            work: self.iterations.unwrap_or(u64::MAX),
            floor,
            floor_beside: floor.min(Effort::FLOOR),
            deadline: self.deadline.unwrap_or(default),
            grace: limit.map(Effort::grace_of),
            clock,
        }
    }
}

/// The search for what to offload also simulates two lanes, and takes four times as long.
fn operations_of_a_second(planner: Planner) -> f64 {
    match planner {
        Planner::Offload => OPERATIONS_OF_A_SECOND / 4.0,
        _ => OPERATIONS_OF_A_SECOND,
    }
}

/// How to search for a plan, for verbs that do nothing else.
#[derive(Args, Clone, Copy)]
pub struct Search {
    /// One planner by name, or auto for the best plan of all
    #[arg(long, default_value = "auto", value_parser = planner())]
    pub planner: Planner,
    /// When the search ends.
    #[command(flatten)]
    pub limits: Limits,
    /// Seed of the search
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

impl Default for Search {
    fn default() -> Search {
        Search { planner: Planner::Auto, limits: Limits::default(), seed: 1 }
    }
}

impl Search {
    /// The search's effort.
    pub fn effort(self) -> Effort<'static> {
        self.limits.effort(self.planner, self.seed)
    }

    /// The search at each budget of a frontier.
    pub fn of_each(self) -> frontier::Search<'static> {
        frontier::Search { planner: self.planner, effort: self.effort() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_alone_knows_no_deadline() {
        let limits = |deadline, iterations| {
            Limits { deadline, iterations }.effort(Planner::Auto, 1).deadline.0
        };
        assert_eq!(limits(None, None), 1.0);
        assert_eq!(limits(None, Some(7)), f64::INFINITY);
        assert_eq!(limits(Some(Seconds(3.0)), Some(7)), 3.0);
    }

    #[test]
    fn a_short_deadline_has_a_low_floor() {
        let floor = |planner: Planner, deadline| {
            let limits = Limits { deadline: Some(Seconds(deadline)), iterations: None };
            planner.floor(limits.effort(planner, 1).floor)
        };
        for planner in [Planner::Auto, Planner::Xla, Planner::Offload] {
            assert_eq!(floor(planner, 0.0), 0);
            for deadline in [0.3, 1.0] {
                let most = (deadline * operations_of_a_second(planner)) as u64;
                let all = floor(planner, deadline);
                assert!(all > most - 10 && all <= most, "{planner:?}: {all} of {most}");
            }
        }
    }

    #[test]
    fn a_rule_ends_by_itself_unless_somebody_chose_a_deadline() {
        let floor =
            |planner, deadline| Limits { deadline, iterations: None }.effort(planner, 1).floor;
        assert_eq!(floor(Planner::Capuchin, None), u64::MAX);
        assert_eq!(floor(Planner::Capuchin, Some(Seconds(10.0))), Effort::FLOOR);
        assert_eq!(floor(Planner::Auto, None), Effort::FLOOR);
        let limits = Limits { deadline: None, iterations: Some(7) };
        for endless in [Planner::Exact, Planner::Offload] {
            assert_eq!(floor(endless, None), floor(endless, Some(DEADLINE)));
            assert_eq!(limits.effort(endless, 1).deadline, DEADLINE);
        }
    }
}
