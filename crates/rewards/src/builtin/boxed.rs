//! Finds the LaTeX box (`\boxed{…}`) in which models put a final answer. This file does not interpret the content of
//! the box.

use std::ops::Range;

/// The content of the last box in a text whose braces are balanced: `\boxed{…}` or `\fbox{…}`, with or without white
/// space before the brace. Boxes are ordered by their beginning, so the last of nested boxes is the innermost.
///
/// A box without braces (`\boxed 5`, `\boxed5$`) extends to the end of the formula, the sentence or the line, as in the
/// MATH dataset. Its content must begin with mathematics or a single letter: "put it in \boxed form" has no box.
///
/// The search takes linear time, even for a completion with many unclosed boxes.
pub(super) fn last_boxed(text: &str) -> Option<&str> {
    let bytes = text.as_bytes();
    // For each open brace, the start of the box's content, if the brace opens a box.
    let mut braces: Vec<Option<usize>> = Vec::new();
    // The open box without braces: its start, and the number of braces open around it.
    let mut bare: Option<(usize, usize)> = None;
    let mut last: Option<Range<usize>> = None;
    let mut close = |inside: Range<usize>| {
        if last.as_ref().is_none_or(|last| last.start < inside.start) {
            last = Some(inside);
        }
    };
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        if let Some((start, depth)) = bare
            && ends_bare(&bytes[at..], braces.len() == depth)
        {
            close(start..at);
            bare = None;
        }
        match byte {
            b'{' => braces.push(None),
            b'}' => {
                if let Some(start) = braces.pop().flatten() {
                    close(start..at);
                }
            }
            b'\\' => {
                if let Some(command) = command(&text[at..]) {
                    let after = &text[at + command..];
                    if let Some(inside) = after.trim_start().strip_prefix('{') {
                        at = text.len() - inside.len();
                        braces.push(Some(at));
                        continue;
                    }
                    if begins_mathematics(after) {
                        bare = Some((text.len() - after.trim_start().len(), braces.len()));
                    }
                    at += command;
                    continue;
                }
                // The dollar sign of a price does not end a formula.
                at += usize::from(bytes.get(at + 1) == Some(&b'$'));
            }
            _ => {}
        }
        at += 1;
    }
    if let Some((start, _)) = bare {
        close(start..text.len());
    }
    last.map(|inside| &text[inside])
}

/// The length of the LaTeX command at the start of `text`, if it is `\boxed` or `\fbox`.
fn command(text: &str) -> Option<usize> {
    ["\\boxed", "\\fbox"].iter().find_map(|command| {
        let after = text.strip_prefix(command)?;
        (!after.starts_with(|c: char| c.is_ascii_alphabetic())).then_some(command.len())
    })
}

/// Whether a box without braces ends before `rest`. `outside` is true if all braces opened in the box are closed.
fn ends_bare(rest: &[u8], outside: bool) -> bool {
    match rest[0] {
        b'$' | b'\n' => true,
        b'}' => outside,
        b'\\' => matches!(rest.get(1), Some(b')' | b']')),
        b'.' => rest.get(1).is_none_or(u8::is_ascii_whitespace),
        _ => false,
    }
}

