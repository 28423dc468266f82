//! Tests of trainer steps: errors, skipped groups, counts and restored state.

use super::passes::Measured;
use super::*;
use crate::Error;
use crate::loss::LossConfig;
use crate::loss::entropy::EntropyConfig;
use crate::optimizer::GradNorm;
use crate::{Advantage, Sample};
use kernels::Isa;
use model::columns::SAMPLER_LOGPS;
use model::net::Scores;
use model::{Columns, Prompt, Updates, Weights};

fn model() -> (Context, Weights) {
    let json = r#"{"model_type": "llama", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "vocab_size": 16}"#;
    let ctx = Context::cpu(Isa::best(), 1);
    let weights = Weights::random(ctx.memory(), &Arc::new(ModelConfig::parse(json).unwrap()), 1).unwrap();
    (ctx, weights)
}

fn config(objective: Objective) -> TrainerConfig {
    TrainerConfig {
        objective,
        optimizer: OptimizerConfig::default(),
        adapter: None,
        temperature: 1.0,
        max_tokens_per_micro_batch: 100,
        prefix_sharing: true,
        skip_zero_gradients: false,
        gradient_checkpointing: false,
        gradient_shares: 1,
    }
}

fn trainer(objective: Objective) -> (Context, Weights, Trainer) {
    let (ctx, weights) = model();
    let trainer = Trainer::new(ctx.memory(), &weights.config, config(objective)).unwrap();
    (ctx, weights, trainer)
}

#[test]
fn a_temperature_must_be_finite_and_above_zero() {
    let (ctx, weights) = model();
    for temperature in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let config = TrainerConfig { temperature, ..config(Objective::Supervised) };
        let error = Trainer::new(ctx.memory(), &weights.config, config).err().unwrap().to_string();
        let why = "for training it must be finite and above 0; at 0 every completion would have probability 1";
        assert_eq!(error, format!("temperature = {temperature}: {why}"));
    }
    let small = TrainerConfig { temperature: 1e-9, ..config(Objective::Supervised) };
    assert_eq!(Trainer::new(ctx.memory(), &weights.config, small.clone()).unwrap().state.config, small);
}

#[test]
fn the_third_consecutive_non_finite_step_is_an_error() {
    let (_, _, mut trainer) = trainer(Objective::Supervised);
    let (good, bad) = (GradNorm { norm: 2.0, finite: true }, GradNorm { norm: 3.0, finite: false });
    let counts = |t: &Trainer| (t.state.skipped_in_a_row, t.state.skipped_total);
    assert!(trainer.state.check_finite(1.0, good).unwrap() && counts(&trainer) == (0, 0));
    assert!(!trainer.state.check_finite(1.0, bad).unwrap() && !trainer.state.check_finite(f64::NAN, good).unwrap());
    assert_eq!(counts(&trainer), (2, 2));
    assert!(
        trainer.state.check_finite(1.0, good).unwrap() && counts(&trainer) == (0, 2),
        "a finite step resets the count of consecutive skipped steps"
    );
    for (loss, norm, what, value) in
        [(f64::INFINITY, good, "the loss", f64::INFINITY), (1.0, bad, "the gradient norm", 3.0)]
    {
        (trainer.state.skipped_in_a_row, trainer.state.skipped_total) = (2, 5);
        match trainer.state.check_finite(loss, norm) {
            Err(Error::NonFinite { count: 3, what: found, value: x }) => assert_eq!((found, x), (what, value)),
            other => panic!("{other:?}"),
        }
        assert_eq!(counts(&trainer), (3, 6));
    }
}

