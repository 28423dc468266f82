//! Reading and writing parameters by name, frozen and rounded parameters, and adapter settings.

use super::*;
use kernels::DType;

fn parse(more: &str) -> Arc<ModelConfig> {
    let json = format!(
        r#"{{"model_type": "qwen2", "hidden_size": 6, "intermediate_size": 70, "num_hidden_layers": 2,
        "num_attention_heads": 3, "num_key_value_heads": 1, "vocab_size": 100{more}}}"#
    );
    Arc::new(ModelConfig::parse(&json).unwrap())
}

fn cpu() -> Memory {
    Memory::new(Device::Cpu)
}

fn lora(names: &[&str]) -> LoraConfig {
    let names = names.iter().map(|&name| name.to_owned()).collect();
    LoraConfig { r: 2, alpha: 3.0, target_modules: TargetModules::Names(names), ..LoraConfig::default() }
}

#[test]
fn a_tensor_reads_the_same_whole_and_in_pieces() {
    let config = parse("");
    let mut params = Params::zeros(&cpu(), &config);
    for name in ["model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight", "model.norm.weight"] {
        let rows = if name.contains("embed") { 100 } else { 70 };
        let len = if name.contains("norm") { 6 } else { 6 * rows };
        let data: Vec<f32> = (0..len).map(|i| i as f32 + 0.5).collect();
        assert!(params.write(name, &data));
        assert_eq!(params.read(name).as_ref(), Some(&data));
        let mut pieces = Vec::new();
        params
            .read_pieces(name, &mut |piece| {
                pieces.push(piece.to_vec());
                Ok(())
            })
            .unwrap()
            .unwrap();
        assert_eq!(pieces.concat(), data, "{name}");
        // Each piece has as many whole panels of 32 rows as fit.
        let lens: Vec<usize> = pieces.iter().map(Vec::len).collect();
        let expected: &[usize] = match len {
            600 => &[192, 192, 192, 24],
            420 => &[192, 192, 36],
            _ => &[6],
        };
        assert_eq!(lens, expected, "{name}");
        let stopped = params.read_pieces(name, &mut |_| Err(crate::Error::Stopped)).unwrap();
        assert!(matches!(stopped, Err(crate::Error::Stopped)));
    }
    assert!(params.read("model.nothing").is_none() && params.read_pieces("model.nothing", &mut |_| Ok(())).is_none());
    assert!(!params.write("model.nothing", &[]));
    let panics =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| params.write("model.embed_tokens.weight", &[1.0; 6])));
    assert!(panics.is_err(), "data of the wrong size must be rejected");
}

#[test]
fn frozen_parameters_have_no_elements() {
    let config = parse("");
    let lora = lora(&["q_proj", "down_proj"]);
    let mut params = Params::trained(&cpu(), &config, Some(&lora));
    for name in ["model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.bias", "model.norm.weight"] {
        assert!(params.read(name).is_none() && params.read_pieces(name, &mut |_| Ok(())).is_none(), "{name}");
        assert!(!params.write(name, &[1.0; 6]), "{name}");
    }
    let named = |params: &Params| Named { params }.tensors().into_iter().map(|t| (t.name, t.shape)).collect::<Vec<_>>();
    let expected = [0, 1].map(|layer| {
        let at = |name: &str| format!("base_model.model.model.layers.{layer}.{name}.weight");
        [
            (at("self_attn.q_proj.lora_A"), vec![2, 6]),
            (at("self_attn.q_proj.lora_B"), vec![6, 2]),
            (at("mlp.down_proj.lora_A"), vec![2, 70]),
            (at("mlp.down_proj.lora_B"), vec![6, 2]),
        ]
    });
    assert_eq!(named(&params), expected.concat());
    // An adapter has no master weights; full fine-tuning has them for all parameters.
    assert_eq!(named(&Params::masters(&cpu(), &config, Some(&lora))), []);
    let all = named(&Params::masters(&cpu(), &config, None));
    let expected: Vec<_> = tensor_specs(&config).into_iter().map(|t| (t.name, t.shape)).collect();
    assert_eq!(all, expected);
    assert!(Params::masters(&cpu(), &config, None).tensors().iter().all(|t| t.dtype() == DType::F32));
    // A score head is trained with the adapter.
    let scores = config.with_score_head(1);
    let trained = named(&Params::trained(&cpu(), &scores, Some(&lora)));
    assert_eq!(trained[0], ("score.weight".to_owned(), vec![1, 6]));
    assert_eq!(named(&Params::masters(&cpu(), &scores, Some(&lora))), [("score.weight".to_owned(), vec![1, 6])]);
    let mut adapter = Adapter::zeros(&cpu(), &Weights::zeros(&cpu(), &Arc::new(scores)), &lora).unwrap();
    assert_eq!((adapter.len(), adapter.is_empty()), (2 * (12 + 12 + 140 + 12) + 6, false));
    let files = AdapterFiles(&adapter.params).tensors();
    assert_eq!((files[0].name.as_str(), files.len()), ("base_model.model.score.weight", 9));
    AdapterFilesMut(&mut adapter.params).put("base_model.model.score.weight", &[1.0; 6]).unwrap();
    assert_eq!(adapter.params.read("score.weight").unwrap(), [1.0; 6]);
    let error = AdapterFiles(&adapter.params).get("base_model.model.model.norm.weight").unwrap_err().to_string();
    assert_eq!(error, "the model has no tensor `base_model.model.model.norm.weight`");
    adapter.publish();
    adapter.publish();
    assert_eq!(adapter.version.0, 2);
}

