//! The bytes of a job for one group, and of a worker's answer to the job.
//!
//! | column of a job | kind | values |
//! |---|---|---|
//! | `job` (must be known) | varint | 5 values: the group's number, the version of the weights, optimizer steps done, completions, index of the dataset row |
//! | `prompt_ids` (must be known) | varint | token ids of the prompt |
//! | `prompt`, `dataset` | text | the parts of the row that reward functions read, as JSON |
//! | `sampling` (must be known) | f64 | 4 values: temperature, top_p, min_p, repetition_penalty |
//! | `sampling_counts` (must be known) | varint | 6 values: top_k, max_completion_length, seed, top_logprobs, prompt_logprobs, entropies |
//! | `stop_ids`, `stop` (must be known) | varint, text | token ids and texts that end a completion |
//! | `rewards` (must be known) | text | names of the reward functions that the worker calls |
//! | `until` (must be known) | varint | 1 value: length in tokens at which a completion is returned unfinished; absent: no such length |
//!
//! A job that continues completions is followed by a record of the group's current state.
//!
//! An answer is a record, followed by the record of the group (K is the index of a reward function among those called):
//!
//! | column of an answer | kind | values |
//! |---|---|---|
//! | `answer` (must be known) | varint | 2 values: the group's number, how many reward functions were called |
//! | `rollout_s` | f64 | 1 value: seconds of generation |
//! | `K.scored`, `K.values` | runs, f64 | for each completion 1 if it has a score, else 0; the scores |
//! | `K.steps` | text | for each completion null or its process rewards as JSON [[kind, index, bits of the score], …], where kind is 0 if a step ends at a token, 1 if at a character; absent: none |
//! | `K.problems` | text | errors, each a JSON object |
//! | `K.extra` | text | one JSON list of columns for the table of completions, [[name, [values]], …] |
//! | `K.metrics`, `K.metric_values` | text, f64 | names and values of metrics |
//! | `K.timed_out` | varint | 1 value: completions that ran out of time |
//! | `K.seconds` | f64 | 1 value: seconds that the reward function took |

use super::group::{Completion, Group};
use super::record::{RecordReader, RecordWriter, WireError};
use crate::data::prompts::Prompt;
use crate::rollouts::jobs::{GroupAnswer, GroupJob};
use model::columns::SAMPLER_LOGPS;
use model::{GroupId, Updates};
use rewards::{GivenScores, Problem, Scores, StepEnd, StepScore};
use rollout::{RolloutGroup, SamplingParams};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use telemetry::Step;

/// The maximum number of completions in a job; more are an error.
const MAX_GENERATIONS: u64 = 1 << 20;

