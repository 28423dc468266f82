"""Attributes and arguments that a trainer reads when training begins, since a script may change them until then; and
the state of training that is resumed."""

from __future__ import annotations

import json
import math
import os
from typing import Any

from ._callbacks import STATE_FILE, TrainerState
from ._config import warn_once
from ._data import is_stream
from ._flow import set_intervals
from ._models import has_only_files, loaded_tokenizer, source_of
from ._overrides import check_attribute
from ._peft import is_peft_model, lora_values
from ._script_methods import OF_ARGS

# Attributes that cannot be set, with the alternative.
_FIXED = {
    name: why
    for why, names in {
        "create a new trainer with the new model": "model model_wrapped",
        "create a new trainer with the new reference": "ref_model",
        "the engine packs batches; the columns of a row determine the loss": "data_collator",
        "the names are those of `reward_funcs`": "reward_func_names",
        "use add_callback and remove_callback": "callback_handler",
        "the engine sets it; entropy_coef of the arguments is the initial value": "entropy_coef",
        "there is only one process": "accelerator",
    }.items()
    for name in names.split()
}
# Attributes that are read when training begins, and can be set only before.
_BEFORE = ("args", "processing_class", "train_dataset", "eval_dataset", "formatting_func", "reward_funcs",
           "reward_weights", "reward_processing_classes", "rollout_func")


