//! GSM8K's labelled solutions (Cobbe et al. 2021, arXiv:2110.14168) as preference pairs: each correct solution of a
//! problem is paired with each incorrect one.
//!
//! A row is a problem: its `question`, and solutions by several systems, each marked as correct or not. The file does
//! not have splits, so every fifth problem is held out as split `test`, and the others are `train`.

use super::preference::Preference;
use super::{DatasetSpec, Row};
use crate::bad_input;
use rewards::Content;
use serde_json::Value;

/// One of this many problems is in the split `test`.
const HELD_OUT: usize = 5;

/// The preference pairs of the row with index `row` (from 0); none if the row belongs to another split.
pub(super) fn preferences(spec: &DatasetSpec, row: usize, columns: &Row) -> anyhow::Result<Vec<Preference>> {
    let held_out = row % HELD_OUT == HELD_OUT - 1;
    let ours = match spec.split.as_str() {
        "train" => !held_out,
        "test" => held_out,
        other => bad_input!("task gsm8k_solutions has the splits train and test, but no split {other}"),
    };
    if !ours {
        return Ok(Vec::new());
    }
    let Some(Value::String(question)) = columns.get(&spec.prompt_column) else {
        bad_input!("`{}` must be a string", spec.prompt_column);
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
    // The line break belongs to the answer, so that the prompt is the question alone, as in GSM8K's other files.
    let answer = |text: &String| Content::Text(format!("\n{text}"));
    let prompt = spec.with_system(Content::Text(question.clone()));
    let pair = |(r, w)| Preference { prompt: prompt.clone(), chosen: answer(r), rejected: answer(w), margin: None };
    Ok(right.iter().flat_map(|r| wrong.iter().map(move |w| (*r, *w))).filter(|(r, w)| r != w).map(pair).collect())
}
