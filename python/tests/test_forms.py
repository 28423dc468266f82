"""Formats of datasets, several evaluation sets, trackers of metrics, and streams."""

import json
import sys
import types

import pytest
from conftest import SMALL, WORDS, grpo, weights

from lockstep_rl import (
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    RewardConfig,
    RewardTrainer,
    SFTConfig,
    SFTTrainer,
    TrainerCallback,
)

OFFLINE = dict(per_device_train_batch_size=2, max_steps=3, logging_steps=1, learning_rate=0.01, threads=1,
               disable_tqdm=True)


def sft(model, rows, out, **fields):
    trainer = SFTTrainer(model, SFTConfig(out, **{**OFFLINE, **fields}), rows)
    trainer.train()
    return weights(f"{out}/model")


def test_sft_trains_on_a_text_from_its_second_token(model):
    whole = sft(model, [{"text": word} for word in WORDS if len(word) > 1], "whole")
    split = sft(model, [{"prompt": word[0], "completion": word[1:]} for word in WORDS if len(word) > 1], "split")
    assert whole == split != weights(model)
    other = sft(model, [{"body": word} for word in WORDS if len(word) > 1], "other", dataset_text_field="body")
    assert other == whole


def test_sft_trains_on_a_conversation_rendered_by_the_template(model):
    def said(word):
        return {"messages": [{"role": "user", "content": f"{word} "}, {"role": "assistant", "content": f"{word}<e>"}]}

    # The chat template of the tests concatenates the contents of messages.
    conversations = sft(model, [said(word) for word in WORDS], "conversations")
    assert conversations == sft(model, [{"text": f"{word} {word}"} for word in WORDS], "texts") != weights(model)


def test_rows_longer_than_max_length_are_dropped(model):
    long = [{"text": "a" * 40}]
    assert sft(model, [{"text": "ab"}] * 2 + long, "a", max_length=8) == sft(model, [{"text": "ab"}] * 2, "b")
    with pytest.raises(ValueError, match="every row is longer"):
        sft(model, long, "c", max_length=8)


def test_metrics_of_several_evaluation_sets_have_their_names(model, rows):
    sets = {"easy": rows[:2], "hard": rows[2:]}
    trainer = grpo(model, rows, eval_strategy="steps", eval_steps=2, trainer={"eval_dataset": sets})
    trainer.train()
    logged = {key for entry in trainer.state.log_history for key in entry}
    assert {"eval_easy_reward", "eval_hard_reward"} <= logged and "eval_reward" not in logged
    again = trainer.evaluate()
    assert {"eval_easy_rewards/vowels/mean", "eval_hard_rewards/vowels/mean"} <= again.keys()
    one = trainer.evaluate(rows[:2])
    assert "eval_reward" in one and "eval_easy_reward" not in one
    named = trainer.evaluate({"third": rows[:2]}, metric_key_prefix="test")
    assert named["test_third_reward"] == one["eval_reward"]


PAIRS = [{"prompt": f"{word} ", "chosen": word, "rejected": word[::-1] + "z"} for word in WORDS]
TEXTS = [{"prompt": f"{word} ", "completion": f"{word}."} for word in WORDS]


@pytest.mark.parametrize("trainer, config, rows, metrics", [
    (SFTTrainer, SFTConfig, TEXTS, ["loss"]),
    (DPOTrainer, DPOConfig, PAIRS, ["loss", "rewards/chosen", "rewards/accuracies", "logps/rejected"]),
    (RewardTrainer, RewardConfig, PAIRS, ["loss", "accuracy", "margin", "brier_score"]),
])
def test_offline_trainers_evaluate_several_sets(model, trainer, config, rows, metrics):
    sets = {"first": rows[:2], "rest": rows[2:]}
    fields = dict(eval_strategy="steps", eval_steps=3, save_steps=3, metric_for_best_model="eval_rest_loss",
                  load_best_model_at_end=True)
    made = trainer(model=model, args=config("out", **OFFLINE, **fields), train_dataset=rows, eval_dataset=sets)
    made.train()
    first, rest = [entry for entry in made.state.log_history if any(key.startswith("eval_") for key in entry)]
    assert "eval_first_loss" in first and "eval_rest_loss" in rest and "eval_rest_loss" not in first
    logged = {**first, **rest}
    assert {f"eval_{name}_{metric}" for name in sets for metric in metrics} <= logged.keys()
    assert "eval_loss" not in logged and logged["eval_first_loss"] != logged["eval_rest_loss"]
    assert made.state.best_metric == logged["eval_rest_loss"]
    again = made.evaluate()
    assert all(again[f"eval_{name}_loss"] == logged[f"eval_{name}_loss"] for name in sets)
    alone = made.evaluate(sets["rest"])
    assert alone["eval_loss"] == again["eval_rest_loss"] and "eval_rest_loss" not in alone


