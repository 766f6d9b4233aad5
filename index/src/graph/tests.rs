#![allow(clippy::unwrap_used, clippy::expect_used)]
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;

use super::*;
use crate::condition::TopPassages;
use crate::corpus::Document;
use crate::embed::fake::HashEmbed;
use crate::graph_ranking::{GraphRanker, PassageWeights, Seed};
use crate::layout::graph_file;
use crate::mode::GraphVariant;
use crate::openie::Builtin;
use crate::{BuildOptions, Corpus, Index, build};

const DIMS: usize = 8;

fn document(number: usize, triples: Option<Vec<Triple>>) -> Document {
    let id = format!("p{number}");
    Document { title: format!("Title {number}"), text: format!("Text of {id}."), id, triples, metadata: None }
}

/// Index in a folder of its own. The graph is opened separately, so that only its own checks apply.
struct Built {
    dir: tempfile::TempDir,
    info: GraphInfo,
    passages: usize,
}

impl Built {
    fn of(passages: &[Vec<Triple>]) -> Built {
        let dir = tempfile::tempdir().unwrap();
        let documents = passages.iter().cloned().map(Some).enumerate();
        let documents = documents.map(|(number, triples)| document(number, triples)).collect();
        let corpus = Corpus::from_documents("test", documents);
        let report = build(corpus, &HashEmbed::new(DIMS), dir.path(), &BuildOptions::default(), &()).unwrap();
        Built { dir, info: report.manifest.graph.unwrap(), passages: passages.len() }
    }

    fn folder(&self) -> PathBuf {
        self.dir.path().join("snapshot-1").join("graph")
    }

    fn open(&self) -> Result<Graph, IndexError> {
        Graph::open(&self.folder(), &self.info, self.passages, DIMS)
    }
}

fn triple([subject, relation, object]: [&str; 3]) -> Triple {
    Triple::new(subject, relation, object)
}

/// Calls every accessor once. Damage must end in an error or an answer, never in a panic.
fn read_all(graph: &Graph) {
    // One past the end, and the largest number, must be answered too.
    let beyond = |count: usize| (0..=count as u32).chain([u32::MAX]);
    for phrase in beyond(graph.phrases()) {
        graph.phrase_id(graph.phrase(phrase));
        let (synonyms, scores) = graph.synonyms(phrase);
        assert_eq!(synonyms.len(), scores.len());
        graph.passages_of(phrase).iter().for_each(|&passage| drop(graph.triples(passage)));
        graph.phrase_vector(phrase);
    }
    for fact in beyond(graph.facts()) {
        graph.fact_text(fact);
        graph.passages_of_fact(fact);
        graph.fact_vector(fact);
    }
    beyond(graph.passages()).for_each(|passage| drop((graph.facts_of(passage).len(), graph.triples(passage))));
    beyond(graph.adjacency().nodes()).for_each(|node| {
        graph.adjacency().row(node);
    });
    let seeds: Vec<Seed> =
        (0..graph.phrases() as u32).map(|phrase| Seed { phrase, passages: 1, linking: 1.0, weight: 1.0 }).collect();
    let own = PassageWeights::Every(vec![0.05; graph.passages()]);
    for whole in [Some(graph), None] {
        // The second variant ignores the phrase without text.
        for variant in [GraphVariant::HippoRag, GraphVariant::GraphRagR1] {
            GraphRanker::new(whole).rank(graph, &variant.into(), &seeds, &own, TopPassages { limit: 3, among: None });
        }
    }
}

#[test]
fn no_damage_makes_it_panic() {
    let built = Built::of(&[
        vec![triple(["Oliver Badman", "is a", "politician"]), triple(["Oliver Badman", "was", "Oliver Badman"])],
        vec![],
        vec![triple(["George Rankin", "is a", "politician"]), triple(["", "is", "George Rankin"])],
    ]);
    read_all(&built.open().unwrap());
    for name in graph_file::ALL {
        let path = built.folder().join(name);
        let whole = fs::read(&path).unwrap();
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            let error = built.open().map(drop).unwrap_err();
            assert!(matches!(&error, IndexError::Corrupt { file, .. } if *file == path), "{name} {length}: {error}");
        }
        for at in 0..whole.len() {
            // The lowest bit, the highest, and all.
            for flip in [1, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] ^= flip;
                fs::write(&path, &bytes).unwrap();
                match built.open() {
                    Ok(graph) => read_all(&graph),
                    Err(error) => assert!(matches!(error, IndexError::Corrupt { .. }), "{name} {at}: {error}"),
                }
            }
        }
        fs::write(&path, whole).unwrap();
    }
    built.open().unwrap();
}

#[test]
fn a_graph_may_be_empty() {
    let graph = Built::of(&[vec![], vec![]]).open().unwrap();
    assert_eq!((graph.phrases(), graph.facts(), graph.passages()), (0, 0, 2));
    assert!(graph.adjacency().targets.is_empty() && graph.adjacency().nodes() == 2);
    read_all(&graph);
}

