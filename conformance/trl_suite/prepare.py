"""Makes the tiny models and datasets that TRL's tests name, on this machine and without a network.

They are made by TRL's own generators, which are in its checkout. Models have the layout of the Hub's cache, where
transformers and the engine find them; datasets are Parquet files.

This script replaces what the generators would download from the Hub. All models get one tokenizer (Qwen2.5's, with the
chat template that TRL's checkout has for the family), generation configurations with that tokenizer's end token, and
the configurations that `reference_configs` has.
"""

import argparse
import importlib
import json
import os
import pathlib
import runpy
import sys
import traceback

# The commit's name in the Hub's cache; any name works.
COMMIT = "0" * 40

# Model families with a chat template in TRL's `trl/chat_templates`; others get the tokenizer's own template.
TEMPLATES = {
    "Qwen/Qwen3-8B": "qwen3_training",
    "Qwen/Qwen3-4B-Instruct-2507": "qwen3_instruct_2507",
    "Qwen/Qwen3": "qwen3",
    "meta-llama/Meta-Llama-3-": "llama3",
    "meta-llama/Meta-Llama-3.1": "llama3_1",
    "meta-llama/Llama-3.2": "llama3_2",
    "openai/gpt-oss": "gptoss",
    "zai-org/GLM-4.5": "glm4moe",
    "LiquidAI/LFM2.5": "lfm2_2_5",
    "nvidia/NVIDIA-Nemotron-3-Nano": "nemotron_3_nano",
}


def reference_configs():
    """Returns the configurations of the models from which TRL makes its tiny reward models."""
    from transformers import GPTNeoXConfig, LlamaConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

    qwen = dict(max_position_embeddings=32768, rms_norm_eps=1e-6, tie_word_embeddings=False, eos_token_id=151645)
    return {
        "Qwen/Qwen2.5-32B-Instruct": lambda **own: Qwen2Config(vocab_size=152064, **qwen, **own),
        "Qwen/Qwen3-4B": lambda **own: Qwen3Config(vocab_size=151936, head_dim=128, **qwen, **own),
        "Qwen/Qwen3-30B-A3B": lambda **own: Qwen3MoeConfig(vocab_size=151936, head_dim=128, **qwen, **own),
        "meta-llama/Llama-3.2-1B-Instruct": lambda **own: LlamaConfig(vocab_size=151936, head_dim=64, **own),
        "EleutherAI/pythia-14m": lambda **own: GPTNeoXConfig(vocab_size=151936, **own),
    }


def tokenizer_like(reference, checkout, directory):
    """Returns the tokenizer of `directory` with the chat template of the model `reference`."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    known = [name for start, name in TEMPLATES.items() if reference.startswith(start)]
    template = checkout / "trl" / "chat_templates" / f"{max(known, key=len)}.jinja" if known else None
    if template is not None and template.exists():
        tokenizer.chat_template = template.read_text()
    return tokenizer


def make_models(checkout, tokenizer_dir, hub):
    """Runs every generator of a text model that has not run yet."""
    scripts = checkout / "scripts" / "generate_tiny_models"
    record = hub / "made.json"
    made = json.loads(record.read_text()) if record.exists() else []
    kinds = ("for_causal_lm", "for_sequence_classification")
    known = [script for kind in kinds for script in sorted((scripts / kind).glob("[a-z]*.py"))]
    todo = [script for script in known if script.stem not in made]
    if not todo:
        return
    import transformers

    tokenizer_of = lambda reference, **_: tokenizer_like(reference, checkout, tokenizer_dir)  # noqa: E731
    own = tokenizer_of("")
    configs = reference_configs()
    generation = transformers.GenerationConfig(eos_token_id=own.eos_token_id, pad_token_id=own.pad_token_id)
    transformers.AutoTokenizer.from_pretrained = tokenizer_of
    transformers.GenerationConfig.from_pretrained = lambda *_, **__: generation
    transformers.AutoConfig.from_pretrained = lambda name, **fields: configs[name](**fields)

    common = importlib.import_module("scripts.generate_tiny_models._common")
    nothing = lambda *_, **__: None  # noqa: E731
    for name in ("check_transformers_version", "check_dtype_pattern", "print_config_diff", "smoke_test"):
        setattr(common, name, nothing)

    def keep(model, tokenizer, generation_config, prefix=None, suffix=None, create_pr=None):
        name = "-".join(part for part in (prefix, type(model).__name__, suffix) if part)
        repository = hub / f"models--{common.ORGANIZATION}--{name}"
        snapshot = repository / "snapshots" / COMMIT
        model.save_pretrained(snapshot)
        tokenizer.save_pretrained(snapshot)
        if generation_config is not None:
            generation_config.save_pretrained(snapshot)
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / "main").write_text(COMMIT)
        return name

    common.push_to_hub = keep
    for script in todo:
        try:
            runpy.run_module(f"scripts.generate_tiny_models.{script.parent.name}.{script.stem}")
        except Exception as error:
            print(f"no model of {script.stem}: {type(error).__name__}: {error}".splitlines()[0])
        made.append(script.stem)
        record.write_text(json.dumps(made))


def make_datasets(checkout, target):
    """Runs the generators of TRL's text datasets, which become files CONFIGURATION/SPLIT.parquet."""
    todo = [name for name in ("zen", "toolcall", "harmony") if not (target / name).exists()]
    if not todo:
        return
    import datasets

    def keep(self, repo_id, config_name="default", split=None, **_):
        place = target / repo_id.rpartition("/")[2] / config_name
        place.mkdir(parents=True, exist_ok=True)
        parts = self if isinstance(self, dict) else {split or "train": self}
        for name, part in parts.items():
            part.to_parquet(place / f"{name}.parquet")

    datasets.Dataset.push_to_hub = datasets.DatasetDict.push_to_hub = keep
    for name in todo:
        script = checkout / "scripts" / f"generate_{name}_dataset.py"
        try:
            runpy.run_path(str(script))["main"](0.1, True, f"trl-internal-testing/{name}")
        except Exception:
            print(f"no dataset {name}:")
            traceback.print_exc(limit=-1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=pathlib.Path)
    parser.add_argument("tokenizer", type=pathlib.Path)
    parser.add_argument("target", type=pathlib.Path, help="gets hub/ and datasets/")
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    sys.path.insert(0, str(options.checkout))
    sys.argv = sys.argv[:1]
    (options.target / "hub").mkdir(parents=True, exist_ok=True)
    make_datasets(options.checkout, options.target / "datasets")
    make_models(options.checkout, options.tokenizer, options.target / "hub")
