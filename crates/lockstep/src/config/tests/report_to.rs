//! Values of `report_to`.

use super::{grpo, refused};
use crate::config::report_to::Receiver;
use crate::config::{Layers, Purpose};

#[test]
fn receivers_are_commands_and_addresses() {
    let set = [("report_to", "[\"command:python3 'a b.py' -x\", \"https://h.example/x?run=1\", \"http://[::1]:8\"]")];
    let resolved = grpo(&set).unwrap();
    let words = ["python3", "a b.py", "-x"].map(str::to_owned).to_vec();
    let expected = [
        ("command:python3 \"a b.py\" -x", Receiver::Command(words)),
        ("https://h.example/x?run=1", Receiver::Http("https://h.example/x?run=1".into())),
        ("http://[::1]:8", Receiver::Http("http://[::1]:8".into())),
    ];
    assert_eq!(resolved.config.receivers().unwrap(), expected);
    assert_eq!(resolved.notes, [""; 0]);
    let one = grpo(&[("report_to", "command:cat")]).unwrap().config;
    assert_eq!(one.receivers().unwrap(), [("command:cat", Receiver::Command(vec!["cat".into()]))]);
}

#[test]
fn trls_values_are_accepted_and_send_nothing() {
    let notes = |value: &str| {
        let resolved = grpo(&[("report_to", value)]).unwrap();
        assert_eq!(resolved.config.receivers().unwrap(), []);
        resolved.notes
    };
    assert_eq!((notes("tensorboard"), notes("all"), notes("[]")), (Vec::new(), Vec::new(), Vec::new()));
    for value in ["wandb", "none"] {
        assert!(notes(value)[0].starts_with(&format!("report_to = {value}: nothing is sent to these services; ")));
    }
    let several = notes("[\"wandb\", \"trackio\", \"tensorboard\"]");
    assert!(several.len() == 1 && several[0].starts_with("report_to = wandb, trackio: "), "{several:?}");
}

/// The configuration is written into files. Passwords in it are refused, and the error does not repeat them.
#[test]
fn passwords_and_misspelt_receivers_are_refused() {
    for (value, words) in [
        ("http://me:hush@h.example/", "`http://…` has a user or a password before `@`"),
        ("https://h.example/?a=1&api_key=hush", "`https://…` has `api_key` in its query"),
        ("command:curl https://h.example/?token=hush", "`https://…` has `token` in its query"),
        ("htps://me:hush@h.example/", "`htps://…` is not a receiver: expected command:PROGRAM"),
        ("http://", "`http://` must be a URL such as"),
        ("https:///x", "`https:///x` must be a URL such as"),
        ("command:", "`command:` must name a program"),
        ("command:a 'b", "unclosed quote in `command:a 'b`"),
        ("wandbb", "`wandbb` is not a receiver"),
        ("", "`` is not a receiver"),
    ] {
        let value = format!("[\"{value}\"]");
        let error = grpo(&[("report_to", &value)]).unwrap_err().to_string();
        assert!(error.starts_with("`report_to`: ") && error.contains(words), "{error}");
        assert!(!error.contains("hush"), "{error}");
    }
    let token = grpo(&[("report_to", "http://me@h.example/")]).unwrap_err().to_string();
    assert!(token.contains("pass a token in the environment variable LOCKSTEP_REPORT_TOKEN"), "{token}");
    refused(&[("report_to", "[\"http://a/\", \"http://a/\"]")], &["names `http://a/` twice"]);
    refused(&[("report_to", "[3]")], &["a string in quotes"]);
    let layers = Layers {
        purpose: Purpose::Show,
        environment: vec![("LOCKSTEP_REPORT_TOKEN".into(), "hush".into())],
        ..Layers::default()
    };
    assert!(!layers.resolve().unwrap().to_toml().contains("hush"), "the token is not written to the configuration");
}

#[test]
fn a_commands_path_is_relative_to_the_file_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("tell.py"), "").unwrap();
    std::fs::write(at("c.toml"), "report_to = [\"command:python3 tell.py --all\", \"command:tell.py\"]\n").unwrap();
    let layers = Layers { purpose: Purpose::Show, file: Some(at("c.toml")), ..Layers::default() };
    let config = layers.resolve().unwrap().config;
    let script = at("tell.py").display().to_string();
    assert_eq!(config.report_to, [format!("command:python3 {script} --all"), "command:tell.py".to_owned()]);
}
