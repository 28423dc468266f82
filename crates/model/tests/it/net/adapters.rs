//! Passes in which each sequence has its own adapter or none: every sequence gets the same bits as when computed alone.

use super::gradients::{batch, groups};
use super::lora::{adapted, lora, some};
use super::*;
use kernels::check::normal;
use model::batch::{InferRows, StepRows};
use model::net::Workspace;
use model::{Adapters, KvCache, TargetModules};

/// Two adapters of one model, with different target modules.
fn two(ctx: &Context) -> [AdaptedWeights; 2] {
    [some(), lora(TargetModules::Names(vec!["k_proj".into(), "gate_proj".into(), "down_proj".into()]))]
        .map(|config| adapted(ctx, "qwen2", &config))
}

#[test]
fn each_sequence_of_a_batch_uses_its_own_adapter() {
    for isa in Isa::present() {
        let ctx = Context::cpu(isa, 2);
        let [a, b] = two(&ctx);
        let (weights, names) = (a.base.current(), [Some(adapter(&a)), None, Some(adapter(&b))]);
        let groups = groups(weights.config.vocab_size as u32);
        // Groups of three branches.
        let per_branch: Vec<Option<&Adapter>> = names.iter().flat_map(|name| [*name; 3]).collect();
        let of = |batches: &[Batch], adapters: Adapters<'_>| {
            let mut tape = Tape::forward_only(ctx.memory(), &weights.config, batches[0].capacity());
            let (model, rope) = (ModelView { weights, adapters }, Rope::new(ctx.memory(), &weights.config, 256));
            net::score(&ctx, model, &rope, &batches[0], &mut tape, 1.0)
        };
        let one = |(group, name): (usize, &Option<&Adapter>)| {
            let alone = [batch(&groups[group..group + 1], true)];
            of(&alone, name.map_or(Adapters::Off, Adapters::One)).unwrap().logps
        };
        let expected = names.iter().enumerate().flat_map(one).collect::<Vec<f32>>();
        for sharing in [true, false] {
            let got = of(&[batch(&groups, sharing)], Adapters::PerSequence(&per_branch)).unwrap();
            assert!(got.logps == expected, "{isa:?}, sharing {sharing}");
        }
        let off = of(&[batch(&groups, true)], Adapters::Off).unwrap();
        assert!(off.logps != expected);

        let whole = [batch(&groups, true)];
        let mixed = [[Some(adapter(&a)); 4].as_slice(), &[None; 5]].concat();
        let error = of(&whole, Adapters::PerSequence(&mixed)).unwrap_err().to_string();
        assert!(error.contains("share a prefix"), "{error}");
        let error = of(&whole, Adapters::PerSequence(&per_branch[..8])).unwrap_err().to_string();
        assert!(error.contains("8 adapters"), "{error}");
    }
}

#[test]
fn sequences_without_an_adapter_add_nothing_to_its_gradient() {
    let ctx = context(2);
    let [a, b] = two(&ctx);
    let (weights, groups) = (a.base.current(), groups(a.config().vocab_size as u32));
    fn named(names: [Option<&Adapter>; 3]) -> Vec<Option<&Adapter>> {
        names.into_iter().flat_map(|name| [name; 3]).collect()
    }
    let names = named([Some(adapter(&a)), None, Some(adapter(&a))]);
    let model = ModelView { weights, adapters: Adapters::PerSequence(&names) };
    let (whole, own) = ([batch(&groups, true)], [groups[0].clone(), groups[2].clone()]);
    let weight: Vec<f32> = normal(3, whole[0].targets.len());
    let first: usize = groups[0].1.iter().map(Vec::len).sum();
    let second: usize = groups[1].1.iter().map(Vec::len).sum();
    let own_weight = [&weight[..first], &weight[first + second..]].concat();

    let memory = ctx.memory();
    let grads = |model: ModelView<'_>, batch: &Batch, weight: &[f32]| {
        let mut tape = Tape::new(memory, &weights.config, batch.capacity(), false);
        let (rope, tensors) = (Rope::new(memory, &weights.config, 256), BatchTensors::new(memory, batch));
        let mut grads = Grads::trained(memory, &weights.config, a.lora());
        net::forward(&ctx, model, &rope, &tensors, &mut tape).unwrap();
        net::head_forward(&ctx, model, &tensors, 1.0, &mut tape).unwrap();
        let d_logps = Tensor::from_f32(memory, &[weight.len()], weight);
        net::head_backward(&ctx, model, &tensors, d_logps.view(), None, &mut tape, &mut grads).unwrap();
        net::backward(&ctx, model, &rope, &tensors, &mut tape, &mut grads).map(|()| grads)
    };
    let got = grads(model, &whole[0], &weight).unwrap();
    let expected = grads(ModelView::from(&a), &batch(&own, true), &own_weight).unwrap();
    assert!(bits(&got) == bits(&expected));
    let several = named([Some(adapter(&a)), None, Some(adapter(&b))]);
    let model = ModelView { weights, adapters: Adapters::PerSequence(&several) };
    let error = grads(model, &whole[0], &weight).err().unwrap().to_string();
    assert!(error.contains("one adapter"), "{error}");
}

#[test]
fn each_sequence_of_an_inference_step_uses_its_own_adapter() {
    const LEN: usize = 5;
    let ctx = context(1);
    let [a, b] = two(&ctx);
    let (weights, memory) = (a.base.current(), ctx.memory());
    let step = |adapters: Adapters<'_>| {
        let mut kv = KvCache::new(memory, &weights.config, 3);
        let mut rows = InferRows::new(memory, 3 * LEN, 3, 1);
        (0..3).for_each(|s| rows.set_table(s, &[s as u32]));
        let all: Vec<u32> = (0..3 * LEN as u32).collect();
        let (tables, positions): (Vec<u32>, Vec<u32>) = all.iter().map(|i| (i / LEN as u32, i % LEN as u32)).unzip();
        let slots: Vec<u32> = tables.iter().zip(&positions).map(|(t, p)| t * 64 + p).collect();
        rows.set(StepRows {
            ids: &positions.iter().map(|p| p + 3).collect::<Vec<_>>(),
            positions: &positions,
            tables_of_rows: &tables,
            write_rows: &all,
            write_slots: &slots,
            sampled: &[],
            draws: &[],
        });
        let mut workspace = Workspace::new(memory, &weights.config, 3 * LEN);
        let rope = Rope::new(memory, &weights.config, LEN);
        let model = ModelView { weights, adapters };
        net::infer(&ctx, model, &rope, &rows, &mut kv, &mut workspace).unwrap();
        let hidden = workspace.hidden().to_vec_f32();
        hidden.chunks(LEN * weights.config.hidden_size).map(<[f32]>::to_vec).collect::<Vec<_>>()
    };
    let (with_a, with_b, off) = (Adapters::One(adapter(&a)), Adapters::One(adapter(&b)), Adapters::Off);
    let got = step(Adapters::PerSequence(&[None, Some(adapter(&b)), Some(adapter(&a))]));
    assert!(got == [&step(off)[0], &step(with_b)[1], &step(with_a)[2]].map(Clone::clone));
    // All sequences have the same tokens, so only the adapters can make their results differ.
    assert!(got[0] != got[1] && got[1] != got[2]);
}
