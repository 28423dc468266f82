//! How long a file and a line of Rust may be. Formatting leaves strings and comments as they are; this does not.

use std::path::{Path, PathBuf};

/// A file that does not fit on a dozen screens does two things.
const MOST_LINES: usize = 520;
/// rustfmt's `max_width`.
const MOST_COLUMNS: usize = 120;

pub fn check() -> Result<(), String> {
    let mut wrong = Vec::new();
    for top in ["crates", "python", "xtask"] {
        look(Path::new(top), &mut wrong).map_err(|e| format!("{top}: {e}"))?;
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(wrong.join("\n")),
    }
}

/// Everything below `directory` but build outputs, in the order of names.
fn look(directory: &Path, wrong: &mut Vec<String>) -> std::io::Result<()> {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    entries.sort();
    for path in entries {
        if path.is_dir() {
            if !path.ends_with("target") {
                look(&path, wrong)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs" || extension == "py") {
            of_file(&path.display().to_string(), &std::fs::read_to_string(&path)?, wrong);
        }
    }
    Ok(())
}

fn of_file(name: &str, text: &str, wrong: &mut Vec<String>) {
    let lines = text.lines().count();
    if lines > MOST_LINES {
        wrong.push(format!(
            "{name}: {lines} lines, {MOST_LINES} are allowed: give one of its purposes a file of its own"
        ));
    }
    for (i, line) in text.lines().enumerate() {
        let columns = line.chars().count();
        if columns > MOST_COLUMNS && !is_table_row(line) {
            wrong.push(format!("{name}:{}: {columns} columns, {MOST_COLUMNS} are allowed", i + 1));
        }
    }
}

/// A row of a Markdown table in a comment, which cannot be broken.
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
    fn columns_are_characters_and_rows_of_tables_are_free() {
        let fits = format!("let a = \"{}\";", "·".repeat(109));
        assert_eq!(fits.chars().count(), 120);
        assert_eq!(wrong(&fits), [""; 0]);
        assert_eq!(wrong(&format!("//\n{fits} ")), ["a.rs:2: 121 columns, 120 are allowed"]);
        assert_eq!(wrong(&format!("    /// |{}|", "-".repeat(200))), [""; 0]);
        assert_eq!(wrong(&format!("    /// {}|", "-".repeat(200))).len(), 1);
    }

    #[test]
    fn lines_are_counted() {
        assert_eq!(wrong(&"\n".repeat(520)), [""; 0]);
        assert_eq!(wrong(&"\n".repeat(521)).len(), 1);
    }
}
