//! Detects that an open output file was deleted or replaced. Without this check, further writes would succeed, but
//! would be lost when the handle is closed.

use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::path::Path;

/// Whether `path` still names the open file `file`.
pub fn is_in_place(path: &Path, file: &File) -> bool {
    if cfg!(not(unix)) {
        return path.exists();
    }
    let (Ok(named), Ok(open)) = (path.symlink_metadata(), file.metadata()) else { return false };
    same_file(&named, &open)
}

/// Whether `a` and `b` are the metadata of the same file.
#[cfg(unix)]
pub fn same_file(a: &fs::Metadata, b: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// Always false: this system cannot compare the identities of files.
#[cfg(not(unix))]
pub fn same_file(_: &fs::Metadata, _: &fs::Metadata) -> bool {
    false
}

/// Writes the first `len` bytes of the open file to `path` again, after the file there was deleted or replaced. A
/// replacement is kept, with `.replaced` added to its name. Returns the new file, positioned at its end, and a message
/// for people.
pub fn write_again(path: &Path, file: &File, len: u64) -> io::Result<(File, String)> {
    let name = path.display();
    let note = if path.symlink_metadata().is_ok() {
        let mut aside = path.as_os_str().to_owned();
        aside.push(".replaced");
        disk::rename(path, &aside)?;
        format!(
            "{name} was replaced by another file during the run: it is written again, and the other file is now {}",
            aside.display()
        )
    } else {
        format!("{name} was deleted during the run: it is written again")
    };
    let mut new = disk::Options::new().read().write().create_new().open(path)?;
    let mut old = file;
    old.rewind()?;
    io::copy(&mut old.take(len), &mut new)?;
    new.sync_all()?;
    Ok((new, note))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_deleted_or_replaced_file_is_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let open = || disk::Options::new().read().write().create_new().open(&path).unwrap();
        let mut file = open();
        file.write_all(b"12345").unwrap();
        assert!(is_in_place(&path, &file));
        fs::remove_file(&path).unwrap();
        assert!(!is_in_place(&path, &file));
        let (mut file, note) = write_again(&path, &file, 4).unwrap();
        assert!(note.contains("was deleted") && is_in_place(&path, &file), "{note}");
        file.write_all(b"x").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"1234x");
        fs::remove_file(&path).unwrap();
        drop(open());
        let (_, note) = write_again(&path, &file, 5).unwrap();
        assert!(note.contains("log.replaced"), "{note}");
        assert_eq!(
            (fs::read(&path).unwrap(), fs::read(dir.path().join("log.replaced")).unwrap()),
            (b"1234x".to_vec(), vec![])
        );
        drop(fs::remove_dir_all(dir.path()));
        assert!(write_again(&path, &file, 5).is_err());
    }
}
