//! Bytes by module as nested rectangles. Invariant: areas are to scale, within a map and between
//! the maps of one page; rectangles fill their map without a gap and without overlap.
//!
//! The layout is the squarified treemap of Bruls, Huizing and van Wijk (Data Visualization 2000):
//! largest first, a row grows as long as its worst aspect ratio gets better.

use std::collections::BTreeMap;

use tightfit::units::Bytes;

use crate::course::Course;
use crate::role::ByRole;

/// Modules with more than one part in this many of all bytes are cut into their children.
const CUT: u64 = 24;
/// Most components of a module's path that are told apart.
const DEEPEST: usize = 64;
/// Children with less than one part in this many of all bytes are put together, until they are
/// large enough to be cut.
const TINY: u64 = 400;

/// A rectangle in shares of the whole map.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rectangle {
    /// Left edge.
    pub x: f64,
    /// Upper edge.
    pub y: f64,
    /// Width.
    pub width: f64,
    /// Height.
    pub height: f64,
}

/// Bytes of one module in each of several courses, at their peaks.
#[derive(Clone, Debug, PartialEq)]
pub struct ModuleBytes {
    /// Its fully qualified name; empty = the root's own; with `…`, that of several small ones.
    pub path: String,
    /// By course and role.
    pub bytes: Vec<ByRole<Bytes>>,
}

/// The modules worth showing, as a tree: each is a leaf or the parent of others.
#[derive(Clone, Debug)]
pub struct ModuleTree {
    /// The modules without children, in the order of their names.
    pub leaves: Vec<ModuleBytes>,
    root: Group,
}

#[derive(Clone, Debug)]
enum Group {
    Leaf(usize),
    Groups(Vec<Group>),
}

/// A module while the tree is made.
#[derive(Default)]
struct Branch {
    own: Vec<ByRole<Bytes>>,
    /// By name, numbers by their size.
    children: BTreeMap<(u64, String), Branch>,
}

impl Branch {
    fn total(&self) -> u64 {
        sum(&self.own) + self.children.values().map(Branch::total).sum::<u64>()
    }

    fn add_to(&self, bytes: &mut [ByRole<Bytes>]) {
        add(bytes, &self.own);
        self.children.values().for_each(|child| child.add_to(bytes));
    }
}

fn sum(bytes: &[ByRole<Bytes>]) -> u64 {
    bytes.iter().flatten().map(|bytes| bytes.0).sum()
}

fn add(to: &mut [ByRole<Bytes>], from: &[ByRole<Bytes>]) {
    for (to, from) in to.iter_mut().flatten().zip(from.iter().flatten()) {
        *to += *from;
    }
}

/// Width of the model for a height of one.
const MODEL: f64 = 2.2;

