use super::*;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// A temporary directory with a run directory `run` and, next to it, a directory `precious` that no operation may
/// change.
struct World {
    dir: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("run/logs")).unwrap();
        fs::write(dir.path().join("run/logs/own"), "own").unwrap();
        fs::create_dir_all(dir.path().join("precious/deep")).unwrap();
        fs::write(dir.path().join("precious/thesis"), "years of work").unwrap();
        fs::write(dir.path().join("precious/.profile"), "mine").unwrap();
        fs::write(dir.path().join("precious/deep/letter"), "dear").unwrap();
        no_links_below(&dir.path().join("run"));
        World { dir }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// All paths below `precious`, with the content of each file.
    fn precious(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let (mut found, mut open) = (Vec::new(), vec![self.at("precious")]);
        while let Some(next) = open.pop() {
            for entry in fs::read_dir(next).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    open.push(path.clone())
                } else {
                    found.push((path.clone(), fs::read(&path).unwrap()))
                }
                found.push((path, Vec::new()));
            }
        }
        found.sort();
        found
    }
}

type Operation = fn(&Path) -> std::io::Result<()>;

/// Operations that open or create the file or directory at a path.
const OPENING: [(&str, Operation); 15] = [
    ("open", |path| open(path).map(drop)),
    ("read", |path| read(path, 1 << 20).map(drop)),
    ("read_to_string", |path| read_to_string(path, 1 << 20).map(drop)),
    ("write", |path| write(path, "new")),
    ("create", |path| create(path).map(drop)),
    ("append", |path| Options::new().append().create().open(path)?.write_all(b"more")),
    ("truncate", |path| Options::new().write().truncate().open(path).map(drop)),
    ("read and write", |path| Options::new().read().write().create().open(path)?.write_all(b"more")),
    ("create_new", |path| Options::new().write().create_new().open(path).map(drop)),
    ("copy from", |path| copy(path, path.with_file_name("copied"))),
    ("copy to", |path| copy(own(path), path)),
    ("hard_link", |path| hard_link(path, path.with_file_name("linked"))),
    ("read_dir", |path| read_dir(path).map(drop)),
    ("create_dir_all", |path| create_dir_all(path)),
    ("create_private_dir_all", |path| create_private_dir_all(path)),
];

/// Operations that change a directory entry. They must fail below a directory that is a link; applied to a link, they
/// change only the link.
const NAMING: [(&str, Operation); 6] = [
    ("remove_file", |path| remove_file(path)),
    ("remove_dir_all", |path| remove_dir_all(path)),
    ("rename away", |path| rename(path, path.with_file_name("renamed"))),
    ("rename onto", |path| rename(own(path), path)),
    ("exchange", |path| exchange(own(path), path)),
    ("sync_dir", |path| sync_dir(path.parent().unwrap())),
];

/// The file `logs/own` of the run that contains `path`.
fn own(path: &Path) -> PathBuf {
    path.ancestors().find(|above| above.ends_with("run")).unwrap().join("logs/own")
}

/// Links in a run. Each row has the path of the link, its target, and the path that is passed to an operation.
const LINKS: [(&str, &str, &str); 13] = [
    ("link", "../precious", "link"),
    ("link", "../precious", "link/thesis"),
    ("link", "../precious", "link/.profile"),
    ("link", "../precious", "link/new"),
    ("link", "../precious", "link/deep/letter"),
    ("link", "../precious", "link/a/b/c"),
    ("link", "..", "link/precious/thesis"),
    ("logs/link", "../../precious/deep", "logs/link/letter"),
    ("logs/link", "../../precious/thesis", "logs/link"),
    ("logs/link", "../../precious/not there", "logs/link"),
    ("logs/link", "/dev/zero", "logs/link"),
    ("logs/link", "own", "logs/link"),
    ("loop", "loop", "loop/thesis"),
];

#[test]
fn no_operation_follows_a_link_inside_a_run() {
    for (link, target, path) in LINKS {
        for (what, operation) in OPENING.into_iter().chain(NAMING) {
            let world = World::new();
            let before = world.precious();
            symlink(target, world.at("run").join(link)).unwrap();
            let path = world.at("run").join(path);
            let is_link = path == world.at("run").join(link);
            let outcome = operation(&path);
            let case = format!("{what} of {} → {target}: {outcome:?}", path.display());
            assert_eq!(world.precious(), before, "{case}");
            let is_naming = NAMING.iter().any(|(name, _)| *name == what);
            match outcome {
                // Operations on names change the link itself, not its target.
                Ok(()) => assert!(is_naming && is_link, "{case}"),
                Err(error) if what == "create_new" && is_link => assert_eq!(error.kind(), ErrorKind::AlreadyExists),
                Err(error) => {
                    let text = error.to_string();
                    let place = world.at("run").join(link).display().to_string();
                    assert!(text.starts_with(&place) && text.contains("is a symbolic link"), "{case}");
                }
            }
            // An exchange makes `own` the link, perhaps to an endless file.
            let moves_own = ["rename onto", "exchange"].contains(&what);
            assert!(moves_own || fs::read(world.at("run/logs/own")).is_ok(), "{case}");
        }
    }
}

