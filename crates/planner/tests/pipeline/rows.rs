//! Rows of pipeline schedules: compared with recorded ones, in their closed forms, and what is
//! refused.
//!
//! Tier: quick with a part of the cases, less than a second; full with all of them.

use expect_test::{Expect, expect};
use proptest::prelude::*;
use serde_json::Value as Json;
use tightfit::id::{PrimaryMap, RankId, SecondaryMap, StageId};
use tightfit::pipeline::{
    Action, Pass, PipelineSchedule, Rows, Simulated, StageCost, greedy, in_turn, interleaved,
    read_csv, simulate, validate, write_csv,
};
use tightfit::units::{Bytes, Seconds};

use crate::fixtures::corpus;

/// Bytes of the activations of one rank's share of the model; divided evenly among its stages.
const SHARE: u64 = 1 << 10;

/// Stages that cost the same: seconds of F, I, W of a rank's share, of a transfer, and the part of
/// the activations that is left after I.
fn alike(
    chunks: u32,
    [f, i, w]: [f64; 3],
    transfer: f64,
    kept: f64,
) -> SecondaryMap<StageId, StageCost> {
    let share = |seconds: f64| Seconds(seconds / f64::from(chunks));
    let activations = Bytes(SHARE / u64::from(chunks));
    SecondaryMap::with_default(StageCost {
        forward: share(f),
        input_gradient: share(i),
        weight_gradient: share(w),
        transfer: Seconds(transfer),
        activations,
        kept: Bytes((activations.0 as f64 * kept) as u64),
    })
}

fn unit(chunks: u32) -> SecondaryMap<StageId, StageCost> {
    alike(chunks, [1.0; 3], 0.0, 1.0)
}

fn cases(name: &str) -> Json {
    serde_json::from_slice(&std::fs::read(corpus::path(&format!("cases/{name}"))).unwrap()).unwrap()
}

fn shares(simulated: &Simulated) -> Vec<f64> {
    simulated.peaks.values().map(|peak| peak.0 as f64 / SHARE as f64).collect()
}

/// The rows that a recorded name refers to, and the number of stages on each rank.
fn recorded(name: &str, ranks: u32, micro_batches: u32) -> Option<(Rows, u32)> {
    let of = |schedule: PipelineSchedule| {
        (schedule.rows(ranks, micro_batches).unwrap(), schedule.chunks())
    };
    let vee = || PipelineSchedule::ZbV.rows(ranks, 1).unwrap().placement;
    let capped = |placement: PrimaryMap<StageId, RankId>, chunks: u32, shares: f64| {
        let cap = Bytes((shares * SHARE as f64) as u64);
        (greedy(placement, micro_batches, &unit(chunks), cap), chunks)
    };
    let ranks_f = f64::from(ranks);
    Some(match name {
        "gpipe" => of(PipelineSchedule::GPipe),
        "fairscale_async" => of(PipelineSchedule::AsyncPipe),
        "1f1b" => of(PipelineSchedule::OneFOneB),
        "interleaved_1f1b_v2" => of(PipelineSchedule::Interleaved),
        "interleaved_1f1b_v4" => (interleaved(ranks, micro_batches, 4).unwrap(), 4),
        "zb_h1" => of(PipelineSchedule::ZbH1),
        "zb_v" => of(PipelineSchedule::ZbV),
        "v_half" => of(PipelineSchedule::VHalf),
        "v_min" => of(PipelineSchedule::VMin),
        "greedy_v_cap_p" => of(PipelineSchedule::GreedyV),
        "greedy_v_cap_half" => capped(vee(), 2, ranks_f / 2.0 + 1.0),
        "greedy_1_cap_p" => of(PipelineSchedule::Greedy),
        "greedy_1_cap_2p1" => capped(in_turn(ranks, 1), 1, 2.0 * ranks_f - 1.0),
        _ => return None,
    })
}

