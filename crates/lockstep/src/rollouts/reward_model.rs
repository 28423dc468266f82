//! The files of a reward model that serves as a reward function: `reward_funcs = ["model:DIR"]`.

use crate::config::{ComputeDType, Config};
use crate::error::{BadInput, OrBadInput};
use crate::models::{Builder, Longest, ModelSource, Work, check_base, load_assets, load_scorer};
use crate::stop::StopSignal;
use kernels::Context;
use model::chat::PromptTime;
use model::{Head, ModelAssets, Scorer};
use rewards::RewardModel;
use telemetry::Sinks;

/// A reward model's configuration and tokenizer, without its weights.
pub struct RewardModelFiles {
    name: String,
    source: ModelSource,
    assets: ModelAssets,
}

impl RewardModelFiles {
    /// Reads the reward model's files, except for the weights; `model` is a directory or Hub id. The model's chat
    /// template renders prompts with `time`.
    pub fn open(name: String, model: &str, time: PromptTime) -> anyhow::Result<RewardModelFiles> {
        let source = ModelSource::named(model, Head::Score(1))?;
        let assets = load_assets(&source.dir, Head::Score(1), ComputeDType::F32, time)?;
        if assets.head_is_new && source.adapter.is_none() {
            return Err(BadInput::new(format!(
                "reward model:{model}: {} is a language model, which gives no scores: train a reward model from it \
                 with `lockstep reward`",
                source.dir.display()
            )));
        }
        Ok(RewardModelFiles { name, source, assets })
    }

    /// Loads the reward model as a part of a run, with buffers for at most `work`.
    pub fn build(&self, builder: &mut Builder<'_>, work: Work) -> anyhow::Result<RewardModel> {
        let ctx = builder.part(&format!("reward {}", self.name));
        let mut model = self.load(builder.config, &ctx, builder.sinks, builder.stop)?;
        let RewardModel { weights, scorer, .. } = &mut model;
        // The reward model's own tokenizer may produce more tokens, and its input has one more token: the end of
        // sequence.
        let longest = Longest { completion: work.longest.completion + 1, ..work.longest };
        builder.reserve(scorer, &weights.config, Work { longest, ..work });
        Ok(model)
    }

    /// Loads the weights. If the reward model is an adapter, it must have been trained on these base weights. If the
    /// adapter does not record its base, `sinks` receive a warning.
    pub fn load(
        &self,
        config: &Config,
        ctx: &Context,
        sinks: &Sinks,
        stop: &StopSignal,
    ) -> anyhow::Result<RewardModel> {
        let RewardModelFiles { name, source, assets } = self;
        let checks_base = !config.allow_other_base && ctx.memory().has_values();
        if let Some(adapter) = source.adapter.as_deref().filter(|_| checks_base) {
            check_base(adapter, &source.dir, stop, |what| sinks.warn(&format!("reward `{name}`: {what}")))?;
        }
        let weights = load_scorer(ctx, &source.dir, assets.config.compute)?;
        let load = |dir| model::peft::load_adapter(ctx.memory(), dir, &weights).or_bad_input();
        let adapter = source.adapter.as_deref().map(load).transpose()?;
        Ok(RewardModel {
            name: name.clone(),
            ctx: ctx.clone(),
            weights,
            adapter,
            tokenizer: assets.tokenizer.clone(),
            template: assets.chat.clone(),
            kwargs: config.chat_template_kwargs.clone(),
            end_token: config.reward_model_end_token,
            scorer: Scorer::new(ctx.memory(), config.micro_batch_tokens(), config.prefix_sharing),
        })
    }
}