/// Whether the text after the command, on the same line, can be the content of a box without braces.
fn begins_mathematics(after: &str) -> bool {
    let after = after.trim_start_matches([' ', '\t']).trim_start_matches(['(', '[', '+', '-', '\u{2212}', '.']);
    let mut chars = after.chars();
    match chars.next() {
        Some('\\') => chars.next().is_some_and(|c| c.is_ascii_alphabetic() || matches!(c, '{' | '$')),
        Some(c) if c.is_alphabetic() => !chars.next().is_some_and(char::is_alphabetic),
        Some(c) => c.is_ascii_digit(),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_closed_box_of_a_text_is_found() {
        for (text, expected) in [
            ("so \\boxed{5}.", "5"),
            ("\\boxed{1} no, \\boxed{2}", "2"),
            ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
            ("\\boxed{5} and an open \\boxed{6", "5"),
            ("\\boxed{5} and an open \\boxed{6 {7}", "5"),
            ("\\boxed{6 \\boxed{5}", "5"),
            ("\\boxed{a \\boxed{b} c}", "b"),
            ("\\boxed{a \\boxed{b} c} } \\boxed{d", "b"),
            ("} {{ \\boxed{5} }", "5"),
            ("\\\\boxed{5}", "5"),
            ("\\boxed{5} or \\boxed{}", ""),
            ("\\boxed {5}", "5"),
            ("\\boxed\n{5}", "5"),
            ("\\fbox{5}", "5"),
            ("\\boxed{4}, or \\fbox {5}", "5"),
            ("\\boxed{\\fbox{5}}", "5"),
        ] {
            assert_eq!(last_boxed(text), Some(expected), "{text}");
        }
        for text in ["", "5", "\\boxed", "\\boxed{5", "boxed{5}", "\\boxed}", "\\boxedx{5}", "\\boxed{{5}", "\\box{5}"]
        {
            assert_eq!(last_boxed(text), None, "{text}");
        }
    }

    #[test]
    fn a_box_without_braces_ends_with_its_formula_sentence_or_line() {
        for (text, expected) in [
            ("$\\boxed 5$ and 6", "5"),
            ("$\\boxed5$ and 6", "5"),
            ("$x = \\boxed -12 + y$", "-12 + y"),
            ("\\(\\boxed 5x\\) is it", "5x"),
            ("\\[\\boxed \\frac{1}{2}\\] is it", "\\frac{1}{2}"),
            ("so \\boxed 2.5. This is it", "2.5"),
            ("so \\boxed 5\nThis is it", "5"),
            ("so \\boxed (C)", "(C)"),
            ("so \\boxed \\$5 $", "\\$5 "),
            ("\\text{so \\boxed 5} and 6", "5"),
            ("\\boxed{4} and $\\boxed 5$", "5"),
            ("$\\boxed 5$ and \\boxed{6}", "6"),
            ("$\\boxed 5$ and \\boxed{6", "5"),
            ("$\\boxed 5$ and \\boxed 6", "6"),
            ("$\\boxed 4 + \\boxed{5}$", "5"),
            ("$\\boxed{5}$, as \\boxed says, in \\boxed (or \\boxed).", "5"),
        ] {
            assert_eq!(last_boxed(text), Some(expected), "{text}");
        }
        for text in ["put it in \\boxed form", "no \\boxed - or", "in \\boxed\nThe", "`\\boxed`", "\\boxed \\)"] {
            assert_eq!(last_boxed(text), None, "{text}");
        }
    }

    /// A search from each box to the end of the text would take hours.
    #[test]
    fn a_million_open_boxes_are_searched_in_linear_time() {
        for unit in ["\\boxed{", "\\boxed 5", "\\boxed  ", "\\fbox{\\boxed{5 ", "\\boxed{ { \\boxed x{"] {
            let text = format!("\\boxed{{7}} {}", unit.repeat(8_000_000 / unit.len()));
            assert!(last_boxed(&text).is_some(), "{unit}");
        }
    }

    #[test]
    fn a_box_without_braces_must_begin_with_mathematics() {
        for (after, expected) in [
            ("5", true),
            (" \t5", true),
            ("\n5", false),
            ("x", true),
            ("x_1", true),
            ("xy", false),
            ("é", true),
            ("(x", true),
            ("([+-.5", true),
            ("\u{2212}5", true),
            ("\\frac", true),
            ("\\{", true),
            ("\\$5", true),
            ("\\(", false),
            ("\\", false),
            ("-", false),
            ("$", false),
            ("", false),
        ] {
            assert_eq!(begins_mathematics(after), expected, "{after}");
        }
        for (text, expected) in [
            ("so \\boxed 5.", "5"),
            ("\\boxed 5.5 x", "5.5 x"),
            ("\\boxed 5.\tx", "5"),
            ("{\\boxed 5} 6", "5"),
            ("{\\boxed x^{2}} 6", "x^{2}"),
            ("\\boxed \\frac{1}{2}} 6", "\\frac{1}{2}"),
            ("\\boxed 5\\] 6", "5"),
            ("\\boxed 5\\} 6", "5\\"),
            ("\\boxed 5 \\boxed{6} 7", "6"),
            ("\\boxed{6} \\boxed 5 7", "5 7"),
            ("\\boxed 4\n\\boxed 5", "5"),
            ("a\\$\\boxed 5\\$6", "5\\$6"),
        ] {
            assert_eq!(last_boxed(text), Some(expected), "{text}");
        }
    }
}
