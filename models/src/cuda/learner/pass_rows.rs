//! Conversion of a pack of sequences into rows: one row for every path from a root to a leaf.
//!
//! The backward kernels of attention need whole sequences, so a prefix shared by several sequences is computed once for
//! each of them. The gradients are the same: they are sums over targets, and each target is in exactly one row.

use std::collections::HashMap;

use crate::batch::BLOCK;
use crate::cuda::kernel::prefill_tiles;
use crate::decoder::DecoderConfig;
use crate::gradient::Pack;

/// Rows with their tokens end to end, and the targets among them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct PassRows {
    /// Id, position and row of each token.
    pub(super) tokens: Vec<u32>,
    pub(super) positions: Vec<u32>,
    pub(super) rows: Vec<u32>,
    /// Index of the first token, and number of tokens, of each row.
    pub(super) first: Vec<u32>,
    pub(super) context: Vec<u32>,
    /// KV block table of each row, `stride` entries.
    pub(super) tables: Vec<u32>,
    pub(super) stride: usize,
    /// Query tiles as pairs of a row and a tile index, most expensive first, and key blocks as pairs of a row and a
    /// block index.
    pub(super) tiles: Vec<u32>,
    pub(super) blocks: Vec<u32>,
    /// Index of the token that a target is predicted from, and id of the target.
    pub(super) wanted: Vec<u32>,
    pub(super) ids: Vec<u32>,
}

impl PassRows {
    pub(super) fn new(pack: &Pack, config: &DecoderConfig) -> Self {
        let leaves = leaves(pack);
        let mut rows = Self::default();
        // Row that ends in each leaf.
        let mut row_of = HashMap::new();
        for (leaf, _) in pack.segments().iter().enumerate().filter(|&(segment, _)| leaves[segment] == [segment]) {
            row_of.insert(leaf, rows.first.len());
            rows.push(&path(pack, leaf));
        }
        rows.tables(config);
        rows.targets(pack, &leaves, &row_of);
        rows
    }

    /// Splits the targets into runs of at most `most`, such that no two targets of a run are predicted from the same
    /// token.
    pub(super) fn chunks(&self, most: usize) -> Vec<std::ops::Range<usize>> {
        let mut chunks = Vec::new();
        let mut start = 0;
        let mut last: HashMap<u32, usize> = HashMap::new();
        for (target, &place) in self.wanted.iter().enumerate() {
            let again = last.insert(place, target).is_some_and(|before| before >= start);
            if again || target - start == most {
                chunks.push(start..target);
                start = target;
            }
        }
        if start < self.wanted.len() {
            chunks.push(start..self.wanted.len());
        }
        chunks
    }

    fn push(&mut self, tokens: &[u32]) {
        let row = self.first.len() as u32;
        self.first.push(self.tokens.len() as u32);
        self.context.push(tokens.len() as u32);
        self.tokens.extend_from_slice(tokens);
        self.positions.extend(0..tokens.len() as u32);
        self.rows.extend(std::iter::repeat_n(row, tokens.len()));
    }

    fn tables(&mut self, config: &DecoderConfig) {
        let heads = config.heads as u32;
        let kv_heads = config.kv_heads as u32;
        self.stride = self.context.iter().map(|&tokens| (tokens as usize).div_ceil(BLOCK)).max().unwrap_or(0);
        let mut tiles = Vec::new();
        let mut block = 0;
        for (row, &tokens) in (0..).zip(&self.context) {
            let count = tokens.div_ceil(BLOCK as u32);
            let padding = self.stride - count as usize;
            self.tables.extend((block..block + count).chain(std::iter::repeat_n(block, padding)));
            block += count;
            self.blocks.extend((0..count).flat_map(|block| [row, block]));
            tiles.extend((0..prefill_tiles(tokens, heads, kv_heads)).map(|tile| [row, tile]));
        }
        // A later tile of a row attends to more positions.
        tiles.sort_by_key(|&[row, tile]| (std::cmp::Reverse(tile), row));
        self.tiles = tiles.into_iter().flatten().collect();
    }

