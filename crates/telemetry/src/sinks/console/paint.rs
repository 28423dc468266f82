//! Text in pieces, each with its own emphasis on a terminal. Without colour, the characters stay the same.

use crate::{Weight, visible};

/// How a piece of text is emphasized on a coloured console.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// The colour of the line's level: red, yellow, or none.
    #[default]
    OfLevel,
    /// No colour.
    Plain,
    /// Less prominent than the rest.
    Dim,
    /// A warning that a person should look at.
    Yellow,
    /// A warning that something is broken.
    Red,
    /// A verdict on the run that is neither good nor bad.
    Bold,
    /// A good verdict.
    BoldGreen,
    /// An uncertain verdict.
    BoldYellow,
    /// A bad verdict.
    BoldRed,
}

impl Tone {
    /// The parameters of the ANSI escape sequence; empty for no sequence.
    fn ansi(self) -> &'static str {
        match self {
            Tone::OfLevel | Tone::Plain => "",
            Tone::Dim => "2",
            Tone::Yellow => "33",
            Tone::Red => "31",
            Tone::Bold => "1",
            Tone::BoldGreen => "1;32",
            Tone::BoldYellow => "1;33",
            Tone::BoldRed => "1;31",
        }
    }
}

impl From<Weight> for Tone {
    fn from(weight: Weight) -> Tone {
        match weight {
            Weight::Broken => Tone::Red,
            Weight::Look => Tone::Yellow,
            Weight::Note => Tone::Dim,
        }
    }
}

/// Text in pieces, each with its tone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Painted(Vec<(Tone, String)>);

impl Painted {
    /// Text of one tone.
    pub fn new(tone: Tone, text: impl Into<String>) -> Painted {
        Painted(vec![(tone, text.into())])
    }

    /// Adds a piece at the end.
    pub fn and(mut self, tone: Tone, text: impl Into<String>) -> Painted {
        self.0.push((tone, text.into()));
        self
    }

    /// The text for a terminal, preceded by `mark` in the colour of the first piece.
    pub(super) fn shown(&self, mark: &str, level_colour: &str, colour: bool) -> String {
        let mut shown = String::new();
        for (place, (tone, text)) in self.0.iter().enumerate() {
            let ansi = if *tone == Tone::OfLevel { level_colour } else { tone.ansi() };
            let (mark, text) = (if place == 0 { mark } else { "" }, visible(text));
            if colour && !ansi.is_empty() && !(mark.is_empty() && text.is_empty()) {
                shown += &format!("\u{1b}[{ansi}m{mark}{text}\u{1b}[0m");
            } else {
                shown.extend([mark, &*text]);
            }
        }
        shown
    }
}

impl<T: AsRef<str>> From<T> for Painted {
    fn from(text: T) -> Painted {
        Painted::new(Tone::OfLevel, text.as_ref())
    }
}

impl std::fmt::Display for Painted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|(_, text)| f.write_str(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_have_their_own_colour_and_the_mark_has_the_first() {
        let text = Painted::new(Tone::Red, "bad").and(Tone::Plain, " so ").and(Tone::Dim, "\u{1b}[0mlow");
        assert_eq!(text.shown("warning: ", "33", false), "warning: bad so \\u{1b}[0mlow");
        let coloured = "\u{1b}[31mwarning: bad\u{1b}[0m so \u{1b}[2m\\u{1b}[0mlow\u{1b}[0m";
        assert_eq!(text.shown("warning: ", "33", true), coloured);
        assert_eq!(text.to_string(), "bad so \u{1b}[0mlow");
        let level_colour = Painted::from("careful");
        assert_eq!(level_colour.shown("warning: ", "33", true), "\u{1b}[33mwarning: careful\u{1b}[0m");
        assert_eq!(level_colour.shown("", "", true), "careful");
    }

    #[test]
    fn every_tone_except_plain_has_its_own_colour() {
        let [red, yellow, dim] = [Weight::Broken, Weight::Look, Weight::Note].map(Tone::from);
        let all = [red, yellow, dim, Tone::Bold, Tone::BoldGreen, Tone::BoldYellow, Tone::BoldRed];
        let shown: std::collections::BTreeSet<String> =
            all.iter().map(|tone| Painted::new(*tone, "x").shown("", "", true)).collect();
        assert!(shown.len() == all.len() && shown.iter().all(|text| text.starts_with('\u{1b}')), "{shown:?}");
    }
}
