//! Trajectories side by side in one pass: what their prompts share is computed once.

use std::collections::HashMap;

use waymark_models::BLOCK;
use waymark_models::gradient::{Learner, Pack};

/// Prefixes are shared from so many tokens on; shorter ones are not worth a segment of their own.
const LEAST: usize = 16;

/// A trajectory as a pass sees it.
#[derive(Debug, Clone, Copy)]
pub struct Sequence<'a> {
    /// Its ids.
    pub tokens: &'a [u32],
    /// For each, whether it is learnt. The first token never is: nothing predicts it.
    pub learnt: &'a [bool],
}

/// Where a target comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The sequence, by its place in what was packed.
    pub sequence: usize,
    /// The token in it.
    pub token: usize,
}

/// A pack, and where each of its targets comes from.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Packed {
    /// What is computed.
    pub pack: Pack,
    /// For each target of the pack, in its order.
    pub places: Vec<Place>,
}

impl Sequence<'_> {
    /// Tokens before the first that is learnt: what can be shared with others.
    fn head(&self) -> usize {
        self.learnt.iter().skip(1).position(|&learnt| learnt).map_or(0, |at| at + 1)
    }

    /// Tokens that have to be computed: up to the last that is learnt; 0 where none is.
    fn length(&self) -> usize {
        self.learnt.iter().skip(1).rposition(|&learnt| learnt).map_or(0, |at| at + 2)
    }

    /// How many tokens are learnt.
    pub fn targets(&self) -> usize {
        self.learnt.iter().skip(1).filter(|&&learnt| learnt).count()
    }

    fn shared(&self, other: &Sequence<'_>) -> usize {
        let (a, b) = (&self.tokens[..self.head()], &other.tokens[..other.head()]);
        let length = a.iter().zip(b).take_while(|(a, b)| a == b).count();
        if length < LEAST { 0 } else { length }
    }
}

