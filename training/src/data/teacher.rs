//! The author of supervised trajectories: reads what was found, says so, and searches on or answers.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use waymark::agent::Find;
use waymark_index::{Mode, Query};

use super::lesson::{Close, Hop, Lesson};
use super::phrase;
use super::reading::{self, Shown};
use super::script::Author;

/// Passages per search: RouteRAG §B.3.
const K: usize = 3;
/// Searches, at most: RouteRAG's B = 4.
const MOST: usize = 4;
/// About as many characters as fit into an observation of 500 tokens.
const SEEN: usize = 1900;
/// The modes, the cheapest first.
const MODES: [Mode; 3] = [Mode::Passage, Mode::Graph, Mode::Hybrid];

/// How often the teacher does what it could leave.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Habits {
    /// Share of hops that begin with a search that is known to miss, where there is a cheap one.
    pub mislead: f64,
    /// Share of searches that do not try the cheapest mode first: two of three then begin with the graph, the others with
    /// graph and passages.
    pub explore: f64,
    /// Share of questions of several hops that begin with one search for all, where that finds two of them.
    pub wide: f64,
    /// Share of plays of a lesson with a hop that no search finds which are taught all the same: up to three different
    /// searches miss, and the teacher gives the gold as its guess, though it read it nowhere. Without them a policy knows
    /// only searches that find in the end, and where none does it repeats itself until its turns are used up.
    pub concede: f64,
    /// Share of searches that prefer words and modes by which what is looked for stands below the first passage, where
    /// there are such. Of its own the first passage has it nearly always in a small corpus, and a policy that saw nothing
    /// else reads no further.
    #[serde(default)]
    pub deep: f64,
}

/// Tells beforehand what a search would show.
pub struct Prober {
    index: Box<dyn Find>,
    seen: Mutex<HashMap<(String, Mode), Arc<str>>>,
}

impl fmt::Debug for Prober {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Prober")
    }
}

impl Prober {
    /// A prober of the index that the episodes search.
    pub fn new(index: impl Find + 'static) -> Prober {
        Prober { index: Box::new(index), seen: Mutex::default() }
    }

    /// About what the policy would see.
    fn probe(&self, query: &str, mode: Mode) -> Arc<str> {
        let key = (query.to_owned(), mode);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = seen.get(&key) {
            return Arc::clone(known);
        }
        let hits = self.index.find(&Query::new(query, mode, K)).map(|evidence| evidence.hits).unwrap_or_default();
        let passages: Vec<_> = hits.into_iter().map(|hit| hit.passage).collect();
        let text = waymark::agent::tag::passages_to_string(&passages, waymark::agent::Format::Evaluation);
        let text: Arc<str> = text.chars().take(SEEN).collect::<String>().into();
        seen.insert(key, Arc::clone(&text));
        text
    }
}

/// Why a lesson was not taught to its end.
pub type Failure = &'static str;

/// The author of one trajectory.
#[derive(Debug)]
pub struct Teacher {
    lesson: Lesson,
    prober: Arc<Prober>,
    habits: Habits,
    rng: ChaCha8Rng,
    /// The hop that is looked for.
    at: usize,
    /// Searches made.
    searches: usize,
    /// Searches made for this hop.
    tries: usize,
    made: HashSet<(String, Mode)>,
    last: Option<Mode>,
    /// After how many searches for one hop the teacher concedes, if it does.
    patience: Option<usize>,
    /// Whether a passage shown since the last finding has the words that are looked for, told of something else or in a
    /// way that is not understood: nobody could say then that the documents do not tell.
    shown: bool,
    /// Whether the answer is a guess.
    guessed: bool,
    failure: Option<Failure>,
}

impl Teacher {
    /// A teacher of one lesson.
    pub fn new(lesson: Lesson, prober: Arc<Prober>, habits: Habits, seed: u64) -> Teacher {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let patience = rng.random_bool(habits.concede).then(|| rng.random_range(2..=3));
        Teacher {
            lesson,
            prober,
            habits,
            rng,
            at: 0,
            searches: 0,
            tries: 0,
            made: HashSet::new(),
            last: None,
            patience,
            shown: false,
            guessed: false,
            failure: None,
        }
    }

    /// Whether its answer is a guess: what it gave was not found.
    pub fn guessed(&self) -> bool {
        self.guessed
    }

