//! Module-level plans against brute force on small trees, and laws between them. Invariant: the
//! brute force shares no code with the planners: it tries every choice of modules, and finds how
//! much they discard by linear algebra.
//!
//! Tier: quick, since it takes 2 s.

use tightfit::analysis::modules::{ModuleIndex, ModuleInfo, ModuleStats};
use tightfit::machine::Link;
use tightfit::plan::SolverLimits;
use tightfit::plan::modules::{
    ModulePlanError, SelectiveTask, ShardPlan, ShardTask, ShardVariant, selective, shard,
};
use tightfit::units::{Bytes, Seconds};

use crate::fixtures::corpus;
use crate::fixtures::module_tree::{self, Tree};

/// Unit of figures, so large that discarding only whole bytes makes no difference.
const MILLION: u64 = 1_000_000;

/// A random tree of at most `most` modules below the root.
fn tree(random: &mut fastrand::Rng, most: usize) -> ModuleInfo {
    fn grow(random: &mut fastrand::Rng, name: String, left: &mut usize, depth: usize) -> Tree {
        if depth == 2 || *left == 0 || (depth > 0 && random.u32(0..3) == 0) {
            let parameters = if random.u32(0..5) == 0 { 0 } else { random.u64(1..40) };
            let (activations, gradient) = (random.u64(0..60), random.u64(0..20));
            return Tree::leaf(
                name,
                parameters * MILLION,
                activations * MILLION,
                gradient * MILLION,
                f64::from(random.u32(1..20)) / 10.0,
            );
        }
        let mut children = Vec::new();
        while *left > 0 && (children.is_empty() || random.u32(0..3) > 0) {
            *left -= 1;
            children.push(grow(random, format!("m{}", children.len()), left, depth + 1));
        }
        let first = random.f64() * 0.8;
        let curve =
            [(first, random.f64() * 0.1), (first + 0.5 + random.f64(), -0.1 - random.f64() * 0.4)];
        Tree::of(name, children, &curve[..random.usize(1..=2)], 1.0 + random.f64())
    }
    let mut left = most;
    grow(random, "M".to_string(), &mut left, 0).info()
}

fn task(random: &mut fastrand::Rng, info: &ModuleInfo) -> ShardTask {
    let link = |random: &mut fastrand::Rng| Link {
        latency: Seconds(f64::from(random.u32(0..3)) / 10.0),
        bandwidth: f64::from(random.u32(5..60)) * MILLION as f64,
    };
    ShardTask {
        budget: Bytes((info.baseline_peak().0 as f64 * (0.5 + 1.5 * random.f64())) as u64),
        world_size: random.u32(1..=4),
        all_gather: link(random),
        reduce_scatter: link(random),
        variant: if random.bool() { ShardVariant::Ours } else { ShardVariant::Published },
        units: None,
        checkpointing: random.u32(0..4) > 0,
        host: random.bool().then(|| link(random)),
        limits: SolverLimits::default(),
    }
}

/// Finds every plan of a small tree by trial.
struct Brute<'a> {
    stats: Vec<&'a ModuleStats>,
    task: &'a ShardTask,
    /// Positions in the forward post-order.
    post: Vec<usize>,
}

