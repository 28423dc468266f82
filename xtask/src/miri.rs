//! Runs Miri on the kernels to find undefined behaviour. CI does not run this, since Miri needs a nightly toolchain and
//! takes minutes.

use std::process::Command;

pub fn check() -> Result<(), String> {
    // Memory, views and threads; every operation on its smallest shapes; the vectors' plain form.
    let tests = ["memory::", "tensor::", "matrix::", "pool::", "isa::", "device::", "ops::small_tests::"];
    // These tests do not read files. The pool's threads are joined, but a thread's scratch is freed after Miri's check
    // for leaks.
    let flags = "-Zmiri-disable-isolation -Zmiri-ignore-leaks";
    let arguments = ["run", "nightly", "cargo", "miri", "test", "-p", "lockstep-kernels", "--lib", "--"];
    let mut command = Command::new("rustup");
    command.args(arguments).args(tests).env("MIRIFLAGS", flags).env("CARGO_TARGET_DIR", "target/miri");
    // Set by the cargo that runs this program, for a toolchain that is not nightly.
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
