//! Configuration keys of reward functions, and of the computation of advantages from rewards.

use crate::bad_input;
use crate::config::keys::Config;
use train::MultiObjectiveAggregation;
use train::advantages::process::ProcessRewards;

macro_rules! rewards_keys { ($collect:ident $($rows:tt)*) => { $collect! { $($rows)* "Rewards" {
    /// The rewards: names ("gsm8k"), names with their main option ("format:REGEX", "command:./reward.py"), or tables ({
    /// kind = "length", target = 40 }); "model:DIR" is a reward model, "python:rewards.py:happy_reward" a function in a
    /// file, called as in TRL, "http://HOST/PATH" a service. { kind = "command", command = "./reward.py", by_group =
    /// true } scores each group as soon as it is complete, while other groups are generated. "code:python" runs the
    /// completion's program in a sandbox on the row's tests (docs/rewards.md).
    reward_funcs: Vec<RewardSpec> = Vec::new()
        => OURS.trl_has("an argument of GRPOTrainer and RLOOTrainer").read_by(ONLINE);
    /// One weight for each reward; not set: all 1.
    reward_weights: Option<Vec<f64>> = None => TRL.read_by(ONLINE);
    /// Remove special tokens from the completions that rewards read and logs show, as TRL does. False keeps them,
    /// except end and padding tokens: for models whose think or answer tags are special tokens.
    skip_special_tokens: bool = true => OURS.read_by(ONLINE).on_resume(Warn);
    /// Encode a text prompt and its completion as in the reward model's training, with the tokenizer's special tokens
    /// and the end token. False: the text alone, as in TRL. Conversations always use the chat template.
    reward_model_end_token: bool = false => OURS.read_by(ONLINE).on_resume(Warn);
    /// What a run does if a reward no longer scores: write a checkpoint and end with the error, or continue without
    /// this reward.
    reward_errors: RewardErrors = RewardErrors::Stop => OURS.read_by(ONLINE).on_resume(Free);
    /// Generation batches in a row in which a reward may score nothing, because it fails or because no scorer answers,
    /// before reward_errors applies. It applies at once to a program that may not be started again (max_restarts).
    reward_patience: usize = 3 => OURS.range(at_least(1.0)).read_by(ONLINE).on_resume(Free);
    /// The divisor of group advantages: the group's standard deviation, the batch's, or none.
    scale_rewards: ScaleRewards = ScaleRewards::Group => TRL.read_by(GROUPS);
    /// How several rewards are combined: their weighted sum is normalised within the group; or each is, before they are
    /// summed and normalised within the batch (GDPO; scale_rewards then has no effect).
    multi_objective_aggregation: MultiObjectiveAggregation = MultiObjectiveAggregation::SumThenNormalize
        => TRL.read_by(GROUPS);
    /// How GRPO uses rewards of steps (process rewards): their sum is the completion's reward, or each step has its own
    /// advantage (DeepSeekMath). PPO assigns them to their tokens.
    process_rewards: ProcessRewards = ProcessRewards::Sum => OURS.read_by(GROUPS).on_resume(Warn);
    /// algorithm "rloo": bounds of the summed reward, as [low, high].
    reward_clip_range: Option<Vec<f64>> = None => TRL.read_by(RLOO);
    /// algorithm "rloo": normalise advantages to mean 0 and standard deviation 1 over the batch.
    normalize_advantages: bool = false => TRL.read_by(RLOO);
} } } }
pub(in crate::config) use rewards_keys;

impl Config {
    /// The weight of each reward function; 1 if not set.
    pub fn weights_of_rewards(&self) -> Vec<f64> {
        self.reward_weights.clone().unwrap_or_else(|| vec![1.0; self.reward_funcs.len()])
    }
}

/// A note if all weights are 0. TRL accepts this, too: a user may want to log rewards without learning from them.
pub(crate) fn unweighted(c: &Config) -> Option<String> {
    let weights = c.reward_weights.as_deref().filter(|weights| !weights.is_empty())?;
    weights.iter().all(|weight| *weight == 0.0).then(|| {
        format!(
            "reward_weights = {weights:?}: all weights are 0, so every completion's total reward is 0 and nothing is \
             learned from the rewards; they are only logged"
        )
    })
}

/// Checks the reward keys. `without` is true if the algorithm can learn without rewards.
pub(crate) fn check(c: &Config, without: bool) -> anyhow::Result<()> {
    if let Some(range) = &c.reward_clip_range
        && !matches!(range.as_slice(), [low, high] if low < high)
    {
        bad_input!("`reward_clip_range` must be two numbers, the lower first, but is {range:?}");
    }
    if c.process_rewards == ProcessRewards::PerStep
        && c.multi_objective_aggregation == MultiObjectiveAggregation::NormalizeThenSum
    {
        bad_input!(
            "`process_rewards` = \"per_step\" compares the steps of all rewards, and `multi_objective_aggregation` = \
             \"normalize_then_sum\" compares rewards one by one: choose one of them"
        );
    }
    // A replayed file already contains the rewards of training.
    if c.replay.is_some() && !c.has_eval_data() {
        return Ok(());
    }
    if c.reward_funcs.is_empty() && !without {
        bad_input!(
            "no reward: give --reward gsm8k (or format:REGEX, length:N, exact_match, unique_chars, command:PROGRAM, \
             python:FILE:FUNCTION, model:DIR), or reward_funcs in the configuration"
        );
    }
    if let Some(weights) = &c.reward_weights
        && weights.len() != c.reward_funcs.len()
    {
        bad_input!(
            "`reward_weights` must have one weight per reward: it has {}, and there are {} rewards",
            weights.len(),
            c.reward_funcs.len()
        );
    }
    Ok(())
}