impl<'a> Brute<'a> {
    fn new(info: &'a ModuleInfo, task: &'a ShardTask) -> Brute<'a> {
        let stats: Vec<&ModuleStats> = info.modules().values().collect();
        let order: Vec<&str> = info
            .forward_post_order()
            .iter()
            .map(|&module| info.modules()[module].name.as_str())
            .collect();
        let post = stats
            .iter()
            .map(|stats| order.iter().position(|name| *name == stats.name).unwrap())
            .collect();
        Brute { stats, task, post }
    }

    fn below(&self, lower: usize, upper: usize) -> bool {
        let (lower, upper) = (&self.stats[lower].name, &self.stats[upper].name);
        lower.starts_with(&format!("{upper}."))
    }

    /// Sets of modules of which none contains another.
    fn antichains(&self, from: Vec<usize>) -> Vec<Vec<usize>> {
        let nested = |set: &[usize]| set.iter().any(|&a| set.iter().any(|&b| self.below(a, b)));
        let sets = (0..1_u32 << from.len()).map(|bits| {
            (0..from.len()).filter(|at| bits >> at & 1 == 1).map(|at| from[at]).collect()
        });
        sets.filter(|set: &Vec<usize>| !nested(set)).collect()
    }

    /// Parameters and gradients of the units, those of the root first.
    fn parts(&self, units: &[usize]) -> Vec<(f64, f64)> {
        let of =
            |at: usize| (self.stats[at].parameters.0 as f64, self.stats[at].gradients.0 as f64);
        let rest = units.iter().fold(of(0), |(p, g), &unit| (p - of(unit).0, g - of(unit).1));
        std::iter::once(rest).chain(units.iter().map(|&unit| of(unit))).collect()
    }

    fn exposed(&self, units: &[usize], parts: &[(f64, f64)], offloaded: &[bool]) -> f64 {
        let (task, w) = (self.task, f64::from(self.task.world_size));
        let published = task.variant == ShardVariant::Published;
        let share = |link: Link, bytes: f64| {
            if published {
                link.latency.0 + bytes / link.bandwidth
            } else if task.world_size == 1 {
                0.0
            } else {
                link.latency.0 + bytes / link.bandwidth * (w - 1.0) / w
            }
        };
        let gather = |at: usize| {
            let transfer = if offloaded[at] {
                task.host.unwrap().latency.0 + parts[at].0 / w / task.host.unwrap().bandwidth
            } else {
                0.0
            };
            share(task.all_gather, parts[at].0) + transfer
        };
        let reduce = |at: usize| share(task.reduce_scatter, parts[at].1);
        let ghost = |link: Link, end: bool| if published && !end { link.latency.0 } else { 0.0 };
        let modules: Vec<usize> = std::iter::once(0).chain(units.iter().copied()).collect();
        let mut sum = gather(0) + reduce(0);
        for (at, &module) in modules.iter().enumerate() {
            let is_last = module + 1 == self.stats.len();
            let (next_gather, next_reduce) = match at + 1 < modules.len() {
                true => (gather(at + 1), reduce(at + 1)),
                false => (ghost(task.all_gather, is_last), ghost(task.reduce_scatter, is_last)),
            };
            if module == 0 {
                sum += next_gather + next_reduce;
            } else {
                let before = if at > 1 {
                    gather(at - 1)
                } else {
                    ghost(task.all_gather, self.post[module] == 0)
                };
                sum += f64::max(0.0, next_gather - self.stats[module].forward.0);
                sum += f64::max(0.0, before + next_reduce - self.stats[module].backward.0);
            }
        }
        sum
    }

    /// Bytes that have to be discarded before each place of the post-order; `None` if no discard
    /// helps.
    fn needs(&self, units: &[usize], parts: &[(f64, f64)], offloaded: &[bool]) -> Option<Vec<f64>> {
        let w = f64::from(self.task.world_size);
        let away: f64 = (0..parts.len()).filter(|&at| offloaded[at]).map(|at| parts[at].0).sum();
        let largest = (0..parts.len())
            .map(|at| parts[at].0 + if offloaded[at] { (parts[at].0 / w).ceil() } else { 0.0 })
            .fold(0.0, f64::max);
        let mut needs = vec![0.0; self.stats.len()];
        for (module, stats) in self.stats.iter().enumerate() {
            let mut held =
                ((self.stats[0].parameters.0 as f64 + stats.total_gradients.0 as f64 - away) / w)
                    .ceil()
                    + 2.0 * largest;
            held += parts[0].0 + parts[0].1;
            for (at, &unit) in units.iter().enumerate() {
                if unit == module || self.below(module, unit) {
                    held += parts[at + 1].0 + parts[at + 1].1;
                }
            }
            if held > self.task.budget.0 as f64 {
                return None;
            }
            let activations = (stats.total_activations.0 + stats.activation_gradients.0) as f64;
            needs[self.post[module]] = (held + activations - self.task.budget.0 as f64).max(0.0);
        }
        Some(needs)
    }

    /// The least seconds in which given modules discard the needed bytes. At an optimum each module
    /// discards nothing, everything, up to a bend of its curve, or exactly what meets some need; so
    /// the cheapest is found by trying, for every order in which modules are fixed, all of these.
    fn discard(&self, chosen: &[usize], needs: &[f64]) -> Option<f64> {
        let mut best = None;
        self.try_discards(chosen, needs, &mut vec![None; chosen.len()], &mut best);
        best
    }

    fn try_discards(
        &self,
        chosen: &[usize],
        needs: &[f64],
        fixed: &mut Vec<Option<f64>>,
        best: &mut Option<f64>,
    ) {
        let before = |fixed: &[Option<f64>], place: usize, given: f64| -> f64 {
            (0..chosen.len())
                .filter(|&at| self.post[chosen[at]] < place)
                .map(|at| fixed[at].unwrap_or(given))
                .sum()
        };
        let Some(next) = fixed.iter().position(Option::is_none) else {
            if (0..needs.len()).all(|place| before(fixed, place, 0.0) >= needs[place] - 1e-3) {
                let seconds = chosen
                    .iter()
                    .zip(&*fixed)
                    .map(|(&module, bytes)| self.recompute(module, bytes.unwrap()))
                    .sum();
                *best = Some(best.map_or(seconds, |best: f64| best.min(seconds)));
            }
            return;
        };
        // The others are at their corners; at most one in each tight need is not, so corners are
        // tried for all, and each module in turn takes what is left of a need.
        let module = chosen[next];
        let most = self.stats[module].forward_activations.0 as f64;
        let mut values = self.corners(module);
        for place in 0..needs.len() {
            values.extend(self.rest(chosen, needs, fixed, next, place));
        }
        values.retain(|&bytes| (0.0..=most).contains(&bytes));
        values.sort_by(f64::total_cmp);
        values.dedup();
        for bytes in values {
            fixed[next] = Some(bytes);
            self.try_discards(chosen, needs, fixed, best);
        }
        fixed[next] = None;
    }

    /// The rest of the need at `place` for module `next`, for all corners of the modules not fixed
    /// yet.
    fn rest(
        &self,
        chosen: &[usize],
        needs: &[f64],
        fixed: &[Option<f64>],
        next: usize,
        place: usize,
    ) -> Vec<f64> {
        let mut sums = vec![needs[place]];
        for at in (0..chosen.len()).filter(|&at| at != next && self.post[chosen[at]] < place) {
            let options = fixed[at].map_or_else(|| self.corners(chosen[at]), |bytes| vec![bytes]);
            sums =
                sums.iter().flat_map(|sum| options.iter().map(move |bytes| sum - bytes)).collect();
        }
        if self.post[chosen[next]] < place { sums } else { Vec::new() }
    }

    fn ratio(&self, module: usize, bytes: f64) -> f64 {
        let stats = self.stats[module];
        let (keeps, makes) = (
            stats.forward_activations.0 as f64,
            stats.checkpointing_bytes.max(stats.forward_activations).0 as f64,
        );
        (makes - keeps + bytes) / makes
    }

    fn recompute(&self, module: usize, bytes: f64) -> f64 {
        let stats = self.stats[module];
        let ratio = self.ratio(module, bytes);
        let share = stats
            .tradeoff
            .segments
            .iter()
            .map(|line| line.slope * ratio + line.intercept)
            .fold(0.0, f64::max);
        if bytes == 0.0 { 0.0 } else { stats.checkpointing_seconds.0 * share }
    }

    /// Nothing, everything, and where lines of the curve meet.
    fn corners(&self, module: usize) -> Vec<f64> {
        let stats = self.stats[module];
        let most = stats.forward_activations.0 as f64;
        let makes = stats.checkpointing_bytes.max(stats.forward_activations).0 as f64;
        let mut lines: Vec<(f64, f64)> =
            stats.tradeoff.segments.iter().map(|line| (line.slope, line.intercept)).collect();
        lines.push((0.0, 0.0));
        let mut corners = vec![0.0, most];
        for (at, a) in lines.iter().enumerate() {
            for b in &lines[at + 1..] {
                let bytes = (b.1 - a.1) / (a.0 - b.0) * makes - (makes - most);
                corners.extend((bytes > 0.0 && bytes < most).then_some(bytes));
            }
        }
        corners
    }

    /// The least seconds beyond computation.
    fn least(&self) -> Option<f64> {
        let published = self.task.variant == ShardVariant::Published;
        let shardable = (1..self.stats.len())
            .filter(|&at| published || self.stats[at].parameters.0 > 0)
            .collect();
        let checkpointable = |&at: &usize| {
            self.task.checkpointing
                && !self.stats[at].is_leaf
                && self.stats[at].forward_activations.0 > 0
        };
        let checkpointed = self.antichains((0..self.stats.len()).filter(checkpointable).collect());
        let mut least: Option<f64> = None;
        for units in self.antichains(shardable) {
            let parts = self.parts(&units);
            let places = if self.task.host.is_some() { 1_u32 << parts.len() } else { 1 };
            for bits in 0..places {
                let offloaded: Vec<bool> = (0..parts.len()).map(|at| bits >> at & 1 == 1).collect();
                let Some(needs) = self.needs(&units, &parts, &offloaded) else { continue };
                let exposed = self.exposed(&units, &parts, &offloaded);
                if least.is_some_and(|least| exposed >= least) {
                    continue;
                }
                for chosen in &checkpointed {
                    let above = chosen
                        .iter()
                        .any(|&upper| units.iter().any(|&unit| self.below(unit, upper)));
                    let recompute = if above { None } else { self.discard(chosen, &needs) };
                    if let Some(recompute) = recompute {
                        least =
                            Some(least.map_or(exposed + recompute, |least| {
                                least.min(exposed + recompute)
                            }));
                    }
                }
            }
        }
        least
    }
}

