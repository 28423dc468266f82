"""The order of callbacks and the effects of their requests, compared with TRL 1.16 (transformers 5.23).

Each row was recorded with TRL's SFTTrainer on six rows with a batch size of two: three steps per epoch. `step2` is
short for `step_begin1 optimizer_step1 step_end2`: the number is `state.global_step`.
"""

import os
import re

import pytest
from conftest import WORDS, grpo, weights

from lockstep_rl import SFTConfig, SFTTrainer, TrainerCallback, TrainerState


def asks(event, at, field, value=True):
    """Returns a callback that sets a field of `control` at an event of one step."""

    def call(self, args, state, control, **kwargs):
        if state.global_step == at:
            setattr(control, field, value)

    return type("Asks", (TrainerCallback,), {event: call})


def clears(event, at, field):
    return asks(event, at, field, False)


def interval(**values):
    """Returns a callback that changes intervals of the state when training starts."""

    def call(self, args, state, control, **kwargs):
        for name, value in values.items():
            setattr(state, name, value)

    return type("Interval", (TrainerCallback,), {"on_train_begin": call})


class Events(TrainerCallback):
    """Records the names of all events, each with the step of the state."""

    def __init__(self):
        self.all = []

    def text(self):
        return re.sub(r"step_begin(\d+) optimizer_step\1 step_end(\d+)", r"step\2", " ".join(self.all))


def _keep(name):
    def call(self, args, state, control, **kwargs):
        self.all.append(f"{name}{state.global_step}")

    return call


for _name in ("train_begin", "epoch_begin", "step_begin", "optimizer_step", "step_end", "log", "evaluate", "save",
              "epoch_end", "train_end"):
    setattr(Events, f"on_{_name}", _keep(_name))


def train(model, callback=None, rows=None, **fields):
    rows = rows or [{"text": f"{word} {word}"} for word in WORDS]
    events = Events()
    args = SFTConfig(**{
        "output_dir": "out", "per_device_train_batch_size": 2, "learning_rate": 0.05, "logging_steps": 1,
        "save_strategy": "no", "num_train_epochs": 2, "threads": 1, "disable_tqdm": True, **fields,
    })
    callbacks = [events] if callback is None else [callback(), events]
    trainer = SFTTrainer(model, args, rows, rows, callbacks=callbacks)
    trainer.train()
    return events.text(), trainer


