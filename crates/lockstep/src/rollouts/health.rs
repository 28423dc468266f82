//! Checks that reward functions still score. A run without one of its rewards would silently optimize a different
//! objective, so the run ends.

use super::Rollouts;
use crate::config::{Config, RewardErrors};
use rewards::Problem;

/// The error of a reward function that no longer scores.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct RewardFailed(String);

/// Counts the batches in a row in which a reward function returned no score.
#[derive(Clone, Default)]
pub struct RewardHealth {
    /// For each reward function, the number of batches in a row without a score.
    silent: Vec<usize>,
}

impl RewardHealth {
    /// Counts one batch, in which reward functions reported the errors `problems`. The returned error is the reason why
    /// the run must end.
    ///
    /// A reward function without scores is silent if it reported a failure, or if no other reward function scored
    /// anything either. One of several reward functions may leave a whole batch without scores (`None` in TRL).
    pub fn check(&mut self, rollouts: &Rollouts, problems: &[Problem], config: &Config) -> Result<(), RewardFailed> {
        let scored = rollouts.scored();
        let all = rollouts.completions().count();
        let nobody = scored.iter().all(|(_, n)| *n == 0);
        self.silent.resize(scored.len(), 0);
        for ((name, count), silent) in scored.into_iter().zip(&mut self.silent) {
            let own = || problems.iter().filter(|problem| problem.reward == name);
            let failed = own().map(|problem| problem.rows).sum::<usize>() >= all;
            *silent = if count == 0 && all > 0 && (failed || nobody) { *silent + 1 } else { 0 };
            let fatal = own().find(|problem| problem.fatal);
            if config.reward_errors == RewardErrors::Continue || fatal.is_none() && *silent < config.reward_patience {
                continue;
            }
            let last =
                fatal.or(own().next_back()).map_or("it returned null for every completion", |problem| &problem.message);
            return Err(RewardFailed(match fatal {
                Some(_) => format!("reward `{name}` no longer scores: {last}"),
                None => {
                    let batches = match config.reward_patience {
                        1 => "a batch".to_owned(),
                        n => format!("{n} batches in a row"),
                    };
                    format!("reward `{name}` scored nothing in {batches} (reward_patience): {last}")
                }
            }));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollouts::generation::tests::round;

    /// A batch of two groups of two completions, with the scores of one reward function.
    fn batch(scores: [Option<f64>; 2]) -> Rollouts {
        round(&[(1, scores), (2, scores)])
    }

    fn failed(rows: usize) -> Problem {
        Problem::new("r", rows, "it ended (exit status: 1); the last lines of its standard error:\n  | ImportError")
    }

    #[test]
    fn patience_counts_batches_in_a_row_without_scores() {
        let config = Config { reward_patience: 2, ..Config::default() };
        let mut health = RewardHealth::default();
        let mut check = |scores, problems: &[Problem]| {
            health.check(&batch(scores), problems, &config).map_err(|error| error.to_string())
        };
        assert!(check([None, None], &[failed(4)]).is_ok());
        assert!(check([None, Some(1.0)], &[failed(2)]).is_ok());
        assert!(check([None, None], &[]).is_ok());
        let error = check([None, None], &[failed(4)]).unwrap_err();
        for words in ["`r`", "2 batches in a row", "reward_patience", "exit status: 1", "\n  | ImportError"] {
            assert!(error.contains(words), "`{words}`: {error}");
        }
        assert!(check([None, None], &[]).unwrap_err().contains("null for every completion"));
        // The run continues if `reward_errors` is "continue".
        let config = Config { reward_errors: RewardErrors::Continue, ..config };
        assert!(health.check(&batch([None, None]), &[failed(4)], &config).is_ok());
    }

    #[test]
    fn a_fatal_problem_ends_the_run_at_once() {
        let fatal = Problem { fatal: true, ..failed(4) };
        let config = Config::default();
        let check =
            |config: &Config| RewardHealth::default().check(&batch([None, None]), std::slice::from_ref(&fatal), config);
        assert!(check(&config).unwrap_err().to_string().starts_with("reward `r` no longer scores: it ended"));
        assert!(check(&Config { reward_errors: RewardErrors::Continue, ..config }).is_ok());
    }

    #[test]
    fn one_of_several_rewards_may_leave_a_batch_unscored() {
        let config = Config { reward_patience: 1, ..Config::default() };
        let mut two = batch([Some(1.0), Some(0.0)]);
        two.reward_names.push("other".into());
        two.groups.iter_mut().flat_map(|group| &mut group.completions).for_each(|c| c.rewards.push(None));
        let mut health = RewardHealth::default();
        assert!(health.check(&two, &[], &config).is_ok());
        let other_failed = |rows: usize| Problem { reward: "other".into(), ..failed(rows) };
        assert!(health.check(&two, &[other_failed(3)], &config).is_ok(), "it scored one of four completions");
        assert!(health.check(&two, &[other_failed(1), failed(4), other_failed(3)], &config).is_err());
        assert!(
            health.check(&Rollouts { groups: Vec::new(), ..two.clone() }, &[], &config).is_ok(),
            "a batch without groups"
        );
        let failed = Problem { reward: "other".into(), ..failed(4) };
        let error = health.check(&two, &[failed], &config).unwrap_err().to_string();
        assert!(error.starts_with("reward `other` scored nothing in a batch (reward_patience): it ended"), "{error}");
    }
}
