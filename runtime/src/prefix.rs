//! The index of what a sequence leaves behind for those that begin alike: a tree of blocks of
//! [`PAGE`](plimsoll_kernels::step::PAGE) tokens.
//!
//! A block is found by the block before it and its tokens, compared as they are: there is no hash that two prefixes
//! could share. It stands for one page of full attention (where the model has any), which many slots may read and
//! nobody writes any more. A block that no slot holds is idle: its page is as good as free, and the block whose last
//! use is longest ago gives it up first. A block is used whenever one after it is, so the end of a prefix always goes
//! before its beginning.
//!
//! What no page holds (recurrent states, the content of windows) is kept in the plan's snapshots. A block may own one:
//! it is what a slot held right after the block's last token. Of a plan that needs them, only prefixes that end at a
//! snapshot are of use, and blocks that lead to none are dropped.

use plimsoll_kernels::step::PAGE;
use std::collections::{BTreeMap, HashMap};

mod check;

/// The tokens of a block.
pub(crate) type Tokens = [u32; PAGE as usize];

/// A block. Never given twice, so one that is gone cannot be taken for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BlockId(u64);

/// What the first blocks come after.
pub(crate) const ROOT: BlockId = BlockId(0);

#[derive(Debug)]
struct Block {
    parent: BlockId,
    ids: Tokens,
    page: Option<u32>,
    /// Slots that hold it.
    holders: u32,
    /// Blocks after it.
    children: u32,
    snapshot: Option<u32>,
    /// When it was used last; of an idle block also its key among the idle.
    used: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Prefix {
    blocks: HashMap<BlockId, Block>,
    after: HashMap<(BlockId, Tokens), BlockId>,
    /// Blocks that no slot holds, by their last use.
    idle: BTreeMap<u64, BlockId>,
    /// Whose each snapshot is.
    snapshots: Vec<Option<BlockId>>,
    needs_snapshots: bool,
    last_id: u64,
    clock: u64,
}

impl Prefix {
    /// An empty index beside so many snapshots.
    pub fn new(needs_snapshots: bool, snapshots: u32) -> Self {
        let snapshots = vec![None; if needs_snapshots { snapshots as usize } else { 0 }];
        Self { needs_snapshots, snapshots, ..Self::default() }
    }

    /// Whether pages alone are not enough to go on from.
    pub fn needs_snapshots(&self) -> bool {
        self.needs_snapshots
    }

    /// Whether anything can ever be found here.
    pub fn is_of_use(&self) -> bool {
        !self.needs_snapshots || !self.snapshots.is_empty()
    }

    /// The blocks that are known of the beginning of `tokens`.
    pub fn find(&self, tokens: &[u32]) -> Vec<BlockId> {
        let mut found = Vec::new();
        for ids in tokens.as_chunks::<{ PAGE as usize }>().0 {
            match self.after(found.last().copied().unwrap_or(ROOT), ids) {
                Some(block) => found.push(block),
                None => break,
            }
        }
        found
    }

    /// The block of these tokens after another.
    pub fn after(&self, parent: BlockId, ids: &Tokens) -> Option<BlockId> {
        self.after.get(&(parent, *ids)).copied()
    }

    /// How many of these blocks a sequence can go on from: all, or as many as end at a snapshot.
    pub fn usable(&self, chain: &[BlockId]) -> usize {
        if !self.needs_snapshots {
            return chain.len();
        }
        chain.iter().rposition(|&block| self.snapshot(block).is_some()).map_or(0, |last| last + 1)
    }

    /// Adds a block that one slot holds.
    pub fn insert(&mut self, parent: BlockId, ids: Tokens, page: Option<u32>) -> BlockId {
        self.last_id += 1;
        let id = BlockId(self.last_id);
        let used = self.tick();
        let block = Block { parent, ids, page, holders: 1, children: 0, snapshot: None, used };
        self.blocks.insert(id, block);
        self.after.insert((parent, ids), id);
        if let Some(parent) = self.blocks.get_mut(&parent) {
            parent.children += 1;
        }
        id
    }

    /// One slot more holds a block.
    pub fn hold(&mut self, id: BlockId) {
        let now = self.tick();
        if let Some(block) = self.blocks.get_mut(&id) {
            if block.holders == 0 {
                self.idle.remove(&block.used);
            }
            block.holders += 1;
            block.used = now;
        }
    }

