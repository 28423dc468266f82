//! `gsm8k_staged`: a reward for GSM8K with partial credit, for models that do not know the output format yet. The
//! reward gives points for the format, for each tag, and for a number close to the answer.
//!
//! The format is `<start_working_out>…<end_working_out><SOLUTION>…</SOLUTION>` (the tags are options). A completion
//! gets
//! 1. +3 if it ends with the whole format, after any other text;
//! 2. +0.5 for each of the four tags that occurs exactly once, and −0.5 for each that does not;
//! 3. points for the text between the solution tags (or in another mark: `<answer>`, a box, after `####`), compared
//!    with the number in the answer column: 5 if the text is identical, 3.5 if the number is equal (spaces, `$`,
//!    `18.0`), 2 within 10 %, 1.5 within 20 %, −2.5 for any other number, and −4.5 if it is missing or not a number.
//!
//! Commas between thousands are ignored, unlike in Python's `float`, which rejects `1,000`.

use serde::Deserialize;
use serde_json::Value;

use super::answer::{closed, first_line, hashed};
use super::grader::{Grader, score_rows};
use super::gsm8k::{gold, only_number};
use super::number::Number;
use crate::batch::Verdict;
use crate::{Error, Result, RewardBatch, Scores};

/// The points for a text between the solution tags that is not a number.
const NO_NUMBER: f64 = -4.5;

/// The options of [`Staged`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct StagedOptions {
    /// The dataset column with the answer.
    pub column: String,
    /// The tag that opens the reasoning.
    pub reasoning_start: String,
    /// The tag that closes the reasoning.
    pub reasoning_end: String,
    /// The tag that opens the solution.
    pub solution_start: String,
    /// The tag that closes the solution.
    pub solution_end: String,
}

impl Default for StagedOptions {
    fn default() -> Self {
        StagedOptions {
            column: "answer".into(),
            reasoning_start: "<start_working_out>".into(),
            reasoning_end: "<end_working_out>".into(),
            solution_start: "<SOLUTION>".into(),
            solution_end: "</SOLUTION>".into(),
        }
    }
}

/// The `gsm8k_staged` reward; the header of `gsm8k_staged.rs` describes it.
#[derive(Clone, Debug)]
pub(crate) struct Staged {
    options: StagedOptions,
}

impl Grader<1> for Staged {
    const KIND: &'static str = "gsm8k_staged";
    type Options = StagedOptions;

    fn build(options: StagedOptions) -> Result<Self> {
        let staged = Staged { options };
        let tags = staged.tags();
        if tags.iter().any(|tag| tag.is_empty()) || (0..4).any(|i| tags[..i].contains(&tags[i])) {
            return Err(Error::options(
                "gsm8k_staged",
                format!("the four tags must be different and not empty, got {tags:?}"),
            ));
        }
        Ok(staged)
    }

    fn columns(&self) -> [&str; 1] {
        [&self.options.column]
    }

    fn grade(&self, [answer]: [&Value; 1], completion: &str) -> Option<Verdict> {
        Some(verdict(self.points(completion, &gold(answer)?)))
    }

    fn unread(&self, _: [&Value; 1]) -> (String, Option<String>) {
        (format!("no number in column `{}`", self.options.column), None)
    }

    /// Scores a batch, and adds a column with the points of each stage to the completions table.
    fn score(&self, name: &str, batch: &RewardBatch<'_>) -> Scores {
        let mut stages: [Vec<Value>; 3] = Default::default();
        let mut scores = score_rows(self, name, batch, |[answer], completion| {
            let points = gold(answer).map(|gold| self.points(completion, &gold));
            for (i, stage) in stages.iter_mut().enumerate() {
                stage.push(points.map(|points| points[i]).into());
            }
            points.map(verdict)
        });
        if scores.values.len() == stages[0].len() {
            scores.extra = ["form", "tags", "closeness"].map(str::to_owned).into_iter().zip(stages).collect();
        }
        scores
    }
}

impl Staged {
    fn tags(&self) -> [&str; 4] {
        let StagedOptions { reasoning_start, reasoning_end, solution_start, solution_end, .. } = &self.options;
        [reasoning_start, reasoning_end, solution_start, solution_end]
    }

