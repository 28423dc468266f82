//! The files of one training run, read incrementally as they grow.

use crate::kept::{Identity, Kept, Stamp};
use crate::lines::Lines;
use crate::meaning::{meaning, unit};
use crate::series::Series;
use crate::trace::Traced;
use crate::verdict::{Judged, Moved, Verdict, moved, verdict};
use lockstep::directory::ProfileRecord;
use lockstep::evaluation::TokenTexts;
use lockstep::wire::file::GroupFile;
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use telemetry::{Alarm, Finding, Step, Weight};

/// The files whose changes change the facts, besides those that grow at each logged step.
const OTHER_FILES: [&str; 8] = [
    "steps.jsonl",
    "evaluations.bin",
    "updates.bin",
    "checkpoints",
    "config.toml",
    "record.json",
    "profile.json",
    "model",
];

/// A training run, and the contents read from its files so far.
pub struct RunFiles {
    root: PathBuf,
    /// `metrics.jsonl` and its contents: metrics of logged steps, and alarms.
    log: Lines,
    series: Series,
    alarms: Vec<Value>,
    /// `steps.jsonl` and its contents: the values of each step, which determine the verdict.
    step_log: Lines,
    steps: Series,
    groups: Option<(Stamp, Arc<GroupFile>)>,
    updates: Option<(Stamp, Arc<GroupFile>)>,
    evaluations: Option<(Stamp, Arc<GroupFile>)>,
    /// The tokenizer, once one was found.
    tokens: Option<Arc<TokenTexts>>,
    /// `trace.json`, once requested.
    traced: Option<Traced>,
    config: Kept<Config>,
    record: Kept<Value>,
    profile: Kept<Profile>,
    /// The names, meanings and units of the metrics so far.
    described: Described,
    /// The files that could be opened, as they were then: opening them again would succeed.
    openable: RefCell<BTreeMap<&'static str, Identity>>,
}

/// The content of `config.toml`.
pub struct Config {
    /// All keys with their values.
    pub values: Map<String, Value>,
    /// The origin of each value, from the comment after the value; default values have none.
    origins: Map<String, Value>,
}

impl Config {
    fn parse(bytes: &[u8]) -> Config {
        let text = std::str::from_utf8(bytes).unwrap_or_default();
        let values = match text.parse::<toml::Table>().ok().and_then(|table| serde_json::to_value(table).ok()) {
            Some(Value::Object(values)) => values,
            _ => Map::new(),
        };
        let origin = |line: &str| {
            let ((key, value), (_, origin)) = (line.split_once(" = ")?, line.rsplit_once("  # ")?);
            (!key.starts_with('#') && !value.is_empty() && origin != "default")
                .then(|| (key.to_owned(), Value::from(origin)))
        };
        Config { values, origins: text.lines().filter_map(origin).collect() }
    }

    /// The name of the run.
    pub fn name(&self) -> Option<&str> {
        self.values.get("run_name").and_then(Value::as_str).filter(|name| !name.is_empty())
    }
}

/// The content of `profile.json`, and what follows from it.
struct Profile {
    json: Value,
    busy_cores: Option<f64>,
    /// The findings, the most expensive first; `gain_s`, if known, is an upper bound of the seconds per step that could
    /// be saved.
    findings: Vec<Value>,
}

impl Profile {
    fn parse(bytes: &[u8]) -> Profile {
        let record: ProfileRecord = serde_json::from_slice(bytes).unwrap_or_default();
        let with_gain = |(finding, gain_s): (&Finding, Option<f64>)| {
            let mut line = json!(finding);
            line["gain_s"] = json!(gain_s);
            line
        };
        let findings = record.gains_per_step().into_iter().map(with_gain).collect();
        Profile { json: parse_json(bytes), busy_cores: record.measured.busy_cores(), findings }
    }
}

fn parse_json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or(Value::Null)
}

/// Metrics with their meanings and units, which are found by comparing names with the whole table of metrics.
#[derive(Default)]
struct Described {
    keys: Vec<String>,
    meanings: Map<String, Value>,
    units: Map<String, Value>,
}

