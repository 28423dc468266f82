"""For loops of one's own: a model in memory that is sampled from, scored and stepped, without files between.

    model = Model("dir")
    engine, trainer = Engine(model), Trainer(model, GRPOConfig(learning_rate=1e-5))
    for prompts in batches:
        groups = engine.generate(prompts, Sampling(max_new_tokens=64), num_generations=8)
        for group in groups:
            group.set_advantages(my_rewards(group))
        metrics = trainer.step(groups)

Ids and numbers are NumPy arrays; what comes from the engine is handed over without a copy, and so are ids of dtype
uint32 that go in to be scored. `numpy.from_dlpack(tensor)` takes those of other packages as they are.
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
    """A contiguous NumPy array of this type: the memory of what was given where that is one, of any package."""
    numpy = _numpy()
    if not isinstance(values, numpy.ndarray) and hasattr(values, "__dlpack__"):
        values = numpy.from_dlpack(values)
    if dtype == "uint32":
        given = numpy.asarray(values)
        if given.size and (given.dtype.kind not in "iu" or given.min() < 0 or given.max() >= 1 << 32):
            raise ValueError(f"token ids must be integers from 0 on, but are {values!r:.100}")
    array = numpy.ascontiguousarray(values, dtype=dtype)
    if array.ndim != 1:
        raise ValueError(f"expected a list of numbers, but it has {array.ndim} dimensions")
    return array


@dataclasses.dataclass
class Sampling:
    """How tokens are drawn; the names are transformers'. Temperature 0 is greedy."""

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
    """What follows a prompt: ids and what is known of each, as arrays of the same length."""

    ids: Any
    # log π of the old policy: where `version` says with which weights they were sampled, the trainer checks them.
    logprobs: Any
    # "stop" or "length"
    finish_reason: str = "stop"
    version: int | None = None
    # One number for the completion, or one per token.
    advantage: Any = None
    ref_logprobs: Any = None
    # Tokens that the loss may use; all where there is none.
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
    """A prompt and its completions."""

    prompt: Any
    completions: list[Completion]

    def set_advantages(self, rewards: Any) -> None:
        """GRPO's: each reward against the mean of the group, over its standard deviation + 10⁻⁴."""
        if len(rewards) != len(self.completions):
            raise ValueError(f"{len(rewards)} rewards for {len(self.completions)} completions")
        rewards = [float(reward) for reward in rewards]
        mean = sum(rewards) / len(rewards)
        squares = sum((reward - mean) ** 2 for reward in rewards)
        deviation = (squares / (len(rewards) - 1)) ** 0.5 if len(rewards) > 1 else 0.0
        for completion, reward in zip(self.completions, rewards):
            completion.advantage = (reward - mean) / (deviation + 1e-4)


@dataclasses.dataclass
class Scores:
    """Log-probabilities and entropies of the tokens of a completion."""

    logprobs: Any
    entropies: Any


class Model:
    """A model of a directory or the Hub in memory, with its tokenizer."""

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
        """Entries of the vocabulary."""
        return self._native.vocab_size

    @property
    def max_position_embeddings(self) -> int:
        """Tokens of the longest sequence."""
        return self._native.max_position_embeddings

    @property
    def eos_ids(self) -> list[int]:
        """Ids that end a completion."""
        return self._native.eos_ids

    @property
    def version(self) -> int:
        """How many steps the weights have come."""
        return self._native.version

    def encode(self, text: str) -> Any:
        """The ids of a text."""
        return self._native.encode(text)

    def decode(self, ids: Any, skip_special_tokens: bool = True) -> str:
        """The text of ids."""
        return self._native.decode(_array(ids, "uint32"), skip_special_tokens)

    def score(self, sequences: list, temperature: float = 1.0) -> list[Scores]:
        """Scores of each `(prompt ids, completion ids)`. Equal prompts behind one another are computed once."""
        if not temperature > 0:
            raise ValueError(f"`temperature` = {temperature}: expected a number above 0")
        prompts = [_array(prompt, "uint32") for prompt, _ in sequences]
        if any(len(prompt) == 0 for prompt in prompts):
            raise ValueError("a prompt is empty: give it at least the token that starts a text")
        completions = [_array(completion, "uint32") for _, completion in sequences]
        return [Scores(*arrays) for arrays in self._native.score(prompts, completions, temperature)]

    def save(self, directory: str) -> None:
        """Writes a directory that loads again, here and in transformers."""
        self._native.save(os.fspath(directory))


class Engine:
    """Generates with a model's weights as they are at each call. `max_num_seqs` completions are written at once;
    `max_model_len` tokens, at most, has a prompt with its completion."""

    def __init__(self, model: Model, *, max_num_seqs: int = 64, max_model_len: int = 4096):
        for name, value in (("max_num_seqs", max_num_seqs), ("max_model_len", max_model_len)):
            if value < 1:
                raise ValueError(f"`{name}` = {value}: expected 1 or more")
        self.model = model
        self._native = _native.Generator(model._native, max_num_seqs, max_model_len)

    def generate(self, prompts: list, sampling: Sampling | None = None, num_generations: int = 1) -> list[Group]:
        """`num_generations` completions of each prompt, texts or ids. The noise is that of `sampling.seed` and of the
        prompt's number since the engine was made."""
        sampling = sampling or Sampling()
        if num_generations < 1:
            raise ValueError(f"`num_generations` = {num_generations}: expected 1 or more")
        given = [
            self.model.encode(prompt) if isinstance(prompt, str) else _array(prompt, "uint32") for prompt in prompts
        ]
        for i, ids in enumerate(given):
            if len(ids) == 0:
                raise ValueError(f"prompt {i} has no token")
        generated = self._native.generate(given, num_generations, **dataclasses.asdict(sampling))
        return [
            Group(prompt, [Completion(*completion) for completion in completions])
            for prompt, completions in zip(given, generated)
        ]


class Trainer:
    """Takes optimizer steps on a model, in place. The loss, the optimizer and the temperature are those of a
    GRPOConfig, RLOOConfig or PPOConfig; `learning_rate` is constant unless a step names another."""

    def __init__(self, model: Model, args: Any = None):
        args = GRPOConfig() if args is None else args
        if not isinstance(args, (GRPOConfig, RLOOConfig, PPOConfig)):
            raise TypeError(f"`args` must be a GRPOConfig, RLOOConfig or PPOConfig, but is {type(args).__name__}")
        values = args.values()
        if values.get("use_peft"):
            raise ValueError("`args`: adapters are trained by GRPOTrainer; here all weights are")
        needed = {"model_name_or_path": "model", "dataset_name": "memory", "reward_funcs": ["function:own"]}
        self.args = args
        self.model = model
        self._native = _native.Stepper(model._native, args.method, json.dumps({**needed, **values}))

    def step(self, groups: list[Group], learning_rate: float | None = None) -> dict[str, float]:
        """One optimizer step on all of the groups: what it measured, under TRL's names."""
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
