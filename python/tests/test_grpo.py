"""GRPOTrainer: arguments of rewards and callbacks, logs, and the same weights as the program."""

import asyncio
import functools
import json
import math
import os
import sys
import threading
import time

import pytest
from conftest import SMALL, WORDS, grpo, vowels, weights

from lockstep_rl import GRPOConfig, GRPOTrainer, TrainerCallback, _native, by_group


def test_a_run_logs_the_metrics_of_trl(model, rows):
    trainer = grpo(model, rows)
    output = trainer.train()
    assert output.global_step == trainer.state.global_step == 4 == trainer.state.max_steps
    first, last = trainer.state.log_history[0], trainer.state.log_history[-1]
    trl = ["loss", "grad_norm", "learning_rate", "reward", "reward_std", "rewards/vowels/mean", "rewards/vowels/std",
           "frac_reward_zero_std", "completions/mean_length", "completions/min_length", "completions/max_length",
           "completions/clipped_ratio", "completions/mean_terminated_length", "completions/min_terminated_length",
           "completions/max_terminated_length", "entropy", "num_tokens", "step_time", "epoch", "step",
           "clip_ratio/low_mean", "clip_ratio/low_min", "clip_ratio/high_mean", "clip_ratio/high_max",
           "clip_ratio/region_mean"]
    assert [key for key in trl if key not in first] == []
    assert first["step"] == 1 and first["num_tokens"] > 0 and first["rewards/vowels/gil_wait_s"] >= 0
    assert {"train_runtime", "train_loss", "train_steps_per_second", "train_samples_per_second"} <= set(last)
    assert os.path.exists("out/model/model.safetensors") and os.path.exists("out/metrics.jsonl")
    assert weights(trainer.model.name_or_path) != weights(model)


