//! Configuration keys of sampling completions.

use crate::bad_input;
use crate::config::keys::Config;
use crate::error::BadInput;
use model::net::LEAST_TEMPERATURE;

macro_rules! sampling_keys { ($collect:ident $($rows:tt)*) => { $collect! { $($rows)* "Sampling" {
    /// The most tokens of a completion.
    max_completion_length: usize = 512
        => TRL.range(at_least(1.0).at_most(LONG)).read_by(ONLINE).instead(&[(SFT.and(PAIRS), "max_length")]);
    /// The divisor of logits, in sampling and in the loss.
    temperature: f64 = 1.0 => TRL.range(at_least(0.0)).read_by(ONLINE.and(SFT));
    /// Sample from the most likely tokens whose probabilities reach this sum; 1: all. Below 1, a training run's
    /// gradient is biased (docs/algorithms.md, truncated sampling).
    top_p: f64 = 1.0 => TRL.range(above(0.0).at_most(1.0)).read_by(ONLINE).on_resume(Warn);
    /// Sample from this many most likely tokens; 0: all. Above 0, the gradient is biased, as with top_p.
    top_k: usize = 0 => TRL.read_by(ONLINE).on_resume(Warn);
    /// Exclude tokens less likely than this times the most likely token. Above 0, the gradient is biased, as with
    /// top_p.
    min_p: Option<f64> = None => TRL.range(at_least(0.0).at_most(1.0)).read_by(ONLINE).on_resume(Warn);
    /// Makes tokens that already occur in the text less likely (> 1) or more likely (< 1). Unless it is 1, the gradient
    /// is biased, as with top_p.
    repetition_penalty: f64 = 1.0 => TRL.range(above(0.0)).read_by(ONLINE).on_resume(Warn);
    /// Draw fresh prompts in place of groups whose rewards are all equal (DAPO's dynamic sampling).
    dynamic_sampling: bool = false => OURS.read_by(ONLINE.but(PPO)).on_resume(Warn);
    /// The most rounds of generation per batch, including the first; groups that still have equal rewards are kept.
    dynamic_sampling_max_rounds: usize = 10
        => OURS.range(at_least(1.0)).read_by(ONLINE.but(PPO)).needs("dynamic_sampling", "true").on_resume(Warn);
    /// Strings that end a completion; the completion keeps the string.
    stop: Vec<String> = Vec::new() => OURS.trl_has("generation_kwargs.stop_strings").read_by(ONLINE).on_resume(Warn);
    /// Token ids that end a completion, in addition to the model's own.
    stop_token_ids: Vec<u64> = Vec::new()
        => OURS.trl_has("generation_kwargs.eos_token_id").read_by(ONLINE).on_resume(Warn);
    /// transformers' generation arguments: temperature, top_p, top_k, min_p, repetition_penalty, stop_strings,
    /// eos_token_id; each overrides the key of the same meaning.
    generation_kwargs: Map<String, Json> = Map::new() => TRL.read_by(ONLINE).on_resume(Warn);
    /// Profiles by name, with sampling parameters of their own: each has its `share` of the groups (shares sum to 1)
    /// and any of max_completion_length, top_p, top_k, min_p and repetition_penalty. A group's number in the run
    /// decides its profile. Evaluations use no profile.
    sampling_profiles: Map<String, Json> = Map::new() => OURS.read_by(ONLINE).on_resume(Warn);
} } } }
pub(in crate::config) use sampling_keys;

/// Refuses empty stop strings, since every completion would end at once.
pub(in crate::config) fn check_stop(c: &Config) -> anyhow::Result<()> {
    if c.stop.iter().any(String::is_empty) {
        bad_input!("`stop` has an empty string, which would end every completion at once: remove it");
    }
    Ok(())
}

/// Refuses temperatures so small that logits divided by them overflow.
pub(in crate::config) fn check_temperature(c: &Config) -> anyhow::Result<()> {
    if c.temperature != 0.0 && c.temperature < LEAST_TEMPERATURE {
        bad_input!(
            "`temperature` = {:e} must be at least {LEAST_TEMPERATURE:e}, so that logits divided by it do not overflow \
             (1.0 is usual)",
            c.temperature
        );
    }
    Ok(())
}

/// Applies `generation_kwargs`, which name keys as transformers does; each overrides its key, as in TRL.
pub(in crate::config) fn generation_kwargs(c: &mut Config) -> anyhow::Result<()> {
    for (name, value) in std::mem::take(&mut c.generation_kwargs) {
        let bad = |e: String| BadInput::new(format!("`generation_kwargs`: {name}: {e}"));
        let value = toml::Value::try_from(&value).map_err(|e| bad(e.to_string()))?;
        let key = match name.as_str() {
            "temperature" | "top_p" | "top_k" | "min_p" | "repetition_penalty" => name.as_str(),
            "stop_strings" | "stop" => "stop",
            "eos_token_id" => "stop_token_ids",
            "max_new_tokens" => "max_completion_length",
            "do_sample" if value.as_bool() == Some(true) => continue,
            _ => {
                bad_input!(
                    "`generation_kwargs`: {name} is not supported; supported are temperature, top_p, top_k, min_p, \
                     repetition_penalty, stop_strings, eos_token_id, max_new_tokens"
                )
            }
        };
        let key = Config::key(key).ok_or_else(|| bad("no such key".to_owned()))?;
        (key.read)(c, &value).map_err(bad)?;
    }
    Ok(())
}

/// Refuses settings that do not work if batches are generated ahead of the updates (`max_staleness`).
fn check_staleness(c: &Config) -> anyhow::Result<()> {
    let k = c.max_staleness;
    if let (0, Some(tokens)) = (k, c.partial_rollout_tokens) {
        bad_input!(
            "`partial_rollout_tokens` = {tokens} continues completions with newer weights, but with `max_staleness` = \
             0 the newest weights sample every token: set max_staleness to 1 or more, or leave partial_rollout_tokens \
             unset"
        );
    }
    if k > 0 && c.dynamic_sampling {
        bad_input!(
            "`max_staleness` = {k} generates batches ahead, but `dynamic_sampling` must know the rewards of a batch \
             before it draws later prompts: set max_staleness to 0, or dynamic_sampling to false"
        );
    }
    if k > 0 && c.replay.is_some() {
        bad_input!(
            "`max_staleness` = {k} is for generated completions, but `replay` reads them from a file: remove one"
        );
    }
    Ok(())
}

/// Refuses sampling settings from which nothing can be learned. The note warns of a key without effect.
pub(crate) fn check(c: &Config) -> anyhow::Result<Option<String>> {
    if c.temperature == 0.0 {
        bad_input!(
            "`temperature` = 0 makes all completions of a group the same, so that nothing can be learned: set it above \
             0 (1.0 is usual)"
        );
    }
    check_staleness(c)?;
    let tokens = c.partial_rollout_tokens.filter(|&tokens| tokens >= c.max_completion_length);
    let note = |tokens| {
        format!(
            "partial_rollout_tokens = {tokens} has no effect: completions have at most {} tokens",
            c.max_completion_length
        )
    };
    Ok(tokens.map(note))
}
