//! The paged KV cache.
//!
//! A page holds [`PAGE`] consecutive positions, aligned to the absolute position, of every layer of one group; layers
//! that see the same window form a group. A sequence owns, per group, a run of consecutive blocks; a windowed group
//! gives up its oldest block when it needs room, so its memory is bounded by the window. Pages are committed by the
//! system as they fill.
//!
//! ```text
//!            reserve(n)            commit(n)
//!   len = L ───────────▶ reserved ───────────▶ len = L + n          rollback(t): len = t, or 0 where a window was lost
//!      ▲                    │ (step failed or cancelled: nothing committed, the reserved pages are reused)
//!      └────────────────────┘
//! ```

pub mod layout;

use crate::ids::SeqId;
use crate::os::{OutOfMemory, Region, page_size};
pub use layout::{KV_BLOCK, KvElem, LayerLayout};

/// Positions in a page, and in an attention block (DESIGN 3.1): the two are the same so that a block never spans pages.
pub const PAGE: usize = 64;

/// One layer's keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KvLayer {
    /// Key and value heads.
    pub n_head_kv: usize,
    /// Key head size.
    pub d_k: usize,
    /// Value head size.
    pub d_v: usize,
    /// Positions that a query sees, itself included; `None`: all.
    pub window: Option<u32>,
}

/// What a cache is made for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvSpec {
    /// By layer.
    pub layers: Vec<KvLayer>,
    /// Element type of keys and values.
    pub elem: KvElem,
    /// Positions that one sequence may reach.
    pub n_ctx: usize,
    /// Sequences.
    pub n_seq: usize,
    /// Most rows of one sequence in one step.
    pub max_chunk: usize,
}

/// Why positions could not be reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KvError {
    /// The sequence would outgrow the context.
    #[error("the context is full: {need} positions are needed and the context holds {n_ctx}")]
    ContextFull {
        /// Positions needed.
        need: usize,
        /// Positions there are.
        n_ctx: usize,
    },
    /// More rows of one sequence in one step than the cache was planned for.
    #[error("a step of {rows} rows exceeds the planned chunk of {max_chunk}")]
    ChunkTooLong {
        /// Rows asked for.
        rows: usize,
        /// Rows planned for.
        max_chunk: usize,
    },
}

/// Layers that share a window, hence page tables.
#[derive(Debug, Clone)]
struct Group {
    window: Option<u32>,
    page_bytes: usize,
    /// Most blocks that a sequence holds at once.
    blocks_per_seq: usize,
    /// Start of the group's pages in the region.
    base: usize,
    /// Pages that nobody holds.
    free: Vec<u32>,
}

/// Where a layer's data lies.
#[derive(Debug, Clone, Copy)]
struct LayerPlace {
    group: usize,
    /// Offset in a page of the group.
    offset: usize,
    layout: LayerLayout,
}

/// A sequence's blocks in one group: block `first + i` lies in page `pages[i]`.
#[derive(Debug, Clone, Default)]
struct Table {
    first: usize,
    pages: Vec<u32>,
}

#[derive(Debug, Clone, Default)]
struct Seq {
    len: usize,
    tables: Vec<Table>,
}

/// Keys and values of all layers and sequences.
#[derive(Debug)]
pub struct KvCache {
    region: Region,
    groups: Vec<Group>,
    layers: Vec<LayerPlace>,
    seqs: Vec<Seq>,
    n_ctx: usize,
    max_chunk: usize,
}

/// Sizes of a cache, computed without making it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvSizes {
    /// Bytes of all pages.
    pub n_bytes: usize,
    /// Bytes that a position costs while no window is full.
    pub bytes_per_position: usize,
}

impl KvSpec {
    fn groups(&self) -> (Vec<Group>, Vec<LayerPlace>, usize) {
        let mut windows: Vec<Option<u32>> = Vec::new();
        for layer in &self.layers {
            if !windows.contains(&layer.window) {
                windows.push(layer.window);
            }
        }
        let mut layers = vec![None; self.layers.len()];
        let mut groups = Vec::with_capacity(windows.len());
        let mut base = 0;
        for (group, &window) in windows.iter().enumerate() {
            let mut offset = 0;
            for (i, layer) in self.layers.iter().enumerate().filter(|(_, l)| l.window == window) {
                let layout = LayerLayout::new(self.elem, layer.n_head_kv, layer.d_k, layer.d_v);
                layers[i] = Some(LayerPlace { group, offset, layout });
                offset += layout.n_bytes();
            }
            let page_bytes = offset.next_multiple_of(page_size());
            let blocks_per_seq = self.blocks_per_seq(window);
            let n_pages = blocks_per_seq * self.n_seq;
            groups.push(Group { window, page_bytes, blocks_per_seq, base, free: Vec::new() });
            base += page_bytes * n_pages;
        }
        (groups, layers.into_iter().flatten().collect(), base)
    }

