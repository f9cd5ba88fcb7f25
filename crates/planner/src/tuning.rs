//! Every tuned figure of the planners, in one table. Invariant: no answer is wrong because of them:
//! schedules are checked and bounds hold whatever they are; they decide how fast a plan is, how
//! small a slab is, and how soon both are found.
//!
//! They have no theoretical basis. `tightfit-bench ablation`, which the feature `ablation` adds,
//! halves and doubles each in turn. Units: *work* is counted as [`Effort`](crate::effort::Effort)
//! counts it, *shares* are fractions of time.
//!
//! Constants of published algorithms, limits that keep an algorithm from running for ever, rates
//! that convert work into time, and tolerances of rounding are not tuned and stand where they are
//! used.

#[cfg(feature = "ablation")]
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A tuned figure: a constant, unless the feature `ablation` is on.
#[derive(Debug)]
pub struct Tuned<T> {
    value: T,
    /// The bits of what it is multiplied by.
    #[cfg(feature = "ablation")]
    factor: AtomicU64,
}

impl<T: Copy> Tuned<T> {
    const fn new(value: T) -> Tuned<T> {
        Tuned {
            value,
            #[cfg(feature = "ablation")]
            factor: AtomicU64::new(1.0f64.to_bits()),
        }
    }

    /// Its value.
    #[cfg(not(feature = "ablation"))]
    pub const fn get(&self) -> T {
        self.value
    }
}

#[cfg(feature = "ablation")]
impl<T: Scale> Tuned<T> {
    /// Its value, multiplied by its factor.
    pub fn get(&self) -> T {
        match f64::from_bits(self.factor.load(Relaxed)) {
            1.0 => self.value,
            factor => self.value.scaled(factor),
        }
    }
}

/// What a figure may be.
#[cfg(feature = "ablation")]
pub trait Scale: Copy + std::fmt::Debug {
    /// It, multiplied; whole numbers are rounded, and what is at most 1, such as a share, stays so.
    fn scaled(self, factor: f64) -> Self;
}

#[cfg(feature = "ablation")]
macro_rules! whole_numbers {
    ($($kind:ty),*) => {
        $(impl Scale for $kind {
            fn scaled(self, factor: f64) -> Self {
                (self as f64 * factor).round() as $kind
            }
        })*
    };
}

#[cfg(feature = "ablation")]
whole_numbers!(u32, u64, i64, usize);

#[cfg(feature = "ablation")]
impl Scale for f64 {
    fn scaled(self, factor: f64) -> f64 {
        if self <= 1.0 { (self * factor).min(1.0) } else { self * factor }
    }
}

#[cfg(feature = "ablation")]
impl<const N: usize> Scale for [f64; N] {
    fn scaled(self, factor: f64) -> Self {
        self.map(|value| value.scaled(factor))
    }
}

/// A figure of the table whose value can be varied.
#[cfg(feature = "ablation")]
pub trait Figure: Sync {
    /// The value of the table.
    fn settled(&self) -> String;

    /// Multiplies it from now on, in the whole process.
    fn multiply(&self, factor: f64);
}

#[cfg(feature = "ablation")]
impl<T: Scale + Sync> Figure for Tuned<T> {
    fn settled(&self) -> String {
        format!("{:?}", self.value)
    }

    fn multiply(&self, factor: f64) {
        self.factor.store(factor.to_bits(), Relaxed);
    }
}

/// A figure with its group, its name and its description.
#[cfg(feature = "ablation")]
pub struct Row {
    /// What uses it.
    pub group: &'static str,
    /// Its name in that group.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    /// The figure itself.
    pub figure: &'static dyn Figure,
}

