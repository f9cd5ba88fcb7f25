//! Modules for tests: transformers of any depth, and small random trees. Invariant: the same seed
//! gives the same modules, and figures are those that some model could have: sums over a tree of
//! leaves.
#![allow(dead_code)] // each test binary uses a part

use tightfit::analysis::modules::{ModuleInfo, ModuleOrders, ModuleStats, Segment, TradeoffCurve};
use tightfit::units::{Bytes, Seconds};

/// A module in the making.
pub struct Tree {
    pub name: String,
    /// Of leaves: parameters, what the forward pass leaves, input gradient, seconds of the forward
    /// pass.
    pub leaf: (u64, u64, u64, f64),
    pub children: Vec<Tree>,
    /// Slopes and intercepts.
    pub curve: Vec<(f64, f64)>,
    /// What its operators make, for each byte that it leaves.
    pub makes: f64,
}

impl Tree {
    pub fn leaf(
        name: impl Into<String>,
        parameters: u64,
        activations: u64,
        gradient: u64,
        seconds: f64,
    ) -> Tree {
        Tree {
            name: name.into(),
            leaf: (parameters, activations, gradient, seconds),
            children: Vec::new(),
            curve: Vec::new(),
            makes: 1.0,
        }
    }

    pub fn of(
        name: impl Into<String>,
        children: Vec<Tree>,
        curve: &[(f64, f64)],
        makes: f64,
    ) -> Tree {
        Tree { name: name.into(), leaf: (0, 0, 0, 0.0), children, curve: curve.to_vec(), makes }
    }

    fn parameters(&self) -> u64 {
        self.leaf.0 + self.children.iter().map(Tree::parameters).sum::<u64>()
    }

    fn activations(&self) -> u64 {
        self.leaf.1 + self.children.iter().map(Tree::activations).sum::<u64>()
    }

    fn gradient(&self) -> u64 {
        self.children.iter().map(Tree::gradient).fold(self.leaf.2, u64::max)
    }

    fn seconds(&self) -> f64 {
        self.leaf.3 + self.children.iter().map(Tree::seconds).sum::<f64>()
    }

    /// Statistics of the tree.
    pub fn info(&self) -> ModuleInfo {
        let mut collected = Collected::default();
        collected.visit(self, "", self.parameters());
        let Collected { stats, orders, .. } = collected;
        ModuleInfo::new(stats, &orders).unwrap()
    }
}

#[derive(Default)]
struct Collected {
    stats: Vec<ModuleStats>,
    orders: ModuleOrders,
    /// Parameters and activations of the leaves so far.
    parameters: u64,
    activations: u64,
}

impl Collected {
    fn visit(&mut self, tree: &Tree, above: &str, all: u64) {
        let name =
            if above.is_empty() { tree.name.clone() } else { format!("{above}.{}", tree.name) };
        let at = self.stats.len();
        self.orders.forward_pre.push(name.clone());
        self.orders.backward_post.insert(0, name.clone());
        self.stats.push(ModuleStats::default());
        tree.children.iter().for_each(|child| self.visit(child, &name, all));
        self.parameters += tree.leaf.0;
        self.activations += tree.leaf.1;
        let checkpointing_bytes = Bytes((tree.activations() as f64 * tree.makes) as u64);
        self.stats[at] = ModuleStats {
            name: name.clone(),
            parameters: Bytes(tree.parameters()),
            gradients: Bytes(tree.parameters()),
            // The gradients of everything that ends after it are there already.
            total_gradients: Bytes(all - self.parameters),
            forward_activations: Bytes(tree.activations()),
            activation_gradients: Bytes(tree.gradient()),
            total_activations: Bytes(self.activations),
            forward: Seconds(tree.seconds()),
            backward: Seconds(2.0 * tree.seconds()),
            is_leaf: tree.children.is_empty(),
            checkpointing_seconds: Seconds(tree.seconds()),
            checkpointing_bytes,
            tradeoff: TradeoffCurve {
                segments: tree
                    .curve
                    .iter()
                    .map(|&(slope, intercept)| Segment { slope, intercept })
                    .collect(),
                ..TradeoffCurve::default()
            },
            ..ModuleStats::default()
        };
        self.orders.forward_post.push(name.clone());
        self.orders.backward_pre.insert(0, name);
    }
}

/// A transformer with 15 modules a layer. Layers are alike where `variation` is 0; else each figure
/// varies by that share.
pub fn transformer(layers: usize, variation: f64, seed: u64) -> ModuleInfo {
    let mut random = fastrand::Rng::with_seed(seed);
    const MIB: u64 = 1 << 20;
    let mut layer = |at: usize| {
        let mut vary = |x: f64| x * (1.0 + variation * (random.f64() - 0.5));
        let mut leaf =
            |name: &str, parameters: u64, activations: u64, gradient: u64, milliseconds: f64| {
                Tree::leaf(
                    name,
                    parameters * MIB,
                    vary((activations * MIB) as f64) as u64,
                    gradient * MIB,
                    vary(milliseconds / 1e3),
                )
            };
        let attention = vec![
            leaf("wq", 4, 24, 26, 0.19),
            leaf("wk", 4, 24, 26, 0.19),
            leaf("wv", 4, 24, 26, 0.19),
            leaf("product", 0, 800, 430, 2.0),
            leaf("wo", 4, 24, 26, 0.19),
            leaf("resid_dropout", 0, 24, 24, 0.06),
        ];
        let feed_forward = vec![
            leaf("w1", 16, 96, 33, 0.7),
            leaf("gelu", 0, 96, 96, 0.1),
            leaf("w2", 16, 24, 105, 0.7),
            leaf("resid_dropout", 0, 24, 24, 0.06),
        ];
        let (first, second) =
            (leaf("attention_norm", 1, 24, 24, 0.03), leaf("ffn_norm", 1, 24, 24, 0.03));
        let attention = Tree::of("attention", attention, &[(0.70, 0.02), (9.06, vary(-7.9))], 2.3);
        let feed_forward =
            Tree::of("feed_forward", feed_forward, &[(0.08, 0.03), (2.0, vary(-0.98))], 1.3);
        Tree::of(
            format!("layers.{at}"),
            vec![first, attention, second, feed_forward],
            &[(0.47, 0.01), (7.3, vary(-6.2))],
            2.1,
        )
    };
    let mut children = vec![Tree::leaf("embedding", 24 * MIB, 24 * MIB, 24 * MIB, 1e-5)];
    children.extend((0..layers).map(&mut layer));
    children.push(Tree::leaf("norm", MIB, 24 * MIB, 24 * MIB, 3e-5));
    children.push(Tree::leaf("output", 24 * MIB, 240 * MIB, 48 * MIB, 2e-3));
    Tree::of("Transformer", children, &[(0.43, 0.0), (6.2, -6.0)], 2.1).info()
}
