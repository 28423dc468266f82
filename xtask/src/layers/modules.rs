//! Reads the imports between the modules of one crate from its source, as arrows of a graph, and finds cycles between
//! its top-level modules or between the files of one folder.
//!
//! An arrow `a → b` stands for a path `crate::b::…` (or one with `super::`) in a file of module `a`; tests are ignored.
//! `crate::Name` counts as the module from which the crate root re-exports `Name`; items that the root itself defines
//! belong to a pseudo-module, [`ROOT`]. Re-exports are not imports: they only say where a name can be found.
//!
//! Within a folder `mod.rs` is ignored, because it defines what the other files share (argument structs, tables) and
//! calls them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use super::tokens::{Kind, Token, tokens, without_tests};

/// The pseudo-module of the items that `lib.rs` or `main.rs` itself defines.
pub const ROOT: &str = "(root)";

/// The import graph: for each pair (importing module, imported module) the first place of the import.
pub type Arrows = BTreeMap<(String, String), Place>;

/// A place in the source: a file and a line number.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    pub file: PathBuf,
    pub line: usize,
}

/// A path in the source that begins at the crate root, and where it occurs.
struct Named {
    /// The module that contains the path; empty for the crate root.
    from: Vec<String>,
    /// The segments after `crate`, with `self` and `super` resolved.
    path: Vec<String>,
    place: Place,
}

/// The modules of a crate and the paths that they contain.
#[derive(Default)]
pub struct Source {
    named: Vec<Named>,
    /// Names that a module imports, as full paths; for the crate root only those that it re-exports.
    imported: BTreeMap<Vec<String>, Vec<String>>,
    modules: BTreeSet<Vec<String>>,
    /// The identifiers in the crate root outside of re-exports.
    root_words: Vec<(String, Place)>,
}

impl Source {
    /// Reads the crate whose root file is `root`.
    pub fn read(root: &Path) -> Result<Source, String> {
        let mut source = Source::default();
        let directory = root.parent().unwrap_or(Path::new("")).to_owned();
        source.file(root, &directory, &[])?;
        Ok(source)
    }

    /// The folders that have files beside `mod.rs`, as module paths.
    pub fn folders(&self) -> BTreeSet<Vec<String>> {
        let parents = self.modules.iter().map(|module| module[..module.len() - 1].to_vec());
        parents.filter(|parent| !parent.is_empty()).collect()
    }

    /// Reads the file of module `module`, whose submodules lie in `directory`.
    fn file(&mut self, file: &Path, directory: &Path, module: &[String]) -> Result<(), String> {
        let source = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        let tokens = without_tests(&tokens(&source).map_err(|e| format!("{}: {e}", file.display()))?);
        // Inline modules: their name and the depth of braces outside them.
        let (mut inline, mut depth): (Vec<(String, i32)>, i32) = (Vec::new(), 0);
        let mut i = 0;
        while i < tokens.len() {
            let token = &tokens[i];
            let here = || module.iter().cloned().chain(inline.iter().map(|(name, _)| name.clone())).collect::<Vec<_>>();
            let place = Place { file: file.to_owned(), line: token.line };
            match token.word() {
                Some("mod") if tokens.get(i + 2).is_some_and(|t| t.is(';') || t.is('{')) => {
                    let name = tokens[i + 1].word().unwrap_or_default().to_owned();
                    self.modules.insert([here(), vec![name.clone()]].concat());
                    if tokens[i + 2].is('{') {
                        inline.push((name, depth));
                    } else {
                        let inside = inline.iter().fold(directory.to_owned(), |path, (name, _)| path.join(name));
                        let below = [here(), vec![name.clone()]].concat();
                        let found = submodule(file, &inside, &name, path_attribute(&tokens[..i]));
                        let found = found.ok_or_else(|| format!("{}: no file of `mod {name}`", file.display()))?;
                        self.file(&found, &inside.join(&name), &below)?;
                    }
                    // The brace, if there is one, is counted below.
                    i += 2;
                    continue;
                }
                Some("use") => {
                    let mut leaves = Vec::new();
                    let end = use_tree(&tokens, i + 1, &[], &mut leaves);
                    let is_export = here().is_empty() && i > 0 && is_public(&tokens[..i]);
                    for (path, alias) in leaves {
                        let resolved = resolve(&here(), &path);
                        if is_export || !here().is_empty() {
                            // Without `crate`, `self` or `super` it is a module below, or another crate.
                            let origin = resolved.clone().unwrap_or_else(|| [here(), path].concat());
                            self.imported.insert([here(), vec![alias]].concat(), origin);
                        }
                        if let Some(path) = resolved.filter(|_| !is_export) {
                            self.named.push(Named { from: here(), path, place: place.clone() });
                        }
                    }
                    i = end;
                    continue;
                }
                // `pub(in crate::x)` says who may see, and imports nothing.
                Some("crate" | "super" | "self")
                    if tokens.get(i + 1).is_some_and(|t| t.kind == Kind::PathSep)
                        && !(i > 1 && tokens[i - 1].word() == Some("in") && tokens[i - 2].is('(')) =>
                {
                    let path = plain_path(&tokens, i);
                    i += 2 * path.len() - 1;
                    if let Some(path) = resolve(&here(), &path) {
                        self.named.push(Named { from: here(), path, place });
                    }
                    continue;
                }
                Some(word) if here().is_empty() => self.root_words.push((word.to_owned(), place)),
                _ => {}
            }
            depth += i32::from(token.is('{')) - i32::from(token.is('}'));
            inline.retain(|&(_, outside)| depth > outside || token.is('{'));
            i += 1;
        }
        Ok(())
    }

