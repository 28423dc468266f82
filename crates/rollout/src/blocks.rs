//! Pages of the pool: who holds them, which are free, and which free ones still have a content that can be used again.
//! Knows no tensor.

use crate::prefix::PrefixCache;

/// The pages of a pool, by number.
#[derive(Debug)]
pub(crate) struct BlockPool {
    blocks: usize,
    /// Pages without a holder and without a cached content, the next one last; behind them come those that never had a
    /// holder.
    free: Vec<u32>,
    /// Holders of each page that ever had one.
    holders: Vec<u32>,
    /// What pages contain. A page that is in it and has no holder is free, too, but taken only after all others.
    pub(crate) prefix: PrefixCache,
}

impl BlockPool {
    pub(crate) fn new(blocks: usize, prefix_caching: bool) -> BlockPool {
        let prefix = PrefixCache::new(if prefix_caching { blocks } else { 0 });
        let mut pool = BlockPool { blocks, free: Vec::new(), holders: Vec::new(), prefix };
        // So that a step allocates nothing; room that cannot be had now is not needed, perhaps.
        let _ = pool.free.try_reserve_exact(blocks).and_then(|()| pool.holders.try_reserve_exact(blocks));
        pool
    }
    /// Pages that nobody holds.
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.prefix.unheld() + self.blocks - self.holders.len()
    }
    /// A page with one holder and no content.
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
    /// One more holder of `block`, which has holders or a cached content.
    pub(crate) fn share(&mut self, block: u32) -> u32 {
        let holders = &mut self.holders[block as usize];
        if *holders == 0 {
            self.prefix.hold(block);
        }
        *holders += 1;
        block
    }
    /// One holder less of each. The last pages of a sequence are used again first: what follows a prefix is of less use
    /// than the prefix.
    pub(crate) fn release(&mut self, blocks: &mut Vec<u32>) {
        for block in blocks.drain(..).rev() {
            let holders = &mut self.holders[block as usize];
            debug_assert!(*holders > 0, "page {block} has no holder");
            *holders -= 1;
            if *holders == 0 && !self.prefix.release(block) {
                self.free.push(block);
            }
        }
    }
    /// Forgets what pages contain.
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
    fn a_shared_page_is_free_when_its_last_holder_leaves() {
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
}