    /// The solution of a completion that ends with the whole format.
    fn formed<'t>(&self, text: &'t str) -> Option<&'t str> {
        let [start, end, open, close] = self.tags();
        let (_, rest) = text.split_once(start)?;
        let (_, rest) = rest.split_once(end)?;
        let (_, rest) = rest.split_once(open)?;
        let (solution, rest) = rest.split_once(close)?;
        (rest.trim().is_empty() && !solution.trim().is_empty()).then_some(solution)
    }

    /// The text between the solution tags, even if the rest of the format is missing; otherwise the text in `<answer>`,
    /// in a box, or after `####`.
    fn solution<'t>(&self, text: &'t str) -> Option<&'t str> {
        let tagged = text.rsplit_once(&self.options.solution_start);
        let tagged = tagged.and_then(|(_, rest)| Some(rest.split_once(&self.options.solution_end)?.0));
        tagged.or_else(|| closed(text)).or_else(|| hashed(text).map(first_line))
    }

    /// The points of a completion for format, tags and answer.
    fn points(&self, text: &str, gold: &Number) -> [f64; 3] {
        let form = if self.formed(text).is_some() { 3.0 } else { 0.0 };
        let tag = |tag: &str| if text.matches(tag).count() == 1 { 0.5 } else { -0.5 };
        let answer = self.solution(text).map_or(NO_NUMBER, |solution| closeness(solution, gold));
        [form, self.tags().into_iter().map(tag).sum(), answer]
    }
}

fn closeness(solution: &str, gold: &Number) -> f64 {
    if solution.replace(',', "") == gold.to_string() {
        return 5.0;
    }
    let Some(given) = only_number(solution) else { return NO_NUMBER };
    if given == *gold {
        return 3.5;
    }
    let (Some(given), Some(gold)) = (given.to_f64(), gold.to_f64()) else { return NO_NUMBER };
    match (given - gold).abs() / gold.abs() {
        off if off <= 0.1 => 2.0,
        off if off <= 0.2 => 1.5,
        _ => -2.5,
    }
}

fn verdict(points: [f64; 3]) -> Verdict {
    Verdict { score: points.iter().sum(), answered: points[2] != NO_NUMBER }
}

#[cfg(test)]
mod tests {
    use super::super::grader::scores;
    use super::*;

    fn staged() -> Staged {
        Staged::build(StagedOptions::default()).unwrap()
    }

    fn formed(solution: &str) -> String {
        format!("<start_working_out>because<end_working_out>\n<SOLUTION>{solution}</SOLUTION>\n")
    }

    #[test]
    fn closeness_to_the_answer_has_six_levels() {
        for (solution, gold, expected) in [
            ("1000", "1000", 5.0),
            ("1,000", "1000", 5.0),
            ("12,345,678", "12345678", 5.0),
            ("-7", "-7", 5.0),
            (" 1000 ", "1000", 3.5),
            ("$1,000", "1000", 3.5),
            ("18.0", "18", 3.5),
            ("the answer is 18", "18", 3.5),
            ("1100", "1000", 2.0),
            ("1,100", "1000", 2.0),
            ("900", "1000", 2.0),
            ("1101", "1000", 1.5),
            ("800", "1000", 1.5),
            ("-8", "-10", 1.5),
            ("799", "1000", -2.5),
            ("-1000", "1000", -2.5),
            ("1", "0", -2.5),
            ("0.0", "0", 3.5),
            ("36/2", "18", 3.5),
            ("\\boxed{18}", "18", 3.5),
            ("not 18", "18", -4.5),
            ("18:00", "18", -4.5),
            ("1 or 2", "1", -4.5),
            ("none", "1", -4.5),
            ("", "1", -4.5),
        ] {
            let gold = super::gold(&gold.into()).unwrap();
            assert_eq!(closeness(solution, &gold), expected, "{solution} for {gold}");
        }
    }

