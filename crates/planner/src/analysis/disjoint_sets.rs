//! Members that are joined into sets, step by step (Galler and Fischer, "An improved equivalence
//! algorithm", 1964). Invariant: the head of a set is the least of its members, so it does not
//! depend on the order of joins.

/// Sets of the numbers below a count.
pub struct DisjointSets(Vec<usize>);

impl DisjointSets {
    /// Every number is a set of its own.
    pub fn new(count: usize) -> DisjointSets {
        DisjointSets((0..count).collect())
    }

    /// The least member of the set that `member` is in.
    pub fn head(&mut self, mut member: usize) -> usize {
        while self.0[member] != member {
            self.0[member] = self.0[self.0[member]];
            member = self.0[member];
        }
        member
    }

    /// Makes one set of the sets of two members.
    pub fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.head(a), self.head(b));
        self.0[a.max(b)] = a.min(b);
    }
}
