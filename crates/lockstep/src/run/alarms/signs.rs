//! Extracts the input of the alarms from a generation: properties of its rewards and completions. The alarms'
//! thresholds are in `conditions.rs`.

use super::noise::Portion;
use super::repetition::repetition;
use super::spread::Spread;
use crate::rollouts::{Rollouts, ScoredCompletion};
use kernels::mean::{mean, share};
use rewards::Content;
use rollout::FinishReason;
use std::collections::BTreeMap;

/// A completion is repetitive if at least this share of its n-grams occurred earlier in it.
const REPETITIVE: f64 = 0.5;
/// Characters of a prompt or completion shown in an example.
const SHOWN: usize = 100;

/// The properties of a completion that alarms depend on.
pub struct Row {
    /// The dataset row of the prompt.
    pub prompt: usize,
    /// The weighted sum of the rewards; `None` without a score.
    pub total: Option<f64>,
    /// The score of each reward, before weighting.
    pub scores: Vec<Option<f64>>,
    pub text: String,
    /// True if the completion ended at the length limit.
    pub cut: bool,
    /// True if the text is missing, or is only an empty frame of an answer, such as `<answer></answer>`.
    pub empty: bool,
    /// True if brackets or code fences do not match. Always false for truncated completions, unless nearly all are
    /// truncated.
    pub broken: bool,
    /// True if quotation marks, dollars, backticks or tags are unpaired, with the same exception as for `broken`.
    pub odd: bool,
    /// The length of the text in characters.
    length: f64,
    pub repetitive: bool,
    /// Prompt and text, shortened for display.
    shown: String,
}

impl Row {
    /// The completion as a displayed example: prompt, completion and total score.
    pub fn example(&self) -> String {
        self.with(self.total)
    }

    /// The same example with the score of the reward `k`, for an alarm about that reward.
    pub fn example_of(&self, k: usize) -> String {
        self.with(self.scores.get(k).copied().flatten())
    }

    fn with(&self, score: Option<f64>) -> String {
        let text = |score: f64| if score.abs() < 1e16 { format!("{score}") } else { format!("{score:e}") };
        let score = score.map_or_else(|| "no score".to_owned(), text);
        format!("{}: {score}", self.shown)
    }
}

/// Properties of one reward's scores in a generation.
pub struct RewardSigns {
    pub name: String,
    /// The lowest and the highest score, if there are at least two scores.
    pub range: Option<(f64, f64)>,
    /// An example of two different scores for the same prompt and text, if there is one.
    pub contradiction: Option<String>,
    /// True if the scores are too large for a finite standard deviation.
    pub overflows: bool,
    pub portion: Portion,
}

/// The measurements of one generation that the alarms need.
pub struct GenerationSigns {
    /// The completions, group by group.
    pub groups: Vec<Vec<Row>>,
    pub rewards: Vec<RewardSigns>,
    /// The mean total reward of the scored completions.
    pub mean_total: Option<f64>,
    /// Mean length of the completions, in tokens, if there are any.
    pub mean_length: Option<f64>,
    /// The mean share of n-grams that occurred earlier in their completion.
    pub repetition: Option<f64>,
    /// Whether totals vary within groups, and if not, why.
    pub spread: Spread,
}

