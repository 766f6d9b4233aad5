//! Evaluation of policies on questions with known answers.

use waymark_agent::metric::Cost;
use waymark_index::{GraphVariant, Query};
use waymark_runtime::evaluate::{
    Baseline, Contender, EpisodeRow, EvaluationArm, EvaluationOutcome, EvaluationPlan, PairedComparison, Question,
    Summary, evaluate, evaluate_arm, print,
};

use super::*;

fn question(id: &str, text: &str, answer: &str) -> Question {
    Question {
        id: id.to_owned(),
        question: text.to_owned(),
        answers: vec![answer.to_owned()],
        support: vec!["France Paris is the capital of France.".to_owned()],
        ..Question::default()
    }
}

fn questions() -> Vec<Question> {
    vec![
        question("right", "Capital of France?", "paris"),
        question("graph", "What is the GRAPH?", "Paris in France"),
        question("invalid", "Something ODD?", "Paris"),
        question("open", "An OPEN end?", "Paris"),
        question("silent", "Who is SILENT?", "Paris"),
    ]
}

fn lines() -> Lines {
    Lines::new([SEARCH, ANSWER])
        .rule("GRAPH", ["<search> [graph] x </search>", "<search> [graph][passage] x </search>", ANSWER])
        .rule("ODD", ["I do not know.", ANSWER])
        .rule("OPEN", [SEARCH, "<answer> Paris"])
        .rule("SILENT", ["<search> y </search>"; 5])
        .terminator("</information>\n\n")
        .terminator("try again.\n")
}

async fn run_all(concurrency: usize) -> EvaluationOutcome {
    let (runtime, _) = mock(MockBackend::script(&Tokenizer::bytes(), &lines()).unwrap(), france());
    let plan = EvaluationPlan { concurrency, ..EvaluationPlan::default() };
    let mut done = 0;
    let outcome = evaluate(&runtime, &policy("routerag"), &questions(), &plan, |_| done += 1).await;
    assert_eq!(done, outcome.rows.len());
    outcome
}

#[tokio::test]
async fn rows_say_what_each_episode_was_worth() {
    let EvaluationOutcome { rows, .. } = run_all(3).await;
    let ids: Vec<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    assert_eq!(ids, ["right", "graph", "invalid", "open", "silent"]);
    let valid: Vec<bool> = rows.iter().map(|row| row.valid).collect();
    assert_eq!(valid, [true, true, false, false, false], "{rows:#?}");
    let [right, graph, invalid, open, silent] = &rows[..] else { panic!("{}", rows.len()) };
    assert_eq!((right.em, right.f1, right.turns, right.unsupported), (1.0, 1.0, 2, Some(0.0)));
    // Both passages were found. They have ten words without articles, six of which are the words of the gold passage.
    let found = right.support_f1.unwrap();
    assert!(found > 0.5 && found < 1.0, "{found}");
    assert_eq!((graph.em, graph.searches.graph, graph.searches.hybrid, graph.turns), (0.0, 1, 1, 3));
    assert!((graph.f1 - 0.5).abs() < 1e-12 && graph.cost > right.cost, "{graph:?}");
    assert_eq!((invalid.em, invalid.searches.passage, invalid.support_f1), (1.0, 0, Some(0.0)));
    assert_eq!((open.answer.as_deref(), open.em), (Some("Paris"), 1.0));
    // Repeated searches count, although only the first is made. The budget of four rounds leads to a forced answer.
    assert_eq!((silent.searches.passage, silent.turns), (4, 5));
    assert!(silent.tokens.forced > 0 && right.tokens.forced == 0);
    let all = right.tokens;
    assert_eq!(all.sampled, right.text.len() - all.environment, "a byte is a token here");
}

#[tokio::test]
async fn passages_that_a_question_withholds_are_not_found() {
    let (runtime, _) = mock(MockBackend::script(&Tokenizer::bytes(), &lines()).unwrap(), france());
    let open = question("open", "Capital of France?", "Paris");
    let withheld = Question { id: "withheld".to_owned(), without: vec!["France".to_owned()], ..open.clone() };
    let plan = EvaluationPlan::default();
    let outcome = evaluate(&runtime, &policy("routerag"), &[open, withheld], &plan, |_| ()).await;
    let found = |row: &EpisodeRow| row.text.contains("Paris is the capital of France.");
    assert_eq!(outcome.rows.iter().map(found).collect::<Vec<_>>(), [true, false]);
    assert!(outcome.rows[1].text.contains("A city in France."), "the other passage is found");
    assert!(outcome.rows[0].support_f1 > outcome.rows[1].support_f1);
}

