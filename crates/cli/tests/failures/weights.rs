//! Weights that do not suit a step. Invariant: a run resumes from its own weights or not at all.
//!
//! Tier: quick, since it takes less than a second.

use expect_test::expect;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

use super::{Case, TRAIN_DIGITS};

#[test]
fn weights_of_another_step() {
    let case = Case::new().given(
        "train corpus/steps/gpt-nano --budget 100% --steps 0 \
        --eval-batches 0 --threads 2 --save FOLDER/weights",
    );
    case.fails(
        &format!("{TRAIN_DIGITS} --resume FOLDER/weights --save FOLDER/again"),
        5,
        expect![[r#"
        error: FOLDER/weights: the weights are of `gpt-nano`, the step is `mlp-digits`
    "#]],
    );
}

#[test]
fn weights_of_another_shape() {
    let case = Case::new().given(&format!("{TRAIN_DIGITS} --save FOLDER/weights"));
    let saved = std::fs::read(case.path("weights")).unwrap();
    let metadata = SafeTensors::read_metadata(&saved).unwrap().1.metadata().clone();
    let tensors = SafeTensors::deserialize(&saved).unwrap();
    // As another program writes them, with `head.bias` of another shape or left out.
    let rewritten = |shape: Option<&[usize]>| {
        let views = tensors.iter().filter_map(|(name, tensor)| match name {
            "head.bias" => Some((
                name,
                TensorView::new(tensor.dtype(), shape?.to_vec(), tensor.data()).unwrap(),
            )),
            _ => Some((name, tensor)),
        });
        safetensors::serialize(views, metadata.clone()).unwrap()
    };
    let arguments = format!("{TRAIN_DIGITS} --resume FOLDER/weights --save FOLDER/again");
    let case = case.file("weights", rewritten(Some(&[2, 5])));
    case.fails(
        &arguments,
        5,
        expect![[r#"
        error: FOLDER/weights: `head.bias`: F32 of shape [2, 5], the step needs F32 of \
        [10]
    "#]],
    );
    let case = case.file("weights", rewritten(None));
    case.fails(
        &arguments,
        5,
        expect![[r#"
        error: FOLDER/weights: `head.bias`: missing
    "#]],
    );
    case.file("weights", rewritten(Some(&[10]))).given(&arguments);
}

#[test]
fn damaged_weights() {
    let case = Case::new().given(&format!("{TRAIN_DIGITS} --save FOLDER/weights"));
    let whole = std::fs::read(case.path("weights")).unwrap();
    let arguments = format!("{TRAIN_DIGITS} --resume FOLDER/weights --save FOLDER/again");
    let case = case.file("weights", &whole[..whole.len() - 4]);
    case.fails(
        &arguments,
        5,
        expect![[r#"
            error: FOLDER/weights: not a whole safetensors file: it should have 621144 \
            bytes, but has 621140
        "#]],
    );
    let case = case.file("weights", &whole[..100]);
    case.fails(
        &arguments,
        5,
        expect![[r#"
            error: FOLDER/weights: not a whole safetensors file: its header is longer than \
            the file, which has 100 bytes, or than any that is read
        "#]],
    );
    let case = case.file("weights", "");
    case.fails(
        &arguments,
        5,
        expect![[r#"
        error: FOLDER/weights: not a whole safetensors file: it has 0 bytes, less than \
        the size of a header
    "#]],
    );
    let case = case.given(&format!("{TRAIN_DIGITS} --dump FOLDER/weights"));
    case.fails(
        &arguments,
        5,
        expect![[r#"
        error: FOLDER/weights: these are not weights that this program saved (its \
        metadata has no `format`)
    "#]],
    );
}

/// Tensors and metadata as another program writes them, without checksums.
fn without_checksums(saved: &[u8], steps: &str) -> Vec<u8> {
    let mut metadata = SafeTensors::read_metadata(saved).unwrap().1.metadata().clone().unwrap();
    metadata.retain(|key, _| !key.starts_with("sha256"));
    metadata.insert("steps".to_string(), steps.to_string());
    let tensors = SafeTensors::deserialize(saved).unwrap();
    safetensors::serialize(tensors.iter(), Some(metadata)).unwrap()
}

#[test]
fn changed_bits_are_noticed_and_files_without_checksums_are_read() {
    let case = Case::new().given(&format!("{TRAIN_DIGITS} --save FOLDER/weights"));
    let saved = std::fs::read(case.path("weights")).unwrap();
    let arguments = format!("{TRAIN_DIGITS} --resume FOLDER/weights --save FOLDER/again");
    let header = 8 + usize::try_from(u64::from_le_bytes(saved[..8].try_into().unwrap())).unwrap();
    let changed = |at: usize| {
        let mut changed = saved.clone();
        changed[at] ^= 4;
        changed
    };
    // The tensors' names are sorted by type, then by name.
    let case = case.file("weights", changed(header));
    case.fails(
        &arguments,
        5,
        expect![[r#"
        error: FOLDER/weights: `head.bias` is damaged: its bytes are not those that \
        were saved; take another copy of the file
    "#]],
    );
    let case = case.file("weights", changed(saved.len() - 1));
    case.fails(
        &arguments,
        5,
        expect![[r#"
        error: FOLDER/weights: `layers.9.weight.exp_avg_sq` is damaged: its bytes are \
        not those that were saved; take another copy of the file
    "#]],
    );
    // One of the run's own numbers.
    let seed = saved.windows(9).position(|part| part == b"\"seed\":\"1").unwrap() + 8;
    let case = case.file("weights", changed(seed));
    case.fails(
        &arguments,
        5,
        expect![[r#"
        error: FOLDER/weights: its header is damaged: its bytes are not those that \
        were saved; take another copy of the file
    "#]],
    );
    case.file("weights", without_checksums(&saved, "1")).given(&arguments);
}

#[test]
fn a_run_that_no_numbers_are_left_for() {
    let case = Case::new().given(&format!("{TRAIN_DIGITS} --save FOLDER/weights"));
    let saved = std::fs::read(case.path("weights")).unwrap();
    let case = case.file("weights", without_checksums(&saved, "4294967295"));
    case.fails(
        &format!("{TRAIN_DIGITS} --resume FOLDER/weights"),
        2,
        expect![[r#"
        error: FOLDER/weights: 4294967295 steps were done, so at most 0 more can be \
        counted; --steps 1 is too many
    "#]],
    );
    let case = case.file("weights", without_checksums(&saved, "4294967294"));
    case.given(&format!("{TRAIN_DIGITS} --eval-batches 0 --resume FOLDER/weights"));
}

#[test]
#[cfg(unix)]
fn weights_are_read_from_files() {
    Case::new().fails(
        &format!("{TRAIN_DIGITS} --resume /dev/zero"),
        4,
        expect![[r#"
        error: /dev/zero: it is a device or a pipe; weights are read from a file
    "#]],
    );
}

#[test]
fn a_seed_that_contradicts_the_run_that_is_resumed() {
    let case = Case::new().given(&format!("{TRAIN_DIGITS} --save FOLDER/weights"));
    case.fails(
        &format!("{TRAIN_DIGITS} --resume FOLDER/weights --seed 2"),
        2,
        expect![[r#"
        error: --seed 2 contradicts FOLDER/weights, whose run has seed 1
    "#]],
    );
}
