//! Checks the length of files and lines of Rust and Python, and of prose lines in the documents. Formatters do not
//! break strings and comments, so they need this check. The code on the path of one prompt through a training step also
//! has a limit on its total length, so that a reader can follow this path in an evening.

use crate::sources;

/// Maximum number of lines of a file. A longer file usually has two purposes.
const MOST_LINES: usize = 520;
/// Maximum number of columns of a line, as rustfmt's `max_width`.
const MOST_COLUMNS: usize = 120;
/// Documents outside of the checked folders.
const PAGES: [&str; 3] = ["README.md", "CONTRIBUTING.md", "SECURITY.md"];
/// Files that are not checked: generated files, and one in a format that requires titles on one line.
const NOT_WRITTEN: [&str; 4] =
    ["docs/SUMMARY.md", "docs/python/api.md", "docs/python/fields.md", "docs/python/trl-suite.md"];

/// The page with a diagram of a prompt's path through a step, which names the file for each stage.
const WALK: &str = "docs/architecture.md";
const WALK_HEADING: &str = "## One prompt through a step";
/// Maximum total number of lines in these files. A commit may raise it by up to 5 % and must give the reason.
const MOST_WALKED: usize = 4900;

pub fn check() -> Result<(), String> {
    let mut wrong = Vec::new();
    of_walk(&std::fs::read_to_string(WALK).map_err(|e| format!("{WALK}: {e}"))?, &mut wrong);
    for page in PAGES {
        of_page(page, &std::fs::read_to_string(page).map_err(|e| format!("{page}: {e}"))?, &mut wrong);
    }
    for top in ["crates", "docs", "python", "xtask"] {
        for path in sources::below(top)? {
            let is_code = sources::is_one_of(&path, &["rs", "py"]);
            if is_code || sources::is_one_of(&path, &["md"]) {
                let of = if is_code { of_file } else { of_page };
                let name = path.display().to_string();
                of(&name, &std::fs::read_to_string(&path).map_err(|e| format!("{name}: {e}"))?, &mut wrong);
            }
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// Counts the lines of the files that the section names, below `crates/`.
fn of_walk(page: &str, wrong: &mut Vec<String>) {
    let files = walked(page);
    if files.is_empty() {
        wrong.push(format!("{WALK}: the section \"{WALK_HEADING}\" names no files"));
    }
    let mut lines = 0;
    for file in files {
        match std::fs::read_to_string(&file) {
            Ok(text) => lines += text.lines().count(),
            Err(error) => wrong.push(format!("{WALK}: {file}: {error}")),
        }
    }
    if lines > MOST_WALKED {
        wrong.push(format!(
            "the files of the diagram in {WALK} have {lines} lines, at most {MOST_WALKED} are allowed: move code that \
             a reader of the step does not need"
        ));
    }
}

/// The Rust files that the section names, without duplicates.
fn walked(page: &str) -> Vec<String> {
    let section = page.split_once(WALK_HEADING).map_or("", |(_, rest)| rest);
    let section = section.split("\n## ").next().unwrap_or_default();
    let words = section.split([' ', ',', ':', '`', '(', ')', '\n']);
    let files = words.filter(|word| word.contains("/src/") && word.ends_with(".rs"));
    let mut files: Vec<String> = files.map(|word| format!("crates/{}", word.trim_start_matches("crates/"))).collect();
    files.sort();
    files.dedup();
    files
}

fn of_file(name: &str, text: &str, wrong: &mut Vec<String>) {
    let lines = text.lines().count();
    if lines > MOST_LINES {
        wrong.push(format!("{name}: {lines} lines, at most {MOST_LINES} are allowed: split the file by purpose"));
    }
    for (i, line) in text.lines().enumerate() {
        let columns = line.chars().count();
        if columns > MOST_COLUMNS && !is_table_row(line) {
            wrong.push(format!("{name}:{}: {columns} columns, at most {MOST_COLUMNS} are allowed", i + 1));
        }
    }
}

/// Checks the prose of a page. Tables, headings, code, and lines without a blank at which they could be broken, are
/// exempt.
fn of_page(name: &str, text: &str, wrong: &mut Vec<String>) {
    if NOT_WRITTEN.contains(&name) {
        return;
    }
    let mut in_fence = false;
    for (i, line) in text.lines().enumerate() {
        let start = line.trim_start();
        in_fence ^= start.starts_with("```");
        let columns = line.chars().count();
        let free = in_fence || start.starts_with(['|', '#']) || start.starts_with("```");
        if columns > MOST_COLUMNS && !free && breaks(line) {
            wrong.push(format!("{name}:{}: {columns} columns of prose, at most {MOST_COLUMNS} are allowed", i + 1));
        }
    }
}

/// Whether a line has a blank, outside of code and after its first word, at which it could be broken.
fn breaks(line: &str) -> bool {
    let (mut in_code, mut in_word) = (false, false);
    line.chars().take(MOST_COLUMNS + 1).any(|c| {
        in_code ^= c == '`';
        let ends = c == ' ' && in_word && !in_code;
        in_word |= c.is_alphanumeric() || c == '`';
        ends
    })
}

/// Whether a line is a row of a Markdown table in a comment, which cannot be broken.
fn is_table_row(line: &str) -> bool {
    let line = line.trim_start();
    ["//! |", "/// |", "// |"].iter().any(|start| line.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> Vec<String> {
        let mut wrong = Vec::new();
        of_file("a.rs", text, &mut wrong);
        wrong
    }

    #[test]
    fn the_walked_files_are_those_named_in_the_section() {
        let page = "## A\n`crates/a/src/x.rs`\n## One prompt through a step\n```\n row   b/src/y.rs   f\n  b/src/z.rs, \
                    b/src/y.rs: where\n c/src/folder/\n```\nand `crates/d/src/w.rs`.\n## B\n`crates/e/src/v.rs`\n";
        assert_eq!(walked(page), ["crates/b/src/y.rs", "crates/b/src/z.rs", "crates/d/src/w.rs"]);
        let mut wrong = Vec::new();
        of_walk(page, &mut wrong);
        assert_eq!(wrong.len(), 3, "every missing file must be reported: {wrong:?}");
        of_walk("## One prompt", &mut wrong);
        assert!(wrong[3].contains("no files"), "{wrong:?}");
    }

    #[test]
    fn columns_count_characters_and_table_rows_are_exempt() {
        let fits = format!("let a = \"{}\";", "·".repeat(109));
        assert_eq!(fits.chars().count(), 120);
        assert_eq!(wrong(&fits), [""; 0]);
        assert_eq!(wrong(&format!("//\n{fits} ")), ["a.rs:2: 121 columns, at most 120 are allowed"]);
        assert_eq!(wrong(&format!("    /// |{}|", "-".repeat(200))), [""; 0]);
        assert_eq!(wrong(&format!("    /// {}|", "-".repeat(200))).len(), 1);
    }

    #[test]
    fn long_prose_lines_of_documents_are_reported() {
        let prose = |line: &str| {
            let mut wrong = Vec::new();
            of_page("docs/a.md", line, &mut wrong);
            wrong.len()
        };
        let long = "word ".repeat(25);
        assert_eq!(prose(&long), 1);
        assert_eq!(prose(&format!("- {long}")), 1);
        assert_eq!(prose(&"word ".repeat(24)), 0);
        assert_eq!(prose(&format!("| {long} |")), 0);
        assert_eq!(prose(&format!("```\n{long}\n```")), 0);
        assert_eq!(prose(&format!("  `{long}` (nowhere to break)")), 0);
    }

    #[test]
    fn files_with_too_many_lines_are_reported() {
        assert_eq!(wrong(&"\n".repeat(520)), [""; 0]);
        assert_eq!(wrong(&"\n".repeat(521)).len(), 1);
    }
}
