//! Plans the memory of a run before it starts.

use crate::bad_input;
use crate::config::{Config, Purpose};
use crate::models::{Builder, ModelSource, load_assets};
use crate::run::memory_advice::Replan;
use crate::run::memory_plan::{Available, MemoryPlan, Room};
use crate::stop::StopSignal;
use crate::trainers::{self, Planner};
use kernels::{Context, Device};
use model::chat::PromptTime;
use model::{Head, Sharing};
use telemetry::Sinks;

/// A run whose memory is planned.
pub struct PlannedRun<'a> {
    /// The command of the run.
    pub purpose: Purpose,
    /// The configuration of the run.
    pub config: &'a Config,
    /// Whether workers generate: the plan is then the learner's, with a slot for each version of the weights that
    /// workers may read.
    pub distributed: bool,
    /// The number of ranks that divide the passes of a step.
    pub ranks: usize,
    /// The device of the run.
    pub device: Device,
}

/// Plans the memory of a configuration's run from its data, or without data from the longest allowed prompt. No memory
/// is allocated. Messages go to `sinks`. For a `distributed` run this is the learner's memory.
pub fn plan(purpose: Purpose, config: &Config, distributed: bool, sinks: &Sinks) -> anyhow::Result<MemoryPlan> {
    let run = PlannedRun { purpose, config, distributed, ranks: 1, device: Device::Cpu };
    run.with_planner(&Available::on_host(), sinks, |planner| planner(config))
}

impl PlannedRun<'_> {
    /// Plans the memory, lists for each part the keys that lower it, and checks whether the run fits into the
    /// `available` memory. The second value is an error that tells how to make the run fit.
    pub fn check(
        &self,
        available: &Available,
        sinks: &Sinks,
    ) -> anyhow::Result<(MemoryPlan, Result<(), anyhow::Error>)> {
        self.with_planner(available, sinks, |planner| {
            let on_device = |config: &Config| Ok(planner(config)?.on(self.device));
            let replan = Replan { purpose: self.purpose, config: self.config, resumes: false, plan: &on_device };
            let mut plan = on_device(self.config)?;
            let fits = replan.check(&plan, available);
            replan.name_keys(&mut plan);
            Ok((plan, fits))
        })
    }

    /// Calls `call` with a function that plans configurations of this run, which may take the `available` memory.
    pub(crate) fn with_planner<T>(
        &self,
        available: &Available,
        sinks: &Sinks,
        call: impl FnOnce(&Planner<'_>) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let PlannedRun { purpose, config, distributed, ranks, .. } = *self;
        if config.model_name_or_path.is_none() {
            bad_input!("no model: give --model DIR, or model_name_or_path in the configuration");
        }
        let head = if purpose == Purpose::Reward { Head::Score(1) } else { Head::Lm };
        let source = ModelSource::of(config, head)?;
        let assets = load_assets(&source.dir, head, config.dtype, PromptTime::now())?;
        let stop = StopSignal::new();
        let mut builder = Builder::new(&Context::meta(), config, None, sinks, &stop);
        builder.sharing = distributed.then(Sharing::default);
        builder.ranks = (ranks > 1).then_some((ranks, Sharing::default()));
        let room = Room { device: self.device, available };
        call(&trainers::planner(purpose, &builder, &source, &assets, room)?)
    }
}
