"""Changes of a torch model that the engine cannot see are refused, and unchanged models of all families are accepted:
loaded, converted, with an adapter, or used before. Run with `-m torch`."""

import copy
import types

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from lockstep_rl._torch_state import check_read, check_trained  # noqa: E402

FAMILIES = {
    "llama": ("LlamaConfig", {}), "mistral": ("MistralConfig", {}), "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 8}), "smollm3": ("SmolLM3Config", {"pad_token_id": 0}),
    "olmo2": ("Olmo2Config", {}), "olmo3": ("Olmo3Config", {}), "gemma3": ("Gemma3TextConfig", {"head_dim": 8}),
}
SHAPE = dict(
    vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, max_position_embeddings=64, bos_token_id=1, eos_token_id=0,
)
LORA = dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
IDS = torch.tensor([[1, 2, 3]])


def made(family="qwen3", tied=True, **more):
    name, own = FAMILIES[family]
    config = getattr(transformers, name)(**{**SHAPE, "tie_word_embeddings": tied, **own, **more})
    return transformers.AutoModelForCausalLM.from_config(config)


def adapted(**more):
    return peft.get_peft_model(made(), peft.LoraConfig(**{**LORA, **more}))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_unchanged_models_of_every_family_are_accepted(family, tied, tmp_path):
    check_trained(made(family, tied))
    made(family, tied).save_pretrained(tmp_path)
    load = transformers.AutoModelForCausalLM.from_pretrained
    for dtype in (torch.float32, torch.bfloat16, "auto"):
        check_trained(load(tmp_path, dtype=dtype))
    model = load(tmp_path)
    model(IDS, output_hidden_states=True, labels=IDS).loss.backward()
    model.generate(IDS, max_new_tokens=2)
    check_trained(model)
    model.gradient_checkpointing_enable()
    model.enable_input_require_grads()
    model.config.use_cache, model.config.pad_token_id = False, 2
    check_trained(model.eval().train().to(torch.bfloat16))
    check_trained(transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=1))
    model.resize_token_embeddings(44)
    check_trained(model)
    check_trained(copy.deepcopy(model))
    for fields in ({}, {"lora_dropout": 0.1}, {"use_rslora": True}, {"target_modules": "all-linear"}):
        wrapped = peft.get_peft_model(load(tmp_path), peft.LoraConfig(**{**LORA, **fields}))
        wrapped.enable_input_require_grads()
        check_trained(wrapped)
        wrapped.merge_adapter()
        wrapped.unmerge_adapter()
        check_trained(wrapped)
    wrapped.save_pretrained(tmp_path / "adapter")
    check_trained(peft.PeftModel.from_pretrained(load(tmp_path), tmp_path / "adapter", is_trainable=True))
    with pytest.raises(ValueError, match="is_trainable=True"):
        check_trained(peft.PeftModel.from_pretrained(load(tmp_path), tmp_path / "adapter"))
    frozen = load(tmp_path).requires_grad_(False)
    check_trained(frozen, new_adapter=True), check_read(frozen, "ref_model")


def hook(*args):
    """A hook of a user."""


def mine(self, *args, **kwargs):
    """A forward function of a user."""


def layer(model, i=1):
    return model.model.layers[i]


def subclass(model):
    model.__class__ = type("Mine", (type(model),), {"forward": mine})


def untie(model):
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())


