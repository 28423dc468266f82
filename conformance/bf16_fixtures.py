"""Measures how far transformers in bf16 is from f64, both with the same weights rounded to bf16.

    pip install torch==2.15.* transformers==5.23.* safetensors
    python conformance/bf16_fixtures.py crates/model/tests/fixtures ../shared/models/stories260k [FAMILY...]

For each model directory that `model_fixtures.py` wrote below the first argument, the script writes bf16.safetensors;
for the pretrained model of the second argument, unless families are named, stories_bf16.safetensors. Their tensors:

    ids      [tokens]
    logits   [tokens, vocabulary] in f64, with the rounded weights
    error    [1] relative L2 error of transformers' logits in bf16, for the better of its two attention implementations
"""

import sys
from pathlib import Path

import torch
import transformers
from model_fixtures import CONFIGS
from safetensors.torch import load_file, save_file

STORY = [1, 403, 407, 261, 378, 432, 383, 286, 261, 376, 298, 315, 421]


@torch.no_grad()
def logits(directory, ids, dtype, attention="sdpa"):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.bfloat16, attn_implementation=attention
    )
    return model.to(dtype).eval()(ids[None]).logits[0].to(torch.float64)


def compare(directory, ids, out):
    exact = logits(directory, ids, torch.float64)
    errors = {
        a: ((logits(directory, ids, torch.bfloat16, a) - exact).norm() / exact.norm()).item()
        for a in ("sdpa", "eager")
    }
    print(directory, errors)
    error = torch.tensor([min(errors.values())], dtype=torch.float64)
    save_file({"ids": ids, "logits": exact, "error": error}, out)


def main():
    fixtures, stories, names = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    for family in names or CONFIGS:
        ids = load_file(fixtures / family / "expected.safetensors")["ids"]
        compare(fixtures / family, ids, fixtures / family / "bf16.safetensors")
    if not names:
        compare(stories, torch.tensor(STORY * 3), fixtures / "stories_bf16.safetensors")


main()