    fn blocks_per_seq(&self, window: Option<u32>) -> usize {
        let full = self.n_ctx.div_ceil(PAGE);
        match window {
            None => full,
            // A chunk at any alignment sees window - 1 positions before it; two spare blocks let a short rewind keep its window.
            Some(w) => full.min((w as usize + self.max_chunk).div_ceil(PAGE) + 3),
        }
    }

    /// Sizes of the cache that this describes.
    pub fn sizes(&self) -> KvSizes {
        let (groups, _, n_bytes) = self.groups();
        let bytes_per_position = groups.iter().map(|g| g.page_bytes / PAGE).sum();
        KvSizes { n_bytes, bytes_per_position }
    }
}

impl KvCache {
    /// Reserves address space for all pages; memory is committed as pages fill.
    pub fn new(spec: &KvSpec) -> Result<KvCache, OutOfMemory> {
        let (mut groups, layers, n_bytes) = spec.groups();
        let region = Region::new(n_bytes, false)?;
        for group in &mut groups {
            let n_pages = (group.blocks_per_seq * spec.n_seq) as u32;
            group.free = (0..n_pages).rev().collect();
        }
        let tables: Vec<Table> = groups.iter().map(|g| Table { first: 0, pages: Vec::with_capacity(g.blocks_per_seq) }).collect();
        let seqs = (0..spec.n_seq)
            .map(|_| Seq {
                len: 0,
                tables: tables.iter().map(|t| Table { first: 0, pages: Vec::with_capacity(t.pages.capacity()) }).collect(),
            })
            .collect();
        Ok(KvCache { region, groups, layers, seqs, n_ctx: spec.n_ctx, max_chunk: spec.max_chunk })
    }

    /// Committed positions of a sequence.
    pub fn len(&self, seq: SeqId) -> usize {
        self.seqs[seq.0 as usize].len
    }

    /// Positions that one sequence may reach.
    pub fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// Makes room for `n_new` positions after the committed ones. Nothing changes on error.
    pub fn reserve(&mut self, seq: SeqId, n_new: usize) -> Result<(), KvError> {
        let s = &mut self.seqs[seq.0 as usize];
        let need = s.len + n_new;
        if need > self.n_ctx {
            return Err(KvError::ContextFull { need, n_ctx: self.n_ctx });
        }
        if n_new > self.max_chunk {
            return Err(KvError::ChunkTooLong { rows: n_new, max_chunk: self.max_chunk });
        }
        let end_block = need.div_ceil(PAGE);
        for (group, table) in self.groups.iter_mut().zip(&mut s.tables) {
            let first_needed = first_block(group.window, s.len);
            while table.first + table.pages.len() < end_block {
                if table.pages.len() == group.blocks_per_seq {
                    debug_assert!(table.first < first_needed, "blocks_per_seq holds a window and a chunk");
                    let page = table.pages.remove(0);
                    table.first += 1;
                    table.pages.push(page);
                } else {
                    // Every sequence's share is set aside, so a page is free while it holds less than its share.
                    let page = group.free.pop().unwrap_or_default();
                    table.pages.push(page);
                }
            }
        }
        Ok(())
    }

    /// Counts `n_new` reserved positions as written.
    pub fn commit(&mut self, seq: SeqId, n_new: usize) {
        let s = &mut self.seqs[seq.0 as usize];
        s.len += n_new;
        debug_assert!(s.len <= self.n_ctx);
        self.assert_state(seq);
    }

    /// Forgets the positions from `to` on. Returns the new length: `to`, or 0 where a windowed layer no longer holds
    /// what a query at `to` must see.
    pub fn rollback(&mut self, seq: SeqId, to: usize) -> usize {
        let s = &mut self.seqs[seq.0 as usize];
        let to = to.min(s.len);
        let kept = self.groups.iter().zip(&s.tables).all(|(g, t)| t.first <= first_block(g.window, to));
        let to = if kept { to } else { 0 };
        s.len = to;
        let end_block = to.div_ceil(PAGE);
        for (group, table) in self.groups.iter_mut().zip(&mut s.tables) {
            let keep = end_block.saturating_sub(table.first);
            while table.pages.len() > keep {
                group.free.extend(table.pages.pop());
            }
            if table.pages.is_empty() {
                table.first = if to == 0 { 0 } else { end_block };
            }
        }
        self.assert_state(seq);
        to
    }

    /// Forgets the whole sequence.
    pub fn clear(&mut self, seq: SeqId) {
        self.rollback(seq, 0);
    }

