//! Reads the imports between the modules of one crate as a graph, and finds cycles between its top-level modules or
//! between the files of one folder.
//!
//! An edge `a → b` represents a path `crate::b::…` (or one with `super::`) in a file of module `a`; tests are ignored.
//! `crate::Name` is resolved to the module from which the crate root re-exports `Name`; items that the root itself
//! defines belong to a pseudo-module, [`ROOT`]. Re-exports are not imports: they only show where a name is defined.
//!
//! Within a folder, `mod.rs` is ignored: it defines items that the other files share (argument structs, tables), and
//! calls these files.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ExprLit, Lit, UseTree, Visibility};

use super::tokens::without_tests;

/// The pseudo-module for items that `lib.rs` or `main.rs` itself defines.
pub const ROOT: &str = "(root)";

/// The import graph: for each pair (importing module, imported module) the first place of the import.
pub type Arrows = BTreeMap<(String, String), Place>;

/// A place in the source: a file and a line number.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    pub file: PathBuf,
    pub line: usize,
}

/// A path in the source that starts at the crate root, and where it occurs.
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
    /// The names that a module imports, as full paths; for the crate root only its re-exports.
    imported: BTreeMap<Vec<String>, Vec<String>>,
    modules: BTreeSet<Vec<String>>,
    /// The identifiers in the crate root, except in re-exports.
    root_words: Vec<(String, Place)>,
}

impl Source {
    /// Reads the crate with the root file `root`.
    pub fn read(root: &Path) -> Result<Source, String> {
        let mut source = Source::default();
        let directory = root.parent().unwrap_or(Path::new("")).to_owned();
        source.file(root, &directory, &[])?;
        Ok(source)
    }

    /// The folders with files besides `mod.rs`, as module paths.
    pub fn folders(&self) -> BTreeSet<Vec<String>> {
        let parents = self.modules.iter().map(|module| module[..module.len() - 1].to_vec());
        parents.filter(|parent| !parent.is_empty()).collect()
    }

    /// Reads the file of module `module`; its submodules are in `directory`.
    fn file(&mut self, file: &Path, directory: &Path, module: &[String]) -> Result<(), String> {
        let named = |e: &dyn std::fmt::Display| format!("{}: {e}", file.display());
        let text = std::fs::read_to_string(file).map_err(|e| named(&e))?;
        let tokens = text.parse::<TokenStream>().map_err(|e| named(&e))?;
        let parsed = syn::parse2::<syn::File>(without_tests(tokens)).map_err(|e| named(&e))?;
        let (module, directory, result) = (module.to_vec(), directory.to_owned(), Ok(()));
        let mut reader = Reader { source: self, file, directory, module, result };
        reader.visit_file(&parsed);
        reader.result
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

    /// The import graph of the files of a folder; each subfolder is one node.
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

/// Visits the syntax tree of one file.
struct Reader<'a> {
    source: &'a mut Source,
    file: &'a Path,
    /// The directory of the module's submodules.
    directory: PathBuf,
    /// The module being read.
    module: Vec<String>,
    result: Result<(), String>,
}

impl Reader<'_> {
    fn place(&self, span: Span) -> Place {
        Place { file: self.file.to_owned(), line: span.start().line }
    }

    fn path(&mut self, path: Vec<String>, span: Span) {
        let place = self.place(span);
        if path.len() > 1 && ["crate", "super", "self"].contains(&path[0].as_str()) {
            let resolved = resolve(&self.module, &path);
            self.source.named.extend(resolved.map(|path| Named { from: self.module.clone(), path, place }));
        } else if self.module.is_empty() {
            self.source.root_words.extend(path.into_iter().map(|word| (word, place.clone())));
        }
    }

