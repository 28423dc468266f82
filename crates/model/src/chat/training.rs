//! Training versions of well-known chat templates, with `{% generation %}` around the assistant's text, as in TRL's
//! versions of the same templates (docs/decisions/0047).
//!
//! A template is identified by the hash of its text, so a changed template is a different one. Its training version is
//! not stored: it is derived from the model's own template by the edits in `training.json`. An edit is a position
//! (byte), a number of bytes to remove there, and a string to insert. `renders` describes the difference if the
//! training version renders conversations differently; most versions do not.

use serde::Deserialize;
use std::sync::LazyLock;
use twox_hash::XxHash3_128;

/// The name under which the training version of the default template is compiled.
pub(super) const NAME: &str = "default for training";

static KNOWN: LazyLock<Vec<Known>> =
    LazyLock::new(|| serde_json::from_str(include_str!("training.json")).expect("training.json is valid"));

/// A well-known template, and how its training version is derived.
#[derive(Debug, Deserialize)]
struct Known {
    /// XXH3 (128 bits) of the template, in hexadecimal.
    xxh3: String,
    /// Positions, bytes to remove, and strings to insert, in ascending order of the positions.
    edits: Vec<(usize, usize, String)>,
}

/// The training version of a template, if it is a well-known one.
pub(super) fn version(source: &str) -> Option<String> {
    // Python reads every line ending of a file as a line feed.
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let hash = format!("{:032x}", XxHash3_128::oneshot(source.as_bytes()));
    let known = KNOWN.iter().find(|known| known.xxh3 == hash)?;
    let (mut version, mut at) = (String::with_capacity(2 * source.len()), 0);
    for (place, removed, inserted) in &known.edits {
        version.push_str(&source[at..*place]);
        version.push_str(inserted);
        at = place + removed;
    }
    version.push_str(&source[at..]);
    Some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_edits_are_ordered_and_a_changed_template_has_no_training_version() {
        assert_eq!(KNOWN.len(), 31);
        for known in KNOWN.iter() {
            assert_eq!(known.xxh3.len(), 32);
            assert!(known.edits.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0), "{known:?}");
            let inserted: String = known.edits.iter().map(|(_, _, text)| text.as_str()).collect();
            let count = |word: &str| inserted.matches(word).count();
            assert!(count(" generation ") > 0 && count(" generation ") == count(" endgeneration "), "{known:?}");
        }
        assert_eq!(version("{{ messages }}"), None);
    }
}
