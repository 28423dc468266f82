//! Gradients of the parameters.
//!
//! With tied embeddings, the shared matrix gets two gradients: as the head and as the embedding. Each gradient is a sum
//! over the tokens in order. The two are summed separately; otherwise a different split into micro-batches would
//! interleave them differently and change bits. The embedding's sum is kept separate until [`Grads::finish`]; it needs
//! rows only for the tokens that occur.

use super::lora::LoraConfig;
use super::params::Params;
use crate::ModelConfig;
use kernels::ops::{embedding, rows, zero};
use kernels::{Context, DType, Matrix, Memory, Result, Tensor, View};

/// Gradients of the trained parameters, accumulated over micro-batches.
pub struct Grads {
    /// The gradients of the trained parameters. With tied embeddings, `embedding` contains only the head's gradient
    /// until [`Grads::finish`].
    pub params: Params,
    /// The gradient of the shared matrix as the embedding, if embeddings are tied.
    tied: Option<TiedEmbeddingGrads>,
    /// The factor on the embedding's rows in the forward pass.
    scale: f32,
}

impl Grads {
    /// Zero gradients for training every parameter. Their memory is charged to "gradients".
    pub fn zeros(memory: &Memory, config: &ModelConfig) -> Grads {
        Grads::trained(memory, config, None)
    }
    /// Zero gradients for training every parameter, or only the adapter if `lora` is given. Their memory is charged
    /// to "gradients".
    pub fn trained(memory: &Memory, config: &ModelConfig, lora: Option<&LoraConfig>) -> Grads {
        Grads::of(memory, config, lora, Params::trained(&memory.part("gradients"), config, lora))
    }
    /// Like [`trained`](Self::trained), with the given parameters of zeros, which may be in other memory.
    pub fn of(memory: &Memory, config: &ModelConfig, lora: Option<&LoraConfig>, params: Params) -> Grads {
        let memory = memory.part("gradients");
        let tied = config.head_rows().is_none() && lora.is_none();
        Grads {
            params,
            tied: tied.then(|| TiedEmbeddingGrads::new(&memory, config.vocab_size, config.hidden_size)),
            scale: config.embedding_scale(),
        }
    }
    /// Whether these are the gradients of an adapter.
    pub(crate) fn is_for_adapter(&self) -> bool {
        self.params.layers.iter().flat_map(|l| l.linears()).any(|l| l.low_rank.is_some())
    }
    /// Allocates the memory that an update of up to `tokens` input tokens needs. Without this call, memory grows as
    /// tokens occur.
    pub fn reserve(&mut self, tokens: usize) {
        if let Some(tied) = &mut self.tied {
            tied.reserve(tokens);
        }
    }
    /// Sets all gradients to zero, before the first micro-batch of an update.
    pub fn zero(&mut self, ctx: &Context) {
        for tensor in self.params.tensors_mut() {
            zero(ctx, tensor.view_mut());
        }
        if let Some(tied) = &mut self.tied {
            tied.clear(ctx);
        }
    }
    /// The gradient of the head, to accumulate into; `None` if the head is frozen.
    pub fn head_mut(&mut self) -> Option<&mut Matrix> {
        match self.tied {
            Some(_) => Some(&mut self.params.embedding),
            None => self.params.head.as_mut().and_then(trained_matrix),
        }
    }
    /// Adds the gradient `d_out: [T, H]` of the embedding's output for the T tokens `ids`, unless the embedding is
    /// frozen.
    pub(crate) fn add_embedding(&mut self, ctx: &Context, ids: &[u32], d_out: View<'_>) -> Result<()> {
        match (&mut self.tied, trained_matrix(&mut self.params.embedding)) {
            (Some(tied), _) => tied.add(ctx, ids, d_out),
            (None, Some(d_table)) => {
                let ids = on_device(ctx, ids);
                let args = embedding::Backward { ids: ids.view(), d_out, scale: self.scale, d_table };
                embedding::backward(ctx, args)
            }
            (None, None) => Ok(()),
        }
    }
    /// Adds the embedding's gradient, which was kept separate, to the tied matrix. Call it once, after the last
    /// micro-batch of an update.
    pub fn finish(&mut self, ctx: &Context) -> Result<()> {
        match &mut self.tied {
            Some(tied) => tied.add_to(ctx, self.scale, &mut self.params.embedding),
            None => Ok(()),
        }
    }
    /// Bytes of memory of the gradients.
    pub fn bytes(&self) -> usize {
        self.params.tensors().iter().map(|t| t.bytes()).sum::<usize>()
            + self.tied.as_ref().map_or(0, |tied| tied.sums.bytes())
    }
}

