//! The `lockstep` program. Exit codes: 0 done, 2 bad usage, configuration or input, 1 failed.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(lockstep_cli::main(std::env::args_os()))
}
