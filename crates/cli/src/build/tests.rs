//! Tests of `build.rs` in git repositories, cargo packages and source archives.

use super::script::{is_hash, of_archive, of_package, of_repository};
use super::{TEXT, build};
use std::path::Path;
use std::process::Command;

fn git(dir: &Path, arguments: &[&str]) {
    let mut git = Command::new("git");
    git.current_dir(dir).args(["-c", "user.name=n", "-c", "user.email=e@example.com", "-c", "commit.gpgsign=false"]);
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        git.env_remove(name);
    }
    let output = git.args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Creates a repository with files that `build.rs` hashes, and files that it ignores.
fn repository(root: &Path) {
    for file in
        ["crates/cli/Cargo.toml", "crates/cli/src/a.rs", "crates/b/src/b.rs", "crates/b/tests/t.rs", "README.md"]
    {
        write(root, file, file);
    }
    write(root, ".gitignore", "*.o\n");
    git(root, &["init", "-q", "-b", "main"]);
    git(root, &["add", "-A"]);
    git(root, &["commit", "-q", "-m", "first"]);
}

fn write(root: &Path, name: &str, text: &str) {
    let path = root.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

fn found(root: &Path) -> Option<(String, String)> {
    of_repository(&root.join("crates/cli"))
}

#[test]
fn only_changed_sources_count_as_modifications() {
    if Command::new("git").arg("--version").output().is_err() {
        return;
    }
    type Change = fn(&Path);
    let rows: [(&str, bool, Change); 18] = [
        ("nothing", false, |_| {}),
        ("a document", false, |root| write(root, "README.md", "new")),
        ("a test", false, |root| write(root, "crates/b/tests/t.rs", "new")),
        ("a new test", false, |root| write(root, "crates/b/tests/u.rs", "new")),
        ("a new document", false, |root| write(root, "docs/d.md", "new")),
        ("an ignored file", false, |root| write(root, "crates/b/src/x.o", "new")),
        ("a file with the same content", false, |root| write(root, "crates/b/src/b.rs", "crates/b/src/b.rs")),
        ("the state of the index", false, |root| git(root, &["status"])),
        ("a packed branch", false, |root| git(root, &["pack-refs", "--all"])),
        ("no branch", false, |root| git(root, &["checkout", "-q", "--detach"])),
        ("a source", true, |root| write(root, "crates/b/src/b.rs", "new")),
        ("a staged source", true, |root| {
            write(root, "crates/b/src/b.rs", "new");
            git(root, &["add", "-A"]);
        }),
        ("a new source", true, |root| write(root, "crates/b/src/c.rs", "new")),
        ("a new staged source", true, |root| {
            write(root, "crates/b/src/c.rs", "new");
            git(root, &["add", "-A"]);
        }),
        ("a name with spaces and letters of other languages", true, |root| write(root, "crates/b/src/ü b.rs", "new")),
        ("a deleted source", true, |root| std::fs::remove_file(root.join("crates/b/src/b.rs")).unwrap()),
        ("a moved source", true, |root| git(root, &["mv", "crates/b/src/b.rs", "crates/b/src/c.rs"])),
        ("the lock file", true, |root| write(root, "Cargo.lock", "new")),
    ];
    let mut wrong = Vec::new();
    let mut hashes = Vec::new();
    for (name, is_modified, change) in &rows {
        let dir = tempfile::tempdir().unwrap();
        repository(dir.path());
        change(dir.path());
        let (commit, modified) = found(dir.path()).unwrap();
        if !is_hash(&commit) || modified.is_empty() == *is_modified || *is_modified && !is_hash(&modified) {
            wrong.push(format!("{name}: {commit} {modified}"));
        }
        assert_eq!(found(dir.path()), Some((commit, modified.clone())), "{name}: a second call must return the same");
        hashes.push(modified);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let of = |name: &str| &hashes[rows.iter().position(|(row, ..)| *row == name).unwrap()];
    // The hash depends on file names and contents, not on whether changes are staged.
    assert_eq!((of("a source"), of("a new source")), (of("a staged source"), of("a new staged source")));
    let mut different: Vec<_> = hashes.iter().filter(|hash| !hash.is_empty()).collect();
    different.sort();
    different.dedup();
    assert_eq!(different.len(), 6, "{hashes:?}");
}

#[test]
fn the_commit_is_taken_only_from_the_repository_of_this_crate() {
    if Command::new("git").arg("--version").output().is_err() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("own");
    repository(&root);
    let first = found(&root).unwrap();
    write(&root, "crates/b/src/b.rs", "new");
    git(&root, &["commit", "-q", "-a", "-m", "second"]);
    let second = found(&root).unwrap();
    assert!(first.0 != second.0 && second.1.is_empty());
    // In a worktree, `.git` is a file.
    git(&root, &["worktree", "add", "-q", "../tree", "HEAD~1"]);
    assert_eq!(found(&dir.path().join("tree")), Some(first));
    // An unpacked archive or a vendored crate inside another project's repository.
    for file in ["Cargo.toml", "src/a.rs"] {
        write(&root, &format!("vendor/crates/cli/{file}"), "new");
    }
    git(&root, &["add", "-A"]);
    assert_eq!(found(&root.join("vendor")), None);
    // The crate's own files are not tracked at the expected path.
    let other = dir.path().join("other");
    write(&other, "README.md", "x");
    git(&other, &["init", "-q"]);
    write(&other, "crates/cli/Cargo.toml", "x");
    assert_eq!(found(&other), None);
    // A directory without a repository, and a repository without a commit.
    let none = dir.path().join("none");
    write(&none, "crates/cli/Cargo.toml", "x");
    assert_eq!(found(&none), None);
    git(&other, &["add", "-A"]);
    assert_eq!(found(&other), None);
}

#[test]
fn packages_and_archives_contain_their_commit() {
    let dir = tempfile::tempdir().unwrap();
    let commit = "0123456789abcdef0123456789abcdef01234567";
    assert_eq!((of_package(dir.path()), of_archive(dir.path())), (None, None));
    let package = |text: String| {
        write(dir.path(), ".cargo_vcs_info.json", &text);
        of_package(dir.path()).map(|(commit, modified)| format!("{commit} {modified}"))
    };
    let clean = format!("{{\n  \"git\": {{\n    \"sha1\": \"{commit}\"\n  }},\n  \"path_in_vcs\": \"crates/cli\"\n}}");
    assert_eq!(package(clean), Some(format!("{commit} ")));
    assert_eq!(
        package(format!("{{\"git\": {{\"sha1\": \"{commit}\", \"dirty\": true}}}}")),
        Some(format!("{commit} unknown"))
    );
    assert_eq!(package("{\"git\": {\"sha1\": \"x\"}}".to_owned()), None);
    let archive = |text: &str| {
        write(dir.path(), "COMMIT", text);
        of_archive(dir.path()).map(|(commit, _)| commit)
    };
    assert_eq!(archive(&format!("{commit}\n")).as_deref(), Some(commit));
    assert_eq!(archive("$Format:%H$\n"), None);
    let own = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/COMMIT")).unwrap();
    assert!(own == "$Format:%H$\n" || is_hash(own.trim()), "{own}");
}

#[test]
fn the_version_text_lists_version_and_features() {
    let own = build();
    assert_eq!(
        (own.version.as_str(), own.features.contains(&"nats".to_owned())),
        (env!("CARGO_PKG_VERSION"), cfg!(feature = "nats"))
    );
    assert!(own.commit.as_deref().is_none_or(is_hash), "{own:?}");
    assert!(TEXT.starts_with(&format!("{} (commit ", own.version)), "{}", *TEXT);
}