#[test]
fn joint_plans_equal_brute_force_on_small_trees() {
    let mut random = fastrand::Rng::with_seed(11);
    let (mut plans, mut refusals) = (0, 0);
    for round in 0..400 {
        let info = tree(&mut random, 6);
        let task = task(&mut random, &info);
        match (shard(&info, &task), Brute::new(&info, &task).least()) {
            (Ok(plan), Some(least)) => {
                plans += 1;
                let seconds = plan.seconds().0;
                assert!(
                    (seconds - least).abs() <= 1e-5 * least.max(1.0),
                    "round {round}: {seconds} {least} {task:?} {plan:?}"
                );
                assert!(plan.peak <= task.budget);
            }
            (Err(ModulePlanError::Infeasible(proof)), None) => {
                refusals += 1;
                assert!(proof.least > task.budget && proof.proven);
            }
            (plan, least) => panic!("round {round}: {plan:?} {least:?} {task:?}"),
        }
    }
    assert!(plans > 100 && refusals > 30, "{plans} {refusals}");
}

fn fastest(info: &ModuleInfo, task: &ShardTask) -> Option<f64> {
    shard(info, task).ok().map(|plan: ShardPlan| plan.seconds().0)
}

fn no_worse(better: Option<f64>, worse: Option<f64>, what: &str) {
    let Some(worse) = worse else { return };
    assert!(
        better.is_some_and(|better| better <= worse * (1.0 + 1e-6) + 1e-9),
        "{what}: {better:?} {worse}"
    );
}

