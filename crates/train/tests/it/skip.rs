//! Tests of groups that an update skips because their gradient is known to be 0: weights, moments, gradient norm and
//! loss keep their bits, metrics of other groups keep their values, and skipped tokens do not count as compared.

use crate::common::model::{bits, context, context_of, policy};
use kernels::check::normal;
use kernels::{Context, DType, Isa};
use model::columns::{ENTROPIES, OLD_LOGPS, REF_LOGPS, SAMPLER_LOGPS};
use model::io::{TensorSink, TensorSource};
use model::weights::{Named, NamedMut};
use model::{
    AdaptedWeights, Adapter, FinishReason, GroupId, LoraConfig, ModelConfig, Prompt, Scorer, TargetModules, Updates,
    Weights,
};
use std::sync::Arc;
use train::loss::entropy::EntropyConfig;
use train::loss::rloo::RlooConfig;
use train::loss::sampling::Correction;
use train::{
    Advantage, ImportanceSamplingLevel, LossConfig, LossType, MomentsDType, Objective, OptimizerConfig, OptimizerKind,
    Sample, StepParams, Trainer, TrainerConfig, UpdateMetrics,
};

const TEMPERATURE: f64 = 0.7;
/// (group, prompt length, completion lengths). One completion has no tokens. Group 0 is the one whose forward pass is
/// checked although it is skipped.
const GROUPS: [(u64, usize, [usize; 3]); 4] =
    [(1, 5, [3, 1, 0]), (0, 69, [70, 2, 9]), (2, 2, [4, 66, 5]), (3, 33, [12, 40, 7])];

fn config(objective: Objective) -> TrainerConfig {
    TrainerConfig {
        objective,
        optimizer: OptimizerConfig { weight_decay: 0.01, seed: 5, ..OptimizerConfig::default() },
        adapter: None,
        temperature: TEMPERATURE,
        max_tokens_per_micro_batch: 150,
        prefix_sharing: true,
        skip_zero_gradients: true,
        gradient_checkpointing: false,
        gradient_shares: 1,
    }
}

fn dapo() -> LossConfig {
    LossConfig { max_completion_length: 70, ..LossConfig::default() }
}

fn lora(dropout: f64) -> LoraConfig {
    LoraConfig { r: 3, dropout, target_modules: TargetModules::AllLinear, ..LoraConfig::default() }
}

/// The policy, computing in `dtype`, optionally with an adapter that changes its output.
fn weights(ctx: &Context, dtype: DType, adapter: Option<&LoraConfig>) -> AdaptedWeights {
    let from = policy(ctx.memory());
    let config = ModelConfig { compute: dtype, ..(*from.config).clone() };
    let mut weights = Weights::zeros(ctx.memory(), &Arc::new(config));
    for spec in TensorSource::tensors(&from) {
        weights.put(&spec.name, &from.get(&spec.name).expect("tensor")).expect("tensor");
    }
    weights.publish();
    let adapter = adapter.map(|lora| {
        let mut adapter = Adapter::new(ctx.memory(), &weights, lora, 1).expect("adapter");
        let mut named = NamedMut { params: &mut adapter.params };
        for (i, spec) in named.tensors().into_iter().filter(|s| s.name.contains("lora_")).enumerate() {
            let data = normal::<f32>(i as u64, spec.shape.iter().product());
            named.put(&spec.name, &data.iter().map(|x| 0.2 * x).collect::<Vec<_>>()).expect("tensor");
        }
        adapter
    });
    AdaptedWeights::new(ctx.memory(), weights, adapter)
}

