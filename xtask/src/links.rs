//! Checks the links in the documents: each relative link must name an existing file, each `#anchor` a heading in it,
//! and docs/SUMMARY.md must list every page of docs/.

use crate::sources;
use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

/// The folder with the pages of the book.
const DOCS: &str = "docs";
const SUMMARY: &str = "docs/SUMMARY.md";
/// Pages outside of docs/ that are also checked.
const PAGES: [&str; 5] = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "python/README.md"];

pub fn check() -> Result<(), String> {
    let mut pages = sources::below(DOCS)?;
    pages.retain(|page| sources::is_one_of(page, &["md"]));
    let mut wrong = unlisted(&pages, &read(Path::new(SUMMARY))?);
    pages.extend(PAGES.iter().map(PathBuf::from));
    for page in &pages {
        wrong.extend(broken(page, &read(page)?).into_iter().map(|what| format!("{}: {what}", page.display())));
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

fn read(page: &Path) -> Result<String, String> {
    fs::read_to_string(page).map_err(|e| format!("{}: {e}", page.display()))
}

/// The pages that the summary does not list, or lists twice.
fn unlisted(pages: &[PathBuf], summary: &str) -> Vec<String> {
    let listed: Vec<PathBuf> =
        targets(summary).iter().map(|range| Path::new(DOCS).join(&summary[range.clone()])).collect();
    let times = |page: &PathBuf| listed.iter().filter(|one| *one == page).count();
    let pages = pages.iter().filter(|page| page.as_path() != Path::new(SUMMARY) && times(page) != 1);
    pages.map(|page| format!("{SUMMARY}: must list {} once, lists it {} times", page.display(), times(page))).collect()
}

/// Descriptions of the broken links of a page.
fn broken(page: &Path, text: &str) -> Vec<String> {
    let check = |target: &str| {
        let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
        let file = if path.is_empty() { page.to_owned() } else { join(page, path)? };
        if !file.exists() {
            return Some(format!("broken link {target}: {} does not exist", file.display()));
        }
        let is_page = file.extension().is_some_and(|extension| extension == "md");
        if anchor.is_empty() || !is_page || anchors(&fs::read_to_string(&file).unwrap_or_default()).contains(anchor) {
            return None;
        }
        Some(format!("broken link {target}: {} has no such heading", file.display()))
    };
    let relative = targets(text).into_iter().map(|range| &text[range]).filter(|target| !is_elsewhere(target));
    relative.filter_map(check).collect()
}

/// Whether a link is external.
pub fn is_elsewhere(target: &str) -> bool {
    target.contains("://") || target.starts_with("mailto:")
}

/// The file of a relative link, as a path from the repository's root; `None` if it is outside of the repository.
pub fn join(page: &Path, target: &str) -> Option<PathBuf> {
    let mut path = page.parent()?.to_owned();
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir if !path.pop() => return None,
            Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    Some(path)
}

/// The byte ranges of the targets of inline links and images in a page, except in code.
pub fn targets(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let (mut start, mut in_fence) = (0, false);
    for line in text.split_inclusive('\n') {
        if line.trim_start().starts_with("```") {
            in_fence = !in_fence;
        } else if !in_fence {
            let line = without_code(line);
            let mut at = 0;
            while let Some(open) = line[at..].find("](").map(|i| at + i + 2) {
                let Some(length) = line[open..].find(')') else { break };
                found.push(start + open..start + open + length);
                at = open + length;
            }
        }
        start += line.len();
    }
    found
}

/// A line whose code spans are replaced by spaces of the same length.
fn without_code(line: &str) -> String {
    let parts: Vec<&str> = line.split('`').collect();
    let blank = |(i, part): (usize, &&str)| {
        if i % 2 == 1 && i + 1 < parts.len() { " ".repeat(part.len()) } else { (*part).to_owned() }
    };
    parts.iter().enumerate().map(blank).collect::<Vec<_>>().join("`")
}

/// The anchors of a page's headings, as GitHub and mdBook generate them: letters and digits, with `-` for blanks.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut in_fence = false;
    for line in text.lines() {
        in_fence ^= line.starts_with("```");
        let Some(heading) = line.strip_prefix('#').filter(|_| !in_fence) else { continue };
        let mut heading = heading.trim_start_matches('#').trim().to_owned();
        for range in targets(&heading.clone()).into_iter().rev() {
            heading.replace_range(range.start - 1..range.end + 1, "");
        }
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let anchor: String = kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect();
        let repeated = (1..).map(|n| format!("{anchor}-{n}"));
        let free = std::iter::once(anchor.clone()).chain(repeated).find(|one| !anchors.contains(one));
        anchors.extend(free);
    }
    anchors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_outside_of_code() {
        let text = "a [b](c.md#d) `[e](f)` ![g](h.png)\n```\n[i](j)\n```\n[`k`](l)\n";
        let found: Vec<&str> = targets(text).into_iter().map(|range| &text[range]).collect();
        assert_eq!(found, ["c.md#d", "h.png", "l"]);
    }

    #[test]
    fn anchors_are_generated_from_headings() {
        let text = "# What is not\n## Rewards (`crates/rewards/`)\n## [A](b.md) link\n## A link\n```\n# no\n```\n";
        let expected = ["a-link", "a-link-1", "rewards-cratesrewards", "what-is-not"];
        assert_eq!(anchors(text).into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn broken_links_are_reported() {
        let directory = tempfile::tempdir().unwrap();
        let page = directory.path().join("a.md");
        fs::write(&page, "# Here\n").unwrap();
        let text = "[1](a.md#here) [2](a.md#there) [3](b.md) [4](#here) [5](https://example.org/b.md)";
        let wrong = broken(&page, text);
        assert!(
            wrong.len() == 2 && wrong[0].contains("a.md#there") && wrong[1].contains("does not exist"),
            "{wrong:?}"
        );
        let pages = [PathBuf::from("docs/a.md"), PathBuf::from("docs/b.md")];
        assert_eq!(unlisted(&pages, "- [a](a.md)\n").len(), 1);
    }
}
