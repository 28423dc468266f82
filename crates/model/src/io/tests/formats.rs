//! Files other than weights, the sharding of weights, and the headers of files.

use super::super::safetensors::{entries, metadata};
use super::*;
use serde_json::{Value, json};

fn json_of(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn metadata_comes_first_and_data_is_aligned_to_8_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    for extra in 0..9 {
        let value = "v".repeat(extra);
        save_tensors_with(&path, &tied(), FileDType::Bf16, &[("mine", &value)]).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert_eq!(length % 8, 0, "the data must start at a multiple of 8");
        let all = |name: &str| metadata(&path, &bytes, name).unwrap();
        assert_eq!(
            (all("format").as_deref(), all("mine").as_deref(), all("other")),
            (Some("pt"), Some(&value[..]), None)
        );
        assert_eq!(read_metadata(&path, "mine").unwrap(), Some(value));
        // The checksum is computed with zeros in place of its own digits.
        let place = find_checksum(&bytes).unwrap();
        let recorded = String::from_utf8(bytes[place.clone()].to_vec()).unwrap();
        let mut zeros = bytes.clone();
        zeros[place].copy_from_slice(ZERO_CHECKSUM.as_bytes());
        assert_eq!(checksum(&zeros), recorded);
        let listed = FileList::of(dir.path(), crate::Step(1)).unwrap();
        assert_eq!(
            (listed.files["x.safetensors"].xxh3.as_str(), listed.files["x.safetensors"].bytes),
            (&recorded[..], bytes.len() as u64)
        );
        // A flipped bit is detected, in the data and in the header.
        for at in [bytes.len() - 1, 9] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            std::fs::write(&path, damaged).unwrap();
            let error = load_tensors(&path, &mut tied()).unwrap_err().to_string();
            assert!(error.contains("is damaged") || at == 9, "{error}");
        }
    }
    assert_eq!(find_checksum(b"{\"xxh3\":\"0123456789abcdef\""), Some(9..25));
    assert_eq!(find_checksum(b"{\"xxh3\":\"0123456789abcdeX0\""), None);
    assert_eq!((find_checksum(b"{\"xxh3\":\"0123"), find_checksum(b"{}")), (None, None));
    assert_eq!((without_bom(b"\xef\xbb\xbf{}"), without_bom(b"{}")), (&b"{}"[..], &b"{}"[..]));
}

