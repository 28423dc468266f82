//! Prints ten headers, ten doc comments and ten paragraphs of documents, drawn by a seed, to be read by somebody who
//! knows PyTorch and Rust but not this project. Texts that such a reader cannot paraphrase without opening another file
//! should be rewritten.

use crate::sources;
use std::path::PathBuf;

const EACH: usize = 10;
/// Files that are not drawn from: generated tables and lists, and diaries.
const NOT_READ: [&str; 6] = [
    "docs/SUMMARY.md",
    "docs/config.md",
    "docs/log",
    "docs/python/api.md",
    "docs/python/fields.md",
    "docs/python/trl-suite.md",
];

pub fn run(arguments: &[&str]) -> Result<(), String> {
    let [seed] = arguments else { return Err("cargo xtask read SEED".into()) };
    let mut seed: u64 = seed.parse().map_err(|_| format!("the seed {seed} is not a number"))?;
    let (mut headers, mut comments, mut paragraphs) = (Vec::new(), Vec::new(), Vec::new());
    for path in files()? {
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let name = path.display().to_string();
        if name.ends_with(".rs") {
            headers.extend(blocks(&text, "//!").into_iter().take(1).map(|(line, text)| (name.clone(), line, text)));
            comments.extend(blocks(&text, "///").into_iter().map(|(line, text)| (name.clone(), line, text)));
        } else {
            paragraphs.extend(prose(&text).into_iter().map(|(line, text)| (name.clone(), line, text)));
        }
    }
    for (what, all) in [("headers", headers), ("doc comments", comments), ("paragraphs", paragraphs)] {
        println!("── {EACH} of {} {what}", all.len());
        for (name, line, text) in drawn(all, &mut seed) {
            println!("\n{name}:{line}\n{text}");
        }
        println!();
    }
    Ok(())
}

/// The paths of all sources except tests, and of documents, sorted.
fn files() -> Result<Vec<PathBuf>, String> {
    let mut found: Vec<PathBuf> = ["README.md", "CONTRIBUTING.md"].map(PathBuf::from).to_vec();
    for folder in ["crates", "docs", "xtask/src"] {
        found.extend(sources::below(folder)?);
    }
    found.retain(|path| {
        let is_test = path.iter().any(|part| ["tests", "tests.rs"].iter().any(|test| part == *test))
            || path.to_string_lossy().ends_with("_tests.rs");
        sources::is_one_of(path, &["rs", "md"]) && !is_test && !NOT_READ.iter().any(|one| path.starts_with(one))
    });
    found.sort();
    Ok(found)
}

/// Comment blocks whose lines begin with `mark`, each with the number of its first line.
fn blocks(text: &str, mark: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut last = 0;
    for (i, line) in text.lines().enumerate().map(|(i, line)| (i + 1, line.trim_start())) {
        let Some(line) = line.strip_prefix(mark) else { continue };
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

/// Draws `EACH` items without repetition (SplitMix64).
fn drawn<T>(mut all: Vec<T>, seed: &mut u64) -> Vec<T> {
    let mut next = || {
        *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (*seed ^ *seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    };
    (0..EACH.min(all.len())).map(|_| all.swap_remove((next() % all.len() as u64) as usize)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_paragraphs_are_whole() {
        let text = "//! A\n//! B\n\n/// C\nfn c() {}\n    /// D\n    /// E\n";
        assert_eq!(blocks(text, "//!"), [(1, " A\n B".to_owned())]);
        assert_eq!(blocks(text, "///"), [(4, " C".to_owned()), (6, " D\n E".to_owned())]);
        let long = "word ".repeat(20);
        let found = prose(&format!("# T\n{long}\n{long}\n\n| {long} |\n- {long}\n- {long}\n```\n{long}\n```\n"));
        assert_eq!(found.iter().map(|one| one.0).collect::<Vec<_>>(), [2, 6, 7]);
    }

    #[test]
    fn a_seed_draws_the_same_again_and_none_twice() {
        let draw = |mut seed| drawn((0..40).collect(), &mut seed);
        let mut one = draw(7);
        assert!(one == draw(7) && one != draw(8));
        one.sort_unstable();
        one.dedup();
        assert_eq!(one.len(), EACH);
    }
}