    /// Why it gave up, where it did.
    pub fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// Reads an observation: what it says of the hops from this one on.
    fn read(&mut self, passages: &[Shown<'_>]) -> (String, Option<String>) {
        let (mut said, mut answer) = (Vec::new(), None);
        while let Some(hop) = self.lesson.hops.get(self.at) {
            let Some(finding) = reading::read(hop, passages) else { break };
            let last = self.at + 1 == self.lesson.hops.len() && self.lesson.close == Close::Last;
            said.push(phrase::found(&mut self.rng, hop, &finding, last));
            answer = Some(finding.answer);
            self.at += 1;
            (self.tries, self.shown) = (0, false);
        }
        if let Some(hop) = self.lesson.hops.get(self.at) {
            self.shown |= passages.iter().any(|passage| passage.has(&hop.answer));
        }
        (said.join(" "), answer)
    }

    /// The next search for the hop at hand: what to say and where to look.
    fn search(&mut self, opening: bool) -> Option<(String, String, Mode)> {
        let hops = &self.lesson.hops;
        if opening && hops.len() > 1 && self.rng.random_bool(self.habits.wide) {
            let query = self.lesson.question.trim().trim_end_matches('?').to_owned();
            let both = |mode: &Mode| {
                let text = self.prober.probe(&query, *mode);
                let passages = reading::shown(&text);
                hops.iter().take_while(|hop| reading::read(hop, &passages).is_some()).count() > 1
            };
            if let Some(mode) = MODES.into_iter().find(both) {
                return Some((phrase::wide(&mut self.rng, hops), query, mode));
            }
        }
        let hop = hops.get(self.at)?;
        let mut rng = self.rng.clone();
        let chosen = self.choose(hop, &mut rng);
        self.rng = rng;
        let (query, mode) = chosen?;
        let said = match (opening, self.last.filter(|_| self.tries > 0)) {
            (true, _) => phrase::opening(&mut self.rng, hops),
            (false, Some(before)) => phrase::again(&mut self.rng, mode, before == mode),
            (false, None) => phrase::next(&mut self.rng, hop),
        };
        Some((said, query, mode))
    }

    /// A search that finds it, in the cheapest mode that does. Now and then, at the first try, one that does not; and
    /// where none does, one that was not made yet.
    fn choose(&self, hop: &Hop, rng: &mut ChaCha8Rng) -> Option<(String, Mode)> {
        let mut queries: Vec<&String> = hop.queries.iter().collect();
        // The bare subject says nothing of what is needed: it comes last.
        let shuffled = queries.len() - usize::from(hop.queries.len() > 1 && hop.queries.last() == Some(&hop.subject));
        queries[..shuffled].shuffle(rng);
        let modes = match (rng.random_bool(self.habits.explore), rng.random_ratio(1, 3)) {
            (false, _) => MODES,
            (true, false) => [Mode::Graph, Mode::Hybrid, Mode::Passage],
            (true, true) => [Mode::Hybrid, Mode::Graph, Mode::Passage],
        };
        let all = |modes: &[Mode]| {
            let pairs = modes.iter().flat_map(|mode| queries.iter().map(|query| ((*query).clone(), *mode)));
            pairs.filter(|search| !self.made.contains(search)).collect::<Vec<_>>()
        };
        let open = all(&modes);
        let deep = rng.random_bool(self.habits.deep);
        let deeper = open.iter().find(|search| deep && self.place(hop, search) > Some(1));
        let Some(right) = deeper.or_else(|| open.iter().find(|search| self.finds(hop, search))).cloned() else {
            return open.into_iter().next().filter(|_| self.patience.is_some_and(|most| self.tries < most));
        };
        if self.tries == 0 && rng.random_bool(self.habits.mislead) {
            let wrong = all(&[Mode::Passage, Mode::Graph]).into_iter().find(|search| !self.finds(hop, search));
            return Some(wrong.unwrap_or(right));
        }
        Some(right)
    }

    /// Whether a search shows what the hop asks for.
    fn finds(&self, hop: &Hop, search: &(String, Mode)) -> bool {
        self.place(hop, search).is_some()
    }

    /// The number of the passage in which a search shows what the hop asks for.
    fn place(&self, hop: &Hop, (query, mode): &(String, Mode)) -> Option<usize> {
        reading::read(hop, &reading::shown(&self.prober.probe(query, *mode))).map(|finding| finding.number)
    }

    /// Whether no search at all would have found the hop at hand.
    fn is_lost(&self) -> bool {
        let Some(hop) = self.lesson.hops.get(self.at) else { return false };
        let mut all = MODES.iter().flat_map(|mode| hop.queries.iter().map(|query| (query.clone(), *mode)));
        !all.any(|search| self.finds(hop, &search))
    }

    /// The last turn, once everything is found.
    fn answer(&mut self, said: &str, found: Option<String>) -> String {
        let gold = self.lesson.golds.first().cloned().unwrap_or_default();
        let (why, answer) = match &self.lesson.close {
            Close::Last => {
                let answer = found.unwrap_or(gold);
                (phrase::conclusion(&mut self.rng, &answer), answer)
            }
            Close::Because(why) => (why.clone(), gold),
        };
        turn(&format!("{said} {why}"), &format!("<answer> {answer} </answer>"))
    }

    /// The end of a lesson whose hop was not found: a guess, of a teacher that concedes.
    fn give_up(&mut self, said: &str, failure: Failure) -> String {
        if self.patience.is_some() && self.tries > 0 && !self.shown && self.is_lost() {
            self.guessed = true;
            let gold = self.lesson.golds.first().cloned().unwrap_or_default();
            let why = phrase::concession(&mut self.rng, &gold);
            return turn(&format!("{said} {why}"), &format!("<answer> {gold} </answer>"));
        }
        self.failure = Some(failure);
        turn("I cannot find it.", "<answer> unknown </answer>")
    }
}

/// A turn of a thought and what it does.
fn turn(thought: &str, action: &str) -> String {
    format!("<think> {} </think>\n{action}", thought.trim())
}

impl Author for Teacher {
    fn turn(&mut self, observation: Option<&str>) -> String {
        let passages = observation.map(reading::shown).unwrap_or_default();
        let (mut said, found) = self.read(&passages);
        let opening = observation.is_none();
        if self.at == self.lesson.hops.len() {
            return self.answer(&said, found);
        }
        let hop: &Hop = &self.lesson.hops[self.at];
        if said.is_empty() && !opening {
            let titles: Vec<&str> = passages.iter().map(Shown::title).collect();
            said = phrase::missed(&mut self.rng, hop, &titles);
        }
        if self.searches == MOST {
            return self.give_up(&said, "not found in four searches");
        }
        let Some((next, query, mode)) = self.search(opening) else {
            return self.give_up(&said, "no search finds it");
        };
        self.searches += 1;
        self.tries += 1;
        self.last = Some(mode);
        self.made.insert((query.clone(), mode));
        let marker = match mode {
            Mode::Graph => "[graph]",
            Mode::Hybrid => "[graph][passage]",
            Mode::Passage | Mode::Triples | Mode::Kag => "[passage]",
        };
        turn(&format!("{said} {next}"), &format!("<search> {marker} {query} </search>"))
    }
}