#[test]
fn weights_are_split_into_shards_below_the_size_limit() {
    // The tensors take 80, 64 and 16 bytes in f32.
    for (max_shard_bytes, files) in [
        (160, vec![3]),
        (159, vec![2, 1]),
        (144, vec![2, 1]),
        (143, vec![1, 2]),
        (80, vec![1, 2]),
        (79, vec![1, 1, 1]),
        (0, vec![1, 1, 1]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let options = SaveOptions { max_shard_bytes, ..SaveOptions::default() };
        save_model(dir.path(), &config(true), &tied(), None, options).unwrap();
        let weights: Vec<String> = names(dir.path()).into_iter().filter(|n| n.ends_with(".safetensors")).collect();
        let held =
            |name: &String| entries(Path::new(name), &std::fs::read(dir.path().join(name)).unwrap()).unwrap().len();
        assert_eq!(weights.iter().map(held).collect::<Vec<_>>(), files, "{max_shard_bytes}");
        let n = files.len();
        let index = dir.path().join("model.safetensors.index.json");
        if n == 1 {
            assert_eq!((weights, index.exists()), (vec!["model.safetensors".to_owned()], false));
            continue;
        }
        let shard = |i: usize| format!("model-{:05}-of-{n:05}.safetensors", i + 1);
        assert_eq!(weights, (0..n).map(shard).collect::<Vec<_>>());
        let index = json_of(&index);
        assert_eq!(index["metadata"]["total_size"], 160);
        let places: Vec<usize> = files.iter().enumerate().flat_map(|(i, &count)| vec![i; count]).collect();
        for (spec, place) in tied().specs.iter().zip(places) {
            assert_eq!(index["weight_map"][&spec.name], shard(place));
        }
    }
    let half = SaveOptions { dtype: FileDType::F16, max_shard_bytes: 80 };
    let dir = tempfile::tempdir().unwrap();
    save_model(dir.path(), &config(true), &tied(), None, half).unwrap();
    assert!(dir.path().join("model.safetensors").exists(), "f16 takes half the bytes of f32");
    assert_eq!((SaveOptions::default().max_shard_bytes, SaveOptions::default().dtype), (5_000_000_000, FileDType::F32));
    let bf16 = config(true).computing_in(kernels::DType::Bf16);
    assert!(bf16.is_err(), "bf16 requires even sizes");
    let computing = |compute| SaveOptions::exact(&ModelConfig { compute, ..config(true) }).dtype;
    assert_eq!((computing(kernels::DType::Bf16), computing(kernels::DType::F32)), (FileDType::Bf16, FileDType::F32));
}

#[test]
fn saving_keeps_every_field_of_the_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let saved = |fields: Value, dtype: FileDType| {
        let mut json: Value = json!({"model_type": "llama", "hidden_size": 4, "intermediate_size": 4,
            "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 5});
        json.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let config = ModelConfig::parse(&json.to_string()).unwrap();
        std::fs::remove_dir_all(dir.path()).ok();
        save_model(dir.path(), &config, &tied(), None, SaveOptions { dtype, ..SaveOptions::default() }).unwrap();
        (json_of(&dir.path().join("config.json")), json_of(&dir.path().join("generation_config.json")))
    };
    let (config, generation) = saved(json!({"extra": [1], "eos_token_id": [7, 8], "pad_token_id": 3}), FileDType::F16);
    assert_eq!((&config["extra"], &config["dtype"], config.get("torch_dtype")), (&json!([1]), &json!("float16"), None));
    assert_eq!(config["architectures"], json!(["LlamaForCausalLM"]));
    let expected = json!({"_from_model_config": true, "bos_token_id": 1, "eos_token_id": [7, 8], "pad_token_id": 3});
    assert_eq!(generation, expected);
    let old = json!({"torch_dtype": "float32", "architectures": ["Mine"], "eos_token_id": 7});
    let (config, generation) = saved(old, FileDType::Bf16);
    assert_eq!((&config["torch_dtype"], config.get("dtype")), (&json!("bfloat16"), None));
    assert_eq!((&config["architectures"], &generation["eos_token_id"]), (&json!(["Mine"]), &json!(7)));
    let (config, generation) =
        saved(json!({"torch_dtype": "float32", "dtype": "float32", "eos_token_id": null}), FileDType::Bf16);
    assert_eq!((&config["dtype"], &config["torch_dtype"]), (&json!("bfloat16"), &json!("float32")));
    assert_eq!(generation["eos_token_id"], json!(null));
}

#[test]
fn tokenizer_and_template_files_are_copied() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let tokenizer = [
        "added_tokens.json",
        "additional_chat_templates/tool_use.jinja",
        "chat_template.jinja",
        "chat_template.json",
        "merges.txt",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "vocab.json",
    ];
    std::fs::create_dir(from.path().join("additional_chat_templates")).unwrap();
    let others = ["generation_config.json", "config.json", "README.md", "additional_chat_templates/notes.txt"];
    for name in tokenizer.iter().chain(&others) {
        std::fs::write(from.path().join(name), format!("{{\"of\": \"{name}\"}}")).unwrap();
    }
    let copied = ModelFiles::read(from.path()).unwrap();
    copied.write_tokenizer(to.path()).unwrap();
    assert_eq!(FileList::of(to.path(), crate::Step(0)).unwrap().files.keys().collect::<Vec<_>>(), tokenizer);
    for name in tokenizer {
        assert_eq!(json_of(&to.path().join(name))["of"], name);
        assert!(is_listed(name));
    }
    let listed = others.map(is_listed);
    assert_eq!(listed, [true, true, false, false], "{others:?}");
    save_model(to.path(), &config(true), &tied(), Some(&copied), SaveOptions::default()).unwrap();
    assert_eq!(
        json_of(&to.path().join("generation_config.json"))["of"],
        "generation_config.json",
        "generation_config.json must be the copied file"
    );
    assert_eq!(json_of(&to.path().join("config.json"))["model_type"], "llama");
    assert_eq!(ModelFiles::read(&from.path().join("none")).unwrap().write_tokenizer(to.path()).ok(), Some(()));
}

#[test]
fn partial_files_of_terminated_processes_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let long = "n".repeat(250);
    let own = std::process::id();
    // No process has this PID, because it is larger than any that the system assigns.
    let gone = 4_194_304_u32;
    let kept = [
        format!(".a.json.{own}.partial"),
        format!(".b.json.{gone}.partial"),
        format!(".a.json.{gone}.other"),
        ".a.json.x.partial".to_owned(),
        ".a.json.partial".to_owned(),
        format!("a.json.{gone}.partial"),
    ];
    let removed = [
        format!(".a.json.{gone}.partial"),
        format!(".a.json.{gone}.more.partial"),
        format!(".{}.{gone}.partial", &long[..PARTIAL_NAME]),
    ];
    for name in kept.iter().chain(&removed) {
        std::fs::write(at(name), "x").unwrap();
    }
    std::fs::create_dir_all(at(&format!(".a.json.{gone}.dir.partial/below"))).unwrap();
    sweep_partial(&at("a.json"));
    sweep_partial(&at(&long));
    let mut expected = kept.to_vec();
    expected.sort();
    assert_eq!(names(dir.path()), expected);
    // Writing a file removes files left by an earlier process. No temporary file remains, even after an error.
    std::fs::write(at(&removed[0]), "x").unwrap();
    write_atomically(&at("a.json"), |out| out.write_all(b"new").map_err(|e| Error::io("a.json", e))).unwrap();
    let failed = write_atomically(&at("a.json"), |out| {
        out.write_all(b"half").unwrap();
        Err(Error::Value("no".into()))
    });
    assert_eq!(
        (failed.unwrap_err().to_string(), std::fs::read(at("a.json")).unwrap()),
        ("no".to_owned(), b"new".to_vec())
    );
    let temporary = format!(".a.json.{own}.partial");
    assert!(!at(&temporary).exists() && !at(&removed[0]).exists());
    assert!(write_atomically(Path::new("/"), |_| Ok(())).unwrap_err().to_string().contains("is not a file name"));
}

