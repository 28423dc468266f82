"""Callbacks of a trainer, and the state and control passed to them, under transformers' names."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

from ._live import may_use
from ._overrides import REFUSED_METHODS, check_callback


# The file with the state, in a checkpoint and in `output_dir`.
STATE_FILE = "trainer_state.json"


@dataclasses.dataclass
class TrainerState:
    """State of a trainer as callbacks see it, with the fields of transformers' TrainerState."""

    epoch: float | None = None
    global_step: int = 0
    max_steps: int = 0
    logging_steps: int = 10
    eval_steps: int | None = None
    save_steps: int = 500
    train_batch_size: int = 0
    num_train_epochs: float = 0
    num_input_tokens_seen: int = 0
    total_flos: float = 0
    log_history: list[dict] = dataclasses.field(default_factory=list)
    best_metric: float | None = None
    best_global_step: int | None = None
    best_model_checkpoint: str | None = None
    is_local_process_zero: bool = True
    is_world_process_zero: bool = True
    is_hyper_param_search: bool = False
    trial_name: str | None = None
    trial_params: dict | None = None
    stateful_callbacks: dict = dataclasses.field(default_factory=dict)

    def save_to_json(self, json_path: str) -> None:
        """Writes the state to a file atomically."""
        partial = f"{json_path}.{os.getpid()}.partial"
        with open(partial, "w") as file:
            json.dump(dataclasses.asdict(self), file, indent=2, sort_keys=True, default=str)
        os.replace(partial, json_path)

    @classmethod
    def load_from_json(cls, json_path: str) -> TrainerState:
        """Reads the state from a file, which transformers may have written. Fields that this class lacks are
        ignored."""
        with open(json_path) as file:
            values = json.load(file)
        return cls(**{field.name: values[field.name] for field in dataclasses.fields(cls) if field.name in values})


@dataclasses.dataclass
class TrainerControl:
    """Requests of a callback to the trainer. A callback makes a request by setting a field to True."""

    should_training_stop: bool = False
    should_epoch_stop: bool = False
    should_save: bool = False
    should_evaluate: bool = False
    should_log: bool = False


class TrainerCallback:
    """Base class of callbacks; transformers' TrainerCallback works, too. Each method receives the trainer's arguments,
    state and control, and `model`, `processing_class` and more as keyword arguments."""

    def on_init_end(self, args, state, control, **kwargs):
        """Called when the trainer has been made."""

    def on_train_begin(self, args, state, control, **kwargs):
        """Called before training begins."""

    def on_train_end(self, args, state, control, **kwargs):
        """Called after training has ended."""

    def on_epoch_begin(self, args, state, control, **kwargs):
        """Called before each epoch."""

    def on_epoch_end(self, args, state, control, **kwargs):
        """Called after each epoch."""

    def on_step_begin(self, args, state, control, **kwargs):
        """Called before each optimizer step."""

    def on_step_end(self, args, state, control, **kwargs):
        """Called after each optimizer step."""

    def on_optimizer_step(self, args, state, control, **kwargs):
        """Called after each optimizer step, before `on_step_end`."""

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        """Called after each evaluation, with its metrics."""

    def on_predict(self, args, state, control, metrics, **kwargs):
        """Called after `predict`, with its metrics."""

    def on_save(self, args, state, control, **kwargs):
        """Called after a checkpoint has been written."""

    def on_log(self, args, state, control, logs, **kwargs):
        """Called when metrics are logged."""


class NotHere:
    """Placeholder for an object that transformers passes to callbacks but that exists only inside the engine
    (optimizer, data loaders). The placeholder is falsy, and reading an attribute raises an error with the reason."""

    def __init__(self, name: str, why: str):
        vars(self).update(_name=name, _why=why)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(f"`{self._name}` has no `{name}` here: {self._why}")

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"<no {self._name}: {self._why}>"


_NOT_HERE = {
    name: NotHere(name, REFUSED_METHODS[method])
    for name, method in {
        "optimizer": "optimizer",
        "lr_scheduler": "lr_scheduler",
        "train_dataloader": "get_train_dataloader",
        "eval_dataloader": "get_eval_dataloader",
    }.items()
}


# The requests that each event resets.
_ANSWERED = {
    "on_train_begin": ("should_training_stop",),
    "on_epoch_begin": ("should_epoch_stop",),
    "on_step_begin": ("should_log", "should_evaluate", "should_save"),
    "on_log": ("should_log",),
    "on_evaluate": ("should_evaluate",),
    "on_save": ("should_save",),
}


def _is_own(callback: Any, event: str) -> bool:
    """Whether a callback overrides the empty method for `event`."""
    method = getattr(callback, event, None)
    return method is not None and getattr(method, "__qualname__", "") != f"TrainerCallback.{event}"


class CallbackList:
    """The callbacks of a trainer. Calls them in order, and passes their requests on to the trainer."""

    def __init__(self, callbacks: list, trainer: Any):
        self.callbacks: list = []
        self.trainer = trainer
        for callback in callbacks:
            self.add(callback)

    def add(self, callback: Any) -> None:
        callback = callback() if isinstance(callback, type) else callback
        if not any(callable(getattr(callback, event, None)) for event in vars(TrainerCallback) if event[:3] == "on_"):
            raise TypeError(f"{callback!r} has no callback method such as on_step_end (see TrainerCallback)")
        check_callback(callback)
        self.callbacks.append(callback)

    def pop(self, callback: Any) -> Any:
        """Removes and returns a callback: the object given, or the first one of a class."""
        for own in self.callbacks:
            if own is callback or (isinstance(callback, type) and isinstance(own, callback)):
                self.callbacks.remove(own)
                return own
        return None

    # Method names of transformers' CallbackHandler.
    add_callback = add
    pop_callback = pop
    remove_callback = pop

    @property
    def callback_list(self) -> str:
        """Class names of the callbacks, one per line."""
        return "\n".join(type(callback).__name__ for callback in self.callbacks)

    def has_own(self, event: str) -> bool:
        """Whether any callback overrides the method for `event`."""
        return any(_is_own(callback, event) for callback in self.callbacks)

    def call(self, event: str, **kwargs: Any) -> None:
        """Calls the method `event` of each callback that overrides it. As in transformers, the requests that the event
        resets are cleared first."""
        trainer = self.trainer
        for name in _ANSWERED.get(event, ()):
            setattr(trainer.control, name, False)
        for callback in list(self.callbacks):
            method = getattr(callback, event, None)
            if method is None:
                continue
            live = trainer._model
            # If the user passed a model object, its weights are updated only for callbacks that use `model`.
            model = live.get() if not live.is_given() or may_use(method, "model") else live.base()
            tokenizer = trainer.processing_class if may_use(method, "processing_class") else None
            control = method(
                trainer.args, trainer.state, trainer.control,
                model=model, processing_class=tokenizer, **_NOT_HERE, **kwargs,
            )
            if control is not None:
                trainer.control = control
