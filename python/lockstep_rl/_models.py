"""Models in and out: names and directories as they are, transformers' models by way of files."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from typing import Any

from . import _native, _peft


def check_path(name: str, argument: str) -> str:
    """The absolute path of what exists; a name that can only be a path must."""
    if not name:
        raise ValueError(f"`{argument}` is empty")
    if os.path.exists(name):
        return os.path.abspath(name)
    if os.path.isabs(name) or name.startswith((".", "~")) or name.count("/") > 1:
        raise FileNotFoundError(f"`{argument}` = {name}: no such file or directory")
    return name


def source_of(model: Any, processing_class: Any) -> str | None:
    """The name or directory that the engine can read as it is; none where `write_given` has to write files first."""
    if processing_class is not None and not isinstance(processing_class, (str, os.PathLike)):
        if not hasattr(processing_class, "save_pretrained"):
            raise TypeError(
                f"`processing_class` must be a tokenizer of transformers or a directory, but is "
                f"{type(processing_class).__name__}"
            )
    if isinstance(model, (str, os.PathLike)):
        source = check_path(os.fspath(model), "model")
        if processing_class is None or _is_same_place(processing_class, source):
            return source
        if isinstance(processing_class, (str, os.PathLike)):
            _tokenizer_of(os.fspath(processing_class))
        return None
    if not hasattr(model, "save_pretrained"):
        raise TypeError(f"`model` must be a directory, a Hub id or a transformers model, but is {type(model).__name__}")
    _tokenizer_for(model, processing_class)
    return None


def write_given(model: Any, processing_class: Any, target: str) -> None:
    """Writes a model and its tokenizer into an empty directory; the weights of a model that is given by name are linked
    to."""
    if isinstance(model, (str, os.PathLike)):
        tokenizer = _tokenizer_for(None, processing_class)
        _save_tokenizer(tokenizer, _link(_directory_of(os.fspath(model), "model"), target))
        return
    tokenizer = _tokenizer_for(model, processing_class)
    if _peft.is_new_adapter(model):
        _peft.save_below(model, target)
        _save_tokenizer(tokenizer, target)
    elif _peft.is_peft_model(model):
        _save_tokenizer(tokenizer, _peft.save_base(model, target))
    else:
        model.save_pretrained(target)
        _save_tokenizer(tokenizer, target)


def check_reference(model: Any) -> Any:
    """A reference model: the path or name of one, or a loaded one as it is."""
    if isinstance(model, (str, os.PathLike)):
        return check_path(os.fspath(model), "ref_model")
    if not hasattr(model, "save_pretrained") or _peft.is_peft_model(model):
        raise TypeError(
            f"`ref_model` must be a directory, a Hub id or a transformers model, but is {type(model).__name__}"
        )
    return model


def of_reference(model: Any) -> dict[str, Callable[[str], None]]:
    """What writes the files of a reference model that is in memory."""
    if model is None or isinstance(model, str):
        return {}
    return {"ref_model": model.save_pretrained}


def _is_same_place(processing_class: Any, source: str) -> bool:
    """Whether it is the name of what the model's directory has. A tokenizer object may have been changed since."""
    if not isinstance(processing_class, (str, os.PathLike)):
        return False
    name = os.fspath(processing_class)
    return name == source or (os.path.exists(name) and os.path.exists(source) and os.path.samefile(name, source))


def _directory_of(name: str, argument: str) -> str:
    """The directory of a model; one of the Hub is downloaded, if need be."""
    name = check_path(name, argument)
    return os.path.abspath(name) if os.path.isdir(name) else _native.locate(name)


def _link(source: str, target: str) -> str:
    """Links to the files of a model but for its tokenizer's, and gives the directory where that belongs: below an
    adapter the model's."""
    for name in os.listdir(source):
        if not _is_of_tokenizer(name) and name != "adapter_config.json":
            os.symlink(os.path.join(source, name), os.path.join(target, name))
    if not os.path.exists(os.path.join(source, "adapter_config.json")):
        return target
    with open(os.path.join(source, "adapter_config.json")) as file:
        base = json.load(file).get("base_model_name_or_path") or ""
    below = os.path.join(os.path.abspath(target), "base")
    os.mkdir(below)
    _link(_directory_of(base, "base_model_name_or_path"), below)
    _peft.set_base(source, target, below)
    return below


def _save_tokenizer(tokenizer: Any, target: str) -> None:
    tokenizer.save_pretrained(target)
    if not os.path.exists(os.path.join(target, "tokenizer.json")):
        raise ValueError(
            f"`processing_class` ({type(tokenizer).__name__}) was saved without a tokenizer.json, which the engine "
            "reads: give a fast tokenizer (AutoTokenizer.from_pretrained)"
        )


def _tokenizer_for(model: Any, processing_class: Any) -> Any:
    """What writes the tokenizer: the one that was given, or that of the files that the model was loaded from."""
    if processing_class is None or isinstance(processing_class, (str, os.PathLike)):
        return _tokenizer_of(os.fspath(processing_class or name_of(model)))
    return processing_class


