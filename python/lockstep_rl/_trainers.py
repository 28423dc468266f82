"""TRL's trainers over the engine's runs."""

from __future__ import annotations

import copy
import json
import os
import shutil
import tempfile
import time
import warnings
from typing import Any, NamedTuple

from . import _native
from ._callbacks import NEVER_CALLED, CallbackList, TrainerControl, TrainerState
from ._config import DPOConfig, GRPOConfig, PPOConfig, RewardConfig, RLOOConfig, SFTConfig, plain, warn_once
from ._data import json_of, rows_of
from ._models import Model, check_path, lora_values, stage, sync_weights
from ._rewards import RewardSet, Source, note
from ._signals import Interrupts, in_notebook

STOP, SAVE, EVALUATE = 1, 2, 4


class TrainOutput(NamedTuple):
    """What `train` gives, as in transformers."""

    global_step: int
    training_loss: float
    metrics: dict


class _Trainer:
    """What the trainers share: a model, data, callbacks, and one run of the engine at a time."""

    config_class: Any = None
    # Columns of the data that the engine itself reads.
    columns: tuple[str, ...] = ("prompt",)

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        callbacks: list | None = None,
        peft_config: Any = None,
        **others: Any,
    ):
        kind = type(self).__name__
        if "tokenizer" in others:
            warnings.warn("`tokenizer` is old: the argument is processing_class", FutureWarning, stacklevel=3)
            processing_class = processing_class or others.pop("tokenizer")
        gen_kwargs = others.pop("gen_kwargs", None)
        self._refuse(kind, others)
        if model is None:
            raise TypeError(f"{kind} needs a model: a directory, a Hub id or a transformers model")
        if args is None:
            args = self.config_class(f"{_short_name(model)}-{kind.removesuffix('Trainer')}")
        if not isinstance(args, self.config_class):
            raise TypeError(
                f"`args` must be a {self.config_class.__name__} of lockstep_rl, but is {type(args).__module__}."
                f"{type(args).__name__}: import it from here, too"
            )
        self.args = args if gen_kwargs is None else _with_gen_kwargs(args, gen_kwargs)
        self.processing_class = processing_class
        self._given_model = model
        self._values = self.args.values()
        self._values.update(lora_values(peft_config))
        self._values["output_dir"] = self._output_dir(model)
        self._values["model_name_or_path"] = stage(model, processing_class, self._values["output_dir"])
        self._take_data(train_dataset, eval_dataset)
        self.state = TrainerState(
            logging_steps=self._values.get("logging_steps", 10),
            save_steps=self._values.get("save_steps", 500),
            eval_steps=self._values.get("eval_steps"),
            num_train_epochs=self.args.num_train_epochs,
            train_batch_size=self.args.per_device_train_batch_size,
        )
        self.control = TrainerControl()
        self.is_trained = False
        self._stop: Any = None
        self._result: dict | None = None
        self._callbacks = CallbackList(list(callbacks or []), self)
        self._callbacks.call("on_init_end")

    def _refuse(self, kind: str, others: dict) -> None:
        """Arguments that are TRL's and not supported, and those that nobody knows."""
        for name, value in others.items():
            why = _REFUSED_ARGUMENTS.get(name)
            if why is None:
                raise TypeError(f"{kind} has no argument `{name}`")
            empty = value is None or value == (None, None) or (isinstance(value, (list, dict)) and not value)
            if not empty:
                raise ValueError(f"{kind}: `{name}` is not supported: {why}")

    def _output_dir(self, model: Any) -> str:
        """The directory that was asked for; of those that nobody named, the first that holds no run yet."""
        name = self._values.get("output_dir")
        if name is not None:
            return os.path.abspath(os.fspath(name))
        name = os.path.abspath("trainer_output")
        number = 2
        while os.path.exists(name):
            name, number = os.path.abspath(f"trainer_output-{number}"), number + 1
        return name

    def _take_data(self, train: Any, evaluation: Any) -> None:
        if train is None and "dataset_name" not in self._values:
            raise ValueError("`train_dataset` is missing: a datasets.Dataset, a list of dicts, or a file's path")
        self._train_rows, self._train_texts = self._rows(train, "train_dataset", "dataset_name", "max_samples")
        self._eval_rows, self._eval_texts = self._rows(
            evaluation, "eval_dataset", "eval_dataset_name", "eval_max_samples"
        )

    def _rows(self, dataset: Any, name: str, key: str, most: str) -> tuple[list[dict], list[str] | None]:
        if dataset is None:
            return [], None
        if isinstance(dataset, (str, os.PathLike)):
            self._values[key] = check_path(os.fspath(dataset), name)
            return [], None
        rows = rows_of(dataset, name, self._values.get(most))
        self._values[key] = "memory"
        return rows, json_of(rows, name, self.columns)

    # What a user asks for.

    def train(self, resume_from_checkpoint: str | bool | None = None, **others: Any) -> TrainOutput:
        """Trains to the end, or goes on: after the newest checkpoint of `output_dir` (True), or after the one whose
        directory is given."""
        for name in others:
            raise TypeError(f"train() has no argument `{name}`")
        self._warn_of_torch_contexts()
        resume = resume_from_checkpoint
        if resume is None or resume is False:
            resume = getattr(self.args, "resume_from_checkpoint", None) or None
        if resume is True:
            resume = self._values["output_dir"]
        elif resume is not None:
            resume = check_path(os.fspath(resume), "resume_from_checkpoint")
        began = time.monotonic()
        steps_before = self.state.global_step
        self._callbacks.call("on_train_begin")
        self._result = self._run(resume=resume)
        self.is_trained = True
        if self._result["best"] is not None:
            self.state.best_global_step, self.state.best_metric = self._result["best"]
        seconds = time.monotonic() - began
        losses = [entry["loss"] for entry in self.state.log_history if "loss" in entry]
        loss = sum(losses) / len(losses) if losses else float("nan")
        steps = self.state.global_step - steps_before
        metrics = {
            "train_runtime": seconds,
            "train_samples_per_second": steps * self._samples_per_step() / seconds,
            "train_steps_per_second": steps / seconds,
            "train_loss": loss,
        }
        self._log({**metrics, "epoch": self.state.epoch})
        self._callbacks.call("on_train_end")
        return TrainOutput(self.state.global_step, loss, metrics)

    def evaluate(self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval") -> dict:
        """Evaluates the model as it is now, and logs the metrics."""
        rows, texts = self._eval_rows, self._eval_texts
        values = dict(self._values)
        if eval_dataset is not None:
            self._values, rest = values, self._values
            try:
                rows, texts = self._rows(eval_dataset, "eval_dataset", "eval_dataset_name", "eval_max_samples")
            finally:
                self._values = rest
        if "eval_dataset_name" not in values:
            raise ValueError("evaluate: there is no eval_dataset: give one here or to the trainer")
        metrics: dict = {}
        with tempfile.TemporaryDirectory(prefix="lockstep-evaluate-") as place:
            # A run that takes no step: the model as it is now, in a directory that nobody keeps.
            values.update(output_dir=os.path.join(place, "run"), model_name_or_path=self._current_model())
            values.update(eval_strategy="steps", load_best_model_at_end=False, tensorboard=False)
            values.pop("metric_for_best_model", None), values.pop("early_stopping_patience", None)
            self._run(values=values, eval_rows=rows, eval_texts=texts, only_evaluate=metrics)
        if metric_key_prefix != "eval":
            metrics = {metric_key_prefix + key.removeprefix("eval"): value for key, value in metrics.items()}
        self._log(metrics)
        self._callbacks.call("on_evaluate", metrics=metrics)
        return metrics

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Writes the model as it is now, with its tokenizer; without a directory, into `output_dir`."""
        source, target = self._current_model(), os.fspath(output_dir or self.args.output_dir or "trainer_output")
        if not os.path.isdir(source):
            raise ValueError(f"save_model: the model {source} is not trained yet, and is not a directory")
        shutil.copytree(source, target, dirs_exist_ok=True)

    def push_to_hub(self, commit_message: str = "End of training", **kwargs: Any) -> Any:
        """Uploads the model with huggingface_hub, where that is installed."""
        try:
            import huggingface_hub
        except ImportError:
            raise RuntimeError("push_to_hub needs the package huggingface_hub: pip install huggingface_hub") from None
        name = kwargs.pop("repo_id", None) or getattr(self.args, "hub_model_id", None)
        if name is None:
            raise ValueError("push_to_hub: give hub_model_id in the arguments, or repo_id=\"you/name\"")
        api = huggingface_hub.HfApi(token=kwargs.pop("token", None) or getattr(self.args, "hub_token", None))
        api.create_repo(name, exist_ok=True)
        return api.upload_folder(repo_id=name, folder_path=self._current_model(), commit_message=commit_message)

    def add_callback(self, callback: Any) -> None:
        """Adds a callback, or the class of one."""
        self._callbacks.add(callback)

    def remove_callback(self, callback: Any) -> None:
        """Takes out a callback, or the first of a class."""
        self._callbacks.pop(callback)

    def pop_callback(self, callback: Any) -> Any:
        """The same, and gives it."""
        return self._callbacks.pop(callback)

    def stop(self) -> None:
        """Asks the run to stop, from any thread: with a checkpoint, as Ctrl-C does."""
        if self._stop is not None:
            self._stop.request()

    @property
    def model(self) -> Any:
        """The model: the transformers model that was given, with its weights as they are now, or a handle to files."""
        if isinstance(self._given_model, (str, os.PathLike)):
            return Model(self._current_model())
        if self._result is not None and self._result.get("model_is_new"):
            sync_weights(self._given_model, self._result["model"])
            self._result["model_is_new"] = False
        return self._given_model

    def __getattr__(self, name: str) -> Any:
        if name in _REFUSED_METHODS:
            raise AttributeError(f"{type(self).__name__} has no `{name}`: {_REFUSED_METHODS[name]}")
        raise AttributeError(f"{type(self).__name__} has no `{name}`")

    # What the engine asks for.

    def _rewards(self) -> RewardSet | None:
        return None

    def _samples_per_step(self) -> int:
        return self.args.per_device_train_batch_size * self.args.gradient_accumulation_steps

    def _current_model(self) -> str:
        return self._result["model"] if self._result is not None else self._values["model_name_or_path"]

    def _run(
        self,
        resume: str | None = None,
        values: dict | None = None,
        eval_rows: list[dict] | None = None,
        eval_texts: list[str] | None = None,
        only_evaluate: dict | None = None,
    ) -> dict:
        values = dict(self._values if values is None else values)
        if eval_texts is None:
            eval_rows, eval_texts = self._eval_rows, self._eval_texts
        rewards = self._rewards()
        given = []
        if rewards is not None:
            sets = [(self._train_rows, self._train_texts), (eval_rows, eval_texts)]
            rewards.sources = [Source(rows, texts) for rows, texts in sets if rows and texts]
            rewards.state = self.state
            given = [(function.name, function, function.by_group) for function in rewards.functions]
            values["reward_funcs"] = rewards.specs
        if self._stop is not None:
            raise RuntimeError("this trainer is training already; make another one")
        observer = _Observer(self, rewards, only_evaluate)
        self._stop = _native.StopSignal()
        silent = only_evaluate is not None or bool(getattr(self.args, "disable_tqdm", False)) or in_notebook()
        try:
            with Interrupts(self._stop):
                ended = _native.run(
                    self.args.method,
                    json.dumps(values),
                    rewards=given,
                    observer=observer,
                    stop=self._stop,
                    train_rows=self._train_texts,
                    eval_rows=eval_texts,
                    resume=resume,
                    silent=silent,
                    only_evaluate=only_evaluate is not None,
                )
                # A signal that came while the engine worked is raised by now.
                time.sleep(0)
        except KeyboardInterrupt as interrupt:
            if only_evaluate is None:
                # A callback that was interrupted may not have heard of the last step.
                self.state.global_step = self._stop.steps_done()
                place = values["output_dir"]
                note(interrupt, f"stopped after step {self.state.global_step}; "
                                f"train(resume_from_checkpoint=True) goes on in {place}")
            raise
        finally:
            self._stop = None
        ended = {**ended, "model": os.fspath(ended["model"]), "dir": os.fspath(ended["dir"]), "model_is_new": True}
        if ended["stop_reason"] == "interrupted" and only_evaluate is None:
            raise KeyboardInterrupt(
                f"stopped after step {ended['step']}; train(resume_from_checkpoint=True) goes on in {ended['dir']}"
            )
        return ended

    def _log(self, logs: dict) -> None:
        self.state.log_history.append({**logs, "step": self.state.global_step})
        self._callbacks.call("on_log", logs=logs)
        if in_notebook():
            print("  ".join(f"{key} {value:.4g}" for key, value in logs.items() if value is not None))

    @staticmethod
    def _warn_of_torch_contexts() -> None:
        import sys

        torch = sys.modules.get("torch")
        if torch is not None and not torch.is_grad_enabled():
            warn_once("train() is called under torch.no_grad(): that has no meaning here, the engine has gradients")


class _Observer:
    """Told by the engine how the run goes on; tells the trainer's state and callbacks."""

    def __init__(self, trainer: _Trainer, rewards: RewardSet | None, only_evaluate: dict | None):
        self.trainer = trainer
        self.rewards = rewards
        self.only_evaluate = only_evaluate
        self.steps_per_epoch = 1

    def begin(self, step: int, total_steps: int, steps_per_epoch: int, dir: Any) -> int:
        state = self.trainer.state
        self.steps_per_epoch = steps_per_epoch
        if self.only_evaluate is None:
            state.global_step, state.max_steps = step, total_steps
            state.epoch = step / steps_per_epoch
        return 0

    def step_begin(self, step: int) -> int:
        if self.only_evaluate is not None or step >= self.trainer.state.max_steps:
            return 0
        if step % self.steps_per_epoch == 0:
            self.trainer._callbacks.call("on_epoch_begin")
        return self._tell("on_step_begin")

    def step_end(self, step: int) -> int:
        state = self.trainer.state
        state.global_step, state.epoch = step, step / self.steps_per_epoch
        wishes = self._tell("on_step_end")
        return wishes | (self._tell("on_epoch_end") if step % self.steps_per_epoch == 0 else 0)

    def log(self, step: int, metrics: dict) -> int:
        if self.only_evaluate is not None:
            self.only_evaluate.update(metrics)
            return 0
        if self.rewards is not None:
            # TRL logs what a reward logs under the name that it gives; the engine keeps rewards apart.
            for long, name in self.rewards.metrics_seen.items():
                if long in metrics and name not in metrics:
                    metrics[name] = metrics.pop(long)
        trainer = self.trainer
        is_evaluation = any(key.startswith("eval_") for key in metrics)
        trainer.state.num_input_tokens_seen = int(metrics.get("num_tokens", trainer.state.num_input_tokens_seen))
        trainer._log({**metrics, "epoch": trainer.state.epoch})
        return self._tell("on_evaluate", metrics=metrics) if is_evaluation else self._wishes()

    def save(self, step: int, path: Any) -> int:
        return self._tell("on_save")

    def _tell(self, event: str, **kwargs: Any) -> int:
        self.trainer._callbacks.call(event, **kwargs)
        return self._wishes()

    def _wishes(self) -> int:
        control = self.trainer.control
        wishes = STOP * control.should_training_stop + SAVE * control.should_save + EVALUATE * control.should_evaluate
        control.should_save = control.should_evaluate = control.should_log = False
        return wishes


class GRPOTrainer(_Trainer):
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
        **others: Any,
    ):
        if reward_processing_classes is not None:
            warn_once("reward_processing_classes has no meaning here: a reward model is read with its own tokenizer")
        self._reward_set = RewardSet(reward_funcs)
        self.reward_funcs = reward_funcs
        super().__init__(
            model, args, train_dataset, eval_dataset, processing_class, callbacks, peft_config, **others
        )
        weights = self._values.get("reward_weights")
        if weights is not None and len(weights) != len(self._reward_set.specs):
            raise ValueError(
                f"`reward_weights` has {len(weights)} numbers, but there are {len(self._reward_set.specs)} rewards: "
                "one weight for each"
            )

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


