"""TRL's trainers: GRPO, RLOO, PPO, SFT, DPO and reward models."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

from ._config import AsyncGRPOConfig, DPOConfig, GRPOConfig, PPOConfig, RewardConfig, RLOOConfig, SFTConfig
from ._calling import note
from ._metrics import PADDING, EvalMetrics, checked
from ._live import LiveReference
from ._models import check_reference, of_reference, with_eos
from ._peft import is_adapter
from ._rewards import RewardSet, logger
from ._rollouts import RolloutEngine, RolloutFunction
from ._trainer import Trainer, TrainOutput
from ._workers import WorkerProcesses, check_sendable, of_workers


# A `reward_patience` that no training run reaches.
_ENDLESS = 1 << 40


class GRPOTrainer(Trainer):
    """TRL's GRPOTrainer: generates several completions of each prompt, scores them with `reward_funcs`, and learns from
    how the scores of one prompt's completions compare."""

    config_class = GRPOConfig
    def __init__(
        self,
        model: Any = None,
        reward_funcs: Any = None,
        args: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        reward_processing_classes: Any = None,
        callbacks: list | None = None,
        peft_config: Any = None,
        rollout_func: Callable | None = None,
        **others: Any,
    ):
        # Distillation may train without rewards, only with the teacher.
        required = getattr(args, "algorithm", None) != "distillation"
        self._set_rewards(reward_funcs, reward_processing_classes, required)
        self.rollout_func = rollout_func
        self._rollout_engine: RolloutEngine | None = None
        super().__init__(
            model, args, train_dataset, eval_dataset, processing_class, callbacks, peft_config, **others
        )
        self._reference = LiveReference(self)
        self._args_changed(set())
        self._warn_of_long_sequences()

    def _set_rewards(self, reward_funcs: Any, processing_classes: Any = None, required: bool = True) -> None:
        rewards = RewardSet(reward_funcs, processing_classes, required)
        self._check_rewards(rewards)
        self._reward_set, self._rewards_given = rewards, list(rewards.given)
        self._weights: Any = None

    def _check_rewards(self, rewards: RewardSet) -> None:
        """Raises an error if the trainer cannot call these rewards."""

    def _args_changed(self, changed: set[str]) -> None:
        if self.args.reward_patience is None:
            self._values["reward_patience"] = _ENDLESS
        weights = self._values.get("reward_weights")
        if weights is not None and len(weights) != len(self._reward_set.specs):
            raise ValueError(
                f"`reward_weights` must have one weight per reward: it has {len(weights)}, "
                f"and there are {len(self._reward_set.specs)} rewards"
            )

    def _read_args(self) -> None:
        rewards = self._reward_set
        if rewards.given != self._rewards_given:  # the list was modified in place
            classes = rewards.processing_classes
            self._set_rewards(rewards.given, classes if len(classes) == len(rewards.given) else None)
        if self._weights is not None and _numbers(self._weights) != self._weights_seen:
            self.args.reward_weights, self._weights = _numbers(self._weights), None
        super()._read_args()
        self._args_changed(set())

    def _check_unchanged(self) -> None:
        super()._check_unchanged()
        if self._reward_set.given != self._rewards_given:
            raise RuntimeError("trainer.reward_funcs was changed while training: it is read when training begins")
        if self._weights is not None and _numbers(self._weights) != self._weights_seen:
            raise RuntimeError(
                "trainer.reward_weights was changed while training: the weights are read when training begins; scale "
                "the scores in the reward function, which is given trainer_state"
            )

    @property
    def reward_funcs(self) -> list:
        """The rewards, as they were given. They may be set until training begins."""
        return self._reward_set.given

    @reward_funcs.setter
    def reward_funcs(self, reward_funcs: Any) -> None:
        self._set_rewards(reward_funcs)

    @property
    def reward_func_names(self) -> list[str]:
        """The names of the rewards in the metrics."""
        return self._reward_set.names

    @property
    def reward_processing_classes(self) -> list:
        """The tokenizers of the reward models."""
        return self._reward_set.processing_classes

    @reward_processing_classes.setter
    def reward_processing_classes(self, processing_classes: Any) -> None:
        self._set_rewards(self._reward_set.given, processing_classes)

    @property
    def rollout_func(self) -> Callable | None:
        """The function that generates completions instead of the engine."""
        return self._rollout_func

    @rollout_func.setter
    def rollout_func(self, rollout_func: Callable | None) -> None:
        self._rollout_func = rollout_func
        self._rollout_function = None if rollout_func is None else RolloutFunction(rollout_func, self)

    def _warn_of_long_sequences(self) -> None:
        level, loss = (getattr(self.args, name, None) for name in ("importance_sampling_level", "loss_type"))
        if level == "sequence" and loss in ("bnpo", "dr_grpo", "dapo", "cispo"):
            logger.warning(
                "importance_sampling_level='sequence' with loss_type=%r weights each sequence by its completion length:"
                " the loss adds up over tokens. GSPO's objective is loss_type='grpo'.", loss,
            )

    @property
    def reward_weights(self) -> Any:
        """The weight of each reward: a tensor if torch is imported, else a list. It may be changed until training
        begins."""
        if self._weights is None:
            self._weights = [float(one) for one in self.args.reward_weights or [1.0] * len(self._reward_set.specs)]
            if "torch" in sys.modules:
                import torch

                self._weights = torch.tensor(self._weights, dtype=torch.float32)
            # Rounded to float32, as in the tensor.
            self._weights_seen = _numbers(self._weights)
        return self._weights

    @reward_weights.setter
    def reward_weights(self, weights: Any) -> None:
        self.args.reward_weights = None if weights is None else _numbers(weights)
        self._weights = None

    @property
    def entropy_coef(self) -> float:
        """The current weight of the entropy bonus."""
        if self._result is not None and self._result.get("entropy_coef") is not None:
            return self._result["entropy_coef"]
        logged = [entry["entropy_coef"] for entry in self.state.log_history if "entropy_coef" in entry]
        return logged[-1] if logged else self.args.entropy_coef

    @property
    def ref_model(self) -> Any:
        """The reference model, if `beta` is not 0: the initial model or, with `sync_ref_model`, the reference model in
        the newest checkpoint. None with an adapter, as in TRL: the reference is then the base model, or the adapter
        before training."""
        if not self.args.beta or self._values.get("use_peft") or is_adapter(self._given_model):
            return None
        return self._reference.get()

    def generate(self, prompts: list, num_generations: int = 1, **sampling: Any) -> list[dict]:
        """Generates completions inside `rollout_func`, with the engine and its current weights. A prompt is a text, a
        list of messages, or token ids. Returns a dict for each completion, with `prompt_ids`, `completion_ids`,
        `logprobs` and `finish_reason`; completions of the same prompt follow each other. `temperature`, `top_p`,
        `top_k`, `min_p`, `repetition_penalty`, `max_new_tokens` and `stop` may be given; their defaults are the
        trainer's settings."""
        if self._rollout_engine is None:
            raise RuntimeError(
                "generate() works only inside rollout_func; elsewhere use lockstep_rl.Model and Engine"
            )
        return self._rollout_engine.generate(prompts, num_generations, sampling)

    def _rows_needed(self) -> int | None:
        completions = super()._rows_needed()
        if completions is None:
            return None
        args = self.args
        # Whole generation batches, plus one that is generated ahead.
        steps = getattr(args, "steps_per_generation", None) or args.gradient_accumulation_steps
        batch = max(args.per_device_train_batch_size * steps * args.world_size, self._samples_per_step())
        ahead = 1 + (getattr(args, "max_staleness", None) or 0)
        return (-(-completions // batch) + ahead) * -(-batch // args.num_generations)

    def _rewards(self) -> RewardSet:
        return self._reward_set

    def _objects(self) -> dict[str, Any]:
        return {**super()._objects(), **self._reward_set.objects()}


class AsyncGRPOTrainer(GRPOTrainer):
    """TRL's experimental AsyncGRPOTrainer: worker processes generate and score completions while this process trains.
    Reward functions are called in the workers, with the completions of one prompt at a time. Therefore they must be
    defined at the top level of a module, and a script that trains needs `if __name__ == "__main__":`. The resulting
    weights are those of GRPOTrainer with the same `max_staleness`, with any number of workers, even if some of them
    die."""

    config_class = AsyncGRPOConfig
    _is_distributed = True
    _workers: WorkerProcesses | None = None

    @functools.wraps(GRPOTrainer.__init__)
    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if self.rollout_func is not None:
            raise ValueError("AsyncGRPOTrainer: `rollout_func` would run in this process, but workers generate")
        if self.args.workers:
            raise ValueError("AsyncGRPOTrainer: `workers` is a key of `lockstep train --distributed`; this trainer "
                             "starts num_workers identical workers; start others by hand with --profiles")

    def _check_rewards(self, rewards: RewardSet) -> None:
        of_workers(rewards)
        check_sendable([function.call for function in rewards.functions])

    def _functions(self) -> list[Callable]:
        return [function.call for function in self._reward_set.functions]

    def _begun(self, directory: str) -> None:
        super()._begun(directory)
        count, threads = self.args.num_workers, self._values.get("threads")
        if count < 0:
            raise ValueError(f"`num_workers` = {count}: expected 0 or more")
        self._workers = WorkerProcesses(directory, self._functions(), count, threads, self.args.max_restarts)

    def _ended(self) -> None:
        if self._workers is not None:
            self._workers, workers = None, self._workers
            workers.end()


class RLOOTrainer(GRPOTrainer):
    """TRL's RLOOTrainer: REINFORCE, with the other completions of the same prompt as the baseline."""

    config_class = RLOOConfig


class PPOTrainer(GRPOTrainer):
    """Proximal policy optimization with a value model. TRL no longer has this trainer. It takes GRPOTrainer's
    arguments, and two arguments of TRL's last PPOTrainer: `reward_model` (a reward function) and `ref_model`."""

    config_class = PPOConfig

    def __init__(self, model: Any = None, reward_funcs: Any = None, *args: Any, **kwargs: Any):
        reward_model, ref_model = kwargs.pop("reward_model", None), kwargs.pop("ref_model", None)
        self._given_reference = None if ref_model is None or ref_model is model else check_reference(ref_model)
        super().__init__(model, reward_funcs if reward_funcs is not None else reward_model, *args, **kwargs)
        if isinstance(self._given_reference, str):
            self._values["ref_model"] = self._given_reference

    @property
    def ref_model(self) -> Any:
        """The reference model: the one that was given, or the initial model."""
        return self._reference.get() if self._given_reference is None else self._given_reference

    def _objects(self) -> dict[str, Any]:
        return {**super()._objects(), **of_reference(self._given_reference)}

    def _evaluation_values(self) -> dict:
        # An evaluation needs no reference model.
        return {**super()._evaluation_values(), "ref_model": None}


def _numbers(weights: Any) -> list[float]:
    return [float(weight) for weight in (weights.tolist() if hasattr(weights, "tolist") else weights)]


class OfflineTrainer(Trainer):
    """Base class of the trainers that learn from given rows instead of generating. They have `compute_metrics`."""

    _reads_in_order = True
    # Whether `compute_metrics` receives logits.
    _has_logits = True

    def __init__(
        self,
        *args: Any,
        compute_metrics: Callable | None = None,
        preprocess_logits_for_metrics: Callable | None = None,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        checked(compute_metrics, preprocess_logits_for_metrics, self.args)
        self.compute_metrics = compute_metrics
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics

    def _eval_metrics(self, prefix: str, predicts: bool) -> EvalMetrics | None:
        if self.args.prediction_loss_only or (self.compute_metrics is None and not predicts):
            return None
        return EvalMetrics(self, prefix, predicts)


class PairTrainer(OfflineTrainer):
    """Base class of the trainers that learn from pairs of a chosen and a rejected answer."""

    columns = ("chosen", "rejected")

    def _rows_of(self, dataset: Any, name: str, most: int | None) -> list[dict]:
        rows = super()._rows_of(dataset, name, most)
        if not {"chosen_input_ids", "rejected_input_ids"} <= rows[0].keys() or "chosen_ids" in rows[0]:
            return rows
        warnings.warn(
            f"`{name}`: the columns chosen_input_ids and rejected_input_ids are deprecated: use chosen_ids and "
            "rejected_ids",
            FutureWarning,
            stacklevel=5,
        )
        return [{_RENAMED.get(key, key): value for key, value in row.items()} for row in rows]


_RENAMED = {"chosen_input_ids": "chosen_ids", "rejected_input_ids": "rejected_ids"}


class SFTTrainer(OfflineTrainer):
    """TRL's SFTTrainer. In rows with a prompt and a completion, the completion is learned; in rows with a `text`, or a
    conversation in `messages`, the whole row. `formatting_func` returns the text of each row. `compute_metrics`
    receives logits `[rows, tokens, vocabulary]` and labels `[rows, tokens]`, which are -100 where nothing is
    learned."""

    config_class = SFTConfig
    columns = ("prompt", "completion", "text", "messages", "input_ids")

    def __init__(self, *args: Any, formatting_func: Callable | None = None, **kwargs: Any):
        if formatting_func is not None and not callable(formatting_func):
            raise TypeError(f"`formatting_func` must be a function, but is {formatting_func!r:.80}")
        self._formatting_func = formatting_func
        super().__init__(*args, **kwargs)
        eos = getattr(self.args, "eos_token", None)
        if eos is not None:
            self.processing_class = with_eos(self._tokenizer, eos, self._given_model)
            self._source = None

    @property
    def formatting_func(self) -> Callable | None:
        """The function that returns the text of each row. It may be set until training begins."""
        return self._formatting_func

    @formatting_func.setter
    def formatting_func(self, formatting_func: Callable | None) -> None:
        self._formatting_func = formatting_func
        self.train_dataset, self.eval_dataset = self._given_train, self._given_eval

    def _rows(self, dataset: Any, name: str, most: str) -> Any:
        if self.formatting_func is not None and isinstance(dataset, (str, os.PathLike)):
            raise ValueError(f"`{name}` is a file, which the engine reads: formatting_func needs rows in memory")
        return super()._rows(dataset, name, most)

    def _rows_of(self, dataset: Any, name: str, most: int | None) -> list[dict]:
        rows = super()._rows_of(dataset, name, most)
        if self.formatting_func is None:
            return [_of_trls_choice(row, self.args.dataset_text_field or "text") for row in rows]
        return [self._formatted(row, f"`{name}`, row {i}") for i, row in enumerate(rows)]

    def _formatted(self, row: dict, place: str) -> dict:
        if "prompt" in row and "completion" in row:
            raise ValueError(
                f"{place}: in rows with a prompt and a completion, only the completion is in the loss, but "
                "formatting_func returns the whole text: remove it, or rename the columns"
            )
        try:
            text = self.formatting_func(row)
        except Exception as error:
            note(error, f"formatting_func: {place}")
            raise
        if not isinstance(text, str):
            raise TypeError(f"{place}: formatting_func must return a text, but returned {text!r:.80} "
                            f"({type(text).__name__})")
        own = {key: value for key, value in row.items() if key not in self.columns}
        return {**own, self.args.dataset_text_field or "text": text}

    @staticmethod
    def _labels_of(input_ids: Any, learned: list) -> Any:
        labels = input_ids.copy()
        for row, kept in zip(labels, learned):
            row[len(kept) :] = PADDING
            row[: len(kept)][~kept] = PADDING
        return labels


def _of_trls_choice(row: dict, text_field: str) -> dict:
    """Returns a row without the columns that TRL ignores: if there are a conversation and a text, the conversation is
    learned; of two conversations, the one with `from` and `value`."""
    if "prompt" in row:
        return row
    of_values, of_roles = (_is_conversation(row.get(name), key)
                           for name, key in (("conversations", "from"), ("messages", "role")))
    if of_values:
        left_out = ("messages", text_field)
    elif of_roles:
        left_out = ("conversations", text_field)
    elif _is_conversation(row.get("conversations"), "role"):
        left_out = (text_field,)
    elif row.get(text_field) is not None:
        # A dataset with rows of both kinds has both columns in each row.
        left_out = tuple(name for name in ("messages", "conversations") if not row.get(name))
    else:
        return row
    return {key: value for key, value in row.items() if key not in left_out}


def _is_conversation(value: Any, key: str) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 0 and isinstance(value[0], dict) and key in value[0]


class DPOTrainer(PairTrainer):
    """TRL's DPOTrainer, for rows with a chosen and a rejected answer. `compute_metrics` receives logits `[2 * rows,
    tokens, vocabulary]` and token ids `[2 * rows, tokens]`. In each batch, the chosen answers (after their prompts)
    come first, then the rejected ones."""

    config_class = DPOConfig

    def __init__(self, model: Any = None, ref_model: Any = None, args: Any = None, *rest: Any, **kwargs: Any):
        self._reference: Any = None
        super().__init__(model, args, *rest, **kwargs)
        is_other = ref_model is not model or isinstance(ref_model, (str, os.PathLike))
        if ref_model is not None and is_other:
            self._reference = check_reference(ref_model)
            if isinstance(self._reference, str):
                self._values["ref_model"] = self._reference

    @staticmethod
    def _labels_of(input_ids: Any, learned: list) -> Any:
        return input_ids

    def _evaluation_values(self) -> dict:
        """Returns the engine's keys for an evaluation."""
        values = super()._evaluation_values()
        if self._reference is not None and "ref_model" not in values:  # its files are not written yet
            self._written_reference = tempfile.TemporaryDirectory(prefix="lockstep-given-")
            values["ref_model"] = self._written_reference.name
            of_reference(self._reference)["ref_model"](values["ref_model"])
        return values

    def _objects(self) -> dict[str, Any]:
        return {**super()._objects(), **of_reference(self._reference)}

    @property
    def ref_model(self) -> Any:
        """The reference model that was given; None if the initial model is the reference."""
        return self._reference


class RewardTrainer(PairTrainer):
    """TRL's RewardTrainer: trains a model that scores answers, on rows with a chosen and a rejected answer.
    `compute_metrics` receives scores `[2 * rows, 1]`, in each batch first those of the chosen answers, and no labels
    (an empty tuple)."""

    config_class = RewardConfig
    _has_logits = False
    _trains_scores = True

    def __init__(self, model: Any = None, *args: Any, **kwargs: Any):
        labels = getattr(getattr(model, "config", None), "num_labels", 1)
        if labels != 1:
            raise ValueError(
                f"the model has `num_labels={labels}`, but reward models require `num_labels=1`: one score of an answer"
            )
        super().__init__(model, *args, **kwargs)

    @staticmethod
    def _labels_of(input_ids: Any, learned: list) -> tuple:
        return ()


__all__ = [
    "DPOTrainer",
    "GRPOTrainer",
    "PPOTrainer",
    "RLOOTrainer",
    "RewardTrainer",
    "SFTTrainer",
    "TrainOutput",
]