/// Samples with the sampler's log-probabilities. The groups in `without` have no advantage.
fn samples(ctx: &Context, weights: &AdaptedWeights, without: &[u64]) -> Vec<Sample> {
    let mut stream = kernels::rng::Stream::new(7, 7);
    let mut draw = |n: usize| -> Vec<u32> { (0..n).map(|_| 2 + stream.below(48) as u32).collect() };
    let mut out = Vec::new();
    for (group, prompt, completions) in GROUPS {
        let prompt = Prompt::new(draw(prompt));
        for n in completions {
            let loss_mask = (0..n).map(|t| t % 5 != 3).collect();
            // Zero advantages of either sign count as no advantage.
            let a = if without.contains(&group) { [0.0, -0.0][n % 2] } else { 0.3 * (n as f32 % 7.0) - 1.0 };
            let (versions, advantage) = (vec![weights.version(); n], Advantage::Sequence(a));
            let sample = Sample::supervised(prompt.clone(), draw(n));
            let finish_reason = FinishReason::from_truncated(n > 60);
            out.push(Sample { group: GroupId(group), loss_mask, versions, advantage, finish_reason, ..sample });
        }
    }
    let pairs: Vec<_> = out.iter().map(Sample::sequence).collect();
    let scores = Scorer::new(ctx.memory(), 1, true).score(ctx, weights, &pairs, TEMPERATURE).expect("scores");
    for (sample, scores) in out.iter_mut().zip(scores) {
        sample.columns.set(REF_LOGPS, scores.logps.iter().map(|x| x + 0.1).collect());
        sample.columns.set(SAMPLER_LOGPS, scores.logps);
        sample.columns.set(ENTROPIES, scores.entropies);
    }
    out
}

/// The results, which must not depend on skipping.
type Kept = (Vec<UpdateMetrics>, Vec<u32>, Vec<Vec<u32>>);

/// Takes three steps on the same samples. Returns the metrics of each, the weights, and the optimizer's state.
fn steps(ctx: &Context, weights: &mut AdaptedWeights, samples: &[Sample], config: TrainerConfig) -> Kept {
    let mut trainer = Trainer::new(ctx.memory(), weights.config(), config).expect("trainer");
    let metrics = (0..3).map(|_| trainer.update(ctx, weights, samples, 1e-3).expect("update")).collect();
    let state = trainer.optimizer().state().trees().map(|tree| bits(&tree.tensors)).collect();
    let trained = match &weights.adapter {
        Some(adapter) => bits(&Named { params: &adapter.current().params }),
        None => bits(weights.base.current()),
    };
    (metrics, trained, state)
}

/// The metrics without counts of computed work and means over that work.
fn lasting(metrics: &UpdateMetrics) -> UpdateMetrics {
    UpdateMetrics {
        entropy: None,
        computed_tokens: 0,
        skipped_groups: None,
        skipped_tokens: None,
        micro_batches: 0,
        forward_time_s: 0.0,
        backward_time_s: 0.0,
        optimizer_time_s: 0.0,
        ..metrics.clone()
    }
}

/// Checks that steps with and without skipping give the same bits. Returns the metrics of the steps with skipping.
fn same(
    title: &str,
    isa: Isa,
    dtype: DType,
    config: &TrainerConfig,
    change: &dyn Fn(&mut Vec<Sample>),
) -> Vec<UpdateMetrics> {
    let run = |skip_zero_gradients: bool| {
        let ctx = context_of(isa, 2);
        let mut weights = weights(&ctx, dtype, config.adapter.as_ref());
        let mut samples = samples(&ctx, &weights, &[]);
        change(&mut samples);
        steps(&ctx, &mut weights, &samples, TrainerConfig { skip_zero_gradients, ..config.clone() })
    };
    let ((skipped, weights, state), (all, expected, expected_state)) = (run(true), run(false));
    assert!(all.iter().all(|m| m.skipped_groups.is_none() && m.loss.is_finite()), "{title}");
    for (step, (a, b)) in skipped.iter().zip(&all).enumerate() {
        let mut expected = lasting(b);
        if config.objective == Objective::Policy(LossConfig { loss_type: LossType::Vespo, ..dapo() }) && step > 0 {
            // Off-policy, the ratios of skipped tokens are unknown.
            expected.means = a.means.clone();
        }
        assert_eq!(lasting(a), expected, "{title}, step {step}");
        assert_eq!(a.grad_norm.to_bits(), b.grad_norm.to_bits(), "{title}, step {step}");
        assert_eq!(a.loss.to_bits(), b.loss.to_bits(), "{title}, step {step}");
        let (rows, all_rows) = (a.computed_tokens + a.skipped_tokens.unwrap_or(0), b.computed_tokens);
        assert_eq!(rows, all_rows, "{title}, step {step}");
    }
    assert_eq!(skipped[0].entropy, all[0].entropy, "{title}: recorded entropies must equal the trainer's");
    assert!(weights == expected, "{title}: other weights");
    assert!(state == expected_state, "{title}: other moments");
    skipped
}

