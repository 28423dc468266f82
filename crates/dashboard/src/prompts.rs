//! Recorded groups by prompt: how the reward of one prompt changes from step to step.

use crate::groups::{READ_AT_MOST, prompt_of, whole_prompt_of};
use crate::series::short;
use lockstep::wire::file::GroupFile;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::time::Instant;
use telemetry::Step;

/// Maximum number of points of a prompt's curve in a list of prompts, and of the curve of one prompt.
const IN_LIST: usize = 40;
const ALONE: usize = 2000;

/// The prompts that the page requests, and their order.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// The order: `fell` (the largest decrease of the reward first), `rose` (the largest increase first), or `unsolved`
    /// (the lowest best reward first).
    pub sort: String,
    /// A string that the prompt must contain; case is ignored.
    pub text: String,
    /// Only this prompt, with all its points.
    pub prompt: Option<u64>,
    /// Index of the first prompt in the response; `limit` is the maximum number of prompts.
    pub after: usize,
    /// Maximum number of prompts in the response.
    pub limit: usize,
}

/// A prompt, with the indices of its groups in the file, ordered by step.
struct Prompt<'a> {
    file: &'a GroupFile,
    places: Vec<usize>,
    change: Change,
}

/// The mean rewards of the first third and of the last third of a prompt's groups.
struct Change {
    from: f64,
    to: f64,
    /// Whether the reward fell significantly: by more than two standard errors. With one group per third, the noise is
    /// unknown.
    fell: bool,
}

impl Change {
    /// Computes the change of rewards in the order of their steps. Groups without a score are ignored.
    fn of(rewards: &[f64]) -> Change {
        let rewards: Vec<f64> = rewards.iter().copied().filter(|reward| !reward.is_nan()).collect();
        let third = rewards.len().div_ceil(3);
        let of = |rewards: &[f64]| {
            let n = rewards.len() as f64;
            let mean = rewards.iter().sum::<f64>() / n;
            (mean, rewards.iter().map(|reward| (reward - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0) / n)
        };
        let ((from, before), (to, after)) = (of(&rewards[..third]), of(&rewards[rewards.len() - third..]));
        let error = (before + after).sqrt();
        Change { from, to, fell: rewards.len() > 3 && from - to > 2.0 * error }
    }
}

impl Prompt<'_> {
    /// Step, reward and file index of a group.
    fn point(&self, place: usize) -> (Step, f64, usize) {
        let entry = &self.file.index()[place];
        (entry.step.unwrap_or_default(), entry.reward, place)
    }

    fn first(&self) -> (Step, f64, usize) {
        self.point(self.places[0])
    }

    fn last(&self) -> (Step, f64, usize) {
        self.point(self.places[self.places.len() - 1])
    }

    /// The group with the highest reward; the last one if several have it. Groups without a score are ignored.
    fn best(&self) -> (Step, f64, usize) {
        let points = self.places.iter().map(|&place| self.point(place)).filter(|(_, reward, _)| !reward.is_nan());
        points.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_else(|| self.last())
    }

    /// The lowest reward; NaN if no group has a score.
    fn least(&self) -> f64 {
        self.places.iter().map(|&place| self.point(place).1).fold(f64::NAN, f64::min)
    }

    fn to_json(&self, most: usize) -> Value {
        let every = self.places.len().div_ceil(most).max(1);
        // The last point is always included.
        let is_shown = |at: &usize| (self.places.len() - 1 - at).is_multiple_of(every);
        let point = |(step, reward, place): (Step, f64, usize)| json!([step, short(reward), place]);
        let points = (0..self.places.len()).filter(is_shown).map(|at| point(self.point(self.places[at])));
        let last = self.last().2;
        json!({
            "prompt_hash": format!("{:016x}", self.file.index()[last].prompt_hash),
            "prompt": prompt_of(self.file, last),
            "groups": self.places.len(),
            "first": point(self.first()),
            "best": point(self.best()),
            "last": point(self.last()),
            "least": short(self.least()),
            "from": short(self.change.from),
            "to": short(self.change.to),
            "fell": self.change.fell,
            "points": points.collect::<Vec<_>>(),
        })
    }
}

