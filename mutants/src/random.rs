//! Draws random mutants from all changes that the operators can make in the source of the crates, each with the same
//! probability.

use super::list::Mutant;
use super::operators::{self, Candidate};
use std::fs;
use std::path::{Path, PathBuf};

/// Crates that contain only code for tests and measurements.
const LEFT_OUT: [&str; 2] = ["bench", "testing"];
/// Host code that calls a GPU driver, which is missing when tests run.
const DRIVER: &str = "crates/kernels/src/device/cuda";

/// A possible change and its file.
struct Place<'a> {
    file: &'a Path,
    source: &'a str,
    candidate: &'a Candidate,
}

/// Draws `count` non-overlapping changes of the crates (or of the crate `only`), numbered from 1 in the order of
/// drawing. `root` is the repository. The same seed gives the same changes of the same source.
pub fn draw(root: &Path, seed: u64, count: usize, only: Option<&str>) -> Result<Vec<Mutant>, String> {
    let entries = fs::read_dir(root.join("crates")).map_err(|e| format!("crates: {e}"))?;
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| only.map_or(!LEFT_OUT.contains(&name.as_str()), |only| name == only));
    names.sort();
    let mut files: Vec<(PathBuf, String, Vec<Candidate>)> = Vec::new();
    for name in &names {
        let source = Path::new("crates").join(name).join("src");
        for file in ["lib.rs", "main.rs"].map(|name| source.join(name)) {
            if root.join(&file).is_file() {
                read(root, &file, &source, &mut files)?;
            }
        }
    }
    files.retain(|(file, ..)| only.is_some() || !file.starts_with(DRIVER));
    let all = files
        .iter()
        .flat_map(|(file, source, found)| found.iter().map(move |candidate| Place { file, source, candidate }));
    let all: Vec<Place<'_>> = all.collect();
    println!("{} changes in {} files of {}", all.len(), files.len(), names.join(", "));
    if all.len() < 2 * count {
        return Err(format!("{count} of {} changes cannot be drawn: name fewer", all.len()));
    }
    let mut random = SplitMix(seed);
    let mut drawn: Vec<&Place<'_>> = Vec::new();
    while drawn.len() < count {
        let place = &all[usize::try_from(random.below(all.len() as u64)).unwrap_or(0)];
        if drawn.iter().all(|other| place.is_apart(other)) {
            drawn.push(place);
        }
    }
    Ok(drawn.iter().enumerate().map(|(at, place)| place.mutant(at + 1)).collect())
}

impl Place<'_> {
    fn is_apart(&self, other: &Place<'_>) -> bool {
        let (a, b) = (&self.candidate.range, &other.candidate.range);
        self.file != other.file || a.end < b.start || b.end < a.start
    }

    /// The change in the form of a list. It is preceded by as much text as makes its place unique.
    fn mutant(&self, id: usize) -> Mutant {
        let Candidate { range, change, what } = self.candidate;
        let mut from = range.start;
        while self.source.find(&self.source[from..range.start]) != Some(from) {
            from = self.source[..from].char_indices().next_back().map_or(0, |(at, _)| at);
        }
        let line = 1 + self.source[..range.start].matches('\n').count();
        Mutant {
            id,
            file: self.file.to_string_lossy().into_owned(),
            what: format!("line {line}, {what}"),
            after: Some(self.source[from..range.start].to_owned()),
            from: self.source[range.clone()].to_owned(),
            change: change.clone(),
            equivalent: None,
        }
    }
}

/// Collects the changes of the module in `file` and of its submodules, which lie in `directory`.
fn read(
    root: &Path,
    file: &Path,
    directory: &Path,
    into: &mut Vec<(PathBuf, String, Vec<Candidate>)>,
) -> Result<(), String> {
    let source = fs::read_to_string(root.join(file)).map_err(|e| format!("{}: {e}", file.display()))?;
    let (found, modules) = operators::read(&source).map_err(|e| format!("{}: {e}", file.display()))?;
    into.push((file.to_owned(), source, found));
    for (name, path) in modules {
        let beside = path.and_then(|path| Some(file.parent()?.join(path)));
        let places = [beside, Some(directory.join(format!("{name}.rs"))), Some(directory.join(&name).join("mod.rs"))];
        let found = places.into_iter().flatten().find(|place| root.join(place).is_file());
        let found = found.ok_or_else(|| format!("{}: no file of `mod {name}`", file.display()))?;
        read(root, &found, &directory.join(&name), into)?;
    }
    Ok(())
}

/// The SplitMix64 random number generator (Steele, Lea and Flood, 2014).
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A uniformly distributed number below `n`.
    fn below(&mut self, n: u64) -> u64 {
        let end = u64::MAX - u64::MAX % n;
        loop {
            let random = self.next();
            if random < end {
                return random % n;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_paper_s_generator() {
        let mut random = SplitMix(1_234_567);
        assert_eq!([random.next(), random.next()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    /// Reads this repository's own source.
    #[test]
    fn a_seed_draws_what_can_be_planted() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let draw = |seed| draw(root, seed, 200, Some("train")).unwrap();
        let drawn = draw(7);
        assert_eq!(format!("{drawn:?}"), format!("{:?}", draw(7)));
        assert_ne!(format!("{drawn:?}"), format!("{:?}", draw(8)));
        let again = super::super::list::parse(&super::super::list::write(&drawn)).unwrap();
        for file in drawn.iter().map(|mutant| &mutant.file) {
            let own: Vec<&Mutant> = again.iter().filter(|mutant| mutant.file == *file).collect();
            let planted = super::super::list::plant(&fs::read_to_string(root.join(file)).unwrap(), &own).unwrap();
            assert!(syn::parse_file(&planted.text).is_ok(), "{file}");
        }
    }
}