impl RunFiles {
    /// The training run in this directory, with nothing read yet.
    pub fn new(root: PathBuf) -> RunFiles {
        disk::no_links_below(&root);
        RunFiles {
            log: Lines::new(root.join("metrics.jsonl")),
            step_log: Lines::new(root.join("steps.jsonl")),
            config: Kept::new(root.join("config.toml"), Config::parse),
            record: Kept::new(root.join("record.json"), parse_json),
            profile: Kept::new(root.join("profile.json"), Profile::parse),
            described: Described::default(),
            openable: RefCell::default(),
            root,
            series: Series::default(),
            alarms: Vec::new(),
            steps: Series::default(),
            groups: None,
            updates: None,
            evaluations: None,
            tokens: None,
            traced: None,
        }
    }

    /// The run's directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Reads the new lines of `metrics.jsonl` and `steps.jsonl`.
    pub fn refresh(&mut self) {
        if let Some(opened) = self.log.open() {
            if opened.begins_anew {
                (self.series, self.alarms) = (Series::default(), Vec::new());
                (self.groups, self.updates, self.evaluations) = (None, None, None);
            }
            while let Some(lines) = self.log.next(&opened) {
                self.add_lines(&lines);
            }
        }
        if let Some(opened) = self.step_log.open() {
            if opened.begins_anew {
                self.steps = Series::default();
            }
            while let Some(lines) = self.step_log.next(&opened) {
                objects(&lines).for_each(|(step, line)| self.steps.add(step, &line));
            }
        }
    }

    fn add_lines(&mut self, bytes: &[u8]) {
        for (step, mut line) in objects(bytes) {
            match line.remove("alarm") {
                Some(alarm) => self.add_alarm(json!({ "step": step, "alarm": alarm })),
                None => self.series.add(step, &line),
            }
        }
    }

    /// Adds an alarm. The line that ends an alarm replaces the line that raised it, so the list has each alarm once.
    fn add_alarm(&mut self, line: Value) {
        let is_same =
            |old: &Value| ["id", "subject", "since"].iter().all(|key| old["alarm"].get(key) == line["alarm"].get(key));
        match self.alarms.iter_mut().find(|old| is_same(old)) {
            Some(old) => *old = line,
            None => self.alarms.push(line),
        }
    }

    /// The active alarms, without notes, in the order in which they are listed.
    pub fn active_alarms(&self, verdict: &Verdict) -> Vec<Alarm> {
        let has_learned = verdict.has_learned();
        let is_active = |alarm: &Alarm| alarm.until.is_none() && alarm.weight(has_learned) != Weight::Note;
        let mut active: Vec<Alarm> = self.alarms.iter().map(read_alarm).filter(is_active).collect();
        active.sort_by_key(|alarm| alarm.place(has_learned));
        active
    }

    /// The metrics read so far.
    pub fn series(&self) -> &Series {
        &self.series
    }

    /// Identifies the facts: bytes of metrics read, bytes of the index of recorded groups, the stamps of the other
    /// files, and the given state. Facts with the same mark are the same facts.
    pub fn mark(&self, state: &str) -> String {
        let mut hasher = DefaultHasher::new();
        for name in OTHER_FILES {
            Stamp::of(&self.root.join(name)).ok().hash(&mut hasher);
        }
        format!("{}-{}-{:x}-{state}", self.log.read(), self.size("rollouts.idx"), hasher.finish())
    }

    /// The sizes of the two files that grow at each step. This takes two system calls, cheap enough for ten calls per
    /// second.
    pub fn sizes(&self) -> [u64; 2] {
        ["metrics.jsonl", "rollouts.idx"].map(|name| self.size(name))
    }

    fn size(&self, name: &str) -> u64 {
        std::fs::metadata(self.root.join(name)).map_or(0, |metadata| metadata.len())
    }

    /// The recorded groups of training; `None` if none are recorded.
    pub fn groups(&mut self) -> Option<Arc<GroupFile>> {
        opened(&self.root.join("rollouts.bin"), &mut self.groups)
    }

    /// The recorded log-probabilities of some groups after the optimizer step; `None` if none are recorded.
    pub fn updates(&mut self) -> Option<Arc<GroupFile>> {
        opened(&self.root.join("updates.bin"), &mut self.updates)
    }

    /// The recorded groups of evaluations.
    pub fn evaluations(&mut self) -> Option<Arc<GroupFile>> {
        opened(&self.root.join("evaluations.bin"), &mut self.evaluations)
    }

