//! Machines that cannot be used are refused with a reason. Invariant: each variant of
//! `MachineError` has a test here.
//!
//! Tier: quick, since it takes less than a second.

use expect_test::expect;
use tightfit::machine::{Machine, presets};

#[test]
fn presets_are_found_by_name_and_valid() {
    for machine in presets() {
        assert_eq!(Machine::preset(&machine.name).unwrap(), machine);
        machine.validate().unwrap();
    }
    Machine::unmeasured_cpu(0).validate().unwrap();
    expect!["machine `tpu` is not known; known: cpu, a100-80gb, h100-80gb"]
        .assert_eq(&Machine::preset("tpu").unwrap_err().to_string());
}

#[test]
fn rates_are_finite_and_not_absurd() {
    let cpu = Machine::unmeasured_cpu(2);
    let refused = |machine: Machine| machine.validate().unwrap_err().to_string();
    expect!["machine `cpu`: flops_16 is 0, but must be finite and at least 1 a second"]
        .assert_eq(&refused(Machine { flops_16: 0.0, ..cpu.clone() }));
    expect!["machine `cpu`: flops_32 is -1, but must be finite and at least 1 a second"]
        .assert_eq(&refused(Machine { flops_32: -1.0, ..cpu.clone() }));
    expect!["machine `cpu`: bandwidth is NaN, but must be finite and at least 1 a second"]
        .assert_eq(&refused(Machine { bandwidth: f64::NAN, ..cpu.clone() }));
    expect!["machine `cpu`: elementary is inf, but must be finite and at least 1 a second"]
        .assert_eq(&refused(Machine { elementary: Some(f64::INFINITY), ..cpu.clone() }));
    // A step on such a machine would take forever: its seconds add up to infinity.
    expect!["machine `cpu`: flops_32 is 0.1, but must be finite and at least 1 a second"]
        .assert_eq(&refused(Machine { flops_32: 0.1, ..cpu.clone() }));
    expect!["machine `cpu`: launch is inf, but must be from 0 to 1 seconds"]
        .assert_eq(&refused(Machine { launch: f64::INFINITY, ..cpu.clone() }));
    expect!["machine `cpu` has no threads: it needs at least one"]
        .assert_eq(&refused(Machine { threads: 0, ..cpu.clone() }));
    expect!["machine `cpu`: launch is -0.000002, but must be from 0 to 1 seconds"]
        .assert_eq(&refused(Machine { launch: -2e-6, ..cpu }));
}
