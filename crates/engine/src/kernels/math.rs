//! Elementary functions over blocks, vectorised by the compiler for the processor found at run
//! time. Invariant: each element's result is the same whatever its place in the block and whatever
//! the vector width: only operations with one correctly rounded result are used, in one order.

use multiversion::multiversion;

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts (Cody and Waite 1980): the first has few enough bits that its products are
/// exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// Adding and subtracting 1.5·2²³ rounds to the nearest integer, which then stands in the low bits.
const ROUND: f32 = 12_582_912.0;

/// eˣ = 2ⁿ eʳ with |r| ≤ ln 2 / 2: n, and eʳ = 1 + r + r²/2! + … + r⁷/7!, whose first omitted term
/// is below 6e-9.
#[inline(always)]
fn exp_parts(x: f32) -> (i32, f32) {
    let shifted = x.mul_add(LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x));
    let mut p = 1.0 / 5040.0;
    p = r.mul_add(p, 1.0 / 720.0);
    p = r.mul_add(p, 1.0 / 120.0);
    p = r.mul_add(p, 1.0 / 24.0);
    p = r.mul_add(p, 1.0 / 6.0);
    p = r.mul_add(p, 0.5);
    p = r.mul_add(p, 1.0);
    p = r.mul_add(p, 1.0);
    (shifted.to_bits() as i32 - ROUND.to_bits() as i32, p)
}

/// 2ⁿ for −126 ≤ n ≤ 127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(((n + 127) << 23) as u32)
}

/// eˣ to about one unit in the last place; overflows to ∞, underflows gradually to 0, NaN stays
/// NaN.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    let (n, p) = exp_parts(x.clamp(-104.0, 89.0));
    // 2ⁿ in two factors: n may lie outside the exponents of normal numbers.
    let (n, half) = if x.is_nan() { (0, 0) } else { (n, n >> 1) };
    p * power_of_two(half) * power_of_two(n - half)
}

/// eˣ for x ≤ 0, 0 below −87.3: the core of every softmax. NaN stays NaN.
#[inline(always)]
pub(super) fn exp_negative(x: f32) -> f32 {
    let (n, p) = exp_parts(x.max(-87.3));
    if x < -87.3 {
        0.0
    } else if x.is_nan() {
        x
    } else {
        p * power_of_two(n)
    }
}

/// eˣ, 0 below −87.3, with the bits of [`exp_negative`] where x ≤ 0. NaN stays NaN.
#[inline(always)]
fn exp_flushed(x: f32) -> f32 {
    let (n, p) = exp_parts(x.clamp(-87.3, 89.0));
    let half = n >> 1;
    if x < -87.3 {
        0.0
    } else if x.is_nan() {
        x
    } else {
        p * power_of_two(half) * power_of_two(n - half)
    }
}

/// The standard normal's density (times √2π) and distribution function at x.
///
/// Φ(x) = (1 + erf(x/√2)) / 2 with erf by Abramowitz and Stegun 7.1.26, |error| ≤ 1.5e-7; the
/// exponential that the formula needs is the density's.
#[inline(always)]
fn normal(x: f32) -> (f32, f32) {
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let bell = exp_negative(-0.5 * x * x);
    let t = 1.0 / 0.327_591_1f32.mul_add(z, 1.0);
    let mut p = 1.061_405_4f32;
    p = t.mul_add(p, -1.453_152_1);
    p = t.mul_add(p, 1.421_413_8);
    p = t.mul_add(p, -0.284_496_72);
    p = t.mul_add(p, 0.254_829_6);
    let tail = 0.5 * (p * t * bell);
    (bell, if x >= 0.0 { 1.0 - tail } else { tail })
}

/// tanh x = (1 − e⁻²ˣ) / (1 + e⁻²ˣ), and its series where subtraction would cancel.
#[inline(always)]
fn hyperbolic_tangent(x: f32) -> f32 {
    let e = exp_negative(-2.0 * x.abs());
    let small = x * (1.0 + x * x * (-1.0 / 3.0 + x * x * (2.0 / 15.0)));
    let large = ((1.0 - e) / (1.0 + e)).copysign(x);
    if x.abs() < 0.02 { small } else { large }
}

/// √(2/π)
const ROOT_2_OVER_PI: f32 = 0.797_884_6;
/// The cubic term of GELU's approximation.
const GELU_CUBIC: f32 = 0.044_715;

/// 1 / (1 + e⁻ˣ)
#[inline(always)]
fn logistic(x: f32) -> f32 {
    let e = exp_negative(-x.abs());
    let small = e / (1.0 + e);
    if x >= 0.0 { 1.0 - small } else { small }
}

