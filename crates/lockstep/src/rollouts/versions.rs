//! Versions of weights that are unknown, or that another run counted.

use model::Updates;
use std::borrow::Cow;

/// The version of unknown weights. Log-probabilities with this version are never compared with the trainer's.
pub(super) const NO_VERSION: Updates = Updates(u64::MAX);

/// A bit that marks a version as counted by the run that recorded it, not by this run.
pub(super) const OF_ANOTHER_RUN: u64 = 1 << 63;

/// The versions as the recording run counted them; empty if one of them is unknown.
pub(super) fn recorded_versions(versions: &[Updates]) -> Cow<'_, [Updates]> {
    // `NO_VERSION` has this bit, too.
    match versions.iter().any(|version| version.0 & OF_ANOTHER_RUN != 0) {
        true if versions.contains(&NO_VERSION) => Cow::Borrowed(&[]),
        true => versions.iter().map(|version| Updates(version.0 & !OF_ANOTHER_RUN)).collect(),
        false => Cow::Borrowed(versions),
    }
}
