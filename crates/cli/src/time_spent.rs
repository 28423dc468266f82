//! Prints where the time of a training run went: the largest stages, the use of cores and memory, and the limit of the
//! slowest stage. With `--verbose`, a table of all stages comes first.

use lockstep::RunResult;
use telemetry::{Console, Level, LogFormat, Record, duration};

/// The run that a summary is about.
#[derive(Clone, Copy, Debug)]
pub enum Whose {
    /// The only run of the command.
    Run,
    /// The learner of a distributed run. The time of its workers is not measured here.
    Learner,
    /// One of several runs, with its name.
    Named(&'static str),
}

/// Prints where the time of a run went. `device` is the run's GPU, with the peak number of bytes in use.
pub fn print(console: &Console, finished: &RunResult, whose: Whose, device: Option<(&str, u64)>) {
    let summary = &finished.summary;
    let of = match whose {
        Whose::Run => String::new(),
        Whose::Learner => " of the learner".to_owned(),
        Whose::Named(name) => format!(" of {name}"),
    };
    let mut table = summary.table().render(console.width());
    let mut title = "where the time went".to_owned();
    if let Whose::Named(name) = whose {
        table = format!("Where the time of {name} went:\n{table}");
        title = format!("where the time of {name} went");
    }
    console.details(&table, &title, &summary.fields());
    if console.format() == LogFormat::Plain {
        console.info(&format!("time{of}: {}; {}", duration(summary.wall_s), summary.largest()));
    }
    let busy = busy(finished, device);
    if !busy.text.is_empty() {
        let text = format!("busy{of}: {}", busy.text);
        console.report(Level::Info, &text, &text, &busy.fields);
    }
}

/// Cores, memory, and the limit of the slowest stage, as far as known.
#[derive(Debug, Default)]
struct Busy {
    text: String,
    fields: Record,
}

fn busy(finished: &RunResult, device: Option<(&str, u64)>) -> Busy {
    let measured = &finished.profile.measured;
    let peak = finished.metrics.iter().find(|(name, _)| name == "peak_bytes").map(|(_, bytes)| *bytes);
    let bottleneck = finished.summary.bottleneck(&measured.ceilings.unwrap_or_default());
    let mut fields = Record::new();
    let mut parts = Vec::new();
    if let Some(cores) = measured.busy_cores() {
        parts.push(format!("{cores:.1} of {} cores", measured.cores));
        fields.set("busy_cores", cores).set("cores", measured.cores);
    }
    if let Some(bytes) = peak {
        parts.push(format!("{} of memory", size(bytes)));
        fields.set("peak_bytes", bytes);
    }
    if let Some((name, bytes)) = device {
        parts.push(format!("{} of {name}", size(bytes as f64)));
        fields.set("device", name).set("device_peak_bytes", bytes);
    }
    let mut text = parts.join(", ");
    if let Some(why) = bottleneck {
        text = [text.as_str(), &why].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ");
        fields.set("bottleneck", why);
    }
    Busy { text, fields }
}

/// Formats a number of bytes.
fn size(bytes: f64) -> String {
    let mib = bytes / f64::from(1 << 20);
    if mib < 1024.0 { format!("{mib:.0} MiB") } else { format!("{:.1} GiB", mib / 1024.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_printed_in_readable_units() {
        let mib = f64::from(1 << 20);
        let words = [0.4, 411.7, 1023.4, 1024.0, 9932.0].map(|n| size(n * mib));
        assert_eq!(words, ["0 MiB", "412 MiB", "1023 MiB", "1.0 GiB", "9.7 GiB"]);
    }
}
