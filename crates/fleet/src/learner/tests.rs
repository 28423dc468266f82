//! Tests of the learner's loop over an exchange in memory: announcements, counts, and results that are kept, deleted or
//! refused.

use super::*;
use crate::exchange::{Memory, MemoryLearner, MemoryWorker, WorkerExchange};
use crate::testing::{chunk, job, name};

const ORIGIN: Lineage = Lineage([3; 16]);

/// A feed whose payloads contain the names of the job and of the earlier chunks.
struct Names;

impl Feed for Names {
    fn job(&mut self, job: JobName, before: &[JobResult]) -> Result<(String, Vec<u8>)> {
        let names: Vec<String> = before.iter().map(|result| result.job.to_string()).collect();
        Ok(("fast".to_owned(), format!("{job} after {names:?}").into_bytes()))
    }

    fn check(&mut self, result: &JobResult, before: &[JobResult]) -> std::result::Result<(), String> {
        if result.bytes.starts_with(b"spoiled") {
            Err(format!("it is spoiled, after {}", before.len()))
        } else {
            Ok(())
        }
    }
}

struct Fleet {
    out: tempfile::TempDir,
    learner: Learner<MemoryLearner>,
    workers: [MemoryWorker; 2],
}

fn first() -> SavedFrontier {
    let (version, frontier, expelled) = (Version(0), Vec::new(), Vec::new());
    SavedFrontier { version, in_batch: false, lineages: BTreeMap::from([(version, ORIGIN)]), frontier, expelled }
}

fn open(plan: Plan) -> Fleet {
    let out = tempfile::tempdir().unwrap();
    let memory = Memory::new();
    let workers = ["dev1", "dev2"].map(|worker| memory.worker(name(worker)));
    let files = BatchFiles::open(out.path()).unwrap();
    let plan = Plan { straggler_after_ms: None, ..plan };
    let learner = Learner::open(plan, first(), memory.learner(), files, Box::new(Names), "shared".into()).unwrap();
    Fleet { out, learner, workers }
}

impl Fleet {
    fn state(&mut self) -> LearnerState {
        self.workers[0].learner().unwrap().unwrap()
    }

    fn result(&self, worker: usize, job: JobName, answer: Answer) -> JobResult {
        let coordinator = self.learner.coordinator();
        let lineage = coordinator.lineage_of(coordinator.plan().version_of(job)).unwrap();
        let before = job.chunk.checked_sub(1).map(|before| chunk(job.group.0, before));
        let continues = before.and_then(|job| self.learner.kept.get(&job)).map(|before| before.answer.fingerprint);
        let worker = name(["dev1", "dev2"][worker]);
        JobResult { job, lineage: lineage.for_result(continues), worker, answer, bytes: job.to_string().into_bytes() }
    }

    /// A worker returns the result of a job, and the learner handles it.
    fn give(&mut self, worker: usize, job: JobName, fingerprint: u64, more: bool) {
        let result = self.result(worker, job, Answer { fingerprint, more });
        self.workers[worker].complete(&result).unwrap();
        self.learner.look().unwrap();
    }

    fn notices(&mut self) -> Vec<String> {
        let names = |results: &Batch| results.iter().map(|result| result.job.to_string()).collect::<Vec<_>>().join(" ");
        let describe = |notice: Notice| match notice {
            Notice::Train(batch, results) => format!("train {batch}: {}", names(&results)),
            Notice::Warning(text) => text,
            Notice::Refused(Refused { worker, job, why, expels }) => {
                format!("refused {job} of {worker}: {why}{}", if expels { "; expelled" } else { "" })
            }
        };
        std::iter::from_fn(|| self.learner.next_notice()).map(describe).collect()
    }

    fn train(&mut self) {
        self.learner.training_began().unwrap();
        let version = self.learner.coordinator().version();
        self.learner.trained(Lineage([version.0 as u8 + 9; 16])).unwrap();
    }

    fn pending(&mut self) -> Vec<Job> {
        std::iter::from_fn(|| self.workers[0].claim(&[]).unwrap()).collect()
    }
}

