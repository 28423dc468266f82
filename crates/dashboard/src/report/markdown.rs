//! The report as Markdown, which a terminal shows, too.

use super::{Report, number};
use lockstep::ProfileRecord;
use std::fmt::Write as _;

/// Seconds, operations and bytes of a stage.
type Sums = (f64, f64, f64);

/// The report of a run, or of several.
pub fn markdown(reports: &[Report]) -> String {
    let mut out = String::new();
    for report in reports {
        let _ = writeln!(out, "# {}\n\n{}\n", report.name, report.verdict.says);
        for (name, value) in &report.facts {
            let _ = writeln!(out, "- {name}: {}", line(value));
        }
        for alarm in &report.alarms {
            let _ = writeln!(out, "- **alarm** {}", line(alarm));
        }
        out += "\n";
    }
    out += &curves(reports);
    out += &time(reports);
    for report in reports.iter().filter(|report| !report.samples.is_empty()) {
        let _ = writeln!(out, "## What {} writes, step {}\n", report.name, report.samples[0].step);
        for sample in &report.samples {
            let _ = writeln!(out, "Prompt:\n\n{}\n", quoted(&sample.prompt));
            for (name, (reward, text)) in [("Best", &sample.best), ("Worst", &sample.worst)] {
                let _ = writeln!(out, "{name}, reward {}:\n\n{}\n", number(*reward), quoted(text));
            }
        }
    }
    out
}

/// Where the time went, and what was found.
pub fn time(reports: &[Report]) -> String {
    time_table(reports) + &reports.iter().map(findings).collect::<String>()
}

fn curves(reports: &[Report]) -> String {
    let mut names: Vec<&str> = reports.iter().flat_map(|report| &report.curves).map(|curve| curve.name).collect();
    names.dedup();
    let out = String::from("## Curves\n\n");
    let mut rows = vec![vec!["metric".to_owned()]];
    for report in reports {
        rows[0].extend([format!("{} first", cell(&report.name)), "last".to_owned()]);
    }
    for (place, name) in names.iter().enumerate().filter(|(place, name)| !names[..*place].contains(name)) {
        rows.push(vec![names[place].to_owned()]);
        for report in reports {
            let ends = report.curves.iter().find(|curve| curve.name == *name).and_then(super::Curve::first_and_last);
            let said = ends.map_or(["–".to_owned(), "–".to_owned()], |(first, last)| [first, last].map(number));
            rows.last_mut().expect("just pushed").extend(said);
        }
    }
    out + &table(&rows) + "\n"
}