/// The second case reaches the run directory through a link, which is allowed.
#[test]
fn a_run_directory_behind_a_link_can_be_read_and_written() {
    for root in ["run", "links/to/run"] {
        let world = World::new();
        fs::create_dir_all(world.at("links/to")).unwrap();
        symlink("../../run", world.at("links/to/run")).unwrap();
        let root = world.at(root);
        no_links_below(&root);
        create_dir_all(root.join("a/b")).unwrap();
        write(root.join("a/b/c"), "1").unwrap();
        Options::new().append().open(&root.join("a/b/c")).unwrap().write_all(b"2").unwrap();
        assert_eq!(read_to_string(root.join("a/./b/../b/c"), 2).unwrap(), "12");
        copy(root.join("a/b/c"), root.join("a/d")).unwrap();
        hard_link(root.join("a/d"), root.join("a/e")).unwrap();
        rename(root.join("a/e"), root.join("f")).unwrap();
        exchange(root.join("a/d"), root.join("a/b/c")).unwrap();
        let names = |path: &str| -> Vec<(String, bool)> {
            let entries = read_dir(root.join(path)).unwrap();
            entries.iter().map(|e| (e.file_name().to_string_lossy().into_owned(), e.is_dir())).collect()
        };
        assert_eq!(names("a"), [("b".to_owned(), true), ("d".to_owned(), false)]);
        assert_eq!(names(""), [("a".to_owned(), true), ("f".to_owned(), false), ("logs".to_owned(), true)]);
        symlink("../precious", world.at("run/a/b/link")).unwrap();
        remove_dir_all(root.join("a")).unwrap();
        remove_file(root.join("f")).unwrap();
        sync_dir(&root).unwrap();
        assert_eq!(names(""), [("logs".to_owned(), true)]);
        assert_eq!(fs::read_to_string(world.at("precious/thesis")).unwrap(), "years of work");
        let gone = [read(root.join("f"), 1).unwrap_err(), remove_dir_all(root.join("a")).unwrap_err()];
        assert!(gone.iter().all(|error| error.kind() == ErrorKind::NotFound), "{gone:?}");
        // Links outside of a run are followed: a Hugging Face cache consists of links.
        symlink("thesis", world.at("precious/link")).unwrap();
        assert_eq!(read(world.at("precious/link"), 99).unwrap(), b"years of work");
    }
}

/// One thread swaps a directory for a link and back, while another thread writes and deletes files in that directory.
#[test]
fn a_link_created_during_an_operation_is_not_followed() {
    let world = World::new();
    let before = world.precious();
    let (place, aside, link) = (world.at("run/logs"), world.at("run/aside"), world.at("run/link"));
    symlink("../precious", &link).unwrap();
    let own = world.at("run/own");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                fs::rename(&place, &aside).unwrap();
                fs::rename(&link, &place).unwrap();
                fs::rename(&place, &link).unwrap();
                fs::rename(&aside, &place).unwrap();
            }
        });
        let mut refused = 0;
        for i in 0..5_000 {
            let path = world.at("run/logs").join(["thesis", "deep", "new"][i % 3]);
            let outcome = [write(&path, "mine"), remove_file(&path), remove_dir_all(&path), rename(&own, &path)];
            refused += outcome.iter().filter(|outcome| outcome.is_err()).count();
        }
        done.store(true, Ordering::Relaxed);
        assert!(refused > 0);
    });
    assert_eq!(world.precious(), before);
}

