"""Passing models in and out: names and directories go to the engine, transformers models go through files."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from . import _native, _peft
from ._given import PREFIX
from ._torch_state import check_read


def check_path(name: str, argument: str) -> str:
    """Returns the absolute path if `name` exists, or `name` if it may be a Hub id. Raises FileNotFoundError if `name`
    can only be a path."""
    if not name:
        raise ValueError(f"`{argument}` must not be empty")
    if os.path.exists(name):
        return os.path.abspath(name)
    if os.path.isabs(name) or name.startswith((".", "~")) or name.count("/") > 1:
        raise FileNotFoundError(f"`{argument}` = {name}: no such file or directory")
    return name


def source_of(model: Any, processing_class: Any) -> str | None:
    """Returns the name or directory that the engine can read directly, or None if `write_given` must write files
    first."""
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


def write_given(model: Any, processing_class: Any, target: str, argument: str = "model") -> None:
    """Writes a model and its tokenizer into an empty directory. The weights of a model given by name are linked."""
    if isinstance(model, (str, os.PathLike)):
        tokenizer = _tokenizer_for(None, processing_class)
        _save_tokenizer(tokenizer, _link(_directory_of(os.fspath(model), "model"), target))
        return
    check_read(model, argument)
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
    """Checks a reference model. Returns its absolute path, its Hub id, or the loaded model."""
    if isinstance(model, (str, os.PathLike)):
        return check_path(os.fspath(model), "ref_model")
    if not hasattr(model, "save_pretrained") or _peft.is_peft_model(model):
        raise TypeError(
            f"`ref_model` must be a directory, a Hub id or a transformers model, but is {type(model).__name__}"
        )
    return model


def of_reference(model: Any) -> dict[str, Callable[[str], None]]:
    """Returns a function that writes the files of an in-memory reference model, by the engine's key; empty if there is
    none."""
    if model is None or isinstance(model, str):
        return {}

    def write(place: str) -> None:
        check_read(model, "ref_model")
        model.save_pretrained(place)

    return {"ref_model": write}


def _is_same_place(processing_class: Any, source: str) -> bool:
    """Whether `processing_class` names the model's own directory. False for a tokenizer object, which may have been
    changed since it was loaded."""
    if not isinstance(processing_class, (str, os.PathLike)):
        return False
    name = os.fspath(processing_class)
    return name == source or (os.path.exists(name) and os.path.exists(source) and os.path.samefile(name, source))


def _directory_of(name: str, argument: str) -> str:
    """Returns the directory of a model. A Hub model is downloaded if needed."""
    name = check_path(name, argument)
    return os.path.abspath(name) if os.path.isdir(name) else _native.locate(name)


def _same_file(source: str, target: str) -> None:
    if os.path.isdir(source):
        os.mkdir(target)
        for name in os.listdir(source):
            _same_file(os.path.realpath(os.path.join(source, name)), os.path.join(target, name))
        return
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _link(source: str, target: str) -> str:
    """Creates hard links in `target` to a model's files except those of its tokenizer, or copies on another file
    system, since symbolic links inside a run are not followed. Returns the directory for the tokenizer: for an adapter,
    that of its base model."""
    for name in os.listdir(source):
        if not _is_of_tokenizer(name) and name != "adapter_config.json":
            _same_file(os.path.realpath(os.path.join(source, name)), os.path.join(target, name))
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
            "needs: give a fast tokenizer (AutoTokenizer.from_pretrained)"
        )


def _tokenizer_for(model: Any, processing_class: Any) -> Any:
    """Returns an object that writes the tokenizer: the tokenizer passed, or the files from which the model was
    loaded."""
    if processing_class is None or isinstance(processing_class, (str, os.PathLike)):
        return _tokenizer_of(os.fspath(processing_class or name_of(model)))
    return processing_class


class _TokenizerFiles:
    """The tokenizer's files in a directory."""

    def __init__(self, path: str):
        self.path = path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"`processing_class.{name}` needs transformers: pip install transformers. Without it the tokenizer has "
            "save_pretrained(DIRECTORY)"
        )

    def save_pretrained(self, target: str, **_: Any) -> None:
        os.makedirs(target, exist_ok=True)
        for name in os.listdir(self.path):
            path = os.path.join(self.path, name)
            if _is_of_tokenizer(name) and os.path.isdir(path):
                shutil.copytree(path, os.path.join(target, name), dirs_exist_ok=True)
            elif _is_of_tokenizer(name):
                shutil.copy(path, target)


def _tokenizer_of(name: str) -> Any:
    place = name
    if name and not os.path.isdir(name):
        try:
            place = _native.locate(name)
        except Exception:
            pass  # the error is raised below
    if not os.path.isdir(place):
        raise ValueError(
            f"the tokenizer of the model was not found ({name!r} is neither a directory nor in the Hub's cache): give "
            "it as processing_class"
        )
    return _TokenizerFiles(place)


def has_only_files(tokenizer: Any) -> bool:
    """Whether a tokenizer is only given by name or files, and not as an object of transformers."""
    return tokenizer is None or isinstance(tokenizer, (str, os.PathLike, _TokenizerFiles, _WithEos))


