"""Changes of a torch object that the engine cannot see are refused. The objects here are stand-ins; those in
test_torch_models.py are models of torch."""

import types

import pytest
from conftest import SMALL, grpo, vowels
from test_given import InMemory

from lockstep_rl import (
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    RewardConfig,
    RewardTrainer,
    SFTConfig,
    SFTTrainer,
    TrainerCallback,
)


class Parameter:
    def __init__(self, requires_grad=True):
        self.requires_grad = requires_grad


class Module:
    pass


class Dropout(Module):
    p = 0.0


class LoraLayer(Module):
    def __init__(self):
        self.lora_A, self.merged, self.disable_adapters = {"default": Module()}, False, False
        self.scaling, self.lora_dropout = {"default": 2.0}, {"default": Dropout()}


class Loaded(InMemory):
    """A stand-in for a loaded model with two layers."""

    def __init__(self, directory):
        super().__init__(directory)
        names = ["embed.weight", *(f"layers.{i}.{part}.weight" for i in range(2) for part in ("attn", "mlp")), "head"]
        self.parameters = {name: Parameter() for name in names}
        self.modules = {"": self, "layers.0": Module(), "layers.1": Module(), "layers.1.drop": Dropout()}
        self.embedding, self.head = self.parameters["embed.weight"], self.parameters["head"]
        self.config = types.SimpleNamespace(tie_word_embeddings=False)

    def named_parameters(self, remove_duplicate=True):
        return list(self.parameters.items())

    def named_modules(self):
        return list(self.modules.items())

    def get_input_embeddings(self):
        return types.SimpleNamespace(weight=self.embedding)

    def get_output_embeddings(self):
        return types.SimpleNamespace(weight=self.head)


class Adapted(Loaded):
    """A stand-in for a PeftModel."""

    def __init__(self, directory):
        super().__init__(directory)
        config = types.SimpleNamespace(r=4, lora_alpha=8, lora_dropout=0.0, use_rslora=False)
        self.peft_config = {"default": config}
        self.parameters = {name: Parameter(False) for name in self.parameters}
        self.parameters |= {f"layers.{i}.attn.lora_{ab}.default.weight": Parameter() for i in range(2) for ab in "AB"}
        self.modules |= {f"layers.{i}.attn": LoraLayer() for i in range(2)}
        self.embedding, self.head = self.parameters["embed.weight"], self.parameters["head"]

    def get_base_model(self):
        return self


def hook(*args):
    """A hook of a user."""


def froze(*names):
    def change(model):
        for name in model.parameters:
            if not names or name.startswith(names):
                model.parameters[name].requires_grad = False
    return change


def thawed(name):
    return lambda model: setattr(model.parameters[name], "requires_grad", True)


def hooked(kind, place="layers.1", hook=hook):
    def change(model):
        owner = model.modules.get(place) or model.parameters[place]
        setattr(owner, kind, {1: hook})
    return change


def of_layer(**values):
    return lambda model: vars(model.modules["layers.1.attn"]).update(values)


def dropped(p):
    def change(model):
        model.modules["layers.1.attn"].lora_dropout["default"].p = p
    return change


def patched(place, function=hook):
    return lambda model: setattr(model.modules[place], "forward", function)


def one_parameter(model):
    model.parameters["layers.1.mlp.weight"] = model.parameters["layers.0.mlp.weight"]


def tied(model):
    model.parameters["head"] = model.head = model.embedding


def untied(model):
    model.config.tie_word_embeddings = True


