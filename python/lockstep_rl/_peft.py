"""PEFT's configurations and models. PEFT is imported only to create or load a model with an adapter."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
from typing import Any

from ._config import plain

_ADAPTER = "default"
_NEW = "_is_new_in_lockstep"


def is_peft_model(model: Any) -> bool:
    """Whether a model is a PeftModel: a base model with adapters."""
    return hasattr(model, "peft_config") and hasattr(model, "get_base_model")


def is_adapter(model: Any) -> bool:
    """Whether a model is given as an adapter's directory."""
    return isinstance(model, (str, os.PathLike)) and os.path.exists(os.path.join(model, "adapter_config.json"))


def config_of(model: Any) -> Any:
    """Returns the configuration of a PeftModel's only adapter."""
    configs = model.peft_config
    if list(configs) != [_ADAPTER]:
        raise ValueError(
            f"`model` is a PeftModel with the adapters {', '.join(configs)}: give one with a single adapter, named "
            f"{_ADAPTER!r}"
        )
    return configs[_ADAPTER]


def save_base(model: Any, target: str) -> str:
    """Writes a PeftModel in the engine's form: the adapter into `target`, and the base model into a subdirectory, whose
    path is returned."""
    config_of(model)
    below = os.path.join(os.path.abspath(target), "base")
    save_below(model, below)
    model.save_pretrained(target)
    set_base(target, target, below)
    # The hash belongs to the original files of the base model, whose bytes differ.
    forget_hash(os.path.join(target, "adapter_model.safetensors"))
    if has_scores(model.get_base_model()):
        _add_scores(model, target)
    return below


def has_scores(model: Any) -> bool:
    """Whether a transformers model has a score head, as sequence classifiers do."""
    return hasattr(model, "score") and "CausalLM" not in type(model).__name__


def _add_scores(model: Any, target: str) -> None:
    """Adds the score head to an adapter's files, as PEFT does for SEQ_CLS: the head is trained together with the
    adapter."""
    from safetensors.torch import load_file, save_file

    with open(os.path.join(target, "adapter_config.json")) as file:
        config = json.load(file)
    with open(os.path.join(target, "adapter_config.json"), "w") as file:
        json.dump({**config, "task_type": "SEQ_CLS", "modules_to_save": ["score"]}, file, indent=2)
    path = os.path.join(target, "adapter_model.safetensors")
    weights = load_file(path)
    if "base_model.model.score.weight" not in weights:
        weights["base_model.model.score.weight"] = model.get_base_model().score.weight.detach().contiguous()
        save_file(weights, path, metadata={"format": "pt"})


def save_below(model: Any, target: str) -> None:
    """Writes the base model of a PeftModel."""
    base = model.get_base_model()
    state = base.state_dict()
    copies = [name for name in state if ".modules_to_save." in name]
    weights = {
        name.replace(".base_layer.", ".").replace(".original_module.", "."): tensor
        for name, tensor in state.items()
        if ".lora_" not in name and name not in copies
    }
    base.save_pretrained(target, state_dict=weights)


def is_new_adapter(model: Any) -> bool:
    """Whether `wrapped` added the adapter to this model. Training then begins with a new adapter, which the engine
    initialises."""
    return bool(getattr(model, _NEW, False))


def mark_trained(model: Any) -> None:
    """Marks the adapter as trained: it now has weights from the engine."""
    if is_new_adapter(model):
        setattr(model, _NEW, False)


def forget_hash(path: str) -> None:
    """Removes the hash of the base model from an adapter's file, if present."""
    if not os.path.exists(path):
        return
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header, tensors = json.loads(file.read(length)), file.read()
    header.get("__metadata__", {}).pop("base_model_sha256", None)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + tensors)


def set_base(source: str, target: str, below: str) -> None:
    """Writes the configuration of the adapter in `source` into `target`, with the directory `below` as its base
    model."""
    with open(os.path.join(source, "adapter_config.json")) as file:
        config = json.load(file)
    with open(os.path.join(target, "adapter_config.json"), "w") as file:
        json.dump({**config, "base_model_name_or_path": below}, file, indent=2)


