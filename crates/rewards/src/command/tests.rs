//! The programs in these tests are shell scripts, which run on any Unix.

use std::path::{Path, PathBuf};

use super::*;
use crate::{Columns, Content};

mod words;

/// Answers every batch of two completions with 0.5 and null.
const GOOD: &str = r#"while read -r line; do echo '{"rewards": [0.5, null]}'; done"#;

fn script(dir: &Path, body: &str) -> PathBuf {
    let path = dir.join("reward.sh");
    std::fs::write(&path, format!("{body}\n")).unwrap();
    path
}

/// Runs the script with /bin/sh. So the script needs no exec permission, and tests that run in parallel cannot fail
/// with "text file busy".
fn reward(path: &Path, timeout_s: f64, max_restarts: u32) -> CommandReward {
    let words = Words::List(vec!["/bin/sh".into(), path.to_str().unwrap().into()]);
    CommandReward::new("reward".into(), CommandOptions { command: words, timeout_s, max_restarts, by_group: false })
        .unwrap()
}

fn score_with(reward: &mut CommandReward, columns: &Columns, completions: &[Content]) -> Scores {
    let prompts = vec![Content::from("2+3="); completions.len()];
    let ids: Vec<Vec<u32>> = (0..completions.len() as u32).map(|i| vec![i, 7]).collect();
    let batch =
        RewardBatch { prompts: &prompts, completions, completion_ids: &ids, columns, rows: &[], step: model::Step(4) };
    reward.score(&batch)
}

fn score(reward: &mut CommandReward) -> Scores {
    score_with(reward, &Columns::new(), &["5".into(), "line\nfeed \"quoted\"".into()])
}

/// Whether the process whose PID is in this file has ended. A zombie counts as ended.
fn has_ended(file: &Path) -> bool {
    let process = std::fs::read_to_string(file).unwrap();
    let state = std::fs::read_to_string(format!("/proc/{}/stat", process.trim()));
    state.is_err() || state.is_ok_and(|state| state.contains(") Z ") || state.contains(") X "))
}

/// The message of a batch that failed as a whole.
fn failure(scores: &Scores) -> &str {
    assert_eq!(scores.values, [None, None], "a failed batch must not score 0");
    assert_eq!((scores.problems.len(), scores.problems[0].rows), (1, 2));
    &scores.problems[0].message
}

#[test]
fn one_process_answers_all_batches() {
    let dir = tempfile::tempdir().unwrap();
    // The program's score is its number of batches so far, which shows that the same process answers both batches.
    let body = r#"n=0; while read -r line; do n=$((n+1)); echo; echo "{\"rewards\": [$n, true]}"; done"#;
    let mut reward = reward(&script(dir.path(), body), 30.0, 0);
    assert_eq!(reward.name(), "reward");
    for n in [1.0, 2.0, 3.0] {
        assert_eq!(score(&mut reward), Scores::new(vec![Some(n), Some(1.0)]));
    }
}

#[test]
fn requests_have_the_argument_names_of_trl() {
    let dir = tempfile::tempdir().unwrap();
    let seen = dir.path().join("seen.jsonl");
    let body = format!(
        r#"while read -r line; do printf '%s\n' "$line" > '{}'
echo '{{"rewards": [1], "extra": {{"why": ["so"]}}, "metrics": {{"m": 2.5}}}}'; done"#,
        seen.display()
    );
    let mut reward = reward(&script(dir.path(), &body), 30.0, 0);
    let columns = Columns::from([
        ("answer".to_owned(), vec![serde_json::json!({"n": 5})]),
        ("prompt".to_owned(), vec!["left out".into()]),
    ]);
    let scores = score_with(&mut reward, &columns, &[Content::assistant("5")]);
    assert_eq!(scores.values, [Some(1.0)], "{:?}", scores.problems);
    assert_eq!(scores.extra, [("why".to_owned(), vec!["so".into()])]);
    assert_eq!(scores.metrics, [("m".to_owned(), 2.5)]);
    let request: serde_json::Value = serde_json::from_slice(&std::fs::read(seen).unwrap()).unwrap();
    let expected = serde_json::json!({
        "prompts": ["2+3="],
        "completions": [[{"role": "assistant", "content": "5"}]],
        "completion_ids": [[0, 7]],
        "trainer_state": {"global_step": 4, "request": 1},
        "answer": [{"n": 5}],
    });
    assert_eq!(request, expected);

    let columns = Columns::from([("prompts".to_owned(), vec![1.into()])]);
    let scores = score_with(&mut reward, &columns, &["5".into()]);
    assert!(scores.values == [None] && scores.problems[0].message.contains("`prompts`"));
}

