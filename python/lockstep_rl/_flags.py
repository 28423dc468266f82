"""Command-line flags made from the JSON Schemas of their values, and the conversion of their texts to values."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from ._config import alternatives


def kinds(schema: dict) -> list[str]:
    """Returns the JSON types that a value may have."""
    return [part["type"] for part in alternatives(schema) if "type" in part]


def add_flag(parser: argparse.ArgumentParser, name: str, text: str, schema: dict, default: Any = None) -> None:
    """Adds the flags `--name` and `--na-me`, and `--no_name` for a boolean that is on by default, or a field without a
    schema."""
    several = {"nargs": "+"} if "array" in kinds(schema) else {"nargs": "?", "const": "true"}
    names = list(dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"]))
    parser.add_argument(*names, dest=name, help=text.replace("%", "%%"), **several)
    if ("boolean" in kinds(schema) and default is True) or not kinds(schema):
        names = list(dict.fromkeys([f"--no_{name}", f"--no-{name.replace('_', '-')}"]))
        parser.add_argument(*names, dest=name, action="store_const", const="false", help=argparse.SUPPRESS)


def value_of(text: str | list[str], schema: dict) -> Any:
    """Converts a flag's text to the type of its schema. A text that does not fit is returned unchanged; the field's own
    check refuses it later."""
    possible = kinds(schema)
    if isinstance(text, list):
        items = next((part["items"] for part in alternatives(schema) if "items" in part), {})
        return [value_of(item, items) for item in text]
    word = text.lower()
    if word in ("true", "false", "yes", "no", "1", "0") and "boolean" in possible:
        return word in ("true", "yes", "1")
    for kind, read in (("integer", int), ("number", float), ("object", json.loads)):
        if kind in possible:
            try:
                return read(text)
            except ValueError:
                continue
    if not possible:  # a field without effect here, or a refused one
        if word in ("true", "false"):
            return word == "true"
        if word in ("none", "null"):
            return None
    return text


def read_file(path: str) -> dict:
    """Returns the arguments in a YAML file. Those below `env` are not returned, but set as environment variables."""
    try:
        import yaml
    except ImportError:
        raise ImportError("--config needs the package pyyaml: pip install pyyaml") from None
    with open(path) as file:
        values = yaml.safe_load(file)
    if not isinstance(values, dict):
        raise ValueError(f"--config {path}: expected a mapping of arguments to values")
    for name, value in (values.pop("env", None) or {}).items():
        os.environ[name] = str(value)
    return {name: value for name, value in values.items() if value is not None}
