//! Direct preference optimization (DPO): a policy learns from pairs of a chosen and a rejected answer, and is kept near
//! its initial model.
//!
//! The reference model is `ref_model`, or else the model of `model_name_or_path`; if that is an adapter, the adapter as
//! it was before training (`ref_adapter`). The reference model's log-probabilities are computed once before training,
//! and again after a resume (with the same bits on the same machine), so no second model stays in memory.

use super::offline::{Loaded, Offline, Row, Rows, load_pairs};
use crate::config::{Config, Purpose};
use crate::data::DatasetSpec;
use crate::error::OrBadInput;
use crate::models::{ModelSource, load_weights, reference_source};
use crate::run::inputs::RunInputs;
use crate::run::learner::Learner;
use model::columns::REF_LOGPS;
use model::peft::load_adapter;
use model::{Head, ModelAssets, ModelView, Scorer};
use telemetry::{Sinks, counted};
use train::loss::dpo::{Answer, pair};
use train::{Means, Objective, PreferencePair};

/// The training method DPO.
pub struct Dpo;

impl Offline for Dpo {
    type Row = PreferencePair;
    const PURPOSE: Purpose = Purpose::Dpo;
    const HEAD: Head = Head::Lm;
    const EVALUATION_METRICS: &'static [&'static str] = &[
        "loss",
        "rewards/chosen",
        "rewards/rejected",
        "rewards/accuracies",
        "rewards/margins",
        "logps/chosen",
        "logps/rejected",
        "logits/chosen",
        "logits/rejected",
        "entropy",
        "mean_token_accuracy",
    ];
    const SHOWN_METRICS: &'static [&'static str] = &["loss", "rewards/margins", "rewards/accuracies"];

    fn objective(config: &Config) -> Objective {
        Objective::Preference(config.dpo())
    }

    fn load(
        config: &Config,
        spec: DatasetSpec,
        assets: &ModelAssets,
        sinks: &Sinks,
    ) -> anyhow::Result<Loaded<PreferencePair>> {
        load_pairs(config, &spec, assets, sinks, true, |_| Ok(()))
    }

    /// The number of rows to score at once: training and held-out rows, since the reference model scores both. The
    /// reference model is freed before the policy is loaded, and uses the buffers of evaluation.
    fn scored([train, held_out]: [usize; 2]) -> usize {
        train.max(held_out)
    }

    fn prepare(
        inputs: &RunInputs,
        (source, assets): (&ModelSource, &ModelAssets),
        scorer: &mut Scorer,
        rows: &mut Rows<PreferencePair>,
    ) -> anyhow::Result<()> {
        let ModelSource { dir, adapter } = reference_source(inputs.config(), source)?;
        let weights = load_weights(&inputs.ctx, &dir, &assets.config)?;
        let adapter =
            adapter.map(|dir| load_adapter(inputs.ctx.memory(), &dir, &weights)).transpose().or_bad_input()?;
        let reference = ModelView::new(&weights, adapter.as_ref());
        let count = rows.train.len() + rows.held_out_rows();
        inputs.sinks.info(&format!("computing the reference's log-probabilities of {}, once", counted(count, "pair")));
        let held_out = rows.held_out.iter_mut().map(|set| &mut set.rows);
        for pairs in [&mut rows.train].into_iter().chain(held_out) {
            let scores = scorer.score(&inputs.ctx, reference, &PreferencePair::sequences(pairs), 1.0)?;
            let responses = pairs.iter_mut().flat_map(|pair| [&mut pair.chosen, &mut pair.rejected]);
            responses.zip(scores).for_each(|(response, scores)| response.columns.set(REF_LOGPS, scores.logps));
        }
        Ok(())
    }

    /// Loss and metrics of the held-out pairs. Entropy and logits are means over all tokens; the token accuracy is a
    /// mean over the tokens of the chosen answers.
    fn evaluate(
        config: &Config,
        learner: &Learner,
        scorer: &mut Scorer,
        rows: &[PreferencePair],
    ) -> anyhow::Result<Vec<(String, f64)>> {
        let compared = scorer.compare(&learner.ctx, &learner.policy.weights, &PreferencePair::sequences(rows))?;
        let (config, mut means) = (config.dpo(), Means::default());
        for (preference, both) in rows.iter().zip(compared.chunks_exact(2)) {
            let responses = [&preference.chosen, &preference.rejected];
            let masks = responses.map(|response| vec![true; response.ids.len()]);
            let [chosen, rejected] = [0, 1].map(|i| Answer {
                logps: &both[i].scores.logps,
                ref_logps: responses[i].columns.ref_logps().unwrap_or_default(),
                mask: &masks[i],
            });
            let loss = pair(&config, [&chosen, &rejected]);
            means.add("loss", loss.value, 1);
            loss.metrics().iter().for_each(|(name, value)| means.add(name, *value, 1));
            for (name, one) in ["logits/chosen", "logits/rejected"].into_iter().zip(both) {
                let tokens = one.mean_logits.len() as u64;
                means.add(name, one.mean_logits.iter().sum(), tokens);
                means.add("entropy", one.scores.entropies.iter().map(|&h| f64::from(h)).sum(), tokens);
            }
            let right = both[0].is_likeliest.iter().filter(|&&right| right).count();
            means.add("mean_token_accuracy", right as f64, both[0].is_likeliest.len() as u64);
        }
        Ok(means.entries().map(|(name, value)| (name.to_owned(), value)).collect())
    }
}
