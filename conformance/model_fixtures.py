"""Makes random tiny models of each family, with what transformers computes for them in f64: logits, loss, every
gradient.

    pip install torch==2.15.* transformers==5.23.* safetensors
    python conformance/model_fixtures.py crates/model/tests/fixtures [FAMILY...]

Weights are drawn so that every part matters (matrices N(0, 1.5/sqrt(fan_in)), biases N(0, 0.5), norms U(0.5, 1.5)).
With the usual initialisation, deleting all biases and norms would change the logits by only 1e-7, and a test would not
notice.

For each family, the script writes a directory:

    config.json          as transformers 5 writes it
    config_v4.json       the same model as transformers 4 wrote it
    model.safetensors    f32
    expected.safetensors in f64: ids, logits [tokens, vocabulary], loss (mean negative log-likelihood of ids[1:]),
                         "grad.NAME"
"""

import json
import math
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

TOKENS = 80  # more than one KV-cache block of 64 positions
SHAPE = dict(
    vocab_size=43,
    hidden_size=20,
    intermediate_size=18,
    num_hidden_layers=2,
    max_position_embeddings=256,
    rms_norm_eps=1e-5,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=None,
    tie_word_embeddings=False,
)

# A new family stands last: its place is the seed of its weights here and in score_fixtures.py.
CONFIGS = {
    # With a pretraining context of 64, rope scaling keeps one of the five wavelengths, interpolates one, divides three.
    "llama3": transformers.LlamaConfig(
        **SHAPE,
        num_attention_heads=2,
        num_key_value_heads=1,
        rope_parameters=dict(
            rope_type="llama3",
            rope_theta=10000.0,
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ),
    ),
    "qwen2": transformers.Qwen2Config(
        **{**SHAPE, "tie_word_embeddings": True},
        num_attention_heads=2,
        num_key_value_heads=2,
        rope_parameters=dict(rope_type="default", rope_theta=1000000.0),
    ),
    # head_dim is not hidden_size / num_attention_heads.
    "qwen3": transformers.Qwen3Config(
        **SHAPE,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        rope_parameters=dict(rope_type="default", rope_theta=1000000.0),
    ),
    "mistral": transformers.MistralConfig(
        **SHAPE,
        num_attention_heads=2,
        num_key_value_heads=1,
        sliding_window=23,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0),
    ),
    # The layer without rope is the one with a sliding window.
    "smollm3": transformers.SmolLM3Config(
        **{**SHAPE, "num_hidden_layers": 3, "tie_word_embeddings": True},
        num_attention_heads=2,
        num_key_value_heads=1,
        no_rope_layers=[1, 0, 1],
        use_sliding_window=True,
        sliding_window=23,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0),
    ),
    "olmo2": transformers.Olmo2Config(
        **SHAPE,
        num_attention_heads=2,
        num_key_value_heads=1,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0),
    ),
    # Only the layer without a sliding window has scaled rope frequencies.
    "olmo3": transformers.Olmo3Config(
        **SHAPE,
        num_attention_heads=2,
        num_key_value_heads=1,
        sliding_window=23,
        layer_types=["sliding_attention", "full_attention"],
        rope_parameters=dict(
            full_attention=dict(
                rope_type="yarn", rope_theta=10000.0, factor=8.0, original_max_position_embeddings=32
            ),
            sliding_attention=dict(rope_type="default", rope_theta=10000.0),
        ),
    ),
    # Attention scores are divided by the root of a number that differs from head_dim; and head_dim differs from
    # hidden_size / num_attention_heads.
    "gemma3": transformers.Gemma3TextConfig(
        **{**SHAPE, "num_hidden_layers": 3, "tie_word_embeddings": True},
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        query_pre_attn_scalar=11,
        sliding_window=23,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters=dict(
            full_attention=dict(rope_type="linear", rope_theta=50000.0, factor=8.0),
            sliding_attention=dict(rope_type="default", rope_theta=10000.0),
        ),
    ),
}


def draw(model, generator):
    # Gemma's norms multiply by 1 + weight.
    norm = -0.5 if model.config.model_type.startswith("gemma") else 0.5
    for name, p in model.named_parameters():
        if name.endswith("norm.weight"):
            p.data = torch.rand(p.shape, generator=generator) + norm
        elif p.dim() == 1:
            p.data = torch.randn(p.shape, generator=generator) * 0.5
        else:
            p.data = torch.randn(p.shape, generator=generator) * (1.5 / math.sqrt(p.shape[1]))


def norm_in_f64(module):
    """Makes a norm module compute in f64. transformers computes RMS norms in f32, whatever the model's dtype, but
    expected values must be exact."""
    gemma = type(module).__name__.startswith("Gemma")

    def forward(x):
        weight, eps = (1 + module.weight, module.eps) if gemma else (module.weight, module.variance_epsilon)
        return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)

    module.forward = forward


def version_4(config):
    config = dict(config)
    rope = config.pop("rope_parameters")
    if config["model_type"] == "gemma3_text":
        config.pop("_sliding_window_pattern")
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        config["sliding_window_pattern"] = config.pop("layer_types").index("full_attention") + 1
    rope = dict(rope.get("full_attention", rope))
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.57.1"
    return config


def main(out, names):
    for seed, (name, config) in enumerate(CONFIGS.items()):
        if names and name not in names:
            continue
        generator = torch.Generator().manual_seed(seed)
        folder = out / name
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
        draw(model, generator)
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        saved = json.loads((folder / "config.json").read_text())
        (folder / "config_v4.json").write_text(json.dumps(version_4(saved), indent=2) + "\n")

        model = model.double().eval()
        for module in model.modules():
            if type(module).__name__.endswith("RMSNorm"):
                norm_in_f64(module)
        ids = torch.randint(0, config.vocab_size, (1, TOKENS), generator=generator)
        logits = model(input_ids=ids, use_cache=False).logits[0]
        assert logits.dtype == torch.float64 and logits.std() >= 1, (logits.dtype, logits.std())
        loss = torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:])
        loss.backward()
        expected = {f"grad.{n}": p.grad for n, p in model.named_parameters()}
        expected |= dict(ids=ids[0].to(torch.int64), logits=logits.detach(), loss=loss.detach().reshape(1))
        save_file(expected, folder / "expected.safetensors")
        print(f"{name}: loss {loss:.6f}, logit std {logits.std():.2f}, {len(expected) - 3} parameters")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
