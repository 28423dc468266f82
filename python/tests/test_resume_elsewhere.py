"""Training continues from a checkpoint of another run, and writes to `output_dir`, as in TRL."""

import json
import logging
import os
import pathlib
import shutil

import pytest
from conftest import weights
from test_given import files
from test_given_objects import CLASSES, Loaded, make, sync  # noqa: F401

from lockstep_rl import TrainerCallback

SAVED = dict(save_strategy="steps", save_steps=1)
NAMES = {"link": "runs/a/checkpoint-1", "checkpoint": "runs/a/checkpoints/step-000001", "run": "runs/a"}


@pytest.mark.parametrize("kind", CLASSES)
def test_a_checkpoint_of_another_run_is_continued_in_output_dir(model, kind):
    make(kind, model, "runs/a", **SAVED).train()
    before = files("runs/a")
    trainer = make(kind, model, "runs/b", **SAVED)
    done = trainer.train(resume_from_checkpoint="runs/a/checkpoint-1")
    assert files("runs/a") == before, "expected the other run to be unchanged"
    assert weights("runs/b/model") == weights("runs/a/model") and done.global_step == 3
    assert sorted(os.listdir("runs/b/checkpoints")) == ["step-000001", "step-000002", "step-000003"]
    assert trainer.args.output_dir == "runs/b" and os.path.exists("runs/b/checkpoint-3")
    of = json.loads(pathlib.Path("runs/b/record.json").read_text())["forked_from"]
    assert of["step"] == 1 and of["run"] == os.path.realpath("runs/a")
    lines = [json.loads(line) for line in pathlib.Path("runs/b/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "alarm" not in line] == [1, 2, 3]
    # The new run can be resumed itself.
    again = make(kind, model, "runs/b", **SAVED)
    again.train(resume_from_checkpoint="runs/b/checkpoint-2")
    assert weights("runs/b/model") == weights("runs/a/model") and files("runs/a") == before


@pytest.mark.parametrize("name, out", [
    ("link", "b"), ("checkpoint", "runs/a/nested"), ("run", "runs/b"), ("link", "/absolute"),
])
def test_a_checkpoint_can_be_named_by_link_directory_or_run(model, place, name, out):
    class Ends(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = True

    make("sft", model, "runs/a", callbacks=[Ends()], **SAVED).train()
    before = files("runs/a")
    out = str(place / "absolute") if out == "/absolute" else out
    make("sft", model, out, **SAVED).train(resume_from_checkpoint=NAMES[name])
    make("sft", model, "whole", **SAVED).train()
    assert weights(f"{out}/model") == weights("whole/model")
    assert {path: text for path, text in files("runs/a").items() if "nested" not in path.parts} == before


def test_resume_from_checkpoint_can_be_set_in_the_configuration(model):
    make("sft", model, "a", **SAVED).train()
    make("sft", model, "b", resume_from_checkpoint="a/checkpoint-2", **SAVED).train()
    assert weights("a/model") == weights("b/model") and not os.path.exists("b/checkpoint-1")


def test_a_continued_run_can_train_for_more_steps(model):
    make("sft", model, "a", max_steps=2, lr_scheduler_type="constant", **SAVED).train()
    make("sft", model, "b", max_steps=4, lr_scheduler_type="constant", **SAVED).train(resume_from_checkpoint="a")
    make("sft", model, "whole", max_steps=4, lr_scheduler_type="constant", **SAVED).train()
    assert weights("b/model") == weights("whole/model") and not os.path.exists("a/checkpoint-3")


def test_a_moved_run_can_be_resumed(model):
    make("sft", model, "a", **SAVED).train()
    whole = weights("a/model")
    shutil.move("a", "b")
    make("sft", model, "b", **SAVED).train(resume_from_checkpoint="b/checkpoints/step-000001")
    assert weights("b/model") == whole and os.path.isdir("b/abandoned")


def test_a_loaded_model_can_continue_another_run(model):
    loaded = Loaded(model)
    make("sft", loaded, "a", **SAVED).train()
    trained, before = loaded.bytes, files("a")
    loaded = Loaded(model)
    make("sft", loaded, "b", **SAVED).train(resume_from_checkpoint="a/checkpoint-1")
    assert loaded.bytes == trained and files("a") == before
    assert [name for name in os.listdir("b") if name.startswith("given-")]


def test_the_best_checkpoint_is_copied_from_the_other_run(model):
    fields = dict(eval_strategy="steps", eval_steps=1, load_best_model_at_end=True, metric_for_best_model="loss",
                  learning_rate=0.0, **SAVED)
    held_out = [{"text": "moon"}]

    def trainer(out, **more):
        one = make("sft", model, out, **{**fields, **more})
        one.eval_dataset = held_out
        return one

    trainer("a").train()
    later = trainer("b")
    later.train(resume_from_checkpoint="a/checkpoint-2")
    assert later.state.best_global_step == 1 and os.path.exists("b/checkpoints/step-000001")


@pytest.mark.parametrize("change, words", [
    ({"seed": 7}, "cannot change these keys: seed was 42, now 7"),
    ({"data_seed": 7}, "cannot change these keys: data_seed"),
])
def test_a_refused_resume_leaves_no_files(model, change, words):
    make("sft", model, "a", **SAVED).train()
    before = files("a")
    with pytest.raises(ValueError, match=words):
        make("sft", model, "b", **SAVED, **change).train(resume_from_checkpoint="a/checkpoint-1")
    assert not os.path.exists("b") and files("a") == before


def test_resuming_with_other_data_is_refused_and_leaves_no_files(model):
    make("sft", model, "a", **SAVED).train()
    other = make("sft", model, "b", **SAVED)
    other.train_dataset = [{"text": "moon"}] * 4
    with pytest.raises(ValueError, match="the training data has changed since the run began"):
        other.train(resume_from_checkpoint="a/checkpoint-1")
    assert not os.path.exists("b")
    other.train_dataset = [{"text": "ab sun moon"}] * 4
    other.train(resume_from_checkpoint="a/checkpoint-1")
    assert weights("b/model") == weights("a/model")


def test_a_directory_that_holds_a_run_is_refused_and_left_unchanged(model):
    make("sft", model, "a", **SAVED).train()
    make("sft", model, "b", **SAVED).train()
    before = files(".")
    with pytest.raises(ValueError, match="already holds a run"):
        make("sft", model, "b", **SAVED).train(resume_from_checkpoint="a/checkpoint-1")
    assert files(".") == before


def test_a_run_of_another_kind_is_refused(model):
    make("sft", model, "a", **SAVED).train()
    with pytest.raises(ValueError, match="sft"):
        make("dpo", model, "b", **SAVED).train(resume_from_checkpoint="a/checkpoint-1")
    assert not os.path.exists("b")


def test_a_run_without_a_checkpoint_is_refused(model):
    make("sft", model, "a").train()
    with pytest.raises(ValueError, match="no checkpoint"):
        shutil.rmtree("a/checkpoints")
        make("sft", model, "b").train(resume_from_checkpoint="a")
    assert not os.path.exists("b")


def test_warnings_of_the_engine_are_logged_with_disable_tqdm(model, caplog):
    """Also in notebooks, where the engine prints nothing."""
    make("sft", model, "a", **SAVED).train()
    with caplog.at_level(logging.WARNING, "lockstep_rl"):
        make("sft", model, "a", logging_steps=2, **SAVED).train(resume_from_checkpoint="a/checkpoint-1")
    said = [record.getMessage() for record in caplog.records]
    assert sum("the steps after step 1 are kept in" in text for text in said) == 1, said
    caplog.clear()
    with caplog.at_level(logging.WARNING, "lockstep_rl"):
        trainer = make("sft", model, "a", learning_rate=0.5, **SAVED)
        trainer.train(resume_from_checkpoint="a/checkpoint-2")
        trainer.train(resume_from_checkpoint="a/checkpoint-2")
    said = [record.getMessage() for record in caplog.records]
    assert said.count("changed on resume: learning_rate was 0.01, now 0.5") == 1, said
