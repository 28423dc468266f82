//! The bytes of a collector's answer: a first record about all groups, then a record for each group.
//!
//! | column of the first record | kind | values |
//! |---|---|---|
//! | `next_number` (must be known) | varint | 1 value: [`Collected::next_group`] |
//! | `groups` (must be known) | varint | 1 value: how many records follow |
//! | `metrics`, `metric_values` | text, f64 | names and values of metrics that reward functions log |
//! | `problems` | text | errors of reward functions, each a JSON object |
//! | `seconds` | f64 | for each reward function, the seconds that it took |
//! | `timed_out` | varint | for each reward function, how many completions ran out of time |
//! | `times` | f64 | 3 values: seconds of generation, of waiting for rewards, of scoring that overlapped generation |
//!
//! Groups are written without their dataset rows, which the requesting process already has.

use super::group::Group;
use super::record::{RecordReader, RecordWriter, WireError};
use crate::data::prompts::Prompt;
use crate::rollouts::collector::{CollectRequest, Collected};
use crate::rollouts::scoring::{Prompts, ScoredRollouts};
use crate::rollouts::{Rollouts, ScoredGroup};
use model::GroupId;
use rewards::Problem;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::sync::Arc;

impl Collected {
    /// The answer as bytes, without the times of overlapped scoring.
    pub fn to_bytes(&self) -> Vec<u8> {
        let Collected { scored, next_group, rollout_s, reward_s, overlapped_s } = self;
        let Rollouts { groups, reward_names, reward_weights } = &scored.rollouts;
        let mut head = RecordWriter::new();
        head.must_be_known().uints("next_number", 1, [next_group.0]);
        head.must_be_known().uints("groups", 1, [groups.len() as u64]);
        head.texts("metrics", scored.metrics.iter().map(|(name, _)| name));
        head.f64s("metric_values", 1, scored.metrics.iter().map(|(_, value)| value));
        let problem = |problem: &Problem| serde_json::to_string(problem).expect("texts and numbers");
        head.texts("problems", scored.problems.iter().map(problem));
        head.f64s("seconds", 1, &scored.seconds);
        head.uints("timed_out", 1, scored.timed_out.iter().map(|&completions| completions as u64));
        head.f64s("times", 1, [rollout_s, reward_s, overlapped_s]);
        let mut bytes = Vec::new();
        head.finish(&mut bytes);
        for group in groups {
            let group = Group {
                prompt: None,
                dataset: Default::default(),
                reward_names: reward_names.clone(),
                reward_weights: reward_weights.clone(),
                ..Group::from_scored(group, true)
            };
            group.write(&mut bytes);
        }
        bytes
    }

    /// Reads the answer to `request` that [`to_bytes`](Self::to_bytes) wrote. Groups share the request's prompts,
    /// unless a rollout function returned different prompt ids. The error names the part that does not match the
    /// request.
    #[cfg_attr(not(test), expect(dead_code, reason = "of workers, which answer in bytes"))]
    pub fn from_bytes(bytes: &[u8], request: &CollectRequest<'_>) -> Result<Collected, WireError> {
        let (head, groups, rest) = take(bytes)?;
        let numbers = groups.iter().map(|group| group.group);
        if !rest.is_empty() || !numbers.eq(request.prompts.keys().copied()) {
            return Err(WireError::new(format!(
                "the answer has {} groups, but its request had {}",
                groups.len(),
                request.prompts.len()
            )));
        }
        Collected::from_records(&head, groups, request)
    }