#[test]
fn a_bf16_tree_stores_bf16_values() {
    let config = Arc::new(parse("").computing_in(DType::Bf16).unwrap());
    let mut params = Params::zeros(&cpu(), &config);
    let data = [1.0 + 1.0 / 512.0, -1.0 - 1.0 / 64.0, 0.1, 3.0e38, 0.0, 7.0];
    let rounded: Vec<f32> = data.iter().map(|&x| half::bf16::from_f32(x).to_f32()).collect();
    assert!(
        params.write("model.norm.weight", &data) && params.write("model.layers.0.self_attn.k_proj.bias", &data[..2])
    );
    assert_eq!(params.read("model.norm.weight").unwrap(), rounded);
    assert_eq!(params.read("model.layers.0.self_attn.k_proj.bias").unwrap(), rounded[..2]);
    let mut exact = Params::zeros(&cpu(), &parse(""));
    assert!(exact.write("model.norm.weight", &data));
    assert_eq!(exact.read("model.norm.weight").unwrap(), data);
    let mut copy = Params::zeros(&cpu(), &parse(""));
    copy.copy_from(&exact);
    assert_eq!(copy.read("model.norm.weight").unwrap(), data);
    // bf16 moments take half the memory; parameters that are not kept take none.
    let bytes = |params: &Params| params.tensors().iter().map(|t| t.bytes()).sum::<usize>();
    let all = bytes(&exact);
    assert_eq!(bytes(&Params::zeros(&cpu(), &parse("")).zeros_in_bf16(&cpu())), all / 2);
    let kept = Params::zeros(&cpu(), &parse("")).keep(&cpu(), |spec| !spec.matrix);
    assert!(kept.specs().iter().zip(kept.tensors()).all(|(spec, tensor)| spec.matrix == (tensor.bytes() == 0)));
    let vectors: usize = (6 + 2 * (6 + 6 + 6 + 2 + 2)) * 4;
    assert_eq!(bytes(&kept), vectors);
}

#[test]
fn invalid_lora_settings_are_refused() {
    let default = LoraConfig::default();
    assert_eq!((default.r, default.alpha, default.use_rslora, default.dropout), (16, 32.0, false, 0.0));
    assert_eq!(default.target_modules, TargetModules::Names(vec!["q_proj".into(), "v_proj".into()]));
    assert_eq!(default.scale(), 2.0);
    assert_eq!(LoraConfig { use_rslora: true, ..default.clone() }.scale(), 8.0);
    assert_eq!(LoraConfig { r: 4, alpha: 3.0, ..default.clone() }.scale(), 0.75);
    let config = parse("");

    let check = |lora: &LoraConfig| lora.check(&config).map_err(|e| e.to_string());
    let names = |names: &[&str]| lora(names);
    for good in [
        default.clone(),
        LoraConfig { r: 1, dropout: 0.99, ..default.clone() },
        LoraConfig { alpha: -1.0, ..default.clone() },
        names(&["self_attn.q_proj", "model.layers.1.mlp.up_proj"]),
        LoraConfig { target_modules: TargetModules::AllLinear, ..default.clone() },
        LoraConfig { target_modules: TargetModules::Regex(r"model\.layers\.1\..*_proj".into()), ..default.clone() },
    ] {
        assert_eq!(check(&good), Ok(()), "{good:?}");
    }
    let known = "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj";
    let regex = |pattern: &str| LoraConfig { target_modules: TargetModules::Regex(pattern.into()), ..default.clone() };
    let none = |name: &str| {
        format!(
            "`lora_target_modules`: the model has no linear layer named `{name}`; available: {known} (the head and the \
             embedding cannot be adapted)"
        )
    };
    let matches = |pattern: &str| {
        format!(
            "`lora_target_modules`: `{pattern}` matches no linear layer of the model; an example of a layer name is \
             model.layers.0.self_attn.q_proj"
        )
    };
    for (bad, why) in [
        (LoraConfig { r: 0, ..default.clone() }, "the LoRA rank must be at least 1, got 0".into()),
        (
            LoraConfig { alpha: f64::NAN, ..default.clone() },
            "lora_alpha and the scale computed from it must be finite, got lora_alpha = NaN".into(),
        ),
        (
            LoraConfig { alpha: 1e40, ..default.clone() },
            format!("lora_alpha and the scale computed from it must be finite, got lora_alpha = {}", 1e40),
        ),
        (LoraConfig { dropout: 1.0, ..default.clone() }, "lora_dropout must be at least 0 and below 1, got 1".into()),
        (
            LoraConfig { dropout: -0.1, ..default.clone() },
            "lora_dropout must be at least 0 and below 1, got -0.1".into(),
        ),
        (names(&[]), format!("`lora_target_modules` is empty; name some of {known}, or all-linear")),
        (names(&["q_proj", "lm_head"]), none("lm_head")),
        (names(&["proj"]), none("proj")),
        (names(&["embed_tokens"]), none("embed_tokens")),
        (regex("q_proj"), matches("q_proj")),
        (regex("model.layers.0.self_attn.q"), matches("model.layers.0.self_attn.q")),
    ] {
        assert_eq!(check(&bad), Err(why), "{bad:?}");
    }
    assert!(check(&regex("(")).unwrap_err().starts_with("`lora_target_modules`: `(` is not a regular expression: "));
    // Only the selected modules get LoRA matrices.
    let adapted = |target_modules: TargetModules| {
        let lora = LoraConfig { r: 1, target_modules, ..default.clone() };
        let adapter = Adapter::zeros(&cpu(), &Weights::zeros(&cpu(), &config), &lora).unwrap();
        let of = |linear: &Linear| linear.low_rank.as_ref().map_or(0, |low_rank| low_rank.b.len());
        adapter.params.layers.iter().map(|layer| layer.linears().map(of)).collect::<Vec<_>>()
    };
    assert_eq!(adapted(TargetModules::AllLinear), [[3, 1, 2, 1]; 2]);
    assert_eq!(adapted(names(&["k_proj", "up_proj"]).target_modules), [[1, 0, 1, 0]; 2]);
    assert_eq!(adapted(names(&["model.layers.1.self_attn.o_proj"]).target_modules), [[0; 4], [0, 1, 0, 0]]);
    assert_eq!(adapted(TargetModules::Regex(r".*\.0\..*(q|down)_proj".into())), [[1, 0, 0, 1], [0; 4]]);
}

