//! The sequences of an optimizer batch, in the order in which the model computes them: each with the tokens in its
//! loss, and grouped by shared prompts.

use crate::objective::{Objective, Source};
use crate::{Error, Result, Samples};
use model::packing::{check_groups, followed};
use model::{ModelConfig, Prompt, PromptGroup};
use std::borrow::Cow;
use std::sync::Arc;

/// One sequence of the optimizer batch.
pub(crate) struct Sequence<'a> {
    pub(crate) source: Source<'a>,
    pub(crate) prompt: &'a Arc<Prompt>,
    pub(crate) completion: Cow<'a, [u32]>,
    /// The completion tokens that the loss uses.
    pub(crate) mask: Vec<bool>,
}

/// The sequences of `samples`, after checking that the loss accepts them. A preference pair becomes two sequences,
/// first the chosen one.
pub(crate) fn sequences<'a>(loss: &Objective, samples: Samples<'a>) -> Result<Vec<Sequence<'a>>> {
    if samples.is_empty() {
        return Err(Error::Config("an optimizer step needs at least one sample".into()));
    }
    loss.check(samples)?;
    Ok(match samples {
        Samples::Sequences(samples) => samples
            .iter()
            .map(|sample| Sequence {
                source: Source::Sample(sample),
                prompt: &sample.prompt,
                completion: Cow::Borrowed(&sample.completion),
                mask: loss.loss_mask(sample),
            })
            .collect(),
        Samples::Pairs(pairs) => pairs
            .iter()
            .flat_map(|pair| {
                [(Source::Chosen(pair), &pair.chosen), (Source::Rejected(pair), &pair.rejected)].map(
                    |(source, response)| {
                        let (completion, mask) = scored_tokens(loss, &response.ids);
                        Sequence { source, prompt: &pair.prompt, completion, mask }
                    },
                )
            })
            .collect(),
    })
}

/// The tokens of a response of a preference pair, and a mask of those in the loss. For a reward model, an extra token
/// is appended, at which the score of the response is read; only that token is in the loss.
fn scored_tokens<'a>(loss: &Objective, ids: &'a [u32]) -> (Cow<'a, [u32]>, Vec<bool>) {
    if !matches!(loss, Objective::Ranking(_)) {
        return (Cow::Borrowed(ids), vec![true; ids.len()]);
    }
    let followed = followed(&[], ids);
    let mask = (0..followed.len()).map(|t| t + 1 == followed.len()).collect();
    (Cow::Owned(followed), mask)
}

/// The runs of consecutive sequences that share a prompt (the same `Arc`).
pub(crate) fn prompt_runs<'s, 'a>(sequences: &'s [Sequence<'a>]) -> impl Iterator<Item = &'s [Sequence<'a>]> {
    sequences.chunk_by(|a, b| Arc::ptr_eq(a.prompt, b.prompt))
}

/// Groups consecutive sequences that share a prompt.
pub(crate) fn groups<'a>(model: &ModelConfig, sequences: &'a [Sequence<'_>]) -> Result<Vec<PromptGroup<'a>>> {
    let groups: Vec<PromptGroup<'a>> = prompt_runs(sequences)
        .map(|group| PromptGroup {
            prompt: &group[0].prompt.ids,
            completions: group.iter().map(|s| s.completion.as_ref()).collect(),
        })
        .collect();
    check_groups(model, &groups).map_err(|e| match e {
        model::Error::Sequence { index, message } => {
            // A preference pair has two sequences.
            let index = if sequences[index].source.sample().is_some() { index } else { index / 2 };
            Error::Sample { index, message }
        }
        e => e.into(),
    })?;
    Ok(groups)
}

#[cfg(test)]
mod tests;