macro_rules! vectorised {
    ($($(#[$doc:meta])* fn $name:ident($($x:ident),+) -> $y:expr;)*) => {$(
        $(#[$doc])*
        #[multiversion(targets(
            "x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma",
            "x86_64+avx2+fma"
        ))]
        pub(super) fn $name($($x: &[f32],)+ out: &mut [f32]) {
            let n = out.len();
            $(let $x = &$x[..n];)+
            for i in 0..n {
                $(let $x = $x[i];)+
                out[i] = $y;
            }
        }
    )*};
}

vectorised! {
    /// x + y
    fn add(x, y) -> x + y;
    /// x − y
    fn sub(x, y) -> x - y;
    /// x · y
    fn mul(x, y) -> x * y;
    /// x / y
    fn div(x, y) -> x / y;
    /// The larger one; NaN if either is.
    fn maximum(x, y) -> if x > y || x.is_nan() { x } else { y };
    /// The smaller one; NaN if either is.
    fn minimum(x, y) -> if x < y || x.is_nan() { x } else { y };
    /// −x
    fn neg(x) -> -x;
    /// |x|
    fn abs(x) -> x.abs();
    /// max(x, 0); NaN stays.
    fn relu(x) -> if x < 0.0 { 0.0 } else { x };
    /// eˣ
    fn exp_all(x) -> exp(x);
    /// 1 / x
    fn reciprocal(x) -> 1.0 / x;
    /// √x
    fn sqrt(x) -> x.sqrt();
    /// 1 / √x
    fn rsqrt(x) -> 1.0 / x.sqrt();
    /// tanh x
    fn tanh(x) -> hyperbolic_tangent(x);
    /// 1 / (1 + e⁻ˣ)
    fn sigmoid(x) -> logistic(x);
    /// x σ(x)
    fn silu(x) -> x * logistic(x);
    /// x Φ(x): GELU (Hendrycks and Gimpel 2016), exact form.
    fn gelu(x) -> x * normal(x).1;
    /// x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2: GELU, approximated.
    fn gelu_tanh(x) -> {
        let t = hyperbolic_tangent(ROOT_2_OVER_PI * x * (GELU_CUBIC * x).mul_add(x, 1.0));
        0.5 * x * (1.0 + t)
    };
    /// Its derivative times the incoming gradient.
    fn gelu_tanh_backward(g, x) -> {
        let t = hyperbolic_tangent(ROOT_2_OVER_PI * x * (GELU_CUBIC * x).mul_add(x, 1.0));
        let inner = ROOT_2_OVER_PI * (3.0 * GELU_CUBIC * x).mul_add(x, 1.0);
        g * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner)
    };
    /// g (Φ(x) + x φ(x))
    fn gelu_backward(g, x) -> {
        let (bell, below) = normal(x);
        g * (x * bell).mul_add(0.398_942_3, below)
    };
}

/// Elements that are summed in lanes before their sum is added to the total.
const SUM_BLOCK: usize = 4096;

/// Runs over `x` in 16 lanes, each of which starts at `start` and takes every sixteenth element.
#[inline(always)]
fn in_lanes(x: &[f32], start: f32, f: impl Fn(f32, f32) -> f32) -> [f32; 16] {
    let mut lanes = [start; 16];
    let (chunks, rest) = x.as_chunks::<16>();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = f(*lane, x);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane = f(*lane, x);
    }
    lanes
}

/// Sum in 16 lanes over blocks: the order is fixed, and the error grows with the number of blocks,
/// not of elements.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
pub(super) fn sum(x: &[f32]) -> f32 {
    let mut total = 0.0;
    for block in x.chunks(SUM_BLOCK) {
        total += fold(in_lanes(block, 0.0, |sum, x| sum + x), |a, b| a + b);
    }
    total
}

/// Σ x·y in 16 lanes.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
pub(super) fn dot(x: &[f32], y: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 16];
    let n = x.len() / 16 * 16;
    for i in (0..n).step_by(16) {
        for (lane, (&x, &y)) in lanes.iter_mut().zip(x[i..i + 16].iter().zip(&y[i..i + 16])) {
            *lane = x.mul_add(y, *lane);
        }
    }
    for (lane, (&x, &y)) in lanes.iter_mut().zip(x[n..].iter().zip(&y[n..])) {
        *lane = x.mul_add(y, *lane);
    }
    fold(lanes, |a, b| a + b)
}

/// Largest element; −∞ if there is none.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
pub(super) fn largest(x: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    fold(in_lanes(x, f32::NEG_INFINITY, larger), larger)
}

