//! Data that does not suit a step. Invariant: the message names the file, and the line if there is
//! one.
//!
//! Tier: quick, since it takes less than a second.

use expect_test::expect;
use serde_json::json;

use super::{Case, TRAIN, TRAIN_DIGITS};
use crate::program::{corpus, folded, run};

#[test]
fn data_other_than_the_step_was_made_with() {
    let case = Case::new().file("digits.csv", "not the digits");
    let file = case.path("digits.csv");
    case.step(|step, _| step["data"]["file"] = json!(file)).fails(
        TRAIN,
        7,
        expect![[r#"
        error: FOLDER/digits.csv: not the file that the step was made with (SHA-256 \
        bc9e439a945b9624d3beb454d953b735b333133d510d29ddc3ce071d285f64cc, expected \
        067c897c3866e1f112d70ccf18ba908a8bc1fbb9ec051530b8ad86070265d299); pass it \
        with --data to use it all the same
    "#]],
    );
}

#[test]
fn a_table_with_a_bad_cell() {
    let digits = std::fs::read_to_string(corpus().join("data/digits.csv")).unwrap();
    let table = |line: usize, change: &dyn Fn(&str) -> String| {
        let lines: Vec<String> = digits
            .lines()
            .enumerate()
            .map(|(i, text)| if i + 1 == line { change(text) } else { text.to_string() })
            .collect();
        Case::new().file("table.csv", lines.join("\n"))
    };
    let arguments = format!("{TRAIN_DIGITS} --data FOLDER/table.csv");
    table(7, &|line| line.replacen(',', ",x", 1)).fails(
        &arguments,
        7,
        expect![[r#"
        error: line 7 of FOLDER/table.csv: `x0` is not a number
    "#]],
    );
    table(7, &|line| line.replacen(',', ",nan,", 1).rsplit_once(',').unwrap().0.to_string()).fails(
        &arguments,
        7,
        expect![[r#"
        error: line 7 of FOLDER/table.csv: `nan` is not a number
    "#]],
    );
    table(1700, &|line| format!("{line},0")).fails(
        &arguments,
        7,
        expect![[r#"
        error: line 1700 of FOLDER/table.csv: 66 columns, expected 64 features and a \
        class
    "#]],
    );
    table(3, &|line| format!("{}-1", &line[..line.len() - 1])).fails(
        &arguments,
        7,
        expect![[r#"
        error: line 3 of FOLDER/table.csv: `-1` is not a class
    "#]],
    );
}

#[test]
fn a_class_that_the_model_does_not_have() {
    let digits = std::fs::read_to_string(corpus().join("data/digits.csv")).unwrap();
    let lines: Vec<String> = digits
        .lines()
        .enumerate()
        .map(
            |(i, line)| {
                if i == 0 { line.to_string() } else { format!("{}10", &line[..line.len() - 1]) }
            },
        )
        .collect();
    let case = Case::new().file("table.csv", lines.join("\n"));
    case.fails(
        &format!("{TRAIN_DIGITS} --data FOLDER/table.csv --json --save FOLDER/weights"),
        7,
        expect![[r#"
            error: step 1: the batch holds an index outside its table, or a class that the \
            model does not have
        "#]],
    );
}

#[test]
fn a_text_shorter_than_a_window() {
    let case = Case::new().file("short.txt", "In the beginning was the Word");
    case.fails(
        "train corpus/steps/gpt-nano --budget 100% --steps 1 --data FOLDER/short.txt",
        7,
        expect![[r#"
        error: FOLDER/short.txt: 29 bytes are too few for windows of 64 in both splits
    "#]],
    );
    let case = Case::new().file("table.csv", "");
    case.fails(
        &format!("{TRAIN_DIGITS} --data FOLDER/table.csv"),
        7,
        expect![[r#"
        error: FOLDER/table.csv: 0 rows are too few for both splits
    "#]],
    );
}

#[test]
fn data_of_another_shape() {
    let case = Case::new().step(|step, _| {
        step["data"] = json!({
            "kind": "bytes",
            "file": corpus().join("data/kjv.txt"),
            "window": 64,
            "batch": 4,
            "sampling_seed": 1,
            "validation": { "last_fraction": 0.1 },
        })
    });
    case.fails(
        TRAIN,
        7,
        expect![[r#"
        error: the model's `input` is [720, 64] of f32, but the data gives windows of \
        64 in i64
    "#]],
    );
}

/// Opening a pipe waits for a writer, possibly forever.
#[cfg(unix)]
#[test]
fn data_that_are_a_pipe_are_refused_unopened() {
    use std::fs::OpenOptions;
    use std::os::unix::fs::OpenOptionsExt;

    let case = Case::new();
    let pipe = case.path("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let arguments = format!("{TRAIN_DIGITS} --data FOLDER/pipe");
    let (ran, was_opened) = std::thread::scope(|scope| {
        let running = scope.spawn(|| run(case.folder.path(), &arguments));
        let mut was_opened = false;
        while !running.is_finished() {
            // This succeeds only if a reader has opened the pipe, or waits to; a waiting one then
            // goes on.
            let mut write = OpenOptions::new();
            write.write(true).custom_flags(libc::O_NONBLOCK);
            was_opened |= write.open(&pipe).is_ok();
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        (running.join().unwrap(), was_opened)
    });
    assert!(!was_opened);
    assert_eq!(ran.code, Some(4), "{}", ran.stderr);
    assert!(ran.stderr.contains("FOLDER/pipe".replace("FOLDER", "").as_str()), "{}", ran.stderr);
}

/// A step that someone else wrote reads only files next to it, or where its user works.
#[test]
fn files_of_this_machine_that_a_step_has_no_business_with() {
    let case = Case::new().step(|step, _| step["data"]["file"] = json!("../table.csv"));
    let digits = std::fs::read(corpus().join("data/digits.csv")).unwrap();
    let case = case.file("table.csv", digits);
    std::fs::remove_dir(case.path(".git")).unwrap();
    let train = "train FOLDER/step --budget 100% --steps 0 --eval-batches 0";
    case.fails(
        train,
        2,
        expect![[r#"
        error: FOLDER/step names FOLDER/step/../table.csv, which lies neither in the \
        step's folder, nor in the repository around it, nor below the working \
        directory; if the step is to read it, add --allow-outside
    "#]],
    );
    run(case.folder.path(), &format!("{train} --allow-outside")).done();
    run(case.folder.path(), &format!("{train} --data FOLDER/table.csv")).done();
    // In the repository around the step.
    std::fs::create_dir(case.path(".git")).unwrap();
    run(case.folder.path(), train).done();
}

/// Nor does a message show their content.
#[test]
fn first_values_and_graphs_elsewhere() {
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), "SECRET and more of it").unwrap();
    let name = secret.path().to_str().unwrap();
    let values = Case::new().step(|step, _| {
        let parameters = step["parameters"].as_object_mut().unwrap();
        *parameters.values_mut().next().unwrap() = json!({ "file": name });
    });
    let graph = Case::new().step(|step, _| step["evaluation"] = json!(name));
    for (case, code) in [(values, 2), (graph, 5)] {
        for verb in ["train", "calibrate"] {
            let run = |more: &str| {
                let arguments = format!("{verb} FOLDER/step --budget 1GiB {more}");
                run(case.folder.path(), arguments.trim())
            };
            let refused = run("");
            assert_eq!(refused.code, Some(code), "{}", refused.stderr);
            assert!(
                folded(&refused.stderr).contains("which lies neither in"),
                "{}",
                refused.stderr
            );
            let damaged = run("--allow-outside");
            assert!(damaged.code != Some(0) && !damaged.stderr.contains("SECRET"));
            let eight = u64::from_le_bytes(*b"SECRET a").to_string();
            assert!(!damaged.stderr.contains(&eight), "{}", damaged.stderr);
        }
    }
}
