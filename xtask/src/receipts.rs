//! Receipts: a check that takes minutes is skipped if it passed before on the same files and tools.
//!
//! A receipt is a hash of everything that a check reads, with the versions of its tools. The check itself writes it,
//! after it passed, into a committed file. Only a check with a result that follows from files and tools has a receipt.
//! Tests, and checks that depend on the machine, do not.

use crate::sources;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The committed file: a check's name and its hash in each line.
const RECEIPTS: &str = "xtask/receipts.txt";
const HEAD: &str =
    "# Hashes of what checks read when they passed. Each check writes its own line; not edited by hand.\n";
/// Every check is compiled by this toolchain, and chosen by this code.
const ALWAYS: [&str; 3] = ["rust-toolchain.toml", "Cargo.lock", "xtask/src/receipts.rs"];

/// Everything that a check reads.
pub struct Inputs {
    /// The check's name.
    pub name: &'static str,
    /// Files and folders of the repository, besides [`ALWAYS`]; `a/*/b` is the file `b` of each folder in `a`.
    pub files: &'static [&'static str],
    /// Versions of tools that the check installs.
    pub versions: &'static [&'static str],
    /// Commands that print the versions of other tools that it runs.
    pub tools: &'static [&'static [&'static str]],
}

impl Inputs {
    /// Runs the check, unless it passed before on the same inputs. A check that passes leaves its receipt.
    pub fn once(&self, check: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
        let root = Path::new(".");
        let before = self.hash(root);
        if self.is_recorded(root, before.as_ref()) {
            println!("skipped: it passed on these files and tools ({RECEIPTS}; delete its line to run it again)");
            return Ok(());
        }
        check()?;
        // If the files changed during the check, it does not get a receipt for either state.
        match before.filter(|before| self.hash(root).as_ref() == Some(before)) {
            Some(hash) => write(Path::new(RECEIPTS), self.name, &hash),
            None => Ok(()),
        }
    }

    /// Whether the receipt is that of the present files and tools.
    pub fn passed_before(&self, root: &Path) -> bool {
        self.is_recorded(root, self.hash(root).as_ref())
    }

    fn is_recorded(&self, root: &Path, hash: Option<&String>) -> bool {
        hash.is_some() && read(&root.join(RECEIPTS)).get(self.name) == hash
    }

