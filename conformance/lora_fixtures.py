"""Makes fixtures of low-rank adapters that PEFT wrote, with what PEFT computes in f64: logits, loss, every gradient.

    pip install torch==2.15.* transformers==5.23.* peft==0.21.* safetensors
    python conformance/lora_fixtures.py crates/model/tests/fixtures

For some model families (directories that model_fixtures.py makes), the script writes a directory `FAMILY/lora`:

    adapter_config.json, adapter_model.safetensors    as PEFT's save_pretrained writes them, f32
    expected.safetensors    in f64: ids, logits [tokens, vocabulary], loss (mean negative log-likelihood of ids[1:]),
                            "grad.NAME" of each tensor of the adapter under its name in the file

For a reward model, whose score head is in the adapter's file, it writes `FAMILY/score/lora`: ids, logits [tokens, 1]
(the scores), weights [tokens], and the gradient of sum(weights · scores) for each tensor.

The other direction: PEFT loads adapters that Lockstep wrote. Each directory `MODEL/ours` that contains an `adapter`
gets

    expected.safetensors    ids, logits [tokens, vocabulary] of PEFT in f64; for a reward model the scores [tokens, 1],
                            with the head that PEFT reads from the adapter

In the folder of the fixtures, these commands write the adapters (the logits.json that they also write is not used
here):

    cargo run -p lockstep-model --example adapter -- qwen2 qwen2/ours 2 q_proj v_proj down_proj
    cargo run -p lockstep-model --example adapter -- qwen3 qwen3/ours 3 all-linear
    cargo run -p lockstep-model --example adapter -- llama3/score llama3/score/ours 2 k_proj o_proj gate_proj

With `ours` as the first argument, the script makes only the files of this direction:

    python conformance/lora_fixtures.py ours crates/model/tests/fixtures

For any other model, this command compares PEFT's f64 logits with those that the example computed, in LOGITS.json
({"ids": [...], "logits": [...]}):

    python conformance/lora_fixtures.py check MODEL ADAPTER LOGITS.json
"""

import json
import sys
from pathlib import Path

import peft
import torch
import transformers
from safetensors.torch import save_file

CONFIGS = {
    # All modules; two of the three parts of a fused matrix; one layer only. Scales alpha / r and alpha / sqrt(r).
    "llama3": dict(r=4, lora_alpha=6, target_modules="all-linear"),
    "qwen2": dict(r=3, lora_alpha=2, use_rslora=True, target_modules=["q_proj", "v_proj", "up_proj"]),
    "qwen3": dict(r=2, lora_alpha=5, target_modules=r".*\.1\.(self_attn\.(k|o)_proj|mlp\.(gate|down)_proj)"),
}


def norm_in_f64(module):
    """Makes a norm module compute in f64. transformers computes RMS norms in f32, whatever the model's dtype, but
    expected values must be exact."""

    def forward(x):
        return module.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)

    module.forward = forward


def exact(model):
    model = model.double().eval()
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            norm_in_f64(module)
    return model


def base(folder):
    scores = "SequenceClassification" in (Path(folder) / "config.json").read_text()
    auto = transformers.AutoModelForSequenceClassification if scores else transformers.AutoModelForCausalLM
    return auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")


def save(model, out, name):
    model.save_pretrained(out)
    (out / "README.md").unlink(missing_ok=True)
    written = json.loads((out / "adapter_config.json").read_text())
    written["base_model_name_or_path"] = name
    if isinstance(written["target_modules"], list):
        written["target_modules"].sort()
    (out / "adapter_config.json").write_text(json.dumps(written, indent=2) + "\n")


