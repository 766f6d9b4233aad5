//! Author of supervised trajectories: reads the search results, states the findings, and searches again or answers.

use std::collections::HashSet;
use std::sync::Arc;

use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use waymark_index::Mode;

use super::phrases;
use super::preview::SearchPreview;
use super::reading::{self, ShownEvidence};
use super::routing::{LessonSearches, Routing, whole};
use super::scripted::Author;
use super::voice::{SearchDraft, TurnDraft, Voice};
use crate::lessons::lesson::{Conclusion, Hop, Lesson};
use crate::lessons::text::find_words;

/// Maximum number of searches (RouteRAG's B = 4).
const MAX_SEARCHES: usize = 4;

/// Rates of the teacher's optional behaviors.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize, Serialize)]
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
    /// in the end. If none succeeds, it then repeats itself until its turns are used up.
    pub concede: f64,
    /// Share of searches that prefer a query and mode that rank the answer below the first passage, if there are any.
    /// In a small corpus the first passage nearly always has the answer, and a policy that sees nothing else reads no
    /// further.
    #[serde(default)]
    pub deep: f64,
    /// Share of lessons in which the passages that state one of the facts are withheld from every search, and maximum
    /// share of trajectories of a source that are made of such lessons. After two or three searches that miss, the
    /// teacher states that it found nothing.
    #[serde(default)]
    pub withhold: f64,
    /// Share of searches without a finding that are withdrawn before the next one, in protocols with such an action.
    /// Serialized only if it is not 0, so that the facts of recipes without the habit do not name it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub backtrack: f64,
}

fn is_zero(share: &f64) -> bool {
    *share == 0.0
}

/// Reason why a lesson was dropped during play.
pub type DropReason = &'static str;

/// Settings of the teacher for all lessons over one index.
#[derive(Debug, Clone)]
pub struct LessonTeacherSettings {
    /// Preview of the searches, over the same index.
    pub preview: Arc<SearchPreview>,
    /// Form of the turns.
    pub voice: &'static dyn Voice,
    /// Rates of the optional behaviors.
    pub habits: Habits,
    /// Choice of modes by what they find. `None` takes the cheapest that finds the fact.
    pub routing: Option<Routing>,
}

/// Author of one trajectory.
#[derive(Debug)]
pub struct LessonTeacher {
    lesson: Lesson,
    settings: LessonTeacherSettings,
    searches: LessonSearches,
    rng: ChaCha8Rng,
    /// Number of turns so far.
    turns: usize,
    /// Index of the current hop.
    hop_index: usize,
    /// Number of searches so far.
    searches_made: usize,
    /// Number of searches for the current hop.
    tries_for_hop: usize,
    searched: HashSet<(String, Mode)>,
    last_mode: Option<Mode>,
    /// Number of searches for one hop after which the teacher guesses, or states that it found nothing. `None` never
    /// gives up.
    patience: Option<usize>,
    /// Index of the hop whose answer is withheld.
    withheld: Option<usize>,
    /// If `true`, evidence shown since the last finding contains the words of the answer, in another sense or in a
    /// sentence that was not understood. Then the teacher must not claim that the evidence lacks the answer.
    answer_words_shown: bool,
    /// If `true`, the last turn withdrew a search.
    withdrew: bool,
    ending: TeacherEnding,
}

/// End of a trajectory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TeacherEnding {
    /// The answer was read, or follows from what was read.
    #[default]
    Answered,
    /// The answer is a guess.
    Guessed,
    /// The teacher stated that it found nothing.
    Declined,
    /// The lesson failed, for this reason.
    Dropped(DropReason),
}

