//! Checks that vector code was inlined: the release build of the kernels must not contain a separate function for an
//! intrinsic.
//!
//! A Rust closure does not inherit the instruction set (`target_feature`) of the enclosing function. If such a closure
//! is not inlined, it calls each intrinsic as a function, with vectors in memory: the result has the same bits, but
//! takes forty times as long.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The prefix of symbol names of functions in `core::arch::x86`.
const INTRINSIC: &[u8] = b"_ZN4core9core_arch3x86";

/// Checks the kernels of the release build. (The test build has more codegen units, and keeps some intrinsics as
/// functions outside of hot code.)
pub fn check() -> Result<(), String> {
    let library = newest(&crate::cargo::release()?.join("deps"))?;
    let bytes = std::fs::read(&library).map_err(|e| format!("{}: {e}", library.display()))?;
    let alone = intrinsics(&bytes);
    if alone.is_empty() {
        Ok(())
    } else {
        Err(format!(
            "intrinsics that were not inlined in {}: {}; they are called from a closure, `array::from_fn` or `map`: \
         write a loop instead",
            library.display(),
            alone.into_iter().collect::<Vec<_>>().join(", ")
        ))
    }
}

/// The most recently built library of the kernels.
fn newest(directory: &Path) -> Result<PathBuf, String> {
    let mut found: Option<(SystemTime, PathBuf)> = None;
    for entry in std::fs::read_dir(directory).map_err(|e| format!("{}: {e}", directory.display()))? {
        let path = entry.map_err(|e| format!("{}: {e}", directory.display()))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("libkernels-") && name.ends_with(".rlib") {
            let built = path.metadata().and_then(|m| m.modified()).map_err(|e| format!("{}: {e}", path.display()))?;
            if found.as_ref().is_none_or(|(newest, _)| *newest < built) {
                found = Some((built, path));
            }
        }
    }
    found.map(|(_, path)| path).ok_or_else(|| format!("{} has no library of the kernels", directory.display()))
}

/// The names of intrinsics among the symbols of a library.
fn intrinsics(library: &[u8]) -> BTreeSet<String> {
    let starts = (0..library.len()).filter(|&at| library[at..].starts_with(INTRINSIC));
    let symbols = starts.map(|at| library[at..].split(|&byte| byte == 0).next().unwrap_or_default());
    let names = symbols.filter_map(|symbol| {
        let symbol = String::from_utf8_lossy(symbol).into_owned();
        // Removes the hash from `…15_mm256_loadu_ps17h0123456789abcdefE`.
        let (_, name) = symbol.split_once("_mm")?;
        Some(format!("_mm{}", name.rsplit_once("17h").map_or(name, |(name, _)| name)))
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn intrinsics_are_found_among_symbols() {
        let library = b"\0_ZN4core9core_arch3x863avx15_mm256_loadu_ps17h0123456789abcdefE\0_ZN7kernels3runE\0\
            _ZN4core9core_arch3x865xsave7_xgetbv17h0123456789abcdefE\0";
        assert_eq!(super::intrinsics(library).into_iter().collect::<Vec<_>>(), ["_mm256_loadu_ps"]);
        assert!(super::intrinsics(b"_ZN7kernels4simd4avx23run17h0123456789abcdefE\0").is_empty());
    }
}
