//! Unit tests of OCaml, and how far a solution gets: parsed, typed, compiled with its tests, tested.
//!
//! A solution and its tests are one program, so what keeps results from being forged is the language. Nonces, one for
//! each test, wait on standard input and are printed when a test has passed; the solution is compiled apart, knows no
//! name of the module that does that, and never shares the heap with a nonce; and what could reach into memory, files,
//! standard input or other processes (`Obj`, `external`, `unsafe_get`, `stdin`, channels of files, …) is refused by
//! name, in the parse tree that the compiler itself prints. After `open Solution` tests get the operators, functions
//! and modules of the standard library back, so that a solution cannot redefine `=`. Knows no score.

use super::sandbox::{End, JOB, Limits, Outcome, Sandbox};
use super::source::UnitTests;
use super::{Verdict, directory, nonce, words_of, write};
use regex::Regex;
use std::path::Path;
use std::sync::LazyLock;
use tempfile::TempDir;

mod staged;
#[cfg(test)]
mod tests;

pub(super) use self::staged::Staged;

const BUILD: &str = include_str!("build.sh");
const HARNESS: &str = include_str!("harness.ml");
/// Type errors that are looked for.
const MOST_TYPE_ERRORS: usize = 5;

/// How far building went.
pub(super) enum Built {
    /// A program in a directory, and how often the compiler warned of the solution.
    Program { directory: TempDir, warnings: usize },
    /// With the compiler's words.
    Not { why: NotBuilt, words: String },
}

/// Why there is no program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum NotBuilt {
    Syntax,
    /// It uses what could forge results.
    Refused,
    /// So many definitions are ill-typed.
    Types(usize),
    /// The solution is well-typed, but not with its tests.
    Tests,
}

impl std::fmt::Display for NotBuilt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NotBuilt::Syntax => write!(f, "not parsed: "),
            NotBuilt::Refused => write!(f, "not compiled: "),
            NotBuilt::Types(1) => write!(f, "ill-typed: "),
            NotBuilt::Types(definitions) => write!(f, "{definitions} ill-typed definitions: "),
            NotBuilt::Tests => write!(f, "not compiled with its tests: "),
        }
    }
}

/// What `build.sh` says.
struct Report {
    status: String,
    tree: String,
    words: String,
    program: Vec<u8>,
}

/// Builds a solution with its tests; an error is none of the solution's.
pub(super) fn build(
    solution: &str,
    unit: &UnitTests,
    count_errors: bool,
    limits: Limits,
    sandbox: &Sandbox,
) -> std::io::Result<Built> {
    let harness = format!("h{}", nonce()?);
    let report = compile(solution, &tests_file(unit, &harness), &harness, "all", limits, sandbox)?;
    let first = report.words.lines().find(|line| line.starts_with("Error")).unwrap_or(&report.words).trim().to_owned();
    if let Some(name) = refused(&report.tree) {
        return Ok(Built::Not { why: NotBuilt::Refused, words: format!("`{name}` is not allowed here") });
    }
    let why = match report.status.as_str() {
        "syntax" => NotBuilt::Syntax,
        "types" if count_errors => NotBuilt::Types(type_errors(solution, report, &harness, limits, sandbox)?),
        "types" => NotBuilt::Types(1),
        "tests" => NotBuilt::Tests,
        "ok" => {
            let directory = directory()?;
            write(directory.path(), "program", &report.program)?;
            let warnings = report.words.lines().filter(|line| line.starts_with("Warning")).count();
            return Ok(Built::Program { directory, warnings });
        }
        status => return Err(std::io::Error::other(format!("its tests cannot be compiled ({status}): {first}"))),
    };
    Ok(Built::Not { why, words: first })
}

