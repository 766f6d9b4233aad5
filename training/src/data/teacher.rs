//! Author of supervised trajectories: reads the search results, states the findings, and searches again or answers.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use waymark_agent::BlockingSearch;
use waymark_index::{Mode, Query};

use super::phrases;
use super::reading::{self, ShownPassage};
use super::scripted::Author;
use crate::lessons::lesson::{Conclusion, Hop, Lesson};

/// Passages per search (RouteRAG §B.3).
const PASSAGES_PER_SEARCH: usize = 3;
/// Maximum number of searches (RouteRAG's B = 4).
const MAX_SEARCHES: usize = 4;
/// Approximate number of characters in an observation of 500 tokens.
const OBSERVATION_CHARS: usize = 1900;
/// Search modes, cheapest first.
const MODES: [Mode; 3] = [Mode::Passage, Mode::Graph, Mode::Hybrid];

/// Rates of the teacher's optional behaviors.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Habits {
    /// Share of hops that start with a cheap search known to miss, if there is one.
    pub mislead: f64,
    /// Share of searches that do not try the cheapest mode first: two thirds of them try the graph first, the others
    /// the hybrid mode.
    pub explore: f64,
    /// Share of multi-hop questions that start with a search for the whole question, if it finds at least two of the
    /// facts.
    pub wide: f64,
    /// Share of lessons with an unfindable hop that are kept: up to three different searches miss, and the teacher
    /// guesses the gold answer, which it has not read. Without such lessons a policy only knows searches that succeed
    /// in the end, and repeats itself until its turns are used up when none does.
    pub concede: f64,
    /// Share of searches that prefer a query and mode that rank the answer below the first passage, if there are any.
    /// In a small corpus the first passage nearly always has the answer, and a policy that sees nothing else reads no
    /// further.
    #[serde(default)]
    pub deep: f64,
}

/// Previews the result of a search. Results are cached.
pub struct SearchPreview {
    index: Box<dyn BlockingSearch>,
    seen: Mutex<HashMap<(String, Mode), Arc<str>>>,
}

impl fmt::Debug for SearchPreview {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SearchPreview")
    }
}

impl SearchPreview {
    /// Creates a preview of `index`, which the episodes search too.
    pub fn new(index: impl BlockingSearch + 'static) -> SearchPreview {
        SearchPreview { index: Box::new(index), seen: Mutex::default() }
    }

    /// Approximate observation of a search.
    fn probe(&self, query: &str, mode: Mode) -> Arc<str> {
        let key = (query.to_owned(), mode);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = seen.get(&key) {
            return Arc::clone(known);
        }
        let hits = self
            .index
            .find(&Query::new(query, mode, PASSAGES_PER_SEARCH))
            .map(|evidence| evidence.hits)
            .unwrap_or_default();
        let passages: Vec<_> = hits.into_iter().map(|hit| hit.passage).collect();
        let text = waymark_agent::tag::passages_to_string(&passages, waymark_agent::Format::Evaluation);
        let text: Arc<str> = text.chars().take(OBSERVATION_CHARS).collect::<String>().into();
        seen.insert(key, Arc::clone(&text));
        text
    }
}

/// Reason why a lesson was dropped during play.
pub type DropReason = &'static str;

/// Author of one trajectory.
#[derive(Debug)]
pub struct LessonTeacher {
    lesson: Lesson,
    preview: Arc<SearchPreview>,
    habits: Habits,
    rng: ChaCha8Rng,
    /// Index of the current hop.
    hop_index: usize,
    /// Number of searches so far.
    searches: usize,
    /// Number of searches for the current hop.
    tries_for_hop: usize,
    searched: HashSet<(String, Mode)>,
    last_mode: Option<Mode>,
    /// Number of searches for one hop after which the teacher guesses. `None` never guesses.
    patience: Option<usize>,
    /// If `true`, a passage shown since the last finding contains the words of the answer, in another sense or in a
    /// sentence that was not understood. Then the teacher must not claim that the documents lack the answer.
    answer_words_shown: bool,
    /// If `true`, the answer is a guess.
    guessed: bool,
    drop_reason: Option<DropReason>,
}

