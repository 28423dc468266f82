//! Reads a group from a record; [`write`](super::write) writes it. Lengths and counts in a record are compared with the
//! available bytes before memory is allocated.

use super::group::{Completion, Fork, Group, total};
use super::record::{Kind, RecordReader, WireError};
use super::write::{HAS, PROMPT, REASONS, TOKEN};
use crate::rollouts::lineage::Lineage;
use model::columns::{Column, Values};
use model::{Columns, GroupId, Updates};
use serde::de::DeserializeOwned;
use std::ops::Range;
use telemetry::Step;
use train::Advantage;

/// Names of the columns whose values do not belong to tokens.
pub(crate) const KNOWN: [&str; 27] = [
    "group",
    "prompt_ids",
    "lengths",
    "ids",
    "step",
    "prompt_id",
    "prompt",
    "prompt_in_batch",
    "dataset",
    "sampling",
    "lineage",
    "reward_names",
    "reward_weights",
    "problems",
    "generations",
    "finish_reasons",
    "scored",
    "scores",
    "step_scores",
    "completions",
    "extra",
    "forks",
    "advantages",
    "token_advantages",
    "mask",
    "inserted",
    "versions",
];

impl Group {
    /// Reads the group whose record is at the start of `bytes`, and also returns the bytes after it. Columns unknown to
    /// this version are skipped. An error names the column or the checksum, and the group if its number is readable.
    pub fn read(bytes: &[u8]) -> Result<(Group, &[u8]), WireError> {
        let (record, rest) = RecordReader::take(bytes)?;
        Ok((Group::from_record(&record)?, rest))
    }

    /// Reads all groups of the concatenated records in `bytes`.
    pub fn read_all(mut bytes: &[u8]) -> Result<Vec<Group>, WireError> {
        let (all, mut groups) = (bytes.len(), Vec::new());
        while !bytes.is_empty() {
            let (at, place) = (all - bytes.len(), groups.len());
            let read = Group::read(bytes).map_err(|e| e.of(format!("record {place}, at byte {at}")));
            let (group, rest) = read?;
            groups.push(group);
            bytes = rest;
        }
        Ok(groups)
    }

    /// Converts a record to the group that it contains.
    pub fn from_record(record: &RecordReader<'_>) -> Result<Group, WireError> {
        let fields = Fields::of(record)?;
        let id = fields.id()?;
        fields.group(id).map_err(|e| e.of(format!("group {id}")))
    }
}

/// A group's entry in the index of a file.
#[derive(Debug, PartialEq)]
pub(super) struct Outline {
    pub group: GroupId,
    pub step: Option<Step>,
    pub prompt_ids: Vec<u32>,
    /// The total (weighted) rewards of the completions with a score.
    pub totals: Vec<f64>,
    pub completions: usize,
    pub tokens: u64,
}

impl Outline {
    /// Reads the summary of the group in `record` without decoding the tokens, which would take most of the time.
    pub fn from_record(record: &RecordReader<'_>) -> Result<Outline, WireError> {
        let fields = Fields::of(record)?;
        let id = fields.id()?;
        fields.outline(id).map_err(|e| e.of(format!("group {id}")))
    }
}

/// Converts the columns of a record to the fields of a group.
struct Fields<'a> {
    record: &'a RecordReader<'a>,
}

impl<'a> Fields<'a> {
    /// The fields of `record`. An unknown column that must be known is an error.
    fn of(record: &'a RecordReader<'a>) -> Result<Fields<'a>, WireError> {
        let known = |name: &str| KNOWN.contains(&name) || [TOKEN, PROMPT, HAS].iter().any(|p| name.starts_with(p));
        record.refuse_unknown(known)?;
        Ok(Fields { record })
    }
}

fn missing(name: &str) -> WireError {
    WireError::new(format!("column `{name}` is missing"))
}

fn wrong(name: &str, what: &str) -> WireError {
    WireError::new(format!("column `{name}` {what}"))
}

