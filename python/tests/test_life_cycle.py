"""Trainers before and after training: tokenizer, accelerator, output directories with other files, endless streams, and
rows with several formats."""

import itertools
import json
import os

import pytest
from conftest import SMALL, WORDS, grpo, vowels, weights

from lockstep_rl import (
    DPOConfig,
    DPOTrainer,
    PPOConfig,
    PPOTrainer,
    RewardConfig,
    RewardTrainer,
    RLOOConfig,
    RLOOTrainer,
    SFTConfig,
    SFTTrainer,
    TrainerCallback,
    _models,
)

TEXTS = [{"text": f"{word} {word}"} for word in WORDS]
PAIRS = [{"prompt": f"{word} ", "chosen": "a", "rejected": "b"} for word in WORDS]
COMMON = dict(per_device_train_batch_size=2, learning_rate=0.01, logging_steps=1, threads=1, disable_tqdm=True)
PROMPTS = [{"prompt": f"{word} "} for word in WORDS]

MAKERS = {
    "grpo": lambda model, place="out", rows=PROMPTS, **f: grpo(model, rows, output_dir=place, **{"max_steps": 2, **f}),
    "rloo": lambda model, place="out", rows=PROMPTS, **f: RLOOTrainer(
        model, vowels, RLOOConfig(place, **{**SMALL, "max_steps": 2, **f}), rows),
    "ppo": lambda model, place="out", rows=PROMPTS, **f: PPOTrainer(
        model, vowels, PPOConfig(place, **{**SMALL, "max_steps": 2, **f}), rows),
    "sft": lambda model, place="out", rows=TEXTS, **f: SFTTrainer(
        model, SFTConfig(place, **{**COMMON, "max_steps": 2, **f}), rows),
    "dpo": lambda model, place="out", rows=PAIRS, **f: DPOTrainer(
        model, None, DPOConfig(place, **{**COMMON, "max_steps": 2, **f}), rows),
    "reward": lambda model, place="out", rows=PAIRS, **f: RewardTrainer(
        model, RewardConfig(place, **{**COMMON, "max_steps": 2, **f}), rows),
}


# The tokenizer.

@pytest.mark.parametrize("kind", MAKERS)
def test_processing_class_defaults_to_the_tokenizer_of_the_model(model, kind):
    pytest.importorskip("transformers")
    trainer = MAKERS[kind](model)
    tokenizer = trainer.processing_class
    assert tokenizer is trainer.processing_class is trainer.tokenizer
    assert (tokenizer.eos_token, tokenizer.eos_token_id, tokenizer.pad_token_id) == ("<e>", 0, 0)
    assert tokenizer("ab")["input_ids"] == [1, 2] and tokenizer.decode([1, 2]) == "ab"
    trainer.train()
    tokenizer.save_pretrained("copy")
    assert {"tokenizer.json", "tokenizer_config.json"} <= set(os.listdir("copy"))
    assert "given-" not in " ".join(os.listdir("out")), "reading processing_class must not write files for the engine"


