//! Plans the memory that a run will take, before it starts.

use crate::bad_input;
use crate::config::{Config, Purpose};
use crate::models::{Builder, ModelSource, load_assets};
use crate::run::memory_plan::MemoryPlan;
use crate::stop::StopSignal;
use crate::trainers;
use kernels::Context;
use model::chat::PromptTime;
use model::{Head, Sharing};
use telemetry::Sinks;

/// Plans the memory of a configuration's run, from its data, or from the longest prompt that it allows if it has no
/// data. None of that memory is allocated. Messages go to `sinks`. For a `distributed` run this is the learner's
/// memory, with a slot for each version of the weights that workers may read.
pub fn plan(purpose: Purpose, config: &Config, distributed: bool, sinks: &Sinks) -> anyhow::Result<MemoryPlan> {
    if config.model_name_or_path.is_none() {
        bad_input!("no model: give --model DIR, or model_name_or_path in the configuration");
    }
    let head = if purpose == Purpose::Reward { Head::Score(1) } else { Head::Lm };
    let source = ModelSource::of(config, head)?;
    let assets = load_assets(&source.dir, head, config.dtype, PromptTime::now())?;
    let stop = StopSignal::new();
    let mut builder = Builder::new(&Context::meta(), config, None, sinks, &stop);
    builder.sharing = distributed.then_some(Sharing { run: [0; 16], dir: None });
    trainers::plan(purpose, &builder, &source, &assets)
}