def loaded_tokenizer(given: Any, model: Any) -> Any:
    """Returns a transformers tokenizer, loaded from the argument (a directory, a Hub id, or files with another
    end-of-sequence token), or from the model's files. Without transformers, returns an object that only has the
    files."""
    name = given if isinstance(given, (str, os.PathLike)) else _tokenizer_place(model)
    files = given if isinstance(given, (_TokenizerFiles, _WithEos)) else _tokenizer_of(os.fspath(name))
    if find_spec("transformers") is None:
        return files
    from transformers import AutoTokenizer

    place = files.files.path if isinstance(files, _WithEos) else files.path
    more = {"eos_token": files.eos} if isinstance(files, _WithEos) else {}
    tokenizer = AutoTokenizer.from_pretrained(place, **more)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _tokenizer_place(model: Any) -> str:
    """Returns the name or directory of a model's tokenizer: for an adapter, that of its base model."""
    name = os.fspath(model) if isinstance(model, (str, os.PathLike)) else name_of(model)
    config = os.path.join(name, "adapter_config.json")
    if name and os.path.exists(config):
        with open(config) as file:
            base = json.load(file).get("base_model_name_or_path") or ""
        below = base if os.path.isabs(base) or os.path.exists(base) else os.path.join(name, base)
        return below if os.path.exists(below) else base
    return name


def with_eos(processing_class: Any, eos: str, model: Any) -> Any:
    """Returns the tokenizer with another end-of-sequence token, set by `eos_token` of SFTConfig."""
    if processing_class is None or isinstance(processing_class, (str, os.PathLike)):
        own = os.fspath(processing_class or (model if isinstance(model, (str, os.PathLike)) else name_of(model)))
        return _WithEos(_tokenizer_of(own), eos)
    if eos not in processing_class.get_vocab():
        raise ValueError(f"`eos_token` = {eos!r}: the tokenizer has no such token")
    processing_class.eos_token = eos
    return processing_class


class _WithEos:
    """A tokenizer's files, written with another end-of-sequence token."""

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["files"], name)

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
    # The engine's list of files (crates/model/src/io/model_files.rs), without files that do not belong to the
    # tokenizer.
    stem = name.split(".")[0]
    return stem in (
        "tokenizer", "tokenizer_config", "special_tokens_map", "added_tokens", "vocab", "merges", "chat_template",
        "additional_chat_templates",
    )


def name_of(model: Any) -> str:
    """Returns the name or directory from which a model was loaded; an empty string if unknown."""
    inner = model.get_base_model() if _peft.is_peft_model(model) else model
    return getattr(inner, "name_or_path", "") or ""


def name_base(directory: str, given: Any) -> None:
    """Writes the name of the user's model into an adapter that is saved outside of its run: inside the run, the
    adapter's base is the copy in `given-…`."""
    path = os.path.join(directory, "adapter_config.json")
    if not os.path.exists(path):
        return
    with open(path) as file:
        config = json.load(file)
    if PREFIX not in (config.get("base_model_name_or_path") or ""):
        return
    name = os.fspath(given) if isinstance(given, (str, os.PathLike)) else name_of(given)
    below = os.path.join(name, "adapter_config.json")
    if os.path.exists(below):
        with open(below) as file:
            name = json.load(file).get("base_model_name_or_path") or ""
    if not name:  # a model that was not loaded from files
        return
    name = os.path.abspath(name) if os.path.isdir(name) else name
    with open(path, "w") as file:
        json.dump({**config, "base_model_name_or_path": name}, file, indent=2)
    if not isinstance(given, (str, os.PathLike)):
        # The files in the run have the same weights, but not the same bytes, as those under the name.
        _peft.forget_hash(os.path.join(directory, "adapter_model.safetensors"))
    # Removes hashes of the original files.
    with contextlib.suppress(FileNotFoundError):
        os.remove(os.path.join(directory, "files.json"))


def sync_weights(model: Any, directory: str, file: str | None = None) -> None:
    """Copies weights that the engine has written into a transformers model, or an adapter's weights into a PeftModel,
    in place. Reads `file` in the directory, or all of the model's files there."""
    own = model.state_dict()
    of_adapter = _peft.is_peft_model(model)
    if of_adapter:
        _peft.mark_trained(model)
    names = _peft.names_in_model if of_adapter else (lambda name: (name,))
    try:
        seen = set()
        for name in sorted(os.listdir(directory)) if file is None else [file]:
            if file is not None or _is_of_model(name):
                seen |= _copy(os.path.join(directory, name), own, names)
    except _OtherNames:
        if of_adapter:
            raise
        # In this model family, tensor names in files differ from those in modules.
        fresh = type(model).from_pretrained(directory, dtype=next(model.parameters()).dtype)
        model.load_state_dict(fresh.state_dict())
        return
    tied = {name for name in own if any(own[name].data_ptr() == own[other].data_ptr() for other in seen)}
    expected = [name for name in own if not of_adapter or ".lora_" in name]
    missing = [name for name in expected if name not in seen | tied]
    if missing:
        raise RuntimeError(f"the trained model lacks `{missing[0]}`")


def _is_of_model(name: str) -> bool:
    """Whether a file has weights of a model or an adapter. A checkpoint contains other tensor files, too."""
    return name.endswith(".safetensors") and name.startswith(("model", "adapter_model"))


class _OtherNames(RuntimeError):
    """Raised if a file has a tensor whose name the model does not have."""


def _copy(file: str, own: dict, names: Callable[[str], tuple]) -> set[str]:
    """Copies the tensors of a file into a model, and returns their names in the model."""
    import torch
    from safetensors.torch import load_file

    seen = set()
    for name, tensor in load_file(file).items():
        there = next((one for one in names(name) if one in own), None)
        if there is None:
            raise _OtherNames(f"the trained model has `{names(name)[0]}`, which the given model lacks")
        with torch.no_grad():
            own[there].copy_(tensor)
        seen.add(there)
    return seen
