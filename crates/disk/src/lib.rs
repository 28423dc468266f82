//! Opens, reads, writes, deletes and copies files. This crate does not interpret their content.
//!
//! A run directory may come from an untrusted source: an archive that a user downloads. So three rules hold for
//! every file that Lockstep opens:
//!
//! 1. **No links inside a run.** Code that opens a run first calls [`no_links_below`] with its directory. From then on
//!    no operation of this process follows a symbolic link below that directory. Each component of a path is opened
//!    relative to its parent, so that a link that is created during an operation is refused too. The path to the run
//!    directory may contain links, and so may paths of models and datasets outside of it: a Hugging Face cache consists
//!    of links.
//! 2. **Regular files only.** Reading a named pipe could block forever, and a device may never end.
//! 3. **A limit for each kind of file** ([`most`]). A file above the limit is not read into memory, nor is a file with
//!    more than [`MOST_HOLES`] bytes of holes: a sparse file that takes a few bytes on disk may have a length of
//!    terabytes.
//!
//! Read first: `place` (the rule for links), `file` (opening and reading), `directory` (creating, renaming and deleting
//! entries).

mod directory;
mod file;
mod place;

pub use directory::{
    Entry, copy, create_dir_all, create_private_dir_all, exchange, hard_link, open_dir, read_dir, remove_dir_all,
    remove_file, rename, sync_dir,
};
pub use file::{MOST_HOLES, Options, create, open, read, read_range, read_rest, read_to_string, refuse_holes, write};
pub use place::no_links_below;

/// The largest file of each kind, in bytes, that may be read into memory.
pub mod most {
    /// Settings, the state of a process, or a lock file.
    pub const STATE: u64 = 64 << 20;
    /// A tokenizer or the index of a model. The tokenizers with the largest vocabularies are about 35 MB.
    pub const TOKENIZER: u64 = 256 << 20;
    /// Groups of completions, results of workers, and logs.
    pub const GROUPS: u64 = 4 << 30;
}

#[cfg(test)]
mod tests;
