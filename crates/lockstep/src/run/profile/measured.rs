//! Measurements of a training run, summed over some of its steps: seconds per stage, counters, and values from the
//! operating system.

use kernels::Context;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use telemetry::{Ceilings, StageTotal, Step, StepTotals, system};

/// The tail of a generation: the longest sixteenth of its completions (rounded up).
const TAIL: usize = 16;
/// The number of last windows whose resident memory is kept.
const REMEMBERED: usize = 64;

/// Measurements summed over some steps of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Measured {
    /// The first measured step.
    pub first_step: Step,
    /// The last measured step.
    pub last_step: Step,
    /// The number of measured optimizer steps, over which `seconds` and the totals below are summed.
    pub steps: u64,
    /// Wall-clock seconds of the steps, without evaluations.
    pub seconds: f64,
    /// Totals of each stage, in order of first appearance.
    pub stages: Vec<Stage>,
    /// Counters by name: decode steps, preemptions, …
    pub counts: BTreeMap<String, f64>,
    /// Seconds per reward, by name. Some of them may have overlapped with generation.
    pub rewards: BTreeMap<String, f64>,
    /// For each reward that is a Python function in this process: the seconds in which it waited for the interpreter's
    /// lock (GIL), and in which it had the lock, summed over the steps (each step adds the mean of its groups).
    pub interpreter: BTreeMap<String, (f64, f64)>,
    /// The share of groups whose rewards are all equal, stored as the sum over the steps and the number of steps.
    pub zero_spread: (f64, u64),
    /// How much of decoding was spent on the longest completions of each generation.
    pub tail: Tail,
    /// CPU seconds of the process, all threads together.
    pub cpu_s: f64,
    /// Seconds in which the process's threads waited for a core; `None` if the system does not report this.
    pub waited_s: Option<f64>,
    /// Threads of the run.
    pub threads: usize,
    /// Cores reported by the system.
    pub cores: usize,
    /// Resident bytes at the end of each of the last windows.
    pub resident: Vec<u64>,
    /// Bytes of the tensors at the end of the last window, by part of `lockstep plan`.
    pub memory: BTreeMap<String, u64>,
    /// The resident bytes of each part of `memory`; empty if unknown.
    pub memory_resident: BTreeMap<String, u64>,
    /// The peak speeds of the machine, if they were measured.
    pub ceilings: Option<Ceilings>,
    /// The reason why the ceilings were not measured; `None` if they were measured, or if the run is too short.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without_ceilings: Option<String>,
}

/// The totals of one stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// The names of the stages from the outermost to this one, joined by `/`.
    pub path: String,
    /// Wall-clock seconds, including those of inner stages.
    pub seconds: f64,
    /// Floating-point operations of the stage.
    pub flops: f64,
    /// Bytes of memory traffic of the stage.
    pub bytes: f64,
}

/// For how long the longest completions of each generation were decoded after all others had ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tail {
    /// Completions in all generations.
    pub completions: u64,
    /// How many of `completions` are the longest of their generation (a sixteenth).
    pub longest: u64,
    /// Decode steps: the tokens of the longest completion per generation, summed.
    pub steps: u64,
    /// The part of `steps` in which only the longest completions were left.
    pub alone: u64,
}

/// Counters of the operating system at one time.
pub struct OsCounters {
    cpu_s: f64,
    waited_s: Option<f64>,
}

impl OsCounters {
    pub fn now() -> OsCounters {
        OsCounters { cpu_s: system::cpu_s(), waited_s: system::waited_for_cores_s() }
    }
}

impl Measured {
    /// The first and the last measured step.
    pub fn span(&self) -> (Step, Step) {
        (self.first_step, self.last_step)
    }

    /// Seconds of the stage with this path.
    pub fn stage(&self, path: &str) -> f64 {
        self.stages.iter().find(|stage| stage.path == path).map_or(0.0, |stage| stage.seconds)
    }

    /// Seconds of all outermost stages, without evaluations.
    pub fn covered(&self) -> f64 {
        let outermost = self.stages.iter().filter(|stage| !stage.path.contains('/') && stage.path != "evaluation");
        outermost.map(|stage| stage.seconds).sum()
    }

    /// The mean number of busy cores, including evaluations; `None` before anything is measured.
    pub fn busy_cores(&self) -> Option<f64> {
        let seconds = self.seconds + self.stage("evaluation");
        (seconds > 0.0).then(|| self.cpu_s / seconds)
    }

    /// The value of the counter `name`.
    pub fn count(&self, name: &str) -> f64 {
        self.counts.get(name).copied().unwrap_or(0.0)
    }

