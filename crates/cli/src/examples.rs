//! The examples and notes at the end of each command's `--help`.

pub const TRAIN: &str = "\
Examples:
  lockstep train --model DIR --dataset train.jsonl --task gsm8k --out runs/first
  lockstep train my.toml --set learning_rate=2e-6 --set beta=0.04
  lockstep train --model DIR --dataset d.jsonl --reward \"command:python reward.py\"
  lockstep train my.toml --resume latest     continue the run in output_dir
  lockstep train --resume runs/first         the same, by its directory
  lockstep train --model DIR --replay runs/first/rollouts.bin       train on
      recorded rollouts (record_rollouts = true writes them)
  lockstep train my.toml --ranks 2           two processes divide generation and each update
  torchrun --no_python --nproc_per_node 2 lockstep train my.toml      the same

Data: JSON lines or Parquet with a `prompt` column (text or chat messages); the
other columns go to the rewards.
Rewards: gsm8k, math, exact_match, format:REGEX, length:N, … (docs/rewards.md),
command:PROGRAM, model:DIR (a reward model); --reward may be repeated. Try them
on completions of your own with `lockstep score-rewards`.
A signal (Ctrl-C, SIGTERM, SIGHUP, SIGUSR1) ends the step, writes a checkpoint and
exits with 128 + the signal's number (Ctrl-C: 130); a second one exits at once.
`lockstep plan` predicts a run's memory; `lockstep config show` lists every key.";

pub const LEARNER: &str = "\
Examples:
  lockstep learner my.toml --out runs/a
  lockstep worker --join runs/a --name dev1 --threads 1     in another terminal
  lockstep status runs/a
`lockstep train my.toml --distributed --workers 2` starts all three.";

pub const WORKER: &str = "\
Example:
  lockstep worker --join runs/a --name dev1 --threads 1
A worker waits for its learner (`lockstep learner CONFIG --out runs/a`), and exits
at the end of the run.";

pub const SFT: &str = "\
Examples:
  lockstep sft --model DIR --dataset pairs.jsonl --out runs/warm-up
  lockstep sft my.toml --set completion_column=answer --set num_train_epochs=1

Data: a `prompt` and a `completion` column, both text or both chat messages. The
loss is on the completion only.";

pub const REWARD: &str = "\
Examples:
  lockstep reward --model DIR --dataset pairs.jsonl --out runs/reward
  lockstep reward my.toml --set eval_dataset_name=held-out.jsonl \\
    --set center_rewards_coefficient=0.01
  lockstep train --model DIR --dataset prompts.jsonl \\
    --reward model:runs/reward/model

Data: a `chosen` and a `rejected` column, both text or both chat messages, and
optionally a `prompt` (by default, their common prefix) and a `margin`.
--task gsm8k_solutions reads GSM8K's labelled solutions: it pairs each correct one
with each incorrect one of its problem, and holds out every fifth problem (split
`test`). A language model gets a head with one output; a reward model keeps its head.
The result loads in transformers as AutoModelForSequenceClassification; with
use_peft = true it is an adapter with a head, which `lockstep merge` merges into such
a model.
With eval_dataset_name: eval_accuracy on held-out pairs, eval_brier_score and
eval_calibration_error of the probability that the better answer wins.";

pub const DPO: &str = "\
Examples:
  lockstep dpo --model runs/warm-up/model --dataset pairs.jsonl --out runs/dpo
  lockstep dpo examples/dpo.toml --model DIR --set beta=0.3 --steps 100

Data: a `chosen` and a `rejected` column, both text or both chat messages, and
optionally a `prompt` (by default, their common prefix).
The reference is the model before training: start from one that was fine-tuned on
answers like the chosen ones (`lockstep sft`).
Watch rewards/margins and rewards/accuracies rise; if logps/chosen falls much,
lower learning_rate or raise beta. Batch sizes count pairs.";

pub const DEMO: &str = "\
Examples:
  lockstep demo                       a few minutes on two cores
  lockstep demo --seed 7 --out /tmp/demo --steps 300";

