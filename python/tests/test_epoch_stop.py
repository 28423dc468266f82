"""`control.should_epoch_stop`: order of calls and epochs compared with TRL 1.16, resumed runs, and errors.

Each row was recorded with TRL's SFTTrainer on six rows with a batch size of two, as in test_callback_order.py.
"""

import pytest
from conftest import WORDS, grpo, weights
from test_callback_order import asks, train

from lockstep_rl import SFTConfig, SFTTrainer, TrainerCallback


def asks_at(event, *steps):
    """Returns a callback that ends the epoch at an event of these steps and records `state.epoch`."""

    def call(self, args, state, control, **kwargs):
        if state.global_step in steps:
            control.should_epoch_stop = True

    class Asks(TrainerCallback):
        epochs = []

    def step_end(self, args, state, control, **kwargs):
        Asks.epochs.append(round(state.epoch, 4))
        if event == "on_step_end":
            call(self, args, state, control)

    Asks.epochs = []
    Asks.on_step_end = step_end
    if event != "on_step_end":
        setattr(Asks, event, call)
    return Asks


AFTER_1 = ("train_begin0 epoch_begin0 step1 log1 epoch_end1 epoch_begin1 step2 log2 step3 log3 step4 log4 epoch_end4 "
           "log4 train_end4", [0.3333, 1.3333, 1.6667, 2.0])
AFTER_2 = ("train_begin0 epoch_begin0 step1 log1 step2 log2 epoch_end2 epoch_begin2 step3 log3 step4 log4 step5 log5 "
           "epoch_end5 log5 train_end5", [0.3333, 0.6667, 1.3333, 1.6667, 2.0])
# Event, steps of the state, fields, events, epochs after each step.
ROWS = [
    ("on_step_end", [1], {}, *AFTER_1),
    ("on_step_end", [2], {}, *AFTER_2),
    ("on_log", [1], {}, *AFTER_1),
    ("on_epoch_begin", [0], {}, *AFTER_1),
    ("on_step_begin", [1], {}, *AFTER_2),
    ("on_optimizer_step", [1], {}, *AFTER_2),
    ("on_step_end", [2], dict(max_steps=5), *AFTER_2),
    ("on_evaluate", [2], dict(eval_strategy="steps", eval_steps=2),
     "train_begin0 epoch_begin0 step1 log1 step2 log2 log2 evaluate2 epoch_end2 epoch_begin2 step3 log3 step4 log4 "
     "log4 evaluate4 step5 log5 epoch_end5 log5 train_end5", AFTER_2[1]),
    # A run that ends before its last step saves a checkpoint here, but not in TRL.
    ("on_save", [2], dict(save_strategy="steps", save_steps=2),
     "train_begin0 epoch_begin0 step1 log1 step2 log2 save2 epoch_end2 epoch_begin2 step3 log3 step4 log4 save4 step5 "
     "log5 epoch_end5 save5 log5 train_end5", AFTER_2[1]),
    ("on_step_end", [1, 2], {},
     "train_begin0 epoch_begin0 step1 log1 epoch_end1 epoch_begin1 step2 log2 epoch_end2 log2 train_end2",
     [0.3333, 1.3333]),
    ("on_step_end", [1, 4], dict(num_train_epochs=3),
     "train_begin0 epoch_begin0 step1 log1 epoch_end1 epoch_begin1 step2 log2 step3 log3 step4 log4 epoch_end4 "
     "epoch_begin4 step5 log5 step6 log6 step7 log7 epoch_end7 log7 train_end7",
     [0.3333, 1.3333, 1.6667, 2.0, 2.3333, 2.6667, 3.0]),
    ("on_step_end", [1, 2, 3, 4, 5, 6], dict(max_steps=7),
     "train_begin0 epoch_begin0 step1 log1 epoch_end1 epoch_begin1 step2 log2 epoch_end2 epoch_begin2 step3 log3 "
     "epoch_end3 log3 train_end3", [0.3333, 1.3333, 2.3333]),
    ("on_step_end", [1], dict(eval_strategy="epoch", save_strategy="epoch"),
     "train_begin0 epoch_begin0 step1 log1 epoch_end1 log1 evaluate1 save1 epoch_begin1 step2 log2 step3 log3 step4 "
     "log4 epoch_end4 log4 evaluate4 save4 log4 train_end4", AFTER_1[1]),
    ("on_epoch_end", [3], {},
     "train_begin0 epoch_begin0 step1 log1 step2 log2 step3 log3 epoch_end3 epoch_begin3 step4 log4 step5 log5 step6 "
     "log6 epoch_end6 log6 train_end6", [0.3333, 0.6667, 1.0, 1.3333, 1.6667, 2.0]),
]