    /// Reads the first answer in `bytes`, and also returns the bytes after it. Settings are taken from the request
    /// `like`; `row` finds a dataset row by its index.
    pub fn take<'a>(
        bytes: &'a [u8],
        like: &CollectRequest<'_>,
        row: impl Fn(u64) -> Option<Arc<Prompt>>,
    ) -> Result<(Collected, &'a [u8]), WireError> {
        let (head, groups, rest) = take(bytes)?;
        let prompt = |group: &Group| match group.prompt_id.and_then(&row) {
            Some(prompt) => Ok((group.group, prompt)),
            None => Err(WireError::new(format!(
                "group {}: column `prompt_id` names a row that the data lacks",
                group.group
            ))),
        };
        let prompts = groups.iter().map(prompt).collect::<Result<Prompts, _>>()?;
        if prompts.len() != groups.len() || !groups.is_sorted_by_key(|group| group.group) {
            return Err(WireError::new("its group numbers must ascend"));
        }
        let request = CollectRequest { prompts, ..*like };
        Ok((Collected::from_records(&head, groups, &request)?, rest))
    }

    fn from_records(
        head: &RecordReader<'_>,
        groups: Vec<Group>,
        request: &CollectRequest<'_>,
    ) -> Result<Collected, WireError> {
        let reward_names = groups.first().map_or_else(Vec::new, |group| group.reward_names.clone());
        if reward_names.len() != request.reward_weights.len() {
            let (found, expected) = (reward_names.len(), request.reward_weights.len());
            return Err(WireError::new(format!("{found} rewards have scores, but expected {expected}")));
        }
        let rows = request.prompts.values();
        let scored =
            rows.zip(groups).map(|(row, group)| scored_group(row, group, request.num_generations, &reward_names));
        let groups = scored.collect::<Result<Vec<_>, _>>()?;
        let check_length = |name: &str, found: usize| {
            if found == reward_names.len() {
                Ok(())
            } else {
                Err(WireError::new(format!("column `{name}` must have one value per reward")))
            }
        };
        let (metrics, problems) = (metrics(head)?, problems(head)?);
        let seconds = floats(head, "seconds")?;
        check_length("seconds", seconds.len())?;
        let timed_out = head.uints("timed_out")?.unwrap_or_default();
        check_length("timed_out", timed_out.len())?;
        let [rollout_s, reward_s, overlapped_s] = floats(head, "times")?[..] else {
            return Err(WireError::new("column `times` must have three values"));
        };
        let rollouts = Rollouts { groups, reward_names, reward_weights: request.reward_weights.to_vec() };
        let timed_out = timed_out.into_iter().map(|completions| completions as usize).collect();
        let scored = ScoredRollouts { rollouts, problems, metrics, overlapped: Vec::new(), seconds, timed_out };
        let next_group = GroupId(one(head, "next_number")?);
        Ok(Collected { scored, next_group, rollout_s, reward_s, overlapped_s })
    }
}

/// The records of the first answer in `bytes`, and the bytes after it.
fn take(bytes: &[u8]) -> Result<(RecordReader<'_>, Vec<Group>, &[u8]), WireError> {
    let (head, mut rest) = RecordReader::take(bytes)?;
    head.refuse_unknown(|name| ["next_number", "groups"].contains(&name))?;
    let mut groups = Vec::new();
    for _ in 0..one(&head, "groups")? {
        let (group, next) = Group::read(rest)?;
        groups.push(group);
        rest = next;
    }
    Ok((head, groups, rest))
}

/// An answer as written, without its times.
#[derive(Debug, PartialEq)]
pub(crate) struct WrittenAnswer {
    /// [`Collected::next_group`].
    pub next_group: GroupId,
    /// Names and values of metrics.
    pub metrics: Vec<(String, f64)>,
    /// Errors of reward functions.
    pub problems: Vec<Value>,
    /// For each reward function, how many completions ran out of time.
    pub timed_out: Vec<u64>,
    /// The groups.
    pub groups: Vec<Group>,
}

/// The concatenated answers in `bytes`.
pub(crate) fn written_answers(mut bytes: &[u8]) -> Result<Vec<WrittenAnswer>, WireError> {
    let mut answers = Vec::new();
    while !bytes.is_empty() {
        let (head, groups, rest) = take(bytes)?;
        answers.push(WrittenAnswer {
            next_group: GroupId(one(&head, "next_number")?),
            metrics: metrics(&head)?,
            problems: problems(&head)?,
            timed_out: head.uints("timed_out")?.unwrap_or_default(),
            groups,
        });
        bytes = rest;
    }
    Ok(answers)
}

/// All groups of the concatenated answers in `bytes`.
pub(crate) fn groups_of_answers(bytes: &[u8]) -> Result<Vec<Group>, WireError> {
    Ok(written_answers(bytes)?.into_iter().flat_map(|answer| answer.groups).collect())
}

