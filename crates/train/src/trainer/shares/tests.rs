//! Tests that the gradient of a step in shares is the sum, as a tree, of the gradients of its shares.

use super::super::{Trainer, TrainerConfig};
use super::Shares;
use crate::objective::Objective;
use crate::{OptimizerConfig, Sample};
use kernels::rng::Stream;
use kernels::{Context, DType, Isa};
use model::{Grads, LoraConfig, ModelConfig, Params, Prompt, Trainable, Weights};
use std::sync::Arc;

fn model_of(tied: bool, compute: DType) -> Arc<ModelConfig> {
    let json = format!(
        r#"{{"model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 2, "vocab_size": 40, "tie_word_embeddings": {tied}}}"#
    );
    Arc::new(ModelConfig { compute, ..ModelConfig::parse(&json).unwrap() })
}

#[test]
fn the_groups_of_a_step_are_cut_into_even_runs() {
    let ctx = Context::cpu(Isa::PORTABLE, 1);
    let indices = |count: usize, groups: usize| {
        let shares = Shares::new(count, || Params::zeros(ctx.memory(), &model_of(true, DType::F32))).unwrap();
        (0..groups).map(|group| shares.index(group, groups)).collect::<Vec<_>>()
    };
    assert_eq!(indices(1, 3), [0, 0, 0]);
    assert_eq!(indices(2, 5), [0, 0, 0, 1, 1]);
    assert_eq!(indices(4, 6), [0, 0, 1, 2, 2, 3]);
    assert_eq!(indices(8, 3), [0, 2, 5]);
}

/// The sum of four shares, each with this number as the gradient of every norm weight; `None` is a share without
/// groups.
fn sum_of(numbers: [Option<f32>; 4]) -> f32 {
    let (ctx, model) = (Context::cpu(Isa::best(), 1), model_of(true, DType::F32));
    let mut grads = Grads::zeros(ctx.memory(), &model);
    let mut shares = Shares::new(4, || Params::zeros(ctx.memory(), &model)).unwrap();
    // The sums of an earlier step must not be added.
    for step in 0..2 {
        shares.begin(&ctx, &mut grads);
        for (share, number) in numbers.into_iter().enumerate() {
            let Some(number) = number else { continue };
            shares.enter(&ctx, &mut grads, share).unwrap();
            grads.params.norm.view_mut().fill(if step == 0 { 7.0 } else { number });
        }
        shares.finish(&ctx, &mut grads).unwrap();
    }
    let sums = grads.params.norm.to_vec_f32();
    assert!(sums.iter().all(|sum| sum.to_bits() == sums[0].to_bits()));
    sums[0]
}

#[test]
fn shares_are_added_as_a_balanced_tree() {
    // (1e8 + 1) + (−1e8 + 1) = 1e8 − 1e8; a sequential sum would be 1.
    assert_eq!(sum_of([Some(1e8), Some(1.0), Some(-1e8), Some(1.0)]), 0.0);
    assert_eq!(sum_of([Some(1.0), Some(2.0), Some(4.0), Some(8.0)]), 15.0);
    assert_eq!(sum_of([None, Some(2.0), None, Some(8.0)]), 10.0);
    assert_eq!(sum_of([Some(3.0), None, None, None]), 3.0);
    // −0 + 0 is 0, so a share without groups is added as 0.
    assert_eq!(sum_of([Some(-0.0), Some(-0.0), Some(-0.0), Some(-0.0)]).to_bits(), (-0.0f32).to_bits());
    assert_eq!(sum_of([Some(-0.0), Some(-0.0), None, Some(-0.0)]).to_bits(), 0);
}

/// `n` groups of one to three rows, with prompts and completions of various lengths.
fn samples(n: usize) -> Vec<Sample> {
    let mut stream = Stream::new(5, 5);
    let mut draw = |n: usize| -> Vec<u32> { (0..n).map(|_| stream.below(40) as u32).collect() };
    let groups = (0..n).map(|group| (Prompt::new(draw(3 + 7 * group % 11)), 1 + group % 3));
    let groups: Vec<_> = groups.collect();
    let row = |(prompt, rows): (Arc<Prompt>, usize)| -> Vec<Sample> {
        (0..rows).map(|row| Sample::supervised(prompt.clone(), draw(2 + 5 * row))).collect()
    };
    groups.into_iter().flat_map(row).collect()
}

