//! Fields of a query that only some modes use.

use waymark_index::Mode;

/// A field of a query that some modes use and others ignore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueryField {
    /// Ranking of passages.
    Ranking,
    /// Parameters of the graph walk.
    Graph,
    /// Number of triples to return.
    Triples,
    /// Entities of the query.
    Entities,
    /// Joint ranking of passages and triples.
    Kag,
}

impl QueryField {
    /// Returns the modes that use the field.
    fn readers(self) -> &'static [Mode] {
        match self {
            QueryField::Ranking => &[Mode::Passage, Mode::Hybrid],
            QueryField::Graph => &[Mode::Graph, Mode::Hybrid, Mode::Triples],
            QueryField::Triples => &[Mode::Triples],
            QueryField::Entities | QueryField::Kag => &[Mode::Kag],
        }
    }

    /// Returns an error message, to follow the field's name, if a search in `mode` ignores the field.
    pub fn unused_reason(self, mode: Mode) -> Option<String> {
        let readers = self.readers();
        let names = || readers.iter().map(Mode::to_string).collect::<Vec<_>>().join(", ");
        (!readers.contains(&mode)).then(|| format!("is not used in the mode {mode}, only in: {}", names()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_read_is_said_with_who_reads_it() {
        let said = "is not used in the mode kag, only in: passage, hybrid";
        assert_eq!(QueryField::Ranking.unused_reason(Mode::Kag).as_deref(), Some(said));
        for part in [QueryField::Ranking, QueryField::Graph, QueryField::Triples, QueryField::Entities, QueryField::Kag]
        {
            assert!(Mode::ALL.iter().any(|&mode| part.unused_reason(mode).is_none()), "{part:?} is read nowhere");
            assert!(Mode::ALL.iter().any(|&mode| part.unused_reason(mode).is_some()), "{part:?} is read everywhere");
        }
    }
}
