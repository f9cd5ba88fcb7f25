//! How the cases of each target are made: a seed, and a list of changes. Invariant: the changes of
//! a case are drawn independently, so each can be left out while the others stay.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::Context;
use flate2::read::GzDecoder;
use serde_json::Value as Json;
use tightfit::graph::{read, write};
use tightfit::machine::Machine;
use tightfit::plan::Planner;
use tightfit::profile::CallSeconds;
use tightfit::units::Bytes;
use tightfit::{Goal, Request, fit, schedule, unplanned};
use tightfit_engine::{Budget, FitTask, Session, Step, fit_step, weights};

use crate::case::Case;
use crate::draw::Draw;
use crate::mutate::{bytes, graph, legal, modules, plan, step, weights as tensors};
use crate::random;
use crate::target::planted::FAULTS;
use crate::target::{EFFORT, Target, check};

/// The tiny steps that most cases start from.
const TINY: [&str; 4] = ["perceptron", "mixture", "transformer", "dropout"];
/// Steps of the corpus that are small enough.
const SMALL: [&str; 3] = ["mlp-digits", "gpt-nano", "gpt-nano-dropout"];
const STATISTICS: [&str; 2] = ["module_info_llama_tiny_4l.json", "module_info_torchtest_4l.json"];
/// The step whose weights are read.
pub const WEIGHTS_OF: &str = "perceptron";

/// The file that names the step whose numbers a case must reproduce, present if all its changes are
/// neutral.
pub const ORIGINAL: &str = "original";

/// A case, and how it came to be.
pub struct Made {
    /// Its files.
    pub case: Case,
    /// Number of its changes.
    pub changes: usize,
}

/// Which changes of a case are made; all of them if `None`.
pub type Kept<'a> = Option<&'a [usize]>;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The folder of a step that cases are made from.
pub fn original(name: &str) -> PathBuf {
    if SMALL.contains(&name) { root().join("corpus/steps").join(name) } else { tiny(name) }
}

fn tiny(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/seeds").join(name)
}

/// Makes case `number` of a campaign.
pub fn case(target: Target, seed: u64, number: u64, kept: Kept<'_>) -> anyhow::Result<Made> {
    let mut draw = Draw::of(seed, number, 0);
    let parts = Parts { seed, number, kept };
    match target {
        Target::Graph => {
            let mut document = any_graph(&mut draw)?;
            let changes = parts.change(&mut draw, 4, |draw| {
                match draw.below(10) {
                    0..4 => legal::legal(&mut document, false, draw),
                    _ => graph::hostile(&mut document, draw),
                };
            });
            Ok(one("graph.json", &document, changes, &mut draw))
        }
        Target::Step => step_case(&mut draw, &parts),
        Target::Plan | Target::Check => plan_case(target, &mut draw, &parts),
        Target::Modules => {
            let file = root().join("corpus/cases/module_info").join(draw.one(STATISTICS));
            let mut document = parse(&file)?;
            let changes = parts.change(&mut draw, 4, |draw| {
                modules::hostile(&mut document, draw);
            });
            Ok(one("modules.json", &document, changes, &mut draw))
        }
        Target::Weights => {
            let mut file = weights_file()?.to_vec();
            let changes = parts.change(&mut draw, 3, |draw| {
                tensors::hostile(&mut file, draw);
            });
            let case = Case::of([("weights.safetensors", file)]);
            Ok(Made { case, changes })
        }
        Target::Execute => execute_case(&mut draw, &parts),
        Target::Planted => {
            let fault = FAULTS[number as usize % FAULTS.len()];
            let mut text = "kept".repeat(8);
            let changes = parts.change(&mut draw, 1, |_| text += fault);
            let case = Case::of([("fault", text.into_bytes())]);
            Ok(Made { case, changes })
        }
    }
}

/// The changes of one case.
struct Parts<'a> {
    seed: u64,
    number: u64,
    kept: Kept<'a>,
}

impl Parts<'_> {
    /// Makes up to `most` changes, each with a draw of its own; returns their number.
    fn change(&self, draw: &mut Draw, most: usize, mut change: impl FnMut(&mut Draw)) -> usize {
        let count = 1 + draw.below(most);
        for part in (0..count).filter(|part| self.keeps(*part)) {
            change(&mut Draw::of(self.seed, self.number, 1 + part as u64));
        }
        count
    }

    fn keeps(&self, part: usize) -> bool {
        self.kept.is_none_or(|kept| kept.contains(&part))
    }
}

