//! Finds words that docs/glossary.md replaces, in code, comments, messages and documents. Single words are searched in
//! prose and identifiers; phrases only in prose, where they may continue on the next line.

use crate::sources;

/// A group of replaced words, and the word to use instead.
struct Word {
    not: &'static [&'static str],
    but: &'static str,
    /// Phrases in which the words are allowed.
    right: &'static [&'static str],
    /// Files and folders in which the words are allowed.
    except: &'static [&'static str],
}

const fn word(not: &'static [&'static str], but: &'static str) -> Word {
    Word { not, but, right: &[], except: &[] }
}

const WORDS: [Word; 16] = [
    Word {
        right: &["dot product", "dot products", "product over tokens", "whose products", "fused products"],
        except: &PRODUCTS,
        ..word(&["product", "products"], "matmul")
    },
    word(&["turned over", "turn over", "turns over", "turning the weight over"], "transposed, transpose"),
    Word {
        // A completion that a model learns.
        except: &["crates/cli/tests/it/stopping_early.rs"],
        ..word(&["goes on", "go on", "going on", "gone on", "went on"], "continues, resumes")
    },
    word(&["given up"], "cancelled, discarded, rolled back"),
    word(&["mend", "mends", "mended", "mending"], "fix"),
    word(&["sighting", "sightings"], "detection"),
    word(&["survey"], "probe"),
    word(&["slip of the pen"], "typo"),
    word(&["in the making"], "being built, in flight"),
    word(
        &["judges no more", "judge no more", "judged nothing", "judge nothing", "judges nothing"],
        "no longer scores, scored nothing",
    ),
    word(&["nothing was judged", "nobody judged", "no reward judged", "was judged", "were judged"], "was scored"),
    word(&["infinite or no number", "or no number"], "NaN"),
    word(&["whoever comes"], "any worker, the next thread"),
    word(&["staircase"], "causal mask"),
    word(&["seat", "seats"], "slot"),
    word(&["matrix product", "matrix products"], "matmul"),
];

/// Files in which "product" is allowed, since it means a product of scalars.
const PRODUCTS: [&str; 20] = [
    "bench/cuda",
    "bench/peers",
    "conformance",
    "crates/kernels/src/check.rs",
    "crates/kernels/src/device/cuda",
    "crates/kernels/src/ops/attention",
    "crates/kernels/src/ops/linear",
    "crates/kernels/src/ops/lora",
    "crates/kernels/src/ops/rope",
    "crates/kernels/src/ops/sample/truncate.rs",
    "crates/kernels/src/pool/tests.rs",
    "crates/kernels/src/simd",
    "crates/lockstep/src/config/row.rs",
    "crates/lockstep/src/run/alarms",
    "crates/model/src",
    "crates/rewards",
    "crates/train/src/trainer/skip.rs",
    "docs/alarms.md",
    "docs/arithmetic.md",
    "python",
];

const FOLDERS: [&str; 7] = ["bench", "conformance", "crates", "docs", "examples", "python", "xtask/src"];
const PAGES: [&str; 4] = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"];
/// The files that list the replaced words.
const NAMES_THEM: [&str; 2] = ["docs/glossary.md", "xtask/src/words.rs"];
const EXTENSIONS: [&str; 10] = ["rs", "py", "pyi", "md", "toml", "sh", "cu", "cuh", "h", "js"];

pub fn check() -> Result<(), String> {
    let mut wrong = Vec::new();
    for folder in FOLDERS {
        for path in sources::below(folder)?.iter().filter(|path| sources::is_one_of(path, &EXTENSIONS)) {
            let name = path.display().to_string().replace('\\', "/");
            if !NAMES_THEM.contains(&name.as_str()) {
                let text = std::fs::read_to_string(path).map_err(|e| format!("{name}: {e}"))?;
                wrong.extend(of_file(&name, &text));
            }
        }
    }
    for page in PAGES {
        let text = std::fs::read_to_string(page).map_err(|e| format!("{page}: {e}"))?;
        wrong.extend(of_file(page, &text));
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(format!("{} words that docs/glossary.md replaces by others:\n{}", wrong.len(), wrong.join("\n")))
    }
}

/// A word in lower case; identifiers are split at capitals and underscores.
struct Token {
    text: String,
    line: usize,
    /// Whether the word continues an identifier, or follows characters other than blanks and comment marks.
    apart: bool,
    /// Whether the word is called as a method, `.product()`: the name then comes from another library.
    method: bool,
}