/// The requested prompts, the number of matching prompts, and the number of prompts whose reward fell significantly:
/// `{"total", "fell", "prompts": […], "next", "unread"}`. A point is `[step, reward, place]`. `unread` is the number of
/// prompts that the search could not read in time.
pub fn prompts(file: &GroupFile, wanted: &Wanted) -> Value {
    let mut by_prompt: HashMap<u64, Vec<usize>> = HashMap::new();
    for (place, entry) in file.index().iter().enumerate() {
        if entry.step.is_some() && wanted.prompt.is_none_or(|prompt| prompt == entry.prompt_hash) {
            by_prompt.entry(entry.prompt_hash).or_default().push(place);
        }
    }
    let (since, text, mut unread) = (Instant::now(), wanted.text.to_lowercase(), 0);
    if !text.is_empty() {
        by_prompt.retain(|_, places| {
            if since.elapsed() > READ_AT_MOST {
                unread += 1;
                return false;
            }
            whole_prompt_of(file, places[0]).to_lowercase().contains(&text)
        });
    }
    let in_order = |mut places: Vec<usize>| {
        places.sort_by_key(|&place| (file.index()[place].step, place));
        let rewards: Vec<f64> = places.iter().map(|&place| file.index()[place].reward).collect();
        Prompt { file, places, change: Change::of(&rewards) }
    };
    let order = |prompt: &Prompt<'_>| -> f64 {
        match wanted.sort.as_str() {
            "rose" => prompt.change.from - prompt.change.to,
            "unsolved" => prompt.best().1,
            _ => prompt.change.to - prompt.change.from,
        }
    };
    // The order is computed once per prompt, since it reads all groups of the prompt.
    let prompts = by_prompt.into_values().map(in_order);
    let mut all: Vec<_> = prompts.map(|prompt| (order(&prompt), prompt)).collect();
    // Prompts without a score come last.
    all.sort_by(|(a, first), (b, second)| {
        a.is_nan().cmp(&b.is_nan()).then(a.total_cmp(b)).then(first.places[0].cmp(&second.places[0]))
    });
    let most = if wanted.prompt.is_some() { ALONE } else { IN_LIST };
    let shown: Vec<Value> =
        all.iter().skip(wanted.after).take(wanted.limit).map(|(_, prompt)| prompt.to_json(most)).collect();
    let next = Some(wanted.after + shown.len()).filter(|&next| next < all.len());
    let fell = all.iter().filter(|(_, prompt)| prompt.change.fell).count();
    json!({ "total": all.len(), "fell": fell, "prompts": shown, "next": next, "unread": unread })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::tests::recorded;
    use lockstep::wire::{Completion, Group, GroupId};

    #[test]
    fn prompts_are_sorted_by_the_change_in_their_reward() {
        let dir = tempfile::tempdir().unwrap();
        // Rewards of three prompts at steps 1 to 4: the first rises, the second rises and then falls, the third stays
        // at 0.
        let rewards = [[0.0, 1.0, 2.0, 3.0], [2.0, 2.5, 1.0, 1.5], [0.0, 0.0, 0.0, 0.0]];
        let of_step = |step: usize| (0..3).map(move |prompt| (step, prompt));
        let groups = (0..4).flat_map(of_step).map(|(step, prompt)| {
            let completion =
                |i| Completion { rewards: vec![Some(rewards[prompt][step])], ..Completion::new(i, vec![1]) };
            Group {
                group: GroupId((3 * step + prompt) as u64),
                step: Some(Step(step as u64 + 1)),
                prompt_ids: vec![prompt as u32],
                prompt: Some(format!("question {prompt}").into()),
                reward_names: vec!["r".into()],
                reward_weights: vec![1.0],
                completions: vec![completion(0), completion(1)],
                ..Group::default()
            }
        });
        let file = recorded(dir.path(), groups);
        let sorted =
            |sort: &str, limit: usize| prompts(&file, &Wanted { sort: sort.into(), limit, ..Wanted::default() });
        let first = |sort: &str| sorted(sort, 9)["prompts"][0]["prompt"].as_str().unwrap().to_owned();
        assert_eq!(["fell", "rose", "unsolved"].map(first), ["question 1", "question 0", "question 2"]);
        let fell = &sorted("fell", 1);
        assert_eq!((&fell["total"], &fell["next"]), (&json!(3), &json!(1)));
        let one = &fell["prompts"][0];
        assert_eq!(
            [&one["first"], &one["best"], &one["last"]],
            [&json!([1, 2.0, 1]), &json!([2, 2.5, 4]), &json!([4, 1.5, 10])]
        );
        assert_eq!([&one["from"], &one["to"], &one["fell"]], [&json!(2.25), &json!(1.25), &json!(true)]);
        assert_eq!(fell["fell"], 1, "of the other prompts, one rose and one stayed");
        let hash = u64::from_str_radix(one["prompt_hash"].as_str().unwrap(), 16).unwrap();
        let alone = prompts(&file, &Wanted { prompt: Some(hash), limit: 1, ..Wanted::default() });
        assert_eq!(alone["prompts"][0]["points"].as_array().unwrap().len(), 4);
        assert_eq!(alone["total"], 1);
    }

    #[test]
    fn a_change_counts_if_it_exceeds_two_standard_errors() {
        let of = |rewards: &[f64]| {
            let Change { from, to, fell } = Change::of(rewards);
            (from, to, fell)
        };
        assert_eq!(of(&[1.0]), (1.0, 1.0, false));
        assert_eq!(of(&[3.0, 2.0, 1.0]), (3.0, 1.0, false), "the noise is unknown with one group per third");
        assert_eq!(of(&[3.0, 3.0, 1.0, 1.0]), (3.0, 1.0, true));
        assert_eq!(of(&[1.0, 1.0, 3.0, 3.0]), (1.0, 3.0, false), "it rose");
        // Thirds of two values, each with variance 2: a standard error of √2. The rewards fall by 2 and by 3.
        assert_eq!(of(&[4.0, 6.0, 9.0, 2.0, 4.0]), (5.0, 3.0, false));
        assert_eq!(of(&[4.0, 6.0, 9.0, 1.0, 3.0]), (5.0, 2.0, true));
        // Seven values: thirds of three, with variances 1 and 0.
        assert_eq!(of(&[1.0, 2.0, 3.0, 9.0, 0.5, 0.5, 0.5]), (2.0, 0.5, true));
        assert_eq!(of(&[1.0, 2.0, 3.0, 9.0, 1.0, 1.0, 1.0]), (2.0, 1.0, false));
    }

    #[test]
    fn a_prompt_is_returned_in_full_and_a_long_curve_keeps_its_last_point() {
        let dir = tempfile::tempdir().unwrap();
        let group = |id: u64, step: Option<u64>, reward: f64, prompt: u32| Group {
            group: GroupId(id),
            step: step.map(Step),
            prompt_ids: vec![prompt],
            prompt: Some(format!("question {prompt}").into()),
            reward_names: vec!["r".into()],
            reward_weights: vec![1.0],
            completions: vec![Completion { rewards: vec![Some(reward)], ..Completion::new(0, vec![1]) }],
            ..Group::default()
        };
        // The groups are written out of order. The last group with the highest reward is the best.
        let rewards = [0.5, 1.0, 1.0, 0.0];
        let of_steps = [4u64, 2, 3, 1].map(|step| group(step, Some(step), rewards[4 - step as usize], 7));
        let long = (1..=81).map(|step| group(100 + step, Some(step), 0.25, 8));
        let other = [group(300, None, 9.0, 7), group(301, Some(1), 0.75, 9)];
        let file = recorded(dir.path(), of_steps.into_iter().chain(long).chain(other));
        let all = prompts(&file, &Wanted { sort: "unsolved".into(), limit: 2, ..Wanted::default() });
        assert_eq!([&all["total"], &all["fell"], &all["next"]], [&json!(3), &json!(0), &json!(2)]);
        let long = &all["prompts"][0];
        assert_eq!([&long["prompt"], &long["groups"]], [&json!("question 8"), &json!(81)]);
        let points = long["points"].as_array().unwrap();
        assert_eq!((points.len(), &points[0], &points[26]), (27, &json!([3, 0.25, 6]), &json!([81, 0.25, 84])));
        let rest = prompts(&file, &Wanted { sort: "unsolved".into(), after: 2, limit: 2, ..Wanted::default() });
        let hash = file.index()[0].prompt_hash;
        let one = json!({
            "prompt_hash": format!("{hash:016x}"),
            "prompt": "question 7",
            "groups": 4,
            "first": [1, 0.0, 3],
            "best": [3, 1.0, 2],
            "last": [4, 0.5, 0],
            "least": 0.0,
            "from": 0.5,
            "to": 0.75,
            "fell": false,
            "points": [[1, 0.0, 3], [2, 1.0, 1], [3, 1.0, 2], [4, 0.5, 0]],
        });
        assert_eq!(rest, json!({ "total": 3, "fell": 0, "prompts": [one], "next": null, "unread": 0 }));
        let hash = file.index()[4].prompt_hash;
        let alone = prompts(&file, &Wanted { prompt: Some(hash), limit: 9, ..Wanted::default() });
        assert_eq!((&alone["total"], alone["prompts"][0]["points"].as_array().unwrap().len()), (&json!(1), 81));
        let found = |text: &str| {
            let answer = prompts(&file, &Wanted { text: text.into(), limit: 9, ..Wanted::default() });
            (answer["total"].clone(), answer["prompts"][0]["prompt"].clone())
        };
        assert_eq!(found("ION 8"), (json!(1), json!("question 8")), "case must be ignored");
        assert_eq!((found("question").0, found("answer").0), (json!(3), json!(0)));
        // Prompts with equal changes are in the order of their first groups.
        let equal = prompts(&file, &Wanted { limit: 9, ..Wanted::default() });
        let names: Vec<_> = equal["prompts"].as_array().unwrap().iter().map(|one| &one["prompt"]).collect();
        assert_eq!(names, ["question 8", "question 9", "question 7"]);
    }
}
