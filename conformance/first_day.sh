#!/usr/bin/env bash
# Tests the program on a shared machine. Each item runs the program and prints PASS, FAIL or SKIPPED with the reason.
#
#   conformance/first_day.sh [--list] [--only A1,A4] [PROGRAM]
#
# PROGRAM is the built `lockstep` (or LOCKSTEP_BIN; else target/release or target/debug). It needs no
# network and writes only to a temporary directory. (A1 also makes a control group, if possible.) The exit code is 1 if
# an item fails.
#
# A new item is a function `item_NAME`, and a line in ITEMS with its name and description. The function prints its
# observations, and ends with `fail TEXT`, `skip TEXT`, or by returning 0.
set -uo pipefail

ITEMS=(
    "A1|the job's memory limit is obeyed, in any control group from the process's own up to the root"
    "A2|the refusal of a run that does not fit names every key that makes it fit"
    "A3|a build has an identity: in --version, records, verify, and between learner and worker"
    "A4|a running run is protected even without file locks"
    "A5|the verdict on a run of 30 steps uses the reward of each step, for any logging_steps"
    "A7|the tutorial's commands print the digits on the page"
    "A8|demo --steps 0 ends after supervised fine-tuning"
    "A9|the reward of writing-a-reward.md is learned in its last step"
    "A11|a distributed run that has ended has its last checkpoint, no batch and no job"
    "A12|a log in JSON has tables, alarms and the verdict as fields"
    "A13|a profile of three short steps reports no findings about hundredths of a second"
    "A14|the examples of an alarm about one of two rewards have the scores of this reward"
    "A15|report makes its directory and names the difference of two runs; the exit code of plan is 1 if a run does not fit"
    "A10|releases and the image can join workers on other machines"
)

root=$(cd "$(dirname "$0")/.." && pwd)
only="" program=${LOCKSTEP_BIN:-}
while [ $# -gt 0 ]; do
    case $1 in
        --list) for item in "${ITEMS[@]}"; do echo "${item%%|*}  ${item#*|}"; done; exit 0 ;;
        --only) only=${2:?--only needs names, as A1,A4}; shift ;;
        -*) echo "unknown flag $1; see the head of $0" >&2; exit 2 ;;
        *) program=$1 ;;
    esac
    shift
done
if [ -z "$program" ]; then
    for program in "$root/target/release/lockstep" "$root/target/debug/lockstep"; do [ -x "$program" ] && break; done
fi
[ -x "$program" ] || { echo "$program: there is no such program; build it, or give its path" >&2; exit 2; }
program=$(cd "$(dirname "$program")" && pwd)/$(basename "$program")
for name in ${only//,/ }; do
    printf '%s\n' "${ITEMS[@]}" | grep -q "^$name|" || { echo "--only $name: there is no such item; see --list" >&2; exit 2; }
done

work=$(realpath "$(mktemp -d)") reason="" started=()
clean() {
    for pid in "${started[@]:-}"; do [ -n "$pid" ] && kill -KILL "$pid" 2>/dev/null; done
    [ -n "${group:-}" ] && remove_group "$group"
    rm -rf "$work"
}
trap clean EXIT
export LOCKSTEP_THREADS=${LOCKSTEP_THREADS:-2} HF_HUB_OFFLINE=1 NO_COLOR=1

fail() { reason=$1; return 1; }
skip() { reason=$1; return 77; }
show() { sed 's/^/    /' <<<"$1"; }
# Repeats a command until it succeeds, for at most two minutes.
await() { for _ in $(seq 1200); do "$@" >/dev/null 2>&1 && return 0; sleep 0.1; done; return 1; }

# Writes a tokenizer of letters and a model's config.json to $1. Other arguments: hidden size, layers, vocabulary size.
shape() {
    mkdir -p "$1"
    local letters='' id=3 letter
    for letter in a b c d e f g h i j k l m n o p q r s t u v w x y z ' ' . , !; do
        letters+=", \"$letter\": $id"; id=$((id + 1))
    done
    local special='"single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true'
    cat > "$1/tokenizer.json" <<JSON
{"version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
 "added_tokens": [{"id": 0, "content": "<pad>", $special}, {"id": 1, "content": "<s>", $special},
                  {"id": 2, "content": "</s>", $special}],
 "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[\\\\s\\\\S]"}, "behavior": "Isolated", "invert": false},
 "decoder": {"type": "Fuse"},
 "model": {"type": "WordLevel", "vocab": {"<pad>": 0, "<s>": 1, "</s>": 2$letters}, "unk_token": ""}}
