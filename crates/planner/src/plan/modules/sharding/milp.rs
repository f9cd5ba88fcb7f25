//! The program of sharding: units as a path. Each unit is followed by the next one that gathers, so
//! what a unit's computation has to hide is a cost of two neighbours, and no big constant switches
//! rows off. Invariant: an integral answer costs what `cost` says of its units.

use cranelift_entity::EntityRef;
use good_lp::{Expression, Variable, constraint};

use crate::analysis::modules::{ModuleIndex, ModuleInfo};
use crate::effort::Meter;
use crate::plan::milp::{Goal, Milp, Scale};
use crate::plan::modules::ModulePlanError;
use crate::plan::modules::candidate::CheckpointCandidate;
use crate::plan::modules::checkpointing::milp::Checkpointing;
use crate::plan::modules::memory::MemoryRow;
use crate::plan::modules::sharding::cost::Costs;
use crate::plan::modules::sharding::{ShardUnit, ShardVariant};
use crate::units::Bytes;

/// Divisor of the bytes of all parameters: smaller parts stay on the device, since they free almost
/// nothing, and places that differ by almost nothing make singular bases.
const WORTH_OFFLOADING: u64 = 10_000;

/// What the solver chose.
pub struct ShardingChoice<'a> {
    /// The root first.
    pub units: Vec<ShardUnit>,
    pub checkpointed: Vec<&'a CheckpointCandidate>,
    /// How far above the optimum it may be, as a share of it; absent if the solver's time was up.
    pub gap: Option<f64>,
}

impl ShardingChoice<'_> {
    /// No unit but the root.
    pub fn root_alone(info: &ModuleInfo) -> ShardingChoice<'static> {
        let root = ShardUnit { module: info.root(), offloaded: false };
        ShardingChoice { units: vec![root], checkpointed: Vec::new(), gap: None }
    }
}

/// A module that may be a unit, with its shard in one place.
struct Place {
    unit: ShardUnit,
    parameters: Bytes,
    gradients: Bytes,
    /// x: whether it is a unit, with its shard there.
    chosen: Variable,
    gather: f64,
    reduce: f64,
}

/// The best choice; `None` if none fits.
pub fn solve<'a>(
    costs: &Costs<'_>,
    candidates: &'a [CheckpointCandidate],
    goal: Goal,
    meter: &Meter<'_>,
) -> Result<Option<ShardingChoice<'a>>, ModulePlanError> {
    let scale = Scale::of(costs.info);
    let mut milp = Milp::new();
    let places = places(&mut milp, costs);
    let limit: Expression = match goal {
        Goal::Fastest(budget) => scale.bytes(budget).into(),
        Goal::Lowest => milp.within(0.0, f64::INFINITY).into(),
    };
    let root = Root::new(&mut milp, costs, &places, &scale);
    let checkpointing = memory(&mut milp, costs, &places, &root, candidates, goal, &limit);
    match goal {
        Goal::Fastest(_) => {
            let beyond_units =
                (root.seconds(costs) + checkpointing.seconds()) * (1.0 / scale.seconds);
            milp.objective = path(&mut milp, costs, &places, &scale) + beyond_units;
        }
        Goal::Lowest => {
            no_nested(&mut milp, costs.info, &places);
            milp.objective = limit;
        }
    }
    let answer = milp
        .solve(goal.gap(costs.task.limits.gap), meter)
        .map_err(|reason| ModulePlanError::Unsolved { reason })?;
    Ok(answer.map(|answer| {
        let offloaded = root.offloaded.is_some_and(|offloaded| answer.is_one(offloaded));
        let mut units = vec![ShardUnit { module: costs.info.root(), offloaded }];
        units.extend(
            places.iter().filter(|place| answer.is_one(place.chosen)).map(|place| place.unit),
        );
        units.sort_by_key(|unit| unit.module);
        ShardingChoice { units, checkpointed: checkpointing.chosen(&answer), gap: answer.gap }
    }))
}

/// Every module that may be a unit, with its shard on the device and, if requested, on the host.
fn places(milp: &mut Milp, costs: &Costs<'_>) -> Vec<Place> {
    let (info, task) = (costs.info, costs.task);
    let all = info.modules()[info.root()].parameters;
    let mut places = Vec::new();
    for (module, stats) in info.modules().iter().filter(|&(module, _)| module != info.root()) {
        let candidate = match &task.units {
            Some(units) => units.contains(&module),
            None => task.variant == ShardVariant::Published || stats.parameters > Bytes::ZERO,
        };
        let offloading = task.host.is_some() && stats.parameters.0 > all.0 / WORTH_OFFLOADING;
        let before = places.len();
        for offloaded in
            [false, true].into_iter().filter(|&offloaded| candidate && (offloading || !offloaded))
        {
            places.push(Place {
                unit: ShardUnit { module, offloaded },
                parameters: stats.parameters,
                gradients: stats.gradients,
                chosen: milp.binary(),
                gather: costs.gather(stats.parameters.0 as f64, offloaded),
                reduce: costs.reduce(stats.gradients.0 as f64),
            });
        }
        if task.units.is_some() && candidate {
            let somewhere: Expression = places[before..].iter().map(|place| place.chosen).sum();
            milp.row(constraint!(somewhere == 1.0));
        }
    }
    places
}

