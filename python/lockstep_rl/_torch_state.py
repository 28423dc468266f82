"""Checks state of a torch model that the engine cannot see. The engine reads weights and configuration from files. Any
other state that affects the computation or training is refused by name."""

from __future__ import annotations

import copy
import functools
import math
import sys
from collections.abc import Iterator
from typing import Any

from . import _peft

# Packages whose hooks and forward functions compute what the configuration describes.
_TRUSTED = {"torch", "transformers", "peft", "accelerate", "trl", "liger_kernel", "kernels", "lockstep_rl"}
# Attributes of modules that do not affect the result, or only depend on earlier calls.
_FREE = {"training", "gradient_checkpointing", "padding_idx", "max_seq_len_cached", "original_max_seq_len",
         "vocab_size"}
_SCORE = ("score.weight", "score.bias")


def check_trained(model: Any, new_adapter: bool = False, without_dropout: bool = False) -> None:
    """Raises a ValueError if a model to be trained has settings that training here would ignore. `new_adapter`: the
    weights are frozen, and an adapter is added."""
    for problem in (*_computes(model, "model"), *_trains(model, new_adapter, without_dropout)):
        raise ValueError(problem)


def check_frozen(model: Any, new_adapter: bool = False) -> None:
    """Raises a ValueError if parameters are frozen that are trained here, or trainable that are frozen here."""
    of_adapter = _peft.is_peft_model(model)
    if _is_module(model) and (of_adapter or not new_adapter):
        for problem in _frozen(list(model.named_parameters()), of_adapter):
            raise ValueError(problem)


def check_read(model: Any, argument: str) -> None:
    """Raises a ValueError if a model's computation differs from that of its files."""
    for problem in _computes(model, argument):
        raise ValueError(problem)


def _is_module(model: Any) -> bool:
    return hasattr(model, "named_parameters") and hasattr(model, "named_modules")


def _trains(model: Any, new_adapter: bool, without_dropout: bool) -> Iterator[str]:
    if not _is_module(model):
        return
    of_adapter = _peft.is_peft_model(model)
    if of_adapter or not new_adapter:
        yield from _frozen(list(model.named_parameters()), of_adapter)
    for name, parameter in model.named_parameters():
        for hook in _hooks(parameter, ("_backward_hooks", "_post_accumulate_grad_hooks")):
            yield _of_hook(f"parameter `{name}`", hook)
    for name, module in model.named_modules():
        for hook in _hooks(module, ("_backward_hooks", "_backward_pre_hooks")):
            yield _of_hook(f"module `{name}`", hook)
        # The dropout of an adapter is compared with the adapter's configuration.
        if "Dropout" in type(module).__name__ and ".lora_dropout" not in name and not without_dropout:
            if getattr(module, "p", 0):
                yield (
                    f"`model`: `{name}` is a dropout with p = {module.p}, but the engine has dropout only in adapters "
                    "(lora_dropout): set p = 0, or disable_dropout=True"
                )


def _frozen(parameters: list, of_adapter: bool) -> Iterator[str]:
    if not of_adapter:
        frozen = [name for name, parameter in parameters if not parameter.requires_grad]
        if frozen:
            yield (
                f"`model`: {len(frozen)} of {len(parameters)} parameters have requires_grad = False, such as "
                f"`{frozen[0]}`, but the engine trains either all weights of a model or an adapter: set "
                "model.requires_grad_(True), or give peft_config"
            )
        return
    for name, parameter in parameters:
        is_adapter = ".lora_" in name or ".modules_to_save." in name
        if is_adapter and not parameter.requires_grad:
            yield (
                f"`model`: `{name}` of the adapter has requires_grad = False: load it with "
                "PeftModel.from_pretrained(..., is_trainable=True)"
            )
        if not is_adapter and parameter.requires_grad and not name.endswith(_SCORE):
            yield (
                f"`model`: `{name}` below the adapter has requires_grad = True, but the engine trains only the "
                "adapter: set it to False, or merge the adapter and train all weights"
            )


def _computes(model: Any, argument: str) -> Iterator[str]:
    """Yields the reasons why a model's computation differs from that of its files."""
    if not _is_module(model):
        return
    if hasattr(model, "_orig_mod"):
        yield f"`{argument}` is compiled: give the model itself (model._orig_mod)"
    modules = dict(model.named_modules())
    for name, module in modules.items():
        for hook in _hooks(module, ("_forward_hooks", "_forward_pre_hooks")):
            yield _of_hook(f"module `{name}`", hook, argument)
        for function in (vars(module).get("forward"), getattr(type(module), "forward", None)):
            if function is not None and not _is_trusted(function):
                yield (
                    f"`{argument}`: the forward function of `{name or type(module).__name__}` is "
                    f"{_name(function)}, which the engine does not call: it computes what config.json says"
                )
    if _peft.is_peft_model(model):
        yield from _adapters(model, modules, argument)
    else:
        inside = [name for name, module in modules.items() if hasattr(module, "lora_A")]
        if inside:
            yield (
                f"`{argument}` has an adapter inside (`{inside[0]}`), but is not a PeftModel: give the PeftModel "
                "(trainer.model, if a trainer made it), or load the model again"
            )
    yield from _structure(model, argument)
    yield from _ties(model, argument)