/// Sharding first, under every budget that may leave something for checkpointing; then
/// checkpointing with its units.
fn one_after_the_other(info: &ModuleInfo, task: &ShardTask) -> Option<f64> {
    let alone = ShardTask { checkpointing: false, host: None, ..task.clone() };
    let first = (0..8).filter_map(|more| {
        let budget = Bytes((task.budget.0 as f64 * (1.0 + 0.25 * f64::from(more))) as u64);
        let units = shard(info, &ShardTask { budget, ..alone.clone() }).ok()?.units;
        let units: Vec<ModuleIndex> = units.iter().map(|unit| unit.module).collect();
        fastest(
            info,
            &ShardTask { units: Some(units), checkpointing: true, host: None, ..task.clone() },
        )
    });
    first.reduce(f64::min)
}

#[test]
fn the_joint_program_is_never_worse_than_one_program_after_the_other() {
    let mut random = fastrand::Rng::with_seed(12);
    let mut compared = 0;
    let mut compare = |info: &ModuleInfo, task: &ShardTask| {
        let (joint, sequence) = (fastest(info, task), one_after_the_other(info, task));
        no_worse(joint, sequence, &format!("{task:?}"));
        compared += u32::from(sequence.is_some());
    };
    for _ in 0..120 {
        let info = tree(&mut random, 10);
        let task = task(&mut random, &info);
        compare(&info, &ShardTask { checkpointing: true, ..task });
    }
    for name in ["llama_tiny_4l", "torchtest_4l"] {
        let info = recorded(name);
        for share in [0.9, 0.6, 0.45] {
            compare(&info, &cluster(&info, share));
        }
    }
    assert!(compared > 30, "{compared}");
}

