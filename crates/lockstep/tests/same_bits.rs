//! Packing, the size of micro-batches, threads and activation checkpointing change memory and time, and no bit of a run.

mod support;

use support::{lockstep, model};

#[test]
fn switches_of_memory_and_time_change_no_bit() {
    let dir = tempfile::tempdir().unwrap();
    model(&dir.path().join("model"));
    std::fs::write(dir.path().join("d.jsonl"), "{\"prompt\": \"ab\"}\n{\"prompt\": \"cde\"}\n{\"prompt\": \"f\"}\n")
        .unwrap();
    let weights = |name: &str, more: &[&str]| {
        let base = ["train", "--model", "model", "--dataset", "d.jsonl", "--reward", "unique_chars", "--out", name];
        let keys = ["num_generations=4", "max_completion_length=6", "max_steps=2", "learning_rate=0.01", "beta=0.1"];
        let mut arguments = base.to_vec();
        keys.iter().chain(more).for_each(|pair| arguments.extend(["--set", pair]));
        let said = lockstep(dir.path(), &arguments);
        assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
        std::fs::read(dir.path().join(name).join("checkpoints/step-000002/model.safetensors")).unwrap()
    };
    let packed = weights("packed", &[]);
    assert!(packed == weights("unpacked", &["packing=false"]), "packing changed the weights");
    assert!(packed == weights("small", &["max_tokens_per_micro_batch=20", "threads=1"]), "micro-batches changed them");
    assert!(packed == weights("checkpointed", &["gradient_checkpointing=true"]), "checkpointing changed them");
    let starved = ["max_num_seqs=3", "kv_cache_blocks=2"];
    assert!(packed == weights("starved", &starved), "a small engine changed them");
    assert!(packed != weights("other", &["seed=1"]), "nothing was trained");
}
