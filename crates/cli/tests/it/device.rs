//! Selecting a command's device, and the errors if it cannot be used.

use crate::support::runs::{arguments, directory};
use crate::support::{command, listing};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A library with the entry points of NVIDIA's driver and compiler, and two devices that cannot compute. `None`, with a
/// message, if there is no C++ compiler.
fn fake_driver(directory: &Path) -> Option<PathBuf> {
    let path = directory.join("fake_cuda.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels/src/device/cuda/tests/fake_cuda.cpp");
    match Command::new("c++").args(["-shared", "-fPIC", "-o"]).arg(&path).arg(source).status() {
        Ok(status) => assert!(status.success()),
        Err(_) => {
            testing::skip::<()>("no C++ compiler to build a fake driver");
            return None;
        }
    }
    Some(path)
}

/// Runs the program with these environment variables.
fn with(directory: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let output = command(directory, arguments).envs(variables.iter().copied()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

#[test]
fn the_device_flag_overrides_the_configuration_and_the_environment() {
    let dir = directory();
    let root = dir.path();
    let checked = ("LOCKSTEP_DEVICE", "cpu-checked");
    let short = |out| arguments("train", out, &["max_steps=2", "save_steps=1"]);
    let record = |out: &str| -> Value {
        serde_json::from_slice(&std::fs::read(root.join(out).join("record.json")).unwrap()).unwrap()
    };
    let good = |arguments: &[&str], variables: &[(&str, &str)]| {
        let (code, printed) = with(root, arguments, variables);
        assert_eq!(code, Some(0), "{printed}");
    };
    std::fs::write(root.join("c.toml"), "device = \"cuda\"\n").unwrap();
    good(&short("plain"), &[]);
    good(&short("environment"), &[checked]);
    good(&[&short("configuration")[..], &["--set", "device=cpu-checked"]].concat(), &[("LOCKSTEP_DEVICE", "cuda")]);
    good(&[&short("flag")[..], &["c.toml", "--device", "cpu-checked"]].concat(), &[]);
    assert_eq!(record("plain")["device"], "cpu");
    for out in ["environment", "configuration", "flag"] {
        assert_eq!(record(out)["device"], "cpu-checked", "{out}");
        let weights = |out: &str| std::fs::read(root.join(out).join("model/model.safetensors")).unwrap();
        assert!(weights("plain") == weights(out), "{out}");
    }
    // Both devices use the same arithmetic, so the run may continue on the other; the record lists the change.
    good(&["train", "--resume", "plain", "--device", "cpu-checked", "--set", "max_steps=3"], &[]);
    let starts = &record("plain")["starts"];
    assert_eq!((&starts[0]["device"], &starts[1]["device"]), (&"cpu".into(), &"cpu-checked".into()));
    assert!(starts[1]["changed"].to_string().contains("device was none, now \\\"cpu-checked"), "{starts}");
    for arguments in [
        &["generate", "--model", "model", "--prompt", "ab", "--max-new-tokens", "2"][..],
        &[
            "eval",
            "--model",
            "model",
            "--dataset",
            "d.jsonl",
            "--reward",
            "unique_chars",
            "--max-completion-length",
            "4",
        ],
    ] {
        good(&[arguments, &["--device", "cpu-checked"]].concat(), &[("LOCKSTEP_DEVICE", "cuda")]);
    }
}

/// If a device cannot be used, the exit code is 2 and nothing is written.
#[test]
fn a_missing_device_is_refused_before_anything_is_written() {
    let dir = directory();
    let root = dir.path();
    let fake = fake_driver(root).map(|path| path.to_str().unwrap().to_owned());
    let refused = |device: &str, set: &[&str], variables: &[(&str, &str)], words: &[&str]| {
        let before = listing(root);
        let run = [&arguments("train", "out", set)[..], &["--device", device]].concat();
        let (code, printed) = with(root, &run, variables);
        assert_eq!(code, Some(2), "{device}: {printed}");
        for word in words {
            assert!(printed.contains(word), "{device}: `{word}` is missing: {printed}");
        }
        assert_eq!(listing(root), before, "{device}");
    };
    refused("tpu", &[], &[], &["unknown device; expected one of: cpu, cpu-checked, cuda, cuda-emulated"]);
    refused("cuda", &[], &[("LOCKSTEP_LIBCUDA", "none.so.1")], &["none.so.1 was not found", "install", "--device cpu"]);
    let (code, printed) = with(root, &["config", "show", "--set", "device=tpu"], &[]);
    assert!(code == Some(2) && printed.contains("`device`: tpu: unknown device"), "{printed}");
    let (code, printed) = with(root, &arguments("train", "out", &[]), &[("LOCKSTEP_DEVICE", "tpu")]);
    assert!(code == Some(2) && printed.contains("LOCKSTEP_DEVICE=tpu: unknown device"), "{printed}");
    let Some(fake) = fake else { return };
    let here = ("LOCKSTEP_LIBCUDA", fake.as_str());
    refused("cuda", &[], &[here, ("LOCKSTEP_NVRTC", "none.so")], &["NVRTC", "none.so was not found", "pip install"]);
    let compiler = ("LOCKSTEP_NVRTC", fake.as_str());
    refused("cuda:2", &[], &[here, compiler], &["cuda:2: there are 2 devices: cuda and cuda:1", "--device cpu"]);
    refused("cuda:1", &["dtype=bf16"], &[here, compiler], &["cuda:1: bf16 is not supported yet", "dtype = \"f32\""]);
}

#[test]
fn doctor_prints_the_devices_and_the_one_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let none = [("LOCKSTEP_LIBCUDA", "none.so.1"), ("LOCKSTEP_NVRTC", "none.so.2")];
    let (code, printed) = with(root, &["doctor", "--threads", "1"], &none);
    assert_eq!(code, Some(0), "{printed}");
    for words in ["none.so.1 was not found", "none.so.2 was not found", "kernel cache", "cpu: the default"] {
        assert!(printed.contains(words), "{words}: {printed}");
    }
    let (code, printed) = with(root, &["doctor", "--threads", "1", "--device", "cuda"], &none);
    assert_eq!(code, Some(2), "{printed}");
    assert!(printed.contains("device used        none: cuda: NVIDIA's driver cannot be used"), "{printed}");
    let Some(fake) = fake_driver(root).map(|path| path.to_str().unwrap().to_owned()) else { return };
    let fake = [("LOCKSTEP_LIBCUDA", fake.as_str()), ("LOCKSTEP_NVRTC", fake.as_str()), ("LOCKSTEP_KERNEL_CACHE", "k")];
    let (code, printed) = with(root, &["doctor", "--threads", "1", "--json"], &fake);
    assert_eq!(code, Some(0), "{printed}");
    let found: Value = serde_json::from_str(&printed).unwrap();
    let cuda = &found["cuda"];
    assert_eq!((&cuda["driver"]["cuda_version"], &cuda["nvrtc"]["version"]), (&"12.9".into(), &"12.9".into()));
    assert_eq!((&cuda["kernel_cache"], &found["device"]), (&"k".into(), &"cpu".into()));
    assert_eq!(cuda["devices"][0]["device"], "cuda");
    assert!(cuda["devices"][0]["error"].as_str().unwrap().starts_with("cuDeviceGetAttribute"), "{cuda}");
    let second = serde_json::json!({"device": "cuda:1", "name": "Second of two", "compute_capability": "8.6",
        "memory_bytes": 4u64 << 30, "memory_free_bytes": 3u64 << 30});
    assert_eq!(cuda["devices"][1], second);
    let (code, printed) = with(root, &["doctor", "--threads", "1"], &fake);
    assert!(
        code == Some(0) && printed.contains("Second of two, compute capability 8.6, 4.0 GiB of memory, 3.0 GiB free"),
        "{printed}"
    );
    let (code, printed) = with(root, &["doctor", "--device", "cuda-emulated"], &none);
    if no_compiler(&printed) {
        return;
    }
    assert_eq!(code, Some(0), "{printed}");
    for words in ["not meaningful", "cuda-emulated: set by --device", "for tests; its figures are"] {
        assert!(printed.contains(words), "{words}: {printed}");
    }
}

fn no_compiler(printed: &str) -> bool {
    let missing = printed.contains("no C++ compiler was found");
    if missing {
        testing::skip::<()>("no C++ compiler to emulate CUDA with");
    }
    missing
}

/// Two steps of GRPO on the emulator.
fn emulated<'a>(purpose: &'a str, out: &'a str) -> Vec<&'a str> {
    let short = ["max_steps=2", "save_steps=2", "logging_steps=1", "eval_steps=2", "max_tokens_per_micro_batch=64"];
    let more = ["num_generations=4", "per_device_train_batch_size=8", "max_num_seqs=8", "threads=1"];
    let mut all = arguments(purpose, out, &[]);
    short.iter().chain(&more).for_each(|pair| all.extend(["--set", pair]));
    all.extend(["--device", "cuda-emulated"]);
    all
}

/// The planned memory suffices and is close to the used memory; with one byte less, the run is refused.
#[test]
fn the_planned_device_memory_matches_the_used_memory() {
    let dir = directory();
    let root = dir.path();
    let train = emulated("train", "none");
    let plan = [&["plan", "--json"][..], &train[1..]].concat();
    let planned = |variables: &[(&str, &str)]| -> Value {
        let (code, printed) = with(root, &plan, variables);
        let plan: Value = serde_json::from_str(&printed).unwrap();
        assert_eq!(code, Some(if plan["fits"] == true { 0 } else { 1 }), "{printed}");
        plan
    };
    let first = planned(&[]);
    let total = first["device"]["total_bytes"].as_u64().unwrap();
    let parts = first["parts"].as_array().unwrap();
    let on_device = |p: &&Value| p["on"] == "cuda-emulated";
    assert_eq!(parts.iter().filter(on_device).map(|p| p["bytes"].as_u64().unwrap()).sum::<u64>(), total);
    for part in ["weights", "training: gradients", "generation: kv cache", "scratch of operations"] {
        assert!(parts.iter().filter(on_device).any(|p| p["part"] == part), "{part}: {parts:?}");
    }
    assert!(parts.iter().any(|p| p["part"] == "staging of copies" && p["on"].is_null()));
    let (code, printed) = with(root, &emulated("train", "unlimited"), &[]);
    if no_compiler(&printed) {
        return;
    }
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("MiB of cuda-emulated\n"), "{printed}");
    let text = std::fs::read_to_string(root.join("unlimited/metrics.jsonl")).unwrap();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let peak =
        text.lines().rev().find_map(|line| serde_json::from_str::<Value>(line).unwrap()["device/peak_bytes"].as_f64());
    let peak = peak.unwrap_or_else(|| panic!("{last}")) as u64;
    eprintln!("planned {total}, used {peak}");
    assert!(peak <= total && total - peak < total / 2, "planned {total}, used {peak}");
    let limit = |bytes: u64| [("LOCKSTEP_EMULATOR_MEMORY", bytes.to_string())];
    let run = |out: &str, limit: &[(&str, String)]| {
        let limit: Vec<(&str, &str)> = limit.iter().map(|(name, value)| (*name, value.as_str())).collect();
        with(root, &emulated("train", out), &limit)
    };
    let (code, printed) = run("exact", &limit(total));
    assert_eq!(code, Some(0), "{printed}");
    let before = listing(root);
    let (code, printed) = run("short", &limit(total - 1));
    assert_eq!(code, Some(2), "{printed}");
    for words in ["of cuda-emulated's memory", "max_tokens_per_micro_batch = 32 (now 64) (", "`lockstep plan`"] {
        assert!(printed.contains(words), "{words}: {printed}");
    }
    assert_eq!(listing(root), before);
    let small = planned(&[("LOCKSTEP_EMULATOR_MEMORY", "100000")]);
    assert_eq!((&small["fits"], &small["device"]["available_bytes"]), (&false.into(), &100_000.into()));
}

