//! The profile's rules. Each rule detects one way to waste time or memory. docs/profiling.md explains them.
//!
//! A rule reads the measurements of some steps and returns its evidence, or nothing if it does not hold. No rule holds
//! for a run that is as fast as its machine allows.

use super::Measured;
use kernels::mean::over;

/// A rule of the profile.
pub struct Rule {
    pub id: &'static str,
    /// One sentence for the user that describes the finding.
    pub says: &'static str,
    pub remedy: &'static str,
    /// Returns the evidence if the rule holds on these measurements.
    pub holds: fn(&Measured) -> Option<String>,
    /// The most seconds that the remedy could save, if the measurements show this.
    pub gain_s: fn(&Measured) -> Option<f64>,
}

/// For rules whose remedy has an unknown effect on the speed of a stage.
const UNKNOWN: fn(&Measured) -> Option<f64> = |_| None;

/// The smallest number of seconds that a finding reports; less is noise. (Windows of a run take at least five seconds;
/// `lockstep profile` judges a run of any length.)
const LEAST_S: f64 = 0.5;
/// The rules about decoding hold only if decoding takes at least this share of the steps.
const MUCH: f64 = 0.4;
/// Decoding is limited by memory or arithmetic if it reaches at least this share of the machine's peak.
const LIMIT: f64 = 0.6;
/// If decoding reads faster than this multiple of the memory's peak speed, the weights come from the CPU cache.
const CACHED: f64 = 1.15;
/// Below this mean number of sequences per decode step, the batch is considered small.
const FEW: f64 = 4.0;
/// The rule `long_tail` holds if only the longest sixteenth of the completions is left in this share of the decode
/// steps.
const ALONE: f64 = 0.5;
const REWARDS: f64 = 0.35;
/// The rule `interpreter_lock` holds if a Python reward waits for the interpreter during [`LOCKED`] of its time and
/// takes at least [`ASKED`] of the steps' time.
const LOCKED: f64 = 0.25;
const ASKED: f64 = 0.1;
const PREPARING: f64 = 0.3;
const SAVING: f64 = 0.2;
const EVALUATING: f64 = 0.5;
const SPREADLESS: f64 = 0.75;
/// Seconds of waiting for a core, per second of CPU time, from which the cores are considered overloaded.
const WAITING: f64 = 0.25;
/// Preemptions per completion from which the rule `kv_preemption` holds.
const PREEMPTED: f64 = 0.05;
const WORKERS: f64 = 0.4;
/// The rule `memory_growth` holds if resident memory grew in this many windows in a row, by at least this share and at
/// least this many bytes.
const GROWS: (usize, f64, u64) = (6, 0.1, 64 << 20);

