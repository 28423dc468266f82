//! A job for one group, and a worker's answer to it, as bytes.
//!
//! | column of a job | kind | values |
//! |---|---|---|
//! | `job` (must be known) | varint | 5: the group's number, the version of the weights, optimizer steps done, completions, the dataset's row |
//! | `prompt_ids` (must be known) | varint | the prompt's tokens |
//! | `prompt`, `dataset` | text | what rewards see of it, JSON |
//! | `sampling` (must be known) | f64 | 4: temperature, top_p, min_p, repetition_penalty |
//! | `sampling_counts` (must be known) | varint | 6: top_k, tokens of a completion, seed, top_logprobs, prompt_logprobs, entropies |
//! | `stop_ids`, `stop` (must be known) | varint, text | what ends a completion |
//! | `rewards` (must be known) | text | those that the worker asks |
//!
//! An answer is a record, and the record of the group behind it:
//!
//! | column of an answer | kind | values |
//! |---|---|---|
//! | `answer` (must be known) | varint | 2: the group's number, the rewards that were asked |
//! | `rollout_s` | f64 | 1: seconds of generation |
//! | `K.scored`, `K.values` | runs, f64 | of reward K: 1 where a completion has a score; the scores |
//! | `K.steps` | text | of each completion null or [[0 token or 1 character, where, the score's bits], …], JSON; absent: none |
//! | `K.problems` | text | JSON objects |
//! | `K.extra` | text | one: [[column, [values]], …], JSON |
//! | `K.metrics`, `K.metric_values` | text, f64 | |
//! | `K.timed_out` | varint | 1 |
//! | `K.seconds` | f64 | 1 |

use super::group::{Completion, Group};
use super::record::{RecordReader, RecordWriter, WireError};
use crate::data::prompts::Prompt;
use crate::rollouts::jobs::{GroupAnswer, GroupJob};
use model::columns::SAMPLER_LOGPS;
use rewards::{GivenScores, Problem, Scores, StepEnd, StepScore};
use rollout::{RolloutGroup, SamplingParams};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// More completions of a prompt than any job has.
const MANY: u64 = 1 << 20;

impl GroupJob {
    /// As bytes; equal jobs are equal bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let GroupJob { number, prompt, num_generations, sampling, version, step, rewards } = self;
        let mut record = RecordWriter::new();
        let numbers = [*number, *version, *step, *num_generations as u64, prompt.row as u64];
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
        let mut bytes = Vec::new();
        record.finish(&mut bytes);
        bytes
    }

    /// The job that [`to_bytes`](Self::to_bytes) wrote. An error says what is wrong with the bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<GroupJob, WireError> {
        let (record, rest) = RecordReader::take(bytes)?;
        let known = ["job", "prompt_ids", "sampling", "sampling_counts", "stop_ids", "stop", "rewards"];
        record.refuse_unknown(|name| known.contains(&name))?;
        if !rest.is_empty() {
            return Err(WireError::new("bytes follow the job"));
        }
        let [number, version, step, generations, row] = numbers(&record, "job")?;
        let [top_k, max_new_tokens, seed, top_logprobs, prompt_logprobs, entropies] =
            numbers(&record, "sampling_counts")?;
        let Some([temperature, top_p, min_p, repetition_penalty]) = floats(&record, "sampling")? else {
            return Err(WireError::new("column `sampling` does not have four numbers"));
        };
        if [temperature, top_p, min_p, repetition_penalty].iter().any(|x| !x.is_finite() || *x < 0.0) {
            return Err(WireError::new("column `sampling` has a number that no run samples with"));
        }
        let prompt_ids = ids(&record, "prompt_ids")?;
        if prompt_ids.is_empty() || !(1..=MANY).contains(&generations) || max_new_tokens == 0 {
            return Err(WireError::new("it asks for nothing: no prompt, no completion or no token"));
        }
        let texts = |name: &str| -> Result<Vec<String>, WireError> {
            Ok(record.texts(name)?.unwrap_or_default().into_iter().map(str::to_owned).collect())
        };
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
            stop_strings: texts("stop")?,
            seed,
            prompt_logprobs: flag("sampling_counts", prompt_logprobs)?,
            top_logprobs: size("sampling_counts", top_logprobs)?,
            entropies: flag("sampling_counts", entropies)?,
        };
        let num_generations = size("job", generations)?;
        Ok(GroupJob { number, prompt, num_generations, sampling, version, step, rewards: texts("rewards")? })
    }
}

