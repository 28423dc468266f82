//! `cargo xtask mutants`: mutation testing. It finds which planted changes of the source the tests notice.
//!
//! The lists under `mutants/lists` name changes of single expressions; `random` draws others. All mutants are inserted
//! into one copy of the source tree, each behind a switch (the environment variable `MUTANT` selects one by number), so
//! that one build serves all. The repository's source is never changed. A test is run against a mutant only if it
//! evaluates the changed expression; a first run of the test without mutants finds this out.

mod build;
mod list;
mod operators;
mod random;
mod suite;

use list::Mutant;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use suite::{Limits, Outcome, STAGES, Suite};

const USAGE: &str = "cargo xtask mutants [quick] [LIST|NUMBER]…              of the lists under mutants/lists
cargo xtask mutants --list FILE [NUMBER]…               of another list
cargo xtask mutants random --seed S --count N [--crate C]
cargo xtask mutants fresh N                             random ones, of a new seed
with --target DIR (or CARGO_TARGET_DIR) for the build, --seconds N: the tests of other crates that are left after that
are not asked";
/// The folder in the repository with the lists and their results.
const LISTS: &str = "mutants/lists";
/// The folder for copied trees and for what is known about their tests.
const WORK: &str = "target/mutants";
/// How many percent more changes are drawn than requested, because some do not compile.
const SPARE: usize = 40;

/// A list of mutants, and the file with their results.
struct Shard {
    name: String,
    mutants: Vec<Mutant>,
    results: PathBuf,
    /// The header of the results file. If set, each row also has its mutant's place.
    head: Option<String>,
}

#[derive(Default)]
struct MutantsOptions {
    words: Vec<String>,
    values: BTreeMap<&'static str, String>,
}

impl MutantsOptions {
    fn parse(words: &[&str]) -> Result<MutantsOptions, String> {
        let mut options = MutantsOptions::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match ["seed", "count", "crate", "target", "seconds", "list"]
                .iter()
                .find(|n| word.strip_prefix("--") == Some(n))
            {
                Some(name) => {
                    let value = words.next().ok_or(format!("{word} needs a value\n{USAGE}"))?;
                    options.values.insert(name, (*value).to_owned());
                }
                None if word.starts_with('-') => return Err(format!("no option {word}\n{USAGE}")),
                None => options.words.push((*word).to_owned()),
            }
        }
        Ok(options)
    }

    fn number(&self, name: &str) -> Result<Option<u64>, String> {
        let value =
            self.values.get(name).map(|value| value.parse().map_err(|_| format!("--{name} {value}: no number")));
        value.transpose()
    }

    fn limits(&self) -> Result<Limits, String> {
        let time = self.number("seconds")?.map(Duration::from_secs);
        Ok(Limits { quick: self.words.iter().any(|word| word == "quick"), time })
    }

    /// The directory in which copied trees are built.
    fn target(&self) -> Result<PathBuf, String> {
        let named = self.values.get("target").map(PathBuf::from);
        let target = named.or(std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from));
        std::path::absolute(target.unwrap_or(Path::new(WORK).join("target"))).map_err(|e| e.to_string())
    }
}

/// Started by `cargo xtask mutants`, in the root of the repository.
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// A cargo command, to which the caller adds arguments.
fn cargo() -> Command {
    Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()))
}

