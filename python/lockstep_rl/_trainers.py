"""TRL's trainers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._config import DPOConfig, GRPOConfig, PPOConfig, RewardConfig, RLOOConfig, SFTConfig, warn_once
from ._models import stage_reference
from ._rewards import RewardSet
from ._rollouts import RolloutEngine, RolloutFunction
from ._trainer import Trainer, TrainOutput


class GRPOTrainer(Trainer):
    """TRL's GRPOTrainer: completions of each prompt are generated, scored by `reward_funcs`, and compared."""

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
        if reward_processing_classes is not None:
            warn_once("reward_processing_classes has no meaning here: a reward model is read with its own tokenizer")
        self._reward_set = RewardSet(reward_funcs)
        self.reward_funcs = reward_funcs
        self.rollout_func = rollout_func
        self._rollout_function = None if rollout_func is None else RolloutFunction(rollout_func, self)
        self._rollout_engine: RolloutEngine | None = None
        super().__init__(
            model, args, train_dataset, eval_dataset, processing_class, callbacks, peft_config, **others
        )
        weights = self._values.get("reward_weights")
        if weights is not None and len(weights) != len(self._reward_set.specs):
            raise ValueError(
                f"`reward_weights` has {len(weights)} numbers, but there are {len(self._reward_set.specs)} rewards: "
                "one weight for each"
            )

        self.num_generations = self.args.num_generations
        self.max_completion_length = self.args.max_completion_length
        self.temperature = self.args.temperature

    def generate(self, prompts: list, num_generations: int = 1, **sampling: Any) -> list[dict]:
        """For `rollout_func`: the run's own engine, with the weights as they are, completes each prompt (a text, a list
        of messages, or ids). A dict for each completion, those of a prompt behind one another: `prompt_ids`,
        `completion_ids`, `logprobs`, `finish_reason`. `temperature`, `top_p`, `top_k`, `min_p`, `repetition_penalty`,
        `max_new_tokens` and `stop` are the run's where they are not given."""
        if self._rollout_engine is None:
            raise RuntimeError(
                "generate() is for rollout_func, while it is called; elsewhere take lockstep_rl.Model and Engine"
            )
        return self._rollout_engine.generate(prompts, num_generations, sampling)

    def _rewards(self) -> RewardSet:
        return self._reward_set


class RLOOTrainer(GRPOTrainer):
    """TRL's RLOOTrainer: REINFORCE with the other completions of the prompt as the baseline."""

    config_class = RLOOConfig


class PPOTrainer(GRPOTrainer):
    """Proximal policy optimisation with a value model. TRL no longer has it; the arguments are GRPOTrainer's, and of
    its last own signature `reward_model` (a reward function) and `ref_model`."""

    config_class = PPOConfig

    def __init__(self, model: Any = None, reward_funcs: Any = None, *args: Any, **kwargs: Any):
        reward_model = kwargs.pop("reward_model", None)
        super().__init__(model, reward_funcs if reward_funcs is not None else reward_model, *args, **kwargs)


class SFTTrainer(Trainer):
    """TRL's SFTTrainer: on rows with a prompt and a completion, of which the completion is learned, or on whole ones, a
    `text` or a conversation in `messages`."""

    config_class = SFTConfig
    columns = ("prompt", "completion", "text", "messages")


class DPOTrainer(Trainer):
    """TRL's DPOTrainer, on rows with a chosen and a rejected answer."""

    config_class = DPOConfig
    columns = ("chosen", "rejected")

    def __init__(self, model: Any = None, ref_model: Any = None, args: Any = None, *rest: Any, **kwargs: Any):
        super().__init__(model, args, *rest, **kwargs)
        if ref_model is not None and ref_model is not model:
            self._values["ref_model"] = stage_reference(ref_model, self._values["output_dir"])

    def _evaluation_values(self) -> dict:
        """The reference stays what training begins with; below an adapter it is there already."""
        values = super()._evaluation_values()
        if not values.get("use_peft"):
            values.setdefault("ref_model", self._values["model_name_or_path"])
        return values


class RewardTrainer(Trainer):
    """TRL's RewardTrainer: a model that scores answers, from rows with a chosen and a rejected one."""

    config_class = RewardConfig
    columns = ("chosen", "rejected")

__all__ = [
    "DPOTrainer",
    "GRPOTrainer",
    "PPOTrainer",
    "RLOOTrainer",
    "RewardTrainer",
    "SFTTrainer",
    "TrainOutput",
]
