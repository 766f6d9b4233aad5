//! Prefix-sharing packs: several trajectories in one forward and backward pass, with common prefixes computed once.

use std::collections::HashMap;
use std::ops::Range;

use waymark_models::BLOCK;
use waymark_models::gradient::{Learner, Pack};

/// Minimum length of a shared prefix, in tokens. Shorter ones are not worth a segment of their own.
const LEAST: usize = 16;

/// Token sequence of one trajectory, with its training targets.
#[derive(Debug, Clone, Copy)]
pub struct TrainingSequence<'a> {
    /// Token ids.
    pub tokens: &'a [u32],
    /// Marks the tokens that are training targets. The first token is never one: nothing predicts it.
    pub learned: &'a [bool],
}

/// Position of a training target in the sequences that were packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TargetPosition {
    /// Index of the sequence.
    pub sequence: usize,
    /// Index of the token within the sequence.
    pub token: usize,
}

/// A pack together with the position of each of its targets.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PackedSequences {
    /// Segments and targets of the pass.
    pub pack: Pack,
    /// Position of each target, in the order of the pack's targets.
    pub places: Vec<TargetPosition>,
}

impl TrainingSequence<'_> {
    /// Number of tokens before the first target. Only these can be shared with other sequences.
    fn head(&self) -> usize {
        // The first token is skipped, because nothing predicts it.
        self.learned.iter().skip(1).position(|&learned| learned).map_or(0, |at| at + 1)
    }

    /// Number of tokens to compute: everything up to the last target. 0 if there is no target.
    fn length(&self) -> usize {
        self.learned.iter().skip(1).rposition(|&learned| learned).map_or(0, |at| at + 2)
    }

    /// Number of training targets.
    pub fn targets(&self) -> usize {
        self.learned.iter().skip(1).filter(|&&learned| learned).count()
    }

    fn shared(&self, other: &TrainingSequence<'_>) -> usize {
        let a = &self.tokens[..self.head()];
        let b = &other.tokens[..other.head()];
        let length = a.iter().zip(b).take_while(|(a, b)| a == b).count();
        if length < LEAST { 0 } else { length }
    }
}

