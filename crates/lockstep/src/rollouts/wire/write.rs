//! Writes a group as a record, with one column per field. [`read`](super::read) reads it.

use super::group::Group;
use super::record::RecordWriter;
use super::view::{CompletionView, GroupView, json};

use model::columns::{Column, Columns, Values};
use rollout::FinishReason;
use std::collections::BTreeMap;
use train::Advantage;

/// Prefix of the names of columns with values of a completion's tokens.
pub(super) const TOKEN: &str = "token.";
/// Prefix of the names of columns with values of the prompt's tokens.
pub(super) const PROMPT: &str = "prompt.";
/// Prefix of the names of columns that mark the completions with values in another column.
pub(super) const HAS: &str = "has.";
/// The finish reasons, indexed by their number in the format.
pub(super) const REASONS: [FinishReason; 3] = [FinishReason::Stop, FinishReason::Length, FinishReason::Unfinished];

impl Group {
    /// Appends the group to `to` as one record. Equal groups have equal bytes.
    ///
    /// # Panics
    /// If a list of a completion does not have one element per token, or one per reward function where it must.
    pub fn write(&self, to: &mut Vec<u8>) {
        GroupView::new(self).write(to);
    }
}

impl GroupView<'_> {
    /// Appends the group to `to` as one record, like [`Group::write`].
    pub(super) fn write(&self, to: &mut Vec<u8>) {
        let mut record = RecordWriter::new();
        record.must_be_known().uints("group", 1, [self.group.0]);
        record.must_be_known().uints("prompt_ids", 1, ids(self.prompt_ids));
        record.must_be_known().uints("lengths", 1, self.completions.iter().map(|c| c.ids.len() as u64));
        record.must_be_known().uints("ids", 1, self.completions.iter().flat_map(|c| ids(c.ids)));
        self.put_header(&mut record);
        self.put_scores(&mut record);
        self.put_completions(&mut record);
        self.put_tokens(&mut record);
        record.finish(to);
    }

    fn put_header(&self, record: &mut RecordWriter) {
        let mut uint = |name: &str, value: Option<u64>| value.into_iter().for_each(|v| record.uints(name, 1, [v]));
        uint("step", self.step.map(|step| step.0));
        uint("prompt_id", self.prompt_id);
        uint("prompt_in_batch", self.prompt_in_batch);
        if let Some(prompt) = self.prompt {
            record.texts("prompt", [json(prompt)]);
        }
        if !self.dataset.is_empty() {
            record.texts("dataset", [json(self.dataset)]);
        }
        if !self.sampling.is_empty() {
            record.texts("sampling", [&self.sampling]);
        }
        if let Some(lineage) = &self.lineage {
            record.bytes("lineage", &lineage.0);
        }
        for (name, column) in self.prompt_columns.into_iter().flat_map(Columns::iter) {
            put_values(record, &format!("{PROMPT}{name}"), column.width, [column]);
        }
    }

    fn put_scores(&self, record: &mut RecordWriter) {
        if !self.problems.is_empty() {
            record.texts("problems", &self.problems);
        }
        if self.reward_names.is_empty() {
            return;
        }
        record.texts("reward_names", self.reward_names);
        if !self.reward_weights.is_empty() {
            record.f64s("reward_weights", 1, self.reward_weights);
        }
        for c in &self.completions {
            assert_eq!(c.rewards.len(), self.reward_names.len(), "rewards must have one entry per reward function");
        }
        let scores = || self.completions.iter().flat_map(|c| c.rewards);
        record.runs("scored", scores().map(|score| u64::from(score.is_some())));
        record.f64s("scores", 1, scores().flatten());
        if self.completions.iter().any(|c| !c.steps.is_empty()) {
            record.texts("step_scores", self.completions.iter().map(|c| json(&c.steps)));
        }
    }

    fn put_completions(&self, record: &mut RecordWriter) {
        let all = &self.completions;
        if all.iter().enumerate().any(|(place, c)| c.generation != place) {
            record.uints("generations", 1, all.iter().map(|c| c.generation as u64));
        }
        if let Some(with) = self.having(record, "finish_reasons", |c| c.finish_reason.is_some()) {
            let code = |c: &CompletionView<'_>| REASONS.iter().position(|&reason| Some(reason) == c.finish_reason);
            record.runs("finish_reasons", with.iter().filter_map(|c| code(c)).map(|code| code as u64));
        }
        if let Some(with) = self.having(record, "completions", |c| c.content.is_some()) {
            record.texts("completions", with.iter().map(|c| json(&c.content)));
        }
        if all.iter().any(|c| !c.extra.is_empty()) {
            record.texts("extra", all.iter().map(|c| json(&c.extra)));
        }
        if all.iter().any(|c| c.fork.is_some()) {
            let pair = |c: &CompletionView<'_>| c.fork.map_or([0, 0], |fork| [fork.parent as u64 + 1, fork.at as u64]);
            record.uints("forks", 2, all.iter().flat_map(pair));
        }
    }

    fn put_tokens(&self, record: &mut RecordWriter) {
        for c in &self.completions {
            let lengths = [c.sampled.len(), c.loss_mask.len()];
            assert_eq!(lengths, [c.ids.len(); 2], "masks must have one element per token");
        }
        let sequence = |c: &CompletionView<'_>| matches!(c.advantage, Some(Advantage::Sequence(_)));
        if let Some(with) = self.having(record, "advantages", sequence) {
            let one = |c: &&CompletionView<'_>| match c.advantage {
                Some(Advantage::Sequence(a)) => *a,
                _ => unreachable!("filtered"),
            };
            record.f32s("advantages", 1, &with.iter().map(one).collect::<Vec<_>>());
        }
        let tokens = |c: &CompletionView<'_>| matches!(c.advantage, Some(Advantage::Tokens(_)));
        if let Some(with) = self.having(record, "token_advantages", tokens) {
            record.f32s("token_advantages", 1, with.iter().flat_map(|c| token_advantages(c)));
        }
        let all = || self.completions.iter();
        if all().any(|c| c.loss_mask != c.sampled) {
            record.runs("mask", all().flat_map(|c| c.loss_mask).map(|&used| u64::from(used)));
        }
        if all().any(|c| c.sampled.contains(&false)) {
            record.runs("inserted", all().flat_map(|c| c.sampled).map(|&sampled| u64::from(!sampled)));
        }
        if let Some(with) = self.having(record, "versions", |c| !c.versions.is_empty()) {
            assert!(with.iter().all(|c| c.versions.len() == c.ids.len()), "versions must have one element per token");
            record.runs("versions", with.iter().flat_map(|c| c.versions.iter().map(|version| version.0)));
        }
        // Columns of the same name may differ in type or width; each combination of type and width becomes a separate
        // column with its own completions.
        let mut columns: BTreeMap<&str, Vec<Option<&Column>>> = BTreeMap::new();
        for (place, c) in all().enumerate() {
            for (name, column) in c.columns.iter() {
                columns.entry(name).or_insert_with(|| vec![None; self.completions.len()])[place] = Some(column);
            }
        }
        for (name, by_completion) in columns {
            let name = format!("{TOKEN}{name}");
            put_has(record, &name, by_completion.iter().map(Option::is_some));
            for (column, c) in
                by_completion.iter().zip(all()).filter_map(|(column, c)| column.map(|column| (column, c)))
            {
                assert_eq!(values_of(column), column.width * c.ids.len(), "`{name}` must have values for each token");
            }
            let there: Vec<&Column> = by_completion.into_iter().flatten().collect();
            put_values(record, &name, there[0].width, there.iter().copied());
        }
    }

    /// The completions for which `has` is true. If only some are, a `has.NAME` column marks them. `None` if none are.
    fn having(
        &self,
        record: &mut RecordWriter,
        name: &str,
        has: impl Fn(&CompletionView<'_>) -> bool,
    ) -> Option<Vec<&CompletionView<'_>>> {
        let with: Vec<&CompletionView<'_>> = self.completions.iter().filter(|c| has(c)).collect();
        if with.is_empty() {
            return None;
        }
        put_has(record, name, self.completions.iter().map(&has));
        Some(with)
    }
}

