//! The table of the conditions that raise alarms, each with its threshold. docs/alarms.md explains them.

use rewards::ProblemKind;

/// When a condition is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Every {
    /// After each optimizer step.
    Step,
    /// After new completions have been scored.
    Generation,
}

/// A condition: one row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Condition {
    pub id: &'static str,
    /// The value from which the condition holds.
    pub threshold: f64,
    /// The number of consecutive checks in which the condition must hold before the alarm is raised.
    pub patience: u32,
    pub every: Every,
    pub remedy: &'static str,
}

macro_rules! conditions {
    ($($name:ident $id:literal $threshold:literal $patience:literal $every:ident $remedy:literal;)*) => {
        $(pub const $name: Condition = Condition {
            id: $id, threshold: $threshold, patience: $patience, every: Every::$every, remedy: $remedy,
        };)*
        /// All conditions of the table.
        pub const ALL: &[Condition] = &[$($name),*];
    };
}

conditions! {
    TRUNCATED "truncated" 0.95 3 Generation
        "a higher max_completion_length; a warm-up (sft) that teaches the model to stop; the right eos token";
    ZERO_VARIANCE "zero_variance" 0.9 3 Generation
        "prompts that the model solves sometimes; a reward with partial credit; more num_generations; dynamic_sampling";
    NOTHING_LEARNED "nothing_learned" 1.0 1 Step
        "mask_truncated_completions leaves out truncated completions: a higher max_completion_length, or \
         mask_truncated_completions = false; PPO leaves out those without a score";
    UNKNOWN_TOKENS "tokens_without_text" 0.05 3 Generation
        "the model's vocabulary is larger than the tokenizer's: the right tokenizer, or a warm-up (sft) after which \
         the model does not sample such tokens";
    DIVERGED "diverged" 3.0 3 Step
        "a lower learning_rate; longer warm-up; max_grad_norm; resume from a checkpoint before the divergence";
    MARGIN "margin" 100.0 3 Step
        "a lower learning_rate; a higher beta, which keeps the policy near the reference; fewer epochs";
    ENTROPY "entropy_collapse" 0.1 5 Step
        "a lower learning_rate; epsilon_high = 0.28; an entropy bonus (entropy_coef); a higher temperature";
    KL "kl_blow_up" 1.0 3 Step
        "a lower learning_rate; a higher beta (kl_coef); resume from a checkpoint before the KL divergence rose";
    STALE_REFERENCE "stale_reference" 0.3 3 Step
        "ref_model = the model from which the run begins, or ref_model unset; beta (kl_coef) = 0 if the reference \
         should be another model";
    GRAD_NORM "grad_norm" 10.0 3 Step
        "a lower learning_rate or max_grad_norm; longer warm-up; read the completions of the alarm's first step";
    NOT_FINITE "not_finite" 1.0 1 Step
        "the step was skipped: a lower learning_rate; dtype = \"f32\"; a reward without extreme values";
    UNSCORED "unscored" 0.05 1 Generation
        "nothing is learned from unscored completions: use `lockstep score-rewards` to find out why the reward cannot \
         score them";
    CONSTANT "constant_reward" 1e-8 10 Generation
        "a reward that is equal for all completions teaches nothing: try it with `lockstep score-rewards`, or remove \
         it";
    NO_ANSWER "no_answer" 0.9 3 Generation
        "the model has not learned the format yet, or the prompt does not ask for it: a prompt that describes the \
         format; a warm-up (sft); an additional reward for the format; less `strict`";
    OVERFLOW "reward_overflow" 1.0 1 Generation
        "scores of this size have no finite deviation, and so no advantage: scale the reward";
    NOISE "reward_is_noise" 4.0 5 Generation
        "it may be random, or depend on something other than the completion: score the same completions twice with \
         `lockstep score-rewards`, and read the completions with the best scores";
    CONTRADICTION "contradiction" 1e-8 1 Generation
        "a reward that depends on more than prompt and completion adds noise: remove randomness, time and state from \
         it";
    CUT_SHORT "cut_short" 0.25 3 Generation
        "a higher max_completion_length; mask_truncated_completions = true";
    LENGTH "length_explodes" 2.0 3 Generation
        "the reward may pay for length: read the completions; add the `length` reward with a margin";
    LENGTH_PAID "length_is_paid" 0.9 5 Generation
        "the reward pays for length: read the completions; add the `length` reward with a margin";
    REPETITION "repetition_explodes" 0.2 3 Generation
        "the reward pays for repetition: read the completions; add the `repetition` reward";
    EMPTY_WINS "empty_answer_wins" 0.5 5 Generation
        "the reward pays for an empty answer: fix it, and resume from a checkpoint before this step";
    BROKEN_WINS "broken_text_wins" 0.5 5 Generation
        "the reward pays for text that cannot be parsed: fix it, and resume from a checkpoint before this step";
    ODD_WINS "odd_marks_win" 0.9 5 Generation
        "the reward pays for text that cannot be parsed: fix it, and resume from a checkpoint before this step";
    REPETITION_WINS "repetition_wins" 0.5 5 Generation
        "the reward pays for repetition: fix it, or add the `repetition` reward, and resume from a checkpoint before \
         this step";
    ONE_TEXT_WINS "one_text_wins" 0.75 5 Generation
        "one text earns the best score whatever the prompt: the reward ignores the prompt's answer; fix it";
    TIMED_OUT "reward_timed_out" 1.0 1 Generation
        "a longer timeout_s; smaller batches (by_group = true); a faster reward";
    CRASHED "reward_crashed" 1.0 1 Generation
        "the message gives the cause (for a program, with the last lines of its standard error); run the reward alone \
         with `lockstep score-rewards`";
    BAD_ANSWER "reward_bad_answer" 1.0 1 Generation
        "the output must be one JSON line with a number or null per completion; print debugging output to standard \
         error";
    GIVEN_UP "reward_given_up" 1.0 1 Generation
        "the reward is no longer called: fix it and resume (--resume), or raise max_restarts";
    BAD_DATA "reward_bad_data" 1.0 1 Generation
        "the dataset's column lacks what the reward compares with: fix these rows, or set another column";
    NOT_A_NUMBER "reward_not_finite" 1.0 1 Generation
        "a division by zero or an overflow in the reward: return null for a missing score";
    FAILED "reward_failed" 1.0 1 Generation
        "try the reward on these completions with `lockstep score-rewards`";
}