impl LessonTeacher {
    /// Creates the teacher of one lesson.
    pub fn new(lesson: Lesson, settings: LessonTeacherSettings, seed: u64) -> LessonTeacher {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let habits = settings.habits;
        let patience = rng.random_bool(habits.concede).then(|| rng.random_range(2..=3));
        // Drawn only if there is such a habit, so that recipes without it keep their lessons.
        let withholds = habits.withhold > 0.0 && rng.random_bool(habits.withhold) && !lesson.hops.is_empty();
        let withheld = withholds.then(|| rng.random_range(0..lesson.hops.len()));
        // Without its passages a lesson cannot end well, so the teacher must give up at some point.
        let patience = if withheld.is_some() { Some(rng.random_range(2..=3)) } else { patience };
        LessonTeacher {
            searches: LessonSearches::new(Arc::clone(&settings.preview), settings.voice),
            lesson,
            settings,
            rng,
            turns: 0,
            hop_index: 0,
            searches_made: 0,
            tries_for_hop: 0,
            searched: HashSet::new(),
            last_mode: None,
            patience,
            withheld,
            answer_words_shown: false,
            withdrew: false,
            ending: TeacherEnding::default(),
        }
    }

    /// End of the trajectory.
    pub fn ending(&self) -> TeacherEnding {
        self.ending
    }

    /// IDs of the passages to withhold from the searches of the episode: those that state the answer of one hop.
    pub fn without(&self) -> Vec<String> {
        let Some(hop) = self.withheld.and_then(|at| self.lesson.hops.get(at)) else { return Vec::new() };
        let states = |text: &str| find_words(text, &hop.answer).is_some();
        let sources = hop.sources.iter().filter(|source| states(&source.text) || states(&source.title));
        sources.map(|source| source.id.clone()).collect()
    }

    /// Returns `true` if the modes disagree on the lesson. Always `true` if the settings do not require that, or if the
    /// lesson has no hops.
    pub fn is_contested(&self) -> bool {
        let asked = self.settings.routing.is_some_and(|routing| routing.contested);
        !asked || self.lesson.hops.is_empty() || self.searches.disagree(&self.lesson)
    }

