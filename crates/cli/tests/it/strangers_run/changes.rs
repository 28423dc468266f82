//! Changes to a file of a run from an untrusted source.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;

/// The kinds of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Cut,
    Flipped,
    Grown,
    Emptied,
    Link,
    Directory,
    Fifo,
    Sparse,
}

pub const CHANGES: [Change; 8] = [
    Change::Cut,
    Change::Flipped,
    Change::Grown,
    Change::Emptied,
    Change::Link,
    Change::Directory,
    Change::Fifo,
    Change::Sparse,
];

/// Pseudo-random numbers from a seed.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n.max(1)
    }
}

/// Creates the directory to which links lead, with files that must not change.
pub fn make_outside(outside: &Path) {
    fs::create_dir_all(outside.join("deep")).unwrap();
    for name in ["thesis", ".profile", "deep/letter", "step-000002", "000000"] {
        fs::write(outside.join(name), "years of work").unwrap();
    }
}

/// Changes the file at `path`. Links point to `outside`. Returns a description.
pub fn apply(change: Change, path: &Path, outside: &Path, random: &mut Random) -> String {
    let bytes = fs::read(path).unwrap();
    let length = bytes.len() as u64;
    let describe = |what: String| format!("{} of {length} bytes {what}", path.display());
    let file = || File::options().write(true).open(path).unwrap();
    match change {
        Change::Cut => {
            let left = random.below(length);
            file().set_len(left).unwrap();
            describe(format!("truncated to {left} bytes"))
        }
        Change::Flipped => {
            let (at, bit) = (random.below(length), random.below(8));
            let mut bytes = bytes;
            if let Some(byte) = bytes.get_mut(at as usize) {
                *byte ^= 1 << bit;
            }
            fs::write(path, bytes).unwrap();
            describe(format!("with bit {bit} of byte {at} flipped"))
        }
        Change::Grown => {
            let more: Vec<u8> = (0..1 + random.below(4096)).map(|_| random.below(256) as u8).collect();
            File::options().append(true).open(path).unwrap().write_all(&more).unwrap();
            describe(format!("grown by {}", more.len()))
        }
        Change::Emptied => {
            file().set_len(0).unwrap();
            describe("emptied".to_owned())
        }
        Change::Sparse => {
            let keep = random.below(2) == 0;
            let file = file();
            if !keep {
                file.set_len(0).unwrap();
            }
            file.set_len(length + (3 << 30)).unwrap();
            describe(format!("made sparse, {}", if keep { "after its contents" } else { "without its contents" }))
        }
        Change::Link => {
            let targets = [outside.join("thesis"), outside.to_owned(), "/dev/zero".into(), "nothing".into()];
            let target = targets[random.below(targets.len() as u64) as usize].clone();
            fs::remove_file(path).unwrap();
            symlink(&target, path).unwrap();
            describe(format!("replaced by a link to {}", target.display()))
        }
        Change::Directory => {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
            fs::write(path.join("file"), bytes).unwrap();
            describe("made a directory".to_owned())
        }
        Change::Fifo => {
            fs::remove_file(path).unwrap();
            assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
            describe("replaced by a named pipe".to_owned())
        }
    }
}