/// The condition for a kind of reward failure.
pub fn for_problem(kind: ProblemKind) -> &'static Condition {
    match kind {
        ProblemKind::TimedOut => &TIMED_OUT,
        ProblemKind::Crashed => &CRASHED,
        ProblemKind::BadAnswer => &BAD_ANSWER,
        ProblemKind::GivenUp => &GIVEN_UP,
        ProblemKind::BadData => &BAD_DATA,
        ProblemKind::NotFinite => &NOT_A_NUMBER,
        ProblemKind::Failed => &FAILED,
    }
}

/// The condition with this id.
pub fn named(id: &str) -> Option<&'static Condition> {
    ALL.iter().find(|condition| condition.id == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_condition_is_documented_with_its_threshold() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/alarms.md");
        let page = std::fs::read_to_string(page).unwrap();
        for Condition { id, threshold, patience, .. } in ALL {
            let row = page.lines().find(|line| line.starts_with(&format!("| `{id}` |")));
            let row = row.unwrap_or_else(|| panic!("docs/alarms.md has no row of `{id}`"));
            assert!(row.contains(&format!("| {patience} |")), "{row}");
            let percent = format!("{:.0} %", threshold * 100.0);
            assert!(*threshold == 1.0 || row.contains(&percent) || row.contains(&threshold.to_string()), "{row}");
        }
        assert_eq!(page.lines().filter(|line| line.starts_with("| `")).count(), ALL.len());
    }
}
