//! Checks imports. Crates and the modules of `lockstep` may import each other only as the tables below allow. Neither
//! the top-level modules of a crate nor the files of a folder may import each other in a cycle.

mod modules;
mod tokens;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Each crate with the workspace crates that it may import, lower layers first (docs/architecture.md).
const CRATES: [(&str, &[&str]); 18] = [
    ("testing", &[]),
    ("disk", &[]),
    ("kernels", &["disk"]),
    ("telemetry", &["disk"]),
    ("fleet", &["disk"]),
    ("ranks", &[]),
    ("model", &["disk", "kernels"]),
    ("rollout", &["kernels", "model"]),
    ("train", &["kernels", "model", "ranks"]),
    ("sandbox", &[]),
    ("rewards", &["kernels", "model", "sandbox"]),
    ("lockstep", &["disk", "kernels", "model", "rollout", "train", "rewards", "telemetry", "fleet", "ranks"]),
    ("dashboard", &["disk", "lockstep", "telemetry"]),
    ("serve", &["lockstep", "telemetry"]),
    ("bench", &["kernels", "model", "rollout", "train", "rewards", "telemetry", "lockstep"]),
    (
        "cli",
        &[
            "disk",
            "kernels",
            "model",
            "rollout",
            "train",
            "rewards",
            "telemetry",
            "fleet",
            "lockstep",
            "dashboard",
            "serve",
            "bench",
        ],
    ),
    ("python", &["kernels", "model", "rollout", "train", "rewards", "telemetry", "lockstep", "cli"]),
    ("xtask", &[]),
];

/// The crate that any crate may use in tests.
const OF_TESTS: &str = "testing";

/// The modules of `lockstep`, lowest layer first (docs/architecture.md): a module must not import a later one. For
/// example, code that collects completions must not depend on training runs.
const LOCKSTEP: [&str; 12] = [
    "config",
    "algorithms",
    "models",
    "data",
    "rollouts",
    "sources",
    "ranks",
    "run",
    "trainers",
    "session",
    "verify",
    "service",
];

/// Folders whose files import each other in a cycle. Once a folder has no cycle, it must be removed from this list.
///
/// `kernels::memory`: an allocation keeps its slot alive, and a slot creates allocations.
/// `model::weights`: a linear layer applies the adapters of its rows, and an adapter is a set of linear layers.
const CIRCLED: [&str; 2] = ["kernels::memory", "model::weights"];

/// A package of the workspace.
struct Package {
    /// The package name without `lockstep-`.
    name: String,
    /// The workspace packages that it depends on, including development and build dependencies.
    imports: Vec<String>,
    /// The root source files of its libraries and programs.
    roots: Vec<PathBuf>,
}

pub fn check() -> Result<(), String> {
    let packages = packages()?;
    let mut wrong = forbidden(&packages);
    let mut circled = BTreeSet::new();
    for package in &packages {
        for root in &package.roots {
            let source = modules::Source::read(root)?;
            let arrows = source.arrows();
            if package.name == "lockstep" {
                wrong.extend(upward(&arrows));
            }
            let circles = describe(&arrows);
            wrong.extend(circles.iter().map(|circle| format!("cycle of modules in {}: {circle}", package.name)));
            let folders = of_folders(&package.name, &source);
            let known = |(folder, _): &&(String, String)| CIRCLED.contains(&folder.as_str());
            circled.extend(folders.iter().filter(known).map(|(folder, _)| folder.clone()));
            wrong.extend(folders.into_iter().filter(|found| !known(&found)).map(|(_, words)| words));
        }
    }
    let redrawn = CIRCLED.iter().filter(|folder| !circled.contains(**folder));
    wrong.extend(redrawn.map(|folder| format!("{folder} no longer has a cycle: remove it from CIRCLED")));
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// Lists the dependencies that [`CRATES`] does not allow.
fn forbidden(packages: &[Package]) -> Vec<String> {
    let mut wrong = Vec::new();
    for Package { name, imports, .. } in packages {
        match CRATES.iter().find(|(known, _)| known == name) {
            None => wrong.push(format!("crate {name} must be listed in xtask/src/layers/mod.rs")),
            Some((_, allowed)) => {
                // A package may depend on itself for its tests, to select features.
                let others = imports.iter().filter(|import| *import != name);
                let bad = others.filter(|import| !allowed.contains(&import.as_str()));
                wrong.extend(bad.map(|import| format!("crate {name} must not depend on {import}")));
            }
        }
    }
    wrong
}

/// Lists the imports that [`LOCKSTEP`] does not allow.
fn upward(arrows: &modules::Arrows) -> Vec<String> {
    let place = |module: &str| LOCKSTEP.iter().position(|known| *known == module);
    let above = arrows.iter().filter(|((from, to), _)| {
        let places = place(from).zip(place(to));
        places.is_some_and(|(from, to)| from < to)
    });
    let line = |((from, to), at): (&(String, String), &modules::Place)| {
        format!("module {from} of lockstep must not import {to}: {}:{}", at.file.display(), at.line)
    };
    above.map(line).collect()
}

/// The import cycles between the files of folders, each with its folder.
fn of_folders(package: &str, source: &modules::Source) -> Vec<(String, String)> {
    let of = |folder: Vec<String>| {
        let name = format!("{package}::{}", folder.join("::"));
        let circles = describe(&source.arrows_of_folder(&folder));
        circles.into_iter().map(move |circle| (name.clone(), format!("cycle of files in {name}: {circle}")))
    };
    source.folders().into_iter().flat_map(of).collect()
}

/// Describes each cycle: its modules, and where each module imports the next.
fn describe(arrows: &modules::Arrows) -> Vec<String> {
    let line = |from: &String, to: &String| {
        let place = &arrows[&(from.clone(), to.clone())];
        format!("\n    {from} → {to}    {}:{}", place.file.display(), place.line)
    };
    let one = |circle: Vec<String>| {
        let next = circle.iter().cycle().skip(1);
        let lines: String = circle.iter().zip(next).map(|(from, to)| line(from, to)).collect();
        format!("{}{lines}", circle.join(", "))
    };
    modules::circles(arrows).into_iter().map(one).collect()
}

/// The packages of the workspace, from cargo's metadata.
fn packages() -> Result<Vec<Package>, String> {
    let metadata: Value = crate::cargo::metadata(&["--no-deps"])?;
    let here = std::env::current_dir().map_err(|e| e.to_string())?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let short = |name: String| match name.strip_prefix("lockstep-") {
        Some("rl") => "lockstep".to_owned(),
        short => short.unwrap_or(&name).to_owned(),
    };
    let all = list(&metadata["packages"]);
    let names: Vec<String> = all.iter().map(|package| short(text(&package["name"]))).collect();
    let package = |package: &Value| Package {
        name: short(text(&package["name"])),
        imports: list(&package["dependencies"])
            .iter()
            .map(|dependency| (short(text(&dependency["name"])), dependency["kind"] == "dev"))
            .filter(|(name, is_dev)| names.contains(name) && !(*is_dev && name == OF_TESTS))
            .map(|(name, _)| name)
            .collect(),
        roots: list(&package["targets"])
            .iter()
            .filter(|target| list(&target["kind"]).iter().any(|kind| matches!(kind.as_str(), Some("lib" | "bin"))))
            .map(|target| text(&target["src_path"]))
            .map(|path| Path::new(&path).strip_prefix(&here).unwrap_or(Path::new(&path)).to_owned())
            .collect(),
    };
    Ok(all.iter().map(package).collect())
}