fn metrics(head: &RecordReader<'_>) -> Result<Vec<(String, f64)>, WireError> {
    let (names, values) = (head.texts("metrics")?.unwrap_or_default(), floats(head, "metric_values")?);
    if names.len() != values.len() {
        return Err(WireError::new("columns `metrics` and `metric_values` must have equally many values"));
    }
    Ok(names.into_iter().map(str::to_owned).zip(values).collect())
}

fn problems<T: DeserializeOwned>(head: &RecordReader<'_>) -> Result<Vec<T>, WireError> {
    let problem =
        |text: &str| serde_json::from_str(text).map_err(|e| WireError::new(format!("column `problems`: {e}")));
    head.texts("problems")?.unwrap_or_default().into_iter().map(problem).collect()
}

/// Converts a group that was written without its dataset row.
fn scored_group(
    row: &Arc<Prompt>,
    group: Group,
    num_generations: usize,
    reward_names: &[String],
) -> Result<ScoredGroup, WireError> {
    let number = group.group;
    if group.completions.len() != num_generations || group.reward_names != reward_names {
        return Err(WireError::new(format!(
            "group {number} must have {num_generations} completions with scores of the rewards {reward_names:?}"
        )));
    }
    let lacks = |c: &super::Completion| c.versions.len() != c.ids.len() || c.columns.sampler_logps().is_none();
    if group.completions.iter().any(lacks) {
        return Err(WireError::new(format!("group {number}: column `versions` or `token.sampler_logps` is missing")));
    }
    let (content, columns, row_number) = (row.content.clone(), row.columns.clone(), row.row as u64);
    let group = Group { prompt: Some(content), dataset: columns, prompt_id: Some(row_number), ..group };
    let mut scored = group.into_scored()?;
    if scored.prompt.tokens.ids == row.tokens.ids {
        scored.prompt = row.clone();
    }
    Ok(scored)
}

fn one(head: &RecordReader<'_>, name: &str) -> Result<u64, WireError> {
    match head.uints(name)?.as_deref() {
        Some([one]) => Ok(*one),
        _ => Err(WireError::new(format!("column `{name}` must have one number"))),
    }
}

