//! The steps of a run, one after the other. Invariant: a step that has begun ends; the first one is
//! not measured where others follow, since it also faults the slab's pages in.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use tightfit_engine::{Dataset, FastestStep, Session, Timings};

use super::Arguments;
use super::report::describe;
use crate::interrupt;

/// Runs the steps, shows how they go, and evaluates when it is due; ends early where it is asked
/// to.
pub fn run(
    arguments: &Arguments,
    session: &mut Session,
    data: &mut Dataset,
    mut fastest: Option<&mut FastestStep>,
) -> anyhow::Result<Timings> {
    let bar = progress_bar(arguments);
    let mut measured = Timings::default();
    for done in 0..arguments.steps {
        if interrupt::raised() {
            break;
        }
        let start = Instant::now();
        // The first step also faults the slab's pages in.
        let counts = done > 0 || arguments.steps == 1;
        let loss = session.step_timed(data, &mut |call| {
            if counts {
                measured.add(&call);
            }
            if let Some(fastest) = &mut fastest {
                fastest.add(&call);
            }
        })?;
        let seconds = start.elapsed().as_secs_f64();
        if let Some(fastest) = &mut fastest {
            fastest.end(counts);
        }
        measured.steps.extend(counts.then_some(seconds));
        if arguments.json {
            println!("{}", json!({ "step": session.next_step, "loss": loss, "seconds": seconds }));
        }
        bar.set_message(format!(
            "loss {loss:.4}  {:.0} {}/s",
            session.units_per_batch() as f64 / seconds,
            data.unit()
        ));
        bar.inc(1);
        if !loss.is_finite() {
            bar.println(format!("step {}: the loss is {loss}", session.next_step));
        }
        if is_due(arguments, done + 1)
            && let Some(evaluation) = session.evaluate(data, arguments.eval_batches)?
        {
            if arguments.json {
                let result = json!({
                    "step": session.next_step,
                    "validation_loss": evaluation.loss,
                    "validation_accuracy": evaluation.accuracy,
                });
                println!("{result}");
            } else {
                bar.println(format!("step {}: {}", session.next_step, describe(&evaluation)));
            }
        }
    }
    bar.finish();
    Ok(measured)
}

/// Whether an evaluation follows this step; the one at the end of the run comes anyway.
fn is_due(arguments: &Arguments, done: u32) -> bool {
    let every = arguments.eval_every.filter(|&every| every > 0 && arguments.eval_batches > 0);
    every.is_some_and(|every| done.is_multiple_of(every) && done < arguments.steps)
}

fn progress_bar(arguments: &Arguments) -> ProgressBar {
    let target =
        if arguments.json { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(Some(u64::from(arguments.steps)), target);
    if let Ok(style) =
        ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}  {elapsed} (eta {eta})")
    {
        bar.set_style(style);
    }
    if std::io::stderr().is_terminal() {
        bar.enable_steady_tick(Duration::from_millis(200));
    }
    bar
}
