//! `lockstep score-rewards`: runs rewards on a file of completions.

use crate::options::{FlagKeys, RewardArgs, utf8};
use crate::output;
use crate::signals::{Promise, stop_on_signals};
use lockstep::bad_input;
use lockstep::config::{Layers, Purpose, Resolved};
use lockstep::evaluation::{ScoredFile, ScoredRow, score_file};
use lockstep::files::{Input, OutFile};
use rewards::RewardSpec;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use telemetry::{Align, Console, ConsoleOptions, Table, counted};

/// How many characters of an example are shown, counted from its end.
const SHOWN: usize = 300;
/// The maximum number of different scores that are counted one by one; if there are more, they are counted in ten bins.
const FEW: usize = 10;

/// Runs rewards on a file of completions, without a model: distribution of scores, missing scores, examples.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A TOML configuration file: reward_funcs, columns, prompt_column, completion_column and max_samples are read.
    #[arg(value_name = "CONFIG.toml")]
    pub config: Option<PathBuf>,
    /// A JSONL or Parquet file with a column `completion`.
    #[arg(long, value_name = "FILE")]
    pub input: PathBuf,
    #[command(flatten)]
    pub rewards: RewardArgs,
    /// A preset of columns and rewards: gsm8k or prompt_answer (task).
    #[arg(long, value_name = "TASK")]
    pub task: Option<String>,
    /// A model's directory: its tokenizer computes the token ids of completions, for rewards that count tokens.
    #[arg(long, value_name = "DIR")]
    pub tokenizer: Option<PathBuf>,
    /// Number of examples of the highest, lowest and missing scores of each reward.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub examples: usize,
    /// Sets a key; may be repeated, and the last value wins. If the key also has a flag, give only one of the two.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Writes each completion with its scores as JSON lines.
    #[arg(long, value_name = "FILE.jsonl")]
    pub out: Option<PathBuf>,
    /// Allows --out to overwrite an existing file.
    #[arg(long, requires = "out")]
    pub overwrite: bool,
    /// Prints the result as JSON.
    #[arg(long)]
    pub json: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let Resolved { config, .. } = configuration(&args)?;
    if config.reward_funcs.is_empty() {
        bad_input!("no reward: use --reward, or a configuration with reward_funcs");
    }
    let input = utf8("--input", &args.input)?;
    if args.input.is_dir() {
        bad_input!("--input {input} is a directory; expected a JSONL or Parquet file");
    }
    let input = if input == "-" { "/dev/stdin".to_owned() } else { input };
    if !Path::new(&input).exists() {
        bad_input!("--input {input}: no such file");
    }
    let models = args.tokenizer.as_deref().into_iter().map(Input::Kept);
    let data = args.config.as_deref().into_iter().chain([&*args.input]).map(Input::Data);
    let inputs: Vec<_> = models.chain(data).collect();
    let out_file = args.out.as_deref().map(|path| OutFile::new("--out", path, args.overwrite, &inputs)).transpose()?;
    let promise = Promise::Ends("scoring stops, without a result");
    let console = Console::new(ConsoleOptions::default())?;
    let stop = stop_on_signals(&console, promise)?;
    let scored = score_file(&config, &input, args.tokenizer.as_deref(), &output::sinks(&console), &stop)?;
    let command = |spec: &RewardSpec| serde_json::to_value(spec).is_ok_and(|spec| spec.to_string().contains("command"));
    if scored.without_ids && config.reward_funcs.iter().any(command) {
        output::note(format_args!("note: completion_ids are empty: {input} has none, and --tokenizer is not set"));
    }
    if let Some(file) = &out_file {
        file.write(lines(&scored).as_bytes())?;
    }
    let summaries: Vec<Summary<'_>> = (0..scored.names.len()).map(|place| Summary::of(&scored, place)).collect();
    let printed = if args.json {
        output::json(&report(&scored, &summaries, args.examples))
    } else {
        output::text(&text(&scored, &summaries, args.examples))
    };
    match summaries.iter().find(|summary| summary.sorted.is_empty()) {
        Some(Summary { name, .. }) => anyhow::bail!("reward `{name}` scored no completion of {input}"),
        None => {
            summaries.iter().try_for_each(Summary::check_finite)?;
            Ok(printed?)
        }
    }
}

