//! Aligned text tables, for summaries and sample completions. This file does not depend on terminals or colours.
//!
//! Widths are counted in characters; wide (East Asian) and combining characters count as one.

use crate::visible;
use serde_json::Value;

/// The alignment of a column's cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// To the left, for text.
    Left,
    /// To the right, for numbers.
    Right,
}

/// A text table: a header, rows of text, and an alignment for each column.
#[derive(Clone, Debug)]
pub struct Table {
    headers: Vec<String>,
    aligns: Vec<Align>,
    rows: Vec<Vec<String>>,
}

/// Spaces between two columns.
const GAP: usize = 2;
/// The minimum width of a wrapped text column, even on a narrower terminal.
const MIN_COLUMN: usize = 12;

impl Table {
    /// An empty table with these column names and alignments.
    pub fn new<S: Into<String>>(columns: impl IntoIterator<Item = (S, Align)>) -> Self {
        let (headers, aligns) = columns.into_iter().map(|(header, align)| (header.into(), align)).unzip();
        Table { headers, aligns, rows: Vec::new() }
    }

    /// Adds a row of cells. Missing cells are empty, and surplus cells are dropped.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) -> &mut Self {
        let mut row: Vec<String> = cells.into_iter().map(Into::into).collect();
        row.resize(self.headers.len(), String::new());
        self.rows.push(row);
        self
    }

    /// The table as text: a header line, a rule, and the rows, each with a line feed at its end. Left-aligned columns
    /// are wrapped, so that no line exceeds `width` if possible. Line breaks in cells are kept.
    pub fn render(&self, width: usize) -> String {
        let widths = self.widths(width);
        let mut out = String::new();
        let line = |cells: Vec<&str>, out: &mut String| {
            let mut text = String::new();
            for ((cell, &width), align) in cells.iter().zip(&widths).zip(&self.aligns) {
                let pad = " ".repeat(width.saturating_sub(chars(cell)));
                match align {
                    Align::Left => text.extend([cell, pad.as_str()]),
                    Align::Right => text.extend([pad.as_str(), cell]),
                }
                text.push_str(&" ".repeat(GAP));
            }
            out.push_str(text.trim_end());
            out.push('\n');
        };
        line(self.headers.iter().map(String::as_str).collect(), &mut out);
        let rule: Vec<String> = widths.iter().map(|&width| "─".repeat(width)).collect();
        line(rule.iter().map(String::as_str).collect(), &mut out);
        let mut any_tall = false;
        for (number, row) in self.rows.iter().enumerate() {
            let cells: Vec<Vec<String>> = row.iter().zip(&widths).map(|(cell, &width)| wrap(cell, width)).collect();
            let height = cells.iter().map(Vec::len).max().unwrap_or(1);
            any_tall |= height > 1;
            for i in 0..height {
                line(cells.iter().map(|cell| cell.get(i).map_or("", String::as_str)).collect(), &mut out);
            }
            // If any row has several lines, rows are separated by blank lines.
            if any_tall && number + 1 < self.rows.len() {
                out.push('\n');
            }
        }
        out
    }

    /// The rows as JSON objects, which map the columns' names to the text of the cells.
    pub fn to_json(&self) -> Value {
        let row = |row: &Vec<String>| {
            let cells = self.headers.iter().zip(row).map(|(name, cell)| (name.clone(), cell.as_str().into()));
            Value::Object(cells.collect())
        };
        self.rows.iter().map(row).collect()
    }

    /// The widths of the columns. Each column is as wide as its widest line; then the widest text columns are narrowed
    /// until a row fits into `width`.
    fn widths(&self, width: usize) -> Vec<usize> {
        let mut widths: Vec<usize> = (0..self.headers.len())
            .map(|i| {
                let cells = self.rows.iter().map(|row| &row[i]).chain([&self.headers[i]]);
                cells.flat_map(|cell| cell.lines()).map(chars).max().unwrap_or(0)
            })
            .collect();
        loop {
            let total = widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
            let text =
                |&i: &usize| self.aligns[i] == Align::Left && widths[i] > MIN_COLUMN.max(chars(&self.headers[i]));
            let Some(widest) = (0..widths.len()).filter(text).max_by_key(|&i| widths[i]) else { return widths };
            if total <= width {
                return widths;
            }
            widths[widest] -= 1;
        }
    }
}

