"""Writes crates/lockstep/tests/fixtures/trl_keys.json: the fields of TRL's configurations, with their defaults.

    python conformance/trl_keys_fixtures.py SITE_PACKAGES        from the repository's root

SITE_PACKAGES contains trl 1.16.0 and transformers 5.23.0 (`pip download --no-deps`, unpacked, is enough: the sources
are read, not imported). Each class has its own fields and those that it inherits; a default that is not a literal is
null.
"""

import ast
import json
import sys
from pathlib import Path

ROOT = Path(sys.argv[1])
FILES = {
    "TrainingArguments": "transformers/training_args.py",
    "_BaseConfig": "trl/trainer/base_config.py",
    "GRPOConfig": "trl/trainer/grpo_config.py",
    "RLOOConfig": "trl/trainer/rloo_config.py",
    "SFTConfig": "trl/trainer/sft_config.py",
    "DPOConfig": "trl/trainer/dpo_config.py",
    "RewardConfig": "trl/trainer/reward_config.py",
    "ModelConfig": "trl/trainer/model_config.py",
    "ScriptArguments": "trl/scripts/utils.py",
}


def default(node):
    """Returns the default of a field: a literal, or the one in `field(default=…)`."""
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg == "default":
                return default(keyword.value)
            if keyword.arg == "default_factory":
                return default(keyword.value.body) if isinstance(keyword.value, ast.Lambda) else None
        return None
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def fields(name):
    """Returns the fields of a class with their defaults. A class's own field replaces that of its parent."""
    tree = ast.parse((ROOT / FILES[name]).read_text())
    (definition,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    found = {}
    for base in definition.bases:
        found |= fields(base.id)
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and not ast.unparse(node.annotation).startswith("ClassVar"):
            found[node.target.id] = None if node.value is None else default(node.value)
    return found


result = {"made_with": {"trl": "1.16.0", "transformers": "5.23.0"}}
for name in ["GRPOConfig", "RLOOConfig", "SFTConfig", "DPOConfig", "RewardConfig", "ModelConfig", "ScriptArguments"]:
    result[name] = fields(name)
out = Path("crates/lockstep/tests/fixtures/trl_keys.json")
out.parent.mkdir(parents=True, exist_ok=True)
out.write_text(json.dumps(result, indent=1) + "\n")
