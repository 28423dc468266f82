//! What a pass computes with: base weights, and the adapter of each sequence.

use super::linear::LowRank;
use super::{Adapter, LoraConfig, Weights};
use crate::{Head, ModelConfig};
use kernels::ops::lora;
use kernels::{Error, Matrix, Result};
use std::ops::Range;
use std::sync::Arc;

/// The adapters of a pass. Without one, a sequence sees the base weights alone: those of the reference model.
#[derive(Clone, Copy, Debug, Default)]
pub enum Adapters<'a> {
    /// None.
    #[default]
    Off,
    /// One for every sequence.
    One(&'a Adapter),
    /// One or none for each sequence: each branch of a batch, as given, or each block table of a step. Branches that
    /// share their prefix must name the same.
    PerSequence(&'a [Option<&'a Adapter>]),
}

impl<'a> Adapters<'a> {
    /// One adapter or none for each sequence: [`PerSequence`](Self::PerSequence) only where they differ.
    pub fn of_sequences(adapters: &'a [Option<&'a Adapter>]) -> Adapters<'a> {
        match adapters.first() {
            Some(&first) if adapters.iter().all(|&other| same(first, other)) => {
                first.map_or(Adapters::Off, Adapters::One)
            }
            Some(_) => Adapters::PerSequence(adapters),
            None => Adapters::Off,
        }
    }
}

/// What a pass computes with. Plain [`Weights`] are a view without adapters.
#[derive(Clone, Copy, Debug)]
pub struct ModelView<'a> {
    /// The base.
    pub weights: &'a Weights,
    /// What is added to it.
    pub adapters: Adapters<'a>,
}

/// The versions that cached keys and values belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// The version of the base weights.
    pub base: u64,
    /// The version of the adapter, where all sequences have the same one.
    pub adapter: Option<u64>,
}

impl Version {
    /// The version of what training changes: the adapter, or the base weights where there is none.
    pub fn trained(self) -> u64 {
        self.adapter.unwrap_or(self.base)
    }
}

impl<'a> From<&'a Weights> for ModelView<'a> {
    fn from(weights: &'a Weights) -> ModelView<'a> {
        ModelView { weights, adapters: Adapters::Off }
    }
}

impl<'a> ModelView<'a> {
    /// `weights` with `adapter` for every sequence, if there is one.
    pub fn new(weights: &'a Weights, adapter: Option<&'a Adapter>) -> ModelView<'a> {
        ModelView { weights, adapters: adapter.map_or(Adapters::Off, Adapters::One) }
    }
    /// The shape of the model.
    pub fn config(&self) -> &'a Arc<ModelConfig> {
        &self.weights.config
    }
    /// The adapter of every sequence; none if there is none, or not one for all.
    pub fn adapter(&self) -> Option<&'a Adapter> {
        match self.adapters {
            Adapters::One(adapter) => Some(adapter),
            _ => None,
        }
    }
    /// What the adapter of every sequence is.
    pub fn lora(&self) -> Option<&'a LoraConfig> {
        self.adapter().map(|a| &a.lora)
    }
    /// The versions of both.
    pub fn version(&self) -> Version {
        Version { base: self.weights.version, adapter: self.adapter().map(|a| a.version) }
    }
    /// What turns hidden rows into logits, or into scores.
    pub fn head(&self) -> Result<&'a Matrix> {
        match (self.weights.config.head, self.adapters) {
            (Head::Lm, _) | (_, Adapters::Off) => Ok(self.weights.head()),
            (Head::Score(_), Adapters::One(adapter)) => {
                Ok(adapter.params.head.as_ref().expect("an adapter of a model of scores has its head"))
            }
            (Head::Score(_), Adapters::PerSequence(_)) => Err(Error::Value {
                op: "head",
                message: "scores need one adapter for all sequences, since each has its own head".into(),
            }),
        }
    }
}