fn trained_matrix(gradient: &mut Matrix) -> Option<&mut Matrix> {
    (gradient.rows() > 0).then_some(gradient)
}

fn on_device(ctx: &Context, ids: &[u32]) -> Tensor {
    Tensor::from_u32(&ctx.memory().part("workspace"), &[ids.len()], ids)
}

/// Gradient sums for the rows of an embedding matrix `[V, H]` whose tokens occur in the batch.
struct TiedEmbeddingGrads {
    memory: Memory,
    /// Row in `sums` of each token of the vocabulary; [`NOWHERE`] if the token has not occurred.
    places: Vec<u32>,
    /// The token id of each row of `sums`.
    ids: Vec<u32>,
    /// The gradient sums `[rows allocated, H]`.
    sums: Tensor,
}

const NOWHERE: u32 = u32::MAX;

impl TiedEmbeddingGrads {
    fn new(memory: &Memory, vocabulary: usize, hidden: usize) -> TiedEmbeddingGrads {
        let sums = Tensor::zeros(memory, &[0, hidden], DType::F32);
        TiedEmbeddingGrads { memory: memory.clone(), places: vec![NOWHERE; vocabulary], ids: Vec::new(), sums }
    }

    /// Makes room for `tokens` distinct tokens.
    fn reserve(&mut self, tokens: usize) {
        let (room, hidden) = (self.sums.shape()[0], self.sums.shape()[1]);
        let needed = tokens.min(self.places.len());
        if needed > room {
            let mut sums = Tensor::zeros(&self.memory, &[needed, hidden], DType::F32);
            if !self.ids.is_empty() {
                sums.rows_mut(0..room).copy_from_f32(&self.sums.to_vec_f32());
            }
            self.sums = sums;
        }
    }

    fn clear(&mut self, ctx: &Context) {
        zero(ctx, self.sums.rows_mut(0..self.ids.len()));
        self.ids.drain(..).for_each(|id| self.places[id as usize] = NOWHERE);
    }

    /// Adds `d_out[t]` to the sum of token `ids[t]`, for t ascending.
    fn add(&mut self, ctx: &Context, ids: &[u32], d_out: View<'_>) -> Result<()> {
        for &id in ids {
            let place = &mut self.places[id as usize];
            if *place == NOWHERE {
                *place = self.ids.len() as u32;
                self.ids.push(id);
            }
        }
        if self.ids.len() > self.sums.shape()[0] {
            self.reserve(2 * self.ids.len());
        }
        let places: Vec<u32> = ids.iter().map(|&id| self.places[id as usize]).collect();
        let places = on_device(ctx, &places);
        rows::scatter_add(ctx, rows::ScatterAdd { d_out, rows: places.view(), d_x: self.sums.view_mut() })
    }

    /// Adds the sums, times `scale`, to the gradient `d_table` of the matrix, then clears them.
    fn add_to(&mut self, ctx: &Context, scale: f32, d_table: &mut Matrix) -> Result<()> {
        let (ids, d_out) = (on_device(ctx, &self.ids), self.sums.rows(0..self.ids.len()));
        embedding::backward(ctx, embedding::Backward { ids: ids.view(), d_out, scale, d_table })?;
        self.clear(ctx);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::Isa;

    /// When the memory grows for new tokens, earlier sums are kept.
    #[test]
    fn the_gradient_sums_of_a_tied_embedding_survive_growth() {
        let ctx = Context::cpu(Isa::best(), 1);
        let mut grads = TiedEmbeddingGrads::new(ctx.memory(), 8, 2);
        let mut add = |ids: &[u32], d_out: &[f32]| {
            let d_out = Tensor::from_f32(ctx.memory(), &[ids.len(), 2], d_out);
            grads.add(&ctx, ids, d_out.view()).unwrap();
        };
        add(&[3], &[1.0, 2.0]);
        add(&[5, 3, 6], &[10.0, 20.0, 0.5, 0.5, 30.0, 40.0]);
        assert_eq!(grads.ids, [3, 5, 6]);
        assert_eq!(grads.sums.to_vec_f32()[..6], [1.5, 2.5, 10.0, 20.0, 30.0, 40.0]);
    }
}
