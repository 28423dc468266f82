"""Classes and functions, besides trainers, that TRL's scripts import: their arguments, and the parser of these."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import types
import typing
from typing import Any

from ._config import _Config
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


@dataclasses.dataclass
class DatasetMixtureConfig:
    """Datasets to concatenate, as in TRL's `--config` files. Each is a dict with `path` and, if needed, `name`,
    `data_dir`, `data_files`, `split` and `columns`."""

    datasets: list[dict] = dataclasses.field(default_factory=list)
    streaming: bool = False
    test_split_size: float | None = None


def get_dataset(mixture_config: DatasetMixtureConfig) -> Any:
    """Reads the datasets with the package `datasets`, and concatenates them into the split `train`. With
    `test_split_size`, a part of the rows becomes the split `test`."""
    import datasets

    if not mixture_config.datasets:
        raise ValueError("get_dataset: `datasets` has none")
    parts = []
    for given in mixture_config.datasets:
        named = {"split": "train", **given}
        columns = named.pop("columns", None)
        if named.pop("fraction", None) is not None:
            raise ValueError("`datasets`: fraction is not supported: take as many rows of each with split, as in "
                             "train[:10%]")
        part = datasets.load_dataset(**named, streaming=mixture_config.streaming)
        parts.append(part if columns is None else part.select_columns(columns))
    joined = datasets.concatenate_datasets(parts)
    if mixture_config.test_split_size is None:
        return datasets.DatasetDict({"train": joined})
    return joined.train_test_split(test_size=mixture_config.test_split_size)


def get_peft_config(model_args: ModelConfig) -> dict | None:
    """Returns the adapter that the arguments describe, as a dict of `peft.LoraConfig`'s fields for a trainer's
    `peft_config`. Without `use_peft`, returns None."""
    if not model_args.use_peft:
        return None
    modules = model_args.lora_target_modules
    return {
        "peft_type": "LORA",
        "task_type": model_args.lora_task_type,
        "r": model_args.lora_r,
        "lora_alpha": model_args.lora_alpha,
        "lora_dropout": model_args.lora_dropout,
        "target_modules": modules[0] if isinstance(modules, list) and len(modules) == 1 else modules,
        "target_parameters": model_args.lora_target_parameters,
        "modules_to_save": model_args.lora_modules_to_save,
        "use_rslora": model_args.use_rslora,
        "use_dora": model_args.use_dora,
    }


def get_quantization_config(model_args: ModelConfig) -> None:
    """Returns None, because quantised weights are not supported. Raises a ValueError if the arguments ask for them."""
    for name in ("load_in_4bit", "load_in_8bit"):
        if getattr(model_args, name):
            raise ValueError(f"--{name}: weights are not quantised in this build: remove it; bf16 halves them (--bf16)")


class TrlParser(argparse.ArgumentParser):
    """Parses the fields of dataclasses from the command line, and from the YAML file that `--config` names. A field
    that several classes have belongs to a class of the script, rather than to a configuration class."""

    def __init__(self, dataclass_types: Any = None, **kwargs: Any):
        super().__init__(**{"allow_abbrev": False, "argument_default": argparse.SUPPRESS, **kwargs})
        if dataclass_types is None:
            dataclass_types = ()
        self.dataclass_types = (dataclass_types,) if isinstance(dataclass_types, type) else tuple(dataclass_types)
        self.add_argument("--config", metavar="FILE.yaml", help="a YAML file of arguments")
        self._owners: dict[str, type] = {}
        self._schemas: dict[str, dict] = {}
        for cls in sorted(self.dataclass_types, key=lambda cls: issubclass(cls, _Config)):
            hints = {} if issubclass(cls, _Config) else typing.get_type_hints(cls)
            for field in dataclasses.fields(cls):
                if not field.init or field.name in self._owners:
                    continue
                own = cls._fields.get(field.name) if issubclass(cls, _Config) else None
                self._owners[field.name] = cls
                self._schemas[field.name] = _schema_of(hints[field.name]) if own is None else own.schema
                text = field.metadata.get("help", "") if own is None else own.doc
                add_flag(self, field.name, text, self._schemas[field.name], field.default)

    def parse_args_and_config(
        self,
        args: Any = None,
        return_remaining_strings: bool = False,
        fail_with_unknown_args: bool = True,
    ) -> tuple:
        """Returns an object of each class. With `return_remaining_strings`, a list of the unknown arguments comes last.
        Otherwise unknown arguments are an error (those of the file only with `fail_with_unknown_args`)."""
        given, unknown = self.parse_known_args(sys.argv[1:] if args is None else list(args))
        values = vars(given)
        file = read_file(values.pop("config")) if "config" in values else {}
        if unknown and not return_remaining_strings:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        strangers = [name for name in file if name not in self._owners]
        if strangers and fail_with_unknown_args and not return_remaining_strings:
            raise ValueError(f"--config: nobody knows {', '.join(strangers)}: remove them")
        of_class: dict[type, dict] = {cls: {} for cls in self.dataclass_types}
        for name, value in file.items():
            if name in self._owners:
                of_class[self._owners[name]][name] = value
        for name, text in values.items():
            of_class[self._owners[name]][name] = self._read(name, text)
        remaining = [word for name in strangers for word in (f"--{name}", str(file[name]))] + unknown
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
        if wrong and "string" not in of_items and not issubclass(self._owners[name], _Config):
            self.error(f"argument --{name}: {wrong[0]!r} is no {' or '.join(of_items)}")
        return value


_KINDS = {bool: "boolean", int: "integer", float: "number", dict: "object"}


def _schema_of(hint: Any) -> dict:
    """Returns the JSON Schema of a dataclass field's type, as far as flags need it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        parts = [_schema_of(part) for part in arguments if part is not type(None)]
        return parts[0] if len(parts) == 1 else {"anyOf": parts}
    if origin is list or hint is list:
        return {"type": "array", "items": _schema_of(arguments[0]) if arguments else {"type": "string"}}
    return {"type": _KINDS.get(origin or hint, "string")}
