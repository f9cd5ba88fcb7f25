//! Module statistics from the JSON of PyTorch's tools. Invariant: an error in a figure is reported
//! with the name of its module; only one module at a time is held as JSON.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::analysis::modules::{
    Milliseconds, ModuleInfo, ModuleInfoError, ModuleOrders, ModuleStats, Segment, TradeoffCurve,
};
use crate::graph::limits::{MOST_MODULES, MOST_OF_A_MODULE, MOST_STATISTICS};
use crate::reading::{Bounded, Each, Excess};
use crate::units::{Bytes, Seconds};

pub fn read(text: &[u8]) -> Result<ModuleInfo, ModuleInfoError> {
    let json = |reason: String| ModuleInfoError::Json { reason };
    if text.len() as u64 > MOST_STATISTICS {
        let excess = Excess::of_bytes("a file of statistics", MOST_STATISTICS);
        return Err(json(excess.to_string()));
    }
    let file = match parsed(text) {
        // Python writes numbers that JSON does not have; as null they are reported where their
        // module is known.
        Err(Refusal::Json(error)) => {
            parsed(&without_literals(text)).map_err(|refusal| match refusal {
                Refusal::Json(_) => json(error.to_string()),
                Refusal::Module(error) => error,
            })?
        }
        Err(Refusal::Module(error)) => return Err(error),
        Ok(file) => file,
    };
    let info = file.nested.map_or((file.order, file.stats), |nested| (nested.order, nested.stats));
    let missing = |key: &str| json(format!("it has no `{key}`"));
    let order = info.0.ok_or_else(|| missing("mod_order"))?;
    let stats = info.1.ok_or_else(|| missing("mod_stats"))?;
    let names = |key: &str| -> Result<Vec<String>, ModuleInfoError> {
        let list = order.get(key).map_or(Some(&[][..]), |list| list.as_array().map(Vec::as_slice));
        let name = |name: &Value| name.as_str().map(str::to_string);
        list.and_then(|list| list.iter().map(name).collect())
            .ok_or_else(|| json(format!("`{key}` is no list of names")))
    };
    let orders = ModuleOrders {
        forward_pre: names("fw_pre_order")?,
        forward_post: names("fw_post_order")?,
        backward_pre: names("bw_pre_order")?,
        backward_post: names("bw_post_order")?,
    };
    let mut read = Vec::with_capacity(stats.len());
    let mut times = BTreeMap::new();
    for (stats, milliseconds) in stats {
        times.insert(stats.name.clone(), milliseconds);
        read.push(stats);
    }
    let mut info = ModuleInfo::new(read, &orders)?;
    for (module, stats) in &info.modules {
        if let Some(&given) = times.get(&stats.name) {
            info.milliseconds[module] = given;
        }
    }
    Ok(info)
}

/// What a file contains about modules; what it leaves out is absent.
#[derive(Default)]
struct File {
    order: Option<Value>,
    stats: Option<Vec<(ModuleStats, Milliseconds)>>,
    /// The contents of `module_info`.
    nested: Option<Box<File>>,
}

enum Refusal {
    Json(serde_json::Error),
    Module(ModuleInfoError),
}

fn parsed(text: &[u8]) -> Result<File, Refusal> {
    let mut refusal = None;
    let mut json = serde_json::Deserializer::from_slice(text);
    let seed = Info { refusal: &mut refusal, is_whole: true };
    let file = seed.deserialize(&mut json).and_then(|file| json.end().map(|()| file));
    match refusal {
        Some(refusal) => Err(Refusal::Module(refusal)),
        None => file.map_err(Refusal::Json),
    }
}

/// Reads a file, or the contents of `module_info`.
struct Info<'a> {
    refusal: &'a mut Option<ModuleInfoError>,
    is_whole: bool,
}

