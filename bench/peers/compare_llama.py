"""Compares the rollout of Lockstep with llama.cpp's: same weights, prompt, completions, tokens and threads.

    python compare_llama.py --lockstep target/release/lockstep --model DIR --work DIR [--dtype f32] [--completions 1,8,64] …

First the script checks that both programs compute the same model. Greedy completions of a pretrained model (--stories)
must be equal token by token, and Lockstep must give llama.cpp's greedy completion of DIR the same log-probabilities.
Then it searches llama.cpp's settings for each number of completions: flash attention, type of keys and values, one
cache or one per sequence. The fastest settings are measured in interleaved pairs with Lockstep. Each measurement is a
process of its own that first makes an unmeasured rollout. Decoding is greedy: for llama.cpp this is an argmax over its
logits, for Lockstep also the log-probability that training needs.
"""

import argparse
import itertools
import json
import random
import sys
from pathlib import Path

import pairs
from to_gguf import convert

here = Path(__file__).parent
parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--lockstep", required=True, help="the program")
parser.add_argument("--model", type=Path, required=True, help="Hugging Face directory with f32 weights")
parser.add_argument("--work", type=Path, required=True, help="directory for GGUF files and prompts")
parser.add_argument("--stories", type=Path, help="a pretrained model with its tokenizer, for the check of greedy tokens")
parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32", help="weights of both")
parser.add_argument("--completions", default="1,8,64")
parser.add_argument("--prompt-length", type=int, default=512)
parser.add_argument("--new-tokens", type=int, default=128)
parser.add_argument("--pairs", type=int, default=7)
parser.add_argument("--threads", type=int, required=True)
parser.add_argument("--search-tokens", type=int, default=17, help="new tokens of the runs that search the peer's settings")
parser.add_argument("--json", action="store_true")
args = parser.parse_args()
args.work.mkdir(parents=True, exist_ok=True)


def say(text):
    print(text, file=sys.stderr, flush=True)


# Lockstep computes in f32 unless a flag says bf16.
dtype = [] if args.dtype == "f32" else ["--dtype", args.dtype]


def gguf_of(model, dtype):
    file = args.work / f"{model.name}-{dtype}.gguf"
    if not file.exists() or file.stat().st_mtime < max(f.stat().st_mtime for f in model.glob("*.safetensors")):
        convert(model, file, dtype)
    return file


def peer(gguf, prompt, completions, new_tokens, settings, *more, may_fail=False):
    command = [sys.executable, here / "llama_rollout.py", "--gguf", gguf, "--prompt-ids", prompt, "--threads", args.threads]
    return pairs.run([*command, "--completions", completions, "--new-tokens", new_tokens, *settings, *more], may_fail=may_fail)


def ours(prompt, completions):
    command = [args.lockstep, "bench", "rollout", "--model", args.model, "--prompt-ids", prompt, "--threads", args.threads]
    said = pairs.run([*command, "--completions", completions, "--new-tokens", args.new_tokens, *dtype, "--json"])
    return said["rows"][0] | dict(peak_rss_bytes=said["peak_rss_bytes"])


def check_stories(model, tokens=128):
    """Checks that both programs give the same greedy tokens for a pretrained model in f32."""
    generate = [args.lockstep, "generate", "--model", model, "--raw", "--temperature", 0, "--json", "--threads", args.threads]
    mine = pairs.run([*generate, "--prompt", "Once upon a time", "--max-new-tokens", tokens])
    prompt = args.work / "stories-prompt.json"
    prompt.write_text(json.dumps(mine["prompt_ids"]))
    wanted = mine["completion_ids"]
    theirs = peer(gguf_of(model, "f32"), prompt, 3, len(wanted), ["--kv", "f32"], "--logprobs")
    largest = max(abs(a - b) for a, b in zip(mine["logprobs"], theirs["logprobs"]))
    if theirs["ids"] != wanted or not theirs["same"]:
        first = next((i for i, (a, b) in enumerate(zip(wanted, theirs["ids"])) if a != b), None)
        sys.exit(f"{model}: greedy tokens differ from token {first} on:\nlockstep  {wanted}\nllama.cpp {theirs['ids']}")
    say(f"{model.name}: {len(wanted)} greedy tokens equal; largest difference of a log-probability {largest:.1e}")
    return dict(model=model.name, tokens=len(wanted), largest_logprob_difference=largest)


def check_model(gguf, prompt, tokens=32):
    """Compares the log-probabilities of llama.cpp's greedy completion, as both programs compute them."""
    theirs = peer(gguf, prompt, 1, tokens, ["--kv", args.dtype], "--logprobs")
    line = json.dumps(dict(prompt_ids=json.loads(prompt.read_text()), completion_ids=theirs["ids"]))
    score = [args.lockstep, "score", "--model", args.model, "--input", "-", "--threads", args.threads, *dtype]
    mine = pairs.run(score, stdin=line + "\n")
    largest = max(abs(a - b) for a, b in zip(mine["logprobs"], theirs["logprobs"]))
    allowed = 1e-3 if args.dtype == "f32" else 0.1
    if not largest <= allowed:
        sys.exit(f"{args.model}: log-probabilities differ by {largest:.2e} (> {allowed}): not the same model")
    say(f"{args.model.name} {args.dtype}: largest difference of a log-probability over {tokens} tokens {largest:.1e}")
    return dict(model=args.model.name, tokens=tokens, largest_logprob_difference=largest)