pub const GENERATE: &str = "\
Examples:
  lockstep generate --model DIR --prompt \"Once upon a time\" --temperature 0
  lockstep generate --model DIR --prompt \"What is 12 + 30?\" --n 4 --seed 1 --json";

pub const SERVE: &str = "\
Examples:
  lockstep serve --model DIR
  lockstep serve --model Qwen/Qwen3-0.6B=DIR --adapter math=runs/a/model
  LOCKSTEP_API_KEY=… lockstep serve --model DIR --listen 0.0.0.0:8000

  curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\
    -d '{\"model\": \"NAME\", \"prompt\": \"Once upon a time\", \"max_tokens\": 30}'

Routes: /v1/models, /v1/completions, /v1/chat/completions, /inference/v1/generate
(token ids), /health, /metrics (Prometheus). Fields and limits: docs/serve.md.
Ctrl-C completes the open requests and exits with 130; a second one exits at once.
The connection is not encrypted: beyond this machine, put a proxy with TLS before
the server.";

pub const SCORE: &str = "\
Examples:
  echo '{\"prompt_ids\": [1], \"completion_ids\": [403, 407]}' > ids.jsonl
  lockstep score --model DIR --input ids.jsonl > logprobs.jsonl

Each input line gives one line {\"logprobs\": […], \"entropies\": […]}, in nats.";

pub const SCORE_REWARDS: &str = "\
Examples:
  lockstep score-rewards --input completions.jsonl --reward gsm8k
  lockstep score-rewards my.toml --input completions.jsonl --json
  lockstep eval --model DIR --task gsm8k --dataset test.jsonl --out c.jsonl

Each line has a `completion` (text or chat messages), a `prompt` and the dataset's
columns if the reward needs them, and `completion_ids` for rewards that read
tokens (or give --tokenizer). Consecutive lines with the same prompt are a group.
Exit code 1 if a reward scored nothing.";

pub const ROLLOUTS: &str = "\
Examples:
  lockstep rollouts runs/first | head -1 | jq .completion_ids
  lockstep rollouts runs/first --index | jq -s 'max_by(.reward_std).group'
  lockstep rollouts runs/first --group 12
  lockstep rollouts runs/first --of evaluations

The lines have the keys that `--replay` reads (docs/algorithms.md), and keys for
everything else that was recorded. docs/runs.md describes the file format.";

pub const DASHBOARD: &str = "\
Examples:
  lockstep dashboard                       all runs below ./runs
  lockstep dashboard runs/a runs/b         two runs, to compare
  lockstep dashboard runs --host 0.0.0.0   from another machine, with a token
  lockstep dashboard --allow-run           the view Levels may run benchmarks
  lockstep train my.toml --dashboard       the page of the new run

Prompts, completions and tokens are shown for runs with record_rollouts = true.";

pub const REPORT: &str = "\
Examples:
  lockstep report runs/a                  runs/a/report.html and runs/a/report.md
  lockstep report runs/before runs/after  side by side, with ratios
  lockstep report runs/a --print          only the Markdown

The report of a run with record_rollouts = true has completions. docs/profiling.md";

pub const OUTPUTS: &str = "\
Examples:
  lockstep outputs                        every metric and every file of a run
  lockstep outputs grad_norm eval_reward  their meaning, healthy values, remedies";

pub const BOARD: &str = "\
Examples:
  lockstep board runs/a                   runs/a/tensorboard, for a run that was trained without it
  lockstep board runs/a runs/b --out tb   tb/a and tb/b; then: tensorboard --logdir tb

An event file that the run itself wrote is never overwritten.";

pub const PROFILE: &str = "\
Examples:
  lockstep profile my.toml                ten steps
  lockstep profile my.toml --steps 3 --set num_generations=16
  lockstep profile my.toml --for sft
  lockstep profile my.toml --out runs/p   keeps profile.json and trace.json

The first step is left out of all figures. docs/profiling.md lists the possible
findings and what helps.";

pub const STATUS: &str = "\
Examples:
  lockstep status runs/a
  lockstep status runs/a --watch
  lockstep status runs/a --json | jq .learner.step

version N: the weights after N batches. A checkpoint in brackets is waiting for its
frontier: results that only older weights can give.
Batches: `training` is being trained on, `synced` has all its results on disk; for
the others, the number of jobs in each state.
Counts since this learner started: remade, jobs queued again because their worker
exited or a file was lost; twice, second results with equal bits; differing, second
results with different bits; refused, results that were not requested; corrupt, files
that could not be read; died, workers that exited unexpectedly; killed, workers that
made no progress.
Workers: profiles, current job, jobs done, time spent waiting for jobs. `silent` is
the time since the last report. Another worker repeats the job of a DEAD one, with
the same bits.";

pub const VERIFY: &str = "\
Examples:
  lockstep train my.toml --set record_rollouts=true --out runs/a
  lockstep verify runs/a                     five random steps
  lockstep verify runs/a --all --threads 2
  lockstep verify runs/a --seed 7 --json | jq .difference

Steps are replayed between checkpoints, in a directory for temporary files
(TMPDIR); the run is not changed. The bits are the same for any number of threads,
and on every instruction set with the run's arithmetic (record.json).
Exit codes: 0 proven; 1 something differs, and the first difference is printed; 2
the run cannot be verified, and the reason is printed.";

pub const FORK: &str = "\
Examples:
  lockstep fork runs/a --at 120 --without-group 487 --out runs/b
  lockstep fork runs/a --at 120 --set learning_rate=1e-6 --out runs/c
  lockstep rollouts runs/a --index           lists the groups

Up to the step of --at, the new run equals the old one bit for bit: it resumes from
the checkpoint at or before that step. Without a change, the two runs are equal to
the end.
--set takes the keys that may change on resume. record.json has the old run's
directory, the step and the lineage.";

pub const QUEUE: &str = "\
Examples:
  lockstep queue runs/a ls
  lockstep queue runs/a ls --json | jq '.processing[] | select(.worker == \"dev1\")'
  lockstep queue runs/a show 000123.0

A job goes from pending to processing (a worker took it) to complete (its result
has arrived). When all results of a batch are complete, they become one file, synced
to disk before the step that trains on them. The next checkpoint deletes that file. All
results of a job have the same fingerprint, whichever worker computed them.";

pub const EVAL: &str = "\
Examples:
  lockstep eval runs/first                   a run's model, evaluated as in the run
  lockstep eval runs/first/checkpoints/step-000100     the same for a checkpoint
  lockstep eval my.toml --model DIR          another model, with this configuration
  lockstep eval --model DIR --task gsm8k --dataset test.jsonl         greedy
  lockstep eval --model DIR --task gsm8k --dataset test.jsonl --n 8   with pass@k
  lockstep eval runs/first --dataset easy=a.jsonl --dataset hard=b.jsonl

Columns, system prompt and rewards have no defaults: they come from the run, --task
or flags. A completion is correct (pass@k) if the first reward, or
eval_pass_at_k_reward, gives 1 or more; completions without a score do not count.
Exit code 1 if nothing was scored.";

pub const INIT: &str = "\
Examples:
  lockstep init --config config.json --tokenizer DIR --seed 1 --out models/random";

pub const MERGE: &str = "\
Examples:
  lockstep train my.toml --set use_peft=true --out runs/lora
  lockstep generate --model DIR --adapter runs/lora/model --prompt \"Hello\"
  lockstep train my.toml --model runs/lora/model --out runs/further     continue
  lockstep merge --model DIR --adapter runs/lora/model --out models/merged";

pub const PLAN: &str = "\
Examples:
  lockstep plan my.toml
  lockstep plan my.toml --set max_tokens_per_micro_batch=2048
  lockstep plan my.toml && lockstep train my.toml

Exit codes: 0 the run fits, or the available memory is unknown; 1 it does not fit; 2
the configuration is invalid.";
