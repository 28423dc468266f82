//! Checks licences, sources and versions of other people's crates against deny.toml.
//!
//! The file is cargo-deny's, which the GitHub workflow runs with it. Building cargo-deny takes two minutes, so that
//! `.ci/run` makes the same three checks (`licenses`, `sources`, `bans`) here, on the output of `cargo metadata`.

use crate::cargo;
use serde::Deserialize;
use spdx::{Expression, ParseMode};
use std::collections::{BTreeMap, BTreeSet};

const RULES: &str = "deny.toml";
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The keys of deny.toml that are checked here.
#[derive(Deserialize)]
struct Rules {
    licenses: Licenses,
    bans: Bans,
}

#[derive(Deserialize)]
struct Licenses {
    allow: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Bans {
    skip: Vec<Skip>,
}

/// A second version of a crate that is allowed: `NAME@VERSION`, where the version may be a prefix such as `0.13`.
#[derive(Deserialize)]
struct Skip {
    #[serde(rename = "crate")]
    name: String,
}

/// The output of `cargo metadata`.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: Vec<String>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

/// A package, and the packages that it uses with the features that are on.
#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Edge>,
}

#[derive(Deserialize)]
struct Edge {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

/// The section of a manifest that names a dependency: `dev`, `build`, or `None`.
#[derive(Deserialize)]
struct Kind {
    kind: Option<String>,
}

#[derive(Clone, Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    /// `None` for the crates of this repository.
    source: Option<String>,
    dependencies: Vec<Dependency>,
}

#[derive(Clone, Deserialize)]
struct Dependency {
    name: String,
    req: String,
    path: Option<String>,
}