/// Sets the advantages of these groups to 0.
fn without(groups: &'static [u64]) -> impl Fn(&mut Vec<Sample>) {
    move |samples| {
        for (i, sample) in samples.iter_mut().enumerate().filter(|(_, s)| groups.contains(&s.group.0)) {
            sample.advantage = Advantage::Sequence([0.0, -0.0][i % 2]);
        }
    }
}

/// All policy losses that can skip groups.
fn objectives() -> Vec<Objective> {
    let mut all: Vec<LossConfig> =
        LossType::NAMES.into_iter().map(|(_, loss_type)| LossConfig { loss_type, ..dapo() }).collect();
    let sequence = ImportanceSamplingLevel::Sequence;
    let correction = Correction { enabled: true, ..Correction::default() };
    all.extend([
        LossConfig { importance_sampling_level: sequence, ..dapo() },
        LossConfig { loss_type: LossType::Luspo, importance_sampling_level: sequence, ..dapo() },
        LossConfig { off_policy_mask_threshold: Some(1e-4), delta: Some(1.5), ..dapo() },
        LossConfig { importance_sampling: correction, ..dapo() },
        LossConfig { mask_truncated_completions: true, ..dapo() },
    ]);
    let all = all.into_iter().map(Objective::Policy);
    all.chain([Objective::Rloo(RlooConfig { mask_truncated_completions: true, ..RlooConfig::default() })]).collect()
}

#[test]
fn skipping_changes_no_bit_of_any_loss() {
    for objective in objectives() {
        let metrics = same(&format!("{objective:?}"), Isa::best(), DType::F32, &config(objective), &without(&[0, 3]));
        assert!(metrics.iter().all(|m| m.skipped_groups == Some(2)));
        // Group 0 is compared as long as its log-probabilities were recorded with the current weights.
        let own = |n: u64| (0..n).filter(|t| t % 5 != 3).count() as u64;
        assert_eq!(metrics[0].logp_compared_tokens, own(70) + own(2) + own(9));
        assert_eq!((metrics[0].logp_mismatch_tokens, metrics[1].logp_compared_tokens), (0, 0));
    }
}

#[test]
fn skipping_any_set_of_groups_changes_no_bit() {
    let objective = Objective::Policy(dapo());
    for (groups, count) in [(&[][..], 0), (&[1][..], 1), (&[3], 1), (&[0, 2], 2), (&[1, 0, 2], 3), (&[1, 0, 2, 3], 4)] {
        let metrics = same(&format!("{groups:?}"), Isa::best(), DType::F32, &config(objective.clone()), &|samples| {
            without(groups)(samples)
        });
        assert!(metrics.iter().all(|m| m.skipped_groups == Some(count)), "{groups:?}");
        // If the samples come from other weights, the entropies of skipped groups are unknown.
        assert_eq!(metrics[1].entropy.is_none(), count == 4, "{groups:?}");
    }
}

/// A step decays weights and moments even if no group was computed.
#[test]
fn a_step_is_taken_even_if_all_groups_are_skipped() {
    let ctx = context(1);
    let mut weights = weights(&ctx, DType::F32, None);
    let (learned, nothing) = (samples(&ctx, &weights, &[]), samples(&ctx, &weights, &[0, 1, 2, 3]));
    let mut trainer = Trainer::new(ctx.memory(), weights.config(), config(Objective::Policy(dapo()))).expect("trainer");
    trainer.update(&ctx, &mut weights, &learned, 1e-3).expect("update");
    let before = (bits(weights.base.current()), weights.version());
    let metrics = trainer.update(&ctx, &mut weights, &nothing, 1e-3).expect("update");
    assert_eq!((metrics.loss, metrics.grad_norm, metrics.computed_tokens, metrics.micro_batches), (0.0, 0.0, 0, 0));
    assert!(!metrics.skipped && weights.version() == before.1.next() && bits(weights.base.current()) != before.0);
}

