//! Tests of the cold start: no evaluation question leaks into the training data, and every sample is what the loop
//! produced.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../../tests/outside/mod.rs"]
mod outside;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use waymark_agent::{Action, BlockingSearch, EpisodeEnd, Policy, ReadingRule, SearchError, SearchLimits, Searcher};
use waymark_engine::Origin;
use waymark_index::{Evidence, Hit, Mode, Passage, Query};
use waymark_models::tokenizer::Tokenizer;
use waymark_training::data::lesson_plan::LessonPlan;
use waymark_training::data::player::LessonPlayer;
use waymark_training::data::preview::SearchPreview;
use waymark_training::data::recipe::{DataRecipe, SourceForm};
use waymark_training::data::routing::Routing;
use waymark_training::data::teacher::{Habits, LessonTeacherSettings};
use waymark_training::data::voice::voice;
use waymark_training::lessons::contamination::ContaminationFilter;
use waymark_training::lessons::lesson::{Conclusion, Lesson};
use waymark_training::lessons::multi_hop::hop;
use waymark_training::lessons::relation::relation;
use waymark_training::lessons::rows::{CorpusPassage, SourceQuestion, rows};
use waymark_training::lessons::single_hop;
use waymark_training::lessons::text::{normalized, words};
use waymark_training::recipe::Recipe;
use waymark_training::reward::graphrag_r1::CostAware;
use waymark_training::reward::tearag::TeaRagReward;
use waymark_training::reward::{FormatState, Reward};
use waymark_training::sample::Sample;

fn recipe() -> DataRecipe {
    DataRecipe::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes/cold_start.toml"), &[]).unwrap()
}

/// Reads all evaluation questions, found by their file name and not through the recipe.
fn measured(data: &Path) -> Vec<SourceQuestion> {
    let dirs = std::fs::read_dir(data).unwrap().map(|entry| entry.unwrap().path().join("questions.jsonl"));
    dirs.filter(|path| path.is_file()).flat_map(|path| rows::<SourceQuestion>(&path).unwrap()).collect()
}

fn courses(data: &Path, recipe: &DataRecipe) -> Vec<(SourceForm, LessonPlan)> {
    let mut contamination = ContaminationFilter::default();
    for path in &recipe.measured {
        contamination.add(&rows::<SourceQuestion>(&data.join(path)).unwrap());
    }
    let open = |source| LessonPlan::open(source, data, &contamination, recipe.seed).unwrap();
    recipe.sources.iter().map(|source| (source.form, open(source))).collect()
}

/// Converts a text to the sorted numbers of its words, to compare many sets quickly.
fn numbered(text: &str, numbers: &mut HashMap<String, usize>) -> Vec<usize> {
    let set: BTreeSet<usize> = words(text)
        .into_iter()
        .map(|word| {
            let next = numbers.len();
            *numbers.entry(word).or_insert(next)
        })
        .collect();
    set.into_iter().collect()
}

fn alike(a: &[usize], b: &[usize]) -> f64 {
    let mut i = 0;
    let mut j = 0;
    let mut both = 0;
    while i < a.len() && j < b.len() {
        both += usize::from(a[i] == b[j]);
        let x = a[i];
        let y = b[j];
        i += usize::from(x <= y);
        j += usize::from(y <= x);
    }
    both as f64 / (a.len() + b.len() - both).max(1) as f64
}