fn compile(
    solution: &str,
    tests: &str,
    harness: &str,
    what: &str,
    limits: Limits,
    sandbox: &Sandbox,
) -> std::io::Result<Report> {
    let job = directory()?;
    let (own, any) = (format!("{harness}.ml"), format!("any_{harness}.mli"));
    for (name, text) in
        [("solution.ml", solution), ("tests.ml", tests), (&own, HARNESS), (&any, "val any : 'a\n"), ("build.sh", BUILD)]
    {
        write(job.path(), name, text.as_bytes())?;
    }
    let words = ["/bin/sh", &format!("{JOB}/build.sh"), harness, what].map(str::to_owned);
    let outcome = sandbox.run(job.path(), &words, b"", limits)?;
    let failed = || match outcome.end {
        End::Stopped => std::io::Error::other("nobody waits for its score any more"),
        _ => std::io::Error::other(format!("compiling: {}", words_of(&outcome))),
    };
    if outcome.end != End::Exit(0) {
        sandbox.still_works(&outcome)?;
        return Err(failed());
    }
    let line = outcome.stdout.iter().position(|&byte| byte == b'\n').ok_or_else(failed)?;
    let (head, rest) = (String::from_utf8_lossy(&outcome.stdout[..line]), &outcome.stdout[line + 1..]);
    let mut head = head.split(' ');
    let status = head.next().unwrap_or_default().to_owned();
    let mut size = || head.next()?.parse::<usize>().ok();
    let (tree, words) = size().zip(size()).filter(|(tree, words)| tree + words <= rest.len()).ok_or_else(failed)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Report {
        status,
        tree: text(&rest[..tree]),
        words: text(&rest[tree..tree + words]),
        program: rest[tree + words..].to_vec(),
    })
}

/// The tests as a module: each a function, which raises if it fails.
fn tests_file(unit: &UnitTests, harness: &str) -> String {
    let module = format!("H{}", &harness[1..]);
    let mut file = format!("open Solution\nopen {module}.Restored\n");
    let entry_points = unit.entry_point.as_deref().unwrap_or_default();
    for name in entry_points.split([',', ' ']).filter(|name| !name.is_empty()) {
        file += &format!("let {name} = Solution.{name}\n");
    }
    file += &format!("{}\nlet () = {module}.run [\n", unit.setup);
    for test in &unit.tests {
        let test = test.trim().trim_end_matches(";;").trim();
        let test = test.strip_prefix("let () =").unwrap_or(test);
        match test.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "assert") {
            true => file += &format!("(fun () -> ({test}\n));\n"),
            false => file += &format!("(fun () -> assert ({test}\n));\n"),
        }
    }
    file + "]\n"
}

