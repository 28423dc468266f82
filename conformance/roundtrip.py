"""Checks that transformers reads model directories and tokenizers that Lockstep wrote: same weights, logits and token
ids.

    cargo build -p lockstep-model --example resave
    python conformance/roundtrip.py target/debug/examples/resave

For each model family's fixture, Lockstep loads and saves the directory (one file, and sharded; in f32, bf16 and f16).
transformers loads the result, which is compared with the original: every tensor, and the logits of some ids, in f32 bit
for bit. The same is checked for random weights of each config, and for the character tokenizer through AutoTokenizer.
The last line says what was compared.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

transformers.logging.set_verbosity_error()
resave = sys.argv[1]
fixtures = Path("crates/model/tests/fixtures")


def run(*args):
    return subprocess.run([resave, *map(str, args)], check=True, capture_output=True, text=True).stdout


def load(path, dtype):
    model, info = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, output_loading_info=True)
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    return model.eval()


@torch.no_grad()
def logits(model, ids):
    return model(input_ids=ids).logits


compared = 0
names = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
families = sorted(p.parent for p in fixtures.glob("*/config.json"))
for family in families:
    for short, dtype in names.items():
        original = load(family, dtype)
        ids = torch.arange(20)[None] * 7 % original.config.vocab_size
        for shard in (10**9, 3000):
            with tempfile.TemporaryDirectory() as out:
                run("model", family, out, short, shard)
                assert (Path(out) / "model.safetensors.index.json").exists() == (shard == 3000)
                saved = load(out, "auto")
                assert saved.dtype == dtype, (saved.dtype, dtype)
                for (name, a), (other, b) in zip(original.state_dict().items(), saved.state_dict().items(), strict=True):
                    assert name == other and torch.equal(a, b), (family, short, name)
                assert torch.equal(logits(original, ids), logits(saved, ids)), (family, short)
                compared += 1
    with tempfile.TemporaryDirectory() as out:
        run("random", family / "config.json", out, 7)
        saved = load(out, torch.float32)
        std = saved.config.initializer_range
        for name, x in saved.state_dict().items():
            if name.endswith("bias"):
                assert (x == 0).all(), name
            elif name.endswith("norm.weight"):
                # Gemma's norms multiply by 1 + weight.
                assert (x == (0 if saved.config.model_type.startswith("gemma") else 1)).all(), name
            else:
                assert abs(x.std().item() / std - 1) < 0.3, (name, x.std(), std)
        assert torch.isfinite(logits(saved, ids)).all()
        compared += 1

with tempfile.TemporaryDirectory() as out:
    run("characters", out)
    tokenizer = AutoTokenizer.from_pretrained(out)
    texts = ["1+2=3\n<eos>", "12*34 - 5/6 = \"é\\'\n\n", "", "<pad><eos>0"]
    ours = [json.loads(line) for line in run("encode", out, *texts).splitlines()]
    for text, ids in zip(texts, ours, strict=True):
        assert tokenizer(text).input_ids == ids, (text, ids, tokenizer(text).input_ids)
        assert tokenizer.decode(ids) == text, (text, tokenizer.decode(ids))
        compared += 1
    assert (tokenizer.pad_token, tokenizer.eos_token, tokenizer.bos_token) == ("<pad>", "<eos>", None)
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, len(tokenizer)) == (0, 1, 23), len(tokenizer)
print(f"equal: {compared} comparisons over {[f.name for f in families]}, transformers {transformers.__version__}")
