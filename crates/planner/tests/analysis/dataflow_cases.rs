//! The acceptance cases of the dataflow analysis. Invariant: the figures are the right ones, and
//! every difference from the original's answers has its reason in the fixture.
//!
//! Tier: quick, since it takes less than a second.

use tightfit::analysis::{Figures, dataflow};
use tightfit::graph::Graph;
use tightfit::machine::Machine;
use tightfit::profile::Profile;

use crate::fixtures::corpus;
use crate::fixtures::graphinfo::{Case, Row, cases};

fn row(figures: &Figures) -> Row {
    [figures.fwd_mem_in, figures.fwd_mem_tmp, figures.bwd_mem_tmp, figures.bwd_mem_out]
        .map(|bytes| bytes.0)
}

fn all() -> Vec<Case> {
    cases(&std::fs::read(corpus::path("cases/graphinfo.json")).unwrap())
}

fn analyze(graph: &Graph) -> Figures {
    dataflow(graph, &Profile::new(graph, &Machine::preset("a100-80gb").unwrap())).graph
}

#[test]
fn corrected_figures_are_met() {
    let cases: Vec<Case> =
        all().into_iter().filter(|case| case.json["expected_corrected"].is_object()).collect();
    assert_eq!(
        cases.len(),
        7,
        "mlp3, loss users (2), inputs, branches, saved gradients, no gradients"
    );
    for case in cases {
        assert_eq!(row(&analyze(&case.graph)), case.right(), "{}", case.id);
    }
}

#[test]
fn traced_operators_are_charged_by_storage() {
    let traced: Vec<Case> = all().into_iter().filter(Case::is_traced).collect();
    assert_eq!(traced.len(), 6);
    for case in traced {
        let found = row(&analyze(&case.graph));
        assert_eq!(found, case.right(), "{}", case.id);
        let seed = case.recorded("expected_seed").unwrap();
        assert_eq!(
            [found[0], found[3]],
            [seed[0], seed[3]],
            "{}: inputs and gradients are as in the original",
            case.id
        );
        assert!(found[2] < seed[2], "{}: the original holds too much", case.id);
    }
}
