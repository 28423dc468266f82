//! The files of one training run, read incrementally as they grow.

use crate::meaning::meaning;
use crate::series::Series;
use crate::verdict::{Moved, Verdict, moved, verdict};
use lockstep::TokenTexts;
use lockstep::wire::file::GroupFile;
use serde_json::{Map, Value, json};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// How many bytes of `metrics.jsonl` are read at once, and the longest line.
const PIECE: u64 = 8 << 20;

/// A training run and what has been read of its files.
pub struct RunFiles {
    root: PathBuf,
    /// How many bytes of `metrics.jsonl` have been read, and its first bytes: if those change, the file is read again
    /// from the start.
    read: u64,
    head: Vec<u8>,
    series: Series,
    alarms: Vec<Value>,
    groups: Option<(u64, Arc<GroupFile>)>,
    updates: Option<(u64, Arc<GroupFile>)>,
    evaluations: Option<(u64, Arc<GroupFile>)>,
    tokens: Option<Option<Arc<TokenTexts>>>,
}

impl RunFiles {
    /// The training run in this directory.
    pub fn new(root: PathBuf) -> RunFiles {
        disk::no_links_below(&root);
        RunFiles {
            root,
            read: 0,
            head: Vec::new(),
            series: Series::default(),
            alarms: Vec::new(),
            groups: None,
            updates: None,
            evaluations: None,
            tokens: None,
        }
    }

    /// The run's directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Reads the new lines of `metrics.jsonl`. A line that is still being written is left for the next call.
    pub fn refresh(&mut self) {
        let Ok(mut file) = disk::open(self.root.join("metrics.jsonl")) else { return };
        let length = file.metadata().map_or(0, |metadata| metadata.len());
        let mut head = vec![0; self.head.len()];
        let is_same = length >= self.read && file.read_exact(&mut head).is_ok() && head == self.head;
        if !is_same {
            let root = std::mem::take(&mut self.root);
            let [groups, updates, evaluations] =
                [&mut self.groups, &mut self.updates, &mut self.evaluations].map(Option::take);
            *self = RunFiles { groups, updates, evaluations, tokens: self.tokens.take(), ..RunFiles::new(root) };
        }
        // Piece by piece: the file of a stranger's run may claim any length.
        while self.read < length {
            let Ok(bytes) = disk::read_range(&file, self.read, PIECE) else { return };
            let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
            if whole == 0 {
                // A line that is still being written. One that is longer than a piece is not the line of a run: then
                // the file is read no further.
                return;
            }
            self.add_lines(&bytes[..whole]);
            if self.read == 0 {
                self.head = bytes[..whole.min(256)].to_vec();
            }
            self.read += whole as u64;
        }
    }

    fn add_lines(&mut self, bytes: &[u8]) {
        for line in bytes.split(|&byte| byte == b'\n') {
            let Ok(Value::Object(mut line)) = serde_json::from_slice(line) else { continue };
            let step = line.get("step").and_then(Value::as_u64).unwrap_or(0);
            match line.remove("alarm") {
                Some(alarm) => self.add_alarm(json!({ "step": step, "alarm": alarm })),
                None => self.series.add(step, &line),
            }
        }
    }

    /// Adds an alarm. The line that says that an alarm has ended takes the place of the line that raised it, so that
    /// each alarm is in the list once.
    fn add_alarm(&mut self, line: Value) {
        let is_same =
            |old: &Value| ["id", "subject", "since"].iter().all(|key| old["alarm"].get(key) == line["alarm"].get(key));
        match self.alarms.iter_mut().find(|old| is_same(old)) {
            Some(old) => *old = line,
            None => self.alarms.push(line),
        }
    }

    /// How many alarms hold now.
    pub fn active_alarms(&self) -> usize {
        self.alarms.iter().filter(|line| line["alarm"].get("until").is_none()).count()
    }

    /// The metrics read so far.
    pub fn series(&self) -> &Series {
        &self.series
    }

    /// Two numbers that grow when the run progresses: bytes of metrics read, and recorded groups.
    pub fn mark(&mut self) -> (u64, u64) {
        self.refresh();
        let index = std::fs::metadata(self.root.join("rollouts.idx")).map_or(0, |metadata| metadata.len());
        (self.read, index)
    }

    /// The recorded groups of training; `None` if the run records none.
    pub fn groups(&mut self) -> Option<Arc<GroupFile>> {
        opened(&self.root.join("rollouts.bin"), &mut self.groups)
    }

