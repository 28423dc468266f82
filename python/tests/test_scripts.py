"""Scripts that parse their arguments as TRL's scripts do."""

import dataclasses
import importlib.util
import json
import os
import pathlib
import sys
import types

import pytest
from conftest import WORDS, python

import lockstep_rl
from lockstep_rl import (
    DatasetConfig,
    DatasetMixtureConfig,
    GRPOConfig,
    ModelConfig,
    ScriptArguments,
    SFTConfig,
    TrlParser,
    get_dataset,
    get_peft_config,
    get_quantization_config,
)

SCRIPT = """
from lockstep_rl import GRPOConfig, GRPOTrainer, ModelConfig, ScriptArguments, TrlParser, get_peft_config

def reward(completions, **kwargs):
    return [float(len(set(text))) for text in completions]

script_args, training_args, model_args = TrlParser((ScriptArguments, GRPOConfig, ModelConfig)).parse_args_and_config()
trainer = GRPOTrainer(
    model=model_args.model_name_or_path, reward_funcs=reward, args=training_args,
    train_dataset=script_args.dataset_name, peft_config=get_peft_config(model_args),
)
result = trainer.train()
if trainer.accelerator.is_main_process:
    trainer.log_metrics("train", result.metrics)
    trainer.save_metrics("train", result.metrics)
    trainer.save_state()
trainer.save_model(training_args.output_dir)
trainer.accelerator.print("done")
trainer.end()
"""


def test_a_script_reads_flags_and_a_yaml_file(model, place):
    pytest.importorskip("yaml")
    (place / "rows.jsonl").write_text("".join(json.dumps({"prompt": f"{word} "}) + "\n" for word in WORDS))
    (place / "run.yaml").write_text(
        "dataset_name: rows.jsonl\nmax_steps: 9\nuse_peft: true\nlora_r: 2\nlora_dropout: 0.0\nthreads: 1\n"
        "num_generations: 2\nper_device_train_batch_size: 4\nmax_completion_length: 4\nlearning_rate: 1.0e-2\n"
    )
    (place / "script.py").write_text(SCRIPT)
    said = python("script.py", "--config", "run.yaml", "--model_name_or_path", model, "--max_steps", "2",
                  "--logging-steps", "1", "--output_dir", "out", "--lora_target_modules", "q_proj", "v_proj")
    assert said.returncode == 0, said.stderr
    assert said.stdout.rstrip().endswith("done") and "***** train metrics *****" in said.stdout
    adapter = json.loads((place / "out/adapter_config.json").read_text())
    assert adapter["r"] == 2 and sorted(adapter["target_modules"]) == ["q_proj", "v_proj"]
    results = json.loads((place / "out/train_results.json").read_text())
    assert results == json.loads((place / "out/all_results.json").read_text()) and "train_loss" in results
    state = json.loads((place / "out/trainer_state.json").read_text())
    assert state["global_step"] == 2 and any("reward" in entry for entry in state["log_history"])


def parsed(*arguments, classes=(ScriptArguments, SFTConfig, ModelConfig, DatasetMixtureConfig), **kwargs):
    return TrlParser(classes, prog="script").parse_args_and_config(list(arguments), **kwargs)


def test_fields_that_trl_declares_in_one_class_are_set_only_there():
    script, training, model, _ = parsed("--dataset_name", "d", "--lora_r", "4", "--dtype", "bfloat16", "--packing",
                                        "--learning_rate", "3e-5", "--no_shuffle_dataset", "--report_to", "none")
    assert (script.dataset_name, model.lora_r, model.dtype) == ("d", 4, "bfloat16")
    assert training.learning_rate == 3e-5 and training.shuffle_dataset is False
    assert training.dataset_name is None and training.lora_r == SFTConfig().lora_r


def test_the_parser_accepts_other_dataclasses():
    @dataclasses.dataclass
    class Mine(ScriptArguments):
        weights: list[float] | None = None
        fast: bool = True
        options: dict = dataclasses.field(default_factory=dict)

    mine, args = parsed("--weights", "0.5", "2", "--no-fast", "--options", '{"a": 1}', "--beta", "0.1",
                        classes=(Mine, GRPOConfig))
    assert (mine.weights, mine.fast, mine.options, args.beta) == ([0.5, 2.0], False, {"a": 1}, 0.1)
    assert TrlParser(Mine).parse_args_and_config(["--fast", "false"])[0].fast is False


