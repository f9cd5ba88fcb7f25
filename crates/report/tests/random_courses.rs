//! On random graphs, with every freedom that the format allows, a course holds what the checker
//! counted.
//!
//! Tier: quick, since it takes 2 s.

#[path = "../../planner/tests/fixtures/generator/dag.rs"]
mod dag;

use std::cmp::Reverse;

use tightfit::effort::Effort;
use tightfit::machine::Machine;
use tightfit::plan::Planner;
use tightfit::profile::Profile;
use tightfit::schedule::Instruction;
use tightfit::units::Bytes;
use tightfit::{Goal, Request};
use tightfit_report::{Course, Planned, Report, Residency, Trace, page, savings};

use dag::{Freedoms, graph};

#[test]
fn every_byte_of_every_call_is_accounted_for() {
    let (mut planned, mut recomputed) = (0, 0);
    for seed in 0..400 {
        let graph = graph(seed, 24, Freedoms { writes: seed % 3 > 0, uneven: seed % 2 > 0 });
        let machine = if seed % 4 == 0 {
            Machine::unmeasured_cpu(1)
        } else {
            Machine::preset("a100-80gb").unwrap()
        };
        let profile = Profile::new(&graph, &machine);
        let unplanned = tightfit::unplanned(&graph, &profile).unwrap();
        let effort = Effort { work: 10_000, ..Effort::default() };
        let mut courses = vec![unplanned.clone()];
        for planner in [Planner::Auto, Planner::Capuchin, Planner::Chen] {
            courses.extend(tightfit::fit(
                &graph,
                &profile,
                &Request { goal: Goal::Smallest, planner, effort, ..Request::default() },
            ));
        }
        planned += courses.len() - 1;
        recomputed += courses.iter().map(|fitted| fitted.schedule().recomputed()).sum::<usize>();
        let before = Course::of(&graph, unplanned.schedule(), unplanned.timeline());
        for fitted in &courses {
            let course = Course::of(&graph, fitted.schedule(), fitted.timeline());
            let calls = fitted.schedule().instructions.iter().filter_map(Instruction::call).count();
            assert_eq!(course.calls.len(), calls, "seed {seed}");
            for (index, call) in course.calls.iter().enumerate() {
                assert_eq!(
                    course.by_role[index].iter().copied().sum::<Bytes>(),
                    call.held,
                    "seed {seed}, call {index}"
                );
                let alive = course.alive(index);
                assert_eq!(
                    alive.iter().map(|held| held.bytes).sum::<Bytes>(),
                    call.held,
                    "seed {seed}, call {index}"
                );
                // Sorted as `analyze` does: tensors of the same size by their names.
                let key = |held: &Residency| (Reverse(held.bytes), course.name(held));
                assert!(alive.is_sorted_by_key(|held| key(held)), "seed {seed}, call {index}");
            }
            assert_eq!(
                course.at_end.iter().copied().sum::<Bytes>(),
                fitted.timeline().held_at_end,
                "seed {seed}: what stays"
            );
            let trace = Trace::predicted(&course, "m");
            assert_eq!(Trace::read(trace.write().as_bytes()).unwrap(), trace, "seed {seed}");
            let rows = savings(&before, &course);
            assert_eq!(
                rows.iter().map(|row| row.recomputed as usize).sum::<usize>(),
                fitted.schedule().recomputed(),
                "seed {seed}"
            );
            let report = Report {
                machine: "m",
                unplanned: &before,
                planned: &[Planned { name: "Planned", course: &course, chunks: None }],
                reserve: Bytes(0),
                frontier: &[],
                measured: None,
            };
            let html = page(&report);
            assert!(!html.contains("NaN") && !html.contains("inf%"), "seed {seed}");
        }
    }
    assert!(planned > 300 && recomputed > 100, "{planned} plans with {recomputed} recomputations");
}
