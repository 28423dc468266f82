//! Checks fixtures: reference values made by the scripts in `conformance/`. Each script also writes the library
//! versions that it used. The recorded hash of a script reveals whether the script changed after its fixtures were
//! made.

use std::collections::BTreeMap;
use std::path::Path;

/// The list of scripts, each with the hash that it had when it made its fixtures.
const LIST: &str = "conformance/fixtures.lock";

/// Checks that every script is listed with its current hash.
pub fn check() -> Result<(), String> {
    let listed = std::fs::read_to_string(LIST).map_err(|e| format!("{LIST}: {e}"))?;
    let listed: BTreeMap<&str, &str> =
        listed.lines().filter_map(|line| line.split_once(' ')).map(|(h, n)| (n.trim(), h)).collect();
    let scripts = std::fs::read_dir("conformance").map_err(|e| format!("conformance: {e}"))?;
    let mut changed = Vec::new();
    for entry in scripts.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !(name.ends_with("_fixtures.py") || name.ends_with("_reference.py")) {
            continue;
        }
        let hash = hash(&entry.path())?;
        match listed.get(name.as_str()) {
            Some(&made_with) if made_with == hash => println!("{name}: the fixtures are up to date"),
            Some(_) => {
                changed.push(format!(
                    "conformance/{name} changed after its fixtures were made: run it again as described at its \
                     head, then write {hash} into {LIST}"
                ));
            }
            None => changed.push(format!("conformance/{name} is not in {LIST}: add `{hash} {name}`")),
        }
    }
    if changed.is_empty() { Ok(()) } else { Err(changed.join("\n")) }
}

/// The FNV-1a hash of a file, which is sufficient to detect a change.
fn hash(path: &Path) -> Result<String, String> {
    let bytes = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    Ok(format!("{hash:016x}"))
}
