"""Methods that a subclass, a mixin or a patch overrides are called or refused, but never ignored."""

import json
import os
import pathlib

import pytest
from conftest import SMALL, grpo, vowels, weights

from lockstep_rl import GRPOConfig, GRPOTrainer, RewardConfig, RewardTrainer, SFTConfig, SFTTrainer, TrainerCallback
from lockstep_rl._overrides import REFUSED_METHODS

NEVER = ["compute_loss", "training_step", "prediction_step", "_generate", "_generate_and_score_completions",
         "_calculate_rewards", "get_train_dataloader", "create_optimizer", "_save_checkpoint", "optimizer"]


def called(self, *args, **kwargs):
    raise AssertionError("called")


@pytest.mark.parametrize("name", NEVER)
def test_overriding_a_method_that_is_never_called_is_refused(model, rows, name):
    own = type("Own", (GRPOTrainer,), {name: called})
    mixed = type("Mixed", (type("Mixin", (), {name: called}), GRPOTrainer), {})
    for cls in (own, type("Below", (own,), {}), mixed):
        with pytest.raises(TypeError, match=f"overrides `{name}`, which is never called here: "):
            cls(model, vowels, GRPOConfig("out", **SMALL), rows)
    trainer = grpo(model, rows)
    with pytest.raises(AttributeError, match=f"`{name}` is never called here"):
        setattr(trainer, name, called)
    assert not os.path.exists("out")


def test_patching_a_method_that_is_never_called_is_refused(model, rows, monkeypatch):
    trainer = grpo(model, rows)
    monkeypatch.setattr(GRPOTrainer, "compute_loss", called, raising=False)
    for attempt in (trainer.train, lambda: grpo(model, rows)):
        with pytest.raises(TypeError, match="GRPOTrainer overrides `compute_loss`"):
            attempt()
    assert len(REFUSED_METHODS) > 80 and all(REFUSED_METHODS.values())


def test_overridden_log_evaluate_and_save_model_are_called(model, rows):
    seen = {"log": 0, "evaluate": 0, "save_model": []}

    class Mixin:
        def log(self, logs, start_time=None):
            seen["log"] += 1
            super().log({**logs, "mine": 1.0}, start_time)

    class Own(Mixin, GRPOTrainer):
        def evaluate(self, *args, **kwargs):
            metrics = super().evaluate(*args, **kwargs)
            seen["evaluate"] += 1
            return {**metrics, "eval_mine": float(self.state.global_step)}

        def save_model(self, output_dir=None, _internal_call=False):
            super().save_model(output_dir, _internal_call)
            seen["save_model"].append(output_dir)
            pathlib.Path(output_dir, "mine.txt").write_text(str(_internal_call))

    args = GRPOConfig("out", **SMALL, eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2)
    trainer = Own(model, vowels, args, rows, rows[:2])
    trainer.train()
    assert seen["evaluate"] == 2 and seen["log"] == 4 + 2 + 1
    assert all("mine" in entry for entry in trainer.state.log_history)
    assert [os.path.basename(place) for place in seen["save_model"]] == ["step-000002", "step-000004"]
    assert pathlib.Path("out/checkpoint-4/mine.txt").read_text() == "True"
    trainer.save_model("mine")
    assert weights("mine") == weights("out/model") and pathlib.Path("mine/mine.txt").read_text() == "False"


def test_a_method_assigned_to_the_trainer_is_called(model, rows):
    logs = []
    trainer = grpo(model, rows)
    trainer.log = lambda entry, start_time=None: logs.append(entry)
    trainer.train()
    assert len(logs) == 5 and trainer.state.log_history == []


@pytest.mark.parametrize("event", ["on_prediction_step", "on_substep_end", "on_pre_optimizer_step", "on_push_begin"])
def test_a_callback_for_an_event_that_never_occurs_is_refused(model, rows, event):
    waits = type("Waits", (TrainerCallback,), {event: called})
    for callback in (waits, waits()):
        with pytest.raises(TypeError, match=f"has `{event}`, which is never called here"):
            grpo(model, rows, callbacks=[callback])
    with pytest.raises(TypeError, match=event):
        grpo(model, rows).callback_handler.add_callback(waits)


