"""Models in and out: names and directories as they are, transformers' models by way of files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Any

from . import _peft


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
    tokenizer = processing_class
    if tokenizer is None or isinstance(tokenizer, (str, os.PathLike)):
        tokenizer = _tokenizer_of(os.fspath(tokenizer or name_of(model)))
    target = f"{output_dir}-model"
    shutil.rmtree(target, ignore_errors=True)
    if _peft.is_peft_model(model):
        tokenizer.save_pretrained(_peft.save_base(model, target))
    else:
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)
    return target


def stage_reference(model: Any, output_dir: str) -> str:
    """The name or directory of a reference model; a loaded one is written beside `output_dir`."""
    if isinstance(model, (str, os.PathLike)):
        return check_path(os.fspath(model), "ref_model")
    if not hasattr(model, "save_pretrained") or _peft.is_peft_model(model):
        raise TypeError(
            f"`ref_model` must be a directory, a Hub id or a transformers model, but is {type(model).__name__}"
        )
    target = f"{output_dir}-ref-model"
    shutil.rmtree(target, ignore_errors=True)
    model.save_pretrained(target)
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


def name_of(model: Any) -> str:
    """The name or directory that a model was loaded from; empty where nobody knows."""
    inner = model.get_base_model() if _peft.is_peft_model(model) else model
    return getattr(inner, "name_or_path", "") or ""


def sync_weights(model: Any, directory: str) -> None:
    """Writes the engine's weights into a transformers model, or an adapter's into a PeftModel, in place."""
    own = model.state_dict()
    of_adapter = _peft.is_peft_model(model)
    seen = set()
    for file in sorted(os.listdir(directory)):
        if file.endswith(".safetensors"):
            seen |= _copy(os.path.join(directory, file), own, _peft.name_in_model if of_adapter else str)
    tied = {name for name in own if any(own[name].data_ptr() == own[other].data_ptr() for other in seen)}
    expected = [name for name in own if not of_adapter or ".lora_" in name]
    missing = [name for name in expected if name not in seen | tied]
    if missing:
        raise RuntimeError(f"the trained model lacks `{missing[0]}`")


def _copy(file: str, own: dict, rename: Callable[[str], str]) -> set[str]:
    """Copies the tensors of a file into those of a model, and gives their names."""
    import torch
    from safetensors.torch import load_file

    seen = set()
    for name, tensor in load_file(file).items():
        name = rename(name)
        if name not in own:
            raise RuntimeError(f"the trained model has `{name}`, which the model that was given has not")
        with torch.no_grad():
            own[name].copy_(tensor)
        seen.add(name)
    return seen