#[inline(always)]
fn fold(mut lanes: [f32; 16], f: impl Fn(f32, f32) -> f32) -> f32 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] = f(lanes[i], lanes[i + half]);
        }
    }
    lanes[0]
}

/// x ← e^(x·scale − shift) in place; returns the sum.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
pub(super) fn exp_shifted(x: &mut [f32], scale: f32, shift: f32) -> f32 {
    for x in x.iter_mut() {
        *x = exp_negative(x.mul_add(scale, -shift).min(0.0));
    }
    sum(x)
}

/// Σ e^(x − shift), without writing.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
pub(super) fn sum_exp_shifted(x: &[f32], shift: f32) -> f32 {
    fold(in_lanes(x, 0.0, |sum, x| sum + exp_negative(x - shift)), |a, b| a + b)
}

/// x ← x · factor
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
pub(super) fn scale(x: &mut [f32], factor: f32) {
    for x in x.iter_mut() {
        *x *= factor;
    }
}

/// y = x − shift
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
pub(super) fn shifted(x: &[f32], shift: f32, y: &mut [f32]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = x - shift;
    }
}

/// Attention's row: p ← e^(p − shift), then dp ← p (dp − total) scale.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
pub(super) fn softmax_gradient(p: &mut [f32], dp: &mut [f32], shift: f32, total: f32, scale: f32) {
    for (p, dp) in p.iter_mut().zip(dp) {
        *p = exp_flushed(*p - shift);
        *dp = *p * (*dp - total) * scale;
    }
}

/// dx = (dy − total) y
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
pub(super) fn softmax_backward(dy: &[f32], y: &[f32], total: f32, dx: &mut [f32]) {
    for ((dx, &dy), &y) in dx.iter_mut().zip(dy).zip(y) {
        *dx = (dy - total) * y;
    }
}

/// dx = dy − e^y total
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
pub(super) fn log_softmax_gradient(dy: &[f32], y: &[f32], total: f32, dx: &mut [f32]) {
    for ((dx, &dy), &y) in dx.iter_mut().zip(dy).zip(y) {
        *dx = dy - exp(y) * total;
    }
}

/// Σ (x − mean)²
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
pub(super) fn squared_distance(x: &[f32], mean: f32) -> f32 {
    fold(in_lanes(x, 0.0, |sum, x| (x - mean).mul_add(x - mean, sum)), |a, b| a + b)
}

/// y = (x − mean) · rstd · weight + bias
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
pub(super) fn normalize(
    x: &[f32],
    mean: f32,
    rstd: f32,
    weight: Option<&[f32]>,
    bias: Option<&[f32]>,
    y: &mut [f32],
) {
    let n = y.len();
    let x = &x[..n];
    match (weight, bias) {
        (Some(weight), Some(bias)) => {
            let (weight, bias) = (&weight[..n], &bias[..n]);
            for i in 0..n {
                y[i] = ((x[i] - mean) * rstd).mul_add(weight[i], bias[i]);
            }
        }
        _ => {
            for i in 0..n {
                y[i] = ((x[i] - mean) * rstd)
                    .mul_add(weight.map_or(1.0, |w| w[i]), bias.map_or(0.0, |b| b[i]));
            }
        }
    }
}

/// y ← (y − mean) · rstd · weight + bias
pub(super) fn normalize_in_place(
    y: &mut [f32],
    mean: f32,
    rstd: f32,
    weight: Option<&[f32]>,
    bias: Option<&[f32]>,
) {
    for (i, y) in y.iter_mut().enumerate() {
        *y = ((*y - mean) * rstd).mul_add(weight.map_or(1.0, |w| w[i]), bias.map_or(0.0, |b| b[i]));
    }
}

/// dx = rstd (g − mean(g) − x̂ mean(g x̂)) with g = dy · weight
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
pub(super) fn normalize_gradient(
    dy: &[f32],
    x: &[f32],
    weight: Option<&[f32]>,
    mean: f32,
    rstd: f32,
    dx: &mut [f32],
) {
    let n = dx.len();
    let (dy, x) = (&dy[..n], &x[..n]);
    // g is stored in dx, so that both sums read it from the cache.
    match weight {
        Some(weight) => mul(dy, &weight[..n], dx),
        None => dx.copy_from_slice(dy),
    }
    let (mut plain, mut centered) = ([0.0f32; 16], [0.0f32; 16]);
    let whole = n / 16 * 16;
    for i in (0..whole).step_by(16) {
        for lane in 0..16 {
            let g = dx[i + lane];
            plain[lane] += g;
            centered[lane] = g.mul_add(x[i + lane] - mean, centered[lane]);
        }
    }
    for i in whole..n {
        plain[i - whole] += dx[i];
        centered[i - whole] = dx[i].mul_add(x[i] - mean, centered[i - whole]);
    }
    let mean_g = fold(plain, |a, b| a + b) / n as f32;
    let mean_gx = fold(centered, |a, b| a + b) * rstd / n as f32;
    for i in 0..n {
        dx[i] = rstd * (dx[i] - mean_g - (x[i] - mean) * rstd * mean_gx);
    }
}