impl GroupAnswer {
    /// As bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let GroupAnswer { group, scores, rollout_s } = self;
        let mut record = RecordWriter::new();
        record.must_be_known().uints("answer", 1, [group.id, scores.len() as u64]);
        record.f64s("rollout_s", 1, [rollout_s]);
        scores.iter().enumerate().for_each(|(k, given)| put_scores(&mut record, k, given));
        let mut bytes = Vec::new();
        record.finish(&mut bytes);
        let completion = |c: &rollout::Completion| Completion {
            sampled: c.mask.clone(),
            mask: c.mask.clone(),
            versions: c.versions.clone(),
            columns: c.columns.clone(),
            finish_reason: Some(c.finish_reason),
            ..Completion::new(c.generation, c.ids.clone())
        };
        let written = Group {
            id: group.id,
            prompt_ids: group.prompt.ids.clone(),
            prompt_columns: group.prompt_columns.clone(),
            completions: group.completions.iter().map(completion).collect(),
            ..Group::default()
        };
        written.write(&mut bytes);
        bytes
    }

    /// Which job `bytes` answer.
    pub fn number(bytes: &[u8]) -> Result<u64, WireError> {
        let (record, _) = RecordReader::take(bytes)?;
        numbers::<2>(&record, "answer").map(|[number, _]| number)
    }

    /// The answer to `job` that [`to_bytes`](Self::to_bytes) wrote. An error says what does not fit it.
    pub fn from_bytes(bytes: &[u8], job: &GroupJob) -> Result<GroupAnswer, WireError> {
        let (record, rest) = RecordReader::take(bytes)?;
        record.refuse_unknown(|name| name == "answer")?;
        let (group, rest) = Group::read(rest)?;
        let [number, asked] = numbers(&record, "answer")?;
        if !rest.is_empty() || [number, group.id] != [job.number; 2] || group.prompt_ids != job.prompt.tokens.ids {
            return Err(WireError::new("it answers another job"));
        }
        if asked != job.rewards.len() as u64 || group.completions.len() != job.num_generations {
            return Err(WireError::new(format!(
                "it does not have {} completions with the scores of {} rewards",
                job.num_generations,
                job.rewards.len()
            )));
        }
        let completions = group.completions.into_iter().enumerate().map(|(place, c)| completion(place, c, job));
        let group = RolloutGroup {
            id: group.id,
            prompt: job.prompt.tokens.clone(),
            completions: completions.collect::<Result<_, _>>()?,
            prompt_columns: group.prompt_columns,
        };
        let scores =
            (0..job.rewards.len()).map(|k| scores(&record, k, job.num_generations)).collect::<Result<_, _>>()?;
        let Some([rollout_s]) = floats(&record, "rollout_s")? else {
            return Err(WireError::new("column `rollout_s` does not have one number"));
        };
        Ok(GroupAnswer { group, scores, rollout_s })
    }
}

