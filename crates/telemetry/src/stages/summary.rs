//! The totals of a run's stages as a table, as fields of a log line, and in words.

use super::{Ceilings, DeviceWork, StageTotal};
use crate::{Align, Record, Table};

/// The maximum number of stages named in one line. [`LEAST`] is the minimum share of time of a named stage.
const SHOWN: usize = 4;
const LEAST: f64 = 0.03;

/// The totals of a training run by stage.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Wall seconds since the timers started.
    pub wall_s: f64,
    /// The totals of each stage, in the order of first appearance.
    pub stages: Vec<StageTotal>,
}

impl Summary {
    /// A table with a row for each stage (indented by nesting): seconds, share of the run's wall time, GFLOP/s, GB/s,
    /// and the work of a device if there is one. The last row is the time that no outermost stage covers.
    pub fn table(&self) -> Table {
        let right = Align::Right;
        let columns =
            [("stage", Align::Left), ("seconds", right), ("share", right), ("GFLOP/s", right), ("GB/s", right)];
        let on_device = self.stages.iter().any(|stage| stage.device.is_any());
        let device_columns = ["device s", "launches", "copies in", "out", "waits"].map(|name| (name, right));
        let mut table = Table::new(columns.into_iter().chain(device_columns.into_iter().filter(|_| on_device)));
        let share = |seconds: f64| format!("{:.1} %", 100.0 * seconds / self.wall_s.max(f64::MIN_POSITIVE));
        let rate = |amount: f64, seconds: f64| {
            if amount > 0.0 && seconds > 0.0 { format!("{:.1}", amount / seconds / 1e9) } else { "-".to_owned() }
        };
        self.visit("", &mut |stage, depth| {
            let name = stage.path.rsplit('/').next().unwrap_or_default();
            let mut cells = vec![
                format!("{}{name}", "  ".repeat(depth)),
                format!("{:.2}", stage.seconds),
                share(stage.seconds),
                rate(stage.flops, stage.seconds),
                rate(stage.bytes, stage.seconds),
            ];
            if on_device {
                let DeviceWork { launches, copies_in, copies_out, waits, seconds } = stage.device;
                cells.push(format!("{seconds:.2}"));
                cells.extend([launches, copies_in, copies_out, waits].map(|n| n.to_string()));
            }
            table.row(cells);
        });
        let rest = self.unmeasured_s();
        table.row(["(not measured)".to_owned(), format!("{rest:.2}"), share(rest), "-".to_owned(), "-".to_owned()]);
        table.row(["run".to_owned(), format!("{:.2}", self.wall_s), share(self.wall_s)]);
        table
    }

    /// The content of [`table`](Self::table) as fields of a log line: `wall_s`, `unmeasured_s`, and `stages` with the
    /// path, seconds, operations and bytes of each.
    pub fn fields(&self) -> Record {
        let stage = |stage: &StageTotal| {
            let StageTotal { path, seconds, flops, bytes, .. } = stage;
            let mut row = serde_json::json!({ "path": path, "seconds": seconds, "flops": flops, "bytes": bytes });
            if stage.device.is_any() {
                let DeviceWork { launches, copies_in, copies_out, waits, seconds } = stage.device;
                row["device"] = serde_json::json!({
                    "seconds": seconds, "launches": launches, "copies_in": copies_in, "copies_out": copies_out,
                    "waits": waits,
                });
            }
            row
        };
        let mut stages = Vec::new();
        self.visit("", &mut |one, _| stages.push(stage(one)));
        let mut fields = Record::new();
        fields.set("wall_s", self.wall_s).set("unmeasured_s", self.unmeasured_s()).set("stages", stages);
        fields
    }

    /// Calls `see` with each stage below `parent`, before the stages nested in it.
    fn visit(&self, parent: &str, see: &mut impl FnMut(&StageTotal, usize)) {
        for stage in &self.stages {
            if stage.path.rsplit_once('/').map_or("", |(outer, _)| outer) == parent {
                see(stage, stage.path.matches('/').count());
                self.visit(&stage.path, see);
            }
        }
    }

    /// Wall seconds that no outermost stage covers; 0 if overlapping stages of several threads sum to more than the
    /// wall time.
    pub fn unmeasured_s(&self) -> f64 {
        let outermost = self.stages.iter().filter(|stage| !stage.path.contains('/'));
        (self.wall_s - outermost.map(|stage| stage.seconds).sum::<f64>()).max(0.0)
    }

