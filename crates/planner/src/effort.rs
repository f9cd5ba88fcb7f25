//! How hard a planner searches for something better, and how much of that effort is left.
//! Invariant: nothing here has a clock of its own; with a limit of work and no deadline every
//! answer depends on the work alone, so the same seed gives the same plan, byte for byte, on every
//! machine.

use crate::units::Seconds;

/// Limits of one search.
#[derive(Clone, Copy)]
pub struct Effort<'a> {
    /// The seed of every random choice.
    pub seed: u64,
    /// The elementary operations after which the search stops, whatever the time.
    pub work: u64,
    /// The elementary operations of a planner with a fixed rule that are done before the deadline
    /// counts: that much of its answer does not depend on how busy the machine is. An interruption
    /// counts at once. With [`u64::MAX`] such a planner, or a solver, ends by itself.
    pub floor: u64,
    /// The same for each planner with a fixed rule that a search calls in addition to its own work.
    pub floor_beside: u64,
    /// The time since the search began after which it stops.
    pub deadline: Seconds,
    /// How long after a deadline that the caller chose floors count, a first plan may be sought, or
    /// a refusal turned into a plan; absent if the caller chose none: then nothing limits these.
    pub grace: Option<Seconds>,
    /// The time, from any fixed origin; it never goes back. A clock that jumps to
    /// [`Effort::LATE`] says that time is up, one that jumps to [`Effort::INTERRUPTED`], infinity,
    /// ends the search at once.
    pub clock: &'a (dyn Fn() -> Seconds + Sync),
}

impl Effort<'_> {
    /// The floor of a planner with a fixed rule if the caller chose a deadline.
    ///
    /// An operation is a run visited while a sequence is made, traversed or simulated, which takes
    /// some 30 to 100 ns, so the floor is one to two seconds of processor time. Every rule finishes
    /// within it on graphs of up to 4,000 nodes, those of `corpus/graphs`.
    pub const FLOOR: u64 = 20_000_000;

    /// What a clock shows once time is up, whatever the deadline: only floors are done now.
    pub const LATE: Seconds = Seconds(f64::MAX);

    /// What a clock shows after an interruption.
    pub const INTERRUPTED: Seconds = Seconds(f64::INFINITY);

    /// The grace of a chosen deadline: half of what a search may be late, which is 0.3 s or a
    /// quarter of the deadline.
    pub fn grace_of(deadline: Seconds) -> Seconds {
        Seconds((deadline.0 / 8.0).max(0.15))
    }

    /// Work that is done regardless of the time: scaled down, as the floors are, if a deadline was
    /// chosen.
    pub fn in_proportion(&self, work: u64) -> u64 {
        let share = u128::from(self.floor_beside.min(Effort::FLOOR));
        (u128::from(work) * share / u128::from(Effort::FLOOR)) as u64
    }
}

impl<'a> Effort<'a> {
    /// A share of it: of its time, and of its work, if that is limited.
    #[must_use]
    pub fn part(&self, share: f64) -> Effort<'a> {
        let part = |work: u64| match work {
            u64::MAX => work,
            work => (work as f64 * share) as u64,
        };
        let deadline = Seconds(self.deadline.0 * share);
        Effort {
            work: part(self.work),
            floor: part(self.floor),
            floor_beside: part(self.floor_beside),
            deadline,
            grace: self.grace.map(|_| Effort::grace_of(deadline)),
            ..*self
        }
    }
}

impl Effort<'static> {
    /// This much work, however long it takes.
    pub const fn work(seed: u64, work: u64) -> Effort<'static> {
        Effort {
            seed,
            work,
            floor: 0,
            floor_beside: Effort::FLOOR,
            deadline: Seconds(f64::INFINITY),
            grace: None,
            clock: &|| Seconds(0.0),
        }
    }
}

/// Enough for a good plan of a graph of a few thousand nodes, and deterministic.
impl Default for Effort<'static> {
    fn default() -> Self {
        Effort::work(1, 1_000_000)
    }
}

/// Counts the work done under an effort, and checks its clock.
///
/// Work may be counted after it was done ([`Meter::spend`], then [`Meter::is_over`]) or requested
/// before ([`Meter::take`], then [`Meter::has_refused`]); the second checks the clock less often.
#[derive(Clone)]
pub struct Meter<'a> {
    effort: &'a Effort<'a>,
    start: Seconds,
    spent: u64,
    /// Work at which it ends.
    limit: u64,
    /// Work before which the deadline does not count.
    floor: u64,
    /// Time since the start at which it ends; absent if time is ignored.
    deadline: Option<Seconds>,
    /// Whether an interruption does not end it.
    ignores_interruptions: bool,
    has_refused: bool,
}

