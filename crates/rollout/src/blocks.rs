//! Allocates the pages of the KV cache. Tracks how many sequences use each page, which pages are free, and which free
//! pages still have contents that can be reused. This file does not use tensors.

use crate::prefix::PrefixCache;

/// The allocator of KV-cache pages. A page is identified by its index in the pool.
#[derive(Debug)]
pub(crate) struct BlockPool {
    blocks: usize,
    /// Pages that were used, are free again and have no cached contents. The last one is taken next. Pages that were
    /// never used are not listed here, and are taken once this list is empty.
    free: Vec<u32>,
    /// The number of sequences that use each page, for all pages that have been used so far.
    holders: Vec<u32>,
    /// The cached contents of pages. A cached page that no sequence uses is also free, but is taken only after all
    /// other free pages.
    pub(crate) prefix: PrefixCache,
}

impl BlockPool {
    pub(crate) fn new(blocks: usize, prefix_caching: bool) -> BlockPool {
        let prefix = PrefixCache::new(if prefix_caching { blocks } else { 0 });
        let mut pool = BlockPool { blocks, free: Vec::new(), holders: Vec::new(), prefix };
        // Reserve the lists now, so that a step allocates nothing. A failure is ignored, because the capacity may never
        // be needed.
        let _ = pool.free.try_reserve_exact(blocks).and_then(|()| pool.holders.try_reserve_exact(blocks));
        pool
    }
    /// The number of pages that no sequence uses.
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.prefix.unheld() + self.blocks - self.holders.len()
    }
    /// Takes a free page for one sequence, and drops its cached contents. `None` if all pages are in use.
    pub(crate) fn take(&mut self) -> Option<u32> {
        if let Some(block) = self.free.pop() {
            self.holders[block as usize] = 1;
            return Some(block);
        }
        if self.holders.len() < self.blocks {
            self.holders.push(1);
            return Some(self.holders.len() as u32 - 1);
        }
        let block = self.prefix.evict()?;
        self.holders[block as usize] = 1;
        Some(block)
    }
    /// Counts one more user of the page `block`, which must be in use or cached. Returns `block`.
    pub(crate) fn share(&mut self, block: u32) -> u32 {
        let holders = &mut self.holders[block as usize];
        if *holders == 0 {
            self.prefix.hold(block);
        }
        *holders += 1;
        block
    }
    /// Removes one user of each of these pages, and empties the list. The last pages of a sequence are reused first,
    /// since the end of a text is less likely to be needed again than its beginning.
    pub(crate) fn release(&mut self, blocks: &mut Vec<u32>) {
        for block in blocks.drain(..).rev() {
            let holders = &mut self.holders[block as usize];
            debug_assert!(*holders > 0, "page {block} is not in use");
            *holders -= 1;
            if *holders == 0 && !self.prefix.release(block) {
                self.free.push(block);
            }
        }
    }
    /// Drops the cached contents of all pages.
    pub(crate) fn forget(&mut self) {
        let BlockPool { prefix, free, .. } = self;
        while let Some(block) = prefix.evict() {
            free.push(block);
        }
        prefix.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_page_is_free_after_its_last_user_releases_it() {
        let mut pool = BlockPool::new(2, false);
        let block = pool.take().unwrap();
        let (mut a, mut b) = (vec![block], vec![pool.share(block)]);
        pool.release(&mut a);
        assert_eq!(pool.available(), 1);
        pool.release(&mut b);
        assert_eq!(pool.available(), 2);
        assert!(a.is_empty() && b.is_empty());
        assert!(pool.take().is_some() && pool.take().is_some() && pool.take().is_none());
    }

    #[test]
    fn cached_pages_are_taken_last_and_stay_cached_until_then() {
        use crate::models::ModelVersion;
        use crate::prefix::ROOT;
        use model::Updates;
        let model = ModelVersion { base: Updates(0), adapter: None };
        let tokens = |page: u32| [page; model::kv::BLOCK];
        let mut pool = BlockPool::new(4, true);
        let mut pages: Vec<u32> = (0..3).map(|_| pool.take().unwrap()).collect();
        for &page in &pages[..2] {
            pool.prefix.insert(page, ROOT, model, &tokens(page));
        }
        let mut other = vec![pool.share(1)];
        pool.release(&mut pages);
        assert_eq!(pool.available(), 3, "page 1 is still in use");
        let find = |pool: &BlockPool, page: u32| pool.prefix.find(ROOT, model, &tokens(page)).map(|found| found.0);
        assert_eq!((find(&pool, 0), find(&pool, 1), find(&pool, 2)), (Some(0), Some(1), None));
        // A cached page is not free while a sequence uses it.
        let mut found = vec![pool.share(0)];
        assert_eq!((pool.available(), pool.holders[0]), (2, 1));
        pool.release(&mut found);
        assert_eq!((pool.take(), pool.take(), pool.take(), pool.take()), (Some(2), Some(3), Some(0), None));
        assert_eq!((find(&pool, 0), find(&pool, 1)), (None, Some(1)), "taking page 0 must drop its cached contents");
        pool.release(&mut vec![0, 2]);
        pool.release(&mut other);
        assert_eq!(pool.available(), 3);
        // After `forget` no page is found in the cache, not even a page in use. The number of free pages is unchanged.
        pool.prefix.insert(3, ROOT, model, &tokens(3));
        pool.forget();
        assert_eq!((find(&pool, 1), find(&pool, 3), pool.available()), (None, None, 3));
        pool.release(&mut vec![3]);
        assert_eq!((pool.available(), pool.prefix.unheld()), (4, 0));
    }
}