/// The range of each completion's tokens in a column of all tokens.
struct Tokens {
    ranges: Vec<Range<usize>>,
    all: usize,
}

impl Fields<'_> {
    fn id(&self) -> Result<GroupId, WireError> {
        self.one("group")?.map(GroupId).ok_or_else(|| missing("group"))
    }

    fn outline(&self, group: GroupId) -> Result<Outline, WireError> {
        let lengths = self.record.uints("lengths")?.ok_or_else(|| missing("lengths"))?;
        let (names, weights) = self.rewards()?;
        let rewards = self.scores(lengths.len(), names.len())?;
        Ok(Outline {
            group,
            step: self.one("step")?.map(Step),
            prompt_ids: self.prompt_ids()?,
            totals: rewards.iter().filter_map(|rewards| total(rewards, &weights)).collect(),
            completions: lengths.len(),
            tokens: lengths.iter().fold(0, |sum, &length| sum.saturating_add(length)),
        })
    }

    fn prompt_ids(&self) -> Result<Vec<u32>, WireError> {
        self.ids_of("prompt_ids")?.ok_or_else(|| missing("prompt_ids"))
    }

    /// Names and weights of the rewards.
    fn rewards(&self) -> Result<(Vec<String>, Vec<f64>), WireError> {
        let names: Vec<String> =
            self.record.texts("reward_names")?.unwrap_or_default().into_iter().map(str::to_owned).collect();
        let weights = self.record.f64s("reward_weights")?.unwrap_or_default();
        if weights.is_empty() || weights.len() == names.len() {
            Ok((names, weights))
        } else {
            Err(wrong("reward_weights", "must have one weight for each of `reward_names`"))
        }
    }

    fn group(&self, group: GroupId) -> Result<Group, WireError> {
        let (ids, tokens) = self.ids()?;
        let prompt_ids = self.prompt_ids()?;
        let after_first = prompt_ids.len().saturating_sub(1);
        let (reward_names, reward_weights) = self.rewards()?;
        let mut prompt_columns = Columns::default();
        for name in self.record.names().filter(|name| name.starts_with(PROMPT)) {
            let column = self.column(name, &[after_first])?.pop().expect("one part");
            prompt_columns.insert(name[PROMPT.len()..].to_owned(), column);
        }
        let problems = self.record.texts("problems")?.unwrap_or_default();
        Ok(Group {
            group,
            step: self.one("step")?.map(Step),
            prompt_id: self.one("prompt_id")?,
            prompt: self.json("prompt")?,
            prompt_in_batch: self.one("prompt_in_batch")?,
            prompt_ids,
            prompt_columns,
            dataset: self.json("dataset")?.unwrap_or_default(),
            sampling: self.json("sampling")?.unwrap_or_default(),
            lineage: match self.record.bytes("lineage")? {
                Some(bytes) => Some(Lineage(bytes.try_into().map_err(|_| wrong("lineage", "must have 16 bytes"))?)),
                None => None,
            },
            completions: self.completions(ids, &tokens, reward_names.len())?,
            reward_names,
            reward_weights,
            problems: problems.into_iter().map(|text| parse("problems", text)).collect::<Result<_, _>>()?,
        })
    }

    fn ids(&self) -> Result<(Vec<u32>, Tokens), WireError> {
        let ids = self.ids_of("ids")?.ok_or_else(|| missing("ids"))?;
        let lengths = self.record.uints("lengths")?.ok_or_else(|| missing("lengths"))?;
        let (mut ranges, mut end) = (Vec::with_capacity(lengths.len()), 0usize);
        for length in lengths {
            let next = usize::try_from(length).ok().and_then(|length| end.checked_add(length));
            let next = next.filter(|&next| next <= ids.len());
            let next = next.ok_or_else(|| wrong("lengths", "names more tokens than `ids` has"))?;
            ranges.push(end..next);
            end = next;
        }
        if end != ids.len() {
            return Err(wrong("lengths", "names fewer tokens than `ids` has"));
        }
        Ok((ids, Tokens { ranges, all: end }))
    }

    fn completions(&self, ids: Vec<u32>, tokens: &Tokens, rewards: usize) -> Result<Vec<Completion>, WireError> {
        let count = tokens.ranges.len();
        let mut all: Vec<Completion> = Vec::with_capacity(count);
        for (place, range) in tokens.ranges.iter().enumerate() {
            all.push(Completion::new(place, ids[range.clone()].to_vec()));
        }
        if let Some(generations) = self.record.uints("generations")? {
            self.expect("generations", generations.len(), count)?;
            for (c, generation) in all.iter_mut().zip(generations) {
                c.generation =
                    usize::try_from(generation).map_err(|_| wrong("generations", "has a number that is too large"))?;
            }
        }
        self.masks(&mut all, tokens)?;
        for (c, scores) in all.iter_mut().zip(self.scores(count, rewards)?) {
            c.rewards = scores;
        }
        self.step_scores(&mut all, rewards)?;
        self.for_some(&mut all, "finish_reasons", |fields, name, with| {
            let codes = fields.record.runs(name, with.len())?.unwrap_or_default();
            for (c, code) in with.iter_mut().zip(codes) {
                let reason = usize::try_from(code).ok().and_then(|code| REASONS.get(code).copied());
                c.finish_reason = Some(reason.ok_or_else(|| wrong(name, "has an unknown finish reason"))?);
            }
            Ok(())
        })?;
        self.for_some(&mut all, "completions", |fields, name, with| {
            let texts = fields.texts(name, with.len())?;
            with.iter_mut().zip(texts).try_for_each(|(c, text)| {
                c.content = Some(parse(name, text)?);
                Ok(())
            })
        })?;
        if self.record.kind("extra").is_some() {
            let texts = self.texts("extra", count)?;
            for (c, text) in all.iter_mut().zip(texts) {
                c.extra = parse("extra", text)?;
            }
        }
        self.forks(&mut all)?;
        self.advantages(&mut all)?;
        self.for_some(&mut all, "versions", |fields, name, with| {
            let tokens = with.iter().map(|c| c.ids.len()).sum();
            let versions = fields.record.runs(name, tokens)?.unwrap_or_default();
            let versions: Vec<Updates> = versions.into_iter().map(Updates).collect();
            split(&versions, with, |c, own| c.versions = own.to_vec());
            Ok(())
        })?;
        for name in self.record.names().filter(|name| name.starts_with(TOKEN)) {
            self.for_some(&mut all, name, |fields, name, with| {
                let tokens: Vec<usize> = with.iter().map(|c| c.ids.len()).collect();
                for (c, column) in with.iter_mut().zip(fields.column(name, &tokens)?) {
                    c.columns.insert(name[TOKEN.len()..].to_owned(), column);
                }
                Ok(())
            })?;
        }
        Ok(all)
    }

    fn masks(&self, all: &mut [Completion], tokens: &Tokens) -> Result<(), WireError> {
        let flags = |name: &str| {
            let flags = self.record.runs(name, tokens.all)?;
            flags.map(|flags| flags.into_iter().map(|flag| flag_of(name, flag)).collect()).transpose()
        };
        let (inserted, used): (Option<Vec<bool>>, Option<Vec<bool>>) = (flags("inserted")?, flags("mask")?);
        for (c, range) in all.iter_mut().zip(&tokens.ranges) {
            if let Some(inserted) = &inserted {
                c.sampled = inserted[range.clone()].iter().map(|inserted| !inserted).collect();
            }
            c.loss_mask = used.as_ref().map_or_else(|| c.sampled.clone(), |used| used[range.clone()].to_vec());
        }
        Ok(())
    }

    /// For each of `count` completions, the score of each reward, or `None`.
    fn scores(&self, count: usize, rewards: usize) -> Result<Vec<Vec<Option<f64>>>, WireError> {
        if rewards == 0 {
            return Ok(vec![Vec::new(); count]);
        }
        let expected = count.checked_mul(rewards).ok_or_else(|| wrong("reward_names", "has too many names"))?;
        let scored = self.record.runs("scored", expected)?.ok_or_else(|| missing("scored"))?;
        let scores = self.record.f64s("scores")?.ok_or_else(|| missing("scores"))?;
        let mut next = scores.iter();
        let mut score = |scored: &u64| {
            Ok(if flag_of("scored", *scored)? {
                Some(*next.next().ok_or_else(|| wrong("scores", "has fewer scores than `scored` requires"))?)
            } else {
                None
            })
        };
        let all = scored.chunks_exact(rewards).map(|chunk| chunk.iter().map(&mut score).collect());
        let all = all.collect::<Result<_, _>>()?;
        match next.next() {
            None => Ok(all),
            Some(_) => Err(wrong("scores", "has more scores than `scored` allows")),
        }
    }

    fn step_scores(&self, all: &mut [Completion], rewards: usize) -> Result<(), WireError> {
        if rewards == 0 || self.record.kind("step_scores").is_none() {
            return Ok(());
        }
        let texts = self.texts("step_scores", all.len())?;
        for (c, text) in all.iter_mut().zip(texts) {
            c.steps = parse("step_scores", text)?;
            let tokens = c.ids.len();
            let beyond = c.steps.iter().flatten().flatten().any(|(token, _)| *token >= tokens);
            if beyond || !(c.steps.is_empty() || c.steps.len() == rewards) {
                return Err(wrong("step_scores", "does not fit the completions and `reward_names`"));
            }
        }
        Ok(())
    }

    fn forks(&self, all: &mut [Completion]) -> Result<(), WireError> {
        let Some(forks) = self.record.uints("forks")? else { return Ok(()) };
        let count = all.len();
        let (pairs, odd) = forks.as_chunks::<2>();
        if pairs.len() != count || !odd.is_empty() {
            return Err(wrong("forks", "must have two numbers per completion"));
        }
        let lengths: Vec<usize> = all.iter().map(|c| c.ids.len()).collect();
        for ((place, c), &[parent, at]) in all.iter_mut().enumerate().zip(pairs) {
            let Some(parent) = parent.checked_sub(1) else { continue };
            let fork = usize::try_from(parent).ok().zip(usize::try_from(at).ok());
            let fits = |&(parent, at): &(usize, usize)| {
                parent < count && parent != place && at <= lengths[parent] && at <= lengths[place]
            };
            let (parent, at) = fork.filter(fits).ok_or_else(|| wrong("forks", "refers to a missing token"))?;
            c.fork = Some(Fork { parent, at });
        }
        Ok(())
    }

    fn advantages(&self, all: &mut [Completion]) -> Result<(), WireError> {
        self.for_some(all, "advantages", |fields, name, with| {
            let values = fields.record.f32s(name)?.unwrap_or_default();
            fields.expect(name, values.len(), with.len())?;
            with.iter_mut().zip(values).for_each(|(c, a)| c.advantage = Some(Advantage::Sequence(a)));
            Ok(())
        })?;
        self.for_some(all, "token_advantages", |fields, name, with| {
            let values = fields.record.f32s(name)?.unwrap_or_default();
            fields.expect(name, values.len(), with.iter().map(|c| c.ids.len()).sum())?;
            split(&values, with, |c, own| c.advantage = Some(Advantage::Tokens(own.to_vec())));
            Ok(())
        })
    }

    /// Calls `read` with the completions that have values in the column `name`, if the record has that column.
    fn for_some(
        &self,
        all: &mut [Completion],
        name: &str,
        read: impl FnOnce(&Self, &str, &mut [&mut Completion]) -> Result<(), WireError>,
    ) -> Result<(), WireError> {
        if self.record.kind(name).is_none() {
            return Ok(());
        }
        let has_name = format!("{HAS}{name}");
        let mut has = vec![true; all.len()];
        if let Some(flags) = self.record.runs(&has_name, all.len())? {
            has = flags.into_iter().map(|flag| flag_of(&has_name, flag)).collect::<Result<_, _>>()?;
        }
        let mut with: Vec<&mut Completion> = all.iter_mut().zip(has).filter(|(_, has)| *has).map(|(c, _)| c).collect();
        read(self, name, &mut with)
    }

    /// Reads a column of tokens, split into parts; `tokens` has the number of tokens of each part.
    fn column(&self, name: &str, tokens: &[usize]) -> Result<Vec<Column>, WireError> {
        let width = usize::try_from(self.record.width(name)).map_err(|_| wrong(name, "is too wide"))?;
        let expected = tokens.iter().sum::<usize>().checked_mul(width);
        let fits = |found: usize| {
            if expected == Some(found) {
                Ok(())
            } else {
                Err(wrong(name, &format!("has {found} values, which does not match the tokens and the column's width")))
            }
        };
        let mut parts = Vec::with_capacity(tokens.len());
        match self.record.kind(name) {
            Some(Kind::Uint) => {
                let values = self.ids_of(name)?.unwrap_or_default();
                fits(values.len())?;
                let mut rest = &values[..];
                for tokens in tokens {
                    let (own, next) = rest.split_at(tokens * width);
                    parts.push(Column { width, values: Values::U32(own.to_vec()) });
                    rest = next;
                }
            }
            _ => {
                let values = self.record.f32s(name)?.unwrap_or_default();
                fits(values.len())?;
                let mut rest = &values[..];
                for tokens in tokens {
                    let (own, next) = rest.split_at(tokens * width);
                    parts.push(Column { width, values: Values::F32(own.to_vec()) });
                    rest = next;
                }
            }
        }
        Ok(parts)
    }

    fn one(&self, name: &str) -> Result<Option<u64>, WireError> {
        match self.record.uints(name)?.as_deref() {
            None => Ok(None),
            Some([one]) => Ok(Some(*one)),
            Some(_) => Err(wrong(name, "must have one number")),
        }
    }

    fn ids_of(&self, name: &str) -> Result<Option<Vec<u32>>, WireError> {
        let narrow = |id: u64| u32::try_from(id).map_err(|_| wrong(name, "has a number above 2^32"));
        self.record.uints(name)?.map(|ids| ids.into_iter().map(narrow).collect()).transpose()
    }

    fn texts(&self, name: &str, expected: usize) -> Result<Vec<&str>, WireError> {
        let texts = self.record.texts(name)?.unwrap_or_default();
        self.expect(name, texts.len(), expected)?;
        Ok(texts)
    }

    fn json<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, WireError> {
        match self.record.texts(name)?.as_deref() {
            None => Ok(None),
            Some([text]) => parse(name, text).map(Some),
            Some(_) => Err(wrong(name, "must have one string")),
        }
    }

    fn expect(&self, name: &str, found: usize, expected: usize) -> Result<(), WireError> {
        if found == expected { Ok(()) } else { Err(wrong(name, &format!("must have {expected} values, got {found}"))) }
    }
}

fn parse<T: DeserializeOwned>(name: &str, text: &str) -> Result<T, WireError> {
    serde_json::from_str(text).map_err(|e| wrong(name, &format!("has broken JSON: {e}")))
}

fn flag_of(name: &str, flag: u64) -> Result<bool, WireError> {
    match flag {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(wrong(name, "must contain only 0 and 1")),
    }
}

/// Calls `give` with each completion and its values, for a column with one value per token.
fn split<T>(values: &[T], with: &mut [&mut Completion], mut give: impl FnMut(&mut Completion, &[T])) {
    let mut rest = values;
    for c in with {
        let (own, next) = rest.split_at(c.ids.len());
        give(c, own);
        rest = next;
    }
}
