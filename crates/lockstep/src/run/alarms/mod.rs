//! Alarms: signs that a training run is going wrong, raised while it is still running. All conditions are checked once
//! per step.
//!
//! Each condition is a row of [`conditions`]. If the condition holds for the required number of consecutive checks, the
//! alarm is raised once, with the evidence, the step where it began, and the usual remedy. The alarm ends when the
//! condition has not held for a while. Alarms depend only on the run's metrics and texts, and checkpoints contain their
//! state, so a resumed run raises the same alarms. An alarm is reported as an event ([`telemetry::EventKind::Alarm`]).

mod conditions;
mod measured;
mod noise;
mod repetition;
mod signs;
mod spread;
#[cfg(test)]
mod tests;
mod values;

use super::bits64::Bits64;
use crate::rollouts::Rollouts;
use conditions::Condition;
use kernels::mean::{mean, over, share};
use measured::Measured;
use noise::Dependence;
use rewards::Problem;
use serde::{Deserialize, Serialize};
use signs::{GenerationSigns, Row};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use telemetry::{Alarm, Step};

/// An alarm ends after this many checks in a row in which its condition does not hold.
const OVER_AFTER: u32 = 5;
/// How many of the latest steps and generations are kept.
const REMEMBERED: usize = 20;
/// The number of generations in each of the two means that are compared: that of the first kept generations, and that
/// of the last.
const COMPARED: usize = 5;
/// The number of completions that an alarm shows as examples.
const EXAMPLES: usize = 3;
/// Alarms about the best-scored completions need at least this many of them.
const FEWEST_WINNERS: usize = 2;
/// A reward may be reported as independent of the text only after this many completions and generations.
const MIN_SEEN: (u64, u64) = (400, 20);
/// A reward with at least this many pairs of equal texts with equal scores is not considered random.
const FEWEST_EQUAL: u64 = 5;
/// The largest number of alarms kept for the end of the run.
const KEPT: usize = 100;
/// The words after a reward's name in an alarm about an evaluation.
const IN_EVALUATION: &str = "in evaluation";

/// All alarms of a run: their state, and the observations of the current step.
#[derive(Default)]
pub struct Alarms {
    state: AlarmState,
    /// Observations from the current step's batch.
    observed: Observations,
    /// Models whose optimizer step was skipped: the name, and the loss and gradient norm as text.
    not_finite: Vec<(String, String)>,
    /// The number of sequences in the step, if all their tokens are masked out of the loss.
    masked: Option<u64>,
}

/// Observations of one step's batch. [`Alarms::take`] receives them when the step is taken.
#[derive(Default)]
pub struct Observations {
    generation: Option<GenerationSigns>,
    problems: Vec<Problem>,
    /// Sampled tokens unknown to the tokenizer, and all sampled tokens.
    unknown_tokens: (usize, usize),
}

impl Observations {
    /// Adds the reward failures of a scored generation.
    pub fn problems(&mut self, problems: &[Problem]) {
        self.problems.extend_from_slice(problems);
    }

    /// Adds the groups that the step learns from.
    pub fn generation(&mut self, rollouts: &Rollouts) {
        self.generation = Some(GenerationSigns::of(rollouts));
    }

    /// Adds the number of sampled tokens beyond the tokenizer's vocabulary, and of all sampled tokens.
    pub fn tokens(&mut self, unknown: usize, all: usize) {
        self.unknown_tokens = (self.unknown_tokens.0 + unknown, self.unknown_tokens.1 + all);
    }
}