    /// The seconds of each traced step by stage.
    pub fn traced(&mut self) -> &Traced {
        let traced = self.traced.get_or_insert_with(|| Traced::new(self.root.join("trace.json")));
        traced.refresh();
        traced
    }

    /// The tokenizer of the final model, of a checkpoint, or of the initial model.
    pub fn tokens(&mut self) -> Option<Arc<TokenTexts>> {
        if self.tokens.is_none() {
            let mut dirs = vec![self.root.join("model")];
            dirs.extend(self.checkpoints().iter().rev().map(|name| self.root.join("checkpoints").join(name)));
            dirs.extend(self.config().values.get("model_name_or_path").and_then(Value::as_str).map(PathBuf::from));
            // A run that has none yet may write a checkpoint with one.
            self.tokens = dirs.iter().find_map(|dir| TokenTexts::open(dir).ok()).map(Arc::new);
        }
        self.tokens.clone()
    }

    fn checkpoints(&self) -> Vec<String> {
        let entries = disk::read_dir(self.root.join("checkpoints")).unwrap_or_default();
        let names = entries.into_iter().filter_map(|entry| entry.file_name().to_str().map(str::to_owned));
        names.filter(|name| name.starts_with("step-")).collect()
    }

    /// The configuration of the run.
    pub fn config(&self) -> Arc<Config> {
        self.config.value()
    }

    /// The content of `record.json`: versions, machine and inputs of the run.
    pub fn record(&self) -> Arc<Value> {
        self.record.value()
    }