impl GroupJob {
    /// The job as bytes. Equal jobs have equal bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let GroupJob { group, prompt, num_generations, sampling, updates, step, rewards, so_far, until } = self;
        let mut record = RecordWriter::new();
        let numbers = [group.0, updates.0, step.0, *num_generations as u64, prompt.row as u64];
        record.must_be_known().uints("job", 1, numbers);
        record.must_be_known().uints("prompt_ids", 1, prompt.tokens.ids.iter().map(|&id| u64::from(id)));
        record.texts("prompt", [json(&prompt.content)]);
        record.texts("dataset", [json(&prompt.columns)]);
        let SamplingParams { temperature, top_k, top_p, min_p, repetition_penalty, max_new_tokens, .. } = sampling;
        record.must_be_known().f64s("sampling", 1, [temperature, top_p, min_p, repetition_penalty]);
        let flags = [sampling.prompt_logprobs, sampling.entropies].map(u64::from);
        let counts = [*top_k as u64, *max_new_tokens as u64, sampling.seed, sampling.top_logprobs as u64];
        record.must_be_known().uints("sampling_counts", 1, counts.into_iter().chain(flags));
        record.must_be_known().uints("stop_ids", 1, sampling.stop_ids.iter().map(|&id| u64::from(id)));
        record.must_be_known().texts("stop", &sampling.stop_strings);
        record.must_be_known().texts("rewards", rewards);
        if let Some(until) = until {
            record.must_be_known().uints("until", 1, [*until as u64]);
        }
        let mut bytes = Vec::new();
        record.finish(&mut bytes);
        if !so_far.is_empty() {
            let completions = so_far.iter().map(written).collect();
            Group { group: *group, completions, ..Group::default() }.write(&mut bytes);
        }
        bytes
    }

    /// Reads the job that [`to_bytes`](Self::to_bytes) wrote.
    pub fn from_bytes(bytes: &[u8]) -> Result<GroupJob, WireError> {
        let (record, rest) = RecordReader::take(bytes)?;
        let known = ["job", "prompt_ids", "sampling", "sampling_counts", "stop_ids", "stop", "rewards", "until"];
        record.refuse_unknown(|name| known.contains(&name))?;
        let [group, updates, step, generations, row] = numbers(&record, "job")?;
        let (group, updates, step) = (GroupId(group), Updates(updates), Step(step));
        let [top_k, max_new_tokens, seed, top_logprobs, prompt_logprobs, entropies] =
            numbers(&record, "sampling_counts")?;
        let Some([temperature, top_p, min_p, repetition_penalty]) = floats(&record, "sampling")? else {
            return Err(WireError::new("column `sampling` must have four numbers"));
        };
        if [temperature, top_p, min_p, repetition_penalty].iter().any(|x| !x.is_finite() || *x < 0.0) {
            return Err(WireError::new("column `sampling` has an invalid sampling parameter"));
        }
        let prompt_ids = ids(&record, "prompt_ids")?;
        if prompt_ids.is_empty() || !(1..=MAX_GENERATIONS).contains(&generations) || max_new_tokens == 0 {
            return Err(WireError::new("the job is empty: it must have a prompt, completions and tokens"));
        }
        let prompt = Prompt {
            row: size("job", row)?,
            tokens: model::Prompt::new(prompt_ids),
            content: one_json(&record, "prompt")?,
            columns: one_json(&record, "dataset")?,
        };
        let sampling = SamplingParams {
            temperature,
            top_k: size("sampling_counts", top_k)?,
            top_p,
            min_p,
            repetition_penalty,
            max_new_tokens: size("sampling_counts", max_new_tokens)?,
            stop_ids: ids(&record, "stop_ids")?,
            stop_strings: texts(&record, "stop")?,
            seed,
            prompt_logprobs: flag("sampling_counts", prompt_logprobs)?,
            top_logprobs: size("sampling_counts", top_logprobs)?,
            entropies: flag("sampling_counts", entropies)?,
        };
        let num_generations = size("job", generations)?;
        let until = match record.uints("until")?.as_deref() {
            None => None,
            Some([until]) if *until > 0 => Some(size("until", *until)?),
            Some(_) => return Err(WireError::new("column `until` must have one number above 0")),
        };
        let mut so_far = Vec::new();
        if !rest.is_empty() {
            let (begun, rest) = Group::read(rest)?;
            if !rest.is_empty() || begun.group != group || begun.completions.len() != num_generations {
                return Err(WireError::new("the record after the job must hold the job's completions so far"));
            }
            let all = begun.completions.into_iter().enumerate();
            so_far = all.map(|(place, c)| read(place, c)).collect::<Result<_, _>>()?;
        }
        let rewards = texts(&record, "rewards")?;
        Ok(GroupJob { group, prompt, num_generations, sampling, updates, step, rewards, so_far, until })
    }
}