JSON
    echo '{"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>",
        "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false}' > "$1/tokenizer_config.json"
    cat > "$1/config.json" <<JSON
{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": $2, "intermediate_size": $((4 * $2)),
 "num_hidden_layers": $3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": $(($2 / 4)),
 "vocab_size": $4, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
 "tie_word_embeddings": true, "attention_bias": false, "initializer_range": 0.3, "bos_token_id": 1, "eos_token_id": 2}
JSON
}

# Makes a small random model in $work/model, and prompts.
small_model() {
    [ -e "$work/model/config.json" ] && return 0
    shape "$work/shape" 32 2 40
    for _ in $(seq 16); do echo '{"prompt": "abc def"}'; done > "$work/data.jsonl"
    "$program" init --config "$work/shape/config.json" --tokenizer "$work/shape" --seed 1 --out "$work/model" \
        > "$work/init.log" 2>&1 || { show "$(cat "$work/init.log")"; fail "no model could be made"; }
}
train_words() {
    echo train --model "$work/model" --dataset "$work/data.jsonl" --reward length:10 \
        --set num_generations=2 --set per_device_train_batch_size=4 --set max_completion_length=16 \
        --set learning_rate=0.001 "$@"
}

# --- A1 ----------------------------------------------------------------------------------------------------------------

remove_group() { for dir in "$1/job/step" "$1/job" "$1"; do [ -d "$dir" ] && rmdir "$dir" 2>/dev/null; done; }

# Makes a control group with a limit of $1 bytes and an unlimited group inside it, and prints the inner group.
limited_group() {
    local v1=/sys/fs/cgroup/memory v2=/sys/fs/cgroup
    if [ -w "$v1" ] && [ -f "$v1/memory.limit_in_bytes" ]; then
        mkdir -p "$v1/first-day-$$/job/step" && echo "$1" > "$v1/first-day-$$/job/memory.limit_in_bytes" \
            && echo "$v1/first-day-$$"
    elif [ -w "$v2" ] && [ -f "$v2/cgroup.controllers" ] && grep -qw memory "$v2/cgroup.subtree_control"; then
        mkdir -p "$v2/first-day-$$" && echo +memory > "$v2/first-day-$$/cgroup.subtree_control" \
            && mkdir "$v2/first-day-$$/job" && echo +memory > "$v2/first-day-$$/job/cgroup.subtree_control" \
            && mkdir "$v2/first-day-$$/job/step" && echo "$1" > "$v2/first-day-$$/job/memory.max" \
            && echo "$v2/first-day-$$"
    else
        return 1
    fi 2>/dev/null
}

