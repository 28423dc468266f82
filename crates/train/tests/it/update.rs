//! Tests of properties of an optimizer step other than its results: the same bits for any micro-batches, exact
//! resumption, skipped steps.

use crate::common::model::{bits, config, context, context_of, policy};
use kernels::rng::Stream;
use kernels::{Context, Copies, DType, Isa};
use model::columns::{REF_LOGPS, SAMPLER_LOGPS};
use model::io::{TensorSink, TensorSource};
use model::{ModelConfig, Prompt, PromptCompletion, Scorer, StopCheck, Weights};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use train::loss::entropy::EntropyConfig;
use train::{
    Advantage, Error, HeldOut, ImportanceSamplingLevel, LossConfig, Objective, OptimizerConfig, Sample, StepParams,
    Trainer, TrainerConfig, UpdateMetrics,
};

const TEMPERATURE: f64 = 0.7;

fn trainer_config(max_tokens_per_micro_batch: usize, gradient_checkpointing: bool) -> TrainerConfig {
    let loss = LossConfig {
        importance_sampling_level: ImportanceSamplingLevel::Sequence,
        beta: 0.04,
        max_completion_length: 70,
        ..LossConfig::default()
    };
    TrainerConfig {
        objective: Objective::Policy(loss),
        optimizer: OptimizerConfig { weight_decay: 0.01, ..OptimizerConfig::default() },
        adapter: None,
        temperature: TEMPERATURE,
        max_tokens_per_micro_batch,
        skip_zero_gradients: false,
        prefix_sharing: true,
        gradient_checkpointing,
        gradient_shares: 1,
    }
}

/// Three groups with prompts of 5, 69 and 2 tokens. Completions cross a page. One has no tokens, and one is fully
/// masked.
fn samples(ctx: &Context, weights: &Weights) -> Vec<Sample> {
    let mut stream = Stream::new(7, 7);
    let mut draw = |n: usize| -> Vec<u32> { (0..n).map(|_| 2 + stream.below(48) as u32).collect() };
    let mut out = Vec::new();
    for (prompt, completions) in [(5, [3, 1, 0]), (69, [70, 2, 9]), (2, [4, 66, 5])] {
        let prompt = Prompt::new(draw(prompt));
        for n in completions {
            let loss_mask = (0..n).map(|t| t % 5 != 3 && n != 5).collect();
            let versions = vec![weights.version; n];
            let advantage = Advantage::Sequence(0.3 * (n as f32) - 1.0);
            let completion = draw(n);
            out.push(Sample { loss_mask, versions, advantage, ..Sample::supervised(prompt.clone(), completion) });
        }
    }
    let pairs: Vec<_> =
        out.iter().map(|s| PromptCompletion { prompt: &s.prompt.ids, completion: &s.completion }).collect();
    let scores = Scorer::new(ctx.memory(), 1, true).score(ctx, weights, &pairs, TEMPERATURE).expect("scores");
    for (sample, scores) in out.iter_mut().zip(scores) {
        sample.columns.set(REF_LOGPS, scores.logps.iter().map(|x| x + 0.1).collect());
        sample.columns.set(SAMPLER_LOGPS, scores.logps);
    }
    out
}

/// The metrics without those that may differ between equal steps.
fn lasting(metrics: UpdateMetrics) -> UpdateMetrics {
    UpdateMetrics { micro_batches: 0, forward_time_s: 0.0, backward_time_s: 0.0, optimizer_time_s: 0.0, ..metrics }
}

#[test]
fn threads_budget_and_checkpointing_change_no_bit() {
    for isa in Isa::present() {
        same_bits(isa, DType::F32);
    }
}

/// On tiles, sums over tokens add pairs of 32 from the start of each group, so the micro-batch budget changes no bit.
#[test]
fn threads_budget_and_checkpointing_change_no_bit_in_bf16() {
    same_bits(Isa::best(), DType::Bf16);
    same_bits(Isa::AMX_EMULATED, DType::Bf16);
}

/// The policy, computing in `dtype`.
fn policy_in(ctx: &Context, dtype: DType) -> Weights {
    let from = policy(ctx.memory());
    let config = ModelConfig { compute: dtype, ..(*from.config).clone() };
    let mut weights = Weights::zeros(ctx.memory(), &Arc::new(config));
    for spec in TensorSource::tensors(&from) {
        weights.put(&spec.name, &from.get(&spec.name).expect("tensor")).expect("tensor");
    }
    weights.publish();
    weights
}

