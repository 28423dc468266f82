//! Workers that send wrong answers. Each must be detected, named with its wrong answer, and expelled, and the run must
//! have the same bits as a run in one process. Learner and workers are threads here, so that a worker can misbehave in
//! any way.

use super::super::worker::{WorkerOptions, work, work_as};
use super::waits::all_cores_but_one;
use super::{config, directory, one_thread, rows};
use crate::config::{Config, Purpose, Trust};
use crate::rollouts::jobs::{GroupAnswer, GroupJob};
use crate::session::Expelled;
use crate::sources::workers::{NatsServer, WorkerWork};
use crate::{Run, RunOptions, StopSignal};
use fleet::worker::{Done, Proceeded, Work};
use fleet::{Answer, Job, JobName};
use model::columns::{ENTROPIES, SAMPLER_LOGPS};
use rewards::{Problem, ProblemKind};
use rollout::SamplingParams;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// The part of its answers that a lying worker changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Lie {
    Nothing,
    Token,
    /// A token in a chunk other than the first.
    LaterToken,
    LogProbability,
    Score,
    Greedy,
    Rubbish,
    /// An empty answer.
    Empty,
    /// A token beyond the vocabulary.
    Vocabulary,
    /// A version of the weights that differs from the job's.
    Version,
    /// The group of another job.
    Group,
    /// One completion fewer than requested.
    Count,
    /// The recorded values of tokens other than log-probabilities are missing.
    Columns,
    /// Results of a reward other than scores.
    Problem,
    Metric,
    Extra,
    TimedOut,
}

struct Liar {
    inner: WorkerWork,
    lie: Lie,
    /// How many answers are changed, from the first on.
    lies: usize,
    jobs: BTreeMap<JobName, GroupJob>,
}

impl Liar {
    fn change(&self, job: JobName, Done { bytes, answer }: Done) -> Done {
        let job = &self.jobs[&job];
        let GroupAnswer { mut group, mut scores, rollout_s } = GroupAnswer::from_bytes(&bytes, job).unwrap();
        let completion = &mut group.completions[1];
        match self.lie {
            Lie::Nothing | Lie::Greedy => return Done { bytes, answer },
            Lie::Rubbish => return Done { bytes: bytes[..bytes.len() / 2].to_vec(), answer },
            Lie::Empty => return Done { bytes: Vec::new(), answer },
            Lie::Vocabulary => *completion.ids.last_mut().expect("a token") = 40,
            Lie::Version => {
                let last = completion.versions.last_mut().expect("a token");
                *last = last.next();
            }
            Lie::Group => group.group = group.group.after(1),
            Lie::Count => drop(group.completions.pop()),
            // Later chunks continue the first changed one.
            Lie::Token | Lie::LogProbability if !job.so_far.is_empty() => {}
            Lie::LaterToken => {
                let so_far = job.so_far.get(1).map_or(usize::MAX, |so_far| so_far.ids.len());
                completion.ids.iter_mut().skip(so_far).for_each(|id| *id ^= 1);
            }
            Lie::Token => completion.ids[0] ^= 1,
            Lie::LogProbability => {
                let mut logps = completion.logps().to_vec();
                logps[0] = f32::from_bits(logps[0].to_bits() ^ 1);
                completion.columns.set(SAMPLER_LOGPS, logps);
            }
            Lie::Columns => drop(completion.columns.remove(ENTROPIES).expect("entropies are recorded")),
            // A completion that will be continued has no score yet.
            Lie::Score => scores.iter_mut().for_each(|given| given.scores.values[1] = Some(1.5)),
            Lie::Problem => {
                let problem = Problem::new("unique_chars", 1, "x").with_kind(ProblemKind::Crashed).at(vec![1]);
                for given in &mut scores {
                    given.scores.problems.push(problem.clone());
                }
            }
            Lie::Metric => scores.iter_mut().for_each(|given| given.scores.metrics.push(("x".into(), 9.0))),
            Lie::Extra => {
                for given in &mut scores {
                    given.scores.extra.push(("x".into(), vec!["a".into(); 2]));
                }
            }
            Lie::TimedOut => scores.iter_mut().for_each(|given| given.scores.timed_out = 1),
        }
        let (fingerprint, more) = (GroupAnswer::fingerprint(&group), group.is_unfinished());
        let bytes = GroupAnswer { group, scores, rollout_s }.to_bytes();
        Done { bytes, answer: Answer { fingerprint, more } }
    }
}