item_A1() {
    shape "$work/wide" 1024 8 2000
    echo '{"prompt": "abc"}' > "$work/one.jsonl"
    local plan=(plan --model "$work/wide" --set max_completion_length=64) out code
    # ulimit -v, which batch systems also set, limits the process itself. The program's own address space varies.
    local most=$(( $("$program" "${plan[@]}" --json | grep -o '"total_bytes":[ 0-9]*' | tr -dc 0-9) / 1024 + 200000 ))
    out=$( (ulimit -v "$most"; "$program" "${plan[@]}") 2>&1)
    if ! grep -q "RLIMIT_AS" <<<"$out"; then show "$out"; fail "ulimit -v $most is not named by plan"; return; fi
    show "ulimit -v $most: $(grep -o 'limited to.*RLIMIT_AS' <<<"$out" | head -1)"
    # `doctor` itself uses 256 MiB.
    local bytes=800000000
    group=$(limited_group $bytes) || { group=""; skip "ulimit -v is obeyed; no control group can be made here (root and a writable /sys/fs/cgroup are needed)"; return; }
    in_group() { sh -c 'echo $$ > "$1/job/step/cgroup.procs" && shift && exec "$@"' sh "$group" "$program" "$@"; }
    out=$(in_group "${plan[@]}" 2>&1); code=$?
    show "$(grep -E 'predicted peak|fit' <<<"$out")"
    [ $code = 1 ] || { fail "plan ended with code $code in a group of 800 MB, and not with 1"; return; }
    grep -q "does not fit" <<<"$out" && grep -q "$group/job/memory" <<<"$out" || { fail "plan does not see the limit of the group above its own"; return; }
    out=$(in_group train --model "$work/wide" --dataset "$work/one.jsonl" --reward length:10 \
        --set num_generations=2 --set per_device_train_batch_size=2 --set max_completion_length=64 \
        --out "$work/never" 2>&1); code=$?
    show "train: exit code $code: $(tail -1 <<<"$out" | cut -c1-160)"
    [ $code = 2 ] && [ ! -e "$work/never/config.toml" ] || { fail "train should refuse with code 2 before it writes anything, and gave $code"; return; }
    out=$(in_group doctor 2>&1 | grep '^memory ')
    show "doctor: $out"
    grep -q "$group/job/memory" <<<"$out" || { fail "doctor does not name the limit"; return; }
    remove_group "$group"; group=""
}

# --- A2 ----------------------------------------------------------------------------------------------------------------

item_A2() {
    shape "$work/qwen15" 1536 28 151936
    # Qwen2.5-1.5B's shape.
    sed -i 's/"intermediate_size": 6144/"intermediate_size": 8960/; s/"num_attention_heads": 4/"num_attention_heads": 12/; s/"head_dim": 384/"head_dim": 128/' "$work/qwen15/config.json"
    local plan=(plan --model "$work/qwen15" --set max_completion_length=256 --set max_prompt_length=128) out
    # This simulates a machine with 20 GB.
    limited() { (ulimit -v 20000000; "$program" "${plan[@]}" "$@") 2>&1; }
    out=$(limited)
    show "$(grep -E '^(weights|training: (gradients|optimizer))|fit' <<<"$out")"
    grep -q "does not fit" <<<"$out" || { fail "1.5 B in f32 should not fit into 20 GB"; return; }
    grep -q "No key makes it fit" <<<"$out" && { fail "keys make it fit, and the advice says that none does"; return; }
    for key in use_peft adam_moments_dtype dtype; do
        grep "does not fit" <<<"$out" | grep -q "$key = " || { fail "the advice does not name $key"; return; }
    done
    grep "^training: gradients" <<<"$out" | grep -q use_peft || { fail "the row of the gradients names no key"; return; }
    grep -A1 "^training: optimizer" <<<"$out" | grep -q adam_moments_dtype || { fail "the row of the optimizer names no key"; return; }
    # With the changes that it names first, the run fits.
    local set=() change
    while read -r change; do set+=(--set "${change// = /=}"); done < <(
        grep "does not fit" <<<"$out" | sed -E 's/.*(fits with (one of these: )?|together these do: )//; s/ MiB\).*//; s/"//g' \
            | grep -oE '[a-z_]+ = [a-z0-9]+')
    out=$(limited "${set[@]}" | grep -E "fit")
    show "with ${set[*]}: $out"
    grep -q "^fits" <<<"$out" || { fail "it does not fit with what the advice names"; return; }
}

# --- A3 ----------------------------------------------------------------------------------------------------------------

