//! Supervised fine-tuning: the mean negative log-likelihood of given completions.

use super::offline::{Offline, Row, longest_row};
use crate::config::{Config, Purpose};
use crate::data::prompt_dataset::{context, encoder};
use crate::data::{DatasetSpec, encode_all, encode_completion};
use crate::error::BadInput;
use crate::run::training::TrainingRun;
use model::{Head, ModelAssets, Scorer};
use telemetry::Sinks;
use train::{Objective, Sample};

/// Supervised fine-tuning.
pub struct Sft;

impl Offline for Sft {
    type Row = Sample;
    const PURPOSE: Purpose = Purpose::Sft;
    const HEAD: Head = Head::Lm;
    const EVALUATION_METRICS: &'static [&'static str] = &["loss"];
    const SHOWN_METRICS: &'static [&'static str] = &["loss", "grad_norm"];

    fn objective(_config: &Config) -> Objective {
        Objective::Supervised
    }

    fn load(
        config: &Config,
        mut spec: DatasetSpec,
        assets: &ModelAssets,
        sinks: &Sinks,
    ) -> anyhow::Result<(Vec<Sample>, String)> {
        spec.needs_completion = true;
        let data = spec.load()?;
        let encoder = encoder(config, assets)?;
        let encoded = encode_all(&encoder, &data, config.max_prompt_length, context(config, assets), 1)?;
        let most = longest_row(config, assets);
        let mut samples = Vec::with_capacity(encoded.prompts.len());
        let mut left_out = encoded.left_out;
        for prompt in &encoded.prompts {
            let completion = encode_completion(&encoder, &data.examples[prompt.row])?;
            match prompt.tokens.ids.len() + completion.len() <= most {
                true => samples.push(Sample::supervised(prompt.tokens.clone(), completion)),
                false => left_out += 1,
            }
        }
        if left_out > 0 {
            sinks.info(&format!("{}: {left_out} rows are longer than allowed and were left out", data.name));
        }
        if samples.is_empty() {
            return Err(BadInput::new(format!(
                "{}: every row is longer than max_length = {most}: raise it",
                data.name
            )));
        }
        Ok((samples, data.hash))
    }

    /// The loss on held-out completions.
    fn evaluate(run: &TrainingRun, scorer: &mut Scorer, rows: &[Sample]) -> anyhow::Result<Vec<(String, f64)>> {
        let scores = scorer.score(&run.ctx, &run.policy.weights, &Sample::sequences(rows), 1.0)?;
        let tokens: usize = scores.iter().map(|s| s.logps.len()).sum();
        let sum: f64 = scores.iter().flat_map(|s| &s.logps).map(|&l| f64::from(l)).sum();
        Ok(vec![("eval_loss".into(), -sum / tokens.max(1) as f64)])
    }
}
