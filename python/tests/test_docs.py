"""The documentation matches the package."""

import ast
import json
import os
import pathlib

import pytest
from conftest import python

import lockstep_rl
from lockstep_rl import _native

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = pathlib.Path(lockstep_rl.__file__).parent

if not (ROOT / "docs/python").exists():
    pytest.skip("the repository's documentation is missing", allow_module_level=True)


def test_generated_tables_and_stubs_are_up_to_date():
    said = python(os.fspath(ROOT / "python/tools/generate.py"), "--check")
    assert said.returncode == 0, said.stderr


def test_the_table_of_fields_has_every_field():
    text = (ROOT / "docs/python/fields.md").read_text()
    for method in ("GRPO", "RLOO", "PPO", "SFT", "DPO", "Reward"):
        fields = getattr(lockstep_rl, f"{method}Config")._fields
        missing = [name for name in fields if f"| `{name}` |" not in text]
        assert not missing, missing


def test_every_difference_from_trl_names_an_existing_test():
    text = (ROOT / "docs/python/from-trl.md").read_text()
    table = text.split("| here | in TRL 1.16 | why | shown by |")[1].split("\n\n")[0].splitlines()[2:]
    assert len(table) >= 10
    for line in table:
        shown = line.rstrip("| ").rpartition("| ")[2]
        if shown.startswith(("`trl_matrix`", "`trl_suite`")):
            assert (ROOT / "conformance" / shown.split("`")[1] / "run.py").exists()
            continue
        file, name = shown.strip("`").split("::")
        assert f"def {name}(" in (ROOT / "python/tests" / file).read_text(), shown


def names_of(stub):
    """Returns the names that a stub declares, with methods as `Class.method`."""
    names = set()
    for node in ast.parse(stub.read_text()).body:
        if isinstance(node, ast.ClassDef):
            own = {inner.name for inner in node.body if isinstance(inner, ast.FunctionDef)} - {"__init__"}
            names |= {node.name, *(f"{node.name}.{name}" for name in own)}
        elif isinstance(node, ast.FunctionDef):
            names.add(node.name)
    return names


def test_the_stub_of_the_native_module_declares_all_its_names():
    there = {name for name in dir(_native) if not name.startswith("_")}
    for name in sorted(there):
        member = getattr(_native, name)
        if isinstance(member, type):
            there |= {f"{name}.{inner}" for inner in vars(member) if not inner.startswith("_")}
    assert names_of(PACKAGE / "_native.pyi") == there
    assert (PACKAGE / "py.typed").exists()


@pytest.mark.parametrize("name", ["first_run", "your_own_reward", "reading_a_run"])
def test_notebooks_are_valid_and_have_no_outputs(name):
    notebook = json.loads((ROOT / f"docs/python/notebooks/{name}.ipynb").read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert code and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    for cell in code:
        ast.parse("".join(cell["source"]))


@pytest.mark.parametrize("page", ["docs/python/from-trl.md", "python/README.md"])
def test_imports_in_a_page_work(page):
    blocks = (ROOT / page).read_text().split("```python")[1:]
    imports = [line for block in blocks for line in block.partition("```")[0].splitlines() if "lockstep_rl" in line]
    imports = [line.partition("#")[0] for line in imports if line.startswith("from lockstep_rl")]
    assert imports
    for line in imports:
        exec(line, {})


# Names of the Hub and placeholders in pages, and their replacements in this test.
OWN = {
    '"Qwen/Qwen2.5-0.5B-Instruct"': "model_directory",
    "{\"prompt\": \"My name is\"}, ...]": "{\"prompt\": \"My name is\"}] * 8",
    "max_steps=100": "max_steps=1",
    '"out", num_generations=8)': '"out", num_generations=8, max_completion_length=8, max_steps=1)',
}


class Environment:
    @staticmethod
    def reply(ids):
        return "so?"


def blocks_of(page):
    blocks = [block.partition("```")[0] for block in (ROOT / page).read_text().split("```python\n")[1:]]
    return [block for block in blocks if not block.startswith("from trl import")]


@pytest.mark.parametrize("page, at", [
    (page, at) for page in ("python/README.md", "docs/python/from-trl.md") for at in range(len(blocks_of(page)))
])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_code_blocks_in_a_page_run(bytes_model, page, at):
    text = blocks_of(page)[at]
    for theirs, ours in OWN.items():
        text = text.replace(theirs, ours)
    rows = [{"prompt": f"{i} + 1 = ", "completion": str(i + 1)} for i in range(16)]
    names = {name: getattr(lockstep_rl, name) for name in lockstep_rl.__all__}
    names |= {
        "model_directory": bytes_model, "rows": rows, "held_out": rows[:4], "score": len, "batches": [["a", "b"]],
        "dataset": [{"prompt": "1 + 1 = ", "solution": "$2$"}] * 8, "environment": Environment,
        "model_tokens_of": lambda text: list(text.encode()),
    }
    try:
        exec(compile(text, f"{page}, block {at}", "exec"), names)
    except ImportError as error:
        if "numpy" not in str(error):
            raise
        pytest.skip("needs NumPy")
    if "play" in names:
        args = lockstep_rl.GRPOConfig("played", num_generations=2, per_device_train_batch_size=4, max_steps=1,
                                      max_completion_length=80)
        trainer = lockstep_rl.GRPOTrainer(bytes_model, len_of, args, rows, rollout_func=names["play"])
        assert trainer.train().global_step == 1


def len_of(completions, **kwargs):
    return [float(len(text)) for text in completions]
