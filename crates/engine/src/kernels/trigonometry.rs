//! Sine and cosine over blocks, vectorised like the functions of `math`. Invariant: each element's
//! result is the same whatever its place in the block and whatever the vector width.

use multiversion::multiversion;

/// π/2 in three parts of 24 bits (Cody and Waite 1980), each rounded down; it exceeds their sum by
/// 3e-22.
const HALF_PI: [f32; 3] = [f32::from_bits(0x3FC9_0FDA), 7.549_789_4e-8, 5.390_302_5e-15];
/// Up to here the quotient by π/2 has 16 bits: its product with the first part, subtracted in a
/// fused multiply-add, then leaves an exact remainder.
const MODERATE: f32 = 102_943.0;
/// Adding and subtracting 1.5·2²³ rounds to the nearest integer, which then stands in the low bits.
const ROUND: f32 = 12_582_912.0;

/// sin(x + quarters · π/2) for |x| ≤ [`MODERATE`].
///
/// x = n π/2 + r with |r| ≤ 0.79; sine and cosine of r by their Taylor series up to r⁹ and r¹⁰,
/// whose first omitted terms are below 2e-9.
#[inline(always)]
fn sine(x: f32, quarters: i32) -> f32 {
    let shifted = x.mul_add(std::f32::consts::FRAC_2_PI, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-HALF_PI[2], n.mul_add(-HALF_PI[1], n.mul_add(-HALF_PI[0], x)));
    let square = r * r;
    let mut s = 1.0 / 362_880.0;
    s = square.mul_add(s, -1.0 / 5040.0);
    s = square.mul_add(s, 1.0 / 120.0);
    s = square.mul_add(s, -1.0 / 6.0);
    s = r * square.mul_add(s, 1.0);
    let mut c = -1.0 / 3_628_800.0;
    c = square.mul_add(c, 1.0 / 40_320.0);
    c = square.mul_add(c, -1.0 / 720.0);
    c = square.mul_add(c, 1.0 / 24.0);
    c = square.mul_add(c, -0.5);
    c = square.mul_add(c, 1.0);
    let quadrant =
        (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32).wrapping_add(quarters);
    let y = if quadrant & 1 == 0 { s } else { c };
    if quadrant & 2 == 0 { y } else { -y }
}

/// Replaces the results at larger angles than [`MODERATE`] by those of `exact`.
#[inline(always)]
fn replace_large(x: &[f32], out: &mut [f32], exact: fn(f64) -> f64) {
    let mut any = false;
    for &x in x {
        any |= x.is_nan() || x.abs() > MODERATE;
    }
    if !any {
        return;
    }
    for (y, &x) in out.iter_mut().zip(x) {
        if x.is_nan() || x.abs() > MODERATE {
            *y = exact(f64::from(x)) as f32;
        }
    }
}

/// sin x for x of any size; NaN for ±∞.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
pub(super) fn sin(x: &[f32], out: &mut [f32]) {
    for (y, &x) in out.iter_mut().zip(x) {
        *y = sine(x, 0);
    }
    replace_large(x, out, f64::sin);
}

/// cos x for x of any size; NaN for ±∞.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma", "x86_64+avx2+fma"))]
pub(super) fn cos(x: &[f32], out: &mut [f32]) {
    for (y, &x) in out.iter_mut().zip(x) {
        *y = sine(x, 1);
    }
    replace_large(x, out, f64::cos);
}

#[cfg(test)]
mod tests {
    use super::*;

    type Function = fn(&[f32], &mut [f32]);

    fn at(f: Function, x: f32) -> f32 {
        let mut y = [0.0];
        f(&[x], &mut y);
        y[0]
    }

    #[test]
    fn both_are_within_two_units_in_the_last_place() {
        for (f, exact) in [(sin as Function, f64::sin as fn(f64) -> f64), (cos, f64::cos)] {
            let relative = |x: f32| {
                let exact = exact(f64::from(x));
                ((f64::from(at(f, x)) - exact) / exact).abs()
            };
            for limit in [0.01, 1.0, 10.0, 1e3, MODERATE, 1e7, f32::MAX] {
                let worst = (1..=100_000)
                    .map(|i| limit * (i as f32 / 100_000.0))
                    .flat_map(|x| [relative(x), relative(-x)])
                    .fold(0.0, f64::max);
                assert!(worst < 2.4e-7, "{worst} up to {limit}");
            }
            // Close to their zeros, where nearly all of the argument cancels.
            let worst = (1..=131_000)
                .map(|n| relative((f64::from(n) * std::f64::consts::FRAC_PI_2) as f32))
                .fold(0.0, f64::max);
            assert!(worst < 2.4e-7, "{worst} at multiples of π/2");
        }
    }

    #[test]
    fn an_element_does_not_depend_on_its_place() {
        let x: Vec<f32> = (0..67).map(|i| 10.0_f32.powi(i - 33)).collect();
        for f in [sin as Function, cos] {
            let mut y = vec![0.0; x.len()];
            f(&x, &mut y);
            assert!(x.iter().zip(&y).all(|(&x, &y)| at(f, x) == y));
        }
    }

    #[test]
    fn limits_and_what_is_no_number() {
        assert_eq!((at(sin, 0.0), at(cos, 0.0)), (0.0, 1.0));
        assert!(at(sin, -0.0).is_sign_negative());
        for x in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            assert!(at(sin, x).is_nan() && at(cos, x).is_nan());
        }
    }
}