/// Plays the question about France with these turns.
async fn row_of(turns: &[&str]) -> EpisodeRow {
    let (runtime, _) = saying(turns, france());
    let asked = [question("one", "Capital of France?", "Paris")];
    let outcome = evaluate(&runtime, &policy("routerag"), &asked, &EvaluationPlan::default(), |_| ()).await;
    let [row]: [EpisodeRow; 1] = outcome.rows.try_into().unwrap();
    row
}

#[tokio::test]
async fn replies_to_invalid_turns_are_no_content() {
    const ODD: &str = "I do not know.";
    let plain = row_of(&[SEARCH, ANSWER]).await;
    let shown = plain.tokens.environment;
    assert!(shown > 0 && plain.tokens.content() == shown);
    for turns in [[SEARCH, ODD, ANSWER], [ODD, SEARCH, ANSWER]] {
        let row = row_of(&turns).await;
        assert_eq!((row.turns, row.evidence.len(), row.em), (3, 1, 1.0), "{row:?}");
        assert_eq!(row.tokens.content(), shown);
        assert!(row.tokens.environment > shown);
        let summary = Summary::of("odd", &EvaluationOutcome { rows: vec![row], seconds: 1.0 });
        assert_eq!((summary.mean.evidence_tokens, summary.content_per_retrieval), (shown as f64, shown as f64));
        assert!(summary.mean.environment_tokens > shown as f64);
    }
    let silent = row_of(&[ODD, ANSWER]).await;
    assert!(silent.tokens.environment > 0 && silent.tokens.content() == 0);
}

#[tokio::test]
async fn how_many_run_at_a_time_changes_nothing_but_time() {
    let timeless = |outcome: EvaluationOutcome| -> Vec<EpisodeRow> {
        let still = |row: EpisodeRow| {
            let evidence =
                row.evidence.into_iter().map(|found| waymark_runtime::evaluate::SearchEntry { seconds: 0.0, ..found });
            let evidence = evidence.collect();
            EpisodeRow { seconds: 0.0, first_token: None, retrieval_seconds: 0.0, evidence, ..row }
        };
        outcome.rows.into_iter().map(still).collect()
    };
    assert_eq!(timeless(run_all(1).await), timeless(run_all(8).await));
}

#[tokio::test]
async fn summaries_are_means_and_duels_go_question_by_question() {
    let outcome = run_all(2).await;
    let summary = Summary::of("mine", &outcome);
    assert_eq!((summary.questions, summary.failed), (5, 0));
    let right = outcome.rows.iter().filter(|row| row.em == 1.0).count();
    assert!((summary.em.mean - right as f64 / 5.0).abs() < 1e-12 && summary.em.error > 0.0);
    assert!((summary.valid - 0.4).abs() < 1e-12 && summary.answered >= 0.8);
    assert!((summary.mean.turns - 14.0 / 5.0).abs() < 1e-12, "{:?}", summary.mean);
    let mut worse = outcome.rows.clone();
    worse[0].em = 0.0;
    let duel = PairedComparison::of(("worse", &worse), ("mine", &outcome.rows));
    assert_eq!((duel.won, duel.lost), (0, 1));
    assert!((duel.em.mean + 0.2).abs() < 1e-12);
    let mut out = Vec::new();
    print(&[summary], &[duel], &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.contains("mine") && text.contains("40.0") && text.contains("EM -20.0 ± "), "{text}");
}

#[tokio::test]
async fn episodes_that_fail_count_as_wrong_and_say_why() {
    let (runtime, _) = saying(&[SEARCH, ANSWER], france());
    let tight =
        Policy { budget: waymark_agent::Budget { context_tokens: 64, ..Default::default() }, ..policy("routerag") };
    let plan = EvaluationPlan { cost: Cost::WallTime, ..EvaluationPlan::default() };
    let outcome = evaluate(&runtime, &tight, &questions()[..2], &plan, |_| {}).await;
    assert!(outcome.rows.iter().all(|row| row.error.is_some() && row.em == 0.0 && !row.valid));
    let summary = Summary::of("tight", &outcome);
    assert_eq!((summary.failed, summary.em.mean, summary.mean.turns), (2, 0.0, 0.0));
}

