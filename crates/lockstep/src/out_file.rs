//! The output file of a command, which replaces an existing file only with `--overwrite`, and is written completely or
//! not at all.

use crate::bad_input;
use crate::error::{BadInput, OrBadInput};
use anyhow::Context as _;
use model::io::{PARTIAL_NAME, sweep_partial};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use telemetry::in_place;
use tempfile::{Builder, NamedTempFile};

/// A file whose path is checked at the start of a command, and which is written at its end.
#[derive(Clone, Debug)]
pub struct OutFile {
    flag: &'static str,
    /// The path, with symbolic links resolved.
    path: PathBuf,
    overwrite: bool,
    /// Whether the path is a device or a pipe, which is written directly and not replaced.
    is_special: bool,
}

/// An input of the command, which its output file must not destroy.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// A file, or a directory of data: `--overwrite` may replace its files.
    Data(&'a Path),
    /// The directory of a model, an adapter or a run: its files are never replaced.
    Kept(&'a Path),
}

impl OutFile {
    /// Checks the output file `path` of the command-line flag `flag`: its directory must exist and be writable. The
    /// file must not exist, unless `overwrite` is set. Files of an [`Input::Kept`] are never replaced.
    pub fn new(flag: &'static str, path: &Path, overwrite: bool, inputs: &[Input<'_>]) -> anyhow::Result<OutFile> {
        let name = path.display();
        if path == Path::new("-") {
            bad_input!("{flag} must be a file, but is - (/dev/stdout is standard output)");
        }
        let found = match fs::metadata(path) {
            Ok(found) => Some(found),
            Err(e) if e.kind() == ErrorKind::NotFound && !path.is_symlink() => None,
            Err(e) if e.kind() == ErrorKind::NotFound => {
                bad_input!("{flag} {name} is a symbolic link without a target")
            }
            Err(e) => bad_input!("{flag} {name}: {e}"),
        };
        let directory = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if found.as_ref().is_some_and(|found| found.is_dir()) || path.file_name().is_none() || !directory.is_dir() {
            bad_input!("{flag} {name} must be a file in an existing directory");
        }
        let is_special = found.as_ref().is_some_and(|found| !found.is_file());
        let directory = directory.canonicalize().or_bad_input_in(format!("{flag} {name}"))?;
        let path = match found {
            Some(_) => path.canonicalize().or_bad_input_in(format!("{flag} {name}"))?,
            None => directory.join(path.file_name().unwrap_or_default()),
        };
        let out = OutFile { flag, path, overwrite, is_special };
        if is_special {
            return Ok(out);
        }
        if let Some(found) = &found {
            out.check_existing(&name.to_string(), found, inputs)?;
        }
        // Reports an unwritable directory now instead of after the work.
        if let Err(e) = out.temporary() {
            bad_input!("{flag} {name}: {}: {e}", directory.display());
        }
        Ok(out)
    }

    fn check_existing(&self, name: &str, found: &fs::Metadata, inputs: &[Input<'_>]) -> anyhow::Result<()> {
        let flag = self.flag;
        for input in inputs {
            let (Input::Data(read) | Input::Kept(read)) = *input;
            let is_input = same_file(&self.path, found, read);
            match input {
                Input::Kept(_) if is_input => bad_input!(
                    "{flag} {name} belongs to {}, an input of this command, and is never overwritten",
                    read.display()
                ),
                Input::Data(_) if is_input && !self.overwrite => bad_input!(
                    "{flag} {name} is an input of this command ({}): choose another file, or use --overwrite to \
                     replace it",
                    read.display()
                ),
                _ => {}
            }
        }
        if !self.overwrite {
            bad_input!("{flag} {name} already exists: choose another file, or use --overwrite to replace it");
        }
        Ok(())
    }

    /// Writes `bytes` to a temporary file in the same directory and renames it to the final path. Devices are written
    /// directly.
    pub fn write(&self, bytes: &[u8]) -> anyhow::Result<()> {
        let cannot = || format!("cannot write {}", self.path.display());
        if self.is_special {
            let mut file = File::options().write(true).open(&self.path).with_context(cannot)?;
            return file.write_all(bytes).with_context(cannot);
        }
        let mut file = self.temporary().with_context(cannot)?;
        file.write_all(bytes).and_then(|()| file.as_file().sync_all()).with_context(cannot)?;
        if self.overwrite {
            file.persist(&self.path).map_err(|e| e.error).with_context(cannot)?;
        } else if let Err(refused) = file.persist_noclobber(&self.path) {
            // The work is done, so the result stays in the temporary file.
            let (e, (_, kept)) = (refused.error, refused.file.keep().map_err(|e| e.error).with_context(cannot)?);
            return Err(BadInput::new(format!("{}: {e}; the result is in {}", cannot(), kept.display())));
        }
        if let Some(directory) = self.path.parent() {
            crate::run::run_dir::sync_directory(directory).with_context(cannot)?;
        }
        Ok(())
    }

    fn temporary(&self) -> std::io::Result<NamedTempFile> {
        let (Some(directory), Some(name)) = (self.path.parent(), self.path.file_name()) else {
            return Err(ErrorKind::InvalidFilename.into());
        };
        sweep_partial(&self.path);
        let start: String = name.to_string_lossy().chars().take(PARTIAL_NAME).collect();
        let mut builder = Builder::new();
        builder.suffix(".partial");
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let file = builder.prefix(&format!(".{start}.{}.", std::process::id())).tempfile_in(directory)?;
        // The lock tells other processes not to remove the file. Some file systems have no locks.
        let _ = file.as_file().try_lock();
        Ok(file)
    }
}

/// Whether `path` is the file `read` or is in the directory `read`, including through links.
fn same_file(path: &Path, found: &fs::Metadata, read: &Path) -> bool {
    let Ok(other) = fs::metadata(read) else { return false };
    if other.is_dir() {
        let listed = || fs::read_dir(read).into_iter().flatten().flatten().map(|entry| entry.path());
        return read.canonicalize().is_ok_and(|dir| path.starts_with(dir))
            || listed().any(|file| fs::metadata(file).is_ok_and(|other| in_place::same_file(found, &other)));
    }
    in_place::same_file(found, &other) || read.canonicalize().is_ok_and(|read| read == path)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn refusal(path: &Path, overwrite: bool, inputs: &[Input<'_>]) -> String {
        OutFile::new("--out", path, overwrite, inputs).unwrap_err().to_string()
    }

    #[test]
    fn an_existing_file_is_replaced_only_on_request() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("o.jsonl");
        OutFile::new("--out", &path, false, &[]).unwrap().write(b"1").unwrap();
        assert!(refusal(&path, false, &[]).contains("--overwrite"));
        OutFile::new("--out", &path, true, &[]).unwrap().write(b"2").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"2");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let umask = fs::metadata(dir.path().join("o.jsonl")).unwrap().permissions().mode() & 0o600;
        assert_eq!(umask, 0o600);
    }

    #[test]
    fn a_file_that_appears_meanwhile_is_kept_and_so_is_the_result() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("o.jsonl");
        let out = OutFile::new("--out", &path, false, &[]).unwrap();
        fs::write(&path, "another's").unwrap();
        let refusal = out.write(b"mine").unwrap_err().to_string();
        assert_eq!(fs::read(&path).unwrap(), b"another's");
        let kept = refusal.split("the result is in ").nth(1).unwrap();
        assert_eq!(fs::read(kept).unwrap(), b"mine");
    }

    #[test]
    fn inputs_are_recognised_through_links() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("d.jsonl"), "rows").unwrap();
        fs::create_dir(at("model")).unwrap();
        fs::write(at("model/config.json"), "{}").unwrap();
        fs::hard_link(at("d.jsonl"), at("hard")).unwrap();
        fs::hard_link(at("model/config.json"), at("hard.json")).unwrap();
        symlink(at("d.jsonl"), at("soft")).unwrap();
        symlink(at("model"), at("m")).unwrap();
        symlink(at("nothing"), at("dangling")).unwrap();
        let (data, model) = (at("d.jsonl"), at("model"));
        let inputs = [Input::Data(&data), Input::Kept(&model)];
        for name in ["d.jsonl", "hard", "soft", "model/../d.jsonl"] {
            let text = refusal(&at(name), false, &inputs);
            assert!(text.contains("is an input of this command") && text.contains("--overwrite"), "{name}: {text}");
        }
        for (name, overwrite) in [("model/config.json", true), ("m/config.json", false), ("hard.json", true)] {
            let text = refusal(&at(name), overwrite, &inputs);
            assert!(text.contains("an input of this command, and is never overwritten"), "{name}: {text}");
        }
        assert!(refusal(&at("dangling"), true, &inputs).contains("is a symbolic link without a target"));
        // A symbolic link is followed: its target is replaced, and the link stays.
        OutFile::new("--out", &at("soft"), true, &inputs).unwrap().write(b"new").unwrap();
        assert!(at("soft").is_symlink());
        assert_eq!(fs::read(at("d.jsonl")).unwrap(), b"new");
        assert_eq!(fs::read(at("hard")).unwrap(), b"rows");
    }

    #[test]
    fn devices_are_written_to_and_not_replaced() {
        let out = OutFile::new("--out", Path::new("/dev/null"), false, &[]).unwrap();
        out.write(b"x").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        let full = OutFile::new("--out", Path::new("/dev/full"), false, &[]).unwrap();
        assert!(full.write(b"x").is_err());
    }

    #[test]
    fn a_path_that_cannot_be_written_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["none/o", "", "-", &"x".repeat(300)] {
            let path = if name == "-" { PathBuf::from(name) } else { dir.path().join(name) };
            assert!(refusal(&path, false, &[]).starts_with("--out "), "{name}");
        }
        let long = dir.path().join("x".repeat(255));
        OutFile::new("--out", &long, false, &[]).unwrap().write(b"x").unwrap();
        assert!(OutFile::new("--out", Path::new("/proc/o"), false, &[]).is_err());
    }

    #[test]
    fn output_file_errors_name_the_fix() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("data")).unwrap();
        fs::write(at("data/d.jsonl"), "rows").unwrap();
        fs::write(at("other"), "other").unwrap();
        let message = |path: &Path, overwrite, inputs: &[Input<'_>]| {
            refusal(path, overwrite, inputs).replace(&dir.path().display().to_string(), "DIR")
        };
        assert_eq!(
            message(Path::new("-"), true, &[]),
            "--out must be a file, but is - (/dev/stdout is standard output)"
        );
        let no_file =
            ["DIR/data", "DIR/none/o"].map(|name| format!("--out {name} must be a file in an existing directory"));
        assert_eq!([message(&at("data"), true, &[]), message(&at("none/o"), true, &[])], no_file);
        let other = "--out DIR/other already exists: choose another file, or use --overwrite to replace it";
        assert_eq!(message(&at("other"), false, &[]), other);
        let data = at("data");
        let (read, kept) = ([Input::Data(&data)], [Input::Kept(&data)]);
        let words = "--out DIR/data/d.jsonl is an input of this command (DIR/data): choose another file, or use \
                     --overwrite to replace it";
        assert_eq!(message(&at("data/d.jsonl"), false, &read), words);
        let words = "--out DIR/data/d.jsonl belongs to DIR/data, an input of this command, and is never overwritten";
        assert_eq!(message(&at("data/d.jsonl"), true, &kept), words);
        assert_eq!(message(&at("data/d.jsonl"), false, &kept), words);
        fs::create_dir(at("data/below")).unwrap();
        fs::write(at("data/below/x"), "deep").unwrap();
        let deep = message(&at("data/below/x"), true, &kept);
        assert_eq!(deep, words.replace("d.jsonl", "below/x"));
        // With --overwrite, data and other files may be replaced; a new file is always allowed.
        assert!(OutFile::new("--out", &at("data/d.jsonl"), true, &read).is_ok());
        assert!(OutFile::new("--out", &at("other"), true, &kept).is_ok());
        assert!(OutFile::new("--out", &at("data/new"), false, &kept).is_ok());
        let out = OutFile::new("--out", &at("gone/../data/o"), false, &[]);
        assert!(out.is_err(), "the parent directory is missing");
        let out = OutFile::new("--out", &at("data/o"), false, &[]).unwrap();
        fs::remove_dir_all(&data).unwrap();
        let failed = format!("{:#}", out.write(b"x").unwrap_err());
        let place = data.canonicalize().unwrap_or(data.clone());
        assert!(failed.starts_with(&format!("cannot write {}", place.join("o").display())), "{failed}");
    }
}
