//! Values of arguments as people write them. Invariant: what parses is in its range, and for what
//! does not the answer says how to write it.

use std::fmt;
use std::path::PathBuf;

use clap::builder::{PathBufValueParser, TypedValueParser};
use thiserror::Error;
use tightfit::exit::{Coded, Exit, Refusal, coded};
use tightfit::id::RankId;
use tightfit::plan::Infeasible;
use tightfit::units::{Bytes, Seconds};
use tightfit_engine::{Budget, Reserve};

use crate::output;

/// More threads than any processor runs at once.
pub const MOST_THREADS: i64 = 256;

/// A name that no module has.
#[derive(Debug, Error)]
#[error("there is no module `{name}`; `tightfit modules` lists them")]
pub struct UnknownModule {
    /// The name.
    pub name: String,
}

/// An efficiency of rates that were measured.
#[derive(Debug, Error)]
#[error(
    "--efficiency is a share of a data sheet's rates, and those of cpu are measured; name a \
     --machine with a data sheet, such as a100-80gb"
)]
pub struct NoDataSheet;

/// A machine for statistics of modules.
#[derive(Debug, Error)]
#[error("statistics of modules have times of their own: {option} is for graphs and steps")]
pub struct HasTimes {
    /// The option.
    pub option: &'static str,
}

/// A budget that no schedule fits, since the process alone takes all of it.
#[derive(Debug, Error)]
#[error(
    "a budget of {budget} leaves nothing for a slab: the process itself takes {}, and the matrix \
     product packs {} in addition", reserve.base, reserve.packing
)]
pub struct BelowReserve {
    /// The whole budget.
    pub budget: Bytes,
    /// What the process takes in addition to the slab.
    pub reserve: Reserve,
}

/// No order has as many stages as a cut makes.
#[derive(Debug, Error)]
#[error(
    "cuts before {} make {} stages, and orders on {} have {}; name {} modules",
    output::several(*cuts, "module", "s"),
    cuts + 1,
    output::several(*devices as usize, "device", "s"),
    any_of(possible.iter().copied()),
    any_of(possible.iter().map(|stages| stages - 1))
)]
pub struct OtherStages {
    /// The cuts.
    pub cuts: usize,
    /// How many devices there are.
    pub devices: u32,
    /// How many stages the orders have.
    pub possible: Vec<u32>,
}

fn any_of(numbers: impl Iterator<Item = u32>) -> String {
    numbers.map(|number| number.to_string()).collect::<Vec<_>>().join(" or ")
}

/// No stages were found within the budget of each device.
#[derive(Debug, Error)]
#[error("no plan was found that fits {devices} devices of {budget}: by what layers hold, {lack}")]
pub struct NoStages {
    /// How many devices there are.
    pub devices: u32,
    /// The budget of each.
    pub budget: Bytes,
    /// What does not fit.
    pub lack: Lack,
}

/// What part of a model does not fit.
#[derive(Debug)]
pub enum Lack {
    /// A layer, even alone.
    Layer(String, Bytes),
    /// Each layer fits alone, but they do not fit together; this many bytes of them exist once for
    /// all micro-batches.
    Together(Bytes),
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lack::Layer(layer, needed) => {
                write!(f, "{layer} alone needs {needed} with nothing else in memory")
            }
            Lack::Together(held) => write!(
                f,
                "each layer fits alone, but no cut leaves each device with layers that fit \
                 together; their parameters, gradients and state are {held} on all devices"
            ),
        }
    }
}

/// No pipeline that was tried has ranks, planned tensor by tensor, that fit into the budget.
#[derive(Debug, Error)]
#[error(
    "no plan was found that fits {devices} devices of {budget}, of the cuts that were tried: \
     {schedule} came closest, and its {rank} {room}{}",
    because.as_ref().map_or(String::new(), |of_rank| format!("\n{rank}, cut so: {of_rank}"))
)]
pub struct NoRanks {
    /// How many devices there are.
    pub devices: u32,
    /// The budget of each.
    pub budget: Bytes,
    /// The order.
    pub schedule: String,
    /// The rank that does not fit.
    pub rank: RankId,
    /// The bytes that it needs.
    pub room: Room,
    /// What is alive where it does not fit.
    pub because: Option<Box<Infeasible>>,
}

