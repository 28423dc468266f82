"""Attributes and arguments that a script changes after it created the trainer: they have an effect when training
starts, or the error names them."""

import os

import pytest
from conftest import SMALL, WORDS, grpo, vowels, weights

from lockstep_rl import (
    AsyncGRPOTrainer,
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    PPOConfig,
    PPOTrainer,
    RewardConfig,
    RewardTrainer,
    RLOOConfig,
    RLOOTrainer,
    SFTConfig,
    SFTTrainer,
    TrainerCallback,
)


def letters(completions, **kwargs):
    """Scores each completion by its number of letters x."""
    return [float(text.count("x")) for text in completions]


def trained(trainer):
    trainer.train()
    return weights(os.path.join(trainer._values["output_dir"], "model"))


# Changes of a trainer, with the fields and arguments that have the same effect when passed at creation.
CHANGES = {
    "max_steps": (lambda t: setattr(t.args, "max_steps", 2), dict(max_steps=2), {}),
    "learning_rate": (lambda t: setattr(t.args, "learning_rate", 0.05), dict(learning_rate=0.05), {}),
    "seed": (lambda t: setattr(t.args, "seed", 5), dict(seed=5), {}),
    "beta": (lambda t: setattr(t.args, "beta", 0.5), dict(beta=0.5), {}),
    "temperature": (lambda t: setattr(t.args, "temperature", 0.5), dict(temperature=0.5), {}),
    "num_iterations": (lambda t: setattr(t.args, "num_iterations", 3), dict(num_iterations=3), {}),
    "max_completion_length": (lambda t: setattr(t.args, "max_completion_length", 3), dict(max_completion_length=3), {}),
    "per_device_train_batch_size": (
        lambda t: setattr(t.args, "per_device_train_batch_size", 2), dict(per_device_train_batch_size=2), {}),
    "gradient_accumulation_steps": (
        lambda t: setattr(t.args, "gradient_accumulation_steps", 2), dict(gradient_accumulation_steps=2), {}),
    "lr_scheduler_type": (
        lambda t: setattr(t.args, "lr_scheduler_type", "constant"), dict(lr_scheduler_type="constant"), {}),
    "back to the default": (lambda t: setattr(t.args, "loss_type", "dapo"), dict(loss_type="dapo"), {}),
    "a field of the trainer": (lambda t: setattr(t, "beta", 0.5), dict(beta=0.5), {}),
    "epsilon_high of the trainer": (lambda t: setattr(t, "epsilon_high", 1e-9), dict(epsilon_high=1e-9), {}),
    "num_generations of the trainer": (lambda t: setattr(t, "num_generations", 4), dict(num_generations=4), {}),
    "other arguments": (
        lambda t: setattr(t, "args", GRPOConfig("out", **{**SMALL, "learning_rate": 0.03, "num_iterations": 2})),
        dict(learning_rate=0.03, loss_type="dapo"), {}),
    "reward_funcs": (lambda t: setattr(t, "reward_funcs", [letters]), {}, dict(reward_funcs=[letters])),
    "an element of reward_funcs": (
        lambda t: t.reward_funcs.__setitem__(0, letters), {}, dict(reward_funcs=[letters, "unique_chars"])),
    "a reward that is appended": (
        lambda t: t.reward_funcs.append(letters), {}, dict(reward_funcs=[vowels, "unique_chars", letters])),
    "reward_weights": (lambda t: setattr(t, "reward_weights", [1.0, 0.1]), dict(reward_weights=[1.0, 0.1]), {}),
    "an element of reward_weights": (
        lambda t: t.reward_weights.__setitem__(1, 8.0), dict(reward_weights=[1.0, 8.0]), {}),
    "reward_weights of the arguments": (
        lambda t: setattr(t.args, "reward_weights", [0.0, 1.0]), dict(reward_weights=[0.0, 1.0]), {}),
    "train_dataset": (lambda t: setattr(t, "train_dataset", [{"prompt": f"{w} x "} for w in WORDS]), {},
                      dict(rows=[{"prompt": f"{w} x "} for w in WORDS])),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_before_training_have_an_effect(model, rows, name):
    change, fields, others = CHANGES[name]

    def made(place, fields, rows=rows, reward_funcs=(vowels, "unique_chars")):
        fields = {"loss_type": "grpo", "max_steps": 4, "num_iterations": 2, **fields}
        return grpo(model, rows, list(reward_funcs), output_dir=place, **fields)

    late = made("late", {})
    change(late)
    if late.args.output_dir == "out":
        late.args.output_dir = "late"
    early = made("early", fields, **others)
    assert trained(late) == trained(early)
    assert weights("late/model") != weights(model), "expected changed weights"
    unchanged = made("unchanged", {})
    assert trained(unchanged) != weights("late/model")


def test_output_dir_can_be_changed_before_training(model, rows):
    trainer = grpo(model, rows, output_dir="first", max_steps=1)
    trainer.args.output_dir = "second"
    trainer.train()
    trainer.save_model()
    trainer.save_state()
    assert not os.path.exists("first")
    assert {"config.toml", "model", "model.safetensors", "trainer_state.json"} <= set(os.listdir("second"))
    assert trainer.args.output_dir == "second"


def test_wrong_values_set_later_are_refused_when_training_starts(model, rows):
    for name, value, error, words in [
        ("max_steps", "many", TypeError, "`max_steps` must be an integer"),
        ("learning_rate", -1.0, ValueError, "learning_rate"),
        ("loss_type", "nonsense", ValueError, "loss_type"),
        ("num_generations", 3, ValueError, "num_generations"),
        ("reward_weights", [1.0, 2.0], ValueError, "`reward_weights` must have one weight per reward: it has 2"),
        ("report_to", "nothing", ValueError, "report_to"),
    ]:
        trainer = grpo(model, rows)
        setattr(trainer.args, name, value)
        with pytest.raises(error, match=words):
            trainer.train()
        assert not os.path.exists("out"), name
    trainer = grpo(model, rows)
    trainer.args = SFTConfig("out")
    with pytest.raises(TypeError, match="must be a GRPOConfig"):
        trainer.train()


def test_changes_before_an_evaluation_have_an_effect(model):
    rows = [{"text": f"{word} {word}"} for word in WORDS]
    trainer = SFTTrainer(model, SFTConfig("out", max_steps=1, per_device_train_batch_size=2, threads=1), rows, rows)
    assert trainer.evaluate()["eval_num_tokens"] == 0
    trainer.eval_dataset = rows[:1]
    trainer.args.per_device_eval_batch_size = 1
    one = trainer.evaluate()["eval_loss"]
    other = SFTTrainer(model, SFTConfig("o", max_steps=1, per_device_train_batch_size=2, threads=1), rows, rows[:1])
    assert one == pytest.approx(other.evaluate()["eval_loss"], abs=1e-6)


REFUSED = ["model", "data_collator", "callback_handler", "accelerator"]


@pytest.mark.parametrize("name", [*REFUSED, "ref_model", "reward_func_names", "entropy_coef", "optimizer",
                                  "lr_scheduler", "compute_loss", "training_step"])
def test_the_error_names_an_attribute_that_cannot_be_set(model, rows, name):
    trainer = grpo(model, rows)
    with pytest.raises(AttributeError, match=f"`{name}`"):
        setattr(trainer, name, object())


def test_changes_before_training_have_an_effect_on_every_trainer(model):
    pairs = [{"prompt": f"{word} ", "chosen": "a", "rejected": "b"} for word in WORDS]
    texts = [{"text": f"{word} {word}"} for word in WORDS]
    prompts = [{"prompt": f"{word} "} for word in WORDS]
    common = dict(per_device_train_batch_size=2, threads=1, disable_tqdm=True, max_steps=1, learning_rate=0.01)
    online = {**SMALL, "max_steps": 1}
    makers = {
        "sft": lambda place, **f: SFTTrainer(model, SFTConfig(place, **{**common, **f}), texts),
        "dpo": lambda place, **f: DPOTrainer(model, None, DPOConfig(place, **{**common, **f}), pairs),
        "reward": lambda place, **f: RewardTrainer(model, RewardConfig(place, **{**common, **f}), pairs),
        "rloo": lambda place, **f: RLOOTrainer(model, vowels, RLOOConfig(place, **{**online, **f}), prompts),
        "ppo": lambda place, **f: PPOTrainer(model, vowels, PPOConfig(place, **{**online, **f}), prompts),
    }
    for name, made in makers.items():
        late = made(f"{name}-late")
        for attribute in REFUSED:
            with pytest.raises(AttributeError, match=f"`{attribute}` cannot be set"):
                setattr(late, attribute, object())
        late.args.learning_rate, late.args.max_steps = 0.05, 2
        assert trained(late) == trained(made(f"{name}-early", learning_rate=0.05, max_steps=2)), name


def test_formatting_func_can_be_set_before_training(model):
    rows = [{"text": word, "twice": f"{word} {word}"} for word in WORDS]

    def twice(row):
        return row["twice"]

    def made(place, **kwargs):
        args = SFTConfig(place, per_device_train_batch_size=2, threads=1, disable_tqdm=True, max_steps=1)
        return SFTTrainer(model, args, rows, **kwargs)

    late = made("late")
    late.formatting_func = twice
    assert trained(late) == trained(made("early", formatting_func=twice)) != trained(made("none"))


class Changes(TrainerCallback):
    """Changes the trainer after the first step."""

    def __init__(self, change):
        self.change, self.trainer = change, None

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 1:
            self.change(self.trainer)


def changing(model, rows, change, **fields):
    callback = Changes(change)
    held_out = {"eval_dataset": rows}
    trainer = grpo(model, rows, [vowels, "unique_chars"], callbacks=[callback], trainer=held_out, **fields)
    callback.trainer = trainer
    return trainer


@pytest.mark.parametrize("name, value", [
    ("reward_funcs", [vowels]), ("reward_weights", [1.0, 2.0]), ("train_dataset", []), ("eval_dataset", []),
    ("args", None), ("processing_class", None), ("beta", 0.5), ("temperature", 0.5), ("num_generations", 4),
    ("rollout_func", None), ("model", None), ("max_completion_length", 3), ("epsilon_low", 0.1),
])
def test_attributes_cannot_be_set_during_training(model, rows, name, value):
    trainer = changing(model, rows, lambda t: setattr(t, name, value))
    with pytest.raises(AttributeError, match=f"`{name}`"):
        trainer.train()


@pytest.mark.parametrize("name, change", [
    ("reward_weights", lambda t: t.reward_weights.__setitem__(1, 10.0)),
    ("reward_funcs", lambda t: t.reward_funcs.__setitem__(0, letters)),
    ("reward_funcs", lambda t: t.reward_funcs.append(letters)),
])
def test_lists_of_rewards_cannot_be_changed_during_training(model, rows, name, change):
    with pytest.raises(RuntimeError, match=f"trainer.{name} was changed while training"):
        changing(model, rows, change).train()


def test_changing_arguments_during_training_warns(model, rows):
    for name, value in [("learning_rate", 1.0), ("max_steps", 9), ("output_dir", "elsewhere"), ("beta", 1.0)]:
        trainer = changing(model, rows, lambda t: setattr(t.args, name, value), output_dir=f"out-{name}")
        with pytest.warns(UserWarning, match=f"`args.{name}` was changed while training"):
            trainer.train()
        assert trainer.state.global_step == 4
    # A change that still has an effect does not warn.
    trainer = changing(model, rows, lambda t: setattr(t.args, "save_strategy", "no"), save_steps=3, output_dir="quiet",
                       save_strategy="steps")
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.train()


def test_workers_get_rewards_set_before_training(model, rows):
    from lockstep_rl import AsyncGRPOConfig

    trainer = AsyncGRPOTrainer(model, vowels, AsyncGRPOConfig("out", **SMALL, num_workers=0), rows)
    trainer.reward_funcs = [letters]
    assert trainer.reward_func_names == ["letters"] and trainer._functions() == [letters]
    with pytest.raises(Exception, match="lambda|top level"):
        trainer.reward_funcs = [lambda completions, **kwargs: [0.0] * len(completions)]


def test_processing_class_can_be_changed_before_training(bytes_model):
    transformers = pytest.importorskip("transformers")
    rows = [{"messages": [{"role": "user", "content": word}]} for word in WORDS]

    def made(place, **kwargs):
        args = SFTConfig(place, per_device_train_batch_size=2, threads=1, disable_tqdm=True, max_steps=1)
        return SFTTrainer(bytes_model, args, rows, **kwargs)

    def tokenizer():
        own = transformers.AutoTokenizer.from_pretrained(bytes_model)
        own.chat_template = "{% for m in messages %}={{ m['content'] }}={% endfor %}"
        return own

    expected = trained(made("early", processing_class=tokenizer()))
    late = made("late")
    late.processing_class = tokenizer()
    assert trained(late) == expected
    changed = made("changed")
    changed.processing_class.chat_template = tokenizer().chat_template
    assert trained(changed) == expected != trained(made("own"))
