#!/usr/bin/env bash
# Tests the page in headless Chromium, as `.ci/run` does. This script trains the runs that the tests compare with the
# program's output, and the runs that grow during a test. A run of every other kind is unpacked from runs/ (see
# make_runs.sh). Needs Chromium, Node.js with npm, and the built program (`cargo build -p lockstep-cli`, or
# LOCKSTEP=PROGRAM). SHOTS=DIR writes screenshots of every view, PICTURES=DIR the README's pictures.
set -euo pipefail
cd "$(dirname "$0")"

lockstep="${LOCKSTEP:-$(cd ../../.. && pwd)/target/debug/lockstep}"
chromium="${CHROMIUM:-$(command -v chromium || command -v chromium-browser || command -v google-chrome)}"
work="$(mktemp -d)"
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT
npm ci --silent --no-audit --no-fund --prefix . >/dev/null

# A model with random weights and one token per letter, and rows with text that a page must not execute.
node model.mjs "$work"
train() {
  "$lockstep" train --model "$work/model" --dataset "$work/rows.jsonl" --reward unique_chars --set num_generations=4 \
    --set per_device_train_batch_size=8 --set max_completion_length=12 --set learning_rate=0.01 --set logging_steps=1 \
    --set record_rollouts=true --set record_entropies=true --set save_strategy=no "$@" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
}
train --out "$work/runs/a" --set max_steps=40
train --out "$work/runs/b" --set max_steps=40 --set learning_rate=0.002 --seed 3
# The run is long enough for some groups to be scored after their step.
train --out "$work/runs/c" --set max_steps=200 --set eval_dataset_name="$work/rows.jsonl" --set eval_strategy=steps --set eval_steps=100
# The run writes checkpoints in the background. Its final model is deleted afterwards.
train --out "$work/runs/saved" --set max_steps=40 --set save_strategy=steps --set save_steps=5 --set "run_name=Checkpoints <b>beside</b>"
rm -r "$work/runs/saved/model"
mkdir "$work/kinds" "$work/sweep"
unpack() { node archive.mjs unpack <"runs/$1.tar.br" | tar -x -C "$work/$2"; }
unpack kinds kinds
unpack long kinds
unpack sweep sweep
for of in training updates evaluations; do "$lockstep" rollouts "$work/runs/c" --of $of >"$work/c.$of.jsonl"; done
"$lockstep" rollouts "$work/runs/c" --index >"$work/c.index.jsonl"
"$lockstep" rollouts "$work/runs/a" >"$work/a.jsonl"
"$lockstep" rollouts "$work/runs/a" --index >"$work/a.index.jsonl"
for run in grpo gamed constant; do
  "$lockstep" rollouts "$work/kinds/$run" >"$work/$run.training.jsonl"
  [ "$run" = constant ] || "$lockstep" rollouts "$work/kinds/$run" --of evaluations >"$work/$run.evaluations.jsonl"
  "$lockstep" rollouts "$work/kinds/$run" --index >"$work/$run.index.jsonl"
done
# show FILE DIRECTORY…: serves a page of these runs, and writes its address to the file.
show() {
  "$lockstep" dashboard "${@:2}" --port 0 --allow-run >"$1" 2>/dev/null &
  until [ -s "$1" ]; do sleep 0.05; done
}
show "$work/url" "$work/runs" "$work/kinds/ppo"
show "$work/url.kinds" "$work/kinds" "$work/sweep"
export CHROMIUM="$chromium" LOCKSTEP="$lockstep"
# Both run at the same time, since each waits most of the time.
node runs.mjs "$(cat "$work/url.kinds")" "$work" >"$work/runs.log" 2>&1 &
runs=$!
node check.mjs "$(cat "$work/url")" "$work"
wait $runs || { cat "$work/runs.log"; exit 1; }
cat "$work/runs.log"
