//! Recorded rollouts for the page: summaries of groups, one group with its completions, and the tokens of completions.

use crate::range::RewardRange;
use crate::series::short;
use lockstep::evaluation::TokenTexts;
use lockstep::wire::file::{GroupFile, IndexEntry};
use lockstep::wire::{Completion, Group, GroupId, NEW_LOGPS};
use serde_json::{Map, Value, json};
use std::collections::HashSet;
use std::time::{Duration, Instant};
use telemetry::Step;

/// Maximum number of a completion's tokens in one response; the page requests the rest.
const WINDOW: usize = 4096;
/// The number of tokens at the end of a prompt in a response: enough to show how the chat template starts the answer.
const PROMPT_END: usize = 16;
/// The maximum time for which a text search or a filter reads groups.
pub(crate) const READ_AT_MOST: Duration = Duration::from_secs(2);

/// The filters and the order of a requested list of groups.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// First optimizer step of the groups.
    pub from: Step,
    /// Last optimizer step of the groups, inclusive.
    pub to: Step,
    /// A filter: `best`, `worst`, `spread`, `no-spread`, `cut` or `updated`.
    pub only: String,
    /// The range of rewards.
    pub rewards: RewardRange,
    /// The order: `step`, `reward`, `spread` or `tokens`; a leading `-` reverses it.
    pub sort: String,
    /// A string that the prompt or a completion must contain.
    pub text: String,
    /// The number of the prompt to which the groups must belong.
    pub prompt: Option<u64>,
    /// The groups whose log-probabilities after the optimizer step were recorded.
    pub updated: HashSet<GroupId>,
    /// Index of the first group in the response; `limit` is the maximum number of groups.
    pub after: usize,
    /// Maximum number of groups in the response.
    pub limit: usize,
}

/// Summaries of the requested groups, and the number of matching groups: `{"total", "unread", "groups": […], "next"}`.
/// `unread` is the number of groups that the search could not read in time. `texts` decodes completions that are
/// recorded as tokens.
pub fn list(file: &GroupFile, wanted: &Wanted, texts: Option<&TokenTexts>) -> Value {
    let step = |entry: &IndexEntry| entry.step.unwrap_or_default();
    let range = wanted.from..=wanted.to;
    let mut places: Vec<usize> = (0..file.index().len()).collect();
    places.retain(|&place| {
        let entry = &file.index()[place];
        range.contains(&step(entry))
            && wanted.prompt.is_none_or(|prompt| prompt == entry.prompt_hash)
            && wanted.rewards.fits_mean(entry.reward)
    });
    let of_index = |place: &usize| &file.index()[*place];
    match wanted.only.as_str() {
        "spread" => places.retain(|place| of_index(place).reward_std > 1e-8),
        "no-spread" => places.retain(|place| of_index(place).reward_std <= 1e-8),
        "updated" => places.retain(|place| wanted.updated.contains(&of_index(place).group)),
        "best" | "worst" => order(&mut places, |place| of_index(place).reward, wanted.only == "best"),
        _ => {}
    }
    let (key, turned) = wanted.sort.strip_prefix('-').map_or((wanted.sort.as_str(), false), |key| (key, true));
    let number = |place: &usize| -> f64 {
        let entry = of_index(place);
        match key {
            "reward" => entry.reward,
            "spread" => entry.reward_std,
            "tokens" => f64::from(entry.tokens),
            _ => step(entry).0 as f64,
        }
    };
    if !key.is_empty() {
        order(&mut places, number, turned);
    }
    let reads = wanted.only == "cut" || !wanted.text.is_empty() || wanted.rewards.reads();
    let mut unread = 0;
    if reads {
        let (since, text) = (Instant::now(), wanted.text.to_lowercase());
        places.retain(|&place| {
            if since.elapsed() > READ_AT_MOST {
                unread += 1;
                return false;
            }
            let is_wanted = |group: Group| wanted.rewards.fits_one(&group) && fits(&group, &wanted.only, &text, texts);
            file.read(place).is_ok_and(is_wanted)
        });
    }
    let shown: Vec<Value> = places
        .iter()
        .skip(wanted.after)
        .take(wanted.limit)
        .map(|&place| summary(file, place, &wanted.updated))
        .collect();
    let next = wanted.after + shown.len();
    let next = if next < places.len() { Some(next) } else { None };
    json!({ "total": places.len(), "unread": unread, "groups": shown, "next": next })
}

