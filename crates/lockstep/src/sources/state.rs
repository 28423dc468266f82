//! The state of a source of batches between two steps, and its files in a checkpoint.

use super::BatchSpec;
use crate::bad_input;
use crate::data::prompts::Prompt;
use crate::models::WriteFiles;
use crate::rollouts::collector::{CollectRequest, Collected};
use crate::rollouts::health::RewardHealth;
use crate::rollouts::jobs::BegunBatch;
use crate::rollouts::lineage::Lineage;
use crate::rollouts::wire::WireError;
use anyhow::Context as _;
use model::{GroupId, Updates};
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;

/// The checkpoint file with the complete later batches, as concatenated collector answers.
const AHEAD: &str = "frontier.bin";

/// The checkpoint file with the unfinished later batches.
const BEGUN: &str = "frontier.begun.bin";

/// The position of a source, and the generated parts of later batches (the *frontier*). The position in the data and
/// the next group are those after the current batch.
#[derive(Clone, Default)]
pub struct SourceState {
    /// The next group, whose number and the seed select the random stream of each sample.
    pub next_group: GroupId,
    /// For each reward, the number of batches in a row without a score.
    pub health: RewardHealth,
    /// Complete later batches, the next one first.
    pub ahead: VecDeque<Arc<Ahead>>,
    /// Unfinished later batches, the next one first; used with `partial_rollout_tokens`.
    pub begun: VecDeque<Arc<BegunBatch>>,
    /// The version of the weights at the start of each of the last batches, the newest last; used with `max_staleness`.
    /// (The name is the key in `run_state.json`.)
    pub published: VecDeque<Updates>,
}

/// A batch that was generated before the training on an earlier batch.
pub struct Ahead {
    pub(super) collected: Collected,
    /// The lineage of the weights that generated the batch.
    pub lineage: Option<Lineage>,
}

impl Ahead {
    /// The groups of the batch.
    pub(super) fn into_collected(this: Arc<Ahead>) -> Collected {
        Arc::try_unwrap(this).map_or_else(|shared| shared.collected.clone(), |own| own.collected)
    }
}

/// A source's entries in a checkpoint's `run_state.json`. The batches are in separate files.
pub struct SavedState<'a> {
    /// The next group.
    pub next_group: GroupId,
    /// For each complete later batch, the lineage of the weights that sampled it.
    pub ahead: &'a [Option<Lineage>],
    /// The number of unfinished later batches.
    pub begun: usize,
    /// The version of the weights at the start of each of the last batches.
    pub published: VecDeque<Updates>,
}

impl SourceState {
    /// Records that a batch begins with weights of version `updates`. The last `max_staleness` + 1 versions are kept.
    pub(super) fn note_published(&mut self, updates: Updates, max_staleness: usize) {
        self.published.push_back(updates);
        while self.published.len() > max_staleness + 1 {
            self.published.pop_front();
        }
    }

    /// How many batches began with weights newer than version `updates`.
    pub fn lag(&self, updates: Updates) -> usize {
        self.published.iter().filter(|&&newer| newer > updates).count()
    }

    /// Functions that write the later batches to a checkpoint.
    pub(super) fn write(&self) -> Vec<WriteFiles> {
        let mut writes: Vec<WriteFiles> = Vec::new();
        if !self.ahead.is_empty() {
            let ahead = self.ahead.clone();
            writes.push(Box::new(move |dir| {
                let bytes: Vec<u8> = ahead.iter().flat_map(|batch| batch.collected.to_bytes()).collect();
                Ok(disk::write(dir.join(AHEAD), bytes)?)
            }));
        }
        if !self.begun.is_empty() {
            let begun = self.begun.clone();
            writes.push(Box::new(move |dir| {
                let bytes: Vec<u8> = begun.iter().flat_map(|batch| batch.to_bytes()).collect();
                Ok(disk::write(dir.join(BEGUN), bytes)?)
            }));
        }
        writes
    }

    /// Reads the state from a checkpoint.
    pub(super) fn read(saved: SavedState<'_>, spec: &BatchSpec, checkpoint: &Path) -> anyhow::Result<SourceState> {
        let SavedState { next_group, ahead, begun, published } = saved;
        Ok(SourceState {
            next_group,
            health: RewardHealth::default(),
            begun: read_begun(begun, next_group, spec, &checkpoint.join(BEGUN))?,
            ahead: read_ahead(ahead, next_group, spec, &checkpoint.join(AHEAD))?,
            published,
        })
    }
}

/// Reads the complete later batches, one for each of `lineages`, whose groups begin with `first`.
fn read_ahead(
    lineages: &[Option<Lineage>],
    first: GroupId,
    spec: &BatchSpec,
    file: &Path,
) -> anyhow::Result<VecDeque<Arc<Ahead>>> {
    let batches = lineages.len();
    if batches == 0 {
        return Ok(VecDeque::new());
    }
    let ahead = read_all(spec, file, |bytes, like, row| Collected::take(bytes, like, row))?;
    if ahead.len() != batches {
        bad_input!("{} has {} batches, but run_state.json records {batches}", file.display(), ahead.len());
    }
    let groups = ahead.iter().flat_map(|batch| &batch.scored.rollouts.groups).map(|group| group.group);
    if !groups.eq(first.and_after().take(batches * spec.sizes.groups())) {
        bad_input!("{} does not have the next groups, from number {first} on", file.display());
    }
    let batch = |(collected, &lineage): (_, &_)| Arc::new(Ahead { collected, lineage });
    Ok(ahead.into_iter().zip(lineages).map(batch).collect())
}

/// Reads the unfinished later batches: `batches` of them, with groups from `first` on.
fn read_begun(
    batches: usize,
    first: GroupId,
    spec: &BatchSpec,
    file: &Path,
) -> anyhow::Result<VecDeque<Arc<BegunBatch>>> {
    if batches == 0 {
        return Ok(VecDeque::new());
    }
    let begun = read_all(spec, file, |bytes, like, row| BegunBatch::take(bytes, like, row))?;
    let groups = begun.iter().flat_map(|batch| batch.prompts.keys().copied());
    if begun.len() != batches || !groups.eq(first.and_after().take(batches * spec.sizes.groups())) {
        bad_input!(
            "{} does not have the next {batches} batches, with the groups from number {first} on",
            file.display()
        );
    }
    Ok(begun.into_iter().map(Arc::new).collect())
}

/// Finds a dataset row by its index.
type FindRow<'a> = &'a dyn Fn(u64) -> Option<Arc<Prompt>>;

/// Reads all batches of a file. `take` reads the first batch of some bytes, and returns the remaining bytes.
fn read_all<T>(
    spec: &BatchSpec,
    file: &Path,
    take: impl for<'a> Fn(&'a [u8], &CollectRequest<'_>, FindRow<'_>) -> Result<(T, &'a [u8]), WireError>,
) -> anyhow::Result<Vec<T>> {
    let place = || file.display().to_string();
    let bytes = disk::read(file, disk::most::GROUPS).with_context(place)?;
    let rows: BTreeMap<u64, &Arc<Prompt>> = spec.prompts.iter().map(|prompt| (prompt.row as u64, prompt)).collect();
    let row = |index: u64| rows.get(&index).map(|&prompt| prompt.clone());
    let (mut batches, mut rest) = (Vec::new(), &bytes[..]);
    while !rest.is_empty() {
        let (batch, behind) = take(rest, &spec.like(), &row).with_context(place)?;
        batches.push(batch);
        rest = behind;
    }
    Ok(batches)
}
