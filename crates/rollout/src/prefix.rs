//! The prefix cache finds full KV-cache pages by their contents, so that a request reuses the keys and values of a
//! prefix that another request has computed.
//!
//! The contents of a page depend on the weights that computed it and on all tokens up to its end. So the key of a page
//! consists of the node of the previous page (a number that represents all tokens so far, and is never reused for other
//! tokens), the version of the weights, and the page's own 64 tokens, which are compared as well as hashed. Pages that
//! no sequence uses wait in a queue in the order of their release, and are reused in that order.

use crate::models::ModelVersion;
use model::kv::BLOCK;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

/// A number that represents the contents of a page and of all pages before it. [`ROOT`] represents no pages.
pub(crate) type Node = u64;
pub(crate) const ROOT: Node = 0;
const NONE: u32 = u32::MAX;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    parent: Node,
    model: ModelVersion,
    tokens: [u32; BLOCK],
}

#[derive(Debug)]
struct Entry {
    key: Key,
    hash: u64,
    node: Node,
}

/// The cached contents of a page, and its neighbours in the queue of unused pages.
#[derive(Debug)]
struct Slot {
    entry: Option<Entry>,
    /// The pages that were released before and after this one, if it is in the queue.
    older: u32,
    newer: u32,
    waits: bool,
}

/// The map from contents to pages. A cache with room for 0 pages caches nothing.
#[derive(Debug)]
pub(crate) struct PrefixCache {
    slots: Vec<Slot>,
    /// Pages by the hash of their key. If two keys have the same hash, the first one is kept.
    pages: HashMap<u64, u32>,
    hasher: RandomState,
    last_node: Node,
    oldest: u32,
    newest: u32,
    unheld: usize,
}

impl PrefixCache {
    pub(crate) fn new(blocks: usize) -> PrefixCache {
        let slot = || Slot { entry: None, older: NONE, newer: NONE, waits: false };
        PrefixCache {
            slots: (0..blocks).map(|_| slot()).collect(),
            // Twice the number of pages: a table that is at most half full rehashes in place.
            pages: HashMap::with_capacity(2 * blocks),
            hasher: RandomState::new(),
            last_node: ROOT,
            oldest: NONE,
            newest: NONE,
            unheld: 0,
        }
    }
    pub(crate) fn is_on(&self) -> bool {
        !self.slots.is_empty()
    }
    /// The number of cached pages that no sequence uses.
    pub(crate) fn unheld(&self) -> usize {
        self.unheld
    }

    /// Finds the page with these tokens after the node `parent`, computed with `model`. Returns the page and its node.
    pub(crate) fn find(&self, parent: Node, model: ModelVersion, tokens: &[u32]) -> Option<(u32, Node)> {
        let key = self.key(parent, model, tokens)?;
        let &page = self.pages.get(&self.hasher.hash_one(&key))?;
        let entry = self.slots[page as usize].entry.as_ref()?;
        (entry.key == key).then_some((page, entry.node))
    }

    /// Caches the contents of `page`: these tokens after the node `parent`, computed with `model`. Returns the node of
    /// the contents. If another page has the same contents, this is the node of that page.
    pub(crate) fn insert(&mut self, page: u32, parent: Node, model: ModelVersion, tokens: &[u32]) -> Node {
        let Some(key) = self.key(parent, model, tokens) else { return ROOT };
        let hash = self.hasher.hash_one(&key);
        if let Some(&cached) = self.pages.get(&hash)
            && let Some(entry) = &self.slots[cached as usize].entry
            && entry.key == key
        {
            return entry.node;
        }
        self.last_node += 1;
        let node = self.last_node;
        // If another key has the same hash, that key keeps its entry. The new contents still get a node.
        if !self.pages.contains_key(&hash) && self.slots[page as usize].entry.is_none() {
            self.pages.insert(hash, page);
            self.slots[page as usize].entry = Some(Entry { key, hash, node });
        }
        node
    }

    /// Called when no sequence uses `page` any more. Returns whether the page is cached; a cached page joins the queue.
    pub(crate) fn release(&mut self, page: u32) -> bool {
        let newest = self.newest;
        let Some(slot) = self.slots.get_mut(page as usize).filter(|slot| slot.entry.is_some()) else { return false };
        (slot.older, slot.newer, slot.waits) = (newest, NONE, true);
        match self.slots.get_mut(newest as usize) {
            Some(before) => before.newer = page,
            None => self.oldest = page,
        }
        self.newest = page;
        self.unheld += 1;
        true
    }