impl GroupAnswer {
    /// The answer as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let GroupAnswer { group, scores, rollout_s } = self;
        let mut record = RecordWriter::new();
        record.must_be_known().uints("answer", 1, [group.group.0, scores.len() as u64]);
        record.f64s("rollout_s", 1, [rollout_s]);
        scores.iter().enumerate().for_each(|(k, given)| put_scores(&mut record, k, given));
        let mut bytes = Vec::new();
        record.finish(&mut bytes);
        let record = Group {
            group: group.group,
            prompt_ids: group.prompt.ids.clone(),
            prompt_columns: group.prompt_columns.clone(),
            completions: group.completions.iter().map(written).collect(),
            ..Group::default()
        };
        record.write(&mut bytes);
        bytes
    }

    /// The group of the job that `bytes` answers.
    pub fn group_of(bytes: &[u8]) -> Result<GroupId, WireError> {
        let (record, _) = RecordReader::take(bytes)?;
        numbers::<2>(&record, "answer").map(|[group, _]| GroupId(group))
    }

    /// Reads the answer to `job` that [`to_bytes`](Self::to_bytes) wrote. The error names the part that does not match
    /// the job.
    pub fn from_bytes(bytes: &[u8], job: &GroupJob) -> Result<GroupAnswer, WireError> {
        match answered(bytes, job, true)? {
            (answer, []) => Ok(answer),
            _ => Err(WireError::new("the answer belongs to another job")),
        }
    }

    /// Reads the answer to any job of a group; `whole` is the job for the whole group. A partial completion is not
    /// checked for the tokens that its job requires.
    pub fn believed(bytes: &[u8], whole: &GroupJob) -> Result<GroupAnswer, WireError> {
        match answered(bytes, whole, false)? {
            (answer, []) => Ok(answer),
            _ => Err(WireError::new("the answer belongs to another job")),
        }
    }
}

/// Reads the answer to `job` at the start of `bytes`, and also returns the bytes after it. With `by_job`, completions
/// must have exactly the tokens that this job requires, and not those of another chunk.
pub(super) fn answered<'a>(
    bytes: &'a [u8],
    job: &GroupJob,
    by_job: bool,
) -> Result<(GroupAnswer, &'a [u8]), WireError> {
    let (record, rest) = RecordReader::take(bytes)?;
    record.refuse_unknown(|name| name == "answer")?;
    let (group, rest) = Group::read(rest)?;
    let [answered, asked] = numbers(&record, "answer")?;
    if [GroupId(answered), group.group] != [job.group; 2] || group.prompt_ids != job.prompt.tokens.ids {
        return Err(WireError::new("the answer belongs to another job"));
    }
    let completions = group.completions.into_iter().enumerate().map(|(place, c)| {
        let c = read(place, c)?;
        match wrong_for(job, place, &c).filter(|_| by_job) {
            Some(what) => Err(WireError::new(format!("completion {place} {what}"))),
            None => Ok(c),
        }
    });
    let group = RolloutGroup {
        group: group.group,
        prompt: job.prompt.tokens.clone(),
        completions: completions.collect::<Result<_, _>>()?,
        prompt_columns: group.prompt_columns,
    };
    // Unfinished groups are never scored. In a checkpoint, finished groups may also lack scores.
    let wanted = if group.is_unfinished() || !by_job && asked == 0 { 0 } else { job.rewards.len() };
    if asked != wanted as u64 || group.completions.len() != job.num_generations {
        return Err(WireError::new(format!(
            "the answer must have {} completions with scores of {wanted} rewards",
            job.num_generations
        )));
    }
    let names = job.rewards.iter().take(wanted).enumerate();
    let scores = names.map(|(k, name)| scores(&record, k, name, job.num_generations)).collect::<Result<_, _>>()?;
    let Some([rollout_s]) = floats(&record, "rollout_s")? else {
        return Err(WireError::new("column `rollout_s` must have one number"));
    };
    Ok((GroupAnswer { group, scores, rollout_s }, rest))
}

fn written(c: &rollout::Completion) -> Completion {
    Completion {
        sampled: c.sampled.clone(),
        loss_mask: c.sampled.clone(),
        versions: c.versions.clone(),
        columns: c.columns.clone(),
        finish_reason: Some(c.finish_reason),
        ..Completion::new(c.generation, c.ids.clone())
    }
}

fn read(place: usize, c: Completion) -> Result<rollout::Completion, WireError> {
    let wrong = |what: &str| WireError::new(format!("completion {place} {what}"));
    if c.generation != place || c.loss_mask != c.sampled {
        return Err(wrong("does not match the job"));
    }
    if c.versions.len() != c.ids.len() || c.columns.f32(SAMPLER_LOGPS).is_none() {
        return Err(wrong("lacks `versions` or `token.sampler_logps`"));
    }
    Ok(rollout::Completion {
        generation: c.generation,
        ids: c.ids,
        sampled: c.sampled,
        versions: c.versions,
        columns: c.columns,
        finish_reason: c.finish_reason.ok_or_else(|| wrong("has no finish reason"))?,
    })
}

