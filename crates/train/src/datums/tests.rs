//! Losses by hand, and datums against the trainer of samples.

use super::*;
use crate::{Objective, Sample, Trainer, TrainerConfig};
use kernels::Isa;
use model::io::TensorSource;
use model::weights::Named;
use model::{Prompt, Scorer, Weights};

const CONFIG: &str = r#"{"model_type": "llama", "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
    "max_position_embeddings": 256, "initializer_range": 0.3, "tie_word_embeddings": false}"#;

struct Home {
    ctx: Context,
    base: Weights,
    adapter: WeightSlots<Adapter>,
    trainer: DatumTrainer,
    passes: Passes,
}

impl Home {
    fn new() -> Home {
        let ctx = Context::cpu(Isa::best(), 1);
        let base = Weights::random(ctx.memory(), &Arc::new(ModelConfig::parse(CONFIG).unwrap()), 1).unwrap();
        let lora = LoraConfig { r: 4, ..LoraConfig::default() };
        let mut adapter = Adapter::new(ctx.memory(), &base, &lora, 3).unwrap();
        // B is 0 at first, and so would be the gradient of A.
        for tensor in adapter.params.tensors_mut() {
            let values: Vec<f32> = (0..tensor.to_vec_f32().len()).map(|i| (i % 7) as f32 * 0.1 - 0.3).collect();
            tensor.view_mut().copy_from_f32(&values);
        }
        let trainer = DatumTrainer::new(ctx.memory(), &base.config, &lora).unwrap();
        let passes = Passes::new(ctx.memory(), false);
        let adapter = WeightSlots::new(ctx.memory(), adapter);
        Home { ctx, base, adapter, trainer, passes }
    }

    fn view(&self) -> ModelView<'_> {
        ModelView::new(&self.base, Some(self.adapter.current()))
    }

    /// Log-probabilities, loss and gradient of a call with micro-batches of up to `max_tokens` rows.
    fn call(&mut self, datums: &[Datum], loss: TokenLoss, max_tokens: usize) -> (Vec<Vec<f32>>, f64, Vec<f32>) {
        self.trainer.discard();
        let (mut logps, mut sum) = (Vec::new(), 0.0);
        for part in split(datums, max_tokens) {
            let view = ModelView::new(&self.base, Some(self.adapter.current()));
            let outputs = self.trainer.accumulate(&mut self.passes, &self.ctx, view, datums, &part, loss).unwrap();
            logps.extend(outputs.logps);
            sum += outputs.loss;
        }
        (logps, sum, values(&self.trainer.grads))
    }
}

fn values(grads: &Grads) -> Vec<f32> {
    grads.params.tensors().iter().flat_map(|tensor| tensor.to_vec_f32()).collect()
}

/// A datum that predicts each next token, with these weights.
fn next_tokens(ids: &[u32], weights: &[f32]) -> Datum {
    let targets = ids[1..].iter().copied().chain([9]).collect();
    Datum { ids: ids.to_vec(), targets, width: 1, inputs: vec![(loss::WEIGHTS.into(), weights.to_vec())] }
}

/// Four datums: three with the prompt 1 2 3, and another one.
fn datums() -> Vec<Datum> {
    let w = [0.0, 0.0, 0.25, -0.5, 1.0, 0.125];
    vec![
        next_tokens(&[1, 2, 3, 4, 5, 6], &w),
        next_tokens(&[1, 2, 3], &w[..3]),
        next_tokens(&[1, 2, 3, 7, 8], &w[..5]),
        next_tokens(&[11, 12, 13, 14], &w[1..5]),
    ]
}

fn sampled_datum(sampled: &[f32], advantages: &[f32]) -> Datum {
    let tokens = sampled.len();
    Datum {
        ids: vec![1; tokens],
        targets: vec![1; tokens],
        width: 1,
        inputs: vec![
            (loss::LOGPROBS.into(), sampled.to_vec()),
            (loss::ADVANTAGES.into(), advantages.to_vec()),
            (loss::RATIO_MASK.into(), advantages.iter().map(|&a| f32::from(u8::from(a != 0.0))).collect()),
        ],
    }
}

