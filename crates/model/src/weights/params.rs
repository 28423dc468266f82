//! The tree of a decoder's parameters.

use super::linear::Linear;
use super::lora::{LoraConfig, adapter_specs};
use super::low_rank::LowRank;
use super::spec::{ParamSpec, specs};
use crate::{Head, ModelConfig, Result};
use kernels::matrix::PANEL;
use kernels::ops::residual;
use kernels::{Context, DType, Matrix, Memory, Tensor};
use std::ops::Range;

/// Elements of one piece when a tensor is read in pieces: 1 MiB of f32. (Small in tests, so that there are several
/// pieces.)
const PIECE: usize = if cfg!(test) { 1 << 7 } else { 1 << 18 };

/// A tree of tensors with one number per parameter of a decoder: weights, gradients or an optimizer's moments.
///
/// In a tree of [trained parameters](Params::trained), frozen parameters are present but have no elements.
#[derive(Debug)]
pub struct Params {
    /// Token embedding `[V, H]`: V tokens of the vocabulary, H hidden size.
    pub embedding: Matrix,
    /// The layers, first to last.
    pub layers: Vec<Layer>,
    /// Weight of the final norm `[H]`.
    pub norm: Tensor,
    /// Head `[V, H]`, absent if it is tied to the embedding; or a score head `[labels, H]`.
    pub head: Option<Matrix>,
    /// Specification of each tensor of [`Params::tensors`].
    specs: Vec<ParamSpec>,
    /// The dtype of the elements. In a bf16 tree, vectors contain bf16 values but are stored as f32, because operations
    /// read them as f32.
    dtype: DType,
}

/// The parameters of a decoder layer. nh: query heads, nkv: KV heads, hd: head dim, H: hidden size, F: MLP width.
#[derive(Debug)]
pub struct Layer {
    /// Fused projection to queries, keys and values `[(nh + 2 nkv)·hd, H]`.
    pub qkv: Linear,
    /// Attention output projection `[H, nh·hd]`.
    pub o: Linear,
    /// Fused gate and up projections of the MLP `[2F, H]`.
    pub gate_up: Linear,
    /// Down projection of the MLP `[H, F]`.
    pub down: Linear,
    /// Weight of the norm before attention `[H]`.
    pub attention_norm: Option<Tensor>,
    /// Weight of the norm after attention `[H]`.
    pub attention_post_norm: Option<Tensor>,
    /// Weight of the norm before the MLP `[H]`.
    pub mlp_norm: Option<Tensor>,
    /// Weight of the norm after the MLP `[H]`.
    pub mlp_post_norm: Option<Tensor>,
    /// Weights of the q norm and the k norm: over each head `[hd]`, or over all heads `[nh·hd]` and `[nkv·hd]`.
    pub qk_norm: Option<(Tensor, Tensor)>,
}

impl Layer {
    /// The layer's four linear layers, in the order of their tensors.
    pub fn linears(&self) -> [&Linear; 4] {
        [&self.qkv, &self.o, &self.gate_up, &self.down]
    }
    /// The layer's four linear layers, writable.
    pub fn linears_mut(&mut self) -> [&mut Linear; 4] {
        [&mut self.qkv, &mut self.o, &mut self.gate_up, &mut self.down]
    }
}

impl Params {
    /// Parameters of zeros, without adapters.
    pub fn zeros(memory: &Memory, config: &ModelConfig) -> Params {
        Params::base(memory, config, true, config.compute)
    }

    /// Zeros for the f32 master weights of a model that computes in bf16: every parameter, or only the score head if an
    /// adapter is trained. Adapters are f32 anyway.
    pub fn masters(memory: &Memory, config: &ModelConfig, lora: Option<&LoraConfig>) -> Params {
        Params::base(memory, config, lora.is_none(), DType::F32)
    }

    /// Zeros for gradients or moments of the trained parameters: all, or the adapter and the score head if `lora` is
    /// given.
    pub fn trained(memory: &Memory, config: &ModelConfig, lora: Option<&LoraConfig>) -> Params {
        let mut params = Params::base(memory, config, lora.is_none(), DType::F32);
        if let Some(lora) = lora {
            params.add_adapter(memory, lora);
        }
        params
    }

