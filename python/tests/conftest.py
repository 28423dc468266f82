"""Fixtures and helpers: tiny models that the program creates, datasets and rewards."""

import json
import os
import sys

import pytest

import lockstep_rl
from lockstep_rl import _native

# Timeout in seconds, so long that only a hanging test reaches it, even on a slow or busy machine.
HANG = 600
LETTERS = "abcdefghijklmnopqrstuvwxyz .,?"
SHAPE = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 40, "hidden_size": 16,
    "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": True, "attention_bias": False, "bos_token_id": None, "eos_token_id": 0,
}
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}.{% endif %}"


def write_tokenizer(directory):
    vocab = {token: i for i, token in enumerate(["<e>", *LETTERS])}
    end = {"id": 0, "content": "<e>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
           "special": True}
    split = {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": False}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [end], "normalizer": None,
        "pre_tokenizer": split, "post_processor": None, "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": ""},
    }
    config = {"eos_token": "<e>", "pad_token": "<e>", "tokenizer_class": "PreTrainedTokenizerFast",
              "clean_up_tokenization_spaces": False, "chat_template": TEMPLATE}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def write_byte_tokenizer(directory):
    """Writes a byte-level BPE tokenizer without merges, with GPT-2's characters for bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names = {byte: chr(byte) for byte in shown}
    names |= {byte: chr(256 + i) for i, byte in enumerate(b for b in range(256) if b not in names)}
    special = ["<e>", "<|im_start|>", "<|im_end|>"]
    vocab = {token: i for i, token in enumerate([*special, *(names[byte] for byte in range(256))])}
    added = [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i, token in enumerate(special)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "unk_token": None},
    }
    template = ("{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
                "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
    config = {"eos_token": "<e>", "pad_token": "<e>", "tokenizer_class": "PreTrainedTokenizerFast",
              "clean_up_tokenization_spaces": False, "chat_template": template}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def init(root):
    """Creates a model with random weights from the configuration and the tokenizer in `root`."""
    out = root / "model"
    arguments = ["lockstep", "init", "--config", root / "config.json", "--tokenizer", root / "tokenizer",
                 "--seed", "1", "--out", out]
    assert _native.main([os.fspath(word) for word in arguments]) == 0
    return str(out)


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """Returns the directory of a tiny model with a tokenizer of lower-case letters."""
    root = tmp_path_factory.mktemp("model")
    write_tokenizer(root / "tokenizer")
    (root / "config.json").write_text(json.dumps(SHAPE))
    return init(root)


@pytest.fixture(scope="session")
def bytes_model(tmp_path_factory):
    """Returns the directory of a tiny model with a byte-level tokenizer and a chat template."""
    root = tmp_path_factory.mktemp("bytes")
    write_byte_tokenizer(root / "tokenizer")
    shape = {**SHAPE, "vocab_size": 264, "max_position_embeddings": 2048}
    (root / "config.json").write_text(json.dumps(shape))
    return init(root)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Runs each test in its own directory and resets the list of warnings already shown."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lockstep_rl._config, "_said", set())
    for name in [name for name in os.environ if name.startswith("LOCKSTEP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


WORDS = ["ab", "sun", "moon", "tree", "x", "river"]


@pytest.fixture
def rows():
    return [{"prompt": f"{word} ", "answer": i, "word": word} for i, word in enumerate(WORDS)]


def vowels(completions, **kwargs):
    """Scores each completion by its number of vowels."""
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [float(sum(letter in "aeiou" for letter in text)) for text in texts]


SMALL = dict(
    num_generations=2, per_device_train_batch_size=4, max_completion_length=6, learning_rate=0.01, max_steps=4,
    logging_steps=1, threads=1, disable_tqdm=True,
)


def grpo(model, rows, reward_funcs=vowels, callbacks=None, trainer=None, **fields):
    """Returns a GRPO trainer that trains four small steps."""
    args = lockstep_rl.GRPOConfig(**{"output_dir": "out", **SMALL, **fields})
    return lockstep_rl.GRPOTrainer(
        model=model, reward_funcs=reward_funcs, args=args, train_dataset=rows, callbacks=callbacks, **(trainer or {})
    )


def weights(directory):
    with open(os.path.join(directory, "model.safetensors"), "rb") as file:
        return file.read()


def python(*arguments, timeout=HANG, **kwargs):
    """Runs another Python interpreter with these arguments."""
    import subprocess

    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=timeout, **kwargs)
