//! Bytes that workers on other machines need, over plain HTTP: weights and small files, each a *blob* with a name. A
//! blob is cut into blocks, each with its hash, so that a cut connection costs a block and a changed bit is seen.
//!
//! ```text
//! GET /blobs/NAME/head      {"bytes", "block", "hashes", "about"}, JSON
//! GET /blobs/NAME/data      bytes, with `Range: bytes=FROM-TO`: a block at most
//! Authorization: Bearer …   of both, where the server has a token
//! ```
//!
//! A name has one content as long as it is there. What is gone is 404: the caller asks for something newer. Nothing
//! here knows what the bytes are. It is not encrypted: between machines that do not trust their network it belongs into
//! a tunnel.
//!
//! Every host fetches from the server here. Where hosts pass blocks on to each other, or fetch what has changed alone,
//! that is another server of the same blobs: [`Source`] and [`Client`] stay.

mod client;
mod server;

#[cfg(test)]
mod tests;

pub use client::Client;
pub use server::Server;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use twox_hash::XxHash3_128;

/// Bytes of a block.
pub const BLOCK: u64 = 4 << 20;

/// What a server serves.
pub trait Source: Send + Sync + 'static {
    /// The length of a blob, and what else its readers must know; none if it is not there (any more).
    fn about(&self, name: &str) -> std::io::Result<Option<(u64, serde_json::Value)>>;
    /// Reads from `at` on; false if it is not there any more.
    fn read(&self, name: &str, at: u64, out: &mut [u8]) -> std::io::Result<bool>;
}

/// What is known of a blob before its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Its length.
    pub bytes: u64,
    /// Bytes of each block but the last.
    pub block: u64,
    /// XXH3-128 of each block, in hexadecimal.
    pub hashes: Vec<String>,
    /// What the source says of it. Opaque here.
    pub about: serde_json::Value,
}

impl Head {
    /// Where a block lies.
    pub fn range(&self, block: usize) -> std::ops::Range<u64> {
        let from = block as u64 * self.block;
        from..from.saturating_add(self.block).min(self.bytes)
    }

    /// Numbers that fit each other.
    fn is_sound(&self) -> bool {
        (1..=BLOCK).contains(&self.block) && self.hashes.len() as u64 == self.bytes.div_ceil(self.block)
    }
}

fn hash(block: &[u8]) -> String {
    format!("{:032x}", XxHash3_128::oneshot(block))
}

/// What the bearer of a secret shows: not the secret, which opens more than this.
pub fn bearer(secret: &str) -> String {
    let digest = Sha256::new().chain_update(b"lockstep blobs\0").chain_update(secret).finalize();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
