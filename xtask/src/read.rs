//! Prints random texts of the repository, drawn by a seed: docs, comments, messages, comments and names of tests,
//! commit headlines. The intended reader knows PyTorch and Rust but not this project. If this reader cannot paraphrase
//! a text without opening another file, the text should be rewritten.

use crate::sources;
use proc_macro2::{TokenStream, TokenTree};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Excluded files: generated tables and lists, and logs of past work.
const NOT_READ: [&str; 6] = [
    "docs/SUMMARY.md",
    "docs/config.md",
    "docs/log",
    "docs/python/api.md",
    "docs/python/fields.md",
    "docs/python/trl-suite.md",
];
/// The number of newest headlines to draw from.
const HEADLINES: &str = "-200";

/// A text with its location: file and line, or commit.
type Text = (String, String);

#[derive(Default)]
struct Texts {
    docs: Vec<Text>,
    comments: Vec<Text>,
    messages: Vec<Text>,
    test_comments: Vec<Text>,
    test_names: Vec<Text>,
}

pub fn run(arguments: &[&str]) -> Result<(), String> {
    let [seed] = arguments else { return Err("usage: cargo xtask read SEED".into()) };
    let mut seed: u64 = seed.parse().map_err(|_| format!("the seed must be a number, got {seed}"))?;
    let mut texts = Texts::default();
    for path in files()? {
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        texts.add(&path, &text);
    }
    let log = Command::new("git").args(["log", "--no-merges", HEADLINES, "--format=%h %s"]).output();
    let log = log.map_err(|e| format!("git log: {e}"))?.stdout;
    let headlines = String::from_utf8_lossy(&log).lines().filter_map(split_once).collect();
    for (name, count, all) in [
        ("docs: headers, doc comments, paragraphs", 10, texts.docs),
        ("comments", 10, texts.comments),
        ("messages", 10, texts.messages),
        ("comments of tests", 4, texts.test_comments),
        ("headlines", 6, headlines),
        ("names of tests", 10, texts.test_names),
    ] {
        println!("── {count} of {} {name}", all.len());
        for (place, text) in drawn(all, count, &mut seed) {
            println!("\n{place}\n{text}");
        }
        println!();
    }
    Ok(())
}

fn split_once(line: &str) -> Option<Text> {
    line.split_once(' ').map(|(commit, headline)| (commit.to_owned(), headline.to_owned()))
}

impl Texts {
    fn add(&mut self, path: &Path, text: &str) {
        let at = |(line, text): (usize, String)| (format!("{}:{line}", path.display()), text);
        if !sources::is_one_of(path, &["rs"]) {
            return self.docs.extend(prose(text).into_iter().map(at));
        }
        // Within a file, tests follow the code.
        let tests = text.lines().position(|line| line.trim() == "#[cfg(test)]").filter(|_| !is_test(path));
        let from = if is_test(path) { 0 } else { tests.unwrap_or(usize::MAX) };
        let (comments, mine): (Vec<_>, Vec<_>) = blocks(text, "//").into_iter().partition(|(line, _)| *line <= from);
        self.comments.extend(comments.into_iter().map(at));
        self.test_comments.extend(mine.into_iter().map(at));
        let docs = [blocks(text, "//!"), blocks(text, "///")].concat();
        self.docs.extend(docs.into_iter().filter(|(line, _)| *line <= from).map(at));
        if let Ok(tokens) = text.parse::<TokenStream>() {
            let mut found = Vec::new();
            strings(tokens, &mut found);
            self.messages.extend(found.into_iter().filter(|(line, _)| *line <= from).map(at));
        }
        let lines: Vec<&str> = text.lines().collect();
        for (i, _) in lines.iter().enumerate().filter(|(_, line)| line.trim() == "#[test]") {
            let next = lines[i + 1..].iter().enumerate().find(|(_, line)| line.contains("fn "));
            let name =
                next.and_then(|(n, line)| Some((i + 2 + n, line.split("fn ").nth(1)?.split('(').next()?.to_owned())));
            self.test_names.extend(name.map(at));
        }
    }
}

fn is_test(path: &Path) -> bool {
    path.iter().any(|part| ["tests", "tests.rs"].iter().any(|test| part == *test))
        || path.to_string_lossy().ends_with("_tests.rs")
}

/// String literals with at least four words, also inside macros, each with its line.
fn strings(tokens: TokenStream, found: &mut Vec<(usize, String)>) {
    for token in tokens {
        match token {
            // An attribute or doc comment is a group after a `#`; doc comments are collected separately.
            TokenTree::Group(group) if !group.stream().to_string().starts_with("doc =") => {
                strings(group.stream(), found)
            }
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                let words = text.split_whitespace().filter(|word| word.chars().any(char::is_alphabetic)).count();
                if text.starts_with('"') && words >= 4 {
                    found.push((literal.span().start().line, text));
                }
            }
            _ => {}
        }
    }
}