def fastest(gguf, prompt, completions):
    """Returns the settings with which llama.cpp would take the least time for the whole workload, estimated from
    shorter runs."""
    kinds = dict.fromkeys(["f16", "f32", args.dtype])
    tried = []
    for kv, flash, split in itertools.product(kinds, [False, True], [False, True] if completions > 1 else [False]):
        settings = ["--kv", kv, *["--flash"] * flash, *["--split"] * split]
        short = peer(gguf, prompt, completions, args.search_tokens, settings, may_fail=True)
        if short is None:  # not every combination is supported on every machine
            say(f"  {' '.join(settings)}: failed")
            continue
        step = short["decode_s"] / (args.search_tokens - 1)
        whole = short["rollout_s"] - short["decode_s"] + (args.new_tokens - 1) * step
        tried.append(dict(settings=settings, expected_s=whole, decode_step_s=step))
        say(f"  {' '.join(settings)}: {whole:.2f} s expected, {1e3 * step:.1f} ms a decode step")
    if not tried:
        sys.exit(f"{gguf}: llama.cpp runs with none of its settings")
    return sorted(tried, key=lambda t: t["expected_s"])


machine = pairs.machine()
vocabulary = json.loads((args.model / "config.json").read_text())["vocab_size"]
draw = random.Random(1)
prompt = args.work / f"prompt-{args.prompt_length}-{vocabulary}.json"
prompt.write_text(json.dumps([draw.randrange(vocabulary) for _ in range(args.prompt_length)]))

checks = [check_stories(args.stories)] if args.stories else []
gguf = gguf_of(args.model, args.dtype)
checks.append(check_model(gguf, prompt))
results = []
for completions in map(int, args.completions.split(",")):
    say(f"{args.model.name} {args.dtype}, {completions} completions: llama.cpp's settings")
    tried = fastest(gguf, prompt, completions)
    settings = tried[0]["settings"]
    say(f"pairs, llama.cpp with {' '.join(settings)}")
    mine, peers, ratios = pairs.interleaved(
        lambda: ours(prompt, completions),
        lambda: peer(gguf, prompt, completions, args.new_tokens, settings),
        args.pairs, "tokens_per_s", higher_is_better=True,
    )  # fmt: skip
    decode = [a["decode_tokens_per_s"] / b["decode_tokens_per_s"] for a, b in zip(mine, peers)]
    results.append(
        dict(
            completions=completions, settings=settings, searched=tried, ours=mine, llama=peers,
            rollout=pairs.summary(ratios), decode=pairs.summary(decode),
        )
    )  # fmt: skip
machine["load_at_end"] = pairs.machine()["load_at_start"]

report = dict(
    benchmark="rollout beside llama.cpp", llama_cpp_python="0.3.36", model=str(args.model), dtype=args.dtype,
    prompt_tokens=args.prompt_length, new_tokens=args.new_tokens, threads=args.threads, pairs=args.pairs,
    machine=machine, checks=checks, results=results,
)  # fmt: skip
if args.json:
    print(json.dumps(report, indent=1))
else:
    cell = lambda runs, key: f"{pairs.middle(runs, key):.1f}"  # noqa: E731
    rows = [
        [
            r["completions"], cell(r["ours"], "tokens_per_s"), cell(r["llama"], "tokens_per_s"), pairs.ratio_cell(r["rollout"]),
            cell(r["ours"], "decode_tokens_per_s"), cell(r["llama"], "decode_tokens_per_s"), pairs.ratio_cell(r["decode"]),
            " ".join(r["settings"]),
        ]
        for r in results
    ]  # fmt: skip
    print(
        f"{args.model.name}, {args.dtype} weights, a prompt of {args.prompt_length} tokens shared by the completions, {args.new_tokens} new "
        f"tokens each, greedy, {args.threads} threads, {machine['processor']} ({', '.join(machine['flags'])}), load average "
        f"{machine['load_at_start']:.1f} before and {machine['load_at_end']:.1f} after\n"
    )
    print(
        pairs.table(
            ["completions", "lockstep tokens/s", "llama.cpp tokens/s", "ratio", "lockstep decode tokens/s",
             "llama.cpp decode tokens/s", "ratio", "llama.cpp's fastest settings"],
            rows,
        )
    )  # fmt: skip
    print(
        f"\nMedians of {args.pairs} interleaved pairs; in brackets the interval of the median ratio "
        f"({100 * results[0]['rollout']['coverage']:.0f} %). tokens/s has the prompt's time in it, decode tokens/s has not."
    )