@pytest.mark.parametrize("event, steps, fields, events, epochs", ROWS)
def test_should_epoch_stop_ends_the_epoch_as_in_trl(model, event, steps, fields, events, epochs):
    callback = asks_at(event, *steps)
    found, trainer = train(model, callback, **fields)
    assert found == events
    assert callback.epochs == pytest.approx(epochs, abs=1e-3)
    logged = [entry["epoch"] for entry in trainer.state.log_history if "loss" in entry]
    assert logged == pytest.approx(epochs, abs=1e-3)


@pytest.mark.parametrize("trainer", ["sft", "grpo", "grpo, two passes"])
def test_the_epoch_after_an_early_stop_has_all_its_rows(model, trainer):
    """The second epoch has the rows of a run without an early stop."""
    seen = {}
    for ends in (False, True):
        callback = asks_at("on_step_end", *([1] if ends else []))
        if trainer == "sft":
            # Rows of different lengths show which rows a step had.
            rows = [{"text": "a" * length} for length in (2, 3, 5, 9, 17, 33)]
            _, made = train(model, callback, rows, output_dir=f"out{ends}", shuffle_dataset=False)
            tokens = [entry["num_tokens"] for entry in made.state.log_history if "loss" in entry]
            seen[ends] = [b - a for a, b in zip([0, *tokens], tokens)]
            continue
        prompts = []

        def reward(completions, prompts=None, into=prompts, **kwargs):
            into.append(prompts[0])
            return [float(len(text)) for text in completions]

        fields = dict(num_train_epochs=2, max_steps=-1, shuffle_dataset=False, save_strategy="no",
                      num_iterations=1 + trainer.endswith("passes"))
        rows = [{"prompt": f"{word} "} for word in WORDS]
        grpo(model, rows, reward, callbacks=[callback], output_dir=f"out{ends}", **fields).train()
        seen[ends] = prompts
    first = seen[False][: len(seen[False]) // 2]
    assert len(first) >= 3 and seen[False] == first * 2
    assert seen[True] == [first[0], *first], "expected one batch of the first epoch, then the whole second epoch"


def test_a_run_with_a_shortened_epoch_can_be_resumed(model):
    fields = dict(save_strategy="steps", save_steps=1, num_train_epochs=3)
    _, whole = train(model, asks_at("on_step_end", 1), output_dir="whole", **fields)
    rows = [{"text": f"{word} {word}"} for word in WORDS]
    for step in (1, 2, 5):
        args = SFTConfig(f"out{step}", per_device_train_batch_size=2, learning_rate=0.05, logging_steps=1, threads=1,
                         disable_tqdm=True, **fields)
        again = SFTTrainer(model, args, rows, rows)
        again.train(resume_from_checkpoint=f"whole/checkpoint-{step}")
        assert again.state.global_step == whole.state.global_step == 7
        assert weights(f"out{step}/model") == weights("whole/model")
        epochs = [[e["epoch"] for e in t.state.log_history if "loss" in e] for t in (again, whole)]
        assert epochs[0] == epochs[1]


@pytest.mark.parametrize("fields", [dict(record_rollouts=True), dict(max_staleness=1)])
def test_should_epoch_stop_is_refused_where_it_is_unsupported(model, rows, fields):
    made = grpo(model, rows, callbacks=[asks("on_step_end", 1, "should_epoch_stop")], num_train_epochs=2, max_steps=-1,
                **fields)
    with pytest.raises(ValueError, match="should_epoch_stop.*should_training_stop"):
        made.train()