/// If the first update computes nothing, no tape exists yet.
#[test]
fn the_first_step_may_skip_all_groups() {
    let change = |samples: &mut Vec<Sample>| {
        for s in samples.iter_mut() {
            s.group = s.group.after(1);
        }
        without(&[1, 2, 3, 4])(samples);
    };
    let metrics = same("nothing", Isa::best(), DType::F32, &config(Objective::Policy(dapo())), &change);
    assert_eq!((metrics[0].logp_compared_tokens, metrics[0].skipped_groups), (0, Some(4)));
}

#[test]
fn skipping_changes_no_bit_for_any_dtype_shape_or_optimizer() {
    let plain = config(Objective::Policy(dapo()));
    for isa in Isa::present() {
        same(&format!("{isa:?}"), isa, DType::F32, &plain, &without(&[1, 2]));
    }
    for isa in [Isa::best(), Isa::AMX_EMULATED] {
        same(&format!("bf16 {isa:?}"), isa, DType::Bf16, &plain, &without(&[1, 2]));
        same(&format!("bf16 {isa:?}, nothing"), isa, DType::Bf16, &plain, &without(&[0, 1, 2, 3]));
    }
    for (budget, prefix_sharing, gradient_checkpointing) in
        [(1, true, false), (10_000, false, false), (100, true, true), (10_000, true, false)]
    {
        let shape = TrainerConfig {
            max_tokens_per_micro_batch: budget,
            prefix_sharing,
            gradient_checkpointing,
            ..plain.clone()
        };
        same(&format!("{budget} {prefix_sharing}"), Isa::best(), DType::F32, &shape, &without(&[0, 2]));
    }
    for (optim, moments, adam_beta1) in
        [("adamw", MomentsDType::Bf16, 0.9), ("muon", MomentsDType::F32, 0.9), ("adamw", MomentsDType::F32, 0.0)]
    {
        let optim = OptimizerKind::parse(optim, "").expect("an optimizer");
        let optimizer = OptimizerConfig { optim, moments, adam_beta1, ..plain.optimizer };
        let config = TrainerConfig { optimizer, ..plain.clone() };
        same(&format!("{optim:?} {moments:?}"), Isa::best(), DType::F32, &config, &without(&[1, 3]));
    }
}

/// The noise of a sequence depends on its index in the full batch.
#[test]
fn skipping_changes_no_bit_with_adapters_and_dropout() {
    for dropout in [0.0, 0.2] {
        let config = TrainerConfig { adapter: Some(lora(dropout)), ..config(Objective::Policy(dapo())) };
        for (dtype, groups) in [(DType::F32, &[1][..]), (DType::F32, &[0, 1]), (DType::Bf16, &[1, 2])] {
            same(&format!("{dropout} {dtype:?} {groups:?}"), Isa::best(), dtype, &config, &|samples| {
                for sample in samples.iter_mut().filter(|s| groups.contains(&s.group.0)) {
                    sample.advantage = Advantage::Sequence(0.0);
                }
            });
        }
    }
}

