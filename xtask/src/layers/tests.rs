use super::*;

/// Writes a source tree, and returns the reported cycles in its `lib.rs`.
fn circles(files: &[(&str, &str)]) -> Vec<String> {
    of_tree(files, describe)
}

/// Writes a source tree, and returns the report of `check` on its top-level imports.
fn of_tree(files: &[(&str, &str)], check: fn(&modules::Arrows) -> Vec<String>) -> Vec<String> {
    of_source(files, |source| check(&source.arrows()))
}

fn of_source(files: &[(&str, &str)], check: impl Fn(&modules::Source) -> Vec<String>) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let source = modules::Source::read(&directory.path().join("lib.rs")).unwrap();
    let prefix = format!("{}/", directory.path().display());
    check(&source).into_iter().map(|found| found.replace(&prefix, "")).collect()
}

/// Tests a cycle through a full path, and a cycle through a re-export of `mod.rs`. Items that `mod.rs` itself defines
/// do not count.
#[test]
fn a_cycle_between_the_files_of_a_folder_is_found() {
    let check = |source: &modules::Source| of_folders("p", source).into_iter().map(|(_, words)| words).collect();
    let files = |key: &'static str| {
        [
            ("lib.rs", "mod config;"),
            ("config/mod.rs", "mod key; mod table; mod values; pub use table::Table; use values::Value; struct Own;"),
            ("config/key.rs", key),
            ("config/table.rs", "use super::{key::Key, Own}; fn f() -> super::Value { 1 }"),
            ("config/values.rs", "use super::Own; mod deep { use super::super::super::config::Own; }"),
        ]
    };
    assert!(of_source(&files("use super::Own;"), check).is_empty());
    let circle = "cycle of files in p::config: key, table\n    key → table    config/key.rs:1\n    \
                  table → key    config/table.rs:1";
    for key in ["use super::Table;", "fn f(t: crate::config::table::Table) {}", "use super::{Own, Table as T};"] {
        assert_eq!(of_source(&files(key), check), [circle], "{key}");
    }
    let three = of_source(&files("use super::values::Value; mod inner { use super::super::Table; }"), check);
    assert_eq!(three.len(), 1, "{three:?}");
}

#[test]
fn a_cycle_is_reported_with_its_lines() {
    let found = circles(&[
        ("lib.rs", "//! A crate.\nmod a;\nmod b;\npub mod c;\npub use b::Thing;\n"),
        ("a.rs", "// crate::c::none\nuse crate::Thing;\n"),
        ("b/mod.rs", "mod inner;\npub struct Thing;\n"),
        ("b/inner.rs", "use std::{fmt,\n    io};\nfn f() {\n    let x = super::super::c::g(\"crate::a::x\");\n}\n"),
        ("c.rs", "use crate::{a::{self, Y as Z}};\npub fn g() {}\n"),
    ]);
    assert_eq!(found, ["a, b, c\n    a → b    a.rs:2\n    b → c    b/inner.rs:4\n    c → a    c.rs:1"]);
}

#[test]
fn two_separate_cycles_are_both_reported() {
    let found = circles(&[
        ("lib.rs", "mod a; mod b; mod c; mod d;"),
        ("a.rs", "use crate::b::X;"),
        ("b.rs", "impl crate::a::Y for Z {}"),
        ("c.rs", "use super::d;"),
        ("d.rs", "mod e { use super::super::c; }"),
    ]);
    assert_eq!(found.len(), 2, "{found:?}");
}

#[test]
fn items_of_the_crate_root_are_a_module_and_re_exports_are_not() {
    let files = |root: &'static str| {
        [("lib.rs", root), ("a.rs", "use crate::Trait; pub struct X;"), ("b.rs", "pub struct Y; use crate::a::X;")]
    };
    assert_eq!(circles(&files("mod a; mod b; pub use a::X; pub use b::Y; pub trait Trait { fn f() -> Y; }")).len(), 1);
    assert!(circles(&files("mod a; mod b; pub use a::X; pub use b::Y; pub trait Trait {}")).is_empty());
}

#[test]
fn tests_visibilities_and_submodules_are_not_imports() {
    let found = circles(&[
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::b::X; mod deep; #[cfg(test)] mod tests;"),
        ("a/deep.rs", "use super::Own; use crate::a::Own as O; use self::more::x; mod more { use super::y; }"),
        ("a/tests.rs", "use crate::b;"),
        (
            "b.rs",
            "pub(in crate::a) fn f() {} #[cfg(test)] mod tests { use crate::a::X; }\n#[test]\nfn g() { crate::a::h() }",
        ),
    ]);
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn an_import_of_a_higher_layer_is_found_without_a_cycle() {
    let rollouts = "use crate::data::Row;\nfn f(run: &mut crate::run::training::TrainingRun) {}\nuse crate::stop::S;";
    let files = [
        ("lib.rs", "mod data; mod rollouts; mod run; mod stop;"),
        ("data.rs", "pub struct Row;"),
        ("rollouts.rs", rollouts),
        ("run.rs", "use crate::data::Row; pub mod training { pub struct TrainingRun; }"),
        ("stop.rs", "use crate::run::X;"),
    ];
    assert!(circles(&files).is_empty());
    assert_eq!(of_tree(&files, upward), ["module rollouts of lockstep must not import run: rollouts.rs:2"]);
}

#[test]
fn a_dependency_on_a_higher_crate_is_found() {
    let package = |name: &str, imports: &[&str]| Package {
        name: name.to_owned(),
        imports: imports.iter().map(|import| import.to_string()).collect(),
        roots: Vec::new(),
    };
    let good = [package("kernels", &[]), package("model", &["kernels"]), package("cli", &["lockstep", "bench"])];
    assert!(forbidden(&good).is_empty());
    let bad = [package("train", &["model", "rollout"]), package("telemetry", &["kernels"]), package("new", &[])];
    assert_eq!(
        forbidden(&bad),
        [
            "crate train must not depend on rollout",
            "crate telemetry must not depend on kernels",
            "crate new must be listed in xtask/src/layers/mod.rs"
        ]
    );
}