fn of_file(name: &str, text: &str) -> Vec<String> {
    let tokens = tokens(text);
    let within = |path: &str| name == path || name.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
    let mut wrong = Vec::new();
    for word in WORDS.iter().filter(|word| !word.except.iter().any(|path| within(path))) {
        for (phrase, at) in word.not.iter().flat_map(|phrase| (0..tokens.len()).map(move |at| (phrase, at))) {
            let Some(length) = matched(phrase, &tokens[at..]).filter(|_| !tokens[at].method) else { continue };
            let is_right = |right: &&str| {
                (at.saturating_sub(right.split(' ').count())..=at)
                    .any(|from| matched(right, &tokens[from..]).is_some_and(|n| from + n >= at + length))
            };
            if !word.right.iter().any(is_right) {
                wrong.push(format!("{name}:{}: \"{phrase}\", use: {}", tokens[at].line, word.but));
            }
        }
    }
    wrong
}

/// The number of tokens that match `phrase` at the start of `tokens`; `None` if it does not match.
fn matched(phrase: &str, tokens: &[Token]) -> Option<usize> {
    let mut length = 0;
    for word in phrase.split(' ') {
        tokens.get(length).filter(|token| token.text == word && (length == 0 || !token.apart))?;
        length += 1;
    }
    Some(length)
}

fn tokens(text: &str) -> Vec<Token> {
    let (mut tokens, mut apart): (Vec<Token>, bool) = (Vec::new(), false);
    for (i, line) in text.lines().enumerate() {
        let characters: Vec<char> = line.chars().collect();
        let mut at = 0;
        while at < characters.len() {
            let start = at;
            while at < characters.len()
                && characters[at].is_alphanumeric()
                && (at == start || !(characters[at].is_uppercase() && characters[at - 1].is_lowercase()))
            {
                at += 1;
            }
            if at == start {
                apart |= !matches!(characters[at], ' ' | '\t' | '/' | '!' | '#' | '*' | '\\');
                at += 1;
                continue;
            }
            let before = start.checked_sub(1).map(|before| characters[before]);
            let called = matches!(characters.get(at), Some('(' | ':'));
            tokens.push(Token {
                text: characters[start..at].iter().flat_map(|c| c.to_lowercase()).collect(),
                line: i + 1,
                apart: apart || before.is_some_and(char::is_alphanumeric),
                method: before == Some('.') && called,
            });
            apart = false;
        }
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn replaced_words_are_found() {
        let planted = [
            ("docs/a.md", "The products of a layer.", 1),
            ("crates/kernels/src/gemm/mod.rs", "let a = 1;\nfn run_product() {}", 2),
            ("crates/kernels/src/gemm/mod.rs", "struct ProductDType;", 1),
            ("crates/train/src/a.rs", "/// The run goes\n    /// on at once.", 1),
            ("python/a.py", "raise ValueError('the batch is given up')", 1),
            ("docs/a.md", "`Matrix products` are slow.", 1),
            ("crates/cli/src/a.rs", "let mend = 1;", 1),
            ("crates/lockstep/src/run/alarms/mod.rs", "struct Sighting;", 1),
        ];
        for (name, text, line) in planted {
            let found = of_file(name, text);
            assert!(found.iter().any(|one| one.starts_with(&format!("{name}:{line}: "))), "{text}: {found:?}");
        }
    }

    #[test]
    fn words_are_allowed_in_the_listed_contexts() {
        let right = [
            ("docs/a.md", "The dot product of two vectors; a dot\nproduct."),
            ("crates/kernels/src/gemm/mod.rs", "shape.iter().product::<usize>() + shape.iter().product()"),
            ("crates/rewards/src/builtin/math/mod.rs", "/// A product of two numbers."),
            ("crates/train/src/a.rs", "fn a_run_goes_on() {}"),
            ("docs/a.md", "It goes. On the other hand: production, seated."),
            ("crates/cli/src/a.rs", "let nobody = judged.iter();"),
        ];
        for (name, text) in right {
            assert_eq!(of_file(name, text), [""; 0]);
        }
    }

    /// Each exception must name an existing file: a stale exception could hide a word that comes back.
    #[test]
    fn files_of_exceptions_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for path in WORDS.iter().flat_map(|word| word.except) {
            assert!(root.join(path).exists(), "{path}");
        }
    }
}
