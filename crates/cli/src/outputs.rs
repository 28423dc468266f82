//! `lockstep outputs`: explains the metrics and files that a training run writes. Without a name it prints
//! docs/outputs.md.

use crate::output;
use lockstep::bad_input;
use std::fmt::Write;
use telemetry::outputs::{FILES, Metric, RunFile, SECTIONS, Section, metric};

/// Explains metrics of a run: meaning, unit, healthy values, remedies. Without a name, prints docs/outputs.md, which
/// has every metric and every file.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Metrics, as metrics.jsonl names them.
    #[arg(value_name = "METRIC")]
    pub names: Vec<String>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let text = if args.names.is_empty() {
        page()
    } else {
        args.names.iter().map(|name| explain(name)).collect::<anyhow::Result<Vec<_>>>()?.join("\n")
    };
    Ok(output::exact(&text)?)
}

fn explain(name: &str) -> anyhow::Result<String> {
    let Some(Metric { unit, meaning, healthy, remedy, .. }) = metric(name) else {
        let all: Vec<&str> = SECTIONS.iter().flat_map(|section| section.metrics).map(|metric| metric.name).collect();
        let near = model::did_you_mean(name, all);
        bad_input!("no run logs a metric `{name}`{near}; `lockstep outputs` lists all");
    };
    let mut text = format!("{name}\n  {meaning}\n");
    let parts = [("unit", unit), ("healthy", healthy), ("what helps", remedy)];
    parts.iter().filter(|(_, part)| !part.is_empty()).for_each(|(what, part)| {
        let _ = writeln!(text, "  {what}: {part}");
    });
    Ok(text)
}

const INTRODUCTION: &str = "\
# What a run writes

Made by `lockstep outputs > docs/outputs.md` from the tables in `crates/telemetry/src/outputs/`; a test keeps it
current, and tests compare it with what runs of every kind write. `lockstep outputs METRIC` says the same of one metric,
and so does the page where the pointer rests on a chart's name.

Names are TRL's where TRL has the metric. A line of `metrics.jsonl` has the mean over the steps since the last logged
one; `epoch`, `num_tokens` and `peak_bytes` are those of its end. A mean, an extreme or a share of nothing is missing,
and never 0: of no scored completion, no token in the loss, no completion that ended. `<…>` stands for a name that the
run chooses.
";

const FILES_HEAD: &str = "
## Files

[runs.md](runs.md) says how a run keeps these files whole when it is killed, and what a resume does with them.

| file | which runs | what is in it |
|---|---|---|
";

/// The text of docs/outputs.md.
pub(super) fn page() -> String {
    let mut page = INTRODUCTION.to_owned() + FILES_HEAD;
    for RunFile { path, when, meaning } in FILES {
        let when = if when.is_empty() { "all" } else { when };
        let _ = writeln!(page, "| `{path}` | {when} | {} |", cell(meaning));
    }
    for Section { title, of, metrics } in SECTIONS {
        let _ = write!(page, "\n## {title}\n\nOf: {}.\n\n", cell(of));
        page.push_str("| metric | unit | meaning | healthy | what helps where it is not |\n|---|---|---|---|---|\n");
        for Metric { name, unit, meaning, healthy, remedy } in *metrics {
            let _ = writeln!(page, "| `{name}` | {unit} | {} | {} | {} |", cell(meaning), cell(healthy), cell(remedy));
        }
    }
    page
}

/// Escapes a text so that it does not end a table cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_of_all_outputs_is_current() {
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/outputs.md");
        let (page, now) = (std::fs::read_to_string(&file).unwrap_or_default(), super::page());
        if page != now {
            let made = std::env::temp_dir().join("lockstep-outputs.md");
            std::fs::write(&made, now).unwrap();
            let made = made.display();
            panic!("docs/outputs.md is old: cargo run -- outputs > docs/outputs.md (or copy {made})");
        }
    }

    #[test]
    fn a_metric_is_explained_and_a_misspelt_one_names_the_nearest() {
        let text = super::explain("eval_hard_pass@4").unwrap();
        assert!(text.starts_with("eval_hard_pass@4\n  Prompts for which at least one of k"), "{text}");
        let error = super::explain("grad_nrom").unwrap_err().to_string();
        assert!(error.contains("did you mean `grad_norm`?"), "{error}");
    }
}
