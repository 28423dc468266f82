"""Makes fixtures of PEFT's adapters with dropout, under Lockstep's masks: log-probabilities, loss, every gradient in
f64.

    pip install numpy torch==2.15.* transformers==5.23.* peft==0.21.* safetensors
    python conformance/dropout_fixtures.py crates/model/tests/fixtures

For each model family with a directory FAMILY/lora (made by lora_fixtures.py), the script writes
FAMILY/lora/dropout.safetensors with these tensors, in f64:

    ids, logps (of ids[1:]), loss (their negative mean), "grad.NAME" of each tensor of the adapter

The position of the dropout and its gradient are PEFT's. The masks are Lockstep's: the script draws them by their
definition in crates/kernels/src/ops/lora/dropout.rs and crates/model/src/batch/dropout.rs, for dropout probability P,
SEED, STEP, and the sequence with index SAMPLE.
"""

import sys
from pathlib import Path

import numpy
import peft
import torch
from lora_fixtures import CONFIGS, base, exact
from safetensors.torch import load_file, save_file

P, SEED, STEP, SAMPLE = 0.25, 11, (1 << 32) + 3, 5
STREAM = 0x64726F70
MASK = 0xFFFFFFFF
# The linear layers of a transformer layer, each with the modules that are fused in its matrix.
LINEARS = [["q_proj", "k_proj", "v_proj"], ["o_proj"], ["gate_proj", "up_proj"], ["down_proj"]]


def philox(key, counter):
    k0, k1 = key & MASK, key >> 32
    c0, c1, c2, c3 = counter
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK, (p0 >> 32) ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return c0, c1, c2, c3


def factors(layer, linear, block, rows, columns):
    high, low, _, _ = philox(SEED, (STEP & MASK, STEP >> 32, 4 * layer + linear, STREAM))
    kept, threshold = float(numpy.float32(1 / (1 - P))), round(P * 2**32)

    def factor(position, k):
        word = philox(high << 32 | low, (16 * (k // 64) + k % 16, position, SAMPLE, block))[k // 16 % 4]
        return 0.0 if word < threshold else kept

    return torch.tensor([[factor(t, k) for k in range(columns)] for t in range(rows)], dtype=torch.float64)


class Mask(torch.nn.Module):
    def __init__(self, layer, linear, block):
        super().__init__()
        self.place = (layer, linear, block)

    def forward(self, x):
        return x * factors(*self.place, x.shape[1], x.shape[2])


def mask(model):
    """Replaces PEFT's dropout by Lockstep's masks, and returns the number of replaced modules."""
    modules = {name: m for name, m in model.named_modules() if hasattr(m, "lora_dropout")}
    for name, module in modules.items():
        layer, own = int(name.split(".layers.")[1].split(".")[0]), name.rsplit(".", 1)[1]
        linear = next(i for i, parts in enumerate(LINEARS) if own in parts)
        # The block is the module's index among those parts of the fused matrix that have an adapter.
        siblings = [part for part in LINEARS[linear] if f"{name.rsplit('.', 1)[0]}.{part}" in modules]
        module.lora_dropout["default"] = Mask(layer, linear, siblings.index(own))
    return len(modules)


def main(fixtures):
    for name in CONFIGS:
        out = fixtures / name / "lora"
        model = peft.PeftModel.from_pretrained(base(fixtures / name), out, is_trainable=True)
        model = exact(model)
        ids = load_file(out / "expected.safetensors")["ids"][:40]

        def logps():
            logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1]
            return logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0]

        with torch.no_grad():
            plain = logps()
        masks = mask(model)
        dropped = logps()
        loss = -dropped.mean()
        loss.backward()
        expected = dict(ids=ids.clone(), logps=dropped.detach(), loss=loss.detach().reshape(1))
        for parameter, p in model.named_parameters():
            if p.requires_grad:
                expected["grad." + parameter.replace(".default", "")] = p.grad
        save_file(expected, out / "dropout.safetensors")
        print(f"{name}: {masks} masks, loss {-plain.mean():.6f} without and {loss:.6f} with dropout, peft {peft.__version__}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