fn same_bits(isa: Isa, dtype: DType) {
    let run = |threads: usize, budget: usize, checkpointing: bool| {
        let ctx = context_of(isa, threads);
        let mut weights = policy_in(&ctx, dtype);
        let samples = samples(&ctx, &weights);
        let mut trainer =
            Trainer::new(ctx.memory(), &weights.config, trainer_config(budget, checkpointing)).expect("trainer");
        let mut metrics = Vec::new();
        for _ in 0..3 {
            metrics.push(trainer.update(&ctx, &mut weights, &samples, 1e-3).expect("update"));
        }
        let micro_batches = metrics[0].micro_batches;
        let moments: Vec<_> = trainer.optimizer().state().trees().map(|tree| bits(&tree.tensors)).collect();
        assert_eq!(moments.len(), 2);
        let bits = (bits(&weights), moments);
        (micro_batches, metrics.into_iter().map(lasting).collect::<Vec<_>>(), bits)
    };
    let (micro_batches, metrics, reference) = run(1, 10_000, false);
    assert_eq!((micro_batches, metrics[0].logp_mismatch_tokens), (1, 0));
    assert!(metrics[0].logp_compared_tokens > 100 && metrics[1].logp_compared_tokens == 0);
    assert!(metrics.iter().all(|m| m.loss.is_finite() && m.grad_norm > 0.0));
    for (threads, budget, checkpointing, cuts) in
        [(2, 10_000, false, 1), (1, 1, false, 3), (2, 100, false, 3), (1, 10_000, true, 1), (2, 160, true, 2)]
    {
        let (micro_batches, m, bits) = run(threads, budget, checkpointing);
        let title = format!("{isa:?}: {threads} threads, {budget} tokens, checkpointing {checkpointing}");
        assert_eq!(micro_batches, cuts, "{title}");
        assert_eq!(m, metrics, "{title}");
        assert!(bits == reference, "{title}: other bits");
    }
}

/// An optimizer batch accumulated in parts must equal the whole batch accumulated at once.
#[test]
fn accumulated_parts_equal_the_whole_batch() {
    let ctx = context(1);
    let new = || {
        let weights = policy(ctx.memory());
        let trainer = Trainer::new(ctx.memory(), &weights.config, trainer_config(100, false)).expect("trainer");
        (weights, trainer)
    };
    let ((mut weights, mut trainer), (mut parted, mut in_parts)) = (new(), new());
    let samples = samples(&ctx, &weights);
    let whole = trainer.update(&ctx, &mut weights, &samples, 1e-3).expect("update");
    let loss = trainer_config(100, false).objective;
    let params = StepParams { learning_rate: 1e-3 };
    assert!(in_parts.step(&ctx, &mut parted, params).is_err(), "without an accumulated gradient a step must fail");
    let normalizer = in_parts.normalizer(&ctx, (&parted).into(), (&samples).into(), &loss).expect("counts");
    for part in [&samples[..3], &samples[3..]] {
        in_parts.accumulate(&ctx, (&parted).into(), part.into(), &loss, &normalizer).expect("a part");
    }
    in_parts.reduce(&ctx).expect("reduce");
    let metrics = in_parts.step(&ctx, &mut parted, params).expect("step");
    assert_eq!(lasting(metrics), lasting(whole));
    assert!(bits(&weights) == bits(&parted));
}

/// Copies between host and device in an update. Per micro-batch, its rows, its lists, the gradients of its losses and
/// (as the embedding is tied) the indices of its embedding sums are copied to the device; log-probabilities and
/// entropies are copied back. Per update, the tokens of the embedding sums are copied to the device, and the gradient
/// norm is copied back.
#[test]
fn an_update_makes_a_fixed_number_of_copies_per_micro_batch() {
    let [per_micro_batch, others] = copies_of_an_update(&Context::cpu_checked(Isa::best(), 1));
    let copies = |to_device, to_host| Copies { to_device, to_host, ..Copies::default() };
    assert_eq!([per_micro_batch, others], [copies(4, 2), copies(1, 1)]);
}

