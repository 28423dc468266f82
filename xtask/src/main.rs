//! Developer commands: `cargo xtask check` runs the checks that CI runs after the tests.

use receipts::Inputs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

const HELP: &str = "cargo xtask check    all checks that CI runs beside `cargo test --workspace`, the fast ones first
cargo xtask check layers    finds imports against the order of crates, and import cycles between modules of a crate
cargo xtask check size      finds files, lines and document prose that are too long
cargo xtask check disk      finds code that opens files without the crate `disk`
cargo xtask check links     finds broken links in documents, and pages that are missing from the book
cargo xtask check words     finds words that docs/glossary.md replaces by others, in code, messages and documents;
                            counts sentence patterns that CONTRIBUTING.md rewrites: no count may rise
cargo xtask check deny      checks licences, sources and duplicate versions of dependencies (deny.toml)
cargo xtask check release   runs the demo with the release build, and checks that its vector code is inlined; skipped
                            unless a manifest, the lock file or a kernel has changed
cargo xtask check fmt|clippy|docs|fixtures|demo    runs one of the other checks
cargo xtask check fast      runs the checks that neither compile the crates nor train
cargo xtask cuda            compiles every CUDA kernel with NVIDIA's compiler, without a GPU (downloads it with pip)
cargo xtask cubins [DIR]    compiles every CUDA kernel for every architecture into DIR (target/cubins)
cargo xtask emulate         lists the CUDA kernels that changed since the last full emulation; `--full` runs one (slow)
cargo xtask first-hour      tests bench/cuda/first_hour.sh and its reports on the emulator at small sizes
cargo xtask browser         tests the page in a headless browser (needs Chromium and npm)
cargo xtask passed NAME     exits with 0 if a check with a receipt passed on these files (xtask/receipts.txt)
cargo xtask miri            finds undefined behaviour in kernels, on small shapes (needs a nightly toolchain with miri)
cargo xtask mutants [LIST|NUMBER]…    checks that tests notice planted changes (docs/testing.md)
cargo xtask mutants random --seed S --count N [--crate C]    the same with randomly drawn changes
cargo xtask read SEED       prints random docs, comments, messages, headlines and names of tests for proofreading
cargo xtask release [TARGET]    packs each crate as for crates.io, and the built program as an archive with a checksum
cargo xtask nightly [NAME]…    runs the checks that take too long for CI; docs/nightly.md has the last results";