    /// Records the paths in the arguments of a macro or an attribute.
    fn tokens(&mut self, stream: TokenStream) {
        let trees: Vec<_> = stream.into_iter().collect();
        let mut rest = &trees[..];
        while let [first, after @ ..] = rest {
            rest = after;
            match first {
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Ident(first) => {
                    let mut path = vec![name(first)];
                    while let [TokenTree::Punct(a), TokenTree::Punct(b), TokenTree::Ident(next), after @ ..] = rest
                        && [a, b].map(proc_macro2::Punct::as_char) == [':', ':']
                    {
                        path.push(name(next));
                        rest = after;
                    }
                    self.path(path, first.span());
                }
                _ => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let name = name(&item.ident);
        let outer = self.directory.clone();
        self.module.push(name.clone());
        self.source.modules.insert(self.module.clone());
        self.directory.push(&name);
        if let Some((_, items)) = &item.content {
            for item in items {
                self.visit_item(item);
            }
        } else {
            let found = submodule(self.file, &outer, &name, path_attribute(&item.attrs).as_deref());
            let found = found.ok_or_else(|| format!("{}: the file of `mod {name}` is missing", self.file.display()));
            let read = found.and_then(|found| self.source.file(&found, &self.directory, &self.module));
            self.result = std::mem::replace(&mut self.result, Ok(())).and(read);
        }
        self.module.pop();
        self.directory = outer;
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let mut leaves = Vec::new();
        use_tree(&item.tree, &[], &mut leaves);
        let (here, is_root) = (self.module.clone(), self.module.is_empty());
        let is_export = is_root && !matches!(item.vis, Visibility::Inherited);
        for (path, alias) in leaves {
            let resolved = resolve(&here, &path);
            if is_export || !is_root {
                // A path without `crate`, `self` or `super` names a submodule or another crate.
                let origin = resolved.clone().unwrap_or_else(|| [&here[..], &path].concat());
                self.source.imported.insert([&here[..], &[alias]].concat(), origin);
            }
            if let Some(path) = resolved.filter(|_| !is_export) {
                let place = self.place(item.use_token.span);
                self.source.named.push(Named { from: here.clone(), path, place });
            }
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|segment| name(&segment.ident)).collect();
        if let Some(first) = path.segments.first() {
            self.path(names, first.ident.span());
        }
        path.segments.iter().for_each(|segment| self.visit_path_arguments(&segment.arguments));
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        self.tokens(call.tokens.clone());
    }

    fn visit_meta_list(&mut self, list: &'ast syn::MetaList) {
        visit::visit_meta_list(self, list);
        self.tokens(list.tokens.clone());
    }

    /// `pub(in crate::x)` is a visibility, not an import.
    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}

    fn visit_ident(&mut self, ident: &'ast Ident) {
        self.path(vec![name(ident)], ident.span());
    }
}

/// An identifier without `r#`.
fn name(ident: &Ident) -> String {
    ident.to_string().trim_start_matches("r#").to_owned()
}

/// The file of the module that `file` declares with `mod name;`, searched in `directory`; `path` is the value of its
/// `#[path]` attribute.
fn submodule(file: &Path, directory: &Path, name: &str, path: Option<&str>) -> Option<PathBuf> {
    let beside = path.and_then(|path| Some(file.parent()?.join(path)));
    let candidates = [beside, Some(directory.join(format!("{name}.rs"))), Some(directory.join(name).join("mod.rs"))];
    candidates.into_iter().flatten().find(|candidate| candidate.is_file())
}

/// The value of a `#[path = "…"]` attribute.
fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    let path = attributes.iter().find(|attribute| attribute.path().is_ident("path"))?;
    match &path.meta.require_name_value().ok()?.value {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
        _ => None,
    }
}

/// Collects the leaves of a `use` tree below `before`, each with the name that it binds.
fn use_tree(tree: &UseTree, before: &[String], leaves: &mut Vec<(Vec<String>, String)>) {
    let with = |ident: &Ident| [before, &[name(ident)]].concat();
    match tree {
        UseTree::Path(path) => use_tree(&path.tree, &with(&path.ident), leaves),
        UseTree::Name(leaf) => leaves.push((with(&leaf.ident), name(&leaf.ident))),
        UseTree::Rename(leaf) => leaves.push((with(&leaf.ident), name(&leaf.rename))),
        UseTree::Glob(_) => leaves.push(([before, &["*".to_owned()]].concat(), "*".to_owned())),
        UseTree::Group(group) => group.items.iter().for_each(|tree| use_tree(tree, before, leaves)),
    }
}

/// The path from the crate root that `path` means in module `here`; `None` if it leaves the crate or equals `here`.
fn resolve(here: &[String], path: &[String]) -> Option<Vec<String>> {
    let mut base = match path.first()?.as_str() {
        "crate" => Vec::new(),
        "self" | "super" => here.to_vec(),
        // In the root, module names need no `crate::`.
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

/// The shortest cycle through each set of modules that import each other, as a list of modules.
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
