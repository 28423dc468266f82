//! Finds code that opens, writes, deletes or copies files with std instead of the crate `disk`. The rules of `disk`
//! make it safe to open an untrusted run (SECURITY.md): regular files only, no links inside a run, size limits.

use crate::sources;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The crates that open the files of runs, models and datasets.
const CRATES: [&str; 7] = ["cli", "dashboard", "fleet", "kernels", "lockstep", "model", "telemetry"];

/// The functions of std that `disk` replaces. Functions that do not open the file (`metadata`, `exists`) are allowed.
const OF_STD: [&str; 15] = [
    "fs::read(",
    "fs::read_to_string(",
    "fs::write(",
    "fs::copy(",
    "fs::rename(",
    "fs::hard_link(",
    "fs::read_dir(",
    "fs::create_dir(",
    "fs::create_dir_all(",
    "fs::remove_dir_all(",
    "fs::remove_file(",
    "File::open(",
    "File::create(",
    "File::options(",
    "OpenOptions::new(",
];

/// Paths of the system itself.
const OF_SYSTEM: [&str; 3] = ["\"/proc/", "\"/sys/", "\"/dev/"];

/// Files that may use std, each with the reason: they never open files of a run.
const EXCEPT: [(&str, &str); 16] = [
    ("cli/src/config/mod.rs", "a script that the user names"),
    ("cli/src/new_directory.rs", "a new directory that the user names"),
    ("cli/src/report.rs", "a scratch directory of this process"),
    ("cli/src/score.rs", "a file that the user names, or standard input"),
    ("cli/src/signals.rs", "a directory that this process creates"),
    ("fleet/src/lock.rs", "/proc"),
    ("fleet/src/lock/proof.rs", "/proc"),
    ("kernels/src/device", "programs of the CUDA toolkit, and the kernel cache"),
    ("kernels/src/memory/slot", "memory of this process; memory of another process is opened by disk"),
    ("lockstep/src/data/files.rs", "lists a dataset that the user names"),
    ("lockstep/src/data/load.rs", "standard input"),
    ("lockstep/src/out_file.rs", "an output that the user names"),
    ("model/src/hub.rs", "the cache of the Hugging Face Hub, whose files are links"),
    ("model/src/io/read.rs", "its File is a memory map, opened by disk"),
    ("telemetry/src/memory_limit.rs", "/sys and /proc"),
    ("telemetry/src/system.rs", "/proc"),
];

pub fn check() -> Result<(), String> {
    let (mut found, mut needed) = (Vec::new(), BTreeSet::new());
    for name in CRATES {
        let mut files = Vec::new();
        for path in sources::below(&format!("crates/{name}/src"))? {
            if sources::is_one_of(&path, &["rs"]) {
                let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
                files.push((path, text));
            }
        }
        let of_tests: Vec<PathBuf> = files.iter().flat_map(|(path, text)| modules_of_tests(path, text)).collect();
        for (path, text) in files {
            let shown = path.display().to_string();
            let is_test = shown.split('/').any(|part| part == "tests") || shown.ends_with("tests.rs");
            if is_test || of_tests.iter().any(|module| path.starts_with(module) || path == module.with_extension("rs"))
            {
                continue;
            }
            let places = of_std(&text).into_iter();
            match EXCEPT.iter().find(|(file, _)| path.starts_with(format!("crates/{file}"))) {
                Some((file, _)) => needed.extend(places.map(|_| *file)),
                None => {
                    found.extend(places.map(|(line, what)| format!("{shown}:{line}: {what}…) must use the crate disk")))
                }
            }
        }
    }
    let idle = EXCEPT.iter().filter(|(file, _)| !needed.contains(file));
    found.extend(idle.map(|(file, _)| format!("crates/{file} no longer uses std for files: remove it from EXCEPT")));
    if found.is_empty() {
        Ok(())
    } else {
        Err(format!(
            "{}\nuse the function of the same name in the crate `disk`; or, if the file cannot belong to a run, \
             add it to EXCEPT in xtask/src/disk.rs with the reason",
            found.join("\n")
        ))
    }
}

/// The modules that a source file declares only for tests, each as the path of its directory.
fn modules_of_tests(path: &Path, text: &str) -> Vec<PathBuf> {
    let is_root = path.file_stem().is_some_and(|stem| ["mod", "lib", "main"].iter().any(|root| stem == *root));
    let directory = if is_root { path.parent().unwrap_or(path).to_owned() } else { path.with_extension("") };
    let lines = text.lines().zip(text.lines().skip(1));
    let tests = lines.filter(|(line, _)| line.trim_start().starts_with("#[cfg(test)]"));
    let named = tests.filter_map(|(_, next)| next.trim().strip_suffix(';')?.rsplit_once("mod ").map(|(_, name)| name));
    named.map(|name| directory.join(name)).collect()
}

/// The calls of std's file functions in a source text, up to its tests: line and function.
fn of_std(text: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    let mut lines = text.lines().enumerate().peekable();
    while let Some((i, line)) = lines.next() {
        let next = lines.peek().map_or("", |(_, line)| line.trim_start());
        let is_cfg = line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test");
        if is_cfg && next.contains("mod ") && next.ends_with('{') {
            break;
        }
        let code = line.split("//").next().unwrap_or_default();
        let is_system = OF_SYSTEM.iter().any(|place| line.contains(place));
        for function in OF_STD.into_iter().filter(|_| !is_system) {
            let hits = code.match_indices(function);
            let of_another = |at: usize| code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            if hits.into_iter().any(|(at, _)| !of_another(at)) {
                found.push((i + 1, function));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_modules_are_found_beside_and_below_a_file() {
        let text =
            "mod a;\n#[cfg(test)]\nmod lies;\n\n#[cfg(test)]\npub(crate) mod tests;\n#[cfg(test)]\nmod inner {\n";
        for (path, directory) in
            [("src/verify/mod.rs", "src/verify"), ("src/lib.rs", "src"), ("src/lock.rs", "src/lock")]
        {
            let found = modules_of_tests(Path::new(path), text);
            assert_eq!(found, ["lies", "tests"].map(|name| Path::new(directory).join(name)), "{path}");
        }
    }

    #[test]
    fn calls_of_std_are_found_and_calls_of_disk_are_not() {
        let rows: [(&str, &[&str]); 9] = [
            ("let a = std::fs::read(path)?;", &["fs::read("]),
            ("    fs::rename(a, b)?; // fs::copy(a, b)", &["fs::rename("]),
            ("let f = File::open(&path)?;", &["File::open("]),
            ("OpenOptions::new().append(true)", &["OpenOptions::new("]),
            ("disk::read(path, disk::most::STATE)?; disk::Options::new().read()", &[]),
            ("let f = GroupFile::open(&path)?; DirectFile::create(path)", &[]),
            ("std::fs::read_to_string(\"/proc/self/status\")", &[]),
            ("// std::fs::read(path)", &[]),
            ("#[cfg(test)]\nmod tests {\n    std::fs::read(path);", &[]),
        ];
        for (text, expected) in rows {
            let found: Vec<&str> = of_std(text).into_iter().map(|(_, what)| what).collect();
            assert_eq!(found, expected, "{text}");
        }
    }
}
