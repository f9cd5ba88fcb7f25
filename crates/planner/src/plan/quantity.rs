//! Bytes, time and the price of a byte in whole numbers. Invariant: sums and comparisons are exact,
//! and rounding is done only by methods whose names say which way.

use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub, SubAssign};

use crate::units::{Bytes, Seconds};

/// A number of bytes, signed, because differences are common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteCount(pub i64);

/// A time in picoseconds, signed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Picoseconds(pub i64);

/// A time that may be too long for [`Picoseconds`], such as a price times the bytes of a budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct WidePicoseconds(i128);

/// The price of a byte held across an instant, in whole multiples of 2⁻²⁴ picoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Price(i64);

/// Sums and differences for a newtype around one number.
macro_rules! additive {
    ($type:ident) => {
        impl $type {
            /// Zero.
            pub const ZERO: $type = $type(0);
        }

        impl Add for $type {
            type Output = $type;
            fn add(self, other: $type) -> $type {
                $type(self.0 + other.0)
            }
        }

        impl Sub for $type {
            type Output = $type;
            fn sub(self, other: $type) -> $type {
                $type(self.0 - other.0)
            }
        }

        impl AddAssign for $type {
            fn add_assign(&mut self, other: $type) {
                self.0 += other.0;
            }
        }

        impl SubAssign for $type {
            fn sub_assign(&mut self, other: $type) {
                self.0 -= other.0;
            }
        }

        impl Neg for $type {
            type Output = $type;
            fn neg(self) -> $type {
                $type(-self.0)
            }
        }

        impl Sum for $type {
            fn sum<I: Iterator<Item = $type>>(iter: I) -> $type {
                iter.fold($type::ZERO, Add::add)
            }
        }
    };
}

additive!(ByteCount);
additive!(Picoseconds);
additive!(WidePicoseconds);

impl ByteCount {
    /// The same number of bytes; at most what a graph may hold.
    pub fn of(bytes: Bytes) -> ByteCount {
        ByteCount(bytes.0.min(Bytes::LIMIT.0) as i64)
    }

    /// The same as unsigned bytes; zero if the count is negative.
    pub fn bytes(self) -> Bytes {
        Bytes(self.0.max(0) as u64)
    }

    /// For scores that need not be exact.
    pub fn as_f64(self) -> f64 {
        self.0 as f64
    }
}

impl Mul<i64> for ByteCount {
    type Output = ByteCount;
    fn mul(self, factor: i64) -> ByteCount {
        ByteCount(self.0 * factor)
    }
}

impl Div<i64> for ByteCount {
    type Output = ByteCount;
    fn div(self, parts: i64) -> ByteCount {
        ByteCount(self.0 / parts)
    }
}

impl Picoseconds {
    /// Longer than any sum of runs.
    pub const MAX: Picoseconds = Picoseconds(i64::MAX);

    /// The longest run that is distinguished, 17 seconds, so that sums over half a million runs do
    /// not overflow.
    const LONGEST_RUN: f64 = (1i64 << 44) as f64;

    /// The time of one run, rounded down; longer runs count as the longest that is distinguished.
    pub fn round_down(seconds: Seconds) -> Picoseconds {
        Picoseconds((seconds.0 * 1e12).min(Self::LONGEST_RUN) as i64)
    }

    /// In seconds.
    pub fn seconds(self) -> Seconds {
        Seconds(self.0 as f64 * 1e-12)
    }

    /// For scores that need not be exact.
    pub fn as_f64(self) -> f64 {
        self.0 as f64
    }

    /// `self - other`, or the nearest representable value.
    pub fn saturating_sub(self, other: Picoseconds) -> Picoseconds {
        Picoseconds(self.0.saturating_sub(other.0))
    }

    /// For sums that may be too long for this type.
    pub fn wide(self) -> WidePicoseconds {
        WidePicoseconds(i128::from(self.0))
    }
}

impl Div<i64> for Picoseconds {
    type Output = Picoseconds;
    fn div(self, parts: i64) -> Picoseconds {
        Picoseconds(self.0 / parts)
    }
}