impl GenerationSigns {
    /// Reads the properties of a generation's completions and rewards.
    pub fn of(rollouts: &Rollouts) -> GenerationSigns {
        let is_cut = |c: &&ScoredCompletion| c.completion.finish_reason == FinishReason::Length;
        // Truncated completions are expected to look unfinished, unless all are truncated.
        let cut = share(rollouts.completions().filter(is_cut).count(), rollouts.completions().count());
        let all_cut = cut.is_some_and(|share| share >= super::conditions::TRUNCATED.threshold);
        let repetition = |c: &ScoredCompletion| repetition(&c.completion.ids);
        let groups = rollouts.groups.iter().map(|group| {
            let row = |c: &ScoredCompletion| {
                let (text, prompt) = (c.content.text().into_owned(), group.prompt.content.text());
                let cut = c.completion.finish_reason == FinishReason::Length;
                // Plain text may close brackets and quotes that its prompt opened; a chat message may not.
                let before = if let Content::Text(prompt) = &group.prompt.content { prompt } else { "" };
                Row {
                    prompt: group.prompt.row,
                    total: rollouts.total(c),
                    scores: c.rewards.clone(),
                    cut,
                    empty: has_no_answer(&text),
                    broken: (!cut || all_cut)
                        && (unmatched(before) || unmatched(&text))
                        && unmatched(&format!("{before}{text}")),
                    odd: (!cut || all_cut) && (odd(before) || odd(&text)) && odd(&format!("{before}{text}")),
                    length: text.chars().count() as f64,
                    repetitive: repetition(c) >= REPETITIVE,
                    shown: format!("{} → {}", shorten(&prompt), shorten(&text)),
                    text,
                }
            };
            group.completions.iter().map(row).collect::<Vec<_>>()
        });
        let groups: Vec<Vec<Row>> = groups.collect();
        let totals: Vec<f64> = groups.iter().flatten().filter_map(|row| row.total).collect();
        GenerationSigns {
            rewards: (0..rollouts.reward_names.len()).map(|k| reward(rollouts, k)).collect(),
            mean_total: mean(totals),
            mean_length: mean(rollouts.completions().map(|c| c.completion.ids.len() as f64)),
            repetition: mean(rollouts.completions().map(repetition)),
            spread: Spread::of(rollouts),
            groups,
        }
    }

    /// The share of completions that were truncated; `None` without a completion.
    pub fn cut_share(&self) -> Option<f64> {
        share(self.rows().filter(|row| row.cut).count(), self.rows().count())
    }

    /// The correlation of total reward with length in characters, both centred by their group's means. `None` if either
    /// does not vary.
    pub fn length_and_total(&self) -> Option<f64> {
        let (mut product, mut squares) = (0.0, [0.0; 2]);
        for group in &self.groups {
            let rows: Vec<(f64, f64)> = group.iter().filter_map(|row| Some((row.length, row.total?))).collect();
            let mean = |of: fn(&(f64, f64)) -> f64| mean(rows.iter().map(of));
            let Some((length, total)) = mean(|row| row.0).zip(mean(|row| row.1)) else { continue };
            for (own_length, own_total) in &rows {
                let (x, y) = (own_length - length, own_total - total);
                product += x * y;
                squares = [squares[0] + x * x, squares[1] + y * y];
            }
        }
        let correlation = product / (squares[0] * squares[1]).sqrt();
        correlation.is_finite().then_some(correlation)
    }

    /// All completions of the generation.
    pub fn rows(&self) -> impl Iterator<Item = &Row> + Clone {
        self.groups.iter().flatten()
    }
}

fn reward(rollouts: &Rollouts, k: usize) -> RewardSigns {
    let name = rollouts.reward_names[k].clone();
    let (mut range, mut scored) = (None, 0);
    let mut contradiction = None;
    let mut known: BTreeMap<(usize, &[u32]), f64> = BTreeMap::new();
    for group in &rollouts.groups {
        for c in &group.completions {
            let Some(score) = c.rewards[k] else { continue };
            scored += 1;
            let (low, high) = range.unwrap_or((score, score));
            range = Some((score.min(low), score.max(high)));
            let first = *known.entry((group.prompt.row, &c.completion.ids)).or_insert(score);
            if (first - score).abs() > super::conditions::CONTRADICTION.threshold && contradiction.is_none() {
                let (prompt, text) = (shorten(&group.prompt.content.text()), shorten(&c.content.text()));
                contradiction = Some(format!("{prompt} → {text}: {first} and {score}"));
            }
        }
    }
    let scores = || rollouts.completions().filter_map(|c| c.rewards[k]);
    let squares: f64 = scores().map(|score| score * score).sum();
    let overflows = scored > 1 && !squares.is_finite();
    RewardSigns {
        name,
        range: range.filter(|_| scored > 1),
        contradiction,
        overflows,
        portion: Portion::of(rollouts, k),
    }
}

