//! Completions of earlier requests by prompt, from which draft tokens are guessed: when a prompt is sampled again, its
//! completion is often similar.
//!
//! For each prompt the longest completion of its last group is kept, since the slowest completions of a generation are
//! the longest. Memory is bounded. When it is full, new prompts are not added. An LRU policy would be wrong: prompts
//! repeat in epochs, so each would be evicted just before it is needed. A missing or wrong text costs only time.

use crate::drafts::BEFORE;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The maximum number of tokens that are kept: 4 MiB.
const TOKENS: usize = 1 << 20;
/// The memory overhead of a text besides its tokens, in units of tokens.
const BESIDE: usize = 24;
/// The first word of [`Earlier::to_bytes`]. It includes the version of the format.
const MAGIC: u32 = 0x3154_444c;

/// The texts by prompt. Each text consists of the last tokens of the prompt, followed by a completion.
#[derive(Debug, Default)]
pub(crate) struct Earlier {
    texts: BTreeMap<u64, Arc<[u32]>>,
    /// The memory of all texts, in units of tokens.
    tokens: usize,
}

impl Earlier {
    /// The maximum number of bytes of all texts.
    pub(crate) const BYTES: usize = TOKENS * size_of::<u32>();

    /// The text for this prompt, if any.
    pub(crate) fn get(&self, prompt: &[u32]) -> Option<&Arc<[u32]>> {
        self.texts.get(&key(prompt))
    }

    /// Keeps the longest of these completions for this prompt, in place of the earlier text, if there is room.
    pub(crate) fn remember<'a>(&mut self, prompt: &[u32], completions: impl Iterator<Item = &'a [u32]>) {
        let Some(longest) = completions.max_by_key(|ids| ids.len()) else { return };
        let last = &prompt[prompt.len().saturating_sub(BEFORE)..];
        self.keep(key(prompt), [last, longest].concat().into());
    }

    fn keep(&mut self, key: u64, text: Arc<[u32]>) {
        let takes = |text: &Arc<[u32]>| text.len() + BESIDE;
        let others = self.tokens - self.texts.get(&key).map_or(0, takes);
        if others + takes(&text) <= TOKENS {
            self.tokens = others + takes(&text);
            self.texts.insert(key, text);
        }
    }

    /// Serialises all texts, for a later process; empty if there are none.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        if self.texts.is_empty() {
            return Vec::new();
        }
        let mut words = vec![MAGIC];
        for (key, text) in &self.texts {
            words.extend([*key as u32, (key >> 32) as u32, text.len() as u32]);
            words.extend_from_slice(text);
        }
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Parses the output of [`to_bytes`](Self::to_bytes), up to the first corrupt text. Token ids must be below
    /// `vocab`.
    pub(crate) fn from_bytes(bytes: &[u8], vocab: usize) -> Earlier {
        let words: Vec<u32> = bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        let mut earlier = Earlier::default();
        let Some((&MAGIC, mut rest)) = words.split_first() else { return earlier };
        while let [low, high, len, after @ ..] = rest
            && let Some((text, others)) = after.split_at_checked(*len as usize)
        {
            if text.iter().all(|&id| (id as usize) < vocab) {
                earlier.keep(u64::from(*low) | u64::from(*high) << 32, text.into());
            }
            rest = others;
        }
        earlier
    }
}

