"""Helpers of the comparisons with other programs: processes that print JSON, interleaved pairs and their ratios,
tables."""

import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile


def run(command, stdin=None, may_fail=False, **environment):
    """Runs `command` and returns the JSON that it prints (its whole output, or the last line), with the peak of its
    resident memory as `peak_rss_bytes`. If the command fails, returns None with `may_fail`, and otherwise exits."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = subprocess.Popen(
            [str(c) for c in command], stdin=subprocess.PIPE, stdout=out, stderr=err, text=True, env=os.environ | environment
        )
        if stdin:
            child.stdin.write(stdin)
        child.stdin.close()
        _, status, usage = os.wait4(child.pid, 0)  # the usage of this child alone, unlike RUSAGE_CHILDREN
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0), err.seek(0)
        if child.returncode and may_fail:
            return None
        if child.returncode:
            sys.exit(f"{' '.join(str(c) for c in command)}\nfailed ({child.returncode}):\n{err.read()[-2000:]}")
        text = out.read()
    try:
        said = json.loads(text)
    except json.JSONDecodeError:
        said = json.loads(text.strip().splitlines()[-1])
    return said | dict(peak_rss_bytes=usage.ru_maxrss * 1024)


def interleaved(ours, theirs, pairs, key, higher_is_better):
    """Runs `ours` and `theirs` alternately. The order changes with each pair, so a machine that slows down or speeds up
    favours neither. Returns the results of both and the ratios of `key`; a ratio above 1 means that ours is better."""
    mine, peers, ratios = [], [], []
    for pair in range(pairs):
        if pair % 2 == 0:
            mine.append(ours())
            peers.append(theirs())
        else:
            peers.append(theirs())
            mine.append(ours())
        a, b = mine[-1][key], peers[-1][key]
        ratios.append(a / b if higher_is_better else b / a)
        print(f"  pair {pair + 1}: {a:.4g} against {b:.4g}, ratio {ratios[-1]:.2f}", file=sys.stderr, flush=True)
    return mine, peers, ratios


def interval(values):
    """Returns a confidence interval of the median (low, high, probability): the narrowest symmetric pair of order
    statistics that contains the median with 95 % probability, whatever the distribution. The probability is smaller
    with fewer than six values."""
    values, n = sorted(values), len(values)
    outside = lambda k: 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n  # noqa: E731
    k = 0
    while k + 1 < (n + 1) // 2 and outside(k + 1) <= 0.05:
        k += 1
    return values[k], values[n - 1 - k], max(0.0, 1 - outside(k))


def middle(results, key):
    return statistics.median(r[key] for r in results)


def summary(ratios):
    low, high, coverage = interval(ratios)
    return dict(ratio=statistics.median(ratios), low=low, high=high, coverage=coverage, ratios=ratios)


def ratio_cell(s):
    return f"{s['ratio']:.2f} ({s['low']:.2f} – {s['high']:.2f})"


def table(headings, rows):
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def machine():
    """Describes the processor and the load on it, because measurements on a busy machine are less reliable."""
    info = open("/proc/cpuinfo").read() if os.path.exists("/proc/cpuinfo") else ""
    name = re.search(r"model name\s*:\s*(.*)", info)
    flags = [f for f in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if re.search(rf"\b{f}\b", info)]
    return dict(
        processor=name[1] if name else "unknown", flags=flags, cores=os.cpu_count(), load_at_start=os.getloadavg()[0]
    )