impl<'de> DeserializeSeed<'de> for Info<'_> {
    type Value = File;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<File, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Info<'_> {
    type Value = File;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("statistics of modules")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<File, A::Error> {
        let mut file = File::default();
        while let Some(key) = map.next_key::<String>()? {
            let refusal = &mut *self.refusal;
            match key.as_str() {
                "mod_order" => {
                    file.order = Some(map.next_value::<Bounded<{ 4 * MOST_MODULES + 8 }>>()?.0);
                }
                "mod_stats" => {
                    let mut modules = Vec::new();
                    let add = |Bounded(stats): Bounded<MOST_OF_A_MODULE>| {
                        modules.push(module(modules.len(), &stats)?);
                        Ok(())
                    };
                    let what = "the list `mod_stats`";
                    let added = map.next_value_seed(Each::new(what, MOST_MODULES, add))?;
                    *refusal = refusal.take().or(added.err());
                    file.stats = Some(modules);
                }
                "module_info" if self.is_whole => {
                    let info = Info { refusal, is_whole: false };
                    file.nested = Some(Box::new(map.next_value_seed(info)?));
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(file)
    }

    // A list has none of the fields, which is then reported.
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<File, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(File::default())
    }
}

/// One module's figures.
struct Figures<'a> {
    module: &'a str,
    fields: &'a Map<String, Value>,
}

/// A module's statistics, and its times as given.
fn module(at: usize, stats: &Value) -> Result<(ModuleStats, Milliseconds), ModuleInfoError> {
    let fields = stats.as_object().ok_or(ModuleInfoError::Unnamed { at })?;
    let module =
        fields.get("fqn").and_then(Value::as_str).ok_or(ModuleInfoError::Unnamed { at })?;
    let figures = Figures { module, fields };
    let [forward, backward] = [
        figures.milliseconds("fw_runtime_per_module")?,
        figures.milliseconds("bw_runtime_per_module")?,
    ];
    let stats = ModuleStats {
        name: module.to_string(),
        parameters: figures.bytes("param_per_module")?,
        gradients: figures.bytes("grad_per_module")?,
        total_gradients: figures.bytes("grad_total")?,
        forward_activations: figures.bytes("act_fw_per_module")?,
        backward_activations: figures.bytes("act_bw_per_module")?,
        activation_gradients: figures.bytes("act_grad_per_module")?,
        total_activations: figures.bytes("act_total")?,
        input: figures.bytes("input_per_module")?,
        output: figures.bytes("output_per_module")?,
        forward: Seconds(forward / 1e3),
        backward: Seconds(backward / 1e3),
        is_leaf: true,
        ..ModuleStats::default()
    };
    // Statistics made for sharding alone have no checkpointing figures.
    if !figures.checkpointed()? {
        return Ok((stats, [forward, backward, 0.0]));
    }
    let checkpointing = figures.milliseconds("sac_runtime")?;
    let stats = ModuleStats {
        is_leaf: false,
        checkpointing_seconds: Seconds(checkpointing / 1e3),
        checkpointing_bytes: figures.bytes("sac_memory")?,
        tradeoff: figures.curve()?,
        ..stats
    };
    Ok((stats, [forward, backward, checkpointing]))
}

