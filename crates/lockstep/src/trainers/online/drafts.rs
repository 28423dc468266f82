//! What completions are guessed from outlives a process: a file of the run, beside its checkpoints and in none of them,
//! since no bit depends on it. A run that lacks it, or finds it damaged, guesses less until an epoch has passed.

use super::RolloutPipeline;
use crate::run::training::TrainingRun;

/// The file.
const FILE: &str = "drafts.bin";

impl RolloutPipeline {
    /// Writes it, as a checkpoint is written.
    pub fn keep_drafts(&self, run: &TrainingRun) {
        let bytes = self.collector.as_ref().map_or_else(Vec::new, |collector| collector.drafts());
        if bytes.is_empty() {
            return;
        }
        let root = run.checkpoints.dir.root();
        let new = root.join(format!(".{FILE}.{}.partial", std::process::id()));
        if let Err(error) = std::fs::write(&new, bytes).and_then(|()| std::fs::rename(&new, root.join(FILE))) {
            let _ = std::fs::remove_file(&new);
            run.log.warn(&format!(
                "{} was not written, and a resumed run will guess less: {error}",
                root.join(FILE).display()
            ));
        }
    }

    /// Takes up what the run has written.
    pub(super) fn restore_drafts(&mut self, run: &TrainingRun) {
        if let Some(collector) = &mut self.collector
            && let Ok(bytes) = std::fs::read(run.checkpoints.dir.root().join(FILE))
        {
            collector.restore_drafts(&bytes);
        }
    }
}