/// dw += dy · x̂
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
pub(super) fn accumulate_product(dy: &[f32], x: &[f32], mean: f32, rstd: f32, dw: &mut [f32]) {
    for ((dw, &dy), &x) in dw.iter_mut().zip(dy).zip(x) {
        *dw = dy.mul_add((x - mean) * rstd, *dw);
    }
}

/// y += x
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
pub(super) fn accumulate(x: &[f32], y: &mut [f32]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y += x;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worst(f: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64, from: f32, to: f32) -> f64 {
        (0..=200_000)
            .map(|i| {
                let x = from + (to - from) * (i as f32 / 200_000.0);
                let (y, z) = (f64::from(f(x)), exact(f64::from(x)));
                (y - z).abs() / z.abs().max(1.0)
            })
            .fold(0.0, f64::max)
    }

    #[test]
    fn exponentials_are_within_two_units_in_the_last_place() {
        let relative = (0..=200_000)
            .map(|i| -87.0 + i as f32 * (175.0 / 200_000.0))
            .map(|x| (f64::from(exp(x)) / f64::from(x).exp() - 1.0).abs())
            .fold(0.0, f64::max);
        assert!(relative < 3e-7, "{relative}");
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
        assert_eq!(exp(0.0), 1.0);
    }

    /// A caller that computes a row's sum separately may pass one that is less than a score.
    #[test]
    fn a_softmax_gradient_takes_the_sum_that_it_is_given() {
        let (scores, slopes) = ([2.0_f32, -1.0, 0.5], [0.25_f32, -0.5, 1.0]);
        let (mut p, mut dp) = (scores, slopes);
        softmax_gradient(&mut p, &mut dp, 0.0, 0.125, 0.5);
        for i in 0..3 {
            let exact = f64::from(scores[i]).exp();
            assert!((f64::from(p[i]) / exact - 1.0).abs() < 1e-6, "{p:?}");
            let exact = exact * (f64::from(slopes[i]) - 0.125) * 0.5;
            assert!((f64::from(dp[i]) / exact - 1.0).abs() < 1e-6, "{dp:?}");
        }
    }

    #[test]
    fn the_normal_distribution_is_within_its_published_error() {
        // Φ by numerical integration of the density (Simpson), from 0.
        let exact = |x: f64| {
            let (n, h) = (400, x / 400.0);
            let f = |t: f64| (-0.5 * t * t).exp() / (2.0 * std::f64::consts::PI).sqrt();
            0.5 + h / 3.0
                * (0..=n)
                    .map(|i| {
                        f(i as f64 * h)
                            * if i == 0 || i == n {
                                1.0
                            } else if i % 2 == 1 {
                                4.0
                            } else {
                                2.0
                            }
                    })
                    .sum::<f64>()
        };
        let error = (-600..=600)
            .map(|i| i as f32 / 100.0)
            .map(|x| (f64::from(normal(x).1) - exact(f64::from(x))).abs())
            .fold(0.0, f64::max);
        assert!(error < 3e-7, "{error}");
    }

    #[test]
    fn hyperbolic_and_logistic_functions_are_accurate() {
        let one = |f: fn(&[f32], &mut [f32])| {
            move |x: f32| {
                let mut y = [0.0];
                f(&[x], &mut y);
                y[0]
            }
        };
        assert!(worst(one(tanh), f64::tanh, -10.0, 10.0) < 3e-7);
        assert!(worst(one(sigmoid), |x| 1.0 / (1.0 + (-x).exp()), -30.0, 30.0) < 3e-7);
    }

    #[test]
    fn sums_do_not_depend_on_how_they_are_cut_into_vectors() {
        let x: Vec<f32> = (0..1003).map(|i| (i as f32 * 0.37).sin()).collect();
        let exact: f64 = x.iter().map(|&x| f64::from(x)).sum();
        assert!((f64::from(sum(&x)) - exact).abs() < 1e-4);
        assert_eq!(largest(&x), x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        assert!((dot(&x, &x) - x.iter().map(|x| x * x).sum::<f32>()).abs() < 1e-2);
    }
}
