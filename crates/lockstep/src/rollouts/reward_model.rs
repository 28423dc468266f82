//! The files of a reward model that is one of the rewards of a run: `reward_funcs = ["model:DIR"]`.

use crate::config::{ComputeDType, Config};
use crate::error::{BadInput, OrBadInput};
use crate::models::{ModelSource, load_assets, load_scorer};
use kernels::Context;
use model::{Head, ModelAssets, Scorer};
use rewards::RewardModel;

/// A reward model of which all but the weights has been read.
pub struct Opened {
    name: String,
    found: ModelSource,
    assets: ModelAssets,
}

impl Opened {
    /// Looks into the directory or Hub id `model`.
    pub fn open(name: String, model: &str) -> anyhow::Result<Opened> {
        let found = ModelSource::named(model, Head::Score(1))?;
        let assets = load_assets(&found.dir, Head::Score(1), ComputeDType::F32)?;
        if assets.head_is_new && found.adapter.is_none() {
            return Err(BadInput::new(format!(
                "reward model:{model}: {} is a language model, which gives no scores: make a reward model of it with \
                 `lockstep reward`",
                found.dir.display()
            )));
        }
        Ok(Opened { name, found, assets })
    }

    /// Reads the weights.
    pub fn load(self, config: &Config, ctx: &Context) -> anyhow::Result<RewardModel> {
        let Opened { name, found, assets } = self;
        let weights = load_scorer(ctx, &found.dir, assets.config.compute)?;
        let load = |dir| model::peft::load_adapter(ctx.memory(), dir, &weights).or_bad_input();
        let adapter = found.adapter.as_deref().map(load).transpose()?;
        Ok(RewardModel {
            name,
            ctx: ctx.clone(),
            weights,
            adapter,
            tokenizer: assets.tokenizer,
            template: assets.chat,
            kwargs: config.chat_template_kwargs.clone(),
            scorer: Scorer::new(ctx.memory(), config.micro_batch_tokens(), config.prefix_sharing),
        })
    }
}
