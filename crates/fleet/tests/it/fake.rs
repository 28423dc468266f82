//! A run without a model, for tests. Weights are a number; a job's result is a hash of the job's name and of the
//! weights of its version; a batch's update is a hash of the weights and of all results. So the last number shows
//! whether every job was done with the right weights and every batch was trained on once, in order.

use fleet::batches::BatchFiles;
use fleet::exchange::Exchange;
use fleet::learner::{Feed, Learner, LearnerHandle, Notice, SavedFrontier};
use fleet::worker::{Done, Proceeded, Work};
use fleet::{Answer, BatchId, Error, Job, JobName, JobResult, Lineage, Plan, Result, Version};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use twox_hash::XxHash3_64;

pub fn hash(parts: &[u64]) -> u64 {
    let bytes: Vec<u8> = parts.iter().flat_map(|part| part.to_le_bytes()).collect();
    XxHash3_64::oneshot(&bytes)
}

fn name_hash(job: JobName) -> u64 {
    XxHash3_64::oneshot(job.to_string().as_bytes())
}

/// The result of a job with these weights. The payload contains the earlier chunks.
fn sample(job: JobName, weights: u64, payload: &[u8]) -> (Vec<u8>, Answer) {
    let tokens = hash(&[name_hash(job), weights, XxHash3_64::oneshot(payload)]);
    // Every other group ends in its first chunk.
    let more = tokens.is_multiple_of(2);
    let bytes = tokens.to_le_bytes().to_vec();
    let answer = Answer { more, ..Answer::of(&bytes) };
    (bytes, answer)
}

fn update(weights: u64, batch: &[JobResult]) -> u64 {
    let results = batch.iter().map(|result| XxHash3_64::oneshot(&result.bytes[..8]));
    hash(&std::iter::once(weights).chain(results).collect::<Vec<_>>())
}

fn payload(before: &[JobResult]) -> Vec<u8> {
    before.iter().flat_map(|result| result.bytes[..8].to_vec()).collect()
}

/// The weights at the end of a run without a fleet.
pub fn sequential(plan: &Plan) -> u64 {
    let mut versions = vec![1u64];
    for batch in BatchId(0).up_to(plan.end()) {
        let mut results: Vec<JobResult> = Vec::new();
        for group in plan.groups_of(batch) {
            let mut before = Vec::new();
            for chunk in 0..=plan.last_chunk() {
                let job = JobName { group, chunk };
                let (bytes, answer) = sample(job, versions[plan.version_of(job).0 as usize], &payload(&before));
                let worker = fleet::WorkerName::new("x").unwrap();
                before.push(JobResult { job, lineage: Lineage([0; 16]), worker, answer, bytes });
                if !answer.more {
                    break;
                }
            }
            results.extend(before);
        }
        versions.push(update(versions[batch.0 as usize], &results));
    }
    versions[plan.batches as usize]
}

/// The lineage of weights.
pub fn lineage(weights: u64) -> Lineage {
    Lineage([weights.to_le_bytes(); 2].concat().try_into().unwrap())
}

pub struct Payloads;

impl Feed for Payloads {
    fn job(&mut self, _job: JobName, before: &[JobResult]) -> Result<(String, Vec<u8>)> {
        Ok(("any".to_owned(), payload(before)))
    }
}

/// Slots for weights: one file per slot, with the version, the lineage and the number. A shared lock pins a slot.
#[derive(Clone)]
pub struct Slots {
    directory: PathBuf,
}

impl Slots {
    pub fn new(out: &Path) -> Slots {
        let directory = out.join("slots");
        std::fs::create_dir_all(&directory).unwrap();
        Slots { directory }
    }

    fn open(&self, slot: usize) -> File {
        let path = self.directory.join(slot.to_string());
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
    }

    /// Locks a slot for writing, unless a reader pins it.
    pub fn lock(&self, slot: usize) -> Option<File> {
        let file = self.open(slot);
        file.try_lock().ok().map(|()| file)
    }