    /// The hash; `None` if a file or a tool is missing, so that the check runs and names it.
    fn hash(&self, root: &Path) -> Option<String> {
        let mut all: Vec<PathBuf> = Vec::new();
        for name in self.files.iter().chain(&ALWAYS) {
            if let Some((folders, file)) = name.split_once("/*/") {
                let entries = fs::read_dir(root.join(folders)).ok()?.flatten();
                all.extend(entries.map(|entry| entry.path().join(file)).filter(|path| path.is_file()));
            } else if root.join(name).is_dir() {
                all.extend(sources::below(&root.join(name).to_string_lossy()).ok()?);
            } else {
                all.push(root.join(name));
            }
        }
        let mut hasher = Sha256::new();
        let mut part = |bytes: &[u8]| {
            // With lengths, so that different lists of parts have different hashes.
            hasher.update((bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        all.sort();
        all.dedup();
        for path in &all {
            part(path.strip_prefix(root).ok()?.to_str()?.as_bytes());
            part(&fs::read(path).ok()?);
        }
        self.versions.iter().for_each(|version| part(version.as_bytes()));
        for words in self.tools {
            let (program, arguments) = words.split_first()?;
            let output = Command::new(program).args(arguments).output().ok()?;
            if !output.status.success() {
                return None;
            }
            part(&output.stdout);
        }
        Some(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

fn read(file: &Path) -> BTreeMap<String, String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(' ')).map(|(name, hash)| (name.to_owned(), hash.to_owned())).collect()
}

fn write(file: &Path, name: &str, hash: &str) -> Result<(), String> {
    let with_line = || {
        // Checks may run side by side, and each adds its line to what the others wrote.
        let open = fs::File::options().create(true).append(true).open(file)?;
        open.lock()?;
        let mut all = read(file);
        all.insert(name.to_owned(), hash.to_owned());
        fs::write(file, all.iter().fold(HEAD.to_owned(), |text, (name, hash)| text + &format!("{name} {hash}\n")))
    };
    with_line().map_err(|e| format!("{}: {e}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const INPUTS: Inputs =
        Inputs { name: "one", files: &["folder", "file", "each/*/x"], versions: &["2.0"], tools: &[&["echo", "1"]] };

    fn tree() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for folder in ["folder/below", "xtask/src", "folder/target", "each/1", "each/2"] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        let files = ["folder/below/a", "folder/b", "file", "folder/target/built", "elsewhere", "each/1/x", "each/2/y"];
        for file in files.iter().chain(&ALWAYS) {
            fs::write(root.path().join(file), file).unwrap();
        }
        write(&root.path().join(RECEIPTS), "one", &INPUTS.hash(root.path()).unwrap()).unwrap();
        root
    }

    #[test]
    fn a_receipt_is_of_one_state_of_files_and_tools() {
        type Change = fn(&Path);
        let changes: [(&str, Change, bool); 19] = [
            ("nothing", |_| (), true),
            ("a file elsewhere", |root| fs::write(root.join("elsewhere"), "x").unwrap(), true),
            ("a build output", |root| fs::write(root.join("folder/target/built"), "x").unwrap(), true),
            ("the same bytes again", |root| fs::write(root.join("file"), "file").unwrap(), true),
            ("another check's line", |root| write(&root.join(RECEIPTS), "two", "0").unwrap(), true),
            ("a file beside those of each folder", |root| fs::write(root.join("each/2/y"), "y").unwrap(), true),
            ("a file of each folder", |root| fs::write(root.join("each/1/x"), "y").unwrap(), false),
            ("a new file of each folder", |root| fs::write(root.join("each/2/x"), "").unwrap(), false),
            ("a byte", |root| fs::write(root.join("file"), "fil3").unwrap(), false),
            ("a byte below", |root| fs::write(root.join("folder/below/a"), "x").unwrap(), false),
            ("a new file", |root| fs::write(root.join("folder/new"), "").unwrap(), false),
            ("a file gone", |root| fs::remove_file(root.join("folder/b")).unwrap(), false),
            ("a named file gone", |root| fs::remove_file(root.join("file")).unwrap(), false),
            ("another name", |root| fs::rename(root.join("folder/b"), root.join("folder/c")).unwrap(), false),
            ("the lock file", |root| fs::write(root.join("Cargo.lock"), "x").unwrap(), false),
            ("the toolchain", |root| fs::write(root.join("rust-toolchain.toml"), "x").unwrap(), false),
            ("this code", |root| fs::write(root.join("xtask/src/receipts.rs"), "x").unwrap(), false),
            ("no receipts", |root| fs::remove_file(root.join(RECEIPTS)).unwrap(), false),
            ("another hash", |root| write(&root.join(RECEIPTS), "one", "0").unwrap(), false),
        ];
        for (case, change, expected) in changes {
            let root = tree();
            change(root.path());
            assert_eq!(INPUTS.passed_before(root.path()), expected, "{case}");
        }
    }

    #[test]
    fn a_missing_tool_or_another_version_does_not_have_a_receipt() {
        let root = tree();
        let with = |tools| Inputs { tools, ..INPUTS }.passed_before(root.path());
        assert!(with(INPUTS.tools));
        assert!(!Inputs { versions: &["2.1"], ..INPUTS }.passed_before(root.path()));
        assert!(!Inputs { versions: &[], ..INPUTS }.passed_before(root.path()));
        let others: [&[&[&str]]; 4] = [&[], &[&["echo", "2"]], &[&["false"]], &[&["a program that does not exist"]]];
        for tools in others {
            assert!(!with(tools), "{tools:?}");
        }
    }
}
