//! Opens, reads, writes, deletes and copies files. It does not know what is in a file.
//!
//! A run directory may come from an untrusted source: an archive that a user downloads. So three rules hold for
//! every file that Lockstep opens:
//!
//! 1. **No links inside a run.** Whoever opens a run calls [`no_links_below`] with its directory. From then on this
//!    process does not follow a symbolic link below that directory, neither to read nor to write, delete, rename or
//!    copy. Each component of a path is opened relative to the one above it, so that a link that appears there in
//!    between is refused too. The run directory itself may be reached through links, and so may models and datasets
//!    outside of it: the files of a Hugging Face cache are links.
//! 2. **Regular files only.** A named pipe would make its reader wait for ever, and a device may never end.
//! 3. **A limit for each kind of file** ([`most`]). A file is not read into memory if it is longer, or if it has more
//!    than [`MOST_HOLES`] bytes that are not on the disk: a sparse file of a few bytes may claim terabytes.
//!
//! Read first: `place` (the rule for links), `file` (opening and reading), `directory` (what changes names).

mod directory;
mod file;
mod place;

pub use directory::{
    Entry, copy, create_dir_all, create_private_dir_all, hard_link, open_dir, read_dir, remove_dir_all, remove_file,
    rename, sync_dir,
};
pub use file::{MOST_HOLES, Options, create, open, read, read_range, read_rest, read_to_string, refuse_holes, write};
pub use place::no_links_below;

/// How many bytes a file of each kind may have to be read into memory.
pub mod most {
    /// A file of settings, of a process's state, or of a lock.
    pub const STATE: u64 = 64 << 20;
    /// A tokenizer or the index of a model: those of the largest vocabularies have 35 MB.
    pub const TOKENIZER: u64 = 256 << 20;
    /// Groups of completions, answers of workers, and logs.
    pub const GROUPS: u64 = 4 << 30;
}

#[cfg(test)]
mod tests;
