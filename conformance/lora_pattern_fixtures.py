"""Makes the table of LoRA target patterns, with the modules that PEFT adapts for each, or its refusal.

    pip install torch==2.15.* transformers==5.23.* peft==0.21.*
    python conformance/lora_pattern_fixtures.py crates/model/tests/fixtures

writes `lora_patterns.json` there: for each model and each `target_modules` (a string is a regular expression of whole
names, a list has names), the modules that get an adapter, or the type of PEFT's error. The models are the fixtures that
model_fixtures.py makes.

    python conformance/lora_pattern_fixtures.py check MODEL ADAPTER...

loads adapters that Lockstep wrote on the model, and fails if PEFT finds a missing or an unexpected key.
"""

import json
import sys
import warnings
from pathlib import Path

import peft
import torch
import transformers
from safetensors import safe_open

MODELS = ["llama3", "qwen3", "gemma3", "olmo2", "llama3/score"]
TARGETS = [
    ".*",
    ".*layers.*",
    "model.*",
    r"model\.layers\.\d+",
    r".*\.self_attn",
    r".*\.(self_attn|mlp)\..*",
    ".*proj",
    r".*_proj",
    r".*\.q_proj",
    "q_proj",
    ".*q_proj",
    ".*(q_proj|v_proj)",
    ".*(q|k|v|o)_proj",
    r".*\.(gate|up|down)_proj",
    r"model\.layers\.0\..*_proj",
    r"model\.layers\.[01]\.self_attn\.[qv]_proj",
    r".*\.1\.(self_attn\.(k|o)_proj|mlp\.(gate|down)_proj)",
    r".*layers\.1.*(q_proj|down_proj)",
    r"model.layers.0.self_attn.q_proj",
    r"^model\.layers\.\d+\.mlp\.up_proj$",
    r"(?!.*lm_head).*proj",
    r"(?!.*mlp).*_proj",
    r".*(?<!o)_proj",
    r"(?i).*Q_PROJ",
    r".*self_attn\.(?:q|v)_proj",
    ".*(q_proj|lm_head)",
    "lm_head",
    ".*head",
    ".*(embed_tokens|q_proj)",
    "model.embed_tokens",
    ".*norm.*",
    r".*\.(q_proj|input_layernorm)",
    r".*(q_norm|k_proj)",
    r".*act_fn|.*up_proj",
    ".*rotary_emb|.*q_proj",
    "x_proj",
    ".*x_proj",
    "",
    "all-linear",
    "All-Linear",
    ["q_proj"],
    ["q_proj", "v_proj"],
    ["self_attn.q_proj"],
    ["layers.0.self_attn.q_proj", "mlp.up_proj"],
    ["model.layers.1.mlp.down_proj"],
    ["proj"],
    ["mlp"],
    ["q_proj", "lm_head"],
    ["embed_tokens"],
    [".*q_proj", "v_proj"],
    ["x_proj"],
]


def base(folder):
    scores = "SequenceClassification" in (Path(folder) / "config.json").read_text()
    auto = transformers.AutoModelForSequenceClassification if scores else transformers.AutoModelForCausalLM
    return auto.from_pretrained(folder, dtype=torch.float32), "SEQ_CLS" if scores else "CAUSAL_LM"


def adapted(folder, target):
    model, task = base(folder)
    try:
        model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=target, task_type=task))
    except Exception as error:  # the table keeps its type
        return {"error": type(error).__name__}
    names = [name for name, module in model.base_model.model.named_modules() if hasattr(module, "lora_A")]
    return {"modules": sorted(names)}


def check(folder, adapter):
    model, _ = base(folder)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = peft.PeftModel.from_pretrained(model, adapter)
    said = [str(warning.message) for warning in caught if "key" in str(warning.message).lower()]
    with safe_open(Path(adapter) / "adapter_model.safetensors", "pt") as file:
        in_file = set(file.keys())
    of_model = set(peft.get_peft_model_state_dict(model))
    if said or in_file != of_model:
        sys.exit(f"{adapter}: {said}; only in the file: {sorted(in_file - of_model)}, "
                 f"only in the model: {sorted(of_model - in_file)}")
    print(f"{adapter}: {len(in_file)} tensors, targets {sorted(model.peft_config['default'].target_modules)}")


def main(args):
    if args[0] == "check":
        for adapter in args[2:]:
            check(args[1], adapter)
        return
    out = Path(args[0])
    rows = [{"model": name, "target": target, **adapted(out / name, target)} for name in MODELS for target in TARGETS]
    lines = ",\n".join(json.dumps(row) for row in rows)
    (out / "lora_patterns.json").write_text(f"[\n{lines}\n]\n")
    print(f"{len(rows)} rows, {sum('error' in row for row in rows)} refused")


if __name__ == "__main__":
    main(sys.argv[1:])
