//! Files that are not there, or cannot be written. Invariant: both are found before anything runs.
//!
//! Tier: quick, since it takes less than a second.

use expect_test::{Expect, expect};

use super::Case;

#[test]
fn missing_files() {
    let case = Case::new();
    std::fs::create_dir(case.path("empty")).unwrap();
    let refused = |arguments: &str, message: Expect| case.fails(arguments, 4, message);
    refused(
        "plan FOLDER/nowhere.json --budget 1MiB",
        expect![[r#"
        error: FOLDER/nowhere.json: No such file or directory (os error 2)
    "#]],
    );
    refused(
        "plan FOLDER/empty --budget 1MiB",
        expect![[r#"
            error: FOLDER/empty: there is no step.json in this folder, so it is no step's; \
            `tightfit.export` writes steps
        "#]],
    );
    refused(
        "train FOLDER/nowhere --budget 100%",
        expect![[r#"
        error: FOLDER/nowhere/step.json: No such file or directory (os error 2)
    "#]],
    );
    refused(
        "train FOLDER/empty --budget 100%",
        expect![[r#"
            error: FOLDER/empty: there is no step.json in this folder, so it is no step's; \
            `tightfit.export` writes steps
        "#]],
    );
    refused(
        "train corpus/steps/mlp-digits --budget 100% --data FOLDER/nowhere.csv",
        expect![[r#"
        error: FOLDER/nowhere.csv: No such file or directory (os error 2)
    "#]],
    );
    refused(
        "train corpus/steps/mlp-digits --budget 100% --resume FOLDER/nowhere",
        expect![[r#"
        error: FOLDER/nowhere: No such file or directory (os error 2)
    "#]],
    );
    refused(
        "check corpus/steps/mlp-digits FOLDER/nowhere --budget 1GiB",
        expect![[r#"
        error: FOLDER/nowhere: No such file or directory (os error 2)
    "#]],
    );
    refused(
        "analyze FOLDER/nowhere.json",
        expect![[r#"
        error: FOLDER/nowhere.json: No such file or directory (os error 2)
    "#]],
    );
}

#[test]
fn files_that_cannot_be_written_are_known_before_anything_runs() {
    let case = Case::new();
    std::fs::create_dir(case.path("folder")).unwrap();
    let refused = |arguments: &str, message: Expect| case.fails(arguments, 4, message);
    // A run of this length would not end in any reasonable time.
    refused(
        "train corpus/steps/mlp-digits --budget 100% --steps 4000000000 --json --save \
         FOLDER/nowhere/weights",
        expect![[r#"
            error: FOLDER/nowhere/weights could not be written: there is no folder \
            FOLDER/nowhere
        "#]],
    );
    refused(
        "train corpus/steps/mlp-digits --budget 100% --steps 4000000000 --json --save \
         FOLDER/folder",
        expect![[r#"
        error: FOLDER/folder could not be written: is a directory
    "#]],
    );
    refused(
        "train corpus/steps/mlp-digits --budget 100% --steps 4000000000 --json --dump \
         FOLDER/nowhere/dump",
        expect![[r#"
            error: FOLDER/nowhere/dump could not be written: there is no folder \
            FOLDER/nowhere
        "#]],
    );
    refused(
        "plan corpus/steps/mlp-digits --budget 100% -o FOLDER/nowhere/plan",
        expect![[r#"
            error: FOLDER/nowhere/plan could not be written: there is no folder \
            FOLDER/nowhere
        "#]],
    );
    refused(
        "plan corpus/steps/mlp-digits --budget 100% --svg FOLDER/nowhere/memory.svg",
        expect![[r#"
            error: FOLDER/nowhere/memory.svg could not be written: there is no folder \
            FOLDER/nowhere
        "#]],
    );
}
