"""Reads recorded rollouts (rollouts.bin) in pure Python. Their format: crates/lockstep/src/rollouts/wire."""

import struct


def varints(data):
    values, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            values.append(value)
            value = shift = 0
    return values


def texts(data):
    found = []
    while data:
        end = next(i for i, byte in enumerate(data) if byte < 128) + 1
        (length,) = varints(data[:end])
        found.append(data[end : end + length].decode())
        data = data[end + length :]
    return found


def runs(data):
    pairs = varints(data)
    return [value for value, times in zip(pairs[::2], pairs[1::2], strict=True) for _ in range(times)]


KINDS = {
    1: varints,
    2: lambda data: [x for (x,) in struct.iter_unpack("<f", data)],
    3: lambda data: [x for (x,) in struct.iter_unpack("<d", data)],
    4: runs,
    5: texts,
    6: bytes,
}


def directory(body):
    at = next(i for i, byte in enumerate(body) if byte < 128) + 1
    for _ in range(varints(body[:at])[0]):
        name_end = at + 1 + body[at]
        name, kind = body[at + 1 : name_end].decode(), body[name_end] & 127
        at = name_end + 1
        numbers = []
        for _ in range(2):
            end = next(i for i in range(at, len(body)) if body[i] < 128) + 1
            numbers += varints(body[at:end])
            at = end
        yield name, kind, *numbers, at


def groups(path):
    """Yields the columns of each group by name. (The XXH3 checksum is not verified: Python has no XXH3.)"""
    with open(path, "rb") as file:
        while header := file.read(16):
            magic, length, _checksum = struct.unpack("<4sIQ", header)
            assert magic == b"LSG\x01", magic
            body, columns = file.read(length), {}
            listed = list(directory(body))
            at = listed[-1][-1]
            for name, kind, _width, size, _ in listed:
                columns[name] = KINDS[kind](body[at : at + size])
                at += size
            yield columns


def lines(path):
    """Returns the completions, with the field names of `lockstep rollouts`."""
    found = []
    for group in groups(path):
        end, count = 0, len(group["lengths"])
        scores, rewards = iter(group["scores"]), len(group["reward_names"])
        inserted = group.get("inserted", [0] * len(group["ids"]))
        for i, length in enumerate(group["lengths"]):
            span, end = slice(end, end + length), end + length
            scored = group["scored"][i * rewards : (i + 1) * rewards]
            found.append({
                "step": group["step"][0],
                "prompt_ids": group["prompt_ids"],
                "completion_ids": group["ids"][span],
                "rewards": [next(scores) if there else None for there in scored],
                "reward_names": group["reward_names"],
                "logprobs": group["token.sampler_logps"][span],
                "truncated": group["finish_reasons"][i] == 1,
                "generation": group.get("generations", range(count))[i],
            })
            if any(inserted[span]):
                found[-1]["mask"] = [not token for token in inserted[span]]
    return found