fn recorded(name: &str) -> ModuleInfo {
    ModuleInfo::from_json(
        &std::fs::read(corpus::path(&format!("cases/module_info/module_info_{name}.json")))
            .unwrap(),
    )
    .unwrap()
}

/// Eight devices with 0.1 TB/s between them.
fn cluster(info: &ModuleInfo, share: f64) -> ShardTask {
    let link = Link { latency: Seconds(1e-5), bandwidth: 1e11 };
    ShardTask {
        budget: Bytes((info.baseline_peak().0 as f64 * share) as u64),
        world_size: 8,
        all_gather: link,
        reduce_scatter: link,
        variant: ShardVariant::Ours,
        units: None,
        checkpointing: true,
        host: None,
        limits: SolverLimits::default(),
    }
}

#[test]
fn more_is_never_slower() {
    let mut random = fastrand::Rng::with_seed(13);
    for _ in 0..60 {
        let info = tree(&mut random, 9);
        let task = task(&mut random, &info);
        let given = fastest(&info, &task);
        let bandwidth = |link: Link| Link { bandwidth: 2.0 * link.bandwidth, ..link };
        let more = [
            (
                "memory",
                ShardTask { budget: Bytes(task.budget.0 + task.budget.0 / 4), ..task.clone() },
            ),
            (
                "bandwidth",
                ShardTask {
                    all_gather: bandwidth(task.all_gather),
                    reduce_scatter: bandwidth(task.reduce_scatter),
                    ..task.clone()
                },
            ),
            ("checkpointing", ShardTask { checkpointing: true, ..task.clone() }),
            (
                "host",
                ShardTask {
                    host: task.host.map(bandwidth).or(Some(task.all_gather)),
                    ..task.clone()
                },
            ),
        ];
        for (what, task) in more {
            no_worse(fastest(&info, &task), given, what);
        }
    }
}

