//! Finds the identity of the build: the commit, and a hash of the changes to it. Only this crate depends on this
//! identity, so a new commit rebuilds nothing else. Nothing here fails: without git the identity is unknown.
//!
//! The commit comes from the first of these sources that exists: the variable LOCKSTEP_BUILD_COMMIT (for container
//! images, which are built without `.git`), the repository, the file that `cargo package` adds to a crate, the file
//! COMMIT that `git archive` fills in.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The program's sources, as paths from the root of the repository, without tests.
const SOURCES: [&str; 8] = [
    "crates",
    "Cargo.toml",
    "Cargo.lock",
    "rust-toolchain.toml",
    ".cargo",
    ":(exclude,glob)crates/*/tests/**",
    ":(exclude,glob)crates/*/benches/**",
    ":(exclude,glob)crates/*/examples/**",
];
/// The folders of a crate that are not compiled into the program.
const NOT_BUILT: [&str; 5] = ["tests", "benches", "examples", "browser", "target"];

fn main() {
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    println!("cargo::rerun-if-env-changed=LOCKSTEP_BUILD_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    for file in [".cargo_vcs_info.json", "COMMIT"] {
        watch(&here.join(file));
    }
    let (commit, modified) = of_variable()
        .or_else(|| of_repository(&here))
        .or_else(|| of_package(&here))
        .or_else(|| of_archive(&here))
        .unwrap_or_default();
    println!("cargo::rustc-env=GIT_COMMIT_OF_BUILD={commit}");
    println!("cargo::rustc-env=GIT_CHANGES_OF_BUILD={modified}");
}