/// A case of one document, randomly packed or damaged.
fn one(name: &str, document: &Json, changes: usize, draw: &mut Draw) -> Made {
    let bytes = bytes::as_file(document.to_string().into_bytes(), draw);
    Made { case: Case::of([(name, bytes)]), changes }
}

fn parse(path: &Path) -> anyhow::Result<Json> {
    let file = std::fs::read(path).with_context(|| path.display().to_string())?;
    Ok(serde_json::from_slice(&unpacked(file)?)?)
}

/// A file of a case that holds a document, packed or not.
fn document_of(case: &Case, name: &str) -> anyhow::Result<Json> {
    Ok(serde_json::from_slice(&unpacked(case.bytes(name).to_vec())?)?)
}

fn unpacked(bytes: Vec<u8>) -> io::Result<Vec<u8>> {
    if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut text = Vec::new();
        io::Read::read_to_end(&mut GzDecoder::new(&bytes[..]), &mut text)?;
        return Ok(text);
    }
    Ok(bytes)
}

/// A graph of any kind, as a document.
fn any_graph(draw: &mut Draw) -> anyhow::Result<Json> {
    let random = |document: Option<Json>| document.context("the generator made no graph");
    match draw.below(10) {
        0..3 => random(random::document(8, draw.word())),
        3 | 4 => random(random::executable(6, draw.word()).map(|graph| write(&graph))),
        5 => parse(&root().join("corpus/steps").join(draw.one(SMALL)).join("eval.json.gz")),
        6 => parse(&tiny(draw.one(TINY)).join("eval.json.gz")),
        _ => parse(&tiny(draw.one(TINY)).join("train.json.gz")),
    }
}

fn step_case(draw: &mut Draw, parts: &Parts<'_>) -> anyhow::Result<Made> {
    let mut case = Case::read(&tiny(draw.one(TINY)))?;
    let mut document: Json = serde_json::from_slice(case.bytes("step.json"))?;
    let mut training = document_of(&case, "train.json.gz")?;
    unpin(&mut document);
    let changes = parts.change(draw, 4, |draw| {
        match draw.below(10) {
            0..7 => step::hostile(&mut document, draw),
            7 => step::data(&mut case, draw),
            8 => step::legal(&mut document, draw),
            _ => graph::hostile(&mut training, draw),
        };
    });
    let text = bytes::packed(training.to_string().as_bytes());
    case.files.insert("train.json.gz".to_string(), text);
    let mut text = format!("{document:#}").into_bytes();
    if draw.chance(10) {
        bytes::damage(&mut text, draw);
    }
    case.files.insert("step.json".to_string(), text);
    Ok(Made { case, changes })
}

/// Accepts any data, not only the file that the step was made with.
fn unpin(document: &mut Json) {
    if let Some(data) = document.get_mut("data").and_then(Json::as_object_mut) {
        data.remove("sha256");
    }
}

/// A graph with a plan for it, changed.
fn plan_case(target: Target, draw: &mut Draw, parts: &Parts<'_>) -> anyhow::Result<Made> {
    let graph = if draw.chance(70) {
        random::executable(6, draw.word()).context("the generator made no graph")?
    } else {
        read(&std::fs::read(tiny(draw.one(TINY)).join("train.json.gz"))?)?
    };
    let planner = draw.one([Planner::None, Planner::Chen, Planner::Capuchin, Planner::Auto]);
    let profile = check::profile(&graph);
    let planned = if planner == Planner::None {
        unplanned(&graph, &profile)?
    } else {
        let goal = Goal::Smallest;
        fit(&graph, &profile, &Request { goal, planner, effort: EFFORT, ..Request::default() })?
    };
    let mut document = schedule::write(&graph, planned.schedule());
    let changes = parts.change(draw, 3, |draw| {
        if draw.chance(50) {
            plan::legal(&mut document, draw);
        } else {
            plan::hostile(&mut document, draw);
        }
    });
    let mut text = document.to_string().into_bytes();
    if target == Target::Plan && draw.chance(20) {
        bytes::damage(&mut text, draw);
    }
    let graph = write(&graph).to_string().into_bytes();
    Ok(Made { case: Case::of([("graph.json", graph), ("plan.json", text)]), changes })
}