item_A3() {
    small_model || return
    local version out code run=$work/a3
    version=$("$program" --version)
    show "$version"
    grep -qE '^lockstep [0-9.]+ \(commit ([0-9a-f]{12}(, modified [0-9a-z]+)?|unknown \(no git\)); ' <<<"$version" || { fail "--version names no build"; return; }
    # shellcheck disable=SC2046
    "$program" $(train_words --set max_steps=2 --set save_steps=1 --set record_rollouts=true --out "$run") > "$work/a3.log" 2>&1 || { show "$(tail -3 "$work/a3.log")"; fail "a run of two steps fails"; return; }
    grep -q '"commit"' "$run/record.json" || { fail "record.json names no build"; return; }
    "$program" verify "$run" --steps 1 > "$work/verify.log" 2>&1
    if grep -q "^another build" "$work/verify.log" && ! grep -q "unknown (no git)" <<<"$version"; then show "$(cat "$work/verify.log")"; fail "verify calls the same build another one"; return; fi
    # Pretend that another commit trained the run.
    cp -r "$run" "$run-other"
    sed -i 's/"commit": [^,]*/"commit": "00000000000000000000"/' "$run-other/record.json"
    out=$("$program" verify "$run-other" --steps 1 2>&1 | grep "^another build")
    show "$out"
    grep -q "commit 000000000000" <<<"$out" || { fail "verify does not name the other build"; return; }
    out=$("$program" train --resume "$run-other" --set max_steps=3 2>&1); code=$?
    show "$(grep "another build" <<<"$out")"
    [ $code = 0 ] && [ "$(grep -c "another build" <<<"$out")" = 1 ] || { show "$out"; fail "a resume by another build should say so in one line (exit code $code)"; return; }
    # The record of a run that an older version started has no build.
    cp -r "$run" "$run-old"
    sed -i '/"build": {/,/}/d' "$run-old/record.json"
    if grep -q '"build"' "$run-old/record.json"; then fail "the record could not be made an older one"; return; fi
    out=$("$program" train --resume "$run-old" --set max_steps=3 2>&1); code=$?
    [ $code = 0 ] && [ "$(grep -c "does not name the build" <<<"$out")" = 1 ] || { show "$out"; fail "an older run should resume, with one line (exit code $code)"; return; }
    # A worker of another build.
    # shellcheck disable=SC2046
    "$program" learner $(train_words --set max_steps=2 --out "$run-fleet" | sed 's/^train //') > "$work/learner.log" 2>&1 &
    local learner=$!; started+=("$learner")
    await test -s "$run-fleet/fleet/learner.json" || { show "$(tail -3 "$work/learner.log")"; fail "the learner does not start"; return; }
    sleep 1
    sed -i 's/"commit": [^,]*/"commit": "00000000000000000000"/' "$run-fleet/fleet/learner.json"
    out=$("$program" worker --join "$run-fleet" --name other --threads 1 2>&1); code=$?
    show "worker: exit code $code: $(tail -1 <<<"$out" | cut -c1-170)"
    [ $code = 2 ] && grep -q "allow-other-build" <<<"$out" || { fail "a worker of another build should be refused with code 2"; return; }
    "$program" worker --join "$run-fleet" --name other --threads 1 --allow-other-build > "$work/worker.log" 2>&1 &
    started+=("$!")
    wait "$learner" || { show "$(tail -3 "$work/learner.log")"; fail "the run of the accepted worker fails"; return; }
    grep -q "another build" "$work/worker.log" || { fail "the accepted worker says nothing"; return; }
}

# --- A4 ----------------------------------------------------------------------------------------------------------------