impl ModuleTree {
    /// The modules of the tensors alive at the peaks of `courses`.
    pub fn of(courses: &[&Course<'_>]) -> ModuleTree {
        let mut root = Branch::default();
        for (number, course) in courses.iter().enumerate() {
            for residency in course.alive(course.at) {
                let mut branch = &mut root;
                for part in course
                    .module(residency)
                    .split('.')
                    .filter(|part| !part.is_empty())
                    .take(DEEPEST)
                {
                    branch = branch
                        .children
                        .entry((part.parse().unwrap_or(u64::MAX), part.to_string()))
                        .or_default();
                }
                branch.own.resize(courses.len(), ByRole::default());
                branch.own[number][residency.role as usize] += residency.bytes;
            }
        }
        let total = root.total().max(1);
        let mut leaves = Vec::new();
        let root = cut(&root, "", total, courses.len(), &mut leaves);
        ModuleTree { leaves, root }
    }

    /// The rectangle of each leaf in the map of one course, `aspect` times as wide as it is high.
    pub fn rectangles(&self, course: usize, aspect: f64) -> Vec<Rectangle> {
        let mut rectangles =
            vec![Rectangle { x: 0.0, y: 0.0, width: 0.0, height: 0.0 }; self.leaves.len()];
        let of = |leaf: &ModuleBytes, course: usize| bytes(&leaf.bytes[course]).0 as f64;
        let weight: Vec<f64> = self.leaves.iter().map(|leaf| of(leaf, course)).collect();
        let whole = |leaf: &ModuleBytes| (0..leaf.bytes.len()).map(|c| of(leaf, c)).sum();
        let whole: Vec<f64> = self.leaves.iter().map(whole).collect();
        let space = Rectangle { x: 0.0, y: 0.0, width: aspect, height: 1.0 };
        let model = Rectangle { width: MODEL, ..space };
        lay(&self.root, (space, model), (&weight, &whole), &mut rectangles);
        for rectangle in &mut rectangles {
            rectangle.x /= aspect;
            rectangle.width /= aspect;
        }
        rectangles
    }
}

/// Bytes of all roles.
pub fn bytes(by_role: &ByRole<Bytes>) -> Bytes {
    by_role.iter().copied().sum()
}

fn leaf(path: String, bytes: Vec<ByRole<Bytes>>, leaves: &mut Vec<ModuleBytes>) -> Group {
    leaves.push(ModuleBytes { path, bytes });
    Group::Leaf(leaves.len() - 1)
}

fn cut(
    branch: &Branch,
    path: &str,
    total: u64,
    courses: usize,
    leaves: &mut Vec<ModuleBytes>,
) -> Group {
    let none = || vec![ByRole::default(); courses];
    if branch.children.is_empty() || branch.total() < total.div_ceil(CUT) {
        let mut all = none();
        branch.add_to(&mut all);
        return leaf(path.to_string(), all, leaves);
    }
    let mut groups = Vec::new();
    if sum(&branch.own) > 0 {
        groups.push(leaf(path.to_string(), branch.own.clone(), leaves));
    }
    let join =
        |name: &str| if path.is_empty() { name.to_string() } else { format!("{path}.{name}") };
    let is_tiny = |child: &Branch| child.total() < total.div_ceil(TINY);
    let mut run: Vec<(&str, &Branch)> = Vec::new();
    for ((_, name), child) in &branch.children {
        if !is_tiny(child) {
            groups.push(cut(child, &join(name), total, courses, leaves));
            continue;
        }
        run.push((name, child));
        if run.iter().map(|(_, child)| child.total()).sum::<u64>() >= total.div_ceil(CUT) {
            groups.push(together(&std::mem::take(&mut run), join, courses, leaves));
        }
    }
    if !run.is_empty() {
        groups.push(together(&run, join, courses, leaves));
    }
    Group::Groups(groups)
}

/// Several tiny modules as one, named by the first and the last of them.
fn together(
    run: &[(&str, &Branch)],
    join: impl Fn(&str) -> String,
    courses: usize,
    leaves: &mut Vec<ModuleBytes>,
) -> Group {
    let mut all = vec![ByRole::default(); courses];
    run.iter().for_each(|(_, child)| child.add_to(&mut all));
    let name = match run {
        [(only, _)] => join(only),
        [(first, _), .., (last, _)] => join(&format!("{first} … {last}")),
        [] => join("…"),
    };
    leaf(name, all, leaves)
}

fn weight_of(group: &Group, weight: &[f64]) -> f64 {
    match group {
        Group::Leaf(leaf) => weight[*leaf],
        Group::Groups(groups) => groups.iter().map(|group| weight_of(group, weight)).sum(),
    }
}

/// Squarified treemaps (Bruls, Huizing and van Wijk 2000): rows of parts, the largest first, as
/// long as that makes them more square. Which parts make a row, and along which side, is decided in
/// a model, whose parts have the bytes of all courses together: so the maps of several courses have
/// the same arrangement.
fn lay(
    group: &Group,
    (space, model): (Rectangle, Rectangle),
    (weight, whole): (&[f64], &[f64]),
    rectangles: &mut [Rectangle],
) {
    let groups = match group {
        Group::Leaf(leaf) => {
            rectangles[*leaf] = space;
            return;
        }
        Group::Groups(groups) => groups,
    };
    let mut parts: Vec<(f64, &Group)> = groups
        .iter()
        .map(|group| (weight_of(group, whole), group))
        .filter(|(w, _)| *w > 0.0)
        .collect();
    // Stable, so that equals keep the order of their names.
    parts.sort_by(|a, b| b.0.total_cmp(&a.0));
    let total = |parts: &[(f64, &Group)]| -> f64 { parts.iter().map(|(whole, _)| whole).sum() };
    let own = |parts: &[(f64, &Group)]| -> f64 {
        parts.iter().map(|(_, group)| weight_of(group, weight)).sum()
    };
    let scale = model.width * model.height / total(&parts);
    let (mut left, mut left_of_model, mut rest) = (space, model, parts.as_slice());
    while !rest.is_empty() {
        let is_wide = left_of_model.width >= left_of_model.height;
        let side = left_of_model.width.min(left_of_model.height);
        let mut row = 1;
        while row < rest.len()
            && worst(&rest[..row + 1], side, scale) <= worst(&rest[..row], side, scale)
        {
            row += 1;
        }
        // The share of the rest that a row takes; the last row takes all of it, despite rounding.
        let share = |row_of: f64, all: f64| if all > 0.0 { row_of / all } else { 0.0 };
        let is_last = row == rest.len();
        let depth = if is_last { 1.0 } else { share(own(&rest[..row]), own(rest)) };
        let depth_of_model = if is_last { 1.0 } else { share(total(&rest[..row]), total(rest)) };
        let (mut along, mut along_model) = (0.0, 0.0);
        for part in &rest[..row] {
            let one = std::slice::from_ref(part);
            let length = share(own(one), own(&rest[..row]));
            let length_of_model = share(total(one), total(&rest[..row]));
            let place = left.part(is_wide, depth, along, length);
            let model = left_of_model.part(is_wide, depth_of_model, along_model, length_of_model);
            lay(part.1, (place, model), (weight, whole), rectangles);
            along += length;
            along_model += length_of_model;
        }
        left = left.behind(is_wide, depth);
        left_of_model = left_of_model.behind(is_wide, depth_of_model);
        rest = &rest[row..];
    }
}

impl Rectangle {
    /// A part of a row: the row takes the share `depth` of the longer side (the width, if
    /// `is_wide`), and the part the share `length` of the other side, starting at the share
    /// `along`.
    fn part(self, is_wide: bool, depth: f64, along: f64, length: f64) -> Rectangle {
        let Rectangle { x, y, width, height } = self;
        match is_wide {
            true => Rectangle {
                x,
                y: y + along * height,
                width: depth * width,
                height: length * height,
            },
            false => {
                Rectangle { x: x + along * width, y, width: length * width, height: depth * height }
            }
        }
    }