    /// Zeros for the parameters of an adapter of a model with this configuration, including its score head.
    pub fn adapter(memory: &Memory, config: &ModelConfig, lora: &LoraConfig) -> Params {
        let mut params = Params::base(memory, config, false, config.compute);
        params.add_adapter(memory, lora);
        params
    }

    /// Adds another tree of f32 numbers, element by element.
    pub fn add(&mut self, ctx: &Context, other: &Params) -> kernels::Result<()> {
        let whole: Vec<Range<usize>> = other.tensors().iter().map(|tensor| 0..tensor.len()).collect();
        self.add_elements(ctx, other, &whole)
    }

    /// Adds these elements of another tree of f32 numbers. `ranges` has the elements of each tensor, in the order of
    /// memory.
    pub fn add_elements(&mut self, ctx: &Context, other: &Params, ranges: &[Range<usize>]) -> kernels::Result<()> {
        for ((to, from), range) in self.tensors_mut().into_iter().zip(other.tensors()).zip(ranges) {
            if range.is_empty() {
                continue;
            }
            let elements = [1, range.len()];
            let (d_y, d_x) = (from.elements(range.clone()), to.elements_mut(range.clone()));
            let (d_y, d_x) = (d_y.reshape(&elements), d_x.reshape(&elements));
            residual::backward(ctx, residual::Backward { d_y, d_x })?;
        }
        Ok(())
    }

    /// A tree of the same shape and dtypes in `memory`.
    pub(super) fn in_memory(mut self, memory: &Memory) -> Params {
        for tensor in self.tensors_mut() {
            *tensor = Tensor::zeros(memory, tensor.shape(), tensor.dtype());
        }
        self
    }

    fn base(memory: &Memory, c: &ModelConfig, kept: bool, dtype: DType) -> Params {
        let size = |len: usize| if kept { len } else { 0 };
        let (h, f, v, hd) = (c.hidden_size, c.intermediate_size, c.vocab_size, c.head_dim);
        let vector = |len: usize| Tensor::zeros(memory, &[size(len)], DType::F32);
        let norm = |name: Option<&str>| name.map(|_| vector(h));
        let whole = |rows: usize, cols: usize| Matrix::zeros_of(memory, rows, cols, dtype);
        let matrix = |rows: usize, cols: usize| whole(size(rows), size(cols));
        // A score head is never frozen, because a new one is useless before it is trained.
        let head = |rows: usize| if c.head == Head::Lm { size(rows) } else { rows };
        let linear = |rows: usize, cols: usize, bias: bool| Linear {
            matrix: matrix(rows, cols),
            bias: bias.then(|| vector(rows)),
            low_rank: None,
        };
        let layer = |_| Layer {
            qkv: linear(c.qkv_width(), h, c.attention_bias),
            o: linear(h, c.num_heads * hd, c.attention_output_bias),
            gate_up: linear(2 * f, h, c.mlp_bias),
            down: linear(h, f, c.mlp_bias),
            attention_norm: norm(c.norms.attention.before),
            attention_post_norm: norm(c.norms.attention.after),
            mlp_norm: norm(c.norms.mlp.before),
            mlp_post_norm: norm(c.norms.mlp.after),
            qk_norm: c.qk_norm_widths().map(|(q, k, _)| (vector(q), vector(k))),
        };
        Params {
            embedding: matrix(v, h),
            layers: (0..c.num_layers).map(layer).collect(),
            norm: vector(h),
            head: c.head_rows().map(|rows| whole(head(rows), h)),
            specs: specs(c),
            dtype,
        }
    }

    /// Adds LoRA matrices of zeros to the tree.
    fn add_adapter(&mut self, memory: &Memory, lora: &LoraConfig) {
        let targets = lora.targets(&self.specs);
        for (linear, parts) in self.layers.iter_mut().flat_map(Layer::linears_mut).zip(&targets) {
            linear.low_rank = LowRank::zeros(memory, lora, parts);
        }
        self.specs.extend(adapter_specs(&self.specs, lora));
    }