/// On emulated CUDA, each layer also copies the lists of rows that see a page, for the gradients of keys and values.
/// The host waits for the device whenever something is copied back.
#[test]
fn an_update_on_emulated_cuda_has_fixed_copies_launches_and_waits() {
    let Ok(ctx) = Context::cuda_emulated() else {
        testing::skip::<()>("no C++ compiler to emulate CUDA with");
        return;
    };
    let layers = config().num_layers as u64;
    let [per_micro_batch, others] = copies_of_an_update(&ctx);
    // The forward pass has the launches of a decode step, with log-probabilities instead of the draw. The backward pass
    // launches 56 operations for two layers.
    let launches = 11 * layers + 6 + 56;
    let expected = Copies { to_device: 4 + layers, to_host: 2, launches, waits: 2, ..Copies::default() };
    assert_eq!(per_micro_batch, expected);
    // Launches: the embedding's sums; for each tensor (8 per layer), its squares and its step; the norm.
    let tensors = 8 * layers + 2;
    let expected = Copies { to_device: 1, to_host: 1, launches: 2 * tensors + 2, waits: 1, ..Copies::default() };
    assert_eq!(others, expected);
}

/// The copies per micro-batch, and the other copies of an update. Bytes are ignored.
fn copies_of_an_update(ctx: &Context) -> [Copies; 2] {
    let mut weights = policy(ctx.memory());
    let samples = samples(ctx, &weights);
    let mut updated = |budget: usize| {
        let config = trainer_config(budget, false);
        let mut trainer = Trainer::new(ctx.memory(), &weights.config, config).expect("trainer");
        trainer.update(ctx, &mut weights, &samples, 1e-3).expect("update");
        let before = ctx.memory().copies();
        let metrics = trainer.update(ctx, &mut weights, &samples, 1e-3).expect("update");
        let copies = Copies { to_device_bytes: 0, to_host_bytes: 0, ..ctx.memory().copies() - before };
        (metrics.micro_batches, copies)
    };
    let ((whole, whole_copies), (cut, cut_copies)) = (updated(10_000), updated(1));
    assert_eq!((whole, cut), (1, 3));
    let more = cut_copies - whole_copies;
    let per_micro_batch = Copies {
        to_device: more.to_device / 2,
        to_host: more.to_host / 2,
        launches: more.launches / 2,
        waits: more.waits / 2,
        ..Copies::default()
    };
    [per_micro_batch, whole_copies - per_micro_batch]
}

#[test]
fn shared_and_copied_prompts_give_the_same_results() {
    let ctx = context(2);
    let run = |prefix_sharing| {
        let mut weights = policy(ctx.memory());
        let samples = samples(&ctx, &weights); // scored with sharing
        let config = TrainerConfig { prefix_sharing, ..trainer_config(100, false) };
        let mut trainer = Trainer::new(ctx.memory(), &weights.config, config).expect("trainer");
        let metrics = trainer.update(&ctx, &mut weights, &samples, 1e-3).expect("update");
        let gradients = trainer.grads().params.tensors().iter().map(|t| t.to_vec_f32()).collect::<Vec<_>>();
        (metrics, gradients)
    };
    let ((shared, gradients), (copied, others)) = (run(true), run(false));
    assert_eq!((shared.logp_mismatch_tokens, copied.logp_mismatch_tokens), (0, 0));
    assert_eq!((shared.loss, shared.kl, shared.entropy), (copied.loss, copied.kl, copied.entropy));
    // The sums over rows have their terms in a different order, so each tensor's gradient may differ by rounding errors
    // only.
    let norm = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    for (i, (a, b)) in gradients.iter().zip(&others).enumerate() {
        let error = norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied());
        assert!(error < 1e-5, "gradient {i} of {}: relative error {error:e}", gradients.len());
    }
    assert!((shared.grad_norm - copied.grad_norm).abs() < 1e-5 * shared.grad_norm);
    assert!(shared.computed_tokens + 100 < copied.computed_tokens);
}

/// Prompts are shared by identity: two separate prompts stay separate even if they have the same length.
#[test]
fn separate_prompts_of_the_same_length_are_not_shared() {
    let ctx = context(1);
    let mut weights = policy(ctx.memory());
    let samples = [[5, 6, 7], [8, 9, 10]].map(|prompt| Sample::supervised(Prompt::new(prompt), vec![11, 12])).to_vec();
    let pairs: Vec<_> =
        samples.iter().map(|s| PromptCompletion { prompt: &s.prompt.ids, completion: &s.completion }).collect();
    let scores = Scorer::new(ctx.memory(), 50, false).score(&ctx, &weights, &pairs, 1.0).expect("scores");
    let mean = -scores.iter().flat_map(|s| &s.logps).map(|&x| f64::from(x)).sum::<f64>() / 4.0;
    let config = TrainerConfig { objective: Objective::Supervised, temperature: 1.0, ..trainer_config(100, false) };
    let mut trainer = Trainer::new(ctx.memory(), &weights.config, config).expect("trainer");
    let loss = trainer.update(&ctx, &mut weights, &samples, 1e-2).expect("update").loss;
    assert!((loss - mean).abs() < 1e-9 * mean, "{loss} {mean}");
}

