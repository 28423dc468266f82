"""Classes and functions, besides trainers, that TRL's scripts import: their arguments, and the parser of these."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import sys
import types
import typing
from importlib.util import find_spec
from typing import Any

from ._config import _Config, alternatives
from ._flags import add_flag, kinds, read_file, value_of


@dataclasses.dataclass
class ScriptArguments:
    """Arguments of a script that name its dataset, as in TRL."""

    dataset_name: str | None = None
    dataset_config: str | None = None
    dataset_train_split: str = "train"
    dataset_test_split: str = "test"
    dataset_streaming: bool = False
    ignore_bias_buffers: bool = False


@dataclasses.dataclass
class ModelConfig:
    """Arguments of a script that describe its model and adapter, as in TRL. Quantised weights are not supported."""

    model_name_or_path: str | None = None
    model_revision: str = "main"
    dtype: str | None = "float32"
    attn_implementation: str | None = None
    use_peft: bool = False
    lora_r: int = 16
    lora_alpha: int = 32
    lora_dropout: float = 0.05
    lora_target_modules: list[str] | None = None
    lora_target_parameters: list[str] | None = None
    lora_modules_to_save: list[str] | None = None
    lora_task_type: str = "CAUSAL_LM"
    use_rslora: bool = False
    use_dora: bool = False
    load_in_8bit: bool = False
    load_in_4bit: bool = False
    bnb_4bit_quant_type: str = "nf4"
    use_bnb_nested_quant: bool = False
    bnb_4bit_quant_storage: str | None = None

    def __post_init__(self) -> None:
        # As in TRL: one name may be a pattern, or `all-linear`.
        if isinstance(self.lora_target_modules, list) and len(self.lora_target_modules) == 1:
            self.lora_target_modules = self.lora_target_modules[0]


@dataclasses.dataclass
class DatasetConfig:
    """A dataset of a mixture: arguments of `datasets.load_dataset`, the columns to keep, and the dataset's share of the
    mixture."""

    path: str
    name: str | None = None
    data_dir: str | None = None
    data_files: str | list[str] | dict[str, str] | None = None
    split: str = "train"
    columns: list[str] | None = None
    fraction: float | None = None


@dataclasses.dataclass
class DatasetMixtureConfig:
    """Datasets to join, as in TRL's `--config` files. Each is a DatasetConfig, a dict of its fields, or a path."""

    datasets: list[dict | str] = dataclasses.field(default_factory=list)
    streaming: bool = False
    test_split_size: float | None = None

    def __post_init__(self) -> None:
        self.datasets = [_dataset_config(given, f"`datasets`, number {i + 1}") for i, given in enumerate(self.datasets)]


def _dataset_config(given: Any, place: str) -> DatasetConfig:
    if isinstance(given, str):
        return DatasetConfig(given)
    if not isinstance(given, dict):
        return given
    known = [field.name for field in dataclasses.fields(DatasetConfig)]
    for name in given.keys() - set(known):
        raise ValueError(f"{place}, has no field `{name}`; its fields are {', '.join(known)}")
    if "path" not in given:
        raise ValueError(f"{place}: `path` is missing: a directory, a file type or a Hub id")
    return DatasetConfig(**given)


def get_dataset(mixture_config: DatasetMixtureConfig) -> Any:
    """Reads datasets with the package `datasets`, and joins them to the split `train`. With `test_split_size`, a part
    of the rows becomes the split `test`. With `fraction`, only the first rows of each dataset are used: as many as its
    fraction of the largest mixture without repeated rows."""
    import datasets

    if not mixture_config.datasets:
        raise ValueError("get_dataset: `datasets` is empty")
    parts = []
    for given in mixture_config.datasets:
        named = vars(given).copy()
        columns, _ = named.pop("columns"), named.pop("fraction")
        part = datasets.load_dataset(**named, streaming=mixture_config.streaming)
        parts.append(part if columns is None else part.select_columns(columns))
    fractions = [given.fraction for given in mixture_config.datasets]
    if any(fraction is not None for fraction in fractions):
        parts = _shares(parts, fractions, mixture_config.streaming)
    joined = datasets.concatenate_datasets(parts)
    if mixture_config.test_split_size is None:
        return datasets.DatasetDict({"train": joined})
    return joined.train_test_split(test_size=mixture_config.test_split_size)


