//! Rotary positions in the attention of a ragged batch.

use super::ROW_GRAIN;
use super::pieces::PieceSequence;
use crate::kernel::Team;
use crate::kernel::rope::Rope;

/// Rotates queries and keys to the positions of their pieces. `qkv` has shape (pieces, 3 · heads · `head`), with queries,
/// keys and values side by side.
pub(super) fn rotate(team: &Team, rope: &Rope, head: usize, sequences: &[PieceSequence], qkv: &mut [f32]) {
    let positions: Vec<usize> = sequences.iter().flat_map(|sequence| 0..sequence.len()).collect();
    let width = qkv.len() / positions.len().max(1);
    team.rows(qkv, width, ROW_GRAIN, &|first, share| {
        for (row, &position) in share.chunks_exact_mut(width).zip(&positions[first..]) {
            row[..width / 3 * 2].chunks_exact_mut(head).for_each(|head| rope.rotate(head, position));
        }
    });
}