/// The state of the alarms between steps, saved in checkpoints.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AlarmState {
    /// Streaks by condition and subject, such as a reward's name.
    streaks: BTreeMap<String, Streak>,
    history: History,
    /// Alarms in the order in which they were raised.
    raised: Vec<Alarm>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Streak {
    since: Step,
    /// Checks in a row in which the condition held.
    held: u32,
    /// Checks in a row in which the condition did not hold, after the alarm was raised.
    quiet: u32,
    raised: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct History {
    /// Entropies of the first steps.
    entropies: Vec<Bits64>,
    /// Losses of the first steps, in runs without sampling (SFT, DPO).
    losses: Vec<Bits64>,
    /// The KL divergence from the reference model in the first step, in nats per token.
    first_kl: Option<Bits64>,
    /// Whether nearly all completions of every generation so far were truncated.
    cut_from_the_first: Option<bool>,
    /// For each reward, statistics of how its score depends on the text.
    dependences: BTreeMap<String, Dependence>,
    /// Gradient norms of the last steps, without zeros.
    grad_norms: VecDeque<Bits64>,
    /// Mean reward, length and repetition of each of the last generations.
    generations: VecDeque<[Bits64; 3]>,
    /// For each reward that gave all completions of the last generation the same score, this score.
    constants: BTreeMap<String, Bits64>,
    /// The lowest total reward so far.
    lowest: Option<Bits64>,
    /// Counts of completions with low rewards so far: all, and those that are empty, broken, repetitive and odd (as in
    /// `Row`).
    others: Vec<u64>,
}

/// A condition that holds now, with its evidence.
struct Detection {
    condition: &'static Condition,
    subject: String,
    evidence: String,
    examples: Vec<String>,
    quiet: bool,
    /// The remedy, if it differs from the condition's usual one.
    remedy: Option<&'static str>,
}

impl Detection {
    fn new(condition: &'static Condition, evidence: String) -> Detection {
        Detection { condition, subject: String::new(), evidence, examples: Vec::new(), quiet: false, remedy: None }
    }

    fn of(self, subject: impl Into<String>) -> Detection {
        Detection { subject: subject.into(), ..self }
    }

    fn showing<'a>(self, rows: impl IntoIterator<Item = &'a Row>) -> Detection {
        Detection { examples: example_rows(rows).map(Row::example).collect(), ..self }
    }

    /// An alarm about the reward `k`, whose examples are completions with scores of this reward.
    fn about_reward(self, signs: &GenerationSigns, k: usize) -> Detection {
        let scored = signs.rows().filter(|row| row.scores.get(k).is_some_and(Option::is_some));
        let examples = example_rows(scored).map(|row| row.example_of(k)).collect();
        Detection { examples, ..self.of(&signs.rewards[k].name) }
    }

    fn from_problem(problem: &Problem) -> Detection {
        let condition = conditions::for_problem(problem.kind);
        Detection::new(condition, problem.to_string()).of(problem.reward.clone())
    }
}

/// Some of the rows as examples: the first of each prompt, then further rows if prompts are few.
fn example_rows<'a>(rows: impl IntoIterator<Item = &'a Row>) -> impl Iterator<Item = &'a Row> {
    let mut seen = BTreeSet::new();
    let (first, others): (Vec<&Row>, Vec<&Row>) = rows.into_iter().partition(|row| seen.insert(row.prompt));
    first.into_iter().chain(others).take(EXAMPLES)
}

impl Alarms {
    /// The state that a checkpoint saves.
    pub fn state(&self) -> AlarmState {
        self.state.clone()
    }

    /// Alarms that continue from a checkpoint's state.
    pub fn restore(state: AlarmState) -> Alarms {
        Alarms { state, ..Alarms::default() }
    }

    /// The alarms raised so far. Alarms without an end are still active.
    pub fn raised(&self) -> &[Alarm] {
        &self.state.raised
    }

    /// Takes the observations of a step's batch when the step is taken.
    pub fn take(&mut self, observed: Observations) {
        self.observed = observed;
    }

    /// Records that the optimizer step of `model` was skipped because its loss or gradient was not finite.
    pub fn not_finite(&mut self, model: &str, numbers: String) {
        self.not_finite.push((model.to_owned(), numbers));
    }

    /// Records that no token of the step's `sequences` is in the loss: all are masked.
    pub fn all_masked(&mut self, sequences: u64) {
        self.masked = Some(sequences);
    }

    /// Checks an evaluation after `step`. `problems` are its reward failures; `unscored` is a message about the
    /// completions without a score, if there are too many.
    pub fn evaluation(&mut self, step: Step, problems: &[Problem], unscored: Option<String>) -> Vec<Alarm> {
        let mut seen: Vec<Detection> = problems.iter().map(Detection::from_problem).collect();
        seen.extend(unscored.map(|evidence| Detection::new(&conditions::UNSCORED, evidence)));
        for detection in &mut seen {
            detection.subject = format!("{} {IN_EVALUATION}", detection.subject).trim_start().to_owned();
        }
        self.state.take(step, seen, |_, key| key.ends_with(IN_EVALUATION))
    }