def _adapters(model: Any, modules: dict, argument: str) -> Iterator[str]:
    config = next(iter(model.peft_config.values()))
    rank, alpha = getattr(config, "r", None), getattr(config, "lora_alpha", None)
    for name, module in modules.items():
        if not hasattr(module, "lora_A"):
            continue
        if getattr(module, "merged", False):
            yield f"`{argument}`: the adapter is merged into `{name}`: call model.unmerge_adapter()"
        if getattr(module, "disable_adapters", False):
            yield f"`{argument}`: the adapter of `{name}` is disabled: call model.enable_adapter_layers()"
        for adapter, scaling in (getattr(module, "scaling", None) or {}).items():
            if rank and alpha:
                right = alpha / (math.sqrt(rank) if getattr(config, "use_rslora", False) else rank)
                if not math.isclose(scaling, right, rel_tol=1e-6):
                    yield (
                        f"`{argument}`: the adapter of `{name}` is scaled by {scaling:g}, but its configuration "
                        f"(lora_alpha, r) says {right:g}: set one of them"
                    )
        for dropout in (getattr(module, "lora_dropout", None) or {}).values():
            p, right = getattr(dropout, "p", 0.0), getattr(config, "lora_dropout", 0.0)
            if p != right:
                yield (
                    f"`{argument}`: the dropout of the adapter of `{name}` is {p}, but its configuration says "
                    f"lora_dropout = {right}: set one of them"
                )


def _hooks(owner: Any, kinds: tuple[str, ...]) -> list:
    found = [hook for kind in kinds for hook in (getattr(owner, kind, None) or {}).values()]
    return [hook for hook in found if not _is_trusted(hook)]


def _of_hook(place: str, hook: Any, argument: str = "model") -> str:
    return f"`{argument}`: {place} has the hook {_name(hook)}, which the engine never calls: remove it"


def _inner(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__func__", function)


def _is_trusted(function: Any) -> bool:
    function = _inner(function)
    # Not `__module__`, which a wrapper copies from the wrapped function.
    module = getattr(function, "__globals__", {}).get("__name__") or getattr(type(function), "__module__", "")
    return module.partition(".")[0] in _TRUSTED | {"builtins"}


def _name(function: Any) -> str:
    function = _inner(function)
    code = getattr(function, "__code__", None)
    return getattr(code, "co_name", None) or type(function).__name__


def _twin(model: Any) -> Any:
    """Returns a model as its configuration describes it, without weights; None if torch is not involved."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module) or not hasattr(model, "config"):
        return None
    try:
        with torch.device("meta"):
            return type(model)(copy.deepcopy(model.config))
    except Exception:  # a class that needs more than a configuration
        return None


def _structure(model: Any, argument: str) -> Iterator[str]:
    """Compares the modules of a model with those that its configuration describes."""
    inner = model.get_base_model() if _peft.is_peft_model(model) else model
    twin = _twin(inner)
    if twin is None:
        return
    own: dict = {}
    for name, module in inner.named_modules():
        root = type(module).__module__.partition(".")[0]
        if ".lora_" in name or ".modules_to_save" in name or (root == "peft" and name):
            continue
        own[name.replace(".base_layer", "").replace(".original_module", "")] = module
    says = "but the engine computes what the model's configuration says"
    for name, right in twin.named_modules():
        module = own.pop(name, None)
        if module is None:
            yield f"`{argument}` has no module `{name}`, {says}: change the configuration, too"
            continue
        root = type(module).__module__.partition(".")[0]
        if type(module) is not type(right) and root not in ("liger_kernel", "kernels"):
            yield (
                f"`{argument}`: `{name}` is {type(module).__name__} and not {type(right).__name__}, {says}: change the "
                "configuration, too"
            )
            continue
        for key, value in vars(right).items():
            if key.startswith("_") or key in _FREE or not isinstance(value, (bool, int, float)):
                continue
            if getattr(module, key, value) != value:
                yield (
                    f"`{argument}`: {name}.{key} = {getattr(module, key)}, but {value} in the model's configuration, "
                    "which the engine reads: change it there"
                )
        if not _same_frequencies(module, right, inner.config):
            yield f"`{argument}`: {name}.inv_freq was changed, {says}: set rope_parameters of the configuration"
    if own:
        yield f"`{argument}` has the module `{next(iter(own))}`, which its configuration does not describe"


def _same_frequencies(module: Any, right: Any, config: Any) -> bool:
    if getattr(right, "inv_freq", None) is None or getattr(module, "rope_type", "default") == "dynamic":
        return True
    try:
        fresh = type(right)(copy.deepcopy(config)).inv_freq
    except Exception:
        return True
    own = module.inv_freq.detach().float().cpu()
    # A model that was converted to 16 bits has rounded frequencies.
    return own.shape == fresh.shape and bool(((own - fresh).abs() <= 0.02 * fresh.abs()).all())


def _ties(model: Any, argument: str) -> Iterator[str]:
    """Compares shared parameters with the configuration."""
    inner = model.get_base_model() if _peft.is_peft_model(model) else model
    head, embedding = (
        getattr(getattr(inner, method, lambda: None)(), "weight", None)
        for method in ("get_output_embeddings", "get_input_embeddings")
    )
    if head is not None and embedding is not None and hasattr(inner, "config"):
        says = getattr(inner.config, "tie_word_embeddings", None)
        if says is not None and bool(says) != (head is embedding):
            yield (
                f"`{argument}`: embedding and head have {'the same' if head is embedding else 'separate'} weights, "
                f"but its configuration says tie_word_embeddings = {bool(says)}: set it to {head is embedding}"
            )
    names: dict = {}
    for name, parameter in _all_parameters(inner):
        other = names.setdefault(id(parameter), name)
        if other != name and parameter is not embedding:
            yield f"`{argument}`: `{other}` and `{name}` are one parameter, but two in its files: copy one of them"


def _all_parameters(model: Any) -> list:
    try:
        return list(model.named_parameters(remove_duplicate=False))
    except TypeError:
        return list(model.named_parameters())
