//! Tests of the ranges of options, and of the messages for failures.

use super::*;

fn refusal(more: Value) -> Option<String> {
    let mut table = json!({"url": "http://x/"});
    for (key, value) in more.as_object().unwrap() {
        table[key] = value.clone();
    }
    let options = serde_json::from_value(table).unwrap();
    HttpReward::new("r".into(), options).err().map(|error| error.to_string())
}

#[test]
fn http_options_have_limits_and_defaults() {
    for (more, expected) in [
        (json!({"timeout_s": 0}), Some("`timeout_s` must be a positive number of seconds below 1e9, got 0")),
        (json!({"timeout_s": -1}), Some("`timeout_s` must be a positive number of seconds below 1e9, got -1")),
        (json!({"timeout_s": 1e9}), Some("`timeout_s` must be a positive number of seconds below 1e9, got 1000000000")),
        (json!({"timeout_s": 1e-3}), None),
        (json!({"backoff_s": -0.5}), Some("`backoff_s` must be a number of seconds from 0 to below 1e9, got -0.5")),
        (
            json!({"backoff_s": 1e9}),
            Some("`backoff_s` must be a number of seconds from 0 to below 1e9, got 1000000000"),
        ),
        (json!({"backoff_s": 0}), None),
        (json!({"batch_size": 0}), Some("`batch_size` and `concurrency` must be at least 1")),
        (json!({"concurrency": 0}), Some("`batch_size` and `concurrency` must be at least 1")),
        (json!({"batch_size": 1, "concurrency": 1}), None),
        (json!({"token_env": "NO_SUCH_NAME"}), Some("`token_env`: the environment variable NO_SUCH_NAME is not set")),
        (json!({"url": "x"}), Some("`url` = `x` must be a URL such as http://localhost:8000/score")),
        (json!({"url": "ftp://x/"}), Some("`url` = `ftp://x/` must be a URL such as http://localhost:8000/score")),
        (json!({"url": "https://x/"}), None),
    ] {
        assert_eq!(refusal(more.clone()), expected.map(|expected| format!("reward `http`: {expected}")), "{more}");
    }
    let options = serde_json::from_value(json!({"url": "http://x/"})).unwrap();
    let mut reward = HttpReward::new("r".into(), options).unwrap();
    let HttpReward { client, batch_size, concurrency, by_group, .. } = &reward;
    assert_eq!((client.address.timeout_s, client.retries, client.backoff), (60.0, 4, Duration::from_millis(500)));
    assert_eq!((*batch_size, *concurrency, *by_group, &client.authorization), (None, 8, false, &None));
    assert!(!reward.scores_by_group());
    // No request is sent for an empty batch.
    assert_eq!(ask(&mut reward, &[]), Scores::default());
}

#[test]
fn the_status_decides_whether_to_retry_and_200_bytes_are_shown() {
    for (status, requests) in
        [(399, 1), (400, 1), (407, 1), (408, 2), (409, 1), (428, 1), (429, 2), (430, 1), (499, 1), (500, 2), (599, 2)]
    {
        let (url, seen) = service(vec![Deed::Answer(status, String::new())]);
        let scores = ask(&mut reward(&url, json!({"retries": 1})), &["a"]);
        assert_eq!(seen.lock().unwrap().requests.len(), requests, "{status}");
        let problem = &scores.problems[0];
        assert_eq!((problem.kind, problem.rows), (ProblemKind::Crashed, 1));
        let times = if requests == 2 { " (2 requests)" } else { "" };
        let begins = format!("{url} answered with status {status}");
        assert!(problem.message.starts_with(&begins) && problem.message.ends_with(times), "{problem}");
        assert!(!problem.message.contains("it begins"), "{problem}");
    }
    for (bytes, shown) in [(199, 199), (200, 200), (201, 200)] {
        let (url, _) = service(vec![Deed::Answer(400, "x".repeat(bytes))]);
        let scores = ask(&mut reward(&url, json!({})), &["a"]);
        assert!(scores.problems[0].message.ends_with(&format!("; it begins: {}", "x".repeat(shown))), "{bytes}");
    }
    let (url, _) = service(vec![Deed::Answer(201, json!({"rewards": [3]}).to_string())]);
    assert_eq!(ask(&mut reward(&url, json!({})), &["a"]), Scores::new(vec![Some(3.0)]));
}

