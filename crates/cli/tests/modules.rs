//! `tightfit modules`, and the dataflow figures of `analyze`. Invariant: what is printed is what
//! the library reads and what the other verbs say.
//!
//! Tier: quick, since it takes less than a second.

use std::path::Path;

use expect_test::expect;
use serde_json::Value;
use tightfit::analysis::modules::ModuleInfo;

use crate::program::{corpus, folded, folder, run};

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

#[test]
fn the_json_reads_as_statistics_of_modules() {
    for graph in ["corpus/steps/gpt-nano --threads 2", "corpus/graphs/vit_b16_b32.json.gz"] {
        let printed = run(Path::new("."), &format!("modules {graph} --json")).done().stdout;
        let info = ModuleInfo::from_json(printed.as_bytes()).unwrap();
        let analyzed = run(Path::new("."), &format!("analyze {graph} --json")).done().result();
        let peak = number(&analyzed["peak_bytes"]);
        // The rest of the step's peak: batch, buffers and optimizer state.
        let least = info.baseline_peak().0;
        assert!(
            least + number(&analyzed["static_bytes"]) >= peak && least <= peak + peak / 5,
            "{graph}: {least}, {peak}"
        );
        let text = run(Path::new("."), &format!("modules {graph} --wide")).done().stdout;
        assert!(text.contains(&format!("({least} bytes)")), "{graph}: {text}");
        assert_eq!(
            text.lines().count(),
            info.modules().len() + 5,
            "{graph}: a line for each module"
        );
    }
}