/// What is known of a rank's need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Room {
    /// This budget is known to suffice.
    Enough(Bytes),
    /// Whatever the plan, it needs more than the budget, at least this much.
    AtLeast(Bytes),
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Room::Enough(bytes) => write!(f, "is known to fit in {bytes}"),
            Room::AtLeast(bytes) => write!(f, "needs at least {bytes}"),
        }
    }
}

/// A variant of a planner that has no variants.
#[derive(Debug, Error)]
#[error(
    "planner `{planner}` has no variants; `{option}` chooses between those of capuchin and goes \
     with `--planner capuchin`"
)]
pub struct NoVariants {
    /// The planner.
    pub planner: &'static str,
    /// The option that asked for a variant.
    pub option: &'static str,
}

/// A picture of a frontier that has no points.
#[derive(Debug, Error)]
#[error("--svg frontier draws points; leave --points 0 out")]
pub struct NoPoints;

/// A step that someone else may have written names a file of this machine.
#[derive(Debug, Error)]
#[error(
    "{} names {}, which lies neither in the step's folder, nor in the repository around it, nor \
     below the working directory; if the step is to read it, add --allow-outside",
    step.display(),
    file.display()
)]
pub struct Outside {
    /// The step's folder.
    pub step: PathBuf,
    /// The file.
    pub file: PathBuf,
}

/// A file's path: what is written piece by piece cannot go to standard output.
pub fn file_path() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path.as_os_str() == "-" {
        true => Err("standard output takes no weights; name a file"),
        false => Ok(path),
    })
}

/// A size that is not a budget, and so cannot be a share of anything.
#[derive(Debug, Error)]
#[error("`{0}` is not a size; write bytes, 320MiB or 64GB")]
pub struct NotASize(String);

/// Bytes: 1000000, 320MiB, 64GB.
pub fn size(text: &str) -> Result<Bytes, NotASize> {
    match text.parse() {
        Ok(Budget::Absolute(bytes)) => Ok(bytes),
        _ => Err(NotASize(text.to_string())),
    }
}

/// How long to wait: a duration that is not zero.
pub fn deadline(text: &str) -> Result<Seconds, String> {
    let seconds = duration(text)?;
    match seconds.0 > 0.0 {
        true => Ok(seconds),
        false => Err("a deadline of zero is over at once; write 10, 10s or 500ms".to_string()),
    }
}

/// The longest duration, some thirty years: what is computed with it stays finite.
const LONGEST: f64 = 1e9;
/// The slowest link, in bytes per second, for the same reason.
const SLOWEST: f64 = 1.0;

/// A duration: 10, 10s, 500ms, 20us.
pub fn duration(text: &str) -> Result<Seconds, String> {
    let text = text.trim();
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("", 1.0)];
    let (digits, unit) = units
        .into_iter()
        .find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)))
        .unwrap_or((text, 1.0));
    let seconds =
        digits.trim().parse().ok().map(|x: f64| x * unit).filter(|x| (0.0..=LONGEST).contains(x));
    seconds
        .map(Seconds)
        .ok_or_else(|| "write seconds, at most 1e9, as in 10, 0.5, 10s, 500ms or 20us".to_string())
}

/// A share of something, from none to all of it: 1%, 0.01.
pub fn share(text: &str) -> Result<f64, String> {
    share_from(0.0, text)
        .ok_or_else(|| "write a share from 0% to 100%, as in 1% or 0.01".to_string())
}

/// A share of a machine's rates: 60%, 0.6.
pub fn efficiency(text: &str) -> Result<f64, String> {
    share_from(0.01, text)
        .ok_or_else(|| "write a share from 1% to 100%, as in 60% or 0.6".to_string())
}