    /// The import graph of the top-level modules.
    pub fn arrows(&self) -> Arrows {
        let mut arrows = self.arrows_within(&[]);
        for (word, place) in &self.root_words {
            let path = vec![word.clone()];
            if self.imported.contains_key(&path) || self.modules.contains(&path) {
                add(&mut arrows, ROOT, self.child(&[], &path), place);
            }
        }
        arrows
    }

    /// The import graph of the files of a folder; each subfolder counts as one module.
    pub fn arrows_of_folder(&self, folder: &[String]) -> Arrows {
        let mut arrows = self.arrows_within(folder);
        arrows.retain(|(from, to), _| from != ROOT && to != ROOT);
        arrows
    }

    fn arrows_within(&self, folder: &[String]) -> Arrows {
        let mut arrows = Arrows::new();
        for Named { from, path, place } in self.named.iter().filter(|named| named.from.starts_with(folder)) {
            let from = from.get(folder.len()).map_or(ROOT, String::as_str);
            add(&mut arrows, from, self.child(folder, path), place);
        }
        arrows
    }

    /// The module directly below `folder` that contains `path`; [`ROOT`] for items that the folder's `mod.rs` defines.
    fn child(&self, folder: &[String], path: &[String]) -> Option<String> {
        let name = path.strip_prefix(folder)?.first()?;
        let below = &path[..=folder.len()];
        if self.modules.contains(below) {
            return Some(name.clone());
        }
        match self.imported.get(below) {
            Some(origin) => {
                let is_below = origin.len() > folder.len() && self.modules.contains(&origin[..=folder.len()]);
                (is_below && origin.starts_with(folder)).then(|| origin[folder.len()].clone())
            }
            None => Some(ROOT.to_owned()),
        }
    }
}

fn add(arrows: &mut Arrows, from: &str, to: Option<String>, place: &Place) {
    if let Some(to) = to.filter(|to| to != from) {
        arrows.entry((from.to_owned(), to)).or_insert_with(|| place.clone());
    }
}

/// The file of the module that `file` declares with `mod name;`, looked up in `directory`; `path` is the value of its
/// `#[path]` attribute.
fn submodule(file: &Path, directory: &Path, name: &str, path: Option<&str>) -> Option<PathBuf> {
    let beside = path.and_then(|path| Some(file.parent()?.join(path)));
    let candidates = [beside, Some(directory.join(format!("{name}.rs"))), Some(directory.join(name).join("mod.rs"))];
    candidates.into_iter().flatten().find(|candidate| candidate.is_file())
}

/// The value of a `#[path = "…"]` attribute that is the last thing before an item.
fn path_attribute(before: &[Token]) -> Option<&str> {
    match before {
        [.., word, equals, Token { kind: Kind::Text(text), .. }, close]
            if word.word() == Some("path") && equals.is('=') && close.is(']') =>
        {
            Some(text)
        }
        _ => None,
    }
}

