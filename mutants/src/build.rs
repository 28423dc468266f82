//! Writes a copy of the source tree with mutants and builds its tests. A mutant that does not compile is left out, and
//! the rest is built again.

use super::list::{self, Mutant};
use super::suite::Binary;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::BufRead;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Code appended to each crate that has mutants, to select one at run time. `SIZE` is replaced by a number above the
/// greatest mutant number.
const SWITCH: &str = r#"
#[allow(missing_docs, clippy::all)]
#[inline]
pub(crate) fn mutant(id: usize) -> bool {
    use std::sync::atomic::{AtomicU8, Ordering};
    static STATES: [AtomicU8; SIZE] = [const { AtomicU8::new(0) }; SIZE];
    #[cold]
    fn first(id: usize, state: &AtomicU8) -> bool {
        let is_on = std::env::var("MUTANT").is_ok_and(|on| on.parse() == Ok(id));
        if state.swap(1 + u8::from(is_on), Ordering::Relaxed) == 0
            && let Some(file) = std::env::var_os("MUTANTS_REACHED")
        {
            use std::io::Write as _;
            // A confined process may not write the file; it is a child of the test, and must not fail for that.
            let file = std::fs::OpenOptions::new().append(true).create(true).open(file);
            let _ = file.and_then(|mut file| file.write_all(format!("{id}\n").as_bytes()));
        }
        is_on
    }
    match STATES[id].load(Ordering::Relaxed) {
        0 => first(id, &STATES[id]),
        state => state == 2,
    }
}
"#;

/// For each file of the copied tree, the mutants in it: number and byte range.
type Places = BTreeMap<String, Vec<(usize, Range<usize>)>>;

/// A copy of the working tree, at the time when it was read.
pub struct Tree {
    files: BTreeMap<String, Vec<u8>>,
    place: PathBuf,
    target: PathBuf,
}

impl Tree {
    /// Reads all files that git tracks or would add. The copy will be written to `place` and built in `target`.
    pub fn read(place: PathBuf, target: PathBuf) -> Result<Tree, String> {
        let listed = Command::new("git").args(["ls-files", "-coz", "--exclude-standard"]).output();
        let listed = listed.map_err(|e| format!("git: {e}"))?.stdout;
        let mut files = BTreeMap::new();
        for file in String::from_utf8_lossy(&listed).split_terminator('\0').filter(|file| Path::new(file).is_file()) {
            files.insert(file.to_owned(), fs::read(file).map_err(|e| format!("{file}: {e}"))?);
        }
        Ok(Tree { files, place, target })
    }

    /// Writes and builds the tree with these mutants. Returns the test binaries, and the mutants that do not compile
    /// with the compiler's reason.
    pub fn build(&self, mutants: &[Mutant]) -> Result<(Vec<Binary>, BTreeMap<usize, String>), String> {
        let mut left_out: BTreeMap<usize, String> = BTreeMap::new();
        // What the compiler refuses is found before anything is made of the rest.
        let mut goal = Goal::Check;
        loop {
            let planted: Vec<&Mutant> = mutants.iter().filter(|m| !left_out.contains_key(&m.id)).collect();
            let places = self.plant(&planted)?;
            let messages = match compile(goal, mutants, &self.place, &self.target)? {
                Ok(_) if goal == Goal::Check => {
                    goal = Goal::Tests;
                    continue;
                }
                Ok(binaries) => return Ok((binaries, left_out)),
                Err(messages) => messages,
            };
            let before = left_out.len();
            let is_error = |m: &&Value| m["reason"] == "compiler-message" && m["message"]["level"] == "error";
            for error in messages.iter().filter(is_error).map(|message| &message["message"]) {
                for id in blamed(error, &places) {
                    left_out.entry(id).or_insert_with(|| error["message"].as_str().unwrap_or_default().to_owned());
                }
            }
            if left_out.len() == before {
                return Err("the planted tree does not build".to_owned());
            }
            println!("{} mutants do not compile; once more without them", left_out.len());
        }
    }

    /// Writes the tree, with switches in the files that have mutants and in the roots of their crates. Unchanged files
    /// keep their modification time, so that cargo rebuilds only what changed.
    fn plant(&self, mutants: &[&Mutant]) -> Result<Places, String> {
        if let Some(lost) = mutants.iter().find(|m| !self.files.contains_key(&m.file)) {
            return Err(format!("mutant {}: there is no {}", lost.id, lost.file));
        }
        let size = mutants.iter().map(|m| m.id).max().unwrap_or(0) + 1;
        let switch = SWITCH.replace("SIZE", &size.to_string());
        let mut places = Places::new();
        for (file, bytes) in &self.files {
            let mut bytes = bytes.clone();
            let own: Vec<&Mutant> = mutants.iter().copied().filter(|m| m.file == *file).collect();
            if !own.is_empty() {
                let source = String::from_utf8_lossy(&bytes);
                let planted = list::plant(&source, &own).map_err(|e| format!("{file}: {e}"))?;
                bytes = planted.text.into_bytes();
                places.insert(file.clone(), planted.places);
            }
            let source = file.strip_suffix("lib.rs").or(file.strip_suffix("main.rs")).filter(|s| s.ends_with("/src/"));
            if source.is_some_and(|source| mutants.iter().any(|m| m.file.starts_with(source))) {
                bytes.extend_from_slice(switch.as_bytes());
            }
            write(&self.place.join(file), &bytes)?;
        }
        let mut open = vec![self.place.join("crates")];
        while let Some(directory) = open.pop() {
            for path in fs::read_dir(&directory).into_iter().flatten().flatten().map(|entry| entry.path()) {
                let own = path.strip_prefix(&self.place).unwrap_or(&path).to_string_lossy().into_owned();
                if path.is_dir() {
                    open.push(path);
                } else if !self.files.contains_key(&own) {
                    fs::remove_file(&path).map_err(|e| format!("{}: {e}", path.display()))?;
                }
            }
        }
        Ok(places)
    }
}

