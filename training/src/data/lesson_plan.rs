//! Lessons of a source, in the order of play.

use std::collections::BTreeMap;
use std::path::Path;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::recipe::{LessonSource, SourceForm};
use crate::lessons::composition;
use crate::lessons::contamination::ContaminationFilter;
use crate::lessons::corpus::PassageCorpus;
use crate::lessons::lesson::Lesson;
use crate::lessons::multi_hop;
use crate::lessons::rows::{RowError, SourceQuestion, rows};
use crate::lessons::single_hop::{self, KnownFact};
use crate::lessons::small_talk;

/// Reason for dropping a question that is measured.
const MEASURED: &str = "kept out: measured";

/// Lessons of a source and the questions without one.
#[derive(Debug, Default)]
pub struct LessonPlan {
    /// Lessons, each with the number of times its question was played before.
    pub lessons: Vec<(Lesson, usize)>,
    /// Number of questions without a lesson, by reason.
    pub dropped: BTreeMap<&'static str, usize>,
}

impl LessonPlan {
    /// Reads a source in the directory `data` and shuffles its lessons by `seed`. Each question is played once before
    /// the second variant of any follows, except that the relations of single-hop questions take turns.
    ///
    /// # Errors
    /// [`RowError`] if a file of the source cannot be read.
    pub fn open(
        source: &LessonSource,
        data: &Path,
        contamination: &ContaminationFilter,
        seed: u64,
    ) -> Result<LessonPlan, RowError> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        if source.form == SourceForm::SmallTalk {
            let lessons = small_talk::lessons(&source.dataset, &mut rng);
            return Ok(LessonPlan { lessons: played(&lessons, source.variants), ..LessonPlan::default() });
        }
        let corpus = PassageCorpus::new(rows(&data.join(&source.corpus))?);
        let questions: Vec<SourceQuestion> =
            source.questions.as_ref().map_or(Ok(Vec::new()), |path| rows(&data.join(path)))?;
        let facts = || facts(&questions, &corpus, source, data);
        let teach: fn(&SourceQuestion, &PassageCorpus) -> Result<Lesson, multi_hop::SkipReason> = match source.form {
            SourceForm::Single => {
                return Ok(LessonPlan::of_single_hops(
                    facts()?,
                    &source.dataset,
                    source.variants,
                    contamination,
                    &mut rng,
                ));
            }
            SourceForm::Composed => {
                let (lessons, kept_out) = composition::lessons(&facts()?, contamination, &source.dataset, &mut rng);
                let dropped = (kept_out > 0).then_some((MEASURED, kept_out)).into_iter().collect();
                return Ok(LessonPlan { lessons: played(&lessons, source.variants), dropped });
            }
            SourceForm::Triples => multi_hop::from_triples,
            SourceForm::Parts => multi_hop::from_parts,
            // Small talk has returned above.
            SourceForm::Passages | SourceForm::SmallTalk => multi_hop::from_passages,
        };
        let mut plan = LessonPlan::default();
        let mut lessons = Vec::new();
        for question in &questions {
            let lesson = if question.evidences.iter().any(|fact| contamination.has_triple(fact)) {
                Err(MEASURED)
            } else {
                teach(question, &corpus)
            };
            let lesson =
                lesson.and_then(|lesson| if contamination.excludes(&lesson) { Err(MEASURED) } else { Ok(lesson) });
            match lesson {
                Ok(lesson) => lessons.push(lesson),
                Err(why) => *plan.dropped.entry(why).or_default() += 1,
            }
        }
        lessons.shuffle(&mut rng);
        plan.lessons = played(&lessons, source.variants);
        Ok(plan)
    }

    /// Single-hop lessons. Birthplaces, occupations and all other relations take turns, so that no relation crowds out
    /// the others.
    fn of_single_hops(
        mut facts: Vec<KnownFact>,
        dataset: &str,
        variants: usize,
        contamination: &ContaminationFilter,
        rng: &mut ChaCha8Rng,
    ) -> LessonPlan {
        let mut plan = LessonPlan::default();
        facts.shuffle(rng);
        let group = |fact: &KnownFact| match fact.relation {
            "place of birth" => 0,
            "occupation" => 1,
            _ => 2,
        };
        let mut groups: [Vec<(usize, &KnownFact)>; 3] = Default::default();
        for (number, fact) in facts.iter().enumerate() {
            groups[group(fact)].push((number, fact));
        }
        let longest = groups.iter().map(|group| group.len() * variants).max().unwrap_or(0);
        for turn in 0..longest {
            for group in groups.iter().filter(|group| turn < group.len() * variants) {
                let (number, fact) = group[turn % group.len()];
                match single_hop::ask(fact, contamination, format!("{dataset}-{number:05}"), rng) {
                    Some(lesson) => plan.lessons.push((lesson, turn / group.len())),
                    None => *plan.dropped.entry(MEASURED).or_default() += 1,
                }
            }
        }
        plan
    }
}

/// Facts with a unique value, from articles, gold triples and extracted triples.
fn facts(
    questions: &[SourceQuestion],
    corpus: &PassageCorpus,
    source: &LessonSource,
    data: &Path,
) -> Result<Vec<KnownFact>, RowError> {
    let mut facts = single_hop::articles(corpus);
    facts.extend(single_hop::evidences(questions, corpus));
    if let Some(path) = &source.triples {
        facts.extend(single_hop::extracted(&rows(&data.join(path))?, corpus));
    }
    Ok(single_hop::unequivocal(facts))
}

/// Repeats the whole list of lessons once per variant.
fn played(lessons: &[Lesson], variants: usize) -> Vec<(Lesson, usize)> {
    (0..variants).flat_map(|variant| lessons.iter().map(move |lesson| (lesson.clone(), variant))).collect()
}
