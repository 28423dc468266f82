"""What both comparisons need: processes that print JSON, ratios of interleaved pairs, tables. Knows neither peer."""

import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile


def run(command, stdin=None, may_fail=False, **environment):
    """What `command` prints, as JSON (the whole, or its last line), and its peak of resident memory under `peak_rss_bytes`.
    If it fails, so do we, or there is None where it `may_fail`."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = subprocess.Popen(
            [str(c) for c in command], stdin=subprocess.PIPE, stdout=out, stderr=err, text=True, env=os.environ | environment
        )
        if stdin:
            child.stdin.write(stdin)
        child.stdin.close()
        _, status, usage = os.wait4(child.pid, 0)  # unlike RUSAGE_CHILDREN: this child alone
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
    """Runs `ours` and `theirs` in turns; each pair begins with the other one, so that a machine that slows down or speeds
    up favours neither. Returns the results of both and the ratios by `key`, above 1 where we are better."""
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
    """The narrowest symmetric pair of order statistics that holds the median with 95 % probability, whatever the
    distribution: low, high, and the probability, which is smaller where there are fewer than six values."""
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
    """The processor in words, and what else ran on it: figures of a busy machine say so."""
    info = open("/proc/cpuinfo").read() if os.path.exists("/proc/cpuinfo") else ""
    name = re.search(r"model name\s*:\s*(.*)", info)
    flags = [f for f in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if re.search(rf"\b{f}\b", info)]
    return dict(
        processor=name[1] if name else "unknown", flags=flags, cores=os.cpu_count(), load_at_start=os.getloadavg()[0]
    )
