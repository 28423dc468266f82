//! Compiles every CUDA kernel with NVIDIA's compiler, without a GPU: NVRTC from PyPI, installed into `target/nvrtc`.

use crate::cargo;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Two versions of NVRTC: the last one that compiles for Volta, and the newest.
pub const PACKAGES: [&str; 2] = ["nvidia-cuda-nvrtc-cu12==12.9.86", "nvidia-cuda-nvrtc==13.5.37"];

/// Compiles every kernel for every architecture with both versions, and checks for spilled registers and approximate
/// instructions.
pub fn check() -> Result<(), String> {
    for package in PACKAGES {
        // The whole workspace, because `cargo test --workspace` has built kernels with its features.
        let tests = ["test", "--workspace", "--lib", "--", "cuda::tests::compile", "--nocapture"];
        cargo::run(&tests, &[("LOCKSTEP_NVRTC", &nvrtc(package)?)])?;
    }
    Ok(())
}

/// Compiles every kernel for every architecture into `directory`. At run time the program looks for these binaries in
/// `LOCKSTEP_CUBINS`, or in `cubins` beside itself, before it uses NVRTC.
pub fn cubins(directory: &str) -> Result<(), String> {
    let place = std::path::absolute(directory).map_err(|e| format!("{directory}: {e}"))?;
    let tests = ["test", "--release", "-p", "lockstep-kernels", "--lib", "--", "compile::cubins", "--nocapture"];
    let place = place.to_string_lossy();
    // This version supports every architecture.
    cargo::run(&tests, &[("LOCKSTEP_NVRTC", &nvrtc(PACKAGES[0])?), ("LOCKSTEP_WRITE_CUBINS", &place)])
}

/// The path of the library in a PyPI package, which is downloaded if missing.
fn nvrtc(package: &str) -> Result<String, String> {
    let directory = Path::new("target/nvrtc").join(package);
    let library = match library(&directory) {
        Some(library) => library,
        None => {
            fetch(package, &directory)?;
            library(&directory).ok_or_else(|| format!("{} has no libnvrtc.so", directory.display()))?
        }
    };
    let library = library.canonicalize().map_err(|e| format!("{}: {e}", library.display()))?;
    Ok(library.to_string_lossy().into_owned())
}

fn fetch(package: &str, directory: &Path) -> Result<(), String> {
    let to = directory.to_string_lossy();
    python(&["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "-d", &to, package])?;
    let wheels = std::fs::read_dir(directory).map_err(|e| format!("{to}: {e}"))?;
    for wheel in wheels.flatten().map(|entry| entry.path()) {
        if wheel.extension().is_some_and(|extension| extension == "whl") {
            python(&["-m", "zipfile", "-e", &wheel.to_string_lossy(), &to])?;
        }
    }
    Ok(())
}

fn python(arguments: &[&str]) -> Result<(), String> {
    match Command::new("python3").args(arguments).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("python3 {}: {status}", arguments.join(" "))),
        Err(error) => Err(format!("python3: {error}")),
    }
}

/// Finds `libnvrtc.so.12` or `.13` below `directory`.
fn library(directory: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(directory).ok()?.flatten().map(|entry| entry.path());
    let is_library = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.strip_prefix("libnvrtc.so.").is_some_and(|version| version.parse::<u32>().is_ok())
    };
    let (directories, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    files.into_iter().find(is_library).or_else(|| directories.iter().find_map(|below| library(below)))
}