/// A group has no gradient if every token is masked or has no advantage.
#[test]
fn groups_are_skipped_if_every_token_is_masked_or_has_no_advantage() {
    let change = |samples: &mut Vec<Sample>| {
        for sample in samples.iter_mut() {
            let n = sample.completion.len();
            match sample.group.0 {
                1 => sample.loss_mask = vec![false; n],
                2 => sample.advantage = Advantage::Tokens(vec![0.0; n]),
                // Masked tokens may have any advantage, even NaN.
                3 => {
                    let token = |t: usize| if sample.loss_mask[t] { 0.0 } else { f32::NAN };
                    sample.advantage = Advantage::Tokens((0..n).map(token).collect());
                }
                // A single token with an advantage is enough for the group to be computed.
                _ if n == 9 => {
                    sample.advantage = Advantage::Tokens((0..n).map(|t| if t == 4 { 1.0 } else { 0.0 }).collect());
                }
                _ => sample.advantage = Advantage::Sequence(0.0),
            }
        }
    };
    let metrics = same("masks", Isa::best(), DType::F32, &config(Objective::Policy(dapo())), &change);
    assert_eq!(metrics[0].skipped_groups, Some(3));
    // Truncated completions are not in the loss. Here this applies to the only completion with an advantage in the
    // third group.
    let masked = LossConfig { mask_truncated_completions: true, ..dapo() };
    let change = |samples: &mut Vec<Sample>| {
        let others = samples.iter_mut().filter(|s| s.group.0 == 2 && !s.truncated());
        others.for_each(|s| s.advantage = Advantage::Sequence(0.0));
    };
    let metrics = same("cut", Isa::best(), DType::F32, &config(Objective::Policy(masked)), &change);
    assert_eq!(metrics[0].skipped_groups, Some(1));
}

/// A NaN advantage does not count as 0, so that it makes the loss non-finite.
#[test]
fn a_group_with_a_nan_advantage_is_not_skipped() {
    let ctx = context(1);
    let mut weights = weights(&ctx, DType::F32, None);
    let mut samples = samples(&ctx, &weights, &[1]);
    samples[1].advantage = Advantage::Sequence(f32::NAN);
    let mut trainer = Trainer::new(ctx.memory(), weights.config(), config(Objective::Policy(dapo()))).expect("trainer");
    let metrics = trainer.update(&ctx, &mut weights, &samples, 1e-3).expect("update");
    assert!(metrics.skipped && metrics.skipped_groups == Some(0));
}

/// No group is skipped if a group without an advantage can still have a gradient, or if its entropies are needed.
#[test]
fn losses_that_cannot_skip_compute_all_groups() {
    let bonus = EntropyConfig { entropy_coef: 0.01, ..EntropyConfig::default() };
    let adaptive = EntropyConfig { use_adaptive_entropy: true, ..EntropyConfig::default() };
    let refused = [
        Objective::Policy(LossConfig { beta: 0.04, ..dapo() }),
        Objective::Policy(LossConfig { entropy: bonus, ..dapo() }),
        Objective::Policy(LossConfig { entropy: adaptive, ..dapo() }),
        Objective::Policy(LossConfig { top_entropy_quantile: 0.5, ..dapo() }),
        Objective::Ppo(train::loss::ppo::PpoConfig::default()),
        Objective::Supervised,
        Objective::Dft,
    ];
    for objective in refused {
        assert!(!objective.can_skip(), "{objective:?}");
        let title = format!("{objective:?}");
        let metrics = same(&title, Isa::best(), DType::F32, &config(objective), &without(&[0, 1, 2, 3]));
        assert!(metrics.iter().all(|m| m.skipped_groups.is_none() && m.computed_tokens > 100), "{title}");
    }
}

/// A recorded log-probability that differs from the trainer's is detected if its group is the one skipped group in 64
/// that is checked. Other skipped groups are not compared, and do not count as compared.
#[test]
fn a_planted_mismatch_is_detected_in_the_checked_group() {
    let ctx = context(1);
    let of = |spoiled: usize, number: u64| {
        let mut weights = weights(&ctx, DType::F32, None);
        let mut samples = samples(&ctx, &weights, &[0]);
        samples.iter_mut().filter(|s| s.group.0 == 0).for_each(|s| s.group = GroupId(number));
        let mut logps = samples[spoiled].columns.sampler_logps().expect("recorded").to_vec();
        logps[1] = f32::from_bits(logps[1].to_bits() + 1);
        samples[spoiled].columns.set(SAMPLER_LOGPS, logps);
        let mut trainer =
            Trainer::new(ctx.memory(), weights.config(), config(Objective::Policy(dapo()))).expect("trainer");
        let metrics = trainer.update(&ctx, &mut weights, &samples, 0.0).expect("update");
        assert_eq!(metrics.skipped_groups, Some(1));
        (metrics.logp_mismatch_tokens, metrics.logp_compared_tokens, metrics.max_logp_difference > 0.0)
    };
    let (mismatches, compared, differs) = of(3, 0);
    assert_eq!((mismatches, differs), (1, true));
    // Group 5 is not compared.
    let (mismatches, fewer, differs) = of(3, 5);
    assert_eq!((mismatches, differs), (0, false));
    assert_eq!(compared - fewer, 56 + 2 + 7);
    assert_eq!(of(7, 5).0, 1, "computed groups are compared");
}