/// Makes cargo run this script again when `path` changes. A missing path would make it run at every build.
fn watch(path: &Path) {
    if path.exists() {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}

/// Whether a text is a full or shortened hash.
pub fn is_hash(text: &str) -> bool {
    text.len() >= 7 && text.len() <= 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn of_variable() -> Option<(String, String)> {
    let commit = std::env::var("LOCKSTEP_BUILD_COMMIT").ok()?;
    is_hash(commit.trim()).then(|| (commit.trim().to_owned(), String::new()))
}

/// The commit of this crate's repository, and a hash of the uncommitted changes to the sources (empty if there are
/// none).
pub fn of_repository(here: &Path) -> Option<(String, String)> {
    let git = Git { here };
    // A vendored crate or an unpacked archive in somebody else's repository is not at `crates/cli`.
    if git.text(&["rev-parse", "--show-prefix"])? != "crates/cli/" || git.text(&["ls-files", "Cargo.toml"])?.is_empty()
    {
        return None;
    }
    let root = here.parent()?.parent()?;
    // In a worktree `.git` is a file, and HEAD and the branches are in different directories. The index is not watched:
    // `git status` alone rewrites it, and the identity does not depend on it.
    let of_git = |name: &str| git.text(&["rev-parse", "--git-path", name]).map(|path| here.join(path));
    ["HEAD", "packed-refs", "logs/HEAD", "reftable"].into_iter().filter_map(of_git).for_each(|path| watch(&path));
    let branch = git.text(&["symbolic-ref", "-q", "HEAD"]).and_then(|name| of_git(&name));
    match branch {
        Some(branch) if branch.exists() => watch(&branch),
        // The branch is packed; the next commit creates its file.
        Some(_) => of_git("refs/heads").iter().for_each(|path| watch(path)),
        None => {}
    }
    for path in ["Cargo.toml", "Cargo.lock", "rust-toolchain.toml", ".cargo"] {
        watch(&root.join(path));
    }
    for krate in std::fs::read_dir(root.join("crates")).into_iter().flatten().flatten() {
        for part in std::fs::read_dir(krate.path()).into_iter().flatten().flatten() {
            if !NOT_BUILT.contains(&&*part.file_name().to_string_lossy()) {
                watch(&part.path());
            }
        }
    }
    let commit = git.text(&["rev-parse", "--verify", "HEAD"]).filter(|commit| is_hash(commit))?;
    let modified = git.modified(root).unwrap_or_else(|| "unknown".to_owned());
    Some((commit, modified))
}

/// The commit of a crate packed by `cargo package`, which records only whether there were uncommitted changes.
pub fn of_package(here: &Path) -> Option<(String, String)> {
    let text = std::fs::read_to_string(here.join(".cargo_vcs_info.json")).ok()?;
    let value =
        |key: &str| Some(text.split_once(&format!("\"{key}\""))?.1.trim_start().strip_prefix(':')?.trim_start());
    let commit = value("sha1")?.strip_prefix('"')?.split('"').next()?;
    let modified = value("dirty").is_some_and(|rest| rest.starts_with("true"));
    is_hash(commit).then(|| (commit.to_owned(), if modified { "unknown".to_owned() } else { String::new() }))
}

/// The commit of a source archive: `git archive` (which GitHub uses) writes the commit into a file.
pub fn of_archive(here: &Path) -> Option<(String, String)> {
    let text = std::fs::read_to_string(here.join("COMMIT")).ok()?;
    let commit = text.trim();
    is_hash(commit).then(|| (commit.to_owned(), String::new()))
}

struct Git<'a> {
    here: &'a Path,
}

impl Git<'_> {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut git = Command::new("git");
        // A git hook may set these for a different repository. In a container, files may belong to a different user.
        for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"] {
            git.env_remove(name);
        }
        git.env("GIT_OPTIONAL_LOCKS", "0").env("LC_ALL", "C").current_dir(self.here);
        git.args(["-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false"]);
        git.args(arguments).stdin(Stdio::null()).stderr(Stdio::null());
        git
    }

    fn bytes(&self, arguments: &[&str]) -> Option<Vec<u8>> {
        let output = self.command(arguments).output().ok()?;
        output.status.success().then_some(output.stdout)
    }

    fn text(&self, arguments: &[&str]) -> Option<String> {
        Some(String::from_utf8(self.bytes(arguments)?).ok()?.trim_end_matches('\n').to_owned())
    }

    /// A hash of the changed, new and deleted files among the sources: of their names and contents. Empty if there are
    /// none; `None` if git fails.
    fn modified(&self, root: &Path) -> Option<String> {
        let of_root = Git { here: root };
        let listed = ["status", "--porcelain=v1", "-z", "--untracked-files=all", "--no-renames", "--"];
        let status = of_root.bytes(&[&listed[..], &SOURCES].concat())?;
        // Entries are "XY name". The names are sorted and deduplicated.
        let entries =
            status.split(|&byte| byte == 0).filter_map(|entry| String::from_utf8(entry.get(3..)?.to_vec()).ok());
        let names: BTreeSet<String> = entries.filter(|name| !name.is_empty()).collect();
        if names.is_empty() {
            return Some(String::new());
        }
        let (there, gone): (Vec<&String>, Vec<&String>) = names.iter().partition(|name| root.join(name).is_file());
        let mut list = gone.iter().map(|name| format!("gone {name}\n")).collect::<String>();
        if !there.is_empty() {
            let input = there.iter().map(|name| format!("{name}\n")).collect::<String>();
            let hashes = of_root.hash(&["hash-object", "--no-filters", "--stdin-paths"], &input)?;
            if hashes.lines().count() != there.len() {
                return None;
            }
            list.extend(hashes.lines().zip(&there).map(|(hash, name)| format!("{hash} {name}\n")));
        }
        Some(of_root.hash(&["hash-object", "--no-filters", "--stdin"], &list)?.trim().to_owned())
    }

    fn hash(&self, arguments: &[&str], input: &str) -> Option<String> {
        let mut child = self.command(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
        let mut stdin = child.stdin.take()?;
        let input = input.to_owned();
        let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
        let output = child.wait_with_output().ok()?;
        writer.join().ok()?.ok()?;
        output.status.success().then(|| String::from_utf8(output.stdout).ok()).flatten()
    }
}