class SFTTrainer(_Trainer):
    """TRL's SFTTrainer, on rows with a prompt and a completion."""

    config_class = SFTConfig
    columns = ("prompt", "completion")

    def _rows(self, dataset: Any, name: str, key: str, most: str) -> tuple[list[dict], list[str] | None]:
        rows, texts = super()._rows(dataset, name, key, most)
        for i, row in enumerate(rows):
            if "prompt" not in row and ("messages" in row or "text" in row):
                raise ValueError(
                    f"`{name}`, row {i}: language modelling on `{'messages' if 'messages' in row else 'text'}` is not "
                    "supported: the loss is of completions. Give the columns prompt and completion "
                    "(messages[:-1] and messages[-1:])"
                )
        return rows, texts


class DPOTrainer(_Trainer):
    """TRL's DPOTrainer, on rows with a chosen and a rejected answer."""

    config_class = DPOConfig
    columns = ("chosen", "rejected")

    def __init__(self, model: Any = None, ref_model: Any = None, args: Any = None, *rest: Any, **kwargs: Any):
        if ref_model is not None and ref_model is not model and ref_model != model:
            raise ValueError(
                "DPOTrainer: `ref_model` is another model: the reference is the model that training begins with; "
                "remove it"
            )
        super().__init__(model, args, *rest, **kwargs)