/// Formats a number for people, with three digits. A number of at least `most` or below 0.001 gets an exponent and
/// `behind` decimals. Zero has no sign.
pub fn short_number(x: f64, most: f64, behind: usize) -> String {
    let x = if x == 0.0 { 0.0 } else { x };
    match x.abs() {
        size if size != 0.0 && !(1e-3..most).contains(&size) => format!("{x:.behind$e}"),
        size if size >= 100.0 => format!("{x:.0}"),
        size if size >= 10.0 => format!("{x:.1}"),
        size if size >= 1.0 => format!("{x:.2}"),
        _ => format!("{x:.3}"),
    }
}

fn chars(text: &str) -> usize {
    text.chars().count()
}

/// Wraps a cell into lines of at most `width` characters, at spaces if possible. Control characters are escaped, since
/// they could move the cursor or change the terminal.
fn wrap(cell: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut out = Vec::new();
    for line in cell.lines() {
        let mut rest: Vec<char> = Vec::new();
        for c in line.chars() {
            match c {
                '\t' => rest.extend("    ".chars()),
                c => rest.extend(visible(c.encode_utf8(&mut [0; 4])).chars()),
            }
        }
        while rest.len() > width {
            let space = rest[..=width].iter().rposition(|&c| c == ' ').filter(|&at| at > 0);
            let (keep, skip) = space.map_or((width, 0), |at| (at, 1));
            out.push(rest[..keep].iter().collect());
            rest.drain(..keep + skip);
        }
        out.push(rest.into_iter().collect());
    }
    if out.is_empty() {
        out.push(String::new());
    }
    out
}

/// A table of a step's prompts and completions with their rewards and advantages, as in TRL, with at most `max_rows`
/// rows. A prompt or completion is a string or an array of chat messages. A missing reward is shown as `-`.
pub fn completions(rows: &crate::CompletionRows, max_rows: usize, width: usize) -> String {
    let mut columns = vec![("Prompt", Align::Left), ("Completion", Align::Left)];
    columns.extend(rows.rewards.iter().map(|(name, _)| (name.as_str(), Align::Right)));
    columns.push(("Advantage", Align::Right));
    columns.extend(rows.extra.iter().map(|(name, _)| (name.as_str(), Align::Left)));
    let mut table = Table::new(columns);
    for i in 0..rows.prompts.len().min(max_rows) {
        let mut cells = vec![shown(&rows.prompts[i]), shown(&rows.completions[i])];
        let scores = rows.rewards.iter().map(|(_, scores)| scores[i]).chain([rows.advantages[i]]);
        cells.extend(scores.map(|score| score.map_or("-".to_owned(), |score| format!("{score:.2}"))));
        cells.extend(rows.extra.iter().map(|(_, values)| shown(&values[i])));
        table.row(cells);
    }
    format!("Step {}\n{}", rows.step, table.render(width))
}

/// The rows of [`completions`] as JSON: for each completion its prompt, text and advantage, and the score of each
/// reward by name. A missing score is `null`.
pub fn completions_json(rows: &crate::CompletionRows, max_rows: usize) -> Value {
    let row = |i: usize| {
        let scores = rows.rewards.iter().map(|(name, scores)| (name.clone(), scores[i].into()));
        let extra = rows.extra.iter().map(|(name, values)| (name.clone(), values[i].clone()));
        let mut row = serde_json::json!({
            "prompt": rows.prompts[i], "completion": rows.completions[i], "advantage": rows.advantages[i],
            "rewards": scores.collect::<serde_json::Map<_, _>>(),
        });
        if !rows.extra.is_empty() {
            row["extra"] = extra.collect::<serde_json::Map<_, _>>().into();
        }
        row
    };
    (0..rows.prompts.len().min(max_rows)).map(row).collect()
}

