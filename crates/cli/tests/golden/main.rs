//! Golden bits: results of short runs of every kind, hashed by name and compared with `bits.txt`. A change that should
//! not affect results must leave the file unchanged. A change that affects results on purpose rewrites the file and
//! documents the reason.
//!
//! These tests use no types of the library: the program creates the models, trains, is interrupted and resumed, and the
//! tests read its run directory. Hashes cover values of tensors, metrics and columns; they do not cover file encodings,
//! times or memory.
//!
//! | column | computed as | by the instruction sets |
//! |---|---|---|
//! | f32 | f32 | all |
//! | bf16 | bf16, chains | all without AMX |
//! | bf16-amx | bf16, the formula of AMX's tiles | amx, amx-emulated |
//!
//! `GOLDEN_RUNS=all cargo test -p lockstep-cli --test golden` uses every instruction set of the machine. By default,
//! the best and the portable one are used, and AMX for some runs. `GOLDEN_RUNS=write` writes the file.

mod bits;
mod older;
mod runs;

use bits::{Bits, Table};
use runs::{RUNS, Run, Site};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The columns of the file.
const COLUMNS: [&str; 3] = ["f32", "bf16", "bf16-amx"];
/// The runs that are repeated on emulated AMX.
const EVERYWHERE: [&str; 3] = ["grpo", "grpo-lora", "ppo"];

/// A run on an instruction set, and the column that its hashes must match.
struct Job {
    isa: &'static str,
    column: usize,
    run: &'static Run,
    /// The instruction set for the second half of the run, after it is interrupted and resumed.
    resumed: Option<&'static str>,
}

/// All jobs, best instruction set first.
fn jobs(site: &Site, all: bool) -> Vec<Job> {
    let present: Vec<&str> =
        ["avx512-bf16", "avx512", "avx2", "portable"].into_iter().filter(|isa| site.has(isa)).collect();
    let mut jobs = Vec::new();
    for (i, &isa) in present.iter().enumerate() {
        let last = i + 1 == present.len();
        for run in RUNS.iter().filter(|_| all || i == 0 || last) {
            // The run is resumed on a different instruction set, which must not change a bit.
            let resumed = (all || i == 0).then(|| present[(i + 1) % present.len()]);
            jobs.extend([0, 1].map(|column| Job { isa, column, run, resumed }));
        }
    }
    for (i, isa) in ["amx", "amx-emulated"].into_iter().filter(|isa| site.has(isa)).enumerate() {
        for run in RUNS.iter().filter(|run| all || i == 0 || EVERYWHERE.contains(&run.name)) {
            jobs.push(Job { isa, column: 2, run, resumed: (all || isa == "amx").then_some(isa) });
        }
    }
    jobs
}

#[test]
fn golden_runs_match_the_recorded_hashes() {
    let mode = std::env::var("GOLDEN_RUNS").unwrap_or_default();
    assert!(["", "all", "write"].contains(&mode.as_str()), "GOLDEN_RUNS must be all or write, got {mode}");
    let site = Site::new();
    let (jobs, next) = (jobs(&site, mode == "all"), AtomicUsize::new(0));
    let results = Mutex::new(Vec::new());
    // Two runs at a time: each has one thread and often waits for files.
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let bits = site.bits(job.run, job.isa, job.column, job.resumed);
                    results.lock().unwrap().push((job, bits));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap();
    results.sort_by_key(|(job, _)| (job.column, job.isa));

    let mut measured = Table::default();
    let mut differences = Vec::new();
    for (job, bits) in &results {
        let place = measured.entry(job.run.name.to_owned()).or_insert_with(|| [const { None }; 3]);
        match &mut place[job.column] {
            Some(other) => compare(job, "another instruction set", other, bits, &mut differences),
            empty => *empty = Some(bits.clone()),
        }
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/bits.txt");
    if mode == "write" {
        bits::write(&file, &measured);
    }
    let expected = bits::read(&file);
    for (job, bits) in &results {
        match expected.get(job.run.name).and_then(|columns| columns[job.column].as_ref()) {
            Some(expected) => compare(job, "bits.txt", expected, bits, &mut differences),
            None => differences.push(format!("{}: not in bits.txt", job.run.name)),
        }
    }
    let names: Vec<&str> = RUNS.iter().map(|run| run.name).collect();
    differences.extend(
        expected.keys().filter(|name| !names.contains(&name.as_str())).map(|n| format!("{n}: only in bits.txt")),
    );
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

/// Lists the differences between a run and the expected hashes.
fn compare(job: &Job, source: &str, expected: &Bits, found: &Bits, differences: &mut Vec<String>) {
    let names: BTreeMap<&String, ()> = expected.keys().chain(found.keys()).map(|name| (name, ())).collect();
    for name in names.into_keys().filter(|name| expected.get(*name) != found.get(*name)) {
        let text = |bits: &Bits| bits.get(name).cloned().unwrap_or_else(|| "missing".to_owned());
        let (run, column) = (job.run.name, COLUMNS[job.column]);
        differences.push(format!(
            "{run} {column} on {}: {name} is {}, in {source} {}",
            job.isa,
            text(found),
            text(expected)
        ));
    }
}
