//! Metrics of the completions of a generation: lengths and the fraction that was truncated.

use crate::{Completion, FinishReason};
use kernels::mean::{mean, share};

/// The length metrics, with TRL's names: mean, minimum and maximum length of all completions and of those that were
/// not truncated, and the fraction of truncated ones. A metric over no completions is omitted. (If all completions are
/// truncated, TRL logs 0 as the terminated lengths.)
pub fn length_metrics<'a>(completions: impl Iterator<Item = &'a Completion> + Clone) -> Vec<(String, f64)> {
    // As in TRL, tokens from an environment do not count.
    let length = |c: &Completion| c.sampled_tokens() as f64;
    let lengths: Vec<f64> = completions.clone().map(length).collect();
    let terminated: Vec<f64> = completions.filter(|c| c.finish_reason == FinishReason::Stop).map(length).collect();
    let mut metrics = Vec::new();
    for (kind, lengths) in [("", &lengths), ("terminated_", &terminated)] {
        let Some(mean) = mean(lengths.iter().copied()) else { continue };
        metrics.push((format!("completions/mean_{kind}length"), mean));
        let least = lengths.iter().copied().fold(f64::INFINITY, f64::min);
        metrics.push((format!("completions/min_{kind}length"), least));
        metrics.push((format!("completions/max_{kind}length"), lengths.iter().copied().fold(0.0, f64::max)));
    }
    let ended = share(terminated.len(), lengths.len());
    metrics.extend(ended.map(|ended| ("completions/clipped_ratio".to_owned(), 1.0 - ended)));
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completion(tokens: usize, finish_reason: FinishReason) -> Completion {
        Completion {
            generation: 0,
            ids: vec![1; tokens],
            sampled: vec![true; tokens],
            versions: vec![model::Updates(0); tokens],
            columns: model::Columns::default(),
            finish_reason,
        }
    }

    #[test]
    fn length_metrics_distinguish_all_and_terminated_completions() {
        let values = |completions: &[Completion]| -> Vec<f64> {
            length_metrics(completions.iter()).into_iter().map(|(_, value)| value).collect()
        };
        let (stop, cut) = (FinishReason::Stop, FinishReason::Length);
        let all = [completion(2, stop), completion(4, stop), completion(9, cut)];
        assert_eq!(values(&all), [5.0, 2.0, 9.0, 3.0, 2.0, 4.0, 1.0 - 2.0 / 3.0]);
        assert_eq!(values(&all[2..]), [9.0, 9.0, 9.0, 1.0], "all completions are truncated");
        assert_eq!(values(&[completion(0, stop)]), [0.0; 7], "a length of 0 counts");
        let mut played = completion(5, stop);
        played.sampled[1..4].fill(false);
        assert_eq!(values(&[played]), [2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 0.0], "three tokens come from an environment");
    }

    #[test]
    fn length_metrics_have_the_names_of_trl() {
        let names =
            |all: &[Completion]| length_metrics(all.iter()).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        let expected = [
            "completions/mean_length",
            "completions/min_length",
            "completions/max_length",
            "completions/mean_terminated_length",
            "completions/min_terminated_length",
            "completions/max_terminated_length",
            "completions/clipped_ratio",
        ];
        assert_eq!(names(&[completion(2, FinishReason::Stop)]), expected);
        let cut = names(&[completion(2, FinishReason::Length)]);
        assert_eq!(cut, [&expected[..3], &expected[6..]].concat());
        assert!(names(&[]).is_empty());
    }
}
