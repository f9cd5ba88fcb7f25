//! How much the tests try. Invariant: the same environment gives the same cases.
//!
//! There are two tiers. The quick one is what a plain `cargo test` runs: at least one case of every
//! promise. The full one, with `TIGHTFIT_TESTS=full` in the environment, tries everything; tests
//! that belong to it alone are ignored with that reason, and run with `-- --include-ignored`.

use proptest::test_runner::{Config, RngSeed};

/// The variable that names the tier.
const VARIABLE: &str = "TIGHTFIT_TESTS";

/// How many times as many random cases the full tier tries as the quick one.
const MORE: u32 = 4;

/// How much is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// A part of everything, after each change.
    Quick,
    /// Everything, before something is called finished.
    Full,
}

impl Tier {
    /// The tier that the environment names.
    ///
    /// # Panics
    /// If it names an unknown one.
    pub fn asked() -> Tier {
        match std::env::var(VARIABLE).as_deref() {
            Err(_) | Ok("" | "quick") => Tier::Quick,
            Ok("full") => Tier::Full,
            Ok(other) => panic!("{VARIABLE} is `{other}`; it may be `quick` or `full`"),
        }
    }
}

/// The value for this tier, of the two.
pub fn either<T>(quick: T, full: T) -> T {
    match Tier::asked() {
        Tier::Quick => quick,
        Tier::Full => full,
    }
}

/// This many of the first ones in the quick tier, all in the full one.
pub fn first<T>(quick: usize, all: &[T]) -> &[T] {
    &all[..either(quick, all.len())]
}

/// This many random cases in the quick tier, and four times as many in the full one.
/// `PROPTEST_CASES` overrides the number.
pub fn cases(quick: u32) -> u32 {
    let said = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    said.unwrap_or(quick * either(1, MORE))
}

/// A property test of this many [`cases`] from a fixed seed, so that a test that passed passes
/// again. `PROPTEST_RNG_SEED` gives another seed.
pub fn config(quick: u32) -> Config {
    let mut config = Config { failure_persistence: None, cases: cases(quick), ..Config::default() };
    if config.rng_seed == RngSeed::Random {
        config.rng_seed = RngSeed::Fixed(1);
    }
    config
}