/// Packs all of `sequences`; those in which nothing is learnt add nothing.
pub fn pack(sequences: &[Sequence<'_>]) -> Packed {
    let members: Vec<usize> = (0..sequences.len()).filter(|&member| sequences[member].length() > 0).collect();
    let mut packed = Packed::default();
    packed.plant(sequences, &members, 0, None);
    packed
}

impl Packed {
    /// Adds what `members`, which agree up to `depth` and continue `parent`, have after it.
    fn plant(&mut self, sequences: &[Sequence<'_>], members: &[usize], depth: usize, parent: Option<usize>) {
        for group in groups(sequences, members, depth) {
            let (first, rest) = (sequences[group[0]], &group[1..]);
            if rest.is_empty() {
                self.leaf(group[0], &first, depth, parent);
                continue;
            }
            let common = |&member: &usize| first.shared(&sequences[member]);
            let end = rest.iter().map(common).min().unwrap_or(depth);
            let segment = self.pack.push(&first.tokens[depth..end], parent);
            self.plant(sequences, &group, end, Some(segment));
        }
    }

    /// Adds the rest of one sequence with its targets.
    fn leaf(&mut self, member: usize, sequence: &Sequence<'_>, depth: usize, parent: Option<usize>) {
        let segment = self.pack.push(&sequence.tokens[depth..sequence.length()], parent);
        for token in depth.max(1)..sequence.length() {
            if sequence.learnt[token] {
                self.pack.target(segment, token - depth);
                self.places.push(Place { sequence: member, token });
            }
        }
    }
}

/// Members that can share the tokens from `depth` on, in the order of their first ones.
fn groups(sequences: &[Sequence<'_>], members: &[usize], depth: usize) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut known: HashMap<&[u32], usize> = HashMap::new();
    for &member in members {
        let sequence = &sequences[member];
        let next = sequence.tokens[..sequence.head()].get(depth..depth + LEAST);
        match next.map(|key| *known.entry(key).or_insert(groups.len())) {
            Some(group) if group < groups.len() => groups[group].push(member),
            _ => groups.push(vec![member]),
        }
    }
    groups
}

/// Splits sequences, in their order, into passes of about `budget` tokens, what is shared counted once: exact to
/// `LEAST` tokens per sequence. A sequence that is longer gets a pass of its own.
pub fn split(sequences: &[Sequence<'_>], budget: usize) -> Vec<std::ops::Range<usize>> {
    let mut passes = Vec::new();
    let (mut start, mut tokens) = (0, 0);
    for (end, sequence) in sequences.iter().enumerate() {
        let shared = sequences[start..end].iter().map(|other| sequence.shared(other)).max().unwrap_or(0);
        let more = sequence.length().saturating_sub(shared);
        if end > start && tokens + more > budget {
            passes.push(start..end);
            (start, tokens) = (end, sequence.length());
        } else {
            tokens += more;
        }
    }
    if start < sequences.len() {
        passes.push(start..sequences.len());
    }
    passes
}

/// Splits sequences, in their order, into the passes of `learner`: as [`split`] does, or for a card, which shares nothing,
/// so that no pass takes more memory there than was planned for passes of `budget` tokens.
pub fn passes(learner: &Learner, sequences: &[Sequence<'_>], budget: usize) -> Vec<std::ops::Range<usize>> {
    if learner.on_card() { apart(sequences, budget) } else { split(sequences, budget) }
}

/// As [`split`], each sequence counted whole, and in whole blocks of KV.
fn apart(sequences: &[Sequence<'_>], budget: usize) -> Vec<std::ops::Range<usize>> {
    let mut passes = Vec::new();
    let (mut start, mut tokens) = (0, 0);
    for (end, sequence) in sequences.iter().enumerate() {
        let more = sequence.length().next_multiple_of(BLOCK);
        if end > start && tokens + more > budget {
            passes.push(start..end);
            (start, tokens) = (end, 0);
        }
        tokens += more;
    }
    if start < sequences.len() {
        passes.push(start..sequences.len());
    }
    passes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Owned = (Vec<u32>, Vec<bool>);

    fn sequences(owned: &[Owned]) -> Vec<Sequence<'_>> {
        owned.iter().map(|(tokens, learnt)| Sequence { tokens, learnt }).collect()
    }

    /// The tokens a target sees, by walking up from its segment.
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

    /// Trajectories whose prompts begin alike, as those of a protocol do: few tokens, so that more agrees by accident.
    fn trajectories() -> impl Strategy<Value = Vec<Owned>> {
        let one =
            (0usize..60, prop::collection::vec(0u32..2, 0..3), prop::collection::vec((0u32..3, any::<bool>()), 0..30));
        prop::collection::vec(one, 0..12).prop_map(|all| {
            let build = |(shared, question, rest): (usize, Vec<u32>, Vec<(u32, bool)>)| {
                let prompt: Vec<u32> = (0..shared as u32).map(|at| at % 7).chain(question).collect();
                let learnt = prompt.iter().map(|_| false).chain(rest.iter().map(|&(_, learnt)| learnt)).collect();
                (prompt.into_iter().chain(rest.into_iter().map(|(token, _)| token)).collect(), learnt)
            };
            all.into_iter().map(build).collect()
        })
    }

    proptest! {
        /// Every token that is learnt is one target, which sees exactly what comes before it in its sequence.
        #[test]
        fn every_learnt_token_is_one_target_in_its_own_context(owned in trajectories()) {
            let sequences = sequences(&owned);
            let packed = pack(&sequences);
            let mut wanted = Vec::new();
            for (sequence, (_, learnt)) in owned.iter().enumerate() {
                wanted.extend((1..learnt.len()).filter(|&token| learnt[token]).map(|token| (sequence, token)));
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

        /// Passes cover everything in order, and hold no more than they may, give or take what sharing is counted to.
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
        /// Where nothing is shared the same holds of all tokens, exactly.
        #[test]
        fn passes_of_what_is_not_shared_keep_the_budget(owned in trajectories(), budget in 1usize..200) {
            let sequences = sequences(&owned);
            let passes = apart(&sequences, budget);
            let covered: Vec<usize> = passes.iter().cloned().flatten().collect();
            prop_assert_eq!(covered, (0..sequences.len()).collect::<Vec<_>>());
            for pass in passes {
                let lengths = sequences[pass].iter().map(Sequence::length).filter(|&length| length > 0);
                let blocks: Vec<usize> = lengths.map(|length| length.div_ceil(BLOCK)).collect();
                let tokens = blocks.iter().sum::<usize>() * BLOCK;
                prop_assert!(tokens <= budget || blocks.len() == 1, "{blocks:?} for {budget}");
            }
        }
    }

    #[test]
    fn a_prompt_is_computed_once() {
        let answer = |last: u32| {
            let tokens: Vec<u32> = (0..40).chain([100, last]).collect();
            let learnt: Vec<bool> = (0..42).map(|at| at >= 40).collect();
            (tokens, learnt)
        };
        let owned = [answer(1), answer(2), answer(3)];
        let packed = pack(&sequences(&owned));
        assert_eq!(packed.pack.tokens().len(), 40 + 3 * 2);
        assert_eq!(packed.pack.segments().len(), 4);
        assert_eq!(split(&sequences(&owned), 46).len(), 1);
        assert_eq!(split(&sequences(&owned), 45), [0..2, 2..3]);
        assert_eq!(apart(&sequences(&owned), 96), [0..2, 2..3]);
    }
}