def _shares(parts: list, fractions: list, streaming: bool) -> list:
    """Returns the first rows of each dataset: as many as its fraction of the largest mixture without repeated rows."""
    if None in fractions:
        raise ValueError("`datasets`: set fraction for all of them, or for none")
    if streaming:
        raise ValueError("`datasets`: fraction needs the number of rows, unknown for a stream: remove `streaming`")
    if min(fractions) < 0 or sum(fractions) <= 0:
        raise ValueError(f"`datasets`: fractions {fractions}: expected numbers of 0 or more, one of them above 0")
    shares = [fraction / sum(fractions) for fraction in fractions]
    total = min(len(part) / share for part, share in zip(parts, shares) if share > 0)
    return [part.select(range(round(share * total))) for part, share in zip(parts, shares)]


def get_peft_config(model_args: ModelConfig) -> dict | None:
    """Returns the adapter that the arguments describe, as a dict of `peft.LoraConfig`'s fields for a trainer's
    `peft_config`. Without `use_peft`, returns None."""
    if not model_args.use_peft:
        return None
    return {
        "peft_type": "LORA",
        "task_type": model_args.lora_task_type,
        "r": model_args.lora_r,
        "lora_alpha": model_args.lora_alpha,
        "lora_dropout": model_args.lora_dropout,
        "target_modules": model_args.lora_target_modules,
        "target_parameters": model_args.lora_target_parameters,
        "modules_to_save": model_args.lora_modules_to_save,
        "use_rslora": model_args.use_rslora,
        "use_dora": model_args.use_dora,
    }


def get_quantization_config(model_args: ModelConfig) -> None:
    """Returns None, because quantised weights are not supported. Raises a ValueError if the arguments request them."""
    for name in ("load_in_4bit", "load_in_8bit"):
        if getattr(model_args, name):
            raise ValueError(f"--{name}: weights are not quantised in this build: remove it; bf16 halves them (--bf16)")


