//! Suggestions for misspelt names: finds the most similar known name.

/// The known name that is most similar to `name`; `None` if no known name is similar enough.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (name.chars().count() / 3).max(2);
    known.into_iter().map(|k| (distance(name, k), k)).min().filter(|(d, _)| *d <= limit).map(|(_, k)| k)
}

/// The end of an error message about an unknown name, "; did you mean `…`?", or an empty string if no known name is
/// similar.
pub fn did_you_mean<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, known).map_or_else(String::new, |near| format!("; did you mean `{near}`?"))
}

/// Optimal string alignment distance: the number of insertions, deletions, substitutions and swaps of neighbours.
/// Differences in letter case, and between `-` and `_`, cost nothing.
fn distance(a: &str, b: &str) -> usize {
    let fold = |text: &str| text.to_lowercase().replace('-', "_");
    strsim::osa_distance(&fold(a), &fold(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_similar_name_is_suggested() {
        let known = ["learning_rate", "num_generations", "beta"];
        assert_eq!(nearest("learnin_rate", known), Some("learning_rate"));
        assert_eq!(nearest("num-generation", known), Some("num_generations"));
        assert_eq!(nearest("btea", known), Some("beta"));
        assert_eq!(nearest("something_else", known), None);
        assert_eq!((distance("", "abc"), distance("kitten", "sitting"), distance("ab", "ba")), (3, 3, 1));
        assert_eq!(distance("A-b", "a_b"), 0);
    }
}
