"""Generates files from the package itself: `docs/python/fields.md` (what each field of TRL's configurations does),
`docs/python/api.md` (the public names), and the type stubs of the configuration classes. With `--check`, it writes
nothing and names the files that would change."""

import dataclasses
import inspect
import pathlib
import sys

import lockstep_rl
from lockstep_rl import _config

ROOT = pathlib.Path(__file__).resolve().parents[2]
METHODS = {"grpo": "GRPO", "rloo": "RLOO", "ppo": "PPO", "sft": "SFT", "dpo": "DPO", "reward": "Reward"}
CLASSES = {name: getattr(lockstep_rl, f"{label}Config") for name, label in METHODS.items()}

FIELDS = """# Fields of TRL's configurations

Made by `python python/tools/generate.py` from the engine's table of keys, which `lockstep config explain` reads, too; a
test keeps it current. Every field of TRL 1.16.0's `GRPOConfig`, `RLOOConfig`, `SFTConfig`, `DPOConfig` and
`RewardConfig` and of transformers 5.23.0's `TrainingArguments` is here.

- **supported**: it does what it does in TRL; fields without a TRL name are the engine's own.
- **no meaning here**: accepted, and said once where it is set.
- **refused**: setting it is a `ValueError`, which says what to do instead; values that ask for nothing are accepted.
"""
API = """# Python: the public names

Made by `python python/tools/generate.py` from the package's own documentation; a test keeps it current. The fields of
the configuration classes are in [fields.md](fields.md), what graders score in [rewards.md](../rewards.md).
"""


def main() -> int:
    files = {
        ROOT / "docs/python/fields.md": fields(),
        ROOT / "docs/python/api.md": api(),
        ROOT / "python/lockstep_rl/_config.pyi": stubs(),
    }
    if "--check" in sys.argv:
        stale = [str(path.relative_to(ROOT)) for path, text in files.items() if not is_current(path, text)]
        if stale:
            print(f"python python/tools/generate.py would change {', '.join(stale)}", file=sys.stderr)
        return 1 if stale else 0
    for path, text in files.items():
        path.write_text(text)
    return 0


