"""Methods of transformers' and TRL's trainers that a subclass, a mixin or a patch may override. Overriding a method
that is never called here is an error."""

from __future__ import annotations

from typing import Any

_OPTIMIZER = (
    "the optimizer is inside the engine: AdamW, set by learning_rate, weight_decay, adam_beta1, adam_beta2 and "
    "adam_epsilon"
)
_SCHEDULE = "the schedule is inside the engine: lr_scheduler_type, warmup_steps"
_ROWS = "the engine loads rows itself, without a data loader"
_LOSS = "the loss is inside the engine: loss_type"
_STEPS = "steps are taken inside the engine: use callbacks"
_EVALUATION = "evaluation is inside the engine: override evaluate, which is called, or use on_evaluate of a callback"
_ROLLOUT = "completions are generated inside the engine: use rollout_func"
_REWARDS = "the engine calls rewards: pass them in reward_funcs"
_CHECKPOINTS = "checkpoints are written and read inside the engine: override save_model, which is called for each"
_ENGINE = "the engine trains: it is never called"

# Methods that are never called here, each with the reason.
REFUSED_METHODS: dict[str, str] = {
    name: why
    for why, names in {
        _ROWS: "get_train_dataloader get_eval_dataloader get_test_dataloader get_batch_samples num_examples "
        "_get_dataloader _get_train_sampler _get_eval_sampler _get_collator_with_removed_columns "
        "_remove_unused_columns _set_signature_columns_if_needed _prepare_dataset _get_num_items_in_batch",
        _OPTIMIZER: "create_optimizer create_optimizer_and_scheduler get_decay_parameter_names "
        "get_optimizer_cls_and_kwargs get_optimizer_group optimizer _clip_grad_norm _get_grad_norm "
        "_load_optimizer_and_scheduler _save_optimizer_and_scheduler",
        _SCHEDULE: "create_scheduler lr_scheduler get_learning_rates _get_learning_rate",
        _LOSS: "compute_loss _compute_loss compute_loss_context_manager compute_ref_log_probs get_gamma_weights "
        "get_high_entropy_mask get_off_policy_mask _get_per_token_logps_and_entropies _precompute_ref_logps "
        "_get_last_hidden_state compute_liger_loss concatenated_forward get_batch_loss_metrics dpo_loss",
        _STEPS: "training_step _inner_training_loop _run_epoch _prepare_input _prepare_inputs _prepare_for_training "
        "_init_training_state _finalize_training _maybe_log_save_evaluate set_initial_training_values",
        _EVALUATION: "prediction_step evaluation_loop prediction_loop _evaluate _determine_best_metric",
        _ROLLOUT: "_generate _generate_single_turn _generate_and_score_completions _tokenize_prompts _tool_call_loop "
        "_get_tool_suffix_ids _move_model_to_vllm",
        _REWARDS: "_calculate_rewards _log_completion_extra _log_metric",
        _CHECKPOINTS: "_save _save_checkpoint _load_best_model _load_from_checkpoint _load_callback_state "
        "_load_rng_state _save_rng_state _load_scaler _save_scaler _rotate_checkpoints _get_output_dir "
        "_issue_warnings_after_load _push_from_checkpoint",
        _ENGINE: "_wrap_model _move_model_to_device _build_accelerator_args create_accelerator_and_postprocess "
        "autocast_smart_context_manager call_model_init floating_point_ops store_flos _track_num_input_tokens "
        "_validate_args _hp_search_setup _report_to_hp_search _tune_save_checkpoint _prepare_context_parallel_inputs",
        "create a trainer for each trial": "hyperparameter_search",
        "no model card is written: write yours beside the result": "create_model_card",
    }.items()
    for name in names.split()
}

# Events of transformers' callbacks that never occur here, each with the reason.
_NEVER_TOLD = {
    "on_prediction_step": "evaluation has no prediction steps; on_evaluate has its metrics",
    "on_substep_end": "gradients are accumulated inside the engine; on_step_end is called after each step",
    "on_pre_optimizer_step": "the optimizer is inside the engine; on_optimizer_step and on_step_end run after it",
    "on_push_begin": "nothing is uploaded while training; push_to_hub after it",
}
_OF_LIBRARIES = ("transformers", "trl", "lockstep_rl")


def check_class(trainer: Any) -> None:
    """Raises a TypeError if a class, mixin or patch of the trainer overrides a method that is never called."""
    for cls in type(trainer).__mro__:
        for name, value in vars(cls).items():
            if name in REFUSED_METHODS and not name.startswith("__") and value is not None:
                raise TypeError(
                    f"{cls.__qualname__} overrides `{name}`, which is never called here: {REFUSED_METHODS[name]}"
                )


def check_attribute(trainer: Any, name: str, value: Any) -> None:
    """Raises an AttributeError if a method that is never called is set on a trainer object."""
    if name in REFUSED_METHODS and value is not None:
        raise AttributeError(
            f"{type(trainer).__name__}: `{name}` is never called here: {REFUSED_METHODS[name]}"
        )


def check_callback(callback: Any) -> None:
    """Raises a TypeError if a callback has a method for an event that never occurs. Callbacks of transformers, TRL and
    this package are accepted, because they only show progress at these events."""
    for name, why in _NEVER_TOLD.items():
        method = getattr(callback, name, None)
        place = getattr(getattr(method, "__func__", method), "__module__", None) or ""
        if callable(method) and place.partition(".")[0] not in _OF_LIBRARIES:
            raise TypeError(f"the callback {type(callback).__name__} has `{name}`, which is never called here: {why}")