    /// Copies every number from a tree of the same shape and dtypes.
    pub fn copy_from(&mut self, other: &Params) {
        for (own, other) in self.tensors_mut().into_iter().zip(other.tensors()) {
            own.view_mut().copy_from(other.view());
        }
    }

    /// Specification of each tensor of [`Params::tensors`], in order.
    pub fn specs(&self) -> &[ParamSpec] {
        &self.specs
    }

    /// Replaces every tensor by zeros of the same shape in bf16. Meant for optimizer moments, since no matmul reads
    /// them.
    pub fn zeros_in_bf16(mut self, memory: &Memory) -> Params {
        for tensor in self.tensors_mut() {
            let shape = tensor.shape().to_vec();
            *tensor = Tensor::zeros(memory, &[0], DType::Bf16); // free before allocating
            *tensor = Tensor::zeros(memory, &shape, DType::Bf16);
        }
        self
    }

    /// Drops the elements of all parameters except those that `these` accepts.
    pub fn keep(mut self, memory: &Memory, these: impl Fn(&ParamSpec) -> bool) -> Params {
        let dropped: Vec<bool> = self.specs.iter().map(|spec| !these(spec)).collect();
        for (slot, _) in self.slots_mut().into_iter().zip(dropped).filter(|(_, dropped)| *dropped) {
            match slot {
                SlotMut::Matrix(m) => *m = Matrix::zeros_of(memory, 0, m.cols(), m.data().dtype()),
                SlotMut::Vector(v) => *v = Tensor::zeros(memory, &[0], v.dtype()),
            }
        }
        self
    }

    /// Specifications of a model's parameters, without adapters.
    pub fn shapes(config: &ModelConfig) -> Vec<ParamSpec> {
        specs(config)
    }

    /// All tensors as they are stored in memory, in a fixed order. The optimizer iterates over them.
    pub fn tensors(&self) -> Vec<&Tensor> {
        self.slots().into_iter().map(Slot::tensor).collect()
    }
    /// All tensors, writable.
    pub fn tensors_mut(&mut self) -> Vec<&mut Tensor> {
        self.slots_mut().into_iter().map(SlotMut::tensor).collect()
    }

    /// A row-major copy of the tensor named `name` in Hugging Face files; `None` if this tensor is missing, or if it
    /// is frozen and has no elements here.
    pub fn read(&self, name: &str) -> Option<Vec<f32>> {
        let (index, rows) = self.find(name)?;
        Some(match self.slots()[index] {
            Slot::Matrix(m) => (rows.end <= m.rows()).then(|| m.unpack_rows(rows))?,
            Slot::Vector(v) => (rows.end <= v.shape()[0]).then(|| v.rows(rows).to_vec_f32())?,
        })
    }
    /// Like [`Params::read`], but passes the tensor to `take` in pieces that fit into the CPU cache.
    pub fn read_pieces(&self, name: &str, take: &mut dyn FnMut(&[f32]) -> Result<()>) -> Option<Result<()>> {
        let (index, rows) = self.find(name)?;
        match self.slots()[index] {
            Slot::Matrix(m) if rows.end <= m.rows() => {
                let step = (PIECE / m.cols().max(1) / PANEL).max(1) * PANEL;
                let mut room = vec![0.0; step.min(rows.len()) * m.cols()];
                Some(rows.clone().step_by(step).try_for_each(|first| {
                    let some = first..rows.end.min(first + step);
                    let piece = &mut room[..some.len() * m.cols()];
                    m.unpack_rows_into(some, piece);
                    take(piece)
                }))
            }
            Slot::Vector(v) if rows.end <= v.shape()[0] => Some(take(&v.rows(rows).to_vec_f32())),
            _ => None,
        }
    }
    /// Overwrites the tensor named `name` in Hugging Face files with row-major `data`, rounded if the tree is bf16.
    /// Returns false if this tensor is missing, or if it is frozen and has no elements here.
    pub fn write(&mut self, name: &str, data: &[f32]) -> bool {
        let Some((index, rows)) = self.find(name) else { return false };
        let rounded = self.dtype == DType::Bf16;
        match self.slots_mut().swap_remove(index) {
            SlotMut::Matrix(m) if rows.end <= m.rows() => {
                assert_eq!(data.len(), rows.len() * m.cols(), "{name}");
                m.pack_rows(rows.start, data);
            }
            SlotMut::Vector(v) if rows.end <= v.shape()[0] => {
                if rounded {
                    v.rows_mut(rows).copy_from_f32(&kernels::tensor::rounded_to_bf16(data))
                } else {
                    v.rows_mut(rows).copy_from_f32(data)
                }
            }
            _ => return false,
        }
        true
    }

