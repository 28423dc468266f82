//! The list of a model directory's files other than weights. It decides which files are read when a model is loaded,
//! which are hashed, which are copied into checkpoints and results, and which are sent to other machines.
//!
//! Code that needs one of these files gets it from [`ModelFiles`], which reads the whole list at once. So the same
//! bytes are used, hashed and copied.

use super::without_bom;
use crate::{Error, Result};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// The model's configuration, which is rewritten when a model is saved.
pub const CONFIG: &str = "config.json";
pub(crate) const TOKENIZER: &str = "tokenizer.json";
pub(crate) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
pub(crate) const SPECIAL_TOKENS_MAP: &str = "special_tokens_map.json";
pub(crate) const GENERATION_CONFIG: &str = "generation_config.json";
pub(crate) const CHAT_TEMPLATE: &str = "chat_template.jinja";
/// The folder of further chat templates: each file `NAME.jinja` is the template `NAME`.
pub(super) const MORE_TEMPLATES: &str = "additional_chat_templates/";
const TEMPLATE_ENDING: &str = ".jinja";

/// The use of a listed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Read when a model is loaded. The hash is part of the model's identity, like the hashes of the weights.
    Model,
    /// Read when a model is loaded. The file decides how prompts are encoded, or which tokens end a completion.
    Prompts,
    /// Not read. The file is copied for programs that read it, such as transformers.
    Copied,
}

/// The list, without the files in [`MORE_TEMPLATES`].
pub(super) const FILES: [(&str, Use); 11] = [
    (CONFIG, Use::Model),
    (TOKENIZER, Use::Model),
    (TOKENIZER_CONFIG, Use::Prompts),
    (SPECIAL_TOKENS_MAP, Use::Prompts),
    (GENERATION_CONFIG, Use::Prompts),
    (CHAT_TEMPLATE, Use::Prompts),
    ("added_tokens.json", Use::Copied),
    ("chat_template.json", Use::Copied),
    ("merges.txt", Use::Copied),
    ("tokenizer.model", Use::Copied),
    ("vocab.json", Use::Copied),
];

fn use_of(name: &str) -> Option<Use> {
    let listed = FILES.iter().find(|(listed, _)| *listed == name).map(|(_, used)| *used);
    listed.or_else(|| template_name(name).map(|_| Use::Prompts))
}

/// The name of the template in the file `name` of the folder of further templates.
fn template_name(name: &str) -> Option<&str> {
    let template = name.strip_prefix(MORE_TEMPLATES)?.strip_suffix(TEMPLATE_ENDING)?;
    (!template.is_empty() && !template.contains(['/', '\\', '\0'])).then_some(template)
}

/// Whether a file of this name is on the list. The name is relative to the model directory, with `/` as separator.
pub fn is_listed(name: &str) -> bool {
    use_of(name).is_some()
}

/// Whether the hash of a listed file of this name is part of the model's identity.
pub fn identifies_model(name: &str) -> bool {
    use_of(name) == Some(Use::Model)
}

/// The listed files of a model directory, as they were when it was loaded. They are kept in memory, because the
/// directory may be gone when a checkpoint is written.
#[derive(Clone, Debug, Default)]
pub struct ModelFiles {
    dir: PathBuf,
    files: Vec<(String, Vec<u8>)>,
}

impl ModelFiles {
    /// Reads the listed files that exist in `dir`.
    pub fn read(dir: &Path) -> Result<ModelFiles> {
        let mut names: Vec<String> = FILES.iter().map(|(name, _)| (*name).to_owned()).collect();
        names.extend(more_templates(dir)?);
        names.retain(|name| dir.join(name).exists());
        let read = |name: String| {
            let path = dir.join(&name);
            let bytes = disk::read(&path, disk::most::TOKENIZER).map_err(|e| Error::io(&path, e))?;
            Ok((name, bytes))
        };
        Ok(ModelFiles { dir: dir.to_owned(), files: names.into_iter().map(read).collect::<Result<_>>()? })
    }

    /// The files that are read, not only copied, in the order of the list.
    pub fn used(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.of(|used| used != Use::Copied)
    }

    /// The files that determine prompts and the ends of completions, except those that identify the model.
    pub fn prompt_files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.of(|used| used == Use::Prompts)
    }

    fn of(&self, which: impl Fn(Use) -> bool) -> impl Iterator<Item = (&str, &[u8])> {
        let listed = move |name: &str| use_of(name).is_some_and(&which);
        self.files.iter().filter(move |(name, _)| listed(name)).map(|(name, bytes)| (&**name, &**bytes))
    }

    /// The path of a file in the directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The bytes of a file without a byte order mark; `None` if the directory does not have the file.
    ///
    /// # Panics
    /// If the list does not mark the file as read, because then no hash would reveal a change of the file.
    pub(crate) fn get(&self, name: &str) -> Option<&[u8]> {
        let is_read = use_of(name).is_some_and(|used| used != Use::Copied);
        assert!(is_read, "{name} is read, but the list of model files does not mark it as read");
        self.files.iter().find(|(own, _)| own == name).map(|(_, bytes)| without_bom(bytes))
    }

    /// The JSON object in a file; `None` if the directory does not have the file.
    pub(crate) fn object(&self, name: &str) -> Result<Option<Map<String, Value>>> {
        let Some(bytes) = self.get(name) else { return Ok(None) };
        serde_json::from_slice(bytes)
            .map(Some)
            .map_err(|e| Error::file(self.path(name), format!("not a JSON object: {e}")))
    }

    /// The template files, each with the name of its template. As in transformers, a byte order mark is part of a
    /// template.
    pub(crate) fn templates(&self) -> impl Iterator<Item = Result<(&str, &str)>> {
        let template = |name| if name == CHAT_TEMPLATE { Some("default") } else { template_name(name) };
        self.files.iter().filter_map(move |(name, bytes)| {
            let text = std::str::from_utf8(bytes).map_err(|e| Error::file(self.path(name), format!("not UTF-8: {e}")));
            template(name).map(|template| text.map(|text| (template, text)))
        })
    }

    /// All files, with their names.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.files.iter().map(|(name, bytes)| (&**name, &**bytes))
    }
}

/// The names of the files of further templates in `dir`, in ascending order.
fn more_templates(dir: &Path) -> Result<Vec<String>> {
    let folder = dir.join(MORE_TEMPLATES);
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut names = Vec::new();
    for entry in disk::read_dir(&folder).map_err(|e| Error::io(&folder, e))? {
        names.extend(
            entry.file_name().to_str().map(|name| format!("{MORE_TEMPLATES}{name}")).filter(|name| is_listed(name)),
        );
    }
    Ok(names)
}
