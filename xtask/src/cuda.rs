//! NVIDIA's compiler over every CUDA kernel, without a GPU: NVRTC from PyPI, into `target/nvrtc`.

use crate::cargo;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The last version that compiles for Volta, and the newest.
const PACKAGES: [&str; 2] = ["nvidia-cuda-nvrtc-cu12==12.9.86", "nvidia-cuda-nvrtc==13.5.37"];

/// Each version compiles every kernel for every architecture: no spilled register, nothing approximate.
pub fn check() -> Result<(), String> {
    for package in PACKAGES {
        // Of the whole workspace, whose features `cargo test --workspace` has built kernels with.
        let tests = ["test", "--workspace", "--lib", "--", "cuda::tests::compile", "--nocapture"];
        cargo::run(&tests, &[("LOCKSTEP_NVRTC", &nvrtc(package)?)])?;
    }
    Ok(())
}

/// Every kernel as a binary for every architecture, into `directory`: what the program takes from `LOCKSTEP_CUBINS`, or
/// from `cubins` beside itself, before it asks for NVRTC.
pub fn cubins(directory: &str) -> Result<(), String> {
    let place = std::path::absolute(directory).map_err(|e| format!("{directory}: {e}"))?;
    let tests = ["test", "--release", "-p", "lockstep-kernels", "--lib", "--", "compile::cubins", "--nocapture"];
    let place = place.to_string_lossy();
    // The version that knows them all.
    cargo::run(&tests, &[("LOCKSTEP_NVRTC", &nvrtc(PACKAGES[0])?), ("LOCKSTEP_WRITE_CUBINS", &place)])
}

/// The path of the library of a package, fetched if it is not there.
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

/// `libnvrtc.so.12` or `.13` below `directory`.
fn library(directory: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(directory).ok()?.flatten().map(|entry| entry.path());
    let is_library = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.strip_prefix("libnvrtc.so.").is_some_and(|version| version.parse::<u32>().is_ok())
    };
    let (directories, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    files.into_iter().find(is_library).or_else(|| directories.iter().find_map(|below| library(below)))
}
