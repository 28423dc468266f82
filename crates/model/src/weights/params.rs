//! The tree of parameters.

use super::spec::{ParamSpec, specs};
use crate::ModelConfig;
use kernels::ops::linear;
use kernels::{Context, DType, Layout, Matrix, Memory, Result, Tensor, View, ViewMut};

/// One f32 per parameter of a decoder.
#[derive(Debug)]
pub struct Params {
    /// Embedding `[V, H]`.
    pub embedding: Matrix,
    /// The layers, first to last.
    pub layers: Vec<Layer>,
    /// Weight of the final norm `[H]`.
    pub norm: Tensor,
    /// Head `[V, H]`, absent where it is the embedding; or that of scores `[n, H]`.
    pub head: Option<Matrix>,
}

/// The parameters of a layer.
#[derive(Debug)]
pub struct Layer {
    /// Queries, keys and values `[(nh + 2 nkv)·hd, H]`.
    pub qkv: Linear,
    /// Attention output `[H, nh·hd]`.
    pub o: Linear,
    /// Gate, then up `[2F, H]`.
    pub gate_up: Linear,
    /// `[H, F]`
    pub down: Linear,
    /// Weight of the norm before attention `[H]`.
    pub attention_norm: Tensor,
    /// Weight of the norm before the MLP `[H]`.
    pub mlp_norm: Tensor,
    /// Weights of the norms of each query and each key head `[hd]` (Qwen 3).
    pub qk_norm: Option<(Tensor, Tensor)>,
}

/// A linear layer's weight, which is asked for the product.
///
/// This is the seam for adapters and quantised weights: a layer's code says *what* is multiplied, this type *how*. An
/// adapter adds its low-rank product here, and a frozen matrix skips its gradient here; the layers do not change.
#[derive(Debug)]
pub struct Linear {
    /// `[N, K]`
    pub matrix: Matrix,
    /// `[N]`
    pub bias: Option<Tensor>,
}

impl Linear {
    /// Zeros.
    pub fn zeros(memory: &Memory, rows: usize, cols: usize, bias: bool) -> Linear {
        Linear {
            matrix: Matrix::zeros(memory, rows, cols, Layout::Panels),
            bias: bias.then(|| Tensor::zeros(memory, &[rows], DType::F32)),
        }
    }

    /// y = x Wᵀ + b: `x: [T, K]`, `y: [T, N]` overwrites.
    pub fn forward(&self, ctx: &Context, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        let bias = self.bias.as_ref().map(Tensor::view);
        linear::forward(ctx, linear::Forward { x, w: &self.matrix, bias, y, accumulate: false })
    }

    /// dX = dY W (`d_x: [T, K]` overwrites); dW += dYᵀ X and db += Σₜ dY (accumulate into `grad`).
    pub fn backward(
        &self,
        ctx: &Context,
        x: View<'_>,
        d_y: View<'_>,
        d_x: ViewMut<'_>,
        grad: &mut Linear,
    ) -> Result<()> {
        let d_bias = grad.bias.as_mut().map(Tensor::view_mut);
        linear::backward_weight(ctx, linear::BackwardWeight { x, d_y, d_w: &mut grad.matrix, d_bias })?;
        linear::backward_input(ctx, linear::BackwardInput { d_y, w: &self.matrix, d_x, accumulate: false })
    }
}

impl Params {
    /// Zeros.
    pub fn zeros(memory: &Memory, c: &ModelConfig) -> Params {
        let (h, f, v, hd) = (c.hidden_size, c.intermediate_size, c.vocab_size, c.head_dim);
        let vector = |len: usize| Tensor::zeros(memory, &[len], DType::F32);
        let layer = |_| Layer {
            qkv: Linear::zeros(memory, c.qkv_width(), h, c.attention_bias),
            o: Linear::zeros(memory, h, c.num_heads * hd, c.attention_output_bias),
            gate_up: Linear::zeros(memory, 2 * f, h, c.mlp_bias),
            down: Linear::zeros(memory, h, f, c.mlp_bias),
            attention_norm: vector(h),
            mlp_norm: vector(h),
            qk_norm: c.qk_norm.then(|| (vector(hd), vector(hd))),
        };
        Params {
            embedding: Matrix::zeros(memory, v, h, Layout::Panels),
            layers: (0..c.num_layers).map(layer).collect(),
            norm: vector(h),
            head: c.head_rows().map(|rows| Matrix::zeros(memory, rows, h, Layout::Panels)),
        }
    }