    /// Index of the parameter that contains the tensor named `name` in Hugging Face files, and the tensor's rows in it.
    fn find(&self, name: &str) -> Option<(usize, Range<usize>)> {
        let found = |(i, s): (usize, &ParamSpec)| Some((i, s.parts.iter().find(|p| p.name == name)?.rows.clone()));
        self.specs.iter().enumerate().find_map(found)
    }

    fn slots(&self) -> Vec<Slot<'_>> {
        fn linear<'a>(slots: &mut Vec<Slot<'a>>, l: &'a Linear) {
            slots.push(Slot::Matrix(&l.matrix));
            slots.extend(l.bias.as_ref().map(Slot::Vector));
        }
        let mut slots = vec![Slot::Matrix(&self.embedding)];
        for layer in &self.layers {
            layer.linears().into_iter().for_each(|l| linear(&mut slots, l));
            let norms = [&layer.attention_norm, &layer.attention_post_norm, &layer.mlp_norm, &layer.mlp_post_norm];
            slots.extend(norms.into_iter().flatten().map(Slot::Vector));
            if let Some((q, k)) = &layer.qk_norm {
                slots.extend([Slot::Vector(q), Slot::Vector(k)]);
            }
        }
        slots.push(Slot::Vector(&self.norm));
        slots.extend(self.head.as_ref().map(Slot::Matrix));
        let adapters = self.layers.iter().flat_map(Layer::linears).filter_map(|l| l.low_rank.as_ref());
        slots.extend(adapters.flat_map(|a| std::iter::once(&a.a).chain(&a.b)).map(Slot::Matrix));
        slots
    }

    fn slots_mut(&mut self) -> Vec<SlotMut<'_>> {
        let mut slots = vec![SlotMut::Matrix(&mut self.embedding)];
        let mut adapters = Vec::new();
        for layer in &mut self.layers {
            for l in [&mut layer.qkv, &mut layer.o, &mut layer.gate_up, &mut layer.down] {
                slots.push(SlotMut::Matrix(&mut l.matrix));
                slots.extend(l.bias.as_mut().map(SlotMut::Vector));
                if let Some(adapter) = &mut l.low_rank {
                    adapters.extend(std::iter::once(&mut adapter.a).chain(&mut adapter.b).map(SlotMut::Matrix));
                }
            }
            let Layer { attention_norm, attention_post_norm, mlp_norm, mlp_post_norm, .. } = layer;
            let norms = [attention_norm, attention_post_norm, mlp_norm, mlp_post_norm];
            slots.extend(norms.into_iter().flatten().map(SlotMut::Vector));
            if let Some((q, k)) = &mut layer.qk_norm {
                slots.extend([SlotMut::Vector(q), SlotMut::Vector(k)]);
            }
        }
        slots.push(SlotMut::Vector(&mut self.norm));
        slots.extend(self.head.as_mut().map(SlotMut::Matrix));
        slots.extend(adapters);
        slots
    }
}

enum Slot<'a> {
    Matrix(&'a Matrix),
    Vector(&'a Tensor),
}

enum SlotMut<'a> {
    Matrix(&'a mut Matrix),
    Vector(&'a mut Tensor),
}

impl<'a> Slot<'a> {
    fn tensor(self) -> &'a Tensor {
        match self {
            Slot::Matrix(m) => m.data(),
            Slot::Vector(v) => v,
        }
    }
}

impl<'a> SlotMut<'a> {
    fn tensor(self) -> &'a mut Tensor {
        match self {
            SlotMut::Matrix(m) => m.data_mut(),
            SlotMut::Vector(v) => v,
        }
    }
}