    /// The state of the run: `running`, `finished`, or `stopped` before its end. A run that took all its steps is
    /// finished even if its model was deleted.
    pub fn state(&self) -> &'static str {
        if lockstep::directory::has_writer(&self.root) {
            return "running";
        }
        let took_all = || {
            self.progress().1.is_some_and(|total| self.series.last_step().is_some_and(|step| step.left_of(total) == 0))
        };
        if self.root.join("model").is_dir() || took_all() { "finished" } else { "stopped" }
    }

    /// The last step, and the planned number of steps.
    pub fn progress(&self) -> (Step, Option<u64>) {
        let total = self.config().values.get("max_steps").and_then(Value::as_i64).filter(|&steps| steps > 0);
        let total = total.map(|steps| steps as u64).or_else(|| self.record().get("total_steps")?.as_u64());
        (self.series.last_step().unwrap_or_default(), total)
    }

    /// Seconds since the last line of metrics was written.
    pub fn silent_s(&self) -> Option<u64> {
        SystemTime::now().duration_since(self.changed()?).ok().map(|silent| silent.as_secs())
    }

    /// When the last line of metrics was written, in seconds since 1970.
    pub fn changed_s(&self) -> Option<u64> {
        self.changed()?.duration_since(SystemTime::UNIX_EPOCH).ok().map(|time| time.as_secs())
    }

    fn changed(&self) -> Option<SystemTime> {
        std::fs::metadata(self.root.join("metrics.jsonl")).ok()?.modified().ok()
    }

    /// The first existing file that cannot be read, with the reason.
    pub fn unreadable(&self) -> Option<String> {
        let says = |name: &str, error| format!("cannot read {}: {error}", self.root.join(name).display());
        let state = [
            ("config.toml", self.config.read().1),
            ("record.json", self.record.read().1),
            ("profile.json", self.profile.read().1),
        ];
        let state = state.into_iter().find_map(|(name, error)| Some(says(name, error?)));
        let names = ["metrics.jsonl", "steps.jsonl", "rollouts.bin", "evaluations.bin"];
        state.or_else(|| names.iter().find_map(|name| Some(says(name, self.cannot_open(name)?))))
    }

    /// The reason why an existing file cannot be opened.
    fn cannot_open(&self, name: &'static str) -> Option<std::io::Error> {
        let path = self.root.join(name);
        let identity = match Identity::of(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return None,
            identity => identity.ok(),
        };
        let mut openable = self.openable.borrow_mut();
        if identity.is_some() && openable.get(name) == identity.as_ref() {
            return None;
        }
        let error = disk::open(&path).err();
        match identity.filter(|_| error.is_none()) {
            Some(identity) => drop(openable.insert(name, identity)),
            None => drop(openable.remove(name)),
        }
        error.filter(|error| error.kind() != ErrorKind::NotFound)
    }

    /// Whether the run learns, judged by the reward, the accuracy on preference pairs, or the loss. All steps are used,
    /// including steps that were not logged.
    pub fn verdict(&self) -> Verdict {
        self.verdict_as(self.state() != "running")
    }

    /// The verdict, given whether the run has ended.
    pub fn verdict_as(&self, has_ended: bool) -> Verdict {
        if let Some(says) = self.unreadable() {
            return Verdict { state: "nothing", says };
        }
        let (name, values) = self.judged_by();
        let higher_is_better = lockstep::directory::JUDGED.iter().any(|&(judged, higher)| judged == name && higher);
        let held_out: Vec<f64> = self.series.values(&format!("eval_{name}")).map(|(_, value)| value).collect();
        let alarms: Vec<Alarm> = self.alarms.iter().map(read_alarm).collect();
        verdict(Judged { name, values: &values, higher_is_better, has_ended }, &alarms, &held_out)
    }

    /// The metric that determines the verdict, and its values: one per step, including steps that were not logged.
    pub fn judged_by(&self) -> (&'static str, Vec<f64>) {
        let judged = lockstep::directory::JUDGED.iter().map(|(name, _)| (*name, self.judged(name)));
        judged.into_iter().find(|(_, values)| !values.is_empty()).unwrap_or(("reward", Vec::new()))
    }

    /// The per-step values of a metric. Logged values precede them if older versions, which recorded none, trained the
    /// first steps.
    fn judged(&self, key: &str) -> Vec<f64> {
        let own: Vec<(Step, f64)> = self.steps.values(key).collect();
        let begin = own.first().map_or(Step(u64::MAX), |(step, _)| *step);
        let logged = self.series.values(key).filter(|(step, _)| *step < begin);
        logged.chain(own.iter().copied()).map(|(_, value)| value).collect()
    }

    /// When the first and the last line of metrics were written, in seconds since 1970.
    fn written_s(&self) -> [Option<f64>; 2] {
        let times = || self.series.values("time_s").map(|(_, time)| time);
        [times().next(), times().last()]
    }

    /// The change of each reward function's mean; the function that moved first comes first.
    fn moved(&self) -> Value {
        let name = |key: &str| Some(key.strip_prefix("rewards/")?.strip_suffix("/mean")?.to_owned());
        let rewards =
            self.series.keys().filter_map(|key| Some((name(key)?, self.series.values(key).collect::<Vec<_>>())));
        let mut all: Vec<_> = rewards.filter_map(|(name, values)| Some((name, moved(&values)?))).collect();
        all.sort_by_key(|(_, moved)| moved.half.unwrap_or(Step(u64::MAX)));
        let line = |(name, m): &(String, Moved)| json!({ "name": name, "from": m.from, "to": m.to, "half": m.half });
        all.iter().map(line).collect()
    }

    /// The alarms, each once, in the order of the list, with their weights; an ended alarm has the key `until`.
    pub fn alarms(&self, verdict: &Verdict) -> Vec<Value> {
        let has_learned = verdict.has_learned();
        let mut all: Vec<(Alarm, Value)> = self.alarms.iter().map(|line| (read_alarm(line), line.clone())).collect();
        all.sort_by_key(|(alarm, _)| alarm.place(has_learned));
        let weighed = |(alarm, mut line): (Alarm, Value)| {
            line["weight"] = json!(alarm.weight(has_learned));
            line["gaming"] = json!(alarm.gaming().is_some());
            line
        };
        all.into_iter().map(weighed).collect()
    }

    /// Looks up the meanings and units of new metrics.
    fn describe(&mut self) {
        if !self.series.keys().eq(self.described.keys.iter()) {
            let keys = || self.series.keys();
            let (meanings, units) = (keys().filter_map(meaning).collect(), keys().filter_map(unit).collect());
            self.described = Described { keys: keys().map(str::to_owned).collect(), meanings, units };
        }
    }

    /// All facts about the run except curves, for the page.
    pub fn facts(&mut self, name: &str) -> Map<String, Value> {
        self.refresh();
        let state = self.state();
        // The mark precedes the other facts: a group that is recorded in between changes the mark of the next ones.
        let mark = self.mark(state);
        self.facts_as(name, (state, &mark), &self.verdict_as(state != "running"))
    }

    /// The facts about a run that was just [refreshed](Self::refresh), given its state and mark and the verdict.
    pub fn facts_as(
        &mut self,
        name: &str,
        (state, mark): (&'static str, &str),
        verdict: &Verdict,
    ) -> Map<String, Value> {
        let (config, profile, (step, total)) = (self.config(), self.profile.value(), self.progress());
        let (groups, evaluations, updates) = (self.groups(), self.evaluations(), self.updates());
        let count = |file: &Option<Arc<GroupFile>>| file.as_ref().map(|file| file.index().len());
        self.describe();
        let facts = [
            ("id", json!(name)),
            ("mark", json!(mark)),
            ("name", json!(config.name())),
            ("state", json!(state)),
            ("step", json!(step)),
            ("total", json!(total)),
            ("silent_s", json!(self.silent_s())),
            ("verdict", verdict.to_json()),
            ("alarms", self.alarms(verdict).into()),
            ("moved", self.moved()),
            ("written_s", json!(self.written_s())),
            ("config", config.values.clone().into()),
            ("origins", config.origins.clone().into()),
            ("record", (*self.record()).clone()),
            ("checkpoints", self.checkpoints().into()),
            ("keys", json!(self.described.keys)),
            ("meanings", self.described.meanings.clone().into()),
            ("units", self.described.units.clone().into()),
            ("updates", json!(count(&updates))),
            ("groups", json!(count(&groups))),
            ("group_steps", json!(steps_of(groups.as_deref()))),
            ("evaluated", json!(count(&evaluations))),
            ("evaluated_steps", json!(steps_of(evaluations.as_deref()))),
            ("workers", lockstep::workers::made_by_path(&self.root).is_file().into()),
            ("profile", profile.json.clone()),
            ("busy_cores", json!(profile.busy_cores)),
            ("findings", profile.findings.clone().into()),
            ("directory", json!(self.root)),
        ];
        facts.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }
}

