//! Batch balancing as in verl: the order of a batch that gives every GPU about as many tokens.

/// Part of a batch: its total length and its trajectories as (index, length).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
struct BatchPart {
    sum: usize,
    count: usize,
    items: Vec<(usize, usize)>,
}

/// One part per GPU, longest first.
type BatchParts = Vec<BatchPart>;

/// Returns the order of the balanced batch: position i holds trajectory `order[i]`. `None` if `lengths` cannot be
/// split evenly over `gpus`.
///
/// Uses the largest differencing method with parts of equal size (Karmarkar and Karp 1982;
/// `get_seqlen_balanced_partitions` of verl). Trajectories of similar length form groups of one per GPU; then the two
/// groups with the largest internal difference are merged, longest part with shortest, until one group is left.
pub fn balanced(lengths: &[usize], gpus: usize) -> Option<Vec<usize>> {
    if gpus == 0 || !lengths.len().is_multiple_of(gpus) {
        return None;
    }
    // Ascending by length, then by index, as in verl.
    let mut sorted: Vec<(usize, usize)> = lengths.iter().copied().zip(0..).collect();
    sorted.sort_unstable();
    let mut groups: Vec<BatchParts> = sorted.chunks(gpus).map(alone).collect();
    while let Some(first) = take_widest(&mut groups) {
        let Some(second) = take_widest(&mut groups) else { return Some(order(first)) };
        groups.push(merged(first, second));
    }
    Some(Vec::new())
}

/// Creates a group in which every trajectory is a part of its own.
fn alone(trajectories: &[(usize, usize)]) -> BatchParts {
    let part = |&(length, index): &(usize, usize)| BatchPart { sum: length, count: 1, items: vec![(index, length)] };
    longest_first(trajectories.iter().map(part).collect())
}

fn longest_first(mut parts: BatchParts) -> BatchParts {
    parts.sort_by(|a, b| b.cmp(a));
    parts
}

/// Removes and returns the group with the largest difference between its parts. Ties go to the group with the largest
/// first part.
fn take_widest(groups: &mut Vec<BatchParts>) -> Option<BatchParts> {
    let spread = |parts: &BatchParts| match (parts.first(), parts.last()) {
        (Some(longest), Some(shortest)) => longest.sum - shortest.sum,
        _ => 0,
    };
    let widest = (0..groups.len()).max_by_key(|&place| (spread(&groups[place]), groups[place].first().cloned()))?;
    Some(groups.swap_remove(widest))
}

/// Merges two groups: the longest part of one with the shortest of the other, and so on.
fn merged(first: BatchParts, second: BatchParts) -> BatchParts {
    let pairs = first.into_iter().zip(second.into_iter().rev());
    let join = |(mut a, b): (BatchPart, BatchPart)| {
        a.sum += b.sum;
        a.count += b.count;
        a.items.extend(b.items);
        a
    };
    longest_first(pairs.map(join).collect())
}

/// Concatenates the parts; within a part, trajectories keep the order of the batch.
fn order(parts: BatchParts) -> Vec<usize> {
    let indices = |part: BatchPart| {
        let mut indices: Vec<usize> = part.items.into_iter().map(|(index, _)| index).collect();
        indices.sort_unstable();
        indices
    };
    parts.into_iter().flat_map(indices).collect()
}