/// The adapter of each row of a pass.
pub(crate) enum RowAdapters<'a> {
    /// The same adapter, or none, for all rows.
    All(Option<&'a Adapter>),
    /// Those of ascending ranges of rows, by a sequence that names it; rows between them have none.
    Ranges(&'a [(Range<usize>, usize)], &'a [Option<&'a Adapter>]),
}

/// Where the ranges of [`RowAdapters`] are; kept from step to step, it asks for no memory.
#[derive(Debug, Default)]
pub(crate) struct AdapterRanges(Vec<(Range<usize>, usize)>);

impl<'a> RowAdapters<'a> {
    /// `sequences`: runs of rows with the sequences that they belong to, all of which must name the same adapter.
    pub fn new(
        adapters: Adapters<'a>,
        sequences: impl Iterator<Item = (Range<usize>, Range<usize>)>,
        AdapterRanges(ranges): &'a mut AdapterRanges,
    ) -> Result<RowAdapters<'a>> {
        let of_sequences = match adapters {
            Adapters::Off => return Ok(RowAdapters::All(None)),
            Adapters::One(adapter) => return Ok(RowAdapters::All(Some(adapter))),
            Adapters::PerSequence(list) => list,
        };
        let bad = |message: String| Error::Value { op: "adapters", message };
        ranges.clear();
        for (rows, sequences) in sequences {
            let Some(named) = of_sequences.get(sequences.clone()) else {
                return Err(bad(format!(
                    "{} adapters are named, and there is a sequence {}",
                    of_sequences.len(),
                    sequences.end
                )));
            };
            let Some(&first) = named.first() else { continue };
            if !named.iter().all(|&other| same(first, other)) {
                return Err(bad("sequences that share their prefix must name the same adapter".into()));
            }
            match ranges.last_mut() {
                _ if first.is_none() => {}
                Some((before, of)) if before.end == rows.start && same(of_sequences[*of], first) => {
                    before.end = rows.end;
                }
                _ => ranges.push((rows, sequences.start)),
            }
        }
        Ok(RowAdapters::Ranges(ranges, of_sequences))
    }

    /// The adapter that a backward pass trains: all rows have it, or none has one.
    pub fn trained(&self) -> Result<Option<&'a Adapter>> {
        match self {
            RowAdapters::All(adapter) => Ok(*adapter),
            RowAdapters::Ranges(ranges, of_sequences) => {
                let first = ranges.first().and_then(|&(_, of)| of_sequences[of]);
                match ranges.iter().all(|&(_, of)| same(first, of_sequences[of])) {
                    true => Ok(first),
                    false => {
                        let message = "gradients are those of one adapter, and the batch has several".into();
                        Err(Error::Value { op: "backward", message })
                    }
                }
            }
        }
    }
}

/// Whether two sequences have the same adapter, the same object, or both none.
fn same(a: Option<&Adapter>, b: Option<&Adapter>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => std::ptr::eq(a, b),
        _ => false,
    }
}

/// What adapters add to one linear layer, for some rows of a pass.
#[derive(Clone, Copy)]
pub(crate) struct LowRankRows<'a> {
    pub adapters: &'a RowAdapters<'a>,
    pub layer: usize,
    /// The layer's place in [`Layer::linears`](super::Layer::linears).
    pub linear: usize,
    /// What they do not see.
    pub dropout: Option<lora::Dropout<'a>>,
    /// The first of the rows.
    pub first: usize,
}

impl<'a> LowRankRows<'a> {
    /// The adapters of some of the rows.
    pub fn rows(self, rows: Range<usize>) -> LowRankRows<'a> {
        let first = self.first + rows.start;
        LowRankRows { dropout: self.dropout.map(|d| d.rows(rows)), first, ..self }
    }

    /// Whether no adapter of the pass adds to this layer.
    pub fn is_empty(&self) -> bool {
        match self.adapters {
            RowAdapters::All(adapter) => adapter.is_none_or(|a| self.of(a).is_none()),
            RowAdapters::Ranges(ranges, of_sequences) => {
                ranges.iter().all(|&(_, of)| of_sequences[of].is_none_or(|a| self.of(a).is_none()))
            }
        }
    }

    /// Does `compute` with each range of the `len` rows that an adapter adds to.
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
            RowAdapters::Ranges(ranges, of_sequences) => ranges.iter().try_for_each(|(rows, of)| {
                let start = rows.start.max(self.first);
                let end = rows.end.min(self.first + len);
                match of_sequences[*of].and_then(|adapter| self.of(adapter)) {
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
