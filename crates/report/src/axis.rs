//! What all drawings share: round numbers along an axis, durations, text that is safe in XML. Invariant: ticks lie
//! within the range asked for, evenly.

use tightfit::units::Bytes;

/// At most eight round numbers of bytes from `low` to `high`, a power of two apart.
pub fn ticks(low: f64, high: f64) -> Vec<Bytes> {
    let mut step = 1u64;
    while (high - low) / step as f64 > 8.0 {
        step *= 2;
    }
    let first = (low / step as f64).ceil() as u64;
    (first..=(high as u64 / step)).map(|i| Bytes(i * step)).collect()
}

/// At most eight round shares from zero to `high`: 1, 2 or 5 times a power of ten apart, in percent.
pub fn percents(high: f64) -> Vec<f64> {
    let mut steps = (-3..6).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power)));
    let step = steps.find(|step| high * 100.0 / step <= 8.0).unwrap_or(1e6);
    (0..=8).map(|i| f64::from(i) * step / 100.0).filter(|&share| share <= high).collect()
}

/// A duration with its unit.
pub fn duration(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.1} µs", s * 1e6),
    }
}

/// Text for the content of an element.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(ticks(0.0, 1000.0), [0, 128, 256, 384, 512, 640, 768, 896].map(Bytes));
        assert_eq!(ticks(300.0, 1000.0), [384, 512, 640, 768, 896].map(Bytes));
        assert_eq!(ticks(5.0, 5.0), [5].map(Bytes));
    }

    #[test]
    fn percents_are_round_and_few() {
        assert_eq!(percents(0.0), [0.0; 9][..1]);
        let shown = |high| percents(high).iter().map(|share| format!("{:.3}", share * 100.0)).collect::<Vec<_>>().join(" ");
        assert_eq!(shown(0.127), "0.000 2.000 4.000 6.000 8.000 10.000 12.000");
        assert_eq!(shown(0.0004), "0.000 0.005 0.010 0.015 0.020 0.025 0.030 0.035 0.040");
    }
}
