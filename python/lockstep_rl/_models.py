"""Models in and out: names and directories as they are, transformers' models by way of files."""

from __future__ import annotations

import dataclasses
import os
import shutil
from typing import Any

from ._config import plain, warn_once


class Model:
    """A model directory: what `trainer.model` is where the model was given by name."""

    def __init__(self, path: str):
        self.name_or_path = path

    def save_pretrained(self, directory: str) -> None:
        """Copies the directory."""
        shutil.copytree(self.name_or_path, directory, dirs_exist_ok=True)

    def __repr__(self) -> str:
        return f"Model({self.name_or_path!r})"


def check_path(name: str, argument: str) -> str:
    """The absolute path of what exists; a name that can only be a path must."""
    if not name:
        raise ValueError(f"`{argument}` is empty")
    if os.path.exists(name):
        return os.path.abspath(name)
    if os.path.isabs(name) or name.startswith((".", "~")) or name.count("/") > 1:
        raise FileNotFoundError(f"`{argument}` = {name}: no such file or directory")
    return name


def stage(model: Any, processing_class: Any, output_dir: str) -> str:
    """The name or directory that the engine reads: what was given, or files of it beside `output_dir`."""
    if isinstance(model, (str, os.PathLike)):
        source = check_path(os.fspath(model), "model")
        theirs = _own_tokenizer(processing_class, source)
        if theirs is None:
            return source
        target = f"{output_dir}-model"
        shutil.rmtree(target, ignore_errors=True)
        os.makedirs(target)
        for name in os.listdir(source):
            if not _is_of_tokenizer(name):
                os.symlink(os.path.join(source, name), os.path.join(target, name))
        theirs.save_pretrained(target)
        return target
    if not hasattr(model, "save_pretrained"):
        raise TypeError(f"`model` must be a directory, a Hub id or a transformers model, but is {type(model).__name__}")
    if hasattr(model, "peft_config"):
        raise TypeError(
            "`model` is a PeftModel: give the model below it (model.unload()) and peft_config, or the directory of "
            "the saved adapter, whose training then goes on"
        )
    tokenizer = processing_class
    if tokenizer is None or isinstance(tokenizer, (str, os.PathLike)):
        tokenizer = _tokenizer_of(os.fspath(tokenizer or getattr(model, "name_or_path", "")))
    target = f"{output_dir}-model"
    shutil.rmtree(target, ignore_errors=True)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return target


def _own_tokenizer(processing_class: Any, source: str) -> Any:
    """A tokenizer that is not the one of the model's directory, and has to be written there."""
    if processing_class is None or not os.path.isdir(source):
        return None
    name = getattr(processing_class, "name_or_path", processing_class)
    if isinstance(name, (str, os.PathLike)) and os.path.exists(name) and os.path.samefile(name, source):
        return None
    if hasattr(processing_class, "save_pretrained"):
        return processing_class
    if isinstance(processing_class, (str, os.PathLike)):
        return _tokenizer_of(os.fspath(processing_class))
    raise TypeError(
        f"`processing_class` must be a tokenizer of transformers or a directory, but is "
        f"{type(processing_class).__name__}"
    )


class _TokenizerFiles:
    """The tokenizer's files of a directory."""

    def __init__(self, path: str):
        self.path = path

    def save_pretrained(self, target: str) -> None:
        for name in os.listdir(self.path):
            if _is_of_tokenizer(name):
                shutil.copy(os.path.join(self.path, name), target)


def _tokenizer_of(name: str) -> Any:
    if not os.path.isdir(name):
        raise ValueError(
            f"the tokenizer of the model is not at hand ({name!r} is no directory): give it as processing_class"
        )
    return _TokenizerFiles(name)


def _is_of_tokenizer(name: str) -> bool:
    stem = name.split(".")[0]
    return stem in (
        "tokenizer", "tokenizer_config", "special_tokens_map", "added_tokens", "vocab", "merges", "chat_template",
    )


def sync_weights(model: Any, directory: str) -> None:
    """Writes the engine's weights into a transformers model, in place."""
    import torch
    from safetensors.torch import load_file

    own = model.state_dict()
    seen = set()
    for file in sorted(os.listdir(directory)):
        if file.endswith(".safetensors"):
            for name, tensor in load_file(os.path.join(directory, file)).items():
                if name not in own:
                    raise RuntimeError(f"the trained model has `{name}`, which the model that was given has not")
                with torch.no_grad():
                    own[name].copy_(tensor)
                seen.add(name)
    tied = {name for name in own if any(own[name].data_ptr() == own[other].data_ptr() for other in seen)}
    missing = [name for name in own if name not in seen | tied]
    if missing:
        raise RuntimeError(f"the trained model lacks `{missing[0]}`")


def lora_values(peft_config: Any) -> dict:
    """A `peft.LoraConfig`, or a dict of its fields, as the engine's keys."""
    if peft_config is None:
        return {}
    fields = peft_config if isinstance(peft_config, dict) else getattr(peft_config, "__dict__", None)
    if fields is None:
        raise TypeError(f"`peft_config` must be a peft.LoraConfig or a dict, but is {type(peft_config).__name__}")
    kind = str(getattr(fields.get("peft_type"), "value", fields.get("peft_type") or "LORA"))
    if kind != "LORA":
        raise ValueError(f"`peft_config`: adapters are LoRA here, not {kind}")
    values: dict = {"use_peft": True}
    # PEFT's defaults, which are others than those of the engine's keys.
    values.update(lora_r=fields.get("r", 8), lora_alpha=fields.get("lora_alpha", 8))
    values["lora_dropout"] = fields.get("lora_dropout", 0.0)
    values["use_rslora"] = bool(fields.get("use_rslora", False))
    modules = fields.get("target_modules")
    if modules is not None:
        values["lora_target_modules"] = sorted(modules) if isinstance(modules, (set, frozenset)) else modules
        if isinstance(modules, str):
            values["lora_target_modules"] = [modules]
    # What PEFT has by itself asks for nothing, such as the parameters of variants that are off.
    own = dataclasses.fields(peft_config) if dataclasses.is_dataclass(peft_config) else ()
    defaults = {field.name: field.default for field in own}
    for name, value in fields.items():
        if name in defaults and value == defaults[name]:
            continue
        if name in _LORA or name.startswith("_") or value in _LORA_NEUTRAL.get(name, (None, False)) or value == {}:
            continue
        if name in _LORA_IGNORED or value == []:
            continue
        raise ValueError(f"`peft_config`: {name} = {value!r} is not supported: adapters are plain LoRA here; remove it")
    return {name: plain(value, f"peft_config.{name}") for name, value in values.items()}


_LORA = {"r", "lora_alpha", "lora_dropout", "use_rslora", "target_modules", "peft_type"}
_LORA_IGNORED = {
    "task_type", "base_model_name_or_path", "revision", "inference_mode", "peft_version", "auto_mapping",
    "runtime_config", "layers_pattern", "fan_in_fan_out", "megatron_core", "ensure_weight_tying",
}
# The values besides none and false that ask for plain LoRA.
_LORA_NEUTRAL = {"bias": ("none", None), "init_lora_weights": (True, None)}

__all__ = ["Model", "check_path", "lora_values", "stage", "sync_weights", "warn_once"]
