"""TRL's configuration classes, generated from the engine's table of keys, which `lockstep config explain` prints.

Each field of TRL's classes and of transformers' TrainingArguments is supported, accepted without effect (with one
warning), or refused with a message that names an alternative.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import math
import warnings
from typing import Any

from . import _native
from ._arguments import READ_BACK, AcceleratorConfig, ArgumentMethods, begin_accelerate, plain_of
from ._own_fields import (
    OF_FLOW, OF_METRICS, OF_PAGES, OF_REFERENCE, OF_SERVERS, OF_WORKERS, OWN_DEFAULTS, WITHOUT_METRICS, WITH_METRICS,
)

# Keys that a trainer sets from its own arguments; they are not fields of a configuration class.
_NOT_FIELDS = {"model_name_or_path", "reward_funcs"}

# Warnings that were already shown.
_said: set[str] = set()


def warn_once(text: str, category: type[Warning] = UserWarning, stacklevel: int = 3) -> None:
    """Shows the warning `text`, but only once."""
    if text not in _said:
        _said.add(text)
        warnings.warn(text, category, stacklevel=stacklevel + 1)


def asks_for_nothing(value: Any) -> bool:
    """Whether the value of an unsupported field is equivalent to leaving it unset: None, False or empty."""
    return value is None or value is False or (isinstance(value, (str, list, tuple, dict)) and len(value) == 0)


def plain(value: Any, name: str) -> Any:
    """Converts `value` to a JSON value: enums to their values, NumPy scalars to Python's, paths to strings."""
    if value is None or isinstance(value, (bool, int, str)) and type(value) in (bool, int, str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"`{name}` = {value}: expected a finite number")
        return float(value)
    if hasattr(value, "__fspath__"):
        return value.__fspath__()
    if hasattr(value, "value") and hasattr(value, "name"):  # an enum, such as transformers' IntervalStrategy
        return plain(value.value, name)
    if isinstance(value, dict):
        return {str(key): plain(item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [plain(item, name) for item in value]
    if isinstance(value, (int, str)):
        return value.__class__.__mro__[-2](value)
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return plain(value.item(), name)
    raise TypeError(f"`{name}` = {value!r}: a configuration value must not be of type {type(value).__name__}")


_TYPES = {
    "integer": ((int,), "an integer"),
    "number": ((int, float), "a number"),
    "boolean": ((bool,), "True or False"),
    "string": ((str,), "a text"),
    "array": ((list, tuple, str), "a list"),
    "object": ((dict,), "a dict"),
}


def alternatives(schema: dict) -> list[dict]:
    """Returns the schemas of a nested `anyOf` as a flat list; another schema is returned as a list of one."""
    parts = schema.get("anyOf")
    return [schema] if parts is None else [leaf for part in parts for leaf in alternatives(part)]


def _check_type(name: str, value: Any, schema: dict) -> None:
    """Raises a TypeError if the type of `value` does not match the key's JSON Schema."""
    kinds = [part.get("type") for part in alternatives(schema)]
    expected = [_TYPES[kind] for kind in kinds if kind in _TYPES]
    if not expected or value is None:
        return
    is_bool_for_number = isinstance(value, bool) and "boolean" not in kinds
    whole = isinstance(value, float) and value.is_integer() and "integer" in kinds
    texts_for_none = isinstance(value, str) and value in ("none", "None")
    if whole or texts_for_none or (any(isinstance(value, types) for types, _ in expected) and not is_bool_for_number):
        return
    words = " or ".join(words for _, words in expected)
    raise TypeError(f"`{name}` must be {words}, but is {value!r} ({type(value).__name__})")


def _joined(key: str, one: Any, other: Any, field: str, other_field: str) -> Any:
    """Merges the values of a key that two fields set."""
    if key == "columns":
        clash = [name for name in one.keys() & other.keys() if one[name] != other[name]]
        if not clash:
            return {**one, **other}
    if key == "dtype":
        # bf16 compute with float32 weights means bf16 with f32 master weights, in either order of the fields.
        return one if one in ("bf16", "bfloat16") else other
    if one != other:
        raise ValueError(f"`{field}` and `{other_field}` both set {key}, to {one!r} and {other!r}: keep one of them")
    return one


def _from_json(name: str, value: Any, schema: dict) -> Any:
    """Parses a field that may be a dict: as in transformers, the string of a dict becomes a dict."""
    kinds = [part.get("type") for part in alternatives(schema)]
    if not isinstance(value, str) or not value.startswith("{") or set(kinds) - {"object", None}:
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"`{name}` = {value}: invalid JSON: {error}") from None


class Field:
    """A field of a configuration class: its status (supported, ignored, refused, or an alias), default and meaning."""

    def __init__(self, row: dict):
        self.name: str = row["name"]
        self.status: str = row["status"]
        self.doc: str = row["doc"]
        self.default: Any = row.get("default", READ_BACK.get(self.name))
        own = {"type": "boolean"} if isinstance(self.default, bool) else {}
        self.schema: dict = row.get("schema") or _READ_AS.get(self.name, own)
        self.trl_name: str | None = row.get("trl_name")
        self.type: str = row.get("type", "")
        self.trl: str = row.get("trl", "")
        # Whether TRL has no such key.
        self.is_only_here: bool = row["status"] == "supported" and self.trl == "no such key"


_TEXT = {"type": "string"}
# JSON Schemas of fields that only this package reads; the engine does not have most of them under TRL's name.
_READ_AS = {
    "bf16": {"type": "boolean"},
    "report_to": {"anyOf": [{"type": "array", "items": _TEXT}, _TEXT]},
    "dataset_text_field": _TEXT,
    "model_init_kwargs": {"type": "object"},
    "disable_tqdm": {"type": "boolean"},
    "project": _TEXT,
    "overwrite_output_dir": {"type": "boolean"},
    "resume_from_checkpoint": {"anyOf": [{"type": "boolean"}, _TEXT]},
    "push_to_hub": {"type": "boolean"},
    "hub_model_id": _TEXT,
    "hub_private_repo": {"type": "boolean"},
    "hub_revision": _TEXT,
    "hub_token": _TEXT,
    "eos_token": _TEXT,
}

# Destinations of metrics; wandb, trackio and mlflow through their own packages. Receivers are also possible.
REPORTERS = ("none", "all", "tensorboard", "wandb", "trackio", "mlflow")
_RECEIVERS = ("command:", "http://", "https://")

# Functions that translate a TRL field to the engine's keys, if the name or the meaning differs.
def _of_bf16(on: Any) -> dict:
    return {"dtype": "bf16"} if on else {}


def _of_scale_rewards(value: Any) -> dict:
    return {"scale_rewards": {True: "group", False: "none"}.get(value, value) if isinstance(value, bool) else value}


def _of_report_to(value: Any) -> dict:
    names = [value] if isinstance(value, str) else list(value or [])
    receivers = [name for name in names if str(name).startswith(_RECEIVERS)]
    for name in names:
        if name not in REPORTERS and name not in receivers:
            shown = str(name).partition("://")[0]  # the rest may contain a password
            raise ValueError(
                f"`report_to` = {shown!r}: expected one or several of {', '.join(REPORTERS)}, command:PROGRAM, "
                "http://ADDRESS, https://ADDRESS"
            )
    own = {"report_to": receivers} if receivers else {}
    return own if not names or {"tensorboard", "all"} & set(names) else {"tensorboard": False, **own}


def _of_text_field(value: Any) -> dict:
    return {"columns": {"text": value}} if value is not None else {}


def _of_model_init_kwargs(value: Any) -> dict:
    values = {}
    for name, item in (value or {}).items():
        if name in ("torch_dtype", "dtype"):
            dtype = str(item).removeprefix("torch.")
            if dtype == "float16":
                raise ValueError(f"`model_init_kwargs`: {name} = {item}: use float32 or bfloat16")
            if dtype != "auto":
                values["dtype"] = dtype
        elif name == "revision" and item in (None, "main"):
            continue
        elif name in ("attn_implementation", "device_map", "use_cache", "low_cpu_mem_usage", "trust_remote_code"):
            if not asks_for_nothing(item):
                warn_once(f"model_init_kwargs: {name} has no meaning here: the engine has its own")
        else:
            raise ValueError(
                f"`model_init_kwargs`: {name} = {item!r} is not supported: models are read as their config.json says; "
                "remove it"
            )
    return values


def _of_push_to_hub(on: Any) -> dict:
    if on:
        warn_once("push_to_hub: nothing is uploaded while training or by save_model; trainer.push_to_hub() uploads")
    return {}


def _of_steps(name: str) -> Any:
    """A number of steps; a number below 1 is a fraction of all steps, which the package computes."""

    def of(value: Any) -> dict:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1:
            return {}
        whole = isinstance(value, float) and value.is_integer()
        return {name: int(value) if whole else value}

    return of


def _without_none(name: str) -> Any:
    """A dict without values that are None, which mean the default."""

    def of(value: Any) -> dict:
        if value is not None and not isinstance(value, dict):
            raise TypeError(f"`{name}` must be a dict, but is {value!r} ({type(value).__name__})")
        return {name: {key: one for key, one in (value or {}).items() if one is not None}}

    return of


_SPECIAL = {
    # As in transformers, None disables top-k.
    "top_k": lambda value: {"top_k": 0 if value is None else value},
    "lr_scheduler_kwargs": _without_none("lr_scheduler_kwargs"),
    **{name: _of_steps(name) for name in ("logging_steps", "eval_steps", "save_steps")},
    "bf16": _of_bf16,
    "scale_rewards": _of_scale_rewards,
    "report_to": _of_report_to,
    "dataset_text_field": _of_text_field,
    "model_init_kwargs": _of_model_init_kwargs,
    "disable_tqdm": lambda value: {},
    "project": lambda value: {},
    "overwrite_output_dir": lambda value: {},
    "resume_from_checkpoint": lambda value: {},
    "push_to_hub": _of_push_to_hub,
    "hub_model_id": lambda value: {},
    "hub_private_repo": lambda value: {},
    "hub_revision": lambda value: {},
    "hub_token": lambda value: {},
    "eos_token": lambda value: {},
    "accelerator_config": lambda value: {},
}

# Descriptions of these fields for docs/python/fields.md.
MAPPED = {
    "bf16": "dtype = \"bf16\"",
    "model_init_kwargs": "torch_dtype or dtype sets the field dtype (float32 with bf16=True is bf16 compute); "
    "arguments for PyTorch have no effect; others are refused",
    "dataset_text_field": "columns = {\"text\": NAME}",
    "project": "the project of wandb and trackio",
    "disable_tqdm": "nothing is printed while training",
    "overwrite_output_dir": "a directory that holds a run is never overwritten: remove it, or resume the run",
    "resume_from_checkpoint": "the same as the argument of train()",
    "push_to_hub": "read by scripts, which then call push_to_hub(); nothing is uploaded while training",
    "hub_model_id": "the repository for push_to_hub(); by default your repository with the name of output_dir",
    "hub_private_repo": "whether push_to_hub() creates a private repository",
    "hub_revision": "the branch that push_to_hub() uploads to",
    "hub_token": "the token for push_to_hub()",
    "eos_token": "the end-of-sequence token, which must be a token of the tokenizer",
    "accelerator_config": "an object, as in transformers; dispatch_batches is False for streams, and True is refused "
    "for them; its other fields have no effect",
}


class _Config(ArgumentMethods):
    """Base class of the configuration classes."""

    method = ""
    _algorithm: str | None = None
    _fields: dict[str, Field] = {}
    _aliases: dict[str, str] = {}

    def __post_init__(self) -> None:
        self.forget()
        for name, value in list(vars(self).items()):
            field = self._fields.get(name)
            if field is None or name in self._own_fields():
                continue
            setattr(self, name, _from_json(name, value, field.schema))
        self.accelerator_config = AcceleratorConfig.of(self.accelerator_config)
        self.check()
        self._derived = self.derive()
        begin_accelerate(bool(getattr(self, "use_cpu", False)))

    def check(self) -> None:
        """Raises an error if the engine cannot train with these values."""
        if self.save_strategy == "best" and self.metric_for_best_model is None:
            raise ValueError("`save_strategy` = best: set metric_for_best_model, the metric of an evaluation")
        others = self._own_fields()
        for name, field in self._fields.items():
            if name in others:
                continue
            if name in _READ_AS or (field.status == "supported" and (name not in _SPECIAL or name in _STEPS)):
                _check_type(name, getattr(self, name), field.schema)
        values = self.values()
        # Placeholders for values that the trainer's arguments will set, so that all other values can be checked now.
        values.setdefault("model_name_or_path", "model")
        values.setdefault("dataset_name", "memory")
        if values.get("eval_strategy", "no") != "no":
            values.setdefault("eval_dataset_name", "memory")
        if self.method in ("grpo", "rloo", "ppo"):
            count = len(values.get("reward_weights") or [0])
            values["reward_funcs"] = [f"function:f{i}" for i in range(count)]
        _native.check(self.method, json.dumps(values))

    def values(self) -> dict:
        """Returns the fields that were set, as the engine's keys. Warns about fields without effect."""
        values: dict = {} if self._algorithm is None else {"algorithm": self._algorithm}
        # The field that each key is from.
        fields_of: dict[str, str] = {}
        own_fields, derived = self._own_fields(), vars(self).get("_derived", {})
        if self.method == "sft":
            # Without this key, the engine would use all rows as one batch.
            values["per_device_eval_batch_size"] = plain(self.per_device_eval_batch_size, "per_device_eval_batch_size")
        for name, value in vars(self).items():
            field = self._fields.get(name)
            if field is None:  # a field that a subclass added
                continue
            if name in ("loss_type", "sft_loss_type") and value == "chunked_nll":
                value = "nll"  # TRL's old name
            if value == field.default:
                continue
            if name in {**OF_METRICS, **OF_WORKERS, **OF_PAGES, **OF_FLOW} and field.status == "supported":
                continue
            if name in own_fields or value == derived.get(name, field):
                continue
            if name in _SPECIAL:
                own = plain(_SPECIAL[name](value), name)
            elif field.status == "supported":
                own = {name: plain(value, name)}
            elif asks_for_nothing(value):
                continue
            elif field.status == "ignored" and name not in self._aliases:
                warn_once(f"{name} has no meaning here: {field.doc}")
                continue
            else:
                own = {self._aliases.get(name, name): plain(value, name)}
            for key, item in own.items():
                values[key] = item if key not in fields_of else _joined(key, values[key], item, fields_of[key], name)
                fields_of[key] = name
        if self.world_size > 1:
            # The engine's batch is that of all processes.
            values["per_device_train_batch_size"] = self.per_device_train_batch_size * self.world_size
        if values.get("save_strategy") == "best":
            # Python requests each of these checkpoints. If the best checkpoint becomes the result, the engine needs the
            # evaluation strategy.
            own = values.get("eval_strategy") if values.get("load_best_model_at_end") else None
            values["save_strategy"] = own or "no"
            if own == "steps":
                values["save_steps"] = values.get("eval_steps") or values.get("logging_steps") or 10
        if values.get("load_best_model_at_end"):
            values.setdefault("metric_for_best_model", "eval_loss")
            if any(0 < (getattr(self, name) or 0) < 1 for name in _STEPS):
                values.update(eval_steps=1, save_steps=1)  # the engine compares the keys; Python requests each step
        return values

    @classmethod
    def _own_fields(cls) -> set[str]:
        """Returns the fields that a script's class declares under the name of a key that TRL lacks: they belong to the
        script, and the engine does not read them."""
        script = [one for one in cls.__mro__ if issubclass(one, _Config) and not one.__module__.startswith(_PACKAGE)]
        declared = {name for one in script for name in vars(one).get("__annotations__", {})}
        return {name for name in declared & cls._fields.keys() if cls._fields[name].is_only_here}

    @classmethod
    def of_training_arguments(cls, args: Any) -> Any:
        """Makes a configuration with the values of transformers' TrainingArguments. Where transformers and TRL have
        different defaults, transformers' values count."""
        values = {}
        for field in dataclasses.fields(args):
            own, value = cls._fields.get(field.name), getattr(args, field.name, None)
            if own is None or not field.init or value == field.default and own.status != "supported":
                continue
            if own.status == "supported" or not asks_for_nothing(value):
                values[field.name] = value
        return cls(**values)

    def to_dict(self) -> dict:
        """Returns the fields and their values as a dict."""
        return {field.name: plain_of(getattr(self, field.name)) for field in dataclasses.fields(self)}

    def to_json_string(self) -> str:
        """Returns the fields and their values as JSON."""
        return json.dumps(self.to_dict(), indent=2, default=str)

    def __str__(self) -> str:
        values = {name: value for name, value in sorted(self.to_dict().items())}
        for name in values:
            if name.endswith("_token") and name != "eos_token" and values[name] is not None:
                values[name] = f"<{name.upper()}>"
        return f"{type(self).__name__}(\n" + "".join(f"{name}={value!r},\n" for name, value in values.items()) + ")"

    __repr__ = __str__


_PACKAGE = __name__.rpartition(".")[0]
_STEPS = ("logging_steps", "eval_steps", "save_steps")
_PYTHON = {"integer": int, "number": float, "boolean": bool, "string": str, "object": dict}


def _annotation(field: Field) -> Any:
    """Returns the Python type of a field's values, for command-line parsers."""
    parts = alternatives(field.schema)
    kind = parts[0].get("type")
    items = alternatives(parts[0].get("items", {}))[0].get("type")
    if field.name in _STEPS:
        return float if field.default is not None else float | None
    if kind == "boolean" and field.default is not None and len(parts) == 1:
        return bool
    known = list[_PYTHON.get(items, str)] if kind == "array" else _PYTHON.get(kind, str)
    return known if field.status == "supported" and len(parts) == 1 and field.default is not None else known | None


def _config(name: str, method: str, trl: str | None, algorithm: str | None = None, own: dict | None = None) -> type:
    rows = [Field(row) for row in {**{row["name"]: row for row in field_table(method)}, **(own or {})}.values()]
    hidden = _NOT_FIELDS | ({"algorithm"} if algorithm is not None or method not in ("grpo",) else set())
    fields = {row.name: row for row in rows if row.name not in hidden}
    aliases = {row.trl_name: row.name for row in rows if row.trl_name and row.trl_name not in fields}
    # TRL's name of a key with another name here also becomes a field: an alias of the key.
    for alias, own in aliases.items():
        fields[alias] = Field({"name": alias, "status": "alias", "doc": f"{own} under TRL's name"})
    aliases |= {row.trl_name: row.name for row in rows if row.trl_name and fields[row.trl_name].status != "supported"}
    specs: list = [("output_dir", str | None, None)]
    for field in (field for field in fields.values() if field.name != "output_dir"):
        default: Any = field.default
        if isinstance(default, (list, dict)):
            default = dataclasses.field(default_factory=lambda value=default: value.copy())
        specs.append((field.name, _annotation(field), default))
    namespace = {
        "method": method,
        "_algorithm": algorithm,
        "_fields": fields,
        "_aliases": aliases,
        "__doc__": f"{trl or name}: {len(fields)} fields; `lockstep_rl.field_table({method!r})` says what each does.",
    }
    cls = dataclasses.make_dataclass(name, specs, bases=(_Config,), namespace=namespace, repr=False)
    cls.__module__ = __name__.rpartition(".")[0]
    cls.__init__ = _naming_the_nearest(cls.__init__, name, list(fields))
    return cls


def _naming_the_nearest(init: Any, name: str, fields: list[str]) -> Any:
    """Wraps `init` so that the error for an unknown field suggests the most similar name."""

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        for unknown in kwargs.keys() - set(fields):
            near = difflib.get_close_matches(unknown, fields, n=1)
            hint = f"; did you mean `{near[0]}`?" if near else ""
            raise TypeError(f"{name} has no field `{unknown}`{hint}")
        init(self, *args, **kwargs)

    return checked


def field_table(method: str) -> list[dict]:
    """Returns every field of a configuration class (`grpo`, `rloo`, `ppo`, `sft`, `dpo` or `reward`). Each is a dict
    with its name, status (`supported`, `ignored` or `refused`), default and meaning."""
    own = OF_METRICS if method in WITH_METRICS else WITHOUT_METRICS
    rows = [own.get(row["name"], row) for row in _native.fields(method)]
    more = {**own, **OF_PAGES, **OF_FLOW, **(OF_REFERENCE if method == "dpo" else {})}
    rows = [OF_FLOW.get(row["name"], _with_shares(row)) for row in rows]
    rows += [row for name, row in more.items() if name not in {row["name"] for row in rows}]
    return [OWN_DEFAULTS[row["name"]](row) if row["name"] in OWN_DEFAULTS else row for row in rows]


def _with_shares(row: dict) -> dict:
    """Returns a field with a number of steps, which may also be a fraction of all steps."""
    if row["name"] in _STEPS:
        doc = f"{row['doc']} A number below 1 is a share of all steps."
        return {**row, "doc": doc, "schema": {"anyOf": [row["schema"], {"type": "number"}]}}
    if row["name"] == "save_strategy" and "enum" in row["schema"]:
        doc = f"{row['doc']} \"best\": after each evaluation that is the best so far."
        return {**row, "doc": doc, "schema": {**row["schema"], "enum": [*row["schema"]["enum"], "best"]}}
    return row


GRPOConfig = _config("GRPOConfig", "grpo", "TRL's GRPOConfig")
RLOOConfig = _config("RLOOConfig", "rloo", "TRL's RLOOConfig", "rloo")
PPOConfig = _config("PPOConfig", "ppo", None, "ppo")
SFTConfig = _config("SFTConfig", "sft", "TRL's SFTConfig")
DPOConfig = _config("DPOConfig", "dpo", "TRL's DPOConfig")
RewardConfig = _config("RewardConfig", "reward", "TRL's RewardConfig")


# In AsyncGRPOConfig, `max_staleness` is 1 by default: one batch is generated while the previous one is trained on.
_STALE = {row["name"]: {**row, "default": 1} for row in field_table("grpo") if row["name"] == "max_staleness"}


class AsyncGRPOConfig(
    _config("AsyncGRPOConfig", "grpo", "TRL's experimental AsyncGRPOConfig", own=_STALE | OF_WORKERS | OF_SERVERS)
):
    """GRPOConfig for AsyncGRPOTrainer, whose completions are generated by other processes while the model trains.
    `max_staleness` counts generation batches. (TRL's counts weight updates, with a default of 4, and discards older
    samples; here no sample is discarded.)"""

    def values(self) -> dict:
        """Returns the engine's keys, always with `max_staleness`, whose default in the engine is 0."""
        return {**super().values(), "max_staleness": self.max_staleness}


AsyncGRPOConfig.__module__ = __name__.rpartition(".")[0]
