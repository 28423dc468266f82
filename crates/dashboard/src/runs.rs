//! Finds training runs in and below the directories that the user names.

use crate::run::RunFiles;
use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The interval at which the directories are searched again.
const RESCAN_INTERVAL: Duration = Duration::from_secs(2);
/// The number of levels below a directory that are searched.
const DEPTH: usize = 2;

/// The training runs that the page shows, by their ids in URLs.
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
    /// Searches these directories, which are training runs or contain runs.
    pub fn new(roots: Vec<PathBuf>) -> Runs {
        Runs { roots, known: Mutex::default() }
    }

    /// All training runs, by name.
    pub fn all(&self) -> Vec<(String, Arc<Mutex<RunFiles>>)> {
        self.known().runs.iter().map(|(name, run)| (name.clone(), run.clone())).collect()
    }

    /// The training run with this id. Ids are looked up in the list, so no string of a request becomes a path.
    pub fn get(&self, name: &str) -> Option<Arc<Mutex<RunFiles>>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).runs.get(name).cloned();
        // The directories are searched again only for a run that is not known, or no longer there.
        known.filter(|run| is_run(lock(run).root())).or_else(|| self.known().runs.get(name).cloned())
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.looked.is_none_or(|looked| looked.elapsed() >= RESCAN_INTERVAL) {
            known.looked = Some(Instant::now());
            let of_root =
                |root: &PathBuf| below(root, DEPTH).into_iter().map(|run| (id(root, &run), run)).collect::<Vec<_>>();
            let found: Vec<(String, PathBuf)> = self.roots.iter().flat_map(of_root).collect();
            known.runs.retain(|_, run| found.iter().any(|(_, found)| found == lock(run).root()));
            for (id, run) in found {
                if !known.runs.values().any(|known| lock(known).root() == run) {
                    let id = if known.runs.contains_key(&id) { hashed(&id, &run) } else { id };
                    known.runs.insert(id, Arc::new(Mutex::new(RunFiles::new(run))));
                }
            }
        }
        known
    }
}

/// Locks a run. If a thread panicked while it held the lock, the state is used as it is.
pub fn lock<T>(run: &Mutex<T>) -> MutexGuard<'_, T> {
    run.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_run(dir: &Path) -> bool {
    dir.join("config.toml").is_file()
}

/// The directory itself, if it is a training run; otherwise the runs below it.
fn below(dir: &Path, depth: usize) -> Vec<PathBuf> {
    if is_run(dir) {
        return vec![dir.to_owned()];
    }
    let entries = disk::read_dir(dir).unwrap_or_default();
    let dirs: Vec<PathBuf> = entries.iter().map(disk::Entry::path).filter(|path| path.is_dir()).collect();
    if depth == 0 { Vec::new() } else { dirs.iter().flat_map(|dir| below(dir, depth - 1)).collect() }
}

/// The id of a run in URLs: its path below `root`, with `~` between directories, or the name of `root` if `root` is the
/// run. The id is the same after a restart. If a name has characters that URLs do not allow, a hash of the path makes
/// the id unique.
fn id(root: &Path, run: &Path) -> String {
    let below = run.strip_prefix(root).ok().filter(|below| !below.as_os_str().is_empty());
    let path = below.map_or_else(|| PathBuf::from(root.file_name().unwrap_or_default()), Path::to_owned);
    let names: Vec<_> = path.iter().map(|name| name.to_string_lossy()).collect();
    let name = names.join("~");
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.~".contains(c);
    if !name.is_empty() && name.chars().all(allowed) {
        return name;
    }
    hashed(&name.chars().map(|c| if allowed(c) { c } else { '-' }).collect::<String>(), run)
}

fn hashed(id: &str, run: &Path) -> String {
    let mut hasher = DefaultHasher::new();
    run.hash(&mut hasher);
    format!("{id}-{:06x}", hasher.finish() >> 40)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found_and_have_unique_ids() {
        let dir = tempfile::tempdir().unwrap();
        for run in ["a/out", "b/out", "my run", "none"] {
            std::fs::create_dir_all(dir.path().join(run)).unwrap();
            if run != "none" {
                std::fs::write(dir.path().join(run).join("config.toml"), "seed = 1").unwrap();
            }
        }
        let runs = Runs::new(vec![dir.path().to_owned()]);
        let names: Vec<String> = runs.all().into_iter().map(|(name, _)| name).collect();
        assert_eq!((&names[..2], names.len()), (&["a~out".to_owned(), "b~out".to_owned()][..], 3));
        assert!(names[2].starts_with("my-run-") && names[2].len() == "my-run-123456".len(), "{names:?}");
        let again = Runs::new(vec![dir.path().to_owned()]);
        assert_eq!(again.all().into_iter().map(|(name, _)| name).collect::<Vec<_>>(), names, "after a restart");
        assert!(runs.get("../etc").is_none());
        let one = Runs::new(vec![dir.path().join("a/out")]);
        assert_eq!(one.all().len(), 1);
    }

    #[test]
    fn directories_are_searched_repeatedly_and_two_levels_deep() {
        let dir = tempfile::tempdir().unwrap();
        let make = |run: &str| {
            std::fs::create_dir_all(dir.path().join(run)).unwrap();
            std::fs::write(dir.path().join(run).join("config.toml"), "").unwrap();
        };
        ["a/b/c", "d/e", "f", "f/checkpoints"].into_iter().for_each(make);
        let runs = Runs::new(vec![dir.path().to_owned()]);
        let names = |runs: &Runs| runs.all().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(&runs), ["d~e", "f"], "c is too deep, and directories inside a run are not searched");
        make("g");
        std::fs::remove_file(dir.path().join("d/e/config.toml")).unwrap();
        assert_eq!(names(&runs), ["d~e", "f"], "the directories must not be searched again at once");
        let e = runs.get("f").unwrap();
        runs.known.lock().unwrap().looked = Instant::now().checked_sub(RESCAN_INTERVAL);
        assert_eq!(names(&runs), ["f", "g"]);
        assert!(Arc::ptr_eq(&e, &runs.get("f").unwrap()), "data already read must be kept");
        let roots = ["f", "g"].map(|run| dir.path().join(run));
        assert_eq!(names(&Runs::new(roots.to_vec())), ["f", "g"], "a root directory may be a run itself");
        make("other/f");
        let both = names(&Runs::new(vec![dir.path().join("f"), dir.path().join("other/f")]));
        assert!(both[0] == "f" && both[1].starts_with("f-") && both.len() == 2, "{both:?}");
    }
}
