//! `lockstep_rl._native`: what the Python package `lockstep_rl` calls. It knows no field of TRL's and no dataset: these
//! are Python's; here values become a configuration, rows JSON, functions rewards, and a run continues with the
//! interpreter released.

mod engine;
mod errors;
mod eval_metrics;
mod fields;
mod grade;
mod json;
mod language_model;
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

/// The program `lockstep`, on these arguments (its name first): its exit code.
#[pyfunction]
fn main(py: Python<'_>, arguments: Vec<OsString>) -> PyResult<u8> {
    process::use_engine()?;
    let interpreter: OsString = py.import("sys")?.getattr("executable")?.extract()?;
    let program = vec![interpreter, "-m".into(), "lockstep_rl".into()];
    Ok(py.detach(|| lockstep_cli::main_of(program, arguments)))
}

/// Ends the programs that rewards run: for a process that is about to end.
#[pyfunction]
fn end_programs() {
    rewards::end_programs();
}

/// Shows the run of this directory on a page: its address. An OSError, if the port is taken.
#[pyfunction]
fn show(run: std::path::PathBuf, port: u16) -> PyResult<String> {
    Ok(lockstep_cli::page_of(&run, port)?)
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    // Runs of this package record the build of the engine that is in it.
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
    module.add_function(wrap_pyfunction!(worker::work, module)?)?;
    module.add_function(wrap_pyfunction!(run::run, module)?)
}