/// Parses the alarm in a line of metrics, without its texts.
fn read_alarm(line: &Value) -> Alarm {
    let alarm = &line["alarm"];
    let word = |key: &str| alarm[key].as_str().unwrap_or_default().to_owned();
    Alarm {
        id: word("id"),
        subject: word("subject"),
        since: alarm["since"].as_u64().map(Step).unwrap_or_default(),
        until: alarm["until"].as_u64().map(Step),
        quiet: alarm["quiet"].as_bool().unwrap_or_default(),
        ..Alarm::default()
    }
}

/// The JSON objects in these lines, with their steps.
fn objects(lines: &[u8]) -> impl Iterator<Item = (Step, Map<String, Value>)> + '_ {
    lines.split(|&byte| byte == b'\n').filter_map(|line| {
        let Ok(Value::Object(line)) = serde_json::from_slice(line) else { return None };
        Some((line.get("step").and_then(Value::as_u64).map(Step).unwrap_or_default(), line))
    })
}

/// The first and the last step of the recorded groups.
fn steps_of(groups: Option<&GroupFile>) -> [Option<Step>; 2] {
    let steps = || groups.iter().flat_map(|groups| groups.index()).filter_map(|entry| entry.step);
    [steps().min(), steps().max()]
}

/// Opens a file of recorded groups. The open file is reused; if it has changed, its new groups are added.
fn opened(path: &Path, known: &mut Option<(Stamp, Arc<GroupFile>)>) -> Option<Arc<GroupFile>> {
    let stamp = Stamp::of(path).ok()?;
    if known.as_ref().is_none_or(|(known, _)| *known != stamp) {
        // A request that reads the file at this moment keeps its own list of groups.
        let file = match known.take().map(|(_, file)| Arc::try_unwrap(file)) {
            Some(Ok(mut file)) => file.grow().map(|()| file),
            _ => GroupFile::open(path),
        };
        *known = file.ok().map(|file| (stamp, Arc::new(file)));
    }
    known.as_ref().map(|(_, file)| file.clone())
}

#[cfg(test)]
mod tests;