/// The key of a prompt: FNV-1a of its token ids, which is the same in every process. If two prompts have the same key,
/// only guesses are affected.
fn key(prompt: &[u32]) -> u64 {
    prompt.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &id| (hash ^ u64::from(id)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(earlier: &Earlier, prompt: &[u32]) -> Option<Vec<u32>> {
        earlier.get(prompt).map(|text| text.to_vec())
    }

    #[test]
    fn the_longest_completion_of_the_last_group_is_remembered() {
        let mut earlier = Earlier::default();
        earlier.remember(&[1, 2], [&[3][..], &[4, 5], &[6]].into_iter());
        assert_eq!(kept(&earlier, &[1, 2]), Some(vec![1, 2, 4, 5]));
        earlier.remember(&[1, 2], [&[7][..]].into_iter());
        assert_eq!(kept(&earlier, &[1, 2]), Some(vec![1, 2, 7]));
        assert_eq!((kept(&earlier, &[2, 1]), earlier.tokens), (None, 3 + BESIDE));
        let long: Vec<u32> = (0..2 * BEFORE as u32).collect();
        earlier.remember(&long, [&[7][..]].into_iter());
        assert_eq!(
            kept(&earlier, &long).unwrap(),
            [&long[BEFORE..], &[7]].concat(),
            "only the end of the prompt is kept"
        );
    }

    #[test]
    fn a_text_is_dropped_if_memory_is_full() {
        let mut earlier = Earlier::default();
        let half = vec![1; TOKENS / 2 - 2 * BESIDE];
        for prompt in 0..3 {
            earlier.remember(&[prompt], [&half[..]].into_iter());
        }
        assert!(kept(&earlier, &[1]).is_some() && kept(&earlier, &[2]).is_none());
        // The new completion of a prompt replaces the earlier one.
        earlier.remember(&[0], [&[5][..]].into_iter());
        earlier.remember(&[2], [&half[..]].into_iter());
        assert_eq!(kept(&earlier, &[0]), Some(vec![0, 5]));
        assert!(kept(&earlier, &[2]).is_some() && earlier.tokens <= TOKENS);
        assert!(earlier.to_bytes().len() <= Earlier::BYTES);
    }

    #[test]
    fn only_intact_texts_are_restored() {
        let mut earlier = Earlier::default();
        for prompt in 0..4 {
            earlier.remember(&[prompt], [&[prompt + 10, 2][..]].into_iter());
        }
        let bytes = earlier.to_bytes();
        let read = |bytes: &[u8]| Earlier::from_bytes(bytes, 100);
        assert_eq!(read(&bytes).texts, earlier.texts);
        assert_eq!(read(&bytes).to_bytes(), bytes);
        assert_eq!(read(&bytes).tokens, earlier.tokens);
        assert_eq!(read(&bytes[..bytes.len() - 1]).texts.len(), 3, "a truncated file");
        assert!(read(&[]).texts.is_empty() && read(b"something else").texts.is_empty());
        // A token id outside the vocabulary would index beyond the embedding.
        assert_eq!(Earlier::from_bytes(&bytes, 13).texts.len(), 3);
    }

    #[test]
    fn a_text_that_exactly_fits_is_kept() {
        for (more, is_kept) in [(0, true), (1, false)] {
            let mut earlier = Earlier::default();
            earlier.remember(&[1], [&[2][..]].into_iter());
            let room = TOKENS - (2 + BESIDE) - BESIDE - 1;
            earlier.remember(&[3], [&vec![4; room + more][..]].into_iter());
            assert_eq!((kept(&earlier, &[3]).is_some(), kept(&earlier, &[1]).is_some()), (is_kept, true));
            assert_eq!(earlier.tokens, if is_kept { TOKENS } else { 2 + BESIDE });
        }
        let mut earlier = Earlier::default();
        earlier.remember(&[1], std::iter::empty());
        assert!(earlier.texts.is_empty() && earlier.to_bytes().is_empty());
        let prompt: Vec<u32> = (0..BEFORE as u32).collect();
        earlier.remember(&prompt, [&[7][..], &[8]].into_iter());
        assert_eq!(
            kept(&earlier, &prompt).unwrap(),
            [&prompt[..], &[8]].concat(),
            "the last of equally long completions is kept"
        );
    }

    #[test]
    fn prompt_keys_are_the_same_in_every_process() {
        assert_eq!(key(&[]), 0xcbf2_9ce4_8422_2325);
        assert_eq!(key(&[u32::from(b'a')]), 0xaf63_dc4c_8601_ec8c, "FNV-1a of the letter a");
        let letters: Vec<u32> = b"foobar".iter().map(|&b| u32::from(b)).collect();
        assert_eq!(key(&letters), 0x8594_4171_f739_67e8);
        let mut earlier = Earlier::default();
        earlier.remember(&[5], [&[6, 7][..]].into_iter());
        let key = key(&[5]);
        let words = [MAGIC, key as u32, (key >> 32) as u32, 3, 5, 6, 7];
        assert_eq!(earlier.to_bytes(), words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>());
        assert_eq!(
            Earlier::from_bytes(&earlier.to_bytes(), 7).texts.len(),
            0,
            "token ids outside the vocabulary are refused"
        );
        assert_eq!(Earlier::from_bytes(&earlier.to_bytes(), 8).texts, earlier.texts);
    }
}
