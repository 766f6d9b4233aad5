//! Comparison of an episode with its replay.

use std::collections::HashMap;

use serde::Serialize;
use utoipa::ToSchema;
use waymark_agent::SearchRecord;
use waymark_engine::{Origin, Token};
use waymark_index::{Hit, Mode};
use waymark_models::tokenizer::Tokenizer;

use super::tokens::TokenOrigin;

/// First token that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Divergence)]
pub struct TokenDivergence {
    /// Position in the sequence, from 0.
    pub at: usize,
    /// Token of the trace at this position. Null if the trace is shorter.
    #[schema(required)]
    pub then: Option<TokenThere>,
    /// Token of the replay at this position. Null if the replay is shorter.
    #[schema(required)]
    pub now: Option<TokenThere>,
}

/// Token at a position.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct TokenThere {
    /// ID of the token.
    pub id: u32,
    /// Text of the token; broken UTF-8 appears as U+FFFD.
    pub text: String,
    /// Origin of the token. Environment tokens differ if the index has changed.
    pub origin: TokenOrigin,
}

/// Absolute differences between the log-probabilities of sampled tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, ToSchema)]
pub struct LogprobDifference {
    /// Number of compared tokens: those that the policy sampled in both.
    pub tokens: usize,
    /// Maximum difference. Null if no tokens were compared.
    #[schema(required)]
    pub max: Option<f32>,
    /// Mean difference. Null if no tokens were compared.
    #[schema(required)]
    pub mean: Option<f64>,
    /// Position of the maximum difference in the sequence, from 0.
    #[schema(required)]
    pub at: Option<usize>,
}

/// Episodes that made a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Made)]
#[serde(rename_all = "snake_case")]
pub enum SearchSide {
    /// Both episodes.
    Both,
    /// Only the trace's episode.
    Then,
    /// Only the replay.
    Now,
}

/// Differences between the results of a search. If only one episode made the search, all its results differ.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct SearchDifference {
    /// Episodes that made the search.
    pub made: SearchSide,
    /// Turn that searched.
    pub turn: usize,
    /// Query of the search.
    pub query: String,
    /// Kind of search.
    #[schema(value_type = String)]
    pub mode: Mode,
    /// Snapshots of the index that were searched.
    pub snapshot: Snapshots,
    /// If `true`, both searches found the same passages in the same order.
    pub equal: bool,
    /// Passages found by the replay only.
    pub added: Vec<PlacedPassage>,
    /// Passages found by the trace's episode only.
    pub lost: Vec<PlacedPassage>,
    /// Passages whose rank differs.
    pub moved: Vec<MovedPassage>,
    /// IDs of passages whose title or text differs.
    pub changed: Vec<String>,
    /// Reason the search of the trace's episode failed, if it did.
    #[schema(required)]
    pub error_then: Option<String>,
    /// Reason the search of the replay failed, if it did.
    #[schema(required)]
    pub error_now: Option<String>,
}

/// Snapshots of the index that were searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct Snapshots {
    /// Snapshot of the trace. Null if the search failed or was not made.
    #[schema(required)]
    pub then: Option<u64>,
    /// Snapshot of the replay. Null if the search failed or was not made.
    #[schema(required)]
    pub now: Option<u64>,
}

/// Passage and its rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct PlacedPassage {
    /// ID of the passage.
    pub id: String,
    /// Rank, from 1.
    pub rank: usize,
}

/// Passage and its two ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct MovedPassage {
    /// ID of the passage.
    pub id: String,
    /// Rank in the trace, from 1.
    pub then: usize,
    /// Rank in the replay, from 1.
    pub now: usize,
}

/// Returns the first position where the IDs of two sequences differ.
pub(super) fn divergence(then: &[Token], now: &[Token], tokenizer: &Tokenizer) -> Option<TokenDivergence> {
    // Over the longer list: an episode that ends earlier differs there.
    let at = (0..then.len().max(now.len())).find(|&at| id(then, at) != id(now, at))?;
    let there = |tokens: &[Token]| {
        let token = tokens.get(at)?;
        let text = String::from_utf8_lossy(tokenizer.bytes_of(token.id)).into_owned();
        Some(TokenThere { id: token.id, text, origin: token.origin.into() })
    };
    Some(TokenDivergence { at, then: there(then), now: there(now) })
}

fn id(tokens: &[Token], at: usize) -> Option<u32> {
    tokens.get(at).map(|token| token.id)
}

