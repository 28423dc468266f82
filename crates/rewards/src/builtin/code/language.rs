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
    /// A program that doubles the number it reads; none if nobody has written one.
    #[serde(skip)]
    pub probe: Option<&'static str>,
}

/// The languages that come with the program.
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
        // -I: neither the directory nor variables decide what is imported.
        "python" => of("main.py", "", "python3 -I -B {source}", "python py python3", 0, "print(2 * int(input()))"),
        "ocaml" => {
            let compile = "ocamlc -w -a -o {program} /tmp/main.ml";
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