impl Work for Liar {
    fn has_room(&self) -> bool {
        self.inner.has_room()
    }
    fn begin(&mut self, mut job: Job) {
        let mut own = GroupJob::from_bytes(&job.payload).unwrap();
        if self.lie == Lie::Greedy {
            own.sampling = SamplingParams { temperature: 0.0, ..own.sampling };
            job.payload = own.to_bytes();
        }
        self.jobs.insert(job.name, own);
        self.inner.begin(job);
    }
    fn forget(&mut self, job: JobName) {
        self.inner.forget(job);
    }
    fn proceed(&mut self) -> Proceeded {
        let Proceeded { ended, waits } = self.inner.proceed();
        let change = |(job, done): (JobName, Result<Done, String>)| {
            let lies = done.is_ok() && self.lies > 0;
            self.lies -= usize::from(lies);
            (job, if lies { done.map(|done| self.change(job, done)) } else { done })
        };
        Proceeded { ended: ended.into_iter().map(change).collect(), waits }
    }
    fn stages(&self) -> Vec<(JobName, String)> {
        self.inner.stages()
    }
}

fn small(dir: &Path, out: &str, max_staleness: usize) -> Config {
    Config {
        max_staleness,
        reward_funcs: vec!["unique_chars".into()],
        record_rollouts: true,
        record_entropies: true,
        logging_steps: 1,
        ..config(dir, out)
    }
}

fn options() -> RunOptions {
    RunOptions::new().context(one_thread()).train_rows(rows())
}

/// Joins the run in `out` as the worker `name`, which lies as `lie` specifies.
pub(super) fn join(out: &Path, name: &str, lie: Lie) -> anyhow::Result<()> {
    join_and_lie(out, name, lie, usize::MAX)
}

/// Like `join`, with `lies` changed answers.
fn join_and_lie(out: &Path, name: &str, lie: Lie, lies: usize) -> anyhow::Result<()> {
    let (server, stop) = (NatsServer::default(), StopSignal::new());
    let options = WorkerOptions {
        run: out,
        server,
        name,
        threads: Some(1),
        profiles: Vec::new(),
        rewards: None,
        allow_other_build: false,
        waits: false,
        stop,
        say: &|text| println!("{text}"),
    };
    match lie {
        Lie::Nothing => work(options),
        lie => work_as(options, |inner| Liar { inner, lie, lies, jobs: BTreeMap::new() }),
    }
}

/// The values of the metric `name` at all steps.
fn logged(out: &Path, name: &str) -> Vec<f64> {
    let text = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter_map(|line| line[name].as_f64()).collect()
}

fn result(out: &Path) -> Vec<u8> {
    std::fs::read(out.join("model/model.safetensors")).unwrap()
}

/// The first worker lies, and an honest worker joins after this is detected. The run has a single core, which the
/// learner must release each time it waits for workers, including after it has regenerated groups for an audit.
#[track_caller]
fn found(lie: Lie, max_staleness: usize, words: &[&str]) {
    found_in(lie, words, |config| config.max_staleness = max_staleness);
}

