//! Remarks about rewards in progress lines: which reward the run waits for, and how many completions timed out.

use std::collections::BTreeMap;

/// A reward that takes less than this many seconds of a step is not slow, regardless of its share.
const SLOW_S: f64 = 1.0;

/// The remarks about rewards in progress lines.
#[derive(Clone, Debug, Default)]
pub struct RewardNotes {
    /// The slow reward of the last generation, with its seconds.
    slow: Option<(String, f64)>,
    /// For each reward, how many completions timed out since the process started. The total is shown because a few
    /// timeouts among many progress lines would be overlooked.
    timed_out: BTreeMap<String, usize>,
    /// The last report: the slow reward, and the counts of timeouts.
    reported: (Option<String>, BTreeMap<String, usize>),
}

impl RewardNotes {
    /// Takes the times of one generation in seconds: of generating, of waiting for rewards, and of each reward by name.
    pub fn waited(&mut self, rollout_s: f64, waited_s: f64, reward_seconds: &BTreeMap<String, f64>) {
        let longest = reward_seconds.iter().max_by(|a, b| a.1.total_cmp(b.1));
        let slow = longest.filter(|_| waited_s > SLOW_S && waited_s > rollout_s);
        self.slow = slow.map(|(name, seconds)| (name.clone(), *seconds));
    }

    /// Adds `completions` timeouts of the reward `reward`.
    pub fn timed_out(&mut self, reward: &str, completions: usize) {
        if completions > 0 {
            *self.timed_out.entry(reward.to_owned()).or_default() += completions;
        }
    }

    /// The remarks as one text; `None` if there are none.
    pub fn text(&self) -> Option<String> {
        let counts: Vec<String> = self.timed_out.iter().map(|(name, count)| format!("{name} {count}")).collect();
        let timed_out = (!counts.is_empty()).then(|| format!("timed out so far: {}", counts.join(", ")));
        let slow = self.slow.iter().map(|(name, seconds)| format!("slow reward {name} {seconds:.1} s"));
        let all: Vec<String> = slow.chain(timed_out).collect();
        (!all.is_empty()).then(|| all.join(" · "))
    }

    /// Whether the slow reward or the counts of timeouts have changed since the last call.
    pub fn is_news(&mut self) -> bool {
        let now = (self.slow.as_ref().map(|(name, _)| name.clone()), self.timed_out.clone());
        std::mem::replace(&mut self.reported, now.clone()) != now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_reward_is_named_if_the_run_waits_for_it() {
        let times = BTreeMap::from([("a".to_owned(), 3.0), ("b".to_owned(), 9.25)]);
        let text = |rollout_s, waited_s, times: &BTreeMap<String, f64>| {
            let mut notes = RewardNotes::default();
            notes.waited(rollout_s, waited_s, times);
            notes.text()
        };
        assert_eq!(text(1.0, 12.0, &times).unwrap(), "slow reward b 9.2 s");
        assert_eq!(text(13.0, 12.0, &times), None);
        assert_eq!(text(0.1, 0.9, &times), None);
        assert_eq!(text(1.0, 12.0, &BTreeMap::new()), None);
    }

    #[test]
    fn timeouts_are_counted_over_the_run() {
        let mut notes = RewardNotes::default();
        notes.timed_out("code", 0);
        assert_eq!(notes.text(), None);
        notes.timed_out("code", 2);
        notes.timed_out("r", 1);
        notes.timed_out("code", 3);
        assert_eq!(notes.text().unwrap(), "timed out so far: code 5, r 1");
        assert!(notes.is_news() && !notes.is_news());
        notes.waited(0.0, 2.0, &BTreeMap::from([("r".to_owned(), 2.0)]));
        assert_eq!(notes.text().unwrap(), "slow reward r 2.0 s · timed out so far: code 5, r 1");
        assert!(notes.is_news());
        notes.waited(0.0, 3.0, &BTreeMap::from([("r".to_owned(), 3.0)]));
        assert!(!notes.is_news(), "it is as slow as before");
    }
}
