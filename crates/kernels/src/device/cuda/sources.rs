//! CUDA C++ sources, which are part of the program, and the cache of what was compiled from them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

/// What every source begins with.
const PRELUDE: &str = include_str!("kernel.cuh");
const SUMS: &str = include_str!("sums.cuh");
const TENSOR_CORES: &str = include_str!("mma.cuh");

/// The kernels of an operation.
pub(crate) struct Source {
    /// The file's name without its ending.
    pub name: &'static str,
    pub text: &'static str,
}

impl Source {
    /// What a compiler is given, after `before`.
    pub(super) fn complete(&self, before: &str) -> String {
        let Source { name, text } = self;
        let headers = [("kernel.cuh", PRELUDE), ("sums.cuh", SUMS), ("mma.cuh", TENSOR_CORES)];
        let mut all = before.to_owned();
        for (name, text) in headers.into_iter().chain([(format!("{name}.cu").as_str(), *text)]) {
            all += &format!("\n#line 1 \"{name}\"\n{text}");
        }
        all
    }
}

/// The directory of what was compiled: `LOCKSTEP_KERNEL_CACHE`, or the user's cache.
pub(super) fn directory() -> PathBuf {
    let of = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    of("LOCKSTEP_KERNEL_CACHE")
        .or_else(|| of("XDG_CACHE_HOME").map(|dir| dir.join("lockstep/kernels")))
        .or_else(|| of("HOME").map(|dir| dir.join(".cache/lockstep/kernels")))
        .unwrap_or_else(|| std::env::temp_dir().join("lockstep-kernels"))
}

/// Directories of kernels that were compiled before the program was started: `LOCKSTEP_CUBINS`, or `cubins` beside it.
pub(super) fn shipped() -> Vec<PathBuf> {
    let given = std::env::var_os("LOCKSTEP_CUBINS").filter(|value| !value.is_empty()).map(PathBuf::from);
    let beside = || Some(std::env::current_exe().ok()?.parent()?.join("cubins"));
    given.or_else(beside).into_iter().filter(|directory| directory.is_dir()).collect()
}

/// The name of a source's binary for these options: of another source, or of other options, it is another one. Whatever
/// version of the compiler made it.
pub(super) fn shipped_name(source: &Source, options: &[String]) -> String {
    format!("{}-{}.cubin", source.name, digest(&[&options.join(" "), &source.complete("")]))
}

/// 128 bits of all that decides what is compiled.
fn digest(of: &[&str]) -> String {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, of).hash(&mut hasher);
        hasher.finish()
    };
    format!("{:016x}{:016x}", half(0), half(1))
}

/// The file that `compile` writes for these inputs, written now if it is not there: to another name first, so that no
/// process sees half of it.
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
        format!(
            "{} cannot be made: {e}; set LOCKSTEP_KERNEL_CACHE to a directory that can be written",
            directory.display()
        )
    })?;
    let unfinished = path.with_extension(format!("{}.{extension}", std::process::id()));
    let made = compile(&unfinished).and_then(|()| {
        std::fs::rename(&unfinished, &path).map_err(|e| format!("{} cannot be written: {e}", path.display()))
    });
    // Of a compiler that failed.
    let _ = std::fs::remove_file(&unfinished);
    made.map(|()| path)
}
