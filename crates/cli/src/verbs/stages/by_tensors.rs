//! Pipelines whose devices are planned tensor by tensor, for `tightfit stages`. Invariant: each is
//! planned in its share of the time, and of refusals the one that asks least is kept.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tightfit::FitError;
use tightfit::effort::Effort;
use tightfit::pipeline::stages::StagePlan;
use tightfit::pipeline::{Planning, Time};
use tightfit::plan::PlanError;
use tightfit::staged::{PlannedStages, TensorPlanning, TensorPlanningError};
use tightfit::units::{Bytes, Seconds};

use crate::clock::wall;
use crate::values::Room;

/// The least time for each device of a candidate, if there is as much for two candidates.
const LEAST_SHARE: Seconds = Seconds(0.05);

/// More bytes than any refusal says are needed.
const NOTHING_KNOWN: Room = Room::AtLeast(Bytes::LIMIT);

/// Plans candidates tensor by tensor, and shows how far it is.
pub struct ByTensors<'a> {
    planning: TensorPlanning<'a>,
    timer: Timer<'a>,
    bar: ProgressBar,
}

impl<'a> ByTensors<'a> {
    /// For this many candidates.
    pub fn new(planning: TensorPlanning<'a>, timer: Timer<'a>, candidates: usize) -> ByTensors<'a> {
        let bar = ProgressBar::new(candidates as u64);
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}  {elapsed}") {
            bar.set_style(style);
        }
        if !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        ByTensors { planning, timer, bar }
    }
}

impl Drop for ByTensors<'_> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

impl Planning for ByTensors<'_> {
    type Planned = PlannedStages;
    type Refusal = TensorPlanningError;
    type Need = Room;

    fn plan(
        &mut self,
        candidate: &StagePlan,
        waiting: usize,
    ) -> Result<PlannedStages, TensorPlanningError> {
        self.bar.set_message(candidate.schedule.clone());
        self.bar.set_position(self.bar.length().unwrap_or(0).saturating_sub(waiting as u64));
        let effort = self.timer.of_each(self.planning.devices.ranks, waiting);
        TensorPlanning { effort, ..self.planning }.plan(candidate)
    }

    fn cost(&self, planned: &PlannedStages) -> f64 {
        planned.times.makespan.0
    }

    fn may_beat(&self, least: Seconds, best: &PlannedStages) -> bool {
        least.0 < best.times.makespan.0
    }

    /// One that is known to fit with some budget comes first.
    fn need(&self, refusal: &TensorPlanningError) -> Room {
        room(refusal, Bytes::ZERO).unwrap_or(NOTHING_KNOWN)
    }

    fn time(&self) -> Time {
        self.timer.time()
    }
}

/// How long planning may take.
pub struct Timer<'a> {
    /// The effort that was requested.
    pub whole: Effort<'a>,
    /// When it ends, if it does.
    pub until: Option<Seconds>,
    /// Whether it ends at once.
    pub is_interrupted: &'a (dyn Fn() -> bool + Sync),
}

impl Timer<'_> {
    fn left(&self) -> Option<Seconds> {
        self.until.map(|until| Seconds((until.0 - wall().0).max(0.0)))
    }

    fn time(&self) -> Time {
        self.time_above(0.0)
    }

    /// The time for choosing cuts: half of it.
    pub fn for_cuts(&self) -> Time {
        self.time_above(self.whole.deadline.0 / 2.0)
    }

    fn time_above(&self, end: f64) -> Time {
        match self.left() {
            _ if (self.is_interrupted)() => Time::Interrupted,
            None => Time::Unlimited,
            Some(left) if left.0 > end => Time::Left,
            Some(_) => Time::Up,
        }
    }

    /// The effort for one of this many candidates: as much time as for one step, or a share of the
    /// time left. Shares are no shorter than what plans take, as long as two candidates get one.
    fn of_each(&self, devices: u32, candidates: usize) -> Effort<'_> {
        let devices = f64::from(devices);
        let Some(left) = self.left() else { return self.whole };
        let most = (left.0 / devices / LEAST_SHARE.0).max(2.0);
        let shares = most.min(candidates as f64);
        let of_device = |floor: u64| (floor as f64 / shares / devices) as u64;
        let of_all = |time: Seconds| Seconds(time.0 / shares);
        Effort {
            deadline: of_all(left),
            grace: self.whole.grace.map(of_all),
            floor: of_device(self.whole.floor),
            floor_beside: of_device(self.whole.floor_beside),
            ..self.whole
        }
    }
}

/// What the rank that did not fit needs, if that is known; `reserve` is not the slab's.
pub fn room(error: &TensorPlanningError, reserve: Bytes) -> Option<Room> {
    match error {
        TensorPlanningError::TooLittle { needed, .. } => Some(Room::AtLeast(*needed + reserve)),
        TensorPlanningError::Rank { beside, error, .. } => {
            let reached = match &**error {
                FitError::Plan(PlanError::Infeasible(proof)) => proof.reached,
                FitError::Plan(PlanError::NotFound(found)) => found.reached,
                _ => return None,
            };
            Some(Room::Enough(reached + *beside + reserve))
        }
        _ => None,
    }
}