#[test]
fn a_person_can_read_the_table() {
    let text =
        run(Path::new("."), "modules corpus/graphs/gpt2_small_b8_s512.json.gz --depth 3 --wide")
            .done()
            .stdout;
    let (head, table) = text.split_once("\n\n").unwrap();
    expect![[r#"
        gpt2_small_b8_s512: 127 modules, 8.41 ms forward and 27.23 ms backward on \
        a100-80gb
        unplanned: 35.64 ms, peak 4.5 GiB (4852627980 bytes) of parameters, gradients \
        and activations, without batch, buffers and optimizer state
        saved: made inside for the backward pass, freed by checkpointing; held: all \
        activations when the forward pass of the module ends; held back, gradients, \
        temporary: all activations, gradients and temporaries at the peak of its \
        backward pass
    "#]]
    .assert_eq(&folded(&format!("{head}\n")));
    let (left, right) = halves(table, "  held back");
    expect![[r#"
        module                 params     input      saved     output        held
        gpt2_small_b8_s512  237.4 MiB  64.0 KiB    2.8 GiB        4 B     2.8 GiB
         model              237.4 MiB  32.0 KiB    2.0 GiB  392.6 MiB     2.4 GiB
          transformer       237.4 MiB  32.0 KiB    2.0 GiB    6.0 MiB     2.0 GiB
           wte               73.6 MiB  32.0 KiB          –    6.0 MiB     6.0 MiB
           wpe                1.5 MiB   4.0 KiB          –  768.0 KiB     6.8 MiB
           h.0               13.5 MiB   8.0 MiB  162.2 MiB   10.0 MiB   178.2 MiB
           h.1               13.5 MiB  10.0 MiB  162.2 MiB    6.0 MiB   346.4 MiB
           h.2               13.5 MiB  10.0 MiB  162.2 MiB    6.0 MiB   514.7 MiB
           h.3               13.5 MiB  10.0 MiB  162.2 MiB    6.0 MiB   682.9 MiB
           h.4               13.5 MiB  10.0 MiB  162.2 MiB    6.0 MiB   851.1 MiB
           h.5               13.5 MiB  10.0 MiB  162.2 MiB    6.0 MiB  1019.3 MiB
           h.6               13.5 MiB  10.0 MiB  162.2 MiB    6.0 MiB     1.2 GiB
           h.7               13.5 MiB  10.0 MiB  162.2 MiB    6.0 MiB     1.3 GiB
           h.8               13.5 MiB  10.0 MiB  162.2 MiB    6.0 MiB     1.5 GiB
           h.9               13.5 MiB  10.0 MiB  162.2 MiB    6.0 MiB     1.7 GiB
           h.10              13.5 MiB  10.0 MiB  162.2 MiB    6.0 MiB     1.8 GiB
           h.11              13.5 MiB  10.0 MiB  162.2 MiB    6.0 MiB     2.0 GiB
           ln_f               3.0 KiB   6.0 MiB   16.0 KiB    6.0 MiB     2.0 GiB
          lm_head            73.6 MiB   6.0 MiB          –  392.6 MiB     2.4 GiB
    "#]]
    .assert_eq(&left);
    expect![[r#"
        held back  gradients  temporary   fwd ms  bwd ms
          2.8 GiB          –    1.5 GiB    8.411   27.23
          2.0 GiB          –  466.3 MiB    6.593   19.75
          1.9 GiB    4.5 MiB  247.6 MiB    5.580   17.72
              4 B  163.7 MiB  380.1 MiB   0.0410  0.3686
              4 B  162.2 MiB   87.1 MiB  0.00116  0.0104
         76.2 MiB  153.2 MiB  247.6 MiB   0.4626   1.428
        244.4 MiB  139.7 MiB  247.6 MiB   0.4595   1.428
        412.7 MiB  126.2 MiB  247.6 MiB   0.4595   1.428
        580.9 MiB  112.7 MiB  247.6 MiB   0.4595   1.428
        749.1 MiB   99.1 MiB  247.6 MiB   0.4595   1.428
        917.3 MiB   85.6 MiB  247.6 MiB   0.4595   1.428
          1.1 GiB   72.1 MiB  247.6 MiB   0.4595   1.428
          1.2 GiB   58.6 MiB  247.6 MiB   0.4595   1.428
          1.4 GiB   45.1 MiB  247.6 MiB   0.4595   1.428
          1.6 GiB   31.5 MiB  247.6 MiB   0.4595   1.428
          1.7 GiB   18.0 MiB  247.6 MiB   0.4595   1.428
          1.9 GiB    4.5 MiB  247.6 MiB   0.4595   1.428
          2.0 GiB          –  133.6 MiB  0.00618  0.1945
          2.0 GiB          –  466.3 MiB    1.013   2.027
    "#]]
    .assert_eq(&right);
}

#[test]
fn statistics_that_are_given_are_given_back() {
    for name in ["llama_tiny_4l", "torchtest_4l"] {
        let path = corpus().join(format!("cases/module_info/module_info_{name}.json"));
        let given: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let here = folder();
        let print = |path: &Path, options: &str| {
            let verb = format!("modules {} --json {options}", path.display());
            run(here.path(), &verb).done().result()
        };
        let printed = print(&path, "--ancestors");
        assert_eq!(printed["module_info"]["mod_order"], given["module_info"]["mod_order"]);
        assert_eq!(printed["sac_stats"], given["sac_stats"]);
        let stats = |file: &Value| file["module_info"]["mod_stats"].as_array().unwrap().clone();
        assert_eq!(stats(&printed).len(), stats(&given).len());
        for given in stats(&given) {
            let printed = stats(&printed);
            let again = printed.iter().find(|again| again["fqn"] == given["fqn"]).unwrap();
            for (key, value) in given.as_object().unwrap() {
                // In Python, a leaf's times of checkpointing are the integer 0.
                let same = again[key] == *value || again[key].as_f64() == value.as_f64();
                assert!(same, "{}, {key}: {} {value}", given["fqn"], again[key]);
            }
        }
        // The printed document can be read as statistics again, of the same model.
        let copy = here.path().join("printed.json");
        std::fs::write(&copy, printed.to_string()).unwrap();
        assert_eq!(print(&copy, "--ancestors"), printed);
        let text = run(here.path(), &format!("modules {} --wide", path.display())).done().stdout;
        let info = ModuleInfo::from_json(given.to_string().as_bytes()).unwrap();
        let peak = info.baseline_peak().0;
        let baseline = format!("unplanned: {:.2} ms,", info.baseline_seconds().0 * 1e3);
        assert!(text.contains(&baseline) && text.contains(&format!("({peak} bytes)")), "{text}");
        assert_eq!(text.lines().count(), info.modules().len() + 5, "a line for each module");
        let matrix = printed["ad_matrix"].as_array().unwrap();
        assert_eq!(matrix[0], serde_json::json!(vec![1; matrix.len()]), "the root contains all");
    }
    let ran = run(Path::new("."), "modules corpus/steps/gpt-nano --ancestors");
    assert_eq!(ran.code, Some(2), "a matrix is for programs: {}", ran.stderr);
}

/// A table cut in two in front of a column, which its heading names with the gap before it.
fn halves(table: &str, column: &str) -> (String, String) {
    let heading = table.lines().next().unwrap();
    let at = heading[..heading.find(column).unwrap()].chars().count();
    let (mut left, mut right) = (String::new(), String::new());
    for line in table.lines() {
        let cells: Vec<char> = line.chars().collect();
        assert_eq!(cells[at..at + 2], [' ', ' '], "{line}");
        left.extend(cells[..at].iter().chain(&['\n']));
        right.extend(cells[at + 2..].iter().chain(&['\n']));
    }
    (left, right)
}

#[test]
fn dataflow_adds_up_in_the_analysis() {
    for graph in [
        "corpus/steps/gpt-nano-dropout --threads 2",
        "corpus/graphs/mobilenet_v3_large_b64.json.gz",
    ] {
        let analyzed = run(Path::new("."), &format!("analyze {graph} --json")).done().result();
        let flow = &analyzed["dataflow"];
        let modules = flow["modules"].as_array().unwrap();
        assert_eq!(modules[0]["module"], "", "{graph}: the root comes first");
        for kind in ["share", "alone"] {
            assert_eq!(modules[0][kind], flow["graph"], "{graph}: {kind}");
        }
        for key in ["fwd_flop", "bwd_flop", "fwd_mem_tmp", "fwd_mem_out", "bwd_mem_out"] {
            let nodes: u64 = analyzed["nodes"]
                .as_array()
                .unwrap()
                .iter()
                .map(|node| number(&node["dataflow"][key]))
                .sum();
            assert_eq!(nodes, number(&flow["graph"][key]), "{graph}: {key}");
        }
    }
}