#[test]
fn invalid_answers_give_no_score_and_a_reason() {
    for (answer, expected) in [
        (r#"{"rewards": [1]}"#, "one score per completion: got 1 scores for 2 completions"),
        (r#"{"rewards": [1, NaN]}"#, "no NaN or Infinity"),
        (r#"{"rewards": [1, 1e999]}"#, "out of range"),
        (r#"{"rewards": [1, 2], "extra": {"x": [1]}}"#, "extra column `x`"),
        (r#"{"score": [1, 2]}"#, "must have `rewards` or `error`"),
        (r#"{"error": "no key"}"#, "the program reported an error: no key"),
        ("hello", "it begins: hello"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let body = format!("while read -r line; do echo working >&2; echo '{answer}'; done");
        let mut reward = reward(&script(dir.path(), &body), 30.0, 5);
        let scores = score(&mut reward);
        let message = failure(&scores);
        assert!(message.contains(expected) && message.contains("| working"), "{answer}: {message}");
        assert!(scores.problems[0].to_string().contains("reward `reward` gave no score for 2 completions"));
    }
    // An invalid score affects only its own completion.
    let dir = tempfile::tempdir().unwrap();
    let body = "while read -r line; do echo working >&2; echo '{\"rewards\": [1, \"2\"]}'; done";
    let scores = score(&mut reward(&script(dir.path(), body), 30.0, 5));
    assert_eq!(scores.values, [Some(1.0), None]);
    let problem = scores.problems[0].to_string();
    assert!(
        problem.contains(
            "reward `reward` gave no score for 1 completion: score 1: expected a number, null or a list of steps, got \
             \"2\""
        ),
        "{problem}"
    );
    assert!(problem.contains("| working"), "{problem}");
}

#[test]
fn a_crash_is_reported_with_standard_error_and_the_next_batch_is_scored() {
    let dir = tempfile::tempdir().unwrap();
    let flag = dir.path().join("crashed");
    // The program crashes at the first batch, and answers later batches.
    let body = format!(
        r#"read -r line; if [ ! -e '{0}' ]; then : > '{0}'; echo "KeyError: 'answer'" >&2; exit 3; fi
        echo '{{"rewards": [1, 1]}}'; {GOOD}"#,
        flag.display()
    );
    let mut reward = reward(&script(dir.path(), &body), 30.0, 1);
    let first = score(&mut reward);
    let message = failure(&first);
    assert!(message.contains("exit status: 3") && message.contains("| KeyError: 'answer'"), "{message}");
    assert_eq!(score(&mut reward).values, [Some(1.0), Some(1.0)]);
    assert_eq!(score(&mut reward).values, [Some(0.5), None]);
    assert_eq!(reward.restarts_in_a_row, 0, "a successful batch must reset the count of restarts");
}

#[test]
fn messages_have_the_last_lines_of_standard_error() {
    let dir = tempfile::tempdir().unwrap();
    let body = r#"read -r line; i=1; while [ $i -le 30 ]; do echo "line $i." >&2; i=$((i+1)); done; exit 1"#;
    let scores = score(&mut reward(&script(dir.path(), body), 30.0, 0));
    let printed: Vec<&str> = failure(&scores).lines().filter_map(|line| line.trim().strip_prefix("| ")).collect();
    let last: Vec<String> = (11..=30).map(|i| format!("line {i}.")).collect();
    assert_eq!(printed, last);
}

#[test]
fn restarts_without_a_successful_batch_are_limited() {
    let dir = tempfile::tempdir().unwrap();
    let starts = dir.path().join("starts");
    let body = format!("echo x >> '{}'; read -r line; exit 1", starts.display());
    let mut reward = reward(&script(dir.path(), &body), 30.0, 2);
    let failures: Vec<Problem> = (0..5).flat_map(|_| score(&mut reward).problems).collect();
    assert_eq!(failures.iter().map(|problem| problem.fatal).collect::<Vec<_>>(), [false, false, true, true, true]);
    let ended = "the program exited (exit status: 1)";
    assert_eq!([&*failures[0].message, &failures[1].message], [ended; 2]);
    // The program is not restarted again, and the message stays the same.
    let last = format!("not restarted after 2 restarts without a successful batch: {ended}");
    assert_eq!([2, 3, 4].map(|i| &*failures[i].message), [&*last; 3]);
    assert_eq!(std::fs::read_to_string(starts).unwrap().lines().count(), 3);
}

#[test]
fn a_timeout_kills_the_process_group() {
    let dir = tempfile::tempdir().unwrap();
    let alive = dir.path().join("alive");
    // A grandchild keeps the pipes open, and must be killed with the process group.
    let body = format!("sleep 100000 & echo $! > '{0}.new'; mv '{0}.new' '{0}'; read -r line; wait", alive.display());
    let mut reward = reward(&script(dir.path(), &body), 0.3, 0);
    testing::wait_until("the program runs", || alive.exists());
    let scores = score(&mut reward);
    assert!(failure(&scores).contains("no answer within 0.3 s"), "{:?}", scores.problems);
    testing::wait_until("the grandchild is killed", || has_ended(&alive));
}

#[test]
fn a_stop_ends_the_wait_and_does_not_count_as_a_failure() {
    let dir = tempfile::tempdir().unwrap();
    let asked = dir.path().join("asked");
    let body = format!("read -r line; : > '{}'; sleep 100000", asked.display());
    let mut reward = reward(&script(dir.path(), &body), 100_000.0, 0);
    let stop = Arc::new(AtomicBool::new(false));
    reward.stop_with(stop.clone());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            testing::wait_until("the program gets the request", || asked.exists());
            stop.store(true, Ordering::Relaxed);
        });
        let scores = score(&mut reward);
        assert!(!scores.problems[0].fatal, "{scores:?}");
    });
}

#[test]
fn dropping_the_reward_ends_its_program() {
    let dir = tempfile::tempdir().unwrap();
    let alive = dir.path().join("alive");
    // This program ignores the end of its input, so it must be killed.
    let body = format!("echo $$ > '{0}.new'; mv '{0}.new' '{0}'; while :; do sleep 100000; done", alive.display());
    let reward = reward(&script(dir.path(), &body), 30.0, 0);
    testing::wait_until("the program runs", || alive.exists());
    drop(reward);
    testing::wait_until("the program is killed", || has_ended(&alive));

    // This program exits at the end of its input, and has time to finish its work.
    let done = dir.path().join("done");
    let body = format!("while read -r line; do :; done; : > '{}'", done.display());
    let path = script(dir.path(), &body);
    drop(super::tests::reward(&path, 30.0, 0));
    assert!(done.exists());
}

#[test]
fn an_extra_line_is_not_used_as_the_next_answer() {
    let dir = tempfile::tempdir().unwrap();
    let body = r#"while read -r line; do printf '{"rewards": [1, 2]}\n{"rewards": [3, 4]}\n'; done"#;
    let mut reward = reward(&script(dir.path(), body), 30.0, 3);
    assert_eq!(score(&mut reward).values, [Some(1.0), Some(2.0)]);
    testing::wait_until("a second line", || reward.process.as_mut().unwrap().has_unread_line(false));
    assert!(failure(&score(&mut reward)).contains("is not an answer"));
}

#[test]
fn a_batch_larger_than_the_pipe_does_not_deadlock() {
    let dir = tempfile::tempdir().unwrap();
    // The program fills the pipe of its standard error before it reads.
    let body = r#"i=0; while [ $i -lt 3000 ]; do echo 'noise noise noise noise noise noise noise' >&2; i=$((i+1)); done
        head -n 1 > /dev/null; echo '{"rewards": [1]}'; cat > /dev/null"#;
    let mut reward = reward(&script(dir.path(), body), 60.0, 0);
    let long = Content::from("x".repeat(300_000));
    assert_eq!(score_with(&mut reward, &Columns::new(), &[long]).values, [Some(1.0)]);
}

#[test]
fn a_program_that_cannot_run_is_an_error_when_the_reward_is_built() {
    let dir = tempfile::tempdir().unwrap();
    let path = script(dir.path(), GOOD);
    let start = |words: Words| {
        let options = CommandOptions { command: words, timeout_s: 1.0, max_restarts: 0, by_group: false };
        CommandReward::new("reward".into(), options).err().map(|error| error.to_string())
    };
    let message = start(Words::List(vec![path.to_str().unwrap().into()])).unwrap();
    assert!(message.contains("not executable"), "{message}");
    // The interpreter starts, and on a busy machine may still run when the start is checked.
    let mut message = None;
    testing::wait_until("the interpreter ends before the check of its start is over", || {
        message = start(Words::from("/bin/sh /no/such/script.sh"));
        message.is_some()
    });
    let message = message.unwrap();
    assert!(message.contains("the program exited") && message.contains("/no/such/script.sh"), "{message}");
    let bad_timeout = CommandOptions { command: "sh".into(), timeout_s: 0.0, max_restarts: 0, by_group: false };
    assert!(CommandReward::new("reward".into(), bad_timeout).is_err());
}

#[test]
fn the_python_example_scores_completions() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/rewards/my_reward.py");
    let Some(()) = testing::program("python3") else { return };
    let words = Words::List(vec!["python3".into(), example.to_str().unwrap().into()]);
    let mut reward = CommandReward::new(
        "reward".into(),
        CommandOptions { command: words, timeout_s: 60.0, max_restarts: 0, by_group: false },
    )
    .unwrap();
    let columns = Columns::from([("answer".to_owned(), vec!["5".into(), "5".into(), serde_json::Value::Null])]);
    let completions = ["so it is 5".into(), Content::assistant("6"), "5".into()];
    let scores = score_with(&mut reward, &columns, &completions);
    assert_eq!(scores.values, [Some(1.0), Some(0.0), None], "{:?}", scores.problems);
    let scores = score_with(&mut reward, &Columns::new(), &completions);
    assert_eq!(scores.values, [None; 3]);
    assert!(scores.problems[0].message.contains("answer"), "{}", scores.problems[0]);
}

#[test]
fn commands_are_split_at_white_space_outside_of_quotes() {
    let split = |line: &str| split_line(line);
    assert_eq!(split("a  'b c' d\"e f\"g ''").unwrap(), ["a", "b c", "de fg", ""]);
    assert_eq!(split("a 'b"), None);
    assert_eq!(split(" ").unwrap(), Vec::<String>::new());
}

/// If a program answered twice, each later batch would get the scores of the batch before it.
#[test]
fn an_answer_to_another_request_is_an_error() {
    let number = r#"k=${line##*\"request\":}; k=${k%%\}*};"#;
    let answer = |number: &str| format!("echo \"{{\\\"rewards\\\": [$k, 0], \\\"request\\\": {number}}}\"");
    for (body, good) in [
        // The programs answer with the request's number, with the previous request's number, or twice (at once or
        // later).
        (answer("$k"), [true, true, true]),
        (answer("$((k - 1))"), [false, false, false]),
        (format!("{a}; {a}", a = answer("$k")), [true, false, true]),
        (format!("{a}; (sleep 0.02; {a}) &", a = answer("$k")), [true, false, true]),
        ("echo '{\"rewards\": [1, 0]}'; echo '{\"rewards\": [1, 0]}'".to_owned(), [true, false, true]),
        // The programs answer a second time without a number, or stop sending the number.
        (format!("{}; echo '{{\"rewards\": [1, 0]}}'", answer("$k")), [true, false, true]),
        (format!("test $k = 2 && echo '{{\"rewards\": [1, 0]}}' || {}", answer("$k")), [true, false, true]),
        // An error may omit the number.
        (format!("test $k = 2 && echo '{{\"error\": \"of request\"}}' || {}", answer("$k")), [true, false, true]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let slow = body.contains("sleep");
        let body = format!("while read -r line; do {number} {body}\ndone");
        let mut reward = reward(&script(dir.path(), &body), 30.0, 9);
        for (i, good) in good.into_iter().enumerate() {
            let scores = score(&mut reward);
            // A late line may arrive before or after the next answer, but must not be used as that answer.
            if slow {
                assert!([None, Some((i + 1) as f64)].contains(&scores.values[0]), "{scores:?}");
            } else if good {
                assert!(scores.values[0].is_some(), "{body}: {:?}", scores.problems);
            } else {
                let printed = failure(&scores);
                assert!(printed.contains("request") || printed.contains("is not an answer"), "{body}: {printed}");
            }
        }
    }
}
