"""Classes for custom training loops. A model in memory generates completions, computes log-probabilities and is
trained, without files in between.

    model = Model("dir")
    engine, trainer = Engine(model), Trainer(model, GRPOConfig(learning_rate=1e-5))
    for prompts in batches:
        groups = engine.generate(prompts, Sampling(max_new_tokens=64), num_generations=8)
        for group in groups:
            group.set_advantages(my_rewards(group))
        metrics = trainer.step(groups)

Token ids and numbers are NumPy arrays. Arrays from the engine are passed without a copy, and so are token ids of dtype
uint32 that are scored. Arrays of other packages are read through DLPack, as `numpy.from_dlpack(tensor)` does.
"""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

from . import _native
from ._config import GRPOConfig, PPOConfig, RLOOConfig


def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        raise ImportError("arrays need the package numpy: pip install numpy") from None
    return numpy


def _array(values: Any, dtype: str) -> Any:
    """Returns a contiguous NumPy array of this dtype; without a copy if `values` is such an array, of any package."""
    numpy = _numpy()
    if not isinstance(values, numpy.ndarray) and hasattr(values, "__dlpack__"):
        values = numpy.from_dlpack(values)
    if dtype == "uint32":
        given = numpy.asarray(values)
        if given.size and (given.dtype.kind not in "iu" or given.min() < 0 or given.max() >= 1 << 32):
            raise ValueError(f"token ids must be integers of 0 or more, but are {values!r:.100}")
    array = numpy.ascontiguousarray(values, dtype=dtype)
    if array.ndim != 1:
        raise ValueError(f"expected a list of numbers, got {array.ndim} dimensions")
    return array


@dataclasses.dataclass
class Sampling:
    """Settings for sampling tokens, under transformers' names. Temperature 0 is greedy decoding."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_new_tokens: int = 256
    stop_ids: list[int] | None = None
    stop_strings: list[str] = dataclasses.field(default_factory=list)
    seed: int = 0


@dataclasses.dataclass
class Completion:
    """A completion of a prompt: its token ids, and values for each token as arrays of the same length."""

    ids: Any
    # Log-probabilities under the policy that sampled the ids. If `version` names its weights, the trainer checks them.
    logprobs: Any
    # "stop" or "length"
    finish_reason: str = "stop"
    version: int | None = None
    # The advantage: one number for the completion, or one for each token.
    advantage: Any = None
    ref_logprobs: Any = None
    # Boolean mask of the tokens that the loss uses; None: all tokens.
    mask: Any = None

    def _given(self, place: str) -> tuple:
        if self.advantage is None:
            raise ValueError(f"{place} has no advantage: set it, or use Group.set_advantages")
        numpy = _numpy()
        return (
            _array(self.ids, "uint32"),
            numpy.atleast_1d(_array(numpy.atleast_1d(self.advantage), "float32")),
            _array(self.logprobs, "float32"),
            self.version,
            None if self.ref_logprobs is None else _array(self.ref_logprobs, "float32"),
            None if self.mask is None else _array(self.mask, "bool"),
            self.finish_reason == "length",
        )


@dataclasses.dataclass
class Group:
    """A prompt (token ids) and its completions."""

    prompt: Any
    completions: list[Completion]

    def set_advantages(self, rewards: Any) -> None:
        """Sets GRPO's advantages: (reward − mean of the group) / (standard deviation of the group + 10⁻⁴)."""
        if len(rewards) != len(self.completions):
            raise ValueError(f"{len(rewards)} rewards for {len(self.completions)} completions")
        rewards = [float(reward) for reward in rewards]
        mean = sum(rewards) / len(rewards)
        squares = sum((reward - mean) ** 2 for reward in rewards)
        deviation = (squares / (len(rewards) - 1)) ** 0.5 if len(rewards) > 1 else 0.0
        is_equal = len(set(rewards)) == 1  # their mean is rounded, and the difference could be 1e-17 instead of 0
        for completion, reward in zip(self.completions, rewards):
            completion.advantage = 0.0 if is_equal else (reward - mean) / (deviation + 1e-4)


@dataclasses.dataclass
class Scores:
    """Log-probabilities and entropies of the tokens of a completion."""

    logprobs: Any
    entropies: Any