#[test]
fn the_adaptive_entropy_coefficient_is_saved_and_restored() {
    let ctx = context(1);
    let entropy = EntropyConfig {
        entropy_coef: 0.5,
        use_adaptive_entropy: true,
        entropy_target: 1e9,
        ..EntropyConfig::default()
    };
    let Objective::Policy(loss) = trainer_config(100, false).objective else { panic!("a policy's") };
    let objective = Objective::Policy(LossConfig { entropy, ..loss });
    let config = TrainerConfig { objective, ..trainer_config(100, false) };
    let mut weights = policy(ctx.memory());
    let samples = samples(&ctx, &weights);
    let new = || Trainer::new(ctx.memory(), &weights.config, config.clone()).expect("trainer");
    let (mut trainer, mut resumed) = (new(), new());
    trainer.update(&ctx, &mut weights, &samples, 1e-3).expect("update");
    assert_ne!(resumed.state(), trainer.state());
    resumed.set_state(trainer.state());
    assert_eq!(resumed.state(), trainer.state());
    let bonus = trainer.update(&ctx, &mut weights, &samples, 1e-3).expect("update").entropy_coef;
    assert_eq!(resumed.update(&ctx, &mut weights, &samples, 1e-3).expect("update").entropy_coef, bonus);
}

#[test]
fn a_trainer_resumes_from_saved_moments() {
    let ctx = context(1);
    let mut weights = policy(ctx.memory());
    let samples = samples(&ctx, &weights);
    let new = || Trainer::new(ctx.memory(), &config(), trainer_config(100, false)).expect("trainer");
    let mut trainer = new();
    for _ in 0..2 {
        trainer.update(&ctx, &mut weights, &samples, 1e-3).expect("update");
    }
    let (mut again, mut resumed) = (policy(ctx.memory()), new());
    for spec in TensorSource::tensors(&weights) {
        again.put(&spec.name, &weights.get(&spec.name).expect("tensor")).expect("tensor");
        let resumed_trees = resumed.optimizer_mut().state_mut().expect("not held").trees_mut();
        for (from, (_, mut to)) in trainer.optimizer().state().trees().map(|tree| tree.tensors).zip(resumed_trees) {
            to.put(&spec.name, &from.get(&spec.name).expect("moment")).expect("moment");
        }
    }
    again.version = weights.version;
    resumed.set_state(trainer.state());
    assert_eq!(resumed.state().steps(), 2);
    let a = trainer.update(&ctx, &mut weights, &samples, 1e-3).expect("update");
    let b = resumed.update(&ctx, &mut again, &samples, 1e-3).expect("update");
    assert_eq!(lasting(a), lasting(b));
    assert!(bits(&weights) == bits(&again));
}

#[test]
fn non_finite_steps_are_skipped_and_three_in_a_row_are_an_error() {
    let ctx = context(1);
    let mut weights = policy(ctx.memory());
    let good = samples(&ctx, &weights);
    let mut bad = good.clone();
    bad[3].advantage = Advantage::Sequence(f32::INFINITY);
    let mut trainer = Trainer::new(ctx.memory(), &weights.config, trainer_config(100, false)).expect("trainer");
    let before = bits(&weights);
    for count in [1, 2] {
        let metrics = trainer.update(&ctx, &mut weights, &bad, 1e-3).expect("skipped");
        assert!(metrics.skipped && metrics.skipped_total == count && weights.version.0 == 1);
        assert!(bits(&weights) == before);
    }
    assert_eq!(trainer.state().steps(), 0);
    assert!(!trainer.update(&ctx, &mut weights, &good, 1e-3).expect("a good one").skipped);
    assert_eq!((trainer.state().steps(), weights.version.0), (1, 2));
    let third = (0..3).map(|_| trainer.update(&ctx, &mut weights, &bad, 1e-3)).last().expect("three");
    assert!(matches!(third, Err(Error::NonFinite { count: 3, what: "the loss", .. })), "{third:?}");
    assert_eq!(weights.version.0, 2);
    let after = trainer.update(&ctx, &mut weights, &good, 1e-3).expect("a good one");
    assert_eq!((after.skipped_total, weights.version.0), (5, 3));
}

