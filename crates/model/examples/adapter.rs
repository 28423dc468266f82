//! Writes adapters for `conformance/lora_fixtures.py`: a PEFT directory, and the logits that this crate computes with
//! it.
//!
//! ```text
//! adapter MODEL OUT RANK MODULE…     an adapter of these modules (or all-linear) in OUT/adapter,
//!                                    logits in OUT/logits.json
//! ```
//!
//! `check` compares these logits with PEFT's, for any model. The directory `FAMILY/ours` of a fixture is written the
//! same way (see the test `an_adapter_saved_by_lockstep_gives_the_same_logits_in_peft`, which fills B with the same
//! numbers).

use kernels::{Context, DType, Isa, Tensor, ops};
use model::io::{TensorSink, TensorSource};
use model::net::{self, Rope, Tape};
use model::peft::save_adapter;
use model::weights::{Named, NamedMut};
use model::{Adapter, Batch, BatchTensors, GroupSegment, LoraConfig, ModelConfig, ModelView, TargetModules, Weights};
use std::path::Path;
use std::sync::Arc;

const TOKENS: usize = 70;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [dir, out, rank, modules @ ..] = args.as_slice() else { return Err("adapter MODEL OUT RANK MODULE…".into()) };
    let (ctx, dir, out) = (Context::cpu(Isa::best(), 1), Path::new(dir), Path::new(out));
    let config = Arc::new(ModelConfig::load(&dir.join("config.json"))?);
    let weights = Weights::load(ctx.memory(), dir, &config)?;
    let target_modules = match modules {
        [all] if all == "all-linear" => TargetModules::AllLinear,
        names => TargetModules::Names(names.to_vec()),
    };
    let lora = LoraConfig { r: rank.parse()?, target_modules, ..LoraConfig::default() };
    let mut adapter = Adapter::new(ctx.memory(), &weights, &lora, 7)?;
    // B is random too, because a new adapter with B = 0 changes nothing. So is the score head, which PEFT stores with
    // the adapter.
    let drawn = |name: &str| name.contains("lora_B") || name == "score.weight";
    let names = Named { params: &adapter.params }.tensors().into_iter().filter(|s| drawn(&s.name));
    for (i, spec) in names.enumerate() {
        // These values are exact on every machine.
        let at = |k: usize| ((37 * k + 11 * i) % 101) as f32 / 128.0 - 0.390625;
        let data: Vec<f32> = (0..spec.shape.iter().product()).map(at).collect();
        NamedMut { params: &mut adapter.params }.put(&spec.name, &data)?;
    }
    save_adapter(&out.join("adapter"), &adapter, dir.display().to_string().as_str())?;

    let ids: Vec<u32> = (0..TOKENS as u32).map(|i| i * 7 % config.vocab_size as u32).collect();
    let batch = Batch::new(&[GroupSegment { prefix: &ids, branches: &[] }], true);
    let mut tape = Tape::forward_only(ctx.memory(), &config, batch.capacity());
    let tensors = BatchTensors::new(ctx.memory(), &batch);
    let model = ModelView::new(&weights, Some(&adapter));
    net::forward(&ctx, model, &Rope::new(ctx.memory(), &config, TOKENS), &tensors, &mut tape)?;
    let mut logits = Tensor::zeros(ctx.memory(), &[TOKENS, model.head()?.rows()], DType::F32);
    let (x, w, y) = (tape.hidden(), model.head()?, logits.view_mut());
    ops::linear::forward(&ctx, ops::linear::Forward { x, w, bias: None, y, accumulate: false })?;
    std::fs::write(
        out.join("logits.json"),
        serde_json::json!({"ids": ids, "logits": logits.to_vec_f32()}).to_string(),
    )?;
    Ok(())
}
