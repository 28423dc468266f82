//! Decides how many activations of a generation are kept for its first update (`rollout_activations`).

use super::inputs::PartInputs;
use crate::config::RolloutActivations;
use crate::models::Builder;
use crate::run::memory_plan::{MemoryPlan, Room};
use model::net::RowStore;
use model::{Capacity, ModelConfig};
use telemetry::counted;

/// `auto` takes the memory that the run leaves free, divided by this.
const DIVISOR: u64 = 2;

/// The reason why no activations are kept; `None` if they can be.
pub(super) fn refusal(builder: &Builder<'_>, inputs: PartInputs<'_>) -> Option<&'static str> {
    let config = builder.config;
    let PartInputs { bounds, only_evaluates, .. } = inputs;
    let cases = [
        (config.rollout_activations == RolloutActivations::Off, "rollout_activations is off"),
        (only_evaluates, "the run only evaluates"),
        (config.replay.is_some(), "the completions come from a file"),
        (bounds.given, "a function of the calling program generates the completions"),
        (builder.sharing.is_some(), "workers generate the completions"),
        (config.max_staleness > 0, "max_staleness > 0: the weights change before the update"),
        (
            config.partial_rollout_tokens.is_some(),
            "partial_rollout_tokens: several versions of the weights generate a completion",
        ),
        (config.use_peft && config.lora_dropout > 0.0, "lora_dropout > 0: the update's forward pass differs"),
    ];
    cases.into_iter().find_map(|(is_so, why)| is_so.then_some(why))
}

/// The largest number of rows (tokens) of a generation, or of this rank's part of it.
pub(super) fn whole(builder: &Builder<'_>, inputs: PartInputs<'_>) -> usize {
    let config = builder.config;
    let lengths = vec![config.max_completion_length; config.num_generations];
    let group = Capacity::for_group(inputs.bounds.longest_prompt, &lengths, config.prefix_sharing);
    config.prompts_per_generation().div_ceil(inputs.generating_ranks(builder)) * group.tokens
}

/// The number of rows to keep, for a run that takes the memory of `plan` without them.
pub(super) fn rows(builder: &Builder<'_>, inputs: PartInputs<'_>, plan: &MemoryPlan, room: Room<'_>) -> usize {
    if refusal(builder, inputs).is_some() {
        return 0;
    }
    let bytes = match builder.config.rollout_activations {
        RolloutActivations::Off => 0,
        RolloutActivations::Bytes(bytes) => bytes,
        RolloutActivations::Auto => plan.left(room) / DIVISOR,
    };
    // Ranks divide the memory.
    let bytes = bytes / inputs.generating_ranks(builder) as u64;
    fitting(&inputs.assets.config, bytes).min(whole(builder, inputs))
}

/// The message at the start of a run about the activations that it keeps.
pub(super) fn line(builder: &Builder<'_>, inputs: PartInputs<'_>) -> String {
    let [whole, rows] = [whole(builder, inputs), inputs.kept_rows].map(|rows| rows * inputs.generating_ranks(builder));
    let mib = |rows: usize| (rows * RowStore::row_bytes(&inputs.assets.config)).div_ceil(1 << 20);
    match refusal(builder, inputs) {
        Some(why) => format!("activations of the rollout are not kept for the update: {why}"),
        None if rows == 0 => {
            format!("activations of the rollout are not kept for the update: no room for {} MiB", mib(whole))
        }
        None if rows < whole => format!(
            "activations kept for the update: {} of at most {whole} ({} of {} MiB)",
            counted(rows, "token"),
            mib(rows),
            mib(whole)
        ),
        None => format!("activations kept for the update: all tokens (at most {} MiB)", mib(whole)),
    }
}

/// The number of rows whose activations fit into `bytes`.
fn fitting(model: &ModelConfig, bytes: u64) -> usize {
    (bytes / RowStore::row_bytes(model) as u64) as usize
}