/// Runs a baseline on a question, with these options forced on its searches. Returns its row and its queries.
async fn run_baseline(name: &str, search: SearchOptions) -> (EpisodeRow, Vec<Query>) {
    play_baseline(name, search, &["It is the capital.\nAnswer: Paris"]).await
}

/// Runs a baseline on a question with these generations. Returns its row and its queries.
async fn play_baseline(name: &str, search: SearchOptions, lines: &[&str]) -> (EpisodeRow, Vec<Query>) {
    let (runtime, _, stub) = scripted(lines, france());
    let contender = Contender::Baseline(Baseline::named(name).unwrap());
    let arm = EvaluationArm { search, ..EvaluationArm::new(name, contender, None, None) };
    let asked = [question("one", "Capital of France?", "Paris")];
    let outcome = evaluate_arm(&runtime, &arm, &asked, &EvaluationPlan::default(), |_| ()).await;
    let [row]: [EpisodeRow; 1] = outcome.rows.try_into().unwrap();
    let queries = stub.asked.lock().unwrap().iter().map(|query| query.wanted.clone()).collect();
    (row, queries)
}

#[tokio::test]
async fn the_graph_baseline_is_hipporag_2_unless_another_search_is_forced() {
    let own = SearchOptions::default;
    let forced = SearchOptions { graph: Some(GraphVariant::Waymark.into()), ..own() };
    for (name, search, mode, variant) in [
        ("hippo-rag", own(), Mode::Graph, GraphVariant::HippoRag),
        ("hippo-rag", forced, Mode::Graph, GraphVariant::Waymark),
        ("hybrid-rag", own(), Mode::Hybrid, GraphVariant::RouteRag),
    ] {
        let (row, queries) = run_baseline(name, search).await;
        assert_eq!(row.error, None, "{name}");
        let [query] = &queries[..] else { panic!("{queries:?}") };
        assert_eq!((query.mode, query.graph, query.k), (mode, variant.into(), 5), "{name}");
    }
}

#[tokio::test]
async fn search_o1_answers_after_its_last_search_and_after_a_refused_one() {
    const FOUND: &str = "**Final Information** It is Paris.";
    let ask = |query: &str| format!("I search. <|begin_search_query|> {query} <|end_search_query|>");
    let all = ["a", "b", "c", "d", "e"];
    for queries in [["a", "b", "c", "d", "e", "f"], ["a", "a", "b", "c", "d", "e"]] {
        let mut lines: Vec<String> = Vec::new();
        for (place, query) in queries.iter().enumerate() {
            lines.push(ask(query));
            // Only an executed search has a result to condense.
            if all.contains(query) && !queries[..place].contains(query) {
                lines.push(FOUND.to_owned());
            }
        }
        lines.push("So it is \\boxed{Paris}.".to_owned());
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let (row, asked) = play_baseline("search-o1", SearchOptions::default(), &lines).await;
        let asked: Vec<&str> = asked.iter().map(|query| query.text.as_str()).collect();
        assert_eq!(asked, all, "{queries:?}");
        assert_eq!((row.answer.as_deref(), row.valid, row.em), (Some("Paris"), true, 1.0), "{queries:?}");
    }
}

#[tokio::test]
async fn search_o1_searches_no_query_that_is_not_closed() {
    let line = "It could be found with <|begin_search_query|> capital, but I know it: \\boxed{Paris}";
    let (row, asked) = play_baseline("search-o1", SearchOptions::default(), &[line]).await;
    assert!(asked.is_empty(), "{asked:?}");
    assert_eq!((row.answer.as_deref(), row.valid, row.turns), (Some("Paris"), true, 1));
}

/// Otherwise they would be scored on triples that the model never read.
#[tokio::test]
async fn baselines_refuse_modes_whose_triples_they_do_not_show() {
    for name in ["ircot", "search-o1"] {
        for mode in [Mode::Triples, Mode::Kag, Mode::Hypergraph] {
            let forced = SearchOptions { mode: Some(mode), ..SearchOptions::default() };
            let (row, queries) = run_baseline(name, forced).await;
            let error = row.error.unwrap();
            assert!(error.contains(name) && error.contains(&format!("in the mode {mode}: ")), "{error}");
            assert!(queries.is_empty(), "{queries:?}");
        }
    }
}