/// What the compiler is run for.
#[derive(Clone, Copy, PartialEq)]
pub enum Goal {
    /// To check that the crates compile.
    Check,
    /// To build their tests.
    Tests,
}

/// Builds the tests of the crates that have mutants, of `lockstep` and of the program. If that fails, returns the
/// compiler's errors.
pub fn compile(
    goal: Goal,
    mutants: &[Mutant],
    tree: &Path,
    target: &Path,
) -> Result<Result<Vec<Binary>, Vec<Value>>, String> {
    let mut crates: Vec<&str> = mutants.iter().filter_map(|m| m.file.split('/').nth(1)).collect();
    crates.extend(["lockstep", "cli"]);
    crates.sort_unstable();
    crates.dedup();
    let mut command = crate::cargo();
    command.args(match goal {
        Goal::Check => &["check"][..],
        Goal::Tests => &["build", "--tests"],
    });
    command.args(["--keep-going", "--message-format=json", "--config=profile.dev.debug=0"]);
    // Code behind a feature has mutants, too.
    command.args(["--features", "lockstep-cli/nats"]);
    for name in crates {
        command.args(["-p", &format!("lockstep-{}", if name == "lockstep" { "rl" } else { name })]);
    }
    command.current_dir(tree).env("CARGO_TARGET_DIR", target).env("CARGO_INCREMENTAL", "0");
    let output = command.stderr(Stdio::inherit()).output().map_err(|e| format!("cargo: {e}"))?;
    let messages = output.stdout.lines().map_while(Result::ok).filter_map(|line| serde_json::from_str(&line).ok());
    let messages: Vec<Value> = messages.collect();
    Ok(if output.status.success() { Ok(messages.iter().filter_map(binary).collect()) } else { Err(messages) })
}

/// The mutants that a compiler error concerns: those at the places it names, else the nearest one.
fn blamed(error: &Value, places: &Places) -> BTreeSet<usize> {
    // What a macro wrote has the place of its call as well.
    let written = |span| std::iter::successors(Some(span), |span: &&Value| span.pointer("/expansion/span"));
    let spans = error["spans"].as_array().into_iter().flatten().flat_map(written);
    let spans = spans.filter_map(|span| {
        let number = |name: &str| span[name].as_u64().and_then(|n| usize::try_from(n).ok());
        Some((span["file_name"].as_str()?, number("byte_start")?..number("byte_end")?))
    });
    let mut found = BTreeSet::new();
    let mut nearest: Option<(usize, usize)> = None;
    for (file, span) in spans {
        for (id, place) in places.get(file).into_iter().flatten() {
            if place.start <= span.start && span.end <= place.end {
                found.insert(*id);
            }
            let distance = place.start.abs_diff(span.start);
            if nearest.is_none_or(|(_, least)| distance < least) {
                nearest = Some((*id, distance));
            }
        }
    }
    if found.is_empty() {
        found.extend(nearest.map(|(id, _)| id));
    }
    found
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    if fs::read(path).is_ok_and(|before| before == bytes) {
        return Ok(());
    }
    let written = fs::create_dir_all(path.parent().unwrap_or(path)).and_then(|()| fs::write(path, bytes));
    written.map_err(|e| format!("{}: {e}", path.display()))
}

/// The test binary that a JSON message of cargo describes, if it describes one.
fn binary(message: &Value) -> Option<Binary> {
    let path = message["executable"].as_str().filter(|_| message["profile"]["test"] == true)?;
    let directory = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let package = match directory.file_name()?.to_str()? {
        "lockstep" => "lockstep".to_owned(),
        name => format!("lockstep-{name}"),
    };
    let target = message["target"]["name"].as_str()?;
    let name = match message["target"]["kind"][0].as_str()? {
        "test" => format!("{package} {target}"),
        "lib" => package,
        _ => return None,
    };
    Some(Binary { name, path: path.into(), directory })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_error_is_blamed_on_the_mutants_at_its_places_else_on_the_nearest() {
        let places = Places::from([("a.rs".to_owned(), vec![(1, 10..20), (2, 40..60)])]);
        let at = |places: &[(u64, u64)]| {
            let span = |(start, end): &(u64, u64)| json!({"file_name": "a.rs", "byte_start": start, "byte_end": end});
            json!({"spans": places.iter().map(span).collect::<Vec<_>>()})
        };
        let blamed = |error: Value| blamed(&error, &places).into_iter().collect::<Vec<_>>();
        assert_eq!(blamed(at(&[(12, 13)])), [1]);
        assert_eq!(blamed(at(&[(30, 31), (41, 60), (12, 13)])), [1, 2]);
        assert_eq!(blamed(at(&[(5, 70)])), [1]);
        assert_eq!(blamed(json!({"spans": []})), [0usize; 0]);
        let call = json!({"file_name": "a.rs", "byte_start": 41, "byte_end": 50});
        let in_macro = json!({"file_name": "macros.rs", "byte_start": 3, "byte_end": 9, "expansion": {"span": call}});
        assert_eq!(blamed(json!({"spans": [in_macro]})), [2]);
    }
}