    /// Checks all conditions after optimizer step `step`, with its metrics. Returns the alarms that begin or end now.
    pub fn end_step(&mut self, step: Step, values: &BTreeMap<String, f64>) -> Vec<Alarm> {
        let Observations { generation, problems, unknown_tokens } = std::mem::take(&mut self.observed);
        let not_finite = std::mem::take(&mut self.not_finite);
        let skipped = |(model, numbers)| Detection::new(&conditions::NOT_FINITE, numbers).of(model);
        let mut seen: Vec<Detection> = not_finite.into_iter().map(skipped).collect();
        let masked = std::mem::take(&mut self.masked);
        seen.extend(masked.map(|sequences| values::all_masked(sequences, values)));
        let history = &mut self.state.history;
        let measured = Measured { values, generation: generation.as_ref() };
        history.look_at_values(step, &measured, &mut seen);
        seen.extend(values::tokens_without_text(unknown_tokens));
        if let Some(signs) = &generation {
            history.look_at_generation(signs, problems.is_empty(), &mut seen);
        }
        for problem in &problems {
            let same = |s: &&Detection| {
                s.subject == problem.reward && s.condition.id == conditions::for_problem(problem.kind).id
            };
            if !seen.iter().any(|s| same(&s)) {
                seen.push(Detection::from_problem(problem));
            }
        }
        let measures = |condition: &Condition, key: &str| {
            measured.has(condition, key.split_once(' ').map_or("", |(_, subject)| subject))
        };
        self.state.take(step, seen, |condition, key| measures(condition, key) && !key.ends_with(IN_EVALUATION))
    }
}

impl AlarmState {
    /// Updates the streaks of all conditions. A condition without a detection does not hold if `looked` returns true
    /// for it, and is unknown otherwise.
    fn take(&mut self, step: Step, seen: Vec<Detection>, looked: impl Fn(&Condition, &str) -> bool) -> Vec<Alarm> {
        let mut out = Vec::new();
        let mut held = BTreeSet::new();
        for Detection { condition, subject, evidence, examples, quiet, remedy } in seen {
            let key = format!("{} {subject}", condition.id);
            let new = Streak { since: step, held: 0, quiet: 0, raised: false };
            let streak = self.streaks.entry(key.clone()).or_insert(new);
            (streak.held, streak.quiet) = (streak.held.saturating_add(1), 0);
            if !streak.raised && streak.held >= condition.patience {
                streak.raised = true;
                // A quiet alarm is about configured behaviour, and is raised once.
                let is_raised = |a: &Alarm| a.quiet && a.id == condition.id && a.subject == subject;
                if quiet && self.raised.iter().any(is_raised) {
                    held.insert(key);
                    continue;
                }
                let remedy = remedy.unwrap_or(condition.remedy).to_owned();
                let (id, since) = (condition.id.to_owned(), streak.since);
                out.push(Alarm { id, subject, since, until: None, evidence, examples, remedy, quiet });
            }
            held.insert(key);
        }
        if self.raised.len() < KEPT {
            self.raised.extend(out.iter().cloned());
        }
        let mut over = Vec::new();
        self.streaks.retain(|key, streak| {
            let (id, subject) = key.split_once(' ').unwrap_or((key, ""));
            let Some(condition) = conditions::named(id) else { return false };
            if held.contains(key) || !looked(condition, key) {
                return true;
            }
            streak.quiet += 1;
            if streak.raised && streak.quiet >= OVER_AFTER {
                over.push((id.to_owned(), subject.to_owned(), streak.since));
            }
            streak.raised && streak.quiet < OVER_AFTER
        });
        for (id, subject, since) in over {
            let same = |a: &&mut Alarm| (&a.id, &a.subject, a.since, a.until) == (&id, &subject, since, None);
            if let Some(alarm) = self.raised.iter_mut().find(same) {
                alarm.until = Some(step);
                out.push(Alarm { examples: Vec::new(), ..alarm.clone() });
            }
        }
        out
    }
}

