//! Chooses and counts the workers' answers that the learner audits.

use crate::config::{Config, Trust};
use crate::error::OrBadInput;
use model::GroupId;
use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};

/// Chooses the audited answers, and counts the results since the learner started.
pub(super) struct Auditor {
    /// The shares, from 0 to 1, of groups that are regenerated (`remade`) and of groups whose log-probabilities are
    /// recomputed (`rescored`).
    pub(super) remade: f64,
    pub(super) rescored: f64,
    /// Random keys that choose the groups. A worker must not be able to predict the choice, since it could then lie
    /// about the other groups.
    pick: RandomState,
    /// The names of the deterministic rewards, whose repeated scores can be compared.
    pub(super) asked_again: BTreeSet<String>,
    pub(super) counts: Counts,
}

#[derive(Default)]
pub(super) struct Counts {
    /// The audited groups. This is a set because parts of a group may be audited at different times: for a checkpoint,
    /// and when the batch arrives.
    pub(super) groups: BTreeSet<GroupId>,
    pub(super) tokens: usize,
    pub(super) mismatches: usize,
}

impl Auditor {
    /// An auditor with the configured shares.
    pub fn new(config: &Config) -> anyhow::Result<Auditor> {
        let names = rewards::names(&config.reward_funcs).or_bad_input()?;
        let pairs = names.into_iter().zip(&config.reward_funcs);
        Ok(Auditor {
            remade: if config.trust == Trust::Audit { config.audit_share } else { 0.0 },
            rescored: if config.max_staleness > 0 { config.audit_stale } else { 0.0 },
            pick: RandomState::new(),
            asked_again: pairs.filter(|(_, spec)| spec.is_deterministic()).map(|(name, _)| name).collect(),
            counts: Counts::default(),
        })
    }

    /// Whether auditing needs the older weights of an answer.
    pub fn is_on(&self) -> bool {
        self.remade > 0.0 || self.rescored > 0.0
    }

    pub(super) fn picks(&self, share: f64, group: GroupId) -> bool {
        // 53 random bits give a number below 1.
        ((self.pick.hash_one(group) >> 11) as f64) < share * (1u64 << 53) as f64
    }

    /// The logged metrics, without their prefix. `expelled` counts the expelled workers, including those with
    /// unreadable answers.
    pub fn metrics(&self, expelled: usize) -> Vec<(&'static str, f64)> {
        let Counts { groups, tokens, mismatches } = &self.counts;
        let all = [
            (self.remade, "groups_audited", groups.len()),
            (self.remade, "workers_expelled", expelled),
            (self.rescored, "logp_audited_tokens", *tokens),
            (self.rescored, "logp_mismatch_tokens", *mismatches),
        ];
        all.into_iter().filter(|(share, ..)| *share > 0.0).map(|(_, name, count)| (name, count as f64)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn auditor(change: impl FnOnce(&mut Config)) -> Auditor {
        let mut config =
            Config { reward_funcs: vec!["unique_chars".into(), "command:./r".into()], ..Config::default() };
        (config.audit_share, config.audit_stale) = (0.25, 0.5);
        change(&mut config);
        Auditor::new(&config).unwrap()
    }

    #[test]
    fn audited_shares_follow_the_configuration() {
        let of = |change: fn(&mut Config)| {
            let auditor = auditor(change);
            (auditor.remade, auditor.rescored, auditor.is_on())
        };
        assert_eq!(of(|_| {}), (0.0, 0.0, false));
        assert_eq!(of(|c| c.trust = Trust::Audit), (0.25, 0.0, true));
        assert_eq!(of(|c| c.max_staleness = 1), (0.0, 0.5, true));
        assert_eq!(of(|c| (c.trust, c.max_staleness) = (Trust::Audit, 1)), (0.25, 0.5, true));
        assert_eq!(of(|c| (c.max_staleness, c.audit_stale) = (1, 0.0)), (0.0, 0.0, false));
        assert_eq!(auditor(|_| {}).asked_again, ["unique_chars".to_owned()].into());
    }

    #[test]
    fn the_configured_share_of_the_groups_is_picked() {
        let auditor = auditor(|_| {});
        let picked =
            |share: f64| (0..4000).map(GroupId).filter(|&group| auditor.picks(share, group)).collect::<BTreeSet<_>>();
        assert_eq!((picked(0.0).len(), picked(1.0).len()), (0, 4000));
        let (quarter, half) = (picked(0.25), picked(0.5));
        // The bounds are about twenty standard deviations away on each side.
        assert!((450..1550).contains(&quarter.len()) && (1400..2600).contains(&half.len()));
        assert!(quarter.is_subset(&half) && quarter == picked(0.25), "the choice is deterministic for a key");
    }
}