/// Compares the log-probabilities of two sequences with the same IDs.
pub(super) fn logprobs(then: &[Token], now: &[Token]) -> LogprobDifference {
    // Forced tokens were not chosen by the policy, so their scores are not compared.
    let sampled = |token: &Token| token.logprob.filter(|_| token.origin == Origin::Policy && !token.forced);
    let pairs = then.iter().zip(now).enumerate();
    let differences = pairs.filter_map(|(at, (then, now))| Some((at, (sampled(then)? - sampled(now)?).abs())));
    let mut tokens = 0;
    let mut sum = 0.0;
    let mut worst = None::<(usize, f32)>;
    for (at, difference) in differences {
        tokens += 1;
        sum += f64::from(difference);
        if worst.is_none_or(|(_, most)| difference > most) {
            worst = Some((at, difference));
        }
    }
    LogprobDifference {
        tokens,
        max: worst.map(|(_, most)| most),
        mean: (tokens > 0).then(|| sum / tokens as f64),
        at: worst.map(|(at, _)| at),
    }
}

/// Compares the searches that both episodes made, pairwise up to the first pair with different queries, and then lists
/// the searches of each episode alone.
pub(super) fn searches(then: &[SearchRecord], now: &[SearchRecord]) -> Vec<SearchDifference> {
    fn made(found: &[SearchRecord]) -> Vec<&SearchRecord> {
        // A cached search repeats an earlier one of the same episode.
        found.iter().filter(|found| !found.cached).collect()
    }
    let then = made(then);
    let now = made(now);
    let same = |(then, now): &(&&SearchRecord, &&SearchRecord)| (&then.query, then.mode) == (&now.query, now.mode);
    // Paired up to the first difference, after which the two episodes go their own ways.
    let both = then.iter().zip(&now).take_while(same).count();
    let pairs = then.iter().zip(&now).take(both).map(|(then, now)| search(then, now));
    let gone =
        then[both..].iter().map(|found| SearchDifference { made: SearchSide::Then, ..search(found, &unmade(found)) });
    let new =
        now[both..].iter().map(|found| SearchDifference { made: SearchSide::Now, ..search(&unmade(found), found) });
    pairs.chain(gone.map(unequal)).chain(new.map(unequal)).collect()
}

/// Empty counterpart of a search that only one episode made.
fn unmade(made: &SearchRecord) -> SearchRecord {
    SearchRecord { hits: Vec::new(), triples: Vec::new(), snapshot: None, error: None, ..made.clone() }
}

/// Marks results as different even if both are empty.
fn unequal(difference: SearchDifference) -> SearchDifference {
    SearchDifference { equal: false, ..difference }
}

fn search(then: &SearchRecord, now: &SearchRecord) -> SearchDifference {
    let old = by_id(&then.hits);
    let new = by_id(&now.hits);
    let placed = |hit: &Hit| PlacedPassage { id: hit.passage.id.clone(), rank: hit.rank };
    let only = |hits: &[Hit], other: &HashMap<&str, &Hit>| -> Vec<PlacedPassage> {
        hits.iter().filter(|hit| !other.contains_key(hit.passage.id.as_str())).map(placed).collect()
    };
    let both = || then.hits.iter().filter_map(|hit| Some((hit, *new.get(hit.passage.id.as_str())?)));
    let moved = both().filter(|(then, now)| then.rank != now.rank);
    let moved: Vec<_> =
        moved.map(|(then, now)| MovedPassage { id: then.passage.id.clone(), then: then.rank, now: now.rank }).collect();
    let changed = both().filter(|(then, now)| then.passage != now.passage);
    let changed: Vec<_> = changed.map(|(then, _)| then.passage.id.clone()).collect();
    let added = only(&now.hits, &old);
    let lost = only(&then.hits, &new);
    SearchDifference {
        made: SearchSide::Both,
        turn: then.turn,
        query: then.query.clone(),
        mode: then.mode,
        snapshot: Snapshots { then: then.snapshot, now: now.snapshot },
        equal: added.is_empty() && lost.is_empty() && moved.is_empty() && changed.is_empty() && then.error == now.error,
        added,
        lost,
        moved,
        changed,
        error_then: then.error.clone(),
        error_now: now.error.clone(),
    }
}