/// Whether the tokens before an item end with `pub` or `pub(…)`.
fn is_public(before: &[Token]) -> bool {
    match before {
        [.., token] if token.word() == Some("pub") => true,
        [.., token] if token.is(')') => {
            let open = before.iter().rposition(|token| token.is('(')).unwrap_or(0);
            open > 0 && before[open - 1].word() == Some("pub")
        }
        _ => false,
    }
}

/// The segments of the path that begins at token `i`.
fn plain_path(tokens: &[Token], i: usize) -> Vec<String> {
    let mut path = vec![tokens[i].word().unwrap_or_default().to_owned()];
    let mut i = i + 1;
    while let [separator, next, ..] = &tokens[i.min(tokens.len())..]
        && separator.kind == Kind::PathSep
        && let Some(word) = next.word()
    {
        path.push(word.to_owned());
        i += 2;
    }
    path
}

/// Collects the leaves of the `use` tree that begins at token `i`, each with the name that it binds, and returns the
/// index after the tree.
fn use_tree(tokens: &[Token], mut i: usize, before: &[String], leaves: &mut Vec<(Vec<String>, String)>) -> usize {
    let mut path = before.to_vec();
    while let Some(token) = tokens.get(i) {
        match &token.kind {
            Kind::Word(word) if word == "as" => {
                let alias = tokens.get(i + 1).and_then(Token::word).unwrap_or("_").to_owned();
                leaves.push((path, alias));
                return i + 2;
            }
            Kind::Word(word) => path.push(word.clone()),
            Kind::PathSep => {}
            Kind::Mark('*') => path.push("*".to_owned()),
            Kind::Mark('{') => {
                i += 1;
                while tokens.get(i).is_some_and(|token| !token.is('}')) {
                    i = use_tree(tokens, i, &path, leaves);
                    i += usize::from(tokens.get(i).is_some_and(|token| token.is(',')));
                }
                return i + 1;
            }
            _ => break,
        }
        i += 1;
    }
    if path.len() > before.len() {
        let alias = path.last().cloned().unwrap_or_default();
        leaves.push((path, alias));
    }
    i
}

/// The path from the crate root that `path` means in module `here`; `None` if it leads out of the crate or to `here`.
fn resolve(here: &[String], path: &[String]) -> Option<Vec<String>> {
    let mut base = match path.first()?.as_str() {
        "crate" => Vec::new(),
        "self" | "super" => here.to_vec(),
        // In the root a module's name needs no `crate::`.
        _ if here.is_empty() => Vec::new(),
        _ => return None,
    };
    for segment in path {
        match segment.as_str() {
            "crate" | "self" => {}
            "super" => drop(base.pop()),
            name => base.push(name.to_owned()),
        }
    }
    (!base.is_empty()).then_some(base)
}

/// The shortest cycle through each set of modules that import each other, as the modules in order.
pub fn circles(arrows: &Arrows) -> Vec<Vec<String>> {
    let nodes: BTreeSet<&str> = arrows.keys().flat_map(|(from, to)| [from.as_str(), to.as_str()]).collect();
    let mut found: Vec<Vec<String>> = Vec::new();
    let shortest = nodes.iter().filter_map(|node| circle_through(arrows, node));
    let mut shortest: Vec<Vec<String>> = shortest.collect();
    shortest.sort_by_key(Vec::len);
    for circle in shortest {
        if !found.iter().flatten().any(|node| circle.contains(node)) {
            found.push(circle);
        }
    }
    found
}

/// The shortest cycle that begins and ends at `start`.
fn circle_through(arrows: &Arrows, start: &str) -> Option<Vec<String>> {
    let mut previous: BTreeMap<&str, &str> = BTreeMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(node) = queue.pop_front() {
        for (_, to) in arrows.keys().filter(|(from, _)| from == node) {
            if to == start {
                let mut circle = vec![node.to_owned()];
                while let Some(&before) = previous.get(circle[circle.len() - 1].as_str()) {
                    circle.push(before.to_owned());
                }
                circle.reverse();
                return Some(circle);
            }
            if !previous.contains_key(to.as_str()) {
                previous.insert(to, node);
                queue.push_back(to);
            }
        }
    }
    None
}