REFUSED = {
    "all frozen": (Loaded, froze(), r"6 of 6 parameters have requires_grad = False, such as `embed.weight`"),
    "a layer frozen": (Loaded, froze("layers.1"), r"2 of 6 parameters.*`layers.1.attn.weight`.*requires_grad_\(True\)"),
    "the embedding frozen": (Loaded, froze("embed"), "1 of 6 parameters.*`embed.weight`.*peft_config"),
    "the head frozen": (Loaded, froze("head"), "1 of 6 parameters.*`head`"),
    "a forward hook": (Loaded, hooked("_forward_hooks"), "module `layers.1` has the hook hook"),
    "a hook before forward": (Loaded, hooked("_forward_pre_hooks"), "the hook hook, which the engine never calls"),
    "a backward hook": (Loaded, hooked("_backward_hooks"), "module `layers.1` has the hook"),
    "a hook before backward": (Loaded, hooked("_backward_pre_hooks", ""), "module `` has the hook"),
    "a hook of a gradient": (Loaded, hooked("_backward_hooks", "embed.weight"),
        "parameter `embed.weight` has the hook"),
    "a hook after accumulating": (Loaded, hooked("_post_accumulate_grad_hooks", "head"), "parameter `head` has the"),
    "a hook that is a lambda": (Loaded, hooked("_forward_hooks", hook=lambda *args: None), "the hook <lambda>"),
    "dropout": (Loaded, lambda model: setattr(model.modules["layers.1.drop"], "p", 0.1),
        "`layers.1.drop` is a dropout"),
    "a forward function": (Loaded, patched("layers.0"), "forward function of `layers.0` is hook"),
    "the model's forward function": (Loaded, patched(""), "forward function of `Loaded` is hook"),
    "one parameter twice": (Loaded, one_parameter, "`layers.0.mlp.weight` and `layers.1.mlp.weight` are one parameter"),
    "tied by hand": (Loaded, tied,
        "have the same weights, but its configuration says tie_word_embeddings = False: set it to True"),
    "untied by hand": (Loaded, untied,
        "have separate weights, but its configuration says tie_word_embeddings = True: set it to False"),
    "compiled": (Loaded, lambda model: setattr(model, "_orig_mod", model), r"is compiled: give.*_orig_mod"),
    "an adapter inside": (Loaded, lambda model: model.modules.update(x=LoraLayer()),
        "an adapter inside .`x`., but is not"),
    "not trainable": (Adapted, froze(), "`layers.0.attn.lora_A.default.weight` of the adapter.*is_trainable=True"),
    "half of an adapter frozen": (Adapted, froze("layers.1.attn.lora_B"), "`layers.1.attn.lora_B.default.weight` of"),
    "the base trained, too": (Adapted, thawed("head"), "`head` below the adapter has requires_grad = True"),
    "merged": (Adapted, of_layer(merged=True), r"merged into `layers.1.attn`: call model.unmerge_adapter\(\)"),
    "disabled": (Adapted, of_layer(disable_adapters=True), "of `layers.1.attn` is disabled"),
    "scaled": (Adapted, of_layer(scaling={"default": 3.0}),
        r"scaled by 3, but its configuration \(lora_alpha, r\) says 2"),
    "an adapter's dropout": (Adapted, dropped(0.3),
        "dropout of the adapter of `layers.1.attn` is 0.3.*lora_dropout = 0.0"),
    "a hook in an adapter": (Adapted, hooked("_forward_hooks", "layers.1.attn"), "module `layers.1.attn` has the hook"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_torch_state_that_the_engine_would_ignore_is_refused(model, rows, name):
    kind, change, words = REFUSED[name]
    loaded = kind(model)
    trainer = GRPOTrainer(loaded, vowels, GRPOConfig("out", **SMALL), rows)
    # The change is also found after the trainer was created.
    change(loaded)
    with pytest.raises(ValueError, match=f"`model`.*{words}|{words}"):
        trainer.train()


FEW = dict(per_device_train_batch_size=2, max_steps=1, threads=1, disable_tqdm=True)
PAIRS = [{"prompt": "ab ", "chosen": "sun", "rejected": "moon"}] * 4


@pytest.mark.parametrize("name", ["all frozen", "a forward hook", "tied by hand", "a hook of a gradient"])
@pytest.mark.parametrize("made", [
    lambda model: SFTTrainer(model, SFTConfig("out", **FEW), [{"text": "ab sun"}] * 4),
    lambda model: DPOTrainer(model, None, DPOConfig("out", **FEW), PAIRS),
    lambda model: RewardTrainer(model, RewardConfig("out", **FEW), PAIRS),
], ids=["sft", "dpo", "reward"])
def test_every_trainer_refuses_state_that_the_engine_would_ignore(model, name, made):
    kind, change, words = REFUSED[name]
    loaded = kind(model)
    change(loaded)
    with pytest.raises(ValueError, match=words):
        made(loaded).train()


@pytest.mark.parametrize("change", [
    lambda model: None, hooked("_forward_hooks", hook=types.ModuleType), hooked("_forward_hooks", hook=print),
    lambda model: setattr(model.modules["layers.1.drop"], "p", 0.0),
])
def test_models_without_ignored_state_are_trained(model, rows, change, monkeypatch):
    loaded = Loaded(model)
    change(loaded)
    GRPOTrainer(loaded, vowels, GRPOConfig("out", **{**SMALL, "max_steps": 1}), rows).train()


def test_a_frozen_model_can_get_a_new_adapter(model):
    loaded = Loaded(model)
    froze()(loaded)
    args = SFTConfig("out", **FEW)
    SFTTrainer(loaded, args, [{"text": "ab sun"}] * 4, peft_config={"r": 2}).train()


def test_dropout_is_accepted_with_disable_dropout(model):
    loaded = Loaded(model)
    loaded.modules["layers.1.drop"].p = 0.1
    DPOTrainer(loaded, None, DPOConfig("out", disable_dropout=True, **FEW), PAIRS).train()


def test_freezing_weights_in_a_callback_is_refused(model, rows):
    loaded = Loaded(model)

    class Freezes(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            froze("layers.0")(loaded)

    trainer = GRPOTrainer(loaded, vowels, GRPOConfig("out", **SMALL), rows, callbacks=[Freezes()])
    with pytest.raises(ValueError, match="2 of 6 parameters have requires_grad = False"):
        trainer.train()


@pytest.mark.parametrize("name", ["a forward hook", "tied by hand", "a forward function", "one parameter twice"])
def test_ignored_state_of_reference_and_reward_models_is_refused(model, rows, name):
    kind, change, words = REFUSED[name]
    loaded = kind(model)
    change(loaded)
    with pytest.raises(ValueError, match=f"`ref_model`.*{words.removeprefix('module ')}"):
        DPOTrainer(model, loaded, DPOConfig("out", **FEW), PAIRS).train()
    loaded.state_dict = dict
    with pytest.raises(ValueError, match=f"`reward_funcs`.*{words.removeprefix('module ')}"):
        grpo(model, rows, loaded).train()


def test_a_frozen_reference_model_is_accepted(model):
    loaded = Loaded(model)
    froze()(loaded)
    DPOTrainer(model, loaded, DPOConfig("out", **FEW), PAIRS).train()