impl<'a> Meter<'a> {
    /// Units of work between two checks of the clock when work is requested.
    const CLOCK_INTERVAL: u64 = 4;

    /// The most of a grace that a first plan takes.
    const FIRST: Seconds = Seconds(0.15);

    /// Time per run for examining a sequence (its simulation, and first addresses).
    const LOOK: Seconds = Seconds(2.5e-6);

    /// Starts counting now.
    pub fn new(effort: &'a Effort<'a>) -> Meter<'a> {
        Meter {
            effort,
            start: (effort.clock)(),
            spent: 0,
            limit: effort.work,
            floor: effort.floor,
            deadline: Some(effort.deadline),
            ignores_interruptions: false,
            has_refused: false,
        }
    }

    /// The same, ending at a share of the whole effort.
    pub fn until(&self, share: f64) -> Meter<'a> {
        Meter {
            limit: (self.effort.work as f64 * share) as u64,
            deadline: Some(Seconds(self.effort.deadline.0 * share)),
            ..self.clone()
        }
    }

    /// The same, limited by time alone.
    pub fn by_time(&self) -> Meter<'a> {
        Meter { limit: u64::MAX, ..self.clone() }
    }

    /// The same, ending when half of what is left is spent.
    pub fn half(&self) -> Meter<'a> {
        let elapsed = self.elapsed().0;
        let deadline = self.deadline.map(|deadline| {
            if deadline.0.is_finite() {
                Seconds(elapsed + (deadline.0 - elapsed).max(0.0) / 2.0)
            } else {
                deadline
            }
        });
        Meter {
            limit: self.spent + self.limit.saturating_sub(self.spent) / 2,
            deadline,
            ..self.clone()
        }
    }

    /// The same, ending after at most this much more work.
    pub fn leg(&self, work: u64) -> Meter<'a> {
        Meter { limit: self.limit.min(self.spent.saturating_add(work)), ..self.clone() }
    }

    /// This much more work, regardless of limits and time: for a first plan, without which there is
    /// no answer. If the caller chose the deadline, it ends 0.15 s after that, or with the grace.
    pub fn untimed(&self, work: u64) -> Meter<'a> {
        let limit = self.spent.saturating_add(work);
        let late = |grace: Seconds| Seconds(self.effort.deadline.0 + grace.0.min(Self::FIRST.0));
        let deadline = self.effort.grace.map(late);
        Meter { limit, deadline, ignores_interruptions: true, ..self.clone() }
    }

    /// The same without a limit of work, for turning a refusal into a plan: if a deadline was
    /// chosen, it ends with the grace after that, plus the time to examine a sequence of this
    /// length.
    pub fn with_grace(&self, runs: usize) -> Meter<'a> {
        let late = self.effort.deadline.0 + runs as f64 * Self::LOOK.0;
        let deadline = self.effort.grace.map(|grace| Seconds(late + grace.0));
        Meter { limit: u64::MAX, deadline, ..self.clone() }
    }

    /// The same with twice the time, unless the deadline was chosen.
    pub fn with_twice_the_time(&self) -> Meter<'a> {
        let factor = if self.effort.grace.is_some() { 1.0 } else { 2.0 };
        let deadline = self.deadline.map(|deadline| Seconds(deadline.0 * factor));
        Meter { deadline, ..self.clone() }
    }

    /// The same, with a deadline that does not count before this much more work is done.
    pub fn above(&self, floor: u64) -> Meter<'a> {
        Meter { floor: self.spent.saturating_add(floor), ..self.clone() }
    }

    /// The same for work that cannot be counted: the deadline counts at once or, if the floor is
    /// unlimited, never.
    pub fn uncounted(&self) -> Meter<'a> {
        if self.floor < u64::MAX {
            Meter { floor: 0, ..self.clone() }
        } else {
            Meter { deadline: Some(Seconds(f64::INFINITY)), ..self.clone() }
        }
    }

    /// The rest of the effort until a share of it is spent; its work is counted from zero, and it
    /// has no floor.
    pub fn rest_until(&self, share: f64) -> Effort<'a> {
        let deadline = self.effort.deadline.0 * share - self.elapsed().0;
        let work = (self.effort.work as f64 * share) as u64;
        Effort { work, floor: 0, ..self.ending(deadline) }
    }

    /// For a second search: the rest of a deadline that was chosen, or else as much once more.
    /// Planners that were called have had their floor.
    pub fn once_more(&self) -> Effort<'a> {
        match self.effort.grace {
            Some(_) => Effort { floor_beside: 0, ..self.round(self.effort.work, 1.0) },
            None => Effort { floor_beside: 0, ..*self.effort },
        }
    }

    /// This much work, in a share of the time that is left; without a floor.
    pub fn round(&self, work: u64, share: f64) -> Effort<'a> {
        let left = self.deadline.unwrap_or(self.effort.deadline).0 - self.elapsed().0;
        Effort { work, floor: 0, ..self.ending(left.max(0.0) * share) }
    }

    /// The effort with this deadline from now on; its grace ends with that of the whole.
    fn ending(&self, deadline: f64) -> Effort<'a> {
        let deadline = Seconds(deadline.max(0.0));
        let within = |grace: Seconds| {
            let end = self.effort.deadline.0 + grace.0 - self.elapsed().0;
            Seconds((end - deadline.0).max(0.0))
        };
        Effort { deadline, grace: self.effort.grace.map(within), ..*self.effort }
    }

    /// Whether too little is left for this much work: with a limit of work alone, all of it or
    /// nothing is done.
    pub fn would_exceed(&self, work: u64) -> bool {
        self.is_over() || !self.has_deadline() && self.spent.saturating_add(work) > self.limit
    }

    /// The effort as it was given.
    pub fn effort(&self) -> &'a Effort<'a> {
        self.effort
    }

    /// Whether it ends at some time, not only after some amount of work.
    pub fn has_deadline(&self) -> bool {
        self.effort.deadline.0.is_finite()
    }

    /// Counts work that was done.
    pub fn spend(&mut self, work: u64) {
        self.spent = self.spent.saturating_add(work);
    }

    /// Requests work that is about to be done; false if it is no longer allowed. It is counted
    /// either way.
    pub fn take(&mut self, work: u64) -> bool {
        let looks = self.spent / Self::CLOCK_INTERVAL;
        self.spend(work);
        self.has_refused |= self.spent > self.limit;
        if looks == self.spent / Self::CLOCK_INTERVAL {
            !self.has_refused
        } else {
            self.is_in_time()
        }
    }

    /// Whether nothing was refused so far, the time included.
    pub fn is_in_time(&mut self) -> bool {
        self.has_refused |= self.is_late();
        !self.has_refused
    }

    /// Whether any request was refused.
    pub fn has_refused(&self) -> bool {
        self.has_refused
    }

    /// Work done so far.
    pub fn spent(&self) -> u64 {
        self.spent
    }

    /// The time, by the effort's clock.
    pub fn now(&self) -> Seconds {
        (self.effort.clock)()
    }

    /// Time since the start; that of the clock if it shows that time is up, even before the start.
    pub fn elapsed(&self) -> Seconds {
        let now = self.now();
        if now >= Effort::LATE { now } else { Seconds(now.0 - self.start.0) }
    }

    /// The share of the effort's time that has passed.
    pub fn share(&self) -> f64 {
        self.elapsed().0 / self.effort.deadline.0
    }

    /// The fraction of the effort that is spent: of its time or of its work, whichever is more.
    pub fn part(&self) -> f64 {
        self.share().max(self.spent as f64 / self.effort.work.max(1) as f64)
    }

    /// Whether nothing is left.
    pub fn is_over(&self) -> bool {
        self.spent >= self.limit || self.is_late()
    }

    /// Whether time is up, whatever work is left: for planners whose rule ends by itself.
    pub fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| {
            let elapsed = self.elapsed().0;
            match elapsed.is_infinite() {
                true => !self.ignores_interruptions,
                false => elapsed >= deadline.0 && (self.spent >= self.floor || self.had_grace()),
            }
        })
    }

    /// Whether the grace of a chosen deadline is over, after which no floor counts.
    fn had_grace(&self) -> bool {
        let end = |grace: Seconds| self.effort.deadline.0 + grace.0;
        self.effort.grace.is_some_and(|grace| self.elapsed().0 >= end(grace))
    }

    /// The time that is left, ignoring the floor; absent if there is no deadline.
    pub fn time_left(&self) -> Option<Seconds> {
        let deadline = self.deadline.filter(|deadline| deadline.0.is_finite())?;
        Some(Seconds((deadline.0 - self.elapsed().0).max(0.0)))
    }

    /// What is left of the floor.
    pub fn floor_left(&self) -> u64 {
        if self.floor == u64::MAX { u64::MAX } else { self.floor.saturating_sub(self.spent) }
    }

    /// The work that is left: until the limit or, at the rate so far, until the deadline.
    pub fn left(&self) -> u64 {
        let elapsed = self.elapsed().0;
        let by_time = match self.deadline {
            Some(deadline) if deadline.0.is_finite() && elapsed > 0.0 => {
                (self.spent as f64 * (deadline.0 / elapsed)) as u64
            }
            _ => u64::MAX,
        };
        self.limit.min(by_time.max(self.floor)).saturating_sub(self.spent)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn work_is_refused_when_the_limit_is_reached_and_from_then_on() {
        let effort = Effort::work(1, 3);
        let mut meter = Meter::new(&effort);
        assert!((0..3).all(|_| meter.take(1)));
        assert!(meter.is_over() && !meter.has_refused());
        assert!(!meter.take(1) && meter.has_refused());
        assert!(!meter.is_in_time());
    }

    #[test]
    fn an_untimed_meter_outlasts_deadline_and_interruption() {
        let clock = || Seconds(f64::INFINITY);
        let effort = Effort { deadline: Seconds(1.0), clock: &clock, ..Effort::work(1, 9) };
        let meter = Meter::new(&effort);
        assert!(meter.is_over());
        let mut untimed = meter.untimed(2);
        assert!(!untimed.is_over());
        untimed.spend(2);
        assert!(untimed.is_over());
        let chosen = Effort { grace: Some(Seconds(0.0)), ..effort };
        assert!(!Meter::new(&chosen).untimed(2).is_over());
    }

    #[test]
    fn an_untimed_meter_ends_soon_after_a_chosen_deadline() {
        let now = AtomicU64::new(0);
        let clock = || Seconds(now.load(Ordering::Relaxed) as f64);
        for (grace, is_over) in [(None, false), (Some(Seconds(0.5)), true)] {
            now.store(0, Ordering::Relaxed);
            let effort =
                Effort { grace, deadline: Seconds(1.0), clock: &clock, ..Effort::work(1, 9) };
            let untimed = Meter::new(&effort).untimed(2);
            now.store(1, Ordering::Relaxed);
            assert!(!untimed.is_over());
            now.store(2, Ordering::Relaxed);
            assert_eq!(untimed.is_over(), is_over);
        }
    }

    #[test]
    fn parts_end_at_shares_of_work_and_time() {
        let now = AtomicU64::new(0);
        let clock = || Seconds(now.load(Ordering::Relaxed) as f64);
        let effort = Effort { deadline: Seconds(100.0), clock: &clock, ..Effort::work(1, 100) };
        let mut meter = Meter::new(&effort);
        meter.spend(20);
        now.store(10, Ordering::Relaxed);
        assert_eq!((meter.share(), meter.left()), (0.1, 80));
        assert_eq!((meter.half().left(), meter.leg(5).left()), (40, 5));
        assert_eq!(meter.until(0.5).left(), 30);
        let rest = meter.rest_until(0.5);
        assert_eq!((rest.work, rest.deadline), (50, Seconds(40.0)));
        let chosen = Effort { grace: Some(Seconds(0.0)), ..effort };
        let longer = [Meter::new(&effort), Meter::new(&chosen)].map(|it| it.with_twice_the_time());
        now.store(150, Ordering::Relaxed);
        assert_eq!(longer.map(|meter| meter.is_late()), [false, true]);
    }

    #[test]
    fn a_floor_outlasts_the_deadline_but_no_interruption() {
        let now = AtomicU64::new(0);
        let clock = || match now.load(Ordering::Relaxed) {
            u64::MAX => Seconds(f64::INFINITY),
            seconds => Seconds(seconds as f64),
        };
        let effort = Effort {
            floor: 10,
            deadline: Seconds(5.0),
            clock: &clock,
            ..Effort::work(1, u64::MAX)
        };
        let mut meter = Meter::new(&effort);
        now.store(7, Ordering::Relaxed);
        meter.spend(9);
        assert!(!meter.is_late() && meter.floor_left() == 1 && meter.left() == 1);
        now.store(u64::MAX, Ordering::Relaxed);
        assert!(meter.is_late());
        now.store(7, Ordering::Relaxed);
        meter.spend(1);
        assert!(meter.is_late() && !meter.above(1).is_late());
        assert_eq!((meter.time_left(), meter.rest_until(1.0).floor), (Some(Seconds(0.0)), 0));
    }
}
