//! The tree of a graph's modules. Invariant: indices are a forward pre-order, so a module and all
//! modules below it are one range of them; names are compared component by component, so `layers.1`
//! contains nothing of `layers.10`.
//!
//! Modules that no node names, such as the list that layers are in, are included: every prefix of a
//! path is a module. Children are ordered by their first run in the forward pass; those that never
//! run come last, in the order in which the graph names them. If a graph does not say which modules
//! are called, all those that run nodes of their own count as called; of the others, those whose
//! children are numbered count as lists.

use std::collections::{BTreeMap, BTreeSet};

use cranelift_entity::{EntityRef, PrimaryMap, SecondaryMap};

use crate::analysis::modules::ModuleIndex;
use crate::graph::Graph;
use crate::id::{ModuleId, StorageId};

/// Most components of a path; further ones belong to the module above. No model nests so deeply,
/// and passes may walk up from each node.
const DEEPEST: usize = 64;

/// A module with its place in the tree.
#[derive(Clone, Debug, PartialEq)]
pub struct Branch {
    /// Path components, joined by dots; the root's is empty.
    pub path: String,
    /// The module above.
    pub parent: Option<ModuleIndex>,
    /// The number of modules above it.
    pub depth: u32,
    /// The number of modules below it, at any depth.
    pub below: u32,
    /// Whether it is ever called. A list of layers is not: it only holds them.
    pub is_called: bool,
}

/// All modules of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct ModuleTree {
    branches: PrimaryMap<ModuleIndex, Branch>,
    of: SecondaryMap<ModuleId, Option<ModuleIndex>>,
}

/// The first and the last module, in pre-order, that are involved in something.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    first: ModuleIndex,
    last: ModuleIndex,
}

impl Span {
    /// `span` with one more module.
    pub fn with(span: Option<Span>, module: ModuleIndex) -> Option<Span> {
        let span = span.unwrap_or(Span { first: module, last: module });
        Some(Span { first: span.first.min(module), last: span.last.max(module) })
    }

    /// From the first module of both to the last.
    pub fn join(self, other: Span) -> Span {
        Span { first: self.first.min(other.first), last: self.last.max(other.last) }
    }
}

/// A module before its place is known.
struct Draft<'a> {
    component: &'a str,
    parent: usize,
    depth: u32,
    /// First forward node, then first node of any kind; both at or below it.
    first: (usize, usize),
}