def make(fixtures):
    for seed, (name, config) in enumerate(CONFIGS.items()):
        generator = torch.Generator().manual_seed(100 + seed)
        model = peft.get_peft_model(base(fixtures / name), peft.LoraConfig(task_type="CAUSAL_LM", **config))
        for parameter in model.parameters():
            if parameter.requires_grad:
                # B is random, too: with its initial zeros, the adapter would change nothing.
                parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
        out = fixtures / name / "lora"
        save(model, out, name)

        model = exact(model)
        ids = torch.randint(0, model.config.vocab_size, (1, 70), generator=generator)
        logits = model(input_ids=ids, use_cache=False).logits[0]
        assert logits.dtype == torch.float64
        with model.disable_adapter(), torch.no_grad():
            changed = (model(input_ids=ids, use_cache=False).logits[0] - logits).std()
        loss = torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:])
        loss.backward()
        expected = dict(ids=ids[0], logits=logits.detach(), loss=loss.detach().reshape(1))
        for parameter, p in model.named_parameters():
            assert p.requires_grad == ("lora_" in parameter)
            if p.requires_grad:
                expected["grad." + parameter.replace(".default", "")] = p.grad
        save_file(expected, out / "expected.safetensors")
        print(f"{name}: loss {loss:.6f}, logits moved by {changed:.2f}, {len(expected) - 3} tensors, peft {peft.__version__}")


def logits_of(model, ids):
    """Returns the logits of every position; for a reward model the scores of every position, from which its own forward
    picks one."""
    if not hasattr(model.get_base_model(), "score"):
        return model(input_ids=ids, use_cache=False).logits[0]
    inner = model.get_base_model()
    return inner.score(inner.model(input_ids=ids, use_cache=False).last_hidden_state)[0]


def make_scores(fixtures, name):
    generator = torch.Generator().manual_seed(300)
    config = peft.LoraConfig(task_type="SEQ_CLS", r=3, lora_alpha=4, target_modules=["q_proj", "o_proj", "up_proj"])
    model = peft.get_peft_model(base(fixtures / name), config)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
    out = fixtures / name / "lora"
    save(model, out, name)
    model = exact(model)
    ids = torch.randint(0, model.config.vocab_size, (1, 70), generator=generator)
    weights = torch.randn(70, generator=generator, dtype=torch.float64)
    scores = logits_of(model, ids)
    (scores[:, 0] * weights).sum().backward()
    expected = dict(ids=ids[0], logits=scores.detach(), weights=weights)
    for parameter, p in model.named_parameters():
        assert p.requires_grad == ("lora_" in parameter or "score.modules_to_save" in parameter)
        if p.requires_grad:
            expected["grad." + parameter.replace(".modules_to_save.default", "").replace(".default", "")] = p.grad
    save_file(expected, out / "expected.safetensors")
    print(f"{name}: {len(expected) - 3} tensors, peft {peft.__version__}")


def ours(fixtures):
    for adapter in sorted(fixtures.glob("**/ours/adapter")):
        out, folder = adapter.parent, adapter.parent.parent
        generator = torch.Generator().manual_seed(200)
        model = exact(peft.PeftModel.from_pretrained(base(folder), adapter))
        ids = torch.randint(0, model.config.vocab_size, (1, 70), generator=generator)
        with torch.no_grad():
            logits = logits_of(model, ids)
            with model.disable_adapter():
                changed = (logits_of(model, ids) - logits).std()
        assert logits.dtype == torch.float64
        save_file(dict(ids=ids[0], logits=logits), out / "expected.safetensors")
        print(f"{folder.relative_to(fixtures)}: our adapter in peft {peft.__version__}, logits moved by {changed:.2f}")


def check(model, adapter, expected):
    expected = json.loads(Path(expected).read_text())
    model = exact(peft.PeftModel.from_pretrained(base(model), adapter))
    with torch.no_grad():
        logits = logits_of(model, torch.tensor([expected["ids"]])).flatten()
        with model.disable_adapter():
            off = logits_of(model, torch.tensor([expected["ids"]])).flatten()
    ours = torch.tensor(expected["logits"], dtype=torch.float64)
    error = ((ours - logits).norm() / logits.norm()).item()
    moved = ((off - logits).norm() / logits.norm()).item()
    print(f"relative error of our logits against PEFT's with our adapter: {error:.1e} (without it: {moved:.1e})")
    assert error <= 5e-6 and moved > 1e-2


if __name__ == "__main__":
    if sys.argv[1] == "check":
        check(*sys.argv[2:])
    elif sys.argv[1] == "ours":
        ours(Path(sys.argv[2]))
    else:
        make(Path(sys.argv[1]))
        make_scores(Path(sys.argv[1]), "qwen3/score")
        ours(Path(sys.argv[1]))