    /// What the tensors of [`Params::tensors`] are, in their order.
    pub fn specs(config: &ModelConfig) -> Vec<ParamSpec> {
        specs(config)
    }

    /// Every parameter's elements as they lie in memory, in a fixed order: what the optimizer streams over.
    pub fn tensors(&self) -> Vec<&Tensor> {
        self.slots().into_iter().map(Slot::tensor).collect()
    }
    /// The same, to write.
    pub fn tensors_mut(&mut self) -> Vec<&mut Tensor> {
        self.slots_mut().into_iter().map(SlotMut::tensor).collect()
    }

    /// A row-major copy of the tensor that files call `name`; none if the model has none of that name.
    pub fn read(&self, config: &ModelConfig, name: &str) -> Option<Vec<f32>> {
        let (index, rows) = find(config, name)?;
        Some(match self.slots()[index] {
            Slot::Matrix(m) => m.unpack_rows(rows),
            Slot::Vector(v) => v.rows(rows).to_vec_f32(),
        })
    }
    /// Overwrites the tensor that files call `name` with row-major elements; false if the model has none of that name.
    pub fn write(&mut self, config: &ModelConfig, name: &str, data: &[f32]) -> bool {
        let Some((index, rows)) = find(config, name) else { return false };
        match self.slots_mut().swap_remove(index) {
            SlotMut::Matrix(m) => {
                assert_eq!(data.len(), rows.len() * m.cols(), "{name}");
                m.pack_rows(rows.start, data);
            }
            SlotMut::Vector(v) => v.rows_mut(rows).copy_from_f32(data),
        }
        true
    }

    fn slots(&self) -> Vec<Slot<'_>> {
        fn linear<'a>(slots: &mut Vec<Slot<'a>>, l: &'a Linear) {
            slots.push(Slot::Matrix(&l.matrix));
            slots.extend(l.bias.as_ref().map(Slot::Vector));
        }
        let mut slots = vec![Slot::Matrix(&self.embedding)];
        for layer in &self.layers {
            linear(&mut slots, &layer.qkv);
            linear(&mut slots, &layer.o);
            linear(&mut slots, &layer.gate_up);
            linear(&mut slots, &layer.down);
            slots.extend([Slot::Vector(&layer.attention_norm), Slot::Vector(&layer.mlp_norm)]);
            if let Some((q, k)) = &layer.qk_norm {
                slots.extend([Slot::Vector(q), Slot::Vector(k)]);
            }
        }
        slots.push(Slot::Vector(&self.norm));
        slots.extend(self.head.as_ref().map(Slot::Matrix));
        slots
    }

    fn slots_mut(&mut self) -> Vec<SlotMut<'_>> {
        fn linear<'a>(slots: &mut Vec<SlotMut<'a>>, l: &'a mut Linear) {
            slots.push(SlotMut::Matrix(&mut l.matrix));
            slots.extend(l.bias.as_mut().map(SlotMut::Vector));
        }
        let mut slots = vec![SlotMut::Matrix(&mut self.embedding)];
        for layer in &mut self.layers {
            linear(&mut slots, &mut layer.qkv);
            linear(&mut slots, &mut layer.o);
            linear(&mut slots, &mut layer.gate_up);
            linear(&mut slots, &mut layer.down);
            slots.extend([SlotMut::Vector(&mut layer.attention_norm), SlotMut::Vector(&mut layer.mlp_norm)]);
            if let Some((q, k)) = &mut layer.qk_norm {
                slots.extend([SlotMut::Vector(q), SlotMut::Vector(k)]);
            }
        }
        slots.push(SlotMut::Vector(&mut self.norm));
        slots.extend(self.head.as_mut().map(SlotMut::Matrix));
        slots
    }
}

/// The parameter and the rows of it that files call `name`.
fn find(config: &ModelConfig, name: &str) -> Option<(usize, std::ops::Range<usize>)> {
    let specs = specs(config);
    let found = |(i, s): (usize, &ParamSpec)| Some((i, s.parts.iter().find(|p| p.name == name)?.rows.clone()));
    specs.iter().enumerate().find_map(found)
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