/// A check: its name and the function that runs it.
type Check = (&'static str, fn() -> Result<(), String>);

const CHECKS: [Check; 12] = [
    ("fmt", fmt),
    ("size", size::check),
    ("layers", layers::check),
    ("disk", disk::check),
    ("links", links::check),
    ("words", || words::check().and_then(|()| grammar::check())),
    ("fixtures", fixtures::check),
    ("deny", deny::check),
    ("clippy", clippy),
    ("docs", docs),
    ("demo", demo::check),
    ("release", || RELEASE.once(release)),
];

/// Compiling every kernel with NVIDIA's compiler.
const CUDA: Inputs = Inputs {
    name: "cuda",
    files: &["Cargo.toml", "crates/kernels", "crates/testing", "xtask/src/cuda.rs"],
    versions: &cuda::PACKAGES,
    tools: &[],
};
/// The script for a machine with a GPU. Its programs use most crates.
const FIRST_HOUR: Inputs = Inputs {
    name: "first-hour",
    files: &["Cargo.toml", "crates", "bench/cuda", "xtask/src/first_hour.rs"],
    versions: &[],
    tools: &[&["c++", "--version"], &["bash", "--version"], &["python3", "--version"]],
};
/// The release build. The check `demo` tests the sources in the test build; this check depends on the manifests, and on
/// the kernels, whose vector code must be inlined in a release.
const RELEASE: Inputs = Inputs {
    name: "release",
    files: &["Cargo.toml", "crates/*/Cargo.toml", "crates/kernels/src"],
    versions: &[],
    tools: &[],
};
/// The browser tests of the page, on runs that the program trains.
const BROWSER: Inputs = Inputs {
    name: "browser",
    files: &["Cargo.toml", "crates"],
    versions: &[],
    tools: &[&["chromium", "--version"], &["node", "--version"]],
};

mod book;
mod cargo;
mod cuda;
mod demo;
mod deny;
mod disk;
mod emulate;
mod first_hour;
mod fixtures;
mod grammar;
mod layers;
mod links;
mod miri;
mod nightly;
mod page_runs;
mod provenance;
mod read;
mod receipts;
mod release;
mod sandbox;
mod size;
mod sources;
mod tinker;
mod trl_suite;
mod vectors;
mod verdicts;
mod words;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match &words[..] {
        ["mutants", chosen @ ..] => Some(mutants(chosen)),
        ["nightly", chosen @ ..] => Some(nightly::run(chosen)),
        ["read", arguments @ ..] => Some(read::run(arguments)),
        ["book", arguments @ ..] => Some(book::preprocess(arguments)),
        ["release"] => Some(release::run(None)),
        ["release", target] => Some(release::run(Some(target))),
        ["cubins"] => Some(cuda::cubins("target/cubins")),
        ["cubins", to] => Some(cuda::cubins(to)),
        ["passed", name] => Some(passed(name)),
        _ => None,
    };
    match done {
        Some(Ok(())) => return ExitCode::SUCCESS,
        Some(Err(why)) => {
            eprintln!("{why}");
            return ExitCode::FAILURE;
        }
        None => {}
    }
    let chosen: Vec<Check> = match words[..] {
        ["cuda"] => vec![("cuda", || CUDA.once(cuda::check))],
        ["emulate"] => vec![("emulate", emulate::check)],
        ["emulate", "--full"] => vec![("emulate --full", emulate::full)],
        ["first-hour"] => vec![("first-hour", || FIRST_HOUR.once(first_hour::check))],
        ["browser"] => vec![("browser", || BROWSER.once(browser))],
        ["miri"] => vec![("miri", miri::check)],
        // The check of a release runs the same demo.
        ["check"] if !RELEASE.passed_before(Path::new(".")) => {
            CHECKS.into_iter().filter(|check| check.0 != "demo").collect()
        }
        ["check"] => CHECKS.to_vec(),
        ["check", "fast"] => CHECKS.into_iter().take_while(|check| check.0 != "clippy").collect(),
        ["check", name] => CHECKS.into_iter().filter(|check| check.0 == name).collect(),
        _ => Vec::new(),
    };
    if chosen.is_empty() {
        eprintln!("{HELP}");
        return ExitCode::from(2);
    }
    for (name, check) in chosen {
        let start = Instant::now();
        println!("── {name}");
        if let Err(why) = check() {
            eprintln!("── {name} FAILED: {why}");
            return ExitCode::FAILURE;
        }
        println!("── {name} ok, {:.0} s", start.elapsed().as_secs_f64());
    }
    ExitCode::SUCCESS
}

fn fmt() -> Result<(), String> {
    cargo::run(&["fmt", "--all", "--check"], &[])
}

fn clippy() -> Result<(), String> {
    cargo::run(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[])
}

fn docs() -> Result<(), String> {
    cargo::run(&["doc", "--workspace", "--no-deps"], &[("RUSTDOCFLAGS", "-D warnings")])
}

/// Runs the mutation tests, which are a separate workspace.
fn mutants(words: &[&str]) -> Result<(), String> {
    cargo::run(&[&cargo::MUTANTS[..], words].concat(), &[])
}

/// Whether a check has a receipt for the current files, so that its tools need not be installed.
fn passed(name: &str) -> Result<(), String> {
    let all = [CUDA, FIRST_HOUR, BROWSER, RELEASE];
    let inputs = all
        .iter()
        .find(|inputs| inputs.name == name)
        .ok_or(format!("the check {name} never leaves a receipt\n{HELP}"))?;
    if inputs.passed_before(Path::new(".")) { Ok(()) } else { Err(format!("{name} has not passed on these files")) }
}

fn browser() -> Result<(), String> {
    let program = cargo::executable("lockstep", "bin")?;
    let status = Command::new("crates/dashboard/browser/check.sh").env("LOCKSTEP", program).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("check.sh: {status}")),
        Err(error) => Err(format!("check.sh: {error}")),
    }
}

/// Runs the demo with the release build, as in the README's first command.
fn release() -> Result<(), String> {
    vectors::check()?;
    demo::check_release()
}
