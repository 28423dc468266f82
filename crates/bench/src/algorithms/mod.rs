//! `lockstep bench algorithms`: trains every algorithm on the demo's task from the same SFT model, with several seeds.
//!
//! The benchmark creates the same inputs as `lockstep demo`, runs the code of `lockstep train`, and reads its figures
//! from the metrics of the training runs. The result of a finished run is stored next to it, so that the benchmark can
//! be interrupted and resumed in the same directory.

pub mod arms;
pub mod outcome;

use super::plot::{self, Panel, Series};
use crate::addition::workspace::Workspace;
use arms::{ALGORITHMS, Arm, KL, SHARED, STALENESS};
use lockstep::Policy;
use lockstep::config::ComputeDType;
use lockstep::config::Purpose;
use lockstep::context;
use lockstep::directory::write_atomically;
use lockstep::error::{BadInput, OrBadInput};
use lockstep::{RunResult, bad_input};
use lockstep::{StopSignal, Stopped};
use outcome::{Outcome, curve, mean_std};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use telemetry::{Align, Console, Record, Table};

/// Number of evaluations during a training run.
const EVALUATIONS: u64 = 12;

/// The accuracy at which the table reports that a run has learned the task.
const LEARNED: f64 = 0.9;

/// The comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Every algorithm.
    Algorithms,
    /// Baseline, SFT, GRPO with the KL term, and GRPO without it.
    Kl,
    /// GRPO on completions from increasingly old weights.
    Staleness,
}

/// The options of `lockstep bench algorithms`: held-out accuracy of every algorithm against tokens and seconds, as mean
/// ± standard deviation over seeds.
#[derive(Clone, Debug)]
pub struct AlgorithmsOptions {
    /// The comparison.
    pub table: Which,
    /// The seeds; each has its own data, initial model and SFT run.
    pub seeds: Vec<u64>,
    /// Optimizer steps of each run; each step trains on 256 completions.
    pub steps: u64,
    /// Optimizer steps of supervised fine-tuning before each run.
    pub sft_steps: u64,
    /// The names of the rows to compute; empty for all rows.
    pub only: Vec<String>,
    /// The benchmark's directory.
    pub out: PathBuf,
    /// Number of threads; if not set, LOCKSTEP_THREADS or all cores.
    pub threads: Option<usize>,
    /// Whether the result is printed as JSON.
    pub json: bool,
    /// The console on which the training runs report.
    pub console: Console,
    /// The signal that stops the current training run and the benchmark.
    pub stop: StopSignal,
}

/// A row of the table.
struct Row {
    label: String,
    /// The results, one for each seed.
    outcomes: Vec<Outcome>,
    /// Whether the row was trained with rewards, so that it has a learning curve.
    trained: bool,
}

/// Runs every chosen arm for all seeds and returns the results. Also prints the learning curves side by side, unless
/// JSON is requested.
pub fn run(args: &AlgorithmsOptions) -> anyhow::Result<Value> {
    let arms = chosen(args)?;
    if args.seeds.is_empty() {
        bad_input!("--seeds must have at least one value");
    }
    check_directory(&args.out)?;
    let ctx = context(None, args.threads, ComputeDType::F32)?;
    let AlgorithmsOptions { console, stop, .. } = args;
    let mut rows = first_rows(args.table);
    let before = rows.len();
    rows.extend(arms.iter().map(|arm| Row { label: arm.label.into(), outcomes: Vec::new(), trained: true }));
    for &seed in &args.seeds {
        let root = args.out.join(format!("seed-{seed}"));
        let workspace = Workspace { root: &root, seed, ctx: &ctx, console, stop };
        let Some(done) = one_seed(args, &workspace, &arms, before)? else { return Err(Stopped.into()) };
        rows.iter_mut().zip(done).for_each(|(row, outcome)| row.outcomes.push(outcome));
    }
    std::fs::create_dir_all(&args.out)?;
    let json = report(args, &rows);
    let markdown = table(&rows, args.seeds.len()).1;
    for (name, text) in [
        ("results.json", serde_json::to_string_pretty(&json)? + "\n"),
        ("table.md", markdown),
        ("curves.csv", csv(&rows)),
        ("curves.svg", picture(&rows)),
    ] {
        write_atomically(&args.out.join(name), text.as_bytes())?;
    }
    if !args.json {
        let table = table(&rows, args.seeds.len()).0;
        let mut fields = Record::new();
        fields.set("rows", table.to_json());
        console.table(&table.render(console.width()), "algorithm results", &fields);
        console.print(&format!(
            "results.json, table.md, curves.csv and curves.svg were written to {}",
            args.out.display()
        ));
    }
    Ok(json)
}