#[test]
fn no_evaluation_question_or_paraphrase_is_taught() {
    let Some(data) = outside::data(&[]) else { return };
    let recipe = recipe();
    let measured = measured(&data);
    assert!(measured.len() > 100, "the measured questions are there");
    let exact: HashSet<String> = measured.iter().map(|question| normalized(&question.question)).collect();
    let ids: HashSet<&str> = measured.iter().map(|question| question.id.as_str()).collect();
    let mut numbers = HashMap::new();
    let sets: Vec<Vec<usize>> = measured.iter().map(|question| numbered(&question.question, &mut numbers)).collect();
    let mut taught = HashSet::new();
    let mut named: HashMap<String, String> = HashMap::new();
    for (form, course) in courses(&data, &recipe) {
        assert!(!course.lessons.is_empty());
        for (lesson, _) in course.lessons {
            // The wording of a single-hop question varies, but its need does not.
            let meant = if form == SourceForm::Single { lesson.hops[0].need.clone() } else { lesson.question.clone() };
            // A question may be taught several times under its ID, another one never.
            let other = named.insert(lesson.question_id.clone(), meant.clone());
            assert!(other.is_none_or(|other| other == meant), "two questions are called {}", lesson.question_id);
            assert!(!ids.contains(lesson.question_id.as_str()), "{}", lesson.question_id);
            if taught.insert(lesson.question.clone()) {
                assert!(!exact.contains(&normalized(&lesson.question)), "{}", lesson.question);
                let own = numbered(&lesson.question, &mut numbers);
                let near = sets.iter().position(|set| alike(&own, set) >= 0.8);
                assert_eq!(near.map(|at| &measured[at].question), None, "{}", lesson.question);
            }
        }
    }
}

#[test]
fn no_evaluation_subject_or_gold_triple_is_taught() {
    let Some(data) = outside::data(&[]) else { return };
    let recipe = recipe();
    let measured = measured(&data);
    let key =
        |subject: &str, name: &str| (normalized(subject), relation(name).map_or(name, |known| known.need).to_owned());
    let triples = measured.iter().flat_map(|question| question.evidences.iter().chain(&question.triple));
    let pairs: HashSet<_> = triples.map(|triple| key(&triple[0], &triple[1])).collect();
    let needs: HashSet<String> = pairs.iter().map(|(subject, need)| normalized(&need.replace("{}", subject))).collect();
    let singles = measured.iter().filter_map(|question| question.triple.as_ref());
    let subjects: HashSet<String> = singles.map(|triple| normalized(&triple[0])).collect();
    assert!(pairs.len() > 100 && subjects.len() > 100);
    let questions = recipe.sources.iter().filter_map(|source| source.questions.as_ref());
    let questions = questions.flat_map(|path| rows::<SourceQuestion>(&data.join(path)).unwrap());
    let gold: HashMap<String, SourceQuestion> = questions.map(|question| (question.id.clone(), question)).collect();
    for (form, course) in courses(&data, &recipe) {
        for (lesson, _) in &course.lessons {
            assert!(form != SourceForm::Single || lesson.hops.len() == 1, "{lesson:?}");
            for hop in &lesson.hops {
                assert!(!subjects.contains(&normalized(&hop.subject)), "{}", lesson.question);
                let named = hop.is_question().then(|| runs(&hop.subject)).into_iter().flatten();
                let named: Vec<String> = named.filter(|run| subjects.contains(run)).collect();
                assert!(named.is_empty(), "{}: {named:?}", lesson.question);
                assert!(!needs.contains(&normalized(&hop.need)), "{}", lesson.question);
            }
            for triple in gold.get(&lesson.question_id).iter().flat_map(|question| &question.evidences) {
                assert!(!pairs.contains(&key(&triple[0], &triple[1])), "{triple:?}");
            }
        }
    }
}

/// Returns all runs of consecutive words of a text, normalized like subjects.
fn runs(text: &str) -> Vec<String> {
    let words = words(text);
    let from = |at: usize| (at..words.len()).map(move |to| (at, to));
    (0..words.len()).flat_map(from).map(|(from, to)| words[from..=to].join(" ")).collect()
}

/// Returns the sub-questions of evaluation questions, with earlier answers filled in.
fn decomposed(measured: &[SourceQuestion]) -> Vec<String> {
    let mut all = Vec::new();
    for question in measured {
        let mut answers: Vec<String> = Vec::new();
        for part in &question.decomposition {
            let earlier = (1..).zip(&answers).collect::<Vec<_>>();
            let filled = earlier
                .iter()
                .rev()
                .fold(part.question.clone(), |text, (number, answer)| text.replace(&format!("#{number}"), answer));
            all.push(filled);
            answers.push(part.answer.clone());
        }
    }
    all
}