/// Triples of few words in several spellings, so that many become equal by normalization.
fn triples() -> impl Strategy<Value = Vec<Vec<Triple>>> {
    let words = ["Ada", "ada", "ADA!", "Byron", "lord  byron", "Lord Byron", "x", "", "北京", "1815", "poet", "poets"];
    let word = prop::sample::select(words.to_vec());
    let triple = [word.clone(), word.clone(), word].prop_map(triple);
    prop::collection::vec(prop::collection::vec(triple, 0..8), 1..8)
}

/// Edge table of HippoRAG 2 by its definition: a weight for every ordered pair of named nodes.
fn table(passages: &[Vec<Triple>], graph: &Graph) -> HashMap<(String, String), f32> {
    let mut table: HashMap<(String, String), f32> = HashMap::new();
    for (number, triples) in passages.iter().enumerate() {
        let mut seen = BTreeSet::new();
        for triple in triples.iter().filter(|triple| seen.insert(*triple)) {
            let s = phrase::normalize(&triple.subject);
            let o = phrase::normalize(&triple.object);
            *table.entry((s.clone(), o.clone())).or_default() += 1.0;
            *table.entry((o.clone(), s.clone())).or_default() += 1.0;
            table.extend([s, o].map(|phrase| ((format!("P:{number}"), phrase), 1.0)));
        }
    }
    for phrase in 0..graph.phrases() as u32 {
        let (synonyms, scores) = graph.synonyms(phrase);
        for (&synonym, &score) in synonyms.iter().zip(scores) {
            table.insert((graph.phrase(phrase).to_owned(), graph.phrase(synonym).to_owned()), score);
        }
    }
    table.retain(|(a, b), _| a != b);
    table
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn the_graph_is_that_of_the_rules(passages in triples()) {
        let built = Built::of(&passages);
        let graph = built.open().unwrap();
        let mut sums: BTreeMap<(String, String), Vec<f32>> = BTreeMap::new();
        for ((a, b), weight) in table(&passages, &graph) {
            // Edges have no direction: the weights of both directions add up.
            let pair = if a < b { (a, b) } else { (b, a) };
            sums.entry(pair).or_default().push(weight);
        }
        let name = |node: u32| match (node as usize).checked_sub(graph.phrases()) {
            Some(passage) => format!("P:{passage}"),
            None => graph.phrase(node).to_owned(),
        };
        let adjacency = graph.adjacency();
        let mut edges = 0;
        for from in 0..adjacency.nodes() as u32 {
            let (targets, weights) = adjacency.row(from);
            prop_assert!(targets.is_sorted_by(|a, b| a < b));
            for (&to, &weight) in targets.iter().zip(weights) {
                let (back, back_weights) = adjacency.row(to);
                let place = back.binary_search(&from).unwrap();
                prop_assert_eq!(back_weights[place].to_bits(), weight.to_bits());
                let a = name(from);
                let b = name(to);
                let expected: f32 = sums[&if a < b { (a, b) } else { (b, a) }].iter().sum();
                prop_assert!((expected - weight).abs() < 1e-6);
                edges += 1;
            }
        }
        prop_assert_eq!(edges, 2 * sums.len());
        prop_assert_eq!(built.info.edges, sums.len() as u64);
    }

    #[test]
    fn what_passages_state_comes_back(passages in triples()) {
        let built = Built::of(&passages);
        let graph = built.open().unwrap();
        let id = |text: &str| graph.phrase_id(&phrase::normalize(text)).unwrap();
        let (mut stated, mut mentioned) = (BTreeMap::<String, BTreeSet<u32>>::new(), BTreeMap::<u32, BTreeSet<u32>>::new());
        for (number, triples) in (0..).zip(&passages) {
            let mut once: Vec<Triple> = Vec::new();
            for triple in triples {
                if !once.contains(triple) {
                    once.push(triple.clone());
                }
            }
            prop_assert_eq!(graph.triples(number).unwrap(), once);
            for Triple { subject, relation, object } in triples {
                let [s, r, o] = [subject, relation, object].map(|text| phrase::normalize(text));
                stated.entry(phrase::fact(&s, &r, &o)).or_default().insert(number);
                for text in [s, o] {
                    mentioned.entry(id(&text)).or_default().insert(number);
                }
            }
        }
        prop_assert_eq!(graph.facts(), stated.len());
        for fact in 0..graph.facts() as u32 {
            let passages = &stated[&graph.fact_text(fact)];
            prop_assert!(graph.passages_of_fact(fact).iter().eq(passages));
            prop_assert!(passages.iter().all(|&passage| graph.facts_of(passage).contains(&fact)));
        }
        let facts_of: usize = (0..graph.passages() as u32).map(|passage| graph.facts_of(passage).len()).sum();
        prop_assert_eq!(facts_of, stated.values().map(BTreeSet::len).sum::<usize>());
        prop_assert!(mentioned.iter().all(|(&phrase, passages)| graph.passages_of(phrase).iter().eq(passages)));
        prop_assert_eq!(graph.phrases(), mentioned.len());
        prop_assert_eq!(built.info.triples, (0..graph.passages() as u32).map(|p| graph.triples(p).unwrap().len() as u64).sum::<u64>());
    }
}

