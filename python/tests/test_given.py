"""Models and tokenizers in memory are written to files for the engine, and no existing file is deleted or changed."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest
from conftest import SMALL, grpo, vowels, weights

from lockstep_rl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer
from lockstep_rl._given import MARKER, GivenFiles


class InMemory:
    """A stand-in for a model of transformers that only writes files."""

    def __init__(self, directory):
        self.name_or_path = directory

    def save_pretrained(self, target):
        for name in os.listdir(self.name_or_path):
            if not name.startswith("tokenizer"):
                shutil.copy(os.path.join(self.name_or_path, name), target)


class Tokenizer:
    """A stand-in for a tokenizer with its own chat template."""

    def __init__(self, directory, template):
        self.name_or_path, self.template = directory, template

    def save_pretrained(self, target):
        shutil.copy(os.path.join(self.name_or_path, "tokenizer.json"), target)
        config = json.loads(pathlib.Path(self.name_or_path, "tokenizer_config.json").read_text())
        pathlib.Path(target, "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": self.template}))


def given(place="out"):
    return sorted(name for name in os.listdir(place) if name.startswith("given-"))


def files(place):
    """Returns all files below `place` with their bytes."""
    return {path: path.read_bytes() for path in pathlib.Path(place).rglob("*") if path.is_file()}


def occupy(names):
    """Creates directories that contain a user's files."""
    for name in names:
        os.makedirs(name)
        pathlib.Path(name, "thesis.tex").write_text("years of work")
        shutil.copytree(name, pathlib.Path(name, "model"))


NEIGHBOURS = ["out-model", "out-ref-model", "out-given", "given-00000000", "out-2"]


def test_directories_with_similar_names_are_not_touched(model, rows):
    occupy(NEIGHBOURS)
    before = files(".")
    trainer = GRPOTrainer(InMemory(model), vowels, GRPOConfig("out", **SMALL), rows)
    assert not os.path.exists("out"), "expected no files before training"
    assert trainer.evaluate(rows)["eval_reward"] >= 0 and not os.path.exists("out")
    trainer.train()
    pairs = [{"prompt": "ab ", "chosen": "sun", "rejected": "moon"}] * 4
    few = dict(per_device_train_batch_size=2, max_steps=1, threads=1, disable_tqdm=True)
    DPOTrainer(InMemory(model), InMemory(model), DPOConfig("dpo", **few), pairs).train()
    assert {path: text for path, text in files(".").items() if path in before} == before
    assert len(given()) == 1 and len(given("dpo")) == 1
    assert sorted(os.listdir(pathlib.Path("dpo", *given("dpo")))) == ["model_name_or_path", "ref_model", MARKER]


def test_a_loaded_model_trains_the_same_weights_as_its_directory(model, rows):
    GRPOTrainer(InMemory(model), vowels, GRPOConfig("loaded", **SMALL), rows).train()
    grpo(model, rows, output_dir="named").train()
    assert weights("loaded/model") == weights("named/model")


def test_a_directory_with_other_files_is_refused_and_left_unchanged(model, rows):
    occupy(["out"])
    pathlib.Path("out/given-12345678").mkdir()
    before = files("out")
    trainer = GRPOTrainer(InMemory(model), vowels, GRPOConfig("out", **SMALL), rows)
    with pytest.raises(ValueError, match="is not a run .* and has `model`"):
        trainer.train()
    assert files("out") == before and given() == ["given-12345678"]