/// A string unchanged, chat messages with their roles, and any other value as JSON.
pub(crate) fn shown(value: &Value) -> String {
    let message = |message: &Value| {
        let role = message.get("role")?.as_str()?.to_uppercase();
        let content = message.get("content")?;
        Some(format!("{role}\n{}", content.as_str().map_or_else(|| content.to_string(), str::to_owned)))
    };
    match value {
        Value::String(text) => text.clone(),
        Value::Array(list) => {
            let messages: Option<Vec<_>> = list.iter().map(message).collect();
            messages.map_or_else(|| value.to_string(), |messages| messages.join("\n\n"))
        }
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned_and_wrapped() {
        let mut table = Table::new([("stage", Align::Left), ("seconds", Align::Right)]);
        table.row(["rollout", "12.5"]).row(["é", "1"]).row(["x"]);
        assert_eq!(table.render(80), "stage    seconds\n───────  ───────\nrollout     12.5\né              1\nx\n");
        let mut table = Table::new([("text", Align::Left), ("n", Align::Right)]);
        table.row(["the quick brown fox jumps", "1"]).row(["averyverylongwordwithoutspaces", "2"]);
        let text = table.render(15);
        assert!(text.lines().all(|line| line.chars().count() <= 15), "{text}");
        assert!(text.contains("the quick     1\nbrown fox\njumps\n\naveryverylon  2\n"), "{text}");
    }

    #[test]
    fn control_characters_in_cells_are_escaped() {
        let mut table = Table::new([("a", Align::Left)]);
        table.row(["\u{1b}[31mred\r\u{7}"]);
        assert!(!table.render(80).chars().any(|c| c.is_control() && c != '\n'));
    }

    #[test]
    fn tables_of_completions_look_like_those_of_trl() {
        let rows = crate::CompletionRows {
            step: crate::Step(42),
            prompts: vec!["The sky is".into(), serde_json::json!([{"role": "user", "content": "Sun?"}])],
            completions: vec![" blue.".into(), " in the sky.".into()],
            rewards: vec![("Format".into(), vec![Some(0.789), None])],
            extra: vec![("source".into(), vec!["A".into(), Value::Null])],
            advantages: vec![Some(0.987), Some(0.0)],
        };
        let text = completions(&rows, 5, 100);
        assert!(text.starts_with("Step 42\nPrompt"), "{text}");
        assert!(text.contains("The sky is   blue.          0.79       0.99  A\n"), "{text}");
        assert!(text.contains("USER") && text.contains("Sun?"), "{text}");
        assert!(!completions(&rows, 1, 100).contains("Sun?"));
    }

    #[test]
    fn cells_are_wrapped_at_spaces_or_inside_long_words() {
        let table: [(&str, usize, &[&str]); 14] = [
            ("", 5, &[""]),
            ("\n\n", 5, &["", ""]),
            ("abcde", 5, &["abcde"]),
            ("abcdef", 5, &["abcde", "f"]),
            ("abcde fg", 5, &["abcde", "fg"]),
            ("abcd efg", 5, &["abcd", "efg"]),
            ("ab cd ef", 5, &["ab cd", "ef"]),
            ("a bcdefgh", 5, &["a", "bcdef", "gh"]),
            (" abcdef", 5, &[" abcd", "ef"]),
            ("abc", 0, &["a", "b", "c"]),
            ("a\tb", 9, &["a    b"]),
            ("a\r\nb", 9, &["a", "b"]),
            ("\u{7}\u{1b}[2J", 20, &["\\u{7}\\u{1b}[2J"]),
            ("éé éé", 2, &["éé", "éé"]),
        ];
        for (cell, width, expected) in table {
            assert_eq!(wrap(cell, width), expected, "{cell:?} at {width}");
        }
    }

    #[test]
    fn the_widest_text_columns_are_narrowed_until_rows_fit() {
        let mut table = Table::new([("a", Align::Left), ("number", Align::Right), ("a long header", Align::Left)]);
        table.row(["x".repeat(20), "1".repeat(30), "y".repeat(16)]);
        for (width, expected) in [
            (70, [20, 30, 16]),
            (69, [19, 30, 16]),
            (66, [16, 30, 16]),
            (65, [16, 30, 15]),
            (64, [15, 30, 15]),
            (60, [13, 30, 13]),
            (59, [12, 30, 13]),
            (58, [12, 30, 13]),
            (0, [12, 30, 13]),
        ] {
            assert_eq!(table.widths(width), expected, "{width}");
        }
        let empty = Table::new([("a", Align::Left); 0]);
        assert_eq!((empty.widths(10), empty.render(10)), (vec![], "\n\n".to_owned()));
    }

    #[test]
    fn rows_with_several_lines_are_separated_by_blank_lines() {
        let mut table = Table::new([("a", Align::Left), ("b", Align::Right)]);
        table.row(["1", "2", "surplus"]).row(["one\ntwo", "3"]).row(["4"]);
        assert_eq!(table.render(80), "a    b\n───  ─\n1    2\none  3\ntwo\n\n4\n");
        table.row(["5\n\n6", "7"]);
        assert_eq!(table.render(80), "a    b\n───  ─\n1    2\none  3\ntwo\n\n4\n\n5    7\n\n6\n");
        assert_eq!(Table::new([("a", Align::Right)]).render(80), "a\n─\n");
    }
}
