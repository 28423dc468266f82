//! Writes a report as Markdown, which is also readable in a terminal.

use super::time::{Time, gains};
use super::{Report, curve_names, differences, line, number};
use std::fmt::Write as _;

/// The Markdown report of one or more training runs.
pub fn markdown(reports: &[Report]) -> String {
    let mut out = String::new();
    for report in reports {
        let _ = writeln!(out, "# {}\n\n{}\n", report.name, report.verdict.says);
        // The differences between two compared runs are listed below instead.
        for (name, value) in report.facts.iter().filter(|_| reports.len() == 1) {
            let _ = writeln!(out, "- {name}: {}", line(value));
        }
        for alarm in &report.alarms {
            let _ = writeln!(out, "- **alarm** {}", line(alarm));
        }
        out += "\n";
    }
    if reports.len() > 1 {
        let rows: Vec<Vec<String>> =
            differences(reports).iter().map(|row| row.iter().map(|x| line(x)).collect()).collect();
        let shown = if rows.len() > 1 { table(&rows) } else { "No key of their configurations.\n".to_owned() };
        let _ = writeln!(out, "## What differs\n\n{shown}");
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

/// The section on time: the time by stage, and the findings.
pub fn time(reports: &[Report]) -> String {
    let Time { says, rows } = Time::of(reports);
    let says: String = says.iter().map(|line| format!("{line}\n")).collect();
    let table = if rows.is_empty() { String::new() } else { format!("{}\n", table(&rows)) };
    format!("## Time\n\n{says}\n{table}") + &reports.iter().map(findings).collect::<String>()
}

fn curves(reports: &[Report]) -> String {
    let mut rows = vec![vec!["metric".to_owned()]];
    for report in reports {
        rows[0].extend([format!("{} first", line(&report.name)), "last".to_owned()]);
    }
    for name in curve_names(reports) {
        let mut row = vec![name.to_owned()];
        for report in reports {
            let ends = report.curves.iter().find(|curve| curve.name == name).and_then(super::Curve::first_and_last);
            row.extend(ends.map_or(["–".to_owned(), "–".to_owned()], |(first, last)| [first, last].map(number)));
        }
        rows.push(row);
    }
    format!("## Curves\n\n{}\n", table(&rows))
}

fn findings(report: &Report) -> String {
    let Some(profile) = &report.profile else { return String::new() };
    let mut out = format!("## Findings of {}\n\n", report.name);
    if profile.findings.is_empty() {
        return out + "None.\n\n";
    }
    for (finding, gain) in gains(profile) {
        let (first, last) = finding.steps;
        let _ = writeln!(
            out,
            "- **{}** (steps {first} to {last}{gain}): {} {} What helps: {}.",
            finding.id,
            finding.says,
            line(&finding.evidence),
            finding.remedy
        );
    }
    out + "\n"
}

/// A Markdown table with aligned columns, readable as plain text. All columns but the first have numbers.
fn table(rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|text| cell(text)).collect()).collect();
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

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// Text as an indented block, so that none of it is Markdown markup.
fn quoted(text: &str) -> String {
    text.lines().map(|line| format!("    {line}\n")).collect::<String>().trim_end().to_owned()
}