#[track_caller]
fn found_in(lie: Lie, words: &[&str], change: impl Fn(&mut Config)) {
    let dir = directory();
    let here = dir.path().join("here");
    let small = |out: &str| {
        let mut config = small(dir.path(), out, 0);
        change(&mut config);
        config
    };
    Run::new(Purpose::Grpo, small("here"), options()).unwrap().run().unwrap();
    let out = dir.path().join("out");
    let expelled = out.join("fleet/expelled.jsonl");
    let config = Config { trust: Trust::Audit, audit_share: 1.0, ..small("out") };
    let run = Run::new(Purpose::Grpo, config, options().distributed(None)).unwrap();
    let _others = all_cores_but_one(&out);
    std::thread::scope(|scope| {
        let liar = scope.spawn(|| join(&out, "liar", lie));
        let honest = scope.spawn(|| {
            testing::wait_until("the lie is detected", || {
                std::fs::read(&expelled).is_ok_and(|bytes| !bytes.is_empty())
            });
            join(&out, "honest", Lie::Nothing)
        });
        run.run().unwrap();
        let ended = liar.join().unwrap().unwrap_err();
        assert!(ended.is::<Expelled>(), "{ended:?}");
        honest.join().unwrap().unwrap();
    });
    let line: Value = serde_json::from_str(std::fs::read_to_string(&expelled).unwrap().trim()).unwrap();
    let why = line["why"].as_str().unwrap();
    assert!(line["worker"] == "liar" && words.iter().all(|word| why.contains(word)), "{line}");
    assert!(result(&out) == result(&here), "{lie:?}");
    assert_eq!(logged(&out, "async/workers_expelled").last(), Some(&1.0));
    assert!(logged(&out, "async/groups_audited").last().unwrap() >= &12.0);
}

#[test]
fn a_changed_token_is_detected() {
    found(Lie::Token, 0, &["group 0, completion 1, token 0, token: the worker sent"]);
    found(Lie::Token, 2, &["group 0, completion 1, token 0, token: the worker sent"]);
}

#[test]
fn a_changed_bit_of_a_log_probability_is_detected() {
    found(
        Lie::LogProbability,
        1,
        &["group 0, completion 1, token 0, log-probability: the worker sent -", "(0xc", "job gives -"],
    );
}

#[test]
fn a_changed_score_of_a_deterministic_reward_is_detected() {
    found(Lie::Score, 1, &["group 0, completion 1, score of `unique_chars`: the worker sent 1.5 (0x3ff8000000000000)"]);
}

/// Invented results of a reward are found by the audit, and raise no alarm.
#[test]
fn invented_results_of_a_reward_are_detected() {
    found(Lie::Problem, 1, &["group 0, problems of `unique_chars`: the worker sent [Problem {", "gives []"]);
    found(
        Lie::Metric,
        0,
        &["group 0, metrics of `unique_chars`: the worker sent [(\"x\", 9.0)], but the repeated job gives []"],
    );
    found(Lie::Extra, 2, &["group 0, columns of `unique_chars`: the worker sent [(\"x\", ", "gives []"]);
    found(Lie::TimedOut, 1, &["group 0, completions that ran out of time of `unique_chars`: the worker sent 1"]);
}

#[test]
fn a_worker_that_samples_greedily_is_detected() {
    found(Lie::Greedy, 1, &["group ", "token", "the repeated job gives"]);
}

#[test]
fn a_worker_with_unreadable_answers_is_expelled() {
    found(Lie::Rubbish, 0, &["its answer to the job of group ", "cannot be read"]);
    found(Lie::Columns, 1, &["its answer to the job of group ", "lacks a column that its sampling"]);
    found(Lie::Empty, 0, &["its answer to the job of group ", "cannot be read: 0 bytes are not a record"]);
    found(Lie::Vocabulary, 1, &["its answer to the job of group ", "has the token 40, but the vocabulary has 40"]);
    found(Lie::Version, 2, &["its answer to the job of group ", "was sampled by weights of version 1, not 0"]);
    found(Lie::Group, 0, &["its answer to the job of group ", "cannot be read: the answer belongs to another job"]);
}

/// Each chunk is regenerated with the weights that its position determines.
#[test]
fn wrong_answers_about_chunks_are_detected() {
    let chunks = |config: &mut Config| (config.max_staleness, config.partial_rollout_tokens) = (2, Some(2));
    found_in(Lie::Token, &["group 0, completion 1, token 0, token: the worker sent"], chunks);
    found_in(Lie::LaterToken, &["completion 1, token ", ", token: the worker sent"], chunks);
    found_in(Lie::LogProbability, &["group 0, completion 1, token 0, log-probability: the worker sent"], chunks);
    found_in(Lie::Score, &["completion 1, score of `unique_chars`: the worker sent 1.5"], chunks);
    found_in(Lie::Greedy, &["group ", "token", "the repeated job gives"], chunks);
    found_in(Lie::Rubbish, &["its answer to the job of group ", "cannot be read"], chunks);
    found_in(Lie::Columns, &["its answer to the job of group ", "lacks a column that its sampling"], chunks);
}