/// The same PID can be another process in another container, so the lock decides whether the writer is alive.
#[test]
fn locked_partial_files_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let gone = 4_194_304_u32;
    let [file, other, directory] = ["", ".more", ".dir"].map(|more| at(&format!(".a.json.{gone}{more}.partial")));
    std::fs::write(&file, "half").unwrap();
    std::fs::write(&other, "half").unwrap();
    std::fs::create_dir_all(directory.join("below")).unwrap();
    let there = || [&file, &other, &directory].map(|path| path.exists());
    let mut locks = [&file, &other, &directory].map(|path| Some(lock_partial(path).unwrap()));
    sweep_partial(&at("a.json"));
    assert_eq!(there(), [true; 3]);
    // A write in the same directory keeps the locked files, and locks its own temporary file.
    write_atomically(&at("a.json"), |out| {
        let own = at(&format!(".a.json.{}.partial", std::process::id()));
        assert!(own.exists() && lock_partial(&own).is_none(), "a file must be locked while it is written");
        out.write_all(b"new").map_err(|e| Error::io("a.json", e))
    })
    .unwrap();
    assert_eq!(there(), [true; 3]);
    for (i, left) in [[false, true, true], [false, false, true], [false; 3]].into_iter().enumerate() {
        locks[i] = None;
        sweep_partial(&at("a.json"));
        assert_eq!(there(), left);
    }
    assert_eq!(names(dir.path()), ["a.json"]);
}

#[test]
fn a_failed_directory_flush_is_an_error() {
    use super::super::save::sync_directory;
    let dir = tempfile::tempdir().unwrap();
    sync_directory(dir.path()).unwrap();
    // A bare file name refers to the working directory.
    sync_directory(Path::new("")).unwrap();
    let missing = dir.path().join("missing");
    let why = sync_directory(&missing).unwrap_err().to_string();
    assert!(why.contains(missing.to_str().unwrap()), "{why}");
}

