//! A preprocessor for mdBook (book.toml). Links from a page to files outside of docs/ become links to the repository,
//! and links to a README.md become links to index.md, since mdBook renames the file.

use crate::links::{is_elsewhere, join, targets};
use serde_json::Value;
use std::io::Read;
use std::path::Path;

/// Implements mdBook's protocol: mdBook first calls `supports RENDERER`, then writes `[context, book]` to standard
/// input and reads the changed book.
pub fn preprocess(arguments: &[&str]) -> Result<(), String> {
    if arguments.first() == Some(&"supports") {
        return Ok(());
    }
    let mut input = String::new();
    std::io::stdin().read_to_string(&mut input).map_err(|e| format!("standard input: {e}"))?;
    let (context, mut book): (Value, Value) =
        serde_json::from_str(&input).map_err(|e| format!("standard input must be mdBook's JSON: {e}"))?;
    let repository = context.pointer("/config/output/html/git-repository-url").and_then(Value::as_str);
    let repository = repository.ok_or("book.toml: output.html.git-repository-url is missing")?;
    chapters(&mut book, &format!("{repository}/blob/main"));
    println!("{book}");
    Ok(())
}

/// Rewrites the content of every chapter inside a JSON value. A chapter is an object with a path and a content.
fn chapters(value: &mut Value, repository: &str) {
    if let (Some(path), Some(content)) = (value["path"].as_str(), value["content"].as_str()) {
        value["content"] = rewritten(&Path::new("docs").join(path), content, repository).into();
    }
    match value {
        Value::Array(values) => values.iter_mut().for_each(|value| chapters(value, repository)),
        Value::Object(fields) => fields.values_mut().for_each(|value| chapters(value, repository)),
        _ => {}
    }
}

fn rewritten(page: &Path, text: &str, repository: &str) -> String {
    let mut text = text.to_owned();
    for range in targets(&text).into_iter().rev() {
        let target = &text[range.clone()];
        let (path, anchor) = target.find('#').map_or((target, ""), |at| target.split_at(at));
        let Some(file) = join(page, path).filter(|_| !is_elsewhere(target)) else { continue };
        let target = match path.strip_suffix("README.md") {
            Some(folder) if file.starts_with("docs") => format!("{folder}index.md{anchor}"),
            None if file.starts_with("docs") => continue,
            _ => format!("{repository}/{}{anchor}", file.display()),
        };
        text.replace_range(range, &target);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_out_of_the_book_point_to_the_repository() {
        let text = "[a](b.md#c) [d](../README.md#e) [f](https://example.org/README.md) [g](#h) [i](../../a.toml)";
        let mut book = serde_json::json!({"items": [{"Chapter": {"path": "python/x.md", "content": text}}]});
        chapters(&mut book, "R");
        let found = book["items"][0]["Chapter"]["content"].as_str().unwrap();
        assert_eq!(found, "[a](b.md#c) [d](../index.md#e) [f](https://example.org/README.md) [g](#h) [i](R/a.toml)");
        let found = rewritten(Path::new("docs/x.md"), "[d](../README.md#e)", "R");
        assert_eq!(found, "[d](R/README.md#e)");
    }
}