/// The reason why completion `c`, at index `place`, cannot be an answer to `job`; `None` if it can.
fn wrong_for(job: &GroupJob, place: usize, c: &rollout::Completion) -> Option<String> {
    let tokens = c.ids.len();
    if !c.is_whole(&job.sampling) {
        return Some("lacks a column that its sampling parameters require".to_owned());
    }
    let so_far = job.so_far.get(place);
    let begun = so_far.map_or(0, |so_far| so_far.ids.len());
    let is_over = so_far.is_some_and(|so_far| !so_far.is_unfinished());
    let most = job.until.map_or(job.sampling.max_new_tokens, |until| until.min(job.sampling.max_new_tokens));
    if tokens > most && tokens > begun || c.is_unfinished() && job.until != Some(tokens) {
        return Some("does not match the job".to_owned());
    }
    let first = |c: &rollout::Completion| {
        let bits: Vec<u32> = c.logps().iter().take(begun).map(|logp| logp.to_bits()).collect();
        (c.ids[..begun].to_vec(), c.versions[..begun].to_vec(), bits)
    };
    let continues = |so_far: &rollout::Completion| {
        if is_over {
            (tokens, c.finish_reason) == (begun, so_far.finish_reason) && first(so_far) == first(c)
        } else {
            tokens > begun && first(so_far) == first(c)
        }
    };
    if so_far.is_some_and(|so_far| !continues(so_far)) {
        return Some("does not continue the job's completion".to_owned());
    }
    let other = c.versions[begun..].iter().find(|&&version| version != job.updates);
    other.map(|other| format!("was sampled by weights of version {other}, not {}", job.updates))
}

fn put_scores(record: &mut RecordWriter, k: usize, GivenScores { scores, seconds, .. }: &GivenScores) {
    let name = |what: &str| format!("{k}.{what}");
    let Scores { values, steps, problems, extra, metrics, timed_out } = scores;
    record.runs(&name("scored"), values.iter().map(|value| u64::from(value.is_some())));
    record.f64s(&name("values"), 1, values.iter().flatten());
    if !steps.is_empty() {
        let step = |step: &StepScore| match step.end {
            StepEnd::Token(at) => (0u8, at, step.score.to_bits()),
            StepEnd::Char(at) => (1, at, step.score.to_bits()),
        };
        let of =
            |steps: &Option<Vec<StepScore>>| steps.as_ref().map(|steps| steps.iter().map(step).collect::<Vec<_>>());
        record.texts(&name("steps"), steps.iter().map(|steps| json(&of(steps))));
    }
    record.texts(&name("problems"), problems.iter().map(json));
    record.texts(&name("extra"), [json(extra)]);
    record.texts(&name("metrics"), metrics.iter().map(|(metric, _)| metric));
    record.f64s(&name("metric_values"), 1, metrics.iter().map(|(_, value)| value));
    record.uints(&name("timed_out"), 1, [*timed_out as u64]);
    record.f64s(&name("seconds"), 1, [seconds]);
}