/// Seconds for a step by stage; of two runs how many times as fast the second is.
pub(super) fn time_table(reports: &[Report]) -> String {
    let profiles: Vec<(&str, &ProfileRecord)> = reports
        .iter()
        .filter_map(|report| Some((&*report.name, report.profile.as_ref().filter(|p| p.measured.steps > 0)?)))
        .collect();
    let mut out = String::from("## Time\n\n");
    if profiles.is_empty() {
        return out + "No profile.json says where the time went: the run is too short, or of an older version.\n\n";
    }
    for (name, ProfileRecord { measured, .. }) in &profiles {
        let (first, last) = measured.span();
        let per_step = measured.seconds / measured.steps as f64;
        let busy = measured.cpu_s / measured.seconds.max(f64::MIN_POSITIVE);
        let _ = write!(
            out,
            "{name}: steps {first} to {last}, {} s for one; {} cores busy of {}",
            number(per_step),
            number(busy),
            measured.cores
        );
        if let Some(waited) = measured.waited_s {
            let _ = write!(out, ", {} s waited for one", number(waited));
        }
        if let Some(ceilings) = measured.ceilings {
            let giga = |x: Option<f64>| x.map_or("–".to_owned(), |x| number(x / 1e9));
            let (flops, bytes) = (giga(ceilings.flops_per_s), giga(ceilings.bytes_per_s));
            let _ = write!(out, "; the machine does {flops} GFLOP/s and reads {bytes} GB/s");
        }
        out += ".\n";
    }
    let compares = profiles.len() == 2;
    let mut rows = vec![vec!["stage".to_owned()]];
    for (name, _) in &profiles {
        rows[0].push(format!("{} s", cell(name)));
        rows[0].extend(["share", "GFLOP/s", "GB/s"].map(str::to_owned));
    }
    rows[0].extend(compares.then(|| "before ÷ after".to_owned()));
    out += "\n";
    let mut paths: Vec<&str> = Vec::new();
    for stage in profiles.iter().flat_map(|(_, profile)| &profile.measured.stages) {
        if !paths.contains(&&*stage.path) {
            paths.push(&stage.path);
        }
    }
    let row = |name: &str, of: &dyn Fn(&ProfileRecord) -> Option<Sums>| {
        let mut cells = vec![name.to_owned()];
        let found: Vec<_> = profiles.iter().map(|(_, profile)| (of(profile), &profile.measured)).collect();
        for (stage, measured) in &found {
            let steps = measured.steps as f64;
            cells.extend(match *stage {
                None => ["–"; 4].map(str::to_owned),
                Some((seconds, flops, bytes)) => {
                    let rate =
                        |amount: f64| if amount > 0.0 { number(amount / seconds / 1e9) } else { "–".to_owned() };
                    let share = 100.0 * seconds / measured.seconds.max(f64::MIN_POSITIVE);
                    [number(seconds / steps), format!("{share:.1} %"), rate(flops), rate(bytes)]
                }
            });
        }
        if let [(before, m), (after, n)] = &found[..] {
            let ratio = before.zip(*after).filter(|(_, after)| after.0 > 0.0);
            let ratio = ratio.map(|(a, b)| (a.0 / m.steps as f64) / (b.0 / n.steps as f64));
            cells.push(ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.2} ×")));
        }
        cells
    };
    for path in paths {
        let (depth, name) = (path.matches('/').count(), path.rsplit('/').next().unwrap_or(path));
        rows.push(row(&format!("{}{name}", "\u{2003}".repeat(depth)), &|profile| {
            let stage = profile.measured.stages.iter().find(|stage| stage.path == path)?;
            Some((stage.seconds, stage.flops, stage.bytes))
        }));
    }
    rows.push(row("in no stage", &|profile| {
        Some(((profile.measured.seconds - profile.measured.covered()).max(0.0), 0.0, 0.0))
    }));
    rows.push(row("a step", &|profile| Some((profile.measured.seconds, 0.0, 0.0))));
    out += &table(&rows);
    out + "\n"
}

fn findings(report: &Report) -> String {
    let Some(profile) = &report.profile else { return String::new() };
    let mut out = format!("## Findings of {}\n\n", report.name);
    if profile.findings.is_empty() {
        return out + "None.\n\n";
    }
    for finding in &profile.findings {
        let (first, last) = finding.steps;
        let _ = writeln!(
            out,
            "- **{}** (steps {first} to {last}): {} {} What helps: {}.",
            finding.id,
            finding.says,
            line(&finding.evidence),
            finding.remedy
        );
    }
    out + "\n"
}

/// A table whose columns are aligned for who reads the text; all but the first are numbers.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0).max(3);
    let mut out = String::new();
    for (place, row) in rows.iter().enumerate() {
        for (column, cell) in row.iter().enumerate() {
            let wide = width(column);
            let _ = if column == 0 { write!(out, "| {cell:<wide$} |") } else { write!(out, " {cell:>wide$} |") };
        }
        out += "\n";
        if place == 0 {
            let marks = (0..columns).map(|column| match column {
                0 => format!("|{}|", "-".repeat(width(0) + 2)),
                _ => format!("{}:|", "-".repeat(width(column) + 1)),
            });
            out += &(marks.collect::<String>() + "\n");
        }
    }
    out
}

/// In one line.
fn line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn cell(text: &str) -> String {
    line(text).replace('|', "\\|")
}

/// A text of which nothing is markup: indented.
fn quoted(text: &str) -> String {
    text.lines().map(|line| format!("    {line}\n")).collect::<String>().trim_end().to_owned()
}
