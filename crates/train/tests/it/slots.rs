//! Tests that updates into another slot, which are made while the current version is in use, give the same bits as
//! updates in place, and copy nothing.

use crate::common::model::{context_of, policy};
use kernels::{Context, DType, Isa};
use model::io::{TensorSink, TensorSource};
use model::{AdaptedWeights, Adapter, LoraConfig, ModelConfig, Prompt, TargetModules, Weights};
use std::sync::Arc;
use train::{MomentsDType, Objective, OptimizerConfig, OptimizerKind, Sample, Trainer, TrainerConfig};

/// A training run: compute dtype, optimizer, dtype of the moments, and whether an adapter is trained.
struct Case {
    compute: DType,
    optim: &'static str,
    moments: MomentsDType,
    adapter: bool,
}

fn weights(ctx: &Context, case: &Case) -> AdaptedWeights {
    let from = policy(ctx.memory());
    let config = ModelConfig { compute: case.compute, ..(*from.config).clone() };
    let mut weights = Weights::zeros(ctx.memory(), &Arc::new(config));
    for spec in TensorSource::tensors(&from) {
        weights.put(&spec.name, &from.get(&spec.name).expect("tensor")).expect("tensor");
    }
    let adapter = case.adapter.then(|| Adapter::new(ctx.memory(), &weights, &lora(), 3).expect("adapter"));
    AdaptedWeights::new(ctx.memory(), weights, adapter)
}

fn lora() -> LoraConfig {
    LoraConfig { r: 3, target_modules: TargetModules::AllLinear, ..LoraConfig::default() }
}

/// The bits of weights, masters and optimizer state after four updates, and the number of copied bytes.
fn updated(isa: Isa, threads: usize, case: &Case, hold: bool) -> (Vec<Vec<u32>>, u64, u64) {
    let ctx = context_of(isa, threads);
    let mut weights = weights(&ctx, case);
    let optimizer = OptimizerConfig {
        optim: OptimizerKind::parse(case.optim, "").expect("an optimizer"),
        moments: case.moments,
        weight_decay: 0.05,
        ..OptimizerConfig::default()
    };
    let config = TrainerConfig {
        objective: Objective::Supervised,
        optimizer,
        adapter: case.adapter.then(lora),
        temperature: 1.0,
        max_tokens_per_micro_batch: 100,
        skip_zero_gradients: false,
        prefix_sharing: true,
        gradient_checkpointing: false,
        gradient_shares: 1,
    };
    let samples: Vec<_> =
        [(5, 7), (9, 11)].map(|(a, b)| Sample::supervised(Prompt::new([a, 6, 7]), vec![b, 12, a])).to_vec();
    let mut trainer = Trainer::new(ctx.memory(), weights.config(), config).expect("trainer");
    let mut held = Vec::new();
    let bits_of = |source: &model::Params| source.tensors().iter().map(|t| bits(&t.to_vec_f32())).collect::<Vec<_>>();
    for _ in 0..4 {
        if hold {
            let version = weights.hold();
            let trained = version.adapter.as_ref().map_or(&version.base.params, |adapter| &adapter.params);
            held.push((bits_of(trained), version));
            if held.len() > 2 {
                held.remove(0); // its slot is reused
            }
        }
        trainer.update(&ctx, &mut weights, &samples, 1e-2).expect("update");
        for (before, version) in &held {
            let trained = version.adapter.as_ref().map_or(&version.base.params, |adapter| &adapter.params);
            assert!(&bits_of(trained) == before, "held versions must not change");
        }
    }
    let mut all = bits_of(&weights.base.current().params);
    all.extend(weights.adapter.iter().flat_map(|adapter| bits_of(&adapter.current().params)));
    let state = trainer.optimizer().state();
    let trees = state.masters().into_iter().chain(state.trees().map(|tree| tree.tensors));
    for tree in trees {
        all.extend(tree.tensors().iter().map(|spec| bits(&tree.get(&spec.name).expect("tensor"))));
    }
    (all, weights.version().0, weights.bytes_copied())
}

fn bits(data: &[f32]) -> Vec<u32> {
    data.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn updates_into_another_slot_keep_the_bits_and_copy_nothing() {
    use DType::{Bf16, F32};
    use MomentsDType::{Bf16 as HALF, F32 as FULL};
    for (compute, optim, moments, adapter) in [
        (F32, "adamw", FULL, false),
        (F32, "adamw", HALF, false),
        (Bf16, "adamw", FULL, false),
        (Bf16, "adamw", HALF, false),
        (F32, "adamw", FULL, true),
        (Bf16, "adamw", HALF, true),
        (F32, "muon", FULL, false),
        (Bf16, "muon", FULL, false),
        (F32, "muon", FULL, true),
    ] {
        let case = Case { compute, optim, moments, adapter };
        for (isa, threads) in [(Isa::best(), 2), (Isa::PORTABLE, 1)] {
            let (in_place, version, _) = updated(isa, threads, &case, false);
            let (apart, apart_version, copied) = updated(isa, threads, &case, true);
            let title = format!("{compute:?} {optim} {moments:?}, adapter {adapter}, {isa:?}");
            assert!(in_place == apart, "{title}: other bits");
            assert_eq!((version, copied), (apart_version, 0), "{title}");
        }
    }
}
