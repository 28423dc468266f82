//! The list of metrics of learning: the meaning of each, its unit, healthy values, and remedies.

use super::more::*;
use super::{Metric, Section, row};

/// All metrics, in sections by subject. If a name fits two entries, the first one applies.
pub const SECTIONS: &[Section] = &[
    Section { title: "Reward", of: "train (GRPO and its relatives, PPO)", metrics: REWARD },
    Section { title: "Completions", of: "train", metrics: COMPLETIONS },
    Section { title: "Loss and gradient", of: "every run", metrics: LOSS_AND_GRADIENT },
    Section { title: "Sampler and trainer", of: "train", metrics: SAMPLER_AND_TRAINER },
    Section { title: "PPO", of: "train with algorithm = \"ppo\"", metrics: PPO },
    Section { title: "Pairs: DPO", of: "dpo", metrics: PAIRS_DPO },
    Section { title: "Pairs: reward models", of: "reward", metrics: PAIRS_REWARD_MODELS },
    Section { title: "Progress and time", of: "every run", metrics: PROGRESS_AND_TIME },
    Section { title: "Workers", of: "train with max_staleness or --distributed", metrics: WORKERS },
    Section { title: "Devices", of: "runs on a GPU", metrics: DEVICES },
    Section {
        title: "Evaluation",
        of: "runs with eval_strategy; of a set of eval_datasets as `eval_<set>_…`",
        metrics: EVALUATION,
    },
];

const REWARD: &[Metric] = &[
    row("reward", "", "Mean weighted sum of the rewards, over the completions that were scored.")
        .healthy("rising")
        .remedy("read the rollouts; `lockstep score-rewards`; a higher learning_rate if the reward does not change"),
    row("reward_std", "", "Standard deviation over the batch of the weighted sum of the rewards.")
        .healthy("above 0")
        .remedy("a reward with partial credit; prompts that the model sometimes solves"),
    row("reward_p<percent>", "", "The 10th, 50th and 90th percentile of the weighted sum of the rewards.")
        .healthy("p90 above p10")
        .remedy("as `reward_std`"),
    row(
        "frac_reward_zero_std",
        "share",
        "Completions in groups whose rewards are all equal. Their advantage is 0, so nothing is learned from them.",
    )
    .healthy("below 0.75")
    .remedy(
        "`dynamic_sampling`; more num_generations; easier or harder prompts; reward weights with which rewards do not \
         cancel out",
    ),
    row("rewards/<name>/mean", "", "Mean of one reward, without its weight.")
        .healthy("rising")
        .remedy("test the reward on recorded completions: `lockstep score-rewards`"),
    row("rewards/<name>/std", "", "Standard deviation of one reward over the batch, without its weight.")
        .healthy("above 0")
        .remedy("a reward that differs between completions: equal scores teach nothing"),
    row("rewards/<name>/no_answer", "share", "Completions in which a grader found no answer at all.")
        .healthy("below 0.9, and falling")
        .remedy("a prompt that states the format of the answer; a warm-up (sft)"),
    row(
        "rewards/<name>/gil_wait_s",
        "s",
        "Mean seconds per call that a Python reward function waited for the interpreter's lock (GIL).",
    )
    .healthy("near 0")
    .remedy("`interpreter_lock` in [profiling](profiling.md)"),
    row(
        "rewards/<name>/gil_held_s",
        "s",
        "Mean seconds per call that a Python reward function held the interpreter's lock (GIL).",
    ),
    row("rewards/<name>/<metric>", "", "A metric that the reward itself reports."),
    row("sampling_profiles/<name>/reward", "", "Mean reward of the groups of a sampling profile.").healthy("rising"),
    row("sampling_profiles/<name>/mean_length", "tokens", "Mean length of the completions of a sampling profile."),
];

const COMPLETIONS: &[Metric] = &[
    row("completions/mean_length", "tokens", "Mean length of the completions.")
        .healthy("steady, or as the task requires")
        .remedy("the `length` reward if the length keeps growing"),
    row("completions/min_length", "tokens", "Length of the shortest completion."),
    row("completions/max_length", "tokens", "Length of the longest completion."),
    row("completions/p<percent>_length", "tokens", "The 10th, 50th and 90th percentile of the lengths of completions.")
        .healthy("p90 below max_completion_length")
        .remedy("as `completions/clipped_ratio`"),
    row(
        "completions/mean_terminated_length",
        "tokens",
        "Mean length of the completions that ended by themselves; missing if none did.",
    ),
    row("completions/min_terminated_length", "tokens", "Length of the shortest completion that ended by itself."),
    row("completions/max_terminated_length", "tokens", "Length of the longest completion that ended by itself."),
    row("completions/clipped_ratio", "share", "Completions that were truncated at max_completion_length.")
        .healthy("below 0.25")
        .remedy("a higher max_completion_length; the right eos token; a warm-up that teaches the model to end"),
    row("dynamic_sampling/rounds", "", "Number of times that prompts were drawn until the batch was full.")
        .healthy("near 1")
        .remedy("prompts that the model sometimes solves"),
    row(
        "dynamic_sampling/groups_replaced",
        "groups",
        "Groups that were replaced by other prompts, because their rewards were all equal.",
    ),
    row(
        "dynamic_sampling/groups_without_spread",
        "groups",
        "Groups that stayed in the batch although their rewards are all equal.",
    )
    .healthy("0")
    .remedy("more dynamic_sampling_max_rounds"),
    row(
        "dynamic_sampling/reward",
        "",
        "Mean reward of all generated groups, including those that were replaced; `reward` is the mean of the kept \
         groups.",
    )
    .healthy("rising"),
];

