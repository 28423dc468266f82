//! What computes, and what is said where it cannot.

use crate::support::runs::{arguments, directory};
use crate::support::{command, listing};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A library with the functions of NVIDIA's driver and compiler, two devices and no computing. None, and a line that
/// says so, without a compiler.
fn fake_driver(directory: &Path) -> Option<PathBuf> {
    let path = directory.join("fake_cuda.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels/src/device/cuda/tests/fake_cuda.cpp");
    match Command::new("c++").args(["-shared", "-fPIC", "-o"]).arg(&path).arg(source).status() {
        Ok(status) => assert!(status.success()),
        Err(_) => {
            testing::skip::<()>("no C++ compiler to make a driver of");
            return None;
        }
    }
    Some(path)
}

/// Runs it with these variables.
fn with(directory: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let output = command(directory, arguments).envs(variables.iter().copied()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

#[test]
fn the_flag_comes_before_the_configuration_before_the_environment() {
    let dir = directory();
    let root = dir.path();
    let checked = ("LOCKSTEP_DEVICE", "cpu-checked");
    let short = |out| arguments("train", out, &["max_steps=2", "save_steps=1"]);
    let record = |out: &str| -> Value {
        serde_json::from_slice(&std::fs::read(root.join(out).join("record.json")).unwrap()).unwrap()
    };
    let good = |arguments: &[&str], variables: &[(&str, &str)]| {
        let (code, said) = with(root, arguments, variables);
        assert_eq!(code, Some(0), "{said}");
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
    // The same formula: a run may go on on another device, and its record says so.
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

/// Everything that keeps a device from computing is the user's to mend: exit code 2, and nothing is written.
#[test]
fn a_device_that_is_not_there_is_refused_before_anything_is_written() {
    let dir = directory();
    let root = dir.path();
    let fake = fake_driver(root).map(|path| path.to_str().unwrap().to_owned());
    let refused = |device: &str, set: &[&str], variables: &[(&str, &str)], words: &[&str]| {
        let before = listing(root);
        let run = [&arguments("train", "out", set)[..], &["--device", device]].concat();
        let (code, said) = with(root, &run, variables);
        assert_eq!(code, Some(2), "{device}: {said}");
        words.iter().for_each(|word| assert!(said.contains(word), "{device}: `{word}` is missing: {said}"));
        assert_eq!(listing(root), before, "{device}");
    };
    refused("tpu", &[], &[], &["no such device; there are: cpu, cpu-checked, cuda, cuda-emulated"]);
    refused("cuda", &[], &[("LOCKSTEP_LIBCUDA", "none.so.1")], &["none.so.1 was not found", "install", "--device cpu"]);
    let (code, said) = with(root, &["config", "show", "--set", "device=tpu"], &[]);
    assert!(code == Some(2) && said.contains("`device`: tpu: no such device"), "{said}");
    let (code, said) = with(root, &arguments("train", "out", &[]), &[("LOCKSTEP_DEVICE", "tpu")]);
    assert!(code == Some(2) && said.contains("LOCKSTEP_DEVICE=tpu: no such device"), "{said}");
    let Some(fake) = fake else { return };
    let here = ("LOCKSTEP_LIBCUDA", fake.as_str());
    refused("cuda", &[], &[here, ("LOCKSTEP_NVRTC", "none.so")], &["NVRTC", "none.so was not found", "pip install"]);
    let compiler = ("LOCKSTEP_NVRTC", fake.as_str());
    refused("cuda:2", &[], &[here, compiler], &["cuda:2: there are 2 devices: cuda and cuda:1", "--device cpu"]);
    refused("cuda:1", &["dtype=bf16"], &[here, compiler], &["cuda:1: bf16 is not there yet", "dtype = \"f32\""]);
}