/// If another process takes memory after planning, the error names the part that does not fit and the settings that
/// make it smaller. The same command runs once the memory is free again.
#[test]
fn a_device_that_runs_out_of_memory_names_the_part_and_the_remedy() {
    let dir = directory();
    let root = dir.path();
    let has = 64 << 20;
    for (part, fix, left) in [("weights", "the size of the model", 4_000), ("", "lower ", 100_000)] {
        let limit = format!("{has}:{}", has - left);
        let (code, printed) = with(root, &emulated("train", "out"), &[("LOCKSTEP_EMULATOR_MEMORY", &limit)]);
        if no_compiler(&printed) {
            return;
        }
        assert!(matches!(code, Some(1 | 2)), "{printed}");
        for words in [&format!("out of memory: {part}"), "cannot allocate", fix, "`lockstep plan`"] {
            assert!(printed.contains(words), "{words}: {printed}");
        }
        assert!(!printed.contains("panicked"), "{printed}");
        assert!(!root.join("out/model").exists() && !root.join("out/checkpoints/step-000002").exists());
    }
    let (code, printed) = with(root, &emulated("train", "out"), &[]);
    assert_eq!(code, Some(0), "{printed}");
}

/// Work on a device is reported by stage: in metrics, in the summary and to profilers.
#[test]
fn stages_count_launches_copies_waits_and_device_time() {
    let dir = directory();
    let root = dir.path();
    let fake = fake_driver(root).map(|path| path.to_str().unwrap().to_owned()).unwrap_or_default();
    let ranges = root.join("ranges");
    let profiler = [("LOCKSTEP_NVTX", fake.as_str()), ("LOCKSTEP_TEST_RANGES", ranges.to_str().unwrap())];
    let (code, printed) = with(root, &[&emulated("train", "out")[..], &["--verbose"]].concat(), &profiler);
    if no_compiler(&printed) {
        return;
    }
    assert_eq!(code, Some(0), "{printed}");
    for words in ["device s", "launches", "copies in", "waits"] {
        assert!(printed.contains(words), "{words}: {printed}");
    }
    let text = std::fs::read_to_string(root.join("out/metrics.jsonl")).unwrap();
    let line: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    let number = |name: &str| line[name].as_f64().unwrap_or_else(|| panic!("{name}: {line}"));
    for stage in ["rollout", "update"] {
        for name in ["time_s", "launches", "copies_in", "waits"] {
            assert!(number(&format!("device/{stage}/{name}")) > 0.0, "{stage} {name}: {line}");
        }
        // The emulator measures device time with the host's clock.
        assert!(number(&format!("device/{stage}/time_s")) <= number("step_time"), "{line}");
    }
    let ranges = std::fs::read_to_string(ranges).unwrap();
    let count = |line: &str| ranges.lines().filter(|l| *l == line).count();
    assert_eq!((count("start rollout"), count("start update")), (2, 4), "{ranges}");
    assert_eq!(count("end 7"), ranges.lines().filter(|l| l.starts_with("start ")).count(), "{ranges}");
}

