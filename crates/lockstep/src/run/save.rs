//! Saves a checkpoint of a training run: the state of the run, and the state of its task.

use super::checkpoint::Kept;
use super::state::RunState;
use super::task::Task;
use super::training::TrainingRun;

impl TrainingRun {
    /// Starts to write a checkpoint of the current step; [`finish_checkpoint`](Self::finish_checkpoint) waits for it. A
    /// stop request does not cancel work that the checkpoint needs.
    pub(crate) fn save(&mut self, task: &mut dyn Task) -> anyhow::Result<()> {
        if self.checkpoints.has(self.learner.step) {
            return Ok(());
        }
        let _held = self.stop.hold();
        self.finish_checkpoint()?;
        let _span = self.log.stages.span("checkpoint");
        task.complete_state(self)?;
        let state = self.state(task)?;
        let mut writes = self.learner.writers();
        writes.extend(task.write_tensors(&self.learner));
        writes.push(Box::new(move |dir| state.write(dir)));
        let kept = Kept::new(&self.config, self.evaluations.best.as_ref());
        self.checkpoints.start(self.learner.step, writes, kept)
    }

    /// Everything that the next step depends on, except weights and moments.
    fn state(&self, task: &dyn Task) -> anyhow::Result<RunState> {
        let TrainingRun { config, learner, data, log, evaluations, .. } = self;
        Ok(RunState {
            format: RunState::FORMAT,
            step: learner.step,
            weights_version: learner.policy.weights.version(),
            isa: learner.ctx.describe().to_owned(),
            arithmetic: Some(learner.ctx.arithmetic(config.dtype.dtype()).to_owned()),
            data_hash: data.hash.clone(),
            sampler: data.sampler.state(),
            trainer: learner.trainer.state(),
            task: task.state()?,
            num_tokens: data.num_tokens,
            unlogged: log.reporter.unlogged().clone(),
            best: evaluations.best.clone(),
            evaluations_without_improvement: evaluations.without_improvement,
            evaluation_due: evaluations.due,
            alarms: log.alarms.state(),
            log_bytes: log.sinks().checkpoint()?,
        })
    }
}