    /// The recorded log-probabilities after the optimizer step, for some groups; `None` if the run records none.
    pub fn updates(&mut self) -> Option<Arc<GroupFile>> {
        opened(&self.root.join("updates.bin"), &mut self.updates)
    }

    /// The recorded groups of evaluations.
    pub fn evaluations(&mut self) -> Option<Arc<GroupFile>> {
        opened(&self.root.join("evaluations.bin"), &mut self.evaluations)
    }

    /// The tokenizer of the final model, of a checkpoint, or of the initial model.
    pub fn tokens(&mut self) -> Option<Arc<TokenTexts>> {
        if self.tokens.is_none() {
            let mut dirs = vec![self.root.join("model")];
            dirs.extend(self.checkpoints().iter().rev().map(|name| self.root.join("checkpoints").join(name)));
            dirs.extend(self.config().get("model_name_or_path").and_then(Value::as_str).map(PathBuf::from));
            let found = dirs.iter().find_map(|dir| TokenTexts::open(dir).ok());
            self.tokens = Some(found.map(Arc::new));
        }
        self.tokens.clone().flatten()
    }

    fn checkpoints(&self) -> Vec<String> {
        let entries = disk::read_dir(self.root.join("checkpoints")).unwrap_or_default();
        let names = entries.into_iter().filter_map(|entry| entry.file_name().to_str().map(str::to_owned));
        names.filter(|name| name.starts_with("step-")).collect()
    }

    /// The configuration of the run, with all keys.
    pub fn config(&self) -> Map<String, Value> {
        let text = disk::read_to_string(self.root.join("config.toml"), disk::most::STATE).unwrap_or_default();
        let table: toml::Table = text.parse().unwrap_or_default();
        match serde_json::to_value(table) {
            Ok(Value::Object(config)) => config,
            _ => Map::new(),
        }
    }

    /// For each configuration key, where its value came from (a comment behind the value in the file); keys with
    /// default values have none.
    fn origins(&self) -> Map<String, Value> {
        let text = disk::read_to_string(self.root.join("config.toml"), disk::most::STATE).unwrap_or_default();
        let origin = |line: &str| {
            let ((key, value), (_, origin)) = (line.split_once(" = ")?, line.rsplit_once("  # ")?);
            (!key.starts_with('#') && !value.is_empty() && origin != "default")
                .then(|| (key.to_owned(), Value::from(origin)))
        };
        text.lines().filter_map(origin).collect()
    }

    pub(crate) fn json(&self, name: &str) -> Value {
        let bytes = disk::read(self.root.join(name), disk::most::STATE).unwrap_or_default();
        serde_json::from_slice(&bytes).unwrap_or(Value::Null)
    }

