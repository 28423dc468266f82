//! Parses a page of the documents as a shell session: fenced commands, files that the page shows, and expected output.
//!
//! ````text
//! <!-- A test runs the commands of this page. -->      marks the page
//! ```toml                                              a file: the first line is a comment with its name
//! # step.toml
//! ```
//! ```                                                  commands with output: `$ `, and lines that end in `\`;
//! $ lockstep train step.toml --out one                 `…` matches anything
//! ```
//! ```                                                  commands alone
//! lockstep eval one
//! ```
//! <!-- not run: it needs torch -->                     the next block is left out
//! ````

/// The comment that marks pages whose commands are tested.
pub const MARK: &str = "<!-- A test runs the commands of this page. -->";
const NOT_RUN: &str = "<!-- not run: ";

/// A part of a page, in order.
#[derive(Debug, PartialEq)]
pub enum Piece {
    /// A file: its name and its text.
    File(String, String),
    /// A command, and lines of its expected output.
    Command(String, Vec<String>),
}

/// Returns the commands and files of a page.
pub fn pieces(page: &str) -> Vec<Piece> {
    let mut out = Vec::new();
    let mut lines = page.lines();
    let mut skips = false;
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            if !std::mem::take(&mut skips) {
                read_block(language, &block, &mut out);
            }
        } else if !line.trim().is_empty() {
            skips = line.starts_with(NOT_RUN);
        }
    }
    out
}

fn read_block(language: &str, block: &[&str], out: &mut Vec<Piece>) {
    match language {
        "toml" | "python" => {
            let name = block.first().and_then(|line| line.strip_prefix("# ")).filter(|name| !name.contains(' '));
            if let Some(name) = name {
                out.push(Piece::File(name.to_owned(), block.join("\n") + "\n"));
            }
        }
        "" | "sh" => {
            let is_session = block.iter().any(|line| line.starts_with("$ "));
            let mut lines = block.iter();
            while let Some(line) = lines.next() {
                let Some(first) = line.strip_prefix("$ ").or((!is_session).then_some(*line)) else {
                    if let Some(Piece::Command(_, output)) = out.last_mut() {
                        output.push((*line).to_owned());
                    }
                    continue;
                };
                let mut command = first.to_owned();
                while command.ends_with('\\') {
                    command.pop();
                    let Some(next) = lines.next() else { break };
                    command += next.trim_start();
                }
                if !command.trim().is_empty() {
                    out.push(Piece::Command(command, Vec::new()));
                }
            }
        }
        _ => {}
    }
}

/// The first expected line that is missing from the output, in order. Timestamps of log lines and the width of blanks
/// are ignored; so are the speeds and times to the right of `grad` in the table of steps.
pub fn missing(output: &str, promised: &[String]) -> Option<String> {
    let actual: Vec<&str> = output.lines().map(without_clock).collect();
    let actual = without_times(&actual);
    let promised: Vec<&str> = promised.iter().map(String::as_str).collect();
    let mut rest = &actual[..];
    for line in without_times(&promised).into_iter().filter(|line| !line.trim().is_empty() && line.trim() != "…") {
        match rest.iter().position(|actual| fits(&words(&line), &words(actual))) {
            Some(at) => rest = &rest[at + 1..],
            None => return Some(line),
        }
    }
    None
}

fn words(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn without_clock(line: &str) -> &str {
    let clock = line.strip_prefix('[').and_then(|rest| rest.split_once("s] "));
    clock.filter(|(time, _)| time.trim().parse::<f64>().is_ok()).map_or(line, |(_, rest)| rest)
}

fn without_times(lines: &[&str]) -> Vec<String> {
    let mut end = usize::MAX;
    let cut = |line: &str, end: usize| line.chars().take(end).collect::<String>();
    let mut out = Vec::new();
    for line in lines {
        if let Some((before, _)) = line.split_once(" tok/s ") {
            end = before.trim_end().chars().count();
        } else if !line.trim_start().starts_with(|c: char| c.is_ascii_digit()) {
            end = usize::MAX;
        }
        out.push(cut(line, end));
    }
    out
}

/// Whether the line matches the pattern; `…` in the pattern matches any text.
fn fits(pattern: &str, line: &str) -> bool {
    let mut parts = pattern.split('…');
    let Some(mut rest) = parts.next().and_then(|first| line.strip_prefix(first)) else { return false };
    let Some(last) = pattern.contains('…').then(|| pattern.rsplit('…').next().unwrap_or_default()) else {
        return rest.is_empty();
    };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    last.is_empty() || rest.is_empty() || line.ends_with(last)
}

/// The rows of the first table that has `head` among its column names, without code marks.
pub fn table(page: &str, head: &str) -> Vec<Vec<String>> {
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split(" | ").map(|cell| cell.trim().replace('`', "").replace('−', "-")).collect()
    };
    let mut lines = page.lines().skip_while(|line| !line.starts_with('|') || !cells(line).iter().any(|c| c == head));
    lines.by_ref().take(2).for_each(drop);
    lines.take_while(|line| line.starts_with('|')).map(cells).collect()
}