#[test]
fn no_hop_of_an_evaluation_question_is_taught() {
    let Some(data) = outside::data(&[]) else { return };
    let recipe = recipe();
    let parts = decomposed(&measured(&data));
    assert!(parts.len() > 100, "decompositions are there");
    // Sub-questions have the form `subject >> relation` or that of a question; lessons state needs.
    let told = |part: &String| match part.split_once(">>") {
        Some((subject, name)) => match relation(name) {
            Some(known) => normalized(&known.need.replace("{}", subject.trim())),
            None => normalized(&format!("the {name} of {subject}")),
        },
        None => normalized(part),
    };
    let told: HashSet<String> = parts.iter().map(told).collect();
    for (_, course) in courses(&data, &recipe) {
        for (lesson, _) in &course.lessons {
            assert!(!told.contains(&normalized(&lesson.question)), "{}", lesson.question);
            for hop in &lesson.hops {
                for text in [&hop.need, &hop.subject].into_iter().chain(&hop.queries) {
                    assert!(!told.contains(&normalized(text)), "{}: {text}", lesson.question);
                }
            }
        }
    }
}

/// Mock index: retrieval modes that find the right passage first or second.
#[derive(Debug, Clone, Copy)]
struct BirthplaceIndex {
    first: &'static [Mode],
    second: &'static [Mode],
}

/// Finds the right passage only through the graph, in second place.
const GRAPH_ONLY: BirthplaceIndex = BirthplaceIndex { first: &[], second: &[Mode::Graph] };

fn ann() -> CorpusPassage {
    let text = "Ann Lee (born 3 May 1950) is an actress. She was born in Leeds, England.";
    CorpusPassage { id: "p1".into(), title: "Ann Lee (actress)".into(), text: text.into() }
}

impl BlockingSearch for BirthplaceIndex {
    fn find(&self, query: &Query) -> Result<Evidence, SearchError> {
        let CorpusPassage { id, title, text } = ann();
        let right = Passage { id, title, text };
        let wrong = Passage { id: "p2".into(), title: "Lee".into(), text: "Lee is a <answer> river </answer>.".into() };
        let passages = match query.mode {
            mode if self.first.contains(&mode) => vec![right, wrong],
            mode if self.second.contains(&mode) => vec![wrong, right],
            _ => vec![wrong],
        };
        let hit = |(at, passage)| Hit { rank: at + 1, score: 1.0, passage, metadata: None, path: Default::default() };
        Ok(Evidence::of(1, query.mode, passages.into_iter().enumerate().map(hit).collect()))
    }

    fn modes(&self) -> Vec<Mode> {
        vec![Mode::Passage, Mode::Graph, Mode::Hybrid, Mode::Triples, Mode::Kag]
    }

    fn snapshot(&self) -> u64 {
        1
    }
}

fn stage(mislead: f64) -> LessonPlayer {
    stage_of(GRAPH_ONLY, Habits { mislead, ..Habits::default() })
}

fn stage_of(index: BirthplaceIndex, habits: Habits) -> LessonPlayer {
    stage_in("routerag", index, habits, None)
}

fn stage_in(
    protocol: &str,
    index: impl BlockingSearch + Copy + 'static,
    habits: Habits,
    routing: Option<Routing>,
) -> LessonPlayer {
    let limits = SearchLimits { threads: 1, waiting: 4, timeout: Duration::from_secs(10) };
    let mut policy = Policy::builtin(protocol).unwrap();
    policy.budget.context_tokens = 1 << 16;
    policy.retrieval.search.ranking = None;
    let preview = Arc::new(SearchPreview::new(index, &policy));
    let teacher = LessonTeacherSettings { preview, voice: voice(protocol).unwrap(), habits, routing };
    LessonPlayer {
        context: policy.budget.context_tokens,
        policy,
        tokenizer: Arc::new(Tokenizer::bytes()),
        vocabulary: "bytes".into(),
        template: None,
        eos: Vec::new(),
        searcher: Arc::new(Searcher::new(Arc::new(index), limits).unwrap()),
        teacher,
    }
}

fn lesson(answer: &str) -> Lesson {
    Lesson {
        kind: None,
        question_id: "q".into(),
        question: "Where was Ann Lee born?".into(),
        golds: vec![answer.into()],
        supporting: vec!["p1".into()],
        partly: false,
        hops: vec![hop(relation("place of birth").unwrap(), "Ann Lee", answer, vec![ann()])],
        conclusion: Conclusion::Last,
    }
}

