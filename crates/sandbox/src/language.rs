//! Programming languages: how a source is compiled and run.

use serde::Deserialize;

/// The `language` option: the name of a built-in language, or a table that describes a different one.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum LanguageOption {
    /// The name of a built-in language.
    Named(String),
    /// A user-defined language.
    Own(Language),
}

/// How sources of a language are compiled and run. In commands, `{source}` is replaced by the source file and
/// `{program}` by the compiled file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Language {
    /// The name of the source file, as the compiler expects it.
    pub file: String,
    /// The compiler and its arguments; if empty, the source itself is run.
    #[serde(default)]
    pub compile: Vec<String>,
    /// The command that runs the program, with its arguments.
    pub run: Vec<String>,
    /// The names that mark code blocks of this language in Markdown (`py`, `python`).
    #[serde(default)]
    pub fences: Vec<String>,
    /// Address space that the language's runtime needs for any program, in MiB.
    #[serde(default)]
    pub base_memory_mb: u64,
    /// Source of a program that doubles the number it reads, to check that the language works; `None` for a
    /// user-defined language.
    #[serde(skip)]
    pub(crate) probe: Option<&'static str>,
}

/// The names of the built-in languages.
pub(super) const NAMES: [&str; 6] = ["python", "ocaml", "rust", "c", "javascript", "shell"];

pub(super) fn named(name: &str) -> Option<Language> {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let of = |file: &str, compile: &str, run: &str, fences: &str, base_memory_mb, probe| Language {
        file: file.to_owned(),
        compile: words(compile),
        run: words(run),
        fences: words(fences),
        base_memory_mb,
        probe: Some(probe),
    };
    Some(match name {
        // -I makes imports independent of the directory and of environment variables.
        "python" => of("main.py", "", "python3 -I -B {source}", "python py python3", 0, "print(2 * int(input()))"),
        "ocaml" => {
            let compile = "ocamlc -w -a -I +unix -I +str -o {program} unix.cma str.cma /tmp/main.ml";
            of("main.ml", compile, "ocamlrun {program}", "ocaml ml", 0, "let () = print_int (2 * read_int ())")
        }
        "rust" => {
            let probe = "fn main() {
                let mut line = String::new();
                std::io::stdin().read_line(&mut line).unwrap();
                println!(\"{}\", 2 * line.trim().parse::<i64>().unwrap());
            }";
            of("main.rs", "rustc --edition 2021 -O -o {program} {source}", "{program}", "rust rs", 1024, probe)
        }
        "c" => {
            let probe = "#include <stdio.h>
                int main(void) { int n; return scanf(\"%d\", &n) == 1 && printf(\"%d\", 2 * n) > 0 ? 0 : 1; }";
            of("main.c", "cc -O2 -w -o {program} {source} -lm", "{program}", "c", 0, probe)
        }
        "javascript" => {
            // V8 reserves address space that it does not use.
            let probe = "console.log(2 * Number(require('fs').readFileSync(0)))";
            of("main.js", "", "node {source}", "javascript js node", 64 << 10, probe)
        }
        "shell" => of("main.sh", "", "sh {source}", "sh bash shell", 0, "read n; echo $((2 * n))"),
        _ => return None,
    })
}