#[test]
fn a_page_is_parsed_into_files_and_commands() {
    let page = "\
# Page

```toml
# a.toml
x = 1
```
```toml
y = 1
```
```
$ run --one \\
    --two
out 1
out 2
$ other   # a remark
```

<!-- not run: it needs a server -->

```
lockstep serve
```
Text.
```sh
first   # a remark

second \\
  third
```
<!-- another comment -->
```
fourth
```
```json
{}
```
";
    let command = |words: &str, output: &[&str]| {
        Piece::Command(words.to_owned(), output.iter().map(|line| (*line).to_owned()).collect())
    };
    let expected = [
        Piece::File("a.toml".into(), "# a.toml\nx = 1\n".into()),
        command("run --one --two", &["out 1", "out 2"]),
        command("other   # a remark", &[]),
        command("first   # a remark", &[]),
        command("second third", &[]),
        command("fourth", &[]),
    ];
    assert_eq!(pieces(page), expected);
}

#[test]
fn expected_lines_are_found_in_the_output() {
    let found = |output: &str, promised: &[&str]| {
        let promised: Vec<String> = promised.iter().map(|line| (*line).to_owned()).collect();
        missing(output, &promised).is_none()
    };
    let steps = "[     0.1s]  step  loss  grad  tok/s  left\n[     0.3s]     1  0.50   1.0   9000     –\ndone 1 0 9\n";
    let rows: [(&str, &[&str], bool); 22] = [
        ("a\nb\n", &["a", "b"], true),
        ("a\nb\n", &["b", "a"], false),
        ("a\nb\n", &["a"], true),
        ("a\nb\n", &["a", "c"], false),
        ("a\n", &["a", "a"], false),
        ("a  b\n", &["a b"], true),
        ("ab\n", &["a b"], false),
        ("[    12.3s] a\n", &["a"], true),
        ("[x] a\n", &["a"], false),
        ("x is 1.50\n", &["x is 1.5"], false),
        ("x is 1.5, y 2\n", &["x is 1.5…"], true),
        ("x is 1.5, y 2\n", &["x …, y 2"], true),
        ("x is 1.5, y 3\n", &["x …, y 2"], false),
        ("x is 1.5, y 22\n", &["x …, y 2"], false),
        ("a\nz\nb\n", &["a", "…", "b"], true),
        ("", &[], true),
        ("", &[""], true),
        (steps, &["step loss grad tok/s left", "1 0.50 1.0 1234 5 s"], false),
        (steps, &[" step  loss  grad  tok/s  left", "    1  0.50   1.0   1234   5 s"], true),
        (steps, &[" step  loss  grad  tok/s  left", "    1  0.50   1.1   1234   5 s"], false),
        (steps, &[" step  loss  grad  tok/s  left", "    1  0.51   1.0   9000     –"], false),
        (steps, &["done 1 0 8"], false),
    ];
    for (output, promised, expected) in rows {
        assert_eq!(found(output, promised), expected, "{promised:?} in {output:?}");
    }
}

#[test]
fn a_table_is_found_by_a_column_name() {
    let page =
        "| a | b |\n|---|---|\n| 1 | 2 |\n\n| `c` | d |\n|---|---:|\n| `x`, wrong | −4.5 |\n| y | 6 |\ntext\n| z |\n";
    assert_eq!(table(page, "c"), [["x, wrong", "-4.5"], ["y", "6"]]);
    assert_eq!(table(page, "b"), [["1", "2"]]);
    assert!(table(page, "e").is_empty());
}
