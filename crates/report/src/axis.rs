//! What all drawings share: round numbers along an axis, durations, text that is safe in XML.
//! Invariant: ticks lie within the requested range, evenly.

use tightfit::units::Bytes;

/// The most labels along an axis of a drawing, and along a horizontal one of a page, which may be
/// narrow.
pub const MANY: f64 = 8.0;
pub const FEW: f64 = 4.0;

/// At most `most` round steps of bytes from `low` to `high`, a power of two apart.
pub fn ticks(low: f64, high: f64, most: f64) -> Vec<Bytes> {
    let mut step = 1u64;
    while (high - low) / step as f64 > most {
        step *= 2;
    }
    let first = (low / step as f64).ceil() as u64;
    (first..=(high as u64 / step)).map(|i| Bytes(i * step)).collect()
}

/// At most eight round shares from zero to `high`: 1, 2 or 5 times a power of ten apart, in
/// percent.
pub fn percents(high: f64) -> Vec<f64> {
    let mut steps =
        (-3..6).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power)));
    let step = steps.find(|step| high * 100.0 / step <= 8.0).unwrap_or(1e6);
    (0..=8).map(|i| f64::from(i) * step / 100.0).filter(|&share| share <= high).collect()
}

/// At most `most` + 1 round moments from zero to `high` seconds, each with its label: 1, 2 or 5
/// times a power of ten apart.
pub fn moments(high: f64, most: u32) -> Vec<(f64, String)> {
    let mut steps = (-12..9).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| (digit, power)));
    let size = |(digit, power): (f64, i32)| digit * 10f64.powi(power);
    let Some(step) = steps.find(|&step| high > 0.0 && high / size(step) <= f64::from(most)) else {
        return vec![(0.0, "0".to_string())];
    };
    let (unit, name) = match size(step) * f64::from(most) {
        whole if whole >= 1.0 => (1.0, "s"),
        whole if whole >= 1e-3 => (1e3, "ms"),
        _ => (1e6, "µs"),
    };
    let shown = |seconds: f64| {
        format!("{:.6}", seconds * unit).trim_end_matches('0').trim_end_matches('.').to_string()
    };
    let all = (0..=most).map(|i| f64::from(i) * size(step)).filter(|&at| at <= high * (1.0 + 1e-9));
    all.map(|at| (at, if at == 0.0 { "0".to_string() } else { format!("{} {name}", shown(at)) }))
        .collect()
}

/// A duration with its unit.
pub fn duration(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.1} µs", s * 1e6),
    }
}

/// A number with its thousands separated.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Text for the content of an element or for an attribute in quotation marks.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&apos;"),
            // Neither HTML nor XML allows them, and some readers stop there.
            control if control.is_control() => safe.push('\u{fffd}'),
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(ticks(0.0, 1000.0, MANY), [0, 128, 256, 384, 512, 640, 768, 896].map(Bytes));
        assert_eq!(ticks(300.0, 1000.0, MANY), [384, 512, 640, 768, 896].map(Bytes));
        assert_eq!(ticks(0.0, 1000.0, FEW), [0, 256, 512, 768].map(Bytes));
        assert_eq!(ticks(5.0, 5.0, MANY), [5].map(Bytes));
    }

    #[test]
    fn moments_are_round_and_few() {
        let shown = |high| {
            moments(high, 5).into_iter().map(|(_, label)| label).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(shown(0.198), "0 50 ms 100 ms 150 ms");
        assert_eq!(shown(1.0), "0 0.2 s 0.4 s 0.6 s 0.8 s 1 s");
        assert_eq!(shown(3e-6), "0 1 µs 2 µs 3 µs");
        assert_eq!(shown(0.0), "0");
    }

    #[test]
    fn thousands_are_apart() {
        assert_eq!(
            [0, 999, 1000, 19_606_495_368].map(grouped),
            ["0", "999", "1,000", "19,606,495,368"]
        );
    }

    #[test]
    fn markup_is_text() {
        assert_eq!(escape("<a b=\"c\">&'\u{0}"), "&lt;a b=&quot;c&quot;&gt;&amp;&apos;\u{fffd}");
    }

    #[test]
    fn percents_are_round_and_few() {
        assert_eq!(percents(0.0), [0.0; 9][..1]);
        let shown = |high| {
            percents(high)
                .iter()
                .map(|share| format!("{:.3}", share * 100.0))
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(shown(0.127), "0.000 2.000 4.000 6.000 8.000 10.000 12.000");
        assert_eq!(shown(0.0004), "0.000 0.005 0.010 0.015 0.020 0.025 0.030 0.035 0.040");
    }
}
