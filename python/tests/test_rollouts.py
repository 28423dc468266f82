"""`rollout_func`: completions that a function makes, what rewards see of them, and whose bits they have."""

import json
import os
import struct

import pytest
from conftest import SMALL, grpo, vowels, weights
from recorded import lines

from lockstep_rl import GRPOConfig, SFTConfig, SFTTrainer, TrainerCallback, _native


def by_the_engine(prompts, trainer):
    """A rollout function that generates as the engine does without one."""
    group = trainer.num_generations
    return gathered(trainer.generate(prompts[::group], num_generations=group))


def gathered(completions, **fields):
    names = ("prompt_ids", "completion_ids", "logprobs")
    return {name: [one[name] for one in completions] for name in names} | fields


def run(model, rows, function, reward_funcs=vowels, trainer=None, **fields):
    return grpo(model, rows, reward_funcs, trainer={"rollout_func": function, **(trainer or {})}, **fields)


def recorded(directory):
    return lines(f"{directory}/rollouts.bin")


def test_recorded_rollouts_are_read_without_the_package(model, rows, capfd):
    grpo(model, rows, vowels, record_rollouts=True, max_steps=2).train()
    capfd.readouterr()
    assert _native.main(["lockstep", "rollouts", "out"]) == 0
    said = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    found = recorded("out")
    assert len(said) == len(found) > 0
    for line, other in zip(found, said, strict=True):
        # The program writes enough digits to distinguish f32 values.
        other["logprobs"] = [struct.unpack("<f", struct.pack("<f", x))[0] for x in other["logprobs"]]
        assert line == {name: other[name] for name in line}


def test_a_rollout_function_that_calls_the_engine_trains_the_same_weights(model, rows):
    trainer = run(model, rows, by_the_engine)
    trainer.train()
    grpo(model, rows, output_dir="plain").train()
    assert weights("out/model") == weights("plain/model")
    first = trainer.state.log_history[0]
    assert first["sampling/logp_mismatch_tokens"] == 0 and first["rollout_time_s"] > 0


