//! Runs Miri on the kernels to detect undefined behaviour. CI does not run this check, since Miri needs a nightly
//! toolchain and takes minutes.

use std::process::Command;

pub fn check() -> Result<(), String> {
    // Memory, views and threads; every operation on its smallest shapes; the scalar fallback of the vector code.
    let tests = ["memory::", "tensor::", "matrix::", "pool::", "isa::", "device::", "ops::small_tests::"];
    // These tests do not read files. Leaks are ignored: the pool's threads are joined, but each thread's scratch memory
    // is freed after Miri's leak check.
    let flags = "-Zmiri-disable-isolation -Zmiri-ignore-leaks";
    let arguments = ["run", "nightly", "cargo", "miri", "test", "-p", "lockstep-kernels", "--lib", "--"];
    let mut command = Command::new("rustup");
    command.args(arguments).args(tests).env("MIRIFLAGS", flags).env("CARGO_TARGET_DIR", "target/miri");
    // The cargo that started this program set these variables for a stable toolchain.
    for name in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"] {
        command.env_remove(name);
    }
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{status} (rustup component add --toolchain nightly miri rust-src)")),
        Err(error) => Err(format!("rustup: {error}")),
    }
}

/// Whether a nightly toolchain with Miri is installed.
pub fn is_there() -> bool {
    let version = Command::new("rustup").args(["run", "nightly", "cargo", "miri", "--version"]).output();
    version.is_ok_and(|output| output.status.success())
}