/// `token_env` names `PATH`, a variable that is always set.
#[test]
fn a_token_is_sent_as_a_bearer_token() {
    let (url, seen) = service(vec![rewards("[1]")]);
    ask(&mut reward(&url, json!({"token_env": "PATH"})), &["a"]);
    let (head, _) = seen.lock().unwrap().requests.remove(0);
    let expected = format!("authorization: Bearer {}", std::env::var("PATH").unwrap().trim());
    assert!(head.lines().any(|line| line.eq_ignore_ascii_case(&expected)), "{head}");
    let agent = concat!("user-agent: lockstep/", env!("CARGO_PKG_VERSION"));
    assert!(head.lines().any(|line| line.eq_ignore_ascii_case(agent)), "{head}");
}

#[test]
fn a_batch_is_split_into_requests_of_batch_size() {
    let texts = ["x", "xx", "xxx", "xxxx"];
    for (batch_size, expected) in [
        (1, &["[0]", "[1]", "[2]", "[3]"][..]),
        (2, &["[0,1]", "[2,3]"]),
        (3, &["[0,1,2]", "[3]"]),
        (4, &["[0,1,2,3]"]),
        (5, &["[0,1,2,3]"]),
    ] {
        // `ScoreBeside` waits for a second request, so requests must be sent concurrently.
        let deed = if expected.len() > 1 { Deed::ScoreBeside } else { rewards("[1, 2, 3, 4]") };
        let (url, seen) = service(vec![deed]);
        let scores = ask(&mut reward(&url, json!({"batch_size": batch_size, "concurrency": 4})), &texts);
        assert_eq!(scores.values, [Some(1.0), Some(2.0), Some(3.0), Some(4.0)]);
        let mut answers: Vec<_> =
            seen.lock().unwrap().requests.iter().map(|(_, body)| body["answer"].to_string()).collect();
        answers.sort();
        assert_eq!(answers, expected);
    }
    // With a dataset column that has the name of a request key, no completion gets a score.
    let (url, seen) = service(vec![Deed::Score]);
    let contents: Vec<Content> = texts.iter().map(|&text| text.into()).collect();
    let scores = reward(&url, json!({"batch_size": 1})).score(&RewardBatch {
        prompts: &contents,
        completions: &contents,
        completion_ids: &[const { vec![] }; 4],
        columns: &Columns::from([("completions".to_owned(), vec![Value::Null; 4])]),
        rows: &[],
        step: model::Step(0),
    });
    let [problem] = &scores.problems[..] else { panic!("{scores:?}") };
    assert_eq!((scores.values.len(), problem.rows, problem.kind), (4, 4, ProblemKind::BadData));
    assert!(seen.lock().unwrap().requests.is_empty());
}

#[test]
fn messages_show_urls_without_secrets() {
    for (url, shown) in [
        ("http://x/", "http://x/"),
        ("http://user:pw@x/score", "http://x/score"),
        ("https://user@x:80/a?key=secret&b=c", "https://x:80/a?key=…&b=…"),
        ("http://a:b@c:d@x", "http://x"),
        ("http://x?secret", "http://x?…"),
        ("http://x/a@b", "http://x/a@b"),
        ("x", "x"),
    ] {
        assert_eq!(without_secrets(url), shown);
    }
    // No message contains a secret: neither for failures and errors, nor for invalid responses, scores or URLs.
    for deeds in [
        vec![Deed::Close],
        vec![Deed::Answer(500, String::new())],
        vec![Deed::Answer(404, String::new())],
        vec![Deed::Answer(200, "x".into())],
        vec![rewards("[\"a\"]")],
        vec![rewards("[]")],
        vec![Deed::Redirect(302, "http://user:pw-secret@x/?k=pw-secret".into())],
        vec![Deed::Answer(200, "{\"error\": \"no\"}".into())],
    ] {
        let (url, _) = service(deeds);
        let url = format!("{}?key=pw-secret", url.replace("http://", "http://user:pw-secret@"));
        let scores = ask(&mut reward(&url, json!({"retries": 0})), &["a"]);
        assert!(!scores.problems.is_empty());
        assert!(scores.problems.iter().all(|problem| !format!("{problem:?}").contains("pw-secret")), "{scores:?}");
    }
    let refusal = refusal(json!({"url": "ftp://user:pw-secret@x/"})).unwrap();
    assert!(refusal.contains("`ftp://x/`"), "{refusal}");
}

#[test]
fn the_limit_for_responses_applies_after_decompression() {
    let text = |length: u64| text_of(std::io::Read::take(std::io::repeat(b' '), length));
    assert_eq!(text(1000).unwrap().len(), 1000);
    assert!(matches!(text(MAX_ANSWER_BYTES + 1), Err(ureq::Error::BodyExceedsLimit(MAX_ANSWER_BYTES))));
}