#[test]
fn a_step_uses_the_accumulated_and_reduced_gradient() {
    let (ctx, mut weights, mut trainer) = trainer(Objective::Supervised);
    let needs = "`step` must be called after `accumulate` and `reduce`";
    let params = StepParams { learning_rate: 1e-3 };
    assert_eq!(trainer.reduce(&ctx).unwrap_err().to_string(), needs);
    assert_eq!(trainer.step(&ctx, &mut weights, params).unwrap_err().to_string(), needs);
    let sample = |completion: &[u32]| Sample::supervised(Prompt::new([1, 2]), completion.to_vec());
    let samples = [sample(&[3, 4, 5]), sample(&[]), sample(&[6])];
    let loss = Objective::Supervised;
    let normalizer = trainer.normalizer(&ctx, weights.view(), (&samples[..]).into(), &loss).unwrap();
    assert_eq!((normalizer.sequences, normalizer.tokens), (3, 4));
    trainer.accumulate(&ctx, weights.view(), (&samples[..2]).into(), &loss, &normalizer).unwrap();
    assert_eq!(
        trainer.step(&ctx, &mut weights, params).unwrap_err().to_string(),
        needs,
        "the gradient was not reduced"
    );
    trainer.accumulate(&ctx, weights.view(), (&samples[..2]).into(), &loss, &normalizer).unwrap();
    trainer.accumulate(&ctx, weights.view(), (&samples[2..]).into(), &loss, &normalizer).unwrap();
    trainer.reduce(&ctx).unwrap();
    let metrics = trainer.step(&ctx, &mut weights, params).unwrap();
    let counts = (metrics.sequences, metrics.loss_tokens, metrics.computed_tokens, metrics.micro_batches);
    assert_eq!(counts, (3, 4, 2 + 2 + 2, 2));
    assert_eq!(
        (metrics.learning_rate, metrics.skipped, metrics.skipped_total, metrics.sampled),
        (1e-3, false, 0, false)
    );
    assert_eq!((metrics.skipped_groups, metrics.clip, metrics.kl, metrics.policy_loss), (None, None, None, None));
    assert_eq!((weights.version.0, trainer.state().steps()), (1, 1));
    assert!(metrics.grad_norm > 0.0 && metrics.entropy.is_some() && metrics.loss > 0.0);
    // All samples at once, with the same weights, must give the same loss and gradient.
    let (ctx, mut weights, mut whole) = self::trainer(Objective::Supervised);
    let at_once = whole.update(&ctx, &mut weights, &samples[..], 1e-3).unwrap();
    assert_eq!((at_once.loss, at_once.grad_norm, at_once.entropy), (metrics.loss, metrics.grad_norm, metrics.entropy));
    assert_eq!(at_once.micro_batches, 1);
    let adapted = TrainerConfig { adapter: Some(LoraConfig::default()), ..config(Objective::Supervised) };
    let mut other = Trainer::new(ctx.memory(), &weights.config, adapted).unwrap();
    let error = other.update(&ctx, &mut weights, &samples[..], 1e-3).unwrap_err().to_string();
    assert_eq!(error, "the weights must have the adapter that the trainer was created for");
}

/// Two models that share passes, alternating between micro-batches, must learn the same as each model alone.
#[test]
fn two_states_can_share_the_same_passes() {
    let sample = |prompt: u32, completion: &[u32]| Sample::supervised(Prompt::new([prompt]), completion.to_vec());
    let data = [
        vec![sample(1, &[3, 4, 5]), sample(2, &[6])],
        vec![sample(7, &[8, 9]), sample(5, &[10, 11, 12, 13]), sample(3, &[14])],
    ];
    let alone = |samples: &[Sample]| {
        let (ctx, mut weights, mut trainer) = trainer(Objective::Supervised);
        let metrics = trainer.update(&ctx, &mut weights, samples, 1e-2).unwrap();
        (weights.params.tensors().iter().map(|t| t.to_vec_f32()).collect::<Vec<_>>(), metrics.loss)
    };
    let (ctx, first) = model();
    let mut passes = Passes::new(ctx.memory(), false);
    let mut models = [first, model().1].map(|weights| {
        let state = TrainState::new(ctx.memory(), &weights.config, config(Objective::Supervised)).unwrap();
        (weights, state)
    });
    let loss = Objective::Supervised;
    let normalizers: Vec<Normalizer> = models
        .iter_mut()
        .zip(&data)
        .map(|((weights, state), samples)| {
            state.normalizer(&mut passes, &ctx, weights.view(), samples[..].into(), &loss).unwrap()
        })
        .collect();
    for part in 0..3 {
        for (((weights, state), samples), normalizer) in models.iter_mut().zip(&data).zip(&normalizers) {
            if let Some(samples) = samples.get(part..=part) {
                state.accumulate(&mut passes, &ctx, weights.view(), samples.into(), &loss, normalizer).unwrap();
            }
        }
    }
    for ((weights, state), samples) in models.iter_mut().zip(&data) {
        state.reduce(&ctx, &Default::default()).unwrap();
        let metrics = state.step(&ctx, weights, StepParams { learning_rate: 1e-2 }).unwrap();
        let learned: Vec<Vec<f32>> = weights.params.tensors().iter().map(|t| t.to_vec_f32()).collect();
        assert_eq!((learned, metrics.loss), alone(samples));
    }
}

