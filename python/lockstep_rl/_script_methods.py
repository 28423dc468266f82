"""Attributes and methods of a trainer that scripts use before and after training."""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any

from ._accelerator import OneProcess
from ._background import BackgroundRun
from ._callbacks import STATE_FILE
from ._launch import rank, world_size


# Attributes of TRL's trainers that are read from the arguments.
OF_ARGS = {
    name: name
    for name in (
        "beta num_iterations loss_type reward_weights scale_rewards importance_sampling_level "
        "mask_truncated_completions top_entropy_quantile num_generations num_generations_eval max_completion_length "
        "max_prompt_length temperature top_p top_k min_p repetition_penalty chat_template_kwargs use_vllm "
        "use_liger_kernel shuffle_dataset multi_objective_aggregation off_policy_mask_threshold use_adaptive_entropy "
        "entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target label_smoothing normalize_advantages "
        "reward_clip_range ref_model_mixup_alpha max_length padding_free packing"
    ).split()
} | {"epsilon_low": "epsilon", "epsilon_high": "epsilon_high"}


class ScriptMethods:
    """Mixin with methods of transformers' Trainer that are not about training."""

    args: Any
    state: Any
    _values: dict
    _model: Any
    _hub_name: str | None = None
    _accelerator: OneProcess | None = None

    def start(self, resume_from_checkpoint: str | bool | None = None) -> BackgroundRun:
        """Trains on another thread, and returns at once. The returned object has the current `step` and `metrics`, and
        `result()` waits for the end."""
        if world_size() > 1:
            raise ValueError("start() cannot train in a launch with several processes: call train()")
        return BackgroundRun(self, lambda: self.train(resume_from_checkpoint=resume_from_checkpoint))

    def push_to_hub(
        self,
        commit_message: str = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Uploads the model with the package huggingface_hub. The repository is `repo_id`, else `hub_model_id` of the
        arguments, else one with the name of `output_dir`. Values of `kwargs` that TRL writes into a model card are
        ignored."""
        try:
            import huggingface_hub
        except ImportError:
            raise RuntimeError("push_to_hub needs the package huggingface_hub: pip install huggingface_hub") from None
        args = self.args
        name = kwargs.pop("repo_id", None) or args.hub_model_id or os.path.basename(self._values["output_dir"])
        api = huggingface_hub.HfApi(token=token or args.hub_token)
        # Adds the name of the token's owner.
        self._hub_name = api.create_repo(name, private=args.hub_private_repo, exist_ok=True).repo_id
        revision = revision or args.hub_revision
        if revision is not None:
            api.create_branch(self._hub_name, branch=revision, exist_ok=True)
        # Uploads a copy, in which an adapter's base has a name that others can load.
        self._uploaded = tempfile.TemporaryDirectory(prefix="lockstep-upload-")
        self._model.save(self._uploaded.name)
        return api.upload_folder(
            repo_id=self._hub_name, folder_path=self._uploaded.name, commit_message=commit_message,
            revision=revision, run_as_future=not blocking,
        )

    def log_metrics(self, split: str, metrics: dict) -> None:
        """Prints metrics, one per line."""
        width = max(map(len, metrics), default=0)
        print(f"***** {split} metrics *****")
        for name, value in sorted(metrics.items()):
            print(f"  {name:<{width}} = {value:.4f}" if isinstance(value, float) else f"  {name:<{width}} = {value}")

    def save_metrics(self, split: str, metrics: dict, combined: bool = True) -> None:
        """Writes metrics to `SPLIT_results.json` in `output_dir`. With `combined`, they are also added to
        `all_results.json`."""
        place = self._values["output_dir"]
        os.makedirs(place, exist_ok=True)
        for name, keeps in [(f"{split}_results.json", False), *([("all_results.json", True)] if combined else [])]:
            path = os.path.join(place, name)
            there = {}
            if keeps and os.path.exists(path):
                with open(path) as file:
                    there = json.load(file)
            with open(path, "w") as file:
                json.dump({**there, **metrics}, file, indent=4, sort_keys=True)

    def save_state(self) -> None:
        """Writes `trainer.state` to `trainer_state.json` in `output_dir`. Resuming does not need this file: each
        checkpoint has its own."""
        os.makedirs(self._values["output_dir"], exist_ok=True)
        self.state.save_to_json(os.path.join(self._values["output_dir"], STATE_FILE))

    def is_world_process_zero(self) -> bool:
        """Returns whether this process is rank 0, which trains."""
        return rank() == 0

    is_local_process_zero = is_world_process_zero

    @property
    def accelerator(self) -> OneProcess:
        """Acts as accelerate's `Accelerator` of a single process."""
        if self._accelerator is None:
            self._accelerator = OneProcess(self)
        return self._accelerator

    @property
    def hub_model_id(self) -> str | None:
        """The repository of `push_to_hub`. The name includes the owner once `push_to_hub` has been called."""
        return self._hub_name or self.args.hub_model_id
