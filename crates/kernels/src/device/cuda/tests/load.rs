//! All CUDA sources, and the test that a device loads every kernel in them.

use super::device;
use crate::device::cuda::Source;
use std::path::{Path, PathBuf};

macro_rules! sources {
    ($($directory:literal: $($name:literal)*;)*) => {
        [$($(Source { name: $name, text: include_str!(concat!("../../../", $directory, "/", $name, ".cu")) }),*),*]
    };
}

/// Every source whose kernels a GPU runs: operations, the comparison of tensor cores, the measurement of peaks, and
/// the functions that only a test launches.
pub(super) const SOURCES: [Source; 20] = sources! {
    "ops/adamw": "adamw";
    "ops/attention": "attention";
    "ceilings": "ceilings";
    "ops/embedding": "embedding";
    "device/cuda/tests": "functions";
    "ops/glu": "glu";
    "ops/grad_norm": "grad_norm";
    "ops/lerp": "lerp";
    "ops/linear": "linear" "linear_bf16";
    "ops/lm_head": "lm_head";
    "ops/lora": "lora";
    "ops/qk_norm": "qk_norm";
    "ops/residual": "residual";
    "ops/rmsnorm": "rmsnorm";
    "ops/rope": "rope";
    "ops/rows": "rows";
    "ops/sample": "sample";
    "ops/softmax": "softmax";
    "device/cuda": "tensor_core";
};

/// The names of a source's kernels.
fn kernels(source: &Source) -> impl Iterator<Item = &'static str> {
    source.text.split("KERNEL(").skip(1).filter_map(|rest| rest.split(',').next())
}

#[test]
fn the_source_list_is_complete_except_for_planted_bugs() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut found, mut open) = (Vec::new(), vec![src.clone()]);
    while let Some(directory) = open.pop() {
        let entries = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
        let (directories, files): (Vec<PathBuf>, Vec<PathBuf>) = entries.partition(|path| path.is_dir());
        open.extend(directories);
        let is_source = |file: &PathBuf| file.extension().is_some_and(|extension| extension == "cu");
        found.extend(files.into_iter().filter(is_source).map(|file| file.file_stem().unwrap().display().to_string()));
    }
    found.retain(|name| name != "planted");
    found.sort();
    assert_eq!(found, SOURCES.map(|source| source.name));
    for source in &SOURCES {
        assert_eq!(kernels(source).count(), source.text.matches("KERNEL(").count(), "{}", source.name);
    }
}

/// For a machine with a GPU: loads every kernel on the device that `LOCKSTEP_DEVICE` names, and lists the kernels that
/// the device refuses. The emulator takes seconds to compile a source, so it gets only one.
#[test]
fn every_kernel_loads_on_the_device() {
    let Some(cuda) = device(0) else { return };
    let on_gpu = cuda.device() != crate::Device::CudaEmulated;
    let (mut loaded, mut refused) = (0, Vec::new());
    for source in SOURCES.iter().filter(|source| on_gpu || source.name == "glu") {
        for kernel in kernels(source) {
            match cuda.stream().load(source, kernel) {
                Ok(()) => loaded += 1,
                Err(error) => {
                    println!("REFUSED {kernel} of {}.cu: {error}", source.name);
                    refused.push(kernel);
                }
            }
        }
    }
    println!("{loaded} kernels loaded");
    assert!(refused.is_empty() && loaded > 0, "{} kernels were refused: {}", refused.len(), refused.join(", "));
}