/// All rules, in the order in which their findings are reported.
pub const ALL: &[Rule] = &[
    Rule {
        id: "reward_bound",
        says: "The run waits for its rewards.",
        remedy: "by_group = true, so that a group is scored while others are generated; workers that score while the \
                 model trains (--distributed --workers N with max_staleness = N); a faster reward",
        holds: reward_bound,
        gain_s: |m| Some(m.stage("rewards")),
    },
    Rule {
        id: "interpreter_lock",
        says: "Rewards in Python wait for the interpreter, which runs one thread at a time.",
        remedy: "release the lock where possible (input and output, numpy and regex do; loops do not); run the reward \
                 as a separate program (`command:` or `python:FILE:FUNCTION`), which has an interpreter of its own; \
                 less work in callbacks",
        holds: interpreter_lock,
        gain_s: UNKNOWN,
    },
    Rule {
        id: "worker_bound",
        says: "The learner waits for its workers.",
        remedy: "more workers, on cores of their own; a higher max_staleness, up to which they work ahead; a faster \
                 reward",
        holds: worker_bound,
        gain_s: |m| Some(m.count("waited_for_workers_s")),
    },
    Rule {
        id: "decode_memory_bound",
        says: "Decoding is limited by reading the weights.",
        remedy: "more completions at once (num_generations, per_device_train_batch_size, \
                 gradient_accumulation_steps), which share each read; dtype = \"bf16\", which halves it",
        holds: |m| decode_bound(m, Bound::Memory),
        gain_s: UNKNOWN,
    },
    Rule {
        id: "decode_compute_bound",
        says: "Decoding is limited by arithmetic.",
        remedy: "more cores (threads); dtype = \"bf16\" where the processor multiplies it; shorter completions",
        holds: |m| decode_bound(m, Bound::Compute),
        gain_s: UNKNOWN,
    },
    Rule {
        id: "small_batch",
        says: "Few completions are decoded at once, and each step reads all weights for them.",
        remedy: "more completions at once: num_generations, per_device_train_batch_size, gradient_accumulation_steps",
        holds: small_batch,
        gain_s: UNKNOWN,
    },
    Rule {
        id: "long_tail",
        says: "Most decode steps are for a few long completions.",
        remedy: "a lower max_completion_length; a reward for ending (`length`); workers with max_staleness ≥ 1, which \
                 begin the next batch meanwhile",
        holds: long_tail,
        gain_s: |m| Some(m.stage("rollout/decode") * over(m.tail.alone as f64, m.tail.steps)?),
    },
    Rule {
        id: "kv_preemption",
        says: "Completions are computed twice, because pages for keys and values run out.",
        remedy: "more memory for them (kv_cache_blocks), or fewer completions at once (max_num_seqs)",
        holds: kv_preemption,
        gain_s: UNKNOWN,
    },
    Rule {
        id: "zero_spread",
        says: "Most groups teach nothing: all of their rewards are equal.",
        remedy: "prompts that the model solves sometimes; a reward with partial credit; more num_generations; \
                 dynamic_sampling; if rewards vary and only their sums are equal (see the alarm zero_variance), other \
                 reward_weights",
        holds: zero_spread,
        gain_s: UNKNOWN,
    },
    Rule {
        id: "data_bound",
        says: "Much time is spent on preparing batches, on callbacks, or outside every stage.",
        remedy: "shorter rows; less work in callbacks (on_log, on_step) and in programs that read the run's files",
        holds: data_bound,
        gain_s: |m| Some(preparing_s(m)),
    },
    Rule {
        id: "checkpoint_bound",
        says: "The run waits for its checkpoints.",
        remedy: "a higher save_steps; a faster disk; LoRA (use_peft), whose checkpoints are small",
        holds: checkpoint_bound,
        gain_s: |m| Some(m.stage("checkpoint")),
    },
    Rule {
        id: "evaluation_bound",
        says: "More time goes to evaluations than to training.",
        remedy: "a higher eval_steps; fewer rows in the evaluation set; a lower num_generations_eval",
        holds: evaluation_bound,
        gain_s: |m| Some(m.stage("evaluation")),
    },
    Rule {
        id: "oversubscribed",
        says: "More threads compute than there are cores.",
        remedy: "threads = the number of cores, or fewer; unset LOCKSTEP_THREADS",
        holds: oversubscribed,
        gain_s: UNKNOWN,
    },
    Rule {
        id: "cores_shared",
        says: "Other processes compute on the same cores.",
        remedy: "wait for them, stop them, or give the run cores of its own (taskset, cgroups) and as many threads",
        holds: cores_shared,
        gain_s: UNKNOWN,
    },
    Rule {
        id: "memory_growth",
        says: "Resident memory keeps growing.",
        remedy: "a reward or callback may keep its inputs: in Python, use tracemalloc; `lockstep plan` shows the run's \
                 own memory",
        holds: memory_growth,
        gain_s: UNKNOWN,
    },
];

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

fn reward_bound(m: &Measured) -> Option<String> {
    let share = m.share("rewards");
    if share < REWARDS || m.stage("rewards") < LEAST_S {
        return None;
    }
    let slowest = m.rewards.iter().max_by(|a, b| a.1.total_cmp(b.1));
    let of = slowest.map_or_else(String::new, |(name, s)| format!(", most of it for `{name}` ({s:.1} s)"));
    // Computes how many workers, which generate and score, would keep the update busy.
    let update = m.stage("update") + m.stage("value update") + m.stage("reference");
    let made = m.stage("rollout") + m.stage("rewards");
    let workers = (made / update.max(f64::MIN_POSITIVE)).ceil().clamp(1.0, 64.0);
    let waited = m.stage("rewards");
    let share = percent(share);
    Some(format!(
        "{waited:.1} of {:.1} s ({share}) were spent waiting for rewards{of}; {workers} workers would avoid this wait.",
        m.seconds
    ))
}

fn interpreter_lock(m: &Measured) -> Option<String> {
    let waits = m.interpreter.iter().filter_map(|(name, &(waited_s, held_s))| {
        let took = m.rewards.get(name).copied().unwrap_or(0.0);
        let share = waited_s / (waited_s + held_s).max(f64::MIN_POSITIVE);
        (share >= LOCKED && took >= (ASKED * m.seconds).max(LEAST_S)).then_some((name, share, took))
    });
    let (name, share, took) = waits.max_by(|a, b| a.2.total_cmp(&b.2))?;
    Some(format!("`{name}` took {took:.1} s, and waited {} of them for the interpreter's lock.", percent(share)))
}

fn worker_bound(m: &Measured) -> Option<String> {
    let waited = m.count("waited_for_workers_s");
    let share = waited / m.seconds.max(f64::MIN_POSITIVE);
    (share >= WORKERS && waited >= LEAST_S).then(|| {
        format!("{waited:.1} of {:.1} s ({}) were spent waiting for the next batch.", m.seconds, percent(share))
    })
}

/// Whether decoding takes enough of the steps for the rules about decoding.
fn takes_much(m: &Measured) -> bool {
    m.share("rollout/decode") >= MUCH && m.stage("rollout/decode") >= LEAST_S
}

enum Bound {
    Memory,
    Compute,
}

