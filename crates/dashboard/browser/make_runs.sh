#!/usr/bin/env bash
# Trains the runs that the page's tests open, one of every kind, and packs the files that the page reads into the folder
# runs/ (or the first argument). Needs the requirements of check.sh, and Python 3 for the rewards. It takes about six
# minutes: one for the demo's model, three for 20,000 steps. `cargo xtask nightly page_runs` compares its runs with those
# in runs/.
set -euo pipefail
cd "$(dirname "$0")"
here="$PWD"
program="${LOCKSTEP:-$(cd ../../.. && pwd)/target/debug/lockstep}"
packed="$(mkdir -p "${1:-runs}" && cd "${1:-runs}" && pwd)"
# Runs store absolute paths and the command line. In this directory, both are the same on every machine.
work=/tmp/lockstep-page-runs
mkdir "$work" || { echo "$work exists: wait for the other make_runs.sh, or delete the directory" >&2; exit 1; }
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT
mkdir "$work/bin"
cp "$program" "$work/bin/lockstep"
export PATH="$work/bin:$PATH" LOCKSTEP=lockstep
cp rewards.py "$work"
node model.mjs "$work"
rm -r "$work/runs"
cd "$work"

# Runs a command of the program, and shows its output only if it fails.
quiet() { lockstep "$@" >log 2>&1 || { cat log >&2; exit 1; }; }
common=(--set logging_steps=1 --set save_strategy=no --set per_device_train_batch_size=8)
# Some runs trace only their first steps, since a trace is as large as the metrics.
begun=(--set trace_steps=1-10)
letters=(--model model --dataset rows.jsonl --set num_generations=4 --set max_completion_length=12
  --set learning_rate=0.01)
# train NAME OPTION…: trains the model with random weights by reward.
train() { quiet train "${letters[@]}" "${common[@]}" --out "runs/$1" "${@:2}"; }
recorded=(--set record_rollouts=true)
early=(--reward python:rewards.py:early_letters)

train iterations "${early[@]}" "${begun[@]}" --set max_steps=80 --set num_iterations=2
train ppo "${early[@]}" "${recorded[@]}" --set max_steps=80 --set algorithm=ppo --set num_mini_batches=2
train reference "${early[@]}" "${begun[@]}" --set max_steps=40 --set beta=0.05
train workers "${early[@]}" --set max_steps=40 --distributed --workers 2
train gamed --reward python:rewards.py:letters_a "${recorded[@]}" "${begun[@]}" --set max_steps=60 \
  --set learning_rate=0.03 --set eval_dataset_name=rows.jsonl --set eval_strategy=steps --set eval_steps=20 \
  --set eval_on_start=true
train constant --reward 'format:(?s).*' "${recorded[@]}" "${begun[@]}" --set max_steps=40
train resumed "${early[@]}" "${begun[@]}" --set max_steps=40 --set save_strategy=steps --set save_steps=20
quiet train --resume runs/resumed --set max_steps=80
lockstep train "${letters[@]}" "${common[@]}" "${early[@]}" "${begun[@]}" --set max_steps=5000 --out runs/stopped \
  >log 2>&1 &
until [ "$(cat runs/stopped/metrics.jsonl 2>/dev/null | wc -l)" -ge 30 ]; do
  kill -0 $! || { cat log >&2; exit 1; }
  sleep 0.02
done
kill -TERM $!
wait $! || true
pairs=(--set per_device_train_batch_size=4 --set max_steps=40)
for kind in sft dpo; do
  quiet $kind --model model --dataset $kind.jsonl --out runs/$kind "${common[@]}" "${pairs[@]}" --set learning_rate=0.01
done
quiet sft --model model --dataset sft.jsonl --out runs/diverged "${common[@]}" "${pairs[@]}" \
  --set learning_rate=3 --set warmup_steps=20 --set lr_scheduler_type=constant_with_warmup --set max_grad_norm=0

# The demo's addition task: these runs learn, have readable text, and are evaluated on held-out problems.
quiet demo --steps 0 --out demo
awk 'NR % 58 == 0' demo/problems.jsonl >problems.jsonl
awk 'NR % 77 == 0' demo/heldout.jsonl >heldout.jsonl
addition=(--model demo/sft/model --dataset problems.jsonl "${common[@]}" --set per_device_train_batch_size=64
  --set max_completion_length=4 --set max_steps=100)
quiet train "${addition[@]}" --task prompt_answer --out runs/grpo "${recorded[@]}" "${begun[@]}" \
  --set record_entropies=true --set learning_rate=2e-4 \
  --set eval_dataset_name=heldout.jsonl --set eval_strategy=steps --set eval_steps=25 --set eval_on_start=true \
  --set num_generations_eval=1
quiet train "${addition[@]}" --task prompt_answer --out runs/lora "${begun[@]}" --set learning_rate=2e-3 \
  --set use_peft=true --set lora_r=8 --set 'lora_target_modules=["all-linear"]'
# The run takes more than ten seconds, so that its findings are reported.
quiet train "${addition[@]}" --reward python:rewards.py:slow --out runs/slow --set learning_rate=2e-4

# A run of 20,000 steps that logs and evaluates only sometimes.
mkdir long sweep
train ../long/long "${early[@]}" --set max_steps=20000 --set logging_steps=25 --set trace_steps=1-5 \
  --set num_generations=2 --set threads=1 --set per_device_train_batch_size=4 --set max_completion_length=4 \
  --set learning_rate=0.0005 --set eval_dataset_name=rows.jsonl --set eval_strategy=steps --set eval_steps=400
# 50 runs: five learning rates, with and without a reference model, with five seeds each.
number=0
for rate in 0.03 0.01 0.003 0.001 0.0003; do
  for beta in 0 0.1; do
    for seed in 1 2 3 4 5; do
      number=$((number + 1))
      train "../sweep/$(printf '%02d' $number)" "${early[@]}" --set max_steps=30 --set logging_steps=5 \
        --set trace_steps=1-1 --set beta=$beta --set learning_rate=$rate --seed $seed \
        --set run_name="rate $rate, beta $beta, seed $seed"
    done
  done
done

# Deletes files that the page does not read: weights, state, logs, and most files of workers.
find runs long sweep \( -name tensorboard -o -name completions -o -name abandoned \) -prune -exec rm -r {} +
find runs long sweep -type f \( -name '*.safetensors' -o -name '*.log' -o -name run.lock -o -name drafts.bin \) -delete
find runs long sweep -path '*/checkpoints/*' -type f ! -name '*.json' -delete
find runs long sweep -path '*/fleet/*' -type f ! -name made_by.jsonl -delete
# pack DIRECTORY: packs files with the same name next to each other, since they are similar and compress better.
pack() {
  (cd "$1" && find . -type f -printf '%f %P\n' | LC_ALL=C sort | cut -d' ' -f2- |
    tar --create --owner=0 --group=0 --numeric-owner --mode=u=rw,go=r --files-from=-) |
    node "$here/archive.mjs" pack >"$packed/$2.tar.br"
}
pack runs kinds
pack long long
pack sweep sweep