    /// The outermost stages that took the most time, with their shares of the time: `update 62 %, rollout 30 %, other 8
    /// %`.
    pub fn largest(&self) -> String {
        let mut parts: Vec<(&str, f64)> = self.stages.iter().map(|stage| (&*stage.path, stage.seconds)).collect();
        parts.retain(|(path, _)| !path.contains('/'));
        parts.sort_by(|a, b| b.1.total_cmp(&a.1));
        // Stages of several threads may overlap, so their sum may exceed the wall time.
        let all = self.wall_s.max(parts.iter().map(|(_, seconds)| seconds).sum()).max(f64::MIN_POSITIVE);
        parts.truncate(SHOWN);
        parts.retain(|(_, seconds)| *seconds >= LEAST * all);
        let rest = all - parts.iter().map(|(_, seconds)| seconds).sum::<f64>();
        parts.push(("other", rest.max(0.0)));
        let shares = whole_percents(parts.iter().map(|(_, seconds)| seconds / all));
        let shown = parts.iter().zip(shares).filter(|(_, share)| *share > 0);
        shown.map(|((name, _), share)| format!("{name} {share} %")).collect::<Vec<_>>().join(", ")
    }

    /// Describes the stage that takes the most time without its nested stages, and the resource that limits it. `None`
    /// if the stage's operations and bytes, or the machine's peaks, are unknown.
    pub fn bottleneck(&self, ceilings: &Ceilings) -> Option<String> {
        // A nested stage without operations and bytes is treated as part of the stage that encloses it.
        let works = |stage: &&StageTotal| stage.flops + stage.bytes > 0.0;
        let around = |stage: &StageTotal| {
            let outer = stage.path.rsplit_once('/').map(|(outer, _)| outer);
            self.stages.iter().find(|other| Some(&*other.path) == outer)
        };
        let judged: Vec<&StageTotal> =
            self.stages.iter().filter(|stage| works(stage) || !around(stage).as_ref().is_some_and(works)).collect();
        let inside = |outer: &StageTotal, of: fn(&StageTotal) -> f64| -> f64 {
            let children = judged
                .iter()
                .copied()
                .filter(|stage| stage.path.rsplit_once('/').is_some_and(|(path, _)| path == outer.path));
            children.map(of).sum()
        };
        let own = |stage: &StageTotal| StageTotal {
            path: stage.path.clone(),
            count: stage.count,
            seconds: (stage.seconds - inside(stage, |s| s.seconds)).max(0.0),
            flops: (stage.flops - inside(stage, |s| s.flops)).max(0.0),
            bytes: (stage.bytes - inside(stage, |s| s.bytes)).max(0.0),
            device: stage.device,
        };
        let slowest = judged.iter().copied().map(own).max_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let slowest = slowest.filter(|stage| stage.seconds > 0.0)?;
        let share = 100.0 * slowest.seconds / self.wall_s.max(f64::MIN_POSITIVE);
        let of = |amount: f64, ceiling: Option<f64>| {
            ceiling
                .filter(|&ceiling| ceiling > 0.0 && amount > 0.0)
                .map(|ceiling| 100.0 * amount / slowest.seconds / ceiling)
        };
        let why = match (of(slowest.flops, ceilings.flops_per_s), of(slowest.bytes, ceilings.bytes_per_s)) {
            (Some(compute), Some(memory)) if compute.max(memory) < 25.0 => format!(
                "limited neither by arithmetic ({compute:.0} % of the measured peak) nor by memory ({memory:.0} %): \
                 the time is waiting or overhead"
            ),
            (Some(compute), Some(memory)) if memory > compute => {
                format!(
                    "limited by memory: {memory:.0} % of the measured bandwidth, {compute:.0} % of the arithmetic peak"
                )
            }
            (Some(compute), Some(memory)) => {
                format!("limited by arithmetic: {compute:.0} % of the measured peak, {memory:.0} % of the bandwidth")
            }
            (Some(compute), None) => format!("{compute:.0} % of this machine's measured arithmetic peak"),
            (None, Some(memory)) => format!("{memory:.0} % of this machine's measured bandwidth"),
            (None, None) => return None,
        };
        Some(format!("the bottleneck is {}: {:.2} s, {share:.0} % of the run; {why}", slowest.path, slowest.seconds))
    }
}

/// Rounds shares that sum to 1 to integer percentages that sum to 100. The shares with the largest remainders are
/// rounded up.
fn whole_percents(shares: impl Iterator<Item = f64>) -> Vec<u64> {
    let exact: Vec<f64> = shares.map(|share| 100.0 * share).collect();
    let mut whole: Vec<u64> = exact.iter().map(|percent| *percent as u64).collect();
    let mut cut: Vec<usize> = (0..exact.len()).collect();
    cut.sort_by(|&a, &b| exact[b].fract().total_cmp(&exact[a].fract()));
    let missing = 100_u64.saturating_sub(whole.iter().sum());
    cut.into_iter().take(missing as usize).for_each(|place| whole[place] += 1);
    whole
}
