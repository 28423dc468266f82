//! Supervised fine-tuning: the mean negative log-likelihood of given completions, or of whole texts and conversations
//! from their second token on.

use super::offline::{Loaded, Offline, Row, longest_row};
use crate::bad_input;
use crate::config::{Config, Purpose};
use crate::data::prompt_dataset::{context, encoder};
use crate::data::{Dataset, DatasetSpec, encode_all, encode_completion};
use crate::error::OrBadInput;
use crate::run::learner::Learner;
use crate::stop::StopSignal;
use model::chat::PromptEncoder;
use model::{Head, ModelAssets, Prompt, Scorer};
use rewards::Content;
use telemetry::{Sinks, counted};
use train::{Objective, Sample};

/// Supervised fine-tuning.
pub struct Sft;

impl Offline for Sft {
    type Row = Sample;
    const PURPOSE: Purpose = Purpose::Sft;
    const HEAD: Head = Head::Lm;
    const EVALUATION_METRICS: &'static [&'static str] = &["loss", "entropy", "mean_token_accuracy"];
    const SHOWN_METRICS: &'static [&'static str] = &["loss", "grad_norm"];

    fn objective(_config: &Config) -> Objective {
        Objective::Supervised
    }

    fn load(
        config: &Config,
        mut spec: DatasetSpec,
        assets: &ModelAssets,
        sinks: &Sinks,
    ) -> anyhow::Result<Loaded<Sample>> {
        (spec.needs_completion, spec.whole_texts) = (true, true);
        let data = spec.load()?;
        let encoder = encoder(config, assets)?;
        let most = longest_row(config, assets);
        if data.examples.iter().all(|example| example.completion.is_none()) {
            let (samples, left_out) = whole_texts(&encoder, &data, most, &spec.stop)?;
            return Ok(Loaded { whole: true, ..kept(samples, left_out, data, most, sinks)? });
        }
        let encoded = encode_all(&encoder, &data, config.max_prompt_length, context(config, assets), 1, &spec.stop)?;
        let mut samples = Vec::with_capacity(encoded.prompts.len());
        let mut left_out = encoded.left_out;
        for prompt in &encoded.prompts {
            spec.stop.check()?;
            let completion = encode_completion(&encoder, &data.examples[prompt.row])?;
            match prompt.tokens.ids.len() + completion.len() <= most {
                true => samples.push(Sample::supervised(prompt.tokens.clone(), completion)),
                false => left_out += 1,
            }
        }
        kept(samples, left_out, data, most, sinks)
    }

    /// Of held-out completions the loss, the entropy, and how often the next token is the likeliest one; means over all
    /// tokens.
    fn evaluate(
        _config: &Config,
        learner: &Learner,
        scorer: &mut Scorer,
        rows: &[Sample],
    ) -> anyhow::Result<Vec<(String, f64)>> {
        let compared = scorer.compare(&learner.ctx, &learner.policy.weights, &Sample::sequences(rows))?;
        let tokens: usize = compared.iter().map(|one| one.is_likeliest.len()).sum();
        let mean = |sum: f64| sum / tokens.max(1) as f64;
        let sum: f64 = compared.iter().flat_map(|one| &one.scores.logps).map(|&l| f64::from(l)).sum();
        let entropy: f64 = compared.iter().flat_map(|one| &one.scores.entropies).map(|&h| f64::from(h)).sum();
        let right = compared.iter().flat_map(|one| &one.is_likeliest).filter(|&&right| right).count();
        Ok(vec![
            ("loss".into(), mean(-sum)),
            ("entropy".into(), mean(entropy)),
            ("mean_token_accuracy".into(), mean(right as f64)),
        ])
    }
}

/// Each text with the end token behind it, each conversation as the template renders it: its first token is what the
/// others follow, and every other one is learned. Those that have more than `most` tokens are counted.
fn whole_texts(
    encoder: &PromptEncoder<'_>,
    data: &Dataset,
    most: usize,
    stop: &StopSignal,
) -> anyhow::Result<(Vec<Sample>, usize)> {
    let (mut samples, mut left_out) = (Vec::with_capacity(data.examples.len()), 0);
    for example in &data.examples {
        stop.check()?;
        let nothing = match &example.prompt {
            Content::Text(_) => Content::Text(String::new()),
            Content::Messages(_) => Content::Messages(Vec::new()),
        };
        let place = || format!("{}, row {}", data.name, example.row + 1);
        let mut ids = encoder.encode_answered(&example.prompt, &nothing).or_bad_input_in(place())?;
        if ids.len() < 2 {
            bad_input!("{}: the text has no token to learn after its first one", place());
        }
        if ids.len() > most {
            left_out += 1;
            continue;
        }
        let learned = ids.split_off(1);
        samples.push(Sample::supervised(Prompt::new(ids), learned));
    }
    Ok((samples, left_out))
}

/// The samples, with a line about those that are not among them.
fn kept(
    samples: Vec<Sample>,
    left_out: usize,
    data: Dataset,
    most: usize,
    sinks: &Sinks,
) -> anyhow::Result<Loaded<Sample>> {
    if left_out > 0 {
        sinks.info(&format!(
            "{}: left out: {} longer than {most} tokens (max_length)",
            data.name,
            counted(left_out, "row")
        ));
    }
    if samples.is_empty() {
        bad_input!("{}: every row is longer than max_length = {most}: raise it", data.name);
    }
    Ok(Loaded { rows: samples, hash: data.hash, whole: false })
}
