//! An accepted step trains alike at 100 % and at `min`. Invariant: losses, evaluation and all that
//! stays are compared bit for bit; a step that only one budget accepts is as wrong as one that
//! differs, and so is a smallest budget that is refused when it is requested in bytes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use tightfit::graph::read;
use tightfit::machine::Machine;
use tightfit::plan::Planner;
use tightfit::profile::CallSeconds;
use tightfit::units::Bytes;
use tightfit_engine::step::input;
use tightfit_engine::{Budget, Dataset, Executable, FitTask, Session, Step, fit_step};

use crate::target::make::{ORIGINAL, original};
use crate::target::{EFFORT, raw, refused};
use crate::verdict::Verdict;

const STEPS: u32 = 2;
const SEED: u64 = 1;

/// What a run leaves: the bits of its losses, its evaluation, its outputs, its weights and state.
#[derive(Clone, Debug, PartialEq)]
pub struct Trained {
    losses: Vec<u32>,
    outputs: Vec<Option<Vec<u8>>>,
    evaluation: Option<u64>,
    residents: BTreeMap<String, Vec<u8>>,
}

/// Trains the step of a folder at both budgets, or executes the bare graph that lies there. If the
/// folder names an original, all trained numbers must equal the original's; `originals` caches what
/// those train.
pub fn judge(folder: &Path, originals: &mut BTreeMap<String, Trained>) -> Verdict {
    if !folder.join("step.json").exists() {
        return match read(&std::fs::read(folder.join("graph.json")).unwrap_or_default()) {
            Ok(graph) => raw::judge(&graph),
            Err(error) => refused("reading", &error),
        };
    }
    let changed = match train_both(folder) {
        Ok(changed) => changed,
        Err(verdict) => return verdict,
    };
    let Ok(name) = std::fs::read_to_string(folder.join(ORIGINAL)) else {
        return Verdict::Executed;
    };
    if !originals.contains_key(&name) {
        match train_both(&original(&name)) {
            Ok(trained) => drop(originals.insert(name.clone(), trained)),
            Err(verdict) => return Verdict::Wrong(format!("the seed `{name}`: {verdict}")),
        }
    }
    let keeps = originals.get(&name).is_some_and(|original| {
        changed.losses == original.losses && changed.residents == original.residents
    });
    if keeps {
        Verdict::Executed
    } else {
        Verdict::Wrong("a change that feeds nothing changes what is trained".to_string())
    }
}

fn train_both(folder: &Path) -> Result<Trained, Verdict> {
    let (step, _) = open(folder)?;
    let graphs = [Some(&step.training), step.evaluation.as_ref()];
    if let Some(verdict) = graphs.into_iter().flatten().find_map(raw::too_large) {
        return Err(verdict);
    }
    let whole = train(&step, Budget::Share(1.0), 1);
    let smallest = train(&step, Budget::Smallest, 2);
    match (whole, smallest) {
        (Ok(whole), Ok(smallest)) => equal(whole, &smallest),
        (Err(whole), Err(smallest)) if whole.cause() == smallest.cause() => Err(whole),
        (Err(verdict), _) | (_, Err(verdict)) if verdict.is_finding() => Err(verdict),
        (Err(whole), Ok(_)) => Err(Verdict::Wrong(format!("100 % alone: {whole}"))),
        (Ok(_), Err(smallest)) => Err(Verdict::Wrong(format!("min alone: {smallest}"))),
        (Err(whole), Err(smallest)) => {
            Err(Verdict::Wrong(format!("100 %: {whole}, but min: {smallest}")))
        }
    }
}

fn equal(whole: Trained, smallest: &Trained) -> Result<Trained, Verdict> {
    let wrong = |what: String| Err(Verdict::Wrong(what));
    if whole.losses != smallest.losses {
        return wrong("losses differ between the budgets".to_string());
    }
    if whole.outputs != smallest.outputs {
        return wrong("outputs differ between the budgets".to_string());
    }
    // If training leaves too little memory, there is no evaluation.
    let both = whole.evaluation.zip(smallest.evaluation);
    if both.is_some_and(|(whole, smallest)| whole != smallest) {
        return wrong("evaluations differ between the budgets".to_string());
    }
    if !whole.residents.keys().eq(smallest.residents.keys()) {
        return wrong("other tensors stay".to_string());
    }
    let differs =
        |(name, bytes): &(&String, &Vec<u8>)| smallest.residents.get(*name) != Some(*bytes);
    if let Some((name, _)) = whole.residents.iter().find(differs) {
        return wrong(format!("`{name}` differs between the budgets"));
    }
    Ok(whole)
}

/// Opens a step with data that suit it, as the program does.
pub fn open(folder: &Path) -> Result<(Step, Dataset), Verdict> {
    let step = Step::open(folder).map_err(|error| refused("the step", &error))?;
    let data = Dataset::open(&step.data, &step.folder, None)
        .map_err(|error| refused("the data", &error))?;
    for graph in [Some(&step.training), step.evaluation.as_ref()].into_iter().flatten() {
        if let (Some((_, rows)), Some((_, target))) =
            (input(graph, "input"), input(graph, "target"))
        {
            data.suits(&graph.values()[rows], &graph.values()[target])
                .map_err(|error| refused("the data's shape", &error))?;
        }
        Executable::admits(graph).map_err(|error| refused("admission", &error))?;
    }
    Ok((step, data))
}

fn train(step: &Step, budget: Budget, threads: u32) -> Result<Trained, Verdict> {
    let machine = Machine::unmeasured_cpu(threads);
    let (beside, planner) = (Bytes::ZERO, Planner::Auto);
    let task = FitTask { machine: &machine, budget, beside, planner, effort: EFFORT };
    let planned = fit_step(step, &CallSeconds::new("", threads), &task)
        .map_err(|error| refused("planning", &error))?;
    if budget == Budget::Smallest {
        // A budget that is named as enough has to be enough when it is requested.
        let named = FitTask { budget: Budget::Absolute(planned.training.budget), ..task };
        fit_step(step, &CallSeconds::new("", threads), &named)
            .map_err(|error| Verdict::Wrong(format!("min in bytes is refused: {error}")))?;
    }
    let mut session = Session::builder(step, planned.training.fitted.checked())
        .evaluation(planned.evaluation.as_ref())
        .slab(planned.training.slab())
        .threads(threads as usize)
        .seed(SEED)
        .start()
        .map_err(|error| refused("compiling", &error))?;
    let mut data = Dataset::open(&step.data, &step.folder, None)
        .map_err(|error| refused("the data", &error))?;
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let loss = session.step(&mut data).map_err(|error| refused("running", &error))?;
        losses.push(loss.to_bits());
    }
    let outputs = step.training.outputs().iter().enumerate();
    let outputs =
        outputs.map(|(index, _)| session.training_output(index).map(Cow::into_owned)).collect();
    let residents = session.residents();
    let residents = residents
        .iter()
        .map(|(name, resident)| {
            (name.clone(), session.resident_bytes(resident).unwrap_or_default())
        })
        .collect();
    let evaluation = session
        .evaluate(&mut data, 1)
        .map_err(|error| refused("evaluating", &error))?
        .map(|evaluation| evaluation.loss.to_bits());
    Ok(Trained { losses, outputs, evaluation, residents })
}
