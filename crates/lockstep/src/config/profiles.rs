//! `[sampling_profiles.NAME]` sets different sampling parameters for a share of the groups; `[[workers]]` assigns
//! groups to workers. A group's profile depends only on the group's number, so results do not depend on the workers.

use super::engine::sampling;
use super::keys::Config;
use crate::bad_input;
use crate::error::{BadInput, OrBadInput};
use fleet::takes;
use model::GroupId;
use rollout::SamplingParams;
use serde::Deserialize;
use serde_json::{Map, Value as Json};
use std::collections::BTreeSet;
use std::sync::Arc;

/// An entry of `[[workers]]`: workers of one kind.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerKind {
    /// The number of workers of this kind.
    #[serde(default = "one")]
    pub count: u32,
    /// The profiles whose groups these workers generate; empty: all.
    #[serde(default)]
    pub profiles: Vec<String>,
    /// Threads of each worker; `None`: those of the run.
    pub threads: Option<usize>,
}

fn one() -> u32 {
    1
}

/// An entry `[sampling_profiles.NAME]`: the share of groups with this profile, and their sampling parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Profile {
    share: f64,
    max_completion_length: Option<usize>,
    top_p: Option<f64>,
    top_k: Option<usize>,
    min_p: Option<f64>,
    repetition_penalty: Option<f64>,
}

/// The sampling parameters of each group, which depend only on the group's number in the run.
#[derive(Clone, Debug)]
pub struct SamplingPlan {
    /// The sampling parameters without profiles.
    all: Arc<SamplingParams>,
    /// The profiles, each as its name, the cumulative sum of the shares up to this profile, and its sampling
    /// parameters.
    profiles: Vec<(String, f64, Arc<SamplingParams>)>,
}

impl SamplingPlan {
    /// A plan without profiles: all groups have the same sampling parameters.
    pub fn alike(sampling: Arc<SamplingParams>) -> SamplingPlan {
        SamplingPlan { all: sampling, profiles: Vec::new() }
    }

    /// The plan that a configuration describes.
    pub fn new(config: &Config, eos_ids: &[u32]) -> anyhow::Result<SamplingPlan> {
        let all = sampling(config, eos_ids);
        let (mut profiles, mut sum) = (Vec::new(), 0.0);
        for (name, own) in parsed(&config.sampling_profiles)? {
            sum += own.share;
            let params = SamplingParams {
                max_new_tokens: own.max_completion_length.unwrap_or(all.max_new_tokens),
                top_p: own.top_p.unwrap_or(all.top_p),
                top_k: own.top_k.unwrap_or(all.top_k),
                min_p: own.min_p.unwrap_or(all.min_p),
                repetition_penalty: own.repetition_penalty.unwrap_or(all.repetition_penalty),
                ..all.clone()
            };
            profiles.push((name, sum, Arc::new(params)));
        }
        Ok(SamplingPlan { all: Arc::new(all), profiles })
    }

    /// The sampling parameters outside any profile. Their temperature applies to all groups, and their completion
    /// length is the maximum for every profile.
    pub fn common(&self) -> &Arc<SamplingParams> {
        &self.all
    }

    /// The sampling parameters of a group.
    pub fn of(&self, group: GroupId) -> &Arc<SamplingParams> {
        self.entry(group).map_or(&self.all, |(_, _, params)| params)
    }

    /// The name of a group's profile, if there are profiles.
    pub fn profile(&self, group: GroupId) -> Option<&str> {
        self.entry(group).map(|(name, _, _)| name.as_str())
    }

    /// All distinct sampling parameters that groups may have.
    pub fn ways(&self) -> Vec<&SamplingParams> {
        if self.profiles.is_empty() {
            vec![&self.all]
        } else {
            self.profiles.iter().map(|(_, _, params)| &**params).collect()
        }
    }

    /// The names of all profiles.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.profiles.iter().map(|(name, _, _)| name.as_str())
    }

    /// The profile of a group. Multiples of the golden ratio modulo 1 are evenly distributed in
    /// every range of group numbers, so each batch has each profile's share to within a group or two.
    fn entry(&self, group: GroupId) -> Option<&(String, f64, Arc<SamplingParams>)> {
        let place = group.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) as f64 / 2f64.powi(64);
        // The last profile also gets the gap between the rounded sum of the shares and 1.
        self.profiles.iter().find(|(_, sum, _)| place < *sum).or(self.profiles.last())
    }
}

/// Parses `[sampling_profiles]` into (name, profile).
fn parsed(profiles: &Map<String, Json>) -> anyhow::Result<Vec<(String, Profile)>> {
    let parse = |(name, table): (&String, &Json)| {
        let in_key = || format!("`sampling_profiles.{name}`");
        let profile: Profile = serde_json::from_value(table.clone()).or_bad_input_in(in_key())?;
        Ok((name.clone(), profile))
    };
    profiles.iter().map(parse).collect()
}

/// Parses `[[workers]]`.
pub fn worker_kinds(config: &Config) -> anyhow::Result<Vec<WorkerKind>> {
    let parse = |(n, table): (usize, &Map<String, Json>)| {
        let kind = serde_json::from_value(Json::Object(table.clone()));
        kind.or_bad_input_in(format!("`workers`, entry {}", n + 1))
    };
    config.workers.iter().enumerate().map(parse).collect()
}