def test_unknown_keys_and_flags_are_refused(place, capsys):
    pytest.importorskip("yaml")
    (place / "run.yaml").write_text("lora_r: 4\nnonsense: 3\nenv:\n  LOCKSTEP_TEST_SEEN: 7\n")
    with pytest.raises(ValueError, match="unknown arguments: nonsense"):
        parsed("--config", "run.yaml")
    assert os.environ.pop("LOCKSTEP_TEST_SEEN") == "7"
    assert parsed("--config", "run.yaml", fail_with_unknown_args=False)[2].lora_r == 4
    *_, rest = parsed("--config", "run.yaml", "--more", return_remaining_strings=True)
    assert rest == ["--nonsense", "3", "--more"]
    for words, complaint in [(["--lora_rr", "3"], "--lora_rr"), (["--lora_r", "many"], "expected integer, got 'many'")]:
        with pytest.raises(SystemExit) as ended:
            parsed(*words)
        assert ended.value.code == 2 and complaint in capsys.readouterr().err


def test_model_config_makes_peft_and_quantization_configurations():
    assert get_peft_config(ModelConfig()) is None and get_quantization_config(ModelConfig()) is None
    one = get_peft_config(ModelConfig(use_peft=True, lora_target_modules=["all-linear"]))
    assert one["r"] == 16 and one["target_modules"] == "all-linear"
    with pytest.raises(ValueError, match="load_in_4bit: weights are not quantised"):
        get_quantization_config(ModelConfig(load_in_4bit=True))


def test_get_dataset_mixes_datasets_by_fractions(place):
    datasets = pytest.importorskip("datasets")
    for name, count in (("a", 3), ("b", 5)):
        rows = [json.dumps({"text": f"{name}{i}", "other": i}) + "\n" for i in range(count)]
        (place / f"{name}.jsonl").write_text("".join(rows))
    parts = [{"path": "json", "data_files": f"{name}.jsonl", "columns": ["text"]} for name in "ab"]
    joined = get_dataset(DatasetMixtureConfig(datasets=parts))["train"]
    assert joined.column_names == ["text"] and joined["text"][2:4] == ["a2", "b0"] and len(joined) == 8
    split = get_dataset(DatasetMixtureConfig(datasets=parts, test_split_size=0.25))
    assert isinstance(split, datasets.DatasetDict) and (len(split["train"]), len(split["test"])) == (6, 2)
    with pytest.raises(ValueError, match="`datasets` is empty"):
        get_dataset(DatasetMixtureConfig())
    # The smallest dataset limits the size: three quarters are rows of "a", which has 3.
    shares = [DatasetConfig(**part, fraction=fraction) for part, fraction in zip(parts, (1.5, 0.5))]
    assert get_dataset(DatasetMixtureConfig(datasets=shares))["train"]["text"] == ["a0", "a1", "a2", "b0"]
    for one, why in (({}, "set fraction for all of them"), ({"fraction": -1}, "expected numbers of 0 or more")):
        with pytest.raises(ValueError, match=why):
            get_dataset(DatasetMixtureConfig(datasets=[shares[0], {**parts[1], **one}]))
    with pytest.raises(ValueError, match="unknown for a stream"):
        get_dataset(DatasetMixtureConfig(datasets=shares, streaming=True))
    *_, named = parsed("--datasets", "a", '{"path": "b", "split": "test"}')
    assert named.datasets == [DatasetConfig("a"), DatasetConfig("b", split="test")]
    for wrong, why in (({"path": "a", "sprit": "x"}, "no field `sprit`"), ({"name": "a"}, "`path` is missing")):
        with pytest.raises(ValueError, match=why):
            DatasetMixtureConfig(datasets=[wrong])


