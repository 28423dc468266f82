//! The list of metrics of preference pairs, time, workers, devices and evaluations.

use super::{Metric, row};

pub(super) const PAIRS_DPO: &[Metric] = &[
    row("rewards/chosen", "", "β × (log π − log π_ref) of the better answers.").healthy("above `rewards/rejected`"),
    row("rewards/rejected", "", "β × (log π − log π_ref) of the worse answers.").healthy("below `rewards/chosen`"),
    row("rewards/accuracies", "share", "Pairs whose better answer has the higher reward.")
        .healthy("above 0.5, and rising")
        .remedy("more data; a higher learning_rate; are the pairs consistent?"),
    row("rewards/margins", "", "Mean difference of the rewards of the better and the worse answer.")
        .healthy("rising; below 100")
        .remedy("a lower learning_rate; a higher beta; fewer epochs"),
    row("logps/chosen", "nats", "Log-probability of the better answers.")
        .healthy("not falling much")
        .remedy("a higher beta; another dpo_loss_type"),
    row("logps/rejected", "nats", "Log-probability of the worse answers."),
    row("logits/chosen", "", "Mean logit of the better answers."),
    row("logits/rejected", "", "Mean logit of the worse answers."),
];

pub(super) const PAIRS_REWARD_MODELS: &[Metric] = &[
    row("accuracy", "share", "Pairs whose better answer scores higher.")
        .healthy("above 0.5, and rising")
        .remedy("more data; a higher learning_rate; are the pairs consistent?"),
    row("margin", "", "Mean difference of the scores of the better and the worse answer.").healthy("rising"),
    row("mean_reward", "", "Mean score of the answers.").healthy("near 0 with center_rewards_coefficient"),
    row("min_reward", "", "The least score of an answer."),
    row("max_reward", "", "The greatest score of an answer."),
];

pub(super) const PROGRESS_AND_TIME: &[Metric] = &[
    row(
        "epoch",
        "epochs",
        "How often the data was read, with the prompts that dynamic sampling drew in place of others.",
    ),
    row("num_tokens", "tokens", "Tokens of prompts and completions so far."),
    row("time_s", "s", "When the line was written, since 1970."),
    row("step_time", "s", "Wall seconds of the step, without evaluations.")
        .healthy("steady")
        .remedy("[profiling](profiling.md) says what takes it"),
    row("rollout_time_s", "s", "Seconds of generation in the step; 0 where the completions were there already."),
    row("prefill_time_s", "s", "Seconds of generation in which the model reads prompts."),
    row("decode_time_s", "s", "Seconds of generation in the model while it writes."),
    row("sampling_time_s", "s", "Seconds of generation in the head and in drawing tokens."),
    row("rollout_tokens_per_s", "tokens/s", "Completion tokens for each second of generation."),
    row("reward_time_s", "s", "Seconds for which the step waited for rewards.")
        .healthy("below a third of step_time")
        .remedy("`by_group = true`; workers; a faster reward"),
    row("reward_hidden_time_s", "s", "Seconds of rewards that were computed during generation."),
    row("ref_time_s", "s", "Seconds in the forward pass of the reference model (`beta > 0`)."),
    row("update_time_s", "s", "Seconds of the update."),
    row("forward_time_s", "s", "Seconds of the update in the forward pass."),
    row("backward_time_s", "s", "Seconds of the update in the backward pass."),
    row("optimizer_time_s", "s", "Seconds of the update in gradient norm and optimizer."),
    row(
        "update_tokens_per_s",
        "tokens/s",
        "Rows of the model for each second of the update; a shared prompt counts once.",
    ),
    row("cpu_time_s", "s", "Processor seconds of all threads in the step (evaluations left out).")
        .healthy("near threads × step_time")
        .remedy("something else computes on the same cores, or a stage waits"),
    row("peak_bytes", "bytes", "The most memory that the process has held.")
        .healthy("below what `lockstep plan` says")
        .remedy("[profiling](profiling.md), `memory_growth`"),
];

pub(super) const WORKERS: &[Metric] = &[
    row(
        "async/lag_mean",
        "versions",
        "How many versions of the weights lie between the one that sampled a token and the one that learns from it; \
         mean.",
    )
    .healthy("up to max_staleness"),
    row(
        "async/lag_max",
        "versions",
        "The most versions of the weights that lie between the one that sampled a token and the one that learns from \
         it.",
    )
    .healthy("up to max_staleness"),
    row("async/learner_wait_s", "s", "Seconds that the learner waited for workers.")
        .healthy("near 0")
        .remedy("more workers; a higher max_staleness"),
    row("async/queue_complete", "groups", "Groups that are there before they are needed.")
        .healthy("above 0")
        .remedy("more workers"),
    row("async/groups_remade", "groups", "Groups that were made again, because a worker was lost; of the whole run.")
        .healthy("few")
        .remedy("is a worker out of memory?"),
    row("async/groups_twice", "groups", "Groups that two workers made.").healthy("few"),
    row("async/groups_differing", "groups", "Groups that two workers made, and whose bits differ.")
        .healthy("0, always")
        .remedy("`lockstep verify` names the worker"),
    row("async/weight_sync_bytes_copied", "bytes", "Bytes of weights that were copied to be published.")
        .healthy("0 in one machine"),
    row("async/bytes_fetched", "bytes", "Bytes that workers fetched over the network."),
];

