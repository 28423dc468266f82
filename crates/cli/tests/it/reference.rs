//! A reference model that follows the policy (`sync_ref_model`): when and how far it moves, and refused settings.

use crate::support::runs::{arguments, directory, files, good};
use crate::support::{refused, tensors};

const SET: [&str; 4] = ["beta=0.5", "sync_ref_model=true", "ref_model_sync_steps=6", "ref_model_mixup_alpha=1"];

/// The reference model in the checkpoint of `step`.
fn reference(root: &std::path::Path, run: &str, step: u64) -> Vec<u8> {
    files(&root.join(run))[&format!("checkpoints/step-{step:06}/reference.safetensors")].clone()
}

#[test]
fn the_reference_is_updated_at_every_sync_step() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("train", "all", &SET));
    let policy = |step| tensors(&files(&root.join("all"))[&format!("checkpoints/step-{step:06}/model.safetensors")]);
    let start = tensors(&std::fs::read(root.join("model/model.safetensors")).unwrap());
    // With α = 1, the reference is the policy of step 6 from step 6 to step 12, and the initial model before.
    assert_eq!(tensors(&reference(root, "all", 4)), start);
    for step in [6, 8, 10] {
        assert_eq!(tensors(&reference(root, "all", step)), policy(6));
    }
    assert_eq!(tensors(&reference(root, "all", 12)), policy(12));

    let part = [&SET[..3], &["ref_model_mixup_alpha=0.25"]].concat();
    good(root, &arguments("train", "part", &part));
    let policy = tensors(&files(&root.join("part"))["checkpoints/step-000006/model.safetensors"]);
    for (((_, mixed), (_, policy)), (_, start)) in tensors(&reference(root, "part", 6)).iter().zip(&policy).zip(&start)
    {
        for ((&mixed, &policy), &start) in mixed.iter().zip(policy).zip(start) {
            assert_eq!(mixed, 0.25f32.mul_add(policy, 0.75 * start));
        }
    }
    good(root, &arguments("train", "frozen", &["beta=0.5"]));
    let model = |run: &str| files(&root.join(run))["model/model.safetensors"].clone();
    assert_ne!(model("frozen"), model("all"), "the moving reference must change the result");
    assert!(!files(&root.join("frozen")).contains_key("checkpoints/step-000012/reference.safetensors"));
}

#[test]
fn syncing_without_a_reference_is_refused() {
    let dir = directory();
    refused(dir.path(), &arguments("train", "run", &["sync_ref_model=true"]), &["`sync_ref_model`", "beta"]);
    let far = ["beta=0.1", "sync_ref_model=true", "ref_model_mixup_alpha=1.5"];
    refused(dir.path(), &arguments("train", "run", &far), &["`ref_model_mixup_alpha`", "at most 1"]);
}
