//! Two checkpoints that differ in one or more files: which difference is reported, and where.

use super::*;
use crate::rollouts::wire::Completion;
use model::GroupId;
use serde_json::json;
use std::fs;

/// A run of this build, whose rewards are all called again.
const SAME: OfRun<'_> = OfRun { not_asked: &[], same_build: true };

/// Two directories, for the recorded and the remade checkpoint.
struct Two {
    _dir: tempfile::TempDir,
    recorded: PathBuf,
    remade: PathBuf,
}

impl Two {
    fn new() -> Two {
        let dir = tempfile::tempdir().unwrap();
        let [recorded, remade] = ["recorded", "remade"].map(|name| dir.path().join(name));
        fs::create_dir(&recorded).unwrap();
        fs::create_dir(&remade).unwrap();
        Two { _dir: dir, recorded, remade }
    }

    fn write(&self, name: &str, recorded: impl AsRef<[u8]>, remade: impl AsRef<[u8]>) {
        fs::write(self.recorded.join(name), recorded).unwrap();
        fs::write(self.remade.join(name), remade).unwrap();
    }

    fn found(&self) -> Option<Difference> {
        difference(&self.recorded, &self.remade, Step(4), SAME).unwrap()
    }

    /// A difference in the file `name`, at `within` if that is a place in the file.
    fn at(&self, name: &str, within: &str, kind: &str, recorded: &str, remade: &str) -> Option<Difference> {
        let file = self.recorded.join(name).display().to_string();
        let place = if within.is_empty() { file } else { format!("{file}, {within}") };
        Some(Difference {
            step: Some(Step(4)),
            place: Some(place),
            kind: kind.into(),
            recorded: recorded.into(),
            remade: remade.into(),
            ..Difference::default()
        })
    }
}

