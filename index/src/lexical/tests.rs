#![allow(clippy::unwrap_used, clippy::expect_used)]
use super::*;

fn lexical(passages: &[&str]) -> (tempfile::TempDir, LexicalIndex) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lexical");
    let mut writer = LexicalWriter::create(&path).unwrap();
    for passage in passages {
        let (title, text) = passage.split_once('\n').unwrap_or(("", passage));
        writer.add(title, text).unwrap();
    }
    writer.finish().unwrap();
    let lexical = LexicalIndex::open(&path, passages.len()).unwrap();
    (dir, lexical)
}

fn numbers(lexical: &LexicalIndex, query: &str) -> Vec<u32> {
    lexical.search(query, 10, None).unwrap().iter().map(|hit| hit.number).collect()
}

#[test]
fn words_are_found_whatever_their_case_accents_and_endings() {
    let (_dir, lexical) = lexical(&[
        "Zürich\nThe city of the Swiss bankers.",
        "Running dogs",
        "nothing",
        "Mu\u{308}ller wrote it.",
        "İstanbul lies on two continents.",
    ]);
    assert_eq!(numbers(&lexical, "zurich"), [0]);
    assert_eq!(numbers(&lexical, "ZÜRICH BANKER"), [0]);
    assert_eq!(numbers(&lexical, "a dog runs"), [1]);
    assert_eq!(numbers(&lexical, "absent"), [0; 0]);
    for query in ["muller", "MÜLLER", "mu\u{308}ller"] {
        assert_eq!(numbers(&lexical, query), [3], "{query}");
    }
    for query in ["istanbul", "ISTANBUL", "İSTANBUL", "i\u{307}stanbul"] {
        assert_eq!(numbers(&lexical, query), [4], "{query}");
    }
    assert_eq!(numbers(&lexical, "ller"), [0; 0]);
}

#[test]
fn words_are_found_in_scripts_without_spaces() {
    let (_dir, lexical) =
        lexical(&["東京タワー\n東京都港区にある電波塔である。", "京都\n京都市は日本の都市。", "ภาษาไทย"]);
    assert_eq!(numbers(&lexical, "東京タワーはどこにありますか"), [0]);
    assert_eq!(numbers(&lexical, "日本"), [1]);
    // The two characters also meet within the name of the prefecture.
    assert_eq!(numbers(&lexical, "京都"), [1, 0]);
    assert_eq!(numbers(&lexical, "ไทย"), [2]);
}

#[test]
fn an_index_of_an_earlier_analyzer_is_searched_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lexical");
    let mut writer = LexicalWriter::create_with(&path, Analysis::Words).unwrap();
    writer.add("", "東京都 tower").unwrap();
    writer.finish().unwrap();
    let lexical = LexicalIndex::open(&path, 1).unwrap();
    assert_eq!(numbers(&lexical, "TOWERS"), [0]);
    assert_eq!(numbers(&lexical, "東京都"), [0]);
    assert_eq!(numbers(&lexical, "東京"), [0; 0]);
    let path = dir.path().join("pairs");
    let mut writer = LexicalWriter::create_with(&path, Analysis::WordsAndPairs).unwrap();
    writer.add("", "東京都 Mu\u{308}ller").unwrap();
    writer.finish().unwrap();
    let lexical = LexicalIndex::open(&path, 1).unwrap();
    assert_eq!(numbers(&lexical, "東京"), [0]);
    assert_eq!(numbers(&lexical, "Mu\u{308}ller"), [0]);
    assert_eq!(numbers(&lexical, "Müller"), [0; 0], "such an index splits the word");
}

#[test]
fn no_query_is_a_syntax_error() {
    let (_dir, lexical) = lexical(&["AND and OR", "a \"quoted: (word", "x"]);
    for query in ["\"", "AND", "a:b", "content:x", "(((", "*", "+", "-x", "[a TO", "\\", "/re", "^2", "~", "\0", "🙂"]
    {
        lexical.search(query, 10, None).unwrap();
    }
    assert_eq!(numbers(&lexical, "AND AND"), [0]);
    assert_eq!(numbers(&lexical, "quoted:\"(word"), [1]);
    assert_eq!(numbers(&lexical, ""), [0; 0]);
    assert_eq!(numbers(&lexical, "?! --"), [0; 0]);
}

