//! The header of a slot of shared memory, on its first page.

use super::SlotOptions;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileExt;
use twox_hash::XxHash3_64;

/// Bytes of the header. The description of the layout follows it.
pub(super) const BYTES: usize = 128;
/// The value of [`Contents::number`] while the slot is being written.
pub(super) const WRITING: u64 = u64::MAX;
/// The first bytes of a slot. The last of them is the version of the format.
const MAGIC: [u8; 8] = *b"LSSLOT\0\x01";
const HUGE_PAGE: usize = 1 << 21;
const PAGE: usize = 1 << 12;

/// The contents of a slot of shared memory: the identity of the weights, and their checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The number of the generation batch for which the weights were published.
    pub number: u64,
    /// Number of updates applied to the weights.
    pub version: u64,
    /// The weights' lineage, which identifies the model, data, settings and batches from which they were trained.
    pub lineage: [u8; 16],
    /// XXH3-64 of all bytes of the weights, if the writer computed it.
    pub checksum: Option<u64>,
}

/// The part of the header that never changes.
#[derive(Debug)]
pub(super) struct Head {
    /// Offset of the first allocation.
    pub data: usize,
    pub bytes: usize,
    pub run: [u8; 16],
    pub layout: String,
}

impl Head {
    pub fn new(options: &SlotOptions<'_>) -> Head {
        let page = if options.bytes >= HUGE_PAGE { HUGE_PAGE } else { PAGE };
        let data = (BYTES + options.layout.len()).next_multiple_of(page);
        Head { data, bytes: options.bytes, run: options.run, layout: options.layout.to_owned() }
    }

    pub fn encode(&self, contents: &Contents) -> [u8; BYTES] {
        let mut out = [0; BYTES];
        out[..8].copy_from_slice(&MAGIC);
        let word = |x: usize| (x as u64).to_le_bytes();
        let checksum = contents.checksum.unwrap_or(0).to_le_bytes();
        let words = [word(self.data), word(self.bytes), word(self.layout.len()), self.layout_hash().to_le_bytes()];
        out[8..40].copy_from_slice(words.as_flattened());
        out[40..56].copy_from_slice(&self.run);
        out[56..72].copy_from_slice(&contents.lineage);
        out[72..80].copy_from_slice(&contents.number.to_le_bytes());
        out[80..88].copy_from_slice(&contents.version.to_le_bytes());
        out[88..96].copy_from_slice(&checksum);
        out[96] = contents.checksum.is_some().into();
        let sum = XxHash3_64::oneshot(&out[..120]).to_le_bytes();
        out[120..].copy_from_slice(&sum);
        out
    }

    /// Reads the constant part of the header, and the current contents of the slot.
    pub fn read(file: &std::fs::File) -> Result<(Head, Contents)> {
        let (header, contents) = read(file)?;
        let word = |at: usize| usize::try_from(number(&header, at)).map_err(invalid);
        let (data, bytes, length) = (word(8)?, word(16)?, word(24)?);
        let end = data.checked_add(bytes).ok_or_else(|| invalid("the sizes in the header are too large"))?;
        if length > data.saturating_sub(BYTES) || !data.is_multiple_of(PAGE) || end as u64 > file.metadata()?.len() {
            return Err(invalid("the file is shorter than its header says"));
        }
        let mut layout = vec![0; length];
        file.read_exact_at(&mut layout, BYTES as u64)?;
        let head = Head {
            data,
            bytes,
            run: header[40..56].try_into().map_err(invalid)?,
            layout: String::from_utf8(layout).map_err(invalid)?,
        };
        if head.layout_hash() != number(&header, 32) {
            return Err(invalid("the layout does not match the hash in the header"));
        }
        Ok((head, contents))
    }

    /// A sentence that names the first line in which the slot's description differs from `layout`, if it does.
    pub fn expect_layout(&self, layout: &str) -> std::result::Result<(), String> {
        let theirs = &self.layout;
        if theirs == layout {
            return Ok(());
        }
        let hash = |layout: &str| XxHash3_64::oneshot(layout.as_bytes());
        let (mut own, mut other) = (layout.lines(), theirs.lines());
        let (own, other) = loop {
            match (own.next(), other.next()) {
                (a, b) if a != b => break (a.unwrap_or("nothing"), b.unwrap_or("nothing")),
                (None, None) => break ("", ""),
                _ => {}
            }
        };
        Err(format!(
            "the weights have layout {:016x}, expected {:016x}; the first difference: `{other}`, \
             expected `{own}`. Reader and writer need the same model, dtype and program",
            hash(theirs),
            hash(layout)
        ))
    }

    pub fn layout_hash(&self) -> u64 {
        XxHash3_64::oneshot(self.layout.as_bytes())
    }
}

/// Reads the header and the current contents of a slot. The caller holds a lock, so that neither changes during the
/// read.
pub(super) fn read(file: &std::fs::File) -> Result<([u8; BYTES], Contents)> {
    let mut header = [0; BYTES];
    file.read_exact_at(&mut header, 0)?;
    if header[..8] != MAGIC {
        return Err(invalid("not a weight slot of this version of Lockstep"));
    }
    if XxHash3_64::oneshot(&header[..120]) != number(&header, 120) {
        return Err(invalid("the header does not match its checksum"));
    }
    let contents = Contents {
        number: number(&header, 72),
        version: number(&header, 80),
        lineage: header[56..72].try_into().map_err(invalid)?,
        checksum: (header[96] == 1).then(|| number(&header, 88)),
    };
    Ok((header, contents))
}

fn number(header: &[u8], at: usize) -> u64 {
    header[at..at + 8].iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

fn invalid(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::InvalidData, why)
}
