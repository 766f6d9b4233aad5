//! Generated passages, each about a name of its own with five statements.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use super::random::Random;

/// Number of triples per passage.
pub const TRIPLES: usize = 5;

/// Number of words from which names are built. Two words per name give some four million names; names with swapped
/// words are synonyms to a bag-of-words embedder.
const WORDS: usize = 2048;

const RELATIONS: [&str; 16] = [
    "was born in",
    "was founded by",
    "is the capital of",
    "was directed by",
    "plays for",
    "lies on",
    "is a part of",
    "was married to",
    "wrote",
    "studied under",
    "borders",
    "was succeeded by",
    "works as",
    "was built in",
    "won",
    "is named after",
];

/// Returns the name that a passage is about. Names are distinct below four million.
pub fn name(number: usize) -> String {
    // Multiplication by an odd factor permutes the pairs.
    let pair = number.wrapping_mul(2_654_435_761) % (WORDS * WORDS);
    format!("{} {}", word(pair / WORDS), word(pair % WORDS))
}

/// Returns a pronounceable word for each number below [`WORDS`].
fn word(number: usize) -> String {
    const STARTS: [&str; 16] = ["b", "br", "d", "dr", "f", "g", "gr", "k", "l", "m", "n", "p", "r", "s", "st", "v"];
    const MIDDLES: [&str; 8] = ["a", "e", "i", "o", "u", "ai", "ei", "ou"];
    const ENDS: [&str; 16] = [
        "ban", "den", "dor", "fal", "gan", "kor", "lan", "len", "mir", "nar", "ran", "sel", "tan", "tor", "van", "zan",
    ];
    format!("{}{}{}", STARTS[number % 16], MIDDLES[number / 16 % 8], ENDS[number / 128 % 16])
}

/// Returns the triples of a passage among `passages`: three to other names, one to a year, one to a common word. As in
/// real text, a few hundred phrases occur in a large share of the passages.
fn triples(number: usize, passages: usize) -> Vec<[String; 3]> {
    let mut random = Random(number as u64);
    let about = name(number);
    (0..TRIPLES)
        .map(|place| {
            let relation = RELATIONS[random.below(RELATIONS.len())].to_owned();
            let object = match place {
                0..3 => name(random.below(passages)),
                3 => (1800 + random.below(220)).to_string(),
                _ => format!("{} trade", word(random.below(WORDS))),
            };
            [about.clone(), relation, object]
        })
        .collect()
}

/// Writes the corpus as JSONL, one passage per line.
pub fn write(path: &Path, passages: usize) {
    let mut out = BufWriter::new(File::create(path).unwrap());
    for number in 0..passages {
        let triples = triples(number, passages);
        let text: String = triples.iter().map(|[s, p, o]| format!("{s} {p} {o}. ")).collect();
        let row = serde_json::json!({
            "id": format!("p{number}"), "title": name(number), "text": text.trim_end(), "triples": triples,
        });
        writeln!(out, "{row}").unwrap();
    }
    out.flush().unwrap();
}

/// Returns a passage beyond those of a corpus of `passages`, about a name of its own and names of the corpus.
pub fn document(number: usize, passages: usize) -> waymark_index::Document {
    let triples = triples(number, passages);
    let text: String = triples.iter().map(|[s, p, o]| format!("{s} {p} {o}. ")).collect();
    waymark_index::Document {
        id: format!("p{number}"),
        title: name(number),
        text: text.trim_end().to_owned(),
        triples: Some(triples.into_iter().map(Into::into).collect()),
        metadata: None,
    }
}

/// Returns questions about stated facts, each two hops away from the answer.
pub fn questions(count: usize, passages: usize) -> Vec<String> {
    let mut random = Random(u64::MAX);
    let question = |number: usize, random: &mut Random| {
        let [subject, relation, _] = triples(number, passages).swap_remove(random.below(3));
        format!("What {} that {subject} {relation}?", RELATIONS[random.below(RELATIONS.len())])
    };
    (0..count).map(|_| question(random.below(passages), &mut random)).collect()
}
