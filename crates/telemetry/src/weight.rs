//! The weight of an alarm. The page, the report and the terminal sort alarms by it.

use crate::Alarm;
use serde::{Deserialize, Serialize};

/// The weight of an alarm. The variants are in the order in which alarms are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Weight {
    /// The run is not learning its task.
    Broken,
    /// A person should look at the alarm.
    Look,
    /// The alarm is only information, since the configuration or success explains it.
    Note,
}

/// Alarms about completions that earn rewards without solving the task, each with a phrase for headlines. The most
/// significant alarm is first.
const GAMING: [(&str, &str); 7] = [
    ("one_text_wins", "one text wins whatever the prompt"),
    ("repetition_wins", "the winners repeat themselves"),
    ("repetition_explodes", "completions repeat themselves more and more"),
    ("empty_answer_wins", "the winners have no answer"),
    ("broken_text_wins", "the winners cannot be parsed"),
    ("odd_marks_win", "the winners have unmatched marks"),
    ("length_is_paid", "the reward goes with the length"),
];

/// Alarms of a run that cannot learn in its current state, each with a phrase for headlines.
const BROKEN: [(&str, &str); 7] = [
    ("not_finite", "loss or gradient is not finite"),
    ("nothing_learned", "no token is in the loss"),
    ("diverged", "the loss diverges"),
    ("reward_given_up", "a reward is no longer called"),
    ("reward_overflow", "scores overflow"),
    ("stale_reference", "the reference is another model"),
    ("tokens_without_text", "rewards do not see all tokens"),
];

/// Alarms that are normal at the end of learning, when all completions earn the same reward and the policy is certain.
const OF_SUCCESS: [&str; 4] = ["zero_variance", "constant_reward", "entropy_collapse", "grad_norm"];

impl Alarm {
    /// The alarm's weight. `has_learned` is true if the run has improved and then reached a plateau.
    pub fn weight(&self, has_learned: bool) -> Weight {
        let id = self.id.as_str();
        match () {
            () if self.quiet || (has_learned && OF_SUCCESS.contains(&id)) => Weight::Note,
            () if self.gaming().is_some() || BROKEN.iter().any(|(known, _)| *known == id) => Weight::Broken,
            () => Weight::Look,
        }
    }

    /// The phrase for a headline if the alarm is about rewards earned without solving the task; `None` for other
    /// alarms.
    pub fn gaming(&self) -> Option<&'static str> {
        GAMING.iter().find(|(id, _)| *id == self.id).map(|(_, words)| *words)
    }

    /// The phrase for a headline if the alarm is about a run that cannot learn; `None` for other alarms.
    pub fn broken(&self) -> Option<&'static str> {
        BROKEN.iter().find(|(id, _)| *id == self.id).map(|(_, words)| *words)
    }

    /// The sort key of the alarm. Active alarms precede ended ones; then alarms are sorted by weight (gaming before
    /// other causes of a broken run) and by their first step.
    pub fn place(&self, has_learned: bool) -> impl Ord + use<> {
        let gaming = GAMING.iter().position(|(id, _)| *id == self.id).unwrap_or(GAMING.len());
        (self.until.is_some(), self.weight(has_learned), gaming, self.since, self.id.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Step;

    fn alarm(id: &str, since: u64) -> Alarm {
        Alarm { id: id.to_owned(), since: Step(since), ..Alarm::default() }
    }

    #[test]
    fn gaming_alarms_are_listed_first_and_notes_last() {
        let quiet = Alarm { quiet: true, ..alarm("truncated", 1) };
        let over = Alarm { until: Some(Step(9)), ..alarm("one_text_wins", 1) };
        let mut all = vec![
            quiet,
            over,
            alarm("cut_short", 2),
            alarm("not_finite", 8),
            alarm("repetition_wins", 19),
            alarm("zero_variance", 3),
            alarm("one_text_wins", 40),
        ];
        let ids = |all: &[Alarm]| all.iter().map(|alarm| alarm.id.clone()).collect::<Vec<_>>();
        all.sort_by_key(|alarm| alarm.place(false));
        assert_eq!(
            ids(&all),
            [
                "one_text_wins",
                "repetition_wins",
                "not_finite",
                "cut_short",
                "zero_variance",
                "truncated",
                "one_text_wins"
            ]
        );
        all.sort_by_key(|alarm| alarm.place(true));
        assert_eq!(
            ids(&all)[3..6],
            ["cut_short", "truncated", "zero_variance"],
            "after success, zero_variance must be a note"
        );
    }
}