#[tokio::test]
async fn the_teacher_answers_from_evidence() {
    let stage = stage(0.0);
    for seed in 0..20 {
        let sample = stage.play(&lesson("Leeds"), "d", 0, seed).await.unwrap().unwrap();
        assert_eq!(sample.answer.as_deref(), Some("Leeds"));
        let modes: Vec<Mode> = sample.evidence.iter().map(|found| found.mode).collect();
        assert_eq!(modes, [Mode::Graph], "the cheapest mode that finds it");
        assert!(sample.text.contains("Doc 2") && sample.text.contains("She was born in Leeds"), "{}", sample.text);
        assert_eq!((sample.flaw(), sample.logprobs.len(), sample.timings.total), (None, 0, 0.0));
        assert_eq!(sample.tokenizer.as_deref(), Some("bytes"));
    }
}

#[tokio::test]
async fn deep_teachers_prefer_lower_passages() {
    let index = BirthplaceIndex { first: &[Mode::Passage], second: &[Mode::Graph] };
    for (deep, mode, place) in [(0.0, Mode::Passage, "Doc 1"), (1.0, Mode::Graph, "Doc 2")] {
        let stage = stage_of(index, Habits { deep, ..Habits::default() });
        for seed in 0..20 {
            let sample = stage.play(&lesson("Leeds"), "d", 0, seed).await.unwrap().unwrap();
            assert_eq!(sample.evidence[0].mode, mode);
            let thought = sample.text.rsplit("<think>").next().unwrap();
            assert!(thought.contains(place) && thought.contains("She was born in Leeds"), "{thought}");
        }
    }
    // If no mode finds the passage in a lower place, the teacher uses the mode that finds it first.
    let habits = Habits { deep: 1.0, ..Habits::default() };
    let stage = stage_of(BirthplaceIndex { first: &[Mode::Passage], second: &[] }, habits);
    let sample = stage.play(&lesson("Leeds"), "d", 0, 1).await.unwrap().unwrap();
    assert_eq!((sample.evidence[0].mode, sample.answer.as_deref()), (Mode::Passage, Some("Leeds")));
}

#[tokio::test]
async fn misses_are_stated_and_followed_by_better_searches() {
    let sample = stage(1.0).play(&lesson("Leeds"), "d", 0, 1).await.unwrap().unwrap();
    let modes: Vec<Mode> = sample.evidence.iter().map(|found| found.mode).collect();
    assert_eq!(modes, [Mode::Passage, Mode::Graph]);
    assert_eq!(sample.actions.len(), 3);
}

#[tokio::test]
async fn policy_turns_are_the_targets_and_end_with_a_tag() {
    let stage = stage(1.0);
    let sample = stage.play(&lesson("Leeds"), "d", 0, 3).await.unwrap().unwrap();
    let mask = sample.loss_mask();
    let mut at = 0;
    for span in &sample.origins {
        let ids = &sample.tokens[at..at + span.1];
        let text = stage.tokenizer.decode(ids);
        assert!(mask[at..at + span.1].iter().all(|learned| *learned == (span.0 == Origin::Policy)));
        match span.0 {
            Origin::Prompt => assert!(text.contains("Where was Ann Lee born?")),
            Origin::Environment => assert!(text.contains("<information>") && !text.contains("<answer>"), "{text}"),
            Origin::Policy => {
                assert!(text.starts_with("<think> "), "{text}");
                assert!(text.ends_with("</search>") || text.ends_with("</answer>"), "{text}");
            }
        }
        at += span.1;
    }
}

#[tokio::test]
async fn facts_that_no_search_finds_are_not_taught() {
    assert!(stage(0.0).play(&lesson("Paris"), "d", 0, 1).await.unwrap().is_err());
}