# Name, callback, fields, final state (logging_steps, eval_steps, save_steps, num_train_epochs), events.
ROWS = [
    ("plain", None, dict(), (1, 500, 500, 2),
     "train_begin0 epoch_begin0 step1 log1 step2 log2 step3 log3 epoch_end3 epoch_begin3 step4 log4 step5 log5 "
     "step6 log6 epoch_end6 log6 train_end6"),
    ("save2", None, dict(save_strategy="steps", save_steps=2, max_steps=4), (1, 500, 2, 2),
     "train_begin0 epoch_begin0 step1 log1 step2 log2 save2 step3 log3 epoch_end3 epoch_begin3 step4 log4 "
     "save4 epoch_end4 log4 train_end4"),
    ("eval4 of 6", None, dict(eval_strategy="steps", eval_steps=4), (1, 4, 500, 2),
     "train_begin0 epoch_begin0 step1 log1 step2 log2 step3 log3 epoch_end3 epoch_begin3 step4 log4 log4 "
     "evaluate4 step5 log5 step6 log6 log6 evaluate6 epoch_end6 log6 train_end6"),
    ("eval3 of 6", None, dict(eval_strategy="steps", eval_steps=3), (1, 3, 500, 2),
     "train_begin0 epoch_begin0 step1 log1 step2 log2 step3 log3 log3 evaluate3 epoch_end3 epoch_begin3 step4 "
     "log4 step5 log5 step6 log6 log6 evaluate6 epoch_end6 log6 train_end6"),
    ("epochs", None, dict(eval_strategy="epoch", save_strategy="epoch", logging_strategy="epoch"), (1, 500, 500, 2),
     "train_begin0 epoch_begin0 step1 step2 step3 epoch_end3 log3 log3 evaluate3 save3 epoch_begin3 step4 "
     "step5 step6 epoch_end6 log6 log6 evaluate6 save6 log6 train_end6"),
    ("eval epoch, save steps", None,
     dict(eval_strategy="epoch", save_strategy="steps", save_steps=3, logging_steps=2), (2, 500, 3, 2),
     "train_begin0 epoch_begin0 step1 step2 log2 step3 save3 epoch_end3 log3 evaluate3 epoch_begin3 step4 log4 "
     "step5 step6 log6 save6 epoch_end6 log6 evaluate6 log6 train_end6"),
    ("log2 eval2 save2", None,
     dict(eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2, logging_steps=2, max_steps=4),
     (2, 2, 2, 2),
     "train_begin0 epoch_begin0 step1 step2 log2 log2 evaluate2 save2 step3 epoch_end3 epoch_begin3 step4 log4 "
     "log4 evaluate4 save4 epoch_end4 log4 train_end4"),
    ("eval on start", None, dict(eval_on_start=True, max_steps=1, eval_strategy="steps", eval_steps=1), (1, 1, 500, 1),
     "train_begin0 log0 evaluate0 epoch_begin0 step1 log1 log1 evaluate1 epoch_end1 log1 train_end1"),
    ("log first", None, dict(logging_first_step=True, logging_steps=3, max_steps=3), (3, 500, 500, 1),
     "train_begin0 epoch_begin0 step1 log1 step2 step3 log3 epoch_end3 log3 train_end3"),
    ("log no", None, dict(logging_strategy="no", max_steps=2), (1, 500, 500, 1),
     "train_begin0 epoch_begin0 step1 step2 epoch_end2 log2 train_end2"),
    ("delay", None, dict(eval_strategy="steps", eval_steps=1, eval_delay=3, max_steps=4), (1, 1, 500, 2),
     "train_begin0 epoch_begin0 step1 log1 step2 log2 step3 log3 log3 evaluate3 epoch_end3 epoch_begin3 step4 "
     "log4 log4 evaluate4 epoch_end4 log4 train_end4"),
    ("delay epoch", None, dict(eval_strategy="epoch", eval_delay=2), (1, 500, 500, 2),
     "train_begin0 epoch_begin0 step1 log1 step2 log2 step3 log3 epoch_end3 epoch_begin3 step4 log4 step5 log5 "
     "step6 log6 epoch_end6 log6 evaluate6 log6 train_end6"),
    ("shares", None,
     dict(eval_strategy="steps", eval_steps=0.5, save_strategy="steps", save_steps=0.5, logging_steps=0.34),
     (3, 3, 3, 2),
     "train_begin0 epoch_begin0 step1 step2 step3 log3 log3 evaluate3 save3 epoch_end3 epoch_begin3 step4 "
     "step5 step6 log6 log6 evaluate6 save6 epoch_end6 log6 train_end6"),
    ("best", None,
     dict(eval_strategy="steps", eval_steps=2, save_strategy="best",
          metric_for_best_model="loss", learning_rate=0.05),
     (1, 2, 500, 2),
     "train_begin0 epoch_begin0 step1 log1 step2 log2 log2 evaluate2 save2 step3 log3 epoch_end3 epoch_begin3 "
     "step4 log4 log4 evaluate4 save4 step5 log5 step6 log6 log6 evaluate6 save6 epoch_end6 log6 train_end6"),
    ("best worse", None,
     dict(eval_strategy="steps", eval_steps=1, save_strategy="best",
          metric_for_best_model="loss", greater_is_better=True, max_steps=3),
     (1, 1, 500, 1),
     "train_begin0 epoch_begin0 step1 log1 log1 evaluate1 save1 step2 log2 log2 evaluate2 step3 log3 log3 "
     "evaluate3 epoch_end3 log3 train_end3"),
    ("ask log", asks("on_step_end", 2, "should_log"), dict(logging_steps=4, max_steps=4), (4, 500, 500, 2),
     "train_begin0 epoch_begin0 step1 step2 log2 step3 epoch_end3 epoch_begin3 step4 log4 epoch_end4 log4 "
     "train_end4"),
    ("ask evaluate", asks("on_step_end", 2, "should_evaluate"), dict(max_steps=3), (1, 500, 500, 1),
     "train_begin0 epoch_begin0 step1 log1 step2 log2 log2 evaluate2 step3 log3 epoch_end3 log3 train_end3"),
    ("ask save", asks("on_step_end", 2, "should_save"), dict(max_steps=3), (1, 500, 500, 1),
     "train_begin0 epoch_begin0 step1 log1 step2 log2 save2 step3 log3 epoch_end3 log3 train_end3"),
    ("ask evaluate on log", asks("on_log", 2, "should_evaluate"), dict(max_steps=3), (1, 500, 500, 1),
     "train_begin0 epoch_begin0 step1 log1 step2 log2 log2 evaluate2 step3 log3 epoch_end3 log3 train_end3"),
    ("ask save on evaluate", asks("on_evaluate", 2, "should_save"),
     dict(eval_strategy="steps", eval_steps=2, max_steps=3), (1, 2, 500, 1),
     "train_begin0 epoch_begin0 step1 log1 step2 log2 log2 evaluate2 save2 step3 log3 log3 evaluate3 "
     "epoch_end3 log3 train_end3"),
    ("ask log on epoch end", asks("on_epoch_end", 3, "should_log"),
     dict(logging_steps=2, max_steps=4), (2, 500, 500, 2),
     "train_begin0 epoch_begin0 step1 step2 log2 step3 epoch_end3 log3 epoch_begin3 step4 log4 epoch_end4 log4 "
     "train_end4"),
    ("ask evaluate on epoch end", asks("on_epoch_end", 3, "should_evaluate"), dict(max_steps=4), (1, 500, 500, 2),
     "train_begin0 epoch_begin0 step1 log1 step2 log2 step3 log3 epoch_end3 log3 evaluate3 epoch_begin3 step4 "
     "log4 epoch_end4 log4 train_end4"),
    ("ask save on epoch end", asks("on_epoch_end", 3, "should_save"), dict(max_steps=4), (1, 500, 500, 2),
     "train_begin0 epoch_begin0 step1 log1 step2 log2 step3 log3 epoch_end3 save3 epoch_begin3 step4 log4 "
     "epoch_end4 log4 train_end4"),
    ("ask at begin", asks("on_step_begin", 1, "should_evaluate"), dict(max_steps=3), (1, 500, 500, 1),
     "train_begin0 epoch_begin0 step1 log1 step2 log2 log2 evaluate2 step3 log3 epoch_end3 log3 train_end3"),
    ("ask at optimizer step", asks("on_optimizer_step", 1, "should_save"), dict(max_steps=3), (1, 500, 500, 1),
     "train_begin0 epoch_begin0 step1 log1 step2 log2 save2 step3 log3 epoch_end3 log3 train_end3"),
    ("stop at step end", asks("on_step_end", 2, "should_training_stop"), dict(), (1, 500, 500, 2),
     "train_begin0 epoch_begin0 step1 log1 step2 log2 epoch_end2 log2 train_end2"),
    ("stop at begin", asks("on_step_begin", 2, "should_training_stop"), dict(), (1, 500, 500, 2),
     "train_begin0 epoch_begin0 step1 log1 step2 log2 step3 log3 epoch_end3 log3 train_end3"),
    ("stop on log", asks("on_log", 2, "should_training_stop"), dict(), (1, 500, 500, 2),
     "train_begin0 epoch_begin0 step1 log1 step2 log2 epoch_end2 log2 train_end2"),
    ("stop on evaluate", asks("on_evaluate", 2, "should_training_stop"),
     dict(eval_strategy="steps", eval_steps=2), (1, 2, 500, 2),
     "train_begin0 epoch_begin0 step1 log1 step2 log2 log2 evaluate2 epoch_end2 log2 train_end2"),
    ("stop on epoch end", asks("on_epoch_end", 3, "should_training_stop"), dict(), (1, 500, 500, 2),
     "train_begin0 epoch_begin0 step1 log1 step2 log2 step3 log3 epoch_end3 log3 train_end3"),
    ("epoch stop, one epoch", asks("on_step_end", 2, "should_epoch_stop"), dict(num_train_epochs=1), (1, 500, 500, 1),
     "train_begin0 epoch_begin0 step1 log1 step2 log2 epoch_end2 log2 train_end2"),
    ("epoch stop, last epoch", asks("on_step_end", 4, "should_epoch_stop"), dict(), (1, 500, 500, 2),
     "train_begin0 epoch_begin0 step1 log1 step2 log2 step3 log3 epoch_end3 epoch_begin3 step4 log4 epoch_end4 "
     "log4 train_end4"),
    ("epoch stop at its end", asks("on_step_end", 3, "should_epoch_stop"), dict(), (1, 500, 500, 2),
     "train_begin0 epoch_begin0 step1 log1 step2 log2 step3 log3 epoch_end3 epoch_begin3 step4 log4 step5 log5 "
     "step6 log6 epoch_end6 log6 train_end6"),
    ("clear log", clears("on_step_end", 2, "should_log"), dict(max_steps=3), (1, 500, 500, 1),
     "train_begin0 epoch_begin0 step1 log1 step2 step3 log3 epoch_end3 log3 train_end3"),
    ("clear evaluate", clears("on_step_end", 2, "should_evaluate"),
     dict(eval_strategy="steps", eval_steps=1, max_steps=3), (1, 1, 500, 1),
     "train_begin0 epoch_begin0 step1 log1 log1 evaluate1 step2 log2 step3 log3 log3 evaluate3 epoch_end3 log3 "
     "train_end3"),
    ("clear save", clears("on_step_end", 2, "should_save"),
     dict(save_strategy="steps", save_steps=1, max_steps=3), (1, 500, 1, 1),
     "train_begin0 epoch_begin0 step1 log1 save1 step2 log2 step3 log3 save3 epoch_end3 log3 train_end3"),
    ("state logging", interval(logging_steps=2), dict(max_steps=4), (2, 500, 500, 2),
     "train_begin0 epoch_begin0 step1 step2 log2 step3 epoch_end3 epoch_begin3 step4 log4 epoch_end4 log4 "
     "train_end4"),
    ("state eval", interval(eval_steps=2), dict(eval_strategy="steps", eval_steps=1, max_steps=4), (1, 2, 500, 2),
     "train_begin0 epoch_begin0 step1 log1 step2 log2 log2 evaluate2 step3 log3 epoch_end3 epoch_begin3 step4 "
     "log4 log4 evaluate4 epoch_end4 log4 train_end4"),
    ("state save", interval(save_steps=2), dict(save_strategy="steps", save_steps=1, max_steps=4), (1, 500, 2, 2),
     "train_begin0 epoch_begin0 step1 log1 step2 log2 save2 step3 log3 epoch_end3 epoch_begin3 step4 log4 "
     "save4 epoch_end4 log4 train_end4"),
]