    /// Writes slowly and in pieces, so that a reader without a pin would read partial weights.
    pub fn write(mut file: &File, version: Version, lineage: Lineage, weights: u64) {
        file.rewind().unwrap();
        file.write_all(&[0xff; 8]).unwrap();
        std::thread::sleep(Duration::from_millis(1));
        file.write_all(&lineage.0).unwrap();
        file.write_all(&weights.to_le_bytes()).unwrap();
        file.rewind().unwrap();
        file.write_all(&version.0.to_le_bytes()).unwrap();
    }

    fn read(mut file: &File) -> Option<(Version, Lineage, u64)> {
        let mut bytes = [0; 32];
        file.rewind().ok()?;
        file.read_exact(&mut bytes).ok()?;
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let mut lineage = [0; 16];
        lineage.copy_from_slice(&bytes[8..24]);
        Some((Version(word(0)), Lineage(lineage), word(24)))
    }

    /// Pins the slot with these weights.
    fn pin(&self, slots: usize, version: Version, lineage: Lineage) -> Option<File> {
        (0..slots).map(|slot| self.open(slot)).find(|file| {
            let pinned = file.try_lock_shared().is_ok();
            pinned && Self::read(file).is_some_and(|(v, l, _)| (v, l) == (version, lineage))
        })
    }
}

pub struct FakeWork {
    pub slots: Slots,
    pub count: usize,
    /// The duration of a job's work.
    pub takes: Duration,
    /// True if a job that is done again gets other scores.
    pub random_scores: bool,
    /// The number of concurrent jobs.
    pub room: usize,
    pub begun: BTreeMap<JobName, Begun>,
}

/// A job with its start time, the slot that it pins, and the weights from that slot.
pub struct Begun {
    job: Job,
    pinned: Option<(File, (Version, Lineage, u64), Instant)>,
}

impl FakeWork {
    pub fn new(out: &Path, count: usize, takes: Duration, random_scores: bool) -> FakeWork {
        FakeWork { slots: Slots::new(out), count, takes, random_scores, room: 3, begun: BTreeMap::new() }
    }
}

impl Work for FakeWork {
    fn has_room(&self) -> bool {
        self.begun.len() < self.room
    }

    fn begin(&mut self, job: Job) {
        self.begun.insert(job.name, Begun { job, pinned: None });
    }

    fn forget(&mut self, job: JobName) {
        self.begun.remove(&job);
    }

    fn proceed(&mut self) -> Proceeded {
        let mut proceeded = Proceeded { waits: true, ..Proceeded::default() };
        for (name, Begun { job, pinned }) in &mut self.begun {
            let Some((file, before, since)) = pinned else {
                let file = self.slots.pin(self.count, job.version, job.lineage);
                *pinned = file.map(|file| {
                    let before = Slots::read(&file).unwrap();
                    (file, before, Instant::now())
                });
                continue;
            };
            if since.elapsed() < self.takes {
                continue;
            }
            let after = Slots::read(file).unwrap();
            let weights = if *before == after { after.2 } else { hash(&[before.2, after.2]) };
            let (mut bytes, answer) = sample(job.name, weights, &job.payload);
            if self.random_scores {
                let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
                bytes.extend_from_slice(&(now as u64).to_le_bytes());
            }
            proceeded.ended.push((*name, Ok(Done { bytes, answer })));
        }
        proceeded.ended.iter().for_each(|(job, _)| drop(self.begun.remove(job)));
        std::thread::sleep(Duration::from_millis(1));
        proceeded
    }

    fn stages(&self) -> Vec<(JobName, String)> {
        self.begun.keys().map(|job| (*job, "sampling".to_owned())).collect()
    }
}

/// The contents of a fake checkpoint.
pub struct Checkpoint {
    weights: u64,
    saved: SavedFrontier,
}

impl Checkpoint {
    pub fn first() -> Checkpoint {
        let (version, frontier, expelled) = (Version(0), Vec::new(), Vec::new());
        let lineages = BTreeMap::from([(version, lineage(1))]);
        let saved = SavedFrontier { version, in_batch: false, lineages, frontier, expelled };
        Checkpoint { weights: 1, saved }
    }

