"""What is written about the package is the package."""

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
    pytest.skip("the repository's documentation is not beside the tests", allow_module_level=True)


def test_the_tables_and_stubs_are_current():
    said = python(os.fspath(ROOT / "python/tools/generate.py"), "--check")
    assert said.returncode == 0, said.stderr


def test_every_field_has_its_row():
    text = (ROOT / "docs/python/fields.md").read_text()
    for method in ("GRPO", "RLOO", "PPO", "SFT", "DPO", "Reward"):
        fields = getattr(lockstep_rl, f"{method}Config")._fields
        missing = [name for name in fields if f"| `{name}` |" not in text]
        assert not missing, missing


def names_of(stub):
    """The names that a stub declares, methods of classes with a dot."""
    names = set()
    for node in ast.parse(stub.read_text()).body:
        if isinstance(node, ast.ClassDef):
            own = {inner.name for inner in node.body if isinstance(inner, ast.FunctionDef)} - {"__init__"}
            names |= {node.name, *(f"{node.name}.{name}" for name in own)}
        elif isinstance(node, ast.FunctionDef):
            names.add(node.name)
    return names


def test_the_stub_of_the_engine_names_what_there_is():
    there = {name for name in dir(_native) if not name.startswith("_")}
    for name in sorted(there):
        member = getattr(_native, name)
        if isinstance(member, type):
            there |= {f"{name}.{inner}" for inner in vars(member) if not inner.startswith("_")}
    assert names_of(PACKAGE / "_native.pyi") == there
    assert (PACKAGE / "py.typed").exists()


@pytest.mark.parametrize("name", ["first_run", "your_own_reward", "reading_a_run"])
def test_notebooks_are_whole_and_without_outputs(name):
    notebook = json.loads((ROOT / f"docs/python/notebooks/{name}.ipynb").read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert code and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    for cell in code:
        ast.parse("".join(cell["source"]))


@pytest.mark.parametrize("page", ["docs/python/from-trl.md", "python/README.md"])
def test_what_a_page_imports_exists(page):
    blocks = (ROOT / page).read_text().split("```python")[1:]
    imports = [line for block in blocks for line in block.partition("```")[0].splitlines() if "lockstep_rl" in line]
    imports = [line.partition("#")[0] for line in imports if line.startswith("from lockstep_rl")]
    assert imports
    for line in imports:
        exec(line, {})
