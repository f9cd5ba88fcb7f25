//! What verbs are given: a graph file or a step's folder, statistics of modules, a plan, a machine
//! by name. Invariant: nothing is measured beyond this processor's rates, and what is read was
//! verified by the module that reads it.

use std::fs::File;
use std::iter;
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde::Deserialize;
use tightfit::analysis::modules::{ModuleInfo, measure};
use tightfit::graph::Graph;
use tightfit::graph::limits::{MOST_OPERATOR_FIGURES, MOST_PLAN, MOST_STATISTICS};
use tightfit::id::ValueId;
use tightfit::machine::{Machine, presets};
use tightfit::profile::Profile;
use tightfit::reading::{Bounded, excess, in_full};
use tightfit::schedule::{self, Schedule};
use tightfit::timeline::Timeline;
use tightfit_engine::step::{self, read_graph};
use tightfit_engine::{Dataset, Step};

use crate::failure::{Context, Result};
use crate::tier::{self, Folder};
use crate::values::{HasTimes, MOST_THREADS, NoDataSheet, efficiency};
use crate::{calls, places, processor};

/// The training graph of a step's folder, or the graph of a file; `true` for a step.
pub fn graph(path: &Path) -> Result<(Graph, bool)> {
    if path.is_dir() {
        Ok((Step::open(path)?.training, true))
    } else {
        Ok((read_graph(path)?, false))
    }
}

/// The files of a step's folder, or a graph's own.
pub fn files(path: &Path) -> Result<Vec<PathBuf>> {
    Ok(if path.is_dir() { Step::open(path)?.files } else { vec![path.to_path_buf()] })
}

/// The same, and the file of a plan for it.
pub fn files_with(path: &Path, plan: Option<&Path>) -> Result<Vec<PathBuf>> {
    let mut files = files(path)?;
    files.extend(plan.map(Path::to_path_buf));
    Ok(files)
}

/// All bytes of a file that should hold `what`, if they are at most `most`.
pub fn bytes(path: &Path, most: u64, what: &'static str) -> std::io::Result<Vec<u8>> {
    in_full(File::open(path)?, most, what)
}

/// Statistics of a model's modules, and where they come from.
pub struct Statistics {
    /// The statistics.
    pub info: ModuleInfo,
    /// The file that holds them; empty if they are those of a graph.
    pub text: Vec<u8>,
    /// The machine that a graph was measured for.
    pub machine: Option<String>,
}

/// Statistics of a model's modules: from a file that holds them, or of a graph or a step on a
/// machine. Files are told apart by what is in them.
pub fn modules(path: &Path, on: &OnMachine) -> Result<Statistics> {
    if !path.is_dir() {
        let file = || path.display().to_string();
        match bytes(path, MOST_STATISTICS, "a file of statistics") {
            Ok(text) if Statistics::stand_in(&text) => {
                on.must_be_absent()?;
                return Statistics::read(text).with_context(file);
            }
            Err(error) if excess(&error).is_none() => return Err(error).with_context(file),
            // A file too long for statistics may be a graph.
            Ok(_) | Err(_) => {}
        }
    }
    let (graph, is_step) = self::graph(path)?;
    Statistics::of(&graph, on.machine(is_step)?)
}

/// The operators under each module that a file of statistics records in addition to the modules.
pub fn operators(text: &[u8]) -> Option<serde_json::Value> {
    #[derive(Deserialize)]
    struct Recorded {
        sac_stats: Option<Bounded<MOST_OPERATOR_FIGURES>>,
    }
    let recorded: Option<Recorded> = serde_json::from_slice(text).ok();
    recorded?.sac_stats.map(|stats| stats.0)
}

impl Statistics {
    /// A text holds statistics rather than a graph.
    pub fn stand_in(text: &[u8]) -> bool {
        let has = |key: &str| text.windows(key.len()).any(|window| window == key.as_bytes());
        !has("tightfit-graph/")
            && ["\"mod_stats\"", "\"mod_order\"", "\"module_info\""].into_iter().any(has)
    }

    /// Parses statistics from a text.
    pub fn read(text: Vec<u8>) -> Result<Statistics> {
        let info = ModuleInfo::from_json(&text)?;
        Ok(Statistics { info, text, machine: None })
    }

    /// Where their times hold, in words to follow one of the times.
    pub fn place(&self) -> String {
        self.machine.as_ref().map_or(String::new(), |machine| format!(" on {machine}"))
    }

    /// The statistics of a graph on a machine.
    pub fn of(graph: &Graph, machine: Machine) -> Result<Statistics> {
        let profile = profile(graph, &machine).without_reuse();
        let info = measure(graph, &profile)?;
        Ok(Statistics { info, text: Vec::new(), machine: Some(machine.name) })
    }
}

/// The machine that a step is planned for, as it is given on the command line.
#[derive(Args, Default)]
pub struct OnMachine {
    /// What the step is planned for: the processor as measured, others at the rates of their data
    /// sheets [default: cpu for steps, a100-80gb for graphs]
    #[arg(long, value_parser = machines())]
    machine: Option<String>,
    /// How much of a data sheet's rates kernels reach, such as 60%
    #[arg(long, value_name = "SHARE", value_parser = efficiency)]
    efficiency: Option<f64>,
    /// Worker threads of the cpu machine [default: all processors]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=MOST_THREADS))]
    threads: Option<u32>,
}