/// Notes on sampling parameters, of all groups or of a profile, that bias the gradient.
pub(crate) fn notes(config: &Config) -> anyhow::Result<Vec<String>> {
    if config.replay.is_some() {
        return Ok(Vec::new());
    }
    let plan = SamplingPlan::new(config, &[])?;
    let any = |is_on: fn(&SamplingParams) -> bool| plan.ways().into_iter().any(is_on);
    let truncated = [
        ("top_p", any(|way| way.top_p < 1.0)),
        ("top_k", any(|way| way.top_k > 0)),
        ("min_p", any(|way| way.min_p > 0.0)),
        ("repetition_penalty", any(|way| way.repetition_penalty != 1.0)),
    ];
    let named: Vec<&str> = truncated.iter().filter(|(_, on)| *on).map(|(name, _)| *name).collect();
    if named.is_empty() {
        return Ok(Vec::new());
    }
    Ok(vec![format!(
        "{} {} the sampling distribution, but log-probabilities are those of the full distribution: the policy \
         gradient is biased, and the importance ratio does not correct it (docs/algorithms.md)",
        named.join(", "),
        if named.len() == 1 { "changes" } else { "change" }
    )])
}

/// Refuses profiles with impossible values, and `[[workers]]` entries that leave a profile without a worker.
pub(crate) fn check(config: &Config) -> anyhow::Result<()> {
    let (profiles, kinds) = (parsed(&config.sampling_profiles)?, worker_kinds(config)?);
    for (name, profile) in &profiles {
        let refuse = |key: &str, is: String, fix: &str| {
            Err(BadInput::new(format!("`sampling_profiles.{name}.{key}` is {is}, but must be {fix}")))
        };
        if !(profile.share > 0.0 && profile.share <= 1.0) {
            return refuse(
                "share",
                profile.share.to_string(),
                "the share of groups with this profile, above 0 and at most 1",
            );
        }
        let (most, length) = (config.max_completion_length, profile.max_completion_length);
        if let Some(length) = length.filter(|&length| length == 0 || length > most) {
            return refuse(
                "max_completion_length",
                length.to_string(),
                &format!("from 1 to max_completion_length = {most}"),
            );
        }
        if let Some(p) = profile.top_p.filter(|p| !(*p > 0.0 && *p <= 1.0)) {
            return refuse("top_p", p.to_string(), "above 0 and at most 1");
        }
        if let Some(p) = profile.min_p.filter(|p| !(0.0..=1.0).contains(p)) {
            return refuse("min_p", p.to_string(), "from 0 to 1");
        }
        if let Some(penalty) = profile.repetition_penalty.filter(|p| !(*p > 0.0 && p.is_finite())) {
            return refuse("repetition_penalty", penalty.to_string(), "above 0");
        }
    }
    let sum: f64 = profiles.iter().map(|(_, profile)| profile.share).sum();
    if !profiles.is_empty() && (sum - 1.0).abs() > 1e-9 {
        bad_input!("the shares of `sampling_profiles` must sum to 1, but sum to {sum}");
    }
    if !profiles.is_empty() && config.replay.is_some() {
        bad_input!("`sampling_profiles` is for generated completions, but `replay` reads them from a file: remove one");
    }
    let names: BTreeSet<&str> = profiles.iter().map(|(name, _)| name.as_str()).collect();
    for (n, kind) in kinds.iter().enumerate() {
        if kind.count == 0 || kind.threads == Some(0) {
            bad_input!("`workers`, entry {}: count and threads must be at least 1", n + 1);
        }
        if let Some(unknown) = kind.profiles.iter().find(|name| !names.contains(name.as_str())) {
            bad_input!(
                "`workers`, entry {}: unknown profile `{unknown}`; the profiles are: {}",
                n + 1,
                listed(names.iter().copied())
            );
        }
    }
    let is_made = |name: &&str| kinds.iter().any(|kind| takes(&kind.profiles, name));
    if let Some(nobodys) = names.iter().find(|name| !kinds.is_empty() && !is_made(name)) {
        bad_input!("no entry of `workers` lists the profile \"{nobodys}\", so no worker would generate its groups");
    }
    Ok(())
}

/// Joins names by commas for a message; `none` if there are none.
pub(crate) fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config(profiles: Json, workers: Json) -> Config {
        Config {
            sampling_profiles: profiles.as_object().cloned().unwrap_or_default(),
            workers: serde_json::from_value(workers).unwrap(),
            max_completion_length: 64,
            ..Config::default()
        }
    }

    #[test]
    fn every_range_of_groups_has_each_profiles_share() {
        let profiles = json!({"fast": {"share": 0.75, "max_completion_length": 16}, "quality": {"share": 0.25}});
        let plan = SamplingPlan::new(&config(profiles, json!([])), &[0]).unwrap();
        for first in [0u64, 1, 1000, u64::MAX / 2, 1 << 60] {
            for length in [8u64, 16, 100] {
                let fast = (first..first + length).filter(|&n| plan.profile(GroupId(n)) == Some("fast")).count() as f64;
                assert!((fast - 0.75 * length as f64).abs() <= 2.0, "{fast} of {length} from {first}");
            }
        }
        let is_fast = |n| plan.profile(GroupId(n)) == Some("fast");
        assert!((0..50).all(|n| plan.of(GroupId(n)).max_new_tokens == if is_fast(n) { 16 } else { 64 }));
        assert_eq!(plan.names().collect::<Vec<_>>(), ["fast", "quality"]);
        assert_eq!(plan.ways().len(), 2);
        assert!(plan.ways().iter().all(|way| way.temperature == plan.common().temperature));
    }

    #[test]
    fn without_profiles_all_groups_have_the_same_parameters() {
        let plan = SamplingPlan::new(&config(json!({}), json!([])), &[0]).unwrap();
        assert!((0..9).map(GroupId).all(|n| plan.profile(n).is_none() && Arc::ptr_eq(plan.of(n), plan.common())));
    }
}
