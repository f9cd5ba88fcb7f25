//! Bounds that no schedule of a class beats. Invariant: a bound names its class, and holds for all
//! of it.

use crate::plan::BoundOrder;
use crate::units::Seconds;

/// A proven lower bound on the time of every schedule of a class within a budget.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// The time of the whole step that no schedule of the class beats.
    pub seconds: Seconds,
    /// The schedules that the bound holds for.
    pub class: ScheduleClass,
}

/// A class of schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleClass {
    /// The orders of first runs that are in the class.
    pub order: BoundOrder,
    /// What the schedules of the class may do.
    pub actions: Actions,
}

/// What the schedules of a class may do to hold less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actions {
    /// They run, recompute and free. A schedule that moves what it holds is of another class and
    /// may be faster.
    Runs,
    /// They may also move what they hold between the device and a tier below.
    RunsAndMoves,
}

impl Bound {
    /// The higher of two bounds if they are of the same class; else this one.
    fn raised_to(self, other: Bound) -> Bound {
        let is_higher = other.class == self.class && other.seconds > self.seconds;
        if is_higher { other } else { self }
    }

    /// A bound for schedules that run and recompute.
    pub(crate) fn of_runs(seconds: Seconds, order: BoundOrder) -> Bound {
        Bound { seconds, class: ScheduleClass { order, actions: Actions::Runs } }
    }

    /// A bound for schedules that may also move what they hold.
    pub(crate) fn of_moves(seconds: Seconds) -> Bound {
        let class = ScheduleClass { order: BoundOrder::Any, actions: Actions::RunsAndMoves };
        Bound { seconds, class }
    }
}

/// Raises each bound to those of larger budgets, which hold for smaller ones, too. The bounds are
/// those of budgets in rising order.
pub(crate) fn carry_to_smaller_budgets<'a>(bounds: impl DoubleEndedIterator<Item = &'a mut Bound>) {
    let mut above: Option<Bound> = None;
    for bound in bounds.rev() {
        *bound = above.map_or(*bound, |above| bound.raised_to(above));
        above = Some(*bound);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_schedule_within_a_larger_budget_beats_none_within_a_smaller_one_beats() {
        let of = |seconds, order| Bound::of_runs(Seconds(seconds), order);
        let any = |seconds| of(seconds, BoundOrder::Any);
        let mut bounds = [any(5.0), any(2.0), any(4.0), any(1.0)];
        carry_to_smaller_budgets(bounds.iter_mut());
        assert_eq!(bounds, [any(5.0), any(4.0), any(4.0), any(1.0)]);
        // Not across classes: one order may be slower than another.
        let mut bounds = [any(2.0), of(4.0, BoundOrder::Given)];
        carry_to_smaller_budgets(bounds.iter_mut());
        assert_eq!(bounds, [any(2.0), of(4.0, BoundOrder::Given)]);
    }
}
