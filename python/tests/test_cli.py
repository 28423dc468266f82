"""`lockstep-rl METHOD` with the arguments of TRL's command line."""

import json
import os

import pytest
from conftest import WORDS, python

from lockstep_rl import _cli

TRL = ["--learning_rate", "1e-2", "--num-generations", "2", "--per_device_train_batch_size", "4",
       "--max_completion_length", "6", "--max_steps", "2", "--logging_steps", "1", "--threads", "1",
       "--bf16", "false", "--no-shuffle-dataset",
       "--dtype", "float32", "--gradient_checkpointing", "--use_vllm", "--vllm_mode", "colocate", "--report_to", "none"]


def write_rows(columns=lambda word: {"prompt": f"{word} "}):
    with open("rows.jsonl", "w") as file:
        file.writelines(json.dumps(columns(word)) + "\n" for word in WORDS)


def test_the_grpo_command_trains_with_the_arguments_of_trl(model):
    write_rows()
    with open("my_module.py", "w") as file:
        file.write("def fn(completions, **kwargs):\n    return [float(len(set(text))) for text in completions]\n")
    said = python("-m", "lockstep_rl", "grpo", "--model_name_or_path", model, "--dataset_name", "rows.jsonl", *TRL,
                  "--reward_funcs", "my_module.fn", "think_format_reward", "--output_dir", "out")
    assert said.returncode == 0, said.stderr
    with open("out/metrics.jsonl") as file:
        metrics = json.loads(file.readline())
    assert {"rewards/fn/mean", "rewards/think_format_reward/mean"} <= metrics.keys()
    assert os.path.exists("out/model.safetensors") and "the model is in" in said.stdout
    assert "use_vllm has no meaning here" in said.stderr


def test_the_sft_command_reads_a_yaml_file_and_flags_override_it(model):
    pytest.importorskip("yaml")
    write_rows(lambda word: {"text": word})
    with open("run.yaml", "w") as file:
        file.write(f"model_name_or_path: {model}\ndataset_name: rows.jsonl\nmax_steps: 5\nlearning_rate: 1.0e-2\n"
                   "per_device_train_batch_size: 2\noutput_dir: out\nuse_peft: true\nlora_r: 2\nenv: {SEEN: 3}\n")
    said = python("-m", "lockstep_rl", "sft", "--config", "run.yaml", "--max_steps", "1", "--threads=1")
    assert said.returncode == 0, said.stderr
    assert os.path.exists("out/adapter_config.json")
    with open("out/metrics.jsonl") as file:
        assert len(file.readlines()) == 1, "a flag overrides the file"


@pytest.mark.parametrize("arguments, words", [
    (["grpo", "--reward_funcs", "unique_chars"], "--model_name_or_path is missing"),
    (["grpo", "--model_name_or_path", "m", "--reward_funcs", "unique_chars"], "--dataset_name is missing"),
    (["grpo", "--model_name_or_path", "m", "--dataset_name", "d"], "--reward_funcs is missing"),
    (["grpo", "--model_name_or_path", "m", "--dataset_name", "d", "--reward_funcs", "no_module.fn"], "`no_module`"),
    (["grpo", "--model_name_or_path", "m", "--dataset_name", "d", "--reward_funcs", "json.no"], "has no `no`"),
    (["grpo", "--model_name_or_path", "m", "--dataset_name", "d", "--reward_funcs", "gsm8k", "--streaming"],
     "before training"),
    (["grpo", "--model_name_or_path", "m", "--dataset_name", "d", "--reward_funcs", "gsm8k", "--load_in_4bit"],
     "not quantised"),
    (["dpo", "--model_name_or_path", "/no/such", "--dataset_name", "d"], "no such file"),
    (["sft", "--model_name_or_path", "m", "--dataset_name", "d", "--max_steps", "many"], "must be an integer"),
])
def test_a_wrong_argument_prints_one_line(arguments, words, capsys):
    assert _cli.takes(arguments) and _cli.main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and words in said and len(said.splitlines()) == 1


def test_the_error_names_an_unknown_flag(capsys):
    with pytest.raises(SystemExit) as ended:
        _cli.main(["grpo", "--num_generatons", "4"])
    assert ended.value.code == 2 and "--num_generatons" in capsys.readouterr().err


def test_other_commands_are_left_to_the_program():
    assert _cli.takes(["grpo"]) and _cli.takes(["sft", "--model-name-or-path=m"])
    assert not _cli.takes(["sft", "run.toml"]) and not _cli.takes(["sft", "--model", "m", "--dataset", "d"])
    assert not _cli.takes([]) and not _cli.takes(["train", "--model_name_or_path", "m"])


def test_flags_are_parsed_to_values_of_their_types():
    values = _cli._parsed("grpo", ["--beta", "0.5", "--top_k", "3", "--log-completions", "--no_shuffle_dataset",
                                   "--lora_target_modules", "q_proj", "v_proj", "--chat_template_kwargs", '{"a": 1}'])
    assert values == {"beta": 0.5, "top_k": 3, "log_completions": True, "shuffle_dataset": False,
                      "lora_target_modules": ["q_proj", "v_proj"], "chat_template_kwargs": {"a": 1}}