const LOSS_AND_GRADIENT: &[Metric] = &[
    row(
        "loss",
        "",
        "The loss that was minimised. In GRPO it is near 0 by construction, and its size says little; supervised and \
         DPO losses fall.",
    )
    .healthy("finite")
    .remedy("`not_finite` and `diverged` are alarms"),
    row("grad_norm", "", "L2 norm of the gradient over all parameters, before clipping.")
        .healthy("within ten times its median")
        .remedy("a lower learning_rate; longer warm-up; max_grad_norm"),
    row("learning_rate", "", "The learning rate of the step."),
    row("entropy", "nats", "Mean entropy of the model at the tokens in the loss.")
        .healthy("above 0.1; falling slowly")
        .remedy("an entropy bonus (entropy_coef); epsilon_high = 0.28; a higher temperature; a lower learning_rate"),
    row(
        "entropy_p<percent>",
        "nats",
        "The 10th, 50th and 90th percentile of the sampler's entropy over tokens (`record_entropies = true`).",
    )
    .healthy("p90 well above 0")
    .remedy("as `entropy`"),
    row(
        "logprob_p<percent>",
        "nats",
        "The 10th, 50th and 90th percentile of the sampler's log-probability over tokens.",
    ),
    row(
        "kl",
        "nats",
        "Mean KL divergence to the reference model per token, with the estimator of the loss (k3); in RLOO and \
         REINFORCE++, with the reward's estimator.",
    )
    .healthy("below 1")
    .remedy("a higher beta; a lower learning_rate"),
    row("clip_ratio/low_mean", "share", "Tokens whose ratio was clipped at the lower bound.")
        .healthy("below 0.2; 0 on policy")
        .remedy("a lower learning_rate; fewer num_iterations"),
    row(
        "clip_ratio/low_min",
        "share",
        "The smallest share of tokens in a sequence whose ratio was clipped at the lower bound.",
    ),
    row("clip_ratio/high_mean", "share", "Tokens whose ratio was clipped at the upper bound.")
        .healthy("below 0.2; 0 on policy")
        .remedy("a lower learning_rate; fewer num_iterations"),
    row(
        "clip_ratio/high_max",
        "share",
        "The largest share of tokens in a sequence whose ratio was clipped at the upper bound.",
    ),
    row("clip_ratio/region_mean", "share", "Tokens whose ratio was clipped at either bound.")
        .healthy("below 0.2; 0 on policy")
        .remedy("a lower learning_rate; fewer num_iterations"),
    row("cispo_clip_ratio", "share", "Tokens whose weight CISPO clipped.")
        .healthy("below 0.2")
        .remedy("a lower learning_rate; longer warm-up; max_grad_norm"),
    row("vespo/phi_seq_mean", "", "Mean weight that VESPO gives a sequence.").healthy("near 1 on policy"),
    row("policy_loss", "", "The loss without its entropy bonus."),
    row("entropy_coef", "", "The weight of the entropy bonus after this step."),
    row(
        "skipped_steps",
        "steps",
        "Optimizer steps that were skipped in the whole run, because the loss or gradient was not finite.",
    )
    .healthy("0")
    .remedy("a lower learning_rate; dtype = \"f32\"; a reward without extreme values"),
    row(
        "update/skipped_groups",
        "groups",
        "Groups that were skipped in the update, because their gradient is known to be 0.",
    )
    .healthy("few")
    .remedy("as `frac_reward_zero_std`"),
    row(
        "update/skipped_tokens",
        "tokens",
        "Tokens of the skipped groups that the model did not have to compute; a shared prompt counts once, and the \
         last token of a completion does not count.",
    ),
    row(
        "mean_token_accuracy",
        "share",
        "Tokens of the data that are the model's most likely next token (supervised and DPO).",
    )
    .healthy("rising"),
    row("distillation/reverse_kl", "nats", "Mean of log π − log π_teacher over the sampled tokens.")
        .healthy("falling")
        .remedy("a higher learning_rate or distillation_coef"),
];

