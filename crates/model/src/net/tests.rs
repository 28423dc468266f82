//! Batches that do not fit the buffers, and gradients of a different adapter.

use super::*;
use crate::batch::{Batch, Capacity, GroupSegment, StepRows};
use crate::{ModelConfig, StopCheck};
use kernels::{DType, Isa};
use std::sync::Arc;

fn config(more: &str) -> ModelConfig {
    let json = format!(
        r#"{{"hidden_size": 6, "intermediate_size": 70, "num_hidden_layers": 3, "num_attention_heads": 3,
        "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 50, {more}}}"#
    );
    ModelConfig::parse(&json).unwrap()
}

#[test]
fn a_batch_larger_than_its_buffers_is_refused() {
    let ctx = Context::cpu(Isa::best(), 1);
    let c = Arc::new(config(r#""model_type": "llama""#));
    let weights = Weights::random(ctx.memory(), &c, 1).unwrap();
    let rope = Rope::new(ctx.memory(), &c, 100);
    let completion: Vec<u32> = (0..70).map(|i| i % 50).collect();
    let batch = Batch::new(&[GroupSegment { prefix: &[1, 2], branches: &[&completion, &[5]] }], true);
    let room = batch.capacity();
    assert_eq!((room.tokens, room.blocks, room.score_rows), (71, 2, 71));
    let tensors = BatchTensors::new(ctx.memory(), &batch);
    let go = |room: Capacity| {
        let mut tape = Tape::forward_only(ctx.memory(), &c, room);
        assert_eq!(tape.capacity(), room);
        forward(&ctx, &weights, &rope, &tensors, &mut tape).map_err(|e| e.to_string())
    };
    assert_eq!(go(room), Ok(()));
    for (smaller, why) in [
        (Capacity { tokens: 70, ..room }, "71 rows, but the buffers have room for only 70"),
        (Capacity { blocks: 1, ..room }, "2 pages, but the buffers have room for only 1"),
        (Capacity { score_rows: 70, ..room }, "71 scored tokens, but the buffers have room for only 70"),
    ] {
        assert!(go(smaller).unwrap_err().contains(why), "{smaller:?}");
    }
    let mut tape = Tape::forward_only(ctx.memory(), &c, room);
    forward(&ctx, &weights, &rope, &tensors, &mut tape).unwrap();
    assert_eq!((tape.hidden().shape(), tape.logps().shape()), (&[71, 6][..], &[0][..]));
    head_forward(&ctx, &weights, &tensors, 1.0, &mut tape).unwrap();
    assert_eq!((tape.logps().shape(), tape.entropies().shape()), (&[71][..], &[71][..]));
    assert_eq!(tape.scored_hidden().shape(), [71, 6]);
    let mut grads = Grads::zeros(ctx.memory(), &c);
    let error = super::backward(&ctx, &weights, &rope, &tensors, &mut tape, &mut grads).unwrap_err().to_string();
    assert!(error.contains("backward: the tape is forward-only"), "{error}");
    let d = kernels::Tensor::zeros(ctx.memory(), &[71], DType::F32);
    let error = head_backward(&ctx, &weights, &tensors, d.view(), None, &mut tape, &mut grads).unwrap_err();
    assert!(error.to_string().contains("the tape is forward-only"), "{error}");
    // A stopped pass ends before anything is computed.
    let mut tape = Tape::forward_only(ctx.memory(), &c, room).stop_with(StopCheck::new(|| true));
    assert!(matches!(forward(&ctx, &weights, &rope, &tensors, &mut tape), Err(crate::Error::Stopped)));
    let mut tape = tape.stop_with(StopCheck::default());
    forward(&ctx, &weights, &rope, &tensors, &mut tape).unwrap();
    let mut tape = tape.stop_with(StopCheck::new(|| true));
    let stopped = head_forward(&ctx, &weights, &tensors, 1.0, &mut tape);
    assert!(matches!(stopped, Err(crate::Error::Stopped)));
    // The same check works in inference.
    let mut workspace = Workspace::new(ctx.memory(), &c, 2);
    let mut kv = KvCache::new(ctx.memory(), &c, 3);
    let mut rows = InferRows::new(ctx.memory(), 3, 1, 1);
    let ids = [1, 2, 3];
    let mut step = |n: usize| {
        let all = [0, 1, 2];
        let (write_rows, write_slots) = (&all[..n], &all[..n]);
        let of = StepRows { ids: &ids[..n], positions: &all[..n], tables_of_rows: &[0; 3][..n], ..StepRows::default() };
        rows.set(StepRows { write_rows, write_slots, ..of });
        let done = infer(&ctx, &weights, &rope, &rows, &mut kv, &mut workspace);
        (done.map_err(|e| e.to_string()), workspace.hidden().shape().to_vec())
    };
    assert_eq!(step(2), (Ok(()), vec![2, 6]));
    assert!(step(3).0.unwrap_err().contains("3 rows, but the buffers have room for only 2"));
}

#[test]
fn backward_refuses_the_gradients_of_another_adapter() {
    let ctx = Context::cpu(Isa::best(), 1);
    let c = Arc::new(config(r#""model_type": "llama""#));
    let weights = Weights::random(ctx.memory(), &c, 1).unwrap();
    let lora = crate::LoraConfig { r: 1, ..crate::LoraConfig::default() };
    let adapter = crate::Adapter::new(ctx.memory(), &weights, &lora, 1).unwrap();
    let rope = Rope::new(ctx.memory(), &c, 10);
    let batch = Batch::new(&[GroupSegment { prefix: &[1, 2], branches: &[&[5, 6]] }], true);
    let tensors = BatchTensors::new(ctx.memory(), &batch);
    for (adapted, trained) in [(false, false), (true, true), (true, false), (false, true)] {
        let model = ModelView::new(&weights, adapted.then_some(&adapter));
        let mut grads = Grads::trained(ctx.memory(), &c, trained.then_some(&lora));
        let mut tape = Tape::new(ctx.memory(), &c, batch.capacity(), false);
        forward(&ctx, model, &rope, &tensors, &mut tape).unwrap();
        assert_eq!(tape.d_hidden_mut().shape(), [3, 6]);
        tape.d_hidden_mut().fill(1.0);
        let done = super::backward(&ctx, model, &rope, &tensors, &mut tape, &mut grads);
        if adapted == trained {
            assert!(done.is_ok())
        } else {
            let error = done.unwrap_err().to_string();
            assert!(error.contains("backward: weights and gradients must belong to the same adapter"), "{error}");
        }
    }
}
