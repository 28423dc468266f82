//! `lockstep config markdown`: generates the tables of docs/config.md.

use lockstep::config::{Key, OnResume, UnsupportedKey, keys, unsupported_keys};
use std::fmt::Write;

const INTRODUCTION: &str = "\
# Keys of a configuration

Made by `lockstep config markdown > docs/config.md` from the table in `crates/lockstep/src/config/keys/`; a test keeps
it current. `lockstep config explain KEY` says the same of one key, `lockstep config schema` is the JSON Schema for an
editor, `lockstep config show FILE` completes and checks a file.

A configuration is a flat TOML file. Over its defaults lie, the later winning: the file, environment variables
(`LOCKSTEP_LEARNING_RATE=1e-5`), flags (`--seed 1`, and for every key `--set learning_rate=1e-5`, of which the last
wins; a flag and a `--set` that give the same key two values are an error). `\"none\"` unsets a key. Names and
defaults are those of TRL 1.16.0 and transformers 5.23.0 where the column TRL says \"the same default\".

- **read by**: the commands; `train` has several algorithms, and keys that only some of them read name these. A key
  that is set where nothing reads it is reported; one that would change what another algorithm minimises is refused.
- **on resume**: *free*, no bit of the result depends on it; *warned*, from there on the run differs from one that was
  never stopped; *fixed*, it cannot change.
";

const IGNORED: &str = "
## Fields of TRL's configurations that are no keys

Accepted, with one line that says why they change nothing:

| fields | why |
|---|---|
";

const REFUSED: &str = "
Refused, unless they ask for nothing (false, none, or what is done anyway):

| fields | instead |
|---|---|
";

/// The text of docs/config.md.
pub(super) fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    let mut section = "";
    for key in keys() {
        if key.section != section {
            section = key.section;
            let _ = write!(page, "\n## {section}\n\n");
            page.push_str(
                "| key | type | default | read by | TRL | on resume | meaning |\n|---|---|---|---|---|---|---|\n",
            );
        }
        page.push_str(&row(key));
    }
    let mut unsupported = |head: &str, text: fn(UnsupportedKey) -> Option<&'static str>| {
        page.push_str(head);
        for (names, text) in unsupported_keys().filter_map(|(names, answer)| Some((names, text(answer)?))) {
            let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            let _ = writeln!(page, "| {} | {} |", names.join(", "), cell(text));
        }
    };
    unsupported(IGNORED, |answer| if let UnsupportedKey::Ignored(why) = answer { Some(why) } else { None });
    unsupported(REFUSED, |answer| if let UnsupportedKey::Refused(instead) = answer { Some(instead) } else { None });
    page
}

fn row(key: &Key) -> String {
    let on_resume = match key.on_resume() {
        OnResume::Free => "free",
        OnResume::Warn => "warned",
        OnResume::Fixed => "fixed",
    };
    let cells = [
        format!("`{}`", key.name),
        cell(&key.type_text()),
        cell(&key.defaults_text()),
        key.read_by(),
        cell(&key.trl_text()),
        on_resume.to_owned(),
        cell(&key.meaning()),
    ];
    format!("| {} |\n", cells.join(" | "))
}

/// Escapes a text so that it neither ends a table cell nor begins markup.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('*', "\\*").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_of_all_keys_is_current() {
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/config.md");
        let (page, now) = (std::fs::read_to_string(&file).unwrap_or_default(), super::page());
        if page != now {
            let made = std::env::temp_dir().join("lockstep-config.md");
            std::fs::write(&made, now).unwrap();
            let made = made.display();
            panic!("docs/config.md is old: cargo run -- config markdown > docs/config.md (or copy {made})");
        }
    }
}