#[test]
fn losses_and_gradients_are_those_of_the_formulas() {
    let ln = |ratio: f64| ratio.ln() as f32;
    // The ratios of the four tokens are 1.5, 0.5, 1.5 and 0.5; the fifth token is not in the loss.
    let logps = [ln(0.75), ln(0.25), ln(0.75), ln(0.25), ln(0.5)];
    let sampled = [ln(0.5), ln(0.5), ln(0.5), ln(0.5), f32::MIN];
    let a = [2.0, 2.0, -2.0, -2.0, 0.0];
    let datum = sampled_datum(&sampled, &a);
    let range = ClipRange::default();
    let l = |t: usize| f64::from(logps[t]);
    let q = ln(0.5);
    let distance = |t: usize| l(t) - f64::from(q);
    let dro = |t: usize, a: f64| 0.25 * distance(t) * distance(t) - a * l(t);
    // The mean of ln 1.5, ln 0.5, ln 1.5 and ln 0.5.
    let s = 0.75f64.sqrt();
    for (loss, value, gradient) in [
        (TokenLoss::ImportanceSampling, -3.0 - 1.0 + 3.0 + 1.0, [-3.0, -1.0, 3.0, 1.0]),
        (TokenLoss::Ppo(range), -2.4 - 1.0 + 3.0 + 1.6, [0.0, -1.0, 3.0, 0.0]),
        (TokenLoss::Cispo(range), -2.4 * l(0) - 1.6 * l(1) + 2.4 * l(2) + 1.6 * l(3), [-2.4, -1.6, 2.4, 1.6]),
        (
            TokenLoss::Dro { beta: 0.5 },
            dro(0, 2.0) + dro(1, 2.0) + dro(2, -2.0) + dro(3, -2.0),
            [0.5 * distance(0) - 2.0, 0.5 * distance(1) - 2.0, 0.5 * distance(2) + 2.0, 0.5 * distance(3) + 2.0],
        ),
        (TokenLoss::Gspo(range), 0.0, [-2.0 * s, -2.0 * s, 2.0 * s, 2.0 * s]),
        (TokenLoss::Gspo(ClipRange { low: 0.9, high: 1.2 }), -4.0 * s + 3.6, [-2.0 * s, -2.0 * s, 0.0, 0.0]),
    ] {
        let mut d = [f32::NAN; 5];
        let got = loss.evaluate(&datum, &logps, &mut d);
        assert!((got - value).abs() < 1e-6, "{loss:?}: {got}, expected {value}");
        for (got, expected) in d.iter().zip(gradient.iter().chain(&[0.0])) {
            assert!((f64::from(*got) - expected).abs() < 1e-6, "{loss:?}: {d:?}, expected {gradient:?}");
        }
    }
    let mut d = [f32::NAN; 3];
    let datum = next_tokens(&[1, 2, 3], &[0.5, 0.0, -2.0]);
    assert_eq!(TokenLoss::CrossEntropy.evaluate(&datum, &[-1.0, f32::NEG_INFINITY, -3.0], &mut d), 0.5 - 6.0);
    assert_eq!(d, [-0.5, 0.0, 2.0]);
}

#[test]
fn the_smooth_losses_have_the_derivative_of_their_value() {
    let sampled = [-1.0, -2.0, -0.5];
    let datum = sampled_datum(&sampled, &[1.5, -0.5, 0.25]);
    for loss in [TokenLoss::ImportanceSampling, TokenLoss::Dro { beta: 0.7 }] {
        let logps = [-1.25, -1.75, -0.625];
        let mut d = [0.0; 3];
        loss.evaluate(&datum, &logps, &mut d);
        for t in 0..3 {
            let shifted = |by: f32| {
                let mut logps = logps;
                logps[t] += by;
                loss.evaluate(&datum, &logps, &mut [0.0; 3])
            };
            let h = 1.0 / 1024.0;
            let slope = (shifted(h) - shifted(-h)) / (2.0 * f64::from(h));
            assert!((slope - f64::from(d[t])).abs() < 1e-5, "{loss:?}, token {t}: {slope} and {}", d[t]);
        }
    }
}

#[test]
fn cross_entropy_has_the_gradient_of_supervised_training() {
    let mut home = Home::new();
    // Supervised training divides by the number of tokens, 8.
    let w = 1.0 / 8.0;
    let datums = [
        next_tokens(&[1, 2, 3, 4, 5], &[0.0, w, w, w, w]),
        next_tokens(&[1, 2, 9], &[0.0, w, w]),
        next_tokens(&[1, 2, 30], &[0.0, w, w]),
    ];
    let prompt = Prompt::new([1, 2]);
    let sample = |completion: &[u32]| Sample::supervised(prompt.clone(), completion.to_vec());
    let samples = [sample(&[3, 4, 5, 9]), sample(&[9, 9]), sample(&[30, 9])];
    let config = TrainerConfig {
        objective: Objective::Supervised,
        optimizer: OptimizerConfig::default(),
        adapter: Some(home.adapter.current().lora.clone()),
        temperature: 1.0,
        max_tokens_per_micro_batch: 1000,
        prefix_sharing: true,
        skip_zero_gradients: false,
        gradient_checkpointing: false,
        gradient_shares: 1,
    };
    let mut trainer = Trainer::new(home.ctx.memory(), &home.base.config, config).unwrap();
    trainer.gradient(&home.ctx, home.view(), &samples[..]).unwrap();
    let (_, loss, gradient) = home.call(&datums, TokenLoss::CrossEntropy, 1000);
    assert!(gradient.iter().any(|&g| g != 0.0));
    assert_eq!(gradient, values(trainer.grads()));
    assert!((loss / 3.0).is_finite() && loss > 0.0);
}