fn fifo(path: &Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn opening_a_special_file_fails_without_blocking() {
    let place = |make: &dyn Fn(&Path)| {
        let dir = tempfile::tempdir().unwrap();
        make(&dir.path().join("file"));
        dir
    };
    type Make<'a> = &'a dyn Fn(&Path);
    let kinds: [(&str, Make<'_>); 4] = [
        ("named pipe", &|path| fifo(path)),
        ("directory", &|path| fs::create_dir(path).unwrap()),
        ("socket", &|path| drop(std::os::unix::net::UnixListener::bind(path).unwrap())),
        ("device", &|path| symlink("/dev/zero", path).unwrap()),
    ];
    let opening = OPENING.into_iter().filter(|(name, _)| {
        !["copy to", "create_new", "read_dir", "create_dir_all", "create_private_dir_all"].contains(name)
    });
    for (what, operation) in opening {
        for (kind, make) in kinds {
            let dir = place(make);
            let path = dir.path().join("file");
            let outcome = operation(&path).unwrap_err().to_string();
            let expected = format!("{} is a ", path.display());
            assert!(outcome.starts_with(&expected) && outcome.contains(kind), "{what} of a {kind}: {outcome}");
            assert!(outcome.ends_with(", not a regular file"), "{what} of a {kind}: {outcome}");
        }
    }
    // A pipe that has data and a reader is refused too.
    let dir = place(&|path| fifo(path));
    let mut ends = fs::File::options().read(true).write(true).open(dir.path().join("file")).unwrap();
    ends.write_all(b"bytes").unwrap();
    assert!(read(dir.path().join("file"), 99).is_err());
}

#[test]
fn files_above_the_limit_and_sparse_files_are_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let gib = 1u64 << 30;
    // Each row: bytes of data at the beginning, the file's length, bytes of data at the end, the limit, and a part of
    // the error.
    let rows: [(usize, u64, usize, u64, Option<&str>); 12] = [
        (0, 0, 0, 0, None),
        (10, 10, 0, 10, None),
        (10, 10, 0, 9, Some("the file is 10 bytes, more than the limit of 9")),
        (10, MOST_HOLES, 0, gib, None),
        (10, 3 * gib, 0, 4 * gib, Some("the file is sparse: only ")),
        (0, 3 * gib, 0, 4 * gib, Some("only 0 of its 3221225472 bytes are on disk")),
        (0, 3 * gib, 9, 4 * gib, Some("the file is sparse")),
        (10, 1 << 42, 9, gib, Some("the file is 4398046511104 bytes, more than the limit of 1073741824")),
        (10, 1 << 42, 9, u64::MAX, Some("the file is sparse")),
        (1 << 20, 1 << 20, 0, 1 << 20, None),
        (1 << 20, (1 << 20) + MOST_HOLES, 0, gib, None),
        (8 << 20, (8 << 20) + 2 * MOST_HOLES, 0, gib, Some("the file is sparse")),
    ];
    for (begin, length, end, most, why) in rows {
        let file = fs::File::create(&path).unwrap();
        (&file).write_all(&vec![7; begin]).unwrap();
        file.set_len(length).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &vec![7; end], length - end as u64).unwrap();
        let case = format!("{begin}, {length}, {end}, {most}");
        let mut open = open(&path).unwrap();
        let mut first = [0; 4];
        let n = open.read(&mut first).unwrap();
        for outcome in [read(&path, most), read_rest(&open, 0, most)] {
            match (outcome, why) {
                (Ok(bytes), None) => {
                    assert_eq!(bytes.len() as u64, length, "{case}");
                    assert!(bytes[..begin].iter().all(|byte| *byte == 7), "{case}");
                    assert!(bytes[begin..].iter().all(|byte| *byte == 0), "{case}");
                }
                (Err(error), Some(why)) => assert!(error.to_string().contains(why), "{case}: {error}"),
                (outcome, _) => panic!("{case}: {:?}", outcome.map(|bytes| bytes.len())),
            }
        }
        if let (Err(error), Some(_)) = (read(&path, most), why) {
            assert!(error.to_string().starts_with(&path.display().to_string()), "{error}");
        }
        // A positioned read must leave the offset of the handle unchanged.
        let mut rest = [0; 4];
        assert_eq!(std::io::Seek::stream_position(&mut open).unwrap(), n as u64, "{case}");
        assert_eq!(open.read(&mut rest).unwrap() as u64, (length - n as u64).min(4), "{case}");
        assert_eq!(
            refuse_holes(&open).is_err(),
            why.is_some_and(|why| !why.contains("more than the limit of 9")),
            "{case}"
        );
        assert_eq!(read_range(&open, 2, 5).unwrap().len() as u64, length.saturating_sub(2).min(5), "{case}");
    }
}

#[test]
fn a_copy_preserves_bytes_holes_and_permissions() {
    use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    let file = fs::File::create(&from).unwrap();
    file.write_all_at(b"begin", 0).unwrap();
    file.write_all_at(b"middle", 1 << 34).unwrap();
    file.set_len(1 << 35).unwrap();
    fs::set_permissions(&from, fs::Permissions::from_mode(0o640)).unwrap();
    fs::write(&to, "longer before").unwrap();
    copy(&from, &to).unwrap();
    let found = fs::metadata(&to).unwrap();
    assert_eq!((found.len(), found.mode() & 0o777), (1 << 35, 0o640));
    assert!(found.blocks() * 512 < 1 << 20, "{} blocks", found.blocks());
    let copied = open(&to).unwrap();
    assert_eq!(read_range(&copied, 0, 6).unwrap(), b"begin\0");
    assert_eq!(read_range(&copied, 1 << 34, 7).unwrap(), b"middle\0");
}

#[test]
fn deleting_too_deeply_nested_directories_fails() {
    let dir = tempfile::tempdir().unwrap();
    let mut deep = dir.path().join("run");
    for _ in 0..70 {
        deep.push("d");
    }
    fs::create_dir_all(&deep).unwrap();
    let outcome = remove_dir_all(dir.path().join("run")).unwrap_err().to_string();
    assert_eq!(outcome, "directories must not be nested deeper than 64 levels");
    remove_dir_all(dir.path().join("run/d/d/d/d/d/d/d")).unwrap();
    remove_dir_all(dir.path().join("run")).unwrap();
    assert!(!dir.path().join("run").exists());
}