#[test]
fn the_gradient_of_a_tied_matrix_sums_head_and_embedding() {
    let ctx = kernels::Context::cpu(kernels::Isa::best(), 1);
    let config = parse(r#", "tie_word_embeddings": true"#);
    let mut grads = Grads::zeros(ctx.memory(), &config);
    assert!(!grads.is_for_adapter() && grads.head_mut().is_some());
    let tied = |grads: &Grads| grads.params.read("model.embed_tokens.weight").unwrap();
    grads.head_mut().unwrap().pack_rows(0, &[1.0; 600]);
    let d_out = Tensor::from_f32(ctx.memory(), &[3, 6], &[2.0; 18]);
    grads.add_embedding(&ctx, &[5, 7, 5], d_out.view()).unwrap();
    assert_eq!(tied(&grads), [1.0; 600], "the embedding's gradient is kept separate");
    grads.finish(&ctx).unwrap();
    let expected = |row: usize| 1.0 + if row == 5 { 4.0 } else { f32::from(u8::from(row == 7)) * 2.0 };
    assert!(tied(&grads).iter().enumerate().all(|(i, &x)| x == expected(i / 6)));
    grads.finish(&ctx).unwrap();
    assert!(
        tied(&grads).iter().enumerate().all(|(i, &x)| x == expected(i / 6)),
        "finish must add the embedding's gradient only once"
    );
    grads.add_embedding(&ctx, &[5], d_out.rows(0..1)).unwrap();
    grads.zero(&ctx);
    grads.finish(&ctx).unwrap();
    assert_eq!(tied(&grads), [0.0; 600]);
    // Untied matrices have separate gradients.
    let mut grads = Grads::zeros(ctx.memory(), &parse(""));
    grads.add_embedding(&ctx, &[5], d_out.rows(0..1)).unwrap();
    grads.finish(&ctx).unwrap();
    assert_eq!(tied(&grads)[30..36], [2.0; 6]);
    assert!(!std::ptr::eq(grads.head_mut().unwrap(), &raw const grads.params.embedding));
    // With an adapter, both matrices are frozen.
    let mut grads = Grads::trained(ctx.memory(), &config, Some(&lora(&["q_proj"])));
    assert!(grads.is_for_adapter() && grads.head_mut().is_none());
    grads.add_embedding(&ctx, &[5], d_out.rows(0..1)).unwrap();
    grads.finish(&ctx).unwrap();
}

#[test]
fn the_embedding_gradient_includes_the_embedding_scale() {
    let ctx = kernels::Context::cpu(kernels::Isa::best(), 1);
    for tied in [true, false] {
        let mut config = (*parse(&format!(r#", "tie_word_embeddings": {tied}"#))).clone();
        config.embedding_multiplier = 3.0;
        let mut grads = Grads::zeros(ctx.memory(), &config);
        let d_out = Tensor::from_f32(ctx.memory(), &[1, 6], &[2.0; 6]);
        grads.add_embedding(&ctx, &[99], d_out.view()).unwrap();
        grads.finish(&ctx).unwrap();
        assert_eq!(grads.params.read("model.embed_tokens.weight").unwrap()[594..], [6.0; 6], "{tied}");
    }
}