@pytest.mark.parametrize("name, callback, fields, state, expected", ROWS, ids=[row[0] for row in ROWS])
def test_callbacks_are_called_in_the_order_of_trl(model, name, callback, fields, state, expected):
    events, trainer = train(model, callback, **fields)
    assert events == expected
    own = trainer.state
    assert (own.logging_steps, own.eval_steps, own.save_steps, own.num_train_epochs) == state
    assert own.log_history[-1].keys() >= {"train_runtime", "train_loss", "step"}


def test_a_run_stopped_by_a_callback_saves_a_checkpoint(model):
    """TRL saves no checkpoint in this case."""
    events, _ = train(model, asks("on_step_end", 2, "should_training_stop"), save_strategy="steps", save_steps=50)
    assert events.endswith("step2 log2 epoch_end2 save2 log2 train_end2")


def test_log_history_is_complete_after_a_resume(model):
    """However a run is resumed, its log has the entries of an uninterrupted run."""

    def history(trainer):
        return [(e["step"], "eval" if "eval_loss" in e else "end" if "train_runtime" in e else "loss")
                for e in trainer.state.log_history]

    fields = dict(eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2)
    _, whole = train(model, output_dir="whole", **fields)
    expected = history(whole)
    assert expected[-3:] == [(6, "loss"), (6, "eval"), (6, "end")]
    rows = [{"text": f"{word} {word}"} for word in WORDS]
    for number, (resume, forget) in enumerate([
        (True, False), ("checkpoint-2", False), ("checkpoints/step-000002", False), (True, True),
        ("checkpoint-4", False),
    ]):
        place = f"out{number}"
        stop = asks("on_save", 4, "should_training_stop")
        _, first = train(model, stop, output_dir=place, **fields)
        kept = TrainerState.load_from_json(f"{place}/checkpoint-4/trainer_state.json")
        assert kept.global_step == 4 and history(first)[: len(kept.log_history)] == expected[:6]
        if forget:  # as in checkpoints of older versions and of the command line
            for step in (2, 4):
                os.remove(f"{place}/checkpoint-{step}/trainer_state.json")
        args = SFTConfig(place, per_device_train_batch_size=2, learning_rate=0.05, logging_steps=1, num_train_epochs=2,
                         threads=1, disable_tqdm=True, **fields)
        again = SFTTrainer(model, args, rows, rows)
        again.train(resume_from_checkpoint=resume if resume is True else f"{place}/{resume}")
        assert history(again) == expected, (resume, forget)
        losses = [[e["loss"] for e in t.state.log_history if "loss" in e] for t in (again, whole)]
        assert losses[0] == losses[1]
        assert again.state.log_history[-1]["train_runtime"] > 0
        assert weights(f"{place}/model") == weights("whole/model")
        assert not os.path.exists(f"{place}/model/trainer_state.json")


