//! Removes Markdown's emphasis (`**5**`, `__5__`), code marks, and struck-out text (`~~5~~`).
//!
//! As in CommonMark, a run of stars or underscores is emphasis only with a matching run on the same line. An opening
//! run must not follow a word or number, and a closing run must not follow white space. So `2*3*4`, `x**2` and `x_1`
//! stay.

use std::collections::HashMap;
use std::ops::Range;

/// The text without emphasis, code marks and struck-out parts; `None` if the text has none of their characters.
pub(super) fn removed(text: &str) -> Option<String> {
    if text.contains(['*', '_', '`', '~']) { Some(without_runs(text, b"*_`~")) } else { None }
}

/// The text without struck-out parts; `None` if there are none.
pub(super) fn struck_out_removed(text: &str) -> Option<String> {
    text.contains("~~").then(|| without_runs(text, b"~"))
}

/// The text without runs of `signs`.
fn without_runs(text: &str, signs: &[u8]) -> String {
    let mut new = String::with_capacity(text.len());
    let mut fenced = false;
    for line in text.split_inclusive('\n') {
        if let Some(word) = line.trim_start().strip_prefix("```")
            && word.trim().chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '#'))
        {
            fenced = !fenced;
            if !signs.contains(&b'`') {
                new.push_str(line);
            }
        } else if fenced {
            new.push_str(line);
        } else {
            without(line, signs, &mut new);
        }
    }
    new
}

/// A run of one of the characters `*`, `_`, `` ` `` and `~`.
struct Run {
    sign: u8,
    range: Range<usize>,
    opens: bool,
    closes: bool,
}

/// Adds a line without its runs of `signs` to `new`.
fn without(line: &str, signs: &[u8], new: &mut String) {
    let runs: Vec<Run> = runs(line).into_iter().filter(|run| signs.contains(&run.sign)).collect();
    // The byte ranges that are removed.
    let mut out: Vec<Range<usize>> = Vec::new();
    let same = next_of_same_length(&runs);
    // The open runs, by sign. An entry is a run's index and the number of the run's characters that are unmatched so
    // far.
    let mut open: [Vec<(usize, usize)>; 2] = Default::default();
    let mut struck: Option<usize> = None;
    let mut at = 0;
    while let Some(run) = runs.get(at) {
        let length = run.range.len();
        match run.sign {
            b'`' => {
                if let Some(end) = same[at] {
                    out.extend([run.range.clone(), runs[end].range.clone()]);
                    at = end;
                } else if length >= 3 {
                    out.push(run.range.clone());
                }
            }
            b'~' => match struck {
                Some(start) if run.closes && length == 2 => {
                    out.push(start..run.range.end);
                    struck = None;
                }
                _ if run.opens && length == 2 => struck = Some(run.range.start),
                _ => {}
            },
            sign => {
                let open = &mut open[usize::from(sign == b'_')];
                let mut free = length;
                while run.closes && free > 0 {
                    let Some((start, left)) = open.pop() else { break };
                    let pairs = left.min(free);
                    let end = runs[start].range.start + left;
                    out.push(end - pairs..end);
                    let begin = run.range.start + length - free;
                    out.push(begin..begin + pairs);
                    free -= pairs;
                    if left > pairs {
                        open.push((start, left - pairs));
                    }
                }
                if run.opens && free == length {
                    open.push((at, length));
                }
            }
        }
        at += 1;
    }
    out.sort_by_key(|range| range.start);
    let mut at = 0;
    for range in out {
        new.push_str(line.get(at..range.start).unwrap_or_default());
        at = at.max(range.end);
    }
    new.push_str(&line[at..]);
}

fn runs(line: &str) -> Vec<Run> {
    let bytes = line.as_bytes();
    let mut runs = Vec::new();
    let mut at = 0;
    while let Some(&sign) = bytes.get(at) {
        let start = at;
        at += 1;
        match sign {
            // Skips an escaped character.
            b'\\' => at += usize::from(bytes.get(at).is_some_and(u8::is_ascii)),
            b'*' | b'_' | b'`' | b'~' => {
                while bytes.get(at) == Some(&sign) {
                    at += 1;
                }
                let (before, after) = (&line[..start], &line[at..]);
                let (opens, closes) = (opens(before, after, at - start), closes(before, after));
                runs.push(Run { sign, range: start..at, opens, closes });
            }
            _ => {}
        }
    }
    runs
}

fn opens(before: &str, after: &str, length: usize) -> bool {
    let next = after.chars().next();
    if next.is_none_or(|c| c.is_whitespace() || matches!(c, '}' | ')' | ']')) {
        return false;
    }
    // In "2 *3* 4" the stars are multiplication signs, not emphasis.
    let near = if length == 1 { before.trim_end() } else { before };
    let part = |c: char| c.is_numeric() || matches!(c, ')' | ']' | '}' | '^' | '\\' | '=');
    let factor = near.chars().next_back().is_some_and(|c| part(c) && !(c == '=' && near.len() < before.len()));
    !factor && !before.ends_with(char::is_alphanumeric)
}

fn closes(before: &str, after: &str) -> bool {
    let last = before.chars().next_back();
    if last.is_none_or(|c| c.is_whitespace() || matches!(c, '(' | '[' | '{' | '^' | '=')) {
        return false;
    }
    // After a colon, emphasis may end before a digit: "**Answer:**5".
    last == Some(':')
        || after
            .chars()
            .next()
            .is_none_or(|c| !(c.is_alphanumeric() || matches!(c, '(' | '[' | '{' | '\\' | '^' | '=')))
}

/// For each run of backticks, the index of the next run of the same length.
fn next_of_same_length(runs: &[Run]) -> Vec<Option<usize>> {
    let mut next = vec![None; runs.len()];
    let mut last: HashMap<usize, usize> = HashMap::new();
    for (at, run) in runs.iter().enumerate().rev().filter(|(_, run)| run.sign == b'`') {
        next[at] = last.insert(run.range.len(), at);
    }
    next
}
