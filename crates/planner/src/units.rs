//! Units as types, so that bytes, operations and seconds cannot be mixed up.
//!
//! Invariant: a sum of [`Bytes`] never wraps. The graph verifier bounds the bytes of a whole graph
//! by [`Bytes::LIMIT`], so a failing addition is a bug in the caller, not a property of the input.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub, SubAssign};

use serde::{Deserialize, Serialize};

/// A number of bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// No graph may hold more than this (one exbibyte): sums of a few graphs still fit into `i64`.
    pub const LIMIT: Bytes = Bytes(1 << 60);
    /// Zero bytes.
    pub const ZERO: Bytes = Bytes(0);

    /// `self - other`, or zero if `other` is larger.
    pub fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }

    /// Rounds up to a multiple of `alignment`, a power of two.
    pub fn align_up(self, alignment: u64) -> Bytes {
        Bytes((self.0 + alignment - 1) & !(alignment - 1))
    }

    /// In mebibytes.
    pub fn mebibytes(self) -> f64 {
        self.0 as f64 / (1u64 << 20) as f64
    }
}

impl Add for Bytes {
    type Output = Bytes;
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0.checked_add(other.0).expect("bytes of a verified graph are bounded"))
    }
}

impl Sub for Bytes {
    type Output = Bytes;
    fn sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.checked_sub(other.0).expect("what is released was held before"))
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        *self = *self + other;
    }
}

impl SubAssign for Bytes {
    fn sub_assign(&mut self, other: Bytes) {
        *self = *self - other;
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(iter: I) -> Bytes {
        iter.fold(Bytes::ZERO, Add::add)
    }
}

/// Names of binary multiples, each 1024 of the one before.
const MULTIPLES: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];

/// Binary multiples with one decimal (`1.5 MiB`): exact enough to recognise, short enough to read.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1024 {
            return f.pad(&format!("{} B", self.0));
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < MULTIPLES.len() {
            value /= 1024.0;
            unit += 1;
        }
        f.pad(&format!("{value:.1} {}", MULTIPLES[unit]))
    }
}

impl Bytes {
    /// In words, for a lower limit: never more than the value; with hundredths, since the figures
    /// of a refusal are close together.
    pub fn rounded_down(self) -> String {
        self.in_hundredths(|bytes, hundredth| bytes / hundredth)
    }

    /// In words, for an amount that suffices: never less than the value.
    pub fn rounded_up(self) -> String {
        self.in_hundredths(u128::div_ceil)
    }

    /// In words, rounded to the nearest hundredth.
    pub fn rounded(self) -> String {
        self.in_hundredths(|bytes, hundredth| (bytes + hundredth / 2) / hundredth)
    }

    /// Formats like `Display`, with the hundredths of a multiple computed by `divide`.
    fn in_hundredths(self, divide: impl Fn(u128, u128) -> u128) -> String {
        let mut name = None;
        let mut multiple: u64 = 1;
        for next in MULTIPLES {
            if self.0 / 1024 < multiple {
                break;
            }
            (multiple, name) = (multiple * 1024, Some(next));
        }
        let Some(name) = name else { return self.to_string() };
        let hundredths = divide(u128::from(self.0) * 100, u128::from(multiple));
        format!("{}.{:02} {name}", hundredths / 100, hundredths % 100)
    }
}

/// A number of floating-point operations; a multiply-add counts as two.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Flops(pub u64);

/// A duration in seconds: finite and not negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seconds(pub f64);

impl Seconds {
    /// No step and no call may take longer than this, some thirty thousand years: sums over any
    /// plan stay finite.
    pub const LIMIT: Seconds = Seconds(1e12);

    /// The longer of the two.
    pub fn max(self, other: Seconds) -> Seconds {
        Seconds(self.0.max(other.0))
    }

    /// In microseconds.
    pub fn micros(self) -> f64 {
        self.0 * 1e6
    }
}

impl Add for Seconds {
    type Output = Seconds;
    fn add(self, other: Seconds) -> Seconds {
        Seconds(self.0 + other.0)
    }
}

impl Sum for Seconds {
    fn sum<I: Iterator<Item = Seconds>>(iter: I) -> Seconds {
        iter.fold(Seconds(0.0), Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_as_people_write_them() {
        assert_eq!(Bytes(0).to_string(), "0 B");
        assert_eq!(Bytes(1023).to_string(), "1023 B");
        assert_eq!(Bytes(1536).to_string(), "1.5 KiB");
        assert_eq!(Bytes(320 << 20).to_string(), "320.0 MiB");
    }

    /// The value of a number in words, in hundredths of its multiple, times that multiple.
    fn read_back(words: &str) -> u128 {
        let (number, name) = words.split_once(' ').unwrap();
        let power = MULTIPLES.iter().position(|&multiple| multiple == name);
        let multiple = power.map_or(1, |power| 1 << (10 * (power as u32 + 1)));
        let (whole, hundredths) = number.split_once('.').unwrap_or((number, "0"));
        (whole.parse::<u128>().unwrap() * 100 + hundredths.parse::<u128>().unwrap()) * multiple
    }

    #[test]
    fn limits_round_to_the_safe_side() {
        let mut random = fastrand::Rng::with_seed(1);
        let edges = [0, 1, 1023, 1024, 1025, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, u64::MAX];
        let draws = std::iter::repeat_with(|| random.u64(..) >> random.u32(..64)).take(10_000);
        for bytes in edges.into_iter().chain(draws) {
            let (down, up) = (Bytes(bytes).rounded_down(), Bytes(bytes).rounded_up());
            let exact = u128::from(bytes) * 100;
            assert!(read_back(&down) <= exact && exact <= read_back(&up), "{down}, {bytes}, {up}");
            assert!(read_back(&up) - read_back(&down) <= exact / 100 + 1, "{down}, {up}");
            let near = read_back(&Bytes(bytes).rounded());
            assert!([read_back(&down), read_back(&up)].contains(&near), "{down}, {bytes}, {up}");
        }
        assert_eq!(Bytes((1 << 20) - 1).rounded_up(), "1024.00 KiB");
        assert_eq!(Bytes(3 << 19).rounded_down(), "1.50 MiB");
    }

    #[test]
    fn alignment_rounds_up() {
        assert_eq!(Bytes(1).align_up(64), Bytes(64));
        assert_eq!(Bytes(128).align_up(64), Bytes(128));
    }
}
