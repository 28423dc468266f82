//! The time of training runs by stage, as sentences and a table; `markdown` and `html` format them.

use super::{Report, distinct, line, number};
use lockstep::directory::ProfileRecord;
use telemetry::Finding;

/// Seconds, operations and bytes of a stage.
type Sums = (f64, f64, f64);

/// Seconds per step by stage; for two runs, also how many times faster the second one is.
pub struct Time {
    /// One line per run with timed stages, or a single line if no run has any.
    pub says: Vec<String>,
    /// The table: the column names, then a row for each stage. Empty if no run was timed.
    pub rows: Vec<Vec<String>>,
}

impl Time {
    /// Builds the sentences and the table for these runs.
    pub fn of(reports: &[Report]) -> Time {
        let profiles: Vec<(&str, &ProfileRecord)> = reports
            .iter()
            .filter_map(|report| Some((&*report.name, report.profile.as_ref().filter(|p| p.measured.steps > 0)?)))
            .collect();
        if profiles.is_empty() {
            let none = "No profile.json: the run is too short, or from an older version.";
            return Time { says: vec![none.to_owned()], rows: Vec::new() };
        }
        let says = profiles.iter().map(|(name, profile)| sentence(name, profile)).collect();
        let mut heads = vec!["stage".to_owned()];
        for (name, _) in &profiles {
            heads.push(format!("{} s", line(name)));
            heads.extend(["share", "GFLOP/s", "GB/s"].map(str::to_owned));
        }
        heads.extend((profiles.len() == 2).then(|| "before ÷ after".to_owned()));
        let profiles: Vec<&ProfileRecord> = profiles.into_iter().map(|(_, profile)| profile).collect();
        let stages = profiles.iter().flat_map(|profile| &profile.measured.stages);
        let mut rows = vec![heads];
        for path in distinct(stages.map(|stage| &*stage.path)) {
            let (depth, name) = (path.matches('/').count(), path.rsplit('/').next().unwrap_or(path));
            rows.push(row(format!("{}{name}", "\u{2003}".repeat(depth)), &profiles, |profile| {
                let stage = profile.measured.stages.iter().find(|stage| stage.path == path)?;
                Some((stage.seconds, stage.flops, stage.bytes))
            }));
        }
        let rest = |profile: &ProfileRecord| (profile.measured.seconds - profile.measured.covered()).max(0.0);
        rows.push(row("in no stage".to_owned(), &profiles, |profile| Some((rest(profile), 0.0, 0.0))));
        rows.push(row("a step".to_owned(), &profiles, |profile| Some((profile.measured.seconds, 0.0, 0.0))));
        Time { says, rows }
    }
}

/// The findings, the most expensive first, each with the seconds per step that could be saved, as text; the text is
/// empty if the saving is unknown.
pub fn gains(profile: &ProfileRecord) -> Vec<(&Finding, String)> {
    let words = |seconds: f64| format!(", up to {} s of a step", number(seconds));
    profile
        .gains_per_step()
        .into_iter()
        .map(|(finding, gain)| (finding, gain.map_or_else(String::new, words)))
        .collect()
}

fn sentence(name: &str, ProfileRecord { measured, .. }: &ProfileRecord) -> String {
    let (first, last) = measured.span();
    let per_step = measured.seconds / measured.steps as f64;
    let busy = measured.busy_cores().unwrap_or_default();
    let mut says = format!(
        "{name}: steps {first} to {last}, {} s per step; {} of {} cores busy",
        number(per_step),
        number(busy),
        measured.cores
    );
    if let Some(waited) = measured.waited_s {
        says += &format!(", {} s waited for a core", number(waited));
    }
    if let Some(ceilings) = measured.ceilings {
        let giga = |x: Option<f64>| x.map_or("–".to_owned(), |x| number(x / 1e9));
        let (flops, bytes) = (giga(ceilings.flops_per_s), giga(ceilings.bytes_per_s));
        says += &format!("; the machine reaches {flops} GFLOP/s and reads {bytes} GB/s");
    }
    says += ".";
    if let Some(why) = &measured.without_ceilings {
        says += &format!(" {}", line(why));
    }
    says
}

/// A row of the table: for each run the sums that `of` selects, per step.
fn row(name: String, profiles: &[&ProfileRecord], of: impl Fn(&ProfileRecord) -> Option<Sums>) -> Vec<String> {
    let mut cells = vec![name];
    let found: Vec<_> = profiles.iter().map(|profile| (of(profile), &profile.measured)).collect();
    for (stage, measured) in &found {
        cells.extend(match *stage {
            None => ["–"; 4].map(str::to_owned),
            Some((seconds, flops, bytes)) => {
                let rate = |amount: f64| if amount > 0.0 { number(amount / seconds / 1e9) } else { "–".to_owned() };
                let share = 100.0 * seconds / measured.seconds.max(f64::MIN_POSITIVE);
                [number(seconds / measured.steps as f64), format!("{share:.1} %"), rate(flops), rate(bytes)]
            }
        });
    }
    if let [(before, m), (after, n)] = &found[..] {
        let ratio = before.zip(*after).filter(|(_, after)| after.0 > 0.0);
        let ratio = ratio.map(|(a, b)| (a.0 / m.steps as f64) / (b.0 / n.steps as f64));
        cells.push(ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.2} ×")));
    }
    cells
}