/// A safetensors file with these tensors in order.
fn safetensors(tensors: &[(&str, &str, &[u8])]) -> Vec<u8> {
    let (mut header, mut data) = (json!({"__metadata__": {"format": "pt", "step": "4"}}), Vec::new());
    // The header's entries are not in byte order.
    let mut entries = Vec::new();
    for (name, dtype, bytes) in tensors {
        let size = match *dtype {
            "F32" => 4,
            "BF16" => 2,
            _ => 1,
        };
        let (begin, end) = (data.len(), data.len() + bytes.len());
        data.extend_from_slice(bytes);
        let entry = json!({"dtype": dtype, "shape": [bytes.len() / size], "data_offsets": [begin, end]});
        entries.push(((*name).to_owned(), entry));
    }
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    header.as_object_mut().unwrap().extend(entries);
    let header = header.to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

/// More floats than one read returns, then some values of two bytes, then single bytes.
fn data() -> [Vec<u8>; 3] {
    let floats = (0..20_000u32).flat_map(|i| (i as f32).to_le_bytes()).collect();
    [floats, [0x80, 0x3f].repeat(5), vec![1, 2, 3]]
}

fn model([floats, halves, bytes]: &[Vec<u8>; 3]) -> Vec<u8> {
    safetensors(&[("z", "F32", floats), ("m", "BF16", halves), ("a", "U8", bytes)])
}

#[test]
fn weights_are_compared_first_and_logs_of_the_state_last() {
    let two = Two::new();
    let names = [
        "adapter_model.safetensors",
        "model.safetensors",
        "a.safetensors",
        "optimizer.model.safetensors",
        "adapter.txt",
        "model.txt",
        "zzz",
        "run_state.json",
    ];
    // The files are written in reverse order.
    for name in names.iter().rev() {
        match *name {
            name if name.ends_with(".safetensors") => {
                two.write(name, safetensors(&[("x", "U8", &[1])]), safetensors(&[("x", "U8", &[2])]));
            }
            "run_state.json" => two.write(name, r#"{"step": 1}"#, r#"{"step": 2}"#),
            name => two.write(name, "a", "b"),
        }
    }
    // The list of files and `fleet.json`, with the lineages of weights that workers may have, are not compared.
    two.write(FILE_LIST, "1", "2");
    two.write("fleet.json", "1", "2");
    // Files of the Python package are not compared either.
    fs::write(two.recorded.join("trainer_state.json"), "{}").unwrap();
    fs::create_dir(two.recorded.join("empty")).unwrap();
    for name in names {
        let found = two.found().unwrap();
        let file = two.recorded.join(name).display().to_string();
        assert!(
            found.step == Some(Step(4)) && found.place.unwrap().starts_with(&(file + ", ")),
            "{name}: {}",
            found.kind
        );
        fs::copy(two.recorded.join(name), two.remade.join(name)).unwrap();
    }
    assert_eq!(two.found(), None);
}

#[test]
fn a_file_that_only_one_checkpoint_has_is_named() {
    let two = Two::new();
    two.write("x", "same", "same");
    assert_eq!(two.found(), None);
    fs::write(two.remade.join("a"), "1").unwrap();
    assert_eq!(two.found(), two.at("a", "", "file", "none", "the file"));
    fs::remove_file(two.remade.join("a")).unwrap();
    fs::remove_file(two.remade.join("x")).unwrap();
    assert_eq!(two.found(), two.at("x", "", "file", "the file", "none"));
    assert!(difference(&two.recorded.join("gone"), &two.remade, Step(4), SAME).is_err());
}

/// A value model is in a separate directory, and the next step depends on it.
#[test]
fn subdirectories_of_a_checkpoint_are_compared() {
    let two = Two::new();
    fs::create_dir(two.recorded.join("value_model")).unwrap();
    fs::create_dir(two.remade.join("value_model")).unwrap();
    let name = "value_model/model.safetensors";
    two.write("zzz", "same", "same");
    two.write(name, safetensors(&[("x", "U8", &[1])]), safetensors(&[("x", "U8", &[1])]));
    assert_eq!(two.found(), None);
    two.write("zzz", "one", "two");
    two.write(name, safetensors(&[("x", "U8", &[1])]), safetensors(&[("x", "U8", &[2])]));
    assert_eq!(two.found(), two.at(name, "x, element 0", "weight", "[01]", "[02]"));
    fs::remove_file(two.remade.join(name)).unwrap();
    assert_eq!(two.found(), two.at(name, "", "file", "the file", "none"));
}

#[test]
fn the_first_byte_that_differs_is_named() {
    let two = Two::new();
    let cases = [
        ("abc", "abd", "byte 2", "0x63", "0x64"),
        ("abc", "ab", "byte 2", "0x63", "the end"),
        ("", "ab", "byte 0", "the end", "0x61"),
        ("xbc", "abd", "byte 0", "0x78", "0x61"),
    ];
    for (recorded, remade, place, recorded_byte, remade_byte) in cases {
        two.write("f.bin", recorded, remade);
        assert_eq!(two.found(), two.at("f.bin", place, "byte", recorded_byte, remade_byte));
    }
}

#[test]
fn a_differing_weight_is_named_by_tensor_and_element() {
    let two = Two::new();
    let name = "model.safetensors";
    let spoiled = |tensor: usize, at: usize| {
        let mut tensors = data();
        tensors[tensor][at] ^= 1;
        two.write(name, model(&tensors), model(&data()));
        two.found()
    };
    let weight = |place: &str, recorded: &str, remade: &str| two.at(name, place, "weight", recorded, remade);
    // This element is beyond the first 64 KiB, which are read at once.
    assert_eq!(spoiled(0, 72_000), weight("z, element 18000", "18000.002 (0x468ca001)", "18000 (0x468ca000)"));
    let far = format!("{} (0x478ca000)", f32::from_bits(0x478c_a000));
    assert_eq!(spoiled(0, 72_003), weight("z, element 18000", &far, "18000 (0x468ca000)"));
    assert_eq!(spoiled(0, 4), weight("z, element 1", "1.0000001 (0x3f800001)", "1 (0x3f800000)"));
    assert_eq!(spoiled(1, 7), weight("m, element 3", "0.25 (0x3e80)", "1 (0x3f80)"));
    assert_eq!(spoiled(1, 0), weight("m, element 0", "1.0078125 (0x3f81)", "1 (0x3f80)"));
    assert_eq!(spoiled(2, 2), weight("a, element 2", "[02]", "[03]"));
    two.write(name, model(&data()), model(&data()));
    assert_eq!(two.found(), None);
}

#[test]
fn tensors_of_another_layout_are_named() {
    let two = Two::new();
    let name = "optimizer.safetensors";
    let one = [("a", "U8", &[1, 2][..]), ("b", "U8", &[3])];
    let found = |recorded: &[(&str, &str, &[u8])], remade: &[(&str, &str, &[u8])]| {
        two.write(name, safetensors(recorded), safetensors(remade));
        two.found()
    };
    let tensor = |recorded: &str, remade: &str| two.at(name, "", "tensor", recorded, remade);
    assert_eq!(found(&one, &[("a", "U8", &[1, 2]), ("c", "U8", &[3])]), tensor("b U8 [1]", "c U8 [1]"));
    assert_eq!(found(&one, &[("a", "U8", &[1]), ("b", "U8", &[3])]), tensor("a U8 [2]", "a U8 [1]"));
    assert_eq!(found(&one, &[("a", "I8", &[1, 2]), ("b", "U8", &[3])]), tensor("a U8 [2]", "a I8 [2]"));
    assert_eq!(found(&one, &one[..1]), tensor("b U8 [1]", "none"));
    assert_eq!(found(&one[..1], &one), tensor("none", "b U8 [1]"));

    let metadata = |step: &str| {
        let text = format!(r#"{{"__metadata__": {{"format": "pt", "step": "{step}"}}}}"#);
        [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
    };
    two.write(name, metadata("4"), metadata("5"));
    assert_eq!(two.found(), two.at(name, "header.step", "state", "\"4\"", "\"5\""));
    // The header's length is larger than the file.
    let long = [&u64::MAX.to_le_bytes()[..], b"{}"].concat();
    two.write(name, &long, &long);
    let message = format!("{:#}", difference(&two.recorded, &two.remade, Step(4), SAME).unwrap_err());
    assert_eq!(message, format!("{}: its header is longer than the file", two.recorded.join(name).display()));
}

#[test]
fn only_state_on_which_the_next_step_depends_is_compared() {
    let two = Two::new();
    let state = |change: &dyn Fn(&mut Value)| {
        let mut state = json!({
            "step": 4, "weights_version": 5, "arithmetic": "f32", "data_hash": "d", "sampler": [1, 2],
            "trainer": {"steps": 4}, "num_tokens": 9, "task": {"lineage": "l", "rollout_number": 8}, "log": 1});
        change(&mut state);
        state.to_string()
    };
    let found = |change: &dyn Fn(&mut Value)| {
        two.write("run_state.json", state(change), state(&|_| {}));
        two.found()
    };
    let differs =
        |place: &str, recorded: &str, remade: &str| two.at("run_state.json", place, "state", recorded, remade);
    assert_eq!(found(&|s| s["log"] = json!(2)), None);
    assert_eq!(found(&|s| s["step"] = json!(3)), differs("step", "3", "4"));
    assert_eq!(found(&|s| s["weights_version"] = json!(3)), differs("weights_version", "3", "5"));
    assert_eq!(found(&|s| s["arithmetic"] = json!("x")), differs("arithmetic", "\"x\"", "\"f32\""));
    assert_eq!(found(&|s| s["data_hash"] = json!("x")), differs("data_hash", "\"x\"", "\"d\""));
    assert_eq!(found(&|s| s["sampler"][1] = json!(3)), differs("sampler[1]", "3", "2"));
    assert_eq!(found(&|s| s["sampler"] = json!([1])), differs("sampler[1]", "null", "2"));
    assert_eq!(found(&|s| s["sampler"] = json!([1, 2, 3])), differs("sampler[2]", "3", "null"));
    assert_eq!(found(&|s| s["trainer"]["more"] = json!(1)), differs("trainer.more", "1", "null"));
    assert_eq!(found(&|s| s["trainer"] = json!({})), differs("trainer.steps", "null", "4"));
    assert_eq!(found(&|s| s["num_tokens"] = json!("9")), differs("num_tokens", "\"9\"", "9"));
    assert_eq!(found(&|s| s["task"]["rollout_number"] = json!(7)), differs("task.rollout_number", "7", "8"));
    // The lineage is compared first, because all other differences follow from it.
    let lineage = two.at("run_state.json", "", "lineage", "\"k\"", "\"l\"");
    assert_eq!(found(&|s| (s["task"]["lineage"], s["step"]) = (json!("k"), json!(3))), lineage);
    let ppo = |lineage: &str| json!({"step": 4, "task": {"pipeline": {"lineage": lineage}, "kl_coef": 1}}).to_string();
    two.write("run_state.json", ppo("k"), ppo("l"));
    assert_eq!(two.found(), lineage);
}

#[test]
fn the_path_of_an_adapters_base_is_not_compared() {
    let two = Two::new();
    let config = |base: &str, rank: u32| json!({"base_model_name_or_path": base, "r": rank}).to_string();
    two.write("adapter_config.json", config("/a", 2), config("/b", 2));
    assert_eq!(two.found(), None);
    two.write("adapter_config.json", config("/a", 2), config("/a", 4));
    assert_eq!(two.found(), two.at("adapter_config.json", "r", "state", "2", "4"));
}

#[test]
fn files_of_groups_are_compared_group_by_group() {
    let group = |id: u64, token: u32| {
        let completions = vec![Completion::new(0, vec![token])];
        let mut bytes = Vec::new();
        Group { group: GroupId(id), step: Some(Step(2)), completions, ..Group::default() }.write(&mut bytes);
        bytes
    };
    let two = Two::new();
    let name = "generation_batch.bin";
    two.write(name, [group(1, 5), group(2, 6)].concat(), [group(1, 5), group(2, 7)].concat());
    let token = two.at(name, "", "token", "6", "7").map(|found| Difference {
        step: Some(Step(4)),
        group: Some(GroupId(2)),
        completion: Some(0),
        token: Some(0),
        ..found
    });
    assert_eq!(two.found(), token);
    two.write(name, [group(1, 5), group(2, 6)].concat(), group(1, 5));
    assert_eq!(two.found(), two.at(name, "", "number of groups", "2", "1"));
    two.write(name, group(1, 5), group(1, 5));
    assert_eq!(two.found(), None);
    for name in [name, "frontier.bin", "frontier.begun.bin"] {
        two.write(name, "rubbish", "rubbish");
        let message = format!("{:#}", difference(&two.recorded, &two.remade, Step(4), SAME).unwrap_err());
        assert!(message.starts_with(&format!("{}: ", two.recorded.join(name).display())), "{message}");
        two.write(name, "", "");
        assert_eq!(two.found(), None);
    }
}

#[test]
fn the_final_model_is_compared_with_its_checkpoint() {
    let two = Two::new();
    let found = || result_difference(&two.recorded, &two.remade, Step(4)).unwrap();
    let name = "model.safetensors";
    two.write("config.json", "{}", "{}");
    two.write(name, safetensors(&[("x", "U8", &[1])]), safetensors(&[("x", "U8", &[1])]));
    // Only one of the directories has the file.
    fs::write(two.recorded.join("README.md"), "x").unwrap();
    fs::write(two.remade.join("run_state.json"), "{}").unwrap();
    two.write(FILE_LIST, "1", "2");
    assert_eq!(found(), None);
    two.write("config.json", "{}", "[]");
    assert_eq!(found(), two.at("config.json", "byte 0", "byte", "0x7b", "0x5b"));
    two.write("config.json", "{}", "{}");
    two.write(name, safetensors(&[("x", "U8", &[1])]), safetensors(&[("y", "U8", &[1])]));
    assert_eq!(found(), two.at(name, "", "tensor", "x U8 [1]", "y U8 [1]"));
    two.write(name, safetensors(&[("x", "U8", &[1])]), safetensors(&[("x", "U8", &[3])]));
    assert_eq!(found(), two.at(name, "x, element 0", "weight", "[01]", "[03]"));
}

/// Files that are removed from a result, added to it or replaced in it, and whether a difference is reported.
#[test]
fn a_result_must_have_exactly_the_files_of_the_model() {
    enum Change {
        Remove,
        Add,
        Replace,
    }
    use Change::{Add, Remove, Replace};
    let rows = [
        (Remove, "model.safetensors", true),
        (Remove, "config.json", true),
        (Remove, "tokenizer.json", true),
        (Remove, "tokenizer_config.json", true),
        (Remove, "generation_config.json", true),
        (Remove, "merges.txt", true),
        (Remove, "additional_chat_templates/rag.jinja", true),
        (Replace, "model.safetensors", true),
        (Replace, "tokenizer.json", true),
        (Replace, "generation_config.json", true),
        (Replace, "additional_chat_templates/rag.jinja", true),
        (Add, "model-00001-of-00001.safetensors", true),
        (Add, "model.safetensors.index.json", true),
        (Add, "adapter_model.safetensors", true),
        (Add, "adapter_config.json", true),
        (Add, "chat_template.jinja", true),
        (Add, "chat_template.json", true),
        (Add, "additional_chat_templates/tool_use.jinja", true),
        (Add, "special_tokens_map.json", true),
        (Add, "added_tokens.json", true),
        (Add, "tokenizer.model", true),
        (Add, "vocab.json", true),
        (Add, "pytorch_model.bin", true),
        (Add, "pytorch_model.bin.index.json", true),
        (Add, "model.pt", true),
        (Add, "consolidated.00.pth", true),
        (Add, "consolidated.safetensors", true),
        (Add, "params.json", true),
        (Add, "model.gguf", true),
        (Add, "flax_model.msgpack", true),
        (Add, "modeling_other.py", true),
        (Add, "preprocessor_config.json", true),
        (Add, "checkpoint-1/model.safetensors", true),
        (Add, "original/consolidated.00.pth", true),
        (Add, "README.md/model.safetensors", true),
        (Add, "readme.md", true),
        (Add, "optimizer_policy.safetensors", true),
        (Add, "trainer_state.json", true),
        (Replace, "run_state.json", true),
        (Add, "README.md", false),
        (Add, "LICENSE", false),
        (Add, ".gitattributes", false),
        // Older versions copied these files, which nothing reads in a result.
        (Add, "fleet.json", false),
        (Add, "files.json", false),
    ];
    for (change, name, differs) in rows {
        let two = Two::new();
        for dir in [&two.recorded, &two.remade] {
            fs::create_dir(dir.join("additional_chat_templates")).unwrap();
        }
        for file in ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "merges.txt"] {
            two.write(file, "{}", "{}");
        }
        let weights = |value: u8| safetensors(&[("x", "U8", &[value])]);
        two.write("model.safetensors", weights(1), weights(1));
        two.write("additional_chat_templates/rag.jinja", "x", "x");
        // Only the run needs these files, not the result.
        fs::create_dir(two.remade.join("value_model")).unwrap();
        for file in ["optimizer_moments.safetensors", "value_head.safetensors", "value_model/model.safetensors"] {
            fs::write(two.remade.join(file), weights(1)).unwrap();
        }
        for file in ["run_state.json", "frontier.bin", "frontier.begun.bin", "generation_batch.bin", "fleet.json"] {
            fs::write(two.remade.join(file), "{}").unwrap();
        }
        let found = || result_difference(&two.recorded, &two.remade, Step(4)).unwrap();
        assert_eq!(found(), None, "before {name}");
        let path = two.recorded.join(name);
        let (recorded, remade) = match change {
            Remove => {
                fs::remove_file(&path).unwrap();
                ("none", "the file")
            }
            Add => {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(&path, "added").unwrap();
                ("the file", "none")
            }
            Replace => {
                let bytes = if name.ends_with(".safetensors") { weights(2) } else { b"{ }".to_vec() };
                fs::write(&path, bytes).unwrap();
                ("", "")
            }
        };
        let found = found();
        assert_eq!(found.is_some(), differs, "{name}: {found:?}");
        let Some(found) = found else { continue };
        assert!(found.place.unwrap().starts_with(&path.display().to_string()), "{name}");
        match change {
            Replace => assert!(["byte", "weight"].contains(&&*found.kind), "{name}"),
            _ => assert_eq!((&*found.kind, &*found.recorded, &*found.remade), ("file", recorded, remade), "{name}"),
        }
    }
}

/// A changed offset in a header is reported, and so are bytes after the last tensor.
#[test]
fn all_bytes_and_offsets_of_tensors_are_compared() {
    let two = Two::new();
    let name = "model.safetensors";
    let good = safetensors(&[("a", "U8", &[1, 2]), ("b", "U8", &[1, 2])]);
    two.write(name, [&good[..], b"x"].concat(), &good);
    assert_eq!(two.found(), two.at(name, "after the last tensor", "byte", "0x78", "the end"));
    two.write(name, &good, [&good[..], b"x"].concat());
    assert_eq!(two.found(), two.at(name, "after the last tensor", "byte", "the end", "0x78"));
    let at = good.windows(5).position(|bytes| bytes == b"[2,4]").unwrap();
    let mut lied = good.clone();
    lied[at + 1] = b'0';
    two.write(name, &lied, &good);
    assert_eq!(two.found(), two.at(name, "header.b.data_offsets[0]", "state", "0", "2"));
}

/// Checkpoints of older versions lack only values that this version writes.
#[test]
fn a_state_of_an_older_version_is_compared_by_the_fields_that_it_has() {
    let two = Two::new();
    let older = OfRun { not_asked: &[], same_build: false };
    let state = |sampler: Value, task: Value| json!({"step": 4, "sampler": sampler, "task": task}).to_string();
    let found = |recorded: String, of: OfRun<'_>| {
        two.write(
            "run_state.json",
            recorded,
            state(json!({"cursor": 1, "extra": 3}), json!({"number": 8, "more": [1]})),
        );
        difference(&two.recorded, &two.remade, Step(4), of).unwrap()
    };
    let place = |found: Option<Difference>| found.unwrap().place.unwrap();
    let (full, task) = (json!({"cursor": 1, "extra": 3}), json!({"number": 8, "more": [1]}));
    assert_eq!(found(state(full.clone(), task.clone()), SAME), None);
    let lacks = state(json!({"cursor": 1}), json!({"number": 8}));
    assert_eq!(found(lacks.clone(), older), None);
    assert!(place(found(lacks, SAME)).ends_with("sampler.extra"));
    let lies = [
        (json!({"cursor": 1, "extra": 4}), task.clone(), "sampler.extra"),
        (json!({"cursor": 2}), task.clone(), "sampler.cursor"),
        (json!({"cursor": 1, "extra": 3, "other": 4}), task, "sampler.other"),
        (full.clone(), json!({"number": 9, "more": [1]}), "task.number"),
        (full, json!({"number": 8, "more": [2]}), "task.more[0]"),
    ];
    for (sampler, task, at) in lies {
        for of in [older, SAME] {
            let at_place = place(found(state(sampler.clone(), task.clone()), of));
            assert!(at_place.ends_with(at), "{at_place}, {at}");
        }
    }
}
