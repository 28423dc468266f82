# How values travel between the judge and the program: JSON, with an object of one key for what JSON lacks. Only
# built-in types arrive, so that no comparison runs code of the program; `keep` names what has no such form.
import json


def encode(value, keep):
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        number = int(value)
        return number if abs(number) < 2**53 else {"int": hex(number)}
    if isinstance(value, float):
        return {"float": float(value).hex()}
    if isinstance(value, complex):
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, list):
        return [encode(item, keep) for item in value]
    for tag, kind in (("tuple", tuple), ("set", set), ("frozenset", frozenset)):
        if isinstance(value, kind):
            return {tag: [encode(item, keep) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[encode(key, keep), encode(item, keep)] for key, item in value.items()]}
    return {"kept": keep(value)}


def decode(value, kept):
    if isinstance(value, list):
        return [decode(item, kept) for item in value]
    if not isinstance(value, dict):
        return value
    ((tag, inner),) = value.items()
    if tag in ("tuple", "set", "frozenset"):
        return {"tuple": tuple, "set": set, "frozenset": frozenset}[tag](decode(item, kept) for item in inner)
    if tag == "dict":
        return {decode(key, kept): decode(item, kept) for key, item in inner}
    if tag == "int":
        return int(inner, 16)
    if tag == "float":
        return float.fromhex(inner)
    if tag == "complex":
        return complex(float.fromhex(inner[0]), float.fromhex(inner[1]))
    if tag == "bytes":
        return bytes.fromhex(inner)
    if tag == "kept":
        return kept(inner)
    raise ValueError("no value: " + tag)


