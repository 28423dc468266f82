"""Command-line flags generated from JSON Schemas, and the conversion of their strings to values."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from ._config import alternatives


def kinds(schema: dict) -> list[str]:
    """Returns the JSON types that a value may have."""
    return [part["type"] for part in alternatives(schema) if "type" in part]


def add_flag(
    parser: argparse.ArgumentParser, name: str, text: str, schema: dict, aliases: list[str] | tuple = ()
) -> None:
    """Returns `--name`, `--na-me`, aliases, and `--no_name` for a flag that may be on by default, here or in TRL."""
    possible = kinds(schema)
    if not possible:  # a field without effect here, or a refused one: as TRL reads it
        several: dict = {"nargs": "*"}
    else:
        several = {"nargs": "+"} if "array" in possible else {"nargs": "?", "const": "true"}
    names = list(dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}", *aliases]))
    parser.add_argument(*names, dest=name, help=text.replace("%", "%%"), **several)
    if "boolean" in possible or not possible:
        names = list(dict.fromkeys([f"--no_{name}", f"--no-{name.replace('_', '-')}"]))
        parser.add_argument(*names, dest=name, action="store_const", const="false", help=argparse.SUPPRESS)


def value_of(text: Any, schema: dict) -> Any:
    """Converts a string of a flag or of a file to the type in its schema. A string that does not fit is returned
    unchanged, and refused later. Other values of a file are returned unchanged."""
    possible = kinds(schema)
    if isinstance(text, list):
        if not possible and len(text) < 2:
            return value_of(text[0], schema) if text else True
        items = next((part["items"] for part in alternatives(schema) if "items" in part), {})
        return [value_of(item, items) for item in text]
    if not isinstance(text, str):
        return text
    word = text.lower()
    words = [word for part in alternatives(schema) for word in part.get("enum", [])]
    if word in ("none", "null") and "string" not in possible and word not in words:
        return None
    if word in ("true", "false", "yes", "no", "1", "0") and "boolean" in possible:
        return word in ("true", "yes", "1")
    for kind, read in (("integer", int), ("number", float), ("object", json.loads)):
        if kind in possible:
            try:
                return read(text)
            except ValueError:
                continue
    if not possible and word in ("true", "false"):
        return word == "true"
    if not set(possible) & {"string", "object", "array"}:
        # Keeps the value's own type, for error messages and for values that are equivalent to unset.
        try:
            value = json.loads(text)
        except ValueError:
            return text
        return text if isinstance(value, str) else value
    return text


def read_file(path: str) -> dict:
    """Returns the arguments in a YAML file. Those below `env` are set as environment variables instead."""
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