#[test]
fn log_probabilities_are_those_of_a_scorer_whatever_the_groups() {
    let mut home = Home::new();
    let datums = datums();
    let (logps, ..) = home.call(&datums, TokenLoss::CrossEntropy, 1000);
    let mut scorer = Scorer::new(home.ctx.memory(), 100, true);
    for (datum, logps) in datums.iter().zip(&logps) {
        let completion = [&datum.ids[1..], &[9]].concat();
        let sequence = model::PromptCompletion { prompt: &datum.ids[..1], completion: &completion };
        let scores = scorer.score(&home.ctx, home.view(), &[sequence], 1.0).unwrap();
        assert_eq!(scores[0].logps, *logps);
    }
    let view = ModelView::new(&home.base, Some(home.adapter.current()));
    let without: Vec<Vec<f32>> = split(&datums, 5)
        .iter()
        .flat_map(|part| logprobs(&mut home.passes, &home.ctx, view, &datums, part).unwrap())
        .collect();
    assert_eq!(without, logps);
}

#[test]
fn the_split_into_parts_changes_no_bit() {
    let mut home = Home::new();
    let all: Vec<Datum> = datums().into_iter().cycle().take(12).collect();
    let whole = home.call(&all, TokenLoss::CrossEntropy, 1000);
    for max_tokens in [1, 15, 20] {
        assert!(split(&all, max_tokens).len() > 1);
        assert_eq!(home.call(&all, TokenLoss::CrossEntropy, max_tokens), whole);
    }
}

#[test]
fn datums_with_a_common_beginning_form_groups() {
    let ids = |list: &[&[u32]]| list.iter().map(|ids| next_tokens(ids, &vec![1.0; ids.len()])).collect::<Vec<_>>();
    let of = |list: &[&[u32]]| groups(&ids(list));
    assert_eq!(of(&[]), []);
    assert_eq!(of(&[&[1, 2], &[1, 2], &[1]]), [(0..3, 1)]);
    assert_eq!(of(&[&[1, 2, 3, 4], &[5, 2, 3, 4]]), [(0..1, 4), (1..2, 4)]);
    // The first tokens are common to all four, but each pair has more in common.
    assert_eq!(of(&[&[1, 2, 2, 4, 5], &[1, 2, 2, 4, 6], &[1, 7, 7, 7], &[1, 7, 7, 8]]), [(0..2, 4), (2..4, 3)]);
    // Groups are small enough for a micro-batch.
    let long: Vec<u32> = (0..1000).map(|i| 1 + i % 30).collect();
    let (one, other) = ([&[1, 2][..], &long].concat(), [&[1, 3][..], &long].concat());
    assert_eq!(of(&[&one, &other, &one, &other]), [(0..2, 1), (2..4, 1)]);
    assert_eq!(groups(&vec![next_tokens(&one, &[1.0; 1002]); 9]), [(0..8, 1002), (8..9, 1002)], "8192 targets");
    // Groups do not depend on the number of rows of a part.
    let datums = ids(&[&[1, 2, 3], &[1, 2, 4], &[5, 6], &[5, 7], &[8]]);
    for max_tokens in [1, 5, 8, 100] {
        let parts: Vec<_> = split(&datums, max_tokens).into_iter().flat_map(|part| part.groups).collect();
        assert_eq!(parts, groups(&datums));
    }
}

#[test]
fn several_targets_of_a_row_add_their_losses() {
    let mut home = Home::new();
    let one = next_tokens(&[1, 2, 3], &[0.5, 1.0, 2.0]);
    let other = Datum { targets: vec![7, 8, 7], ..one.clone() };
    let both = Datum {
        targets: vec![2, 7, 3, 8, 9, 7],
        width: 2,
        inputs: vec![(loss::WEIGHTS.into(), vec![0.5, 0.5, 1.0, 1.0, 2.0, 2.0])],
        ..one.clone()
    };
    let (logps, loss, gradient) = home.call(&[both], TokenLoss::CrossEntropy, 100);
    let (first, first_loss, first_gradient) = home.call(&[one], TokenLoss::CrossEntropy, 100);
    let (second, second_loss, second_gradient) = home.call(&[other], TokenLoss::CrossEntropy, 100);
    assert_eq!(logps[0], [first[0][0], second[0][0], first[0][1], second[0][1], first[0][2], second[0][2]]);
    assert!((loss - first_loss - second_loss).abs() < 1e-12);
    let scale = gradient.iter().fold(0f32, |most, g| if g.is_nan() { f32::NAN } else { most.max(g.abs()) });
    for ((both, first), second) in gradient.iter().zip(&first_gradient).zip(&second_gradient) {
        assert!((both - first - second).abs() <= 1e-5 * scale, "{both}: {first} + {second}");
    }
}