/// Whether decoding is limited by `bound`. The counts include prefill, which is small if decoding takes long.
fn decode_bound(m: &Measured, bound: Bound) -> Option<String> {
    let ceilings = m.ceilings?;
    let decode = m.share("rollout/decode");
    let rollout = m.stages.iter().find(|stage| stage.path == "rollout")?;
    let inside = m.stage("rollout/decode") + m.stage("rollout/sampling");
    if !takes_much(m) || inside < 0.7 * rollout.seconds {
        return None;
    }
    let of = |amount: f64, ceiling: Option<f64>| amount / rollout.seconds / ceiling.unwrap_or(f64::INFINITY);
    let memory = of(rollout.bytes, ceilings.bytes_per_s);
    let compute = of(rollout.flops, ceilings.flops_per_s);
    let takes = format!("Decoding takes {} of the steps", percent(decode));
    match bound {
        Bound::Memory if (LIMIT..CACHED).contains(&memory) && memory > compute => {
            Some(format!("{takes} and moves {} of the bytes per second that this machine can read.", percent(memory)))
        }
        Bound::Compute if compute >= LIMIT && (compute >= memory || memory >= CACHED) => {
            Some(format!("{takes} and does {} of the operations per second that this machine can.", percent(compute)))
        }
        _ => None,
    }
}

fn small_batch(m: &Measured) -> Option<String> {
    // A sequence may draw several tokens per step.
    let live = over(m.count("decode_passes"), m.count("decode_steps") as u64)?;
    let share = m.share("rollout/decode");
    // Another rule handles long tails.
    let has_tail = long_tail(m).is_some();
    (takes_much(m) && live < FEW && !has_tail)
        .then(|| format!("A decode step has {live:.1} sequences; decoding takes {} of the steps.", percent(share)))
}

fn long_tail(m: &Measured) -> Option<String> {
    let alone = over(m.tail.alone as f64, m.tail.steps)?;
    let (n, all) = (m.tail.longest, m.tail.completions);
    (takes_much(m) && alone >= ALONE)
        .then(|| format!("{n} of {all} completions were decoded alone in {} of the decode steps.", percent(alone)))
}

fn kv_preemption(m: &Measured) -> Option<String> {
    let (times, all) = (m.count("preemptions"), m.tail.completions);
    (all > 0 && times > 0.0 && times >= PREEMPTED * all as f64 && m.stage("rollout") >= LEAST_S)
        .then(|| format!("{times:.0} preemptions interrupted the {all} completions."))
}

fn zero_spread(m: &Measured) -> Option<String> {
    let share = over(m.zero_spread.0, m.zero_spread.1)?;
    (share >= SPREADLESS)
        .then(|| format!("In {} of the groups all rewards were equal: no advantage, no gradient.", percent(share)))
}

/// Seconds spent making batches, in callbacks, and outside all stages.
fn preparing_s(m: &Measured) -> f64 {
    m.seconds - m.covered() + m.stage("batch") + m.stage("callbacks")
}

fn data_bound(m: &Measured) -> Option<String> {
    let rest = preparing_s(m);
    let share = rest / m.seconds.max(f64::MIN_POSITIVE);
    let of = percent(share);
    (share >= PREPARING && rest >= LEAST_S).then(|| {
        format!("{of} of the steps' {:.1} s are spent on batches, callbacks or outside all stages.", m.seconds)
    })
}

fn checkpoint_bound(m: &Measured) -> Option<String> {
    let share = m.share("checkpoint");
    (share >= SAVING && m.stage("checkpoint") >= LEAST_S).then(|| {
        format!(
            "{:.1} of {:.1} s ({}) were spent waiting for checkpoints.",
            m.stage("checkpoint"),
            m.seconds,
            percent(share)
        )
    })
}

fn evaluation_bound(m: &Measured) -> Option<String> {
    let evaluation = m.stage("evaluation");
    let share = evaluation / (evaluation + m.seconds).max(f64::MIN_POSITIVE);
    (share >= EVALUATING && evaluation >= LEAST_S)
        .then(|| format!("Evaluations took {evaluation:.1} s, and steps took {:.1} s.", m.seconds))
}

fn oversubscribed(m: &Measured) -> Option<String> {
    let waited = m.waited_s.unwrap_or(0.0);
    (m.threads > m.cores && waited >= (WAITING * m.cpu_s).max(LEAST_S))
        .then(|| format!("{} threads on {} cores waited {waited:.1} s for a core.", m.threads, m.cores))
}

fn cores_shared(m: &Measured) -> Option<String> {
    let waited = m.waited_s?;
    (m.threads <= m.cores && m.cpu_s > 0.0 && waited >= (WAITING * m.cpu_s).max(LEAST_S))
        .then(|| format!("Threads waited {waited:.1} s for a core, and computed {:.1} s.", m.cpu_s))
}

fn memory_growth(m: &Measured) -> Option<String> {
    let (windows, share, bytes) = GROWS;
    let last = m.resident.len().checked_sub(windows)?;
    let (first, last) = (m.resident[last], &m.resident[last..]);
    let now = *last.last()?;
    let rises = last.windows(2).all(|pair| pair[1] > pair[0]);
    let mib = |bytes: u64| bytes / (1 << 20);
    (rises && now >= first + bytes && now as f64 >= first as f64 * (1.0 + share))
        .then(|| format!("It rose from {} to {} MiB, in every window.", mib(first), mib(now)))
}
