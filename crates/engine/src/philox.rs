//! Philox4x32-10: random numbers as a function of a key and a counter. Invariant: the same key and
//! counter give the same numbers on every machine, whatever ran before, so a recomputed node draws
//! what it drew the first time.
//!
//! Source: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// Four random words.
#[inline(always)]
pub fn philox(key: [u32; 2], counter: [u32; 4]) -> [u32; 4] {
    let (mut key, mut x) = (key, counter);
    for _ in 0..ROUNDS {
        let left = u64::from(MULTIPLIERS[0]) * u64::from(x[0]);
        let right = u64::from(MULTIPLIERS[1]) * u64::from(x[2]);
        x = [
            (right >> 32) as u32 ^ x[1] ^ key[0],
            right as u32,
            (left >> 32) as u32 ^ x[3] ^ key[1],
            left as u32,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    x
}

/// The words of the 16 blocks whose counters are `first`, `first + 1`, … followed by `rest`: word
/// by word, so that the compiler computes all blocks in one vector.
#[inline(always)]
pub fn philox_lanes(key: [u32; 2], first: u32, rest: [u32; 3]) -> [[u32; 16]; 4] {
    let mut key = key;
    let [mut a, mut b, mut c, mut d] = [[0; 16], [rest[0]; 16], [rest[1]; 16], [rest[2]; 16]];
    for (i, counter) in a.iter_mut().enumerate() {
        *counter = first.wrapping_add(i as u32);
    }
    for _ in 0..ROUNDS {
        for (((a, b), c), d) in a.iter_mut().zip(&mut b).zip(&mut c).zip(&mut d) {
            let left = u64::from(MULTIPLIERS[0]) * u64::from(*a);
            let right = u64::from(MULTIPLIERS[1]) * u64::from(*c);
            (*a, *c) = ((right >> 32) as u32 ^ *b ^ key[0], (left >> 32) as u32 ^ *d ^ key[1]);
            (*b, *d) = (right as u32, left as u32);
        }
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    [a, b, c, d]
}

/// The key of a run: its seed.
pub fn key(seed: u64) -> [u32; 2] {
    [seed as u32, (seed >> 32) as u32]
}

/// A word as a number in [0, 1) with 24 bits.
pub fn uniform(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / 16_777_216.0)
}

/// A word pair as a whole number below `bound`, by multiplication (Lemire 2019; the bias is below
/// bound / 2⁶⁴).
pub fn below(words: [u32; 2], bound: u64) -> u64 {
    let word = u64::from(words[0]) << 32 | u64::from(words[1]);
    ((u128::from(word) * u128::from(bound)) >> 64) as u64
}

/// Two words as two standard normal numbers (Box and Muller 1958).
pub fn normal(words: [u32; 2]) -> [f32; 2] {
    let radius =
        (-2.0 * (f64::from(words[0]) + 0.5).mul_add(1.0 / 4_294_967_296.0, 0.0).ln()).sqrt();
    let angle = 2.0 * std::f64::consts::PI * f64::from(words[1]) / 4_294_967_296.0;
    [(radius * angle.cos()) as f32, (radius * angle.sin()) as f32]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known-answer vectors that the authors publish with Random123.
    #[test]
    fn known_answers() {
        assert_eq!(philox([0; 2], [0; 4]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 2], [u32::MAX; 4]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        let pi = philox(
            [0xa409_3822, 0x299f_31d0],
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
        );
        assert_eq!(pi, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }

    #[test]
    fn blocks_side_by_side_are_the_same_blocks() {
        let lanes = philox_lanes([3, 5], u32::MAX - 4, [7, 11, 13]);
        for block in 0..16u32 {
            let words = philox([3, 5], [(u32::MAX - 4).wrapping_add(block), 7, 11, 13]);
            assert_eq!(lanes.map(|word| word[block as usize]), words);
        }
    }

    #[test]
    fn normal_numbers_have_the_moments_of_the_normal_distribution() {
        let draws: Vec<f64> = (0..20_000u32)
            .flat_map(|i| {
                let w = philox([7, 0], [i, 0, 0, 0]);
                normal([w[0], w[1]])
            })
            .map(f64::from)
            .collect();
        let n = draws.len() as f64;
        let mean = draws.iter().sum::<f64>() / n;
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "{mean} {variance}");
    }

    #[test]
    fn whole_numbers_stay_below_their_bound() {
        assert_eq!(below([u32::MAX; 2], 10), 9);
        assert_eq!(below([0; 2], 10), 0);
    }
}