/// A name in a parse tree by which a solution could forge results.
fn refused(tree: &str) -> Option<String> {
    static QUOTED: LazyLock<Regex> = LazyLock::new(|| Regex::new(r#""([^"]*)""#).expect("a pattern"));
    const MODULES: [&str; 13] = [
        "Obj",
        "Marshal",
        "Unix",
        "UnixLabels",
        "Callback",
        "Lexing",
        "Parsing",
        "In_channel",
        "Out_channel",
        "Dynlink",
        "Bigarray",
        "Thread",
        "Std_exit",
    ];
    const OF_SYS: [&str; 10] = [
        "time",
        "max_int",
        "min_int",
        "word_size",
        "int_size",
        "max_string_length",
        "max_array_length",
        "argv",
        "opaque_identity",
        "ocaml_version",
    ];
    // What reads standard input, or a file by its name.
    const READERS: [&str; 14] = [
        "stdin",
        "read_line",
        "read_int",
        "read_int_opt",
        "read_float",
        "read_float_opt",
        "input_value",
        "scanf",
        "bscanf",
        "kscanf",
        "bscanf_format",
        "Scanning",
        "read_arg",
        "read_arg0",
    ];
    for line in tree.lines().filter(|line| !line.contains("PConst_string")) {
        if line.trim_start().starts_with("Pstr_primitive") {
            return Some("external".to_owned());
        }
        for quoted in QUOTED.captures_iter(line).map(|captures| captures.extract::<1>().1[0]) {
            let parts: Vec<&str> = quoted.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '\'').collect();
            let bad = parts.iter().enumerate().find(|(i, part)| {
                let unsafe_sys = **part == "Sys" && !parts.get(i + 1).is_some_and(|next| OF_SYS.contains(next));
                let prefix = ["Stdlib__", "Camlinternal", "unsafe_", "open_in", "open_out"];
                unsafe_sys
                    || MODULES.contains(part)
                    || READERS.contains(part)
                    || prefix.iter().any(|prefix| part.starts_with(prefix))
            });
            if bad.is_some() {
                return Some(quoted.to_owned());
            }
        }
    }
    None
}

/// How many of the solution's top-level definitions are ill-typed, up to [`MOST_TYPE_ERRORS`]: the compiler names the
/// first, which then becomes a definition of any type.
fn type_errors(
    solution: &str,
    mut report: Report,
    harness: &str,
    limits: Limits,
    sandbox: &Sandbox,
) -> std::io::Result<usize> {
    let mut solution = solution.to_owned();
    for found in 1..MOST_TYPE_ERRORS {
        match without_error(&solution, &report, harness) {
            Some(next) => solution = next,
            None => return Ok(found),
        }
        report = compile(&solution, "", harness, "types", limits, sandbox)?;
        if report.status != "types" {
            return Ok(found);
        }
    }
    Ok(MOST_TYPE_ERRORS)
}

/// The solution with the definition of the first type error replaced; none if it is no definition of values.
fn without_error(solution: &str, report: &Report, harness: &str) -> Option<String> {
    static PLACE: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r#"File "solution.ml", lines? (\d+)(?:-\d+)?, characters (\d+)-"#).expect("a pattern")
    });
    static ITEM: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"(?m)^  structure_item \(solution\.ml\[\d+,(\d+)\+(\d+)\]\.\.\[\d+,(\d+)\+(\d+)\]\)$")
            .expect("a pattern")
    });
    static NAME: LazyLock<Regex> = LazyLock::new(|| Regex::new(r#"Ppat_var "([^"]+)""#).expect("a pattern"));
    // Warnings name places, too: the last place before the error is its own.
    let words = &report.words[..report.words.find("\nError")?];
    let (_, [line, character]) = PLACE.captures_iter(words).last()?.extract();
    let number = |digits: &str| digits.parse::<usize>().ok();
    let line: usize = solution.split_inclusive('\n').take(number(line)? - 1).map(str::len).sum();
    let place = line + number(character)?;
    let items: Vec<_> = ITEM.captures_iter(&report.tree).collect();
    for (i, item) in items.iter().enumerate() {
        let at = |k: usize| number(&item[k]);
        let (from, to) = (at(1)? + at(2)?, at(3)? + at(4)?);
        if !(from..to.max(from + 1)).contains(&place) {
            continue;
        }
        let whole =
            item.get(0)?.end()..items.get(i + 1).map_or(report.tree.len(), |next| next.get(0).map_or(0, |m| m.start()));
        let tree = report.tree.get(whole)?;
        if !tree.trim_start().starts_with("Pstr_value") {
            return None;
        }
        let mut stub = String::new();
        // Between `<def>` and the expression stands the pattern.
        for definition in tree.split("\n      <def>\n").skip(1) {
            let pattern = definition.split("\n        expression ").next()?;
            for name in NAME.captures_iter(pattern) {
                stub += &format!("let {} = Any_{harness}.any ", &name[1]);
            }
        }
        let stub = if stub.is_empty() { "let () = () " } else { &stub };
        return Some(format!("{}{stub}{}", solution.get(..from)?, solution.get(to..)?));
    }
    None
}

/// Runs the tests of a program that was built.
pub(super) fn run(directory: &Path, of: usize, limits: Limits, sandbox: &Sandbox) -> std::io::Result<Verdict> {
    let nonces = (0..of).map(|_| nonce()).collect::<std::io::Result<Vec<_>>>()?;
    let words = ["ocamlrun", &format!("{JOB}/program")].map(str::to_owned);
    let outcome = sandbox.run(directory, &words, (nonces.join("\n") + "\n").as_bytes(), limits)?;
    if outcome.end == End::Stopped {
        return Err(std::io::Error::other("nobody waits for its score any more"));
    }
    sandbox.still_works(&outcome)?;
    Ok(verdict(&nonces, &outcome))
}

fn verdict(nonces: &[String], outcome: &Outcome) -> Verdict {
    let text = String::from_utf8_lossy(&outcome.stdout);
    let passed: Vec<bool> = nonces.iter().map(|nonce| text.lines().any(|line| line == nonce)).collect();
    let count = passed.iter().filter(|passed| **passed).count();
    let of = nonces.len();
    let failed = |passed, failure| {
        let timed_out = outcome.end == End::TimedOut;
        Verdict { passed, of, failure, timed_out, staged: None }
    };
    match (passed.iter().position(|passed| !passed), &outcome.end) {
        (None, End::Exit(0)) => Verdict { passed: of, of, ..Verdict::default() },
        // It passed them, and then did not end by itself.
        (None, _) => failed(of - 1, words_of(outcome)),
        (Some(first), End::Exit(0)) => {
            let why = outcome.stderr.lines().next().unwrap_or("the program ended before it");
            failed(count, format!("test {}: {why}", first + 1))
        }
        (Some(first), _) => failed(count, format!("test {}: {}", first + 1, words_of(outcome))),
    }
}
