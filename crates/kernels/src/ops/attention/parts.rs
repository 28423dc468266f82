//! Splits the list of KV-cache writes (one slot of a KV-cache page for each token) into parts, one for each task of the
//! thread pool.

use super::BLOCK;
use std::ops::Range;

/// The list of KV-cache writes, split into consecutive parts that have no KV-cache page in common. Consecutive tokens
/// stay in one part, so that a thread mostly writes the keys and values of rows that it has just computed. The split
/// points are computed when needed and not stored in a list, because every layer of a decode step creates a new
/// `Parts`.
#[derive(Clone, Copy)]
pub(super) struct Parts<'a> {
    slots: &'a [u32],
    count: usize,
}

impl<'a> Parts<'a> {
    /// Splits the writes into about `count` parts. There is only one part if the writes to some page are not
    /// consecutive in the list.
    pub fn new(slots: &'a [u32], count: usize) -> Parts<'a> {
        let whole = Parts { slots, count: 1 };
        if count < 2 {
            return whole;
        }
        // A set of bits records the pages seen so far. Pages that share a bit are treated as one page. The list may
        // then become a single part, which is slower but correct.
        const BITS: usize = 1 << 16;
        let mut seen = [0u64; BITS / 64];
        for i in (0..slots.len()).filter(|&i| whole.begins_page(i)) {
            let bit = slots[i] as usize / BLOCK % BITS;
            if seen[bit / 64] >> (bit % 64) & 1 == 1 {
                return whole;
            }
            seen[bit / 64] |= 1 << (bit % 64);
        }
        Parts { slots, count }
    }

    fn begins_page(&self, i: usize) -> bool {
        i == 0 || self.slots[i] as usize / BLOCK != self.slots[i - 1] as usize / BLOCK
    }

    /// Index in the list where part `part` begins: the first write to a new page at or after the even split point.
    fn cut(&self, part: usize) -> usize {
        let end = self.slots.len();
        (part * end / self.count..end).find(|&i| self.begins_page(i)).unwrap_or(end)
    }

    /// Number of parts. Some of them may be empty.
    pub fn count(&self) -> usize {
        self.count
    }

    pub fn writes(&self, part: usize) -> Range<usize> {
        self.cut(part)..self.cut(part + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(slots: &[u32], count: usize) -> Vec<Range<usize>> {
        let parts = Parts::new(slots, count);
        (0..parts.count()).map(|i| parts.writes(i)).filter(|part| !part.is_empty()).collect()
    }

    #[test]
    fn parts_share_no_page() {
        let whole = |len| std::iter::once(0..len).collect::<Vec<_>>();
        // Four sequences in a decode step.
        let slots = [3 * 64 + 5, 64 + 5, 7 * 64 + 9, 5];
        assert_eq!(parts(&slots, 2), [0..2, 2..4]);
        assert_eq!(parts(&slots, 8), [0..1, 1..2, 2..3, 3..4]);
        assert_eq!(parts(&slots, 1), whole(4));
        // Three pages of a prompt. The last page is partly filled.
        let slots: Vec<u32> = (64..64 + 140).collect();
        assert_eq!(parts(&slots, 4), [0..64, 64..128, 128..140]);
        // In the first case a page appears twice, in the second two pages share a bit.
        assert_eq!(parts(&[5, 70, 6], 2), whole(3));
        assert_eq!(parts(&[5, (1 << 16) * 64], 2), whole(2));
        assert_eq!(parts(&[], 4), []);
    }
}