    /// Removes `page` from the queue, because a sequence uses it again.
    pub(crate) fn hold(&mut self, page: u32) {
        let Slot { older, newer, waits, .. } = &mut self.slots[page as usize];
        assert!(std::mem::take(waits), "page {page} is already in use");
        let (older, newer) = (*older, *newer);
        match self.slots.get_mut(older as usize) {
            Some(before) => before.newer = newer,
            None => self.oldest = newer,
        }
        match self.slots.get_mut(newer as usize) {
            Some(behind) => behind.older = older,
            None => self.newest = older,
        }
        self.unheld -= 1;
    }

    /// Takes the page that has waited longest, and drops its cached contents.
    pub(crate) fn evict(&mut self) -> Option<u32> {
        let page = Some(self.oldest).filter(|&page| page != NONE)?;
        self.hold(page);
        self.forget(page);
        Some(page)
    }

    /// Drops all cached contents, including those of pages in use.
    pub(crate) fn clear(&mut self) {
        for page in 0..self.slots.len() as u32 {
            self.forget(page);
        }
    }

    fn forget(&mut self, page: u32) {
        if let Some(entry) = self.slots[page as usize].entry.take() {
            self.pages.remove(&entry.hash);
        }
    }

    fn key(&self, parent: Node, model: ModelVersion, tokens: &[u32]) -> Option<Key> {
        let tokens = tokens.try_into().ok().filter(|_| self.is_on())?;
        Some(Key { parent, model, tokens })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Updates;

    const MODEL: ModelVersion = ModelVersion { base: Updates(0), adapter: None };

    fn tokens(first: u32) -> [u32; BLOCK] {
        std::array::from_fn(|i| first + i as u32)
    }

    #[test]
    fn a_page_is_found_by_its_weights_and_all_tokens_up_to_its_end() {
        let mut cache = PrefixCache::new(4);
        let node = cache.insert(2, ROOT, MODEL, &tokens(0));
        assert_eq!(cache.find(ROOT, MODEL, &tokens(0)), Some((2, node)));
        let other = ModelVersion { base: Updates(1), adapter: None };
        assert_eq!(cache.find(ROOT, other, &tokens(0)), None);
        assert_eq!(cache.find(ROOT, MODEL, &tokens(1)), None);
        assert_eq!(cache.find(node, MODEL, &tokens(0)), None, "the same tokens after a different prefix");
        assert_eq!(cache.find(ROOT, MODEL, &tokens(0)[..BLOCK - 1]), None, "only full pages are found");
        assert_eq!(
            cache.insert(3, ROOT, MODEL, &tokens(0)),
            node,
            "a second page with the same contents gets the same node"
        );
        assert!(!cache.release(3) && cache.release(2));
    }

    #[test]
    fn the_least_recently_released_page_is_evicted_first() {
        let mut cache = PrefixCache::new(4);
        let nodes: Vec<Node> = (0..4).map(|page| cache.insert(page, ROOT, MODEL, &tokens(page))).collect();
        for page in [2, 0, 3, 1] {
            assert!(cache.release(page));
        }
        cache.hold(0);
        cache.hold(1);
        assert_eq!((cache.unheld(), cache.evict(), cache.evict(), cache.evict()), (2, Some(2), Some(3), None));
        assert_eq!(cache.find(ROOT, MODEL, &tokens(2)), None);
        assert_eq!(cache.find(ROOT, MODEL, &tokens(0)), Some((0, nodes[0])));
        assert!(cache.release(1) && cache.release(0));
        assert_eq!(cache.evict(), Some(1));
        let again = cache.insert(2, ROOT, MODEL, &tokens(2));
        assert!(!nodes.contains(&again), "a node is never reused: the children of the evicted page must not be found");
        cache.clear();
        assert_eq!(cache.find(ROOT, MODEL, &tokens(0)), None);
    }

    #[test]
    fn a_cache_without_room_caches_nothing() {
        let mut cache = PrefixCache::new(0);
        assert_eq!(cache.insert(0, ROOT, MODEL, &tokens(0)), ROOT);
        assert!(cache.find(ROOT, MODEL, &tokens(0)).is_none() && !cache.release(0) && cache.evict().is_none());
    }
}
