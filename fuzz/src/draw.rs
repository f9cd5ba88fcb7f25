//! Seeded choices. Invariant: a draw depends on the seed of the campaign, the number of the case
//! and the part of the case alone, so one command reproduces any case, and leaving a part out
//! leaves the others as they were.

use fastrand::Rng;

/// Whole numbers at which programs are known to go wrong.
const EDGES: [i64; 18] = [
    0,
    1,
    -1,
    2,
    3,
    63,
    64,
    65,
    255,
    256,
    65_535,
    i32::MAX as i64,
    i32::MIN as i64,
    u32::MAX as i64,
    1 << 40,
    1 << 60,
    i64::MAX,
    i64::MIN,
];

/// A source of choices.
pub struct Draw(Rng);

impl Draw {
    /// The choices of one part of one case.
    pub fn of(seed: u64, case: u64, part: u64) -> Draw {
        let mut rng = Rng::with_seed(seed);
        for word in [case, part] {
            rng = Rng::with_seed(rng.u64(..) ^ word.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        }
        Draw(rng)
    }

    /// A number below `end`; 0 if there is none.
    pub fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { self.0.usize(..end) }
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u32) -> bool {
        self.0.u32(..100) < percent
    }

    /// One of several; `None` of nothing.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.below(of.len()))
    }

    /// One of an array that is not empty.
    pub fn one<T, const N: usize>(&mut self, of: [T; N]) -> T {
        let at = self.below(N);
        of.into_iter().nth(at).expect("such arrays hold something")
    }

    /// A number between 0 and 1.
    pub fn share(&mut self) -> f64 {
        self.0.f64()
    }

    /// A bit pattern.
    pub fn word(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// A byte.
    pub fn byte(&mut self) -> u8 {
        self.0.u8(..)
    }

    /// A number near `from`, or one at which programs are known to go wrong.
    pub fn near(&mut self, from: i64) -> i64 {
        match self.below(8) {
            0 => from.wrapping_add(1),
            1 => from.wrapping_sub(1),
            2 => from.wrapping_mul(2),
            3 => from / 2,
            4 => self.below(9) as i64,
            5 => from.wrapping_add(self.below(64) as i64),
            6 => from.wrapping_neg(),
            _ => self.one(EDGES),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_depend_on_seed_case_and_part() {
        let words = |seed, case, part| Draw::of(seed, case, part).word();
        assert_eq!(words(1, 2, 3), words(1, 2, 3));
        let all = [words(1, 2, 3), words(2, 2, 3), words(1, 3, 3), words(1, 2, 4), words(1, 3, 2)];
        let different: std::collections::BTreeSet<u64> = all.into_iter().collect();
        assert_eq!(different.len(), all.len());
    }
}
