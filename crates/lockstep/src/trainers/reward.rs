//! Trains reward models on pairs of a chosen and a rejected answer. `rollouts/reward_model.rs` uses such a model as a
//! reward.
//!
//! A reward model is a language model whose lm head is replaced by a head with one output (transformers'
//! `…ForSequenceClassification` with one label). The score of a text is the output at its last token that is not
//! padding.

use super::offline::{Loaded, Offline, Row, load_pairs};
use crate::config::{Config, Purpose};
use crate::data::{DatasetSpec, Pair};
use crate::error::BadInput;
use crate::run::learner::Learner;
use model::{Head, ModelAssets, Scorer};
use telemetry::{Sinks, counted};
use train::evaluation::{brier_score, calibration_error};
use train::loss::LossSums;
use train::loss::bradley_terry::ranking;
use train::{Objective, PreferencePair};

/// The training method for reward models.
pub struct RewardModel;

impl Offline for RewardModel {
    type Row = PreferencePair;
    const PURPOSE: Purpose = Purpose::Reward;
    const HEAD: Head = Head::Score(1);
    const EVALUATION_METRICS: &'static [&'static str] =
        &["loss", "accuracy", "margin", "mean_reward", "min_reward", "max_reward", "brier_score", "calibration_error"];
    const SHOWN_METRICS: &'static [&'static str] = &["loss", "accuracy", "margin"];
    const EVALUATES_AT_END: bool = true;
    /// The token whose output is the score.
    const MORE_TOKENS: usize = 1;

    fn objective(config: &Config) -> Objective {
        Objective::Ranking(config.ranking())
    }

    fn load(
        config: &Config,
        spec: DatasetSpec,
        assets: &ModelAssets,
        sinks: &Sinks,
    ) -> anyhow::Result<Loaded<PreferencePair>> {
        let pad = assets.config.pad_token_id;
        let without_padding = |pair: &mut Pair| {
            for (name, ids) in [("chosen", &mut pair.chosen), ("rejected", &mut pair.rejected)] {
                model::scoring::strip_padding(ids, pad);
                if ids.is_empty() {
                    return Err(BadInput::new(format!(
                        "`{name}` has only padding tokens (the tokenizer's pad_token), and so no token to score: add \
                         text, or remove the row"
                    )));
                }
            }
            Ok(())
        };
        load_pairs(config, &spec, assets, sinks, false, without_padding)
    }

    fn describe([train, held_out]: [usize; 2]) -> Option<String> {
        let held_out = if held_out > 0 { format!(", {held_out} held out") } else { String::new() };
        Some(format!("{} to learn from{held_out}", counted(train, "pair")))
    }

    /// Metrics of the model's ranking of held-out pairs: the loss, TRL's training metrics, and the calibration of its
    /// probabilities.
    fn evaluate(
        config: &Config,
        learner: &Learner,
        scorer: &mut Scorer,
        rows: &[PreferencePair],
    ) -> anyhow::Result<Vec<(String, f64)>> {
        let scores = scorer.sequence_scores(&learner.ctx, &learner.policy.weights, &PreferencePair::sequences(rows))?;
        let rewards: Vec<[f64; 2]> = scores.chunks_exact(2).map(|pair| [pair[0].into(), pair[1].into()]).collect();
        let mut sums = LossSums::default();
        for (&rewards, pair) in rewards.iter().zip(rows) {
            ranking(&config.ranking(), rows.len(), rewards, f64::from(pair.margin), &mut sums);
        }
        let differences: Vec<f64> = rewards.iter().map(|[chosen, rejected]| chosen - rejected).collect();
        let loss = (!rows.is_empty()).then_some(("loss", sums.loss));
        let calibration =
            [("brier_score", brier_score(&differences)), ("calibration_error", calibration_error(&differences))];
        let calibration = calibration.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let metrics = loss.into_iter().chain(sums.means.entries()).chain(calibration);
        Ok(metrics.map(|(name, value)| (name.to_owned(), value)).collect())
    }
}