    /// The stage's share of the steps' seconds, from 0 to 1.
    pub fn share(&self, path: &str) -> f64 {
        self.stage(path) / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// Adds the lengths of one generation's completions, in tokens.
    pub fn lengths(&mut self, lengths: impl Iterator<Item = usize>) {
        let mut lengths: Vec<u64> = lengths.map(|length| length as u64).collect();
        lengths.sort_unstable();
        let longest = lengths.len().div_ceil(TAIL);
        let (Some(&most), Some(&next)) = (lengths.last(), lengths.iter().rev().nth(longest)) else { return };
        self.tail.add(&Tail {
            completions: lengths.len() as u64,
            longest: longest as u64,
            steps: most,
            alone: most - next,
        });
    }

    /// Adds one step, with its stage totals and its metrics.
    pub(super) fn add_step(&mut self, step: Step, seconds: f64, totals: &StepTotals, values: &BTreeMap<String, f64>) {
        if self.steps == 0 {
            self.first_step = step;
        }
        (self.last_step, self.steps) = (step, self.steps + 1);
        self.seconds += seconds;
        for StageTotal { path, seconds, flops, bytes, .. } in &totals.stages {
            self.add_stage(&Stage { path: path.clone(), seconds: *seconds, flops: *flops, bytes: *bytes });
        }
        add(&mut self.counts, &totals.counts);
        for (name, waited_s) in values {
            let Some(reward) = name.strip_prefix("rewards/").and_then(|name| name.strip_suffix("/gil_wait_s")) else {
                continue;
            };
            let held_s = values.get(&format!("rewards/{reward}/gil_held_s")).copied().unwrap_or(0.0);
            self.add_interpreter(reward, *waited_s, held_s);
        }
        if let Some(share) = values.get("frac_reward_zero_std") {
            self.zero_spread = (self.zero_spread.0 + share, self.zero_spread.1 + 1);
        }
    }

    fn add_interpreter(&mut self, name: &str, waited_s: f64, held_s: f64) {
        let known = self.interpreter.entry(name.to_owned()).or_default();
        (known.0, known.1) = (known.0 + waited_s, known.1 + held_s);
    }

    /// Adds the seconds that each reward took in one generation.
    pub fn rewards(&mut self, seconds: &BTreeMap<String, f64>) {
        add(&mut self.rewards, seconds);
    }

    /// Adds the operating system's counts since `before`.
    pub(super) fn os(&mut self, before: &OsCounters, ctx: &Context) {
        let now = OsCounters::now();
        self.cpu_s += now.cpu_s - before.cpu_s;
        // The count loses the seconds of threads that have ended, so it may fall.
        self.waited_s = now.waited_s.zip(before.waited_s).map(|(now, before)| (now - before).max(0.0));
        self.threads = ctx.threads();
        self.cores = std::thread::available_parallelism().map_or(self.threads, usize::from);
        let by_name = |(part, bytes): (&str, usize)| (part.to_owned(), bytes as u64);
        let allocated = ctx.memory().usage().into_iter().map(|(part, usage)| (part, usage.bytes));
        self.memory = allocated.map(by_name).collect();
        self.memory_resident = ctx.memory().resident().into_iter().flatten().map(by_name).collect();
        self.resident.extend(system::rss_bytes());
    }

    fn add_stage(&mut self, stage: &Stage) {
        match self.stages.iter_mut().find(|known| known.path == stage.path) {
            None => self.stages.push(stage.clone()),
            Some(known) => {
                known.seconds += stage.seconds;
                known.flops += stage.flops;
                known.bytes += stage.bytes;
            }
        }
    }

    /// Adds the measurements of later steps.
    pub(super) fn add(&mut self, later: &Measured) {
        if self.steps == 0 {
            self.first_step = later.first_step;
        }
        if later.steps > 0 {
            self.last_step = later.last_step;
        }
        self.steps += later.steps;
        self.seconds += later.seconds;
        later.stages.iter().for_each(|stage| self.add_stage(stage));
        add(&mut self.counts, &later.counts);
        add(&mut self.rewards, &later.rewards);
        later.interpreter.iter().for_each(|(name, &(waited_s, held_s))| self.add_interpreter(name, waited_s, held_s));
        self.zero_spread = (self.zero_spread.0 + later.zero_spread.0, self.zero_spread.1 + later.zero_spread.1);
        self.tail.add(&later.tail);
        self.cpu_s += later.cpu_s;
        self.waited_s = later.waited_s.map(|waited| waited + self.waited_s.unwrap_or(0.0)).or(self.waited_s);
        (self.threads, self.cores) = (later.threads, later.cores);
        if !later.memory.is_empty() {
            self.memory.clone_from(&later.memory);
            self.memory_resident.clone_from(&later.memory_resident);
        }
        self.resident.extend(&later.resident);
        let old = self.resident.len().saturating_sub(REMEMBERED);
        self.resident.drain(..old);
    }
}

impl Tail {
    fn add(&mut self, other: &Tail) {
        self.completions += other.completions;
        self.longest += other.longest;
        self.steps += other.steps;
        self.alone += other.alone;
    }
}

fn add(to: &mut BTreeMap<String, f64>, from: &BTreeMap<String, f64>) {
    for (name, value) in from {
        *to.entry(name.clone()).or_default() += value;
    }
}