impl WidePicoseconds {
    /// The same, or the longest or shortest time that fits [`Picoseconds`].
    pub fn narrow(self) -> Picoseconds {
        Picoseconds(self.0.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64)
    }
}

impl Price {
    /// A byte costs nothing, so everything is held.
    pub const FREE: Price = Price(0);

    const FRACTION_BITS: u32 = 24;

    /// The highest price at which the charges for `bytes` can still be summed; almost nothing is
    /// held at it.
    pub fn highest(bytes: ByteCount) -> Price {
        let price = ((1i128 << 58) << Self::FRACTION_BITS) / i128::from(bytes.0.max(1));
        Price(price.min(1 << 62) as i64)
    }

    /// This many picoseconds per byte, rounded down, between zero and `highest`.
    pub fn round_down(picoseconds: f64, highest: Price) -> Price {
        let price = picoseconds * (1u64 << Self::FRACTION_BITS) as f64;
        Price((price as i64).clamp(0, highest.0))
    }

    /// The price at which `time` is worth `bytes`, rounded towards zero, between zero and
    /// `highest`.
    pub fn per_byte(time: Picoseconds, bytes: ByteCount, highest: Price) -> Price {
        let price = (i128::from(time.0) << Self::FRACTION_BITS) / i128::from(bytes.0);
        Price(price.clamp(0, i128::from(highest.0)) as i64)
    }

    /// The charge for bytes at this price, rounded down: the most that a cut is charged for them.
    pub fn charge_down(self, bytes: ByteCount) -> Picoseconds {
        Picoseconds(((i128::from(self.0) * i128::from(bytes.0)) >> Self::FRACTION_BITS) as i64)
    }

    /// The charge for bytes at this price, rounded up: the least that a bound gives away for them.
    pub fn charge_up(self, bytes: ByteCount) -> WidePicoseconds {
        WidePicoseconds(-((-(i128::from(self.0) * i128::from(bytes.0))) >> Self::FRACTION_BITS))
    }

    /// The smallest number of bytes whose charge exceeds `time`, or zero; at most what a graph may
    /// hold. The price must not be zero.
    pub fn bytes_beyond(self, time: WidePicoseconds) -> ByteCount {
        let bytes = (time.0 << Self::FRACTION_BITS).div_euclid(i128::from(self.0)) + 1;
        ByteCount(bytes.clamp(0, i128::from(Bytes::LIMIT.0)) as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_are_on_both_sides_of_the_product() {
        let price = Price(3 << 23); // one and a half picoseconds
        assert_eq!(price.charge_down(ByteCount(3)), Picoseconds(4));
        assert_eq!(price.charge_up(ByteCount(3)), WidePicoseconds(5));
        assert_eq!(price.charge_up(ByteCount(4)).narrow(), price.charge_down(ByteCount(4)));
        assert_eq!(price.charge_down(ByteCount(-3)), Picoseconds(-5));
        assert_eq!(price.charge_up(ByteCount(-3)), WidePicoseconds(-4));
    }

    #[test]
    fn beyond_a_time_is_the_first_byte_that_exceeds_it() {
        let price = Price::per_byte(Picoseconds(5), ByteCount(2), Price::highest(ByteCount(9)));
        assert_eq!(price.bytes_beyond(WidePicoseconds(10)), ByteCount(5));
        assert_eq!(price.bytes_beyond(WidePicoseconds(11)), ByteCount(5));
        assert_eq!(price.bytes_beyond(WidePicoseconds(-7)), ByteCount::ZERO);
    }

    #[test]
    fn runs_are_rounded_down_and_cut_off() {
        assert_eq!(Picoseconds::round_down(Seconds(1.9e-12)), Picoseconds(1));
        assert_eq!(Picoseconds::round_down(Seconds(1e9)), Picoseconds(1 << 44));
        assert_eq!(Picoseconds(5).seconds(), Seconds(5.0 * 1e-12));
    }
}