def test_entries_logged_before_training_are_cleared_by_training(model):
    rows = [{"text": f"{word} {word}"} for word in WORDS]
    args = SFTConfig("out", per_device_train_batch_size=2, logging_steps=1, max_steps=2, threads=1, disable_tqdm=True)
    trainer = SFTTrainer(model, args, rows, rows)
    trainer.evaluate()
    assert [entry["step"] for entry in trainer.state.log_history] == [0]
    trainer.train()
    assert [entry["step"] for entry in trainer.state.log_history] == [1, 2, 2]


# The event in which a callback evaluates; the steps of the state at these calls, each with the step that the evaluated
# weights are from.
INSIDE = [
    ("train_begin", {0: 0}),
    ("epoch_begin", {0: 0}),
    ("step_begin", {0: 0, 1: 1, 2: 2}),
    ("optimizer_step", {0: 1, 1: 2, 2: 3}),
    ("step_end", {1: 1, 2: 2, 3: 3}),
    ("log", {1: 1, 2: 2, 3: 3}),
    ("save", {1: 1, 2: 2, 3: 3}),
    ("epoch_end", {3: 3}),
    ("train_end", {3: 3}),
]


@pytest.fixture(scope="module")
def plain(model, tmp_path_factory):
    """Trains three steps with evaluations but without callbacks; returns the losses by step, and the weights."""
    place = str(tmp_path_factory.mktemp("plain") / "run")
    _, trainer = train(model, output_dir=place, max_steps=3, eval_strategy="steps", eval_steps=1, eval_on_start=True)
    losses = {entry["step"]: entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry}
    assert list(losses) == [0, 1, 2, 3] and len(set(losses.values())) == 4
    return losses, weights(f"{place}/model")


