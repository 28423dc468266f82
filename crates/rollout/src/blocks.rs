//! Pages of the pool: which are free, and how many sequences hold each of the others. Knows no tensor.

/// The pages of a pool, by number.
#[derive(Debug)]
pub(crate) struct BlockPool {
    blocks: usize,
    /// Pages that were held once and are free, the next one last; behind them come those that never were.
    free: Vec<u32>,
    /// Holders of each page that was ever held.
    holders: Vec<u32>,
}

impl BlockPool {
    pub(crate) fn new(blocks: usize) -> BlockPool {
        let mut pool = BlockPool { blocks, free: Vec::new(), holders: Vec::new() };
        // So that a step allocates nothing; room that cannot be had now is not needed, perhaps.
        let _ = pool.free.try_reserve_exact(blocks).and_then(|()| pool.holders.try_reserve_exact(blocks));
        pool
    }
    /// Free pages.
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.blocks - self.holders.len()
    }
    /// A page with one holder.
    pub(crate) fn take(&mut self) -> Option<u32> {
        if let Some(block) = self.free.pop() {
            self.holders[block as usize] = 1;
            return Some(block);
        }
        (self.holders.len() < self.blocks).then(|| {
            self.holders.push(1);
            self.holders.len() as u32 - 1
        })
    }
    /// One more holder of `block`.
    pub(crate) fn share(&mut self, block: u32) -> u32 {
        debug_assert!(self.holders[block as usize] > 0);
        self.holders[block as usize] += 1;
        block
    }
    /// One holder less of each; pages that nobody holds are free again.
    pub(crate) fn release(&mut self, blocks: &mut Vec<u32>) {
        for block in blocks.drain(..) {
            let holders = &mut self.holders[block as usize];
            *holders -= 1;
            if *holders == 0 {
                self.free.push(block);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_page_is_free_when_its_last_holder_leaves() {
        let mut pool = BlockPool::new(2);
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
