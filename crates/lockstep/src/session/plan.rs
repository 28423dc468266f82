//! The memory that a run will take, before it starts.

use crate::bad_input;
use crate::config::{Config, Purpose};
use crate::models::{Builder, ModelSource, load_assets};
use crate::run::memory_plan::MemoryPlan;
use crate::stop::StopSignal;
use crate::trainers;
use kernels::Context;
use model::{Head, Sharing};
use telemetry::Sinks;

/// Plans the run of a configuration: of its data, or without any of the longest prompt that it allows. Allocates
/// nothing of it. What is noticed on the way goes to `sinks`. Of a `distributed` run it is the learner's, with a
/// slot for each version of the weights that workers may read.
pub fn plan(purpose: Purpose, config: &Config, distributed: bool, sinks: &Sinks) -> anyhow::Result<MemoryPlan> {
    if config.model_name_or_path.is_none() {
        bad_input!("no model: give --model DIR, or model_name_or_path in the configuration");
    }
    let head = if purpose == Purpose::Reward { Head::Score(1) } else { Head::Lm };
    let source = ModelSource::of(config, head)?;
    let assets = load_assets(&source.dir, head, config.dtype)?;
    let stop = StopSignal::new();
    let mut builder = Builder::new(&Context::meta(), config, None, sinks, &stop);
    builder.sharing = distributed.then_some(Sharing { run: [0; 16], dir: None });
    trainers::plan(purpose, &builder, &source, &assets)
}