/// The root: it gathers what the units leave to it.
struct Root {
    /// Its parameters and gradients, in units of the scale.
    parameters: Variable,
    gradients: Variable,
    /// Whether its shard waits on the host, and its parameters if so.
    offloaded: Option<Variable>,
    parameters_offloaded: Option<Variable>,
    /// Bytes per unit of the scale.
    bytes: f64,
}

impl Root {
    fn new(milp: &mut Milp, costs: &Costs<'_>, places: &[Place], scale: &Scale) -> Root {
        let stats = &costs.info.modules()[costs.info.root()];
        let mut left = |all: Bytes, of: &dyn Fn(&Place) -> Bytes| {
            let left = milp.within(0.0, scale.bytes(all));
            let units: Expression =
                places.iter().map(|place| scale.bytes(of(place)) * place.chosen).sum();
            milp.row(constraint!(left + units == scale.bytes(all)));
            left
        };
        let parameters = left(stats.parameters, &|place| place.parameters);
        let gradients = left(stats.gradients, &|place| place.gradients);
        let (mut offloaded, mut parameters_offloaded) = (None, None);
        if costs.task.host.is_some() {
            // The product of parameters and choice.
            let most = scale.bytes(stats.parameters);
            let (choice, product) = (milp.binary(), milp.within(0.0, most));
            milp.row(constraint!(product <= parameters));
            milp.row(constraint!(product <= most * choice));
            milp.row(constraint!(product >= parameters + most * choice - most));
            (offloaded, parameters_offloaded) = (Some(choice), Some(product));
        }
        Root { parameters, gradients, offloaded, parameters_offloaded, bytes: scale.bytes }
    }

    /// Its gather and its reduction, which are not hidden.
    fn seconds(&self, costs: &Costs<'_>) -> Expression {
        let linear = |of: &dyn Fn(f64) -> f64| (of(0.0), of(self.bytes) - of(0.0));
        let (gather, gather_byte) = linear(&|bytes| costs.gather(bytes, false));
        let (reduce, reduce_byte) = linear(&|bytes| costs.reduce(bytes));
        let mut seconds =
            gather + reduce + gather_byte * self.parameters + reduce_byte * self.gradients;
        if let (Some(choice), Some(product)) = (self.offloaded, self.parameters_offloaded) {
            let (transfer, transfer_byte) =
                linear(&|bytes| costs.gather(bytes, true) - costs.gather(bytes, false));
            seconds += transfer * choice + transfer_byte * product;
        }
        seconds
    }
}

/// Rows for the bytes during every module's backward pass, as `cost` counts them; and the modules
/// that are checkpointed.
fn memory<'a>(
    milp: &mut Milp,
    costs: &Costs<'_>,
    places: &[Place],
    root: &Root,
    candidates: &'a [CheckpointCandidate],
    goal: Goal,
    limit: &Expression,
) -> Checkpointing<'a> {
    let (info, scale) = (costs.info, Scale::of(costs.info));
    let share = 1.0 / f64::from(costs.task.world_size);
    let of_root = |part: Option<Variable>| part.map_or(Expression::from(0.0), |part| share * part);
    // Bytes that leave the device.
    let offloaded = milp.within(0.0, f64::INFINITY);
    let parts = places
        .iter()
        .filter(|place| place.unit.offloaded)
        .map(|place| share * scale.bytes(place.parameters) * place.chosen);
    let parts = parts.sum::<Expression>() + of_root(root.parameters_offloaded);
    milp.row(constraint!(parts == offloaded));
    // The largest unit in flight.
    let largest = milp.within(0.0, f64::INFINITY);
    milp.row(constraint!(root.parameters + of_root(root.parameters_offloaded) <= largest));
    for variants in places.chunk_by(|a, b| a.unit.module == b.unit.module) {
        let bytes = |place: &Place| {
            scale.bytes(place.parameters) * if place.unit.offloaded { 1.0 + share } else { 1.0 }
        };
        let on_the_way: Expression = variants.iter().map(|place| bytes(place) * place.chosen).sum();
        milp.row(constraint!(on_the_way <= largest));
    }
    let mut sharded: Vec<ModuleIndex> = places.iter().map(|place| place.unit.module).collect();
    sharded.dedup();
    let whole = info.modules()[info.root()].parameters;
    let rows = MemoryRow::binding(info, candidates, &sharded, |module| {
        costs.shard(whole + info.modules()[module].total_gradients)
    });
    let last = rows.iter().map(|row| row.position).max().unwrap_or_default();
    let checkpointing = Checkpointing::new(milp, info, candidates, last, goal, &scale);
    for row in rows {
        let mut held =
            scale.bytes(row.bytes) + root.parameters + root.gradients + 2.0 * largest - offloaded;
        for place in places.iter().filter(|place| info.contains(place.unit.module, row.module)) {
            held += scale.bytes(place.parameters + place.gradients) * place.chosen;
        }
        milp.row(constraint!(held - checkpointing.discarded_before(row.position) <= limit.clone()));
    }
    // A checkpointed module contains no unit but itself: on the path from a unit to the root,
    // either one of the upper modules is checkpointed, or one of the lower ones is a unit.
    for (module, _) in checkpointing.variables() {
        let above: Vec<Variable> = checkpointing
            .variables()
            .filter(|&(upper, _)| info.contains(upper, module))
            .map(|(_, chosen)| chosen)
            .collect();
        let below = |unit: ModuleIndex| unit != module && info.contains(module, unit);
        for &lowest in
            sharded.iter().filter(|&&unit| below(unit) && is_lowest(info, &sharded, unit))
        {
            let units = places.iter().filter(|place| {
                below(place.unit.module) && info.contains(place.unit.module, lowest)
            });
            let together: Expression =
                units.map(|place| place.chosen).chain(above.iter().copied()).sum();
            milp.row(constraint!(together <= 1.0));
        }
    }
    checkpointing
}