/// The current commit.
fn commit() -> String {
    let output = Command::new("git").args(["rev-parse", "--short", "HEAD"]).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

/// Runs the mutants that `words` select, by number or by list, or draws random ones; without words all mutants of the
/// lists.
fn run(words: &[&str]) -> Result<(), String> {
    if let ["fresh", count] = words {
        let count = count.parse().map_err(|_| format!("{count}: not a number"))?;
        return fresh(count).map(|summary| println!("{summary}"));
    }
    let options = MutantsOptions::parse(words)?;
    if options.words.first().is_some_and(|word| word == "random") {
        return drawn(&options).map(|summary| println!("{summary}"));
    }
    let shards = match options.values.get("list") {
        Some(file) => vec![read(Path::new(file))?],
        None => lists()?,
    };
    let label = options.values.get("list").map_or("lists", |_| &shards[0].name);
    let words: Vec<&str> = options.words.iter().map(String::as_str).filter(|word| *word != "quick").collect();
    let numbers: Vec<usize> = words.iter().filter_map(|word| word.parse().ok()).collect();
    if let Some(word) = words.iter().find(|w| w.parse::<usize>().is_err() && shards.iter().all(|s| s.name != **w)) {
        return Err(format!("{word} is no list under {LISTS}, and no number\n{USAGE}"));
    }
    let work = work(label)?;
    let all: Vec<Mutant> = shards.iter().flat_map(|shard| shard.mutants.clone()).collect();
    let (binaries, broken) = build::Tree::read(work.join("tree"), options.target()?)?.build(&all)?;
    if let Some((id, why)) = broken.first_key_value() {
        return Err(format!("mutant {id} does not compile: {why}"));
    }
    let suite = Suite::new(binaries, work.join("reach.json"))?;
    for shard in shards.iter().filter(|s| numbers.is_empty() || s.mutants.iter().any(|m| numbers.contains(&m.id))) {
        if words.is_empty() || words.contains(&shard.name.as_str()) || !numbers.is_empty() {
            let is_chosen = |m: &Mutant| words.contains(&shard.name.as_str()) || numbers.contains(&m.id);
            ask(&suite, shard, options.limits()?, |m| words.is_empty() || is_chosen(m))?;
        }
    }
    shards.iter().for_each(|shard| println!("{}", summary(shard)));
    Ok(())
}

/// Draws `count` mutants with a new seed, and reports how many the tests notice.
fn fresh(count: usize) -> Result<String, String> {
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    drawn(&MutantsOptions::parse(&[
        "random",
        "--seed",
        &seed.to_string(),
        "--count",
        &count.to_string(),
        "--seconds",
        "300",
    ])?)
}

/// Draws mutants, runs them, and reports how many the tests notice. Resumes a draw that was begun under
/// `target/mutants`.
fn drawn(options: &MutantsOptions) -> Result<String, String> {
    let (Some(seed), Some(count), 1) = (options.number("seed")?, options.number("count")?, options.words.len()) else {
        return Err(USAGE.to_owned());
    };
    let count = usize::try_from(count).map_err(|e| e.to_string())?;
    let only = options.values.get("crate");
    let name = format!("random-{seed}{}", only.map_or(String::new(), |name| format!("-{name}")));
    let work = work(&name)?;
    let (list, head) = (work.join("drawn.txt"), work.join("head"));
    let binaries = match fs::read_to_string(&list) {
        Ok(text) => {
            println!("continues with {}: delete its directory to draw anew", list.display());
            let built =
                build::compile(build::Goal::Tests, &list::parse(&text)?, &work.join("tree"), &options.target()?)?;
            built.map_err(|_| "the planted tree does not build".to_owned())?
        }
        Err(_) => {
            let drawn = random::draw(Path::new(""), seed, count + count * SPARE / 100 + 5, only.map(String::as_str))?;
            let (binaries, broken) = build::Tree::read(work.join("tree"), options.target()?)?.build(&drawn)?;
            broken.iter().for_each(|(id, why)| println!("{id} does not compile: {why}"));
            let kept: Vec<Mutant> = drawn.into_iter().filter(|m| !broken.contains_key(&m.id)).take(count).collect();
            let last = kept.last().map_or(0, |mutant| mutant.id);
            let tried = broken.range(..last).count();
            let text = format!(
                "# `cargo xtask mutants random --seed {seed} --count {count}` of {}\n\
                 # {} mutants; {tried} more that were drawn do not compile\n",
                commit(),
                kept.len()
            );
            fs::write(&head, text).and_then(|()| fs::write(&list, list::write(&kept))).map_err(|e| e.to_string())?;
            binaries
        }
    };
    // Of a larger draw the first ones, which are a draw as well.
    let mut mutants = list::parse(&fs::read_to_string(&list).map_err(|e| e.to_string())?)?;
    mutants.truncate(count);
    let shard = Shard {
        mutants,
        results: Path::new(LISTS).join(format!("{name}.results")),
        head: Some(fs::read_to_string(&head).map_err(|e| e.to_string())?),
        name,
    };
    let suite = Suite::new(binaries, work.join("reach.json"))?;
    let is_open = known_results(&shard.results);
    let is_open = |m: &Mutant| is_open.get(&m.id).is_none_or(|outcome| outcome.starts_with("open"));
    ask(&suite, &shard, options.limits()?, is_open)?;
    Ok(summary(&shard))
}

fn work(label: &str) -> Result<PathBuf, String> {
    let work = std::path::absolute(Path::new(WORK).join(label)).map_err(|e| e.to_string())?;
    fs::create_dir_all(&work).map_err(|e| format!("{}: {e}", work.display()))?;
    Ok(work)
}

/// Runs the chosen mutants of a list, stage by stage, and writes the result of each as soon as it is known.
fn ask(suite: &Suite, shard: &Shard, limits: Limits, is_chosen: impl Fn(&Mutant) -> bool) -> Result<(), String> {
    let known = known_results(&shard.results);
    let before =
        |m: &Mutant| known.get(&m.id).and_then(|r| r.strip_prefix("killed by ")).unwrap_or_default().to_owned();
    let chosen = shard.mutants.iter().filter(|m| is_chosen(m));
    let (equivalent, open): (Vec<&Mutant>, Vec<&Mutant>) = chosen.partition(|m| m.equivalent.is_some());
    for mutant in equivalent {
        say(shard, mutant, "equivalent")?;
    }
    let mut open: Vec<(&Mutant, String)> = open.into_iter().map(|m| (m, before(m))).collect();
    // What each mutant has come through: tests, tests left out, time.
    let so_far: Mutex<BTreeMap<usize, (usize, usize, Duration)>> = Mutex::default();
    let killed: Mutex<Vec<usize>> = Mutex::default();
    for stage in 0..STAGES {
        suite.look_at(&open, stage)?;
        suite::in_parallel(&open, |(mutant, before)| {
            let start = Instant::now();
            let outcome = suite.outcome(mutant, before, stage, limits)?;
            let mut so_far = so_far.lock().map_err(|e| e.to_string())?;
            let (asked, left, time) = so_far.entry(mutant.id).or_default();
            *time += start.elapsed();
            match outcome {
                Outcome::Killed(by) => {
                    killed.lock().map_err(|e| e.to_string())?.push(mutant.id);
                    say(shard, mutant, &format!("killed by {by}"))
                }
                Outcome::Survived(more, left_out) => {
                    (*asked, *left) = (*asked + more, *left + left_out);
                    let said = match (stage + 1 == STAGES, *asked, *left) {
                        (false, asked, _) => format!("open after {asked} tests"),
                        (true, 0, 0) => "reached by no test".to_owned(),
                        (true, asked, 0) => format!("survived {asked} tests"),
                        (true, asked, left) => format!("survived {asked} tests, {left} not asked"),
                    };
                    say(shard, mutant, &said)
                }
            }
        })?;
        let killed = killed.lock().map_err(|e| e.to_string())?;
        open.retain(|(mutant, _)| !killed.contains(&mutant.id));
    }
    let so_far = so_far.into_inner().map_err(|e| e.to_string())?;
    let mut times: Vec<Duration> = so_far.values().map(|(.., time)| *time).collect();
    times.sort_unstable();
    if let (Some(median), Some(longest)) = (times.get(times.len() / 2), times.last()) {
        println!("a mutant took {:.1} s (median), {:.0} s at most", median.as_secs_f64(), longest.as_secs_f64());
    }
    Ok(())
}

/// Writes the result of a mutant to the results file.
fn say(shard: &Shard, mutant: &Mutant, outcome: &str) -> Result<(), String> {
    static FILE: Mutex<()> = Mutex::new(());
    println!("{} {outcome}  ({} {})", mutant.id, mutant.file, mutant.what);
    let _one = FILE.lock().map_err(|e| e.to_string())?;
    let mut known = known_results(&shard.results);
    known.retain(|id, _| shard.mutants.iter().any(|m| m.id == *id));
    known.insert(mutant.id, outcome.to_owned());
    let mut text = shard.head.clone().unwrap_or_default();
    for (id, outcome) in known {
        let place = shard.mutants.iter().find(|m| m.id == id && shard.head.is_some());
        let place = place.map_or(String::new(), |m| format!("\t{} {}", m.file.trim_start_matches("crates/"), m.what));
        text += &format!("{id} {outcome}{place}\n");
    }
    fs::write(&shard.results, text).map_err(|e| format!("{}: {e}", shard.results.display()))
}

/// How many mutants of a list the tests notice.
fn summary(shard: &Shard) -> String {
    let known = known_results(&shard.results);
    let count = |begin: &str| known.values().filter(|outcome| outcome.starts_with(begin)).count();
    let (killed, equivalent, all) = (count("killed"), count("equivalent"), shard.mutants.len());
    format!("{}: {all} mutants, {killed} killed, {equivalent} equivalent", shard.name)
}

/// The recorded results of mutants, by number; each ends at a tab.
fn known_results(path: &Path) -> BTreeMap<usize, String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let rows = text.lines().filter_map(|line| line.split_once(' '));
    let outcome = |row: &str| row.split('\t').next().unwrap_or_default().to_owned();
    rows.filter_map(|(id, row)| Some((id.parse().ok()?, outcome(row)))).collect()
}