/// What the changes of a trained case have in common.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// No number may change.
    Neutral,
    /// All changes are legal.
    Legal,
    /// Some are not.
    Hostile,
}

fn execute_case(draw: &mut Draw, parts: &Parts<'_>) -> anyhow::Result<Made> {
    use Manner::{Hostile, Legal, Neutral};
    let manner = draw.one([Neutral, Neutral, Legal, Legal, Legal, Hostile, Hostile]);
    if draw.chance(30) {
        let graph = random::executable(8, draw.word()).context("the generator made no graph")?;
        let mut document = write(&graph);
        let changes = parts.change(draw, 5, |draw| change_graph(&mut document, manner, draw));
        let case = Case::of([("graph.json", document.to_string().into_bytes())]);
        return Ok(Made { case, changes });
    }
    let name = if draw.chance(4) { draw.one(SMALL) } else { draw.one(TINY) };
    let folder = original(name);
    let mut case = Case::read(&folder)?;
    case.files.remove("make.py");
    let mut document: Json = serde_json::from_slice(case.bytes("step.json"))?;
    bring_data(&mut case, &mut document, &folder)?;
    let mut training = document_of(&case, "train.json.gz")?;
    let mut evaluation = document_of(&case, "eval.json.gz")?;
    let changes = parts.change(draw, 6, |draw| match draw.below(20) {
        0..3 if manner != Neutral => drop(step::legal(&mut document, draw)),
        3 if manner == Hostile => drop(step::data(&mut case, draw)),
        4 | 5 => change_graph(&mut evaluation, manner, draw),
        _ => change_graph(&mut training, manner, draw),
    });
    for (name, graph) in [("train.json.gz", training), ("eval.json.gz", evaluation)] {
        case.files.insert(name.to_string(), bytes::packed(graph.to_string().as_bytes()));
    }
    case.files.insert("step.json".to_string(), format!("{document:#}\n").into_bytes());
    if manner == Neutral {
        case.files.insert(ORIGINAL.to_string(), name.as_bytes().to_vec());
    }
    Ok(Made { case, changes })
}

fn change_graph(document: &mut Json, manner: Manner, draw: &mut Draw) {
    match manner {
        Manner::Neutral if draw.chance(12) => legal::wrong_and_dead(document, draw),
        Manner::Neutral => legal::legal(document, true, draw),
        Manner::Hostile if draw.chance(30) => graph::hostile(document, draw),
        Manner::Hostile if draw.chance(40) => legal::wrong_and_dead(document, draw),
        Manner::Legal | Manner::Hostile => legal::legal(document, false, draw),
    };
}

/// Puts the data next to the step if they lie elsewhere.
fn bring_data(case: &mut Case, document: &mut Json, folder: &Path) -> anyhow::Result<()> {
    let file = document["data"]["file"].as_str().unwrap_or_default().to_string();
    if !case.files.contains_key(&file) {
        let path = folder.join(&file);
        let name = format!("data.{}", path.extension().unwrap_or_default().to_string_lossy());
        case.files.insert(name.clone(), std::fs::read(&path)?);
        document["data"]["file"] = name.into();
    }
    unpin(document);
    Ok(())
}

/// The step whose weights are read, ready to take them.
pub fn session() -> anyhow::Result<Session> {
    let step = Step::open(&tiny(WEIGHTS_OF))?;
    let machine = Machine::unmeasured_cpu(1);
    let budget = Budget::Share(1.0);
    let (beside, planner) = (Bytes::ZERO, Planner::None);
    let task = FitTask { machine: &machine, budget, beside, planner, effort: EFFORT };
    let planned = fit_step(&step, &CallSeconds::new("", 1), &task)?;
    let training = planned.training.fitted.checked();
    let session = Session::builder(&step, training).slab(planned.training.slab()).seed(1);
    Ok(session.start()?)
}

/// The initial weights of that step.
fn weights_file() -> anyhow::Result<&'static [u8]> {
    static FILE: OnceLock<Vec<u8>> = OnceLock::new();
    if let Some(file) = FILE.get() {
        return Ok(file.as_slice());
    }
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("weights.safetensors");
    weights::save(&path, &session()?, WEIGHTS_OF)?;
    let file = std::fs::read(&path)?;
    Ok(FILE.get_or_init(|| file).as_slice())
}