def test_the_written_model_is_kept_for_resuming(model, rows):
    stop = [True]

    def stops(completions, **kwargs):
        if stop and kwargs["trainer_state"].global_step == 2:
            raise RuntimeError("enough")
        return vowels(completions)

    fields = dict(save_strategy="steps", save_steps=1, beta=0.1)
    GRPOTrainer(InMemory(model), vowels, GRPOConfig("whole", **SMALL, **fields), rows).train()
    with pytest.raises(RuntimeError, match="enough"):
        GRPOTrainer(InMemory(model), stops, GRPOConfig("out", **SMALL, **fields), rows).train()
    assert len(given()) == 1
    stop.clear()
    # As in a new process: the files of the same model are reused.
    again = GRPOTrainer(InMemory(model), stops, GRPOConfig("out", **SMALL, **fields), rows)
    again.train(resume_from_checkpoint=True)
    assert len(given()) == 1 and weights("out/model") == weights("whole/model")
    again.train(resume_from_checkpoint="out/checkpoints/step-000003")
    assert len(given()) == 1


def test_a_run_that_fails_to_start_leaves_no_files(model, rows):
    trainer = GRPOTrainer(InMemory(model), "no_such_reward", GRPOConfig("out", **SMALL), rows)
    with pytest.raises(ValueError, match="no_such_reward"):
        trainer.train()
    assert not os.path.exists("out")


def test_only_files_of_a_killed_process_are_removed(model, rows):
    script = "import os, signal; from lockstep_rl._given import GivenFiles; " \
             "GivenFiles('out').place('model'); os.kill(os.getpid(), signal.SIGKILL)"
    ended = subprocess.run([sys.executable, "-c", script])
    assert ended.returncode == -signal.SIGKILL
    left, = given()
    theirs = GivenFiles("out")  # of a running process
    assert given() == [os.path.basename(theirs.path)], f"{left} was not removed"
    occupy(["out/given-mine"])
    other = GivenFiles("out")
    assert os.path.exists(theirs.path) and os.path.exists("out/given-mine/thesis.tex")
    other.remove(), theirs.remove()
    assert given() == ["given-mine"]
    shutil.rmtree("out/given-mine")
    ended = subprocess.run([sys.executable, "-c", script])
    GRPOTrainer(InMemory(model), vowels, GRPOConfig("out", **SMALL), rows).train()
    assert len(given()) == 1, "files of the killed process were not removed"


def test_the_chat_template_of_a_tokenizer_object_is_used(bytes_model, place):
    """It takes precedence over the template in the model's directory."""
    seen = {}

    def keeps(prompts, completions, **kwargs):
        return [0.0] * len(completions)

    template = "{% for m in messages %}<{{ m['content'] }}>{% endfor %}{% if add_generation_prompt %}={% endif %}"
    rows = [{"prompt": [{"role": "user", "content": "ab"}]}] * 4
    fields = {**SMALL, "max_steps": 1, "log_completions": True}

    def first_prompt(out, model):
        tokenizer = Tokenizer(bytes_model, template)
        args = GRPOConfig(out, **fields)
        trainer = GRPOTrainer(model, keeps, args, rows, processing_class=tokenizer)
        trainer.train()
        saved = pathlib.Path(out, "model")
        text = "".join(path.read_text() for path in saved.glob("*") if path.suffix in (".json", ".jinja"))
        assert "]}}" not in text
        return trainer, text

    for out, given_model in [("named", bytes_model), ("loaded", InMemory(bytes_model))]:
        trainer, text = first_prompt(out, given_model)
        assert "<{{ m['content'] }}>" in text and weights(f"{out}/model")
        seen[out] = trainer.state.log_history[-2].get("num_tokens")
    assert seen["named"] == seen["loaded"]


def test_eos_token_of_sft_is_set_in_the_saved_tokenizer(model):
    few = dict(per_device_train_batch_size=2, max_steps=1, threads=1, disable_tqdm=True)
    SFTTrainer(model, SFTConfig("out", eos_token=".", **few), [{"text": "ab sun"}] * 4).train()
    assert json.loads(pathlib.Path("out/model/tokenizer_config.json").read_text())["eos_token"] == "."
    with pytest.raises(ValueError, match="`eos_token` = '<none>': the tokenizer has no such token"):
        SFTTrainer(model, SFTConfig("b", eos_token="<none>", **few), [{"text": "ab sun"}] * 4)