    /// A slot lets go of the blocks it held, first to last. Their uses are in the order in which they may go.
    pub fn let_go(&mut self, chain: &[BlockId]) {
        for &id in chain.iter().rev() {
            let now = self.tick();
            if let Some(block) = self.blocks.get_mut(&id) {
                block.holders = block.holders.saturating_sub(1);
                block.used = now;
                if block.holders == 0 {
                    self.idle.insert(now, id);
                }
            }
        }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Blocks that nobody holds.
    pub fn idle(&self) -> usize {
        self.idle.len()
    }

    /// Of these blocks, how many nobody holds.
    pub fn idle_of(&self, chain: &[BlockId]) -> usize {
        chain.iter().filter(|id| self.is_idle(**id)).count()
    }

    /// Whether nobody holds a block.
    pub fn is_idle(&self, id: BlockId) -> bool {
        self.blocks.get(&id).is_some_and(|block| block.holders == 0)
    }

    /// The page of a block.
    pub fn page(&self, id: BlockId) -> Option<u32> {
        self.blocks.get(&id).and_then(|block| block.page)
    }

    /// The block before a block.
    pub fn parent(&self, id: BlockId) -> Option<BlockId> {
        self.blocks.get(&id).map(|block| block.parent)
    }

    /// The idle block that goes first: one with no block after it.
    pub fn oldest(&self) -> Option<BlockId> {
        self.idle.values().copied().find(|id| self.blocks.get(id).is_some_and(|block| block.children == 0))
    }

    /// Removes an idle block with none after it, its snapshot with it. Answers its page.
    pub fn remove(&mut self, id: BlockId) -> Option<u32> {
        if self.blocks.get(&id).is_none_or(|block| block.holders > 0 || block.children > 0) {
            return None;
        }
        let block = self.blocks.remove(&id)?;
        self.idle.remove(&block.used);
        self.after.remove(&(block.parent, block.ids));
        if let Some(parent) = self.blocks.get_mut(&block.parent) {
            parent.children = parent.children.saturating_sub(1);
        }
        if let Some(owner) = block.snapshot.and_then(|index| self.snapshots.get_mut(index as usize)) {
            *owner = None;
        }
        block.page
    }

    /// The last block of a path that leads nowhere: idle, none after it, no snapshot where they are needed. Answers the
    /// block before it too.
    pub fn dead_end(&self, id: BlockId) -> Option<BlockId> {
        let block = self.blocks.get(&id)?;
        let dead = self.needs_snapshots && block.holders == 0 && block.children == 0;
        (dead && block.snapshot.is_none()).then_some(block.parent)
    }

    /// The snapshot of a block.
    pub fn snapshot(&self, id: BlockId) -> Option<u32> {
        self.blocks.get(&id).and_then(|block| block.snapshot)
    }

    /// Snapshots that a block owns.
    pub fn snapshots_used(&self) -> usize {
        self.snapshots.iter().flatten().count()
    }

    /// A snapshot that nobody owns.
    pub fn free_snapshot(&self) -> Option<u32> {
        self.snapshots.iter().position(Option::is_none).map(|index| index as u32)
    }

    /// The block whose snapshot goes first when a slot that holds `chain` wants one: the last use longest ago, but
    /// before all others those that the slot's own next snapshot makes superfluous.
    pub fn oldest_snapshot(&self, chain: &[BlockId]) -> Option<BlockId> {
        let rank = |id: &BlockId| {
            let block = self.blocks.get(id)?;
            let superseded = block.holders == 1 && block.children <= 1 && chain.contains(id);
            Some((!superseded, block.used))
        };
        self.snapshots.iter().flatten().copied().min_by_key(rank)
    }

    /// Gives a free snapshot to a block that has none.
    pub fn own(&mut self, id: BlockId, index: u32) {
        if let (Some(block), Some(owner)) = (self.blocks.get_mut(&id), self.snapshots.get_mut(index as usize))
        {
            block.snapshot = Some(index);
            *owner = Some(id);
        }
    }

    /// Takes its snapshot from a block. `false` when it has none.
    pub fn disown(&mut self, id: BlockId) -> bool {
        let Some(index) = self.blocks.get_mut(&id).and_then(|block| block.snapshot.take()) else {
            return false;
        };
        if let Some(owner) = self.snapshots.get_mut(index as usize) {
            *owner = None;
        }
        true
    }

    /// Every block and its page.
    #[cfg(test)]
    pub fn all(&self) -> std::collections::HashMap<BlockId, Option<u32>> {
        self.blocks.iter().map(|(&id, block)| (id, block.page)).collect()
    }

    /// Pages of blocks, each once.
    pub fn pages(&self) -> impl Iterator<Item = u32> {
        self.blocks.values().filter_map(|block| block.page)
    }
}