#[test]
fn a_refused_job_is_offered_again_and_its_worker_expelled_at_the_limit() {
    let mut fleet = open(Plan { chunks: true, ..Plan::new(4, 2, 1) });
    let spoil = |fleet: &mut Fleet, worker, job| {
        let result = fleet.result(worker, job, Answer { fingerprint: 1, more: false });
        fleet.workers[worker].complete(&JobResult { bytes: b"spoiled".to_vec(), ..result }).unwrap();
        fleet.learner.look().unwrap();
    };
    let offered = |fleet: &mut Fleet| {
        let names: Vec<String> = fleet.pending().iter().map(|job| job.name.to_string()).collect();
        fleet.learner.look().unwrap();
        names
    };
    assert_eq!(offered(&mut fleet), ["000000.0", "000001.0", "000002.0", "000003.0"]);
    spoil(&mut fleet, 0, job(0));
    assert_eq!(fleet.notices(), ["refused 000000.0 of dev1: it is spoiled, after 0"]);
    assert_eq!(offered(&mut fleet), ["000000.0"]);
    assert!(fleet.learner.kept.is_empty() && fleet.learner.counts().corrupt == 1);
    // The same worker may succeed later.
    fleet.give(0, job(0), 5, true);
    assert_eq!(offered(&mut fleet), ["000000.1"]);
    spoil(&mut fleet, 0, chunk(0, 1));
    assert_eq!(fleet.notices(), ["refused 000000.1 of dev1: it is spoiled, after 1"]);
    assert_eq!(offered(&mut fleet), ["000000.1"]);
    // A result from unknown weights is dropped, without counting as a refusal.
    let other = fleet.result(0, job(1), Answer { fingerprint: 1, more: false });
    let other = JobResult { lineage: Lineage([9; 16]), bytes: b"spoiled".to_vec(), ..other };
    fleet.workers[0].complete(&other).unwrap();
    fleet.learner.look().unwrap();
    assert_eq!((fleet.notices().len(), fleet.learner.counts().refused), (0, 1));
    spoil(&mut fleet, 0, job(1));
    assert_eq!(fleet.notices(), ["refused 000001.0 of dev1: it is spoiled, after 0; expelled"]);
    assert_eq!((fleet.state().expelled, fleet.learner.counts().expelled), (vec![name("dev1")], 1));
    spoil(&mut fleet, 0, job(1));
    assert_eq!(
        (fleet.notices().len(), fleet.learner.counts().corrupt),
        (0, 3),
        "results of an expelled worker are ignored"
    );
    // Two refused results do not yet expel a second worker.
    spoil(&mut fleet, 1, job(1));
    spoil(&mut fleet, 1, job(1));
    fleet.give(1, job(1), 1, false);
    fleet.give(1, chunk(0, 1), 1, false);
    assert_eq!(fleet.notices().last().unwrap(), "train 0: 000000.0 000000.1 000001.0");
}

/// Results that an earlier learner accepted are checked before training on them.
#[test]
fn results_from_a_batch_file_can_be_taken_back() {
    let Fleet { out, learner, workers: _workers } = open(Plan::new(4, 1, 1));
    let results: Vec<JobResult> = (0..3)
        .map(|group| {
            let (lineage, answer) = (ORIGIN, Answer { fingerprint: 1, more: false });
            JobResult { job: job(group), lineage, worker: name("dev1"), answer, bytes: b"x".to_vec() }
        })
        .collect();
    for one in &results {
        learner.files.save(BatchId(one_batch(one)), std::slice::from_ref(one)).unwrap();
    }
    // A file that contains a result of a different batch is dropped, and so are all later files.
    learner.files.save(BatchId(3), &results[..1]).unwrap();
    drop(learner);
    let memory = Memory::new();
    let workers = ["dev1", "dev2"].map(|worker| memory.worker(name(worker)));
    let plan = Plan { straggler_after_ms: None, ..Plan::new(4, 1, 1) };
    let files = BatchFiles::open(out.path()).unwrap();
    let learner = Learner::open(plan, first(), memory.learner(), files, Box::new(Names), "".into()).unwrap();
    let mut fleet = Fleet { out, learner, workers };
    let notices = fleet.notices();
    let foreign = "000003: the file contains the result of job 000000.0, which belongs to another batch; the batch is \
                   generated again";
    assert!(notices[0].ends_with(foreign) && notices[1] == "train 0: 000000.0" && notices.len() == 2, "{notices:?}");
    assert_eq!(fleet.learner.files.numbers().unwrap(), [0, 1, 2].map(BatchId));
    // Batch 1 is taken back while batch 0 is trained on. Batch 2 loses its file but keeps its result, which was sampled
    // with weights from before batch 1.
    fleet.learner.take_back(BatchId(1), &[job(1)]).unwrap();
    assert_eq!(fleet.learner.files.numbers().unwrap(), [BatchId(0)]);
    assert_eq!(fleet.pending().iter().map(|job| job.name.to_string()).collect::<Vec<_>>(), ["000001.0"]);
    assert_eq!(fleet.learner.kept.keys().copied().collect::<Vec<_>>(), [job(0), job(2)]);
    fleet.learner.look().unwrap();
    fleet.give(0, job(1), 1, false);
    fleet.train();
    assert_eq!(fleet.notices(), ["train 1: 000001.0"]);
    fleet.learner.training_began().unwrap();
    let why = fleet.learner.take_back(BatchId(1), &[job(1)]).unwrap_err().to_string();
    assert_eq!(why, "batch 1 cannot be withdrawn: the learner has begun to train on it");
}

