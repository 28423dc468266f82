#!/usr/bin/env bash
# The page in headless Chromium, on runs that are trained here: what `.ci/run` runs of it. Needs Chromium, Node.js with
# npm, and the built program (`cargo build -p lockstep-cli`, or LOCKSTEP=PROGRAM). Screenshots: SHOTS=DIR.
set -euo pipefail
cd "$(dirname "$0")"

lockstep="${LOCKSTEP:-$(cd ../../.. && pwd)/target/debug/lockstep}"
chromium="${CHROMIUM:-$(command -v chromium || command -v chromium-browser || command -v google-chrome)}"
work="$(mktemp -d)"
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT
npm ci --silent --no-audit --no-fund --prefix . >/dev/null

# A model of random weights with a letter for each token, and rows with texts that a page must not run.
node model.mjs "$work"
train() {
  "$lockstep" train --model "$work/model" --dataset "$work/rows.jsonl" --reward unique_chars --set num_generations=4 \
    --set per_device_train_batch_size=8 --set max_completion_length=12 --set learning_rate=0.01 --set logging_steps=1 \
    --set record_rollouts=true --set record_entropies=true --set save_strategy=no "$@" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
}
train --out "$work/runs/a" --set max_steps=40
train --out "$work/runs/b" --set max_steps=40 --set learning_rate=0.002 --seed 3
# Long enough for some groups to be scored after their step.
train --out "$work/runs/c" --set max_steps=200 --set eval_dataset_name="$work/rows.jsonl" --set eval_strategy=steps --set eval_steps=100
# One run of each kind.
train --out "$work/runs/iterations" --set max_steps=80 --set num_iterations=2
train --out "$work/runs/ppo" --set max_steps=80 --set algorithm=ppo --set num_mini_batches=2
train --out "$work/runs/reference" --set max_steps=40 --set beta=0.05
train --out "$work/runs/lora" --set max_steps=40 --set use_peft=true --set lora_r=2
# Checkpoints that are written beside the learner; its model was deleted afterwards.
train --out "$work/runs/saved" --set max_steps=40 --set save_strategy=steps --set save_steps=5 --set "run_name=Checkpoints <b>beside</b>"
rm -r "$work/runs/saved/model"
for kind in sft dpo; do
  "$lockstep" $kind --model "$work/model" --dataset "$work/$kind.jsonl" --out "$work/runs/$kind" --set max_steps=40 --set per_device_train_batch_size=4 \
    --set logging_steps=1 --set save_strategy=no >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
done
for of in training updates evaluations; do "$lockstep" rollouts "$work/runs/c" --of $of >"$work/c.$of.jsonl"; done
"$lockstep" rollouts "$work/runs/c" --index >"$work/c.index.jsonl"
"$lockstep" rollouts "$work/runs/a" >"$work/a.jsonl"
"$lockstep" rollouts "$work/runs/a" --index >"$work/a.index.jsonl"
"$lockstep" dashboard "$work/runs" --port 0 --allow-run >"$work/url" 2>/dev/null &
until [ -s "$work/url" ]; do sleep 0.05; done
CHROMIUM="$chromium" LOCKSTEP="$lockstep" node check.mjs "$(cat "$work/url")" "$work"