/// The arms selected by `--table` and `--only`.
fn chosen(args: &AlgorithmsOptions) -> anyhow::Result<Vec<Arm>> {
    let all = match args.table {
        Which::Algorithms => ALGORITHMS,
        Which::Kl => KL,
        Which::Staleness => STALENESS,
    };
    let names = || all.iter().map(|arm| arm.name).collect::<Vec<_>>().join(", ");
    if let Some(unknown) = args.only.iter().find(|name| all.iter().all(|arm| arm.name != *name)) {
        bad_input!("--only {unknown}: unknown row; expected one of {}", names());
    }
    Ok(all
        .iter()
        .filter(|arm| args.only.is_empty() || args.only.iter().any(|name| name == arm.name))
        .copied()
        .collect())
}

/// The rows that are not trained with rewards.
fn first_rows(table: Which) -> Vec<Row> {
    let row = |label: &str| Row { label: label.into(), outcomes: Vec::new(), trained: false };
    match table {
        Which::Algorithms | Which::Staleness => vec![row("SFT")],
        Which::Kl => vec![row("baseline (random weights)"), row("SFT")],
    }
}

/// Returns an error if the directory is not empty and has no results of an earlier run of this benchmark.
fn check_directory(out: &Path) -> anyhow::Result<()> {
    let entries = match std::fs::read_dir(out) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries.or_bad_input_in(format!("--out {}", out.display()))?,
    };
    let names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    if !names.is_empty() && !names.iter().any(|name| name.to_string_lossy().starts_with("seed-")) {
        bad_input!(
            "--out {}: the directory is not empty and has no results of this benchmark; choose a different one",
            out.display()
        );
    }
    Ok(())
}

/// Computes the results of all rows for one seed. Returns `None` if a stop was requested.
fn one_seed(
    args: &AlgorithmsOptions,
    workspace: &Workspace<'_>,
    arms: &[Arm],
    before: usize,
) -> anyhow::Result<Option<Vec<Outcome>>> {
    std::fs::create_dir_all(workspace.root)?;
    let base = workspace.make_inputs()?;
    let mut outcomes = Vec::new();
    if before > 1 {
        let settings = vec![("seed".to_owned(), workspace.seed.to_string())];
        outcomes.push(remembered(workspace, "baseline", settings, |settings| {
            let policy = Policy::load(workspace.ctx, &base, ComputeDType::F32)?;
            Ok(Some(examined(workspace, "baseline", settings, &policy)?))
        })?);
    }
    let settings = vec![("max_steps".to_owned(), args.sft_steps.to_string())];
    outcomes.push(remembered(workspace, "sft", settings, |settings| {
        let layers = workspace.layers(Purpose::Sft, "sft", &base, args.sft_steps, &[]);
        let Some(finished) = workspace.run(&layers)? else { return Ok(None) };
        Ok(Some(examined(workspace, "sft", settings, &finished.policy)?))
    })?);
    let Some(Some(sft)) = outcomes.last().cloned() else { return Ok(None) };
    let taught = workspace.root.join("sft").join("model");
    for arm in arms {
        let every = (args.steps / EVALUATIONS).max(1).to_string();
        let own: Vec<(&str, &str)> = [("logging_steps", every.as_str()), ("eval_steps", &every)]
            .into_iter()
            .chain(SHARED.iter().chain(arm.settings).copied())
            .collect();
        let mut settings: Vec<_> = own.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        settings.push(("max_steps".to_owned(), args.steps.to_string()));
        settings.push(("max_steps of SFT".to_owned(), args.sft_steps.to_string()));
        let outcome = remembered(workspace, arm.name, settings, |settings| {
            workspace.console.info(&format!("seed {}: {}", workspace.seed, arm.label));
            let layers = workspace.layers(Purpose::Grpo, arm.name, &taught, args.steps, &own);
            let Some(finished) = workspace.run(&layers)? else { return Ok(None) };
            learned(workspace, arm.name, settings, &finished, sft.sampled).map(Some)
        })?;
        if outcome.is_none() {
            return Ok(None);
        }
        outcomes.push(outcome);
    }
    Ok(outcomes.into_iter().collect())
}

