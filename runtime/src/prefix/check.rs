//! Whether the index says what it should.

use super::{BlockId, Prefix, ROOT};
use std::collections::HashMap;

impl Prefix {
    /// Checks the index against itself and against the chains that the slots hold.
    ///
    /// # Errors
    /// What does not add up.
    pub fn check<'a>(&self, chains: impl Iterator<Item = &'a [BlockId]>) -> Result<(), String> {
        let mut holders: HashMap<BlockId, u32> = HashMap::new();
        for chain in chains {
            let mut before = ROOT;
            for &id in chain {
                match self.blocks.get(&id) {
                    Some(block) if block.parent == before => *holders.entry(id).or_default() += 1,
                    other => return Err(format!("a slot holds {id:?} after {before:?}: {other:?}")),
                }
                before = id;
            }
        }
        let mut children: HashMap<BlockId, u32> = HashMap::new();
        for (&id, block) in &self.blocks {
            *children.entry(block.parent).or_default() += 1;
            let parent = self.blocks.get(&block.parent);
            if block.parent != ROOT && parent.is_none_or(|parent| parent.holders < block.holders) {
                return Err(format!("{id:?} is held more often than {parent:?}, or has no parent"));
            }
            if parent.is_some_and(|parent| parent.holders == 0 && parent.used <= block.used) {
                return Err(format!("{id:?} would outlive what it comes after"));
            }
            if self.after.get(&(block.parent, block.ids)) != Some(&id) {
                return Err(format!("{id:?} is not found"));
            }
            let idle = self.idle.get(&block.used) == Some(&id);
            if idle != (block.holders == 0) {
                return Err(format!("{id:?} has {} holders and is listed as idle: {idle}", block.holders));
            }
            let owner = block.snapshot.map(|index| self.snapshots.get(index as usize).copied().flatten());
            if owner.is_some_and(|owner| owner != Some(id)) {
                return Err(format!("the snapshot of {id:?} is owned by {owner:?}"));
            }
        }
        for (id, block) in &self.blocks {
            let expected = [holders.get(id), children.get(id)].map(|n| n.copied().unwrap_or(0));
            if [block.holders, block.children] != expected {
                return Err(format!("{id:?} counts holders and children {block:?}: {expected:?}"));
            }
        }
        let owned = self.blocks.values().filter(|block| block.snapshot.is_some()).count();
        if self.after.len() != self.blocks.len() || owned != self.snapshots_used() {
            return Err(format!(
                "{} entries of {} blocks, {owned} snapshots of {}",
                self.after.len(),
                self.blocks.len(),
                self.snapshots_used()
            ));
        }
        let held = self.idle.len() + self.blocks.values().filter(|block| block.holders > 0).count();
        if held != self.blocks.len() {
            return Err(format!("{held} blocks are idle or held, there are {}", self.blocks.len()));
        }
        Ok(())
    }
}