#[test]
fn benchmarks_on_the_emulator_print_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let step = ["bench", "step", "--shape", "tiny", "--repeats", "1", "--device", "cuda-emulated"];
    let (code, printed) = with(dir.path(), &step, &[]);
    if no_compiler(&printed) {
        return;
    }
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("EMULATED: these times are not the speed of a GPU"), "{printed}");
    let (code, printed) = with(dir.path(), &[&step[..], &["--json"]].concat(), &[]);
    assert_eq!(code, Some(0), "{printed}");
    let found: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((&found["emulated"], &found["rows"][0]["mismatching_tokens"]), (&true.into(), &0.into()), "{found}");
    assert!(found["ceiling_read_bytes_per_s"].as_f64().unwrap() > 0.0);
    for device in ["cpu", "cuda-emulated"] {
        let ablation = ["bench", "ablation", "--shape", "tiny", "--threads", "1", "--json", "--device", device];
        let (code, printed) = with(dir.path(), &ablation, &[]);
        assert_eq!(code, Some(0), "{printed}");
        let found: Value = serde_json::from_str(&printed).unwrap();
        let rows = found["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 7, "{found}");
        for row in rows {
            assert!(row["with_ms"].as_f64().unwrap() > 0.0 && row["without_ms"].as_f64().unwrap() > 0.0, "{row}");
        }
        let asked =
            |name: &str, column: &str| rows.iter().find(|row| row["optimization"] == name).unwrap()[column].clone();
        match device {
            "cpu" => assert!(asked("one transfer per batch", "asked_with").is_null()),
            _ => assert_eq!(
                [asked("one transfer per batch", "asked_with"), asked("one transfer per batch", "asked_without")],
                ["0 + 1 + 1, 1", "0 + 80 + 1, 1"],
            ),
        }
    }
}
