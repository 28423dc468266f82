//! GSM8K's labelled solutions (Cobbe et al. 2021, arXiv:2110.14168) as pairs: every correct solution of a problem
//! against every incorrect one.
//!
//! A row is a problem: `question`, and for each of several systems a solution that is marked as correct or not. The
//! file has no split of its own; here every fifth problem is held out (`test`), and the others are `train`, so that no
//! problem is in both.

use super::preference::Preference;
use super::{DatasetSpec, Row};
use crate::bad_input;
use rewards::Content;
use serde_json::Value;

/// One problem of this many is held out.
const HELD_OUT: usize = 5;

/// The pairs of a row, number `row` from 0; none if it is not of the split.
pub(super) fn preferences(spec: &DatasetSpec, row: usize, columns: &Row) -> anyhow::Result<Vec<Preference>> {
    let held_out = row % HELD_OUT == HELD_OUT - 1;
    let ours = match spec.split.as_str() {
        "train" => !held_out,
        "test" => held_out,
        other => bad_input!("task gsm8k_solutions has the splits train and test, and no split {other}"),
    };
    if !ours {
        return Ok(Vec::new());
    }
    let Some(Value::String(question)) = columns.get(&spec.prompt_column) else {
        bad_input!("there is no text `{}`", spec.prompt_column);
    };
    let mut solutions = [Vec::new(), Vec::new()];
    for value in columns.values() {
        if let (Some(Value::Bool(right)), Some(Value::String(text))) = (value.get("is_correct"), value.get("solution"))
        {
            solutions[usize::from(*right)].push(text);
        }
    }
    let [wrong, right] = solutions;
    if wrong.is_empty() && right.is_empty() {
        bad_input!("no column holds a solution {{\"is_correct\": …, \"solution\": …}}");
    }
    // The line break belongs to the answer: the prompt is then the question as other files of GSM8K have it.
    let answer = |text: &String| Content::Text(format!("\n{text}"));
    let prompt = spec.with_system(Content::Text(question.clone()));
    let pair = |(r, w)| Preference { prompt: prompt.clone(), chosen: answer(r), rejected: answer(w), margin: None };
    Ok(right.iter().flat_map(|r| wrong.iter().map(move |w| (*r, *w))).filter(|(r, w)| r != w).map(pair).collect())
}
