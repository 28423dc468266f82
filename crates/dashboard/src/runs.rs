//! Finds training runs in the directories named by the user and below them.

use crate::run::RunFiles;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often the directories are searched again.
const RESCAN_INTERVAL: Duration = Duration::from_secs(2);
/// How many levels below a directory are searched.
const DEPTH: usize = 2;

/// The training runs that the page shows, by their names in URLs.
pub struct Runs {
    roots: Vec<PathBuf>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    runs: BTreeMap<String, Arc<Mutex<RunFiles>>>,
    looked: Option<Instant>,
}

impl Runs {
    /// Searches these directories, which are training runs or contain some.
    pub fn new(roots: Vec<PathBuf>) -> Runs {
        Runs { roots, known: Mutex::default() }
    }

    /// All training runs, by name.
    pub fn all(&self) -> Vec<(String, Arc<Mutex<RunFiles>>)> {
        self.known().runs.iter().map(|(name, run)| (name.clone(), run.clone())).collect()
    }

    /// The training run with this name. Names are looked up in the list, so no text of a request becomes a path.
    pub fn get(&self, name: &str) -> Option<Arc<Mutex<RunFiles>>> {
        self.known().runs.get(name).cloned()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.looked.is_none_or(|looked| looked.elapsed() >= RESCAN_INTERVAL) {
            known.looked = Some(Instant::now());
            let found: Vec<PathBuf> = self.roots.iter().flat_map(|root| below(root, DEPTH)).collect();
            known.runs.retain(|_, run| found.contains(&lock(run).root().to_owned()));
            for root in found {
                if !known.runs.values().any(|run| lock(run).root() == root) {
                    let name = free_name(&known.runs, &root);
                    known.runs.insert(name, Arc::new(Mutex::new(RunFiles::new(root))));
                }
            }
        }
        known
    }
}

/// Locks a run. State that another thread left by a panic is used as it is.
pub fn lock<T>(run: &Mutex<T>) -> MutexGuard<'_, T> {
    run.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_run(dir: &Path) -> bool {
    dir.join("config.toml").is_file()
}

/// The directory, if it is a training run; else the runs below it.
fn below(dir: &Path, depth: usize) -> Vec<PathBuf> {
    if is_run(dir) {
        return vec![dir.to_owned()];
    }
    let entries = disk::read_dir(dir).unwrap_or_default();
    let dirs: Vec<PathBuf> = entries.iter().map(disk::Entry::path).filter(|path| path.is_dir()).collect();
    if depth == 0 { Vec::new() } else { dirs.iter().flat_map(|dir| below(dir, depth - 1)).collect() }
}

/// The directory's name, in characters allowed in URLs; with a number appended if another run has that name.
fn free_name(runs: &BTreeMap<String, Arc<Mutex<RunFiles>>>, root: &Path) -> String {
    let name = root.file_name().map_or_else(|| "run".into(), |name| name.to_string_lossy());
    let allowed = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let name: String = name.chars().map(allowed).collect();
    let mut names = std::iter::once(name.clone()).chain((2..).map(|number| format!("{name}-{number}")));
    names.find(|name| !runs.contains_key(name)).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found_and_have_names_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        for run in ["a/out", "b/out", "my run", "none"] {
            std::fs::create_dir_all(dir.path().join(run)).unwrap();
            if run != "none" {
                std::fs::write(dir.path().join(run).join("config.toml"), "seed = 1").unwrap();
            }
        }
        let runs = Runs::new(vec![dir.path().to_owned()]);
        let names: Vec<String> = runs.all().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["my-run", "out", "out-2"]);
        assert!(runs.get("../etc").is_none());
        let one = Runs::new(vec![dir.path().join("a/out")]);
        assert_eq!(one.all().len(), 1);
    }

    #[test]
    fn runs_are_searched_two_levels_deep_again_and_again() {
        let dir = tempfile::tempdir().unwrap();
        let make = |run: &str| {
            std::fs::create_dir_all(dir.path().join(run)).unwrap();
            std::fs::write(dir.path().join(run).join("config.toml"), "").unwrap();
        };
        ["a/b/c", "d/e", "f", "f/checkpoints"].into_iter().for_each(make);
        let runs = Runs::new(vec![dir.path().to_owned()]);
        let names = |runs: &Runs| runs.all().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(&runs), ["e", "f"], "c is too deep, and what is below a run is no run");
        make("g");
        std::fs::remove_file(dir.path().join("d/e/config.toml")).unwrap();
        assert_eq!(names(&runs), ["e", "f"], "it is not looked again at once");
        let e = runs.get("f").unwrap();
        runs.known.lock().unwrap().looked = Instant::now().checked_sub(RESCAN_INTERVAL);
        assert_eq!(names(&runs), ["f", "g"]);
        assert!(Arc::ptr_eq(&e, &runs.get("f").unwrap()), "what was read of a run is kept");
        make("g-2/x");
        assert_eq!(free_name(&BTreeMap::new(), Path::new("/a/ü b.c_d-1")), "--b.c_d-1");
        assert_eq!(free_name(&runs.known().runs, Path::new("/x/g")), "g-2");
        assert_eq!(free_name(&BTreeMap::new(), Path::new("/")), "run");
    }
}