const SAMPLER_AND_TRAINER: &[Metric] = &[
    row(
        "sampling/logp_mismatch_tokens",
        "tokens",
        "Tokens whose recorded log-probability differs in any bit from the trainer's, in sequences that were sampled \
         with the weights of the step and whose forward pass was computed.",
    )
    .healthy("0, always")
    .remedy("report it: this is a bug in Lockstep"),
    row(
        "sampling/logp_compared_tokens",
        "tokens",
        "Tokens whose recorded log-probability was compared with the trainer's. They are in groups that always get a \
         forward pass (one in 64).",
    )
    .healthy("above 0 in on-policy steps with such a group"),
    row(
        "sampling/max_logp_difference",
        "nats",
        "The largest difference between a recorded log-probability and the trainer's; missing if none were compared.",
    )
    .healthy("0, always")
    .remedy("report it"),
    row(
        "sampling/activation_mismatch_rows",
        "tokens",
        "Tokens whose activations, kept from the rollout, differ in any bit from a forward pass, among the groups that \
         are checked (one in 64).",
    )
    .healthy("0, always")
    .remedy("report it; rollout_activations = \"off\""),
    row(
        "sampling/importance_sampling_ratio/min",
        "",
        "The smallest importance ratio between trainer and sampler, if the loss corrects for it.",
    )
    .healthy("near 1")
    .remedy("fewer steps per generation; a lower max_staleness"),
    row(
        "sampling/importance_sampling_ratio/mean",
        "",
        "The mean importance ratio between trainer and sampler, if the loss corrects for it.",
    )
    .healthy("near 1")
    .remedy("fewer steps per generation; a lower max_staleness"),
    row(
        "sampling/importance_sampling_ratio/max",
        "",
        "The largest importance ratio between trainer and sampler, if the loss corrects for it.",
    )
    .healthy("near 1")
    .remedy("fewer steps per generation; a lower max_staleness"),
    row(
        "sampling/importance_sampling_ratio/bounded",
        "share",
        "Importance ratios between trainer and sampler that exceeded their bound.",
    )
    .healthy("below 0.1")
    .remedy("fewer steps per generation; a lower max_staleness"),
    row(
        "sampling/sampling_logp_difference/mean",
        "nats",
        "Mean absolute difference between the sampler's and the old policy's log-probabilities.",
    )
    .healthy("near 0"),
    row(
        "sampling/sampling_logp_difference/max",
        "nats",
        "The largest absolute difference between the sampler's and the old policy's log-probabilities.",
    ),
];

const PPO: &[Metric] = &[
    row(
        "objective/kl",
        "nats",
        "KL divergence from the reference model, summed over a completion; mean over completions.",
    )
    .healthy("below 1 per token")
    .remedy("a higher kl_coef; a lower learning_rate"),
    row("objective/kl_coef", "", "The coefficient of the KL divergence from the reference model (`objective/kl`)."),
    row("objective/entropy", "nats", "Mean negative log-probability of a completion under the old policy.")
        .healthy("above 0")
        .remedy("as `entropy`"),
    row(
        "objective/non_score_reward",
        "",
        "The penalty for the KL divergence, summed over a completion; mean over completions.",
    )
    .healthy("near 0")
    .remedy("a lower kl_coef"),
    row(
        "objective/rlhf_reward",
        "",
        "The score plus the (negative) penalty for the KL divergence: the quantity that PPO maximises.",
    )
    .healthy("rising"),
    row("objective/scores", "", "Mean score of the completions.").healthy("rising"),
    row(
        "policy/approxkl_avg",
        "nats",
        "Half the mean square of log r, which measures how far the policy moved within the generation.",
    )
    .healthy("below 0.05")
    .remedy("a lower learning_rate; fewer num_ppo_epochs; target_kl"),
    row("policy/clipfrac_avg", "share", "Tokens whose ratio was clipped.")
        .healthy("below 0.3")
        .remedy("a lower learning_rate; fewer num_ppo_epochs"),
    row("policy/entropy_avg", "nats", "Mean entropy of the policy.").healthy("above 0.1").remedy("as `entropy`"),
    row(
        "policy/early_stop",
        "",
        "1 if the generation was discarded because the policy moved beyond 1.5 × target_kl, otherwise 0.",
    )
    .healthy("mostly 0")
    .remedy("a lower learning_rate"),
    row("loss/policy_avg", "", "The clipped loss of the policy.").healthy("finite"),
    row("loss/value_avg", "", "The clipped loss of the value model.")
        .healthy("falling")
        .remedy("a higher value_learning_rate; more warm-up"),
    row("val/clipfrac_avg", "share", "Values of the value model that were clipped.")
        .healthy("below 0.3")
        .remedy("a higher cliprange_value"),
    row("val/ratio", "", "Mean importance ratio of the policy.").healthy("near 1").remedy("a lower learning_rate"),
    row(
        "val/explained_variance",
        "",
        "1 − Var(return − value) / Var(return): the share of the returns' variance that the value model explains.",
    )
    .healthy("above 0, and rising")
    .remedy("a higher value_learning_rate; a value model that is initialised from a reward model"),
    row("val/grad_norm", "", "Gradient norm of the value model.")
        .healthy("within ten times its median")
        .remedy("a lower learning_rate; longer warm-up; max_grad_norm"),
    row("values_time_s", "s", "Seconds in the forward pass of the value model."),
    row("value_update_time_s", "s", "Seconds in the update of the value model."),
];