/// Returns the stored result of this training run, or executes the run and stores its result.
fn remembered(
    workspace: &Workspace<'_>,
    name: &str,
    settings: Vec<(String, String)>,
    run: impl FnOnce(Vec<(String, String)>) -> anyhow::Result<Option<Outcome>>,
) -> anyhow::Result<Option<Outcome>> {
    let path = workspace.root.join(format!("{name}.json"));
    if let Ok(text) = std::fs::read(&path) {
        let outcome: Outcome = serde_json::from_slice(&text)
            .map_err(|e| BadInput::new(format!("{}: {e}; delete the file to repeat this run", path.display())))?;
        if outcome.settings != settings {
            bad_input!(
                "{} is from a run with different settings: choose another --out, or repeat the earlier --steps \
                 and --sft-steps",
                path.display()
            );
        }
        return Ok(Some(outcome));
    }
    let Some(outcome) = run(settings)? else { return Ok(None) };
    write_atomically(&path, serde_json::to_string_pretty(&outcome)?.as_bytes())?;
    Ok(Some(outcome))
}

/// The result of a model that was not trained with rewards.
fn examined(
    workspace: &Workspace<'_>,
    name: &str,
    settings: Vec<(String, String)>,
    policy: &Policy,
) -> anyhow::Result<Outcome> {
    let [sampled, greedy] = workspace.examine(policy)?.accuracy();
    let (name, seed) = (name.to_owned(), workspace.seed);
    Ok(Outcome { name, seed, settings, curve: Vec::new(), sampled, greedy, tokens: 0.0, seconds: 0.0 })
}

/// The result of a training run. `start` is the accuracy before the first step.
fn learned(
    workspace: &Workspace<'_>,
    name: &str,
    settings: Vec<(String, String)>,
    finished: &RunResult,
    start: f64,
) -> anyhow::Result<Outcome> {
    let curve = curve(&telemetry::metrics::read(&finished.dir.metrics())?, start);
    let last = *curve.last().expect("the curve includes its start");
    let end = examined(workspace, name, settings, &finished.policy)?;
    Ok(Outcome { curve, tokens: last.tokens, seconds: last.seconds, ..end })
}

/// Formats `mean ± std` with the given number of decimals.
fn pm(values: &[f64], decimals: usize) -> String {
    match (mean_std(values), values.len()) {
        ((mean, _), 1) => format!("{mean:.decimals$}"),
        ((mean, std), _) => format!("{mean:.decimals$} ± {std:.decimals$}"),
    }
}