class TrlParser(argparse.ArgumentParser):
    """Parses the fields of dataclasses from the command line, and from the YAML file that `--config` names. If
    several classes have a field, it belongs to a class of the script rather than to a configuration class."""

    def __init__(self, dataclass_types: Any = None, **kwargs: Any):
        super().__init__(**{"allow_abbrev": False, "argument_default": argparse.SUPPRESS, **kwargs})
        if dataclass_types is None:
            dataclass_types = ()
        self.dataclass_types = (dataclass_types,) if isinstance(dataclass_types, type) else tuple(dataclass_types)
        self.add_argument("--config", metavar="FILE.yaml", help="a YAML file of arguments")
        self._owners: dict[str, type] = {}
        self._required: list[str] = []
        self._schemas: dict[str, dict] = {}
        for cls in sorted(self.dataclass_types, key=lambda cls: issubclass(cls, _Config)):
            known = cls._fields if issubclass(cls, _Config) else {}
            # A subclass of a configuration class may have further fields, which are not in the engine's table.
            others = cls._own_fields() if issubclass(cls, _Config) else set()
            for field in dataclasses.fields(cls):
                if not field.init or field.name in self._owners:
                    continue
                own = None if field.name in others else known.get(field.name)
                self._owners[field.name] = cls
                self._schemas[field.name] = _schema_of(_hint_of(cls, field)) if own is None else own.schema
                if own is None and field.default is dataclasses.MISSING and field.default_factory is field.default:
                    self._required.append(field.name)
                text = field.metadata.get("help", "") if own is None else own.doc
                aliases = field.metadata.get("aliases", [])
                aliases = [aliases] if isinstance(aliases, str) else aliases
                add_flag(self, field.name, text, self._schemas[field.name], aliases)

    def parse_args_and_config(
        self,
        args: Any = None,
        return_remaining_strings: bool = False,
        fail_with_unknown_args: bool = True,
    ) -> tuple:
        """Returns an object of each class. With `return_remaining_strings`, a list of the unknown arguments comes last.
        Otherwise unknown arguments are an error (in the file, only with `fail_with_unknown_args`)."""
        given, unknown = self.parse_known_args(sys.argv[1:] if args is None else list(args))
        values = vars(given)
        file = read_file(values.pop("config")) if "config" in values else {}
        if unknown and not return_remaining_strings:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        strangers = [name for name in file if name not in self._owners]
        if strangers and fail_with_unknown_args and not return_remaining_strings:
            raise ValueError(f"--config: unknown arguments: {', '.join(strangers)}")
        of_class: dict[type, dict] = {cls: {} for cls in self.dataclass_types}
        for name, text in {**{name: file[name] for name in file if name in self._owners}, **values}.items():
            of_class[self._owners[name]][name] = self._read(name, text)
        missing = [f"--{name}" for name in self._required if name not in of_class[self._owners[name]]]
        if missing:
            self.error(f"the following arguments are required: {', '.join(missing)}")
        remaining = [word for name in strangers for word in (f"--{name}", str(file[name]))] + unknown
        if any(issubclass(cls, _Config) for cls in self.dataclass_types) and find_spec("accelerate") is not None:
            # Scripts log with accelerate's loggers, which need a state. TRL's arguments create it if accelerate is
            # imported, and so do these.
            import accelerate  # noqa: F401
        made = tuple(cls(**of_class[cls]) for cls in self.dataclass_types)
        return (*made, remaining) if return_remaining_strings else made

    def parse_args_into_dataclasses(self, args: Any = None, return_remaining_strings: bool = False) -> tuple:
        """Does the same as `parse_args_and_config`."""
        return self.parse_args_and_config(args, return_remaining_strings)

    def _read(self, name: str, text: Any) -> Any:
        schema = self._schemas[name]
        value = value_of(text, schema)
        items = value if isinstance(value, list) else [value]
        wrong = [item for item in items if isinstance(item, str)] if kinds(schema) else []
        of_items = kinds(schema.get("items", {})) if isinstance(value, list) else kinds(schema)
        owner = self._owners[name]
        is_own = not issubclass(owner, _Config) or name not in owner._fields or name in owner._own_fields()
        if wrong and "string" not in of_items and is_own:
            self.error(f"argument --{name}: expected {' or '.join(of_items)}, got {wrong[0]!r}")
        if is_own:
            return self._chosen(name, value, schema)
        return value

    def _chosen(self, name: str, value: Any, schema: dict) -> Any:
        """Returns the value, which must be one of the choices if there are any."""
        if isinstance(value, list):
            return [self._chosen(name, item, schema.get("items", {})) for item in value]
        choices = [choice for part in alternatives(schema) for choice in part.get("enum", [])]
        if not choices or value is None or value in choices:
            return value
        found = [choice for choice in choices if str(choice) == str(value)]
        if not found:
            self.error(f"argument --{name}: invalid choice: {value!r} (choose from {', '.join(map(repr, choices))})")
        return found[0]


_KINDS = {bool: "boolean", int: "integer", float: "number", dict: "object"}


def _hint_of(cls: type, field: Any) -> Any:
    """Returns the type of a dataclass field. A type given as a string is evaluated in the module of the class that
    declares the field."""
    if not isinstance(field.type, str):
        return field.type
    try:
        return typing.get_type_hints(cls)[field.name]
    except NameError as error:
        raise RuntimeError(
            f"{cls.__qualname__}.{field.name}: its type {field.type!r} is unknown ({error}): declare it at the top "
            "level of the module"
        ) from None


def _schema_of(hint: Any) -> dict:
    """Returns the JSON Schema for the type of a dataclass field, as far as flags need it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return _schema_of_choices(list(arguments))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _schema_of_choices([one.value for one in hint])
    if origin in (typing.Union, types.UnionType):
        parts = [_schema_of(part) for part in arguments if part is not type(None)]
        return parts[0] if len(parts) == 1 else {"anyOf": parts}
    if origin is list or hint is list:
        return {"type": "array", "items": _schema_of(arguments[0]) if arguments else {"type": "string"}}
    return {"type": _KINDS.get(origin or hint, "string")}


def _schema_of_choices(choices: list) -> dict:
    by_kind: dict[str, list] = {}
    for choice in choices:
        by_kind.setdefault(_KINDS.get(type(choice), "string"), []).append(choice)
    parts = [{"type": kind, "enum": of_kind} for kind, of_kind in by_kind.items()]
    return parts[0] if len(parts) == 1 else {"anyOf": parts}