macro_rules! tuned {
    ($($(#[doc = $use:literal])+ $group:ident {
        $($(#[doc = $about:literal])+ $name:ident: $kind:ty = $value:expr;)+
    })+) => {
        $($(#[doc = $use])+
        pub mod $group {
            use crate::tuning::Tuned;

            $($(#[doc = $about])+
            pub static $name: Tuned<$kind> = Tuned::new($value);)+
        })+

        /// The whole table.
        #[cfg(feature = "ablation")]
        pub static ALL: &[Row] = &[$($(Row {
            group: stringify!($group),
            name: stringify!($name),
            about: concat!($($about),+),
            figure: &$group::$name,
        },)+)+];
    };
}

tuned! {
    /// The rounds of one budget (`plan/rounds.rs`); first plans with moves, too (`fit/turns.rs`).
    rounds {
        /// Share of the whole time for a first plan.
        FIRST_SHARE: f64 = 0.3;
        /// Most work per operator for it.
        MOST_FIRST: u64 = 200;
        /// Number of times that less is planned for a first plan.
        FIRST_TRIES: u32 = 5;
        /// It is planned for less by what was missing, plus one part in this many of that.
        FIRST_MORE: u64 = 8;
        /// Work of the first round, per operator.
        FIRST_ROUND: u64 = 100;
        /// Factor by which the work of a round exceeds that of the one before; of a rung, too.
        GROWTH: u64 = 3;
        /// Fractions of the budget that are left free, one after the other, if addresses do not
        /// pack. Less slack gives faster steps, more slack packs sooner.
        SLACK: [f64; 8] = [0.0, 0.003, 0.008, 0.02, 0.045, 0.08, 0.13, 0.2];
        /// Slack is at most what was missing, plus one part in this many of that.
        MORE_THAN_MISSING: u64 = 10;
        /// Share of the whole effort after which rounds stop if no plan fits yet.
        STOP: f64 = 0.1;
        /// Seconds per operator after which they do, if that is earlier.
        STOP_LATEST: f64 = 1e-4;
        /// Share of the time left until then for a round while no plan fits, and again for its
        /// addresses.
        UNTAKEN: f64 = 0.5;
        /// Share of the time left for addresses of what a round has found, once a plan fits.
        TAKEN: f64 = 0.1;
        /// They may take this many times as long as the round.
        LONGER: f64 = 3.0;
        /// Plans of other planners are tried until this many times as late if none fits yet.
        STOP_OFFERS: f64 = 2.0;
        /// Share of the time left for them once the smallest plan fits.
        HEARD: f64 = 0.25;
        /// Share of the whole time, at its end, for thorough packing of known plans.
        LAST: f64 = 0.08;
        /// Work per operator for packing each of the fastest of them before a deadline counts.
        ADDRESSES: u64 = 20;
        /// The most of that work, for any number of operators.
        MOST_ADDRESSES: u64 = 20_000;
        /// Number of those fastest plans.
        FASTEST: usize = 2;
        /// Most plans that are packed thoroughly after their first addresses did not fit.
        MOST_LAST: usize = 32;
        /// Nodes, summed over plans, that are tried whatever the time.
        NODES_OF_LAST: usize = 65_536;
        /// Least number of plans that are tried whatever the time.
        LEAST_LAST: usize = 4;
        /// A plan that is tried after another holds less by at least one part in this many.
        LEAST_LESS: u64 = 128;
        /// Work of a round without gain, as a multiple of the first one's, after which the race
        /// starts over from plans with small peaks.
        START_OVER: u64 = 9;
        /// Number of rounds in a row, each with more work, after which nothing new is expected.
        FRUITLESS: usize = 5;
        /// Fraction of the step's time; a plan that is faster by less is not worth new addresses.
        LEAST_GAIN: f64 = 1e-6;
    }

    /// First plans of a search (`plan/search/starts.rs`).
    starts {
        /// Number of instants at the highest points of the unplanned step, and again spread over
        /// it, at which a start is just in time.
        INSTANTS: usize = 6;
        /// Work per operator for a first plan; less if the caller chose the deadline.
        FIRST_WORK: u64 = 200;
        /// The least of that work per operator, however short the deadline.
        LEAST_FIRST_WORK: u64 = 25;
        /// Most rounds of starts from the cuts of instants.
        ROUNDS: u32 = 3;
        /// Number of instants whose cuts are tried in the first of them.
        TRIED_FIRST: usize = 3;
        /// The same in each later one.
        TRIED_LATER: usize = 2;
        /// Instants that are spread out are further apart than one part in this many of the step.
        APART: usize = 20;
        /// An instant of a plan is tight if it holds all but one part in this many of the budget.
        TIGHT: i64 = 50;
        /// Number of tight instants with the largest working sets, and again spread over the rest.
        MOST_TIGHT: usize = 4;
        /// A search continues from one for a budget larger by at most one part in this many.
        RESUMED: i64 = 8;
        /// Most attempts between the cuts of an instant, each for less than the one before.
        ATTEMPTS: usize = 3;
        /// Tenths of the excess by which the next of these attempts aims lower.
        OVER: i64 = 7;
        /// Number of parts to which what is between two cuts is bisected.
        FINEST: usize = 128;
        /// Noise in the order of drops of a second plan without cuts.
        REPAIR_NOISE: f64 = 0.5;
    }

    /// Every sequence of a small step (`plan/search/exhaustive.rs`).
    exhaustive {
        /// Most boards that are visited.
        MOST_BOARDS: usize = 20_000;
        /// Number of budgets with more boards after which no other is tried.
        MOST_UNKNOWN: u32 = 4;
    }

    /// Starts improved alongside each other (`plan/search/race.rs`).
    race {
        /// Number of starts.
        RUNNERS: usize = 6;
        /// Number of legs of each start before the worse ones drop out.
        LEGS: u64 = 8;
        /// After these legs, one start in this many stays.
        DROPPED: usize = 3;
        /// Number of other plans that then take part.
        NEWCOMERS: usize = 2;
    }

    /// One leg of a start: a part of the plan is removed and made again
    /// (`plan/search/neighbourhood.rs`).
    neighbourhood {
        /// Fractions of the plan that are removed, one of them at random.
        PARTS: [f64; 5] = [0.02, 0.05, 0.1, 0.25, 0.5];
        /// Noise in the order of new drops, one of them at random; of a smaller peak, too.
        NOISES: [f64; 4] = [0.1, 0.3, 0.6, 1.5];
        /// Noise in the order in which needless recomputation is removed.
        POLISH_NOISE: f64 = 0.3;
    }

    /// The search for a smaller peak within a race (`plan/search/squeeze.rs`).
    squeeze {
        /// A leg first tries to save the peak divided by this.
        FIRST_STEP: i64 = 16;
        /// Number of attempts in a row that save nothing after which a leg ends.
        FAILURES: usize = 24;
        /// Fractions of the plan that are removed after a failure, one of them at random.
        PARTS: [f64; 5] = [0.002, 0.01, 0.05, 0.1, 0.3];
    }

    /// Making a plan fit (`plan/search/repair.rs`).
    repair {
        /// Levels of inputs through which recomputations are followed.
        DEPTH: u32 = 8;
        /// Inputs that are followed in all for one recomputation.
        LOOKS: u32 = 1 << 12;
        /// Weight of a point within the budget; an overloaded one has 1: holding there costs
        /// little, but not nothing.
        WITHIN: f64 = 0.02;
        /// Least weight of points between two accesses the first of which is at the highest point.
        JUST_BEFORE: f64 = 0.5;
        /// Most drops that are tried at one point.
        TRIES: usize = 200;
        /// One more of them for this many operators.
        TRIES_PER_OPERATOR: usize = 20;
        /// Drops made at one point before points are weighed again.
        AT_ONCE: usize = 8;
        /// Factor by which the price of a byte may rise from one drop to the next.
        PRICE_RISE: f64 = 2.0;
        /// Factor by which it rises if no drop helps.
        PRICE_RISE_IN_VAIN: f64 = 4.0;
        /// Number of times in a row that none helps, after which repair gives up.
        FAILURES: u32 = 3;
        /// Such a drop may raise the peak by one part in this many.
        FORCED: i64 = 20;
    }

    /// An order that holds less (`plan/search/order.rs`).
    order {
        /// Most passes over the whole order; each moves what the one before made movable.
        PASSES: usize = 6;
    }

    /// Bounds (`plan/search/prove.rs`, `plan/search/bound/moving.rs`, `fit.rs`, `fit/moving.rs`).
    bound {
        /// Share of the whole effort, at most, for the instants where the best start is tight.
        PREPARATION: f64 = 0.5;
        /// Number of highest instants for a bound without a search; the same number is spread out.
        INSTANTS: usize = 3;
        /// Share of the whole effort for a bound if the planner itself proves none.
        AFTERWARDS: f64 = 0.1;
        /// Share of the remaining time for a bound with moves, which soon stops rising and takes a
        /// processor.
        WITH_MOVES: f64 = 0.2;
        /// Most prices that are tried at an instant for a bound with moves.
        MOST_PRICES: usize = 80;
        /// Rise of that bound, as a fraction of the step's time, that is not worth further prices.
        LEAST_RISE: f64 = 2e-5;
    }

    /// The smallest peak (`plan/search/lowest.rs`, `plan/search/peers.rs`).
    min_peak {
        /// Most halvings of the distance between what is known to be feasible and what is not.
        BISECTIONS: usize = 12;
        /// Work of each of them, per operator.
        BISECTION_WORK: u64 = 100;
        /// Share of the effort within which a plan has to be found for a refusal to name it.
        NAMED: f64 = 0.5;
        /// Number of plans with small peaks that are tried for the smallest slab.
        SMALL_PLANS: usize = 8;
    }

    /// The smallest slab (`fit/smallest.rs`, `fit/rungs.rs`).
    min_slab {
        /// Share of the effort of a rung for the smallest slab; the rest is for faster plans in it.
        SMALLEST: f64 = 0.7;
        /// Share of the remaining time to search for the smallest peak; the rest is for addresses.
        PEAK: f64 = 0.4;
        /// Share of the time then remaining for first addresses of each of the smallest plans.
        LOOK: f64 = 0.08;
        /// Work of thorough packing before a deadline counts; less if the caller chose the
        /// deadline. For steps of 5,000 runs this is all the work that is worthwhile.
        FLOOR: u64 = 200_000;
        /// The same for the search's own plans, which more often cannot be packed at all.
        OWN_FLOOR: u64 = 80_000;
        /// Share of a rung's remaining time for each budget below the slab of a small step.
        LEAST: f64 = 0.2;
        /// Share of the time then remaining for faster plans before less is asked for.
        FASTER: f64 = 0.25;
        /// Share of the remaining time of a rung for each target below the slab of another step.
        ASKED: f64 = 0.2;
        /// The same for a slab that would be enough.
        ENOUGH: f64 = 0.8;
        /// Share of a deadline after which a rung that lowers nothing is the last one.
        VAIN: f64 = 0.3;
        /// The first of these targets is lower by one part in this many of the slab.
        STEP: u64 = 50;
        /// None is tried that is lower by less than one part in this many.
        LAST_STEP: u64 = 512;
        /// A slab that exceeds a budget by at most one part in this many of itself gets twice the
        /// time.
        NEAR: u64 = 50;
    }

    /// Planners with a fixed rule (`fit/rule.rs`).
    rule {
        /// Ratio of slab to bytes held up to which a slab is compact, so that no more work is spent
        /// on it.
        COMPACT: f64 = 1.02;
        /// Share of the whole effort spent on making a slab compact that fits already.
        COMPACTION: f64 = 0.3;
        /// Share of the whole effort for planning within a budget; the rest is for the smallest
        /// slab.
        BUDGET: f64 = 0.3;
        /// Share of the whole effort for the smallest slab if nothing else is requested.
        SMALLEST: f64 = 0.55;
    }

    /// Addresses (`schedule/buffers.rs`, `schedule/layout`).
    layout {
        /// Most work of one layout, per buffer: a step is lowered several times, and improvements
        /// are found early.
        WORK: u64 = 32;
        /// Least of that limit of work, for steps with few buffers.
        WORK_OF_FEW: u64 = 1 << 14;
        /// Fractions of the capacity above which a moment counts as tight; for the last, all do.
        TIGHT: [f64; 4] = [0.98, 0.9, 0.7, 0.0];
        /// Nodes of the shortest search per block: a packing has one per block, and some floors are
        /// raised.
        NODES: u64 = 2;
        /// Least nodes of the shortest search: enough to exclude an end for ten blocks.
        LEAST_NODES: u64 = 600;
        /// Largest stretch of the measures of a ranking, as a fraction, after the first pass.
        NOISE: f64 = 0.3;
        /// Rounds of repair without a lower end after which repair stops.
        MOST_FAILED_ROUNDS: u32 = 3;
    }

    /// Slack between ranks (`plan/spread/mod.rs`).
    spread {
        /// Fractions of the budget that delayed or early runs may use; what they really hold is
        /// known only afterwards.
        BUDGETS: [f64; 4] = [1.0, 0.97, 0.93, 0.85];
    }

    /// Which storages are away when (`plan/offload`).
    offload {
        /// How much more persistent storages weigh.
        PERSISTENT: f64 = 1.125;
        /// Divisor of the largest storage: smaller storages stay on the device, as transfers have a
        /// latency.
        LEAST: u64 = 1 << 14;
        /// One in this many of what is away, at most, is brought back to try another choice.
        DISTURBED: usize = 8;
        /// The number of times that more free bytes are requested where the step waits.
        MOST_WANTED: usize = 8;
        /// Fraction of a step by which transfers begin to return before they would be late:
        /// measured times differ from predicted ones.
        EARLY: f64 = 0.01;
        /// Weight of transfer seconds that no idle time hides: the step stalls for them.
        STALL: f64 = 4.0;
        /// Idle intervals per interval chosen in one pass over them, at least one: a pass takes
        /// longer the more there are.
        IDLE_OF_A_LOOK: usize = 2048;
        /// Intervals that are examined regardless of the time, each counted once per pass.
        UNTIMED: usize = 1 << 22;
    }

    /// Sequences with moves (`fit/sequences.rs`, `hold/moving.rs`).
    sequences {
        /// Number of budgets above the requested one (levels) that the search recomputes down to.
        LEVELS: u32 = 7;
        /// The highest level above the budget, as a fraction of the bytes that lanes hide at most.
        MOST_HIDDEN: f64 = 1.5;
        /// Number of levels if the bracket of a similar budget is known.
        FEW_LEVELS: u32 = 3;
        /// By how much that bracket is widened at each end, as a fraction of the same bytes.
        NEAR: f64 = 0.06;
        /// Lanes are in time if the step waits for no more than this fraction of its runs' time.
        IN_TIME: f64 = 4e-3;
        /// Work of the search at each level, per operator.
        WORK_OF_A_LEVEL: u64 = 60;
        /// Share of the remaining time for the first plan of a level.
        FIRST_OF_A_LEVEL: f64 = 0.1;
        /// Share of the whole time for all levels: half for sequences, half for first choices of
        /// moves.
        SEARCH: f64 = 0.25;
        /// Number of sequences, the fastest of those found, that are improved.
        IMPROVED: usize = 3;
        /// Work per run for choosing what moves; three times as much in each further pass.
        LOOK: u64 = 200;
        /// Bytes moved beyond what has to be, as fractions of the bytes that lanes hide at most.
        SPARE: [f64; 6] = [0.0, 0.01, 0.03, 0.06, 0.12, 0.2];
        /// Number of passes of a descent, each more thorough than the one before.
        MOST_THOROUGH: u32 = 4;
        /// Share of the remaining time for one step of a pass.
        LEG: f64 = 0.1;
        /// Most storages that are tried, one by one, for being recomputed instead of brought back.
        MOST_INSTEAD: usize = 8;
        /// Share of the remaining time for finding a plan that moves nothing, where no addresses
        /// are given.
        WITHOUT_MOVES: f64 = 0.3;
    }

    /// Plans with moves, in turns (`fit/turns.rs`).
    turns {
        /// Number of turns; in each, sequences are improved for as many bytes as addresses pack
        /// for.
        TURNS: u32 = 6;
        /// Share of a turn for moves and recomputation; the rest is for addresses.
        DESCENT: f64 = 0.7;
        /// Share of the remaining time for the addresses of one plan.
        ADDRESSES: f64 = 0.1;
        /// The first aim is the budget less one part in this many: slack costs time but makes
        /// packing easier.
        SLACK: u64 = 80;
        /// If addresses do not pack, the aim falls by one part in this many of the budget; then by
        /// twice as much each time.
        STEP: u64 = 100;
        /// The bisection of aims ends if they differ by at most one part in this many.
        CLOSE: u64 = 500;
        /// Share of the whole time after which a budget within which nothing was found counts as
        /// near the smallest.
        UNTAKEN: f64 = 0.4;
        /// Share of the then remaining time for the smallest slab of a plan that moves nothing.
        STAYING: f64 = 0.5;
        /// Share of the then remaining time for faster schedules within the smallest slab if that
        /// exceeds the budget.
        FASTER: f64 = 0.25;
        /// Share of the then remaining time for the slab of each candidate for the smallest.
        SMALLEST: f64 = 0.25;
    }
}