fn completion(place: usize, c: Completion, job: &GroupJob) -> Result<rollout::Completion, WireError> {
    let wrong = |what: &str| WireError::new(format!("completion {place} {what}"));
    if c.generation != place || c.ids.len() > job.sampling.max_new_tokens || c.mask != c.sampled {
        return Err(wrong("is none that the job asks for"));
    }
    if c.versions.len() != c.ids.len() || c.columns.f32(SAMPLER_LOGPS).is_none() {
        return Err(wrong("lacks `versions` or `token.sampler_logps`"));
    }
    if let Some(other) = c.versions.iter().find(|&&version| version != job.version) {
        return Err(wrong(&format!("was sampled by weights of version {other}, not {}", job.version)));
    }
    Ok(rollout::Completion {
        generation: c.generation,
        ids: c.ids,
        mask: c.sampled,
        versions: c.versions,
        columns: c.columns,
        finish_reason: c.finish_reason.ok_or_else(|| wrong("does not say why it ended"))?,
    })
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

/// What reward `k` said of so many completions.
fn scores(record: &RecordReader<'_>, k: usize, completions: usize) -> Result<GivenScores, WireError> {
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
    let problems: Vec<Problem> = all_json(record, &name("problems"))?;
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

fn numbers<const N: usize>(record: &RecordReader<'_>, name: &str) -> Result<[u64; N], WireError> {
    let found = record.uints(name)?.unwrap_or_default();
    found.try_into().map_err(|_| WireError::new(format!("column `{name}` does not have {N} numbers")))
}

fn floats<const N: usize>(record: &RecordReader<'_>, name: &str) -> Result<Option<[f64; N]>, WireError> {
    Ok(record.f64s(name)?.unwrap_or_default().try_into().ok())
}

fn ids(record: &RecordReader<'_>, name: &str) -> Result<Vec<u32>, WireError> {
    let id = |id| u32::try_from(id).map_err(|_| WireError::new(format!("column `{name}` has {id}, which is no token")));
    record.uints(name)?.unwrap_or_default().into_iter().map(id).collect()
}

fn size(name: &str, value: u64) -> Result<usize, WireError> {
    usize::try_from(value).map_err(|_| WireError::new(format!("column `{name}` has too large a number")))
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
    let [one] = <[T; 1]>::try_from(all).map_err(|_| WireError::new(format!("column `{name}` is not one text")))?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use model::Columns;
    use proptest::prelude::*;
    use rewards::{Content, ProblemKind};
    use rollout::FinishReason;
    use serde_json::{Map, json};
    use testing::foreign;

    fn job() -> GroupJob {
        let mut columns = Map::new();
        columns.insert("answer".into(), json!([0.1, null]));
        GroupJob {
            number: 9,
            prompt: Prompt { row: 3, tokens: model::Prompt::new([7, 300]), content: Content::from("é?"), columns },
            num_generations: 2,
            sampling: SamplingParams {
                temperature: 0.7,
                top_k: 5,
                top_p: 0.1 + 0.2,
                min_p: 0.01,
                repetition_penalty: 1.1,
                max_new_tokens: 4,
                stop_ids: vec![0, 2],
                stop_strings: vec!["\n".into()],
                seed: u64::MAX,
                prompt_logprobs: false,
                top_logprobs: 1,
                entropies: true,
            },
            version: 6,
            step: 8,
            rewards: vec!["a".into(), "b".into()],
        }
    }

    fn answer() -> GroupAnswer {
        let completion = |generation: usize, ids: Vec<u32>| rollout::Completion {
            generation,
            mask: vec![true; ids.len()],
            versions: vec![6; ids.len()],
            columns: Columns::of([(SAMPLER_LOGPS, vec![-0.3; ids.len()])]),
            finish_reason: FinishReason::Stop,
            ids,
        };
        let problem = Problem { example: Some("x".into()), ..Problem::new("a", 1, "no\nnumber") };
        let first = Scores {
            values: vec![Some(0.1 + 0.2), None],
            steps: vec![Some(vec![StepScore { end: StepEnd::Char(2), score: -0.0 }]), None],
            problems: vec![problem.of_kind(ProblemKind::TimedOut).at(vec![1])],
            extra: vec![("note".into(), vec![json!(0.1), Value::Null])],
            metrics: vec![("m".into(), 1e300), ("l".into(), 5e-324)],
            timed_out: 1,
        };
        let second = Scores::new(vec![Some(f64::INFINITY), Some(f64::MIN_POSITIVE)]);
        let given = |reward, scores| GivenScores { reward, scores, seconds: 0.25 };
        let completions = vec![completion(0, vec![4, 0]), completion(1, Vec::new())];
        let group = RolloutGroup::new(9, model::Prompt::new([7, 300]), completions);
        GroupAnswer { group, scores: vec![given(0, first), given(1, second)], rollout_s: 1.5 }
    }

    #[test]
    fn a_job_and_its_answer_come_back_as_they_were() {
        let bytes = job().to_bytes();
        assert_eq!(GroupJob::from_bytes(&bytes).unwrap(), job());
        let bytes = answer().to_bytes();
        assert_eq!(GroupAnswer::number(&bytes).unwrap(), 9);
        let found = GroupAnswer::from_bytes(&bytes, &job()).unwrap();
        assert_eq!((&found, found.to_bytes()), (&answer(), bytes));
    }

    #[test]
    fn what_does_not_answer_the_job_is_refused() {
        let refused = |change: fn(&mut GroupJob), spoil: fn(&mut GroupAnswer), word: &str| {
            let (mut job, mut answer) = (job(), answer());
            change(&mut job);
            spoil(&mut answer);
            let said = GroupAnswer::from_bytes(&answer.to_bytes(), &job).unwrap_err().to_string();
            assert!(said.contains(word), "{said}");
        };
        refused(|job| job.number = 8, |_| {}, "another job");
        refused(|job| job.prompt.tokens = model::Prompt::new([7]), |_| {}, "another job");
        refused(|job| job.num_generations = 3, |_| {}, "3 completions");
        refused(|job| job.rewards.truncate(1), |_| {}, "1 rewards");
        refused(|job| job.version = 5, |_| {}, "version 6, not 5");
        refused(|job| job.sampling.max_new_tokens = 1, |_| {}, "completion 0");
        refused(|_| {}, |answer| answer.group.completions[0].columns = Columns::default(), "sampler_logps");
        refused(|_| {}, |answer| answer.scores[1].scores.values = vec![None], "1.scored");
        refused(|_| {}, |answer| answer.scores[0].scores.problems[0].completions = vec![2], "0.problems");
        refused(|_| {}, |answer| answer.scores[0].scores.extra[0].1.truncate(1), "0.extra");
        refused(|_| {}, |answer| answer.scores[0].scores.timed_out = 3, "0.timed_out");
    }

    #[test]
    fn a_job_that_nobody_can_do_is_refused() {
        let refused = |change: fn(&mut GroupJob)| {
            let mut job = job();
            change(&mut job);
            assert!(GroupJob::from_bytes(&job.to_bytes()).is_err());
        };
        refused(|job| job.num_generations = 0);
        refused(|job| job.num_generations = 1 << 30);
        refused(|job| job.prompt.tokens = model::Prompt::new([]));
        refused(|job| job.sampling.temperature = f64::NAN);
        refused(|job| job.sampling.max_new_tokens = 0);
    }

    proptest! {
        #![proptest_config(foreign::few())]

        #[test]
        fn any_bytes_give_a_job_or_an_error(bytes in foreign::bytes(job().to_bytes())) {
            let _ = GroupJob::from_bytes(&bytes);
        }
        #[test]
        fn any_bytes_give_an_answer_or_an_error(bytes in foreign::bytes(answer().to_bytes())) {
            let _ = GroupAnswer::from_bytes(&bytes, &job());
        }
    }
}