/// Makespans and peaks of the recorded rows. Those of V-Half come from a scheduler that reorders,
/// so the closed form may take up to 4.5 longer, and holds no more; the latter applies to the peaks
/// of V-Min too.
#[test]
fn recorded_schedules_take_and_hold_what_they_did() {
    let cases = cases("reference_schedules.json");
    let mut seen = 0;
    for case in cases["rows"].as_array().unwrap() {
        let name = case["schedule"].as_str().unwrap();
        let number = |key: &str| case[key].as_u64().unwrap() as u32;
        let (ranks, micro_batches) = (number("p"), number("m"));
        let Some((rows, chunks)) = recorded(name, ranks, micro_batches) else { continue };
        let what = format!("{name}, {ranks} ranks, {micro_batches} micro-batches");
        assert_eq!(chunks, number("v"), "{what}");
        validate(&rows, name == "fairscale_async").unwrap_or_else(|e| panic!("{what}: {e}"));
        let is_published = matches!(name, "v_half" | "v_min");
        let simulated = simulate(&rows, &unit(chunks)).unwrap();
        let (ours, theirs) = (simulated.makespan.0, case["makespan"].as_f64().unwrap());
        if name == "v_half" {
            assert!(ours <= theirs + 4.5 + 1e-6, "{what}: {ours} and {theirs}");
        } else {
            assert!((ours - theirs).abs() <= 1e-6, "{what}: {ours} and {theirs}");
        }
        let peaks: Vec<f64> = serde_json::from_value(case["peak_per_rank"].clone()).unwrap();
        let held = shares(&simulated);
        match is_published {
            false => assert_eq!(held, peaks, "{what}"),
            true => {
                let most = case["peak_act"].as_f64().unwrap();
                assert!(held.iter().all(|&held| held <= most), "{what}: {held:?}, {peaks:?}");
            }
        }
        seen += 1;
        if is_published {
            continue;
        }
        let other = &case["alt_cost_f1_i1.2_w0.8_comm0.1"];
        let simulated = simulate(&rows, &alike(chunks, [1.0, 1.2, 0.8], 0.1, 1.0)).unwrap();
        for (ours, key) in [(simulated.makespan, "makespan"), (simulated.longest_row(), "max_span")]
        {
            let theirs = other[key].as_f64().unwrap();
            assert!((ours.0 - theirs).abs() <= 1e-6, "{what}: {key} {ours:?} and {theirs}");
        }
        let half = simulate(&rows, &alike(chunks, [1.0; 3], 0.0, 0.5)).unwrap();
        let most = shares(&half).into_iter().fold(0.0, f64::max);
        assert_eq!(Some(most), case["peak_act_keep_half_after_I"].as_f64(), "{what}");
    }
    assert_eq!(seen, 13 * 12);
}

/// The recorded orders, simulated: of a list scheduler, with makespan and peaks, and of PyTorch,
/// with our makespan.
#[test]
fn recorded_orders_are_simulated() {
    let cases = cases("schedules.json");
    for case in cases["cases"].as_array().unwrap() {
        let name = case["id"].as_str().unwrap();
        let is_pytorchs = case["expected"].is_array();
        let order = if is_pytorchs { &case["expected"] } else { &case["expected"]["order"] };
        let mut text = String::new();
        for (rank, row) in order.as_array().unwrap().iter().enumerate() {
            let tokens = row.as_array().unwrap().iter().map(|token| match token.as_str() {
                Some(token) if is_pytorchs => token.to_string(),
                Some(token) => format!("{rank}{token}"),
                None => String::new(),
            });
            text += &tokens.collect::<Vec<_>>().join(",");
            text.push('\n');
        }
        if name.contains("LoopedBFS") {
            let refused = read_csv(&text).unwrap_err().to_string();
            assert!(refused.contains("order of the micro-batches"), "{refused}");
            continue;
        }
        let rows = read_csv(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let chunks = rows.placement.len() / rows.rows.len();
        let simulated = simulate(&rows, &unit(chunks as u32)).unwrap();
        if !is_pytorchs {
            assert_eq!(Some(simulated.makespan.0), case["expected"]["makespan"].as_f64(), "{name}");
            let peaks: Vec<f64> =
                serde_json::from_value(case["expected"]["peak_inflight"].clone()).unwrap();
            assert_eq!(shares(&simulated), peaks, "{name}");
            continue;
        }
        let ours = match name {
            "schedule/torch_Interleaved1F1B_p2_m4_v2" => PipelineSchedule::Interleaved,
            "schedule/torch_ZBVZeroBubble_p2_m4_v2" => PipelineSchedule::ZbV,
            _ => continue,
        };
        assert_eq!(rows, ours.rows(2, 4).unwrap(), "{name}");
    }
}

/// The bubbles that the papers state, for stages of any cost.
#[test]
fn bubbles_have_their_closed_forms() {
    let [f, i, w] = [1.0, 1.25, 0.75];
    for (ranks, micro_batches) in [(2, 2), (3, 6), (4, 8), (8, 16)] {
        let bubble = |schedule: PipelineSchedule| {
            let rows = schedule.rows(ranks, micro_batches).unwrap();
            let costs = alike(schedule.chunks(), [f, i, w], 0.0, 1.0);
            let makespan = simulate(&rows, &costs).unwrap().makespan.0;
            makespan - f64::from(micro_batches) * (f + i + w)
        };
        let others = f64::from(ranks - 1);
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} and {b}");
        close(bubble(PipelineSchedule::GPipe), others * (f + i + w));
        close(bubble(PipelineSchedule::OneFOneB), others * (f + i + w));
        close(bubble(PipelineSchedule::Interleaved), others * (f + i + w) / 2.0);
    }
    for ranks in 2..8 {
        let rows = PipelineSchedule::ZbH1.rows(ranks, 4 * ranks).unwrap();
        let makespan = simulate(&rows, &unit(1)).unwrap().makespan.0;
        assert_eq!(makespan - f64::from(12 * ranks), f64::from(ranks - 1), "F + I − W = 1");
    }
}