/// The table for a terminal, and as Markdown.
fn table(rows: &[Row], seeds: usize) -> (Table, String) {
    let reach = format!("{:.0} %", 100.0 * LEARNED);
    let columns = [
        "algorithm".to_owned(),
        "sampled %".to_owned(),
        "greedy %".to_owned(),
        "10⁶ tokens".to_owned(),
        "seconds".to_owned(),
        format!("10⁶ tokens to {reach}"),
        format!("seconds to {reach}"),
    ];
    let align = |(i, name): (usize, &String)| (name.clone(), if i == 0 { Align::Left } else { Align::Right });
    let mut table = Table::new(columns.iter().enumerate().map(align));
    let mut markdown = format!("| {} |\n|---|{}\n", columns.join(" | "), "---:|".repeat(columns.len() - 1));
    for row in rows {
        let of = |f: &dyn Fn(&Outcome) -> f64| row.outcomes.iter().map(f).collect::<Vec<f64>>();
        let mut cells = vec![row.label.clone(), pm(&of(&|o| 100.0 * o.sampled), 1), pm(&of(&|o| 100.0 * o.greedy), 1)];
        if row.trained {
            cells.extend([pm(&of(&|o| o.tokens / 1e6), 2), pm(&of(&|o| o.seconds), 0)]);
            let reached: Vec<_> = row.outcomes.iter().filter_map(|o| o.reaches(LEARNED)).collect();
            if reached.len() == seeds {
                cells.push(pm(&reached.iter().map(|p| p.tokens / 1e6).collect::<Vec<_>>(), 2));
                cells.push(pm(&reached.iter().map(|p| p.seconds).collect::<Vec<_>>(), 0));
            } else {
                cells.extend(vec![format!("{} of {seeds} seeds", reached.len()); 2]);
            }
        } else {
            cells.extend(vec!["–".to_owned(); 4]);
        }
        let _ = writeln!(markdown, "| {} |", cells.join(" | "));
        table.row(cells);
    }
    (table, markdown)
}

/// The learning curve of a row: at each evaluation the mean and standard deviation over the seeds.
fn series(row: &Row, x: impl Fn(&outcome::Point) -> f64) -> Series {
    let points = row.outcomes.iter().map(|o| o.curve.len()).min().unwrap_or(0);
    let at = |i: usize| {
        let of = |f: &dyn Fn(&outcome::Point) -> f64| row.outcomes.iter().map(|o| f(&o.curve[i])).collect::<Vec<f64>>();
        let (mean, std) = mean_std(&of(&|p| 100.0 * p.accuracy));
        [mean_std(&of(&x)).0, mean, std]
    };
    Series { name: row.label.clone(), points: (0..points).map(at).collect() }
}

fn picture(rows: &[Row]) -> String {
    let trained = || rows.iter().filter(|row| row.trained);
    let panels = [
        Panel {
            label: "million tokens (prompts and completions)".into(),
            series: trained().map(|row| series(row, |p| p.tokens / 1e6)).collect(),
        },
        Panel {
            label: "seconds of training".into(),
            series: trained().map(|row| series(row, |p| p.seconds)).collect(),
        },
    ];
    let title = "Two-digit addition: accuracy on held-out problems, one answer each at T = 1 (mean ± std over seeds)";
    plot::svg(title, "held-out accuracy, %", 100.0, &panels)
}

fn csv(rows: &[Row]) -> String {
    let mut text = "algorithm,seed,step,tokens,seconds,accuracy\n".to_owned();
    for outcome in rows.iter().filter(|row| row.trained).flat_map(|row| &row.outcomes) {
        for p in &outcome.curve {
            let _ = writeln!(
                text,
                "{},{},{},{},{:.3},{:.6}",
                outcome.name, outcome.seed, p.step, p.tokens, p.seconds, p.accuracy
            );
        }
    }
    text
}

fn report(args: &AlgorithmsOptions, rows: &[Row]) -> serde_json::Value {
    let row = |row: &Row| {
        let of = |f: &dyn Fn(&Outcome) -> f64| {
            let (mean, std) = mean_std(&row.outcomes.iter().map(f).collect::<Vec<_>>());
            json!({"mean": mean, "std": std})
        };
        json!({
            "label": row.label,
            "sampled": of(&|o| o.sampled),
            "greedy": of(&|o| o.greedy),
            "tokens": of(&|o| o.tokens),
            "seconds": of(&|o| o.seconds),
            "runs": row.outcomes,
        })
    };
    json!({
        "steps": args.steps,
        "sft_steps": args.sft_steps,
        "seeds": args.seeds,
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
    })
}