#[test]
fn a_step_moves_against_the_gradient_with_its_own_settings() {
    let mut home = Home::new();
    let flat = |home: &Home| {
        let params = &home.adapter.current().params;
        let named = Named { params };
        named.tensors().iter().flat_map(|tensor| named.get(&tensor.name).unwrap()).collect::<Vec<f32>>()
    };
    let before = flat(&home);
    let mut last = f64::INFINITY;
    for (step, learning_rate) in [0.01, 0.02, 0.005].into_iter().enumerate() {
        let (_, loss, _) = home.call(&datums()[3..], TokenLoss::CrossEntropy, 100);
        assert!(loss < last, "step {step}: {loss}, before {last}");
        last = loss;
        let params = AdamParams { learning_rate, ..AdamParams::default() };
        assert!(home.trainer.has_gradient());
        let norm = home.trainer.step(&home.ctx, &mut home.adapter, params).unwrap();
        assert!(norm.finite && norm.norm > 0.0 && !home.trainer.has_gradient());
        assert_eq!((home.trainer.steps(), home.adapter.current().version.0), (step as u64 + 1, step as u64 + 1));
    }
    // AdamW's first step changes each number by the learning rate, whatever the gradient is.
    let mut home = Home::new();
    home.call(&datums()[3..], TokenLoss::CrossEntropy, 100);
    home.trainer
        .step(&home.ctx, &mut home.adapter, AdamParams { learning_rate: 0.5, ..AdamParams::default() })
        .unwrap();
    let moved = flat(&home).iter().zip(&before).filter(|(after, before)| (*after - *before).abs() > 0.49).count();
    assert!(moved > before.len() / 2, "{moved} of {}", before.len());
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing() {
    let mut home = Home::new();
    let mut datum = next_tokens(&[1, 2, 3], &[1.0; 3]);
    datum.inputs[0].1[1] = f32::MAX;
    let (_, loss, _) = home.call(&[datum], TokenLoss::CrossEntropy, 100);
    assert!(loss.is_finite());
    let norm = home.trainer.step(&home.ctx, &mut home.adapter, AdamParams::default()).unwrap();
    assert_eq!((norm.finite, home.trainer.steps(), home.adapter.current().version.0), (false, 0, 0));
}

#[test]
fn a_wrong_datum_is_refused_with_the_field() {
    let model = ModelConfig::parse(CONFIG).unwrap();
    let good = sampled_datum(&[-1.0, -2.0], &[1.0, 1.0]);
    let gspo = Some(TokenLoss::Gspo(ClipRange::default()));
    assert!(good.check(0, &model, gspo).is_ok());
    let with = |change: fn(&mut Datum)| {
        let mut datum = good.clone();
        change(&mut datum);
        datum.check(7, &model, gspo).unwrap_err().to_string()
    };
    assert_eq!(with(|d| d.ids.clear()), "sample 7: the model input has no tokens");
    let targets = "sample 7: expected the same number of targets for each of 2 tokens, got ";
    assert_eq!(with(|d| d.targets.truncate(1)), format!("{targets}1"));
    assert_eq!((with(|d| d.width = 0), with(|d| d.width = 1 << 63)), (format!("{targets}2"), format!("{targets}2")));
    let outside = "sample 7: token id 40 is outside the vocabulary of 40 tokens";
    assert_eq!((with(|d| d.ids[1] = 40), with(|d| d.targets[0] = 40)), (outside.into(), outside.into()));
    assert_eq!(with(|d| drop(d.inputs.remove(1))), "sample 7: the loss needs `advantages`");
    assert_eq!(
        with(|d| d.inputs[0].1.truncate(1)),
        "sample 7: `logprobs` must have one number for each target (2), got 1"
    );
    assert_eq!(with(|d| d.inputs[2].1[0] = f32::NAN), "sample 7: `sequence_ratio_mask` contains NaN");
    // A pass without a loss needs no inputs.
    assert!(Datum { inputs: Vec::new(), ..good }.check(0, &model, None).is_ok());
}
