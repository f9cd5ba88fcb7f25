//! Bytes over the points of a step: add to a range, query the maximum and its position. Invariant:
//! `max` of an inner node is the maximum of its children plus what was added to the node as a
//! whole.

use crate::plan::quantity::ByteCount;

/// Less than any sum, and far from overflow.
const LEAST: ByteCount = ByteCount(i64::MIN / 4);

/// A segment tree over points.
#[derive(Clone, Debug)]
pub struct MaxTree {
    leaves: usize,
    max: Vec<ByteCount>,
    added: Vec<ByteCount>,
}

impl MaxTree {
    /// A tree over `values`.
    pub fn new(values: &[ByteCount]) -> MaxTree {
        let leaves = values.len().next_power_of_two();
        // Unused leaves are never the maximum.
        let mut max = vec![LEAST; 2 * leaves];
        max[leaves..leaves + values.len()].copy_from_slice(values);
        for node in (1..leaves).rev() {
            max[node] = max[2 * node].max(max[2 * node + 1]);
        }
        MaxTree { leaves, max, added: vec![ByteCount::ZERO; leaves] }
    }

    /// Adds `bytes` to each point of `from..to`.
    pub fn add(&mut self, from: usize, to: usize, bytes: ByteCount) {
        if from >= to || bytes == ByteCount::ZERO {
            return;
        }
        let (mut low, mut high) = (from + self.leaves, to + self.leaves);
        let (first, last) = (low, high - 1);
        while low < high {
            if low & 1 == 1 {
                self.add_to_node(low, bytes);
                low += 1;
            }
            if high & 1 == 1 {
                high -= 1;
                self.add_to_node(high, bytes);
            }
            low >>= 1;
            high >>= 1;
        }
        // Both paths to the root, the common part once.
        let (mut left, mut right) = (first >> 1, last >> 1);
        while left != right {
            self.pull(left);
            self.pull(right);
            left >>= 1;
            right >>= 1;
        }
        while left > 0 {
            self.pull(left);
            left >>= 1;
        }
    }

    fn add_to_node(&mut self, node: usize, bytes: ByteCount) {
        self.max[node] += bytes;
        if node < self.leaves {
            self.added[node] += bytes;
        }
    }

    fn pull(&mut self, node: usize) {
        self.max[node] = self.max[2 * node].max(self.max[2 * node + 1]) + self.added[node];
    }

    /// The largest value.
    pub fn max(&self) -> ByteCount {
        self.max[1]
    }

    /// The first point that has it.
    pub fn argmax(&self) -> usize {
        let mut node = 1;
        while node < self.leaves {
            node =
                if self.max[2 * node] >= self.max[2 * node + 1] { 2 * node } else { 2 * node + 1 };
        }
        node - self.leaves
    }

    /// The value of one point.
    pub fn at(&self, point: usize) -> ByteCount {
        let mut node = point + self.leaves;
        let mut value = self.max[node];
        while node > 1 {
            node >>= 1;
            value += self.added[node];
        }
        value
    }

    /// The largest value in `from..to`, which must not be empty.
    pub fn max_in(&self, from: usize, to: usize) -> ByteCount {
        // Bottom up: the best of what lies inside, per side, plus what was added above.
        let (mut low, mut high) = (from + self.leaves, to - 1 + self.leaves);
        let (mut left, mut right) = (self.max[low], self.max[high]);
        while low >> 1 != high >> 1 {
            if low & 1 == 0 {
                left = left.max(self.max[low + 1]);
            }
            if high & 1 == 1 {
                right = right.max(self.max[high - 1]);
            }
            low >>= 1;
            high >>= 1;
            left += self.added[low];
            right += self.added[high];
        }
        let mut best = left.max(right);
        while low > 1 {
            low >>= 1;
            best += self.added[low];
        }
        best
    }

    /// Writes the value of every point into `out`.
    pub fn values(&self, out: &mut Vec<ByteCount>, points: usize) {
        let mut carried = self.added.clone();
        for node in 1..self.leaves {
            let above = carried[node];
            for child in [2 * node, 2 * node + 1] {
                if child < self.leaves {
                    carried[child] += above;
                }
            }
        }
        out.clear();
        out.extend((0..points).map(|point| {
            let leaf = point + self.leaves;
            self.max[leaf] + if leaf > 1 { carried[leaf >> 1] } else { ByteCount::ZERO }
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_an_array_with_shortcuts() {
        let mut random = 7u64;
        let mut below = |n: usize| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) as usize % n
        };
        for points in [1, 2, 3, 7, 16, 29] {
            let mut values: Vec<ByteCount> =
                (0..points).map(|_| ByteCount(below(50) as i64)).collect();
            let mut tree = MaxTree::new(&values);
            for _ in 0..200 {
                let (from, bytes) = (below(points), ByteCount(below(9) as i64 - 4));
                let to = from + 1 + below(points - from);
                values[from..to].iter_mut().for_each(|value| *value += bytes);
                tree.add(from, to, bytes);
                let max = values.iter().copied().max().unwrap_or_default();
                assert_eq!(tree.max(), max);
                assert_eq!(Some(tree.argmax()), values.iter().position(|&value| value == max));
                let low = below(points);
                let high = low + 1 + below(points - low);
                assert_eq!(Some(tree.max_in(low, high)), values[low..high].iter().copied().max());
                assert_eq!(tree.at(low), values[low]);
                let mut all = Vec::new();
                tree.values(&mut all, points);
                assert_eq!(all, values);
            }
        }
    }
}
