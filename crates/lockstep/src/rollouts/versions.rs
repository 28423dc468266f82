//! Versions of weights that another run counted, or that are not known.

use model::Updates;
use std::borrow::Cow;

/// The version of unknown weights. Log-probabilities with this version are never compared with the trainer's.
pub(super) const NO_VERSION: Updates = Updates(u64::MAX);

/// A bit in a weight version: the number counts versions of the run that recorded it, not of this run.
pub(super) const OF_ANOTHER_RUN: u64 = 1 << 63;

/// The versions as the recording run numbered them; empty if one of them is not known.
pub(super) fn recorded_versions(versions: &[Updates]) -> Cow<'_, [Updates]> {
    // `NO_VERSION` has this bit, too.
    match versions.iter().any(|version| version.0 & OF_ANOTHER_RUN != 0) {
        true if versions.contains(&NO_VERSION) => Cow::Borrowed(&[]),
        true => versions.iter().map(|version| Updates(version.0 & !OF_ANOTHER_RUN)).collect(),
        false => Cow::Borrowed(versions),
    }
}
