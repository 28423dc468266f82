//! Languages as descriptors: how a source is compiled and run. Knows no test.

use serde::Deserialize;

/// A language: one of those that come with the program by its name, or one's own as a table.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum LanguageOption {
    Named(String),
    Own(Language),
}

/// How sources of a language become running programs. In commands `{source}` is the source's file and `{program}` the
/// compiled one, which compiling writes and running reads.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Language {
    /// The file's name, as the compiler wants it.
    pub file: String,
    /// The compiler and its arguments; without, the source itself is run.
    #[serde(default)]
    pub compile: Vec<String>,
    /// The program and its arguments.
    pub run: Vec<String>,
    /// How code blocks of it are marked.
    #[serde(default)]
    pub fences: Vec<String>,
    /// Address space that it needs whatever the program does, in MiB.
    #[serde(default)]
    pub base_memory_mb: u64,
}

/// The languages that come with the program.
pub(super) const NAMES: [&str; 6] = ["python", "ocaml", "rust", "c", "javascript", "shell"];

pub(super) fn named(name: &str) -> Option<Language> {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let of = |file: &str, compile: &str, run: &str, fences: &str, base_memory_mb| Language {
        file: file.to_owned(),
        compile: words(compile),
        run: words(run),
        fences: words(fences),
        base_memory_mb,
    };
    Some(match name {
        // -I: neither the directory nor variables decide what is imported.
        "python" => of("main.py", "", "python3 -I -B {source}", "python py python3", 0),
        "ocaml" => of("main.ml", "ocamlc -w -a -o {program} /tmp/main.ml", "ocamlrun {program}", "ocaml ml", 0),
        "rust" => of("main.rs", "rustc --edition 2021 -O -o {program} {source}", "{program}", "rust rs", 1024),
        "c" => of("main.c", "cc -O2 -w -o {program} {source} -lm", "{program}", "c", 0),
        // V8 reserves address space that it does not use.
        "javascript" => of("main.js", "", "node {source}", "javascript js node", 64 << 10),
        "shell" => of("main.sh", "", "sh {source}", "sh bash shell", 0),
        _ => return None,
    })
}