def test_numbers_that_yaml_reads_as_strings_are_converted(place):
    pytest.importorskip("yaml")
    (place / "run.yaml").write_text("learning_rate: 1e-5\nmax_length: none\nlora_target_modules: [all-linear]\n"
                                    "model_init_kwargs: {dtype: float32}\nreport_to: none\nlora_r: null\n")
    _, training, model, _ = parsed("--config", "run.yaml")
    assert training.learning_rate == 1e-5 and training.max_length is None and training.report_to == "none"
    assert model.lora_target_modules == "all-linear" and model.lora_r == 16
    assert training.values()["tensorboard"] is False


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        ("--label_smoothing_factor 0.0", "label_smoothing_factor", 0.0),
        ("--dataloader_num_workers 4", "dataloader_num_workers", 4),
        ("--label_names a b", "label_names", ["a", "b"]),
        ("--dataloader_pin_memory", "dataloader_pin_memory", True),
        ("--no_gradient_checkpointing", "gradient_checkpointing", False),
        ('--gradient_checkpointing_kwargs {"use_reentrant":false}', "gradient_checkpointing_kwargs",
         {"use_reentrant": False}),
        ('--model_init_kwargs {"dtype":"bfloat16"}', "model_init_kwargs", {"dtype": "bfloat16"}),
        ("--max_length none", "max_length", None),
        ("--report_to none", "report_to", ["none"]),
        ("--eos_token 0", "eos_token", "0"),
        ("--hub_model_id 7", "hub_model_id", "7"),
    ],
)
def test_flags_are_parsed_as_in_trl(words, name, value):
    """Also flags of fields that the engine does not have."""
    _, training, *_ = parsed(*words.split())
    assert getattr(training, name) == value


def test_the_error_for_an_unsupported_flag_has_the_reason():
    from lockstep_rl import DPOConfig

    classes = (ScriptArguments, DPOConfig, ModelConfig)
    for words, why in [
        ("--loss_type sigmoid bco_pair", "dpo_loss_type"),
        ("--sync_ref_model", "the reference never changes"),
        ("--eval_steps 1.5", "`eval_steps`: expected an integer, got 1.5"),
        ("--model_init_kwargs x", "`model_init_kwargs` must be a dict"),
        ("--model_init_kwargs {x", "invalid JSON"),
    ]:
        with pytest.raises((ValueError, TypeError), match=why):
            parsed(*words.split(), classes=classes)


def test_configurations_have_every_field_of_trl():
    """The fields are those that conformance/trl_keys_fixtures.py read from TRL's classes."""
    file = pathlib.Path(__file__).resolve().parents[2] / "crates/lockstep/tests/fixtures/trl_keys.json"
    fields = json.loads(file.read_text())
    for name in ("GRPOConfig", "RLOOConfig", "SFTConfig", "DPOConfig", "RewardConfig", "ModelConfig",
                 "ScriptArguments"):
        own = {field.name for field in dataclasses.fields(getattr(lockstep_rl, name))}
        assert not fields[name].keys() - own, name


def test_two_fields_that_set_one_key_must_agree():
    for kwargs in ({"bf16": True, "model_init_kwargs": {"dtype": "float32"}}, {"model_init_kwargs": {"dtype": "bf16"}}):
        assert SFTConfig(**kwargs).values()["dtype"] == "bf16"
    # TRL's scripts put the dtype of ModelConfig into model_init_kwargs, after --bf16 was parsed.
    _, training, model, _ = parsed("--bf16")
    training.model_init_kwargs = {"dtype": model.dtype, "revision": model.model_revision}
    assert training.values()["dtype"] == "bf16"
    both = SFTConfig(dataset_text_field="body", columns={"completion": "answer"})
    assert both.values()["columns"] == {"text": "body", "completion": "answer"}
    assert SFTConfig(loss_type="chunked_nll").values()["sft_loss_type"] == "nll"
    with pytest.raises(ValueError, match="both set sft_loss_type, to '(dft|nll)' and '(dft|nll)': keep one of them"):
        SFTConfig(sft_loss_type="dft", loss_type="nll")


def test_arguments_create_the_partial_state_of_accelerate(monkeypatch):
    """As the arguments of transformers do, if accelerate is imported."""
    states = []
    monkeypatch.setitem(sys.modules, "accelerate", types.SimpleNamespace(PartialState=lambda **how: states.append(how)))
    SFTConfig(use_cpu=True), SFTConfig()
    assert states == [{"cpu": True}, {}]