    fn load(out: &Path) -> Checkpoint {
        let Ok(bytes) = std::fs::read(out.join("checkpoint")) else { return Checkpoint::first() };
        let (head, frontier) = bytes.split_at(4 + u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize);
        let head: (u64, Version, bool, BTreeMap<Version, Lineage>) = serde_json::from_slice(&head[4..]).unwrap();
        let (weights, version, in_batch, lineages) = head;
        let (_, frontier) = fleet::batch_from_bytes(frontier).unwrap();
        Checkpoint { weights, saved: SavedFrontier { version, in_batch, lineages, frontier, expelled: Vec::new() } }
    }

    fn save(&self, out: &Path) {
        let SavedFrontier { version, in_batch, lineages, .. } = &self.saved;
        let head = serde_json::to_vec(&(self.weights, version, in_batch, lineages)).unwrap();
        let mut bytes = (head.len() as u32).to_le_bytes().to_vec();
        bytes.extend(head);
        bytes.extend(fleet::batch_to_bytes(self.saved.version.batch(), &self.saved.frontier));
        std::fs::write(out.join(".checkpoint"), bytes).unwrap();
        std::fs::rename(out.join(".checkpoint"), out.join("checkpoint")).unwrap();
    }
}

/// The number of weight slots of a run: one for each version that jobs may need, and one to write into.
pub fn slots(plan: &Plan) -> usize {
    plan.max_staleness as usize + 2
}

/// A learner that trains, as a run does.
struct Trainer<E: Exchange + Send + 'static> {
    out: PathBuf,
    plan: Plan,
    handle: LearnerHandle<E>,
    slots: Slots,
    version: Version,
    weights: u64,
    /// Batches that have arrived but are not trained on yet.
    arrived: BTreeMap<BatchId, Vec<JobResult>>,
}

impl<E: Exchange + Send + 'static> Trainer<E> {
    /// Handles the next step of the learner, if any.
    fn look(&mut self) -> Result<()> {
        match self.handle.next_notice(Duration::from_millis(20))? {
            None => {}
            Some(Notice::Train(batch, results)) => drop(self.arrived.insert(batch, results)),
            Some(Notice::Warning(text)) => eprintln!("{text}"),
            Some(Notice::Refused(refused)) => panic!("{refused:?}"),
        }
        Ok(())
    }

    /// Writes weights into a slot that no job needs and no reader pins.
    fn publish(&mut self, lineage: Lineage) -> Result<()> {
        let oldest = self.plan.version(self.version.batch(), 0);
        let is_free = |file: &File| Slots::read(file).is_none_or(|(version, ..)| version < oldest);
        let lock = loop {
            let free = (0..slots(&self.plan)).filter_map(|slot| self.slots.lock(slot)).find(is_free);
            if let Some(file) = free {
                break file;
            }
            self.look()?;
        };
        Slots::write(&lock, self.version, lineage, self.weights);
        Ok(())
    }

    /// Writes a checkpoint once all results that only older weights can produce have arrived. In the middle of a batch,
    /// `trained_on` has the batch's results.
    fn save(&mut self, trained_on: Option<&[JobResult]>) -> Result<()> {
        let (version, in_batch) = (self.version, trained_on.is_some());
        let next = if in_batch { version.batch().next().version() } else { version };
        let frontier = loop {
            if let Some(frontier) = self.handle.served(|learner| learner.frontier(next))? {
                break frontier;
            }
            self.look()?;
        };
        let frontier = trained_on.unwrap_or_default().iter().cloned().chain(frontier).collect();
        let lineages = self.handle.with(|learner| learner.coordinator().lineages().clone());
        let saved = SavedFrontier { version, in_batch, lineages, frontier, expelled: Vec::new() };
        Checkpoint { weights: self.weights, saved }.save(&self.out);
        self.handle.served(|learner| learner.committed(version))
    }

    fn train(&mut self, results: &[JobResult], every: u64) -> Result<()> {
        let batch = self.version.batch();
        wait_for_kills(&self.out, batch, self.plan.end());
        let mut log = OpenOptions::new().append(true).create(true).open(self.out.join("trained.log")).unwrap();
        let digest = hash(&results.iter().map(|result| XxHash3_64::oneshot(&result.bytes)).collect::<Vec<_>>());
        // Use one write: a kill between two writes would leave half a line before the next learner's lines.
        log.write_all(format!("{batch} {digest:016x}\n").as_bytes()).unwrap();
        self.handle.served(|learner| learner.training_began())?;
        if batch.0 % every == 1 {
            self.save(Some(results))?;
        }
        self.weights = update(self.weights, results);
        self.version = batch.next().version();
        let lineage = lineage(self.weights);
        self.publish(lineage)?;
        self.handle.served(|learner| learner.trained(lineage))?;
        assert_eq!(self.handle.with(|learner| learner.coordinator().version()), self.version);
        if self.version.0.is_multiple_of(every) || self.version.batch() == self.plan.end() {
            self.save(None)?;
        }
        Ok(())
    }
}