REFUSED = {
    "frozen": (lambda m: m.requires_grad_(False), "requires_grad = False"),
    "frozen layers": (lambda m: layer(m).requires_grad_(False), r"such as `model.layers.1"),
    "frozen embedding": (lambda m: m.get_input_embeddings().requires_grad_(False), "`model.embed_tokens.weight`"),
    "forward hook": (lambda m: layer(m).register_forward_hook(hook), "module `model.layers.1` has the hook hook"),
    "pre hook": (lambda m: m.register_forward_pre_hook(hook), "has the hook hook"),
    "hook with arguments": (lambda m: m.register_forward_hook(hook, with_kwargs=True), "has the hook hook"),
    "backward hook": (lambda m: layer(m).register_full_backward_hook(hook), "has the hook hook"),
    "backward pre hook": (lambda m: layer(m).register_full_backward_pre_hook(hook), "has the hook hook"),
    "gradient hook": (lambda m: m.lm_head.weight.register_hook(hook), "parameter `.*` has the hook hook"),
    "accumulated": (lambda m: m.lm_head.weight.register_post_accumulate_grad_hook(hook), "has the hook hook"),
    "forward": (lambda m: setattr(layer(m), "forward", mine), "forward function of `model.layers.1` is mine"),
    "bound forward": (lambda m: setattr(m, "forward", types.MethodType(mine, m)), "forward function of .* is mine"),
    "subclass": (subclass, "forward function of `Mine` is mine"),
    "module": (lambda m: setattr(layer(m).mlp, "act_fn", torch.nn.ReLU()), "`model.layers.1.mlp.act_fn` is ReLU"),
    "dropout module": (lambda m: layer(m).mlp.add_module("drop", torch.nn.Dropout(0.1)), "drop"),
    "attention dropout": (lambda m: setattr(layer(m).self_attn, "attention_dropout", 0.1), "attention_dropout = 0.1"),
    "scaling": (lambda m: setattr(layer(m).self_attn, "scaling", 1.0), "self_attn.scaling = 1.0"),
    "epsilon": (lambda m: setattr(m.model.norm, "variance_epsilon", 0.1), "model.norm.variance_epsilon = 0.1"),
    "fewer layers": (lambda m: m.model.layers.__delitem__(1), "has no module `model.layers.1`"),
    "more layers": (lambda m: m.model.layers.append(copy.deepcopy(layer(m))), "`model.layers.2`"),
    "one module twice": (lambda m: setattr(layer(m).mlp.up_proj, "weight", layer(m, 0).mlp.up_proj.weight),
        "are one parameter"),
    "frequencies": (lambda m: m.model.rotary_emb.inv_freq.mul_(0.5), "inv_freq was changed"),
    "untied": (untie, "tie_word_embeddings = True: set it to False"),
    "parametrized": (lambda m: torch.nn.utils.parametrizations.weight_norm(layer(m).mlp.up_proj), "up_proj"),
    "configuration": (lambda m: setattr(m.config, "rms_norm_eps", 0.5), "variance_epsilon"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_changes_of_a_model_that_training_would_ignore_are_refused(name):
    change, words = REFUSED[name]
    model = made()
    change(model)
    with pytest.raises(ValueError, match=words):
        check_trained(model)


REFUSED_OF_ADAPTERS = {
    "not trainable": (lambda m: m.requires_grad_(False), "of the adapter has requires_grad = False"),
    "base trained": (lambda m: m.get_base_model().lm_head.requires_grad_(True), "below the adapter has"),
    "merged": (lambda m: m.merge_adapter(), "merged into"),
    "disabled": (lambda m: m.disable_adapter_layers(), "is disabled|requires_grad = False"),
    "scaled": (lambda m: [x.set_scale("default", 3) for x in m.modules() if hasattr(x, "set_scale")], "scaled by"),
    "dropout": (lambda m: [setattr(x, "p", 0.3) for x in m.modules() if isinstance(x, torch.nn.Dropout)], "dropout of"),
    "hook": (lambda m: m.register_forward_hook(hook), "has the hook hook"),
    "base changed": (lambda m: setattr(m.get_base_model().model.norm, "variance_epsilon", 0.1), "variance_epsilon"),
}


@pytest.mark.parametrize("name", REFUSED_OF_ADAPTERS)
def test_changes_of_an_adapter_that_training_would_ignore_are_refused(name):
    change, words = REFUSED_OF_ADAPTERS[name]
    model = adapted(lora_dropout=0.1)
    change(model)
    with pytest.raises(ValueError, match=words):
        check_trained(model)


def test_a_base_model_with_adapter_layers_is_refused():
    base = made()
    peft.get_peft_model(base, peft.LoraConfig(**LORA))
    with pytest.raises(ValueError, match="has an adapter inside .*give the PeftModel"):
        check_trained(base)
    base = made()
    base.add_adapter(peft.LoraConfig(**LORA))
    with pytest.raises(ValueError, match="has an adapter inside"):
        check_trained(base)


def test_a_compiled_model_is_refused():
    with pytest.raises(ValueError, match="is compiled"):
        check_trained(torch.compile(made()))