class Events(TrainerCallback):
    def __init__(self):
        self.seen = []

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.seen.append(("optimizer", state.global_step))

    def on_step_end(self, args, state, control, optimizer=None, **kwargs):
        self.seen.append(("step", state.global_step))
        assert not optimizer
        with pytest.raises(AttributeError, match="the optimizer is inside the engine"):
            optimizer.param_groups


def test_callbacks_are_called_after_each_optimizer_step(model, rows):
    events = Events()
    grpo(model, rows, callbacks=[events]).train()
    # As in transformers, on_optimizer_step is called before the step is counted.
    assert events.seen == [event for step in (1, 2, 3, 4) for event in (("optimizer", step - 1), ("step", step))]


class Patience(TrainerCallback):
    """Stops early by the rule of transformers' EarlyStoppingCallback."""

    def __init__(self, patience):
        self.patience, self.waited, self.seen = patience, 0, []

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        value, best = metrics["eval_reward"], state.best_metric
        self.seen.append((state.global_step, value, best))
        self.waited = 0 if best is None or value > best else self.waited + 1
        control.should_training_stop = self.waited >= self.patience


def test_best_metric_is_updated_after_each_evaluation(model, rows):
    def falls(completions, trainer_state, **kwargs):
        """Returns the highest scores at step 2."""
        return [1.0 if trainer_state.global_step == 2 else 0.5] * len(completions)

    patience = Patience(2)
    trainer = grpo(model, rows, falls, callbacks=[patience], trainer={"eval_dataset": rows[:2]}, max_steps=10,
                   eval_strategy="steps", eval_steps=1, save_strategy="steps", save_steps=1,
                   metric_for_best_model="reward")
    trainer.train()
    assert trainer.state.global_step == 4, patience.seen
    assert [best for *_, best in patience.seen] == [None, 0.5, 1.0, 1.0]
    assert (trainer.state.best_metric, trainer.state.best_global_step) == (1.0, 2)
    assert trainer.state.best_model_checkpoint == os.path.abspath("out/checkpoint-2")


def test_checkpoints_have_the_names_of_transformers(model, rows):
    trainer = grpo(model, rows, save_strategy="steps", save_steps=1, save_total_limit=2)
    os.makedirs("mine")
    trainer.train()
    links = sorted(name for name in os.listdir("out") if name.startswith("checkpoint-"))
    assert links == ["checkpoint-3", "checkpoint-4"] and all(os.path.isdir(f"out/{name}") for name in links)
    whole = weights("out/model")
    again = grpo(model, rows, save_strategy="steps", save_steps=1, save_total_limit=2)
    again.train(resume_from_checkpoint="out/checkpoint-3")
    assert weights("out/model") == whole


def test_the_last_log_entry_covers_the_steps_since_the_previous_one(model, rows):
    trainer = grpo(model, rows, logging_steps=3)
    trainer.train()
    last = trainer.state.log_history[-1]
    assert last["train_loss"] is not None and "reward" in last and "grad_norm" not in last
    trainer = grpo(model, rows, logging_steps=2, output_dir="even")
    trainer.train()
    assert "reward" not in trainer.state.log_history[-1]


def test_a_model_saved_in_a_callback_has_the_weights_of_that_step(model, rows):
    class Saves(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            trainer.save_model(f"step-{state.global_step}")
            trainer.model.save_pretrained(f"also-{state.global_step}")

    trainer = grpo(model, rows, callbacks=[Saves], save_strategy="steps", save_steps=1)
    trainer.train()
    steps = [weights(f"step-{step}") for step in (1, 2, 3, 4)]
    assert steps == [weights(f"out/checkpoint-{step}") for step in (1, 2, 3, 4)] and len(set(steps)) == 4
    assert steps == [weights(f"also-{step}") for step in (1, 2, 3, 4)] and steps[-1] == weights("out/model")
    assert json.loads(pathlib.Path("step-1/config.json").read_text())["model_type"] == "qwen3"


def test_every_trainer_refuses_to_override_compute_loss(model):
    for cls, config in ((SFTTrainer, SFTConfig), (RewardTrainer, RewardConfig)):
        own = type("Own", (cls,), {"compute_loss": called})
        with pytest.raises(TypeError, match="compute_loss"):
            own(model, config("out"), [{"text": "ab"}])