class RewardTrainer(_Trainer):
    """TRL's RewardTrainer: a model that scores answers, from rows with a chosen and a rejected one."""

    config_class = RewardConfig
    columns = ("chosen", "rejected")


# What gen_kwargs (transformers' generate) says under another name.
_GENERATION = {"max_new_tokens": "max_completion_length", "max_length": "max_completion_length"}


def _with_gen_kwargs(args: Any, gen_kwargs: dict) -> Any:
    """Old scripts give the trainer arguments of `generate`."""
    warnings.warn("`gen_kwargs` is old: set these fields of the configuration instead", FutureWarning, stacklevel=4)
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


def _short_name(model: Any) -> str:
    name = model if isinstance(model, (str, os.PathLike)) else getattr(model, "name_or_path", "") or "model"
    return os.path.basename(os.path.normpath(os.fspath(name)))


_LATER = "it comes in a later version"
_REFUSED_ARGUMENTS = {
    "tools": _LATER,
    "environment_factory": _LATER,
    "rollout_func": _LATER,
    "compute_metrics": "rewards and metrics of evaluation are the engine's; log_metric in a reward adds one",
    "optimizers": "the optimizer is AdamW, set by learning_rate, weight_decay, adam_beta1, adam_beta2 and adam_epsilon",
    "optimizer_cls_and_kwargs": "the optimizer is AdamW, set by the fields of the configuration",
    "quantization_config": "weights are not quantised in this build",
    "data_collator": "batches are packed by the engine",
    "preprocess_logits_for_metrics": "logits never leave the engine",
    "formatting_func": "format the rows before they are given (columns prompt and completion)",
    "compute_loss_func": "losses are the engine's: loss_type",
    "value_model": "set value_model of PPOConfig to a directory",
    "reward_processing_classes": "a reward model is read with its own tokenizer",
    "tokenizer": "the argument is processing_class",
    "gen_kwargs": "set the fields of the configuration",
}
_REFUSED_METHODS = {
    "get_train_dataloader": "the engine draws its rows itself; no data loader is made",
    "get_eval_dataloader": "the engine draws its rows itself; no data loader is made",
    "create_optimizer": "the optimizer is inside the engine",
    "create_scheduler": "the schedule is inside the engine",
    "create_optimizer_and_scheduler": "the optimizer is inside the engine",
    "compute_loss": "the loss is inside the engine: loss_type",
    "training_step": "steps are made inside the engine: use callbacks",
    "prediction_step": "evaluation is inside the engine",
    "predict": "generate completions with `lockstep generate`, or use evaluate",
    "optimizer": "the optimizer is inside the engine",
    "lr_scheduler": "the schedule is inside the engine",
    "accelerator": "one process trains; there is no accelerate",
    "hyperparameter_search": "make a trainer for each trial",
}

__all__ = [
    "DPOTrainer",
    "GRPOTrainer",
    "NEVER_CALLED",
    "PPOTrainer",
    "RLOOTrainer",
    "RewardTrainer",
    "SFTTrainer",
    "TrainOutput",
]
