//! Weights that do not suit a step. Invariant: a run goes on from its own weights or not at all.

use expect_test::expect;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

use crate::{Case, TRAIN_DIGITS};

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
    // As another program writes it, with `head.bias` of another shape or left out.
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
        error: FOLDER/weights: not a whole safetensors file: it should have 613488 \
        bytes, but has 613484
    "#]],
    );
    let case = case.file("weights", &whole[..100]);
    case.fails(
        &arguments,
        5,
        expect![[r#"
        error: FOLDER/weights: not a whole safetensors file: its header should have \
        6640 bytes, the file has 100
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

#[test]
fn a_seed_that_contradicts_the_run_that_is_resumed() {
    let case = Case::new().given(&format!("{TRAIN_DIGITS} --save FOLDER/weights"));
    case.fails(
        &format!("{TRAIN_DIGITS} --resume FOLDER/weights --seed 2"),
        1,
        expect![[r#"
        error: --seed 2 contradicts FOLDER/weights, whose run has seed 1
    "#]],
    );
}