item_A4() {
    command -v cc > /dev/null || { skip "no C compiler (cc), which makes a flock that fails"; return; }
    small_model || return
    # flock fails only in one directory, as on a file system without locks; shared memory still has locks.
    cat > "$work/flock.c" <<'C'
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
int flock(int file, int how) {
    char name[64], path[4096] = "";
    const char *dir = getenv("FLOCK_DIR"), *error = getenv("FLOCK_ERRNO");
    snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    if (readlink(name, path, sizeof path - 1) > 0 && strncmp(path, dir, strlen(dir)) == 0) {
        errno = atoi(error);
        return -1;
    }
    return syscall(SYS_flock, file, how);
}
C
    export FLOCK_DIR=$work
    cc -shared -fPIC -o "$work/flock.so" "$work/flock.c" || { skip "cc cannot make a shared library"; return; }
    local name number out code first run words
    for name in ENOSYS:38 ENOLCK:37 EOPNOTSUPP:95; do
        number=${name#*:} name=${name%:*} run=$work/a4-$name
        export FLOCK_ERRNO=$number
        words=$(train_words --set max_steps=1000000 --set save_steps=1000 --out "$run")
        # shellcheck disable=SC2086
        LD_PRELOAD=$work/flock.so "$program" $words > "$work/$name.log" 2>&1 &
        first=$!; started+=("$first")
        await test -s "$run/metrics.jsonl" || { show "$(tail -3 "$work/$name.log")"; fail "$name: the run does not start"; return; }
        grep -q "does not lock files" "$work/$name.log" || {
            if ! ldd "$program" 2>/dev/null | grep -q libc; then kill -KILL "$first"; skip "the program is static: a preloaded flock has no effect"; return; fi
            show "$(head -20 "$work/$name.log")"; fail "$name: no warning"; return; }
        out=$(LD_PRELOAD=$work/flock.so "$program" train --resume "$run" 2>&1); code=$?
        show "$name, a second start: exit code $code: $(grep -o "is in use.*is writing to it" <<<"$out" | cut -c1-60)… $(grep -o "This file system[^.]*" <<<"$out" | cut -c1-90)"
        [ $code = 2 ] && grep -q "process $first on" <<<"$out" || { show "$out"; fail "$name: the living run should be named, with exit code 2"; return; }
        kill -KILL "$first"; wait "$first" 2>/dev/null
        LD_PRELOAD=$work/flock.so "$program" train --resume "$run" > "$work/$name-2.log" 2>&1 &
        first=$!; started+=("$first")
        await grep -q "was killed while it wrote" "$work/$name-2.log" || { show "$(tail -3 "$work/$name-2.log")"; fail "$name: the next start should say that the run was killed"; return; }
        kill -TERM "$first"; wait "$first"; code=$?
        show "$name, after a kill: resumed, and stopped by SIGTERM with code $code"
        [ $code = 143 ] || { fail "$name: the resumed run ended with $code"; return; }
        [ "$(find "$run" -maxdepth 1 -name 'run.lock*' | wc -l)" = 1 ] && [ ! -s "$run/run.lock" ] || { fail "$name: something of the lock is left: $(ls "$run")"; return; }
    done
    # Learner and workers also use locks.
    # shellcheck disable=SC2046
    out=$(LD_PRELOAD=$work/flock.so "$program" $(train_words --set max_steps=2 --out "$work/a4-fleet") --distributed --workers 2 2>&1); code=$?
    show "ENOSYS, a learner with two workers: exit code $code"
    [ $code = 0 ] || { show "$(tail -5 <<<"$out")"; fail "a distributed run without locks should train"; return; }
}

# --- A5 ----------------------------------------------------------------------------------------------------------------

item_A5() {
    small_model || return
    local steps logging out last report
    for steps in 3 30; do for logging in 10 100; do
        # shellcheck disable=SC2046
        out=$("$program" $(train_words --set max_steps=$steps --set logging_steps=$logging --out "$work/a5-$steps-$logging") 2>&1) || { show "$(tail -3 <<<"$out")"; fail "a run of $steps steps fails"; return; }
        last=$(tail -2 <<<"$out" | head -1 | sed 's/^\[[^]]*\] //')
        report=$("$program" report "$work/a5-$steps-$logging" --print | sed -n 3p)
        show "$steps steps, logging_steps $logging: $last"
        [ "$last" = "$report" ] || { fail "the report says: $report"; return; }
        if [ $steps = 30 ]; then
            grep -q "Too early" <<<"$last" && { fail "thirty steps are enough for a verdict"; return; }
        else
            [ "$last" = "Too early to tell: 3 values of reward, and 4 are needed." ] || { fail "three steps are too few"; return; }
        fi
    done; done
    return 0
}

# --- A7, A8, A9 --------------------------------------------------------------------------------------------------------

# Trains the demo's model, once for all items.
demo_model() {
    [ -e "$work/demo/sft/model/model.safetensors" ] && return 0
    (cd "$work" && "$program" demo --steps 0 --out demo) > "$work/demo.log" 2>&1 || { show "$(tail -3 "$work/demo.log")"; fail "demo --steps 0 fails"; }
}

# Prints the fenced block of the page $1 whose first line begins with $2.
block() { awk -v begin="$2" '/^```/ {inside = !inside; if (inside) {first = 1; next} else if (found) exit} inside && first {first = 0; found = index($0, begin) == 1} inside && found' "$root/docs/$1"; }

item_A7() {
    demo_model || return
    block tutorial.md "# step.toml" > "$work/step.toml"
    local out row
    out=$(cd "$work" && "$program" train step.toml --out one 2>&1) || { show "$(tail -3 <<<"$out")"; fail "the first step fails"; return; }
    row=$(grep -E '^\[ .*\]  *1 ' <<<"$out" | sed 's/^\[[^]]*\] *//; s/  */ /g' | cut -d' ' -f1-11)
    show "step 1: $row"
    block tutorial.md '$ lockstep train step.toml' | sed -n 3p | sed 's/^ *//; s/  */ /g' | grep -qF "$row" || { fail "the page has another row"; return; }
    grep -qF '"loss":0.03463501691818236' "$work/one/metrics.jsonl" || { fail "the loss is another one"; return; }
    out=$(tail -c 16 "$work/one/model/model.safetensors" | od -A n -t f4)
    show "the last weights: $out"
    grep -qF "$(echo $out | cut -d' ' -f1)" "$root/docs/tutorial.md" || { fail "the weights are other ones"; return; }
    out=$("$program" verify "$work/one" --all 2>&1 | tail -1)
    [ "$out" = "proven: 1 step" ] || { fail "verify says: $out"; return; }
}

item_A8() {
    demo_model || return
    show "$(grep "held-out accuracy" "$work/demo.log" | tail -1)"
    grep -q "after SFT" "$work/demo.log" || { fail "no accuracy after SFT"; return; }
    if grep -q "GRPO:" "$work/demo.log" || [ -e "$work/demo/grpo" ]; then fail "it continues with GRPO"; return; fi
    grep -rqE "demo --steps [1-9]" "$root/docs/tutorial.md" "$root/docs/writing-a-reward.md" && { fail "a page still trains one step"; return; }
    return 0
}

item_A9() {
    demo_model || return
    command -v python3 > /dev/null || { skip "no python3"; return; }
    block writing-a-reward.md "# rewards.py" > "$work/rewards.py"
    local command out last expected
    command=$(block writing-a-reward.md '$ lockstep train' | sed -n '/^\$/,/[^\\]$/p' | sed 's/^\$ lockstep//; s/\\$//' | tr -d '\n')
    expected=$(block writing-a-reward.md '$ lockstep train' | tail -1)
    # shellcheck disable=SC2086
    out=$(cd "$work" && "$program" $command 2>&1) || { show "$(tail -3 <<<"$out")"; fail "the command fails"; return; }
    last=$(tail -2 <<<"$out" | head -1 | sed 's/^\[[^]]*\] //')
    show "$last"
    case $last in "${expected%…*}"*) ;; *) fail "the page promises: $expected"; return ;; esac
}