/// A recorded log-probability that differs in one bit is counted, and a NaN is visible in the metric.
#[test]
fn recorded_log_probabilities_that_differ_are_counted() {
    let ctx = context(1);
    let mut weights = policy(ctx.memory());
    let good = samples(&ctx, &weights);
    let config = trainer_config(100, false);
    let mut counted = |spoil: &dyn Fn(&mut f32)| {
        let mut samples = good.clone();
        let mut logps = samples[4].columns.sampler_logps().expect("recorded").to_vec();
        spoil(&mut logps[1]);
        samples[4].columns.set(SAMPLER_LOGPS, logps);
        // The learning rate is 0, so the weights remain those of the recorded log-probabilities.
        let mut trainer = Trainer::new(ctx.memory(), &weights.config, config.clone()).expect("trainer");
        let version = weights.version;
        let metrics = trainer.update(&ctx, &mut weights, &samples, 0.0).expect("update");
        weights.version = version;
        (metrics.logp_mismatch_tokens, metrics.max_logp_difference)
    };
    assert_eq!(counted(&|_| ()), (0, 0.0));
    let (mismatches, difference) = counted(&|logp| *logp = f32::from_bits(logp.to_bits() + 1));
    assert!(mismatches == 1 && difference > 0.0 && difference < 1e-5, "{mismatches} {difference}");
    let (mismatches, difference) = counted(&|logp| *logp -= 0.5);
    assert!(mismatches == 1 && (difference - 0.5).abs() < 1e-5, "{mismatches} {difference}");
    let (mismatches, difference) = counted(&|logp| *logp = f32::NAN);
    assert!(mismatches == 1 && difference.is_nan(), "{mismatches} {difference}");
}

#[test]
fn the_supervised_loss_is_the_token_mean_and_falls() {
    let ctx = context(1);
    let mut weights = policy(ctx.memory());
    let samples: Vec<Sample> =
        samples(&ctx, &weights).into_iter().map(|s| Sample::supervised(s.prompt, s.completion)).collect();
    let pairs: Vec<_> =
        samples.iter().map(|s| PromptCompletion { prompt: &s.prompt.ids, completion: &s.completion }).collect();
    let scores = Scorer::new(ctx.memory(), 50, false).score(&ctx, &weights, &pairs, 1.0).expect("scores");
    let logps: Vec<f32> = scores.into_iter().flat_map(|s| s.logps).collect();
    let mean = -logps.iter().map(|&x| f64::from(x)).sum::<f64>() / logps.len() as f64;
    let config = TrainerConfig { objective: Objective::Supervised, temperature: 1.0, ..trainer_config(100, false) };
    let mut trainer = Trainer::new(ctx.memory(), &weights.config, config).expect("trainer");
    let losses: Vec<f64> =
        (0..12).map(|_| trainer.update(&ctx, &mut weights, &samples, 1e-2).expect("update").loss).collect();
    assert!((losses[0] - mean).abs() < 1e-9 * mean, "{} {mean}", losses[0]);
    assert!(losses[11] < 0.8 * losses[0], "{losses:?}");
}

#[test]
fn invalid_samples_are_refused() {
    let ctx = context(1);
    let mut weights = policy(ctx.memory());
    let zero = TrainerConfig { temperature: 0.0, ..trainer_config(100, false) };
    assert!(matches!(Trainer::new(ctx.memory(), &weights.config, zero), Err(Error::Config(_))));
    let mut trainer = Trainer::new(ctx.memory(), &weights.config, trainer_config(100, false)).expect("trainer");
    let good = samples(&ctx, &weights);
    let mut refuse = |spoil: &dyn Fn(&mut Sample)| {
        let mut bad = good.clone();
        spoil(&mut bad[4]);
        match trainer.update(&ctx, &mut weights, &bad, 1e-3) {
            Err(Error::Sample { index: 4, message }) => message,
            other => panic!("{other:?}"),
        }
    };
    assert!(refuse(&|s| s.prompt = Prompt::new([])).contains("the prompt is empty"));
    assert!(refuse(&|s| s.completion[0] = 50).contains("token id 50"));
    assert!(refuse(&|s| drop(s.columns.remove(REF_LOGPS))).contains("beta"));
    assert!(refuse(&|s| s.loss_mask.truncate(0)).contains("mask"));
    assert!(refuse(&|s| s.columns.set(SAMPLER_LOGPS, vec![])).contains("sampler_logps"));
}