def test_a_run_with_a_rollout_function_resumes_only_with_a_function(model, rows):
    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step == 2

    with open("rows.jsonl", "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    run(model, "rows.jsonl", by_the_engine, "unique_chars", callbacks=[Stop]).train()
    with pytest.raises(ValueError, match="come from a program's own function"):
        grpo(model, "rows.jsonl", "unique_chars").train(resume_from_checkpoint=True)
    assert _native.main(["lockstep", "train", "--resume", "out"]) == 2
    run(model, "rows.jsonl", by_the_engine, "unique_chars").train(resume_from_checkpoint=True)
    grpo(model, "rows.jsonl", "unique_chars", output_dir="whole").train()
    assert weights("out/model") == weights("whole/model")


def test_rollout_functions_get_prompts_and_return_fields_as_in_trl(model, rows):
    seen, given = [], []

    def function(prompts, trainer):
        seen.append(list(prompts))
        prompts[0] = "its own copy"
        output = by_the_engine(seen[-1], trainer)
        return {**output, "turns": list(range(len(prompts))), "place": "home", "word": ["ours"] * len(prompts)}

    def reward(prompts, completions, turns, place, word, **kwargs):
        given.append((prompts, turns, place, word))
        return vowels(completions)

    run(model, rows, function, reward, max_steps=1).train()
    (prompts,) = seen
    assert len(prompts) == 4 and prompts[0] == prompts[1] != prompts[2] == prompts[3]
    assert given == [(prompts, [0, 1, 2, 3], ["home"] * 4, ["ours"] * 4)]


def test_rollout_functions_get_conversations_as_messages(model):
    rows = [{"prompt": [{"role": "user", "content": word}]} for word in ("ab", "sun", "moon")]
    seen = []

    def function(prompts, trainer):
        seen.extend(prompts)
        return by_the_engine(prompts, trainer)

    def reward(completions, **kwargs):
        assert completions[0][0]["role"] == "assistant"
        return vowels(completions)

    run(model, rows, function, reward, max_steps=1).train()
    assert all(prompt[0]["role"] == "user" for prompt in seen)


def test_env_mask_excludes_the_tokens_of_an_environment(model, rows):
    def function(prompts, trainer):
        completions = trainer.generate(prompts, max_new_tokens=2)
        answer = [3, 4]
        turns = trainer.generate([one["prompt_ids"] + one["completion_ids"] + answer for one in completions],
                                 max_new_tokens=2)
        masks = []
        for one, turn in zip(completions, turns):
            masks.append([1] * len(one["completion_ids"]) + [0, 0] + [1] * len(turn["completion_ids"]))
            one["completion_ids"] = one["completion_ids"] + answer + turn["completion_ids"]
            one["logprobs"] = one["logprobs"] + [0.0, 0.0] + turn["logprobs"]
        return gathered(completions, env_mask=masks)

    trainer = run(model, rows, function, record_rollouts=True, max_steps=2)
    trainer.train()
    assert trainer.state.log_history[0]["grad_norm"] > 0
    for line in recorded("out"):
        ids, mask = line["completion_ids"], line["mask"]
        at = mask.index(False)
        assert ids[at : at + 2] == [3, 4] and mask.count(False) == 2 and all(mask[:at] + mask[at + 2 :])


@pytest.mark.parametrize("unknown", [None, [None] * 4, "nan"])
def test_missing_log_probabilities_are_taken_from_the_policy(model, rows, unknown):
    def function(prompts, trainer):
        output = by_the_engine(prompts, trainer)
        logprobs = [[None] * len(one) for one in output["logprobs"]] if unknown == "nan" else unknown
        return {**output, "logprobs": logprobs}

    run(model, rows, function).train()
    grpo(model, rows, output_dir="plain").train()
    assert weights("out/model") == weights("plain/model")


def test_an_evaluation_calls_the_rollout_function(model, rows):
    counts = []

    def function(prompts, trainer):
        counts.append(len(prompts))
        return gathered(trainer.generate(prompts))

    trainer = run(model, rows, function, num_generations_eval=3, trainer={"eval_dataset": rows[:2]})
    assert trainer.evaluate()["eval_reward"] >= 0 and counts == [6]


def test_an_exception_of_a_rollout_function_keeps_its_traceback(model, rows):
    def function(prompts, trainer):
        if trainer.state.global_step == 2:
            raise ZeroDivisionError("mine")
        return by_the_engine(prompts, trainer)

    with pytest.raises(ZeroDivisionError, match="mine") as raised:
        run(model, rows, function).train()
    assert raised.traceback[-1].name == "function"
    assert os.listdir("out/checkpoints") == ["step-000002"], "expected a checkpoint of the last complete step"


def changed(**fields):
    return lambda prompts, trainer: {**by_the_engine(prompts, trainer), **fields}


@pytest.mark.parametrize("function, error, words", [
    (lambda prompts, trainer: [], TypeError, "must return a dict, but returned list"),
    (lambda prompts, trainer: {"prompt_ids": []}, ValueError, r"must return keys \['completion_ids', 'logprobs'\]"),
    (changed(completion_ids=[[1]]), ValueError, "`completion_ids` has 1 elements for 4 prompts"),
    (changed(prompt_ids=3), TypeError, "`prompt_ids` must be a list"),
    (
        changed(completion_ids=[[1], [1], [1], []], logprobs=None),
        ValueError,
        r"completion_ids\[3\] must have at least one token",
    ),
    (changed(completion_ids=[[999]] * 4, logprobs=None), ValueError, "token 999, but token ids must be below"),
    (changed(completion_ids=[[-1]] * 4, logprobs=None), ValueError, "ids from -1 to -1, which are not all token ids"),
    (changed(completion_ids=["ab"] * 4, logprobs=None), TypeError, "must be token ids, but is 'ab'"),
    (
        changed(logprobs=[[0.0]] * 4, completion_ids=[[1, 2]] * 4),
        ValueError,
        r"logprobs\[0\] must have one element per token: it has 1 for 2",
    ),
    (changed(logprobs=[["a"]] * 4), TypeError, "must be numbers"),
    (changed(completion_ids=[[1]] * 4, logprobs=None, env_mask=[[0]] * 4), ValueError, "0 for every token"),
    (changed(completion_ids=[[1] * 40] * 4, logprobs=None), ValueError, "raise max_completion_length"),
    (
        changed(prompt_ids=[[1], [2], [3], [3]]),
        ValueError,
        "differs from prompt_ids.0., but all completions of a group must share one",
    ),
    (changed(turns=[1]), ValueError, "`turns` has 1 values for 4 completions"),
    (changed(thing=object()), TypeError, "which rewards cannot receive"),
    (lambda prompts, trainer: trainer.generate("ab"), TypeError, "must be a list, but is str"),
    (lambda prompts, trainer: trainer.generate(["ab"], 0), ValueError, "`num_generations` = 0"),
    (lambda prompts, trainer: trainer.generate(["ab"], beams=2), TypeError, "no argument `beams`"),
    (lambda prompts, trainer: trainer.generate([[1] * 90]), ValueError, "90"),
    (lambda prompts, trainer: trainer.generate([[]]), ValueError, "a prompt must have at least one token"),
    (lambda prompts, trainer: trainer.generate(["AB"]), ValueError, "no character 'A'"),
])
def test_wrong_results_of_a_rollout_function_raise_a_clear_error(model, rows, function, error, words):
    with pytest.raises(error, match=words):
        run(model, rows, function, max_steps=1).train()


def test_rollout_func_is_refused_where_it_is_unsupported(model, rows):
    with pytest.raises(TypeError, match="`rollout_func` must be a function"):
        run(model, rows, 3)
    with pytest.raises(ValueError, match="only GRPOTrainer, RLOOTrainer and PPOTrainer"):
        SFTTrainer(model, SFTConfig("out"), [{"text": "ab"}] * 4, rollout_func=by_the_engine)
    open("rows.jsonl", "w").close()
    with pytest.raises(ValueError, match="remove one"):
        run(model, rows, by_the_engine, replay="rows.jsonl").train()
    trainer = run(model, rows, by_the_engine)
    with pytest.raises(RuntimeError, match="elsewhere use lockstep_rl.Model"):
        trainer.generate(["ab"])
    engines = []

    def kept(prompts, trainer):
        engines.append(trainer._rollout_engine)
        return by_the_engine(prompts, trainer)

    run(model, rows, kept, max_steps=1).train()
    with pytest.raises(RuntimeError, match="can generate only inside"):
        engines[0].generate(["ab"], 1, {})


def test_a_rollout_function_can_override_the_sampling_settings(model, rows):
    def greedy(prompts, trainer):
        return gathered(trainer.generate(prompts, temperature=0.0, max_new_tokens=3))

    trainer = run(model, rows, greedy, lambda completions, **kwargs: [float(i) for i in range(len(completions))],
                  record_rollouts=True, max_steps=1)
    trainer.train()
    lines = recorded("out")
    assert lines[0]["completion_ids"] == lines[1]["completion_ids"] and len(lines[0]["completion_ids"]) <= 3
    assert GRPOConfig(**SMALL).temperature == 1.0
