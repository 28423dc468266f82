//! Errors that the user can fix (exit code 2), as opposed to failures of the program (exit code 1).

use std::fmt::Display;

/// Invalid input of the user: a flag, a configuration key, a file. The message names the problem, its place, and the
/// fix.
///
/// A `BadInput` travels inside [`anyhow::Error`]; [`is_bad_input`] finds it under any context.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadInput(pub String);

impl BadInput {
    /// Creates an [`anyhow::Error`] from a `BadInput` with this message.
    #[expect(clippy::new_ret_no_self, reason = "it only ever travels inside anyhow's error")]
    pub fn new(message: impl Into<String>) -> anyhow::Error {
        anyhow::Error::new(BadInput(message.into()))
    }
}

/// Returns from the current function with a [`BadInput`] error; its message is formatted as by `format!`.
#[macro_export]
macro_rules! bad_input {
    ($($format:tt)*) => {
        return Err($crate::error::BadInput::new(format!($($format)*)))
    };
}

/// Converts any error to a [`BadInput`], an error that the user can fix.
pub trait OrBadInput<T> {
    /// Returns the value, or the error with its causes as a [`BadInput`].
    fn or_bad_input(self) -> anyhow::Result<T>;
    /// Like `or_bad_input`, with `what` and a colon before the message.
    fn or_bad_input_in(self, what: impl Display) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> OrBadInput<T> for Result<T, E> {
    fn or_bad_input(self) -> anyhow::Result<T> {
        self.map_err(|e| BadInput::new(paragraph(&e.into())))
    }
    fn or_bad_input_in(self, what: impl Display) -> anyhow::Result<T> {
        self.map_err(|e| BadInput::new(format!("{what}: {}", paragraph(&e.into()))))
    }
}

/// Whether the error has a [`BadInput`] among its causes, so that the user can fix it.
pub fn is_bad_input(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.is::<BadInput>())
}

/// The error and its causes as one paragraph, without causes whose text an outer message contains.
pub fn paragraph(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(|cause| cause.to_string()) {
        if !text.contains(&cause) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&cause);
        }
    }
    if let Some(keys) = error.chain().find_map(keys_to_lower) {
        text.push_str(&format!(": lower {keys} (`lockstep plan` shows the memory of each part)"));
    }
    // Parts of the text are untrusted: they come from a reward program, a server, or a file name.
    telemetry::visible(&one_line(&text)).into_owned()
}

/// The configuration keys that lower the memory of the part whose allocation failed; `None` if `cause` is another
/// error.
fn keys_to_lower(cause: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    // The other crates' errors wrap the kernel's out-of-memory error.
    let model_part = |error: &'_ model::Error| match error {
        model::Error::Kernel(error) => part(error),
        _ => None,
    };
    let part = match (cause.downcast_ref(), cause.downcast_ref(), cause.downcast_ref(), cause.downcast_ref()) {
        (Some(kernel), ..) => part(kernel),
        (_, Some(model), ..) => model_part(model),
        (_, _, Some(train::Error::Kernel(kernel)), _) | (.., Some(rollout::Error::Kernel(kernel))) => part(kernel),
        (_, _, Some(train::Error::Model(model)), _) => model_part(model),
        _ => None,
    };
    Some(match part? {
        "kv cache" => "max_num_seqs, kv_cache_blocks or max_completion_length",
        "activations" | "workspace" => {
            "max_tokens_per_micro_batch or max_num_seqs, or set gradient_checkpointing = true"
        }
        "optimizer" => "adam_moments_dtype to \"bf16\", or train an adapter (use_peft = true)",
        _ => "the size of the model, or train an adapter (use_peft = true), with dtype = \"bf16\" to halve its base",
    })
}

/// The name of the part of a run whose allocation failed.
fn part(error: &kernels::Error) -> Option<&'static str> {
    match error {
        kernels::Error::OutOfMemory { part, .. } => Some(part),
        _ => None,
    }
}

