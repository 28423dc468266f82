//! How speed changes with the number of completions, their length, and the threads.

use super::plot::{self, Panel, Series};
use super::report::column;
use super::workload::Bench;
use super::{Machine, Report, Subject, Workload};
use kernels::Context;
use lockstep::OutFile;
use serde_json::json;

/// How far it goes.
#[derive(Clone, Debug)]
pub struct Options {
    /// From 8 completions up to this many, of 128 tokens each.
    pub most_completions: usize,
    /// From 128 tokens up to this many, of 8 completions each.
    pub longest: usize,
    /// A picture of it, too.
    pub plot: Option<OutFile>,
}

/// One step each (after a first one that takes the memory): completions 8 → most, length 128 → longest, threads 1 →
/// all.
pub fn run(ctx: &Context, shape: Subject, args: &Options) -> anyhow::Result<Report> {
    let columns = [
        column("threads", "threads", 0),
        column("completions", "completions", 0),
        column("new_tokens", "tokens each", 0),
        column("rollout_tokens_per_s", "rollout tokens/s", 0),
        column("update_tokens_per_s", "update tokens/s", 0),
        column("rollout_s", "rollout s", 2),
        column("update_s", "update s", 2),
    ];
    let mut report = Report::new("scaling", Machine::measure(ctx)?.of_dtype(shape.dtype.dtype()), &columns);
    let mut cases: Vec<(usize, usize, usize)> = vec![(1, 32, 128)];
    let doubling =
        |from: usize, to: usize| std::iter::successors(Some(from), |n| Some(n * 2)).take_while(move |n| *n <= to);
    cases.extend(doubling(8, args.most_completions).map(|n| (ctx.threads(), n, 128)));
    cases.extend(doubling(256, args.longest).map(|n| (ctx.threads(), 8, n)));
    let (mut both, mut points) = (Vec::new(), Vec::new());
    for (threads, completions, tokens) in cases {
        let ctx = ctx.with_threads(threads);
        let workload = Workload { gradient_checkpointing: tokens > 1024, ..Workload::grpo(completions, tokens) };
        let mut bench = Bench::new(workload.clone(), &ctx, shape.weights(&ctx)?)?;
        bench.step()?;
        let step = bench.step()?;
        let generated = workload.generated_tokens() as f64;
        if (completions, tokens) == (32, 128) {
            both.push((threads, step.rollout_s, step.update_s));
        }
        if threads == ctx.threads() {
            points.push((completions, tokens, generated / step.rollout_s, generated / step.update_s));
        }
        report.row([
            json!(threads),
            json!(completions),
            json!(tokens),
            json!(generated / step.rollout_s),
            json!(generated / step.update_s),
            json!(step.rollout_s),
            json!(step.update_s),
        ]);
    }
    if let [one, all] = both[..]
        && one.0 != all.0
    {
        report.note(format!(
            "32 × 128, {} → {} threads: rollout {:.2} ×, update {:.2} ×",
            one.0,
            all.0,
            one.1 / all.1,
            one.2 / all.2
        ));
    }
    report.note(format!("{}; update tokens are completion tokens", shape.name()));
    if let Some(file) = &args.plot {
        let title =
            format!("{}, {} threads, {}: completion tokens per second", shape.name(), ctx.threads(), ctx.describe());
        file.write(picture(&title, &points).as_bytes())?;
    }
    Ok(report)
}

/// Completions, tokens of each, and tokens per second of rollout and of update.
type Point = (usize, usize, f64, f64);

/// Rollout and update against completions, and against their length.
fn picture(title: &str, points: &[Point]) -> String {
    let most = points.iter().flat_map(|p| [p.2, p.3]).fold(1.0, f64::max);
    let panel = |label: &str, of: &dyn Fn(&Point) -> Option<f64>| {
        let line = |name: &str, y: &dyn Fn(&Point) -> f64| Series {
            name: name.into(),
            points: points.iter().filter_map(|p| Some([of(p)?, y(p), 0.0])).collect(),
        };
        Panel { label: label.into(), series: vec![line("rollout", &|p| p.2), line("update", &|p| p.3)] }
    };
    let panels = [
        panel("completions of 128 tokens", &|p| (p.1 == 128).then_some(p.0 as f64)),
        panel("tokens of 8 completions", &|p| (p.0 == 8).then_some(p.1 as f64)),
    ];
    plot::svg(title, "tokens per second", most, &panels)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_point_is_drawn_in_the_panels_it_belongs_to() {
        let svg = super::picture("t", &[(8, 128, 10.0, 20.0), (16, 128, 12.0, 22.0), (8, 256, 9.0, 18.0)]);
        let points: Vec<usize> = svg
            .lines()
            .filter_map(|line| line.strip_prefix("<polyline points=\"")?.split('"').next())
            .map(|points| points.split(' ').count())
            .collect();
        assert_eq!(points, [2, 2, 2, 2], "{svg}");
    }
}