# --- A11 ---------------------------------------------------------------------------------------------------------------

item_A11() {
    small_model || return
    local run=$work/a11 out
    # shellcheck disable=SC2046
    out=$("$program" $(train_words --set max_steps=10 --set save_steps=5 --out "$run") --distributed --workers 2 2>&1) || { show "$(tail -3 <<<"$out")"; fail "the run fails"; return; }
    out=$("$program" status "$run")
    show "$(head -1 <<<"$out")"
    head -1 <<<"$out" | grep -q "ended  checkpoint 10$" || { fail "the last checkpoint is of step 10"; return; }
    out=$("$program" queue "$run" ls)
    show "queue: $out"
    [ "$out" = "no jobs" ] && [ -z "$(ls "$run/fleet/batches")" ] || { fail "something is left"; return; }
}

# --- A12 ---------------------------------------------------------------------------------------------------------------

item_A12() {
    small_model || return
    command -v python3 > /dev/null || { skip "no python3, which reads the log"; return; }
    local out
    # shellcheck disable=SC2046
    "$program" $(train_words --reward length:7 --set max_steps=20 --set logging_steps=5 --set log_completions=true --set log_completions_steps=10 --out "$work/a12" --log-format json) 2> "$work/a12.log" > "$work/a12.out" || { show "$(tail -3 "$work/a12.log")"; fail "the run fails"; return; }
    out=$(python3 - "$work/a12.log" "$work/a12/metrics.jsonl" <<'PY'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
long = [line["message"] for line in lines if "\n" in line["message"] or "──" in line["message"]]
assert not long, f"a table or several lines in a message: {long[0]!r}"
alarms = [line for line in map(json.loads, open(sys.argv[2])) if "alarm" in line]
logged = [{"step": line["step"], "alarm": line["alarm"]} for line in lines if "alarm" in line]
assert logged == alarms, f"{len(logged)} alarms in the log, {len(alarms)} in metrics.jsonl"
assert [line for line in lines if line.get("stages") and line["wall_s"] > 0], "no stages"
assert [line for line in lines if line.get("verdict", {}).get("says")], "no verdict"
assert [line for line in lines if line.get("stop_reason") == "completed" and line["step"] == 20], "no end"
print(f"{len(lines)} lines, {len(alarms)} alarms as in metrics.jsonl")
PY
    ) 2>&1 || { show "$out"; fail "the log is not made of fields"; return; }
    show "$out"
    [ ! -s "$work/a12.out" ] || { fail "standard output is not empty"; return; }
}

