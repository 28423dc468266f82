//! `cargo xtask release [TARGET]`: builds the parts of a release that any machine can build. It packs each crate as for
//! crates.io, and packs the program built for TARGET (by default, this machine's target) into an archive with a
//! checksum. .github/workflows/release.yml publishes them.

use crate::cargo::{self, output};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Files that the archive has besides the program.
const BESIDE: [&str; 5] = ["README.md", "CHANGELOG.md", "SECURITY.md", "LICENSE-MIT", "LICENSE-APACHE"];
/// Workspace members that are not published.
const PRIVATE: [&str; 2] = ["xtask", "lockstep-testing"];
/// The maximum package size of crates.io, in bytes.
const MOST_BYTES: u64 = 10 << 20;

pub fn run(target: Option<&str>) -> Result<(), String> {
    let directory = PathBuf::from(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()));
    packages(&directory)?;
    let program = directory.join(target.unwrap_or_default()).join("release/lockstep");
    let said = output(Command::new(&program).arg("--version")).map_err(|why| {
        format!("{why}: build the program first, cargo build --release --locked -p lockstep-cli --features nats")
    })?;
    // "lockstep 0.1.0 (commit 0123456789ab; features hub, nats, parquet)"
    let version = said.split_whitespace().nth(1).unwrap_or_default();
    refuse_unfit(&said)?;
    let host = || output(cargo::command().arg("-vV")).map(|text| host_of(&text).to_owned());
    let target = target.map_or_else(host, |target| Ok(target.to_owned()))?;
    let archive = archive(&program, &format!("lockstep-{version}-{target}"), &directory.join("dist"))?;
    println!("{}", archive.display());
    Ok(())
}

/// Refuses a program that does not report its commit, or cannot join workers on other machines.
fn refuse_unfit(said: &str) -> Result<(), String> {
    let fix = "build it in a clean checkout with cargo build --release --locked -p lockstep-cli --features nats";
    for (is_unfit, what) in [
        (!said.contains("(commit ") || said.contains("commit unknown"), "its version has no commit"),
        (said.contains("modified"), "its sources were modified after its commit"),
        (!said.contains("nats"), "it has no NATS"),
    ] {
        if is_unfit {
            return Err(format!("{}: {what}: {fix}", said.trim()));
        }
    }
    Ok(())
}

/// Packs each crate, with exactly the files that crates.io would receive.
fn packages(directory: &Path) -> Result<(), String> {
    let private = PRIVATE.iter().flat_map(|name| ["--exclude", name]);
    let arguments: Vec<&str> =
        ["package", "--workspace", "--no-verify", "--allow-dirty", "--quiet"].into_iter().chain(private).collect();
    let packed = directory.join("package");
    let _ = fs::remove_dir_all(&packed);
    cargo::run(&arguments, &[])?;
    let mut found: Vec<PathBuf> =
        fs::read_dir(&packed).map_err(|e| format!("{}: {e}", packed.display()))?.flatten().map(|e| e.path()).collect();
    found.retain(|path| path.extension().is_some_and(|extension| extension == "crate"));
    found.sort();
    for package in found {
        let bytes = package.metadata().map_err(|e| format!("{}: {e}", package.display()))?.len();
        println!("{:>8} KiB  {}", bytes >> 10, package.display());
        let files = output(Command::new("tar").arg("-tzf").arg(&package))?;
        if bytes > MOST_BYTES || !files.lines().any(|file| file.ends_with("/README.md")) {
            return Err(format!("{}: must be at most 10 MiB and contain README.md", package.display()));
        }
    }
    Ok(())
}

/// The host platform in the output of `cargo -vV`.
fn host_of(text: &str) -> &str {
    text.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or("unknown")
}

/// Creates `DIST/NAME.tar.gz`, whose folder NAME has the program and its documents, and `DIST/NAME.tar.gz.sha256`.
/// Equal files give equal bytes.
fn archive(program: &Path, name: &str, dist: &Path) -> Result<PathBuf, String> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |e: std::io::Error| format!("{path}: {e}")
    };
    let folder = dist.join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(failed(&folder))?;
    fs::copy(program, folder.join("lockstep")).map_err(failed(program))?;
    for paper in BESIDE {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(paper);
        fs::copy(&path, folder.join(paper)).map_err(failed(&path))?;
    }
    let file = format!("{name}.tar.gz");
    let fixed =
        ["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "--use-compress-program=gzip -n"];
    output(Command::new("tar").current_dir(dist).args(fixed).args(["-cf", &file, name]))?;
    fs::remove_dir_all(&folder).map_err(failed(&folder))?;
    let checksum = output(Command::new("sha256sum").current_dir(dist).arg(&file))?;
    let path = dist.join(format!("{file}.sha256"));
    fs::write(&path, checksum).map_err(failed(&path))?;
    Ok(dist.join(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_a_commit_or_nats_is_refused() {
        let refused = |said: &str| refuse_unfit(said).err().map(|why| why.split(": ").nth(1).unwrap().to_owned());
        for (said, why) in [
            ("lockstep 0.1.0 (commit 0123456789ab; features hub, nats, parquet)\n", None),
            ("lockstep 0.1.0 (commit 0123456789ab; features hub, parquet)\n", Some("it has no NATS")),
            ("lockstep 0.1.0 (commit unknown (no git); features nats)\n", Some("its version has no commit")),
            ("lockstep 0.1.0\n", Some("its version has no commit")),
            (
                "lockstep 0.1.0 (commit 0123456789ab, modified ba9876543210; features nats)\n",
                Some("its sources were modified after its commit"),
            ),
        ] {
            assert_eq!(refused(said).as_deref(), why, "{said}");
        }
    }

    #[test]
    fn an_archive_has_program_and_documents_and_is_reproducible() {
        let directory = tempfile::tempdir().unwrap();
        let (program, dist) = (directory.path().join("p"), directory.path().join("dist"));
        fs::write(&program, "program").unwrap();
        let archive = || archive(&program, "lockstep-1.2.3-here", &dist).unwrap();
        let first = fs::read(archive()).unwrap();
        let path = archive();
        assert!(first == fs::read(&path).unwrap() && path.ends_with("lockstep-1.2.3-here.tar.gz"));
        output(Command::new("sha256sum").current_dir(&dist).args(["-c", "lockstep-1.2.3-here.tar.gz.sha256"])).unwrap();
        let files = output(Command::new("tar").arg("-tzf").arg(&path)).unwrap();
        for file in BESIDE.iter().chain(&["lockstep"]) {
            assert!(files.lines().any(|line| line == format!("lockstep-1.2.3-here/{file}")), "{file}: {files}");
        }
        assert_eq!(host_of("cargo 1.95.0\nhost: x86_64-unknown-linux-gnu\nos: x\n"), "x86_64-unknown-linux-gnu");
    }
}
