//! Writes a report as a single HTML file, without scripts and without references to other files or sites.

use super::time::{Time, gains};
use super::{Curve, Report, curve_names, differences, number};
use std::fmt::Write as _;
use telemetry::Step;

const STYLE: &str = "\
:root{color-scheme:light dark;--bg:#fdfdfb;--ink:#1b1d1f;--ink2:#4b5056;--line:#d8d9d4;--a:#0067a5;\
--b:#c04a00}\
@media(prefers-color-scheme:dark){:root{--bg:#111315;--ink:#e8e9e6;--ink2:#b3b7bb;--line:#33373b;\
--a:#66b7ef;--b:#f59a66}}\
body{background:var(--bg);color:var(--ink);font:16px/1.5 system-ui,sans-serif;max-width:60em;\
margin:2em auto;padding:0 1em}h1{font-size:1.4em;margin:1.2em 0 .2em}\
h2{font-size:1.1em;border-top:1px solid var(--line);padding-top:1em;margin-top:2em}\
table{border-collapse:collapse;font-variant-numeric:tabular-nums;display:block;overflow-x:auto}\
td,th{padding:.15em .7em .15em 0;text-align:right;font-weight:normal;white-space:nowrap}\
td:first-child,th:first-child{text-align:left}th{color:var(--ink2)}\
.curves{display:grid;grid-template-columns:repeat(auto-fill,minmax(17em,1fr));gap:1.2em}figure{margin:0}\
figcaption{font-size:.85em;color:var(--ink2)}svg{width:100%;height:7em;display:block}\
polyline{fill:none;stroke-width:1.5;vector-effect:non-scaling-stroke}.r0{stroke:var(--a)}\
.r1{stroke:var(--b);stroke-dasharray:5 3}\
pre{white-space:pre-wrap;border-left:2px solid var(--line);padding-left:1em;margin:.4em 0 1em;\
overflow-wrap:anywhere}.k0{color:var(--a)}.k1{color:var(--b)}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:0 1em}dt{color:var(--ink2)}\
dd{margin:0;overflow-wrap:anywhere}";

/// The HTML report of one training run, or of two side by side.
pub fn html(reports: &[Report]) -> String {
    let title = reports.iter().map(|report| escape(&report.name)).collect::<Vec<_>>().join(", ");
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width,initial-scale=1\">\n<meta http-equiv=\"Content-Security-Policy\" \
         content=\"default-src 'none'; style-src 'unsafe-inline'\">\n<title>{title}</title>\n<style>{STYLE}</style>\
         </head>\n<body>\n"
    );
    for (place, report) in reports.iter().enumerate() {
        let _ = writeln!(
            out,
            "<h1 class=\"k{place}\">{}</h1>\n<p>{}</p>",
            escape(&report.name),
            escape(&report.verdict.says)
        );
        if reports.len() == 1 {
            out += "<dl>";
            for (name, value) in &report.facts {
                let _ = write!(out, "<dt>{name}</dt><dd>{}</dd>", escape(value));
            }
            out += "</dl>\n";
        }
        list(&mut out, report.alarms.iter().map(|alarm| format!("<b>alarm</b> {}", escape(alarm))));
    }
    if reports.len() > 1 {
        let rows = differences(reports);
        let shown = if rows.len() > 1 { table(&rows) } else { "<p>No key of their configurations.</p>\n".to_owned() };
        let _ = write!(out, "<h2>What differs</h2>\n{shown}");
    }
    out += "<h2>Curves</h2>\n<div class=\"curves\">\n";
    out.extend(curve_names(reports).into_iter().map(|name| figure(name, reports)));
    out += "</div>\n";
    let Time { says, rows } = Time::of(reports);
    out += "<h2>Time</h2>\n";
    out.extend(says.iter().map(|line| format!("<p>{}</p>\n", escape(line))));
    out += &table(&rows);
    for report in reports {
        let Some(profile) = &report.profile else { continue };
        let _ = writeln!(out, "<h2>Findings of {}</h2>", escape(&report.name));
        if profile.findings.is_empty() {
            out += "<p>None.</p>\n";
        }
        list(
            &mut out,
            gains(profile).into_iter().map(|(finding, gain)| {
                let (first, last) = finding.steps;
                format!(
                    "<b>{}</b>, steps {first} to {last}{gain}: {} {} What helps: {}.",
                    escape(&finding.id),
                    escape(&finding.says),
                    escape(&finding.evidence),
                    escape(&finding.remedy)
                )
            }),
        );
    }
    for report in reports.iter().filter(|report| !report.samples.is_empty()) {
        let _ = writeln!(out, "<h2>What {} writes, step {}</h2>", escape(&report.name), report.samples[0].step);
        for sample in &report.samples {
            let _ = writeln!(out, "<p>Prompt</p><pre>{}</pre>", escape(&sample.prompt));
            for (name, (reward, text)) in [("Best", &sample.best), ("Worst", &sample.worst)] {
                let _ = writeln!(out, "<p>{name}, reward {}</p><pre>{}</pre>", number(*reward), escape(text));
            }
        }
    }
    out + "</body></html>\n"
}