fn configuration(args: &Args) -> anyhow::Result<Resolved> {
    let mut flags = FlagKeys::default();
    flags.given("--task", "task", args.task.clone());
    args.rewards.give(&mut flags)?;
    let set = flags.and_set(&args.set)?;
    let layers = Layers { purpose: Purpose::Show, file: args.config.clone(), set, ..Layers::default() };
    layers.with_environment()?.resolve()
}

/// The scores of one reward on the whole file.
struct Summary<'a> {
    name: &'a str,
    of: usize,
    /// The scores, in ascending order.
    sorted: Vec<f64>,
    /// The rows with a score, from highest to lowest score.
    with_score: Vec<&'a ScoredRow>,
    without_score: Vec<&'a ScoredRow>,
    place: usize,
}

impl<'a> Summary<'a> {
    fn of(scored: &'a ScoredFile, place: usize) -> Summary<'a> {
        let (mut with_score, without_score): (Vec<_>, Vec<_>) =
            scored.rows.iter().partition(|row| row.rewards[place].is_some());
        let score = |row: &ScoredRow| row.rewards[place].unwrap_or_default();
        with_score.sort_by(|a, b| score(b).total_cmp(&score(a)));
        let sorted = with_score.iter().rev().map(|row| score(row)).collect();
        Summary { name: &scored.names[place], of: scored.rows.len(), sorted, with_score, without_score, place }
    }

    fn mean(&self) -> Option<f64> {
        (!self.sorted.is_empty()).then(|| self.sorted.iter().sum::<f64>() / self.sorted.len() as f64)
    }

    /// The sample standard deviation of the scores.
    fn std(&self) -> Option<f64> {
        let mean = self.mean().filter(|_| self.sorted.len() > 1)?;
        let squares: f64 = self.sorted.iter().map(|score| (score - mean) * (score - mean)).sum();
        Some((squares / (self.sorted.len() - 1) as f64).sqrt())
    }

    fn check_finite(&self) -> anyhow::Result<()> {
        match [self.mean(), self.std()].into_iter().flatten().find(|x| !x.is_finite()) {
            Some(x) => anyhow::bail!(
                "reward `{}`: the mean or standard deviation of the scores overflows ({x}): training cannot use \
                 them",
                self.name
            ),
            None => Ok(()),
        }
    }

    /// The quantile of the scores at `part`, a number from 0 to 1.
    fn quantile(&self, part: f64) -> Option<f64> {
        let last = self.sorted.len().checked_sub(1)?;
        Some(self.sorted[(last as f64 * part).round() as usize])
    }

    /// The histogram of the scores: first value, last value and count of each bin.
    fn counts(&self) -> Vec<(f64, f64, usize)> {
        let distinct: Vec<(f64, f64, usize)> =
            self.sorted.chunk_by(|a, b| a == b).map(|same| (same[0], same[0], same.len())).collect();
        if distinct.len() <= FEW {
            return distinct;
        }
        let (low, high) = (self.sorted[0], self.sorted[self.sorted.len() - 1]);
        let width = (high - low) / FEW as f64;
        let edge = |i: usize| if i == FEW { high } else { low + width * i as f64 };
        let bin = |score: f64| (((score - low) / width) as usize).min(FEW - 1);
        let count = |i| self.sorted.iter().filter(|&&score| bin(score) == i).count();
        (0..FEW).map(|i| (edge(i), edge(i + 1), count(i))).collect()
    }

    /// Examples, each with a label: rows with the highest scores, the lowest scores, and no score.
    fn examples(&self, most: usize) -> Vec<(&'static str, &'a ScoredRow)> {
        let few = self.with_score.len().min(most);
        let rest = &self.with_score[few..];
        let highest = self.with_score[..few].iter().map(|row| ("highest", *row));
        let lowest = rest.iter().rev().take(most).map(|row| ("lowest", *row));
        highest.chain(lowest).chain(self.without_score.iter().take(most).map(|row| ("not scored", *row))).collect()
    }

    fn json(&self, examples: usize) -> Value {
        let counts = self.counts().into_iter().map(|(from, to, n)| json!({"from": from, "to": to, "count": n}));
        let example = |(what, row): (&str, &ScoredRow)| {
            json!({"of": what, "row": row.row, "score": row.rewards[self.place], "prompt": row.prompt,
                   "completion": row.completion})
        };
        json!({
            "reward": self.name,
            "judged": self.sorted.len(),
            "of": self.of,
            "mean": self.mean(),
            "std": self.std(),
            "min": self.quantile(0.0),
            "p25": self.quantile(0.25),
            "median": self.quantile(0.5),
            "p75": self.quantile(0.75),
            "max": self.quantile(1.0),
            "distribution": counts.collect::<Vec<_>>(),
            "examples": self.examples(examples).into_iter().map(example).collect::<Vec<_>>(),
        })
    }
}

fn report(scored: &ScoredFile, summaries: &[Summary<'_>], examples: usize) -> Value {
    let problem =
        |p: &rewards::Problem| json!({"reward": p.reward, "rows": p.rows, "message": p.message, "example": p.example});
    json!({
        "rows": scored.rows.len(),
        "seconds": scored.seconds,
        "rewards": summaries.iter().map(|summary| summary.json(examples)).collect::<Vec<_>>(),
        "problems": scored.problems.iter().map(problem).collect::<Vec<_>>(),
        "metrics": scored.metrics.iter().map(|(name, value)| (name.clone(), json!(value))).collect::<Map<_, _>>(),
    })
}

fn text(scored: &ScoredFile, summaries: &[Summary<'_>], examples: usize) -> String {
    let right = ["scored", "mean", "std", "min", "p25", "median", "p75", "max"].map(|name| (name, Align::Right));
    let mut table = Table::new([("reward", Align::Left)].into_iter().chain(right));
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.4}"));
    for s in summaries {
        let numbers = [s.mean(), s.std()].into_iter().chain([0.0, 0.25, 0.5, 0.75, 1.0].map(|part| s.quantile(part)));
        let with_score = format!("{}/{}", s.sorted.len(), s.of);
        table.row([s.name.to_owned(), with_score].into_iter().chain(numbers.map(number)));
    }
    let mut text =
        format!("{}, {:.2} s\n{}", counted(scored.rows.len(), "completion"), scored.seconds, table.render(100));
    for summary in summaries {
        text.push_str(&format!("\n{}\n", summary.name));
        for (from, to, count) in summary.counts() {
            let bar = "#".repeat((count * 40).div_ceil(summary.of));
            let range = if from == to { format!("{from}") } else { format!("{from:.4} to {to:.4}") };
            text.push_str(&format!("  {range:>20}  {count:>7}  {bar}\n"));
        }
        for problem in scored.problems.iter().filter(|problem| problem.reward == summary.name) {
            text.push_str(&format!("  not scored: {problem}\n"));
        }
        for (what, row) in summary.examples(examples) {
            let score = row.rewards[summary.place].map_or_else(|| "no score".to_owned(), |score| score.to_string());
            text.push_str(&format!("  {what}, row {}: {score}: {:?}\n", row.row + 1, end(&row.completion.text())));
        }
    }
    for (name, value) in &scored.metrics {
        text.push_str(&format!("{name} {value}\n"));
    }
    text
}

/// The end of a text, which usually has the answer.
fn end(text: &str) -> String {
    let skipped = text.chars().count().saturating_sub(SHOWN);
    let more = if skipped > 0 { "…" } else { "" };
    more.chars().chain(text.chars().skip(skipped)).collect()
}

/// The prompt, completion and scores of each row, as JSON lines.
fn lines(scored: &ScoredFile) -> String {
    let line = |row: &ScoredRow| {
        let rewards: Map<String, Value> =
            scored.names.iter().cloned().zip(row.rewards.iter().map(|score| json!(score))).collect();
        let mut line = json!({"row": row.row, "prompt": row.prompt, "completion": row.completion, "rewards": rewards});
        if let (Value::Object(line), false) = (&mut line, row.extra.is_empty()) {
            line.insert("extra".to_owned(), Value::Object(row.extra.clone()));
        }
        format!("{line}\n")
    };
    scored.rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scored(rewards: &[Option<f64>]) -> ScoredFile {
        let row = |(row, reward): (usize, &Option<f64>)| ScoredRow {
            row,
            prompt: format!("p{row}").as_str().into(),
            completion: format!("c{row}").as_str().into(),
            rewards: vec![*reward],
            extra: Map::new(),
        };
        ScoredFile {
            names: vec!["r".to_owned()],
            rows: rewards.iter().enumerate().map(row).collect(),
            problems: vec![rewards::Problem::new("r", 1, "why"), rewards::Problem::new("other", 1, "not here")],
            metrics: vec![("m".to_owned(), 0.5)],
            without_ids: false,
            seconds: 1.25,
        }
    }

    #[test]
    fn a_summary_has_mean_deviation_quantiles_and_counts() {
        let of = |rewards: &[f64]| -> Vec<Option<f64>> { rewards.iter().copied().map(Some).collect() };
        let none = scored(&[None, None]);
        let summary = Summary::of(&none, 0);
        assert_eq!((summary.mean(), summary.std(), summary.quantile(0.5)), (None, None, None));
        assert_eq!((summary.counts(), summary.of, summary.without_score.len()), (Vec::new(), 2, 2));
        let one = scored(&of(&[3.0]));
        let summary = Summary::of(&one, 0);
        assert_eq!((summary.mean(), summary.std(), summary.quantile(1.0)), (Some(3.0), None, Some(3.0)));
        let many = scored(&of(&[3.0, 1.0, 2.0, 5.0, 4.0]));
        let summary = Summary::of(&many, 0);
        assert_eq!((summary.mean(), summary.std()), (Some(3.0), Some(2.5f64.sqrt())));
        assert_eq!([0.0, 0.25, 0.5, 0.75, 1.0].map(|part| summary.quantile(part).unwrap()), [1.0, 2.0, 3.0, 4.0, 5.0]);
        let examples = |most: usize| -> Vec<String> {
            summary.examples(most).iter().map(|(what, row)| format!("{what} {}", row.row)).collect()
        };
        assert_eq!(examples(1), ["highest 3", "lowest 1"]);
        assert_eq!(examples(3), ["highest 3", "highest 4", "highest 0", "lowest 1", "lowest 2"]);
        assert_eq!((examples(9).len(), examples(0).len()), (5, 0));
        let huge = scored(&of(&[f64::MAX, f64::MAX]));
        let error = Summary::of(&huge, 0).check_finite().unwrap_err().to_string();
        assert!(error.starts_with("reward `r`: the mean or standard deviation") && error.contains("(inf)"), "{error}");
        assert!(summary.check_finite().is_ok());
    }

    /// Ten different scores are counted one by one. Eleven are counted in ten bins, and the last bin includes the
    /// highest score.
    #[test]
    fn more_than_ten_scores_are_counted_in_bins() {
        let line = |n: usize| scored(&(0..n).map(|i| Some(i as f64)).collect::<Vec<_>>());
        let ten = line(10);
        assert_eq!(Summary::of(&ten, 0).counts(), (0..10).map(|i| (i as f64, i as f64, 1)).collect::<Vec<_>>());
        let eleven = line(11);
        let mut expected: Vec<_> = (0..10).map(|i| (i as f64, i as f64 + 1.0, 1)).collect();
        expected[9].2 = 2;
        assert_eq!(Summary::of(&eleven, 0).counts(), expected);
        assert!(text(&eleven, &[Summary::of(&eleven, 0)], 0).contains("   9.0000 to 10.0000        2  ########\n"));
    }
}
