//! Tests of steps on an adapter with dropout: log-probabilities are compared without dropout, the gradient uses
//! dropout, and the noise depends only on the seed and the step.

use crate::common::model::{bits, config, context, context_of, policy};
use kernels::check::{normal, relative_error};
use kernels::{Context, Isa};
use model::columns::{REF_LOGPS, SAMPLER_LOGPS};
use model::io::{TensorSink, TensorSource};
use model::weights::{Named, NamedMut};
use model::{AdaptedWeights, Adapter, Columns, LoraConfig, PromptCompletion, Scorer, TargetModules};
use train::{
    Advantage, Error, LossConfig, Objective, OptimizerConfig, Sample, StepParams, Trainer, TrainerConfig, UpdateMetrics,
};

fn lora(dropout: f64) -> LoraConfig {
    LoraConfig { r: 3, dropout, target_modules: TargetModules::AllLinear, ..LoraConfig::default() }
}

/// The fixture's policy with an adapter that changes its output.
fn adapted(ctx: &Context, dropout: f64) -> AdaptedWeights {
    let weights = policy(ctx.memory());
    let mut adapter = Adapter::new(ctx.memory(), &weights, &lora(dropout), 1).expect("adapter");
    let mut named = NamedMut { params: &mut adapter.params };
    for (i, spec) in named.tensors().into_iter().filter(|s| s.name.contains("lora_")).enumerate() {
        let data = normal::<f32>(i as u64, spec.shape.iter().product());
        named.put(&spec.name, &data.iter().map(|x| 0.2 * x).collect::<Vec<_>>()).expect("tensor");
    }
    AdaptedWeights::new(ctx.memory(), weights, Some(adapter))
}

fn trainer_config(dropout: f64, loss: LossConfig) -> TrainerConfig {
    TrainerConfig {
        objective: Objective::Policy(loss),
        optimizer: OptimizerConfig { seed: 5, ..OptimizerConfig::default() },
        adapter: Some(lora(dropout)),
        temperature: 0.7,
        max_tokens_per_micro_batch: 1000,
        skip_zero_gradients: false,
        prefix_sharing: true,
        gradient_checkpointing: false,
        gradient_shares: 1,
    }
}

fn loss() -> LossConfig {
    LossConfig { beta: 0.04, max_completion_length: 70, ..LossConfig::default() }
}

