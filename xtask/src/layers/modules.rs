//! The import arrows between the top-level modules of one crate, read from its source, and the circles among them.
//!
//! An arrow `a → b` stands for a path `crate::b::…` (or one with `super::`) in a file of module `a`, tests left out.
//! `crate::Name` counts as the module from which the root re-exports `Name`; what the root itself defines belongs to
//! a module of its own, [`ROOT`]. Re-exports are no imports: they only say where a name may be found.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use super::tokens::{Kind, Token, tokens, without_tests};

/// The items of `lib.rs` or `main.rs` itself.
pub const ROOT: &str = "(root)";

/// Who imports whom, and the first place where it does.
pub type Arrows = BTreeMap<(String, String), Place>;

/// A line of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    pub file: PathBuf,
    pub line: usize,
}

/// A path that begins with `crate`, as segments, where it was named.
struct Named {
    /// The module path of who names it; empty in the root.
    from: Vec<String>,
    /// Without `crate`; resolved for `self` and `super`.
    path: Vec<String>,
    place: Place,
}

/// The arrows of the crate whose root file is `root`.
pub fn arrows(root: &Path) -> Result<Arrows, String> {
    let mut reader =
        Reader { named: Vec::new(), exported: BTreeMap::new(), top: BTreeSet::new(), root_words: Vec::new() };
    let directory = root.parent().unwrap_or(Path::new("")).to_owned();
    reader.file(root, &directory, &[])?;
    Ok(reader.arrows())
}

struct Reader {
    named: Vec<Named>,
    /// Names that the root re-exports, and the first segment of where they come from.
    exported: BTreeMap<String, String>,
    top: BTreeSet<String>,
    /// The identifiers of the root outside re-exports.
    root_words: Vec<(String, Place)>,
}

impl Reader {
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
                    if here().is_empty() {
                        self.top.insert(name.clone());
                    }
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
                        if is_export {
                            let origin = path.into_iter().find(|segment| segment != "crate" && segment != "self");
                            self.exported.insert(alias, origin.unwrap_or_default());
                        } else if let Some(path) = resolve(&here(), &path) {
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

    fn arrows(self) -> Arrows {
        let Reader { named, exported, top, root_words } = self;
        let module = |name: &str| -> Option<String> {
            if top.contains(name) {
                return Some(name.to_owned());
            }
            match exported.get(name) {
                Some(origin) => top.contains(origin).then(|| origin.clone()),
                None => Some(ROOT.to_owned()),
            }
        };
        let mut arrows = Arrows::new();
        let mut add = |from: &str, to: Option<String>, place: Place| {
            if let Some(to) = to.filter(|to| to != from) {
                arrows.entry((from.to_owned(), to)).or_insert(place);
            }
        };
        for Named { from, path, place } in named {
            add(from.first().map_or(ROOT, String::as_str), module(&path[0]), place);
        }
        for (word, place) in root_words {
            if exported.contains_key(&word) || top.contains(&word) {
                add(ROOT, module(&word), place);
            }
        }
        arrows
    }
}

/// The file of `mod name;`, declared in `file`, in `directory`; `path` is what its `#[path]` says.
fn submodule(file: &Path, directory: &Path, name: &str, path: Option<&str>) -> Option<PathBuf> {
    let beside = path.and_then(|path| Some(file.parent()?.join(path)));
    let candidates = [beside, Some(directory.join(format!("{name}.rs"))), Some(directory.join(name).join("mod.rs"))];
    candidates.into_iter().flatten().find(|candidate| candidate.is_file())
}

/// What `#[path = "…"]` right before an item says.
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

/// The segments of the path that begins at `i`.
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

/// Collects the leaves of the use tree that begins at `i`, each with the name it gets, and returns the place after it.
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

/// `path` from the crate's root, seen from module `here`; `None` if it leads out of the crate or to `here` itself.
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

/// The shortest circle through each knot of modules that import each other, as the modules in order.
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

/// The shortest way from `start` back to it.
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