#[test]
fn selective_checkpointing_is_what_sharding_over_one_device_leaves() {
    let mut random = fastrand::Rng::with_seed(14);
    let mut compared = 0;
    for _ in 0..300 {
        let info = tree(&mut random, 9);
        let budget = Bytes((info.baseline_peak().0 as f64 * (0.4 + 0.6 * random.f64())) as u64);
        let alone = SelectiveTask {
            budget,
            world_size: 1,
            allowed: None,
            sharded: Vec::new(),
            limits: SolverLimits::default(),
        };
        // With the root as the only unit, its gathered parameters and gradients and two more copies
        // in flight are there at every moment, and nothing else differs.
        let root = &info.modules()[info.root()];
        let gathered = Bytes(3 * root.parameters.0 + root.gradients.0);
        let link = Link { latency: Seconds(0.0), bandwidth: 1.0 };
        let one = ShardTask {
            budget: budget + gathered,
            world_size: 1,
            all_gather: link,
            reduce_scatter: link,
            units: Some(Vec::new()),
            ..cluster(&info, 1.0)
        };
        match (selective(&info, &alone), shard(&info, &one)) {
            (Ok(alone), Ok(one)) => {
                compared += u32::from(!alone.units.is_empty());
                assert!(
                    (alone.recompute.0 - one.recompute.0).abs()
                        <= 1e-6 * alone.recompute.0.max(1.0),
                    "{alone:?} {one:?}"
                );
            }
            (Err(ModulePlanError::Infeasible(alone)), Err(ModulePlanError::Infeasible(one))) => {
                assert_eq!((alone.least + gathered, alone.module), (one.least, one.module));
            }
            (alone, one) => panic!("{alone:?} {one:?}"),
        }
    }
    assert!(compared > 10, "{compared}");
}

#[test]
fn names_and_the_order_of_statistics_change_nothing() {
    for name in ["llama_tiny_4l", "torchtest_4l"] {
        let info = recorded(name);
        let renamed =
            ModuleInfo::from_json(info.to_json().replace("layers.", "blocks.10.").as_bytes())
                .unwrap();
        let task = cluster(&info, 0.5);
        assert_eq!(fastest(&info, &task), fastest(&renamed, &task), "{name}");
    }
}

#[test]
fn deep_transformers_have_their_optimum() {
    let (mut varied, mut alike) = (f64::INFINITY, f64::INFINITY);
    for share in [0.9, 0.7, 0.5, 0.35, 0.2] {
        for (variation, faster) in [(0.2, &mut varied), (0.0, &mut alike)] {
            let info = module_tree::transformer(24, variation, 1);
            assert!(info.modules().len() >= 350);
            let budget = Bytes((info.baseline_peak().0 as f64 * share) as u64);
            // No time for the solver, so whatever is proven is proven without it.
            let limits = SolverLimits { seconds: Some(Seconds(0.0)), ..SolverLimits::default() };
            let sharded = Vec::new();
            let task = SelectiveTask { budget, world_size: 1, allowed: None, sharded, limits };
            let plan = selective(&info, &task).unwrap();
            assert!(plan.gap == Some(0.0) && plan.peak <= budget, "{share} {variation}");
            assert!(plan.recompute.0 > 0.0 && *faster > 0.0, "{share} {variation}");
            assert!(
                *faster == f64::INFINITY || plan.recompute.0 > *faster,
                "less memory is slower"
            );
            *faster = plan.recompute.0;
        }
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let info = recorded("llama_tiny_4l");
    let task = cluster(&info, 1.0);
    let message = |task: ShardTask| shard(&info, &task).unwrap_err().to_string();
    assert!(message(ShardTask { world_size: 0, ..task.clone() }).contains("a world size of 0"));
    for bandwidth in [0.0, -1.0, f64::NAN] {
        let link = Link { bandwidth, ..task.all_gather };
        assert!(
            message(ShardTask { all_gather: link, ..task.clone() })
                .contains("the bandwidth of all-gather")
        );
        assert!(
            message(ShardTask { host: Some(link), ..task.clone() })
                .contains("the bandwidth of the host")
        );
    }
    let units = ["Llama.layers.1", "Llama.layers.1.ff"].map(|name| info.find(name).unwrap());
    assert!(
        message(ShardTask { units: Some(units.to_vec()), ..task })
            .contains("`Llama.layers.1` and `Llama.layers.1.ff`")
    );
}
