use super::*;
use crate::error::is_bad_input;
use crate::stop::is_stopped;
use rewards::RewardSpec;
use serde_json::json;

/// Scores a file with these rows and rewards.
fn scored(rows: &[Value], rewards: &[RewardSpec], tokenizer: Option<&Path>) -> anyhow::Result<ScoredFile> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("c.jsonl");
    std::fs::write(&path, rows.iter().map(|row| format!("{row}\n")).collect::<String>())?;
    let config = Config { reward_funcs: rewards.to_vec(), threads: Some(1), ..Config::default() };
    score_file(&config, &path.display().to_string(), tokenizer, &Sinks::new(), &StopSignal::new())
}

fn message(rows: &[Value], rewards: &[RewardSpec]) -> String {
    let error = scored(rows, rewards, None).err().expect("it was accepted");
    assert!(is_bad_input(&error), "{error:#}");
    let text = error.to_string();
    text.split_once("c.jsonl").map_or(text.clone(), |(_, rest)| rest.to_owned())
}

#[test]
fn scores_are_returned_in_file_order() {
    // Two rows of one prompt, two without a prompt, and another row of the first prompt.
    let rows = [
        json!({"prompt": "p", "completion": "abc", "answer": "abc"}),
        json!({"prompt": "p", "completion": "aab", "answer": "x"}),
        json!({"completion": "a", "answer": "a"}),
        json!({"completion": "abcd", "answer": null}),
        json!({"prompt": "p", "completion": "", "answer": "x"}),
    ];
    let found = scored(&rows, &["unique_chars".into(), "exact_match".into()], None).unwrap();
    assert_eq!(
        (found.names.as_slice(), found.without_ids),
        (["unique_chars".to_owned(), "exact_match".to_owned()].as_slice(), true)
    );
    assert_eq!(found.rows.iter().map(|row| row.row).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    let texts =
        |of: fn(&ScoredRow) -> &Content| found.rows.iter().map(|row| of(row).text().into_owned()).collect::<Vec<_>>();
    assert_eq!(texts(|row| &row.prompt), ["p", "p", "", "", "p"]);
    assert_eq!(texts(|row| &row.completion), ["abc", "aab", "a", "abcd", ""]);
    let unique: Vec<_> = found.rows.iter().map(|row| row.rewards[0]).collect();
    assert_eq!(unique, [3.0, 2.0, 1.0, 4.0, 0.0].map(Some));
    let matches: Vec<_> = found.rows.iter().map(|row| row.rewards[1]).collect();
    assert_eq!((matches[0], matches[1], matches[2], matches[4]), (Some(1.0), Some(0.0), Some(1.0), Some(0.0)));
    assert!(found.seconds >= 0.0 && found.rows.iter().all(|row| row.rewards.len() == 2));
}

#[test]
fn files_that_cannot_be_scored_are_refused() {
    assert!(message(&[json!({"prompt": "p"})], &["unique_chars".into()]).contains("no column `completion`"));
    let rows = [json!({"completion": "a", "answer": "a"}), json!({"completion": "a"})];
    let missing = message(&rows, &["exact_match".into()]);
    assert!(missing.starts_with(", row 2") && missing.contains("answer"), "{missing}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.jsonl");
    std::fs::write(&path, "{\"completion\": \"a\"}\n").unwrap();
    let stop = StopSignal::new();
    stop.request();
    let config = Config { reward_funcs: vec!["unique_chars".into()], ..Config::default() };
    let stopped = score_file(&config, &path.display().to_string(), None, &Sinks::new(), &stop);
    assert!(is_stopped(&stopped.err().unwrap()));
    let none = scored(&[json!({"completion": "a"})], &["unique_chars".into()], Some(Path::new("no/such")));
    assert!(is_bad_input(&none.err().unwrap()));
}
