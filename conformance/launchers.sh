#!/usr/bin/env bash
# Trains under real launchers, with two and four ranks, and compares the weights with those of one process.
#
#   conformance/launchers.sh [PROGRAM]
#
# PROGRAM is the built `lockstep` (or LOCKSTEP_BIN; else target/release or target/debug). Launchers that are not on the
# PATH are skipped: torchrun (PyPI: torch), accelerate (PyPI: accelerate), mpirun (Debian: openmpi-bin). Slurm is made
# up: processes with the variables of srun. A script with `lockstep_rl` runs under torchrun and accelerate if python3
# on the PATH can import the package. Each item prints PASS, FAIL or SKIPPED; the exit code is 1 if one fails. It takes a
# minute, needs no network, and writes only to a temporary directory.
set -uo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
program=${1:-${LOCKSTEP_BIN:-}}
for built in "$root/target/release/lockstep" "$root/target/debug/lockstep"; do
    [ -z "$program" ] && [ -x "$built" ] && program=$built
done
[ -x "$program" ] || { echo "no program: build it with cargo build, or name it" >&2; exit 2; }
program=$(readlink -f "$program")
work=$(mktemp -d) && cd "$work" || exit 2
trap 'rm -rf "$work"' EXIT
for variable in $(env | grep -oE '^(RANK|WORLD_SIZE|LOCAL_[A-Z_]+|MASTER_[A-Z]+|OMPI_[A-Z_]+|PMI[A-Z_]*|SLURM_[A-Z_]+)='); do
    unset "${variable%=}"
done
failed=0

cat > config.json <<'JSON'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 40, "hidden_size": 32,
 "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
 "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
 "tie_word_embeddings": true, "eos_token_id": 1}
JSON
"$program" init --config config.json --characters "abcdefghijklmnopqrstuvwxyz ." --out model > /dev/null || exit 1
for word in ab sun moon tree x river sky oak; do echo "{\"prompt\": \"$word \"}"; done > data.jsonl
train=("$program" train --model model --dataset data.jsonl --reward unique_chars --set num_generations=2
    --set max_completion_length=6 --set per_device_train_batch_size=8 --set max_steps=4 --set learning_rate=0.01)

say() { echo "$1  $2"; [ "$1" != FAIL ] || failed=1; }

weights() { sha256sum < "$1/model/model.safetensors"; }

# item NAME OUT SHARES CODE: whether a run has ended well, with the weights of one process.
item() {
    local one="one-$3"
    if [ ! -d "$one" ]; then
        "${train[@]}" --set "gradient_shares=$3" --out "$one" > "$one.log" 2>&1 || { say FAIL "$1: one process"; return; }
    fi
    if [ "$4" != 0 ]; then
        say FAIL "$1: exit code $4"
        cat "$2.log"
    elif [ "$(weights "$one")" != "$(weights "$2")" ]; then
        say FAIL "$1: other weights than one process"
    elif ! grep -q "$3 ranks of" "$2.log"; then
        say FAIL "$1: the run had no ranks"
    else
        say PASS "$1: $3 ranks, the weights of one process"
    fi
}

# with NAME COMMAND…: runs `train` under a launcher, or skips it.
with() {
    local name=$1
    shift
    if ! command -v "$1" > /dev/null; then say SKIPPED "$name: $1 is not installed"; return; fi
    for n in 2 4; do
        local out="$name-$n"
        "${@//COUNT/$n}" "${train[@]}" --out "$out" > "$out.log" 2>&1
        item "$name" "$out" "$n" $?
    done
}

with torchrun torchrun --no_python --nproc_per_node COUNT
with accelerate accelerate launch --multi_gpu --no_python --num_processes COUNT --num_machines 1 --mixed_precision no \
    --dynamo_backend no
with mpirun mpirun -n COUNT --bind-to none --oversubscribe --allow-run-as-root

