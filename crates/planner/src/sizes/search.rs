//! The search for the largest size that fits, between one that does and one that does not.
//! Invariant: it ends at a size that fits whose next one does not, is not taken by the model, or is
//! not known. Each size is tried once; if no plan was found for that next one although it may fit,
//! a patient trial decides, and others are patient from then on if it finds one.

use std::collections::BTreeMap;

use crate::units::Bytes;

/// The largest factor by which a size that fits is exceeded.
const GROWTH: u64 = 4;

/// Trials become patient once the interval is this share of the size that fits, if one may fit of
/// which no plan was found.
const CLOSE: u64 = 16;

/// What trying a size says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trial {
    /// It fits; this many bytes are known to suffice, if that was asked.
    Fits(Option<Bytes>),
    /// It does not fit; this many bytes are known to suffice, if that was asked.
    Exceeds(Option<Bytes>),
    /// No plan was found for it, but there may be one; this many bytes are known to suffice.
    Open(Option<Bytes>),
    /// The model does not take it.
    Barred,
    /// It is not known whether the model takes it.
    Unknown,
}

/// The sizes that are searched: multiples of `grid` from `least` to `most`.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// The smallest size.
    pub least: u64,
    /// The largest size.
    pub most: u64,
    /// The number of which sizes are multiples.
    pub grid: u64,
}

/// The largest size of `range` that fits into `room`, beginning with `given`, a multiple of its
/// grid; `None` if none does. `attempt` tries a size, and takes its time if told so. What
/// suffices for it is of interest: a line through two such figures says where to look next.
///
/// # Errors
/// What `attempt` returns.
pub fn largest<E>(
    given: u64,
    range: Range,
    room: Bytes,
    attempt: impl FnMut(u64, bool) -> Result<Trial, E>,
) -> Result<Option<u64>, E> {
    let mut search = Search { range, room, attempt, known: BTreeMap::new(), is_patient: false };
    search.run(given / range.grid)
}

struct Search<F> {
    range: Range,
    room: Bytes,
    attempt: F,
    known: BTreeMap<u64, Trial>,
    /// Whether trials are patient by now.
    is_patient: bool,
}

/// Places are sizes in units of the grid: `low` fits, `high` does not, and nothing below `floor` is
/// taken.
impl<E, F: FnMut(u64, bool) -> Result<Trial, E>> Search<F> {
    fn run(&mut self, given: u64) -> Result<Option<u64>, E> {
        let Range { least, most, grid } = self.range;
        let (mut low, mut high, floor) = (0, most / grid + 1, least.div_ceil(grid));
        let mut at = given;
        loop {
            (low, high) = self.between(low, high, floor, at)?;
            let is_open = |trial: &Trial| matches!(trial, Trial::Open(_));
            if self.is_patient || !self.known.get(&high).is_some_and(is_open) {
                return Ok((low > 0).then_some(low * grid));
            }
            // If patience finds more here, it may elsewhere.
            self.is_patient = true;
            self.known.retain(|_, trial| !is_open(trial));
            let is_end = |trial: &Trial| matches!(trial, Trial::Exceeds(_) | Trial::Unknown);
            let above = self.known.range(high..).find(|(_, trial)| is_end(trial));
            (at, high) = (high, above.map_or(most / grid + 1, |(&place, _)| place));
        }
    }

    /// A place that fits and the next one, which does not, or one close by that may; between `low`
    /// and `high`, looking `at` a place first.
    fn between(
        &mut self,
        mut low: u64,
        mut high: u64,
        mut floor: u64,
        mut at: u64,
    ) -> Result<(u64, u64), E> {
        while low + 1 < high && floor <= at && at < high {
            let before = high - low;
            // One size may be missing among others.
            let is_barred = self.known.get(&at) == Some(&Trial::Barred);
            let place = if is_barred && at + 1 < high { at + 1 } else { at };
            match self.look(place)? {
                Trial::Fits(_) => low = low.max(place),
                Trial::Barred if low == 0 => floor = place + 1,
                Trial::Barred if place == at && at + 1 < high => continue,
                _ => high = high.min(at),
            }
            let is_open = matches!(self.known.get(&high), Some(Trial::Open(_)));
            if !self.is_patient && is_open && (high - low) * CLOSE <= low {
                break;
            }
            let is_slow = high - low > before / 2;
            at = self.next(low, high, floor, is_slow).max(floor);
        }
        Ok((low, high))
    }

    fn look(&mut self, place: u64) -> Result<Trial, E> {
        if let Some(&known) = self.known.get(&place) {
            return Ok(known);
        }
        let found = (self.attempt)(place * self.range.grid, self.is_patient)?;
        self.known.insert(place, found);
        Ok(found)
    }

    /// What to try next. If the last place left more than half of the interval, that is halved now.
    fn next(&self, low: u64, high: u64, floor: u64, is_slow: bool) -> u64 {
        if low == 0 {
            return if high > floor { (floor + high) / 2 } else { high };
        }
        let guess = self.guess(low);
        if high > self.range.most / self.range.grid {
            let further = guess.map_or(2 * low, |guess| guess.max(low + (low / 16).max(1)));
            return further.min(GROWTH * low).min(high - 1);
        }
        let guess = guess.filter(|_| !is_slow).unwrap_or_else(|| (low * high).isqrt());
        guess.max(low + 1).min(high - 1)
    }