proptest! {
    #![proptest_config(tightfit_testing::config(256))]

    #[test]
    fn rows_are_valid_whatever_their_numbers(
        index in 0..PipelineSchedule::ALL.len(),
        ranks in 1u32..10,
        micro_batches in 1u32..24,
    ) {
        let (schedule, name) = PipelineSchedule::ALL[index];
        prop_assert_eq!(PipelineSchedule::from_name(name), Some(schedule));
        let Ok(rows) = schedule.rows(ranks, micro_batches) else {
            let is_interleaved = schedule == PipelineSchedule::Interleaved;
            prop_assert!(is_interleaved && !micro_batches.is_multiple_of(ranks));
            return Ok(());
        };
        let descends = schedule == PipelineSchedule::AsyncPipe;
        prop_assert_eq!(validate(&rows, descends), Ok(()));
        if !descends {
            prop_assert_eq!(read_csv(&write_csv(&rows)).unwrap(), rows.clone());
        }
        let simulated = simulate(&rows, &unit(schedule.chunks())).unwrap();
        prop_assert!(simulated.makespan.0 >= f64::from(3 * micro_batches));
        let bubble = simulated.bubble();
        prop_assert!((0.0..1.0).contains(&bubble), "{}", bubble);
    }

    /// Stages of any cost, on any ranks, under any cap.
    #[test]
    fn a_list_scheduler_never_ends_in_a_deadlock(
        placement in prop::collection::vec(0u32..4, 1..7),
        seconds in prop::collection::vec((0u32..5, 0u32..5, 0u32..5, 0u32..3), 7),
        bytes in prop::collection::vec((0u64..6, 0u64..6), 7),
        cap in 0u64..40,
        micro_batches in 1u32..8,
    ) {
        let ranks = placement.iter().copied().max().unwrap_or(0) + 1;
        let placement: PrimaryMap<StageId, RankId> =
            placement.into_iter().map(RankId::from_u32).collect();
        let mut costs = SecondaryMap::new();
        for (stage, ((f, i, w, transfer), (activations, kept))) in
            placement.keys().zip(seconds.into_iter().zip(bytes))
        {
            let [forward, input_gradient, weight_gradient, transfer] =
                [f, i, w, transfer].map(|seconds| Seconds(f64::from(seconds)));
            let [activations, kept] = [activations, kept.min(activations)].map(Bytes);
            costs[stage] = StageCost {
                forward, input_gradient, weight_gradient, transfer, activations, kept,
            };
        }
        let rows = greedy(placement.clone(), micro_batches, &costs, Bytes(cap));
        prop_assert_eq!(rows.rows.len(), ranks as usize);
        prop_assert_eq!(validate(&rows, false), Ok(()));
        let simulated = simulate(&rows, &costs).unwrap();
        for (rank, &peak) in &simulated.peaks {
            let of_each: u64 = rows.stages_of(rank).iter().map(|&s| costs[s].activations.0).sum();
            prop_assert!(peak.0 <= cap.max(of_each), "{} holds {}", rank, peak);
        }
    }
}

/// Rows with one error, and the message for it.
fn refused(change: impl FnOnce(&mut Rows), expected: Expect) {
    let mut rows = PipelineSchedule::ZbH1.rows(3, 4).unwrap();
    change(&mut rows);
    let refused = validate(&rows, false).unwrap_err();
    assert_eq!(simulate(&rows, &unit(1)).is_err(), validate(&rows, true).is_err());
    expected.assert_eq(&refused.to_string());
}

fn at(rank: u32) -> RankId {
    RankId::from_u32(rank)
}

fn place(rows: &Rows, rank: u32, action: Action) -> usize {
    rows.rows[at(rank)].iter().position(|&other| other == action).unwrap()
}