/// Whether `text` has no answer: it is empty, or has only an empty frame of an answer (tags, a box, `####`, a code
/// fence, "Answer:").
fn has_no_answer(text: &str) -> bool {
    let text = text.trim().to_lowercase();
    let (mut empty, mut filled) = (text.is_empty(), false);
    let frames = [
        ("<answer>", "</answer>"),
        ("<solution>", "</solution>"),
        ("\\boxed{", "}"),
        ("\\boxed {", "}"),
        ("\\fbox{", "}"),
        ("\\boxed{\\text{", "}"),
    ];
    for (open, close) in frames {
        for (inside, _) in text.split(open).skip(1).filter_map(|rest| rest.split_once(close)) {
            // Nested empty frames and mere punctuation are not an answer.
            let plain = frames
                .iter()
                .fold(inside.to_owned(), |plain, (open, close)| plain.replace(open, "").replace(close, ""));
            if plain.replace("\\text{", "").chars().all(|c| c.is_whitespace() || "{}.…?-_*".contains(c)) {
                empty = true;
            } else {
                filled = true;
            }
        }
    }
    // Skips a fence's first line, which names a language.
    let fences: Vec<&str> = text.split("```").collect();
    let code = |fence: &&str| fence.split_once('\n').is_some_and(|(_, code)| code.trim().is_empty());
    empty |= fences.len() >= 3 && fences.iter().skip(1).step_by(2).all(code);
    let end = text.trim_end_matches(['*', ' ', '\n']);
    empty |=
        end.ends_with("####") || end.ends_with("answer:") || end.ends_with("answer is") || end.ends_with("answer is:");
    empty && !filled
}

/// Whether `text` has an unpaired quotation mark, dollar, backtick or tag.
fn odd(text: &str) -> bool {
    let count = |mark: &str| text.matches(mark).count();
    let tags = |text: &str| {
        let opened = text.split('<').skip(1).filter_map(|rest| rest.split_once('>')).map(|(name, _)| name);
        let name = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let (open, close): (Vec<&str>, Vec<&str>) = opened.partition(|name| !name.starts_with('/'));
        open.iter().filter(|own| name(own)).count() != close.iter().filter(|own| name(&own[1..])).count()
    };
    ["\"", "$", "`", "**"].iter().any(|mark| count(mark) % 2 == 1)
        || count("“") != count("”")
        || count("«") != count("»")
        || tags(text)
}

/// Whether brackets or code fences in `text` do not match.
fn unmatched(text: &str) -> bool {
    let mut open = Vec::new();
    for c in text.chars() {
        match c {
            '(' => open.push(')'),
            '[' => open.push(']'),
            '{' => open.push('}'),
            ')' | ']' | '}' if open.pop() != Some(c) => return true,
            _ => {}
        }
    }
    !open.is_empty() || text.matches("```").count() % 2 == 1
}

fn shorten(text: &str) -> String {
    let mut short: String = text.chars().take(SHOWN).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    format!("{short:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_answers_are_recognised() {
        for text in [
            "<SOLUTION> </SOLUTION>",
            "\\fbox{}",
            "<answer>\\boxed{}</answer>",
            "\\boxed{\\text{}}",
            "<answer>...</answer>",
            "**Answer:**",
            "The answer is",
            "```\n```",
            "```\n``` then x",
        ] {
            assert!(has_no_answer(text), "{text:?}");
        }
        for text in ["a ```\n", "``` py\nx\n``` y\n", "x\n```\ny"] {
            assert!(!has_no_answer(text), "{text:?}");
        }
        for text in ["Answer: 5", "\\boxed{\\text{a}}", "```\nx\n```", "<answer>\\boxed{1}</answer>", "the answer is 5"]
        {
            assert!(!has_no_answer(text), "{text:?}");
        }
        for text in ["", " \n", "<answer></answer>", "so <answer> \n</answer> it is", "\\boxed{}", "I think\n#### "] {
            assert!(has_no_answer(text), "{text:?}");
        }
        for text in
            ["a", "<answer>3</answer>", "<answer></answer><answer>3</answer>", "\\boxed{2}", "#### 7", "<answer>"]
        {
            assert!(!has_no_answer(text), "{text:?}");
        }
    }

    #[test]
    fn unmatched_brackets_and_fences_are_recognised() {
        assert!(["(", "f(x))", "[(])", "```py\nx"].into_iter().all(unmatched));
        assert!(!["", "f(x[1]) {}", "```py\nx\n```"].into_iter().any(unmatched));
    }

    #[test]
    fn unpaired_marks_are_recognised() {
        assert!(["\"", "he wrote \"yes", "$5", "`x", "**a", "“a", "<answer>5", "5</answer>"].into_iter().all(odd));
        let pairs = ["", "\"a\"", "$x$", "`x`", "**a**", "“a”", "<answer>5</answer>", "it's 3 < 4 > 2", "<br>x</br>"];
        assert!(!pairs.into_iter().any(odd));
    }
}
