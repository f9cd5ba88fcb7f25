//! How a number follows from a count, such as the size of a step, by its values at two of them.
//! Invariant: a form gives both of these values to the last bit.

/// How a number follows from a count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Form {
    /// It is proportional to it, and often whole.
    Times,
    /// It is a short decimal number for each.
    Each,
    /// It is that many more, or fewer.
    Plus,
    /// It is so much over what is proportional to it, or over a few less, as in a variance.
    Over { times: f64, less: f64 },
    /// It is a short decimal number, divided by it.
    Share,
}

/// What derivatives of means, squares and variances have over a number of elements.
pub const TIMES: [f64; 6] = [1.0, -1.0, 2.0, -2.0, 0.5, -0.5];
/// The degrees of freedom that a variance may take off.
const LESS: [f64; 3] = [0.0, 1.0, 2.0];

/// A number, and the count at which it is that.
pub type At = (f64, u64);

impl Form {
    /// The form of a number with these values at two counts.
    pub fn of(one: At, other: At) -> Option<Form> {
        let over = TIMES.into_iter().flat_map(|times| LESS.map(|less| Form::Over { times, less }));
        let all =
            [Form::Times, Form::Each, Form::Plus].into_iter().chain(over).chain([Form::Share]);
        let mut fitting = all.filter(|form| {
            let is_found = |from: At, to: At| form.at(from, to.1) == Some(to.0);
            form.is_whole(one) && is_found(one, other) && is_found(other, one)
        });
        fitting.next()
    }

    /// Whether what is divided by is a multiple of the count.
    fn is_whole(self, (number, count): At) -> bool {
        match self {
            Form::Over { times, less } => (times / number + less).round() % count as f64 == 0.0,
            _ => true,
        }
    }

    /// The number at another count.
    pub fn at(self, (number, count): At, to: u64) -> Option<f64> {
        match self {
            Form::Times => {
                let found = scaled(number, count, to);
                let is_whole = number.fract() == 0.0 && found.fract() == 0.0;
                if is_whole { Some(found) } else { Form::Each.at((number, count), to) }
            }
            Form::Each => {
                let each = short(number / count as f64);
                (each * count as f64 == number).then_some(each * to as f64)
            }
            Form::Plus => (number.fract() == 0.0).then_some(number + (to as f64 - count as f64)),
            Form::Over { times, less } => {
                let all = (times / number + less).round();
                let more = scaled(all, count, to);
                let found = times / (more - less);
                let is_exact = times / (all - less) == number && more.fract() == 0.0;
                (is_exact && found.is_finite()).then_some(found)
            }
            Form::Share => {
                let all = short(number * count as f64);
                (all / count as f64 == number).then_some(all / to as f64)
            }
        }
    }
}

/// `whole` times `to` over `count`, to the last bit if that is whole.
fn scaled(whole: f64, count: u64, to: u64) -> f64 {
    let (all, count) = ((whole as i128).checked_mul(to.into()), i128::from(count));
    match all.filter(|all| whole.abs() < WHOLE && count > 0 && all % count == 0) {
        Some(all) => (all / count) as f64,
        None => whole * to as f64 / count as f64,
    }
}

/// Beyond this, a number may lack its last digits.
const WHOLE: f64 = (1u64 << 53) as f64;

/// The number with the fewest digits that is as good as equal to it.
fn short(number: f64) -> f64 {
    format!("{number:.14e}").parse().unwrap_or(number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Numbers as models compute them from a count.
    fn computed(kind: usize, count: u64, given: f64) -> f64 {
        let count = count as f64;
        match kind {
            0 => given.round() * count,
            1 => given * count,
            2 => count + given.round(),
            3 => 1.0 / count,
            4 => -2.0 / (3.0 * count),
            5 => 2.0 / (count - 1.0),
            6 => 0.5 / (5.0 * count - 1.0),
            7 => given / count,
            _ => given,
        }
    }

    proptest! {
        #[test]
        fn a_form_gives_what_is_computed_at_a_third_count(
            kind in 0usize..8,
            given in 1u32..1000,
            counts in (3u64..5000, 3u64..5000, 3u64..1 << 20),
        ) {
            let given = f64::from(given) / 100.0;
            let (one, two, three) = counts;
            prop_assume!(one != two);
            let at = |count| (computed(kind, count, given), count);
            let form = Form::of(at(one), at(two)).expect("each of these has a form");
            let found = form.at(at(one), three).unwrap();
            let expected = computed(kind, three, given);
            let error = (found - expected).abs();
            prop_assert!(error <= 1e-15 * expected.abs(), "{form:?}: {found} {expected}");
        }

        #[test]
        fn odd_numbers_end_in_no_panic(
            numbers in (any::<f64>(), any::<f64>()),
            counts in (0u64.., 0u64..),
            to: u64,
        ) {
            if let Some(form) = Form::of((numbers.0, counts.0), (numbers.1, counts.1)) {
                form.at((numbers.0, counts.0), to);
            }
        }
    }

    #[test]
    fn what_follows_otherwise_has_no_form() {
        for of in [|n: u64| n / 2, |n| n * n, |n| n % 4, |n: u64| n.isqrt()] {
            assert_eq!(Form::of((of(8) as f64, 8), (of(27) as f64, 27)), None);
        }
        assert_eq!(Form::of((8f64.sqrt(), 8), (27f64.sqrt(), 27)), None);
        assert_eq!(Form::of((8f64.ln(), 8), (27f64.ln(), 27)), None);
    }
}