/// Three groups. One completion has no tokens.
fn samples(ctx: &Context, weights: &AdaptedWeights) -> Vec<Sample> {
    let mut stream = kernels::rng::Stream::new(7, 7);
    let mut draw = |n: usize| -> Vec<u32> { (0..n).map(|_| 2 + stream.below(48) as u32).collect() };
    let mut out = Vec::new();
    for (prompt, completions) in [(5, [0, 3, 1]), (69, [20, 2, 9]), (2, [4, 66, 5])] {
        let prompt = model::Prompt::new(draw(prompt));
        for n in completions {
            let advantage = Advantage::Sequence(0.3 * (n as f32) - 1.0);
            let versions = vec![weights.version(); n];
            out.push(Sample { versions, advantage, ..Sample::supervised(prompt.clone(), draw(n)) });
        }
    }
    let pairs: Vec<_> =
        out.iter().map(|s| PromptCompletion { prompt: &s.prompt.ids, completion: &s.completion }).collect();
    let scores = Scorer::new(ctx.memory(), 1, true).score(ctx, weights, &pairs, 0.7).expect("scores");
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
fn threads_budget_checkpointing_and_instruction_set_change_no_bit() {
    for objective in [Objective::Policy(LossConfig { top_entropy_quantile: 0.6, ..loss() }), Objective::Supervised] {
        let run = |isa: Isa, threads: usize, max_tokens_per_micro_batch: usize, gradient_checkpointing: bool| {
            let ctx = context_of(isa, threads);
            let mut weights = adapted(&ctx, 0.2);
            let samples = samples(&ctx, &weights);
            let how =
                TrainerConfig { max_tokens_per_micro_batch, gradient_checkpointing, ..trainer_config(0.2, loss()) };
            let how = TrainerConfig { objective: objective.clone(), ..how };
            let mut trainer = Trainer::new(ctx.memory(), weights.config(), how).expect("trainer");
            let mut step = || trainer.update(&ctx, &mut weights, &samples, 1e-3).expect("update");
            let metrics = [step(), step(), step()];
            let micro_batches = metrics[0].micro_batches;
            (micro_batches, metrics.map(lasting), elements(&weights))
        };
        let (micro_batches, metrics, expected) = run(Isa::best(), 1, 1000, false);
        assert_eq!(micro_batches, 1);
        for (threads, budget, checkpointing, cuts) in [(2, 1000, false, 1), (1, 1, true, 3), (2, 110, false, 2)] {
            for isa in Isa::present() {
                let (micro_batches, m, bits) = run(isa, threads, budget, checkpointing);
                let title = format!("{isa:?}: {threads} threads, {budget} tokens, checkpointing {checkpointing}");
                assert_eq!((micro_batches, &m), (cuts, &metrics), "{title}");
                assert!(bits == expected, "{title}: other bits");
            }
        }
    }
}

fn adapter(weights: &AdaptedWeights) -> &Adapter {
    weights.adapter.as_ref().expect("an adapter").current()
}

/// The bits of the trained parameters.
fn elements(weights: &AdaptedWeights) -> Vec<u32> {
    bits(&Named { params: &adapter(weights).params })
}

#[test]
fn log_probabilities_are_compared_without_dropout_and_gradients_use_it() {
    let ctx = context(1);
    let step = |dropout: f64, loss: LossConfig| {
        let mut weights = adapted(&ctx, dropout);
        let samples = samples(&ctx, &weights);
        let mut trainer = Trainer::new(ctx.memory(), weights.config(), trainer_config(dropout, loss)).expect("trainer");
        let metrics = trainer.update(&ctx, &mut weights, &samples, 1e-3).expect("update");
        (metrics, elements(&weights))
    };
    for loss in [loss(), LossConfig { top_entropy_quantile: 0.5, ..loss() }] {
        let ((plain, plain_bits), (dropped, dropped_bits)) = (step(0.0, loss.clone()), step(0.2, loss));
        assert_eq!((dropped.logp_mismatch_tokens, dropped.logp_compared_tokens), (0, 110));
        assert_eq!((dropped.loss, dropped.kl, dropped.entropy), (plain.loss, plain.kl, plain.entropy));
        assert_eq!(dropped.clip, plain.clip);
        assert!(dropped.grad_norm != plain.grad_norm && dropped_bits != plain_bits);
    }
}

/// On-policy, with advantage 1 and completions of equal length, the gradient of a policy loss equals the supervised
/// gradient with the same noise.
#[test]
fn the_gradient_comes_from_the_pass_with_dropout() {
    let ctx = context(2);
    let gradient = |dropout: f64, supervised: bool, seed: u64| {
        let mut weights = adapted(&ctx, dropout);
        let mut samples = samples(&ctx, &weights);
        for s in &mut samples {
            s.advantage = Advantage::Sequence(1.0);
        }
        samples.retain(|s| s.completion.len() == 3 || s.completion.len() == 20);
        for sample in &mut samples {
            sample.completion.truncate(3);
            sample.loss_mask.truncate(3);
            sample.versions.truncate(3);
            let names = [SAMPLER_LOGPS, REF_LOGPS];
            sample.columns = Columns::of(names.map(|name| (name, sample.columns.f32(name).expect(name)[..3].to_vec())));
        }
        let loss = LossConfig { beta: 0.0, ..loss() };
        let objective = if supervised { Objective::Supervised } else { Objective::Policy(loss.clone()) };
        let how = TrainerConfig { objective, ..trainer_config(dropout, loss) };
        let how = TrainerConfig { optimizer: OptimizerConfig { seed, ..how.optimizer }, ..how };
        let mut trainer = Trainer::new(ctx.memory(), weights.config(), how).expect("trainer");
        let metrics = trainer.update(&ctx, &mut weights, &samples, 1e-3).expect("update");
        assert!(supervised || (metrics.logp_mismatch_tokens, metrics.logp_compared_tokens) == (0, 6));
        let gradients = trainer.grads().params.tensors().iter().flat_map(|t| t.to_vec_f32()).collect::<Vec<f32>>();
        (metrics.loss, gradients)
    };
    let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    let (loss, supervised) = gradient(0.2, true, 5);
    let error = relative_error(&gradient(0.2, false, 5).1, &wide(&supervised));
    assert!(error < 1e-6, "{error:e}");
    // Neither gradient equals that of a pass with other noise or without dropout.
    for (dropout, seed) in [(0.2, 6), (0.0, 5)] {
        assert!(relative_error(&gradient(dropout, false, seed).1, &wide(&supervised)) > 1e-2);
        let (other, _) = gradient(dropout, true, seed);
        assert!(other != loss && (other / loss - 1.0).abs() < 0.3, "{other} {loss}");
    }
}

/// The noise of a sequence depends on its index in the optimizer batch, however the batch is split.
#[test]
fn accumulated_parts_have_the_dropout_noise_of_the_whole_batch() {
    let ctx = context(1);
    let new = || {
        let weights = adapted(&ctx, 0.2);
        let trainer = Trainer::new(ctx.memory(), weights.config(), trainer_config(0.2, loss())).expect("trainer");
        (weights, trainer)
    };
    let ((mut weights, mut trainer), (mut parted, mut in_parts)) = (new(), new());
    let samples = samples(&ctx, &weights);
    let whole = trainer.update(&ctx, &mut weights, &samples, 1e-3).expect("update");
    let objective = Objective::Policy(loss());
    let normalizer = in_parts.normalizer(&ctx, (&parted).into(), (&samples).into(), &objective).expect("counts");
    for part in [&samples[..3], &samples[3..]] {
        in_parts.accumulate(&ctx, (&parted).into(), part.into(), &objective, &normalizer).expect("a part");
    }
    in_parts.reduce(&ctx).expect("reduce");
    let metrics = in_parts.step(&ctx, &mut parted, StepParams { learning_rate: 1e-3 }).expect("step");
    assert_eq!(lasting(metrics), lasting(whole));
    assert!(elements(&weights) == elements(&parted));
}

#[test]
fn the_step_after_a_skipped_step_has_different_dropout_noise() {
    let ctx = context(1);
    let gradient = |skipped: usize| {
        let mut weights = adapted(&ctx, 0.2);
        let good = samples(&ctx, &weights);
        let mut bad = good.clone();
        bad[4].advantage = Advantage::Sequence(f32::INFINITY);
        let mut trainer = Trainer::new(ctx.memory(), weights.config(), trainer_config(0.2, loss())).expect("trainer");
        for _ in 0..skipped {
            assert!(trainer.update(&ctx, &mut weights, &bad, 1e-3).expect("update").skipped);
        }
        trainer.update(&ctx, &mut weights, &good, 1e-3).expect("update").grad_norm
    };
    assert_eq!(gradient(0), gradient(0));
    assert_ne!(gradient(0), gradient(1));
}

#[test]
fn weights_with_another_adapter_are_refused() {
    let ctx = context(1);
    let mut weights = adapted(&ctx, 0.0);
    let samples = samples(&ctx, &weights);
    let mut trainer = Trainer::new(ctx.memory(), weights.config(), trainer_config(0.2, loss())).expect("trainer");
    match trainer.update(&ctx, &mut weights, &samples, 1e-3) {
        Err(Error::Config(message)) => {
            assert!(message.contains("adapter that the trainer was created for"), "{message}")
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_trainer_resumes_from_saved_counters_after_a_skipped_step() {
    let ctx = context(1);
    let mut weights = adapted(&ctx, 0.2);
    let good = samples(&ctx, &weights);
    let mut bad = good.clone();
    bad[4].advantage = Advantage::Sequence(f32::INFINITY);
    let new = || Trainer::new(ctx.memory(), &config(), trainer_config(0.2, loss())).expect("trainer");
    let mut trainer = new();
    assert!(!trainer.update(&ctx, &mut weights, &good, 1e-3).expect("update").skipped);
    assert!(trainer.update(&ctx, &mut weights, &bad, 1e-3).expect("update").skipped);

    let (mut again, mut resumed) = (adapted(&ctx, 0.2), new());
    for spec in TensorSource::tensors(&Named { params: &adapter(&weights).params }) {
        let from = Named { params: &adapter(&weights).params }.get(&spec.name).expect("tensor");
        let slot = again.adapter.as_mut().expect("an adapter");
        slot.overwrite(|a| NamedMut { params: &mut a.params }.put(&spec.name, &from)).expect("tensor");
    }
    let resumed_trees = resumed.optimizer_mut().state_mut().expect("not held").trees_mut();
    for (from, (_, mut to)) in trainer.optimizer().state().trees().map(|tree| tree.tensors).zip(resumed_trees) {
        for spec in from.tensors() {
            to.put(&spec.name, &from.get(&spec.name).expect("moment")).expect("moment");
        }
    }
    again.set_version(weights.version());
    let state = trainer.state();
    assert_eq!(state.steps(), 1);
    resumed.set_state(state);
    let a = trainer.update(&ctx, &mut weights, &good, 1e-3).expect("update");
    let b = resumed.update(&ctx, &mut again, &good, 1e-3).expect("update");
    assert_eq!(lasting(a), lasting(b));
    assert!(elements(&weights) == elements(&again));
}