    /// The rectangle that is left after a row.
    fn behind(self, is_wide: bool, depth: f64) -> Rectangle {
        let Rectangle { x, y, width, height } = self;
        match is_wide {
            true => Rectangle { x: x + depth * width, width: (1.0 - depth) * width, ..self },
            false => Rectangle { y: y + depth * height, height: (1.0 - depth) * height, ..self },
        }
    }
}

/// The worst aspect ratio of a row along a side.
fn worst(row: &[(f64, &Group)], side: f64, scale: f64) -> f64 {
    let area: f64 = row.iter().map(|(weight, _)| weight * scale).sum();
    let ratio = |(weight, _): &(f64, &Group)| {
        let part = weight * scale;
        (side * side * part / (area * area)).max(area * area / (side * side * part))
    };
    row.iter().map(ratio).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::role::Role;

    fn activations(bytes: u64) -> Vec<ByRole<Bytes>> {
        let mut by_role = ByRole::<Bytes>::default();
        by_role[Role::Activations as usize] = Bytes(bytes);
        vec![by_role]
    }

    #[test]
    fn many_small_modules_are_a_few_leaves_and_nothing_is_lost() {
        let mut root = Branch::default();
        for layer in 0..1000u64 {
            root.children.insert(
                (layer, layer.to_string()),
                Branch { own: activations(10), ..Branch::default() },
            );
        }
        root.children.insert(
            (u64::MAX, "head".to_string()),
            Branch { own: activations(900), ..Branch::default() },
        );
        let mut leaves = Vec::new();
        cut(&root, "", root.total(), 1, &mut leaves);
        let names: Vec<&str> = leaves.iter().map(|leaf| leaf.path.as_str()).collect();
        assert_eq!(
            (names.len(), names[0], names[1], names[22]),
            (23, "0 … 45", "46 … 91", "966 … 999"),
            "{names:?}"
        );
        assert_eq!(leaves.iter().map(|leaf| sum(&leaf.bytes)).sum::<u64>(), 10_900);
    }

    #[test]
    fn rectangles_fill_the_map_to_scale() {
        let sizes = [6, 6, 4, 3, 2, 2, 1, 0];
        let leaves: Vec<ModuleBytes> = sizes
            .iter()
            .map(|&size| ModuleBytes { path: "m.x".to_string(), bytes: activations(size) })
            .collect();
        let root = Group::Groups(vec![
            Group::Groups((0..3).map(Group::Leaf).collect()),
            Group::Groups((3..8).map(Group::Leaf).collect()),
        ]);
        for aspect in [0.3, 1.0, 2.5] {
            let rectangles =
                ModuleTree { leaves: leaves.clone(), root: root.clone() }.rectangles(0, aspect);
            for (rectangle, size) in rectangles.iter().zip(sizes) {
                assert!(
                    (rectangle.width * rectangle.height - size as f64 / 24.0).abs() < 1e-9,
                    "{rectangle:?} {size}"
                );
                let inside = |low: f64, length: f64| low > -1e-9 && low + length < 1.0 + 1e-9;
                assert!(
                    inside(rectangle.x, rectangle.width) && inside(rectangle.y, rectangle.height),
                    "{rectangle:?}"
                );
            }
            for (index, a) in rectangles.iter().enumerate() {
                for b in &rectangles[index + 1..] {
                    let shared = |low: f64, one: f64, other: f64, two: f64| {
                        (low + one).min(other + two) - low.max(other)
                    };
                    let (width, height) =
                        (shared(a.x, a.width, b.x, b.width), shared(a.y, a.height, b.y, b.height));
                    assert!(width < 1e-9 || height < 1e-9, "{a:?} {b:?}");
                }
            }
        }
    }

    #[test]
    fn the_maps_of_all_courses_have_one_arrangement() {
        let module = |path: &str, sizes: [u64; 2]| ModuleBytes {
            path: path.to_string(),
            bytes: sizes.map(activations).concat(),
        };
        // Each is larger than the other in one of two courses.
        let tree = ModuleTree {
            leaves: vec![module("m.x", [3, 1]), module("m.y", [1, 3])],
            root: Group::Groups(vec![Group::Leaf(0), Group::Leaf(1)]),
        };
        for (course, share) in [(0, 0.75), (1, 0.25)] {
            for aspect in [0.3, 1.0, 2.5] {
                let rectangles = tree.rectangles(course, aspect);
                let expected = [
                    Rectangle { x: 0.0, y: 0.0, width: share, height: 1.0 },
                    Rectangle { x: share, y: 0.0, width: 1.0 - share, height: 1.0 },
                ];
                for (found, expected) in rectangles.iter().zip(&expected) {
                    let sides = |it: &Rectangle| [it.x, it.y, it.width, it.height];
                    let mut pairs = sides(found).into_iter().zip(sides(expected));
                    let is_close = pairs.all(|(one, other)| (one - other).abs() < 1e-9);
                    assert!(is_close, "{found:?} {expected:?}");
                }
            }
        }
    }
}