# --- A13 ---------------------------------------------------------------------------------------------------------------

item_A13() {
    small_model || return
    local out
    # shellcheck disable=SC2046
    out=$("$program" $(train_words --steps 3 | sed 's/^train /profile /') 2>&1) || { show "$(tail -3 <<<"$out")"; fail "the profile fails"; return; }
    show "$(grep -A3 "## Findings" <<<"$out" | tr '\n' ' ')"
    grep -qE " 0\.[0-4] (of .* )?s\b.*(waited|computed)|waited 0\.0 s" <<<"$(grep -E '^- \*\*' <<<"$out")" && { fail "a finding about nothing"; return; }
    return 0
}

# --- A14 ---------------------------------------------------------------------------------------------------------------

item_A14() {
    small_model || return
    command -v python3 > /dev/null || { skip "no python3, which gives the rewards"; return; }
    printf '%s\n' 'def short(completions, **kwargs):' '    return [-0.32] * len(completions)' \
        'def long(completions, **kwargs):' '    return [len(text) / 10 for text in completions]' > "$work/two.py"
    local out
    out=$("$program" train --model "$work/model" --dataset "$work/data.jsonl" --reward "python:$work/two.py:short" \
        --reward "python:$work/two.py:long" --set num_generations=2 --set per_device_train_batch_size=4 \
        --set max_completion_length=16 --set max_steps=15 --set learning_rate=0.001 --out "$work/a14" 2>&1) || { show "$(tail -3 <<<"$out")"; fail "the run fails"; return; }
    out=$(grep -A3 "alarm constant_reward (short)" <<<"$out")
    show "$out"
    [ "$(grep -c '|.*: -0.32$' <<<"$out")" -ge 2 ] || { fail "the examples end in another number than the score of short"; return; }
}