/// The machine that a step is planned for, and a memory below it.
#[derive(Args, Default)]
pub struct OnTiers {
    #[command(flatten)]
    on: OnMachine,
    /// A memory below the device to which plans may move tensors, and its size if that is limited:
    /// pcie4, pcie5, nvlink-c2c or nvme, as in pcie4:64GiB; with cpu a folder, which is measured
    #[arg(long, value_name = "TIER[:SIZE]")]
    tier: Option<String>,
}

/// The names of machines.
fn machines() -> PossibleValuesParser {
    let known = iter::once("cpu".to_string()).chain(presets().map(|machine| machine.name));
    known.collect::<Vec<_>>().into()
}

impl OnMachine {
    /// A machine by name, and the number of threads if it is the processor.
    pub fn named(machine: Option<String>, threads: Option<u32>) -> OnMachine {
        OnMachine { machine, efficiency: None, threads }
    }

    /// Refuses a machine for statistics, which have times of their own.
    fn must_be_absent(&self) -> Result<(), HasTimes> {
        let given = [
            ("--machine", self.machine.is_some()),
            ("--efficiency", self.efficiency.is_some()),
            ("--threads", self.threads.is_some()),
        ];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) => Err(HasTimes { option }),
            None => Ok(()),
        }
    }

    /// The machine with the given name; without a name the processor for steps, an A100 for graphs.
    pub fn machine(&self, is_step: bool) -> Result<Machine> {
        let machine = match self.machine.as_deref() {
            Some("cpu") => processor::machine(self.threads),
            None if is_step => processor::machine(self.threads),
            name => Machine::preset(name.unwrap_or("a100-80gb"))?,
        };
        match self.efficiency {
            None => Ok(machine),
            Some(_) if machine.runtime.rules().runs_here => Err(NoDataSheet.into()),
            Some(share) => Ok(machine.at_efficiency(share)),
        }
    }
}

impl OnTiers {
    /// A machine by name, with threads if it is the processor, and a tier below it.
    pub fn named(machine: Option<String>, threads: Option<u32>, tier: Option<String>) -> OnTiers {
        OnTiers { on: OnMachine::named(machine, threads), tier }
    }

    /// The tier, as given on the command line.
    pub fn tier(&self) -> Option<&str> {
        self.tier.as_deref()
    }

    /// The machine, with the tier below it if there is one.
    pub fn machine(&self, is_step: bool) -> Result<Machine> {
        let mut machine = self.on.machine(is_step)?;
        match &self.tier {
            None => Ok(machine),
            Some(folder) if machine.runtime.rules().runs_here => {
                Folder::parse(folder)?.add_to(&mut machine, None)?;
                Ok(machine)
            }
            Some(preset) => tier::preset(machine, preset),
        }
    }
}

/// Costs on a machine from what is known already; nothing is measured.
pub fn profile(graph: &Graph, machine: &Machine) -> Profile {
    Profile::measured(graph, machine, &calls::known(machine))
}

/// The plan of a file, for `graph`.
pub fn plan(path: &Path, graph: &Graph) -> Result<Schedule> {
    let file = || path.display().to_string();
    let text = bytes(path, MOST_PLAN, "a plan").with_context(file)?;
    schedule::read(graph, &text).with_context(file)
}

/// A plan executed abstractly, in the budget that it was made for.
pub fn checked(
    graph: &Graph,
    profile: &Profile,
    machine: &Machine,
    schedule: &Schedule,
) -> Result<Timeline> {
    let checked = tightfit::check::check(graph, profile, schedule, schedule.budget);
    checked.with_context(|| made_for_another(machine))
}

/// Why a plan that holds elsewhere may not hold here.
pub fn made_for_another(machine: &Machine) -> String {
    format!(
        "the plan does not hold on {}; name the machine and the threads that it was made for",
        machine.name
    )
}

/// Says that batches are larger than the data.
pub fn note_repeated_rows(data: &Dataset, step: &Step) {
    let targets = step::inputs(&step.training, "target").into_iter();
    let rows = |target: ValueId| step.training.values()[target].tensor.shape.first().copied();
    let batch: u64 = targets.filter_map(|(_, target)| rows(target)).sum();
    if let Some(rows) = data.training_rows().filter(|&rows| (rows as u64) < batch) {
        note!(
            "note: {} has {rows} rows for training, fewer than the {batch} of a batch, so each \
             batch holds some of them more than once",
            places::short(&data.path).display()
        );
    }
}

/// Refuses data that the step's graphs do not take.
pub fn suits(data: &Dataset, step: &Step) -> Result<()> {
    for graph in [Some(&step.training), step.evaluation.as_ref()].into_iter().flatten() {
        if let (Some((_, input)), Some((_, target))) =
            (step::input(graph, "input"), step::input(graph, "target"))
        {
            data.suits(&graph.values()[input], &graph.values()[target])?;
        }
    }
    step.data.suits(&step.training, step.evaluation.as_ref())?;
    Ok(())
}
