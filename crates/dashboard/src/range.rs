//! A range of rewards, by which groups are filtered.

use lockstep::wire::Group;
use std::collections::BTreeMap;

/// Inclusive bounds of a reward: the mean reward of a group, or the reward of a single completion.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RewardRange {
    /// The lower bound.
    pub min: Option<f64>,
    /// The upper bound.
    pub max: Option<f64>,
    /// Whether one completion within the range suffices.
    pub per_completion: bool,
}

impl RewardRange {
    /// Parses the URL parameters `min`, `max` and `per`.
    pub fn parse(words: &BTreeMap<String, String>) -> Result<RewardRange, String> {
        let bound = |name: &str| match words.get(name).filter(|word| !word.is_empty()) {
            None => Ok(None),
            Some(word) => match word.parse::<f64>() {
                Ok(bound) if !bound.is_nan() => Ok(Some(bound)),
                _ => Err(format!("{name}={word:.40} is not a number: give a reward, such as {name}=0.5")),
            },
        };
        let per_completion = match words.get("per").map_or("", String::as_str) {
            "" | "group" => false,
            "completion" => true,
            other => return Err(format!("per={other:.40} is unknown: use group or completion")),
        };
        Ok(RewardRange { min: bound("min")?, max: bound("max")?, per_completion })
    }

    fn is_bounded(&self) -> bool {
        self.min.is_some() || self.max.is_some()
    }

    /// Whether this filter needs to read the completions of groups.
    pub fn reads(&self) -> bool {
        self.per_completion && self.is_bounded()
    }

    /// Whether a group's mean reward is in the range; always true if the filter applies to single completions. NaN, the
    /// mean of a group without scores, is never in a bounded range.
    pub fn fits_mean(&self, reward: f64) -> bool {
        self.per_completion || self.contains(reward)
    }

    /// Whether a completion of the group is in the range.
    pub fn fits_one(&self, group: &Group) -> bool {
        !self.reads() || group.totals().any(|total| self.contains(total))
    }

    fn contains(&self, reward: f64) -> bool {
        let (min, max) = (self.min.unwrap_or(f64::NEG_INFINITY), self.max.unwrap_or(f64::INFINITY));
        !self.is_bounded() || (min..=max).contains(&reward)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[(&str, &str)]) -> Result<RewardRange, String> {
        RewardRange::parse(&words.iter().map(|(name, word)| ((*name).to_owned(), (*word).to_owned())).collect())
    }

    #[test]
    fn bounds_are_parsed_and_invalid_ones_are_reported() {
        assert_eq!(parsed(&[("min", ""), ("per", "group")]), Ok(RewardRange::default()));
        let both = RewardRange { min: Some(-0.5), max: Some(2.0), per_completion: true };
        assert_eq!(parsed(&[("min", "-0.5"), ("max", "2"), ("per", "completion")]), Ok(both));
        let error = |words: &[(&str, &str)]| parsed(words).unwrap_err();
        assert_eq!(error(&[("min", "high")]), "min=high is not a number: give a reward, such as min=0.5");
        assert_eq!(error(&[("max", "NaN")]), "max=NaN is not a number: give a reward, such as max=0.5");
        assert_eq!(error(&[("per", "token")]), "per=token is unknown: use group or completion");
    }

    #[test]
    fn bounds_are_inclusive_and_missing_scores_are_excluded() {
        let range = |min, max| RewardRange { min, max, per_completion: false };
        let fits = |range: RewardRange| [0.5, 1.0, f64::NAN].map(|reward| range.fits_mean(reward));
        assert_eq!(fits(range(None, None)), [true, true, true]);
        assert_eq!(fits(range(Some(0.5), None)), [true, true, false]);
        assert_eq!(fits(range(Some(0.75), None)), [false, true, false]);
        assert_eq!(fits(range(None, Some(0.5))), [true, false, false]);
        assert_eq!(fits(range(Some(0.5), Some(0.5))), [true, false, false]);
    }
}