def test_callbacks_get_the_tokenizer(model, rows):
    pytest.importorskip("transformers")
    seen = []

    class Named(TrainerCallback):
        def on_step_end(self, args, state, control, processing_class=None, **kwargs):
            seen.append(processing_class.eos_token_id)

    class Keyword(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            seen.append(kwargs["processing_class"].eos_token)

    trainer = grpo(model, rows, callbacks=[Named(), Keyword()], max_steps=2)
    trainer.train()
    assert seen == ["<e>", 0, 0]


@pytest.mark.parametrize("given", ["object", "directory", "other eos", "directory and other eos"])
def test_processing_class_is_the_tokenizer_passed_to_the_trainer(model, bytes_model, given):
    transformers = pytest.importorskip("transformers")
    own = transformers.AutoTokenizer.from_pretrained(bytes_model)
    fields = {"eos_token": "<|im_end|>"} if "eos" in given else {}
    kwargs = {"object": {"processing_class": own}, "directory": {"processing_class": bytes_model},
              "directory and other eos": {"processing_class": bytes_model}}.get(given, {})
    trainer = SFTTrainer(bytes_model, SFTConfig("out", **COMMON, max_steps=1, **fields), TEXTS, **kwargs)
    assert trainer.processing_class.eos_token == ("<|im_end|>" if fields else "<e>")
    assert (trainer.processing_class is own) == (given == "object")


def test_without_transformers_the_tokenizer_can_only_be_saved(model, rows, monkeypatch):
    monkeypatch.setattr(_models, "find_spec", lambda name: None)
    trainer = grpo(model, rows)
    trainer.processing_class.save_pretrained("copy")
    assert {"tokenizer.json", "tokenizer_config.json"} <= set(os.listdir("copy"))
    with pytest.raises(AttributeError, match="processing_class.eos_token_id` needs transformers: pip install"):
        trainer.processing_class.eos_token_id


# The accelerator.

def test_the_accelerator_acts_like_accelerates_in_one_process(model, rows):
    trainer = grpo(model, rows, max_steps=1)
    accelerator = trainer.accelerator
    assert accelerator is trainer.accelerator
    for name, value in {
        "is_main_process": True, "is_local_main_process": True, "is_last_process": True, "process_index": 0,
        "local_process_index": 0, "num_processes": 1, "use_distributed": False, "sync_gradients": True,
        "mixed_precision": "no", "gradient_accumulation_steps": 1, "trackers": [],
    }.items():
        assert getattr(accelerator, name) == value, name
    assert str(accelerator.device) == "cpu"
    thing = object()
    for name in ("gather", "gather_for_metrics", "reduce", "pad_across_processes", "unwrap_model", "prepare",
                 "prepare_model", "prepare_data_loader", "prepare_optimizer", "prepare_scheduler"):
        assert getattr(accelerator, name)(thing) is thing, name
    assert accelerator.reduce(thing, reduction="mean") is thing
    assert accelerator.unwrap_model(thing, keep_fp32_wrapper=False) is thing
    assert accelerator.prepare(1, 2) == (1, 2) and accelerator.free_memory(1, 2) == [None, None]
    for name in ("main_process_first", "local_main_process_first", "autocast"):
        with getattr(accelerator, name)():
            pass
    with accelerator.accumulate(thing), accelerator.no_sync(thing):
        pass
    with accelerator.split_between_processes([1, 2]) as mine:
        assert mine == [1, 2]
    for name in ("on_main_process", "on_local_main_process", "on_last_process"):
        assert getattr(accelerator, name)(len)("abc") == 3
    assert accelerator.on_process(process_index=0)(len)("abc") == 3
    assert accelerator.on_process(process_index=1)(len)("abc") is None
    for name in ("wait_for_everyone", "end_training"):
        assert getattr(accelerator, name)() is None
    assert accelerator.log({"x": 1}, step=1) is None and accelerator.init_trackers("p") is None
    with pytest.raises(AttributeError, match="the engine computes gradients"):
        accelerator.backward
    assert not hasattr(accelerator, "nonsense_of_mine")
    model_of = accelerator.unwrap_model(trainer.model)
    model_of.save_pretrained("copy")
    assert os.path.exists("copy/model.safetensors")


# A directory with other files.

FOREIGN = ["train.log", "args.json", "trainer_state.json", "eval_results.json", "all_results.json", "README.md",
           "runs/events.out.tfevents.1", "notes/thesis.tex", ".hidden", "slurm-1.out", "config.json", "data.jsonl"]


def put(name, text="years of work"):
    os.makedirs(os.path.dirname(os.path.join("out", name)), exist_ok=True)
    with open(os.path.join("out", name), "w") as file:
        file.write(text)


@pytest.mark.parametrize("kind", MAKERS)
def test_output_dir_may_contain_other_files(model, kind):
    for name in FOREIGN:
        put(name)
    MAKERS[kind](model).train()
    assert os.path.exists("out/model/model.safetensors")
    for name in FOREIGN:
        with open(os.path.join("out", name)) as file:
            assert file.read() == "years of work", name


def test_metrics_and_state_can_be_saved_before_training(model):
    """The scripts run_*.py of transformers evaluate and save metrics and state, then train."""
    trainer = SFTTrainer(model, SFTConfig("out", **COMMON, max_steps=2), TEXTS, TEXTS)
    metrics = trainer.evaluate()
    trainer.log_metrics("eval", metrics)
    trainer.save_metrics("eval", metrics)
    trainer.save_state()
    trainer.train()
    trainer.save_metrics("train", {"train_loss": 1.0})
    trainer.save_state()
    with open("out/all_results.json") as file:
        assert {"eval_loss", "train_loss"} <= json.load(file).keys()
    again = SFTTrainer(model, SFTConfig("out", **{**COMMON, "max_steps": 3}), TEXTS, TEXTS)
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 3


def test_output_dir_may_contain_other_files_if_a_tokenizer_is_passed(model):
    transformers = pytest.importorskip("transformers")
    put("train.log")
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    SFTTrainer(model, SFTConfig("out", **COMMON, max_steps=1), TEXTS, processing_class=tokenizer).train()
    assert os.path.exists("out/train.log") and any(name.startswith("given-") for name in os.listdir("out"))


@pytest.mark.parametrize("name", [
    "model/config.json", "checkpoints/step-000001/x", "checkpoint-5/x", "metrics.jsonl", "record.json", "trace.json",
    "rollouts.bin", "completions/x", "tensorboard/x", "lockstep-0.log", "abandoned/x", "profile.json",
])
def test_the_error_names_a_file_that_would_be_overwritten(model, name):
    put(name)
    trainer = MAKERS["sft"](model)
    with pytest.raises(ValueError) as error:
        trainer.train()
    first = name.split("/")[0]
    assert f"has `{first}`" in str(error.value) and "another output_dir" in str(error.value)
    assert os.listdir("out") == [first]


# Streams.

class Stream:
    """An endless stream that counts the rows read from it."""

    def __init__(self, row):
        self.row, self.count = row, 0

    def __iter__(self):
        for i in itertools.count():
            self.count += 1
            yield self.row(i)


WORD = "abcdefghijklmnopqrstuvwxyz"


def letter(i):
    return WORD[i % 26]


# Kind, fields, row, and the number of rows read.
STREAMS = [
    ("sft", dict(max_steps=2), lambda i: {"text": letter(i)}, 4),
    ("sft", dict(max_steps=3, gradient_accumulation_steps=2), lambda i: {"text": letter(i)}, 12),
    ("sft", dict(max_steps=2, max_samples=3), lambda i: {"text": letter(i)}, 3),
    ("sft", dict(max_steps=2, max_samples=30), lambda i: {"text": letter(i)}, 30),
    ("sft", dict(max_steps=2, packing=True, max_length=16), lambda i: {"text": letter(i) * 3}, 4),
    ("sft", dict(max_steps=1), lambda i: {"messages": [{"role": "user", "content": letter(i) * 3}]}, 2),
    ("sft", dict(max_steps=1), lambda i: {"prompt": letter(i), "completion": "a"}, 2),
    ("dpo", dict(max_steps=2), lambda i: {"prompt": letter(i), "chosen": "a", "rejected": "b"}, 4),
    ("reward", dict(max_steps=2), lambda i: {"prompt": letter(i), "chosen": "a", "rejected": "b"}, 4),
    ("grpo", dict(max_steps=2), lambda i: {"prompt": letter(i)}, 6),
    ("grpo", dict(max_steps=2, num_iterations=2), lambda i: {"prompt": letter(i)}, 6),
    ("grpo", dict(max_steps=2, steps_per_generation=2), lambda i: {"prompt": letter(i)}, 8),
    ("grpo", dict(max_steps=2, gradient_accumulation_steps=2), lambda i: {"prompt": letter(i)}, 12),
    ("rloo", dict(max_steps=1), lambda i: {"prompt": letter(i)}, 4),
    ("ppo", dict(max_steps=1), lambda i: {"prompt": letter(i)}, 4),
]


@pytest.mark.parametrize("kind, fields, row, read", STREAMS)
def test_only_the_rows_needed_for_training_are_read_from_a_stream(model, kind, fields, row, read):
    stream = Stream(row)
    trainer = MAKERS[kind](model, rows=stream, **fields)
    trainer.train()
    assert stream.count == read
    assert trainer.state.global_step == fields["max_steps"]


def test_rows_of_a_stream_are_not_shuffled(model):
    """As in TRL, where an IterableDataset has no sampler."""
    rows = [{"text": letter(i) * (i + 1)} for i in range(4)]
    MAKERS["sft"](model, "stream", Stream(lambda i: rows[i % 4])).train()
    MAKERS["sft"](model, "list", rows, shuffle_dataset=False).train()
    assert weights("stream/model") == weights("list/model")


def test_more_steps_read_more_rows_of_a_stream(model):
    stream = Stream(lambda i: {"text": letter(i)})
    trainer = MAKERS["sft"](model, rows=stream, max_steps=2)
    trainer.args.max_steps = 3
    trainer.train()
    assert trainer.state.global_step == 3 and stream.count == 4 + 6


def test_a_run_on_a_stream_resumes_with_the_same_rows(model):
    """Also with more steps, and runs of older versions, which shuffled the whole stream."""
    stop = type("Stop", (TrainerCallback,), {"on_step_end": lambda self, args, state, control, **kwargs: setattr(
        control, "should_training_stop", state.global_step == 2)})

    def made(place, rows, callbacks=None, **fields):
        args = SFTConfig(place, **{**COMMON, "max_steps": 4, "save_steps": 2, **fields})
        return SFTTrainer(model, args, rows, callbacks=callbacks)

    rows = [{"text": letter(i) * (i + 1)} for i in range(26)]
    endless = Stream(lambda i: rows[i % 26])
    made("whole", endless).train()
    made("out", endless, [stop]).train()
    made("out", endless).train(resume_from_checkpoint=True)
    assert weights("out/model") == weights("whole/model")
    made("out", endless, max_steps=6).train(resume_from_checkpoint=True)
    made("older", rows[:9], [stop]).train()
    made("older", iter_of(rows[:9])).train(resume_from_checkpoint=True)
    made("older-whole", rows[:9]).train()
    assert weights("older/model") == weights("older-whole/model")


def test_a_short_stream_is_repeated_and_an_endless_one_needs_max_steps(model, monkeypatch):
    MAKERS["sft"](model, "short", iter_of(TEXTS), max_steps=5).train()
    monkeypatch.setattr("lockstep_rl._data.STREAM_ROWS", 50)
    with pytest.raises(ValueError, match="set max_steps, or set max_samples"):
        MAKERS["sft"](model, "endless", Stream(lambda i: {"text": "a"}), max_steps=-1, num_train_epochs=1)


def iter_of(rows):
    class Iterable:
        def __iter__(self):
            return iter(rows)

    return Iterable()


def test_an_iterable_dataset_is_a_stream(model):
    datasets = pytest.importorskip("datasets")

    def endless():
        for i in itertools.count():
            yield {"text": letter(i)}

    trainer = MAKERS["sft"](model, rows=datasets.IterableDataset.from_generator(endless))
    trainer.train()
    assert trainer.state.global_step == 2


# Rows with several formats.

TALK = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "cd"}]
VALUES = [{"from": "human", "value": "ab"}, {"from": "gpt", "value": "cd"}]
OTHER = [{"role": "user", "content": "x"}]

