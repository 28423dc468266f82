//! Serves bytes that workers on other machines need, over plain HTTP. Weights and small files are *blobs*, each with a
//! name. A blob is divided into blocks. Each block has a hash, so that a lost connection costs only one block and
//! changed bits are detected.
//!
//! ```text
//! GET /blobs/NAME/head      {"bytes", "block", "hashes", "about"}, JSON
//! GET /blobs/NAME/data      bytes; `Range: bytes=FROM-TO` selects at most one block
//! Authorization: Bearer …   for both, if the server has a token
//! ```
//!
//! A name always refers to the same bytes. A request for a deleted blob gets 404, and the client then requests a newer
//! blob. This module does not interpret the bytes. Nothing is encrypted: on a network that is not trusted, use a
//! tunnel.
//!
//! Every host fetches from this one server. Passing blocks from host to host, or fetching only changes, would need
//! another server for the same blobs; [`Source`] and [`Client`] would not change.

mod client;
mod server;

#[cfg(test)]
mod tests;

pub use client::Client;
pub use server::Server;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use twox_hash::XxHash3_128;

/// Bytes in a block.
pub const BLOCK: u64 = 4 << 20;

/// The blobs that a server serves.
pub trait Source: Send + Sync + 'static {
    /// The length of a blob, and the JSON value for [`Head::about`]; `None` if the blob does not exist.
    fn about(&self, name: &str) -> std::io::Result<Option<(u64, serde_json::Value)>>;
    /// Fills `out` with the bytes of a blob from the offset `at` on. Returns false if the blob no longer exists.
    fn read(&self, name: &str, at: u64, out: &mut [u8]) -> std::io::Result<bool>;
}

/// The head of a blob: its length and the hashes of its blocks. A client fetches the head before the bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The length of the blob in bytes.
    pub bytes: u64,
    /// Bytes in each block except the last.
    pub block: u64,
    /// The XXH3-128 hash of each block, in hexadecimal.
    pub hashes: Vec<String>,
    /// The JSON value of [`Source::about`]. This module does not read it.
    pub about: serde_json::Value,
}

impl Head {
    /// The byte range of a block in the blob.
    pub fn range(&self, block: usize) -> std::ops::Range<u64> {
        let from = block as u64 * self.block;
        from..from.saturating_add(self.block).min(self.bytes)
    }

    /// Whether the numbers of the head are consistent.
    fn is_sound(&self) -> bool {
        (1..=BLOCK).contains(&self.block) && self.hashes.len() as u64 == self.bytes.div_ceil(self.block)
    }
}

fn hash(block: &[u8]) -> String {
    format!("{:032x}", XxHash3_128::oneshot(block))
}

/// The bearer token for a secret: a hash of it, because the secret itself gives access to more than this server.
pub fn bearer(secret: &str) -> String {
    let digest = Sha256::new().chain_update(b"lockstep blobs\0").chain_update(secret).finalize();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