/// Joins the lines of `text` by spaces, and drops lines that only point at the line above (`^`). Lines of a program's
/// output, which begin with `| `, stay separate.
fn one_line(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines().map(str::trim).filter(|line| !line.chars().all(|c| c == '^')) {
        let printed = line.strip_prefix("| ").is_some_and(|rest| !rest.trim().chars().all(|c| c == '^'));
        out += if out.is_empty() {
            ""
        } else if printed {
            "\n  "
        } else {
            " "
        };
        out += line;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn an_error_prints_each_cause_once() {
        let error = BadInput::new("regex parse error:\n    (\n    ^\nerror: unclosed group");
        let error = Err::<(), _>(error).context("reward `format`").unwrap_err();
        assert_eq!(paragraph(&error), "reward `format`: regex parse error: ( error: unclosed group");
        assert!(is_bad_input(&error));
        let printed = anyhow::anyhow!("it ended:\n  | line 1\n  |   line 2");
        assert_eq!(paragraph(&printed), "it ended:\n  | line 1\n  |   line 2");
        let quoted = Err::<(), _>(anyhow::anyhow!("no such file")).context("a.toml: no such file").unwrap_err();
        assert_eq!(paragraph(&quoted), "a.toml: no such file");
        assert!(!is_bad_input(&quoted) && is_bad_input(&Err::<(), _>(quoted).or_bad_input().unwrap_err()));
    }

    #[test]
    fn out_of_memory_errors_name_the_keys_to_lower() {
        let lower = |part: &'static str| {
            let text = paragraph(&kernels::Error::OutOfMemory { part, bytes: 3 }.into());
            let (_, keys) = text.split_once(": lower ").unwrap_or_else(|| panic!("{text}"));
            keys.split_once(" (`lockstep plan` shows the memory of each part)").unwrap().0.to_owned()
        };
        assert_eq!(lower("kv cache"), "max_num_seqs, kv_cache_blocks or max_completion_length");
        let batch = "max_tokens_per_micro_batch or max_num_seqs, or set gradient_checkpointing = true";
        assert_eq!((lower("activations"), lower("workspace")), (batch.to_owned(), batch.to_owned()));
        let adapter = "or train an adapter (use_peft = true)";
        let whole = format!("the size of the model, {adapter}, with dtype = \"bf16\" to halve its base");
        assert_eq!((lower("weights"), lower("gradients")), (whole.clone(), whole));
        assert_eq!(lower("optimizer"), format!("adam_moments_dtype to \"bf16\", {adapter}"));
        let kernel = || kernels::Error::OutOfMemory { part: "weights", bytes: 3 };
        let errors: [anyhow::Error; 5] = [
            kernel().into(),
            model::Error::Kernel(kernel()).into(),
            train::Error::Kernel(kernel()).into(),
            train::Error::Model(model::Error::Kernel(kernel())).into(),
            rollout::Error::Kernel(kernel()).into(),
        ];
        for error in errors {
            let text = paragraph(&error.context("a step"));
            assert!(text.starts_with("a step: ") && text.contains("use_peft"), "{text}");
        }
        for other in [anyhow::Error::from(model::Error::Stopped), rollout::Error::Stopped.into(), anyhow::anyhow!("x")]
        {
            assert!(!paragraph(&other).contains("lower"), "{other}");
        }
    }

    #[test]
    fn lines_and_causes_become_one_paragraph() {
        assert_eq!(one_line("a\n  b  \n\n c"), "a b c");
        assert_eq!(one_line("it ended:\n| one\n| ^^\n| two"), "it ended:\n  | one | ^^\n  | two");
        assert_eq!(one_line(""), "");
        let error = Err::<(), _>(anyhow::anyhow!("inner")).context("middle").context("outer: inner").unwrap_err();
        assert_eq!(paragraph(&error), "outer: inner: middle");
        let named = Err::<(), _>(anyhow::anyhow!("inner").context("outer")).or_bad_input_in("file").unwrap_err();
        assert_eq!((is_bad_input(&named), named.to_string()), (true, "file: outer: inner".to_owned()));
        let unnamed = Err::<(), _>(anyhow::anyhow!("inner").context("outer")).or_bad_input().unwrap_err();
        assert_eq!(unnamed.to_string(), "outer: inner");
        assert_eq!(
            (
                Ok::<_, anyhow::Error>(3).or_bad_input().unwrap(),
                Ok::<_, anyhow::Error>(4).or_bad_input_in("f").unwrap()
            ),
            (3, 4)
        );
    }
}
