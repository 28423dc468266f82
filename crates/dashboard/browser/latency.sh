#!/usr/bin/env bash
# Measures the time from a step's line in the file to its display, and the share of a core that the page's server uses
# meanwhile. A run with one step per second is trained and watched for a minute (or for the seconds in the first
# argument), from its start or after a number of fast steps (the second argument). Needs Python 3 and the requirements of
# check.sh. LOCKSTEP=PROGRAM is the program to measure; only a release build gives the share that users see.
set -euo pipefail
cd "$(dirname "$0")"
export LOCKSTEP="${LOCKSTEP:-$(cd ../../.. && pwd)/target/release/lockstep}"
export CHROMIUM="${CHROMIUM:-$(command -v chromium || command -v chromium-browser || command -v google-chrome)}"
work="$(mktemp -d)"
trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -rf "$work"' EXIT
npm ci --silent --no-audit --no-fund --prefix . >/dev/null
node model.mjs "$work" >/dev/null

# Steps have different lengths, so that they do not synchronise with the server's polling.
cat >"$work/reward.py" <<'PYTHON'
import os, random, time

def waits(completions, **_):
    if os.path.exists(os.environ["SLOW"]):
        time.sleep(random.uniform(0.7, 1.3))
    return [float(len(set(text))) for text in completions]
PYTHON
export SLOW="$work/slow"
[ -n "${2:-}" ] || touch "$SLOW"
"$LOCKSTEP" train --model "$work/model" --dataset "$work/rows.jsonl" --reward "python:$work/reward.py:waits" \
  --out "$work/runs/live" --set num_generations=4 --set per_device_train_batch_size=8 --set max_completion_length=12 --set logging_steps=1 \
  --set record_rollouts=true --set save_strategy=no --set max_steps=100000 --set threads=1 >"$work/log" 2>&1 &
training=$!
"$LOCKSTEP" dashboard "$work/runs" --port 0 >"$work/url" 2>/dev/null &
server=$!
lines() { wc -l 2>/dev/null <"$work/runs/live/metrics.jsonl" || echo 0; }
until [ -s "$work/url" ] && [ "$(lines)" -ge "${2:-1}" ]; do
  kill -0 $training || { cat "$work/log"; exit 1; }
  sleep 0.1
done
touch "$SLOW"
node latency.mjs "$(cat "$work/url")" "$work" $server "${1:-60}"
