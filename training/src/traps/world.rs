//! The question of the behaviors, its passages and facts, and a search that finds them by name.

use futures::future::BoxFuture;
use waymark_agent::{Search, SearchError, SearchQuery};
use waymark_index::{Evidence, Hit, HitPath, Mode, Passage, TripleHit};

/// A question of two hops.
pub(super) const QUESTION: &str = "Where was the director of Low Tide born?";

/// Right answer of [`QUESTION`].
pub(super) const RIGHT: &str = "Leeds";

/// Wrong answer to [`QUESTION`].
pub(super) const WRONG: &str = "Paris";

/// A fact on the way to the answer, with the passage that states it and the query that finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WorldFact {
    /// Subject, which is also the passage's title and a part of its ID.
    pub(super) subject: &'static str,
    pub(super) relation: &'static str,
    pub(super) object: &'static str,
    pub(super) query: &'static str,
    /// Text of the passage.
    pub(super) text: &'static str,
}

/// Both facts, in the order of the hops.
pub(super) const HOPS: [WorldFact; 2] = [
    WorldFact {
        subject: "Low Tide",
        relation: "was directed by",
        object: "Ann Lee",
        query: "Who directed Low Tide?",
        text: "Low Tide is a film about fishermen that was directed by Ann Lee.",
    },
    WorldFact {
        subject: "Ann Lee",
        relation: "was born in",
        object: RIGHT,
        query: "In what city was Ann Lee born?",
        text: "Ann Lee makes films. She was born in Leeds and lives abroad.",
    },
];

impl WorldFact {
    /// Text of the passage, title first.
    pub(super) fn support(&self) -> String {
        format!("{} {}", self.subject, self.text)
    }

    fn hit(&self) -> Hit {
        hit(self.subject, self.text)
    }

    fn triple(&self, rank: usize) -> TripleHit {
        TripleHit {
            rank,
            score: 1.0,
            subject: self.subject.to_owned(),
            relation: self.relation.to_owned(),
            object: self.object.to_owned(),
            passages: vec![self.subject.to_owned()],
        }
    }
}

fn hit(title: &str, text: &str) -> Hit {
    let passage = Passage { id: title.to_owned(), title: title.to_owned(), text: text.to_owned() };
    Hit { rank: 1, score: 1.0, passage, metadata: None, path: HitPath::default() }
}

/// Search that finds the passage, and in modes with triples the fact, whose subject a query names. Any other query
/// finds an irrelevant passage.
#[derive(Debug)]
pub(super) struct WorldSearch;

impl Search for WorldSearch {
    fn search(&self, query: SearchQuery) -> BoxFuture<'_, Result<Evidence, SearchError>> {
        let mode = query.wanted.mode;
        let text = &query.wanted.text;
        let named = HOPS.iter().find(|hop| text.contains(hop.subject));
        let hits = vec![named.map_or_else(|| hit(text, "Nothing here has to do with that question."), WorldFact::hit)];
        let mut evidence = Evidence::of(1, mode, hits);
        if matches!(mode, Mode::Triples | Mode::Kag | Mode::Hypergraph) {
            // In one ranking with passages, the fact stands behind its passage.
            let rank = if mode == Mode::Kag { 2 } else { 1 };
            evidence.triples.extend(named.map(|hop| hop.triple(rank)));
        }
        Box::pin(async move { Ok(evidence) })
    }

    fn modes(&self) -> Vec<Mode> {
        Mode::ALL.to_vec()
    }
}