pub fn check() -> Result<(), String> {
    let rules = std::fs::read_to_string(RULES).map_err(|e| format!("{RULES}: {e}"))?;
    let rules = toml::from_str(&rules).map_err(|e| format!("{RULES}: {e}"))?;
    let wrong = faults(&used(cargo::metadata(&["--all-features", "--locked"])?), &rules);
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// The packages that some feature of ours uses outside of tests, as in cargo-deny. The lock file also has packages for
/// features that nobody turns on.
fn used(metadata: Metadata) -> Vec<Package> {
    let is_built = |edge: &Edge| edge.dep_kinds.iter().any(|kind| kind.kind.as_deref() != Some("dev"));
    let uses = |node: Node| {
        let built = node.deps.into_iter().filter(is_built).map(|edge| edge.pkg);
        (node.id, built.collect::<Vec<_>>())
    };
    let nodes: BTreeMap<String, Vec<String>> = metadata.resolve.nodes.into_iter().map(uses).collect();
    let mut used = BTreeSet::new();
    let mut open = metadata.workspace_members;
    while let Some(id) = open.pop() {
        if used.insert(id.clone()) {
            open.extend(nodes.get(&id).into_iter().flatten().cloned());
        }
    }
    metadata.packages.into_iter().filter(|package| used.contains(&package.id)).collect()
}

/// One line for each violation of the rules.
fn faults(packages: &[Package], rules: &Rules) -> Vec<String> {
    let mut wrong = Vec::new();
    let named = |package: &Package| format!("{} {}", package.name, package.version);
    for package in packages.iter().filter(|package| package.source.is_some()) {
        if package.source.as_deref() != Some(REGISTRY) {
            let source = package.source.as_deref().unwrap_or_default();
            wrong.push(format!("{}: comes from {source}, not from crates.io", named(package)));
        }
        if let Err(why) = licensed(package, &rules.licenses.allow) {
            wrong.push(format!("{}: {why}", named(package)));
        }
    }
    for package in packages.iter().filter(|package| package.source.is_none()) {
        let any = package.dependencies.iter().filter(|one| one.req == "*" && one.path.is_none());
        wrong.extend(any.map(|one| format!("{}: accepts any version of {}", package.name, one.name)));
    }
    wrong.extend(duplicates(packages, &rules.bans.skip));
    wrong
}

/// Whether the package's licence expression can be satisfied by the allowed licences.
fn licensed(package: &Package, allowed: &BTreeSet<String>) -> Result<(), String> {
    let text = package.license.as_deref().ok_or("names no licence")?;
    let expression = Expression::parse_mode(text, ParseMode::LAX).map_err(|e| format!("licence {text}: {e}"))?;
    if expression.evaluate(|requirement| allowed.contains(&requirement.to_string())) {
        return Ok(());
    }
    Err(format!("its licence {text} is not allowed by {RULES}"))
}

/// Crates with several versions, except for the allowed ones, and exceptions that no package needs.
fn duplicates(packages: &[Package], skip: &[Skip]) -> Vec<String> {
    let is_skipped = |package: &Package, skip: &Skip| {
        skip.name.split_once('@').is_some_and(|(name, version)| {
            let rest = package.version.strip_prefix(version);
            name == package.name && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    };
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in packages.iter().filter(|package| !skip.iter().any(|skip| is_skipped(package, skip))) {
        versions.entry(&package.name).or_default().insert(&package.version);
    }
    let several = versions.iter().filter(|(_, all)| all.len() > 1);
    let mut wrong: Vec<String> = several
        .map(|(name, all)| {
            let all = all.iter().copied().collect::<Vec<_>>().join(", ");
            format!("{name}: several versions: {all} (`cargo tree -i {name}` shows who wants them)")
        })
        .collect();
    let unused = skip.iter().filter(|skip| !packages.iter().any(|package| is_skipped(package, skip)));
    wrong.extend(unused.map(|skip| format!("{RULES}: {} is skipped, but no package has this version", skip.name)));
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str, license: &str) -> Package {
        Package {
            id: format!("{name}@{version}"),
            name: name.into(),
            version: version.into(),
            license: Some(license.into()),
            source: Some(REGISTRY.into()),
            dependencies: Vec::new(),
        }
    }

    fn rules() -> Rules {
        let allow = ["MIT", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned).into();
        let skip = vec![Skip { name: "old@0.1".into() }];
        Rules { licenses: Licenses { allow }, bans: Bans { skip } }
    }

    fn found(mut packages: Vec<Package>) -> Vec<String> {
        packages.push(package("old", "0.1.7", "MIT"));
        faults(&packages, &rules())
    }

    #[test]
    fn packages_of_tests_and_unused_features_are_left_out() {
        let edge = |(id, kind): &(&str, Option<&str>)| Edge {
            pkg: id.to_string(),
            dep_kinds: vec![Kind { kind: kind.map(str::to_owned) }],
        };
        let node =
            |id: &str, uses: &[(&str, Option<&str>)]| Node { id: id.into(), deps: uses.iter().map(edge).collect() };
        let metadata = Metadata {
            packages: ["ours", "used", "deep", "unused", "tests"].map(|name| package(name, "1.0.0", "MIT")).into(),
            workspace_members: vec!["ours@1.0.0".into()],
            resolve: Resolve {
                nodes: vec![
                    node("unused@1.0.0", &[("used@1.0.0", None)]),
                    node("ours@1.0.0", &[("used@1.0.0", None), ("tests@1.0.0", Some("dev"))]),
                    node("used@1.0.0", &[("deep@1.0.0", Some("build")), ("used@1.0.0", None)]),
                ],
            },
        };
        let names: Vec<String> = used(metadata).into_iter().map(|package| package.name).collect();
        assert_eq!(names, ["ours", "used", "deep"]);
    }

    #[test]
    fn allowed_packages_pass() {
        let dual = package("a", "1.0.0", "GPL-3.0-only OR MIT");
        let slash = package("b", "1.0.0", "MIT/GPL-3.0");
        let with = package("c", "1.0.0", "Apache-2.0 WITH LLVM-exception AND MIT");
        let ours = Package { source: None, license: None, ..package("d", "1.0.0", "MIT") };
        assert_eq!(found(vec![dual, slash, with, ours, package("old", "0.2.0", "MIT")]), [""; 0]);
    }

    #[test]
    fn each_rule_finds_its_violation() {
        let any = Dependency { name: "z".into(), req: "*".into(), path: None };
        let path = Dependency { path: Some("../y".into()), ..any.clone() };
        let git = "git+https://example.org/a";
        for (bad, says) in [
            (package("a", "1.0.0", "GPL-3.0-only"), "a 1.0.0: its licence GPL-3.0-only is not allowed by deny.toml"),
            (package("a", "1.0.0", "MIT AND GPL-3.0-only"), "its licence MIT AND GPL-3.0-only is not allowed"),
            (package("a", "1.0.0", "Apache-2.0"), "its licence Apache-2.0 is not allowed"),
            (package("a", "1.0.0", "my own"), "licence my own: "),
            (Package { license: None, ..package("a", "1.0.0", "") }, "a 1.0.0: names no licence"),
            (
                Package { source: Some(git.into()), ..package("a", "1.0.0", "MIT") },
                "comes from git+https://example.org/a",
            ),
            (
                Package { source: None, dependencies: vec![any, path], ..package("a", "1.0.0", "MIT") },
                "a: accepts any version of z",
            ),
            // A prefix of a version ends at a dot.
            (package("old", "0.10.0", "MIT"), ""),
        ] {
            let wrong = found(vec![bad, package("old", "0.2.0", "MIT")]);
            assert!(wrong.len() == 1 && wrong[0].contains(says), "{says}: {wrong:?}");
        }
        let unused = faults(&[], &rules());
        assert_eq!(unused, ["deny.toml: old@0.1 is skipped, but no package has this version"]);
    }
}
