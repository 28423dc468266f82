//! Removes emoji and check marks. Signs with a meaning stay: × ÷ ° ∞, the heavy ➕ ➖ ➗, digits in circles, and crosses
//! such as ❌, which deny an answer.

/// The text without symbols; `None` if it has none.
pub(super) fn removed(text: &str) -> Option<String> {
    let text_without = text.is_ascii() && !text.contains("\\checkmark") && !text.contains("\\blacksquare");
    if text_without || !(text.chars().any(|c| joins(c) || decorates(c) || arrow(c)) || text.contains('\\')) {
        return None;
    }
    let mut new = String::with_capacity(text.len());
    // An arrow after a colon only points to the answer; elsewhere it may have a meaning.
    let mut colon = true;
    for c in text.chars() {
        match c {
            c if joins(c) => {}
            c if decorates(c) || arrow(c) && colon => new.push(' '),
            c => new.push(c),
        }
        colon = match c {
            ':' | '：' | '\n' => true,
            c => colon && (c.is_whitespace() || joins(c) || decorates(c) || arrow(c)),
        };
    }
    for command in ["\\checkmark", "\\blacksquare"] {
        if new.contains(command) {
            new = new.replace(command, " ");
        }
    }
    Some(new)
}

/// Whether a character changes only the appearance of the previous character.
fn joins(c: char) -> bool {
    matches!(c, '\u{fe0e}' | '\u{fe0f}' | '\u{20e3}' | '\u{200d}')
}

fn arrow(c: char) -> bool {
    matches!(c, '→' | '⇒' | '⟹' | '⟶')
}

fn decorates(c: char) -> bool {
    match c {
        // Multiplication, crosses, questions, digits in circles, arithmetic.
        '✕'
        | '✖'
        | '✗'
        | '✘'
        | '❌'
        | '❎'
        | '❓'
        | '❔'
        | '❕'
        | '❗'
        | '❶'..='➓'
        | '➕'
        | '➖'
        | '➗'
        | '🚫'
        | '🔟'
        | '🟰' => false,
        '\u{2600}'..='\u{27bf}' | '\u{25a0}'..='\u{25ff}' | '\u{1f300}'..='\u{1f6ff}' | '\u{1f780}'..='\u{1faff}' => {
            true
        }
        '∎' | '⭐' | '⭕' | '⬅' | '⬆' | '⬇' | '⬛' | '⬜' => true,
        _ => false,
    }
}