@pytest.mark.parametrize("event, steps", INSIDE, ids=[event for event, _ in INSIDE])
def test_a_callback_can_evaluate_the_current_weights(model, plain, event, steps):
    """The metrics are those of the current weights, and the evaluation does not change training."""
    rows = [{"text": f"{word} {word}"} for word in WORDS]
    found = {}

    def call(self, args, state, control, logs=None, **kwargs):
        if event != "log" or "loss" in logs:
            found[state.global_step] = self.trainer.evaluate()["eval_loss"]

    callback = type("Evaluates", (TrainerCallback,), {f"on_{event}": call})()
    args = SFTConfig("out", per_device_train_batch_size=2, learning_rate=0.05, logging_steps=1, max_steps=3,
                     num_train_epochs=2, save_strategy="steps", save_steps=1, threads=1, disable_tqdm=True)
    callback.trainer = SFTTrainer(model, args, rows, rows, callbacks=[callback])
    callback.trainer.train()
    losses, trained = plain
    assert found == {step: pytest.approx(losses[of], abs=1e-6) for step, of in steps.items()}
    assert weights("out/model") == trained
    logged = [entry["step"] for entry in callback.trainer.state.log_history if "loss" in entry]
    # As in TRL, the log of an evaluation satisfies a request to log.
    assert logged == ([] if event == "step_end" else [1, 2, 3])


@pytest.mark.parametrize("fields", [{}, {"use_peft": True, "lora_r": 2}, {"beta": 0.1}, {"num_iterations": 2}])
def test_an_evaluation_in_a_callback_does_not_change_grpo_training(model, rows, fields):
    class Evaluates(TrainerCallback):
        trainer, found = None, 0

        def on_log(self, args, state, control, logs, **kwargs):
            if "loss" in logs:
                self.found += "eval_reward" in self.trainer.evaluate()

    plain = grpo(model, rows, output_dir="plain", trainer={"eval_dataset": rows}, **fields)
    plain.train()
    callback = Evaluates()
    trainer = grpo(model, rows, callbacks=[callback], trainer={"eval_dataset": rows}, **fields)
    callback.trainer = trainer
    trainer.train()
    name = "adapter_model" if fields.get("use_peft") else "model"
    whole = [open(f"{place}/model/{name}.safetensors", "rb").read() for place in ("out", "plain")]
    assert callback.found == 4 and whole[0] == whole[1]
    rewards = [[e["reward"] for e in t.state.log_history if "reward" in e] for t in (trainer, plain)]
    assert rewards[0] == rewards[1] and len(rewards[0]) >= 2


def test_a_callback_cannot_start_training(model, rows):
    class Trains(TrainerCallback):
        trainer = None

        def on_step_end(self, args, state, control, **kwargs):
            self.trainer.train()

    callback = Trains()
    trainer = grpo(model, rows, callbacks=[callback])
    callback.trainer = trainer
    with pytest.raises(RuntimeError, match="is already training"):
        trainer.train()