def wrapped(model: Any, peft_config: Any, values: dict) -> Any:
    """Returns a loaded model with a new adapter, created by PEFT."""
    peft = _package()
    if peft_config is None or isinstance(peft_config, dict):
        modules = values.get("lora_target_modules")
        peft_config = peft.LoraConfig(
            r=values.get("lora_r", 16),
            lora_alpha=values.get("lora_alpha", 32),
            lora_dropout=values.get("lora_dropout", 0.0),
            use_rslora=values.get("use_rslora", False),
            target_modules=modules[0] if modules is not None and len(modules) == 1 else modules or ["q_proj", "v_proj"],
            task_type="CAUSAL_LM" if "CausalLM" in type(model).__name__ else "SEQ_CLS",
        )
    if has_scores(model):
        # The score head is trained together with the adapter, and saved in its files.
        peft_config = copy.deepcopy(peft_config)
        peft_config.modules_to_save = ["score"]
    model = peft.get_peft_model(model, peft_config)
    setattr(model, _NEW, True)
    return model


def loaded(directory: str, load: Any) -> Any:
    """Loads an adapter's directory as a PeftModel; `load` loads the base model."""
    peft = _package()
    config = peft.PeftConfig.from_pretrained(directory)
    return peft.PeftModel.from_pretrained(load(config.base_model_name_or_path), directory, is_trainable=True)


def _package() -> Any:
    try:
        import peft
    except ImportError:
        raise ImportError("a model with an adapter needs the package peft: pip install peft") from None
    return peft


def names_in_model(name: str) -> tuple:
    """Returns the names that a tensor in an adapter's file may have in the PeftModel."""
    stem, _, leaf = name.rpartition(".")
    return f"{stem}.{_ADAPTER}.{leaf}", f"{stem}.modules_to_save.{_ADAPTER}.{leaf}", name


def lora_values(peft_config: Any, has_weights: bool = False, has_scores: bool = False) -> dict:
    """Returns a `peft.LoraConfig`, or a dict of its fields, as the engine's keys. `init_lora_weights` is ignored if the
    adapter already has weights. A score head is always trained together with an adapter."""
    if peft_config is None:
        return {}
    fields = peft_config if isinstance(peft_config, dict) else getattr(peft_config, "__dict__", None)
    if fields is None:
        raise TypeError(f"`peft_config` must be a peft.LoraConfig or a dict, but is {type(peft_config).__name__}")
    kind = str(getattr(fields.get("peft_type"), "value", fields.get("peft_type") or "LORA"))
    if kind != "LORA":
        raise ValueError(f"`peft_config`: only LoRA adapters are supported, not {kind}")
    values: dict = {"use_peft": True}
    # PEFT's defaults, which differ from those of the engine's keys.
    values.update(lora_r=fields.get("r", 8), lora_alpha=fields.get("lora_alpha", 8))
    values["lora_dropout"] = fields.get("lora_dropout", 0.0)
    values["use_rslora"] = bool(fields.get("use_rslora", False))
    modules = fields.get("target_modules")
    if modules is not None:
        values["lora_target_modules"] = sorted(modules) if isinstance(modules, (set, frozenset)) else modules
        if isinstance(modules, str):
            values["lora_target_modules"] = [modules]
    # Fields with PEFT's default value are ignored, such as the parameters of variants that are off.
    own = dataclasses.fields(peft_config) if dataclasses.is_dataclass(peft_config) else ()
    defaults = {field.name: field.default for field in own}
    for name, value in fields.items():
        if name in defaults and value == defaults[name]:
            continue
        if name in _LORA or name.startswith("_") or value in _LORA_NEUTRAL.get(name, (None, False)) or value == {}:
            continue
        # PEFT adds the possible names of a score head to the given names.
        if has_scores and name == "modules_to_save" and "score" in value and set(value) <= {"score", "classifier"}:
            continue
        if name in _LORA_IGNORED or value == [] or (has_weights and name == "init_lora_weights"):
            continue
        raise ValueError(f"`peft_config`: {name} = {value!r} is not supported: adapters are plain LoRA here; remove it")
    return {name: plain(value, f"peft_config.{name}") for name, value in values.items()}


_LORA = {"r", "lora_alpha", "lora_dropout", "use_rslora", "target_modules", "peft_type"}
_LORA_IGNORED = {
    "task_type", "base_model_name_or_path", "revision", "inference_mode", "peft_version", "auto_mapping",
    "runtime_config", "layers_pattern", "fan_in_fan_out", "megatron_core", "ensure_weight_tying",
}
# Values besides None and False that mean plain LoRA.
_LORA_NEUTRAL = {"bias": ("none", None), "init_lora_weights": (True, None)}
