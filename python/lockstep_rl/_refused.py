"""Arguments of TRL's trainers that are not supported, each with the reason; and arguments with old names."""

from __future__ import annotations

import copy
import warnings
from typing import Any

from ._config import plain

_LATER = "a later version will support it; use rollout_func for episodes with several turns"
REFUSED_ARGUMENTS = {
    "tools": _LATER,
    "environment_factory": _LATER,
    "rollout_func": "only GRPOTrainer, RLOOTrainer and PPOTrainer generate completions",
    "compute_metrics": "TRL's trainer does not have this argument either; log_metric in a reward adds a metric",
    "optimizers": "remove it: the optimizer is AdamW, set by learning_rate, weight_decay, adam_beta1, adam_beta2 and "
    "adam_epsilon",
    "optimizer_cls_and_kwargs": "the optimizer is AdamW, set by the fields of the configuration",
    "quantization_config": "weights are not quantised in this build: remove it; bf16=True halves them",
    "data_collator": "batches are packed by the engine, without padding: remove it; the columns of a row set its "
    "loss (prompt and completion: on the completion; text: on all of it)",
    "preprocess_logits_for_metrics": "TRL's trainer does not have this argument either",
    "formatting_func": "only SFTTrainer has it; format the rows before you pass them",
    "compute_loss_func": "the loss is inside the engine: choose one with loss_type",
    "value_model": "set value_model of PPOConfig to a directory",
    "reward_processing_classes": "a reward model is read with its own tokenizer",
    "tokenizer": "use the argument processing_class",
    "gen_kwargs": "set the fields of the configuration",
}

# Names in `gen_kwargs` (arguments of transformers' `generate`), and the fields that replace them.
_GENERATION = {"max_new_tokens": "max_completion_length", "max_length": "max_completion_length"}


def with_gen_kwargs(args: Any, gen_kwargs: dict) -> Any:
    """Returns a copy of the configuration with the values of `gen_kwargs`, an argument of the trainer in old
    scripts."""
    warnings.warn("`gen_kwargs` is deprecated: set these fields in the configuration", FutureWarning, stacklevel=4)
    args = copy.copy(args)
    for name, value in gen_kwargs.items():
        if name in ("use_cache", "pad_token_id") or (name == "do_sample" and value):
            continue
        if name == "do_sample":
            raise ValueError("gen_kwargs: do_sample=False gives each prompt the same completion G times: remove it")
        field = _GENERATION.get(name, name)
        if field not in ("max_completion_length", "temperature", "top_p", "top_k", "min_p", "repetition_penalty"):
            raise ValueError(f"gen_kwargs: `{name}` is not supported: set the fields of {type(args).__name__}")
        setattr(args, field, plain(value, name))
    args.__post_init__()
    return args