def is_current(path: pathlib.Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


def cell(text: object) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")


def fields() -> str:
    """Returns `docs/python/fields.md`: one table for each status, with the classes that have each field."""
    rows: dict[tuple, list[str]] = {}
    for method, label in METHODS.items():
        for name, field in CLASSES[method]._fields.items():
            status = field.status if name not in _config._SPECIAL or field.status == "supported" else "mapped"
            default = repr(field.default) if field.status == "supported" else ""
            rows.setdefault((status, name, default, field.doc), []).append(label)
    out = [FIELDS]
    titles = {"supported": "Supported", "mapped": "Supported by another field", "alias": "TRL's name of another field",
              "ignored": "No meaning here", "refused": "Refused"}
    for status, title in titles.items():
        out.append(f"\n## {title}\n")
        heads = ("field", "classes", "default", "meaning") if status == "supported" else ("field", "classes", "answer")
        out.append("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
        for (_, name, default, doc), labels in sorted(row for row in rows.items() if row[0][0] == status):
            classes = "all" if len(labels) == len(METHODS) else ", ".join(labels)
            doc = _config.MAPPED.get(name, doc) if status == "mapped" else doc
            cells = [f"`{name}`", classes, *([f"`{default}`"] if status == "supported" else []), doc]
            out.append("| " + " | ".join(map(cell, cells)) + " |")
    out += ["\n## Of `AsyncGRPOConfig`\n", "All of `GRPOConfig`'s, and:\n"]
    out += ["| field | default | meaning |\n|---|---|---|"]
    for name, field in async_fields().items():
        default = f"`{field.default!r}`" if field.status == "supported" else ""
        out.append("| " + " | ".join(map(cell, (f"`{name}`", default, field.doc))) + " |")
    return "\n".join(out) + "\n"


def async_fields() -> dict:
    """Returns the fields of AsyncGRPOConfig that GRPOConfig lacks, or that have another default there."""
    plain = _config.GRPOConfig._fields
    fields = _config.AsyncGRPOConfig._fields.items()
    return {name: field for name, field in fields if name not in plain or plain[name].default != field.default}


def signature(member: object) -> str:
    try:
        text = str(inspect.signature(member))
    except (TypeError, ValueError):
        return "(…)"
    text = text.replace("'", "").replace("typing.", "").replace("lockstep_rl.", "")
    return text.replace("(self, ", "(").replace("(self)", "()")


def entry(level: str, name: str, member: object) -> list[str]:
    shown = signature(member) if callable(member) else ""
    return [f"\n{level} `{name}{shown}`\n", inspect.getdoc(member) or ""]


def members(cls: type, own: type) -> list[str]:
    """Returns the entries of a class's public methods and properties, if the class or a base of this package, other
    than `own`, defines them."""
    out = []
    for name, value in inspect.getmembers(cls):
        home = next((base for base in cls.__mro__ if name in vars(base)), object)
        is_ours = home.__module__.startswith("lockstep_rl") and home is not own
        if is_ours and not name.startswith("_") and (isinstance(value, property) or inspect.isfunction(value)):
            out += entry("###", f"{cls.__name__}.{name}", value)
    return out


def api() -> str:
    out = [API]
    base = lockstep_rl.GRPOTrainer.__mro__[1]
    for name in lockstep_rl.__all__:
        member = getattr(lockstep_rl, name)
        if inspect.ismodule(member):
            out += [f"\n## `lockstep_rl.{name}`\n", inspect.getdoc(member) or ""]
            for inner in member.__all__:
                value = getattr(member, inner)
                if isinstance(value, lockstep_rl.rewards.Builtin):
                    out += [f"\n### `{inner}`\n", f"The engine's `{value.kind}`."]
                else:
                    out += entry("###", inner, value)
        elif inspect.isclass(member) and name.endswith("Config"):
            out += [f"\n## `{name}`\n", inspect.getdoc(member) or ""]
        elif inspect.isclass(member):
            out += entry("##", name, member)
            out += [] if issubclass(member, tuple) else members(member, base)
        elif callable(member):
            out += entry("##", name, member)
    out += ["\n## Every trainer\n", "What the trainers above have, too."]
    out += [line.replace("### `Trainer.", "### `") for line in members(base, object)]
    return "\n".join(out) + "\n"


def kind(cls: type, field: dataclasses.Field) -> str:
    """Returns the type of a field's values; Any if they may have several types."""
    name = field.type.__name__ if isinstance(field.type, type) and "[" not in str(field.type) else str(field.type)
    return "Any" if field.name in _config._SPECIAL or "dict" in name else name


def stubs() -> str:
    """Returns the type stubs. The configuration classes are generated at import, so type checkers cannot read them
    elsewhere."""
    out = ['"""Made by `python python/tools/generate.py`; a test keeps it current."""\n', "import dataclasses",
           "from typing import Any\n", "class _Config:", "    method: str",
           "    def values(self) -> dict[str, Any]: ...", "    def to_dict(self) -> dict[str, Any]: ...",
           "    def to_json_string(self) -> str: ...\n"]
    for cls in CLASSES.values():
        out += ["@dataclasses.dataclass", f"class {cls.__name__}(_Config):"]
        out += [f"    {field.name}: {kind(cls, field)} = ..." for field in dataclasses.fields(cls)]
        out.append("")
    out += ["@dataclasses.dataclass", "class AsyncGRPOConfig(GRPOConfig):"]
    own = [field for field in dataclasses.fields(_config.AsyncGRPOConfig) if field.name in async_fields()]
    out += [f"    {field.name}: {kind(_config.AsyncGRPOConfig, field)} = ..." for field in own]
    out.append("")
    out += ["def field_table(method: str) -> list[dict[str, Any]]: ...", "def __getattr__(name: str) -> Any: ..."]
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    sys.exit(main())