/// Whether a module contains no other of `modules`.
fn is_lowest(info: &ModuleInfo, modules: &[ModuleIndex], module: ModuleIndex) -> bool {
    !modules.iter().any(|&other| other != module && info.contains(module, other))
}

/// No unit contains another.
fn no_nested(milp: &mut Milp, info: &ModuleInfo, places: &[Place]) {
    let modules: Vec<ModuleIndex> = places.iter().map(|place| place.unit.module).collect();
    for &lowest in modules.iter().filter(|&&module| is_lowest(info, &modules, module)) {
        let together: Expression = places
            .iter()
            .filter(|place| info.contains(place.unit.module, lowest))
            .map(|place| place.chosen)
            .sum();
        milp.row(constraint!(together <= 1.0));
    }
}

/// The path of units from the root to the end of the forward pass, and the seconds that no
/// computation hides on it.
/// There is an arc from one unit to another if the second begins after everything in the first has,
/// so no unit on a path contains another. If the choices are integral, so is the path.
fn path(milp: &mut Milp, costs: &Costs<'_>, places: &[Place], scale: &Scale) -> Expression {
    let (info, task) = (costs.info, costs.task);
    let gather_ghost = |is_end| costs.ghost(task.all_gather, is_end) / scale.seconds;
    let reduce_ghost = |is_end| costs.ghost(task.reduce_scatter, is_end) / scale.seconds;
    let (gather, reduce) = (
        |place: &Place| place.gather / scale.seconds,
        |place: &Place| place.reduce / scale.seconds,
    );
    // The last module in each, by forward pre-order.
    let mut ends: Vec<usize> = (0..info.modules().len()).collect();
    for module in info.modules().keys() {
        info.lineage(module)
            .for_each(|upper| ends[upper.index()] = ends[upper.index()].max(module.index()));
    }
    let mut seconds = Expression::from(0.0);
    let mut arc = |exposed: f64| {
        let taken = milp.within(0.0, 1.0);
        seconds += exposed * taken;
        taken
    };
    // Arcs into and out of each place, each with what it adds to the communication during the
    // place's backward pass.
    let mut into: Vec<Vec<(Variable, f64)>> = vec![Vec::new(); places.len()];
    let mut out = into.clone();
    let (root_last, _) = costs.ends(info.root());
    let mut first = vec![arc(gather_ghost(root_last) + reduce_ghost(root_last))];
    for (at, place) in places.iter().enumerate() {
        let forward = info.modules()[place.unit.module].forward.0 / scale.seconds;
        let (is_last, is_first) = costs.ends(place.unit.module);
        let begin = arc(gather(place) + reduce(place));
        first.push(begin);
        into[at].push((begin, gather_ghost(is_first)));
        let end = arc((gather_ghost(is_last) - forward).max(0.0));
        out[at].push((end, reduce_ghost(is_last)));
        for (next_at, next) in places.iter().enumerate() {
            if next.unit.module.index() > ends[place.unit.module.index()] {
                let taken = arc((gather(next) - forward).max(0.0));
                out[at].push((taken, reduce(next)));
                into[next_at].push((taken, gather(place)));
            }
        }
    }
    let one: Expression = first.into_iter().sum();
    milp.row(constraint!(one == 1.0));
    let sum =
        |arcs: &[(Variable, f64)]| -> Expression { arcs.iter().map(|&(taken, _)| taken).sum() };
    for (at, place) in places.iter().enumerate() {
        milp.row(constraint!(sum(&into[at]) == place.chosen));
        milp.row(constraint!(sum(&out[at]) == place.chosen));
        // During the backward pass: the gather of the unit before, the reduction of the one after.
        let backward = info.modules()[place.unit.module].backward.0 / scale.seconds;
        let most =
            |arcs: &[(Variable, f64)]| arcs.iter().map(|&(_, beside)| beside).fold(0.0, f64::max);
        if most(&into[at]) + most(&out[at]) > backward {
            let exposed = milp.within(0.0, f64::INFINITY);
            let beside: Expression =
                into[at].iter().chain(&out[at]).map(|&(taken, beside)| beside * taken).sum();
            milp.row(constraint!(beside - backward * place.chosen <= exposed));
            seconds += exposed;
        }
    }
    seconds
}