#[test]
fn the_error_for_unexpected_tensors_counts_them() {
    let dir = tempfile::tempdir().unwrap();
    let save = |names: &[(&str, &[usize])]| {
        save_model(dir.path(), &config(true), &held(names), None, SaveOptions::default()).unwrap();
    };
    let norm: (&str, &[usize]) = ("model.norm.weight", &[4]);
    let wanted = held(&[norm]);
    let error = |more: &[(&str, &[usize])]| {
        save(&[&[norm], more].concat());
        load(dir.path(), &config(true), &wanted).unwrap_err().to_string()
    };
    let one = error(&[("b", &[2, 3])]);
    assert!(one.ends_with("tensor `b`: unexpected: the model has no such tensor (shape [2, 3])"), "{one}");
    let three = error(&[("b", &[2]), ("a", &[1]), ("c", &[3])]);
    assert!(
        three.ends_with("tensor `a`: unexpected: the model has no such tensor (shape [1]) (and 2 more)"),
        "{three}"
    );
    save(&[norm, ("model.layers.0.self_attn.rotary_emb.inv_freq", &[2])]);
    assert_eq!(
        load(dir.path(), &config(true), &wanted).unwrap(),
        wanted,
        "tensors derived from the configuration are ignored"
    );
    assert!(error(&[("rotary_emb.inv_freq.x", &[2])]).contains("unexpected"));
    // A file may contain a tied head only if the model ties it.
    save(&[norm, ("lm_head.weight", &[5, 4])]);
    fails_with(load(dir.path(), &config(false), &wanted), &["lm_head.weight", "unexpected"]);
    std::fs::remove_file(dir.path().join("model.safetensors")).unwrap();
    std::fs::write(dir.path().join("model.safetensors.index.json"), "{}").unwrap();
    fails_with(load(dir.path(), &config(true), &wanted), &["index.json: expected an object `weight_map`"]);
    std::fs::write(dir.path().join("model.safetensors.index.json"), r#"{"weight_map": {"x": 7}}"#).unwrap();
    fails_with(
        load(dir.path(), &config(true), &wanted),
        &["tensor `x`: the index places the tensor in 7, which is not a file name"],
    );
}

#[test]
fn a_source_must_provide_as_many_elements_as_its_shape() {
    let dir = tempfile::tempdir().unwrap();
    let mut short = tied();
    short.data.get_mut("model.norm.weight").unwrap().pop();
    let error = save_tensors(&dir.path().join("x"), &short, FileDType::F32).unwrap_err().to_string();
    assert!(error.ends_with("tensor `model.norm.weight`: has 3 elements, but its shape [4] has 4"), "{error}");
    assert_eq!(tied().get(EMBEDDING).unwrap(), tied().data[EMBEDDING]);
    let mut large = tied();
    large.data.get_mut(EMBEDDING).unwrap()[0] = 65_504.0;
    save_tensors(&dir.path().join("x"), &large, FileDType::F16).unwrap();
    large.data.get_mut(EMBEDDING).unwrap()[0] = f32::INFINITY;
    save_tensors(&dir.path().join("x"), &large, FileDType::F16).unwrap();
    large.data.get_mut(EMBEDDING).unwrap()[0] = 65_520.0;
    let error = save_tensors(&dir.path().join("x"), &large, FileDType::F16).unwrap_err().to_string();
    assert!(error.ends_with("has an element that is too large for float16"), "{error}");
}

/// The Python package copies a tokenizer's files itself; its list must be the same.
#[test]
fn the_python_package_lists_the_same_files() {
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/lockstep_rl/_models.py");
    let Ok(source) = std::fs::read_to_string(source) else { return };
    let own = source.split("def _is_of_tokenizer").nth(1).and_then(|rest| rest.split("\ndef ").next()).unwrap();
    for (name, _) in model_files::FILES {
        let stem = name.split('.').next().unwrap();
        let is_model_file = name == CONFIG || name == GENERATION_CONFIG;
        assert_eq!(own.contains(&format!("\"{stem}\"")), !is_model_file, "{name}");
    }
    assert!(own.contains(&format!("\"{}\"", model_files::MORE_TEMPLATES.trim_end_matches('/'))));
}

#[test]
#[should_panic = "vocab.json is read, but the list of model files does not mark it as read"]
fn reading_a_file_that_is_only_copied_panics() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("vocab.json"), "{}").unwrap();
    let _ = ModelFiles::read(dir.path()).unwrap().object("vocab.json");
}

/// A model is loaded from the files that were read, not from the directory, which may have changed in the meantime.
#[test]
fn a_model_is_loaded_from_the_bytes_that_were_hashed() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir(at("additional_chat_templates")).unwrap();
    let listed = [
        ("chat_template.jinja", "a"),
        ("additional_chat_templates/a.b.jinja", "b"),
        ("additional_chat_templates/c.jinja", "c"),
        ("tokenizer_config.json", "\u{feff}{\"eos_token\": \"x\"}"),
    ];
    let others = ["additional_chat_templates/.jinja", "additional_chat_templates/d.txt", "vocab.json"];
    listed.iter().copied().chain(others.map(|name| (name, "?"))).for_each(|(n, t)| std::fs::write(at(n), t).unwrap());
    let files = ModelFiles::read(dir.path()).unwrap();
    std::fs::remove_dir_all(dir.path()).unwrap();
    let mut used: Vec<_> = files.used().map(|(name, bytes)| (name, std::str::from_utf8(bytes).unwrap())).collect();
    used.sort_unstable();
    let mut sorted = listed;
    sorted.sort_unstable();
    assert_eq!(used, sorted);
    assert_eq!(files.prompt_files().count(), 4);
    let templates: Vec<_> = files.templates().map(Result::unwrap).collect();
    assert_eq!(templates, [("default", "a"), ("a.b", "b"), ("c", "c")]);
    assert_eq!(files.object(TOKENIZER_CONFIG).unwrap().unwrap()["eos_token"], "x");
    assert_eq!(files.get(GENERATION_CONFIG), None);
    for name in ["additional_chat_templates/../config.jinja", "additional_chat_templates/a/b.jinja", "a/config.json"] {
        assert!(!is_listed(name), "{name}");
    }
}
