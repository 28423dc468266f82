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
    file("config.toml", "", "Every configuration key with its value and the origin of the value; paths are absolute."),
    file(
        "record.json",
        "",
        "The inputs of the run: versions, instruction set, device, dtype, threads, seed, SHA-256 of model, data and \
         rewards, each start with its command and changed keys, the run that it was forked from, and the machine's \
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
        "A JSON object for each step, logged or not, with the step's reward, pair accuracy and loss. The run's \
         last line and the page use these values to report whether the run learns.",
    ),
    file(
        "tensorboard/",
        "`tensorboard = true`",
        "The metrics for TensorBoard, with histograms, completions as text and hyperparameters.",
    ),
    file(
        "trace.json",
        "",
        "Every stage of each step (or of the steps in `trace_steps`) as a span, for <https://ui.perfetto.dev>; up to \
         32 MiB.",
    ),
    file(
        "profile.json",
        "",
        "Seconds, operations and bytes of each stage, summed over all steps since the last start except its first \
         step, and the findings ([profiling](profiling.md)).",
    ),
    file("lockstep-<process>.log", "", "Every message of a process, including those that LOCKSTEP_LOG hides."),
    file(
        "rollouts.bin",
        "`record_rollouts = true`",
        "The groups that were trained on, in a binary format with checksums ([runs](runs.md#recorded-rollouts)); \
         `lockstep rollouts` prints them.",
    ),
    file(
        "rollouts.idx",
        "`record_rollouts = true`",
        "The offset of each group in rollouts.bin, with its step, reward and lengths.",
    ),
    file(
        "updates.bin",
        "`record_rollouts = true`",
        "Log-probabilities of some groups after the optimizer step (`record_updates`); `updates.idx` has their \
         offsets.",
    ),
    file("updates.idx", "`record_rollouts = true`", "The offset of each group in updates.bin."),
    file(
        "evaluations.bin",
        "`record_rollouts = true` and evaluation data",
        "The groups of evaluations, in the format of rollouts.bin.",
    ),
    file(
        "evaluations.idx",
        "`record_rollouts = true` and evaluation data",
        "The offset of each group in evaluations.bin.",
    ),
    file("rollouts.jsonl", "runs of 0.1", "The groups that were trained on, as older versions recorded them."),
    file(
        "completions/completions_<step>.parquet",
        "`log_completions = true`",
        "The completions of a step as a table: prompt, completion, each reward, advantage. JSON lines if the program \
         was built without `parquet`.",
    ),
    file(
        "checkpoints/step-<step>/",
        "`save_strategy` is not \"no\"",
        "A model directory that loads anywhere, and beside it the state of the run; `files.json` lists the files with \
         their checksums.",
    ),
    file("model/", "runs that have ended", "The result: weights or adapter, configuration, tokenizer."),
    file(
        "run.lock",
        "",
        "The process that writes to the run, its machine and its start time; empty if no process writes. If the file \
         system does not support locks, this file protects the run.",
    ),
    file("given-<hash>/", "runs from Python", "Models and tokenizers that were passed in memory."),
    file(
        "abandoned/",
        "after a resume from an older checkpoint",
        "The steps after that checkpoint, as a separate run.",
    ),
    file(
        "fleet/",
        "`--distributed`",
        "The files that learner and workers exchange; not needed after the end of the run.",
    ),
    file("report.html", "`lockstep report`", "Curves, time, memory, findings and samples in one file."),
    file("report.md", "`lockstep report`", "Curves, time, memory, findings and samples as Markdown."),
];