const UNREADABLE: [Lie; 7] =
    [Lie::Rubbish, Lie::Empty, Lie::Vocabulary, Lie::Version, Lie::Group, Lie::Count, Lie::Columns];

/// Without an audit, an unreadable answer is regenerated, by the same worker if it is the only one. A worker whose
/// answers are all unreadable is expelled.
#[test]
fn an_unreadable_answer_is_regenerated() {
    let chunks = |c: &mut Config| (c.max_staleness, c.partial_rollout_tokens) = (2, Some(2));
    let kinds: [&dyn Fn(&mut Config); 4] =
        [&|c| c.max_staleness = 0, &|c| c.max_staleness = 1, &|c| c.max_staleness = 2, &chunks];
    for (kind, change) in kinds.into_iter().enumerate() {
        let dir = directory();
        let small = |out: &str| {
            let mut config = small(dir.path(), out, 0);
            change(&mut config);
            config
        };
        Run::new(Purpose::Grpo, small("here"), options()).unwrap().run().unwrap();
        for (number, lie) in UNREADABLE.into_iter().enumerate() {
            // Two unreadable answers are tolerated.
            let lies = [1, 2, usize::MAX][(kind + number) % 3];
            let out = dir.path().join(format!("out-{number}"));
            let run = Run::new(Purpose::Grpo, small(&format!("out-{number}")), options().distributed(None)).unwrap();
            let expelled = out.join("fleet/expelled.jsonl");
            std::thread::scope(|scope| {
                let liar = scope.spawn(|| join_and_lie(&out, "liar", lie, lies));
                let honest = scope.spawn(|| {
                    if lies < 3 {
                        return Ok(());
                    }
                    let is_reported = || std::fs::read(&expelled).is_ok_and(|bytes| !bytes.is_empty());
                    testing::wait_until("the liar is expelled", is_reported);
                    join(&out, "honest", Lie::Nothing)
                });
                run.run().unwrap();
                let ended = liar.join().unwrap();
                assert_eq!(ended.err().is_some_and(|error| error.is::<Expelled>()), lies > 3, "{lie:?}");
                honest.join().unwrap().unwrap();
            });
            assert!(result(&out) == result(&dir.path().join("here")), "{kind}, {lie:?} {lies} times");
            let log = std::fs::read_to_string(out.join("lockstep-0.log")).unwrap();
            let why = "worker liar: its answer to the job of group ";
            assert_eq!(log.matches(why).count(), lies.min(2), "{kind}, {lie:?} {lies} times: {log}");
        }
    }
}

/// Only the weights that sampled a token reproduce its recorded log-probability.
#[test]
fn stale_log_probabilities_are_recomputed() {
    let whole = [(Lie::Nothing, false, None), (Lie::LogProbability, true, None)];
    for (lie, differs, tokens) in whole.into_iter().chain([(Lie::Nothing, false, Some(2))]) {
        let dir = directory();
        let out = dir.path().join("out");
        let config = Config { audit_stale: 1.0, partial_rollout_tokens: tokens, ..small(dir.path(), "out", 2) };
        let run = Run::new(Purpose::Grpo, config, options().distributed(None)).unwrap();
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| join(&out, "dev1", lie));
            run.run().unwrap();
            worker.join().unwrap().unwrap();
        });
        let (audited, mismatches) = ("async/logp_audited_tokens", "async/logp_mismatch_tokens");
        // The first two checkpoints are saved before training on their batches, so all batches except the first are
        // stale.
        assert!(logged(&out, audited).last().unwrap() > &40.0, "{:?}", logged(&out, audited));
        let last = *logged(&out, mismatches).last().unwrap();
        assert_eq!(last > 0.0, differs, "{last} tokens differ");
    }
}
