//! A view of a model for one forward or backward pass: the base weights, and the LoRA adapter of each sequence.

use super::low_rank::LowRank;
use super::{Adapter, LoraConfig, Weights};
use crate::{Head, ModelConfig, Updates};
use kernels::ops::lora;
use kernels::{Error, Matrix, Result};
use std::ops::Range;
use std::sync::Arc;

/// The adapters of a pass. A sequence without an adapter uses only the base weights, as the reference model does.
#[derive(Clone, Copy, Debug, Default)]
pub enum Adapters<'a> {
    /// No adapter.
    #[default]
    Off,
    /// One adapter for every sequence.
    One(&'a Adapter),
    /// One adapter or none for each sequence: for each branch of a packed batch, in the order given, or for each block
    /// table of an inference step. Branches that share a prefix must have the same adapter.
    PerSequence(&'a [Option<&'a Adapter>]),
}

impl<'a> Adapters<'a> {
    /// Converts a list with one adapter or none for each sequence. The result is [`PerSequence`](Self::PerSequence)
    /// only if the entries differ.
    pub fn from_sequences(adapters: &'a [Option<&'a Adapter>]) -> Adapters<'a> {
        match adapters.first() {
            Some(&first) if adapters.iter().all(|&other| same(first, other)) => {
                first.map_or(Adapters::Off, Adapters::One)
            }
            Some(_) => Adapters::PerSequence(adapters),
            None => Adapters::Off,
        }
    }
}

/// The weights and adapters that a pass computes with. Plain [`Weights`] convert to a view without adapters.
#[derive(Clone, Copy, Debug)]
pub struct ModelView<'a> {
    /// The base weights.
    pub weights: &'a Weights,
    /// The adapters that are added to the base weights.
    pub adapters: Adapters<'a>,
}

/// Versions of the weights that a KV cache was computed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// The version of the base weights.
    pub base: Updates,
    /// The version of the adapter; `None` if there is no adapter, or if sequences have different adapters.
    pub adapter: Option<Updates>,
}

impl Version {
    /// The version of the trained parameters: of the adapter, or of the base weights without an adapter.
    pub fn trained(self) -> Updates {
        self.adapter.unwrap_or(self.base)
    }
}

impl<'a> From<&'a Weights> for ModelView<'a> {
    fn from(weights: &'a Weights) -> ModelView<'a> {
        ModelView { weights, adapters: Adapters::Off }
    }
}

impl<'a> ModelView<'a> {
    /// A view of `weights`, with `adapter` for every sequence if there is one.
    pub fn new(weights: &'a Weights, adapter: Option<&'a Adapter>) -> ModelView<'a> {
        ModelView { weights, adapters: adapter.map_or(Adapters::Off, Adapters::One) }
    }
    /// The model's configuration.
    pub fn config(&self) -> &'a Arc<ModelConfig> {
        &self.weights.config
    }
    /// The adapter that every sequence uses; `None` if there is no adapter, or if sequences have different adapters.
    pub fn adapter(&self) -> Option<&'a Adapter> {
        match self.adapters {
            Adapters::One(adapter) => Some(adapter),
            _ => None,
        }
    }
    /// The settings of the adapter that every sequence uses.
    pub fn lora(&self) -> Option<&'a LoraConfig> {
        self.adapter().map(|a| &a.lora)
    }
    /// The versions of the base weights and of the adapter.
    pub fn version(&self) -> Version {
        Version { base: self.weights.version, adapter: self.adapter().map(|a| a.version) }
    }
    /// The matrix of the head, which turns hidden states into logits or scores.
    pub fn head(&self) -> Result<&'a Matrix> {
        match (self.weights.config.head, self.adapters) {
            (Head::Lm, _) | (_, Adapters::Off) => Ok(self.weights.head()),
            (Head::Score(_), Adapters::One(adapter)) => {
                Ok(adapter.params.head.as_ref().expect("an adapter of a score model has a score head"))
            }
            (Head::Score(_), Adapters::PerSequence(_)) => Err(Error::Value {
                op: "head",
                message: "scores need one adapter for all sequences, since each adapter has its own head".into(),
            }),
        }
    }
}

