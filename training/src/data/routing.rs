//! Lessons that teach the choice of a mode: a comparison of the facts that searches find in each mode.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use waymark_index::Mode;

use super::preview::SearchPreview;
use super::reading;
use super::voice::Voice;
use crate::lessons::lesson::{Hop, Lesson};

/// Settings of lessons whose searches use the mode that finds the support best. Without these settings, the teacher
/// takes the cheapest mode that finds it, or explores ([`Habits::explore`](super::teacher::Habits::explore)).
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Routing {
    /// If `true`, keeps only lessons on which the modes disagree; see [`LessonSearches::disagree`].
    pub contested: bool,
    /// Maximum share of the trajectories of a source whose first search has the same mode. 1 keeps all.
    pub most: f64,
}

/// Searches for the facts of lessons, in each mode.
#[derive(Debug, Clone)]
pub struct LessonSearches {
    preview: Arc<SearchPreview>,
    voice: &'static dyn Voice,
    /// Modes to choose from, cheapest first.
    pub(super) modes: Vec<Mode>,
}

impl LessonSearches {
    /// Creates searches with the modes that `voice` can name, or with the policy's own mode if it can name none.
    pub fn new(preview: Arc<SearchPreview>, voice: &'static dyn Voice) -> LessonSearches {
        let modes = match voice.modes() {
            [] => vec![preview.mode()],
            named => named.to_vec(),
        };
        LessonSearches { preview, voice, modes }
    }

    /// Returns the rank of the evidence in which a search shows the answer of a hop. `None` if the search does not show
    /// it.
    pub fn answer_rank(&self, hop: &Hop, query: &str, mode: Mode) -> Option<usize> {
        let text = self.probe(hop, query, mode);
        reading::find_answer(hop, &self.voice.read(&text)).map(|finding| finding.number)
    }

    /// Returns the observation of a search for a hop, with the query in the voice's form.
    fn probe(&self, hop: &Hop, query: &str, mode: Mode) -> Arc<str> {
        self.preview.probe(&self.voice.query(query), self.voice.entities(&hop.subject), mode)
    }

    /// Returns the number of hops, from the first on, whose answers one search for `query` shows.
    pub fn hops_found(&self, hops: &[Hop], query: &str, mode: Mode) -> usize {
        let Some(first) = hops.first() else { return 0 };
        let text = self.probe(first, query, mode);
        let shown = self.voice.read(&text);
        hops.iter().take_while(|hop| reading::find_answer(hop, &shown).is_some()).count()
    }

    /// Returns the mode that ranks the answer of a hop highest for this query; among equals, the cheapest. `None` if no
    /// mode finds the answer.
    pub fn best_mode(&self, hop: &Hop, query: &str) -> Option<Mode> {
        let ranked = self.modes.iter().filter_map(|&mode| Some((self.answer_rank(hop, query, mode)?, mode)));
        // `min_by_key` keeps the first of equal ranks.
        ranked.min_by_key(|(rank, _)| *rank).map(|(_, mode)| mode)
    }

    /// Returns the mode whose search for the whole question finds the most facts: at least two, and more than the
    /// cheapest mode finds. `None` if there is none.
    pub fn best_wide(&self, lesson: &Lesson) -> Option<Mode> {
        let query = whole(lesson);
        let (&cheapest, others) = self.modes.split_first()?;
        let mut best = (self.hops_found(&lesson.hops, &query, cheapest).max(1), None);
        for &mode in others {
            let found = self.hops_found(&lesson.hops, &query, mode);
            if found > best.0 {
                best = (found, Some(mode));
            }
        }
        best.1
    }

    /// Returns `true` if one mode finds a fact of the lesson and another mode, with the same query, does not, or if the
    /// modes find different numbers of facts for the whole question.
    pub fn disagree(&self, lesson: &Lesson) -> bool {
        let differ = |found: &dyn Fn(Mode) -> usize| {
            let mut counts = self.modes.iter().map(|&mode| found(mode));
            let first = counts.next();
            counts.any(|count| Some(count) != first)
        };
        let found = |hop: &Hop, query: &str, mode| usize::from(self.answer_rank(hop, query, mode).is_some());
        let hops = || lesson.hops.iter().filter_map(|hop| Some((hop, hop.queries.first()?)));
        let several = lesson.hops.len() > 1;
        several && differ(&|mode| self.hops_found(&lesson.hops, &whole(lesson), mode))
            || hops().any(|(hop, query)| differ(&|mode| found(hop, query, mode)))
    }
}

/// Returns the query for a whole question.
pub fn whole(lesson: &Lesson) -> String {
    lesson.question.trim().trim_end_matches('?').to_owned()
}
