"""`trainer.model`: a transformers model with the engine's current weights."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from importlib.util import find_spec
from typing import Any

from . import _peft
from ._config import warn_once
from ._models import name_base, sync_weights
from ._torch_state import check_frozen, check_trained


class Model:
    """`trainer.model` if the model was given by name. Without torch and transformers it can only be saved. With them it
    acts as a transformers model, which is loaded at first use and has the weights of that moment."""

    _loaded: Any = None

    def __init__(self, live: Any):
        vars(self)["_live"] = live

    @property
    def name_or_path(self) -> str:
        """Name or directory of the model with its current weights."""
        return self._live.path()

    def save_pretrained(self, directory: str | os.PathLike, **kwargs: Any) -> None:
        """Writes the model with its current weights, and its tokenizer."""
        if kwargs:
            self._live.current(self).save_pretrained(directory, **kwargs)
            return
        self._live.save(os.fspath(directory))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name.startswith(("_repr_", "_ipython_")):
            raise AttributeError(name)
        return getattr(self._live.current(self, f"trainer.model.{name}"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._live.current(self, f"trainer.model.{name}"), name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._live.current(self, "trainer.model(…)")(*args, **kwargs)

    @property
    def __class__(self) -> type:
        # Makes isinstance true for classes of transformers, PEFT and torch. If torch is not imported, no caller can
        # mean such a class.
        if "torch" in sys.modules and _has_packages():
            return type(self._live.current(self))
        return Model

    def __deepcopy__(self, memo: dict) -> Any:
        import copy

        return copy.deepcopy(self._live.current(self), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._live.current(self).__reduce_ex__(protocol)

    def __repr__(self) -> str:
        loaded = vars(self).get("_loaded")
        return f"Model({self.name_or_path!r})" if loaded is None else repr(loaded)


def opened(model: Any) -> Any:
    """Returns the transformers model of another trainer's `trainer.model`, so that training continues in this object.
    Other arguments, and such a model without torch and transformers, are returned unchanged."""
    if type(model) is Model and _has_packages():
        return vars(model)["_live"].current(model)
    return model


def _has_packages() -> bool:
    return find_spec("torch") is not None and find_spec("transformers") is not None


class LiveModel:
    """The model of a trainer, whose weights are updated from the engine when the model is used."""

    def __init__(self, trainer: Any):
        self._trainer = trainer
        self._given = trainer._given_model
        self._seen: Any = None
        self._seen_step = 0
        self._object: Any = None
        self._fingerprint: list | None = None
        if isinstance(self._given, (str, os.PathLike)):
            self.handle: Any = Model(self)
        else:
            self.handle = None

    def get(self) -> Any:
        """Returns the object for `trainer.model`."""
        return self.handle if self.handle is not None else self.current(None)

    def path(self) -> str:
        """Returns the name or directory of the trained model, or of the initial model before training."""
        return self._trainer._current_model()

    def save(self, directory: str) -> None:
        """Writes the model with its current weights."""
        live = self._engine()
        if live is not None:
            live.save(directory)
            name_base(directory, self._given)
            return
        source = self._trainer._current_model()
        if not os.path.isdir(source):
            from . import _native

            source = _native.locate(source)
        if os.path.realpath(source) != os.path.realpath(directory):
            shutil.copytree(source, directory, dirs_exist_ok=True)
            name_base(directory, self._given)

    def is_given(self) -> bool:
        """Whether `trainer.model` is the model object that the user gave."""
        return self.handle is None

    def current(self, handle: Any, used: str = "trainer.model") -> Any:
        """Updates the weights of the transformers model, and returns the model."""
        if self._object is None:
            self._object = self._load(used)
            self._fingerprint = None if handle is None else _fingerprint(self._object)
            if handle is not None:
                vars(handle)["_loaded"] = self._object
        version = self._version()
        if version is not None and version != self._seen:
            with tempfile.TemporaryDirectory(prefix="lockstep-live-") as place:
                live = self._engine()
                if live is None:
                    place = self.path()
                else:
                    live.save(place)
                sync_weights(self._object, place)
            self._seen, self._seen_step = version, self._trainer.state.global_step
        return self._object

    def settle(self) -> None:
        """Copies the engine's weights into the user's object when training ends. A model that the user neither passed
        nor used has no object."""
        if not hasattr(self._object if self._object is not None else self._given, "state_dict"):
            return
        if self._object is None:
            self._object = self._load("trainer.model")
        version = self._ended_version()
        if version is not None and version != self._seen:
            sync_weights(self._object, self.path())
            self._seen, self._seen_step = version, self._trainer.state.global_step
        if self.handle is not None and self._trainer._result is None:
            # These weights come from the engine, and are not a change by the user.
            self._fingerprint = _fingerprint(self._object)

    def check(self, only_frozen: bool = False) -> None:
        """Raises a ValueError if the model object has settings that the engine would ignore. With `only_frozen`, only
        its parameters are checked."""
        model = self.base()
        values = self._trainer._values
        new_adapter = bool(values.get("use_peft")) and not _peft.is_peft_model(model)
        if isinstance(model, (str, os.PathLike)):
            return
        if only_frozen:
            check_frozen(model, new_adapter)
            return
        check_trained(model, new_adapter, bool(getattr(self._trainer.args, "disable_dropout", False)))

    def to_train(self) -> Any:
        """Returns the model with which training begins: the one passed, or `trainer.model` if its weights were
        changed."""
        if self._trainer._result is not None or self._object is None:
            return self._given
        if self.handle is not None and _fingerprint(self._object) == self._fingerprint:
            return self._given
        return self._object

    def base(self) -> Any:
        """Returns the model without updating its weights."""
        return self._object if self._object is not None else self._given

    def _engine(self) -> Any:
        live = self._trainer._live
        return live if live is not None and live.version() is not None else None

    def _version(self) -> Any:
        live = self._engine()
        if live is not None:
            return ("live", id(live), live.version())
        if self._trainer._trains_now:
            if self._seen_step != self._trainer.state.global_step:
                warn_once(
                    "trainer.model was read outside a callback while the engine works: it has the weights of step "
                    f"{self._seen_step}"
                )
            return None
        return self._ended_version()

    def _ended_version(self) -> Any:
        result, stopped = self._trainer._result, self._trainer._stopped_in
        if result is None:
            return None if stopped is None else ("stopped", stopped)
        return ("result", result["model"], result["step"], id(result))

    def _load(self, used: str) -> Any:
        trainer = self._trainer
        config = trainer._peft_config
        if self.handle is None:
            if not trainer._values.get("use_peft") or _peft.is_peft_model(self._given):
                return self._given
            return _peft.wrapped(self._given, config, trainer._values)
        name = os.fspath(self._given)
        if os.path.exists(os.path.join(name, "adapter_config.json")):
            return _peft.loaded(name, lambda base: load(base, trainer, used))
        model = load(name, trainer, used)
        if trainer._values.get("use_peft"):
            return _peft.wrapped(model, config, trainer._values)
        return model


def load(name: str, trainer: Any, used: str) -> Any:
    """Loads a transformers model of the kind that the trainer trains: a causal language model, or a sequence
    classifier."""
    if not _has_packages():
        raise AttributeError(
            f"`{used}` needs torch and transformers, though not for training: pip install torch transformers. "
            "Without them trainer.model has save_pretrained(DIRECTORY), and lockstep_rl.Model(DIRECTORY) generates "
            "and scores"
        )
    import torch
    import transformers

    kind = transformers.AutoModelForSequenceClassification if trainer._trains_scores else (
        transformers.AutoModelForCausalLM
    )
    more = {"num_labels": 1} if trainer._trains_scores else {}
    dtype = torch.bfloat16 if trainer._values.get("dtype") == "bf16" else torch.float32
    return kind.from_pretrained(name, dtype=dtype, **more)


class LiveReference(LiveModel):
    """The reference model of a trainer without a given reference: the initial model or, with `sync_ref_model`, the
    reference model in the newest checkpoint."""

    def __init__(self, trainer: Any):
        super().__init__(trainer)
        self.handle = Model(self)

    def path(self) -> str:
        """Returns the name or directory of the initial model."""
        return self._trainer._values.get("model_name_or_path") or self._trainer._current_model()

    def save(self, directory: str) -> None:
        """Writes the reference model in transformers' format."""
        self.current(self.handle).save_pretrained(directory)

    def current(self, handle: Any, used: str = "trainer.ref_model") -> Any:
        if self._object is None:
            self._object = self._load(used)
            vars(self.handle)["_loaded"] = self._object
        newest = self._newest()
        if newest is not None and newest != self._seen:
            sync_weights(self._object, newest, file="reference.safetensors")
            self._seen = newest
        return self._object

    def _newest(self) -> str | None:
        """Returns the newest checkpoint that contains an updated reference model, or None."""
        if not self._trainer._values.get("sync_ref_model"):
            return None
        place = os.path.join(self._trainer._values["output_dir"], "checkpoints")
        names = sorted(os.listdir(place)) if os.path.isdir(place) else []
        whole = (os.path.join(place, name) for name in names if name.startswith("step-"))
        moved = [one for one in whole if os.path.exists(os.path.join(one, "reference.safetensors"))]
        return moved[-1] if moved else None

    def _load(self, used: str) -> Any:
        trainer = self._trainer
        if isinstance(self._given, (str, os.PathLike)):
            return load(os.fspath(self._given), trainer, used)
        written = trainer._values.get("model_name_or_path")
        if written is not None:  # training has begun, and these are its initial weights
            return load(written, trainer, used)
        import copy

        return copy.deepcopy(trainer._model.current(None))


def _fingerprint(model: Any) -> list:
    """Returns shapes and sums of the weights, which reveal changes."""
    return [(tuple(p.shape), p.detach().double().sum().item()) for p in model.state_dict().values()]


def may_use(function: Any, argument: str) -> bool:
    """Whether a function can read the keyword argument `argument`: it has a parameter of that name, or its body uses
    its `**kwargs`."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None:
        return True
    count = code.co_argcount + code.co_kwonlyargcount
    if argument in code.co_varnames[:count]:
        return True
    if not code.co_flags & 0x08:  # the function has no **kwargs
        return False
    everything = code.co_varnames[count + bool(code.co_flags & 0x04)]
    return _reads(code, everything)


def _reads(code: Any, name: str) -> bool:
    import dis

    if name in code.co_cellvars:  # an inner function uses it
        return True
    used = (instruction.argval for instruction in dis.get_instructions(code) if "LOAD" in instruction.opname)
    return any(value == name or (isinstance(value, tuple) and name in value) or value == "locals" for value in used)