# --- A15 ---------------------------------------------------------------------------------------------------------------

item_A15() {
    small_model || return
    local out code rate metric
    for rate in 0.001 0.002; do
        # shellcheck disable=SC2046
        out=$("$program" $(train_words --set max_steps=1 --set learning_rate=$rate --out "$work/a15-$rate") 2>&1) || { show "$(tail -3 <<<"$out")"; fail "a run fails"; return; }
    done
    out=$("$program" report "$work/a15-0.001" "$work/a15-0.002" --out "$work/new/rep" 2>&1) || { show "$out"; fail "report --out does not make its directory"; return; }
    out=$(sed -n '/^## What differs/,/^## Curves/p' "$work/new/rep/report.md" | grep '^| ')
    show "$out"
    [ "$(grep -c . <<<"$out")" = 2 ] && grep -q "learning_rate" <<<"$out" || { fail "two runs differ in one key"; return; }
    grep "^| reward " "$work/new/rep/report.md" | grep -q "–" && { fail "a run of one logged line has no numbers"; return; }
    (ulimit -v 4000000; "$program" plan --model "$work/model" --set max_completion_length=256 --set num_generations=512 \
        --set per_device_train_batch_size=65536 --set max_num_seqs=65536) > "$work/plan.log" 2>&1; code=$?
    show "plan: exit code $code: $(grep -o "does not fit" "$work/plan.log")"
    [ $code = 1 ] && grep -q "does not fit" "$work/plan.log" || { fail "a plan that does not fit should end with 1"; return; }
    "$program" plan --model "$work/model" --set max_completion_length=64 > "$work/plan.log" 2>&1 || { fail "a plan that fits ends with $?"; return; }
    for metric in update/skipped_tokens rewards/r/std completions/min_length eval_margin; do
        out=$("$program" outputs "$metric" | sed -n 2p)
        show "$metric: $out"
        grep -qE "^ *(The rows that they|Its |The shortest\.|Mean difference of the two)" <<<"$out" && { fail "$metric is not said by itself"; return; }
    done
    if grep -n 'command`\](\.\./README' "$root/docs/rewards.md"; then fail "a link to options leads to the README"; return; fi
}

# --- A10 ---------------------------------------------------------------------------------------------------------------

item_A10() {
    local missing="" out
    grep -q -- "--features nats" "$root/.github/workflows/release.yml" || missing+=" .github/workflows/release.yml"
    grep -q -- "--features nats" "$root/Dockerfile" || missing+=" Dockerfile"
    grep -q "it has no NATS" "$root/xtask/src/release.rs" || missing+=" cargo xtask release"
    [ -z "$missing" ] || { fail "built without NATS by:$missing"; return; }
    out=$("$program" worker --join nats://127.0.0.1:9/none --name w 2>&1)
    show "worker --join nats://…: $(tail -1 <<<"$out" | cut -c1-150)"
    if "$program" --version | grep -q "nats"; then
        grep -q "built without NATS" <<<"$out" && { fail "the program has the feature and does not know it"; return; }
    else
        show "this build has no NATS (its features: $("$program" --version | grep -o 'features.*' | tr -d ')')); releases and the image have it"
    fi
    return 0
}

# -----------------------------------------------------------------------------------------------------------------------

failed=0
for item in "${ITEMS[@]}"; do
    name=${item%%|*}
    case ",$only," in ",,") ;; *",$name,"*) ;; *) continue ;; esac
    reason=""
    echo "$name  ${item#*|}"
    "item_$name"
    case $? in
        0) echo "$name  PASS" ;;
        77) echo "$name  SKIPPED: $reason" ;;
        *) echo "$name  FAIL: $reason"; failed=1 ;;
    esac
done
exit $failed
