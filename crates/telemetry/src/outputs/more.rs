//! The list of metrics of preference pairs, time, workers, devices and evaluations.

use super::{Metric, row};

pub(super) const PAIRS_DPO: &[Metric] = &[
    row("rewards/chosen", "", "β × (log π − log π_ref) of the chosen answers.").healthy("above `rewards/rejected`"),
    row("rewards/rejected", "", "β × (log π − log π_ref) of the rejected answers.").healthy("below `rewards/chosen`"),
    row("rewards/accuracies", "share", "Pairs whose chosen answer has the higher reward.")
        .healthy("above 0.5, and rising")
        .remedy("more data; a higher learning_rate; are the pairs consistent?"),
    row("rewards/margins", "", "Mean difference between the rewards of the chosen and the rejected answer.")
        .healthy("rising; below 100")
        .remedy("a lower learning_rate; a higher beta; fewer epochs"),
    row("logps/chosen", "nats", "Log-probability of the chosen answers.")
        .healthy("not falling much")
        .remedy("a higher beta; another dpo_loss_type"),
    row("logps/rejected", "nats", "Log-probability of the rejected answers."),
    row("logits/chosen", "", "Mean logit of the chosen answers."),
    row("logits/rejected", "", "Mean logit of the rejected answers."),
];

pub(super) const PAIRS_REWARD_MODELS: &[Metric] = &[
    row("accuracy", "share", "Pairs whose chosen answer scores higher.")
        .healthy("above 0.5, and rising")
        .remedy("more data; a higher learning_rate; are the pairs consistent?"),
    row("margin", "", "Mean difference between the scores of the chosen and the rejected answer.").healthy("rising"),
    row("mean_reward", "", "Mean score of the answers.").healthy("near 0 with center_rewards_coefficient"),
    row("min_reward", "", "The lowest score of an answer."),
    row("max_reward", "", "The highest score of an answer."),
];

pub(super) const PROGRESS_AND_TIME: &[Metric] = &[
    row(
        "epoch",
        "epochs",
        "Number of passes over the data, counting the prompts that dynamic sampling drew as replacements.",
    ),
    row("num_tokens", "tokens", "Tokens of prompts and completions so far."),
    row("time_s", "s", "The time at which the line was written, in seconds since 1970."),
    row("step_time", "s", "Wall seconds of the step, without evaluations.")
        .healthy("steady")
        .remedy("[profiling](profiling.md) shows which stage takes the time"),
    row("rollout_time_s", "s", "Seconds of generation in the step; 0 if its completions were generated earlier."),
    row("prefill_time_s", "s", "Seconds of generation that the model spends on prompts (prefill)."),
    row("decode_time_s", "s", "Seconds of generation that the model spends on sampled tokens (decode)."),
    row("sampling_time_s", "s", "Seconds of generation in the lm head and the sampler."),
    row("rollout_tokens_per_s", "tokens/s", "Completion tokens per second of generation."),
    row("reward_time_s", "s", "Seconds that the step waited for rewards.")
        .healthy("below a third of step_time")
        .remedy("`by_group = true`; workers; a faster reward"),
    row("reward_hidden_time_s", "s", "Seconds of rewards that were computed during generation."),
    row("ref_time_s", "s", "Seconds in the forward pass of the reference model (`beta > 0`)."),
    row("update_time_s", "s", "Seconds of the update."),
    row(
        "rollout_activations_share",
        "share",
        "Token rows of the update whose activations were kept from the rollout, so that they needed no forward pass; \
         missing if `rollout_activations` is off or cannot be used.",
    )
    .healthy("near 1 in the first step on a generation")
    .remedy("more memory, or a size for `rollout_activations`"),
    row("forward_time_s", "s", "Seconds of the update for forward passes and the loss."),
    row("backward_time_s", "s", "Seconds of the update for the backward pass."),
    row("optimizer_time_s", "s", "Seconds of the update for the gradient norm and the optimizer step."),
    row("update_tokens_per_s", "tokens/s", "Token rows per second of the update; a shared prompt counts once."),
    row("cpu_time_s", "s", "CPU seconds of all threads in the step (evaluations left out).")
        .healthy("near threads × step_time")
        .remedy("another program uses the same cores, or a stage waits"),
    row("peak_bytes", "bytes", "Peak memory of the process.")
        .healthy("below what `lockstep plan` says")
        .remedy("[profiling](profiling.md), `memory_growth`"),
];