impl LessonTeacher {
    /// Creates the teacher of one lesson.
    pub fn new(lesson: Lesson, preview: Arc<SearchPreview>, habits: Habits, seed: u64) -> LessonTeacher {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let patience = rng.random_bool(habits.concede).then(|| rng.random_range(2..=3));
        LessonTeacher {
            lesson,
            preview,
            habits,
            rng,
            hop_index: 0,
            searches: 0,
            tries_for_hop: 0,
            searched: HashSet::new(),
            last_mode: None,
            patience,
            answer_words_shown: false,
            guessed: false,
            drop_reason: None,
        }
    }

    /// Returns `true` if the given answer was not found in any passage.
    pub fn guessed(&self) -> bool {
        self.guessed
    }

    /// Reason why the teacher gave up. `None` if it did not.
    pub fn drop_reason(&self) -> Option<DropReason> {
        self.drop_reason
    }

    /// Reads an observation and returns statements of the findings, from the current hop on, with the last answer
    /// found.
    fn read(&mut self, passages: &[ShownPassage<'_>]) -> (String, Option<String>) {
        let mut thought = Vec::new();
        let mut answer = None;
        while let Some(hop) = self.lesson.hops.get(self.hop_index) {
            let Some(finding) = reading::find_answer(hop, passages) else { break };
            let is_last = self.hop_index + 1 == self.lesson.hops.len() && self.lesson.conclusion == Conclusion::Last;
            thought.push(phrases::found(&mut self.rng, hop, &finding, is_last));
            answer = Some(finding.answer);
            self.hop_index += 1;
            (self.tries_for_hop, self.answer_words_shown) = (0, false);
        }
        if let Some(hop) = self.lesson.hops.get(self.hop_index) {
            self.answer_words_shown |= passages.iter().any(|passage| passage.has(&hop.answer));
        }
        (thought.join(" "), answer)
    }

    /// Next search for the current hop: thought, query and mode. `None` if no search is left.
    fn search(&mut self, opening: bool) -> Option<(String, String, Mode)> {
        let hops = &self.lesson.hops;
        if opening && hops.len() > 1 && self.rng.random_bool(self.habits.wide) {
            let query = self.lesson.question.trim().trim_end_matches('?').to_owned();
            let both = |mode: &Mode| {
                let text = self.preview.probe(&query, *mode);
                let passages = reading::parse_passages(&text);
                hops.iter().take_while(|hop| reading::find_answer(hop, &passages).is_some()).count() > 1
            };
            if let Some(mode) = MODES.into_iter().find(both) {
                return Some((phrases::wide(&mut self.rng, hops), query, mode));
            }
        }
        let hop = hops.get(self.hop_index)?;
        // `hop` borrows the teacher, so the search is chosen with a copy of the generator, which then replaces it.
        let mut rng = self.rng.clone();
        let chosen = self.choose_search(hop, &mut rng);
        self.rng = rng;
        let (query, mode) = chosen?;
        let thought = match (opening, self.last_mode.filter(|_| self.tries_for_hop > 0)) {
            (true, _) => phrases::opening(&mut self.rng, hops),
            (false, Some(before)) => phrases::again(&mut self.rng, mode, before == mode),
            (false, None) => phrases::next(&mut self.rng, hop),
        };
        Some((thought, query, mode))
    }

    /// Picks the cheapest search that finds the hop's answer. A first try may be misleading on purpose (`mislead`). If
    /// no search finds the answer and the teacher is patient, picks one that was not made yet.
    fn choose_search(&self, hop: &Hop, rng: &mut ChaCha8Rng) -> Option<(String, Mode)> {
        let mut queries: Vec<&String> = hop.queries.iter().collect();
        // The bare subject does not express the need, so it is tried last.
        let shuffled = queries.len() - usize::from(hop.queries.len() > 1 && hop.queries.last() == Some(&hop.subject));
        queries[..shuffled].shuffle(rng);
        let modes = match (rng.random_bool(self.habits.explore), rng.random_ratio(1, 3)) {
            (false, _) => MODES,
            (true, false) => [Mode::Graph, Mode::Hybrid, Mode::Passage],
            (true, true) => [Mode::Hybrid, Mode::Graph, Mode::Passage],
        };
        let all = |modes: &[Mode]| {
            let pairs = modes.iter().flat_map(|mode| queries.iter().map(|query| ((*query).clone(), *mode)));
            pairs.filter(|search| !self.searched.contains(search)).collect::<Vec<_>>()
        };
        let open = all(&modes);
        let deep = rng.random_bool(self.habits.deep);
        let deeper = open.iter().find(|search| deep && self.answer_rank(hop, search) > Some(1));
        let Some(right) = deeper.or_else(|| open.iter().find(|search| self.finds(hop, search))).cloned() else {
            // No search succeeds. A patient teacher makes a few that miss, so that its guess follows real attempts.
            return open.into_iter().next().filter(|_| self.patience.is_some_and(|most| self.tries_for_hop < most));
        };
        // Graph and passage searches are cheap, so only these are made on purpose although they miss.
        if self.tries_for_hop == 0 && rng.random_bool(self.habits.mislead) {
            let wrong = all(&[Mode::Passage, Mode::Graph]).into_iter().find(|search| !self.finds(hop, search));
            return Some(wrong.unwrap_or(right));
        }
        Some(right)
    }

    /// Returns `true` if a search shows the answer of a hop.
    fn finds(&self, hop: &Hop, search: &(String, Mode)) -> bool {
        self.answer_rank(hop, search).is_some()
    }

    /// Rank of the passage in which a search shows the answer of a hop. `None` if no passage does.
    fn answer_rank(&self, hop: &Hop, (query, mode): &(String, Mode)) -> Option<usize> {
        reading::find_answer(hop, &reading::parse_passages(&self.preview.probe(query, *mode)))
            .map(|finding| finding.number)
    }

    /// Returns `true` if no search finds the current hop.
    fn is_unfindable(&self) -> bool {
        let Some(hop) = self.lesson.hops.get(self.hop_index) else { return false };
        let mut all = MODES.iter().flat_map(|mode| hop.queries.iter().map(|query| (query.clone(), *mode)));
        !all.any(|search| self.finds(hop, &search))
    }

    /// Last turn, after all hops were found.
    fn answer(&mut self, thought: &str, found: Option<String>) -> String {
        let gold = self.lesson.golds.first().cloned().unwrap_or_default();
        let (why, answer) = match &self.lesson.conclusion {
            Conclusion::Last => {
                let answer = found.unwrap_or(gold);
                (phrases::conclusion(&mut self.rng, &answer), answer)
            }
            Conclusion::Because(why) => (why.clone(), gold),
        };
        turn(&format!("{thought} {why}"), &format!("<answer> {answer} </answer>"))
    }

    /// Last turn of a lesson with an unfound hop: a guess if the teacher is of that kind, otherwise a failure.
    fn give_up(&mut self, thought: &str, drop_reason: DropReason) -> String {
        // A guess is taught only if a better search could not have found the answer.
        if self.patience.is_some() && self.tries_for_hop > 0 && !self.answer_words_shown && self.is_unfindable() {
            self.guessed = true;
            let gold = self.lesson.golds.first().cloned().unwrap_or_default();
            let why = phrases::concession(&mut self.rng, &gold);
            return turn(&format!("{thought} {why}"), &format!("<answer> {gold} </answer>"));
        }
        self.drop_reason = Some(drop_reason);
        turn("I cannot find it.", "<answer> unknown </answer>")
    }
}

/// Turn that consists of a thought and an action.
fn turn(thought: &str, action: &str) -> String {
    format!("<think> {} </think>\n{action}", thought.trim())
}

impl Author for LessonTeacher {
    fn turn(&mut self, observation: Option<&str>) -> String {
        let passages = observation.map(reading::parse_passages).unwrap_or_default();
        let (mut thought, found) = self.read(&passages);
        let opening = observation.is_none();
        if self.hop_index == self.lesson.hops.len() {
            return self.answer(&thought, found);
        }
        let hop: &Hop = &self.lesson.hops[self.hop_index];
        if thought.is_empty() && !opening {
            let titles: Vec<&str> = passages.iter().map(ShownPassage::title).collect();
            thought = phrases::missed(&mut self.rng, hop, &titles);
        }
        if self.searches == MAX_SEARCHES {
            return self.give_up(&thought, "not found within four searches");
        }
        let Some((next, query, mode)) = self.search(opening) else {
            return self.give_up(&thought, "no search finds it");
        };
        self.searches += 1;
        self.tries_for_hop += 1;
        self.last_mode = Some(mode);
        self.searched.insert((query.clone(), mode));
        let marker = match mode {
            Mode::Graph => "[graph]",
            Mode::Hybrid => "[graph][passage]",
            // RouteRAG has no markers for these modes, and the teacher never chooses them.
            Mode::Passage | Mode::Triples | Mode::Kag => "[passage]",
        };
        turn(&format!("{thought} {next}"), &format!("<search> {marker} {query} </search>"))
    }
}