/// The paths of all source files and documents, sorted.
fn files() -> Result<Vec<PathBuf>, String> {
    let mut found: Vec<PathBuf> = ["README.md", "CONTRIBUTING.md"].map(PathBuf::from).to_vec();
    for folder in ["crates", "docs", "xtask/src"] {
        found.extend(sources::below(folder)?);
    }
    found.retain(|path| sources::is_one_of(path, &["rs", "md"]) && !NOT_READ.iter().any(|one| path.starts_with(one)));
    found.sort();
    Ok(found)
}

/// Blocks of comment lines that start with `mark`, each with the number of its first line.
fn blocks(text: &str, mark: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut last = 0;
    for (i, line) in text.lines().enumerate().map(|(i, line)| (i + 1, line.trim_start())) {
        let Some(line) = line.strip_prefix(mark).filter(|rest| mark != "//" || !rest.starts_with(['/', '!'])) else {
            continue;
        };
        match found.last_mut().filter(|_| last + 1 == i && last > 0) {
            Some((_, block)) => *block += &format!("\n{line}"),
            None => found.push((i, line.to_owned())),
        }
        last = i;
    }
    found
}

/// The paragraphs and list items of a page, each with its line number.
fn prose(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let (mut in_fence, mut open) = (false, false);
    for (i, line) in text.lines().enumerate() {
        in_fence ^= line.trim_start().starts_with("```");
        let is_prose = !in_fence
            && !line.trim().is_empty()
            && !line.trim_start().starts_with(['|', '#', '<', '!'])
            && !line.trim_start().starts_with("```");
        let is_item = line.trim_start().starts_with("- ");
        match found.last_mut().filter(|_| is_prose && open && !is_item) {
            Some((_, block)) => *block += &format!("\n{line}"),
            None if is_prose => found.push((i + 1, line.to_owned())),
            None => {}
        }
        open = is_prose;
    }
    found.retain(|(_, block)| block.len() > 80);
    found
}

/// Draws `count` items without replacement (SplitMix64).
fn drawn<T>(mut all: Vec<T>, count: usize, seed: &mut u64) -> Vec<T> {
    let mut next = || {
        *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (*seed ^ *seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    };
    (0..count.min(all.len())).map(|_| all.swap_remove((next() % all.len() as u64) as usize)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_paragraphs_are_extracted_whole() {
        let text = "//! A\n//! B\n\n/// C\nfn c() {}\n    /// D\n    /// E\n";
        assert_eq!(blocks(text, "//!"), [(1, " A\n B".to_owned())]);
        assert_eq!(blocks(text, "///"), [(4, " C".to_owned()), (6, " D\n E".to_owned())]);
        let long = "word ".repeat(20);
        let found = prose(&format!("# T\n{long}\n{long}\n\n| {long} |\n- {long}\n- {long}\n```\n{long}\n```\n"));
        assert_eq!(found.iter().map(|one| one.0).collect::<Vec<_>>(), [2, 6, 7]);
    }

    #[test]
    fn texts_are_sorted_by_kind() {
        let code = "/// Doc.\nfn a() {\n    // Why.\n    bail!(\"the file {} is not there\", x)\n}\n#[cfg(test)]\n\
            mod tests {\n    // Fact.\n    #[test]\n    fn a_is_b() {\n        \
            f(\"a text of four words\");\n    }\n}\n";
        let mut texts = Texts::default();
        texts.add(Path::new("a.rs"), code);
        let only = |texts: &[Text]| texts.iter().map(|(_, text)| text.trim().to_owned()).collect::<Vec<_>>();
        assert_eq!(only(&texts.docs), ["Doc."]);
        assert_eq!(only(&texts.comments), ["Why."]);
        assert_eq!(only(&texts.messages), ["\"the file {} is not there\""]);
        assert_eq!(only(&texts.test_comments), ["Fact."]);
        assert_eq!(texts.test_names, [("a.rs:10".to_owned(), "a_is_b".to_owned())]);
        let mut tests = Texts::default();
        tests.add(Path::new("crates/a/tests/it.rs"), code);
        assert_eq!((tests.comments.len(), tests.test_comments.len(), tests.messages.len()), (0, 2, 0));
    }

    #[test]
    fn a_seed_repeats_its_draw_without_duplicates() {
        let draw = |mut seed| drawn((0..40).collect(), 10, &mut seed);
        let mut one = draw(7);
        assert!(one == draw(7) && one != draw(8));
        one.sort_unstable();
        one.dedup();
        assert_eq!(one.len(), 10);
    }
}
