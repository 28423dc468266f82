//! Models in training: updating, holding, reserving and overwriting versions.

use super::*;

fn config() -> Arc<ModelConfig> {
    let json = r#"{"model_type": "llama", "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1,
        "num_attention_heads": 2, "vocab_size": 5}"#;
    Arc::new(ModelConfig::parse(json).unwrap())
}

const NORM: &str = "model.norm.weight";
const A: &str = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";

fn model(adapted: bool) -> AdaptedWeights {
    let memory = Memory::new(Device::Cpu);
    let weights = Weights::random(&memory, &config(), 1).unwrap();
    let lora = LoraConfig { r: 1, ..LoraConfig::default() };
    let adapter = adapted.then(|| Adapter::new(&memory, &weights, &lora, 1).unwrap());
    AdaptedWeights::new(&memory, weights, adapter)
}

fn set(model: &mut AdaptedWeights, x: f32) -> kernels::Result<bool> {
    let name = if model.adapter.is_some() { A } else { NORM };
    model.update(|params| Ok(params.write(name, &[x; 4])))
}

#[test]
fn only_trained_parameters_have_versions_and_slots() {
    for adapted in [false, true] {
        let mut model = model(adapted);
        assert_eq!((model.version().0, model.bytes_copied(), model.lora().is_some()), (0, 0, adapted));
        assert_eq!(model.config().vocab_size, 5);
        assert!(set(&mut model, 2.0).unwrap());
        let held = model.hold();
        assert_eq!((model.version().0, held.view().version().trained().0, held.adapter.is_some()), (1, 1, adapted));
        assert!(set(&mut model, 3.0).unwrap());
        let read = |view: ModelView<'_>| match view.adapter() {
            Some(adapter) => adapter.params.read(A).unwrap(),
            None => view.weights.params.read(NORM).unwrap(),
        };
        assert_eq!((read(held.view()), read(model.view())), (vec![2.0; 4], vec![3.0; 4]));
        assert_eq!(held.base.version.0, if adapted { 0 } else { 1 }, "the base weights below an adapter are frozen");
        let slots = |model: &AdaptedWeights| model.adapter.as_ref().map_or(model.base.slots(), WeightSlots::slots);
        let copied = model.bytes_copied();
        assert!(copied > 0 && slots(&model) == 2);
        model.reserve(2).unwrap();
        assert_eq!(slots(&model), 2);
        model.reserve(4).unwrap();
        assert_eq!((slots(&model), model.base.slots()), (4, if adapted { 1 } else { 4 }));
        model.set_version(Updates(9));
        assert_eq!((model.version().0, held.view().version().trained().0), (9, 1));
        assert_eq!(model.bytes_copied(), copied, "no held version was overwritten, so nothing is copied");
        let error = model.publish(1, [0; 16]).unwrap_err().to_string();
        assert!(error.contains("WeightSlots::publish: these weights must be in shared memory"), "{error}");
        assert!(model.shared_base.is_none());
    }
}

#[test]
fn a_held_version_is_copied_before_it_is_overwritten() {
    let memory = Memory::new(Device::Cpu);
    let weights = Weights::random(&memory, &config(), 1).unwrap();
    let all: usize = weights.params.tensors().iter().map(|t| t.bytes()).sum();
    let mut slots = WeightSlots::new(&memory, weights);
    assert_eq!(slots.overwrite(|w| std::mem::replace(&mut w.version, Updates(5))), Updates(0));
    assert_eq!((slots.current().version.0, slots.slots(), slots.bytes_copied()), (5, 1, 0));
    let held = slots.hold();
    slots.overwrite(|w| w.params.write(NORM, &[7.0; 4]));
    assert_eq!((slots.slots(), slots.bytes_copied()), (2, all as u64));
    assert_eq!(slots.current().params.read(NORM).unwrap(), [7.0; 4]);
    assert_eq!((held.params.read(NORM).unwrap(), held.version.0, slots.current().version.0), (vec![1.0; 4], 5, 5));
    let embedding = "model.embed_tokens.weight";
    assert_eq!(slots.current().params.read(embedding), held.params.read(embedding));
}

#[test]
fn the_next_version_is_written_in_place_or_to_another_slot() {
    let memory = Memory::new(Device::Cpu);
    let (mut weights, mut other) =
        (Weights::random(&memory, &config(), 1).unwrap(), Weights::zeros(&memory, &config()));
    let all: u64 = weights.params.tensors().iter().map(|t| t.bytes() as u64).sum();
    let before = weights.params.read("model.embed_tokens.weight").unwrap();
    let mut next = NextParams::apart(&weights.params, &mut other.params);
    assert!(!next.write("model.nothing", &[]) && next.write(NORM, &[2.0; 4]));
    assert_eq!(next.current().read(NORM).unwrap(), [1.0; 4], "the current version must not change");
    // Everything that was not written is copied once, so that all parameters can be changed in place.
    let params = next.copied();
    assert_eq!((params.read(NORM).unwrap(), params.read("model.embed_tokens.weight").unwrap()), (vec![2.0; 4], before));
    params.write(NORM, &[3.0; 4]);
    assert_eq!(next.copy_rest(), all - 16);
    assert_eq!(other.params.read(NORM).unwrap(), [3.0; 4]);
    let mut next = NextParams::in_place(&mut weights.params);
    assert!(next.write(NORM, &[4.0; 4]));
    assert_eq!(next.current().read(NORM).unwrap(), [4.0; 4]);
    assert!(next.tensors_mut().into_iter().all(|tensor| tensor.overwrite().0.is_none()));
    assert_eq!(next.copy_rest(), 0);
    // `Weights` without slots counts successful updates only.
    let updated: kernels::Result<()> = weights.update(|_| Ok(()));
    let failed: kernels::Result<()> = weights.update(|_| Err(kernels::Error::Device("full".into())));
    assert!(updated.is_ok() && failed.is_err() && weights.version.0 == 1);
}