fn one_batch(result: &JobResult) -> u64 {
    result.job.group.0
}

/// Checks the reason why a file of batch 1, which has two groups, is refused.
#[test]
fn a_batch_file_must_contain_exactly_its_batchs_results() {
    let plan = |chunks| Plan { chunks, ..Plan::new(4, 2, 2) };
    let refusal = |chunks, all: &[(JobName, bool)]| {
        let result = |(job, more): &(JobName, bool)| JobResult {
            job: *job,
            lineage: ORIGIN,
            worker: name("dev1"),
            answer: Answer { fingerprint: 1, more: *more },
            bytes: Vec::new(),
        };
        misfit(&plan(chunks), BatchId(1), &all.iter().map(result).collect::<Vec<_>>())
    };
    let lacks = |job: JobName| Some(format!("the result of job {job} is missing"));
    let other =
        |job: JobName| Some(format!("the file contains the result of job {job}, which belongs to another batch"));
    assert_eq!(refusal(false, &[(job(2), false), (job(3), false)]), None);
    assert_eq!(
        refusal(false, &[(job(3), false), (job(2), true)]),
        None,
        "`more` and the order of the results are not checked here"
    );
    assert_eq!((refusal(false, &[]), refusal(false, &[(job(2), false)])), (lacks(job(2)), lacks(job(3))));
    assert_eq!(refusal(false, &[(job(2), false), (job(3), false), (job(4), false)]), other(job(4)));
    assert_eq!(refusal(false, &[(job(2), false), (chunk(3, 1), false)]), other(chunk(3, 1)));
    let third = [(job(3), true), (chunk(3, 1), true), (chunk(3, 2), true)];
    assert_eq!(refusal(true, &[&[(job(2), false)][..], &third].concat()), None, "the last chunk ends the group");
    assert_eq!(refusal(true, &[&[(job(2), true)][..], &third].concat()), lacks(chunk(2, 1)));
    assert_eq!(refusal(true, &[&[(job(2), false)][..], &third[..2]].concat()), lacks(chunk(3, 2)));
    assert_eq!(refusal(true, &[&[(job(2), false)][..], &third[1..]].concat()), lacks(job(3)));
}