class ReadLate:
    """Mixin for a trainer whose attributes and arguments may be changed until training begins."""

    args: Any
    state: TrainerState
    config_class: Any
    _values: dict
    _trains_scores: bool
    _resumes_from: str | None = None
    # The step after which training started or was resumed.
    _first_step = 0
    _args_seen: dict | None = None
    _fields_seen: dict | None = None
    _tokenizer: Any = None
    _loaded_tokenizer: Any = None
    _tokenizer_seen: tuple = ()

    @property
    def processing_class(self) -> Any:
        """The tokenizer: the one passed, or the model's, which is loaded with transformers at first use."""
        if not has_only_files(self._tokenizer):
            return self._tokenizer
        if self._loaded_tokenizer is None:
            self._loaded_tokenizer = loaded_tokenizer(self._tokenizer, self._given_model)
            self._tokenizer_seen = _settings(self._loaded_tokenizer)
        return self._loaded_tokenizer

    @processing_class.setter
    def processing_class(self, processing_class: Any) -> None:
        self._tokenizer, self._loaded_tokenizer = processing_class, None
        if "_source" in vars(self):
            self._source = source_of(self._given_model, processing_class)
            self._values["model_name_or_path"] = self._source

    @property
    def tokenizer(self) -> Any:
        """The tokenizer, under its old name."""
        return self.processing_class

    def __setattr__(self, name: str, value: Any) -> None:
        own = vars(self)
        check_attribute(self, name, value)
        if name in _FIXED:
            raise AttributeError(f"{type(self).__name__}: `{name}` cannot be set: {_FIXED[name]}")
        field = OF_ARGS.get(name)
        is_field = "args" in own and field in self.args._fields
        if own.get("_trains_now") and (is_field or name in _BEFORE):
            raise AttributeError(
                f"{type(self).__name__}: `{name}` is read when training begins: set it before train(), or in a new "
                "trainer"
            )
        if is_field and not isinstance(getattr(type(self), name, None), property):
            setattr(self.args, field, value)
            return
        super().__setattr__(name, value)

    def _first_values(self) -> dict:
        """Returns the engine's keys when the trainer is created."""
        values = self.args.values()
        self._args_seen = dict(values)
        return values

    def _read_args(self) -> None:
        """Reads the arguments again, which may have changed since the last read."""
        if self._loaded_tokenizer is not None and _settings(self._loaded_tokenizer) != self._tokenizer_seen:
            self.processing_class = self._loaded_tokenizer  # a script changed its template or its tokens
        if not isinstance(self.args, self.config_class):
            raise TypeError(f"`args` must be a {self.config_class.__name__}, but is {self.args!r:.80}")
        before, now = self._args_seen or {}, self.args.values()
        changed = {key for key in before.keys() | now.keys() if before.get(key) != now.get(key)}
        self._fields_seen = self.args.to_dict()
        if not changed:
            return
        self.args.check()
        self.args._derived = self.args.derive()
        self._args_seen = dict(now)
        if self._given_train is not None:
            changed.discard("dataset_name")
        if self._given_eval is not None:
            changed -= {"eval_dataset_name", "eval_datasets"}
        for key in changed:
            if key in now:
                self._values[key] = now[key]
            else:
                self._values.pop(key, None)
        of_adapter = is_peft_model(self._given_model)
        if self._peft_config is not None:
            self._values.update(lora_values(self._peft_config, has_weights=of_adapter, has_scores=self._trains_scores))
        if "output_dir" in changed:
            self._values["output_dir"] = self._output_dir(self._given_model)
        self._args_changed(changed)
        if is_stream(self._given_train):  # another number of rows may be needed
            self.train_dataset = self._given_train

    def _args_changed(self, changed: set[str]) -> None:
        """Called with the engine's keys whose values were changed."""

    def _check_unchanged(self) -> None:
        """Called before each step: warns about arguments that were changed during training."""
        seen = self._fields_seen
        if seen is None:
            return
        for name, value in self.args.to_dict().items():
            if name in seen and name not in _READ_NOW and not _is_same(seen[name], value):
                seen[name] = value
                warn_once(f"`args.{name}` was changed while training: it is read when training begins, so the change "
                          "has no effect")

    def _prepare_state(self, step: int, total_steps: int, steps_per_epoch: int) -> None:
        """Sets the state at the beginning of training, or the state in a checkpoint."""
        state, args = self.state, self.args
        self._first_step = step
        found = self._state_at(step) if step > 0 else TrainerState()
        for name in ("log_history", "best_metric", "best_global_step", "best_model_checkpoint", "total_flos",
                     "num_input_tokens_seen"):
            setattr(state, name, getattr(found, name))
        state.global_step, state.max_steps = step, total_steps
        set_intervals(state, args, total_steps)
        epochs = total_steps / steps_per_epoch if (args.max_steps or 0) > 0 else args.num_train_epochs
        state.num_train_epochs = math.ceil(epochs)
        state.train_batch_size = args.per_device_train_batch_size

    def _state_at(self, step: int) -> TrainerState:
        """Returns the state after `step`, from the checkpoint or else from `metrics.jsonl`."""
        root = self._values["output_dir"]
        named = [] if self._resumes_from is None else [self._resumes_from, os.path.dirname(
            os.path.dirname(os.path.realpath(self._resumes_from)))]
        for place in [*named, root]:
            for path in (place, os.path.join(place, "checkpoints", f"step-{step:06}")):
                file = os.path.join(path, STATE_FILE)
                if os.path.exists(file):
                    state = TrainerState.load_from_json(file)
                    if state.global_step == step:
                        return state
        for place in [*named, root]:
            if os.path.exists(os.path.join(place, "metrics.jsonl")):
                return TrainerState(log_history=_logged(os.path.join(place, "metrics.jsonl"), step))
        return TrainerState()


# Arguments that have an effect during training: callbacks and intervals read them.
_READ_NOW = ("logging_first_step", "logging_strategy", "eval_strategy", "eval_delay", "save_strategy",
             "greater_is_better", "metric_for_best_model", "dashboard", "run_name", "hub_model_id", "hub_token")


def _settings(tokenizer: Any) -> tuple:
    """Returns the settings of a tokenizer that affect the files for the engine."""
    if has_only_files(tokenizer):
        return ()
    return tokenizer.chat_template, tokenizer.eos_token, tokenizer.bos_token, len(tokenizer)


def _is_same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # arrays, for example
        return one is other


def _logged(path: str, step: int) -> list[dict]:
    """Returns the entries of `metrics.jsonl` up to `step`, in the form of `log_history`."""
    entries = []
    with open(path) as file:
        for line in file:
            try:
                entry = json.loads(line)
            except ValueError:  # the last line, if the process was killed
                break
            if entry.get("step", 0) <= step and "alarm" not in entry:
                number = entry.pop("step")
                entry.pop("time_s", None)
                entries.append({**entry, "step": number})
    return entries