    /// The state of the run: `running`, `finished`, or `stopped` before its end.
    pub fn state(&self) -> &'static str {
        match (lockstep::writer(&self.root), self.root.join("model").is_dir()) {
            (Some(_), _) => "running",
            (None, true) => "finished",
            (None, false) => "stopped",
        }
    }

    /// The last step, and the planned number of steps.
    pub fn progress(&self) -> (u64, Option<u64>) {
        let total = self.config().get("max_steps").and_then(Value::as_i64).filter(|&steps| steps > 0);
        let total = total.map(|steps| steps as u64).or_else(|| self.json("record.json").get("total_steps")?.as_u64());
        (self.series.last_step().unwrap_or(0), total)
    }

    /// Seconds since the last line of metrics was written.
    pub fn silent_s(&self) -> Option<u64> {
        let changed = std::fs::metadata(self.root.join("metrics.jsonl")).ok()?.modified().ok()?;
        SystemTime::now().duration_since(changed).ok().map(|silent| silent.as_secs())
    }

    /// The first file that is there and cannot be read, with the reason.
    pub fn unreadable(&self) -> Option<String> {
        let names = ["config.toml", "record.json", "profile.json", "metrics.jsonl", "rollouts.bin", "evaluations.bin"];
        names.into_iter().find_map(|name| {
            let path = self.root.join(name);
            // The first ones are read as a whole.
            let is_state = !name.ends_with(".bin") && !name.ends_with(".jsonl");
            let read = disk::open(&path).and_then(|file| match is_state {
                true => disk::read_rest(&file, 0, disk::most::STATE).map(drop),
                false => Ok(()),
            });
            let error = read.err().filter(|error| error.kind() != ErrorKind::NotFound)?;
            Some(format!("cannot read {}: {error}", path.display()))
        })
    }

    /// Whether the run learns, judging by the reward, the accuracy of preference pairs, or the loss.
    pub fn verdict(&self) -> Verdict {
        if let Some(says) = self.unreadable() {
            return Verdict { state: "nothing", says };
        }
        let of = |key: &str| -> Vec<f64> { self.series.values(key).map(|(_, x)| x).collect() };
        for (key, higher) in [("reward", true), ("rewards/accuracies", true), ("accuracy", true), ("loss", false)] {
            let values = of(key);
            if !values.is_empty() {
                return verdict(key, &values, higher);
            }
        }
        verdict("reward", &[], true)
    }

    /// When the first and the last line of metrics were written, in seconds since 1970.
    fn written_s(&self) -> [Option<f64>; 2] {
        let times = || self.series.values("time_s").map(|(_, time)| time);
        [times().next(), times().last()]
    }

    /// For each reward function, how its mean changed, the one that moved first before the others.
    fn moved(&self) -> Value {
        let name = |key: &str| Some(key.strip_prefix("rewards/")?.strip_suffix("/mean")?.to_owned());
        let rewards =
            self.series.keys().filter_map(|key| Some((name(key)?, self.series.values(key).collect::<Vec<_>>())));
        let mut all: Vec<_> = rewards.filter_map(|(name, values)| Some((name, moved(&values)?))).collect();
        all.sort_by_key(|(_, moved)| moved.half.unwrap_or(u64::MAX));
        let line = |(name, m): &(String, Moved)| json!({ "name": name, "from": m.from, "to": m.to, "half": m.half });
        all.iter().map(line).collect()
    }

    /// The alarms, each once, the newest last; an alarm that has ended has the key `until`.
    pub fn alarms(&self) -> &[Value] {
        &self.alarms
    }

    /// Everything about the run that is not a curve, for the page.
    pub fn facts(&mut self, name: &str) -> Value {
        self.refresh();
        let (step, total) = self.progress();
        let recorded = self.groups().map(|groups| groups.index().len());
        let (groups, evaluations) = (self.groups(), self.evaluations());
        json!({
            "id": name,
            "state": self.state(),
            "step": step,
            "total": total,
            "silent_s": self.silent_s(),
            "verdict": self.verdict().to_json(),
            "alarms": self.alarms,
            "moved": self.moved(),
            "written_s": self.written_s(),
            "config": self.config(),
            "origins": self.origins(),
            "record": self.json("record.json"),
            "checkpoints": self.checkpoints(),
            "keys": self.series.keys().collect::<Vec<_>>(),
            "meanings": self.series.keys().filter_map(meaning).collect::<Map<_, _>>(),
            "updates": self.updates().map(|updates| updates.index().len()),
            "groups": recorded,
            "group_steps": steps_of(groups.as_deref()),
            "evaluated": evaluations.as_ref().map(|groups| groups.index().len()),
            "evaluated_steps": steps_of(evaluations.as_deref()),
            "profile": self.json("profile.json"),
            "directory": self.root,
        })
    }
}

/// The first and the last step of the recorded groups.
fn steps_of(groups: Option<&GroupFile>) -> [Option<u64>; 2] {
    let steps = || groups.iter().flat_map(|groups| groups.index()).filter_map(|entry| entry.step);
    [steps().min(), steps().max()]
}

