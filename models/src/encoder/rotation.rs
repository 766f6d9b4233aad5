//! Rotary positions in the attention of a ragged batch.

use super::ROW_GRAIN;
use super::config::EncoderConfig;
use super::pieces::PieceSequence;
use crate::kernel::Team;
use crate::kernel::rope::Rope;

/// Rotates queries and keys to the positions of their pieces. `qkv` has shape (pieces, 3 · hidden), with queries, keys
/// and values side by side.
pub(super) fn rotate(team: &Team, rope: &Rope, config: &EncoderConfig, sequences: &[PieceSequence], qkv: &mut [f32]) {
    let positions: Vec<usize> = sequences.iter().flat_map(|sequence| 0..sequence.len()).collect();
    // Not derived from the number of pieces, which may be 0.
    let width = 3 * config.hidden;
    team.rows(qkv, width, ROW_GRAIN, &|first, share| {
        for (row, &position) in share.chunks_exact_mut(width).zip(&positions[first..]) {
            row[..width / 3 * 2].chunks_exact_mut(config.head()).for_each(|head| rope.rotate(head, position));
        }
    });
}