#[test]
fn trainer_state_is_kept_between_steps() {
    let entropy = EntropyConfig { entropy_coef: 0.5, use_adaptive_entropy: true, ..EntropyConfig::default() };
    let adaptive = Objective::Policy(LossConfig { entropy, ..LossConfig::default() });
    let fixed = EntropyConfig { use_adaptive_entropy: false, ..entropy };
    for (objective, coef, adapts) in [
        (Objective::Supervised, None, false),
        (adaptive, Some(0.5), true),
        (Objective::Policy(LossConfig { entropy: fixed, ..LossConfig::default() }), Some(0.5), false),
    ] {
        let (_, _, mut trainer) = trainer(objective);
        assert_eq!((trainer.entropy_coef(), trainer.state().entropy.is_some()), (coef, adapts));
        assert_eq!((trainer.state().steps(), trainer.state().skipped_total), (0, 0));
        let own = trainer.state.entropy;
        let state = TrainerState { steps: 7, skipped_in_a_row: 2, skipped_total: 5, entropy: None };
        trainer.set_state(state);
        let entropy = adapts.then_some(own);
        assert_eq!((trainer.state(), trainer.state.entropy), (TrainerState { entropy, ..state }, own));
        assert_eq!(trainer.optimizer().steps, 7);
        let other = EntropyControl { coef: 0.25, last: 1.0 };
        trainer.set_state(TrainerState { entropy: Some(other), ..state });
        assert_eq!(trainer.state.entropy, other);
    }
}

#[test]
fn recorded_log_probabilities_are_compared_bit_for_bit() {
    let sample = |versions: &[u64], recorded: &[f32]| Sample {
        versions: versions.iter().copied().map(Updates).collect(),
        loss_mask: vec![true, false, true],
        columns: Columns::of([(SAMPLER_LOGPS, recorded.to_vec())]),
        ..Sample::supervised(Prompt::new([1]), vec![2, 3, 4])
    };
    let mut measured = Measured::default();
    let mut compare = |sample: &Sample, logps: &[f32]| {
        measured.compare(sample, logps, Updates(7));
        (measured.compared, measured.mismatches, measured.max_difference)
    };
    assert_eq!(
        compare(&sample(&[7, 7, 6], &[9.0; 3]), &[0.0; 3]),
        (0, 0, 0.0),
        "the sample comes from different weights"
    );
    assert_eq!(
        compare(&sample(&[7; 3], &[-1.0, 5.0, -2.0]), &[-1.0, 6.0, -2.0]),
        (2, 0, 0.0),
        "the inserted token is not compared"
    );
    assert_eq!(compare(&sample(&[7; 3], &[-1.0, 5.0, -2.5]), &[-1.25, 6.0, -2.0]), (4, 2, 0.5));
    assert_eq!(
        compare(&sample(&[7; 3], &[-1.0, 5.0, 0.0]), &[-1.25, 6.0, -0.0]),
        (6, 4, 0.5),
        "−0.0 and 0.0 differ in a bit"
    );
    let (compared, mismatches, difference) = compare(&sample(&[7; 3], &[f32::NAN, 5.0, 0.0]), &[1.0, 6.0, 0.0]);
    assert!((compared, mismatches) == (8, 5) && difference.is_nan());
    assert!(compare(&sample(&[7; 3], &[-9.0, 5.0, 0.0]), &[1.0, 6.0, 0.0]).2.is_nan(), "a NaN maximum must stay NaN");
    // The mean entropy is taken over the tokens whose entropy is known.
    let normalizer = Normalizer { tokens: 6, ..Normalizer::default() };
    let of = |entropy, unknown_entropies| Measured { entropy, unknown_entropies, ..Measured::default() };
    assert_eq!((of(3.0, 0).mean_entropy(&normalizer), of(3.0, 4).mean_entropy(&normalizer)), (Some(0.5), Some(1.5)));
    assert_eq!((of(0.0, 6).mean_entropy(&normalizer), of(0.0, 5).mean_entropy(&normalizer)), (None, Some(0.0)));
    assert_eq!(of(0.0, 0).mean_entropy(&Normalizer::default()), None, "no token is in the loss");
}

