//! The parts of a query that only some modes read.

use waymark_index::Mode;

/// A part of a query that some modes read and others would pass over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// How passages are ranked.
    Ranking,
    /// How the walk over the graph goes.
    Graph,
    /// How many triples are returned.
    Triples,
    /// What the query is about.
    Entities,
    /// How passages and triples are ranked together.
    Kag,
}

impl Part {
    /// The modes that read it.
    fn readers(self) -> &'static [Mode] {
        match self {
            Part::Ranking => &[Mode::Passage, Mode::Hybrid],
            Part::Graph => &[Mode::Graph, Mode::Hybrid, Mode::Triples],
            Part::Triples => &[Mode::Triples],
            Part::Entities | Part::Kag => &[Mode::Kag],
        }
    }

    /// Why it cannot be given to a search in `mode`, to follow its name; nothing where it can.
    pub(crate) fn unread(self, mode: Mode) -> Option<String> {
        let readers = self.readers();
        let names = || readers.iter().map(Mode::to_string).collect::<Vec<_>>().join(", ");
        (!readers.contains(&mode)).then(|| format!("is not read in the mode {mode}, only in: {}", names()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_read_is_said_with_who_reads_it() {
        let said = "is not read in the mode kag, only in: passage, hybrid";
        assert_eq!(Part::Ranking.unread(Mode::Kag).as_deref(), Some(said));
        for part in [Part::Ranking, Part::Graph, Part::Triples, Part::Entities, Part::Kag] {
            assert!(Mode::ALL.iter().any(|&mode| part.unread(mode).is_none()), "{part:?} is read nowhere");
            assert!(Mode::ALL.iter().any(|&mode| part.unread(mode).is_some()), "{part:?} is read everywhere");
        }
    }
}