fn put_has(record: &mut RecordWriter, name: &str, has: impl Iterator<Item = bool> + Clone) {
    if has.clone().any(|has| !has) {
        record.runs(&format!("{HAS}{name}"), has.map(u64::from));
    }
}

fn put_values<'a>(record: &mut RecordWriter, name: &str, width: usize, columns: impl IntoIterator<Item = &'a Column>) {
    let columns: Vec<&Column> = columns.into_iter().collect();
    let same_kind = columns.windows(2).all(|pair| {
        std::mem::discriminant(&pair[0].values) == std::mem::discriminant(&pair[1].values)
            && pair[0].width == pair[1].width
    });
    assert!(same_kind, "`{name}` must have one kind and one width in all completions");
    match columns.first().map(|column| &column.values) {
        Some(Values::U32(_)) => {
            let of = |column: &&'a Column| match &column.values {
                Values::U32(values) => &values[..],
                Values::F32(_) => unreachable!("checked"),
            };
            record.uints(name, width, columns.iter().flat_map(of).map(|&id| u64::from(id)));
        }
        _ => {
            let of = |column: &&'a Column| match &column.values {
                Values::F32(values) => &values[..],
                Values::U32(_) => unreachable!("checked"),
            };
            record.f32s(name, width, columns.iter().flat_map(of));
        }
    }
}

fn values_of(column: &Column) -> usize {
    match &column.values {
        Values::F32(values) => values.len(),
        Values::U32(values) => values.len(),
    }
}

fn token_advantages<'a>(completion: &CompletionView<'a>) -> &'a [f32] {
    match completion.advantage {
        Some(Advantage::Tokens(advantages)) => {
            assert_eq!(advantages.len(), completion.ids.len(), "advantages must have one element per token");
            advantages
        }
        _ => &[],
    }
}

fn ids(ids: &[u32]) -> impl Iterator<Item = u64> {
    ids.iter().map(|&id| u64::from(id))
}