/// Packs all `sequences`. A sequence without a target adds nothing.
pub fn pack(sequences: &[TrainingSequence<'_>]) -> PackedSequences {
    let members: Vec<usize> = (0..sequences.len()).filter(|&member| sequences[member].length() > 0).collect();
    let mut packed = PackedSequences::default();
    packed.add_tree(sequences, &members, 0, None);
    packed
}

impl PackedSequences {
    /// Adds the tokens from `depth` on of `members`, which agree up to `depth`, as children of segment `parent`.
    fn add_tree(&mut self, sequences: &[TrainingSequence<'_>], members: &[usize], depth: usize, parent: Option<usize>) {
        for group in groups(sequences, members, depth) {
            let first = sequences[group[0]];
            let rest = &group[1..];
            if rest.is_empty() {
                self.add_leaf(group[0], &first, depth, parent);
                continue;
            }
            // Every member shares a prefix with the first one, so the shortest of these prefixes is common to all.
            let common = |&member: &usize| first.shared(&sequences[member]);
            let end = rest.iter().map(common).min().unwrap_or(depth);
            let segment = self.pack.push(&first.tokens[depth..end], parent);
            self.add_tree(sequences, &group, end, Some(segment));
        }
    }

    /// Adds the rest of one sequence and its targets.
    fn add_leaf(&mut self, member: usize, sequence: &TrainingSequence<'_>, depth: usize, parent: Option<usize>) {
        let segment = self.pack.push(&sequence.tokens[depth..sequence.length()], parent);
        for token in depth.max(1)..sequence.length() {
            if sequence.learned[token] {
                self.pack.target(segment, token - depth);
                self.places.push(TargetPosition { sequence: member, token });
            }
        }
    }
}

/// Groups the members that share tokens from `depth` on. Groups are ordered by their first member.
fn groups(sequences: &[TrainingSequence<'_>], members: &[usize], depth: usize) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut known: HashMap<&[u32], usize> = HashMap::new();
    for &member in members {
        let sequence = &sequences[member];
        // Only tokens before a sequence's first target are shared: a shared target would count once instead of once
        // per sequence.
        let next = sequence.tokens[..sequence.head()].get(depth..depth + LEAST);
        match next.map(|key| *known.entry(key).or_insert(groups.len())) {
            Some(group) if group < groups.len() => groups[group].push(member),
            _ => groups.push(vec![member]),
        }
    }
    groups
}

/// Splits the sequences, in their order, into passes of about `budget` tokens, counting shared prefixes once (exact
/// to `LEAST` tokens per sequence). A sequence longer than the budget gets a pass of its own.
pub fn split(sequences: &[TrainingSequence<'_>], budget: usize) -> Vec<Range<usize>> {
    split_by(sequences.len(), budget, |pass| {
        let sequence = &sequences[pass.end];
        let shared = sequences[pass].iter().map(|other| sequence.shared(other)).max().unwrap_or(0);
        sequence.length().saturating_sub(shared)
    })
}

/// Splits the sequences, in their order, into passes for `learner`. On the CPU this is [`split`]. The GPU path shares
/// no prefixes, so there every sequence counts with its full length and a pass never needs more memory than planned
/// for `budget` tokens.
pub fn passes(learner: &Learner, sequences: &[TrainingSequence<'_>], budget: usize) -> Vec<Range<usize>> {
    if learner.on_gpu() { split_unshared(sequences, budget) } else { split(sequences, budget) }
}

/// Splits like [`split`], but counts each sequence with its full length, rounded up to whole KV blocks.
fn split_unshared(sequences: &[TrainingSequence<'_>], budget: usize) -> Vec<Range<usize>> {
    // The GPU allocates KV in whole blocks per sequence.
    split_by(sequences.len(), budget, |pass| sequences[pass.end].length().next_multiple_of(BLOCK))
}

/// Splits `count` sequences, in their order, into passes of about `budget` tokens. `added` returns the number of tokens
/// that the sequence after a range adds to a pass of that range.
fn split_by(count: usize, budget: usize, added: impl Fn(Range<usize>) -> usize) -> Vec<Range<usize>> {
    let mut passes = Vec::new();
    let mut start = 0;
    let mut tokens = 0;
    for end in 0..count {
        let more = added(start..end);
        if end > start && tokens + more > budget {
            passes.push(start..end);
            start = end;
            // Nothing is shared with the sequences of the pass before.
            tokens = added(end..end);
        } else {
            tokens += more;
        }
    }
    if start < count {
        passes.push(start..count);
    }
    passes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Owned = (Vec<u32>, Vec<bool>);

    fn sequences(owned: &[Owned]) -> Vec<TrainingSequence<'_>> {
        owned.iter().map(|(tokens, learned)| TrainingSequence { tokens, learned }).collect()
    }

    /// Collects the tokens that a target attends to, by walking up from its segment.
    fn context(pack: &Pack, at: usize) -> Vec<u32> {
        let own = pack.segments().iter().find(|segment| segment.tokens.contains(&at));
        let mut seen: Vec<u32> = own.map(|own| pack.tokens()[own.tokens.start..=at].to_vec()).unwrap_or_default();
        let mut parent = own.and_then(|own| own.parent);
        while let Some(number) = parent {
            let segment = &pack.segments()[number];
            seen.splice(0..0, pack.tokens()[segment.tokens.clone()].iter().copied());
            parent = segment.parent;
        }
        seen
    }

    /// Generates trajectories with a common prompt prefix, as in a protocol. The small vocabulary makes further
    /// agreement likely.
    fn trajectories() -> impl Strategy<Value = Vec<Owned>> {
        let one =
            (0usize..60, prop::collection::vec(0u32..2, 0..3), prop::collection::vec((0u32..3, any::<bool>()), 0..30));
        prop::collection::vec(one, 0..12).prop_map(|all| {
            let build = |(shared, question, rest): (usize, Vec<u32>, Vec<(u32, bool)>)| {
                let prompt: Vec<u32> = (0..shared as u32).map(|at| at % 7).chain(question).collect();
                let learned = prompt.iter().map(|_| false).chain(rest.iter().map(|&(_, learned)| learned)).collect();
                (prompt.into_iter().chain(rest.into_iter().map(|(token, _)| token)).collect(), learned)
            };
            all.into_iter().map(build).collect()
        })
    }

    proptest! {
        /// Checks that every training target occurs once and attends to exactly the tokens before it.
        #[test]
        fn every_target_occurs_once_in_its_own_context(owned in trajectories()) {
            let sequences = sequences(&owned);
            let packed = pack(&sequences);
            let mut wanted = Vec::new();
            for (sequence, (_, learned)) in owned.iter().enumerate() {
                wanted.extend((1..learned.len()).filter(|&token| learned[token]).map(|token| (sequence, token)));
            }
            let mut found: Vec<_> = packed.places.iter().map(|place| (place.sequence, place.token)).collect();
            found.sort_unstable();
            prop_assert_eq!(found, wanted);
            prop_assert_eq!(packed.places.len(), packed.pack.targets().len());
            for (place, target) in packed.places.iter().zip(packed.pack.targets()) {
                let tokens = &owned[place.sequence].0;
                prop_assert_eq!(target.token, tokens[place.token]);
                prop_assert_eq!(&context(&packed.pack, target.at)[..], &tokens[..place.token]);
            }
        }

        /// Checks that passes cover all sequences in order and keep the budget, up to the rounding of shared
        /// prefixes.
        #[test]
        fn passes_keep_the_budget(owned in trajectories(), budget in 1usize..200) {
            let sequences = sequences(&owned);
            let passes = split(&sequences, budget);
            let covered: Vec<usize> = passes.iter().cloned().flatten().collect();
            prop_assert_eq!(covered, (0..sequences.len()).collect::<Vec<_>>());
            for pass in passes {
                let tokens = pack(&sequences[pass.clone()]).pack.tokens().len();
                prop_assert!(tokens <= budget + LEAST * pass.len() || pass.len() == 1, "{tokens} for {budget}");
            }
        }
    }

    proptest! {
        /// Checks that passes without sharing keep the budget exactly.
        #[test]
        fn unshared_passes_keep_the_budget(owned in trajectories(), budget in 1usize..200) {
            let sequences = sequences(&owned);
            let passes = split_unshared(&sequences, budget);
            let covered: Vec<usize> = passes.iter().cloned().flatten().collect();
            prop_assert_eq!(covered, (0..sequences.len()).collect::<Vec<_>>());
            for pass in passes {
                let lengths = sequences[pass].iter().map(TrainingSequence::length).filter(|&length| length > 0);
                let blocks: Vec<usize> = lengths.map(|length| length.div_ceil(BLOCK)).collect();
                let tokens = blocks.iter().sum::<usize>() * BLOCK;
                prop_assert!(tokens <= budget || blocks.len() == 1, "{blocks:?} for {budget}");
            }
        }
    }

    #[test]
    fn shared_prompts_are_computed_once() {
        let answer = |last: u32| {
            let tokens: Vec<u32> = (0..40).chain([100, last]).collect();
            let learned: Vec<bool> = (0..42).map(|at| at >= 40).collect();
            (tokens, learned)
        };
        let owned = [answer(1), answer(2), answer(3)];
        let packed = pack(&sequences(&owned));
        assert_eq!(packed.pack.tokens().len(), 40 + 3 * 2);
        assert_eq!(packed.pack.segments().len(), 4);
        assert_eq!(split(&sequences(&owned), 46).len(), 1);
        assert_eq!(split(&sequences(&owned), 45), [0..2, 2..3]);
        assert_eq!(split_unshared(&sequences(&owned), 96), [0..2, 2..3]);
    }
}