    /// Reads an observation and returns statements of the findings, from the current hop on, with the last answer
    /// found.
    fn read(&mut self, shown: &[ShownEvidence<'_>]) -> (String, Option<String>) {
        let mut thought = Vec::new();
        let mut answer = None;
        while let Some(hop) = self.lesson.hops.get(self.hop_index) {
            let Some(finding) = reading::find_answer(hop, shown) else { break };
            let is_last = self.hop_index + 1 == self.lesson.hops.len() && self.lesson.conclusion == Conclusion::Last;
            thought.push(self.settings.voice.finding(&mut self.rng, hop, &finding, is_last));
            answer = Some(finding.answer);
            self.hop_index += 1;
            self.tries_for_hop = 0;
            self.answer_words_shown = false;
        }
        if let Some(hop) = self.lesson.hops.get(self.hop_index) {
            self.answer_words_shown |= shown.iter().any(|evidence| evidence.has(&hop.answer));
        }
        (thought.join(" "), answer)
    }

    /// Next search for the current hop: thought, query and mode. `None` if no search is left.
    fn search(&mut self, opening: bool) -> Option<(String, String, Mode)> {
        if opening && let Some(mode) = self.wide_mode() {
            let thought = phrases::wide(&mut self.rng, &self.lesson.hops);
            return Some((thought, whole(&self.lesson), mode));
        }
        let hops = &self.lesson.hops;
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

    /// Mode of a first search for the whole question. `None` begins with the first hop.
    fn wide_mode(&mut self) -> Option<Mode> {
        if self.lesson.hops.len() < 2 {
            return None;
        }
        if self.settings.routing.is_some() {
            return self.searches.best_wide(&self.lesson);
        }
        if !self.rng.random_bool(self.settings.habits.wide) {
            return None;
        }
        let query = whole(&self.lesson);
        let both = |mode: &Mode| self.searches.hops_found(&self.lesson.hops, &query, *mode) > 1;
        self.searches.modes.iter().copied().find(both)
    }

    /// Picks a search that finds the hop's answer: with routing in the mode that ranks it highest, otherwise in the
    /// cheapest. A first try may be misleading on purpose (`mislead`). If no search finds the answer and the teacher is
    /// patient, picks one that was not made yet.
    fn choose_search(&self, hop: &Hop, rng: &mut ChaCha8Rng) -> Option<(String, Mode)> {
        let habits = self.settings.habits;
        let mut queries: Vec<&String> = hop.queries.iter().collect();
        // The bare subject does not express the need, so it is tried last.
        let shuffled = queries.len() - usize::from(hop.queries.len() > 1 && hop.queries.last() == Some(&hop.subject));
        queries[..shuffled].shuffle(rng);
        // Stable, so that queries of one kind keep their order.
        queries.sort_by_key(|query| !self.settings.voice.prefers(query));
        let modes = self.mode_order(rng);
        let all = |modes: &[Mode]| {
            let pairs = modes.iter().flat_map(|mode| queries.iter().map(|query| ((*query).clone(), *mode)));
            pairs.filter(|search| !self.searched.contains(search)).collect::<Vec<_>>()
        };
        let open = all(&modes);
        let deep = rng.random_bool(habits.deep);
        let deeper = open.iter().find(|search| deep && self.answer_rank(hop, search) > Some(1));
        let routed = || {
            let best = |query: &&String| Some(((*query).clone(), self.searches.best_mode(hop, query)?));
            queries.iter().filter_map(best).find(|search| !self.searched.contains(search))
        };
        let right = match (deeper, self.settings.routing) {
            (Some(deeper), _) => Some(deeper.clone()),
            (None, Some(_)) => routed(),
            (None, None) => open.iter().find(|search| self.finds(hop, search)).cloned(),
        };
        let Some(right) = right else {
            // No search succeeds. A patient teacher makes a few that miss, so that its end follows real attempts.
            return open.into_iter().next().filter(|_| self.patience.is_some_and(|most| self.tries_for_hop < most));
        };
        if self.tries_for_hop == 0 && rng.random_bool(habits.mislead) {
            // Hybrid searches cost most, so only the others are made on purpose although they miss.
            let cheap = &self.searches.modes[..self.searches.modes.len().min(2)];
            let wrong = all(cheap).into_iter().find(|search| !self.finds(hop, search));
            return Some(wrong.unwrap_or(right));
        }
        Some(right)
    }

    /// Modes in the order in which they are tried.
    fn mode_order(&self, rng: &mut ChaCha8Rng) -> Vec<Mode> {
        let mut modes = self.searches.modes.clone();
        match (rng.random_bool(self.settings.habits.explore), rng.random_ratio(1, 3)) {
            (true, false) if modes.len() > 2 => modes.rotate_left(1),
            (true, true) => modes.reverse(),
            _ => {}
        }
        modes
    }

    /// Returns `true` if a search shows the answer of a hop.
    fn finds(&self, hop: &Hop, search: &(String, Mode)) -> bool {
        self.answer_rank(hop, search).is_some()
    }

    fn answer_rank(&self, hop: &Hop, (query, mode): &(String, Mode)) -> Option<usize> {
        self.searches.answer_rank(hop, query, *mode)
    }

    /// Returns `true` if no search finds the current hop.
    fn is_unfindable(&self) -> bool {
        let Some(hop) = self.lesson.hops.get(self.hop_index) else { return false };
        let modes = self.searches.modes.iter();
        let mut all = modes.flat_map(|mode| hop.queries.iter().map(|query| (query.clone(), *mode)));
        !all.any(|search| self.finds(hop, &search))
    }

    /// Last turn, after all hops were found.
    fn answer(&mut self, found: &str, answer: Option<String>) -> String {
        let gold = self.lesson.golds.first().cloned().unwrap_or_default();
        let (why, answer) = match &self.lesson.conclusion {
            Conclusion::Last => {
                let answer = answer.unwrap_or(gold);
                (phrases::conclusion(&mut self.rng, &answer), answer)
            }
            Conclusion::Because(why) => (why.clone(), gold),
        };
        self.settings.voice.answer(&TurnDraft { number: self.turns, found, plan: &why }, &answer)
    }

    /// Last turn of a lesson with an unfound hop: a plain statement if its passages were withheld, a guess if the
    /// teacher has a `patience` and no search finds the hop, otherwise a failure.
    fn give_up(&mut self, found: &str, drop_reason: DropReason) -> String {
        let number = self.turns;
        let voice = self.settings.voice;
        let tried = self.tries_for_hop > 0 && !self.answer_words_shown;
        if self.withheld == Some(self.hop_index) && tried {
            self.ending = TeacherEnding::Declined;
            let plan = phrases::resignation(&mut self.rng, &self.lesson.hops[self.hop_index]);
            let statement = phrases::nothing_found(&mut self.rng);
            return voice.decline(&TurnDraft { number, found, plan: &plan }, &statement);
        }
        // A guess is taught only if a better search could not have found the answer.
        if self.withheld.is_none() && self.patience.is_some() && tried && self.is_unfindable() {
            self.ending = TeacherEnding::Guessed;
            let gold = self.lesson.golds.first().cloned().unwrap_or_default();
            let plan = phrases::concession(&mut self.rng, &gold);
            return voice.answer(&TurnDraft { number, found, plan: &plan }, &gold);
        }
        // The text does not matter: a dropped lesson makes no sample.
        self.ending = TeacherEnding::Dropped(drop_reason);
        voice.answer(&TurnDraft { number, found: "", plan: "I cannot find it." }, "unknown")
    }

    /// Turn that withdraws a search without a finding. `None` if there was none, if the protocol has no such action, or
    /// if no other search follows.
    fn backtrack(&mut self, found: &str) -> Option<String> {
        let follows = self.searches_made < MAX_SEARCHES && !self.resigns();
        let due = self.settings.habits.backtrack > 0.0 && follows && self.tries_for_hop > 0 && !self.withdrew;
        if !due || !self.rng.random_bool(self.settings.habits.backtrack) {
            return None;
        }
        let plan = phrases::withdrawal(&mut self.rng);
        self.settings.voice.backtrack(&TurnDraft { number: self.turns, found, plan: &plan })
    }

    /// Returns `true` if the teacher has made enough searches for a hop that is withheld.
    fn resigns(&self) -> bool {
        let spent = self.patience.is_some_and(|most| self.tries_for_hop >= most);
        spent && self.withheld == Some(self.hop_index)
    }
}

impl Author for LessonTeacher {
    fn turn(&mut self, observation: Option<&str>) -> String {
        self.turns += 1;
        let shown = observation.map(|text| self.settings.voice.read(text)).unwrap_or_default();
        let (mut found, answer) = self.read(&shown);
        let opening = observation.is_none();
        if self.hop_index == self.lesson.hops.len() {
            return self.answer(&found, answer);
        }
        if found.is_empty() && !opening && !self.withdrew {
            found = phrases::missed(&mut self.rng, &self.lesson.hops[self.hop_index], &shown);
            if let Some(turn) = self.backtrack(&found) {
                self.withdrew = true;
                return turn;
            }
        }
        self.withdrew = false;
        if self.searches_made == MAX_SEARCHES || self.resigns() {
            return self.give_up(&found, "not found within four searches");
        }
        let Some((plan, query, mode)) = self.search(opening) else {
            return self.give_up(&found, "no search finds it");
        };
        self.searches_made += 1;
        self.tries_for_hop += 1;
        self.last_mode = Some(mode);
        self.searched.insert((query.clone(), mode));
        let entity = self.lesson.hops[self.hop_index].subject.as_str();
        let draft = TurnDraft { number: self.turns, found: &found, plan: &plan };
        self.settings.voice.search(&draft, &SearchDraft { query: &query, mode, entity })
    }
}