class _TokenizerFiles:
    """The tokenizer's files of a directory."""

    def __init__(self, path: str):
        self.path = path

    def save_pretrained(self, target: str) -> None:
        for name in os.listdir(self.path):
            if _is_of_tokenizer(name):
                shutil.copy(os.path.join(self.path, name), target)


def _tokenizer_of(name: str) -> Any:
    place = name
    if name and not os.path.isdir(name):
        try:
            place = _native.locate(name)
        except Exception:
            pass  # said below
    if not os.path.isdir(place):
        raise ValueError(
            f"the tokenizer of the model is not at hand ({name!r} is no directory, and not in the Hub's cache): give "
            "it as processing_class"
        )
    return _TokenizerFiles(place)


def with_eos(processing_class: Any, eos: str, model: Any) -> Any:
    """The tokenizer with another end of a sequence, as SFTConfig's `eos_token` has it."""
    if processing_class is None or isinstance(processing_class, (str, os.PathLike)):
        own = os.fspath(processing_class or (model if isinstance(model, (str, os.PathLike)) else name_of(model)))
        return _WithEos(_tokenizer_of(own), eos)
    if eos not in processing_class.get_vocab():
        raise ValueError(f"`eos_token` = {eos!r}: the tokenizer has no such token")
    processing_class.eos_token = eos
    return processing_class


class _WithEos:
    """A tokenizer's files with another end of a sequence."""

    def __init__(self, files: _TokenizerFiles, eos: str):
        with open(os.path.join(files.path, "tokenizer.json")) as file:
            tokenizer = json.load(file)
        added = [token["content"] for token in tokenizer.get("added_tokens") or []]
        if eos not in added and eos not in (tokenizer["model"].get("vocab") or {}):
            raise ValueError(f"`eos_token` = {eos!r}: the tokenizer has no such token")
        self.files, self.eos = files, eos

    def save_pretrained(self, target: str) -> None:
        self.files.save_pretrained(target)
        for name in ("tokenizer_config.json", "special_tokens_map.json"):
            path = os.path.join(target, name)
            if os.path.exists(path) or name == "tokenizer_config.json":
                values = {}
                if os.path.exists(path):
                    with open(path) as file:
                        values = json.load(file)
                with open(path, "w") as file:
                    json.dump({**values, "eos_token": self.eos}, file, indent=2)


def _is_of_tokenizer(name: str) -> bool:
    stem = name.split(".")[0]
    return stem in (
        "tokenizer", "tokenizer_config", "special_tokens_map", "added_tokens", "vocab", "merges", "chat_template",
    )


def name_of(model: Any) -> str:
    """The name or directory that a model was loaded from; empty where nobody knows."""
    inner = model.get_base_model() if _peft.is_peft_model(model) else model
    return getattr(inner, "name_or_path", "") or ""


def sync_weights(model: Any, directory: str, file: str | None = None) -> None:
    """Writes the engine's weights into a transformers model, or an adapter's into a PeftModel, in place; those of one
    file, or of all that a model has."""
    own = model.state_dict()
    of_adapter = _peft.is_peft_model(model)
    names = _peft.names_in_model if of_adapter else (lambda name: (name,))
    try:
        seen = set()
        for name in sorted(os.listdir(directory)) if file is None else [file]:
            if file is not None or _is_of_model(name):
                seen |= _copy(os.path.join(directory, name), own, names)
    except _OtherNames:
        if of_adapter:
            raise
        # Of a family whose files have other names than its modules.
        fresh = type(model).from_pretrained(directory, dtype=next(model.parameters()).dtype)
        model.load_state_dict(fresh.state_dict())
        return
    tied = {name for name in own if any(own[name].data_ptr() == own[other].data_ptr() for other in seen)}
    expected = [name for name in own if not of_adapter or ".lora_" in name]
    missing = [name for name in expected if name not in seen | tied]
    if missing:
        raise RuntimeError(f"the trained model lacks `{missing[0]}`")


def _is_of_model(name: str) -> bool:
    """Whether it is a file of a model's weights, or an adapter's: a checkpoint has others."""
    return name.endswith(".safetensors") and name.startswith(("model", "adapter_model"))


class _OtherNames(RuntimeError):
    """A file has names that the model has not."""


def _copy(file: str, own: dict, names: Callable[[str], tuple]) -> set[str]:
    """Copies the tensors of a file into those of a model, and gives their names there."""
    import torch
    from safetensors.torch import load_file

    seen = set()
    for name, tensor in load_file(file).items():
        there = next((one for one in names(name) if one in own), None)
        if there is None:
            raise _OtherNames(f"the trained model has `{names(name)[0]}`, which the model that was given has not")
        with torch.no_grad():
            own[there].copy_(tensor)
        seen.add(there)
    return seen
