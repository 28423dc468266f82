//! `lockstep_rl._native`: the functions and classes that the Python package `lockstep_rl` calls. This crate knows
//! neither TRL's fields nor datasets, which Python handles. It receives configuration values, rows as JSON, and
//! functions as rewards, and runs training with the interpreter lock released.

mod engine;
mod errors;
mod eval_metrics;
mod fields;
mod grade;
mod json;
mod language_model;
mod launch;
mod observer;
mod ops;
mod process;
mod reward;
mod rollouts;
mod run;
mod step;
mod worker;

use pyo3::prelude::*;
use std::ffi::OsString;

/// Runs the program `lockstep` with these arguments (the program name first); returns its exit code.
#[pyfunction]
fn main(py: Python<'_>, arguments: Vec<OsString>) -> PyResult<u8> {
    process::use_engine()?;
    let interpreter: OsString = py.import("sys")?.getattr("executable")?.extract()?;
    let program = vec![interpreter, "-m".into(), "lockstep_rl".into()];
    Ok(py.detach(|| lockstep_cli::main_of(program, arguments)))
}

/// Kills the programs of rewards, for a process that is about to exit.
#[pyfunction]
fn end_programs() {
    rewards::end_programs();
}

/// Shows the run in this directory on a page, and returns its URL. Raises OSError if the port is in use.
#[pyfunction]
fn show(run: std::path::PathBuf, port: u16) -> PyResult<String> {
    Ok(lockstep_cli::page_of(&run, port)?)
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    // Runs of this package record the build of the engine that it contains.
    let build = lockstep_cli::build();
    module.add("__build__", build.to_string())?;
    build.announce();
    module.add_class::<run::StopSignal>()?;
    module.add_class::<observer::LiveModel>()?;
    module.add_class::<grade::Grader>()?;
    module.add_class::<rollouts::RolloutEngine>()?;
    module.add_class::<language_model::LanguageModel>()?;
    module.add_class::<engine::Generator>()?;
    module.add_class::<step::Stepper>()?;
    module.add_class::<ops::DeviceWords>()?;
    module.add_function(wrap_pyfunction!(ops::masked_softmax, module)?)?;
    module.add_function(wrap_pyfunction!(ops::fused_sample, module)?)?;
    module.add_function(wrap_pyfunction!(main, module)?)?;
    module.add_function(wrap_pyfunction!(end_programs, module)?)?;
    module.add_function(wrap_pyfunction!(show, module)?)?;
    module.add_function(wrap_pyfunction!(fields::fields, module)?)?;
    module.add_function(wrap_pyfunction!(fields::check, module)?)?;
    module.add_function(wrap_pyfunction!(language_model::directory_of, module)?)?;
    module.add_function(wrap_pyfunction!(run::check_fresh, module)?)?;
    module.add_function(wrap_pyfunction!(launch::launch_place, module)?)?;
    module.add_function(wrap_pyfunction!(launch::enter_launch, module)?)?;
    module.add_function(wrap_pyfunction!(launch::leave_launch, module)?)?;
    module.add_function(wrap_pyfunction!(worker::work, module)?)?;
    module.add_function(wrap_pyfunction!(run::run, module)?)
}