/// A share of at least `least`.
fn share_from(least: f64, text: &str) -> Option<f64> {
    let text = text.trim();
    let (number, whole) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let share = number.trim().parse::<f64>().ok().map(|number| number / whole);
    share.filter(|share| (least..=1.0).contains(share))
}

/// A fraction of the activation peak.
pub fn fraction(text: &str) -> Result<f64, String> {
    let fraction = text.trim().parse().ok().filter(|fraction: &f64| (0.0..=1.0).contains(fraction));
    fraction.ok_or_else(|| "a fraction of the activation peak lies between 0 and 1".to_string())
}

/// Bytes per second: 100GB/s, 25GiB/s, 1e11.
pub fn bandwidth(text: &str) -> Result<f64, String> {
    let rate = text.trim().trim_end_matches("/s");
    let number = rate.parse::<f64>().ok().filter(|rate| rate.is_finite());
    number
        .or_else(|| size(rate).ok().map(|Bytes(bytes)| bytes as f64))
        .filter(|&rate| rate >= SLOWEST)
        .ok_or_else(|| {
            "write bytes per second, at least one, as in 100GB/s, 25GiB/s or 1e11".to_string()
        })
}

/// A link between devices: bytes per second, and the latency of the first of them.
pub fn link(text: &str) -> Result<(f64, Seconds), String> {
    let (rate, latency) = text.split_once(',').unwrap_or((text, "0"));
    Ok((bandwidth(rate)?, duration(latency)?))
}

/// A learning rate.
pub fn learning_rate(text: &str) -> Result<f64, String> {
    // Kernels compute in 32 bits.
    let is_finite = |rate: &f64| (*rate as f32).is_finite();
    let rate = text.parse().ok().filter(|rate: &f64| is_finite(rate) && *rate >= 0.0);
    rate.ok_or_else(|| "a learning rate is a finite number that is not negative".to_string())
}

/// The number of points of a frontier.
pub fn frontier(text: &str) -> Result<u32, String> {
    let points = text.parse().ok().filter(|points| (2..=1000).contains(points));
    points.ok_or_else(|| "a frontier has 2 to 1000 points".to_string())
}

/// The number of points of a frontier, or none of them.
pub fn points(text: &str) -> Result<u32, String> {
    match text {
        "0" => Ok(0),
        _ => frontier(text).map_err(|advice| format!("{advice}; 0 leaves it out")),
    }
}

coded!(
    Usage: UnknownModule,
    NoDataSheet,
    HasTimes,
    OtherStages,
    NoVariants,
    NoPoints,
    Outside,
    NotASize
);

impl Coded for BelowReserve {
    fn exit(&self) -> Exit {
        Exit::Infeasible
    }

    fn refusal(&self) -> Option<Refusal> {
        Some(Refusal::of(self.budget, true))
    }
}

impl Coded for NoStages {
    fn exit(&self) -> Exit {
        Exit::NotFound
    }

    fn refusal(&self) -> Option<Refusal> {
        Some(Refusal::of(self.budget, false))
    }
}

impl Coded for NoRanks {
    fn exit(&self) -> Exit {
        Exit::NotFound
    }

    fn refusal(&self) -> Option<Refusal> {
        Some(Refusal::of(self.budget, false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_people_write_them() {
        for (text, seconds) in [
            ("1", 1.0),
            ("500ms", 0.5),
            ("20us", 20.0 * 1e-6),
            ("10s", 10.0),
            ("0.25 s", 0.25),
            ("0", 0.0),
        ] {
            assert_eq!(duration(text), Ok(Seconds(seconds)), "{text}");
        }
        for text in ["", "s", "ms", "-1", "nan", "inf", "1e999", "1e300s", "5m", "1 min"] {
            assert!(duration(text).is_err(), "{text}");
        }
        for text in ["0", "1e-300", "-1", "nan", "inf", "0GB/s"] {
            assert!(bandwidth(text).is_err(), "{text}");
        }
    }
}