impl History {
    /// Checks the conditions on new completions and their scores.
    fn look_at_generation(&mut self, signs: &GenerationSigns, no_problems: bool, seen: &mut Vec<Detection>) {
        let all = signs.rows().count();
        // Without rewards, nothing can be scored.
        let unscored = signs.rows().filter(|row| row.total.is_none() && !signs.rewards.is_empty());
        let count = unscored.clone().count();
        // If a reward failed, its own alarm is raised instead.
        if no_problems && count as f64 >= conditions::UNSCORED.threshold * all as f64 && count > 0 {
            let evidence = format!("no reward gave a score for {count} of {all} completions");
            seen.push(Detection::new(&conditions::UNSCORED, evidence).showing(unscored));
        }
        for (k, reward) in signs.rewards.iter().enumerate() {
            let name = &reward.name;
            if reward.overflows {
                let (low, high) = reward.range.unwrap_or_default();
                let evidence = format!("scores from {low:e} to {high:e} have no finite deviation");
                seen.push(Detection::new(&conditions::OVERFLOW, evidence).about_reward(signs, k));
            }
            let dependence = self.dependences.entry(name.clone()).or_default();
            dependence.take(&reward.portion);
            let (completions, generations) = dependence.seen();
            let strongest = dependence.strongest();
            if completions >= MIN_SEEN.0
                && generations >= MIN_SEEN.1
                && strongest < conditions::NOISE.threshold
                && dependence.equal() < FEWEST_EQUAL
                && !dependence.rises()
            {
                let evidence = format!(
                    "in {completions} completions of {generations} generations, nothing correlates with the score: not \
                     length, repetition, log-probability or any token (at most {strongest:.1} standard deviations of \
                     chance), and the score does not rise"
                );
                seen.push(Detection::new(&conditions::NOISE, evidence).about_reward(signs, k));
            }
            if let Some(example) = &reward.contradiction {
                let detection = Detection::new(&conditions::CONTRADICTION, "two scores for the same text".to_owned());
                seen.push(Detection { examples: vec![example.clone()], ..detection.of(name) });
            }
            // Fewer than two scores show no constant, so the previous one is kept.
            let Some((low, high)) = reward.range else { continue };
            let value = (high - low <= conditions::CONSTANT.threshold).then_some(low);
            let before = match value {
                Some(value) => self.constants.insert(name.clone(), Bits64(value)),
                None => self.constants.remove(name),
            };
            if let Some(value) = value.filter(|value| before.is_none_or(|before| before == Bits64(*value))) {
                let evidence = format!("it gives {value} for every completion");
                seen.push(Detection::new(&conditions::CONSTANT, evidence).about_reward(signs, k));
            }
        }
        self.look_at_characters(signs, seen);
        self.look_at_course(signs, seen);
        self.look_at_winners(signs, seen);
    }

    /// Checks whether the reward grows with length in characters. This check is needed if nearly all completions are
    /// truncated, because their lengths in tokens are then equal.
    fn look_at_characters(&self, signs: &GenerationSigns, seen: &mut Vec<Detection>) {
        if signs.cut_share().is_none_or(|share| share < conditions::TRUNCATED.threshold) {
            return;
        }
        let Some(correlation) = signs.length_and_total() else { return };
        if correlation >= conditions::LENGTH_PAID.threshold {
            let evidence = format!(
                "nearly all completions are truncated, so lengths in tokens do not show it, but the reward grows with \
                 the length in characters (correlation {correlation:.2} within groups)"
            );
            seen.push(Detection::new(&conditions::LENGTH_PAID, evidence).showing(signs.rows()));
        }
    }

    /// Checks whether the reward rises together with length or repetition.
    fn look_at_course(&mut self, signs: &GenerationSigns, seen: &mut Vec<Detection>) {
        let (Some(total), Some(length), Some(repetition)) = (signs.mean_total, signs.mean_length, signs.repetition)
        else {
            return;
        };
        remember(&mut self.generations, [total, length, repetition].map(Bits64));
        let course = |k: usize| self.generations.iter().map(move |g: &[Bits64; 3]| g[k].0);
        if self.generations.len() < 2 * COMPARED {
            return;
        }
        let mean = |values: &mut dyn Iterator<Item = f64>| mean(values).unwrap_or(f64::NAN);
        let compared = |k: usize| [mean(&mut course(k).take(COMPARED)), mean(&mut course(k).rev().take(COMPARED))];
        let [reward_before, reward] = compared(0);
        let middle = mean(&mut course(0));
        let deviation = mean(&mut course(0).map(|r| (r - middle) * (r - middle))).sqrt();
        if reward - reward_before <= deviation / 2.0 || reward <= reward_before {
            return;
        }
        let rises = format!("the reward rose from {reward_before:.3} to {reward:.3}");
        let steps = self.generations.len();
        let best = || {
            let mut rows: Vec<(f64, &Row)> = signs.rows().filter_map(|row| Some((row.total?, row))).collect();
            rows.sort_by(|a, b| b.0.total_cmp(&a.0));
            rows.into_iter().map(|(_, row)| row)
        };
        let [before, now] = compared(1);
        if now >= conditions::LENGTH.threshold * before {
            let evidence =
                format!("{rises} in {steps} generations while the length went from {before:.1} to {now:.1} tokens");
            seen.push(Detection::new(&conditions::LENGTH, evidence).showing(best()));
        }
        let [before, now] = compared(2).map(|share| share * 100.0);
        if now - before >= conditions::REPETITION.threshold * 100.0 {
            let evidence =
                format!("{rises} in {steps} generations while repetition went from {before:.0} to {now:.0} %");
            seen.push(Detection::new(&conditions::REPETITION, evidence).showing(best()));
        }
    }