/// If the loss has an importance-sampling correction, the sampler's distance from the old policy is known without a
/// forward pass.
#[test]
fn the_samplers_distance_includes_skipped_tokens() {
    let change = |samples: &mut Vec<Sample>| {
        for sample in samples.iter_mut() {
            let recorded = sample.columns.sampler_logps().expect("recorded").to_vec();
            sample.columns.set(OLD_LOGPS, recorded.clone());
            let moved = recorded.iter().enumerate().map(|(t, x)| x + 0.01 * (t % 3) as f32).collect();
            sample.columns.set(SAMPLER_LOGPS, moved);
            sample.versions.iter_mut().for_each(|v| *v = Updates(0));
            sample.columns.remove(ENTROPIES);
        }
        without(&[1, 3])(samples);
    };
    let importance_sampling = Correction { enabled: true, ..Correction::default() };
    let how = config(Objective::Policy(LossConfig { importance_sampling, ..dapo() }));
    let run = |skip_zero_gradients: bool| {
        let ctx = context(1);
        let mut weights = weights(&ctx, DType::F32, None);
        let mut samples = samples(&ctx, &weights, &[]);
        change(&mut samples);
        let how = TrainerConfig { skip_zero_gradients, ..how.clone() };
        steps(&ctx, &mut weights, &samples, how)
    };
    let ((skipped, weights, state), (all, expected, expected_state)) = (run(true), run(false));
    assert!(weights == expected && state == expected_state);
    assert!(all[0].sampling.expect("corrected").sampling_logp_difference[1] > 0.01);
    assert_eq!(skipped.iter().map(lasting).collect::<Vec<_>>(), all.iter().map(lasting).collect::<Vec<_>>());
    // The mean entropy is taken over the computed tokens.
    assert!(skipped[0].entropy.is_some() && skipped[0].entropy != all[0].entropy);
}

/// The optimizer batch is accumulated in several parts, one of which has nothing to compute.
#[test]
fn accumulated_parts_with_skipped_groups_equal_the_whole_batch() {
    let ctx = context(1);
    let loss = Objective::Policy(dapo());
    let how = TrainerConfig { adapter: Some(lora(0.2)), ..config(loss.clone()) };
    let new = || {
        let weights = weights(&ctx, DType::F32, how.adapter.as_ref());
        let trainer = Trainer::new(ctx.memory(), weights.config(), how.clone()).expect("trainer");
        (weights, trainer)
    };
    let ((mut whole, mut trainer), (mut parted, mut in_parts)) = (new(), new());
    let samples = samples(&ctx, &whole, &[1, 2]);
    let expected = trainer.update(&ctx, &mut whole, &samples, 1e-3).expect("update");
    let normalizer = in_parts.normalizer(&ctx, (&parted).into(), (&samples).into(), &loss).expect("counts");
    for part in [&samples[..3], &samples[3..6], &samples[6..]] {
        in_parts.accumulate(&ctx, (&parted).into(), part.into(), &loss, &normalizer).expect("a part");
    }
    in_parts.reduce(&ctx).expect("reduce");
    let metrics = in_parts.step(&ctx, &mut parted, StepParams { learning_rate: 1e-3 }).expect("step");
    assert_eq!(lasting(&metrics), lasting(&expected));
    assert_eq!((metrics.entropy, metrics.skipped_tokens), (expected.entropy, expected.skipped_tokens));
    let of =
        |weights: &AdaptedWeights| bits(&Named { params: &weights.adapter.as_ref().expect("one").current().params });
    assert!(of(&whole) == of(&parted));
}
