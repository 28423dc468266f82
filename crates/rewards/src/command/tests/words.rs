//! Tests of commands and options before a program is started.

use super::*;

fn refused(command: Words, timeout_s: f64) -> String {
    let options = CommandOptions { command, timeout_s, max_restarts: 0, by_group: false };
    CommandReward::new("reward".into(), options).map(|_| ()).unwrap_err().to_string()
}

#[test]
fn invalid_command_options_are_refused() {
    for timeout_s in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e9] {
        let refusal = refused("cat".into(), timeout_s);
        assert_eq!(refusal, "reward `command`: `timeout_s` must be a positive number of seconds", "{timeout_s}");
    }
    for (command, expected) in [
        (Words::from("a 'b"), "unclosed quote in `a 'b`"),
        (Words::from(" "), "the command must name a program"),
        (Words::from("'' a"), "the command must name a program"),
        (Words::List(vec![]), "the command must name a program"),
        (Words::List(vec![String::new()]), "the command must name a program"),
    ] {
        assert_eq!(refused(command, 1.0), format!("reward `command`: {expected}"));
    }
    let dir = tempfile::tempdir().unwrap();
    let none = dir.path().join("none").display().to_string();
    let expected = "no such program, or its interpreter is missing";
    assert_eq!(
        refused(Words::List(vec![none.clone()]), 1.0),
        format!("reward `command`: cannot run `{none}`: {expected}")
    );
    std::fs::write(&none, "").unwrap();
    let expected = "the program is not executable (try chmod +x, or name its interpreter)";
    assert_eq!(
        refused(Words::List(vec![none.clone()]), 1.0),
        format!("reward `command`: cannot run `{none}`: {expected}")
    );
    let other = std::io::Error::other("full");
    assert_eq!(explain(&other), "full");
}

#[test]
fn command_options_have_defaults() {
    let options: CommandOptions = serde_json::from_value(serde_json::json!({"command": "x"})).unwrap();
    assert_eq!((options.timeout_s, options.max_restarts, options.by_group), (60.0, 3, false));
    assert!(matches!(options.command, Words::Line(line) if line == "x"));
}

#[test]
fn a_command_reward_is_named_after_its_script_or_program() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| {
        std::fs::write(dir.path().join(name), "").unwrap();
        dir.path().join(name).display().to_string()
    };
    let (a, b) = (file("a.py"), file("b.v2.py"));
    let (a, b) = (a.as_str(), b.as_str());
    for (words, name, arguments) in [
        (&["python3", a][..], "a", ""),
        (&["python3", a, b, "c"], "a", &format!("{b} c")),
        (&["python3", "no.py", b, "-c"], "b.v2", "-c"),
        (&["python3", "-u", a], "python3", &format!("-u {a}")),
        (&["./run.sh", "x", "y"], "run", "x y"),
        (&["/", "x"], "command", "x"),
        (&[a], "a", ""),
    ] {
        let words = Words::List(words.iter().map(|word| (*word).to_owned()).collect());
        assert_eq!(label(words).unwrap(), (name.to_owned(), arguments.to_owned()));
    }
    assert!(label("'".into()).is_err());
}

#[test]
fn quoted_words_are_kept_together() {
    for (line, expected) in [
        ("", Some(&[][..])),
        ("a", Some(&["a"])),
        (" a\tb\nc ", Some(&["a", "b", "c"])),
        ("'a b'", Some(&["a b"])),
        ("'a \"b'", Some(&["a \"b"])),
        ("\"a 'b\"", Some(&["a 'b"])),
        ("a'b'c", Some(&["abc"])),
        ("a''b", Some(&["ab"])),
        ("a '' b", Some(&["a", "", "b"])),
        ("''''", Some(&[""])),
        ("'a' 'b'", Some(&["a", "b"])),
        ("'a'b c", Some(&["ab", "c"])),
        ("\\n $a", Some(&["\\n", "$a"])),
        ("'", None),
        ("a \"b'", None),
    ] {
        assert_eq!(
            split_line(line).as_deref().map(|words| words.iter().map(String::as_str).collect::<Vec<_>>()),
            expected.map(<[&str]>::to_vec),
            "{line}"
        );
    }
}

/// Each row has a kind of failure, and the number of starts that it leads to.
#[test]
fn a_failed_program_is_restarted_unless_it_reported_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let starts = dir.path().join("starts");
    for (answer, kind, message, started) in [
        ("{\"error\": \"no key\"}", ProblemKind::Failed, "the program reported an error: no key", 1),
        (
            "{\"rewards\": [1]}",
            ProblemKind::BadAnswer,
            "`rewards` must have one score per completion: got 1 scores for 2 completions",
            1,
        ),
        ("[", ProblemKind::BadAnswer, "the answer is not a line of JSON", 3),
    ] {
        let _ = std::fs::remove_file(&starts);
        let body = format!("echo x >>'{}'; while read -r line; do echo '{answer}'; done", starts.display());
        let mut reward = reward(&script(dir.path(), &body), 30.0, 9);
        for _ in 0..3 {
            let scores = score(&mut reward);
            assert!(failure(&scores).starts_with(message), "{scores:?}");
            assert_eq!((scores.problems[0].kind, scores.problems[0].fatal), (kind, false));
        }
        assert_eq!(std::fs::read_to_string(&starts).unwrap().lines().count(), started, "{answer}");
        assert_eq!(reward.restarts_in_a_row as usize, started - 1);
    }
}

/// A batch without completions is not sent. A batch with a column named like a request key is an error. The program is
/// not at fault and keeps running.
#[test]
fn a_batch_that_cannot_be_sent_does_not_end_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let mut reward = reward(&script(dir.path(), "exec cat >/dev/null"), 30.0, 0);
    assert_eq!(score_with(&mut reward, &Columns::new(), &[]), Scores::default());
    let columns = Columns::from([("prompts".to_owned(), vec![1.into(), 2.into()])]);
    let scores = score_with(&mut reward, &columns, &["5".into(), "6".into()]);
    assert_eq!((scores.problems[0].kind, scores.problems[0].fatal), (ProblemKind::BadData, false));
    assert!(reward.process.is_some() && !reward.scores_by_group());
}