fn list(out: &mut String, items: impl Iterator<Item = String>) {
    let items: String = items.map(|item| format!("<li>{item}</li>\n")).collect();
    if !items.is_empty() {
        let _ = writeln!(out, "<ul>{items}</ul>");
    }
}

/// A chart of one metric, with a line for each training run.
fn figure(name: &str, reports: &[Report]) -> String {
    let curves: Vec<(usize, &Curve)> = reports
        .iter()
        .enumerate()
        .filter_map(|(place, report)| Some((place, report.curves.iter().find(|curve| curve.name == name)?)))
        .collect();
    let all = || curves.iter().flat_map(|(_, curve)| curve.points.iter().copied());
    let (low, high) = all().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), (_, y)| (low.min(y), high.max(y)));
    let (first, last) = all().fold((u64::MAX, 0), |(first, last), (step, _)| (first.min(step.0), last.max(step.0)));
    let (wide, tall) = ((last - first).max(1) as f64, if high > low { high - low } else { 1.0 });
    let mut lines = String::new();
    for (place, curve) in &curves {
        let place_of =
            |&(step, y): &(Step, f64)| ((step.0 - first) as f64 / wide * 300.0, 98.0 - (y - low) / tall * 96.0);
        let places: Vec<(f64, f64)> = match &curve.points[..] {
            // A single point is drawn as a short line, so that it is visible.
            [one] => {
                let (x, y) = place_of(one);
                vec![((x - 3.0).max(0.0), y), ((x + 3.0).min(300.0), y)]
            }
            points => points.iter().map(place_of).collect(),
        };
        let points: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = write!(lines, "<polyline class=\"r{}\" points=\"{}\"/>", place % 2, points.join(" "));
    }
    let said: Vec<String> = curves
        .iter()
        .filter_map(|(place, curve)| {
            let (from, to) = curve.first_and_last()?;
            Some(format!("<span class=\"k{}\">{} → {}</span>", place % 2, number(from), number(to)))
        })
        .collect();
    format!(
        "<figure><figcaption>{name}: {}; from {} to {}</figcaption><svg viewBox=\"0 0 300 100\" \
         preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{name} of steps {first} to {last}\">{lines}</svg>\
         </figure>\n",
        said.join(", "),
        number(low),
        number(high)
    )
}

/// An HTML table; the first row has the column names. Empty for no rows.
fn table(rows: &[Vec<String>]) -> String {
    let row = |(place, row): (usize, &Vec<String>)| {
        let tag = if place == 0 { "th" } else { "td" };
        let cells = row.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell)));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let rows: String = rows.iter().enumerate().map(row).collect();
    if rows.is_empty() { rows } else { format!("<table>\n{rows}</table>\n") }
}

/// Escapes text so that none of it is HTML markup.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            // Control characters could affect a terminal or a browser.
            c if c.is_control() && !matches!(c, '\n' | '\t') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
