//! Bytes over a sequence, raised and lowered over ranges. Invariant: the most of any range is known
//! at once.

/// A binary tree over positions: range addition, range maximum.
pub(super) struct Room {
    leaves: usize,
    /// Most of a node, without what was added to the nodes above it.
    most: Vec<i64>,
    /// Added to all of a node.
    added: Vec<i64>,
}

impl Room {
    /// Positions with these bytes.
    pub fn new(held: impl ExactSizeIterator<Item = i64>) -> Room {
        let leaves = held.len().next_power_of_two().max(1);
        let mut most = vec![i64::MIN / 4; leaves * 2];
        for (position, bytes) in held.enumerate() {
            most[leaves + position] = bytes;
        }
        for node in (1..leaves).rev() {
            most[node] = most[node * 2].max(most[node * 2 + 1]);
        }
        Room { leaves, most, added: vec![0; leaves * 2] }
    }

    /// Adds to the positions from `from` to before `to`.
    pub fn add(&mut self, from: usize, to: usize, bytes: i64) {
        if from < to && bytes != 0 {
            self.add_below(1, (0, self.leaves), (from, to), bytes);
        }
    }

    /// The most of the positions from `from` to before `to`; a very small number for none.
    pub fn most(&self, from: usize, to: usize) -> i64 {
        if from < to { self.most_below(1, (0, self.leaves), (from, to)) } else { i64::MIN / 4 }
    }

    fn add_below(&mut self, node: usize, span: (usize, usize), wanted: (usize, usize), bytes: i64) {
        if wanted.1 <= span.0 || span.1 <= wanted.0 {
            return;
        }
        if wanted.0 <= span.0 && span.1 <= wanted.1 {
            self.most[node] += bytes;
            self.added[node] += bytes;
            return;
        }
        let middle = (span.0 + span.1) / 2;
        self.add_below(node * 2, (span.0, middle), wanted, bytes);
        self.add_below(node * 2 + 1, (middle, span.1), wanted, bytes);
        self.most[node] = self.most[node * 2].max(self.most[node * 2 + 1]) + self.added[node];
    }

    fn most_below(&self, node: usize, span: (usize, usize), wanted: (usize, usize)) -> i64 {
        if wanted.1 <= span.0 || span.1 <= wanted.0 {
            return i64::MIN / 4;
        }
        if wanted.0 <= span.0 && span.1 <= wanted.1 {
            return self.most[node];
        }
        let middle = (span.0 + span.1) / 2;
        let left = self.most_below(node * 2, (span.0, middle), wanted);
        let right = self.most_below(node * 2 + 1, (middle, span.1), wanted);
        left.max(right) + self.added[node]
    }
}
