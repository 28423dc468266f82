//! Lists the files of the repository that people write.

use std::path::{Path, PathBuf};

/// All files below `folder`, sorted by name, except build outputs, npm packages and hidden files.
pub fn below(folder: &str) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    look(Path::new(folder), &mut found).map_err(|e| format!("{folder}: {e}"))?;
    found.sort();
    Ok(found)
}

fn look(folder: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if !path.is_dir() {
            found.push(path);
            continue;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !["target", "node_modules"].contains(&&*name) && !name.starts_with('.') {
            look(&path, found)?;
        }
    }
    Ok(())
}

/// Whether the file name of `path` ends with one of these extensions.
pub fn is_one_of(path: &Path, extensions: &[&str]) -> bool {
    path.extension().is_some_and(|own| extensions.iter().any(|extension| own == *extension))
}