#[test]
fn each_rule_refuses() {
    let [f, b, i, w] = Pass::ALL.map(|(pass, _)| pass);
    refused(
        |rows| rows.micro_batches = 0,
        expect!["there are 3 stages and 0 micro-batches; at least one of each"],
    );
    refused(
        |rows| _ = rows.placement.push(at(3)),
        expect!["stage3 is placed on rank3, but there are 3 rows"],
    );
    refused(
        |rows| rows.rows[at(1)].push(Action::new(3, f, 0)),
        expect!["rank1 performs 3F0, but there are 3 stages"],
    );
    refused(
        |rows| rows.rows[at(1)].push(Action::new(1, f, 4)),
        expect!["rank1 performs 1F4, but there are 4 micro-batches"],
    );
    refused(
        |rows| rows.rows[at(1)].push(Action::new(2, f, 0)),
        expect!["rank1 performs 2F0, but the stage is rank2's"],
    );
    refused(
        |rows| rows.rows[at(1)].push(Action::new(1, f, 3)),
        expect!["rank1 performs 1F3 twice"],
    );
    refused(
        |rows| rows.rows[at(1)].push(Action::new(1, b, 3)),
        expect!["rank1 performs 1B3 as a whole and in parts"],
    );
    refused(|rows| _ = rows.rows[at(1)].pop(), expect!["rank1 never performs 1W3"]);
    refused(
        |rows| {
            let (first, second) =
                (place(rows, 0, Action::new(0, w, 1)), place(rows, 0, Action::new(0, w, 2)));
            rows.rows[at(0)].swap(first, second);
        },
        expect![
            "rank0 performs 0W1 after micro-batch 2; statistics are taken and gradients summed \
             in the order of the micro-batches"
        ],
    );
    refused(
        |rows| {
            let first = place(rows, 0, Action::new(0, i, 0));
            let action = rows.rows[at(0)].remove(first);
            rows.rows[at(0)].insert(0, action);
        },
        expect![
            "deadlock: rank0 waits with 0I0 for 0F0, rank1 waits with 1F0 for 0F0, rank2 waits \
             with 2F0 for 1F0"
        ],
    );
    // The first rank waits for a gradient before it sends what the second computes first.
    refused(
        |rows| {
            let first = place(rows, 0, Action::new(0, i, 0));
            let action = rows.rows[at(0)].remove(first);
            rows.rows[at(0)].insert(1, action);
        },
        expect![
            "deadlock: rank0 waits with 0I0 for 1I0, rank1 waits with 1F1 for 0F1, rank2 waits \
             with 2F1 for 1F1"
        ],
    );
}

#[test]
fn texts_that_are_no_rows_are_refused() {
    let refused = |text: &str, expected: Expect| {
        expected.assert_eq(&read_csv(text).unwrap_err().to_string());
    };
    refused("", expect!["there are 0 stages and 0 micro-batches; at least one of each"]);
    refused(
        "0F0,0X0\n",
        expect![
            "line 1: `0X0` is no action; one reads like 2F0: the stage, F, B, I or W, and the \
             micro-batch"
        ],
    );
    refused(
        "F0",
        expect![
            "line 1: `F0` is no action; one reads like 2F0: the stage, F, B, I or W, and the \
             micro-batch"
        ],
    );
    refused(
        "0F",
        expect![
            "line 1: `0F` is no action; one reads like 2F0: the stage, F, B, I or W, and the \
             micro-batch"
        ],
    );
    refused(
        "0F0000000",
        expect![
            "line 1: `0F0000000` is no action; one reads like 2F0: the stage, F, B, I or W, and \
             the micro-batch"
        ],
    );
    refused(
        "-1F0",
        expect![
            "line 1: `-1F0` is no action; one reads like 2F0: the stage, F, B, I or W, and the \
             micro-batch"
        ],
    );
    refused(
        "0F0,0B0\n2F0,2B0\n",
        expect!["stage 1 stands in no line, but stage 2 does; stages are numbered from 0"],
    );
    refused("0F0,0B0\n0F1,0B1\n", expect!["rank1 performs 0F1, but the stage is rank0's"]);
    refused("0F0\n1F0,1B0\n", expect!["rank0 never performs 0B0"]);
    refused(
        "0F0,0F1,0B0,0B1\n1F1,1B1,1F0,1B0",
        expect![
            "rank1 performs 1F0 after micro-batch 1; statistics are taken and gradients summed \
             in the order of the micro-batches"
        ],
    );
    refused(
        "0F0,0B1,0F1,0B0\n1F0,1B0,1F1,1B1",
        expect![
            "rank0 performs 0B0 after micro-batch 1; statistics are taken and gradients summed \
             in the order of the micro-batches"
        ],
    );
    refused("0F999999\n", expect!["rank0 never performs 0F0"]);
    refused("0F0,0B0,0F0\n", expect!["rank0 performs 0F0 twice"]);
    assert!(read_csv("0F0,,0B0\n").is_ok(), "nothing stands for an idle rank");
}
