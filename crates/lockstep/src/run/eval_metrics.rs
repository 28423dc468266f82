//! Evaluation metrics that user code computes from the model's outputs on held-out rows. The run only handles their
//! names and values.

use super::memory_plan::Available;
use crate::bad_input;
use crate::config::Config;
use crate::error::BadInput;

/// The value at positions after the end of a sequence, as in transformers.
pub const PADDING: f32 = -100.0;

/// Computes metrics of held-out rows, which arrive batch by batch in dataset order.
pub trait EvalMetrics {
    /// Rows in each batch.
    fn batch_size(&self) -> usize;
    /// Whether the outputs of all batches are kept until the end of the evaluation set.
    fn keeps_outputs(&self) -> bool;
    /// Whether the loss of each batch is needed, which takes another forward pass.
    fn needs_loss(&self) -> bool;
    /// Called at the beginning of each evaluation set. `name` is empty for the set of `eval_dataset_name`.
    fn begin(&mut self, name: &str, size: SetSize) -> anyhow::Result<()>;
    /// Takes the next batch of the evaluation set.
    fn batch(&mut self, batch: EvalBatch) -> anyhow::Result<()>;
    /// Called at the end of the evaluation set. Returns its metrics, whose names lack the set's prefix.
    fn end(&mut self) -> anyhow::Result<Vec<(String, f64)>>;
}

/// The size of an evaluation set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetSize {
    /// Rows in the set.
    pub rows: usize,
    /// Sequences in the set: one per row, or two if rows are preference pairs.
    pub sequences: usize,
    /// Tokens of the longest sequence.
    pub longest: usize,
    /// Outputs per token (the vocabulary size); `None` if each sequence has a single score.
    pub vocab: Option<usize>,
}

impl SetSize {
    /// Bytes of the outputs of `rows` rows of the set.
    fn bytes(&self, rows: usize) -> u64 {
        let sequences = (self.sequences / self.rows.max(1) * rows.min(self.rows)) as u64;
        4 * sequences * self.vocab.map_or(1, |vocab| (vocab * self.longest) as u64)
    }

    /// Returns an error if the outputs do not fit into memory in addition to the run's `needed` bytes.
    pub fn check(&self, metrics: &dyn EvalMetrics, available: &Available, needed: u64) -> anyhow::Result<()> {
        let batch_bytes = self.bytes(metrics.batch_size());
        let all = batch_bytes + if metrics.keeps_outputs() { self.bytes(self.rows) } else { 0 };
        let Some(left) = available.host.map(|host| host.saturating_sub(needed)).filter(|&left| left < all) else {
            return Ok(());
        };
        let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
        let SetSize { sequences, longest, vocab, .. } = *self;
        let (shape, left, batch) =
            (format!("[{sequences}, {longest}, {}]", vocab.unwrap_or(1)), mib(left), mib(batch_bytes));
        if metrics.keeps_outputs() {
            bad_input!(
                "the logits of the evaluation, {shape} in f32, take {}, but the run leaves only {left}: use \
                 preprocess_logits_for_metrics, which sees one batch at a time ({batch}), set batch_eval_metrics, or \
                 evaluate fewer rows (eval_max_samples)",
                mib(all)
            );
        }
        bad_input!(
            "the logits of one batch of the evaluation take {batch}, but the run leaves only {left}: lower \
             per_device_eval_batch_size (now {})",
            metrics.batch_size()
        )
    }
}

/// The model's outputs for one batch of held-out rows. There are N sequences, one per row. For preference pairs, the
/// N/2 chosen responses come first, then the N/2 rejected ones.
pub struct EvalBatch {
    /// Token ids of each sequence.
    pub ids: Vec<Vec<u32>>,
    /// For each token of each sequence, whether the loss includes it.
    pub learned: Vec<Vec<bool>>,
    /// Logits of shape `[N, T, V]`, where T is the number of tokens of the longest sequence and V the vocabulary size,
    /// with −100 after the end of a sequence; or scores of shape `[N]`.
    pub outputs: Vec<f32>,
    /// The vocabulary size V; `None` if the outputs are scores.
    pub vocab: Option<usize>,
    /// The token id with which `ids` are padded to an array.
    pub pad: u32,
    /// The mean loss of these rows, if [`EvalMetrics::needs_loss`] asked for it.
    pub loss: Option<f64>,
}

/// The error if the user's own evaluation metrics could not be computed.
#[derive(Debug, thiserror::Error)]
#[error("computing the metrics of the evaluation failed")]
pub struct MetricsFailed;

/// Checks at the start that `metric_for_best_model` names a metric of the evaluations. Otherwise the error would appear
/// only at the first evaluation, possibly hours later.
pub fn check_best_metric(config: &Config, known: &[String]) -> anyhow::Result<()> {
    let Some(name) = &config.metric_for_best_model else { return Ok(()) };
    if known.iter().any(|n| n == name || n.strip_prefix("eval_") == Some(name)) {
        return Ok(());
    }
    Err(no_such_metric(name, &known.iter().map(String::as_str).collect::<Vec<_>>()))
}

/// The error for an unknown `metric_for_best_model`, with the `known` names.
pub fn no_such_metric(name: &str, known: &[&str]) -> anyhow::Error {
    let known = known.join(", ");
    BadInput::new(format!("`metric_for_best_model` = {name}: no such evaluation metric; the metrics are {known}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Metrics that need batches of four rows.
    struct Keeps(bool);

    impl EvalMetrics for Keeps {
        fn batch_size(&self) -> usize {
            4
        }
        fn keeps_outputs(&self) -> bool {
            self.0
        }
        fn needs_loss(&self) -> bool {
            false
        }
        fn begin(&mut self, _name: &str, _size: SetSize) -> anyhow::Result<()> {
            Ok(())
        }
        fn batch(&mut self, _batch: EvalBatch) -> anyhow::Result<()> {
            Ok(())
        }
        fn end(&mut self) -> anyhow::Result<Vec<(String, f64)>> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn outputs_that_do_not_fit_into_memory_are_refused_in_advance() {
        // Pairs: a row has 2 sequences × 64 tokens × 256 entries × 4 bytes = 128 KiB.
        let size = SetSize { rows: 10, sequences: 20, longest: 64, vocab: Some(256) };
        let check = |keeps, kib: u64, size: SetSize| {
            let available = &Available { host: Some((1000 + kib) << 10), ..Available::default() };
            size.check(&Keeps(keeps), available, 1000 << 10).map_err(|error| error.to_string())
        };
        assert_eq!(check(true, (4 + 10) * 128, size), Ok(()));
        let refused = check(true, (4 + 10) * 128 - 1, size).unwrap_err();
        assert!(refused.contains("[20, 64, 256]") && refused.contains("1.8 MiB"), "{refused}");
        assert!(refused.contains("preprocess_logits_for_metrics") && refused.contains("(0.5 MiB)"), "{refused}");
        assert_eq!(check(false, 4 * 128, size), Ok(()), "one batch at a time");
        let refused = check(false, 4 * 128 - 1, size).unwrap_err();
        assert!(refused.contains("per_device_eval_batch_size (now 4)"), "{refused}");
        assert_eq!(check(false, 3 * 128, SetSize { rows: 3, sequences: 6, ..size }), Ok(()), "the set is smaller");
        assert_eq!(check(true, 1, SetSize { vocab: None, ..size }), Ok(()), "scores need almost no memory");
        assert!(size.check(&Keeps(true), &Available::default(), 1).is_ok(), "the available memory is unknown");
    }
}
