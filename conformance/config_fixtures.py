"""Writes crates/model/tests/fixtures/config.json: model configurations, and transformers' rotary frequencies for them.

    python conformance/config_fixtures.py        from the repository's root

Made with transformers 5.23.0. Each entry has a configuration as transformers 4 wrote it and as 5.23 writes it, the
inverse frequencies as bits of f32, the factor on cos and sin, both also for layers with a sliding window if they have
their own, and each layer's sliding window.
"""

import json
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.olmo3.modeling_olmo3 import Olmo3RotaryEmbedding

base = dict(
    vocab_size=100,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    hidden_act="silu",
    rms_norm_eps=1e-5,
    initializer_range=0.02,
    torch_dtype="bfloat16",
)
llama3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)

gemma = {k: v for k, v in base.items() if k != "hidden_act"} | dict(model_type="gemma3_text", hidden_activation="gelu_pytorch_tanh")

v4 = {
    "llama 2": dict(base, model_type="llama", max_position_embeddings=4096, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2),
    "llama 3.1": dict(base, model_type="llama", head_dim=128, max_position_embeddings=131072, rope_theta=500000.0, rope_scaling=llama3, eos_token_id=[128001, 128008, 128009], bos_token_id=128000),
    "llama 3.2": dict(base, model_type="llama", head_dim=64, max_position_embeddings=131072, rope_theta=500000.0, rope_scaling=dict(llama3, factor=32.0), tie_word_embeddings=True, pad_token_id=5),
    "llama 3, theta of its own": dict(base, model_type="llama", head_dim=80, max_position_embeddings=4000, rope_theta=123456.7, rope_scaling=dict(llama3, factor=7.3, original_max_position_embeddings=1000)),
    "llama linear": dict(base, model_type="llama", head_dim=128, max_position_embeddings=8192, rope_scaling=dict(type="linear", factor=2.5), attention_bias=True, mlp_bias=True),
    "llama yarn": dict(base, model_type="llama", head_dim=128, max_position_embeddings=65536, rope_scaling=dict(rope_type="yarn", factor=16.0, original_max_position_embeddings=4096)),
    "mistral": dict(base, model_type="mistral", max_position_embeddings=32768, sliding_window=4096, head_dim=16),
    "mistral 0.3": dict(base, model_type="mistral", max_position_embeddings=32768, sliding_window=None, rope_theta=1000000.0),
    "mistral bare": {k: v for k, v in dict(base, model_type="mistral", num_attention_heads=16).items() if k != "num_key_value_heads"},
    "qwen 2.5": dict(base, model_type="qwen2", max_position_embeddings=32768, rope_theta=1000000.0, use_sliding_window=False, sliding_window=32768, max_window_layers=2, bos_token_id=3, eos_token_id=4),
    "qwen 2.5 sliding": dict(base, model_type="qwen2", use_sliding_window=True, sliding_window=128, max_window_layers=3),
    "qwen 2.5 yarn": dict(base, model_type="qwen2", hidden_size=512, max_position_embeddings=32768, rope_theta=1000000.0, rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=32768)),
    "qwen 3": dict(base, model_type="qwen3", head_dim=128, max_position_embeddings=40960, rope_theta=1000000, attention_bias=False, tie_word_embeddings=True),
    "qwen 3 biased": dict(base, model_type="qwen3", attention_bias=True, use_sliding_window=True, sliding_window=64, layer_types=["full_attention", "sliding_attention"] * 2),
    "qwen 3 yarn": dict(base, model_type="qwen3", rope_theta=1000000.0, rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32768, mscale=0.9, mscale_all_dim=0.7, beta_fast=24, beta_slow=2, truncate=False)),
    "smollm 3": dict(base, model_type="smollm3", max_position_embeddings=65536, rope_theta=5000000.0, no_rope_layer_interval=4, eos_token_id=128012),
    "smollm 3 sliding": dict(base, model_type="smollm3", rope_theta=5000000.0, no_rope_layers=[1, 0, 0, 1], use_sliding_window=True, sliding_window=64, tie_word_embeddings=False),
    "olmo 2": dict(base, model_type="olmo2", max_position_embeddings=4096, rope_theta=500000, eos_token_id=100257, pad_token_id=100277),
    "olmo 3": dict(base, model_type="olmo3", max_position_embeddings=8192, rope_theta=500000, sliding_window=4096, eos_token_id=100257),
    "olmo 3 yarn": dict(base, model_type="olmo3", max_position_embeddings=65536, rope_theta=500000, rope_scaling=dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=8192, attention_factor=1.2079441541679836, beta_fast=32, beta_slow=1), sliding_window=128, layer_types=["sliding_attention", "full_attention"] * 2),
    "gemma 3": dict(gemma, head_dim=256, max_position_embeddings=32768, query_pre_attn_scalar=256, rope_theta=1000000, rope_local_base_freq=10000, rope_scaling=None, sliding_window=512, sliding_window_pattern=3, attn_logit_softcapping=None, final_logit_softcapping=None, bos_token_id=2, eos_token_id=[1, 106], pad_token_id=0),
    "gemma 3 linear": dict(gemma, head_dim=128, max_position_embeddings=131072, query_pre_attn_scalar=168, rope_theta=1000000.0, rope_local_base_freq=20000.0, rope_scaling=dict(rope_type="linear", factor=8.0), sliding_window=1024, layer_types=["sliding_attention", "full_attention"] * 2),
    "gemma 3 bare": {k: v for k, v in gemma.items() if k != "num_key_value_heads"},
}

DEFAULTS = {"olmo3": Olmo3RotaryEmbedding, "gemma3_text": Gemma3RotaryEmbedding}


def frequencies(config, layer_type):
    """Returns the bits of the inverse frequencies of layers of this type, and the factor on cos and sin."""
    nested = "full_attention" in config.rope_parameters
    kind = (config.rope_parameters[layer_type] if nested else config.rope_parameters)["rope_type"]
    default = DEFAULTS.get(config.model_type, LlamaRotaryEmbedding).compute_default_rope_parameters
    compute = default if kind == "default" else ROPE_INIT_FUNCTIONS[kind]
    inv_freq, scaling = compute(config, layer_type=layer_type) if nested else compute(config)
    assert inv_freq.dtype == torch.float32
    return [int(b) for b in inv_freq.view(torch.int32)], float(scaling)


rows = []
for name, old in v4.items():
    config = AutoConfig.for_model(**json.loads(json.dumps(old)))
    new = json.loads(config.to_json_string(use_diff=False))
    inv_freq, scaling = frequencies(config, "full_attention")
    window = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None)
    slides = [t == "sliding_attention" for t in types] if types else [window is not None] * 4
    rows.append(
        {
            "name": name,
            "v4": old,
            "v5": new,
            "inv_freq_bits": inv_freq,
            "attention_scaling": scaling,
            "local": frequencies(config, "sliding_attention") if "full_attention" in config.rope_parameters else None,
            "rotates": [bool(r) for r in getattr(config, "no_rope_layers", [1] * 4)],
            "windows": [window if s else None for s in slides],
            "kv_heads": config.num_key_value_heads,
            "head_dim": getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            "eos": config.eos_token_id,
        }
    )
path = Path("crates/model/tests/fixtures/config.json")
path.parent.mkdir(parents=True, exist_ok=True)
path.write_text("[\n" + ",\n".join(json.dumps(r) for r in rows) + "\n]\n", encoding="utf-8")
print(len(rows), "configs with transformers", transformers.__version__, path.stat().st_size, "bytes")