fn floats(head: &RecordReader<'_>, name: &str) -> Result<Vec<f64>, WireError> {
    Ok(head.f64s(name)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SamplingPlan;
    use crate::rollouts::generation::tests::round;
    use crate::rollouts::wire::tests::{widths, with_column};
    use model::columns::SAMPLER_LOGPS;
    use proptest::prelude::*;
    use rewards::ProblemKind;
    use rollout::SamplingParams;
    use telemetry::Step;
    use testing::foreign;

    /// Two groups of two completions; every field of an answer has a value.
    fn collected() -> Collected {
        let mut rollouts = round(&[(7, [Some(0.1), None]), (9, [Some(f64::MIN_POSITIVE), Some(-0.0)])]);
        for (place, c) in rollouts.groups.iter_mut().flat_map(|group| &mut group.completions).enumerate() {
            c.completion.generation = place % 2;
            c.completion.columns.set(SAMPLER_LOGPS, vec![-0.3]);
            c.steps = if place == 0 { vec![Some(vec![(0, 0.7)])] } else { Vec::new() };
            c.extra.insert("note".into(), place.into());
        }
        // A completion from a rollout function, with prompt ids of its own.
        let given = Arc::make_mut(&mut rollouts.groups[1].prompt);
        given.tokens = model::Prompt::new([4, 9]);
        rollouts.groups[0].problems.push(Problem::new("r", 1, "no number").at(vec![1]));
        let problem = Problem { example: Some("x = 1".into()), ..Problem::new("r", 1, "it\nended") };
        let problems = vec![Problem { fatal: true, ..problem.with_kind(ProblemKind::TimedOut) }];
        let metrics = vec![("r/lines".to_owned(), 0.1 + 0.2), ("r/empty".to_owned(), f64::NAN)];
        let (seconds, timed_out) = (vec![0.25], vec![1]);
        let scored = ScoredRollouts { rollouts, problems, metrics, overlapped: Vec::new(), seconds, timed_out };
        Collected { scored, next_group: GroupId(12), rollout_s: 1.5, reward_s: 0.5, overlapped_s: 0.25 }
    }

    fn read(bytes: &[u8], change: impl FnOnce(&mut CollectRequest<'_>)) -> Result<Collected, String> {
        let sampling = SamplingPlan::alike(Arc::new(SamplingParams::default()));
        let rows = round(&[(7, [None; 2]), (9, [None; 2])]).groups;
        let mut request = CollectRequest {
            prompts: rows.into_iter().map(|group| (group.group, group.prompt)).collect(),
            num_generations: 2,
            sampling: &sampling,
            reward_weights: &[1.0],
            step: Step(0),
            refuse_non_finite: false,
            activations: None,
        };
        change(&mut request);
        let read = Collected::from_bytes(bytes, &request).map_err(|error| error.to_string())?;
        let rows = read.scored.rollouts.groups.iter().zip(request.prompts.values());
        let own: Vec<bool> = rows.map(|(group, row)| Arc::ptr_eq(&group.prompt, row)).collect();
        assert_eq!(own, [true, false], "an unchanged row is shared with the request");
        Ok(read)
    }

    /// All fields of a collection as text, in which NaN equals NaN.
    fn text(collected: &Collected) -> String {
        let Collected { scored, next_group, rollout_s, reward_s, overlapped_s } = collected;
        let ScoredRollouts { rollouts, problems, metrics, overlapped, seconds, timed_out } = scored;
        let scored_fields = (rollouts, problems, metrics, overlapped, seconds, timed_out);
        format!("{scored_fields:?} {next_group} {:?}", (rollout_s, reward_s, overlapped_s))
    }

    #[test]
    fn an_answer_is_read_back_unchanged() {
        let expected = collected();
        let found = read(&expected.to_bytes(), |_| {}).unwrap();
        assert_eq!(text(&expected), text(&found));
        assert_eq!(expected.to_bytes(), found.to_bytes());
    }

    #[test]
    fn an_answer_to_another_request_is_refused() {
        let bytes = collected().to_bytes();
        let refused = |change: fn(&mut CollectRequest<'_>)| read(&bytes, change).err().expect("refused");
        assert!(refused(|request| drop(request.prompts.pop_first())).contains("but its request had"));
        assert!(refused(|request| request.num_generations = 3).contains("3 completions"));
        assert!(
            refused(|request| request.reward_weights = &[1.0, 2.0]).contains("1 rewards have scores, but expected 2")
        );
        let group = &bytes[RecordReader::take(&bytes).map(|(_, rest)| bytes.len() - rest.len()).unwrap()..];
        assert!(read(group, |_| {}).is_err(), "the first record is missing");
        let mut without_logps = collected();
        without_logps.scored.rollouts.groups[0].completions[1].completion.columns = model::Columns::default();
        assert!(read(&without_logps.to_bytes(), |_| {}).err().expect("refused").contains("token.sampler_logps"));
    }

    #[test]
    fn an_answer_with_an_invalid_first_record_is_refused() {
        let bytes = collected().to_bytes();
        let names = ["next_number", "groups", "metrics", "metric_values", "problems", "seconds", "timed_out", "times"];
        assert_eq!(widths(&bytes), names.map(|name| (name, 1)));
        let (head, _) = RecordReader::take(&bytes).unwrap();
        assert_eq!(head.f64s("times").unwrap().unwrap(), [1.5, 0.5, 0.25]);
        let unknown = |name: &&str| head.refuse_unknown(|known| known != *name).is_err();
        assert_eq!(names.iter().filter(|name| unknown(name)).collect::<Vec<_>>(), [&"next_number", &"groups"]);
        let error = |name: &str, put: &dyn Fn(&mut RecordWriter)| {
            read(&with_column(&bytes, name, put), |_| {}).err().expect("refused")
        };
        let groups = |groups: u64| error("groups", &|r| r.uints("groups", 1, [groups]));
        assert_eq!(groups(1), "the answer has 1 groups, but its request had 2");
        assert_eq!(groups(3), "0 bytes are not a record: the header alone has 16");
        for name in ["groups", "next_number"] {
            let one = format!("column `{name}` must have one number");
            assert_eq!((error(name, &|_| {}), error(name, &|r| r.uints(name, 1, [2, 2]))), (one.clone(), one));
        }
        for name in ["seconds", "timed_out"] {
            let each = format!("column `{name}` must have one value per reward");
            let two = |r: &mut RecordWriter| match name {
                "seconds" => r.f64s(name, 1, &[1.0, 2.0]),
                name => r.uints(name, 1, [1, 2]),
            };
            assert_eq!((error(name, &|_| {}), error(name, &two)), (each.clone(), each));
        }
        for count in [0, 2, 4] {
            let times = error("times", &|r| r.f64s("times", 1, &vec![1.0; count]));
            assert_eq!(times, "column `times` must have three values");
        }
        let metrics = "columns `metrics` and `metric_values` must have equally many values";
        assert_eq!(error("metrics", &|r| r.texts("metrics", ["x"])), metrics);
        assert_eq!(error("metric_values", &|_| {}), metrics);
        let problem = error("problems", &|r| r.texts("problems", ["{"]));
        assert_eq!(problem, "column `problems`: EOF while parsing an object at line 1 column 1");
        assert!(error("", &|r| r.must_be_known().bytes("later", &[])).contains("column `later`"));
    }

    #[test]
    fn concatenated_answers_are_read_one_by_one() {
        let sampling = SamplingPlan::alike(Arc::new(SamplingParams::default()));
        let like = CollectRequest {
            prompts: Prompts::new(),
            num_generations: 2,
            sampling: &sampling,
            reward_weights: &[0.5],
            step: Step(0),
            refuse_non_finite: false,
            activations: None,
        };
        let rows = round(&[(7, [None; 2]), (9, [None; 2])]).groups;
        let row = |wanted: u64| rows.iter().find(|group| group.group.0 == wanted).map(|group| group.prompt.clone());
        let mut second = collected();
        second.scored.rollouts.groups.truncate(1);
        second.next_group = GroupId(20);
        let bytes = [collected().to_bytes(), second.to_bytes()].concat();
        let (first, rest) = Collected::take(&bytes, &like, row).unwrap();
        assert_eq!((first.next_group.0, first.scored.rollouts.reward_weights), (12, vec![0.5]));
        let (found, rest) = Collected::take(rest, &like, row).unwrap();
        assert_eq!((found.next_group.0, found.scored.rollouts.groups.len(), rest.len()), (20, 1, 0));
        let ids: Vec<u64> = groups_of_answers(&bytes).unwrap().iter().map(|group| group.group.0).collect();
        assert_eq!(ids, [7, 9, 7]);
        assert!(groups_of_answers(&[]).unwrap().is_empty() && groups_of_answers(&bytes[..bytes.len() - 1]).is_err());

        let refused = |change: fn(&mut Vec<ScoredGroup>)| {
            let mut spoiled = collected();
            change(&mut spoiled.scored.rollouts.groups);
            Collected::take(&spoiled.to_bytes(), &like, row).err().expect("refused").to_string()
        };
        let ascend = "its group numbers must ascend";
        assert_eq!(refused(|groups| groups.reverse()), ascend);
        assert_eq!(refused(|groups| groups[1].group = GroupId(7)), ascend);
        assert_eq!(
            refused(|groups| Arc::make_mut(&mut groups[1].prompt).row = 8),
            "group 9: column `prompt_id` names a row that the data lacks"
        );
        let fewer = "group 9 must have 2 completions with scores of the rewards [\"r\"]";
        assert_eq!(refused(|groups| drop(groups[1].completions.pop())), fewer);
        let lacks = "group 7: column `versions` or `token.sampler_logps` is missing";
        assert_eq!(refused(|groups| groups[0].completions[1].completion.versions.clear()), lacks);
    }

    proptest! {
        #![proptest_config(foreign::few())]

        #[test]
        fn parsing_arbitrary_bytes_as_an_answer_never_panics(bytes in foreign::bytes(collected().to_bytes())) {
            let _ = read(&bytes, |_| {});
        }
    }
}
