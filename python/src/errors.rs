//! Converts errors of the library to Python exceptions: `ValueError` for errors that the caller can fix,
//! `FileNotFoundError` for a missing file, and `RuntimeError` for all others.

use lockstep::error::{is_bad_input, paragraph};
use lockstep::is_stopped;
use pyo3::PyErr;
use pyo3::exceptions::{PyFileNotFoundError, PyKeyboardInterrupt, PyRuntimeError, PyValueError};
use std::any::Any;

/// The exception for `error`.
pub fn exception(error: &anyhow::Error) -> PyErr {
    let text = in_python(&paragraph(error));
    if is_stopped(error) {
        return PyKeyboardInterrupt::new_err(text);
    }
    match is_bad_input(error) {
        true if text.to_ascii_lowercase().contains("no such file or directory") => PyFileNotFoundError::new_err(text),
        true => PyValueError::new_err(text),
        false => PyRuntimeError::new_err(text),
    }
}

/// Command-line flags in error messages, and their Python counterparts.
const FLAGS: [(&str, &str); 20] = [
    ("resume it with --resume ", "resume it with resume_from_checkpoint=True of train() in "),
    (
        "resume from the checkpoint before it with --resume ",
        "resume from the checkpoint before it with resume_from_checkpoint=",
    ),
    (
        "fix the reward and resume with --resume ",
        "fix the reward and resume with resume_from_checkpoint=True of train() in ",
    ),
    ("fix it and resume (--resume)", "fix it and resume (resume_from_checkpoint=True of train())"),
    ("choose another directory with --out", "choose another output_dir"),
    ("give another --out", "give another output_dir"),
    ("Give --out DIR, or --resume DIR", "Give output_dir, or the directory as resume_from_checkpoint"),
    ("--resume latest", "resume_from_checkpoint=True"),
    ("give it as --model ", "give it as model="),
    ("give --model DIR, or model_name_or_path in the configuration", "give `model`"),
    ("give --model DIR, or a configuration with model_name_or_path", "give `model`"),
    ("give --dataset FILE, or dataset_name in the configuration", "give `train_dataset`"),
    ("give --dataset FILE, or a configuration with eval_dataset_name or eval_datasets", "give `eval_dataset`"),
    ("give --reward gsm8k (or ", "give reward_funcs=\"gsm8k\" (or "),
    ("give --tokenizer DIR", "give processing_class"),
    ("compute on the CPU: --device cpu", "compute on the CPU: device=\"cpu\""),
    (" (--device cpu)", " (device=\"cpu\")"),
    (" (--dtype f32)", " (dtype=\"f32\")"),
    ("reward_errors = \"continue\"", "reward_errors=\"continue\""),
    (" (`kill ", " (in a shell: `kill "),
];

/// Replaces flags in an engine message by their Python counterparts.
fn in_python(text: &str) -> String {
    FLAGS.iter().fold(text.to_owned(), |text, (flag, word)| text.replace(flag, word))
}

/// A panic is a bug in this package: it is reported as such, and the interpreter continues.
pub fn of_panic(panic: &(dyn Any + Send)) -> PyErr {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    PyRuntimeError::new_err(format!("a bug in lockstep_rl, please report it: {}", text.unwrap_or("a panic")))
}
