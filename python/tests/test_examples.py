"""Scripts of TRL users, with only the import changed. Models and data are tiny and local."""

import json
import os
import pathlib
import shutil

import pytest
from conftest import python
from recorded import lines

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"
QUESTIONS = [
    {"question": f"What is {a} + {b}?", "answer": f"{a} + {b} = {a + b}\n#### {a + b}"}
    for a in range(4)
    for b in (1, 2)
]


def run(script, **values):
    return python(os.fspath(script), env={**os.environ, **values})


def logged(directory):
    with open(os.path.join(directory, "metrics.jsonl")) as file:
        return [json.loads(line) for line in file]


def test_the_quickstart_example_runs(bytes_model):
    with open("rows.jsonl", "w") as file:
        for a in range(8):
            prompt = [{"role": "user", "content": f"{a} + 1 = ?"}]
            file.write(json.dumps({"prompt": prompt, "solution": f"${a + 1}$"}) + "\n")
    said = run(EXAMPLES / "quickstart.py", MODEL=bytes_model, DATA="rows.jsonl", STEPS="2", TOKENS="16")
    assert said.returncode == 0, said.stderr
    assert "rewards/accuracy_reward/mean" in logged("quickstart")[0]


def test_the_two_turns_example_masks_the_answers_of_the_game(bytes_model):
    said = run(EXAMPLES / "two_turns.py", MODEL=bytes_model, STEPS="2", TOKENS="4")
    assert said.returncode == 0, said.stderr
    assert "rewards/near/mean" in logged("two-turns")[0]
    for line in lines("two-turns/rollouts.bin"):
        # Tokens of the game, such as " That is no number. Guess:", are between tokens of the model.
        begin, end = line["mask"].index(False), len(line["mask"]) - line["mask"][::-1].index(False)
        assert 0 < begin < end < len(line["mask"]) and not any(line["mask"][begin:end]), line["mask"]


def test_the_gsm8k_example_logs_all_its_rewards(bytes_model):
    with open("gsm8k.jsonl", "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in QUESTIONS)
    said = run(EXAMPLES / "gsm8k_xml.py", MODEL=bytes_model, DATA="gsm8k.jsonl", STEPS="2", TOKENS="16")
    assert said.returncode == 0, said.stderr
    metrics = logged("gsm8k-xml")[1]
    names = ["xmlcount", "soft_format", "strict_format", "int", "correctness"]
    assert all(f"rewards/{name}_reward/mean" in metrics for name in names)
    assert os.path.exists("gsm8k-xml/model/adapter_model.safetensors")


SHARED = pathlib.Path(os.environ.get("LOCKSTEP_SHARED", pathlib.Path(__file__).parents[3] / "shared"))
# Stand-ins for what the O-GRPO script uses of torch and transformers; a model is only its directory.
WITHOUT_TORCH = """
import contextlib, shutil, sys, types
# Both check for torch when they are imported, and work without it.
import datasets, transformers

class Model:
    def __init__(self, name):
        self.name_or_path = name

    def eval(self):
        return self

    def save_pretrained(self, directory):
        shutil.copytree(self.name_or_path, directory, dirs_exist_ok=True)

class AutoModelForCausalLM:
    @staticmethod
    def from_pretrained(name, torch_dtype, device_map):
        assert torch_dtype is None and device_map is None, "expected the arguments for a machine without GPU"
        return Model(name)

torch = types.ModuleType("torch")
torch.cuda = types.SimpleNamespace(is_available=lambda: False)
torch.float16 = "float16"
grad_enabled = [True]

@contextlib.contextmanager
def no_grad():
    grad_enabled[0] = False
    yield
    grad_enabled[0] = True

# Types that `datasets` checks for when it computes hashes.
torch.Tensor, torch.Generator = type("Tensor", (), {}), type("Generator", (), {})
torch.nn = types.SimpleNamespace(Module=type("Module", (), {}))
torch.no_grad = no_grad
torch.is_grad_enabled = lambda: grad_enabled[0]
transformers.AutoModelForCausalLM = AutoModelForCausalLM
sys.modules["torch"] = torch
"""


def test_the_o_grpo_script_runs_without_torch(bytes_model, place):
    """Only the import and the data are changed. test_torch.py runs the same script with torch."""
    script = SHARED / "data/scripts/train_grpo_v100.py"
    if not script.exists() and os.environ.get("CI") != "true":
        pytest.skip(f"{script} is missing")
    if os.environ.get("CI") != "true":
        pytest.importorskip("datasets")
        pytest.importorskip("transformers")
    text = script.read_text()
    for ours, theirs in [("from lockstep_rl import", "from trl import"),
                         ('"json", data_files="rows.jsonl"', '"trl-lib/chatbot_arena_completions"')]:
        assert text.count(theirs) == 1
        text = text.replace(theirs, ours)
    (place / "script.py").write_text(f"{WITHOUT_TORCH}\n{text}")
    (place / "rows.jsonl").write_text('{"prompt": "Hello there"}\n' * 8)
    said = run("script.py", MODEL=bytes_model, MAX_NEW_TOKENS="8", MAX_SAMPLES="8")
    assert said.returncode == 0, said.stderr
    assert "[train(grpo)]" in said.stdout
    assert "`gen_kwargs` is deprecated" in said.stderr and "train() is called under torch.no_grad()" in said.stderr
    # Lines with alarms have no metrics.
    metrics = [line for line in logged("model-GRPO") if "rewards/reward_unique_chars/mean" in line]
    assert metrics[-1]["step"] == 3 * 8 and metrics[-1]["completions/max_length"] <= 8
    with open("model-GRPO/config.toml") as file:
        config = file.read()
    assert all(line in config for line in ["top_p = 0.9", "temperature = 0.7", "repetition_penalty = 1.05"])


def test_rewards_of_the_gsm8k_example_have_the_expected_scores():
    demo = {"__name__": "demo"}
    exec((EXAMPLES / "gsm8k_xml.py").read_text(), demo)
    whole = "<reasoning>\n1 + 1\n</reasoning>\n<answer>\n2\n</answer>\n"
    loose = "well <reasoning>1</reasoning> <answer>two</answer> and more"
    completions = [[{"content": text}] for text in (whole, loose, "2")]
    says = {name: demo[f"{name}_reward"] for name in ("xmlcount", "soft_format", "strict_format", "int")}
    assert demo["correctness_reward"](completions, answer=["2", "2", "2"]) == [2.0, 0.0, 2.0]
    assert says["int"](completions) == [0.5, 0.0, 0.5]
    assert says["strict_format"](completions) == [0.5, 0.0, 0.0]
    assert says["soft_format"](completions) == [0.5, 0.5, 0.0]
    assert says["xmlcount"](completions) == pytest.approx([0.5, 0.492, 0.0])