#[test]
fn payloads_contain_earlier_chunks_and_only_needed_results_are_kept() {
    let mut fleet = open(Plan { chunks: true, ..Plan::new(4, 1, 2) });
    fleet.give(0, job(0), 7, true);
    fleet.give(0, chunk(0, 1), 8, true);
    let jobs = fleet.pending();
    let names: Vec<String> = jobs.iter().map(|job| job.name.to_string()).collect();
    assert_eq!(names, ["000000.2", "000001.0", "000002.0"]);
    let last = &jobs[0];
    assert_eq!((last.version, last.lineage, last.continues, last.alone), (Version(0), ORIGIN, Some(8), false));
    assert_eq!(last.profile, "fast");
    assert_eq!(String::from_utf8_lossy(&last.payload), r#"000000.2 after ["000000.0", "000000.1"]"#);
    assert_eq!(String::from_utf8_lossy(&jobs[1].payload), "000001.0 after []");
    fleet.give(0, chunk(0, 2), 9, false);
    assert_eq!(fleet.notices(), ["train 0: 000000.0 000000.1 000000.2"]);
    fleet.train();
    assert_eq!(fleet.learner.kept.len(), 0, "results that were trained on are dropped");
    // Weights older than version 1 sample the first two chunks of batch 1 and the first chunk of batch 2.
    let frontier = |fleet: &mut Fleet, version| -> Option<Vec<String>> {
        let frontier = fleet.learner.frontier(Version(version)).unwrap()?;
        Some(frontier.iter().map(|result| result.job.to_string()).collect())
    };
    assert_eq!(frontier(&mut fleet, 1), None);
    assert_eq!(fleet.state().checkpoints.waiting, [(Version(1), 0, 2)]);
    fleet.give(1, job(1), 1, true);
    assert_eq!(frontier(&mut fleet, 1), None, "the second chunk of group 1 is missing");
    fleet.give(1, chunk(1, 1), 2, true);
    fleet.give(1, job(2), 3, false);
    assert_eq!(frontier(&mut fleet, 1).unwrap(), ["000001.0", "000001.1", "000002.0"]);
    assert_eq!(fleet.state().checkpoints.waiting, [], "the checkpoint no longer waits");
    assert_eq!(frontier(&mut fleet, 2), None, "version 1 samples the first chunk of batch 3");
    fleet.give(1, job(3), 3, false);
    assert_eq!(frontier(&mut fleet, 2).unwrap(), ["000002.0", "000003.0"], "group 2 has ended in its first chunk");
    assert_eq!(fleet.learner.counts(), Counts::default());
    fleet.give(1, chunk(1, 2), 4, false);
    assert_eq!(fleet.notices(), ["train 1: 000001.0 000001.1 000001.2"]);
    fleet.train();
    assert_eq!(fleet.learner.kept.keys().copied().collect::<Vec<_>>(), [job(2), job(3)]);
}

#[test]
fn failures_are_counted_and_reported() {
    let mut fleet = open(Plan { failures_per_job: 9, ..Plan::new(2, 2, 0) });
    let jobs = fleet.pending();
    assert_eq!(jobs.len(), 2);
    fleet.learner.look().unwrap();
    fleet.give(1, job(0), 1, false);
    fleet.give(0, job(0), 1, false);
    assert_eq!(fleet.learner.counts(), Counts { twice: 1, ..Counts::default() });
    fleet.give(0, job(0), 2, false);
    let differs = "job 000000.0: worker dev1 and dev2 computed different bits from the same weights: one of the \
                   machines is faulty or runs a different build";
    assert_eq!(fleet.notices(), [differs]);
    let mut foreign = fleet.result(0, job(1), Answer { fingerprint: 1, more: false });
    foreign.lineage = Lineage([0; 16]);
    fleet.workers[0].complete(&foreign).unwrap();
    fleet.learner.look().unwrap();
    assert_eq!(fleet.learner.counts(), Counts { twice: 1, differing: 1, refused: 1, ..Counts::default() });
    fleet.learner.tell(Event::Tick(1)).unwrap();
    // Two workers end: one reports a failure, and one vanishes with its job.
    fleet.workers[1].claim(&[]).unwrap().unwrap();
    fleet.learner.look().unwrap();
    let before = fleet.learner.counts();
    drop(std::mem::replace(&mut fleet.workers[1], Memory::new().worker(name("other"))));
    fleet.learner.look().unwrap();
    assert_eq!(fleet.notices(), ["worker dev2 ended unexpectedly"]);
    let after = fleet.learner.counts();
    assert_eq!((after.died, after.remade > before.remade), (1, true));
    fleet.learner.carry_out(Action::Release(name("dev1"), job(1))).unwrap();
    assert_eq!(fleet.learner.counts().remade, after.remade + 1);
    fleet.learner.tell(Event::Ended { worker: name("dev1"), how: HowEnded::Failed }).unwrap();
    let kill = Action::Kill(name("dev3"));
    assert_eq!(fleet.learner.carry_out(kill).unwrap(), None);
    assert_eq!(fleet.notices(), ["worker dev3 was killed: it made no progress for 60 s"]);
    assert_eq!(fleet.learner.counts().killed, 1);
    for (why, refused) in [(Dropped::NotAsked, 2), (Dropped::Expelled, 3), (Dropped::Lineage, 4)] {
        fleet.learner.count_dropped(&name("dev1"), job(0), why);
        assert_eq!(fleet.learner.counts().refused, refused);
    }
    let fail = |count, how| Action::Fail(job(1), count, how);
    let why = fleet.learner.carry_out(fail(3, HowEnded::Failed)).unwrap_err().to_string();
    assert_eq!(
        why,
        "3 workers in a row failed at job 000001.0, so the run stops. See their logs. The limit is \
         max_failures_per_job. --resume continues from the last checkpoint"
    );
    let why = fleet.learner.carry_out(fail(30, HowEnded::Vanished)).unwrap_err().to_string();
    assert!(why.starts_with("30 workers vanished (killed, or out of memory) with job 000001.0 as their only job"));
    assert!(why.contains("raise max_kills_per_job. --resume continues"), "{why}");
    let why = fleet.learner.carry_out(Action::Accept(name("dev9"), job(1))).unwrap_err().to_string();
    assert_eq!(why, "the result of job 000001.0 by worker dev9 is missing");
    let why = fleet.learner.carry_out(Action::SyncBatch(BatchId(0), vec![job(1)])).unwrap_err().to_string();
    assert_eq!(why, "the result of job 000001.0 is missing");
}

#[test]
fn an_expelled_workers_results_are_taken_back_and_stay_refused_after_a_resume() {
    let mut fleet = open(Plan { chunks: true, ..Plan::new(4, 2, 1) });
    fleet.give(0, job(0), 1, true);
    fleet.give(1, chunk(0, 1), 2, false);
    fleet.give(1, job(1), 3, false);
    fleet.give(0, job(2), 4, false);
    fleet.give(1, job(3), 5, false);
    assert_eq!(fleet.notices(), ["train 0: 000000.0 000000.1 000001.0"]);
    fleet.learner.notices.push_back(Notice::Train(BatchId(0), Vec::new()));
    // First expel for batches from 1 on, of which dev1 has one result; then for all batches, with later chunks.
    assert_eq!(fleet.learner.expel(&name("dev1"), BatchId(1)).unwrap(), Some(BatchId(1)));
    assert_eq!(fleet.learner.kept.keys().copied().collect::<Vec<_>>(), [job(0), chunk(0, 1), job(1), job(3)]);
    assert_eq!(fleet.learner.counts(), Counts { remade: 1, expelled: 1, ..Counts::default() });
    assert_eq!((fleet.state().expelled, fleet.learner.notices.len()), (vec![name("dev1")], 1));
    assert_eq!(fleet.learner.files.numbers().unwrap(), [BatchId(0)]);
    fleet.learner.expel(&name("dev1"), BatchId(0)).unwrap();
    assert_eq!(fleet.learner.kept.keys().copied().collect::<Vec<_>>(), [job(1), job(3)]);
    assert_eq!(fleet.learner.counts(), Counts { remade: 3, expelled: 2, ..Counts::default() });
    assert_eq!(fleet.learner.files.numbers().unwrap(), [BatchId(0); 0], "the file contained a wrong result");
    assert_eq!(fleet.notices(), [""; 0], "no batch is returned, and no worker is reported as stalled");
    let offered: Vec<JobName> = fleet.pending().iter().map(|job| job.name).collect();
    assert_eq!(offered, [job(0), job(2)]);
    fleet.give(1, job(0), 1, false);
    assert_eq!(fleet.notices(), ["train 0: 000000.0 000001.0"]);
    fleet.learner.training_began().unwrap();
    let kept: Vec<JobName> = fleet.learner.kept.keys().copied().collect();
    assert_eq!(fleet.learner.expel(&name("dev2"), BatchId(0)).unwrap(), Some(BatchId(1)));
    // A batch that was already returned is kept if none of its results is recomputed.
    assert_eq!(fleet.learner.expel(&name("dev2"), BatchId(0)).unwrap(), None);
    assert_eq!(fleet.learner.kept.keys().copied().collect::<Vec<_>>(), kept[..2], "the batch in training is kept");

    let saved = SavedFrontier { expelled: vec![name("dev1")], ..first() };
    let memory = Memory::new();
    let mut worker = memory.worker(name("dev1"));
    let files = BatchFiles::open(fleet.out.path()).unwrap();
    let plan = Plan { straggler_after_ms: None, ..Plan::new(4, 2, 0) };
    let mut learner =
        Learner::open(plan, saved, memory.learner(), files, Box::new(Names), serde_json::Value::Null).unwrap();
    assert_eq!(worker.learner().unwrap().unwrap().expelled, [name("dev1")]);
    let Some(Notice::Train(BatchId(0), results)) = learner.next_notice() else {
        panic!("batch 0 must be loaded from its file")
    };
    assert_eq!(results.len(), 2);
}

#[test]
fn wrong_scores_are_deleted_and_unreadable_files_are_reported() {
    let mut fleet = open(Plan::new(3, 1, 1));
    fleet.give(0, job(0), 1, false);
    fleet.give(0, job(1), 1, false);
    let kept: Vec<JobResult> = fleet.learner.kept.values().cloned().collect();
    fleet.learner.files.save(BatchId(1), &kept[1..]).unwrap();
    fleet.learner.forget_from(BatchId(1)).unwrap();
    assert_eq!(fleet.learner.files.numbers().unwrap(), [BatchId(0)]);
    let mut left = |group| fleet.learner.exchange.take(&name("dev1"), job(group)).is_some();
    assert!(!left(1), "the next learner must not get this result");
    let broken = fleet.learner.files.path(BatchId(0));
    std::fs::write(&broken, b"half").unwrap();
    let files = BatchFiles::open(fleet.out.path()).unwrap();
    let memory = Memory::new();
    let saved = SavedFrontier { lineages: BTreeMap::from([(Version(1), ORIGIN)]), ..first() };
    let shared = serde_json::Value::Null;
    let refused = Learner::open(Plan::new(1, 1, 0), saved, memory.learner(), files, Box::new(Names), shared.clone());
    assert!(matches!(refused.map(drop), Err(Error::Refused(why)) if why.contains("version 0 lacks the lineage")));
    std::fs::write(&broken, b"half").unwrap();
    let files = BatchFiles::open(fleet.out.path()).unwrap();
    let mut learner =
        Learner::open(Plan::new(1, 1, 0), first(), memory.learner(), files, Box::new(Names), shared).unwrap();
    assert_eq!(learner.counts(), Counts { corrupt: 1, ..Counts::default() });
    let Some(Notice::Warning(text)) = learner.next_notice() else { panic!("a warning must be returned") };
    assert!(text.contains("000000: truncated: 4 bytes; the batch is generated again"), "{text}");
    assert_eq!((learner.next_notice(), learner.last_checkpoint), (None, None));
    let saved = SavedFrontier { version: Version(1), lineages: BTreeMap::from([(Version(1), ORIGIN)]), ..first() };
    let files = BatchFiles::open(fleet.out.path()).unwrap();
    let shared = serde_json::Value::Null;
    let learner = Learner::open(Plan::new(2, 1, 0), saved, memory.learner(), files, Box::new(Names), shared).unwrap();
    assert_eq!(learner.last_checkpoint, Some(Version(1)));
}

#[test]
fn a_failed_thread_returns_its_error_at_every_call() {
    let Fleet { out: _out, learner, mut workers } = open(Plan { failures_per_job: 1, ..Plan::new(1, 1, 0) });
    let handle = LearnerHandle::start(learner).unwrap();
    assert_eq!(handle.next_notice(Duration::ZERO).unwrap(), None);
    workers[0].claim(&[]).unwrap().unwrap();
    handle.with(|learner| learner.look()).unwrap();
    let [one, two] = workers;
    drop(one);
    let died = handle.next_notice(Duration::from_secs(20)).unwrap();
    assert!(matches!(died, Some(Notice::Warning(text)) if text.contains("dev1 ended")));
    handle.with(|learner| learner.tell(Event::Claimed(name("dev2"), job(0)))).unwrap();
    let faulty = Event::Returned { worker: name("dev2"), job: job(0), faulty: true };
    let failed = handle.with(|learner| learner.tell(faulty)).unwrap_err();
    handle.shared.lock().failed = Some(failed);
    for _ in 0..2 {
        let why = handle.next_notice(Duration::from_secs(20)).unwrap_err().to_string();
        assert!(why.starts_with("1 workers in a row failed at job 000000.0"), "{why}");
    }
    // Training may not have noticed the failure yet. The calls that would continue training return the error and change
    // nothing.
    type Call = fn(&mut Learner<MemoryLearner>) -> Result<()>;
    let calls: [(&str, Call); 6] = [
        ("frontier", |learner| learner.frontier(Version(1)).map(drop)),
        ("training_began", Learner::training_began),
        ("trained", |learner| learner.trained(ORIGIN)),
        ("committed", |learner| learner.committed(Version(1))),
        ("take_back", |learner| learner.take_back(BatchId(0), &[job(0)])),
        ("expel", |learner| learner.expel(&name("dev2"), BatchId(0)).map(drop)),
    ];
    for (call, method) in calls {
        let why = handle.served(method).unwrap_err().to_string();
        assert!(why.starts_with("1 workers in a row failed at job 000000.0"), "{call}: {why}");
    }
    assert_eq!(handle.with(|learner| (learner.coordinator().version(), learner.last_checkpoint)), (Version(0), None));
    handle.with(Learner::end).unwrap();
    drop((handle, two));
}