/// Opens a file of recorded groups, again only if its length has changed.
fn opened(path: &Path, known: &mut Option<(u64, Arc<GroupFile>)>) -> Option<Arc<GroupFile>> {
    let length = std::fs::metadata(path).ok()?.len();
    if known.as_ref().is_none_or(|(known, _)| *known != length) {
        *known = GroupFile::open(path).ok().map(|file| (length, Arc::new(file)));
    }
    known.as_ref().map(|(_, file)| file.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_log_is_read_on_and_anew_when_it_begins_anew() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("metrics.jsonl");
        std::fs::write(&log, "{\"step\":1,\"reward\":0.5}\n{\"step\":2,\"rew").unwrap();
        let mut run = RunFiles::new(dir.path().to_owned());
        run.refresh();
        assert_eq!(run.series().last_step(), Some(1));
        let mut file = std::fs::OpenOptions::new().append(true).open(&log).unwrap();
        file.write_all(b"ard\":0.75}\n{\"step\":2,\"alarm\":{\"id\":\"truncated\"}}\nnot json\n").unwrap();
        run.refresh();
        assert_eq!(run.series().values("reward").collect::<Vec<_>>(), [(1, 0.5), (2, 0.75)]);
        assert_eq!(run.alarms()[0]["alarm"]["id"], "truncated");
        assert_eq!(run.facts("x")["written_s"], json!([null, null]), "lines without a time");
        assert_eq!((run.alarms().len(), run.active_alarms()), (1, 1));
        assert_eq!(run.state(), "stopped");
        std::fs::write(&log, "{\"step\":1,\"reward\":2}\n").unwrap();
        run.refresh();
        assert_eq!(run.series().values("reward").collect::<Vec<_>>(), [(1, 2.0)]);
        assert!(run.alarms().is_empty());
        assert_eq!(run.facts("x")["groups"], Value::Null);
    }

    /// A long log is read in pieces, and what is not a log takes no memory: a sparse file, a line without an end.
    #[test]
    fn a_log_is_read_piece_by_piece() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("metrics.jsonl");
        let line = |step: u64| format!("{{\"step\":{step},\"reward\":{step},\"more\":\"{}\"}}\n", "x".repeat(9000));
        let steps = 3 * PIECE / 9000;
        std::fs::write(&log, (1..=steps).map(line).collect::<String>()).unwrap();
        let mut run = RunFiles::new(dir.path().to_owned());
        run.refresh();
        let expected: Vec<_> = (1..=steps).map(|step| (step, step as f64)).collect();
        assert_eq!(run.series().values("reward").collect::<Vec<_>>(), expected);
        let whole = std::fs::metadata(&log).unwrap().len();
        for hole in [PIECE, 3 << 30, 1 << 40] {
            std::fs::File::options().write(true).open(&log).unwrap().set_len(whole + hole).unwrap();
            run.refresh();
            assert_eq!((run.read, run.series().last_step()), (whole, Some(steps)));
        }
        std::fs::write(&log, "x".repeat(2 * PIECE as usize)).unwrap();
        run.refresh();
        assert_eq!((run.read, run.series().last_step()), (0, None));
        std::fs::remove_file(&log).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &log).unwrap();
        run.refresh();
        assert!(run.series().last_step().is_none() && run.verdict().says.contains("metrics.jsonl is a symbolic link"));
    }

    #[test]
    fn an_alarm_that_ended_is_one_alarm_and_not_active() {
        let dir = tempfile::tempdir().unwrap();
        let line = |step: u64, alarm: Value| json!({ "step": step, "alarm": alarm }).to_string() + "\n";
        // Raised, ended, raised again; and one for each of two rewards.
        let lines = [
            line(181, json!({ "id": "zero_variance", "since": 179 })),
            line(181, json!({ "id": "constant_reward", "subject": "happy", "since": 179 })),
            line(182, json!({ "id": "constant_reward", "subject": "said", "since": 179 })),
            line(233, json!({ "id": "zero_variance", "since": 179, "until": 233 })),
            line(239, json!({ "id": "zero_variance", "since": 237 })),
        ];
        std::fs::write(dir.path().join("metrics.jsonl"), lines.concat()).unwrap();
        let mut run = RunFiles::new(dir.path().to_owned());
        run.refresh();
        let found: Vec<_> = run.alarms().iter().map(|line| &line["alarm"]).collect();
        let since: Vec<_> = found.iter().map(|alarm| (&alarm["since"], alarm.get("until"))).collect();
        let (first, second) = (json!(179), json!(237));
        assert_eq!(since, [(&first, Some(&json!(233))), (&first, None), (&first, None), (&second, None)]);
        assert_eq!(run.active_alarms(), 3);
    }

    #[test]
    fn the_facts_of_a_run_are_those_of_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let mut run = RunFiles::new(root.to_owned());
        assert_eq!((run.progress(), run.silent_s(), run.mark()), ((0, None), None, (0, 0)));
        let write = |name: &str, text: &str| std::fs::write(root.join(name), text).unwrap();
        let config = "seed = 1  # the file\n# beta = 2  # the file\nlr = 1e-6  # default\nname = \"a = b\"  # --set\n";
        write("config.toml", config);
        write("record.json", r#"{"total_steps": 9}"#);
        write("profile.json", "no json");
        for name in ["step-000002", "step-000001", ".step-3", "other"] {
            std::fs::create_dir_all(root.join("checkpoints").join(name)).unwrap();
        }
        let line = |step: u64, a: f64, b: f64| {
            json!({"step": step, "reward": a, "rewards/a/mean": a, "rewards/b/mean": b, "time_s": 100 + step})
                .to_string()
                + "\n"
        };
        let late = |step: u64| if step > 6 { 1.0 } else { 0.0 };
        let early = |step: u64| if step > 3 { 1.0 } else { 0.0 };
        let lines: String = (1..=9).map(|step| line(step, late(step), early(step))).collect();
        write("metrics.jsonl", &lines);
        let facts = run.facts("it");
        let config = json!({"seed": 1, "lr": 1e-6, "name": "a = b"});
        let moved = json!([
            {"name": "b", "from": 0.0, "to": 1.0, "half": 4}, {"name": "a", "from": 0.0, "to": 1.0, "half": 7},
        ]);
        for (key, value) in [
            ("id", json!("it")),
            ("state", json!("stopped")),
            ("step", json!(9)),
            ("total", json!(9)),
            ("alarms", json!([])),
            ("moved", moved),
            ("written_s", json!([101.0, 109.0])),
            ("config", config),
            ("origins", json!({"seed": "the file", "name": "--set"})),
            ("record", json!({"total_steps": 9})),
            ("checkpoints", json!(["step-000001", "step-000002"])),
            ("keys", json!(["reward", "rewards/a/mean", "rewards/b/mean", "time_s"])),
            ("updates", Value::Null),
            ("groups", Value::Null),
            ("group_steps", json!([null, null])),
            ("evaluated", Value::Null),
            ("profile", Value::Null),
            ("directory", json!(root)),
        ] {
            assert_eq!(facts[key], value, "{key}");
        }
        assert_eq!(
            run.verdict().says,
            verdict("reward", &run.series.values("reward").map(|(_, x)| x).collect::<Vec<_>>(), true).says
        );
        assert!(facts["meanings"]["reward"].as_str().is_some_and(|text| !text.is_empty()));
        assert_eq!(run.mark(), (lines.len() as u64, 0));
        // The configuration's number comes first, unless it says nothing.
        for (steps, total) in [("12", Some(12)), ("-1", Some(9)), ("0", Some(9)), ("1", Some(1))] {
            write("config.toml", &format!("max_steps = {steps}\n"));
            assert_eq!(run.progress(), (9, total));
        }
        std::fs::create_dir(root.join("model")).unwrap();
        assert_eq!(run.state(), "finished");
        let here = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        // The lock decides, whichever process has the number here.
        for (host, pid, is_locked, state) in [
            (here.trim(), std::process::id(), false, "finished"),
            (here.trim(), std::process::id(), true, "running"),
            (here.trim(), u32::MAX, false, "finished"),
            (here.trim(), u32::MAX, true, "running"),
            ("another-machine", u32::MAX, false, "running"),
        ] {
            write("run.lock", &json!({"pid": pid, "host": host}).to_string());
            let lock = std::fs::File::open(root.join("run.lock")).unwrap();
            if is_locked {
                lock.try_lock().unwrap();
            }
            assert_eq!(run.state(), state, "{host} {pid}");
        }
    }

    #[test]
    fn recorded_groups_are_opened_again_as_they_grow() {
        use crate::groups::tests::recorded;
        use lockstep::wire::Group;
        let dir = tempfile::tempdir().unwrap();
        let mut run = RunFiles::new(dir.path().to_owned());
        assert!(run.groups().is_none() && run.updates().is_none() && run.evaluations().is_none());
        let group = |step: Option<u64>| Group { step, prompt_ids: vec![1], ..Group::default() };
        recorded(dir.path(), [group(Some(4)), group(Some(2)), group(None)]);
        let first = run.groups().unwrap();
        assert!(Arc::ptr_eq(&first, &run.groups().unwrap()), "nothing has changed");
        assert_eq!((steps_of(Some(&first)), steps_of(None)), ([Some(2), Some(4)], [None, None]));
        recorded(dir.path(), [group(Some(7))]);
        assert_eq!(run.groups().unwrap().index().len(), 4);
        assert!(run.mark().1 > 0);
        for name in ["updates.bin", "evaluations.bin"] {
            std::fs::copy(dir.path().join("rollouts.bin"), dir.path().join(name)).unwrap();
        }
        std::fs::write(dir.path().join("metrics.jsonl"), "").unwrap();
        let facts = run.facts("x");
        assert_eq!((&facts["groups"], &facts["updates"], &facts["evaluated"]), (&json!(4), &json!(4), &json!(4)));
        assert_eq!((&facts["group_steps"], &facts["evaluated_steps"]), (&json!([2, 7]), &json!([2, 7])));
    }
}