#[derive(Debug)]
struct TitleIndex;

impl crate::Extract for TitleIndex {
    fn id(&self) -> String {
        "titles".to_owned()
    }

    fn reads_corpus(&self) -> bool {
        false
    }

    fn extract(
        &self,
        passages: &dyn crate::Passages,
        numbers: &[u32],
        sink: &mut crate::TripleSink<'_>,
    ) -> Result<(), IndexError> {
        // From the last to the first, since any order must work; and one passage that was not requested.
        sink(u32::MAX, vec![Triple::new("nobody", "asked for", "this")])?;
        numbers.iter().rev().try_for_each(|&number| {
            let title = passages.passage(number)?.title;
            sink(number, vec![Triple::new(title, "is", "a title")])
        })
    }
}

#[test]
fn documents_own_triples_come_before_the_extractor() {
    let temp = tempfile::tempdir().unwrap();
    let own = vec![triple(["Seven", "is", "a number"])];
    let documents =
        vec![document(0, None), document(1, Some(own.clone())), document(2, Some(vec![])), document(3, None)];
    let options = BuildOptions { extract: Some(std::sync::Arc::new(TitleIndex)), ..BuildOptions::default() };
    let corpus = Corpus::from_documents("test", documents.clone());
    build(corpus, &HashEmbed::default(), temp.path(), &options, &()).unwrap();
    let index = Index::open(temp.path(), std::sync::Arc::new(HashEmbed::default())).unwrap();
    let graph = index.graph().unwrap();
    let found: Vec<_> = (0..4).map(|number| graph.triples(number).unwrap()).collect();
    let title = |number| vec![Triple::new(format!("Title {number}"), "is", "a title")];
    assert_eq!(found, [title(0), own, vec![], title(3)]);
    let info = index.info().graph.unwrap();
    assert_eq!((info.source.as_str(), info.triples, info.facts), ("corpus and titles", 3, 3));
    for document in documents {
        assert_eq!(
            index.passage(&document.id).unwrap(),
            Some(document),
            "only what a document brought is shown with it"
        );
    }
}

#[test]
fn without_triples_and_without_an_extractor_there_is_no_graph() {
    let temp = tempfile::tempdir().unwrap();
    let corpus = Corpus::from_documents("test", vec![document(0, None)]);
    let report = build(corpus, &HashEmbed::default(), temp.path(), &BuildOptions::default(), &()).unwrap();
    assert_eq!(report.manifest.graph, None);
    let index = Index::open(temp.path(), std::sync::Arc::new(HashEmbed::default())).unwrap();
    assert!(index.graph().is_none() && index.modes() == [crate::Mode::Passage]);
    assert!(report.manifest.files.keys().all(|name| !name.contains("/graph/")));
}

#[test]
fn what_the_built_in_extractor_found_is_known_also_in_a_file_without_a_word_for_it() {
    let temp = tempfile::tempdir().unwrap();
    let options = BuildOptions { extract: Some(std::sync::Arc::new(Builtin)), ..BuildOptions::default() };
    let corpus = Corpus::from_documents("test", vec![document(0, None)]);
    let info = build(corpus, &HashEmbed::new(DIMS), temp.path(), &options, &()).unwrap().manifest.graph.unwrap();
    assert_eq!(info.source, "builtin");
    let folder = temp.path().join("snapshot-1").join("graph");
    let origin = |source: &str| {
        let info = GraphInfo { source: source.to_owned(), ..info.clone() };
        Graph::open(&folder, &info, 1, DIMS).unwrap().origin(0)
    };
    let sources = ["builtin", "builtin and import x", "import x"];
    assert_eq!(sources.map(origin), [TripleOrigin::Builtin; 3]);
    let path = folder.join(graph_file::TRIPLES);
    let found = TripleFile::open(&path, 1).unwrap().get(0).unwrap();
    fs::remove_file(&path).unwrap();
    let mut old = TripleWriter::create(&path).unwrap();
    // Older files do not tell the built-in extractor from others.
    old.add(0, &found, TripleOrigin::Extracted).unwrap();
    old.finish(1).unwrap();
    assert_eq!(sources.map(origin), [TripleOrigin::Builtin, TripleOrigin::Extracted, TripleOrigin::Extracted]);
}
