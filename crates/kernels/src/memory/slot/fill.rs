//! Fills a slot of shared memory with bytes from elsewhere, such as a copy of another machine's slot.

use super::{Contents, Result, SlotOptions, SlotWriter};
use std::path::Path;

/// A slot of shared memory that is filled with raw bytes, one range after another. This process creates no tensors in
/// it; readers find the tensors by the slot's layout.
pub struct SlotFiller(SlotWriter);

impl SlotFiller {
    /// Creates a slot of zeros, to be filled.
    pub fn create(options: SlotOptions<'_>) -> Result<SlotFiller> {
        Ok(SlotFiller(SlotWriter::create(options)?))
    }

    /// The path that readers open.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Takes the slot's exclusive lock, unless a reader pins the slot. Returns whether the slot may be filled now.
    pub fn try_lock(&mut self) -> Result<bool> {
        self.0.try_lock()
    }

    /// Writes `bytes` at offset `at` of the slot's data.
    pub fn write_at(&mut self, at: usize, bytes: &[u8]) -> Result<()> {
        let writer = &self.0.0;
        if !Self::is_locked(&self.0) {
            return Err(writer.place.error("the slot must be locked before it is filled".into()));
        }
        if at.checked_add(bytes.len()).is_none_or(|end| end > writer.head.bytes) {
            let message = format!(
                "the slot has {} bytes, so {} bytes from offset {at} do not fit",
                writer.head.bytes,
                bytes.len()
            );
            return Err(writer.place.error(message));
        }
        // SAFETY: the range lies inside the mapping. No other code writes or references these bytes: this value owns
        // the only handle of the writer and gives out none of its memory, and readers have no pin while the exclusive
        // lock is held. `bytes` does not overlap the slot, since references to a slot require a pin.
        unsafe {
            let to = writer.map.as_mut_ptr().add(writer.head.data + at);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        Ok(())
    }

    /// Records `contents` in the header and releases the exclusive lock, so that others can read the slot.
    pub fn publish(&mut self, contents: Contents) -> Result<()> {
        self.0.publish_buffers(&[], contents, contents.checksum.is_some())
    }

    fn is_locked(writer: &SlotWriter) -> bool {
        writer.0.locked.load(std::sync::atomic::Ordering::SeqCst)
    }
}
