//! CUDA C++ sources, which are embedded in the binary, and the cache of kernels compiled from them.

use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::path::{Path, PathBuf};

/// The texts with which every source begins.
pub(super) const HEADERS: [(&str, &str); 4] = [
    ("kernel.cuh", include_str!("kernel.cuh")),
    ("matmul.cuh", include_str!("matmul.cuh")),
    ("sums.cuh", include_str!("sums.cuh")),
    ("mma.cuh", include_str!("mma.cuh")),
];

/// The CUDA source of an operation's kernels.
pub(crate) struct Source {
    /// Name of the file without `.cu`.
    pub name: &'static str,
    pub text: &'static str,
}

impl Source {
    /// The complete text for a compiler: `before`, the prelude, the source.
    pub(super) fn complete(&self, before: &str) -> String {
        let Source { name, text } = self;
        let mut all = before.to_owned();
        for (name, text) in HEADERS.into_iter().chain([(format!("{name}.cu").as_str(), *text)]) {
            all += &format!("\n#line 1 \"{name}\"\n{text}");
        }
        all
    }
}

/// The directory of the kernel cache: `LOCKSTEP_KERNEL_CACHE`, or one in the user's cache directory.
pub(super) fn directory() -> PathBuf {
    let of = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    of("LOCKSTEP_KERNEL_CACHE")
        .or_else(|| of("XDG_CACHE_HOME").map(|dir| dir.join("lockstep/kernels")))
        .or_else(|| of("HOME").map(|dir| dir.join(".cache/lockstep/kernels")))
        .unwrap_or_else(|| std::env::temp_dir().join("lockstep-kernels"))
}

/// Directories of kernels compiled ahead of time: `LOCKSTEP_CUBINS`, or `cubins` next to the executable.
pub(super) fn shipped() -> Vec<PathBuf> {
    let given = std::env::var_os("LOCKSTEP_CUBINS").filter(|value| !value.is_empty()).map(PathBuf::from);
    let beside = || Some(std::env::current_exe().ok()?.parent()?.join("cubins"));
    given.or_else(beside).into_iter().filter(|directory| directory.is_dir()).collect()
}

/// File name of a source's kernels compiled ahead of time with these options. It depends on the source and the options,
/// but not on the version of the compiler.
pub(super) fn shipped_name(source: &Source, options: &[String]) -> String {
    format!("{}-{}.cubin", source.name, digest(&[&options.join(" "), &source.complete("")]))
}

/// A 128-bit hash of everything that determines the compiled kernels.
fn digest(of: &[&str]) -> String {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, of).hash(&mut hasher);
        hasher.finish()
    };
    format!("{:016x}{:016x}", half(0), half(1))
}

/// The cached file that `compile` creates from these inputs. If it does not exist, it is created now, under a temporary
/// name first, so that no process reads an incomplete file.
pub(super) fn cached(
    name: &str,
    extension: &str,
    inputs: &[&str],
    compile: impl FnOnce(&Path) -> Result<(), String>,
) -> Result<PathBuf, String> {
    let directory = directory();
    let path = directory.join(format!("{name}-{}.{extension}", digest(inputs)));
    if path.exists() {
        return Ok(path);
    }
    std::fs::create_dir_all(&directory).map_err(|e| {
        format!("{} cannot be created: {e}; set LOCKSTEP_KERNEL_CACHE to a writable directory", directory.display())
    })?;
    // Containers that share the cache may have processes with the same PID.
    let unique = RandomState::new().hash_one(std::process::id());
    let unfinished = path.with_extension(format!("{unique:016x}.{extension}"));
    let made = compile(&unfinished).and_then(|()| {
        std::fs::rename(&unfinished, &path).map_err(|e| format!("{} cannot be written: {e}", path.display()))
    });
    // A failed compilation may leave an incomplete file.
    let _ = std::fs::remove_file(&unfinished);
    made.map(|()| path)
}
