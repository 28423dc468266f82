//! The staged reward for OCaml: 0.25 for types, 0.10 for compiling with the tests, 0.65 × the share of tests passed.
//!
//! Each ill-typed definition takes 0.05 off the 0.25. A solution that cannot be parsed, or cannot be compiled in time,
//! scores 0. A full score loses up to 0.10 for style: 0.02 for each compiler warning, and 0.01 for each line that is
//! longer than 100 characters or ends in a blank. The score of a degenerate completion is multiplied by 0.3.

use std::collections::HashSet;

/// The reason why a solution was not built.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum NotBuilt {
    Syntax,
    /// Compiling the solution takes too much time or memory.
    TooMuch,
    /// The solution has this many ill-typed definitions.
    Types(usize),
    /// The solution is well-typed alone, but not together with its tests.
    Tests,
}

impl std::fmt::Display for NotBuilt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NotBuilt::Syntax => write!(f, "not parsed: "),
            NotBuilt::TooMuch => write!(f, "not compiled: "),
            NotBuilt::Types(1) => write!(f, "ill-typed: "),
            NotBuilt::Types(definitions) => write!(f, "{definitions} ill-typed definitions: "),
            NotBuilt::Tests => write!(f, "not compiled with its tests: "),
        }
    }
}

/// The score of a completion, by stages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Staged {
    /// The points for types, up to 0.25.
    pub types: f64,
    /// The points for compiling with the tests: 0.10 or 0.
    pub compile: f64,
    /// The points for passed tests, up to 0.65.
    pub tests: f64,
    /// The points deducted from a full score for style.
    pub style: f64,
    /// The reason why the completion counts as degenerate; `None` if it does not.
    pub degenerate: Option<&'static str>,
}

impl Staged {
    /// The stages of a solution that could not be built.
    pub(crate) fn not_built(why: NotBuilt) -> Staged {
        let types = match why {
            NotBuilt::Syntax | NotBuilt::TooMuch => 0.0,
            NotBuilt::Types(errors) => (0.25 - 0.05 * errors as f64).max(0.0),
            NotBuilt::Tests => 0.25,
        };
        Staged { types, ..Staged::default() }
    }

    /// The stages of a solution that was tested.
    pub(crate) fn tested(passed: usize, of: usize, warnings: usize, solution: &str) -> Staged {
        let tests = 0.65 * passed as f64 / of as f64;
        let untidy = |line: &&str| line.chars().count() > 100 || line.ends_with([' ', '\t']);
        let untidy = solution.lines().filter(untidy).count();
        let style = if passed == of { (0.02 * warnings as f64 + 0.01 * untidy as f64).min(0.10) } else { 0.0 };
        Staged { types: 0.25, compile: 0.10, tests, style, degenerate: None }
    }

    /// Adds the part of the score that depends on the text of `completion`, whose program is `solution`.
    pub(crate) fn of(mut self, completion: &str, solution: &str) -> Staged {
        self.degenerate = degenerate(completion, solution);
        self
    }

    /// The sum of the stages, minus the deductions for style and degeneration.
    pub fn score(&self) -> f64 {
        let score = self.types + self.compile + self.tests - self.style;
        // Sums of hundredths are inexact in binary, so they are rounded.
        let score = (score * 1e9).round() / 1e9;
        if self.degenerate.is_some() { 0.3 * score } else { score }
    }
}

/// Explains why a completion collects points without solving the task, if it does: by repetition, prose, many code
/// blocks, or stubs.
fn degenerate(completion: &str, solution: &str) -> Option<&'static str> {
    let fences = completion.lines().filter(|line| line.trim_start().starts_with("```")).count();
    if fences > 8 {
        return Some("more than four code blocks");
    }
    let words: Vec<&str> = completion.split_whitespace().collect();
    let fours: HashSet<&[&str]> = words.windows(4).collect();
    if words.len() >= 60 && 2 * fours.len() < words.len() - 3 {
        return Some("repetition");
    }
    let code = without_comments(solution);
    let letters = |text: &str| text.chars().filter(|c| c.is_alphabetic()).count();
    let (all, useful) = (letters(completion), letters(&code));
    if all > 400 && all > 4 * useful {
        return Some("prose");
    }
    let body = |line: &str| line.split_once('=').map(|(_, body)| body.trim().to_owned());
    let stub = |body: &String| {
        let body = body.trim_end_matches(";;").trim().trim_matches(['(', ')']);
        let begins = ["failwith", "assert false", "raise ", "invalid_arg", "exit "];
        begins.iter().any(|begin| body.starts_with(begin)) || body.is_empty()
    };
    let items: Vec<&str> = code.split("\nlet ").collect();
    let stubs = items.iter().filter(|item| {
        // A body with several lines or a condition counts as a real definition.
        let text = item.trim();
        body(text).is_some_and(|body| !body.contains('\n') && !body.contains(" then ") && stub(&body))
    });
    let stubs = stubs.count();
    (!code.contains("let ") || stubs > 0 && 2 * stubs >= items.len()).then_some("a stub")
}

/// The source without its comments. String literals that look like comments are removed too, which is harmless here.
fn without_comments(source: &str) -> String {
    let (mut code, mut depth, mut rest) = (String::new(), 0usize, source);
    while let Some(c) = rest.chars().next() {
        let (open, close) = (rest.starts_with("(*"), rest.starts_with("*)") && depth > 0);
        if open || close {
            depth = if open { depth + 1 } else { depth - 1 };
            rest = &rest[2..];
            continue;
        }
        if depth == 0 {
            code.push(c);
        }
        rest = &rest[c.len_utf8()..];
    }
    code
}

#[cfg(test)]
mod tests;