#[tokio::test]
async fn conceding_lessons_guess_after_different_searches() {
    let stage = stage_of(GRAPH_ONLY, Habits { concede: 1.0, ..Habits::default() });
    let mut lengths = HashSet::new();
    for seed in 0..20 {
        let sample = stage.play(&lesson("Paris"), "d", 0, seed).await.unwrap().unwrap();
        assert_eq!((sample.answer.as_deref(), sample.guessed), (Some("Paris"), true));
        let searches: HashSet<_> = sample.evidence.iter().map(|found| (&found.query, found.mode)).collect();
        assert_eq!(searches.len(), sample.evidence.len(), "none is made twice");
        lengths.insert(searches.len());
        let found = stage.play(&lesson("Leeds"), "d", 0, seed).await.unwrap().unwrap();
        assert!(found.text.contains("She was born in Leeds") && !found.guessed, "what can be found is: {}", found.text);
        // A passage contains the word in another sense, so the teacher cannot claim that the answer is not there.
        assert!(stage.play(&lesson("river"), "d", 0, seed).await.unwrap().is_err());
    }
    assert_eq!(lengths, HashSet::from([2, 3]));
}

#[tokio::test]
async fn equal_seeds_give_equal_samples() {
    let play = |seed| async move { stage(0.5).play(&lesson("Leeds"), "d", 0, seed).await.unwrap().unwrap() };
    let first = play(1).await;
    assert_eq!(first, play(1).await);
    let mut texts = HashSet::new();
    for seed in 0..12 {
        texts.insert(play(seed).await.text);
    }
    assert!(texts.len() > 3, "the words vary: {texts:?}");
}

#[test]
fn questions_use_bare_names_of_people() {
    let corpus = waymark_training::lessons::corpus::PassageCorpus::new(vec![ann()]);
    let known = single_hop::articles(&corpus);
    assert!(known.iter().all(|one| one.subject == "Ann Lee"));
    assert_eq!(known.len(), 3, "{known:?}");
}

#[tokio::test]
async fn withheld_lessons_search_and_then_state_that_nothing_was_found() {
    let index = BirthplaceIndex { first: &[Mode::Passage, Mode::Graph, Mode::Hybrid], second: &[] };
    let stage = stage_of(index, Habits { withhold: 1.0, ..Habits::default() });
    let mut lengths = HashSet::new();
    for seed in 0..20 {
        let sample = stage.play(&lesson("Leeds"), "d", 0, seed).await.unwrap().unwrap();
        assert_eq!((&sample.without[..], sample.guessed), (&["p1".to_owned()][..], false));
        assert!(sample.evidence.iter().all(|found| found.passages.iter().all(|(id, _)| id == "p2")));
        let answer = sample.answer.clone().unwrap();
        assert!(answer.starts_with("I could not find"), "{answer}");
        assert!(!sample.text.contains("Leeds"), "{}", sample.text);
        assert_eq!(sample.golds, ["Leeds"], "the question keeps its answer");
        lengths.insert(sample.evidence.len());
    }
    assert_eq!(lengths, HashSet::from([2, 3]));
    // The answer is shown by another passage, so nothing is missing.
    assert!(stage.play(&lesson("river"), "d", 0, 1).await.unwrap().is_err());
}

#[tokio::test]
async fn routed_lessons_take_the_mode_that_ranks_the_answer_highest() {
    let routing = Some(Routing { contested: true, most: 1.0 });
    let none = Habits::default();
    let index = BirthplaceIndex { first: &[Mode::Hybrid], second: &[Mode::Passage] };
    let stage = stage_in("routerag", index, none, routing);
    let sample = stage.play(&lesson("Leeds"), "d", 0, 1).await.unwrap().unwrap();
    assert_eq!(sample.first_mode(), Some(Mode::Hybrid), "it ranks first what passages rank second");
    let all = BirthplaceIndex { first: &[Mode::Passage, Mode::Graph, Mode::Hybrid], second: &[] };
    let dropped = stage_in("routerag", all, none, routing).play(&lesson("Leeds"), "d", 0, 1).await.unwrap();
    assert_eq!(dropped.unwrap_err(), "the modes agree");
    let routing = Some(Routing { contested: false, most: 1.0 });
    let sample = stage_in("routerag", all, none, routing).play(&lesson("Leeds"), "d", 0, 1).await.unwrap().unwrap();
    assert_eq!(sample.first_mode(), Some(Mode::Passage), "the cheapest of equals");
}

