//! The lessons of a source, in the order in which they are played.

use std::collections::BTreeMap;
use std::path::Path;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::chain;
use super::compose;
use super::corpus::Corpus;
use super::guard::Guard;
use super::lesson::Lesson;
use super::question::{Question, RowError, rows};
use super::recipe::{Form, Source};
use super::single::{self, Known};

/// Why a question that is measured is not taught.
const MEASURED: &str = "kept out: measured";

/// What can be taught from a source.
#[derive(Debug, Default)]
pub struct Course {
    /// Lessons, each with how often its question was played before.
    pub lessons: Vec<(Lesson, usize)>,
    /// Of how many questions no lesson could be made, by why.
    pub refused: BTreeMap<&'static str, usize>,
}

impl Course {
    /// Reads a source in the folder `data`. The order is shuffled by `seed`; the variants of a question come after the
    /// first play of all questions, but for single-hop questions, whose relations take turns.
    ///
    /// # Errors
    /// [`RowError`] where a file of it cannot be read.
    pub fn open(source: &Source, data: &Path, guard: &Guard, seed: u64) -> Result<Course, RowError> {
        let corpus = Corpus::new(rows(&data.join(&source.corpus))?);
        let questions: Vec<Question> =
            source.questions.as_ref().map_or(Ok(Vec::new()), |path| rows(&data.join(path)))?;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let known = || known(&questions, &corpus, source, data);
        let teach: fn(&Question, &Corpus) -> Result<Lesson, chain::Refusal> = match source.form {
            Form::Single => return Ok(Course::of_known(known()?, &source.dataset, source.variants, guard, &mut rng)),
            Form::Composed => {
                let (lessons, kept_out) = compose::lessons(&known()?, guard, &source.dataset, &mut rng);
                let refused = (kept_out > 0).then_some((MEASURED, kept_out)).into_iter().collect();
                return Ok(Course { lessons: played(&lessons, source.variants), refused });
            }
            Form::Triples => chain::from_triples,
            Form::Parts => chain::from_parts,
            Form::Passages => chain::from_passages,
        };
        let mut course = Course::default();
        let mut lessons = Vec::new();
        for question in &questions {
            let made = if question.evidences.iter().any(|fact| guard.holds(fact)) {
                Err(MEASURED)
            } else {
                teach(question, &corpus)
            };
            let made = made.and_then(|lesson| if guard.takes(&lesson) { Err(MEASURED) } else { Ok(lesson) });
            match made {
                Ok(lesson) => lessons.push(lesson),
                Err(why) => *course.refused.entry(why).or_default() += 1,
            }
        }
        lessons.shuffle(&mut rng);
        course.lessons = played(&lessons, source.variants);
        Ok(course)
    }

    /// Single-hop lessons. Birthplaces, occupations and all else take turns, so that no relation crowds out the others.
    fn of_known(mut known: Vec<Known>, dataset: &str, variants: usize, guard: &Guard, rng: &mut ChaCha8Rng) -> Course {
        let mut course = Course::default();
        known.shuffle(rng);
        let group = |one: &Known| match one.relation {
            "place of birth" => 0,
            "occupation" => 1,
            _ => 2,
        };
        let mut groups: [Vec<(usize, &Known)>; 3] = Default::default();
        for (number, one) in known.iter().enumerate() {
            groups[group(one)].push((number, one));
        }
        let longest = groups.iter().map(|group| group.len() * variants).max().unwrap_or(0);
        for turn in 0..longest {
            for group in groups.iter().filter(|group| turn < group.len() * variants) {
                let (number, one) = group[turn % group.len()];
                match single::ask(one, guard, format!("{dataset}-{number:05}"), rng) {
                    Some(lesson) => course.lessons.push((lesson, turn / group.len())),
                    None => *course.refused.entry(MEASURED).or_default() += 1,
                }
            }
        }
        course
    }
}

/// What articles, gold triples and extracted ones tell, where it is unequivocal.
fn known(questions: &[Question], corpus: &Corpus, source: &Source, data: &Path) -> Result<Vec<Known>, RowError> {
    let mut known = single::articles(corpus);
    known.extend(single::evidences(questions, corpus));
    if let Some(path) = &source.triples {
        known.extend(single::extracted(&rows(&data.join(path))?, corpus));
    }
    Ok(single::unequivocal(known))
}

/// All lessons, then all of them again, for as many `variants` as there are.
fn played(lessons: &[Lesson], variants: usize) -> Vec<(Lesson, usize)> {
    (0..variants).flat_map(|variant| lessons.iter().map(move |lesson| (lesson.clone(), variant))).collect()
}