    #[test]
    fn points_for_format_tags_and_answer_are_summed() {
        let gold = gold(&18.into()).unwrap();
        let points = |text: &str| staged().points(text, &gold);
        // An answer in a different mark is also scored, without points for the format.
        for text in ["<answer>18</answer>", "so \\boxed{18}", "#### 18"] {
            assert_eq!(points(text), [0.0, -2.0, 5.0], "{text}");
        }
        assert_eq!(points(&formed("18")), [3.0, 2.0, 5.0]);
        assert_eq!(points(&format!("So: {}", formed("18"))), [3.0, 2.0, 5.0]);
        assert_eq!(points(&format!("{}!", formed("18"))), [0.0, 2.0, 5.0]);
        assert_eq!(points("<SOLUTION>18</SOLUTION>"), [0.0, 0.0, 5.0]);
        assert_eq!(points("<SOLUTION>17</SOLUTION><SOLUTION>18</SOLUTION>"), [0.0, -2.0, 5.0]);
        assert_eq!(points("<SOLUTION>18"), [0.0, -1.0, -4.5]);
        assert_eq!(points("18"), [0.0, -2.0, -4.5]);
        // The solution must not be empty.
        assert_eq!(points(&formed(" ")), [0.0, 2.0, -4.5]);
    }

    #[test]
    fn each_stage_has_a_column_and_invalid_rows_are_reported() {
        let answers = vec!["9 * 2\n#### 1,018".into(), "eighteen".into()];
        let scores = scores(&staged(), &[&formed("1,018"), &formed("18")], [("answer", answers)]);
        assert_eq!(scores.values, [Some(10.0), None]);
        assert_eq!(scores.problems[0].rows, 1);
        let of = |name: &str| scores.extra.iter().find(|(own, _)| own == name).unwrap().1.clone();
        assert_eq!(
            (of("form"), of("closeness")),
            (vec![3.0.into(), serde_json::Value::Null], vec![5.0.into(), serde_json::Value::Null])
        );
        let same =
            StagedOptions { reasoning_start: "<x>".into(), reasoning_end: "<x>".into(), ..StagedOptions::default() };
        assert!(Staged::build(same).unwrap_err().to_string().contains("must be different"));
    }

    #[test]
    fn the_format_requires_four_different_tags() {
        let names = ["a", "b", "c", "d"];
        let built = |names: [&str; 4]| {
            let [reasoning_start, reasoning_end, solution_start, solution_end] = names.map(str::to_owned);
            let column = "answer".to_owned();
            Staged::build(StagedOptions { column, reasoning_start, reasoning_end, solution_start, solution_end })
        };
        assert_eq!(built(names).unwrap().tags(), names);
        for i in 0..4 {
            let mut empty = names;
            empty[i] = "";
            assert!(built(empty).is_err(), "{i}");
            for j in 0..i {
                let mut same = names;
                same[i] = names[j];
                let expected = format!("the four tags must be different and not empty, got {same:?}");
                assert_eq!(built(same).unwrap_err().to_string(), format!("reward `gsm8k_staged`: {expected}"));
            }
        }
        let own = built(["<1>", "<2>", "<3>", "<4>"]).unwrap();
        for (text, formed, solution) in [
            ("<1>x<2>y<3>5<4>", Some("5"), Some("5")),
            ("z<1><2><3> 5 <4> \n", Some(" 5 "), Some(" 5 ")),
            ("<1><2><3>5<4>z", None, Some("5")),
            ("<2><1><3>5<4>", None, Some("5")),
            ("<1><3>5<4><2>", None, Some("5")),
            ("<1><2><4>5<3>", None, None),
            ("<1><2><3> <4>", None, Some(" ")),
            ("<3>5<4><3>6<4>", None, Some("6")),
            ("<3>5<4><3>6", None, None),
            ("<3>5<4> #### 6", None, Some("5")),
            ("\\boxed{5} #### 6", None, Some("5")),
            ("#### 6\n7", None, Some("6")),
            ("6", None, None),
        ] {
            assert_eq!((own.formed(text), own.solution(text)), (formed, solution), "{text}");
        }
        let answered = |closeness| verdict([3.0, -0.5, closeness]);
        assert_eq!((answered(2.0).score, answered(2.0).answered), (4.5, true));
        assert_eq!((answered(-4.5).score, answered(-4.5).answered), (-2.0, false));
        let problem = scores(&staged(), &["5"], [("answer", vec!["x".into()])]).problems[0].to_string();
        assert_eq!(problem, "reward `gsm8k_staged` gave no score for 1 completion: no number in column `answer`");
    }
}
