//! Counts four sentence patterns that CONTRIBUTING.md rewrites, crate by crate. `xtask/grammar.txt` has the limit of
//! each crate. If a crate is below its limit, the check lowers the limit, and the file is committed.

use crate::sources;
use std::collections::BTreeMap;
use std::fs;

/// The committed file: each line has a crate and its counts, in the order of [`PATTERNS`].
const BUDGET: &str = "xtask/grammar.txt";
const HEAD: &str = "# How often each pattern of CONTRIBUTING.md, \"Sentences\", may occur. A number only falls: \
    `cargo xtask check words` lowers it.\n";

/// A pattern: its name, the replacement, and a function that counts its occurrences in a line.
struct Pattern {
    name: &'static str,
    instead: &'static str,
    count: fn(&str) -> usize,
}

const PATTERNS: [Pattern; 4] = [
    Pattern { name: "what", instead: "a noun for the clause: `Rejected tokens are dropped`", count: what },
    Pattern { name: "is_no", instead: "`is not a …`", count: is_no },
    Pattern {
        name: "said",
        instead: "log, print, report, return or raise",
        count: |line| words(line, |w| w == "said"),
    },
    Pattern { name: "of_", instead: "the noun: `group_steps`, `by_name`", count: |line| names(line, "of_") },
];

/// Counts sentences in a comment or string that start with a clause: `What the run did is kept.`
fn what(line: &str) -> usize {
    let is_prose = line.trim_start().starts_with("//") || line.contains('"');
    let starts = |at: usize| {
        let before = line[..at].trim_end();
        before.is_empty() || before.ends_with(['/', '!', '"', '.', ':', ';', '(', '|', '#'])
    };
    let is_clause = |at: usize| line[at + "What ".len()..].starts_with(|c: char| c.is_ascii_lowercase() || c == '`');
    let found = line.match_indices("What ").filter(|&(at, _)| starts(at) && is_clause(at)).count();
    if is_prose && !line.contains('?') { found } else { 0 }
}

/// Counts "is no …". "There is no …" and "is no longer …" are idiomatic.
fn is_no(line: &str) -> usize {
    let all: Vec<&str> = line.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let counts = |at: usize| {
        let follows = |word: &str| at > 0 && all[at - 1].eq_ignore_ascii_case(word);
        let is_verb = ["is", "are", "was", "were"].contains(&all[at]);
        is_verb && all[at + 1] == "no" && all.get(at + 2) != Some(&"longer") && !follows("there")
    };
    (0..all.len().saturating_sub(1)).filter(|&at| counts(at)).count()
}

/// Counts words in prose and parts of identifiers.
fn words(line: &str, is: impl Fn(&str) -> bool) -> usize {
    line.split(|c: char| !c.is_alphanumeric()).filter(|word| is(word)).count()
}

/// Counts identifiers that start with a preposition.
fn names(line: &str, start: &str) -> usize {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    line.split(|c| !is_name(c)).filter(|name| name.starts_with(start) && name.len() > start.len()).count()
}

type Counts = [usize; PATTERNS.len()];

/// The counts of each crate, and of `xtask` and `python`.
fn counted() -> Result<BTreeMap<String, Counts>, String> {
    let mut all: BTreeMap<String, Counts> = BTreeMap::new();
    for folder in ["crates", "xtask", "python/src"] {
        for path in sources::below(folder)? {
            // This file contains the patterns as data.
            if !sources::is_one_of(&path, &["rs"]) || path.ends_with("xtask/src/grammar.rs") {
                continue;
            }
            let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
            let name = if folder == "crates" { &parts[1] } else { &parts[0] };
            let counts = all.entry(name.to_string()).or_default();
            for (count, pattern) in counts.iter_mut().zip(&PATTERNS) {
                *count += text.lines().map(pattern.count).sum::<usize>();
            }
        }
    }
    Ok(all)
}

fn read(text: &str) -> Result<BTreeMap<String, Counts>, String> {
    let row = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.next()?.to_owned();
        let counts: Option<Vec<usize>> = words.map(|word| word.parse().ok()).collect();
        Some((name, counts?.try_into().ok()?))
    };
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| row(line).ok_or_else(|| format!("{BUDGET}: {line:?}: expected a crate and four numbers")))
        .collect()
}

