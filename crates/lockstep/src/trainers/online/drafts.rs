//! Stores the text from which speculative decoding drafts tokens, so that it outlives the process. The file is in the
//! run's directory but outside checkpoints, because no bit of the result depends on it. If the file is missing or
//! damaged, fewer tokens are drafted for one epoch.

use super::RolloutPipeline;
use crate::run::training::TrainingRun;

/// The file name in the run's directory.
const FILE: &str = "drafts.bin";

impl RolloutPipeline {
    /// Writes the file together with a checkpoint. An error is only a warning.
    pub fn keep_drafts(&mut self, run: &TrainingRun) {
        let bytes = self.source.collector().map_or_else(Vec::new, |collector| collector.drafts());
        if bytes.is_empty() {
            return;
        }
        let root = run.checkpoints.dir.root();
        let new = root.join(format!(".{FILE}.{}.partial", std::process::id()));
        if let Err(error) = disk::write(&new, bytes).and_then(|()| disk::rename(&new, root.join(FILE))) {
            let _ = disk::remove_file(&new);
            run.log.warn(&format!(
                "{} was not written, so a resumed run will draft fewer tokens: {error}",
                root.join(FILE).display()
            ));
        }
    }

    /// Restores the text from the file, if the file exists.
    pub(super) fn restore_drafts(&mut self, run: &TrainingRun) {
        if let Some(collector) = self.source.collector()
            && let Ok(bytes) = disk::read(run.checkpoints.dir.root().join(FILE), disk::most::GROUPS)
        {
            collector.restore_drafts(&bytes);
        }
    }
}