/// The adapter of each row of a pass.
pub(crate) enum RowAdapters<'a> {
    /// The same adapter, or none, for all rows.
    All(Option<&'a Adapter>),
    /// Ranges of rows in ascending order, each with the index of a sequence that has the range's adapter, and the
    /// adapters by sequence. Rows between ranges have no adapter.
    Ranges(&'a [(Range<usize>, usize)], &'a [Option<&'a Adapter>]),
}

/// Memory for the ranges of [`RowAdapters`]. It is reused from step to step, so that a step allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct AdapterRanges(Vec<(Range<usize>, usize)>);

impl<'a> RowAdapters<'a> {
    /// Finds the adapter of each row. `sequences` yields consecutive ranges of rows, each with the range of sequences
    /// to which the rows belong; all sequences of a range must have the same adapter.
    pub fn new(
        adapters: Adapters<'a>,
        sequences: impl Iterator<Item = (Range<usize>, Range<usize>)>,
        AdapterRanges(ranges): &'a mut AdapterRanges,
    ) -> Result<RowAdapters<'a>> {
        let by_sequence = match adapters {
            Adapters::Off => return Ok(RowAdapters::All(None)),
            Adapters::One(adapter) => return Ok(RowAdapters::All(Some(adapter))),
            Adapters::PerSequence(list) => list,
        };
        let bad = |message: String| Error::Value { op: "adapters", message };
        ranges.clear();
        for (rows, sequences) in sequences {
            let Some(named) = by_sequence.get(sequences.clone()) else {
                return Err(bad(format!(
                    "got {} adapters, but the batch has {} sequences",
                    by_sequence.len(),
                    sequences.end
                )));
            };
            let Some(&first) = named.first() else { continue };
            if !named.iter().all(|&other| same(first, other)) {
                return Err(bad("sequences that share a prefix must have the same adapter".into()));
            }
            match ranges.last_mut() {
                _ if first.is_none() => {}
                Some((before, of)) if before.end == rows.start && same(by_sequence[*of], first) => {
                    before.end = rows.end;
                }
                _ => ranges.push((rows, sequences.start)),
            }
        }
        Ok(RowAdapters::Ranges(ranges, by_sequence))
    }

    /// The adapter that a backward pass trains; `None` if there are no adapters. Fails if rows have different adapters.
    pub fn trained(&self) -> Result<Option<&'a Adapter>> {
        match self {
            RowAdapters::All(adapter) => Ok(*adapter),
            RowAdapters::Ranges(ranges, by_sequence) => {
                let first = ranges.first().and_then(|&(_, of)| by_sequence[of]);
                if ranges.iter().all(|&(_, of)| same(first, by_sequence[of])) {
                    Ok(first)
                } else {
                    let message = "a backward pass trains one adapter, but the batch has several".into();
                    Err(Error::Value { op: "backward", message })
                }
            }
        }
    }
}

/// Whether two sequences have the same adapter object, or neither has one.
fn same(a: Option<&Adapter>, b: Option<&Adapter>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => std::ptr::eq(a, b),
        _ => false,
    }
}

/// The adapters of one linear layer, for some rows of a pass.
#[derive(Clone, Copy)]
pub(crate) struct LowRankRows<'a> {
    pub adapters: &'a RowAdapters<'a>,
    pub layer: usize,
    /// Index of the linear layer in [`Layer::linears`](super::Layer::linears).
    pub linear: usize,
    /// Dropout on the inputs of the adapters.
    pub dropout: Option<lora::Dropout<'a>>,
    /// The index, within the pass, of the first of these rows.
    pub first: usize,
}

impl<'a> LowRankRows<'a> {
    /// The same adapters for a range of these rows.
    pub fn rows(self, rows: Range<usize>) -> LowRankRows<'a> {
        let first = self.first + rows.start;
        LowRankRows { dropout: self.dropout.map(|d| d.rows(rows)), first, ..self }
    }

    /// Whether no adapter of the pass changes this linear layer.
    pub fn is_empty(&self) -> bool {
        match self.adapters {
            RowAdapters::All(adapter) => adapter.is_none_or(|a| self.of(a).is_none()),
            RowAdapters::Ranges(ranges, by_sequence) => {
                ranges.iter().all(|&(_, of)| by_sequence[of].is_none_or(|a| self.of(a).is_none()))
            }
        }
    }

    /// Calls `compute` for each range of the `len` rows that has an adapter on this linear layer.
    pub fn each(
        &self,
        len: usize,
        mut compute: impl FnMut(Range<usize>, &'a LowRank, Option<lora::Dropout<'a>>) -> Result<()>,
    ) -> Result<()> {
        match self.adapters {
            RowAdapters::All(adapter) => match adapter.and_then(|a| self.of(a)) {
                Some(low_rank) => compute(0..len, low_rank, self.dropout),
                None => Ok(()),
            },
            RowAdapters::Ranges(ranges, by_sequence) => ranges.iter().try_for_each(|(rows, of)| {
                let start = rows.start.max(self.first);
                let end = rows.end.min(self.first + len);
                match by_sequence[*of].and_then(|adapter| self.of(adapter)) {
                    Some(low_rank) if start < end => {
                        let rows = start - self.first..end - self.first;
                        compute(rows.clone(), low_rank, self.dropout.map(|d| d.rows(rows)))
                    }
                    _ => Ok(()),
                }
            }),
        }
    }

    fn of(&self, adapter: &'a Adapter) -> Option<&'a LowRank> {
        adapter.params.layers[self.layer].linears()[self.linear].low_rank.as_ref()
    }
}