    /// Checks which properties the best-scored completions share. A completion wins if its total reward is nearer to
    /// the generation's highest than to the lowest of the whole run, so if all completions have learned the same trick,
    /// all of them win.
    fn look_at_winners(&mut self, signs: &GenerationSigns, seen: &mut Vec<Detection>) {
        let totals = || signs.rows().filter_map(|row| row.total);
        let (lowest, highest) = (totals().fold(f64::INFINITY, f64::min), totals().fold(f64::NEG_INFINITY, f64::max));
        if lowest > highest {
            return;
        }
        let lowest = self.lowest.map_or(lowest, |before| before.0.min(lowest));
        self.lowest = Some(Bits64(lowest));
        if highest - lowest <= conditions::CONSTANT.threshold {
            return;
        }
        let wins = |row: &&Row| row.total.is_some_and(|total| total >= (lowest + highest) / 2.0);
        self.look_at_cut(signs, lowest, wins, seen);
        let (winners, others): (Vec<&Row>, Vec<&Row>) = signs.rows().filter(|row| row.total.is_some()).partition(wins);
        self.others.resize(5, 0);
        self.others[0] += others.len() as u64;
        type Mark = (&'static Condition, fn(&Row) -> bool, &'static str);
        let marks: [Mark; 4] = [
            (&conditions::EMPTY_WINS, |row| row.empty, "have no answer"),
            (&conditions::BROKEN_WINS, |row| row.broken, "have brackets or fences that do not match"),
            (&conditions::REPETITION_WINS, |row| row.repetitive, "are repetition"),
            (
                &conditions::ODD_WINS,
                |row| row.odd,
                "have an odd number of quotation marks, or other marks without their pair",
            ),
        ];
        for (k, (condition, has, words)) in marks.into_iter().enumerate() {
            self.others[k + 1] += others.iter().filter(|row| has(row)).count() as u64;
            let such: Vec<&Row> = winners.iter().copied().filter(|row| has(row)).collect();
            let elsewhere = over(self.others[k + 1] as f64, self.others[0]);
            let Some((share, elsewhere)) = share(such.len(), winners.len()).zip(elsewhere) else { continue };
            if winners.len() >= FEWEST_WINNERS && share >= condition.threshold && share >= 2.0 * elsewhere {
                let (share, elsewhere) = (share * 100.0, elsewhere * 100.0);
                let evidence = format!(
                    "{share:.0} % of the completions that earn most {words}, and {elsewhere:.0} % of the others"
                );
                seen.push(Detection::new(condition, evidence).showing(such));
            }
        }
        self.look_at_one_text(&winners, seen);
    }

    fn look_at_one_text(&self, winners: &[&Row], seen: &mut Vec<Detection>) {
        let mut texts: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
        for row in winners {
            texts.entry(&row.text).or_default().push(row);
        }
        let Some(rows) = texts.into_values().max_by_key(Vec::len) else { return };
        let prompts = |rows: &[&Row]| rows.iter().map(|row| row.prompt).collect::<BTreeSet<_>>().len();
        let share = rows.len() as f64 / winners.len() as f64;
        if prompts(&rows) > 1 && winners.len() > FEWEST_WINNERS && share >= conditions::ONE_TEXT_WINS.threshold {
            let evidence = format!(
                "{:.0} % of the completions that earn most are the same text, for {} different prompts",
                share * 100.0,
                prompts(&rows)
            );
            seen.push(Detection::new(&conditions::ONE_TEXT_WINS, evidence).showing(rows));
        }
    }

    /// Checks for truncated completions with the lowest score, while most complete ones of the same prompt scored high.
    fn look_at_cut(
        &self,
        signs: &GenerationSigns,
        lowest: f64,
        wins: impl Fn(&&Row) -> bool,
        seen: &mut Vec<Detection>,
    ) {
        let mut short: Vec<&Row> = Vec::new();
        for group in &signs.groups {
            let ended = || group.iter().filter(|row| !row.cut && row.total.is_some());
            if ended().count() > 0 && 2 * ended().filter(&wins).count() >= ended().count() {
                short.extend(group.iter().filter(|row| row.cut && row.total == Some(lowest)));
            }
        }
        let Some(share) = share(short.len(), signs.rows().count()) else { return };
        if share >= conditions::CUT_SHORT.threshold {
            let evidence = format!(
                "{:.0} % of the completions were truncated and earned nothing, while most untruncated ones for the \
                 same prompts earned much",
                share * 100.0
            );
            seen.push(Detection::new(&conditions::CUT_SHORT, evidence).showing(short));
        }
    }
}

fn remember<T>(list: &mut VecDeque<T>, value: T) {
    list.push_back(value);
    if list.len() > REMEMBERED {
        list.pop_front();
    }
}
