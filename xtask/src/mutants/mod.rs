//! `cargo xtask mutants`: which planted changes of the source the tests notice.
//!
//! The lists under `xtask/mutants` name changes of single expressions. All of them go into one copy of the tree, each
//! behind a switch (the variable `MUTANT` with its number), so that one build serves them all; the source itself never
//! has one. A test is run against a mutant only if it evaluates the changed expression, which is found out first, by
//! running every test by itself without any change. The word `quick` leaves slow tests out.

mod list;
mod suite;

use list::Mutant;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use suite::{Outcome, Suite};

/// Under the repository: the lists, and what came of them.
const LISTS: &str = "xtask/mutants";
/// The copy of the tree, its build, and what tests reach.
const WORK: &str = "target/mutants";
/// Goes to the end of a crate that has mutants.
const SWITCH: &str = r#"
#[allow(missing_docs, clippy::all)]
pub(crate) fn mutant(id: usize) -> bool {
    use std::io::Write as _;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering};
    static ON: OnceLock<usize> = OnceLock::new();
    static REACHED: [AtomicBool; 1000] = [const { AtomicBool::new(false) }; 1000];
    if !REACHED[id].load(Ordering::Relaxed) && !REACHED[id].swap(true, Ordering::Relaxed) {
        if let Some(file) = std::env::var_os("MUTANTS_REACHED") {
            let file = std::fs::OpenOptions::new().append(true).create(true).open(file);
            file.and_then(|mut file| file.write_all(format!("{id}\n").as_bytes())).expect("MUTANTS_REACHED");
        }
    }
    *ON.get_or_init(|| std::env::var("MUTANT").ok().and_then(|id| id.parse().ok()).unwrap_or(0)) == id
}
"#;

/// A list of mutants.
struct Shard {
    name: String,
    mutants: Vec<Mutant>,
}

/// Runs the mutants that `words` name, by number or by list; all without any.
pub fn run(words: &[&str]) -> Result<(), String> {
    let shards = read()?;
    let quick = words.contains(&"quick");
    let words: Vec<&str> = words.iter().copied().filter(|word| *word != "quick").collect();
    let numbers: Vec<usize> = words.iter().filter_map(|word| word.parse().ok()).collect();
    if let Some(word) = words.iter().find(|w| w.parse::<usize>().is_err() && shards.iter().all(|s| s.name != **w)) {
        return Err(format!("{word} is no list under {LISTS}, and no number"));
    }
    let work = std::env::current_dir().map_err(|e| e.to_string())?.join(WORK);
    let crates = plant(&shards, &work.join("tree"))?;
    let mut suite = Suite::build(&work, &crates)?;
    let chosen =
        |shard: &Shard, m: &Mutant| words.is_empty() || words.contains(&shard.name.as_str()) || numbers.contains(&m.id);
    let mutants: Vec<(&Shard, &Mutant)> = shards
        .iter()
        .flat_map(|shard| shard.mutants.iter().map(move |m| (shard, m)))
        .filter(|(shard, m)| chosen(shard, m))
        .collect();
    suite.look_at(&mutants.iter().map(|(_, mutant)| *mutant).collect::<Vec<_>>())?;
    let file = Mutex::new(());
    suite::in_parallel(&mutants, |(shard, mutant)| {
        let path = Path::new(LISTS).join(format!("{}.results", shard.name));
        let before = known_results(&path).remove(&mutant.id).unwrap_or_default();
        let outcome = match &mutant.equivalent {
            Some(_) => "equivalent".to_owned(),
            None => said(suite.outcome(mutant, before.trim_start_matches("killed by "), quick)?),
        };
        println!("{} {outcome}  ({})", mutant.id, mutant.what);
        let _one = file.lock().map_err(|e| e.to_string())?;
        let mut known = known_results(&path);
        known.retain(|id, _| shard.mutants.iter().any(|m| m.id == *id));
        known.insert(mutant.id, outcome);
        let text: String = known.iter().map(|(id, outcome)| format!("{id} {outcome}\n")).collect();
        fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))
    })?;
    summarize(&shards);
    Ok(())
}

fn said(outcome: Outcome) -> String {
    match outcome {
        Outcome::Killed(by) => format!("killed by {by}"),
        Outcome::Survived(0, 0) => "reached by no test".to_owned(),
        Outcome::Survived(tests, 0) => format!("survived {tests} tests"),
        Outcome::Survived(tests, slow) => format!("survived {tests} tests, {slow} slow ones not asked"),
    }
}

/// How many of each list are noticed.
fn summarize(shards: &[Shard]) {
    for Shard { name, mutants } in shards {
        let known = known_results(&Path::new(LISTS).join(format!("{name}.results")));
        let count =
            |begin: &str| mutants.iter().filter(|m| known.get(&m.id).is_some_and(|r| r.starts_with(begin))).count();
        let (killed, equivalent) = (count("killed"), count("equivalent"));
        println!("{name}: {} mutants, {killed} killed, {equivalent} equivalent", mutants.len());
    }
}

fn known_results(path: &Path) -> BTreeMap<usize, String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(id, r)| Some((id.parse().ok()?, r.into())))
        .collect()
}

fn read() -> Result<Vec<Shard>, String> {
    let entries = fs::read_dir(LISTS).map_err(|e| format!("{LISTS}: {e}"))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    paths.sort();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Shard { name, mutants: list::parse(&text).map_err(|e| format!("{}: {e}", path.display()))? })
    };
    paths.into_iter().map(read).collect()
}

/// Makes `tree` a copy of the working tree with all mutants in it, and names the crates that have some. What is as it
/// was keeps its time, so that only what changed is built again.
fn plant(shards: &[Shard], tree: &Path) -> Result<Vec<String>, String> {
    let listed = Command::new("git").args(["ls-files", "-coz", "--exclude-standard"]).output();
    let listed = listed.map_err(|e| format!("git: {e}"))?.stdout;
    let files: Vec<String> = String::from_utf8_lossy(&listed).split_terminator('\0').map(str::to_owned).collect();
    let mutants: Vec<&Mutant> = shards.iter().flat_map(|shard| &shard.mutants).collect();
    let of = |file: &str| mutants.iter().copied().filter(|m| m.file == file).collect::<Vec<_>>();
    if let Some(lost) = mutants.iter().find(|m| !files.contains(&m.file)) {
        return Err(format!("mutant {}: there is no {}", lost.id, lost.file));
    }
    let crate_of = |file: &str| file.split('/').take(2).collect::<Vec<_>>().join("/");
    let mut crates: Vec<String> = mutants.iter().map(|m| crate_of(&m.file)).collect();
    crates.sort();
    crates.dedup();
    for file in files.iter().filter(|file| Path::new(file).is_file()) {
        let mut bytes = fs::read(file).map_err(|e| format!("{file}: {e}"))?;
        let own = of(file);
        if !own.is_empty() {
            bytes = list::plant(&String::from_utf8_lossy(&bytes), &own).map_err(|e| format!("{file}: {e}"))?.into();
        }
        if crates.iter().any(|dir| *file == format!("{dir}/src/lib.rs")) {
            bytes.extend_from_slice(SWITCH.as_bytes());
        }
        let copy = tree.join(file);
        if fs::read(&copy).ok().as_ref() != Some(&bytes) {
            let written = fs::create_dir_all(copy.parent().unwrap_or(tree)).and_then(|()| fs::write(&copy, bytes));
            written.map_err(|e| format!("{}: {e}", copy.display()))?;
        }
    }
    Ok(crates)
}