    fn targets(&mut self, pack: &Pack, leaves: &[Vec<usize>], row_of: &HashMap<usize, usize>) {
        // Targets predicted from the same token are spread over the rows that contain this token, so fewer chunks
        // are cut short.
        let mut seen: HashMap<usize, usize> = HashMap::new();
        for target in pack.targets() {
            let segment = pack.segments().partition_point(|segment| segment.tokens.end <= target.at);
            let before = seen.entry(target.at).or_default();
            let leaf = leaves[segment][*before % leaves[segment].len()];
            *before += 1;
            let own = &pack.segments()[segment];
            let position = own.start + target.at - own.tokens.start;
            self.wanted.push(self.first[row_of[&leaf]] + position as u32);
            self.ids.push(target.token);
        }
    }
}

/// Returns the leaves below each segment, in order; a leaf is its own leaf.
fn leaves(pack: &Pack) -> Vec<Vec<usize>> {
    let mut leaves = vec![Vec::new(); pack.segments().len()];
    let parents: Vec<usize> = pack.segments().iter().filter_map(|segment| segment.parent).collect();
    for leaf in (0..pack.segments().len()).filter(|segment| !parents.contains(segment)) {
        let mut next = Some(leaf);
        while let Some(segment) = next {
            leaves[segment].push(leaf);
            next = pack.segments()[segment].parent;
        }
    }
    leaves
}

/// Returns the tokens from the root to the end of a segment.
fn path(pack: &Pack, segment: usize) -> Vec<u32> {
    let mut pieces = Vec::new();
    let mut next = Some(segment);
    while let Some(segment) = next {
        pieces.push(pack.segments()[segment].tokens.clone());
        next = pack.segments()[segment].parent;
    }
    pieces.into_iter().rev().flat_map(|piece| pack.tokens()[piece].iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::toy;

    fn config() -> DecoderConfig {
        DecoderConfig { vocab: 100, layers: 1, heads: 2, kv_heads: 1, ffn: 64, context: 128, ..toy::llama() }
    }

    #[test]
    fn every_way_to_a_leaf_is_a_row_and_every_target_is_in_one() {
        let mut pack = Pack::new();
        let prompt = pack.push(&[1, 2, 3], None);
        let one = pack.push(&[4, 5], Some(prompt));
        let two = pack.push(&[6], Some(prompt));
        let other = pack.push(&[7, 8], None);
        for (segment, index) in [(prompt, 2), (one, 0), (one, 1), (two, 0), (other, 1)] {
            pack.target(segment, index);
        }
        let rows = PassRows::new(&pack, &config());
        assert_eq!(rows.tokens, [1, 2, 3, 4, 5, 1, 2, 3, 6, 7, 8]);
        assert_eq!(rows.positions, [0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 1]);
        assert_eq!((rows.first.as_slice(), rows.context.as_slice()), (&[0, 5, 9][..], &[5, 4, 2][..]));
        assert_eq!(rows.rows, [0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2]);
        // The second answer's first token is predicted from the last token of the prompt in its own row.
        assert_eq!(rows.wanted, [1, 2, 3, 7, 9]);
        assert_eq!(rows.ids, [3, 4, 5, 6, 8]);
        assert_eq!((rows.tables.as_slice(), rows.stride, rows.blocks.len()), (&[0, 1, 2][..], 1, 6));
        assert_eq!(rows.chunks(2), [0..2, 2..4, 4..5]);
    }

    #[test]
    fn a_target_that_is_named_twice_begins_a_chunk() {
        let mut pack = Pack::new();
        let only = pack.push(&[1, 2, 3], None);
        for index in [1, 2, 1, 1] {
            pack.target(only, index);
        }
        let rows = PassRows::new(&pack, &config());
        assert_eq!(rows.wanted, [0, 1, 0, 0]);
        assert_eq!(rows.chunks(9), [0..2, 2..3, 3..4]);
    }

    #[test]
    fn long_rows_have_blocks_and_tiles_of_their_own() {
        let mut pack = Pack::new();
        let tokens: Vec<u32> = (0..70).collect();
        pack.push(&tokens, None);
        pack.push(&tokens[..17], None);
        let rows = PassRows::new(&pack, &config());
        assert_eq!((rows.stride, rows.tables.as_slice()), (5, &[0, 1, 2, 3, 4, 5, 6, 5, 5, 5][..]));
        assert_eq!(rows.blocks, [0, 0, 0, 1, 0, 2, 0, 3, 0, 4, 1, 0, 1, 1]);
        // 140 packed query rows and 34: the tile with the longest context comes first.
        assert_eq!(rows.tiles, [0, 1, 0, 0, 1, 0]);
    }
}