fn lists() -> Result<Vec<Shard>, String> {
    let entries = fs::read_dir(LISTS).map_err(|e| format!("{LISTS}: {e}"))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    paths.sort();
    let shards: Vec<Shard> = paths.iter().map(|path| read(path)).collect::<Result<_, _>>()?;
    let mut ids: Vec<usize> = shards.iter().flat_map(|shard| &shard.mutants).map(|mutant| mutant.id).collect();
    ids.sort_unstable();
    match ids.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("two mutants have the number {}", pair[0])),
        None => Ok(shards),
    }
}

/// Reads a list; its results are in a file beside it.
fn read(path: &Path) -> Result<Shard, String> {
    let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(Shard {
        name: path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        mutants: list::parse(&text).map_err(|e| format!("{}: {e}", path.display()))?,
        results: path.with_extension("results"),
        head: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When code moves, the lists must be adapted: a list whose text is missing in the source stops every run of the
    /// lists.
    #[test]
    fn every_mutant_of_the_lists_has_its_place() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut files: BTreeMap<String, Vec<Mutant>> = BTreeMap::new();
        for path in fs::read_dir(root.join(LISTS)).unwrap().map(|entry| entry.unwrap().path()) {
            if path.extension().is_some_and(|extension| extension == "txt") {
                read(&path).unwrap().mutants.into_iter().for_each(|m| files.entry(m.file.clone()).or_default().push(m));
            }
        }
        assert!(!files.is_empty());
        let mut lost = Vec::new();
        for (file, mutants) in files {
            match fs::read_to_string(root.join(&file)) {
                Err(error) => lost.push(format!("{file}: {error}")),
                // Each alone, so that all that are lost are listed.
                Ok(source) => {
                    let of_each = mutants.iter().filter_map(|mutant| list::plant(&source, &[mutant]).err());
                    lost.extend(of_each.map(|error| format!("{file}: {error}")));
                }
            }
        }
        assert!(lost.is_empty(), "{}", lost.join("\n"));
    }
}