impl ModuleTree {
    /// The tree of all paths that the graph names.
    pub fn new(graph: &Graph) -> ModuleTree {
        const NEVER: (usize, usize) = (usize::MAX, usize::MAX);
        let mut drafts = vec![Draft { component: "", parent: 0, depth: 0, first: NEVER }];
        let mut known: BTreeMap<(usize, &str), usize> = BTreeMap::new();
        let mut draft_of: SecondaryMap<ModuleId, usize> = SecondaryMap::new();
        for (module, path) in graph.modules() {
            let components =
                path.split('.').filter(|component| !component.is_empty()).take(DEEPEST);
            draft_of[module] = components.fold(0, |parent, component| {
                *known.entry((parent, component)).or_insert_with(|| {
                    drafts.push(Draft {
                        component,
                        parent,
                        depth: drafts[parent].depth + 1,
                        first: NEVER,
                    });
                    drafts.len() - 1
                })
            });
        }
        let mut is_named = vec![false; drafts.len()];
        draft_of.values().for_each(|&draft| is_named[draft] = true);
        let uncalled: BTreeSet<&str> =
            graph.uncalled().unwrap_or_default().iter().map(String::as_str).collect();
        for (id, node) in graph.nodes() {
            let first = &mut drafts[draft_of[node.module]].first;
            first.0 = if node.phase.is_forward() { first.0.min(id.index()) } else { first.0 };
            first.1 = first.1.min(id.index());
        }
        // Parents are drafted before their children.
        for draft in (1..drafts.len()).rev() {
            let (parent, first) = (drafts[draft].parent, drafts[draft].first);
            drafts[parent].first =
                (drafts[parent].first.0.min(first.0), drafts[parent].first.1.min(first.1));
        }
        let mut children: Vec<Vec<usize>> = vec![Vec::new(); drafts.len()];
        for draft in 1..drafts.len() {
            children[drafts[draft].parent].push(draft);
        }
        for list in &mut children {
            list.sort_by_key(|&child| (drafts[child].first, child));
        }

        let mut branches: PrimaryMap<ModuleIndex, Branch> = PrimaryMap::with_capacity(drafts.len());
        let mut place = vec![ModuleIndex::new(0); drafts.len()];
        let mut open = vec![0];
        while let Some(draft) = open.pop() {
            let Draft { component, parent, depth, .. } = drafts[draft];
            let parent = (draft > 0).then_some(place[parent]);
            let above = parent.map_or("", |parent| &branches[parent].path);
            let path = if above.is_empty() {
                component.to_string()
            } else {
                format!("{above}.{component}")
            };
            let is_called = match graph.uncalled() {
                Some(_) => !uncalled.contains(path.as_str()),
                // Modules in the table are called, and so are modules that hold more than a list
                // does.
                None => {
                    let is_number = |&child: &usize| drafts[child].component.parse::<u32>().is_ok();
                    is_named[draft] || !children[draft].iter().all(is_number)
                }
            };
            let is_called = is_called || draft == 0;
            place[draft] = branches.push(Branch { path, parent, depth, below: 0, is_called });
            open.extend(children[draft].iter().rev());
        }
        for module in branches.keys().rev() {
            if let Some(parent) = branches[module].parent {
                branches[parent].below += branches[module].below + 1;
            }
        }
        let mut of = SecondaryMap::new();
        for module in graph.modules().keys() {
            of[module] = Some(place[draft_of[module]]);
        }
        ModuleTree { branches, of }
    }

    /// All modules in forward pre-order.
    pub fn branches(&self) -> &PrimaryMap<ModuleIndex, Branch> {
        &self.branches
    }

    /// The module that contains all others.
    pub fn root(&self) -> ModuleIndex {
        ModuleIndex::new(0)
    }

    /// The index of one of the graph's modules.
    pub fn of(&self, module: ModuleId) -> ModuleIndex {
        self.of[module].unwrap_or(self.root())
    }

    /// Whether `upper` contains `lower`, or is it.
    pub fn contains(&self, upper: ModuleIndex, lower: ModuleIndex) -> bool {
        upper <= lower && lower.index() <= upper.index() + self.branches[upper].below as usize
    }

    /// Whether everything in `span`, if anything, lies within `module`.
    pub fn encloses(&self, module: ModuleIndex, span: Option<Span>) -> bool {
        span.is_none_or(|span| {
            self.contains(module, span.first) && self.contains(module, span.last)
        })
    }

    /// The lowest module that contains all of `span`.
    pub fn lowest(&self, span: Span) -> ModuleIndex {
        let encloses = |&module: &ModuleIndex| self.encloses(module, Some(span));
        self.lineage(span.first).find(encloses).unwrap_or(self.root())
    }

    /// Calls `tell`, once each, with the modules that read a storage from outside and that storage:
    /// for every read, the reading module and those above it, up to the first one that `holds` the
    /// storage. `reads` are sorted by storage.
    pub fn across_borders(
        &self,
        reads: &[(StorageId, ModuleIndex)],
        holds: impl Fn(ModuleIndex, StorageId) -> bool,
        mut tell: impl FnMut(ModuleIndex, StorageId),
    ) {
        let mut told: SecondaryMap<ModuleIndex, Option<StorageId>> =
            SecondaryMap::with_capacity(self.branches.len());
        for &(storage, reader) in reads {
            for module in self.lineage(reader).take_while(|&module| !holds(module, storage)) {
                if told[module].replace(storage) == Some(storage) {
                    break; // And so were all above it.
                }
                tell(module, storage);
            }
        }
    }

    /// A module and all above it, up to the root.
    pub fn lineage(&self, module: ModuleIndex) -> impl Iterator<Item = ModuleIndex> + '_ {
        std::iter::successors(Some(module), |&module| self.branches[module].parent)
    }
}
