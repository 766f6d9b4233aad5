//! A pack as a card computes it: one row for every way from a root to a leaf.
//!
//! Attention backwards takes whole sequences. So what several sequences share is computed once for each of them here, which
//! gives the same gradients: they are sums over the targets, and a target counts in one row.

use std::collections::HashMap;

use crate::batch::BLOCK;
use crate::cuda::kernel::prefill_tiles;
use crate::decoder::DecoderConfig;
use crate::gradient::Pack;

/// Rows with their tokens end to end, and the targets among them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Rows {
    /// Per token: its id, its position, and its row.
    pub(super) tokens: Vec<u32>,
    pub(super) positions: Vec<u32>,
    pub(super) rows: Vec<u32>,
    /// Per row: its first token, and how many it has.
    pub(super) first: Vec<u32>,
    pub(super) context: Vec<u32>,
    /// Per row its blocks of keys and values, `stride` entries.
    pub(super) tables: Vec<u32>,
    pub(super) stride: usize,
    /// Pairs of a row and which of its tiles of queries, longest work first; the same of its blocks of keys.
    pub(super) tiles: Vec<u32>,
    pub(super) blocks: Vec<u32>,
    /// Per target: the token it is predicted from, and its id.
    pub(super) wanted: Vec<u32>,
    pub(super) ids: Vec<u32>,
}

impl Rows {
    pub(super) fn new(pack: &Pack, config: &DecoderConfig) -> Self {
        let leaves = leaves(pack);
        let mut rows = Self::default();
        // The row that ends in each leaf.
        let mut row_of = HashMap::new();
        for (leaf, _) in pack.segments().iter().enumerate().filter(|&(segment, _)| leaves[segment] == [segment]) {
            row_of.insert(leaf, rows.first.len());
            rows.push(&path(pack, leaf));
        }
        rows.tables(config);
        rows.targets(pack, &leaves, &row_of);
        rows
    }

    /// Cuts targets into runs of at most `most`, in each of which no two are predicted from the same token.
    pub(super) fn chunks(&self, most: usize) -> Vec<std::ops::Range<usize>> {
        let (mut chunks, mut start) = (Vec::new(), 0);
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
        let (heads, kv_heads) = (config.heads as u32, config.kv_heads as u32);
        self.stride = self.context.iter().map(|&tokens| (tokens as usize).div_ceil(BLOCK)).max().unwrap_or(0);
        let (mut tiles, mut block) = (Vec::new(), 0);
        for (row, &tokens) in (0..).zip(&self.context) {
            let count = tokens.div_ceil(BLOCK as u32);
            let padding = self.stride - count as usize;
            self.tables.extend((block..block + count).chain(std::iter::repeat_n(block, padding)));
            block += count;
            self.blocks.extend((0..count).flat_map(|block| [row, block]));
            tiles.extend((0..prefill_tiles(tokens, heads, kv_heads)).map(|tile| [row, tile]));
        }
        // A later tile of a row sees more.
        tiles.sort_by_key(|&[row, tile]| (std::cmp::Reverse(tile), row));
        self.tiles = tiles.into_iter().flatten().collect();
    }

    fn targets(&mut self, pack: &Pack, leaves: &[Vec<usize>], row_of: &HashMap<usize, usize>) {
        // Of targets that are predicted from one token, each is put into another row where there are so many.
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

/// For each segment the leaves behind it, in their order; a leaf is its own.
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

/// The tokens from the root to the end of a segment.
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
        let (one, two) = (pack.push(&[4, 5], Some(prompt)), pack.push(&[6], Some(prompt)));
        let other = pack.push(&[7, 8], None);
        for (segment, index) in [(prompt, 2), (one, 0), (one, 1), (two, 0), (other, 1)] {
            pack.target(segment, index);
        }
        let rows = Rows::new(&pack, &config());
        assert_eq!(rows.tokens, [1, 2, 3, 4, 5, 1, 2, 3, 6, 7, 8]);
        assert_eq!(rows.positions, [0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 1]);
        assert_eq!((rows.first.as_slice(), rows.context.as_slice()), (&[0, 5, 9][..], &[5, 4, 2][..]));
        assert_eq!(rows.rows, [0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2]);
        // The second answer's first token is predicted from the prompt's last in its own row.
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
        let rows = Rows::new(&pack, &config());
        assert_eq!(rows.wanted, [0, 1, 0, 0]);
        assert_eq!(rows.chunks(9), [0..2, 2..3, 3..4]);
    }

    #[test]
    fn long_rows_have_blocks_and_tiles_of_their_own() {
        let mut pack = Pack::new();
        let tokens: Vec<u32> = (0..40).collect();
        pack.push(&tokens, None);
        pack.push(&tokens[..17], None);
        let rows = Rows::new(&pack, &config());
        assert_eq!((rows.stride, rows.tables.as_slice()), (3, &[0, 1, 2, 3, 4, 3][..]));
        assert_eq!(rows.blocks, [0, 0, 0, 1, 0, 2, 1, 0, 1, 1]);
        // 80 packed query rows and 34: the tile that sees most comes first.
        assert_eq!(rows.tiles, [0, 1, 0, 0, 1, 0]);
    }
}