#[test]
fn scores_are_those_of_bm25() {
    let (_dir, lexical) = lexical(&["apple apple pear", "apple", "plum plum plum plum"]);
    let hits = lexical.search("apple apple", 10, None).unwrap();
    let idf = (1.0_f64 + (3.0 - 2.0 + 0.5) / (2.0 + 0.5)).ln();
    let average = 8.0 / 3.0;
    let bm25 = |tf: f64, length: f64| 2.0 * idf * tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * length / average));
    // The shorter passage wins over the one that repeats the word.
    assert_eq!(hits.iter().map(|hit| hit.number).collect::<Vec<_>>(), [1, 0]);
    assert!((f64::from(hits[0].score) - bm25(1.0, 1.0)).abs() < 1e-5);
    assert!((f64::from(hits[1].score) - bm25(2.0, 3.0)).abs() < 1e-5);
}

#[test]
fn a_word_in_a_title_counts_as_two_in_the_text() {
    let (_dir, lexical) = lexical(&["apple\npear", "apple apple pear", "plum"]);
    let hits = lexical.search("apple", 10, None).unwrap();
    assert_eq!(hits.iter().map(|hit| hit.number).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(hits[0].score, hits[1].score);
}

#[test]
fn equal_scores_keep_the_order_of_the_corpus() {
    let passages: Vec<_> = (0..300).map(|_| "same words here").collect();
    let (_dir, lexical) = lexical(&passages);
    assert_eq!(numbers(&lexical, "words same"), (0..10).collect::<Vec<_>>());
}

#[test]
fn a_very_long_query_is_answered() {
    let (_dir, lexical) = lexical(&["word0 word1", "word5000"]);
    let query: String = (0..6000).map(|i| format!("word{i} ")).collect();
    assert_eq!(numbers(&lexical, &query), [0], "terms behind the limit are not searched");
}

#[test]
fn it_opens_and_searches_in_a_folder_that_gains_no_file() {
    let (dir, lexical) = lexical(&["one", "two"]);
    let list = || {
        let mut names: Vec<_> = walkdir::WalkDir::new(dir.path()).into_iter().map(|e| e.unwrap().into_path()).collect();
        names.sort();
        names
    };
    let before = list();
    drop(lexical);
    let again = LexicalIndex::open(&dir.path().join("lexical"), 2).unwrap();
    assert_eq!(numbers(&again, "two"), [1]);
    assert_eq!(list(), before);
}

#[test]
fn another_number_of_passages_is_noticed() {
    let (dir, _lexical) = lexical(&["one", "two"]);
    let error = LexicalIndex::open(&dir.path().join("lexical"), 3).unwrap_err().to_string();
    assert!(error.contains("3 passages"), "{error}");
}

#[test]
fn among_some_passages_the_best_of_them_are_found_with_the_scores_they_have_among_all() {
    let texts: Vec<String> =
        (0..400).map(|i| format!("apple {} {}", "pear ".repeat(i % 7), "plum ".repeat(i % 5))).collect();
    let (_dir, lexical) = lexical(&texts.iter().map(String::as_str).collect::<Vec<_>>());
    for query in ["apple", "pear plum", "plum plum pear", "absent"] {
        let all = lexical.search(query, 400, None).unwrap();
        for every in [1, 3, 50] {
            let mut allowed = AllowedPassages::none(400);
            (0..400).step_by(every).for_each(|number| allowed.insert(number));
            let expected: Vec<_> = all.iter().copied().filter(|hit| allowed.contains(hit.number)).collect();
            for limit in [1, 5, 400] {
                let found = lexical.search(query, limit, Some(&allowed)).unwrap();
                assert_eq!(found, expected[..limit.min(expected.len())], "{query} of every {every}");
            }
        }
    }
}