def test_a_reward_gets_the_columns_of_every_dataset(model, rows):
    seen = set()

    def reward(completions, kind, **kwargs):
        seen.update(kind)
        return [0.0] * len(completions)

    def marked(kind):
        return [{**row, "kind": (kind, 1)} for row in rows]

    sets = {"a": marked("of a"), "b": marked("of b")}
    grpo(model, marked("train"), reward, eval_strategy="steps", eval_steps=4, trainer={"eval_dataset": sets}).train()
    assert seen == {("train", 1), ("of a", 1), ("of b", 1)}


class Service(types.ModuleType):
    """A stand-in for the package of a tracker that records all calls."""

    def __init__(self, name):
        super().__init__(name)
        self.run, self.told = None, []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self.told.append((name, args, kwargs))


@pytest.fixture
def service(monkeypatch):
    def make(name):
        made = Service(name)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    return make


def calls(service, name):
    return [(args, kwargs) for called, args, kwargs in service.told if called == name]


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_metrics_are_logged_to_wandb_and_trackio(model, rows, service, name, monkeypatch):
    package = service(name)
    trainer = grpo(model, rows, report_to=name, run_name="first", project="lab")
    trainer.train()
    ((_, begun),) = calls(package, "init")
    assert (begun["project"], begun["name"], begun["config"]["num_generations"]) == ("lab", "first", 2)
    logs = [args[0] for args, _ in calls(package, "log")]
    assert [entry["train/global_step"] for entry in logs] == [1, 2, 3, 4, 4]
    assert "train/reward" in logs[0] and "train/train_runtime" in logs[-1]
    assert len(calls(package, "finish")) == (name == "trackio")
    trainer.evaluate(rows)
    assert "eval/reward" in calls(package, "log")[-1][0][0]


def test_metrics_are_logged_to_mlflow(model, rows, service):
    package = service("mlflow")
    package.active_run = lambda: None
    grpo(model, rows, report_to=["mlflow", "tensorboard"], run_name="first").train()
    assert calls(package, "start_run") == [((), {"run_name": "first"})] and len(calls(package, "end_run")) == 1
    fields = [args[0] for args, _ in calls(package, "log_params")]
    assert any("num_generations" in part for part in fields) and all(len(part) <= 100 for part in fields)
    logs = calls(package, "log_metrics")
    assert [kwargs["step"] for _, kwargs in logs] == [1, 2, 3, 4, 4]
    assert all(isinstance(value, float) for args, _ in logs for value in args[0].values())


def test_records_are_written_to_the_stdin_of_a_program(model, rows, service):
    package = service("wandb")
    grpo(model, rows, report_to=["wandb", "command:sh -c 'cat > got'"], run_name="first").train()
    with open("got") as file:
        records = [json.loads(line) for line in file]
    logged = [record for record in records if record["event"] == "metrics"]
    assert [record["step"] for record in logged] == [1, 2, 3, 4] and records[0]["run"] == "first"
    assert all("rewards/vowels/gil_wait_s" in record["values"] for record in logged)
    assert calls(package, "log"), "expected calls to the other tracker, too"


def test_the_error_names_the_missing_package_of_a_tracker(model, rows, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match="pip install wandb"):
        grpo(model, rows, report_to="wandb")
    assert GRPOConfig(report_to="all").values() == {}


class Stream:
    """An endless iterable dataset that starts over in each iteration."""

    def __init__(self, words=WORDS):
        self.words = words

    def __iter__(self):
        while True:
            yield from ({"prompt": f"{word} "} for word in self.words)


def test_a_stream_limited_by_max_samples_resumes_with_the_same_weights(model):
    whole = grpo(model, Stream(), output_dir="whole", max_samples=12, save_steps=2)
    whole.train()
    assert len(whole._train.rows) == 12
    stopped = grpo(model, Stream(), max_samples=12, save_steps=2, callbacks=[StopAfterTwo])
    assert stopped.train().global_step == 2
    resumed = grpo(model, Stream(), max_samples=12, save_steps=2)
    assert resumed.train(resume_from_checkpoint=True).global_step == 4
    assert weights("out/model") == weights("whole/model")


def test_an_endless_stream_needs_max_steps_or_max_samples(model, monkeypatch):
    monkeypatch.setattr("lockstep_rl._data.STREAM_ROWS", 100)
    with pytest.raises(ValueError, match="stream of more than 100 rows: set max_steps, or set max_samples"):
        grpo(model, Stream(), max_steps=-1)


class StopAfterTwo(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == 2
