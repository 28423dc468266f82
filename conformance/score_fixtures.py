"""Makes fixtures of reward models that transformers wrote, with what it computes in f64: scores, every gradient.

    pip install torch==2.15.* transformers==5.23.* safetensors
    python conformance/score_fixtures.py crates/model/tests/fixtures [FAMILY...]

For each model family (directories that model_fixtures.py makes), the script writes a directory `FAMILY/score`: the
family's model with a random score head, as `…ForSequenceClassification` with num_labels 1 saves it.

    config.json, model.safetensors    f32
    expected.safetensors    in f64: ids [tokens], scores [tokens] of every position, last [1] (what the classification
                            model itself returns for ids), weights [tokens], loss = sum of weights * scores, "grad.NAME"

    python conformance/score_fixtures.py check DIR...

This command checks the other direction: transformers loads directories that Lockstep wrote, and finds every tensor.
"""

import sys
from pathlib import Path

import torch
import transformers
from model_fixtures import CONFIGS
from safetensors.torch import load_file, save_file

TOKENS = 70  # more than one KV-cache block of 64 positions


def norm_in_f64(module):
    """Makes a norm module compute in f64. transformers computes RMS norms in f32, whatever the model's dtype, but
    expected values must be exact."""
    gemma = type(module).__name__.startswith("Gemma")

    def forward(x):
        weight, eps = (1 + module.weight, module.eps) if gemma else (module.weight, module.variance_epsilon)
        return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)

    module.forward = forward


def make(fixtures, names):
    for seed, name in enumerate(CONFIGS):
        if names and name not in names:
            continue
        generator = torch.Generator().manual_seed(200 + seed)
        config = transformers.AutoConfig.from_pretrained(fixtures / name, num_labels=1)
        model = transformers.AutoModelForSequenceClassification.from_config(
            config, dtype=torch.float32, attn_implementation="sdpa"
        )
        trunk = {k: v for k, v in load_file(fixtures / name / "model.safetensors").items() if k != "lm_head.weight"}
        result = model.load_state_dict(trunk, strict=False)
        assert result.missing_keys == ["score.weight"] and not result.unexpected_keys, result
        model.score.weight.data = torch.randn(model.score.weight.shape, generator=generator)
        out = fixtures / name / "score"
        model.save_pretrained(out)

        model = model.double().eval()
        for module in model.modules():
            if type(module).__name__.endswith("RMSNorm"):
                norm_in_f64(module)
        ids = torch.randint(0, config.vocab_size, (1, TOKENS), generator=generator)
        weights = torch.randn(TOKENS, generator=generator, dtype=torch.float64) / TOKENS
        scores = model.score(model.model(input_ids=ids, use_cache=False).last_hidden_state)[0, :, 0]
        # Weights are drawn again if the terms of the sum nearly cancel, because such a sum tests little.
        while (weights * scores).sum().abs() < 0.3 * (weights * scores).norm():
            weights = torch.randn(TOKENS, generator=generator, dtype=torch.float64) / TOKENS
        last = model(input_ids=ids, use_cache=False).logits[0]
        assert scores.dtype == torch.float64 and scores.std() >= 1, (scores.dtype, scores.std())
        assert last.shape == (1,) and torch.equal(last[0], scores[-1])
        loss = (weights * scores).sum()
        loss.backward()
        expected = {f"grad.{n}": p.grad for n, p in model.named_parameters()}
        expected |= dict(ids=ids[0], scores=scores.detach(), last=last.detach(), weights=weights)
        expected |= dict(loss=loss.detach().reshape(1))
        save_file(expected, out / "expected.safetensors")
        print(f"{name}: {type(model).__name__}, score std {scores.std():.2f}, {len(expected) - 5} parameters")


def check(directories):
    for directory in directories:
        model, info = transformers.AutoModelForSequenceClassification.from_pretrained(
            directory, dtype=torch.float32, output_loading_info=True
        )
        problems = {k: v for k, v in info.items() if v}
        assert not problems, problems
        assert model.config.num_labels == 1, model.config.num_labels
        written = load_file(Path(directory) / "model.safetensors")
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, written.pop(name)), name
        assert not written, written.keys()
        print(f"{directory}: {type(model).__name__}, every tensor in its place")


if __name__ == "__main__":
    if sys.argv[1] == "check":
        check(sys.argv[2:])
    else:
        make(Path(sys.argv[1]), sys.argv[2:])