/// A gradient that is cancelled at any layer of any micro-batch must not affect later steps.
#[test]
fn a_cancelled_gradient_changes_nothing() {
    let ctx = context(2);
    let weights = policy(ctx.memory());
    let samples = samples(&ctx, &weights);
    for checkpointing in [false, true] {
        let trainer =
            || Trainer::new(ctx.memory(), &weights.config, trainer_config(1, checkpointing)).expect("trainer");
        let (mut expected, mut own) = (policy(ctx.memory()), policy(ctx.memory()));
        let metrics = trainer().update(&ctx, &mut expected, &samples, 1e-3).expect("a step");
        let mut stopped = trainer();
        let looks = Arc::new(AtomicUsize::new(0));
        let mut most = 0;
        for look in 1.. {
            let count = looks.clone();
            count.store(0, Ordering::Relaxed);
            stopped.stop_with(StopCheck::new(move || count.fetch_add(1, Ordering::Relaxed) + 1 >= look));
            match stopped.gradient(&ctx, (&own).into(), &samples) {
                Err(Error::Model(model::Error::Stopped)) => {}
                other => {
                    other.expect("the gradient");
                    most = look - 1;
                    break;
                }
            }
            assert_eq!(looks.load(Ordering::Relaxed), look, "the pass must end at the first check that returns true");
            let step = stopped.step(&ctx, &mut own, StepParams { learning_rate: 1e-3 });
            assert!(matches!(step, Err(Error::Config(_))), "a step must fail without a gradient");
        }
        // Three micro-batches check for a stop in forward and backward pass, at each layer and at the head.
        assert_eq!(most, 3 * 2 * (weights.config.num_layers + 1));
        let again = stopped.step(&ctx, &mut own, StepParams { learning_rate: 1e-3 }).expect("a step");
        assert_eq!((lasting(again), bits(&own)), (lasting(metrics), bits(&expected)));
    }
}

/// An evaluation must report the loss that a step on the same samples would minimise.
#[test]
fn the_held_out_loss_equals_the_loss_of_a_step() {
    let ctx = context(2);
    let entropy = EntropyConfig { entropy_coef: 0.3, ..EntropyConfig::default() };
    let plain = trainer_config(200, false);
    let Objective::Policy(loss) = plain.objective.clone() else { unreachable!("a policy's") };
    let of = |loss| TrainerConfig { objective: Objective::Policy(loss), ..plain.clone() };
    let adaptive = EntropyConfig { use_adaptive_entropy: true, ..entropy };
    for config in [
        plain.clone(),
        of(LossConfig { loss_type: train::LossType::Grpo, entropy, ..loss.clone() }),
        of(LossConfig { top_entropy_quantile: 0.4, entropy: adaptive, ..loss.clone() }),
    ] {
        let mut weights = policy(ctx.memory());
        let samples = samples(&ctx, &weights);
        let pairs: Vec<_> = samples.iter().map(Sample::sequence).collect();
        let scores = Scorer::new(ctx.memory(), 100, true).score(&ctx, &weights, &pairs, TEMPERATURE).expect("scores");
        let mut trainer = Trainer::new(ctx.memory(), &weights.config.clone(), config.clone()).expect("trainer");
        let before = bits(&weights);
        let HeldOut { loss: held_out, metrics } = trainer.held_out(&samples, &scores).expect("loss").expect("tokens");
        assert_eq!(before, bits(&weights));
        let step = trainer.update(&ctx, &mut weights, &samples[..], 0.01).expect("step");
        let taken = step.loss;
        assert!((held_out - taken).abs() <= 1e-12 && held_out != 0.0, "{held_out} and {taken} of {config:?}");
        // The evaluation's metrics also equal those of the step, except the entropy coefficient, which the step adapts.
        let entries = step.entries();
        assert!(["entropy", "clip_ratio/region_mean"].iter().all(|name| metrics.iter().any(|(n, _)| n == name)));
        for (name, value) in metrics.iter().filter(|(name, _)| name != "entropy_coef") {
            let taken = entries.iter().find(|(n, _)| n == name).expect(name).1;
            assert!((value - taken).abs() <= 1e-12, "{name}: {value} and {taken} of {config:?}");
        }
        assert!(trainer.held_out(&samples, &scores[1..]).is_err());
    }
}