def test_a_trainer_and_the_program_train_the_same_weights(model, rows):
    trainer = grpo(model, rows, "unique_chars")
    trainer.train()
    with open("rows.jsonl", "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    values = {key: value for key, value in SMALL.items() if key != "disable_tqdm"}
    flags = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    program = ["lockstep", "train", "--model", model, "--dataset", "rows.jsonl", "--reward", "unique_chars"]
    assert _native.main([*program, *flags, "--out", "program"]) == 0
    assert weights("out/model") == weights("program/model")
    # The same reward as a Python function.
    count = lambda completions, **kwargs: [len(set(text)) for text in completions]  # noqa: E731
    again = GRPOTrainer(model, count, GRPOConfig("again", **SMALL), rows)
    again.train()
    assert weights("again/model") == weights("out/model") != weights(model)


def test_rewards_get_the_arguments_of_trl(model, rows):
    seen = []

    def reward(prompts, completions, completion_ids, answer, word, trainer_state, log_extra, log_metric):
        seen.append((prompts, completions, completion_ids, answer, word, trainer_state.global_step))
        log_extra("note", [text.upper() for text in completions])
        log_metric("longest", max(map(len, completions)))
        return [0.5 if len(text) % 2 else None for text in completions]

    trainer = grpo(model, rows, reward, log_completions=True, num_completions_to_print=0)
    trainer.train()
    prompts, completions, ids, answers, words, _ = seen[0]
    assert len(prompts) == len(completions) == len(ids) == len(answers) == 4 and prompts[0] == prompts[1]
    assert [f"{WORDS[i]} " for i in answers] == prompts and [WORDS[i] for i in answers] == words
    assert all(isinstance(text, str) for text in completions) and all(type(i) is int for row in ids for i in row)
    assert [step for *_, step in seen] == [0, 1, 2, 3]
    assert trainer.state.log_history[0]["longest"] == max(map(len, completions))
    assert trainer.state.log_history[0]["rewards/reward/mean"] == 0.5


def test_rewards_get_conversations_as_lists_of_messages(model):
    rows = [{"prompt": [{"role": "user", "content": word}]} for word in WORDS]
    seen = []

    def reward(prompts, completions, **kwargs):
        seen.extend(zip(prompts, completions))
        return [0.0, 1.0] * (len(prompts) // 2)

    grpo(model, rows, reward, max_steps=1).train()
    for prompt, completion in seen:
        assert prompt[-1]["role"] == "user" and prompt[-1]["content"] in WORDS
        assert len(completion) == 1 and completion[0]["role"] == "assistant"


def test_rewards_get_the_original_objects_of_the_dataset(model, rows):
    import datetime

    day = datetime.date(2026, 1, 1)
    for i, row in enumerate(rows):
        row.update(day=day + datetime.timedelta(i), pair=(i, i))
    held_out = [{**row, "day": day.replace(year=2000), "word": row["word"] + "b"} for row in rows]
    seen = []

    def reward(completions, day, pair, word, **kwargs):
        seen.append((day, pair, word))
        return vowels(completions)

    trainer = grpo(model, rows, reward, max_steps=1, eval_strategy="steps", eval_steps=1, trainer={
        "eval_dataset": held_out})
    trainer.train()
    (days, pairs, words), *evaluations = seen
    assert all(type(pair) is tuple for pair in pairs)
    assert [day + datetime.timedelta(WORDS.index(word)) for word in words] == days
    assert evaluations and all(d.year == 2000 and w.endswith("b") for days, _, ws in evaluations
                               for d, w in zip(days, ws))


def test_rewards_are_added_with_their_weights(model, rows):
    def zero(completions, **kwargs):
        return [0] * len(completions)

    class Length:
        def __call__(self, completions, **kwargs):
            return [len(text) for text in completions]

    trainer = grpo(model, rows, [vowels, zero, Length(), "unique_chars", functools.partial(vowels)],
                   reward_weights=[1, 2, 0.5, 0, 1])
    trainer.train()
    log = trainer.state.log_history[0]
    names = ["vowels", "zero", "Length", "unique_chars", "vowels_2"]
    assert all(f"rewards/{name}/mean" in log for name in names)
    mean = log["rewards/vowels/mean"] * 2 + 0.5 * log["rewards/Length/mean"]
    assert log["reward"] == pytest.approx(mean)


def test_async_rewards_run_concurrently(model, rows):
    running, most = 0, 0

    async def slow(completions, **kwargs):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        return vowels(completions)

    async def other(completions, log_metric, **kwargs):
        log_metric("asked", len(completions))
        return await slow(completions)

    trainer = grpo(model, rows, [slow, vowels, other])
    trainer.train()
    log = trainer.state.log_history[0]
    assert most == 2 and log["asked"] == 4
    assert log["rewards/slow/mean"] == log["rewards/vowels/mean"] == log["rewards/other/mean"]


def test_a_reward_called_by_group_trains_the_same_weights(model, rows):
    threads = set()

    @by_group
    def of_group(completions, prompts, **kwargs):
        threads.add(threading.current_thread().name)
        assert len(set(prompts)) == 1 and len(prompts) == 2
        return vowels(completions)

    grpo(model, rows, of_group, num_generations=2).train()
    assert threads != {"MainThread"}
    whole = GRPOTrainer(model, vowels, GRPOConfig("whole", **SMALL), rows)
    whole.train()
    assert weights("whole/model") == weights("out/model")


class Recorder(TrainerCallback):
    def __init__(self):
        self.events = []

    def on_init_end(self, args, state, control, **kwargs):
        self.events.append("init")

    def on_train_begin(self, args, state, control, **kwargs):
        self.events.append("begin")

    def on_step_end(self, args, state, control, **kwargs):
        self.events.append(("step", state.global_step))

    def on_log(self, args, state, control, logs, **kwargs):
        self.events.append(("log", state.global_step, "reward" in logs))

    def on_save(self, args, state, control, **kwargs):
        self.events.append(("save", state.global_step))

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        self.events.append(("evaluate", state.global_step, "eval_reward" in metrics))

    def on_train_end(self, args, state, control, **kwargs):
        self.events.append("end")


def test_callbacks_are_called_in_order(model, rows):
    recorder = Recorder()
    trainer = grpo(model, rows, callbacks=[recorder], max_steps=2, save_steps=2, eval_strategy="steps", eval_steps=2,
                   trainer={"eval_dataset": rows[:2]})
    trainer.train()
    assert recorder.events == [
        "init", "begin", ("step", 1), ("log", 1, True), ("step", 2), ("log", 2, True), ("log", 2, False),
        ("evaluate", 2, True), ("save", 2), ("log", 2, False), "end",
    ]


def test_a_callback_can_save_evaluate_and_stop(model, rows):
    class Control(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_save = state.global_step == 1
            control.should_evaluate = state.global_step == 2
            control.should_training_stop = state.global_step == 3

    trainer = grpo(model, rows, callbacks=[Control], max_steps=6, save_strategy="no",
                   trainer={"eval_dataset": rows[:2]})
    assert trainer.train().global_step == 3
    assert os.listdir("out/checkpoints") == ["step-000001"]
    assert [entry["step"] for entry in trainer.state.log_history if "eval_reward" in entry] == [2]
    assert os.path.exists("out/model/config.json")


def test_a_resumed_run_ends_with_the_weights_of_an_uninterrupted_run(model, rows):
    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step == 2

    grpo(model, rows, callbacks=[Stop()]).train()
    resumed = grpo(model, rows)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 4 and resumed.state.log_history[0]["step"] == 1
    whole = GRPOTrainer(model, vowels, GRPOConfig("whole", **SMALL), rows)
    whole.train()
    assert weights("whole/model") == weights("out/model")


def test_the_command_line_resumes_a_run_started_in_python(model, rows):
    with open("rows.jsonl", "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)

    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step == 2

    grpo(model, "rows.jsonl", "unique_chars", callbacks=[Stop]).train()
    assert _native.main(["lockstep", "train", "--resume", "out"]) == 0
    whole = GRPOTrainer(model, "unique_chars", GRPOConfig("whole", **SMALL), "rows.jsonl")
    whole.train()
    assert weights("whole/model") == weights("out/model")


def test_an_exception_keeps_its_traceback_and_names_the_row(model, rows):
    def fragile(completions, word, **kwargs):
        return [1 / (text != "moon") for text in word]

    trainer = grpo(model, rows, fragile, shuffle_dataset=False, max_steps=3, save_steps=1)
    with pytest.raises(ZeroDivisionError) as raised:
        trainer.train()
    assert any(entry.name == "fragile" for entry in raised.traceback)
    notes = " ".join(getattr(raised.value, "__notes__", [str(raised.value)]))
    assert "reward `fragile`" in notes and "row 2 of the dataset" in notes and "step 2" in notes
    assert os.listdir("out/checkpoints") == ["step-000001"], "expected a checkpoint of the last complete step"


def test_with_reward_errors_continue_an_exception_counts_as_no_score(model, rows):
    def fragile(completions, trainer_state, **kwargs):
        if trainer_state.global_step == 1:
            raise RuntimeError("the judge is away")
        return vowels(completions)

    trainer = grpo(model, rows, fragile, reward_errors="continue")
    assert trainer.train().global_step == 4
    assert math.isnan(trainer.state.log_history[1].get("reward", math.nan))


def test_an_exception_in_a_callback_ends_the_run(model, rows):
    class Bad(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            raise LookupError("no such thing")

    trainer = grpo(model, rows, callbacks=[Bad()])
    with pytest.raises(LookupError, match="no such thing"):
        trainer.train()
    assert trainer.state.global_step == 1


def test_evaluate_predict_and_save_model_use_the_trained_weights(model, rows):
    trainer = grpo(model, rows, trainer={"eval_dataset": rows[:3]})
    before = trainer.evaluate()
    assert before["eval_reward"] >= 0 and trainer.state.log_history[-1]["eval_reward"] == before["eval_reward"]
    trainer.train()
    after = trainer.evaluate()
    assert after["eval_reward"] == trainer.evaluate()["eval_reward"]
    # As in transformers, there is no epoch before training.
    assert after.keys() - before.keys() == {"epoch"} and not before.keys() - after.keys()
    assert "test_reward" in trainer.evaluate(rows[:2], metric_key_prefix="test")
    entries = len(trainer.state.log_history)
    predicted = trainer.predict(rows[:3])
    assert predicted.metrics["test_reward"] == after["eval_reward"] and predicted.predictions is None
    assert len(trainer.state.log_history) == entries
    with pytest.raises(ValueError, match="`test_dataset` is missing"):
        trainer.predict(None)
    trainer.save_model("saved")
    assert weights("saved") == weights("out/model") and os.path.exists("saved/tokenizer.json")


def test_a_lora_adapter_is_saved_with_its_configuration(model, rows):
    trainer = grpo(model, rows, trainer={"peft_config": {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}})
    trainer.train()
    with open("out/model/adapter_config.json") as file:
        adapter = json.load(file)
    assert (adapter["r"], adapter["lora_alpha"], adapter["target_modules"]) == (2, 4, ["q_proj"])


def test_any_sequence_or_iterator_of_rows_is_a_dataset(model, rows):
    class Rows:
        def __len__(self):
            return len(rows)

        def __getitem__(self, i):
            return rows[i]

    for dataset, out in [(rows, "a"), (Rows(), "b"), (iter(rows), "c"), (tuple(rows), "d")]:
        GRPOTrainer(model, vowels, GRPOConfig(out, **SMALL), dataset).train()
    assert weights("a/model") == weights("b/model") == weights("c/model") == weights("d/model")


def test_the_engine_releases_the_interpreter_lock(model, rows):
    # If the engine held the lock, nothing here would run before its hundred million steps are done.
    run = grpo(model, rows, "unique_chars", max_steps=10**8, logging_steps=10**8, save_strategy="no").start()
    for _ in range(50):
        time.sleep(0.001)
    assert run.is_running
    run.stop()
    with pytest.raises(KeyboardInterrupt):
        run.result(600)


def test_the_wait_of_a_reward_for_the_interpreter_lock_is_logged(model, rows):
    done = threading.Event()
    thread = threading.Thread(target=lambda: [None for _ in iter(done.is_set, True)])
    before = sys.getswitchinterval()
    # A thread that requests the lock waits this long while the other thread is busy.
    sys.setswitchinterval(0.02)
    thread.start()
    try:
        # Completions long enough for the thread to start while they are generated.
        trainer = grpo(model, rows * 8, max_steps=12, max_completion_length=48, per_device_train_batch_size=64)
        trainer.train()
    finally:
        done.set()
        sys.setswitchinterval(before)
        thread.join()
    waits = [entry["rewards/vowels/gil_wait_s"] for entry in trainer.state.log_history[:-1]]
    assert len(waits) == 12 and max(waits) > 0


def test_a_slow_reward_called_by_group_runs_during_generation(model, rows):
    @by_group
    def slow(completions, **kwargs):
        time.sleep(0.005 * len(completions))
        return vowels(completions)

    # One group is generated at a time, so that earlier groups are scored meanwhile. There are many groups, so that this
    # takes longer than a busy machine keeps the reward's thread waiting.
    trainer = grpo(model, rows * 32, slow, per_device_train_batch_size=384, max_num_seqs=2, max_completion_length=48,
                   max_steps=1)
    trainer.train()
    log = trainer.state.log_history[0]
    assert log["reward_hidden_time_s"] > 0
    with open("out/trace.json") as file:
        trace = json.load(file)
    spans = [(event["name"], event["ts"], event["ts"] + event["dur"]) for event in
             trace if event.get("ph") == "X"]
    (rollout,) = [span for span in spans if span[0] == "rollout"]
    beside = [span for span in spans if span[0] == "rewards" and rollout[1] <= span[1] < rollout[2]]
    assert beside, "expected scoring during generation in the trace"


def test_two_trainers_train_in_two_threads(model, rows):
    trainers = [GRPOTrainer(model, vowels, GRPOConfig(name, **SMALL), rows) for name in ("one", "two")]
    threads = [threading.Thread(target=trainer.train) for trainer in trainers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [trainer.state.global_step for trainer in trainers] == [4, 4]
    assert weights("one/model") == weights("two/model")


def test_deprecated_arguments_warn_and_work(model, rows):
    with pytest.warns(FutureWarning, match="gen_kwargs"):
        trainer = grpo(model, rows, trainer={"gen_kwargs": {
            "do_sample": True, "top_p": 0.9, "max_new_tokens": 3, "use_cache": True}})
    assert trainer.args.max_completion_length == 3 and trainer.args.top_p == 0.9
    with pytest.warns(FutureWarning, match="processing_class"):
        grpo(model, rows, trainer={"tokenizer": model})
    trainer.train()
    assert max(entry.get("completions/max_length", 0) for entry in trainer.state.log_history) <= 3


def test_the_dashboard_shows_a_run_while_it_trains(model, rows, tmp_path, caplog):
    import socket
    import urllib.request

    seen = {}

    class Look(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            with urllib.request.urlopen(f"{trainer.dashboard_url}api/runs") as answer:
                seen[state.global_step] = json.load(answer)[0]["state"]

    args = GRPOConfig("out", dashboard=0, max_steps=2, num_generations=2, per_device_train_batch_size=4,
                      max_completion_length=4)
    trainer = GRPOTrainer(model, vowels, args, rows, callbacks=[Look()])
    trainer.train()
    assert seen == {1: "running", 2: "running"}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        args = GRPOConfig("taken", dashboard=taken.getsockname()[1], max_steps=1, num_generations=2,
                          per_device_train_batch_size=4, max_completion_length=4)
        GRPOTrainer(model, vowels, args, rows).train()
    assert "no page on port" in caplog.text