    /// What must hold between any two calls; checked in debug builds.
    fn assert_state(&self, seq: SeqId) {
        if cfg!(debug_assertions) {
            let s = &self.seqs[seq.0 as usize];
            for (group, table) in self.groups.iter().zip(&s.tables) {
                assert!(table.pages.len() <= group.blocks_per_seq);
                assert!(table.first + table.pages.len() >= s.len.div_ceil(PAGE), "committed positions have pages");
                assert!(s.len == 0 || table.first <= first_block(group.window, s.len), "the window of the next position is held");
            }
        }
    }

    /// The pages, for a backend to read and write during a step. `&mut`: only one step runs on a cache.
    pub fn pages(&mut self) -> KvPages<'_> {
        KvPages { cache: self }
    }
}

/// First block that a query at position `pos` sees.
pub fn first_block(window: Option<u32>, pos: usize) -> usize {
    window.map_or(0, |w| (pos + 1).saturating_sub(w as usize) / PAGE)
}

/// The pages of a cache during one step. Threads of a backend share it; each writes positions of its own.
#[derive(Debug, Clone, Copy)]
pub struct KvPages<'a> {
    cache: &'a KvCache,
}

impl KvPages<'_> {
    /// Layout of the layer's part of a page.
    pub fn layout(&self, layer: usize) -> LayerLayout {
        self.cache.layers[layer].layout
    }

    /// Start of the layer's part of the page that holds positions `block * PAGE ..` of the sequence, valid for
    /// `layout(layer).n_bytes()` bytes while the step runs. `None` where the sequence holds no such block.
    pub fn block(&self, layer: usize, seq: SeqId, block: usize) -> Option<*mut u8> {
        let place = &self.cache.layers[layer];
        let group = &self.cache.groups[place.group];
        let table = &self.cache.seqs[seq.0 as usize].tables[place.group];
        let page = *table.pages.get(block.checked_sub(table.first)?)? as usize;
        let offset = group.base + page * group.page_bytes + place.offset;
        debug_assert!(offset + place.layout.n_bytes() <= self.cache.region.len());
        // SAFETY: the offset lies inside the region: base + page * page_bytes + page_bytes <= n_bytes by `KvSpec::groups`.
        Some(unsafe { self.cache.region.as_ptr().add(offset) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(n_ctx: usize, window: Option<u32>, chunk: usize) -> KvSpec {
        let full = KvLayer { n_head_kv: 2, d_k: 8, d_v: 8, window: None };
        KvSpec { layers: vec![full, KvLayer { window, ..full }], elem: KvElem::F16, n_ctx, n_seq: 2, max_chunk: chunk }
    }

    #[test]
    fn context_full_is_an_error_that_changes_nothing() {
        let mut kv = KvCache::new(&spec(100, None, 64)).unwrap();
        kv.reserve(SeqId(0), 64).unwrap();
        kv.commit(SeqId(0), 64);
        assert_eq!(kv.reserve(SeqId(0), 37), Err(KvError::ContextFull { need: 101, n_ctx: 100 }));
        kv.reserve(SeqId(0), 36).unwrap();
        kv.commit(SeqId(0), 36);
        assert_eq!(kv.len(SeqId(0)), 100);
        assert_eq!(kv.reserve(SeqId(1), 65), Err(KvError::ChunkTooLong { rows: 65, max_chunk: 64 }));
    }

    #[test]
    fn windowed_layers_hold_their_window_in_bounded_memory() {
        let mut kv = KvCache::new(&spec(10_000, Some(100), 32)).unwrap();
        let seq = SeqId(1);
        for step in 0..300 {
            let n = 1 + step % 32;
            let before = kv.len(seq);
            kv.reserve(seq, n).unwrap();
            let pages = kv.pages();
            for pos in (before + 1).saturating_sub(100)..before + n {
                assert!(pages.block(1, seq, pos / PAGE).is_some(), "position {pos} of the window is held");
            }
            kv.commit(seq, n);
        }
        assert!(kv.seqs[1].tables[1].pages.len() <= (100 + 32_usize).div_ceil(PAGE) + 3);
        assert!(kv.pages().block(1, seq, 0).is_none());
        assert!(kv.pages().block(0, seq, 0).is_some());
    }

    #[test]
    fn rollback_keeps_what_it_can() {
        let mut kv = KvCache::new(&spec(10_000, Some(100), 64)).unwrap();
        let seq = SeqId(0);
        for _ in 0..30 {
            kv.reserve(seq, 64).unwrap();
            kv.commit(seq, 64);
        }
        assert_eq!(kv.rollback(seq, 1900), 1900);
        assert_eq!(kv.rollback(seq, 1000), 0, "the window before 1000 is gone");
        assert_eq!(kv.len(seq), 0);
        let n_free = kv.groups[0].free.len();
        assert_eq!(n_free, 2 * 10_000_usize.div_ceil(PAGE));
        kv.reserve(seq, 10).unwrap();
        assert!(kv.pages().block(1, seq, 0).is_some());
    }
}