def test_push_to_hub_uploads_to_a_repository_with_the_name_of_the_run(model, place, monkeypatch):
    """The repository is private with hub_private_repo."""
    calls = []

    class Api:
        def __init__(self, token):
            calls.append(token)

        def create_repo(self, name, private, exist_ok):
            calls.append((name, private))
            return types.SimpleNamespace(repo_id=f"me/{name}")

        def create_branch(self, name, branch, exist_ok):
            calls.append((name, branch))

        def upload_folder(self, repo_id, folder_path, commit_message, revision, run_as_future):
            calls.append((repo_id, commit_message, revision, run_as_future))
            assert (pathlib.Path(folder_path) / "config.json").exists()

    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(HfApi=Api))
    rows = [{"prompt": "ab ", "completion": "ba"}]
    with pytest.warns(UserWarning, match="nothing is uploaded while training"):
        args = SFTConfig("runs/mine", push_to_hub=True, hub_private_repo=True, hub_token="t", hub_revision="dev")
    trainer = lockstep_rl.SFTTrainer(model, args, rows)
    assert trainer.hub_model_id is None and not calls
    trainer.push_to_hub(dataset_name="data")
    assert calls == ["t", ("mine", True), ("me/mine", "dev"), ("me/mine", "End of training", "dev", False)]
    assert trainer.hub_model_id == "me/mine"
    args = SFTConfig("runs/other", hub_model_id="you/it")
    calls.clear()
    lockstep_rl.SFTTrainer(model, args, rows).push_to_hub(blocking=False)
    assert calls[1] == ("you/it", None) and calls[2][2:] == (None, True)


TRL = importlib.util.find_spec("trl")
ROWS = {
    "sft": lambda word: {"prompt": f"{word} ", "completion": f"{word}."},
    "dpo": lambda word: {"prompt": f"{word} ", "chosen": word + "z", "rejected": word[::-1] + "zz"},
    "grpo": lambda word: {"prompt": f"{word} "},
}
ROWS |= {"reward": ROWS["dpo"], "rloo": ROWS["grpo"]}


@pytest.mark.torch
@pytest.mark.skipif(TRL is None, reason="trl is not installed")
@pytest.mark.parametrize("lora", [True, False], ids=["lora", "whole"])
@pytest.mark.parametrize("method", ["sft", "dpo", "reward", "grpo", "rloo"])
def test_scripts_of_trl_run_with_the_import_replaced(model, method, lora, place):
    """Only the import is changed."""
    pytest.importorskip("accelerate")
    text = (pathlib.Path(TRL.origin).parent / f"scripts/{method}.py").read_text()
    assert "from trl import" in text
    (place / "script.py").write_text(text.replace("from trl", "from lockstep_rl"))
    (place / "data").mkdir()
    for split in ("train", "test"):
        rows = [json.dumps(ROWS[method](word)) + "\n" for word in WORDS]
        (place / f"data/{split}.jsonl").write_text("".join(rows))
    (place / "mine.py").write_text("def fn(completions, **kwargs):\n    return [float(len(c)) for c in completions]\n")
    arguments = ["--model_name_or_path", model, "--dataset_name", "data", "--max_steps", "2", "--logging_steps", "1",
                 "--per_device_train_batch_size", "2", "--learning_rate", "1e-3", "--output_dir", "out",
                 "--eval_strategy", "steps", "--eval_steps", "2", "--report_to", "none", "--bf16", "False",
                 "--no_remove_unused_columns"]
    if lora:
        arguments += ["--use_peft", "--lora_r", "4", "--lora_alpha", "8"]
    if method in ("grpo", "rloo"):
        arguments += ["--reward_funcs", "mine.fn", "think_format_reward", "--num_generations", "2",
                      "--max_completion_length", "4"]
    if method == "reward" and lora:
        arguments += ["--lora_task_type", "SEQ_CLS"]
    cache = {"HF_DATASETS_CACHE": str(place / "cache")}
    said = python("script.py", *arguments, env={**os.environ, **cache}, timeout=600)
    assert said.returncode == 0, said.stderr[-3000:]
    written = "adapter_model.safetensors" if lora else "model.safetensors"
    assert "Training completed" in said.stdout and (place / "out" / written).exists()
    metrics = (place / "out/metrics.jsonl").read_text()
    assert "eval_" in metrics