/// The scores of the reward function `reward`, which has the index `k`, for `completions` completions.
fn scores(record: &RecordReader<'_>, k: usize, reward: &str, completions: usize) -> Result<GivenScores, WireError> {
    let name = |what: &str| format!("{k}.{what}");
    let wrong = |what: &str| WireError::new(format!("column `{k}.{what}` does not fit {completions} completions"));
    let scored = record.runs(&name("scored"), completions)?.ok_or_else(|| wrong("scored"))?;
    let given = record.f64s(&name("values"))?.unwrap_or_default();
    let mut next = given.iter().copied();
    let value = |scored: &u64| match scored {
        0 => Ok(None),
        1 => next.next().map(Some).ok_or_else(|| wrong("values")),
        _ => Err(wrong("scored")),
    };
    let values = scored.iter().map(value).collect::<Result<Vec<_>, _>>()?;
    if values.iter().flatten().count() != given.len() {
        return Err(wrong("values"));
    }
    let step = |(kind, at, bits): (u8, usize, u64)| match kind {
        0 => Ok(StepScore { end: StepEnd::Token(at), score: f64::from_bits(bits) }),
        1 => Ok(StepScore { end: StepEnd::Char(at), score: f64::from_bits(bits) }),
        _ => Err(wrong("steps")),
    };
    let steps = |steps: Option<Vec<_>>| steps.map(|steps| steps.into_iter().map(step).collect()).transpose();
    let steps: Vec<Option<Vec<StepScore>>> =
        all_json(record, &name("steps"))?.into_iter().map(steps).collect::<Result<_, _>>()?;
    if !steps.is_empty() && steps.len() != completions {
        return Err(wrong("steps"));
    }
    let mut problems: Vec<Problem> = all_json(record, &name("problems"))?;
    // A worker may report problems of this reward only: an audit might otherwise compare problems under the name of
    // another reward, although this reward cannot be repeated.
    for problem in &mut problems {
        problem.reward = reward.to_owned();
    }
    if problems.iter().flat_map(|problem| &problem.completions).any(|&place| place >= completions) {
        return Err(wrong("problems"));
    }
    if problems.iter().any(|problem| problem.rows > completions) {
        return Err(wrong("problems"));
    }
    let extra: Vec<(String, Vec<Value>)> = one_json(record, &name("extra"))?;
    if extra.iter().any(|(_, values)| values.len() != completions) {
        return Err(wrong("extra"));
    }
    let names = record.texts(&name("metrics"))?.unwrap_or_default();
    let metric_values = record.f64s(&name("metric_values"))?.unwrap_or_default();
    if names.len() != metric_values.len() {
        return Err(wrong("metric_values"));
    }
    let [timed_out] = numbers(record, &name("timed_out"))?;
    if timed_out > completions as u64 {
        return Err(wrong("timed_out"));
    }
    let Some([seconds]) = floats(record, &name("seconds"))? else { return Err(wrong("seconds")) };
    let metrics = names.into_iter().map(str::to_owned).zip(metric_values).collect();
    let scores = Scores { values, steps, problems, extra, metrics, timed_out: timed_out as usize };
    Ok(GivenScores { reward: k, scores, seconds })
}

pub(super) fn numbers<const N: usize>(record: &RecordReader<'_>, name: &str) -> Result<[u64; N], WireError> {
    let found = record.uints(name)?.unwrap_or_default();
    found.try_into().map_err(|_| WireError::new(format!("column `{name}` must have {N} numbers")))
}

fn floats<const N: usize>(record: &RecordReader<'_>, name: &str) -> Result<Option<[f64; N]>, WireError> {
    Ok(record.f64s(name)?.unwrap_or_default().try_into().ok())
}

fn ids(record: &RecordReader<'_>, name: &str) -> Result<Vec<u32>, WireError> {
    let id = |id| {
        u32::try_from(id).map_err(|_| WireError::new(format!("column `{name}` has {id}, which is not a token id")))
    };
    record.uints(name)?.unwrap_or_default().into_iter().map(id).collect()
}

pub(super) fn size(name: &str, value: u64) -> Result<usize, WireError> {
    usize::try_from(value).map_err(|_| WireError::new(format!("column `{name}` has a number that is too large")))
}

pub(super) fn texts(record: &RecordReader<'_>, name: &str) -> Result<Vec<String>, WireError> {
    Ok(record.texts(name)?.unwrap_or_default().into_iter().map(str::to_owned).collect())
}

fn flag(name: &str, value: u64) -> Result<bool, WireError> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(WireError::new(format!("column `{name}` has {value}, which is neither 0 nor 1"))),
    }
}

fn one_json<T: DeserializeOwned>(record: &RecordReader<'_>, name: &str) -> Result<T, WireError> {
    let all: Vec<T> = all_json(record, name)?;
    let [one] = <[T; 1]>::try_from(all).map_err(|_| WireError::new(format!("column `{name}` must have one string")))?;
    Ok(one)
}

fn all_json<T: DeserializeOwned>(record: &RecordReader<'_>, name: &str) -> Result<Vec<T>, WireError> {
    let texts = record.texts(name)?.unwrap_or_default();
    let of = |text: &str| serde_json::from_str(text).map_err(|e| WireError::new(format!("column `{name}`: {e}")));
    texts.into_iter().map(of).collect()
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain data")
}