/// Sorts by a number, in descending order if `turned`. Groups without a score come last in both orders.
fn order(places: &mut [usize], number: impl Fn(&usize) -> f64, turned: bool) {
    places.sort_by(|a, b| number(a).total_cmp(&number(b)));
    if turned {
        places.reverse();
    }
    places.sort_by_key(|place| number(place).is_nan());
}

/// Whether the group has a truncated completion (if `only` requires one), and whether its prompt or a completion
/// contains `text`, which is in lower case.
fn fits(group: &Group, only: &str, text: &str, texts: Option<&TokenTexts>) -> bool {
    let is_cut = || group.lines().iter().any(|line| line.get("truncated") == Some(&Value::Bool(true)));
    let has = |found: &str| found.to_lowercase().contains(text);
    let in_completion = |c: &Completion| match &c.content {
        Some(found) => has(&plain(&json!(found))),
        None => texts.and_then(|texts| texts.text(&c.ids).ok()).is_some_and(|found| has(&found)),
    };
    (only != "cut" || is_cut())
        && (text.is_empty()
            || group.prompt.as_ref().is_some_and(|found| has(&plain(&json!(found))))
            || group.completions.iter().any(in_completion))
}

/// The text of a prompt or completion; for chat messages, their contents.
pub(crate) fn plain(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(messages) => {
            let texts = messages.iter().filter_map(|message| message.get("content")?.as_str());
            texts.collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

/// A group's prompt, as text.
pub(crate) fn whole_prompt_of(file: &GroupFile, place: usize) -> String {
    file.read(place).ok().and_then(|group| Some(plain(&json!(group.prompt?)))).unwrap_or_default()
}

/// The beginning of a group's prompt, as text.
pub(crate) fn prompt_of(file: &GroupFile, place: usize) -> String {
    whole_prompt_of(file, place).chars().take(160).collect()
}

fn summary(file: &GroupFile, place: usize, updated: &HashSet<GroupId>) -> Value {
    let entry = &file.index()[place];
    json!({
        "place": place,
        "group": entry.group,
        "step": entry.step,
        "reward": short(entry.reward),
        "spread": short(entry.reward_std),
        "completions": entry.completions,
        "tokens": entry.tokens,
        "prompt_hash": format!("{:016x}", entry.prompt_hash),
        "prompt": prompt_of(file, place),
        "scored": updated.contains(&entry.group),
    })
}

/// A map of rewards with at most `pixels` columns and `rows` rows. A column contains the groups of consecutive steps,
/// the best first: `{"steps", "width", "cells": [[[reward, spread, place], …], …]}`. Columns before the one with the
/// step `from` are omitted: a page that follows a run already has them.
pub fn map(file: &GroupFile, pixels: usize, rows: usize, from: Step) -> Value {
    let steps: Vec<u64> = file.index().iter().filter_map(|entry| Some(entry.step?.0)).collect();
    let (first, last) = (steps.iter().min().copied().unwrap_or(0), steps.iter().max().copied().unwrap_or(0));
    let width = (last - first + 1).div_ceil(pixels.max(1) as u64).max(1);
    let mut columns: std::collections::BTreeMap<u64, Vec<usize>> = Default::default();
    let from = from.0.saturating_sub(first) / width * width + first;
    for (place, entry) in file.index().iter().enumerate() {
        if let Some(step) = entry.step.map(|step| step.0).filter(|&step| step >= from) {
            columns.entry((step - first) / width * width + first).or_default().push(place);
        }
    }
    let cell = |place: &usize| {
        let entry = &file.index()[*place];
        json!([short(entry.reward), short(entry.reward_std), place])
    };
    let cells: Vec<Vec<Value>> = columns
        .values_mut()
        .map(|places| {
            order(places, |place| file.index()[*place].reward, true);
            // If there are too many groups, every nth one is shown, so that the distribution stays the same.
            let every = places.len().div_ceil(rows.max(1)).max(1);
            places.iter().step_by(every).map(cell).collect()
        })
        .collect();
    json!({ "steps": columns.keys().collect::<Vec<_>>(), "width": width, "cells": cells })
}

/// The groups whose log-probabilities after the optimizer step were recorded.
pub fn updated(updates: Option<&GroupFile>) -> HashSet<GroupId> {
    updates.iter().flat_map(|file| file.index()).map(|entry| entry.group).collect()
}

/// The group in `updated` whose step is nearest to the step of group `place`: `{"place", "step"}`.
fn nearest(file: &GroupFile, place: usize, updated: &HashSet<GroupId>) -> Value {
    let index = file.index();
    let step = index[place].step.unwrap_or_default();
    let scored = (0..index.len()).filter(|&other| updated.contains(&index[other].group));
    let away = |other: &usize| index[*other].step.map_or(u64::MAX, |other| other.0.abs_diff(step.0));
    scored.min_by_key(away).map_or(Value::Null, |other| json!({ "place": other, "step": index[other].step }))
}

/// The recorded log-probabilities of each completion's tokens after the optimizer step; empty if they are not recorded.
fn after_step(updates: Option<&GroupFile>, group: GroupId) -> Vec<Vec<Value>> {
    let Some(file) = updates else { return Vec::new() };
    // A resumed run may train on a group again and record it twice: the last record is used.
    let place = file.index().iter().rposition(|entry| entry.group == group);
    let Some(found) = place.and_then(|place| file.read(place).ok()) else { return Vec::new() };
    let logps = |c: &lockstep::wire::Completion| {
        c.columns.f32(NEW_LOGPS).unwrap_or_default().iter().map(|&logp| telemetry::number(logp)).collect()
    };
    found.completions.iter().map(logps).collect()
}

/// A group with its completions, and the first tokens of each completion.
pub fn group(
    file: &GroupFile,
    place: usize,
    texts: Option<&TokenTexts>,
    updates: Option<&GroupFile>,
) -> anyhow::Result<Value> {
    let group = file.read(place)?;
    let updated = updated(updates);
    let mut of_group = summary(file, place, &updated);
    let (lines, after) = (group.lines(), after_step(updates, group.group));
    let completions =
        lines.iter().enumerate().map(|(number, line)| completion(line, number, texts, after.get(number), (0, WINDOW)));
    let completions = completions.collect::<anyhow::Result<Vec<_>>>()?;
    if let (Value::Object(of_group), Some(first)) = (&mut of_group, lines.first()) {
        let mut put = |key: &str, value: Option<&Value>| {
            of_group.insert(key.to_owned(), value.cloned().unwrap_or(Value::Null));
        };
        put("prompt", first.get("prompt"));
        put("prompt_id", first.get("prompt_id"));
        put("columns", first.get("columns"));
        put("sampling", first.get("sampling"));
        put("lineage", first.get("lineage"));
        put("reward_names", first.get("reward_names"));
        let end = &group.prompt_ids[group.prompt_ids.len().saturating_sub(PROMPT_END)..];
        of_group.insert("prompt_end".into(), json!(texts.and_then(|texts| texts.text(end).ok())));
        of_group.insert("nearest_scored".into(), nearest(file, place, &updated));
        of_group.insert("weights".into(), json!(group.reward_weights));
        of_group.insert("problems".into(), json!(group.problems));
        of_group.insert("completions".into(), completions.into());
    }
    Ok(of_group)
}

/// The tokens of a completion, starting at index `from`.
pub fn window(
    file: &GroupFile,
    place: usize,
    number: usize,
    texts: Option<&TokenTexts>,
    updates: Option<&GroupFile>,
    (from, count): (usize, usize),
) -> anyhow::Result<Option<Value>> {
    let group = file.read(place)?;
    let (lines, after) = (group.lines(), after_step(updates, group.group));
    let window = (from, count.min(WINDOW));
    lines.get(number).map(|line| completion(line, number, texts, after.get(number), window)).transpose()
}

fn completion(
    line: &Map<String, Value>,
    number: usize,
    texts: Option<&TokenTexts>,
    after: Option<&Vec<Value>>,
    (from, count): (usize, usize),
) -> anyhow::Result<Value> {
    let ids: Vec<u32> = serde_json::from_value(line.get("completion_ids").cloned().unwrap_or_default())?;
    let end = from.saturating_add(count).min(ids.len());
    let cut = from.min(end)..end;
    let pieces = texts.map(|texts| texts.pieces(&ids[cut.clone()])).transpose()?;
    let of_tokens = |value: Option<&Value>| -> Value {
        match value.and_then(Value::as_array) {
            Some(values) if values.len() == ids.len() => values[cut.clone()].to_vec().into(),
            _ => Value::Null,
        }
    };
    let column = |name: &str| of_tokens(line.get("tokens").and_then(|tokens| tokens.get(name)));
    let advantage = line.get("advantages");
    Ok(json!({
        "number": number,
        "length": ids.len(),
        "from": cut.start,
        "ids": ids[cut.clone()],
        "pieces": pieces,
        "text": line.get("completion").map(plain),
        "logprobs": of_tokens(line.get("logprobs")),
        "new_logprobs": after.filter(|values| values.len() == ids.len()).map(|values| &values[cut.clone()]),
        "entropies": column("entropies"),
        "values": column("values"),
        "advantages": of_tokens(advantage),
        "advantage": advantage.filter(|advantage| advantage.is_number()),
        "mask": of_tokens(line.get("loss_mask").or(line.get("sampled"))),
        "rewards": line.get("rewards"),
        "truncated": line.get("truncated"),
        "versions": line.get("versions"),
        "extra": line.get("extra"),
    }))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use lockstep::wire::file::GroupLog;

    /// Writes these groups in the format of a run.
    pub(crate) fn recorded(dir: &std::path::Path, groups: impl IntoIterator<Item = Group>) -> GroupFile {
        let path = dir.join("rollouts.bin");
        let mut log = GroupLog::open(&path).unwrap();
        for group in groups {
            let mut record = Vec::new();
            group.write(&mut record);
            log.append(&record).unwrap();
        }
        drop(log);
        GroupFile::open(&path).unwrap()
    }

    /// Writes four groups with two completions each, from two prompts, at steps 1 and 2. The rewards in the last group
    /// are equal.
    fn file(dir: &std::path::Path) -> GroupFile {
        let groups = (0..4u64).map(|id| {
            let completion = |generation: usize| Completion {
                rewards: vec![Some(id as f64 + if id < 3 { generation as f64 } else { 0.0 })],
                content: Some(format!("answer {id} {generation}").into()),
                ..Completion::new(generation, vec![1, 2, 3])
            };
            Group {
                group: GroupId(id),
                step: Some(Step(id / 2 + 1)),
                prompt_ids: vec![(id % 2) as u32],
                prompt: Some(format!("question {}", id % 2).into()),
                reward_names: vec!["r".into()],
                reward_weights: vec![1.0],
                completions: vec![completion(0), completion(1)],
                ..Group::default()
            }
        });
        recorded(dir, groups)
    }

    #[test]
    fn groups_can_be_filtered_sorted_and_searched() {
        let dir = tempfile::tempdir().unwrap();
        let file = file(dir.path());
        let numbers = |wanted: Wanted| -> Vec<u64> {
            let answer = list(&file, &Wanted { to: Step(9), limit: 20, ..wanted }, None);
            answer["groups"].as_array().unwrap().iter().map(|group| group["group"].as_u64().unwrap()).collect()
        };
        let only = |only: &str| Wanted { only: only.into(), ..Wanted::default() };
        assert_eq!(numbers(Wanted::default()), [0, 1, 2, 3]);
        assert_eq!(numbers(only("best")), [3, 2, 1, 0]);
        assert_eq!(numbers(only("no-spread")), [3]);
        assert_eq!(numbers(only("spread")), [0, 1, 2]);
        assert_eq!(numbers(Wanted { sort: "-reward".into(), ..Wanted::default() }), [3, 2, 1, 0]);
        assert_eq!(numbers(Wanted { from: Step(2), ..Wanted::default() }), [2, 3]);
        assert_eq!(numbers(Wanted { text: "ANSWER 2".into(), ..Wanted::default() }), [2]);
        let prompt = file.index()[1].prompt_hash;
        assert_eq!(numbers(Wanted { prompt: Some(prompt), ..Wanted::default() }), [1, 3]);
        let first = list(&file, &Wanted { to: Step(9), limit: 3, ..Wanted::default() }, None);
        assert_eq!((&first["total"], &first["next"]), (&json!(4), &json!(3)));
        assert_eq!(map(&file, 10, 10, Step(0))["cells"][0][0], json!([1.5, 0.5, 1]));
    }

    #[test]
    fn a_group_is_returned_with_completions_and_windows_of_tokens() {
        let dir = tempfile::tempdir().unwrap();
        let file = file(dir.path());
        let one = group(&file, 2, None, Some(&file)).unwrap();
        assert_eq!(one["prompt"], "question 0");
        assert_eq!(one["completions"][1]["text"], "answer 2 1");
        assert_eq!(one["completions"][1]["rewards"], json!([3.0]));
        assert_eq!(
            one["completions"][1]["new_logprobs"],
            Value::Null,
            "without updates.bin there are no new log-probabilities"
        );
        // Group 2 is recorded twice: once, and again after a resume.
        let updates = dir.path().join("updates.bin");
        let mut log = GroupLog::open(&updates).unwrap();
        for logp in [-9.0, -0.5] {
            let mut completion = Completion::new(1, vec![1, 2, 3]);
            completion.columns.set(NEW_LOGPS, vec![-1.0, logp, -2.0]);
            let completions = vec![Completion::new(0, vec![1, 2, 3]), completion];
            let mut record = Vec::new();
            Group { group: GroupId(2), completions, ..Group::default() }.write(&mut record);
            log.append(&record).unwrap();
        }
        let updates = GroupFile::open(&updates).unwrap();
        let one = group(&file, 2, None, Some(&updates)).unwrap();
        assert_eq!(one["scored"], true);
        let other = group(&file, 0, None, Some(&updates)).unwrap();
        assert_eq!((&other["scored"], &other["nearest_scored"]), (&json!(false), &json!({ "place": 2, "step": 2 })));
        assert_eq!(one["completions"][1]["new_logprobs"], json!([-1.0, -0.5, -2.0]));
        assert_eq!(one["completions"][0]["new_logprobs"], Value::Null);
        let wanted = Wanted {
            to: Step(9),
            limit: 9,
            only: "updated".into(),
            updated: updated(Some(&updates)),
            ..Wanted::default()
        };
        assert_eq!(list(&file, &wanted, None)["groups"][0]["group"], 2);
        assert_eq!(list(&file, &wanted, None)["total"], 1);
        let cut = window(&file, 2, 1, None, Some(&updates), (1, 1)).unwrap().unwrap();
        assert_eq!((&cut["from"], &cut["ids"], &cut["length"]), (&json!(1), &json!([2]), &json!(3)));
        assert_eq!(cut["new_logprobs"], json!([-0.5]));
        assert!(window(&file, 2, 9, None, None, (0, 1)).unwrap().is_none());
    }
}

#[cfg(test)]
mod list_tests;
