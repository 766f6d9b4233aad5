//! Relative positions in MPNet's attention: a bias per head and bucket of distances, as in T5 (Raffel et al. 2020).

use std::ops::Range;

/// Distance from which all pieces share the last bucket (`max_distance` of `relative_position_bucket` in transformers).
const FARTHEST: f32 = 128.0;

/// Biases of the attention scores by the distance between query and key.
#[derive(Debug)]
pub(super) struct RelativeBias {
    /// Bias for each head and distance, from the key farthest after the query to the key farthest before it.
    values: Vec<f32>,
    /// Maximum number of pieces of a sequence.
    longest: usize,
}

impl RelativeBias {
    /// Spreads a table of shape (buckets, heads) over the distances in sequences of at most `longest` pieces.
    pub(super) fn new(table: &[f32], buckets: usize, heads: usize, longest: usize) -> RelativeBias {
        let mut values = Vec::with_capacity(heads * (2 * longest).saturating_sub(1));
        for head in 0..heads {
            let behind = (1..longest).rev().map(|distance| bucket(distance, true, buckets));
            let before = (0..longest).map(|distance| bucket(distance, false, buckets));
            values.extend(behind.chain(before).map(|bucket| table[bucket * heads + head]));
        }
        RelativeBias { values, longest }
    }

    /// Returns the biases of the queries at the positions `queries` for the key at position `key`.
    pub(super) fn column(&self, head: usize, key: usize, queries: &Range<usize>) -> &[f32] {
        let same = head * (2 * self.longest - 1) + self.longest - 1;
        &self.values[same + queries.start - key..][..queries.len()]
    }
}

/// Returns the bucket of a distance: one for each small distance, and logarithmic ones for larger distances.
fn bucket(distance: usize, behind: bool, buckets: usize) -> usize {
    let half = buckets / 2;
    // Distance 0 has the bucket of a key before the query.
    let first = if behind && distance > 0 { half } else { 0 };
    let exact = half / 2;
    if distance < exact {
        return first + distance;
    }
    let exact = exact as f32;
    let far = (distance as f32 / exact).ln() / (FARTHEST / exact).ln() * (half as f32 - exact);
    first + (exact as usize + far as usize).min(half.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_those_of_transformers() {
        for (distance, expected) in
            [(0, 0), (1, 1), (7, 7), (8, 8), (15, 9), (16, 10), (32, 12), (64, 14), (127, 15), (128, 15), (511, 15)]
        {
            assert_eq!(bucket(distance, false, 32), expected, "{distance} before");
            let behind = if distance == 0 { 0 } else { 16 + expected };
            assert_eq!(bucket(distance, true, 32), behind, "{distance} behind");
        }
    }

    #[test]
    fn columns_follow_the_distance_from_the_key() {
        // The bias of a bucket is its number, and ten times that for the second head.
        let table: Vec<f32> = (0..32).flat_map(|bucket| [bucket as f32, 10.0 * bucket as f32]).collect();
        let bias = RelativeBias::new(&table, 32, 2, 5);
        assert_eq!(bias.column(0, 0, &(0..5)), [0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(bias.column(0, 2, &(1..5)), [17.0, 0.0, 1.0, 2.0]);
        assert_eq!(bias.column(1, 4, &(0..5)), [200.0, 190.0, 180.0, 170.0, 0.0]);
    }
}