#[tokio::test]
async fn path_routers_lessons_are_messages_with_json_queries() {
    let index = BirthplaceIndex { first: &[Mode::Passage], second: &[] };
    let template = waymark_models::chat::ChatTemplate::new(
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}\
         {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        "",
        "<|im_end|>",
    );
    let mut stage = stage_in("path-router", index, Habits::default(), None);
    stage.template = Some(Arc::new(template.unwrap()));
    let sample = stage.play(&lesson("Leeds"), "d", 0, 1).await.unwrap().unwrap();
    assert_eq!((sample.answer.as_deref(), sample.protocol.as_str()), (Some("Leeds"), "path-router"));
    let text = &sample.text;
    assert!(text.starts_with("<think>\n") && text.contains("<query>\n{\"query\": \""), "{text}");
    assert!(text.contains("<knowledge>\nDoc 1(Title: Ann Lee (actress))"), "{text}");
    assert!(text.contains("She was born in Leeds") && text.ends_with("<answer>\nLeeds\n</answer>"), "{text}");
    // The environment opens the second thought.
    assert_eq!(text.matches("<think>").count(), 2, "{text}");
    let second = sample.origins.iter().filter(|run| run.0 == Origin::Policy).count();
    assert_eq!(second, 2);
    assert_eq!(stage.play(&lesson("Leeds"), "d", 0, 1).await.unwrap().unwrap(), sample);
}

/// Protocols with a voice, each with the mode of its first search.
const VOICED: [(&str, Mode); 6] = [
    ("routerag", Mode::Passage),
    ("search-r1", Mode::Passage),
    ("path-router", Mode::Passage),
    ("graphrag-r1", Mode::Triples),
    ("tearag", Mode::Kag),
    ("evo-rag", Mode::Passage),
];

/// Mock index over every mode, in which only queries with a question mark find the right passage.
#[derive(Debug, Clone, Copy)]
struct QuestionIndex;

const EVERY: &[Mode] = &[Mode::Passage, Mode::Graph, Mode::Hybrid, Mode::Triples, Mode::Kag];

impl BlockingSearch for QuestionIndex {
    fn find(&self, query: &Query) -> Result<Evidence, SearchError> {
        let first = if query.text.contains('?') { EVERY } else { &[] };
        BirthplaceIndex { first, second: &[] }.find(query)
    }

    fn modes(&self) -> Vec<Mode> {
        EVERY.to_vec()
    }

    fn snapshot(&self) -> u64 {
        1
    }
}

/// Returns the text of each turn of the policy.
fn turns(sample: &Sample) -> Vec<String> {
    let mut at = 0;
    let mut turns = Vec::new();
    for run in &sample.origins {
        let ids = &sample.tokens[at..at + run.1];
        if run.0 == Origin::Policy {
            turns.push(Tokenizer::bytes().decode(ids));
        }
        at += run.1;
    }
    turns
}

/// Stage on which every mode finds the right passage first.
fn easy_stage(protocol: &str, habits: Habits) -> LessonPlayer {
    let mut stage = stage_in(protocol, BirthplaceIndex { first: EVERY, second: &[] }, habits, None);
    stage.eos = vec![257];
    stage
}

#[tokio::test]
async fn lessons_of_every_voice_are_valid_loops_with_the_right_end() {
    for (protocol, mode) in VOICED {
        let stage = easy_stage(protocol, Habits::default());
        for seed in 0..8 {
            let sample = stage.play(&lesson("Leeds"), "d", 0, seed).await.unwrap().unwrap();
            let text = &sample.text;
            assert_eq!((sample.answer.as_deref(), sample.finish), (Some("Leeds"), EpisodeEnd::Stop), "{text}");
            assert_eq!((sample.flaw(), sample.is_forced()), (None, false), "{protocol}");
            assert_eq!(sample.evidence[0].mode, mode, "{protocol}");
            // Each turn by itself is an action for the strict parser of the protocol; only the last one ends.
            let turns = turns(&sample);
            assert_eq!(turns.len(), 2, "{protocol}: {text}");
            let parsed = turns.iter().map(|turn| stage.policy.protocol.parse(turn, ReadingRule::First));
            assert_eq!(parsed.map(|action| action.ends()).collect::<Vec<_>>(), [false, true], "{protocol}: {text}");
            assert!(text.contains("She was born in Leeds"), "{protocol}: {text}");
        }
    }
}

