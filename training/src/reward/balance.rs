//! The order that verl gives a batch so that every GPU gets about as many tokens.

/// A part of a batch: its total length and the trajectories in it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
struct Part {
    sum: usize,
    count: usize,
    items: Vec<(usize, usize)>,
}

/// One part per GPU, the longest first.
type Parts = Vec<Part>;

/// Where each place of the balanced batch was before: trajectory `order[i]` stands at place i. `None` where `lengths` cannot
/// be spread evenly over `gpus`.
///
/// The largest differencing method with parts of equal count (Karmarkar and Karp 1982; `get_seqlen_balanced_partitions` of
/// verl): trajectories of similar length form a group of one per GPU, and the two groups that differ most in themselves are
/// put together longest to shortest until one is left.
pub fn balanced(lengths: &[usize], gpus: usize) -> Option<Vec<usize>> {
    if gpus == 0 || !lengths.len().is_multiple_of(gpus) {
        return None;
    }
    let mut sorted: Vec<(usize, usize)> = lengths.iter().copied().zip(0..).collect();
    sorted.sort_unstable();
    let mut groups: Vec<Parts> = sorted.chunks(gpus).map(alone).collect();
    while let Some(first) = take_widest(&mut groups) {
        let Some(second) = take_widest(&mut groups) else { return Some(order(first)) };
        groups.push(merged(first, second));
    }
    Some(Vec::new())
}

/// A group in which every trajectory is a part of its own.
fn alone(trajectories: &[(usize, usize)]) -> Parts {
    let part = |&(length, index): &(usize, usize)| Part { sum: length, count: 1, items: vec![(index, length)] };
    longest_first(trajectories.iter().map(part).collect())
}

fn longest_first(mut parts: Parts) -> Parts {
    parts.sort_by(|a, b| b.cmp(a));
    parts
}

/// Takes the group whose parts differ most; of several, that with the greatest first part.
fn take_widest(groups: &mut Vec<Parts>) -> Option<Parts> {
    let spread = |parts: &Parts| match (parts.first(), parts.last()) {
        (Some(longest), Some(shortest)) => longest.sum - shortest.sum,
        _ => 0,
    };
    let widest = (0..groups.len()).max_by_key(|&place| (spread(&groups[place]), groups[place].first().cloned()))?;
    Some(groups.swap_remove(widest))
}

/// Puts the longest part of one group together with the shortest of the other, and so on.
fn merged(first: Parts, second: Parts) -> Parts {
    let pairs = first.into_iter().zip(second.into_iter().rev());
    let join = |(mut a, b): (Part, Part)| {
        a.sum += b.sum;
        a.count += b.count;
        a.items.extend(b.items);
        a
    };
    longest_first(pairs.map(join).collect())
}

/// Part after part, each in the order of the batch.
fn order(parts: Parts) -> Vec<usize> {
    let indices = |part: Part| {
        let mut indices: Vec<usize> = part.items.into_iter().map(|(index, _)| index).collect();
        indices.sort_unstable();
        indices
    };
    parts.into_iter().flat_map(indices).collect()
}
