//! Keys that mean nothing to what is done with them: said, since a run that ignores what it was told looks like one that obeys.

use super::{Config, Key, Origin, Purpose, Resolved};

/// Keys of the other commands that `lockstep train` does not read.
const NOT_OF_TRAIN: [&str; 5] =
    ["completion_column", "max_length", "center_rewards_coefficient", "dpo_loss_type", "label_smoothing"];
/// Sections about completions that are generated and judged.
const OF_COMPLETIONS: [&str; 4] = ["Rewards", "Sampling", "Loss", "PPO"];
/// Keys of other sections about them.
const ABOUT_COMPLETIONS: [&str; 12] = [
    "num_generations",
    "generation_batch_size",
    "steps_per_generation",
    "num_iterations",
    "eval_sampling",
    "num_generations_eval",
    "eval_pass_at_k",
    "log_completions",
    "log_completions_steps",
    "num_completions_to_print",
    "record_rollouts",
    "ref_model",
];

/// What of those sections the others read, or have words of their own about.
fn reads(purpose: Purpose) -> &'static [&'static str] {
    match purpose {
        Purpose::Sft => &["temperature"],
        Purpose::Reward => &["center_rewards_coefficient"],
        _ => &["beta", "dpo_loss_type", "label_smoothing", "loss_type", "ref_model", "sync_ref_model"],
    }
}

/// Notes which keys that were set have no meaning; a supervised run then records no rollouts.
pub(super) fn note(resolved: &mut Resolved, purpose: Purpose) {
    let idle = |key: &&Key| match purpose {
        Purpose::Show => false,
        Purpose::Grpo => NOT_OF_TRAIN.contains(&key.name),
        _ => {
            let about = OF_COMPLETIONS.contains(&key.section) || ABOUT_COMPLETIONS.contains(&key.name);
            about && !reads(purpose).contains(&key.name)
        }
    };
    let default = Config::default();
    // A configuration that a run has written names every key: one that has its default was asked for by nobody.
    let asked = |key: &&Key| {
        let own = matches!(resolved.origin(key.name), Origin::File(_) | Origin::Environment(_) | Origin::Flag);
        own && key.value(&resolved.config) != key.value(&default)
    };
    let names: Vec<&str> = super::KEYS.iter().filter(idle).filter(asked).map(|key| key.name).collect();
    if !names.is_empty() {
        resolved.notes.push(format!("without meaning in `lockstep {}`: {}", purpose.command(), names.join(", ")));
    }
    if !matches!(purpose, Purpose::Show | Purpose::Grpo) {
        resolved.config.record_rollouts = false;
    }
}