    /// The place for which the room would just suffice, by a line through the two that are closest.
    fn guess(&self, low: u64) -> Option<u64> {
        let mut sufficient: Vec<(u64, u64)> = self
            .known
            .iter()
            .filter_map(|(&place, trial)| match trial {
                Trial::Fits(bytes) | Trial::Exceeds(bytes) | Trial::Open(bytes) => {
                    Some((place, (*bytes)?.0))
                }
                Trial::Barred | Trial::Unknown => None,
            })
            .collect();
        sufficient.sort_by_key(|(_, bytes)| bytes.abs_diff(self.room.0));
        sufficient.truncate(2);
        sufficient.sort_unstable();
        let [(one, least), (other, more)] = sufficient[..] else { return None };
        if more <= least {
            return None;
        }
        let room = i128::from(self.room.0) - i128::from(least);
        let steps = room * i128::from(other - one) / i128::from(more - least);
        Some(u64::try_from(i128::from(one) + steps).unwrap_or(0).max(low))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;
    use tightfit_testing::config;

    use super::*;

    const MOST: u64 = 1 << 24;

    /// The largest size found, and what was tried on the way.
    fn searched(
        given: u64,
        grid: u64,
        trial: impl Fn(u64) -> Trial,
        room: u64,
    ) -> (Option<u64>, Vec<u64>) {
        let mut tried = Vec::new();
        let range = Range { least: 2, most: MOST, grid };
        let found = largest(given, range, Bytes(room), |size, _| {
            tried.push(size);
            Ok::<_, Infallible>(trial(size))
        });
        (found.unwrap(), tried)
    }

    proptest! {
        #![proptest_config(config(64))]

        #[test]
        fn it_ends_between_a_size_that_fits_and_one_that_does_not(
            limit in 0u64..100_000, grid in 1u64..9, given in 1u64..5_000, says in any::<bool>(),
        ) {
            let sufficient = |size: u64| says.then_some(Bytes(1000 + 3 * size));
            let trial = |size: u64| match size <= limit {
                true => Trial::Fits(sufficient(size)),
                false => Trial::Exceeds(sufficient(size)),
            };
            let (found, tried) = searched(given * grid, grid, trial, 1000 + 3 * limit);
            let expected = Some(limit / grid * grid).filter(|&size| size >= 2);
            prop_assert_eq!(found, expected);
            prop_assert!(tried.len() < 60, "{tried:?}");
            let mut once = tried.clone();
            once.sort_unstable();
            once.dedup();
            prop_assert_eq!(once.len(), tried.len(), "a size was tried twice");
        }

        #[test]
        fn where_a_line_says_what_suffices_few_sizes_are_tried(limit in 64u64..1_000_000) {
            let trial = |size: u64| match size <= limit {
                true => Trial::Fits(Some(Bytes(size))),
                false => Trial::Exceeds(Some(Bytes(size))),
            };
            let (found, tried) = searched(32, 1, trial, limit);
            prop_assert_eq!(found, Some(limit));
            prop_assert!(tried.len() <= 16, "{tried:?}");
        }

        #[test]
        fn a_single_size_that_is_not_taken_does_not_end_it(
            hole in 2u64..4_000, limit in 4_000u64..8_000,
        ) {
            let trial = |size: u64| match size {
                size if size == hole => Trial::Barred,
                size if size <= limit => Trial::Fits(None),
                _ => Trial::Exceeds(None),
            };
            prop_assert_eq!(searched(hole, 1, trial, 0).0, Some(limit));
        }
    }

    #[test]
    fn patience_decides_at_the_end() {
        for (patient, expected) in [(1_000, Some(1_000)), (700, Some(700)), (300, Some(300))] {
            let mut again = Vec::new();
            let range = Range { least: 2, most: MOST, grid: 1 };
            let found = largest(64, range, Bytes(0), |size, is_patient| {
                again.extend(is_patient.then_some(size));
                let fits = size <= if is_patient { patient } else { patient.min(300) };
                Ok::<_, Infallible>(if fits { Trial::Fits(None) } else { Trial::Open(None) })
            });
            assert_eq!(found.unwrap(), expected);
            assert!((1..20).contains(&again.len()), "{again:?}");
        }
    }

    #[test]
    fn where_only_patience_finds_something_something_is_found() {
        let range = Range { least: 2, most: MOST, grid: 1 };
        let found = largest(8, range, Bytes(0), |size, is_patient| {
            let fits = is_patient && size <= 5;
            Ok::<_, Infallible>(if fits { Trial::Fits(None) } else { Trial::Open(None) })
        });
        assert_eq!(found.unwrap(), Some(5));
    }

    #[test]
    fn nothing_fits() {
        let (found, tried) = searched(64, 1, |_| Trial::Exceeds(None), 0);
        assert_eq!(found, None);
        assert_eq!(tried.last(), Some(&2));
    }

    #[test]
    fn the_largest_of_the_range_is_found() {
        assert_eq!(searched(64, 1, |_| Trial::Fits(None), 0).0, Some(MOST));
    }
}