#[tokio::test]
async fn lessons_have_the_format_that_rewards_ask_for() {
    for seed in 0..8 {
        let play = async |protocol: &str| {
            let stage = easy_stage(protocol, Habits::default());
            stage.play(&lesson("Leeds"), "d", 0, seed).await.unwrap().unwrap()
        };
        let sample = play("graphrag-r1").await;
        assert_eq!(CostAware::default().score(std::slice::from_ref(&sample))[0].parts["form"], 0.5, "{}", sample.text);
        let sample = play("tearag").await;
        assert_eq!(
            TeaRagReward::default().score(std::slice::from_ref(&sample))[0].parts["format"],
            1.0,
            "{}",
            sample.text
        );
        // A final answer has no closing tag, so that the policy has to learn to end its turn.
        assert_eq!(sample.tokens.last(), Some(&257));
        assert!(sample.loss_mask().last().is_some_and(|learned| *learned));
        let Action::Search(search) = &sample.actions[0].action else { panic!("{}", sample.text) };
        assert_eq!((&search.entities[..], search.query.ends_with('?')), (&["Ann Lee".to_owned()][..], true));
        let summary = sample.actions[1].summary.as_deref().unwrap();
        assert!(summary.contains("She was born in Leeds"), "{summary}");
        let sample = play("search-r1").await;
        assert!(FormatState::of(&sample.text), "{}", sample.text);
    }
}

#[tokio::test]
async fn what_cannot_be_found_ends_in_a_refusal_or_a_statement() {
    for (protocol, _) in VOICED {
        let stage = easy_stage(protocol, Habits { withhold: 1.0, ..Habits::default() });
        let sample = stage.play(&lesson("Leeds"), "d", 0, 1).await.unwrap().unwrap();
        let end = sample.actions.last().unwrap();
        assert!(end.action.ending().unwrap().starts_with("I could not find"), "{}", sample.text);
        let refuses = matches!(end.action, Action::Refuse { .. });
        assert_eq!((refuses, sample.finish == EpisodeEnd::Refused), (protocol == "evo-rag", protocol == "evo-rag"));
    }
}

#[tokio::test]
async fn searches_that_miss_are_withdrawn_where_the_protocol_can() {
    let habits = Habits { mislead: 1.0, backtrack: 1.0, ..Habits::default() };
    for (protocol, withdraws) in [("evo-rag", true), ("search-r1", false)] {
        let stage = stage_in(protocol, QuestionIndex, habits, None);
        for seed in 0..8 {
            let sample = stage.play(&lesson("Leeds"), "d", 0, seed).await.unwrap().unwrap();
            assert_eq!(sample.answer.as_deref(), Some("Leeds"), "{}", sample.text);
            assert_eq!(sample.evidence.len(), 2, "one miss, then the question");
            let withdrawn: Vec<bool> = sample.evidence.iter().map(|found| found.withdrawn.is_some()).collect();
            assert_eq!(withdrawn, [withdraws, false], "{}", sample.text);
            assert_eq!(sample.actions.len(), 3 + usize::from(withdraws), "{}", sample.text);
        }
    }
}

#[test]
fn data_recipes_play_the_policy_of_the_recipe_that_trains_on_them() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes");
    for (data, training) in [
        ("path_router_data", "path_router-smollm2"),
        ("routing_data", "routerag-smollm2"),
        ("graphrag_r1_data", "graphrag_r1-smollm2"),
        ("tearag_data", "tearag-smollm2"),
        ("evo_rag_data", "evo_rag-smollm2"),
        ("search_r1_data", "search_r1"),
    ] {
        let path = folder.join(format!("{data}.toml"));
        let played = DataRecipe::read(&path, &[]).unwrap().policy(&path).unwrap();
        let trained = Recipe::open(&folder.join(format!("{training}.toml")), &[]).unwrap().policy().unwrap();
        assert_eq!(played.protocol.name(), trained.protocol.name());
        assert_eq!((played.retrieval, played.budget), (trained.retrieval, trained.budget), "{data}");
    }
}