fn by_id(hits: &[Hit]) -> HashMap<&str, &Hit> {
    hits.iter().map(|hit| (hit.passage.id.as_str(), hit)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::SearchSide::{Both, Now, Then};
    use super::*;
    use proptest::prelude::*;
    use proptest::sample::subsequence;
    use waymark_index::{HitPath, Passage};

    fn found(ids: &[u8]) -> SearchRecord {
        let passage = |id: &u8| Passage { id: id.to_string(), title: String::new(), text: format!("text {id}") };
        let hit = |(rank, id)| Hit { rank, score: 1.0, passage: passage(id), metadata: None, path: HitPath::default() };
        SearchRecord {
            turn: 1,
            query: "q".into(),
            entities: vec![],
            mode: Mode::Passage,
            hits: (1..).zip(ids).map(hit).collect(),
            triples: vec![],
            snapshot: Some(1),
            cached: false,
            neutralised: 0,
            seconds: 0.0,
            error: None,
            cut: None,
            withdrawn: None,
            hidden: None,
        }
    }

    fn list() -> impl Strategy<Value = Vec<u8>> {
        subsequence((0..8u8).collect::<Vec<_>>(), 0..8).prop_shuffle()
    }

    fn sampled(id: u32, logprob: f32) -> Token {
        Token { id, origin: Origin::Policy, logprob: Some(logprob), forced: false }
    }

    proptest! {
        /// The differences suffice to turn one list into the other.
        #[test]
        fn a_search_can_be_mended_by_its_difference(then in list(), now in list()) {
            let difference = search(&found(&then), &found(&now));
            let mut places: Vec<(usize, String)> = difference.added.iter().map(|hit| (hit.rank, hit.id.clone())).collect();
            for (rank, id) in (1..).zip(&then) {
                let id = id.to_string();
                if difference.lost.iter().any(|hit| hit.id == id) {
                    continue;
                }
                let moved = difference.moved.iter().find(|hit| hit.id == id);
                places.push((moved.map_or(rank, |hit| hit.now), id));
            }
            places.sort();
            prop_assert_eq!(places.into_iter().map(|(_, id)| id).collect::<Vec<_>>(), now.iter().map(u8::to_string).collect::<Vec<_>>());
            prop_assert_eq!(difference.equal, then == now);
            prop_assert!(difference.changed.is_empty());
        }

        #[test]
        fn the_divergence_is_the_first_one(then in prop::collection::vec(0..3u32, 0..12), now in prop::collection::vec(0..3u32, 0..12)) {
            let tokens = |ids: &[u32]| ids.iter().map(|&id| sampled(id, -1.0)).collect::<Vec<_>>();
            match divergence(&tokens(&then), &tokens(&now), &Tokenizer::bytes()) {
                None => prop_assert_eq!(then, now),
                Some(found) => {
                    prop_assert_eq!(&then[..found.at], &now[..found.at]);
                    prop_assert_eq!(found.then.map(|token| token.id), then.get(found.at).copied());
                    prop_assert_ne!(then.get(found.at), now.get(found.at));
                }
            }
        }
    }

    #[test]
    fn only_sampled_tokens_are_compared() {
        let given = Token { logprob: None, forced: true, ..sampled(1, 0.0) };
        let then = [given, sampled(2, -1.0), sampled(3, -2.0)];
        let now = [given, sampled(2, -1.5), sampled(3, -1.75)];
        let difference = logprobs(&then, &now);
        assert_eq!(difference, LogprobDifference { tokens: 2, max: Some(0.5), mean: Some(0.375), at: Some(1) });
        let none = LogprobDifference { tokens: 0, max: None, mean: None, at: None };
        assert_eq!(logprobs(&then[..1], &now[..1]), none);
    }

    #[test]
    fn a_changed_text_and_a_failure_are_differences() {
        let mut now = found(&[1, 2]);
        now.hits[1].passage.text.push('!');
        let difference = search(&found(&[1, 2]), &now);
        assert_eq!((difference.equal, difference.changed), (false, vec!["2".to_owned()]));
        let failed = SearchRecord { error: Some("too late".into()), snapshot: None, ..found(&[]) };
        let difference = search(&found(&[]), &failed);
        assert_eq!((difference.equal, difference.error_now.as_deref()), (false, Some("too late")));
    }

    #[test]
    fn searches_are_compared_until_one_is_for_something_else() {
        let other = SearchRecord { query: "other".into(), ..found(&[1]) };
        let memory = SearchRecord { cached: true, ..found(&[1]) };
        let then = [found(&[1]), memory, found(&[2]), found(&[3])];
        let now = [found(&[1]), found(&[2]), other];
        let differences = searches(&then, &now);
        let told: Vec<_> =
            differences.iter().map(|search| (search.made, search.query.as_str(), search.equal)).collect();
        let expected = [(Both, "q", true), (Both, "q", true), (Then, "q", false), (Now, "other", false)];
        assert_eq!(told, expected);
        let ids = |passages: &[PlacedPassage]| passages.iter().map(|hit| hit.id.clone()).collect::<Vec<_>>();
        assert_eq!((ids(&differences[2].lost), ids(&differences[2].added)), (vec!["3".to_owned()], vec![]));
        assert_eq!((ids(&differences[3].lost), ids(&differences[3].added)), (vec![], vec!["1".to_owned()]));
    }
}