pub(super) const WORKERS: &[Metric] = &[
    row(
        "async/lag_mean",
        "versions",
        "Mean number of weight versions between the version that sampled a token and the version that is trained on \
         it.",
    )
    .healthy("up to max_staleness"),
    row(
        "async/lag_max",
        "versions",
        "Largest number of weight versions between the version that sampled a token and the version that is trained on \
         it.",
    )
    .healthy("up to max_staleness"),
    row("async/learner_wait_s", "s", "Seconds that the learner waited for workers.")
        .healthy("near 0")
        .remedy("more workers; a higher max_staleness"),
    row("async/queue_complete", "groups", "Groups that are complete before the learner needs them.")
        .healthy("above 0")
        .remedy("more workers"),
    row("async/groups_remade", "groups", "Groups that were recomputed in the whole run, because a worker was lost.")
        .healthy("few")
        .remedy("is a worker out of memory?"),
    row("async/groups_twice", "groups", "Groups that two workers computed.").healthy("few"),
    row("async/groups_differing", "groups", "Groups that two workers computed with different bits.")
        .healthy("0, always")
        .remedy("`lockstep verify` names the worker"),
    row("async/weight_sync_bytes_copied", "bytes", "Bytes of weights that were copied for publishing.")
        .healthy("0 on one machine"),
    row("async/bytes_fetched", "bytes", "Bytes that workers fetched over the network."),
];

pub(super) const DEVICES: &[Metric] = &[
    row("device/<stage>/time_s", "s", "Seconds of a stage by the device's own clock."),
    row("device/<stage>/launches", "", "Kernels that a stage launched."),
    row("device/<stage>/copies_in", "", "Copies from the host to the device in a stage."),
    row("device/<stage>/copies_out", "", "Copies from the device to the host in a stage."),
    row("device/<stage>/waits", "", "Number of times that the host waited for the device in a stage.").healthy("few"),
    row("device/peak_bytes", "bytes", "Peak memory of the device.")
        .healthy("below what `lockstep plan` says")
        .remedy("a smaller micro-batch; bf16; LoRA"),
];

