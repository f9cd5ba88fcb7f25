//! Memory of processes that were started here. Invariant: each is measured in a process of its own,
//! since the largest one counts forever.
//!
//! Tier: quick, since it takes less than a second.

use std::process::Command;

use tightfit_engine::process;

/// Bytes that [`hold`] takes.
const BYTES: &str = "TIGHTFIT_TEST_BYTES";
const FOREIGN: u64 = 400 << 20;
const OWN: u64 = 150 << 20;

/// This test program, to run one of its tests alone.
fn test(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]);
    command
}

/// Not a test by itself: a process that takes memory.
#[test]
fn hold() {
    let Ok(bytes) = std::env::var(BYTES) else { return };
    let held = vec![1_u8; bytes.parse().unwrap()];
    assert_eq!(std::hint::black_box(&held).last(), Some(&1));
}

/// Not a test by itself: starts a process that takes `OWN` bytes, and prints its figures before and
/// after.
#[test]
fn start() {
    let Ok(bytes) = std::env::var(BYTES) else { return };
    let before = process::peak_resident().unwrap();
    let ran = process::output(test("children::hold").env(BYTES, bytes)).unwrap();
    assert!(ran.status.success());
    println!("figures {} {}", before.0, process::peak_resident().unwrap().0);
}

/// A shell waits for a process of `FOREIGN` bytes, and replaces itself by [`start`].
#[test]
fn own_children_count_and_no_others() {
    let script = format!(
        "{BYTES}={FOREIGN} \"$0\" --exact children::hold && \
         {BYTES}={OWN} exec \"$0\" --exact children::start --nocapture"
    );
    let mut shell = Command::new("sh");
    let output =
        shell.args(["-c", &script]).arg(std::env::current_exe().unwrap()).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let figures = printed.split("figures ").nth(1).unwrap_or_else(|| panic!("{printed}"));
    let figures: Vec<u64> =
        figures.split_whitespace().take(2).map(|word| word.parse().unwrap()).collect();
    assert!(figures[0] < OWN, "{figures:?}");
    assert!((OWN..OWN + (64 << 20)).contains(&figures[1]), "{figures:?}");
}