/// The new lines of the file: a limit never rises.
fn lowered(found: &BTreeMap<String, Counts>, budget: &BTreeMap<String, Counts>) -> String {
    let mut text = format!("{HEAD}# crate {}\n", PATTERNS.map(|pattern| pattern.name).join(" "));
    for (name, counts) in found {
        let most = budget.get(name).unwrap_or(counts);
        let row: Vec<String> = counts.iter().zip(most).map(|(own, most)| own.min(most).to_string()).collect();
        text += &format!("{name} {}\n", row.join(" "));
    }
    text
}

/// The counts above their limits, one line each.
fn above(found: &BTreeMap<String, Counts>, budget: &BTreeMap<String, Counts>) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, counts) in found {
        // A new crate has the limit 0.
        let most = budget.get(name).copied().unwrap_or_default();
        for ((pattern, own), most) in PATTERNS.iter().zip(counts).zip(most) {
            if *own > most {
                let Pattern { name: of, instead, .. } = pattern;
                lines.push(format!("{name}: {own} times `{of}`, limit {most}; write {instead}"));
            }
        }
    }
    lines
}

pub fn check() -> Result<(), String> {
    let text = fs::read_to_string(BUDGET).map_err(|e| format!("{BUDGET}: {e}"))?;
    let (found, budget) = (counted()?, read(&text)?);
    let wrong = above(&found, &budget);
    if !wrong.is_empty() {
        return Err(format!(
            "sentence patterns above the limit (CONTRIBUTING.md, \"Sentences\"):\n{}",
            wrong.join("\n")
        ));
    }
    let lower = lowered(&found, &budget);
    if lower != text {
        fs::write(BUDGET, lower).map_err(|e| format!("{BUDGET}: {e}"))?;
        println!("{BUDGET} has lower numbers now: commit it");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of occurrences of each pattern in a line.
    fn counts(line: &str) -> Counts {
        PATTERNS.map(|pattern| (pattern.count)(line))
    }

    #[test]
    fn patterns_are_counted_in_prose_and_identifiers() {
        for (line, expected) in [
            ("/// What a run wrote is kept.", [1, 0, 0, 0]),
            ("    // It stays. What is drawn after it is dropped.", [1, 0, 0, 0]),
            ("    bail!(\"What was asked is not there\")", [1, 0, 0, 0]),
            ("/// What is the loss?", [0; 4]),
            ("/// What Bradley-Terry models assume.", [0; 4]),
            ("let What = 1;", [0; 4]),
            ("/// A row that is no number, and rows that were no objects.", [0, 2, 0, 0]),
            ("/// There is nothing, and no row is read.", [0; 4]),
            ("/// There is no row, and the file is no longer read.", [0; 4]),
            ("let said = run(); assert!(said.contains(\"x\"), \"{said}\"); // is_said", [0, 0, 4, 0]),
            ("let of_step = steps_of(of_name, of, prof_of_x);", [0, 0, 0, 2]),
        ] {
            assert_eq!(counts(line), expected, "{line}");
        }
    }

    #[test]
    fn limits_only_fall() {
        let rows = |text: &str| read(text).unwrap();
        let budget = rows("# crate\na 3 2 1 0\nb 1 1 1 1\n");
        assert_eq!(above(&rows("a 3 2 1 0\nb 0 1 1 1\n"), &budget), [""; 0]);
        let wrong = above(&rows("a 4 2 1 0\nb 1 1 1 1\nc 0 0 1 0\n"), &budget);
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(wrong[0].starts_with("a: 4 times `what`, limit 3"), "{wrong:?}");
        assert!(wrong[1].starts_with("c: 1 times `said`, limit 0"), "{wrong:?}");
        assert!(lowered(&rows("a 3 1 2 0\n"), &budget).ends_with("\na 3 1 1 0\n"));
        assert!(read("a 1 2 3\n").is_err() && read("a 1 2 3 x\n").is_err());
    }
}
