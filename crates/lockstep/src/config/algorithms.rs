//! Algorithms have defaults of their own: they fill in what nobody set.

use super::{Algorithm, Config, Origin, Resolved};

/// The keys whose default is another than the table's, with that default.
fn defaults(algorithm: Algorithm) -> &'static [(&'static str, &'static str)] {
    match algorithm {
        Algorithm::Grpo => &[],
    }
}

/// Fills in the defaults of `resolved`'s algorithm where nobody set the key.
pub(super) fn apply(resolved: &mut Resolved) {
    for &(name, text) in defaults(resolved.config.algorithm) {
        let key = Config::key(name).expect("a key of the table");
        if !resolved.is_set(name) {
            (key.read_text)(&mut resolved.config, text).expect("a value of the key's type");
            resolved.origins.insert(key.name, Origin::Algorithm);
        }
    }
}