class Model:
    """A language model in memory with its tokenizer, from a directory or the Hugging Face Hub."""

    def __init__(
        self, name: str, *, adapter: str | None = None, dtype: str = "f32", device: str | None = None,
        threads: int | None = None,
    ):
        _numpy()
        if dtype not in ("f32", "bf16", "float32", "bfloat16"):
            raise ValueError(f"`dtype` = {dtype!r}: expected f32 or bf16")
        self._native = _native.LanguageModel(
            os.fspath(name), adapter=adapter, dtype=dtype, device=device, threads=threads
        )

    @property
    def vocab_size(self) -> int:
        """Number of tokens in the vocabulary."""
        return self._native.vocab_size

    @property
    def max_position_embeddings(self) -> int:
        """Length of the longest possible sequence, in tokens."""
        return self._native.max_position_embeddings

    @property
    def eos_ids(self) -> list[int]:
        """Token ids that end a completion."""
        return self._native.eos_ids

    @property
    def version(self) -> int:
        """Number of optimizer steps that the weights have taken."""
        return self._native.version

    def encode(self, text: str) -> Any:
        """Returns the token ids of a text."""
        return self._native.encode(text)

    def decode(self, ids: Any, skip_special_tokens: bool = True) -> str:
        """Returns the text of token ids."""
        return self._native.decode(_array(ids, "uint32"), skip_special_tokens)

    def score(self, sequences: list, temperature: float = 1.0) -> list[Scores]:
        """Returns log-probabilities and entropies for each pair `(prompt ids, completion ids)` in `sequences`. If
        neighbouring pairs have the same prompt, it is computed once."""
        if not temperature > 0:
            raise ValueError(f"`temperature` = {temperature}: expected a number above 0")
        prompts = [_array(prompt, "uint32") for prompt, _ in sequences]
        if any(len(prompt) == 0 for prompt in prompts):
            raise ValueError("a prompt is empty: it needs at least the token that starts a text")
        completions = [_array(completion, "uint32") for _, completion in sequences]
        return [Scores(*arrays) for arrays in self._native.score(prompts, completions, temperature)]

    def save(self, directory: str) -> None:
        """Writes a model directory that this package and transformers can load."""
        self._native.save(os.fspath(directory))


class Engine:
    """Generates completions with the weights that a model has at each call. At most `max_num_seqs` completions run at
    once. A prompt with its completion has at most `max_model_len` tokens."""

    def __init__(self, model: Model, *, max_num_seqs: int = 64, max_model_len: int = 4096):
        for name, value in (("max_num_seqs", max_num_seqs), ("max_model_len", max_model_len)):
            if value < 1:
                raise ValueError(f"`{name}` = {value}: expected 1 or more")
        self.model = model
        self._native = _native.Generator(model._native, max_num_seqs, max_model_len)

    def generate(self, prompts: list, sampling: Sampling | None = None, num_generations: int = 1) -> list[Group]:
        """Returns `num_generations` completions of each prompt. A prompt is a text or token ids. The random numbers
        depend on `sampling.seed` and on the prompt's index, counted since the engine was made."""
        sampling = sampling or Sampling()
        if num_generations < 1:
            raise ValueError(f"`num_generations` = {num_generations}: expected 1 or more")
        given = [
            self.model.encode(prompt) if isinstance(prompt, str) else _array(prompt, "uint32") for prompt in prompts
        ]
        for i, ids in enumerate(given):
            if len(ids) == 0:
                raise ValueError(f"prompt {i} has no tokens")
        generated = self._native.generate(given, num_generations, **dataclasses.asdict(sampling))
        return [
            Group(prompt, [Completion(*completion) for completion in completions])
            for prompt, completions in zip(given, generated)
        ]


class Trainer:
    """Takes optimizer steps on a model, in place. `args` is a GRPOConfig, RLOOConfig or PPOConfig; it sets the loss,
    the optimizer and the temperature. The learning rate is constant, unless a step is given another one."""

    def __init__(self, model: Model, args: Any = None):
        args = GRPOConfig() if args is None else args
        if not isinstance(args, (GRPOConfig, RLOOConfig, PPOConfig)):
            raise TypeError(f"`args` must be a GRPOConfig, RLOOConfig or PPOConfig, but is {type(args).__name__}")
        if args.world_size > 1:
            raise ValueError("a launcher has started several processes, but this trainer steps in one: use python")
        values = args.values()
        if values.get("use_peft"):
            raise ValueError("`args`: use GRPOTrainer to train an adapter; this trainer trains all weights")
        needed = {"model_name_or_path": "model", "dataset_name": "memory", "reward_funcs": ["function:own"]}
        self.args = args
        self.model = model
        self._native = _native.Stepper(model._native, args.method, json.dumps({**needed, **values}))

    def step(self, groups: list[Group], learning_rate: float | None = None) -> dict[str, float]:
        """Takes one optimizer step on all groups. Returns its metrics under TRL's names."""
        if not any(group.completions for group in groups):
            raise ValueError("step: there is no completion to learn from")
        given = [
            (
                _array(group.prompt, "uint32"),
                [one._given(f"completion {i} of group {at}") for i, one in enumerate(group.completions)],
            )
            for at, group in enumerate(groups)
        ]
        return self._native.step(given, self._native.learning_rate if learning_rate is None else learning_rate)