#[test]
fn the_held_out_loss_equals_the_loss_of_one_batch() {
    let (_, _, supervised) = trainer(Objective::Supervised);
    let sample = |completion: &[u32]| Sample::supervised(Prompt::new([1]), completion.to_vec());
    let samples = [sample(&[3, 4, 5]), sample(&[6])];
    let scores = |logps: &[f32], entropies: &[f32]| Scores { logps: logps.to_vec(), entropies: entropies.to_vec() };
    let given = [scores(&[-1.0, -2.0, -3.0], &[]), scores(&[-6.0], &[])];
    let loss_of = |trainer: &Trainer, samples: &[Sample], given: &[Scores]| {
        trainer.held_out(samples, given).map(|found| found.map(|held_out| held_out.loss))
    };
    assert_eq!(loss_of(&supervised, &samples, &given).unwrap(), Some(3.0));
    let error = loss_of(&supervised, &samples, &given[..1]).unwrap_err().to_string();
    assert_eq!(error, "expected scores for 2 samples, got 1");
    // With a bonus on only the tokens of highest entropy, the bonus is a mean over these tokens.
    let entropy = EntropyConfig { entropy_coef: 0.5, ..EntropyConfig::default() };
    let config = LossConfig { entropy, top_entropy_quantile: 0.5, ..LossConfig::default() };
    let (_, _, policy) = trainer(Objective::Policy(config));
    let mut samples = samples;
    for (sample, logps) in samples.iter_mut().zip([&[-1.0, -2.0, -3.0][..], &[-6.0]]) {
        sample.columns.set(SAMPLER_LOGPS, logps.to_vec());
        sample.versions = vec![Updates(0); logps.len()];
        sample.advantage = Advantage::Sequence(2.0);
    }
    let given = [scores(&[-1.0, -2.0, -3.0], &[1.0, 4.0, 2.0]), scores(&[-6.0], &[3.0])];
    // Two of the four tokens are above the median 2.5 and are kept. Each adds −A / 4 to the loss, and the bonus adds
    // −0.5 · (4 + 3) / 2.
    let held_out = policy.held_out(&samples, &given).unwrap().unwrap();
    assert_eq!(held_out.loss, -2.0 * 2.0 / 4.0 - 0.5 * 3.5);
    // The entropy covers all tokens, and the loss without the bonus is a metric.
    let metric = |name: &str| held_out.metrics.iter().find(|(own, _)| own == name).map(|(_, value)| *value);
    let names = ["entropy", "policy_loss", "entropy_coef", "kl", "clip_ratio/region_mean"];
    assert_eq!(names.map(metric), [Some(2.5), Some(-1.0), Some(0.5), None, Some(0.0)]);
    let masked = samples.clone().map(|sample| Sample { loss_mask: vec![false; sample.completion.len()], ..sample });
    assert_eq!(loss_of(&policy, &masked, &given).unwrap(), None, "without tokens in the loss, the loss is missing");
    samples[0].columns.remove(SAMPLER_LOGPS);
    assert!(loss_of(&policy, &samples, &given).is_err());
}
