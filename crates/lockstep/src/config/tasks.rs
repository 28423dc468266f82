//! Presets of the key `task`, which fill in keys that the user did not set.

use super::resolved::{Origin, Resolved};
use super::values::Task;
use rewards::RewardSpec;

/// The values that a task fills in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Preset {
    /// The column that holds the prompt.
    prompt_column: &'static str,
    /// The column that holds the answer; rewards read it as `answer`.
    answer_column: &'static str,
    /// The system prompt, if the task has one.
    system_prompt: Option<&'static str>,
    /// The reward of training. In an evaluation, a completion is correct if its reward is 1. `None`: the task has
    /// preference pairs, from which a reward model is trained.
    reward: Option<&'static str>,
}

impl Task {
    /// The values that this task fills in.
    fn preset(self) -> Preset {
        match self {
            Task::Gsm8k => Preset {
                prompt_column: "question",
                answer_column: "answer",
                system_prompt: Some(
                    "Solve the problem step by step. End with one line that holds #### and then the answer as a plain \
                     number.",
                ),
                reward: Some("gsm8k"),
            },
            Task::PromptAnswer => Preset {
                prompt_column: "prompt",
                answer_column: "answer",
                system_prompt: None,
                reward: Some("exact_match"),
            },
            Task::Gsm8kSolutions => {
                Preset { prompt_column: "question", answer_column: "answer", system_prompt: None, reward: None }
            }
        }
    }
}

/// Fills in the keys of the task's preset that are not set.
pub(super) fn apply(resolved: &mut Resolved) {
    let Some(task) = resolved.config.task else { return };
    let preset = task.preset();
    let unset = |key: &str| !resolved.is_set(key);
    let (prompt, system, rewards) = (unset("prompt_column"), unset("system_prompt"), unset("reward_funcs"));
    let config = &mut resolved.config;
    if prompt && preset.prompt_column != config.prompt_column {
        config.prompt_column = preset.prompt_column.to_owned();
        resolved.origins.insert("prompt_column", Origin::Task);
    }
    if system && preset.system_prompt.is_some() {
        config.system_prompt = preset.system_prompt.map(str::to_owned);
        resolved.origins.insert("system_prompt", Origin::Task);
    }
    if let (true, Some(reward)) = (rewards, preset.reward) {
        config.reward_funcs = vec![RewardSpec::from(reward)];
        resolved.origins.insert("reward_funcs", Origin::Task);
    }
    if preset.answer_column != "answer" && !config.columns.contains_key("answer") {
        config.columns.insert("answer".to_owned(), preset.answer_column.into());
        resolved.origins.entry("columns").or_insert(Origin::Task);
    }
}
