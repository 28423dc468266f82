//! The state of an optimizer, which checkpoints store.

use super::{MomentsDType, OptimizerConfig, Part, StateTree};
use crate::Result;
use kernels::matrix::panels_of_pairs;
use kernels::ops::grad_norm::CHUNK;
use kernels::{DType, Memory, Tensor};
use model::weights::{Named, NamedMut, Params};
use model::{FileDType, LoraConfig, ModelConfig};

/// The optimizer's state of every trained parameter, in the order of the weights in memory, and the f32 master weights
/// of a model that computes in bf16. A model that computes in f32 has no separate masters.
pub struct OptimizerState {
    masters: Option<Params>,
    kinds: &'static [StateTree],
    moments: FileDType,
    trees: Vec<Params>,
}

/// A kind of optimizer state, stored as one file of a checkpoint.
pub struct SavedTree<'a> {
    /// torch's name of the state, such as `exp_avg`.
    pub name: &'static str,
    /// The dtype in which the state is stored.
    pub dtype: FileDType,
    /// The values, with the names and the row-major order of Hugging Face files.
    pub tensors: Named<'a>,
}

impl OptimizerState {
    /// Zeros for all parameters or, if there is an adapter, for the adapter only.
    pub(super) fn zeros(
        memory: &Memory,
        model: &ModelConfig,
        adapter: Option<&LoraConfig>,
        config: &OptimizerConfig,
        kinds: &'static [StateTree],
    ) -> OptimizerState {
        let tree = |tree: &StateTree| {
            let zeros = Params::trained(memory, model, adapter).keep(memory, tree.keeps);
            match config.moments {
                MomentsDType::Bf16 if tree.in_moments_dtype => zeros.zeros_in_bf16(memory),
                _ => zeros,
            }
        };
        let masters = (model.compute != DType::F32).then(|| Params::masters(memory, model, adapter));
        let moments = match config.moments {
            MomentsDType::F32 => FileDType::F32,
            MomentsDType::Bf16 => FileDType::Bf16,
        };
        OptimizerState { masters, kinds, moments, trees: kinds.iter().map(tree).collect() }
    }

    /// Replaces each tree, the masters first, by what `replace` returns for it.
    pub(super) fn replace(self, mut replace: impl FnMut(Params) -> kernels::Result<Params>) -> Result<OptimizerState> {
        let masters = self.masters.map(&mut replace).transpose()?;
        let trees = self.trees.into_iter().map(replace).collect::<kernels::Result<_>>()?;
        Ok(OptimizerState { masters, trees, ..self })
    }

    /// The master weights and the other trees.
    pub(super) fn parts_mut(&mut self) -> (Option<&mut Params>, &mut [Params]) {
        (self.masters.as_mut(), &mut self.trees)
    }

    /// In place of this state, which is on [`Device::Meta`](kernels::Device::Meta), only counts the elements of `part`.
    pub(super) fn counted(self, memory: &Memory, part: &Part) -> (OptimizerState, Vec<Tensor>) {
        let trees = self.masters.iter().chain(&self.trees).map(|tree| {
            let tensors = tree.tensors();
            let dtype = tensors.first().map_or(DType::F32, |tensor| tensor.dtype());
            Tensor::zeros(memory, &[part.elements(tensors)], dtype)
        });
        let counted = trees.collect();
        (OptimizerState { masters: None, trees: Vec::new(), ..self }, counted)
    }

    /// Initialises the master weights of `part` from the weights, before the first step.
    pub(super) fn adopt(&mut self, weights: &Params, part: &Part) {
        let Some(masters) = &mut self.masters else { return };
        // An adapter, whose tensors come last, has no masters.
        for ((master, weight), range) in masters.tensors_mut().into_iter().zip(weights.tensors()).zip(part.ranges()) {
            if master.is_empty() {
                continue; // frozen
            }
            for start in range.clone().step_by(CHUNK) {
                let piece = start..range.end.min(start + CHUNK);
                let values = weight.elements(piece.clone()).to_vec_f32();
                let values = if weight.dtype() == DType::Bf16 { panels_of_pairs(&values) } else { values };
                master.elements_mut(piece).copy_from_f32(&values);
            }
        }
    }

    /// The f32 master weights of a model that computes in bf16, with the names and the row-major order of Hugging Face
    /// files.
    pub fn masters(&self) -> Option<Named<'_>> {
        self.masters.as_ref().map(|params| Named { params })
    }

    /// The master weights, to overwrite when a training run resumes.
    pub fn masters_mut(&mut self) -> Option<NamedMut<'_>> {
        self.masters.as_mut().map(|params| NamedMut { params })
    }

    /// The kinds of optimizer state, to save.
    pub fn trees(&self) -> impl Iterator<Item = SavedTree<'_>> {
        self.kinds.iter().zip(&self.trees).map(|(kind, params)| SavedTree {
            name: kind.name,
            dtype: if kind.in_moments_dtype { self.moments } else { FileDType::F32 },
            tensors: Named { params },
        })
    }

    /// The kinds of optimizer state by name, to overwrite when a training run resumes.
    pub fn trees_mut(&mut self) -> impl Iterator<Item = (&'static str, NamedMut<'_>)> {
        self.kinds.iter().map(|kind| kind.name).zip(self.trees.iter_mut().map(|params| NamedMut { params }))
    }
}