pub(super) const DEVICES: &[Metric] = &[
    row("device/<stage>/time_s", "s", "Seconds of a stage by the device's own clock."),
    row("device/<stage>/launches", "", "Kernels that a stage launched."),
    row("device/<stage>/copies_in", "", "Copies from the host to the device in a stage."),
    row("device/<stage>/copies_out", "", "Copies from the device to the host in a stage."),
    row("device/<stage>/waits", "", "Times that the host waited for the device in a stage.").healthy("few"),
    row("device/peak_bytes", "bytes", "The most device memory that was held.")
        .healthy("below what `lockstep plan` says")
        .remedy("a smaller micro-batch; bf16; LoRA"),
];

pub(super) const EVALUATION: &[Metric] = &[
    row("eval_reward", "", "Mean weighted total on held-out prompts.")
        .healthy("rising with `reward`")
        .remedy("it has learned the training prompts: more data; fewer epochs"),
    row("eval_reward_std", "", "Standard deviation of the weighted totals on held-out prompts."),
    row("eval_rewards/<name>/mean", "", "Mean of one reward on held-out prompts.").healthy("rising"),
    row("eval_rewards/<name>/std", "", "Standard deviation of one reward on held-out prompts."),
    row("eval_pass@<k>", "share", "Prompts of which one of k completions is right (unbiased estimate).")
        .healthy("rising"),
    row("eval_frac_reward_zero_std", "share", "Prompts whose completions all have the same reward."),
    row("eval_completions/mean_length", "tokens", "Mean length of the completions of held-out prompts."),
    row("eval_completions/min_length", "tokens", "The shortest of them."),
    row("eval_completions/max_length", "tokens", "The longest of them."),
    row("eval_completions/mean_terminated_length", "tokens", "Mean length of completions that ended by themselves."),
    row("eval_completions/min_terminated_length", "tokens", "Length of the shortest completion that ended by itself."),
    row("eval_completions/max_terminated_length", "tokens", "Length of the longest completion that ended by itself."),
    row(
        "eval_completions/clipped_ratio",
        "share",
        "Completions of held-out prompts that were cut at max_completion_length.",
    )
    .healthy("below 0.25")
    .remedy("a higher max_completion_length"),
    row(
        "eval_loss",
        "",
        "The loss on held-out rows. As `loss`, it says little of a policy gradient (grpo, rloo, ppo).",
    )
    .healthy("falling, near `loss` (sft, dpo, reward)")
    .remedy("it has learned the training rows: more data; fewer epochs"),
    row("eval_entropy", "nats", "Entropy on held-out rows, or of completions of held-out prompts."),
    row("eval_kl", "nats", "As `kl`, of completions of held-out prompts."),
    row(
        "eval_clip_ratio/<which>",
        "share",
        "As `clip_ratio/…`, of completions of held-out prompts, which are the policy's own.",
    )
    .healthy("0"),
    row("eval_cispo_clip_ratio", "share", "As `cispo_clip_ratio`, of completions of held-out prompts."),
    row("eval_vespo/phi_seq_mean", "", "As `vespo/phi_seq_mean`, of completions of held-out prompts.").healthy("1"),
    row("eval_policy_loss", "", "`eval_loss` without its entropy bonus."),
    row("eval_entropy_coef", "", "The weight of the entropy bonus in `eval_loss`."),
    row("eval_mean_token_accuracy", "share", "How often the next token is the likeliest one, on held-out rows.")
        .healthy("rising"),
    row("eval_rewards/chosen", "", "β × (log π − log π_ref) of the better answers of held-out pairs."),
    row("eval_rewards/rejected", "", "β × (log π − log π_ref) of the worse answers of held-out pairs."),
    row("eval_rewards/accuracies", "share", "Held-out pairs whose better answer has the higher reward.")
        .healthy("above 0.5")
        .remedy("more data; fewer epochs"),
    row(
        "eval_rewards/margins",
        "",
        "Mean difference of the rewards of the better and the worse answer of held-out pairs.",
    )
    .healthy("rising"),
    row("eval_logps/chosen", "nats", "Log-probability of the better answers of held-out pairs."),
    row("eval_logps/rejected", "nats", "Log-probability of the worse answers of held-out pairs."),
    row("eval_logits/chosen", "", "Mean logit of the better answers of held-out pairs."),
    row("eval_logits/rejected", "", "Mean logit of the worse answers of held-out pairs."),
    row("eval_accuracy", "share", "Held-out pairs whose better answer scores higher (reward models).")
        .healthy("above 0.5")
        .remedy("more data; fewer epochs"),
    row("eval_margin", "", "Mean difference of the scores of the better and the worse answer of held-out pairs."),
    row("eval_mean_reward", "", "Mean score of the answers of held-out pairs."),
    row("eval_min_reward", "", "The least score of an answer of held-out pairs."),
    row("eval_max_reward", "", "The greatest score of an answer of held-out pairs."),
    row("eval_brier_score", "", "Mean square of 1 − the probability that the model gives the better answer.")
        .healthy("below 0.25")
        .remedy("more data"),
    row(
        "eval_calibration_error",
        "",
        "How far the probability that the model gives the better answer is from how often it is right.",
    )
    .healthy("below 0.1")
    .remedy("fewer epochs"),
    row("eval_num_tokens", "tokens", "Tokens of training before the evaluation."),
    row("eval_runtime", "s", "Seconds of the evaluation.")
        .healthy("well below those of the steps between two")
        .remedy("a higher eval_steps; fewer rows"),
    row("eval_samples_per_second", "rows/s", "Held-out rows for each second."),
];
