//! Makes external text (a reward's exception, a server's response, a completion, a file name) safe to print on a
//! terminal. Characters that move the cursor, change colours, set the window's title or reverse the direction of text
//! are replaced by readable escapes. This is done for every line that the program prints or logs.

use std::borrow::Cow;

/// Whether a terminal may act on the character: a control character (C0, DEL, C1), or a character that changes the
/// direction of text.
fn acts(c: char) -> bool {
    let direction =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || direction
}

/// Escapes the characters that a terminal may act on, for example ESC as `\u{1b}`. Line feeds, tabs, and carriage
/// returns before line feeds are kept.
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|c| acts(c) && !matches!(c, '\n' | '\t')) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\n' | '\t' => out.push(c),
            '\r' if chars.peek() == Some(&'\n') => out.push(c),
            c if acts(c) => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// Replaces the characters that a terminal may act on by JSON escapes such as `\u009b`, so that the JSON text keeps its
/// meaning. (serde has already escaped characters below U+0020.)
pub fn visible_json(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|c| acts(c) && c >= '\u{7f}') {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            c if acts(c) && c >= '\u{7f}' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_replaced_by_escapes() {
        assert!(matches!(visible("plain: é ∑ 😀\n\tand\r\nmore"), Cow::Borrowed(_) | Cow::Owned(_)));
        assert_eq!(visible("plain: é ∑ 😀\n\tand\r\nmore"), "plain: é ∑ 😀\n\tand\r\nmore");
        assert_eq!(visible("\u{1b}[31mred\u{7}"), "\\u{1b}[31mred\\u{7}");
        assert_eq!(visible("over\rwritten"), "over\\rwritten");
        assert_eq!(visible("\u{9b}2J \u{7f} \u{202e}txt"), "\\u{9b}2J \\u{7f} \\u{202e}txt");
        assert!(matches!(visible("nothing to do"), Cow::Borrowed(_)));
    }

    #[test]
    fn escaped_json_parses_to_the_same_value() {
        let value = serde_json::json!({"a": "\u{1b}[2J \u{9b}2J \u{7f} é \u{202e}"});
        let shown = visible_json(&value.to_string()).into_owned();
        assert!(!shown.chars().any(acts), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }

    #[test]
    fn exactly_the_characters_that_terminals_act_on_are_escaped() {
        let acting = ['\0', '\u{1f}', '\u{7f}', '\u{80}', '\u{9f}', '\u{61c}', '\u{200e}', '\u{200f}', '\u{202a}'];
        let also = ['\u{202e}', '\u{2066}', '\u{2069}', '\r', '\n', '\t'];
        assert!(acting.iter().chain(&also).all(|&c| acts(c)));
        let harmless =
            [' ', '~', '\u{a0}', '\u{61b}', '\u{200d}', '\u{2010}', '\u{2029}', '\u{202f}', '\u{2065}', '\u{206a}'];
        assert!(!harmless.iter().any(|&c| acts(c)));
        for c in acting {
            assert_eq!(visible(&format!("a{c}b")), format!("a{}b", c.escape_default()));
        }
        for (text, shown) in [("a\r", "a\\r"), ("a\r\nb", "a\r\nb"), ("\r\r\n", "\\r\r\n"), ("\n\t\u{7}", "\n\t\\u{7}")]
        {
            assert_eq!(visible(text), shown);
        }
    }

    #[test]
    fn text_without_control_characters_is_not_copied() {
        for text in ["", "plain é\n\t", "{\"a\":1}"] {
            assert!(matches!(visible(text), Cow::Borrowed(same) if same == text), "{text:?}");
            assert!(matches!(visible_json(text), Cow::Borrowed(same) if same == text), "{text:?}");
        }
        // serde has already escaped control characters below U+007F.
        assert!(matches!(visible_json("a\u{1}"), Cow::Borrowed("a\u{1}")));
        let text = "\u{7e}\u{7f}\u{80}\u{a0}\u{202e}";
        assert_eq!(visible_json(text), "\u{7e}\\u007f\\u0080\u{a0}\\u202e");
        assert_eq!(visible_json("\u{7f}\u{1}"), "\\u007f\u{1}");
    }
}