pub(super) const EVALUATION: &[Metric] = &[
    row("eval_reward", "", "Mean weighted sum of the rewards on held-out prompts.")
        .healthy("rising with `reward`")
        .remedy("overfitting to the training prompts: more data; fewer epochs"),
    row("eval_reward_std", "", "Standard deviation of the weighted sum of the rewards on held-out prompts."),
    row("eval_rewards/<name>/mean", "", "Mean of one reward on held-out prompts.").healthy("rising"),
    row("eval_rewards/<name>/std", "", "Standard deviation of one reward on held-out prompts."),
    row("eval_pass@<k>", "share", "Prompts for which at least one of k completions is correct (unbiased estimate).")
        .healthy("rising"),
    row("eval_frac_reward_zero_std", "share", "Prompts whose completions all have the same reward."),
    row("eval_completions/mean_length", "tokens", "Mean length of the completions of held-out prompts."),
    row("eval_completions/min_length", "tokens", "Length of the shortest completion of a held-out prompt."),
    row("eval_completions/max_length", "tokens", "Length of the longest completion of a held-out prompt."),
    row("eval_completions/mean_terminated_length", "tokens", "Mean length of completions that ended by themselves."),
    row("eval_completions/min_terminated_length", "tokens", "Length of the shortest completion that ended by itself."),
    row("eval_completions/max_terminated_length", "tokens", "Length of the longest completion that ended by itself."),
    row(
        "eval_completions/clipped_ratio",
        "share",
        "Completions of held-out prompts that were truncated at max_completion_length.",
    )
    .healthy("below 0.25")
    .remedy("a higher max_completion_length"),
    row(
        "eval_loss",
        "",
        "The loss on held-out rows. Like `loss`, it says little about the progress of policy gradients (grpo, rloo, \
         ppo).",
    )
    .healthy("falling, near `loss` (sft, dpo, reward)")
    .remedy("overfitting to the training rows: more data; fewer epochs"),
    row("eval_entropy", "nats", "Entropy on held-out rows, or of completions of held-out prompts."),
    row("eval_kl", "nats", "Like `kl`, for completions of held-out prompts."),
    row(
        "eval_clip_ratio/<which>",
        "share",
        "Like `clip_ratio/…`, for completions of held-out prompts, which the policy itself sampled.",
    )
    .healthy("0"),
    row("eval_cispo_clip_ratio", "share", "Like `cispo_clip_ratio`, for completions of held-out prompts."),
    row("eval_vespo/phi_seq_mean", "", "Like `vespo/phi_seq_mean`, for completions of held-out prompts.").healthy("1"),
    row("eval_policy_loss", "", "`eval_loss` without its entropy bonus."),
    row("eval_entropy_coef", "", "The weight of the entropy bonus in `eval_loss`."),
    row("eval_mean_token_accuracy", "share", "Tokens of held-out rows that are the model's most likely next token.")
        .healthy("rising"),
    row("eval_rewards/chosen", "", "β × (log π − log π_ref) of the chosen answers of held-out pairs."),
    row("eval_rewards/rejected", "", "β × (log π − log π_ref) of the rejected answers of held-out pairs."),
    row("eval_rewards/accuracies", "share", "Held-out pairs whose chosen answer has the higher reward.")
        .healthy("above 0.5")
        .remedy("more data; fewer epochs"),
    row(
        "eval_rewards/margins",
        "",
        "Mean difference between the rewards of the chosen and the rejected answer of held-out pairs.",
    )
    .healthy("rising"),
    row("eval_logps/chosen", "nats", "Log-probability of the chosen answers of held-out pairs."),
    row("eval_logps/rejected", "nats", "Log-probability of the rejected answers of held-out pairs."),
    row("eval_logits/chosen", "", "Mean logit of the chosen answers of held-out pairs."),
    row("eval_logits/rejected", "", "Mean logit of the rejected answers of held-out pairs."),
    row("eval_accuracy", "share", "Held-out pairs whose chosen answer scores higher (reward models).")
        .healthy("above 0.5")
        .remedy("more data; fewer epochs"),
    row(
        "eval_margin",
        "",
        "Mean difference between the scores of the chosen and the rejected answer of held-out pairs.",
    ),
    row("eval_mean_reward", "", "Mean score of the answers of held-out pairs."),
    row("eval_min_reward", "", "The lowest score of an answer of held-out pairs."),
    row("eval_max_reward", "", "The highest score of an answer of held-out pairs."),
    row(
        "eval_brier_score",
        "",
        "Mean square of 1 − p, where p is the probability that the model assigns to the chosen answer.",
    )
    .healthy("below 0.25")
    .remedy("more data"),
    row(
        "eval_calibration_error",
        "",
        "Mean difference between the probability that the model assigns to the chosen answer and the share of pairs \
         that it ranks correctly.",
    )
    .healthy("below 0.1")
    .remedy("fewer epochs"),
    row("eval_num_tokens", "tokens", "Tokens trained on before the evaluation."),
    row("eval_runtime", "s", "Seconds of the evaluation.")
        .healthy("well below the time of the steps between two evaluations")
        .remedy("a higher eval_steps; fewer rows"),
    row("eval_samples_per_second", "rows/s", "Held-out rows per second."),
];