# A row, and the part of it that TRL 1.16 trains on.
FORMS = [
    ({"text": "x", "messages": TALK}, {"messages": TALK}),
    ({"text": "x", "conversations": VALUES}, {"conversations": VALUES}),
    ({"text": "x", "messages": OTHER, "conversations": VALUES}, {"conversations": VALUES}),
    ({"text": "x", "messages": TALK, "conversations": OTHER}, {"messages": TALK}),
    ({"messages": TALK, "conversations": VALUES}, {"conversations": VALUES}),
    ({"text": None, "messages": TALK}, {"messages": TALK}),
    ({"text": "x", "messages": None}, {"text": "x"}),
    ({"text": "x", "messages": []}, {"text": "x"}),
    ({"text": "x", "conversations": None, "messages": TALK}, {"messages": TALK}),
    ({"text": "x", "prompt": "ab", "completion": "cd"}, {"prompt": "ab", "completion": "cd"}),
    ({"messages": TALK, "prompt": "ab", "completion": "cd"}, {"prompt": "ab", "completion": "cd"}),
    ({"text": "x", "messages": TALK, "prompt": "ab", "completion": "cd"}, {"prompt": "ab", "completion": "cd"}),
    ({"text": "x", "note": "messages"}, {"text": "x"}),
    ({"messages": TALK, "tools": None, "text": "x"}, {"messages": TALK}),
]


@pytest.mark.parametrize("row, chosen", FORMS)
def test_a_row_with_several_formats_trains_on_the_one_of_trl(bytes_model, row, chosen):
    MAKERS["sft"](bytes_model, "all", [row] * 4, max_steps=1).train()
    MAKERS["sft"](bytes_model, "chosen", [chosen] * 4, max_steps=1).train()
    assert weights("all/model") == weights("chosen/model")


def test_messages_take_precedence_over_dataset_text_field(bytes_model):
    row = {"body": "x", "messages": TALK}
    MAKERS["sft"](bytes_model, "all", [row] * 4, max_steps=1, dataset_text_field="body").train()
    MAKERS["sft"](bytes_model, "chosen", [{"messages": TALK}] * 4, max_steps=1).train()
    assert weights("all/model") == weights("chosen/model")
