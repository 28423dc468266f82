//! The names of a run's own files. Other files in a run's directory belong to the user: a run neither changes nor
//! deletes them.

use std::path::Path;

/// The names of the files and folders that a run writes to its directory; `*` matches any characters. (`fleet` is not
/// listed, because workers may join before their learner starts.)
const OF_A_RUN: [&str; 21] = [
    "config.toml",
    "record.json",
    "metrics.jsonl",
    "steps.jsonl",
    "tensorboard",
    "rollouts.bin",
    "rollouts.idx",
    "rollouts.jsonl",
    "updates.bin",
    "updates.idx",
    "evaluations.bin",
    "evaluations.idx",
    "completions",
    "checkpoints",
    // Links to checkpoints, which the Python package creates.
    "checkpoint-*",
    "model",
    "trace.json",
    "profile.json",
    "lockstep-*.log",
    "abandoned",
    "drafts.bin",
];

/// Whether `name` is a temporary file (`.NAME.PID.partial`, `.NAME.PID.tmp`) or an unfinished result.
pub(super) fn is_temporary(name: &str) -> bool {
    let file = name.strip_prefix('.').and_then(|name| name.strip_suffix(".partial").or(name.strip_suffix(".tmp")));
    let pid = file.and_then(|name| name.rsplit_once('.')).is_some_and(|(_, pid)| pid.parse::<u32>().is_ok());
    pid || name.starts_with(".unfinished-")
}

/// The first name in the directory `root` that a run would use for its own files. Empty directories are ignored.
pub(super) fn in_the_way(root: &Path) -> Option<String> {
    let belongs_to_run = |name: &str| {
        OF_A_RUN.iter().any(|pattern| match pattern.split_once('*') {
            Some((start, end)) => {
                name.len() > start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
            }
            None => *pattern == name,
        })
    };
    let is_empty =
        |entry: &disk::Entry| entry.is_dir() && disk::read_dir(entry.path()).is_ok_and(|entries| entries.is_empty());
    let in_the_way = |entry: &disk::Entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        // A run deletes all files with names of temporary files, so such a file of the user's is in the way. A
        // temporary file of the configuration is not: a run that was killed before it began may have left it.
        let is_of_killed = is_temporary(&name) && !name.starts_with(".config.toml.");
        ((belongs_to_run(&name) && !is_empty(entry)) || is_of_killed).then_some(name)
    };
    disk::read_dir(root).ok()?.iter().filter_map(in_the_way).min()
}

#[cfg(test)]
mod tests {
    use crate::run::RunDir;
    use std::fs;

    /// Creates `name` in a new directory, as a directory with a file if it ends in `/`.
    fn with(name: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        match name.strip_suffix('/') {
            Some(name) => {
                fs::create_dir(dir.path().join(name)).unwrap();
                fs::write(dir.path().join(name).join("notes"), "years of work").unwrap();
            }
            None => fs::write(dir.path().join(name), "years of work").unwrap(),
        }
        dir
    }

    /// Checks every kind of file that a directory may have before a run begins in it.
    #[test]
    fn a_run_begins_beside_files_that_it_does_not_change() {
        let foreign = "thesis.tex log train.log slurm-12.out .hidden args.json trainer_state.json eval_results.json \
                       all_results.json config.json README.md model.safetensors adapter_config.json tokenizer.json \
                       runs/ events/ data/ checkpoint best-checkpoint-3 lockstep.log lockstep-0.txt my-lockstep-0.log \
                       config.toml.bak models/ completions.csv metrics.json tensorboard.txt given-12345678/ \
                       .x.partial notes.12.tmp unfinished-model/";
        let own = "record.json metrics.jsonl rollouts.bin rollouts.idx rollouts.jsonl updates.bin updates.idx \
                   evaluations.bin evaluations.idx trace.json profile.json drafts.bin lockstep-0.log \
                   lockstep-12.log tensorboard completions checkpoints model tensorboard/ completions/ \
                   checkpoints/ model/ abandoned/ checkpoint-100/ checkpoint-5 .metrics.jsonl.3.tmp \
                   .x.12.partial .unfinished-model/";
        for name in foreign.split_whitespace() {
            let dir = with(name);
            assert!(RunDir::is_new(dir.path()), "{name}");
            let run = RunDir::fresh(dir.path()).unwrap_or_else(|error| panic!("{name}: {error}"));
            run.lock().unwrap();
            run.create("seed = 1\n").unwrap();
            run.sweep().unwrap();
            let kept = dir.path().join(name.trim_end_matches('/'));
            let kept = if kept.is_dir() { kept.join("notes") } else { kept };
            assert_eq!(fs::read_to_string(kept).unwrap(), "years of work", "{name}");
        }
        for name in own.split_whitespace() {
            let dir = with(name);
            assert!(!RunDir::is_new(dir.path()), "{name}");
            let refusal = RunDir::fresh(dir.path()).unwrap_err();
            assert!(crate::error::is_bad_input(&refusal), "{name}");
            let quoted = format!("has `{}`, ", name.trim_end_matches('/'));
            assert!(refusal.to_string().contains(&quoted), "{name}: {refusal}");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "{name}");
        }
        // An empty directory has no data to lose.
        for name in ["tensorboard", "completions", "checkpoints", "model"] {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir(dir.path().join(name)).unwrap();
            assert!(RunDir::is_new(dir.path()) && RunDir::fresh(dir.path()).is_ok(), "{name}");
        }
    }

    /// Each file of a run must have a name that prevents a second run in the directory.
    #[test]
    fn every_file_of_a_run_is_in_the_list() {
        let out = tempfile::tempdir().unwrap();
        let run = RunDir::fresh(&out.path().join("out")).unwrap();
        let files = [
            run.config(),
            run.record(),
            run.metrics(),
            run.tensorboard(),
            run.rollouts(),
            run.updates(),
            run.evaluations(),
            run.older_rollouts(),
            run.completions(),
            run.checkpoints(),
            run.model(),
            run.trace(),
            run.log(0),
            run.log(11),
            run.rollouts().with_extension("idx"),
        ];
        for file in files {
            let name = file.file_name().unwrap().to_string_lossy().into_owned();
            let dir = with(&name);
            assert!(!RunDir::is_new(dir.path()), "{name}");
        }
    }
}