impl Figures<'_> {
    fn refused(
        &self,
        field: &'static str,
        found: &Value,
        expected: &'static str,
    ) -> ModuleInfoError {
        let found = if found.is_null() { "no number".to_string() } else { found.to_string() };
        ModuleInfoError::Figure { module: self.module.to_string(), field, found, expected }
    }

    fn field(&self, field: &'static str) -> Result<&Value, ModuleInfoError> {
        self.fields
            .get(field)
            .ok_or_else(|| ModuleInfoError::Missing { module: self.module.to_string(), field })
    }

    fn bytes(&self, field: &'static str) -> Result<Bytes, ModuleInfoError> {
        let value = self.field(field)?;
        let whole = value
            .as_f64()
            .filter(|x| (0.0..=9e15).contains(x) && x.fract() == 0.0)
            .map(|x| x as u64);
        value
            .as_u64()
            .or(whole)
            .map(Bytes)
            .ok_or_else(|| self.refused(field, value, "a whole number of bytes, 0 or more"))
    }

    fn milliseconds(&self, field: &'static str) -> Result<f64, ModuleInfoError> {
        let value = self.field(field)?;
        let milliseconds = value.as_f64().filter(|&x| x >= 0.0);
        milliseconds.ok_or_else(|| self.refused(field, value, "milliseconds, 0 or more"))
    }

    /// Whether the module has something to checkpoint.
    fn checkpointed(&self) -> Result<bool, ModuleInfoError> {
        match self.fields.get("is_leaf") {
            None => Ok(self.fields.contains_key("sac_memory")),
            Some(leaf) => leaf
                .as_bool()
                .map(|leaf| !leaf)
                .ok_or_else(|| self.refused("is_leaf", leaf, "true or false")),
        }
    }

    fn numbers(&self, field: &'static str) -> Result<Vec<f64>, ModuleInfoError> {
        let value = self.field(field)?;
        let numbers = value.as_array().and_then(|list| list.iter().map(Value::as_f64).collect());
        numbers.ok_or_else(|| self.refused(field, value, "a list of numbers"))
    }

    fn curve(&self) -> Result<TradeoffCurve, ModuleInfoError> {
        let (slopes, intercepts) = (self.numbers("slopes")?, self.numbers("intercepts")?);
        let differ = |found, what| ModuleInfoError::Curve {
            module: self.module.to_string(),
            segments: slopes.len(),
            found,
            what,
            expected: slopes.len(),
        };
        if intercepts.len() != slopes.len() {
            return Err(differ(intercepts.len(), "intercepts"));
        }
        if let Some(count) = self.fields.get("n_segments") {
            let found = count
                .as_u64()
                .ok_or_else(|| self.refused("n_segments", count, "the number of slopes"))?
                as usize;
            if found != slopes.len() {
                return Err(differ(found, "segments by `n_segments`"));
            }
        }
        let segments = slopes
            .iter()
            .zip(intercepts)
            .map(|(&slope, intercept)| Segment { slope, intercept })
            .collect();
        let breakpoints = if self.fields.contains_key("breakpoints") {
            self.numbers("breakpoints")?
        } else {
            Vec::new()
        };
        Ok(TradeoffCurve { segments, breakpoints, points: self.points()? })
    }

    /// A list of pairs, or a table from discard ratios to shares, in increasing order.
    fn points(&self) -> Result<Vec<(f64, f64)>, ModuleInfoError> {
        let Some(value) = self.fields.get("tradeoff_curve") else { return Ok(Vec::new()) };
        let points: Option<Vec<(f64, f64)>> = match value {
            Value::Array(list) => list.iter().map(pair).collect(),
            Value::Object(table) => {
                table.iter().map(|(x, y)| Some((x.parse().ok()?, y.as_f64()?))).collect()
            }
            _ => None,
        };
        let mut points =
            points.ok_or_else(|| self.refused("tradeoff_curve", value, "pairs of numbers"))?;
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Ok(points)
    }
}

fn pair(value: &Value) -> Option<(f64, f64)> {
    match value.as_array()?.as_slice() {
        [x, y] => Some((x.as_f64()?, y.as_f64()?)),
        _ => None,
    }
}

/// The text with `null` for each `NaN` and `Infinity` outside of strings.
fn without_literals(text: &[u8]) -> Vec<u8> {
    let mut cleaned = Vec::with_capacity(text.len());
    let (mut rest, mut quoted) = (text, false);
    while let Some(&byte) = rest.first() {
        let literal = ["NaN", "-Infinity", "Infinity"]
            .into_iter()
            .find(|&literal| !quoted && rest.starts_with(literal.as_bytes()));
        let taken = match (literal, byte) {
            (Some(literal), _) => literal.len(),
            (None, b'\\') if quoted => rest.len().min(2),
            _ => 1,
        };
        match literal {
            Some(_) => cleaned.extend_from_slice(b"null"),
            None => cleaned.extend_from_slice(&rest[..taken]),
        }
        quoted ^= byte == b'"';
        rest = &rest[taken..];
    }
    cleaned
}