/// Trains from the last checkpoint in `out` to the end, and returns the weights; `None` if `stop` ended the run.
pub fn learn<E: Exchange + Send + 'static>(
    out: &Path,
    plan: Plan,
    exchange: E,
    every: u64,
    stop: &dyn Fn() -> bool,
) -> Result<Option<u64>> {
    let Checkpoint { weights, saved } = Checkpoint::load(out);
    let (version, in_batch, lineage) = (saved.version, saved.in_batch, saved.lineages[&saved.version]);
    let slot_files = Slots::new(out);
    // The slots of an earlier learner may have outdated weights, and a reader may still pin them.
    for slot in 0..slots(&plan) {
        let lock = loop {
            match slot_files.lock(slot) {
                Some(file) => break file,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        lock.set_len(0).unwrap();
        if slot == 0 && !in_batch {
            Slots::write(&lock, version, lineage, weights);
        }
    }
    let files = BatchFiles::open(out)?;
    let learner = Learner::open(plan.clone(), saved, exchange, files, Box::new(Payloads), serde_json::Value::Null)?;
    let handle = LearnerHandle::start(learner)?;
    let (out, arrived) = (out.to_owned(), BTreeMap::new());
    let mut trainer = Trainer { out, plan, handle, slots: slot_files, version, weights, arrived };
    let end = trainer.plan.end();
    while trainer.version.batch() < end {
        if stop() {
            // In the middle of a batch, the checkpoint was already written.
            if !in_batch || trainer.version > version {
                trainer.save(None)?;
            }
            trainer.handle.with(|learner| learner.end())?;
            return Ok(None);
        }
        match trainer.arrived.remove(&trainer.version.batch()) {
            Some(results) => trainer.train(&results, every)?,
            None => trainer.look()?,
        }
    }
    Ok(Some(trainer.weights))
}

/// Counts a kill for [`wait_for_kills`].
pub fn count_kill(out: &Path) {
    let mut file = OpenOptions::new().append(true).create(true).open(out.join("kills")).unwrap();
    file.write_all(&[0]).unwrap();
}

/// Before a batch is trained on, waits for the batch's share of the `FLEET_KILLS` kills, so that a fast machine does
/// not reach the end before the last kill.
fn wait_for_kills(out: &Path, batch: BatchId, end: BatchId) {
    let Ok(kills) = std::env::var("FLEET_KILLS") else { return };
    let share = kills.parse::<u64>().unwrap() * batch.next().0 / end.0;
    while std::fs::metadata(out.join("kills")).map_or(0, |file| file.len()) < share {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Checks that each batch was trained on with the same results every time.
pub fn check_log(out: &Path) -> std::result::Result<usize, Error> {
    let text = std::fs::read_to_string(out.join("trained.log")).unwrap();
    let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
    for line in text.lines() {
        let Some((batch, digest)) = line.split_once(' ').filter(|(_, digest)| digest.len() == 16) else { continue };
        if *seen.entry(batch).or_insert(digest) != digest {
            return Err(Error::Failed(format!("batch {batch} was trained on with differing results")));
        }
    }
    Ok(text.lines().count())
}
