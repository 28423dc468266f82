//! The list of files in a training run's directory, with their meaning.

/// A file or directory that a training run writes.
#[derive(Clone, Copy, Debug)]
pub struct RunFile {
    /// Path below the run's directory, where `<…>` stands for a part that varies. A directory ends with `/`.
    pub path: &'static str,
    /// The runs that have this file; empty if all have it.
    pub when: &'static str,
    /// The contents of the file.
    pub meaning: &'static str,
}

const fn file(path: &'static str, when: &'static str, meaning: &'static str) -> RunFile {
    RunFile { path, when, meaning }
}

/// All files and directories that a training run may write.
pub const FILES: &[RunFile] = &[
    file(
        "config.toml",
        "",
        "Every key of the configuration with its value and where that came from; paths are absolute.",
    ),
    file(
        "record.json",
        "",
        "What the run was made of: versions, instruction set, device, dtype, threads, seed, SHA-256 of model, data \
         and rewards, each start with its command and what it changed, what it was forked from, and the machine's \
         measured ceilings.",
    ),
    file(
        "metrics.jsonl",
        "",
        "A JSON object for each logged step, each evaluation and each alarm. A number that is not finite is `null`.",
    ),
    file(
        "steps.jsonl",
        "",
        "A JSON object for each step, logged or not: its own reward, accuracy of pairs and loss, by which the last \
         line of a run and the page say whether the run learns.",
    ),
    file(
        "tensorboard/",
        "`tensorboard = true`",
        "The metrics for TensorBoard, with histograms, completions as text and hyperparameters.",
    ),
    file(
        "trace.json",
        "",
        "Every stage of each step, or of those of `trace_steps`, as a span, for <https://ui.perfetto.dev>; up to \
         32 MiB.",
    ),
    file(
        "profile.json",
        "",
        "Seconds, operations and bytes of each stage, as sums over all steps since the last start but the first, and \
         the findings ([profiling](profiling.md)).",
    ),
    file("lockstep-<process>.log", "", "Every message of a process, those that LOCKSTEP_LOG hides, too."),
    file(
        "rollouts.bin",
        "`record_rollouts = true`",
        "The groups that were trained on, in a checked binary form ([runs](runs.md#recorded-rollouts)); `lockstep \
         rollouts` prints them.",
    ),
    file(
        "rollouts.idx",
        "`record_rollouts = true`",
        "Where each group of rollouts.bin lies, with its step, reward and lengths.",
    ),
    file(
        "updates.bin",
        "`record_rollouts = true`",
        "Log-probabilities after the optimizer step, of some groups (`record_updates`); `updates.idx` says where each \
         lies.",
    ),
    file("updates.idx", "`record_rollouts = true`", "Where each group of updates.bin lies."),
    file(
        "evaluations.bin",
        "`record_rollouts = true` and evaluation data",
        "The groups of evaluations, as rollouts.bin has those of training.",
    ),
    file(
        "evaluations.idx",
        "`record_rollouts = true` and evaluation data",
        "Where each group of evaluations.bin lies.",
    ),
    file("rollouts.jsonl", "runs of 0.1", "The groups that were trained on, as older versions recorded them."),
    file(
        "completions/completions_<step>.parquet",
        "`log_completions = true`",
        "The completions of a step as a table: prompt, completion, each reward, advantage. JSON lines where the \
         program is built without `parquet`.",
    ),
    file(
        "checkpoints/step-<step>/",
        "`save_strategy` is not \"no\"",
        "A model directory that loads anywhere, and beside it the state of the run; `files.json` binds its files to \
         each other.",
    ),
    file("model/", "runs that have ended", "The result: weights or adapter, configuration, tokenizer."),
    file(
        "run.lock",
        "",
        "Which process writes into it, on which machine, since when; empty when none does. If the file system does not \
         support locks, this file protects the run.",
    ),
    file("given-<hash>/", "runs from Python", "Models and tokenizers that were given in memory."),
    file("abandoned/", "after a resume from an older checkpoint", "What came after that checkpoint: a run of its own."),
    file(
        "fleet/",
        "`--distributed`",
        "What learner and workers exchange; nothing in it is needed once the run has ended.",
    ),
    file("report.html", "`lockstep report`", "Curves, time, memory, findings and samples in one file."),
    file("report.md", "`lockstep report`", "Curves, time, memory, findings and samples as Markdown."),
];