fn trainer(ctx: &Context, model: &Arc<ModelConfig>, gradient_shares: usize, budget: usize) -> Trainer {
    let config = TrainerConfig {
        objective: Objective::Supervised,
        optimizer: OptimizerConfig::default(),
        adapter: None::<LoraConfig>,
        temperature: 1.0,
        max_tokens_per_micro_batch: budget,
        prefix_sharing: true,
        skip_zero_gradients: true,
        gradient_checkpointing: false,
        gradient_shares,
    };
    Trainer::new(ctx.memory(), model, config).unwrap()
}

fn gradient(trainer: &Trainer) -> Vec<f32> {
    trainer.grads().params.tensors().into_iter().flat_map(|tensor| tensor.to_vec_f32()).collect()
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

/// Adds the gradients of neighbours, then of pairs of neighbours, and so on.
fn tree(shares: &[Vec<f32>]) -> Vec<f32> {
    let (left, right) = match shares {
        [one] => return one.clone(),
        _ => shares.split_at(shares.len() / 2),
    };
    tree(left).iter().zip(tree(right)).map(|(left, right)| left + right).collect()
}

#[test]
fn a_gradient_in_shares_is_the_tree_of_their_gradients() {
    for (dtype, tied, n) in [(DType::F32, true, 6), (DType::F32, false, 3), (DType::Bf16, true, 9)] {
        let (ctx, model) = (Context::cpu(Isa::best(), 2), model_of(tied, dtype));
        let weights = Weights::random(ctx.memory(), &model, 1).unwrap();
        let samples = samples(n);
        let groups: Vec<&[Sample]> = samples.chunk_by(|a, b| Arc::ptr_eq(&a.prompt, &b.prompt)).collect();
        assert_eq!(groups.len(), n);
        for count in [1, 2, 4, 8] {
            let case = format!("{dtype:?}, tied: {tied}, {n} groups in {count} shares");
            let mut alone = trainer(&ctx, &model, 1, 1000);
            let loss = Objective::Supervised;
            let normalizer = alone.normalizer(&ctx, weights.view(), samples[..].into(), &loss).unwrap();
            let mut share_gradient = |share: usize| {
                let own = (0..n).filter(|group| group * count / n == share);
                let own: Vec<Sample> = own.flat_map(|group| groups[group]).cloned().collect();
                if own.is_empty() {
                    return gradient(&alone).iter().map(|_| 0.0).collect();
                }
                alone.accumulate(&ctx, weights.view(), own[..].into(), &loss, &normalizer).unwrap();
                alone.reduce(&ctx).unwrap();
                let found = gradient(&alone);
                alone.state.discard();
                found
            };
            let expected = tree(&(0..count).map(&mut share_gradient).collect::<Vec<_>>());
            assert!(expected.iter().any(|x| *x != 0.0), "{case}");
            for budget in [1, 40, 1000] {
                let mut trainer = trainer(&ctx, &model, count, budget);
                for _ in 0..2 {
                    trainer.gradient(&ctx, weights.view(), &samples[..]).unwrap();
                    assert!(bits(&gradient(&trainer)) == bits(&expected), "{case}, micro-batches of {budget}");
                }
                // Accumulate the batch in two parts, whose groups are numbered consecutively.
                let half = groups[..n / 2].iter().map(|group| group.len()).sum();
                trainer.state.discard();
                for part in [&samples[..half], &samples[half..]] {
                    trainer.accumulate(&ctx, weights.view(), part.into(), &loss, &normalizer).unwrap();
                }
                trainer.reduce(&ctx).unwrap();
                assert!(bits(&gradient(&trainer)) == bits(&expected), "{case}, in parts");
            }
        }
    }
}

#[test]
fn the_number_of_gradient_shares_must_be_a_power_of_two() {
    let (ctx, model) = (Context::cpu(Isa::PORTABLE, 1), model_of(true, DType::F32));
    let config =
        |gradient_shares| TrainerConfig { gradient_shares, ..trainer(&ctx, &model, 1, 9).state.config.clone() };
    for count in [0, 3, 6] {
        let error = Trainer::new(ctx.memory(), &model, config(count)).err().unwrap().to_string();
        let why = "must be a power of two, since the shares are added in pairs";
        assert_eq!(error, format!("gradient_shares = {count}: {why}"));
    }
}