# slurm COUNT NAME ARGUMENT…: the processes of `srun --ntasks COUNT`, in the directory `dir` or NAME. Returns the exit
# code of rank 0.
slurm() {
    local n=$1 out=$2 first=0 rank others=()
    shift 2
    for ((rank = n - 1; rank > 0; rank--)); do
        SLURM_PROCID=$rank SLURM_LOCALID=$rank SLURM_NTASKS=$n SLURM_NNODES=1 SLURM_JOB_ID=$$ SLURM_STEP_ID=$step \
            "${train[@]}" --out "${dir:-$out}" "$@" > "$out.rank-$rank.log" 2>&1 &
        others+=($!)
    done
    sleep "${late:-0}"
    SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=$n SLURM_NNODES=1 SLURM_JOB_ID=$$ SLURM_STEP_ID=$step \
        "${train[@]}" --out "${dir:-$out}" "$@" > "$out.log" 2>&1
    first=$?
    wait "${others[@]}"
    step=$((step + 1))
    return $first
}
step=0
for n in 2 4; do
    slurm "$n" "slurm-$n"
    item "slurm (made up)" "slurm-$n" "$n" $?
done

cat > script.py <<'PY'
import sys
from datasets import Dataset
from lockstep_rl import GRPOConfig, GRPOTrainer
data = Dataset.from_list([{"prompt": word + " "} for word in ["ab", "sun", "moon", "tree", "x", "river", "sky", "oak"]])
args = GRPOConfig(output_dir=sys.argv[1], num_generations=2, max_completion_length=6, per_device_train_batch_size=4,
                  max_steps=4, learning_rate=0.01, report_to="none")
trainer = GRPOTrainer(model="model", args=args, train_dataset=data,
                      reward_funcs=lambda completions, **_: [float(len(set(text))) for text in completions])
trainer.train()
print("trained by", trainer.args.world_size, "processes")
PY
for launcher in torchrun accelerate; do
    if ! command -v "$launcher" > /dev/null || ! python3 -c "import lockstep_rl, datasets" 2> /dev/null; then
        say SKIPPED "$launcher, a script: needs $launcher, and python3 with lockstep_rl and datasets"
        continue
    fi
    start=(torchrun --nproc_per_node 2)
    [ $launcher = torchrun ] || start=(accelerate launch --multi_gpu --num_processes 2 --num_machines 1)
    "${start[@]}" script.py "script-$launcher" > "script-$launcher.log" 2>&1
    if [ $? = 0 ] && [ "$(grep -c "trained by 2 processes" "script-$launcher.log")" = 1 ]; then
        say PASS "$launcher, a script: two processes, and one after train()"
    else
        say FAIL "$launcher, a script"
        cat "script-$launcher.log"
    fi
done

# refused CODE NAME LOG WORDS: whether a launch has ended with code 2 and these words, and has written nothing.
refused() {
    local code=$1 name=$2 log=$3 words=$4
    if [ "$code" != 2 ] || ! grep -q "$words" "$log" || [ -e refused ]; then
        say FAIL "$name: exit code $code"
        cat "$log"
    else
        say PASS "$name: exit code 2, nothing written"
    fi
}
RANK=0 "${train[@]}" --out refused > refused.log 2>&1
refused $? "a missing variable" refused.log "RANK is set, as by a launcher, but WORLD_SIZE is not"
SLURM_PROCID=0 SLURM_NTASKS=two SLURM_STEP_ID=0 SLURM_JOB_ID=1 "${train[@]}" --out refused > refused.log 2>&1
refused $? "a wrong variable" refused.log "SLURM_NTASKS, which a launcher sets, must be a number, got .two"
slurm 3 refused
refused $? "three ranks" refused.log "SLURM_NTASKS must be a power of two.*got 3: use 2 or 4"
slurm 4 refused --set gradient_shares=2
refused $? "more ranks than shares" refused.log "SLURM_NTASKS 4 is more than gradient_shares = 2"

late=12 slurm 2 late
code=$?
item "rank 0 starts 12 s late" late 2 $code
grep -q "waits for rank 0" late.rank-1.log ||
    say FAIL "rank 1 must print that it waits: $(cat late.rank-1.log)"

# Two launches with one directory: the second one is refused, and the first one is whole.
"${train[@]}" --out both --ranks 2 --set max_steps=100000 > both.log 2>&1 &
first=$!
until [ -s both/metrics.jsonl ] || ! kill -0 $first 2> /dev/null; do sleep 0.1; done
dir=both slurm 2 second
code=$?
if [ $code = 2 ] && grep -q "already holds a run" second.log; then
    say PASS "two runs in one directory: the second one is refused with exit code 2"
else
    say FAIL "two runs in one directory: exit code $code"
    cat second.log
fi
kill -TERM $first
wait $first
[ -d both/checkpoints ] || say FAIL "the first of two runs has no checkpoint"
exit $failed
