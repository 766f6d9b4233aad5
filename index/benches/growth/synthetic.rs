//! Made-up passages: each is about a name of its own and states five things of it.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use super::random::Random;

/// Triples of each passage.
pub const TRIPLES: usize = 5;

/// Words that names are made of: two for each, so that some four million names differ, and those that have their words
/// the other way round are synonyms to an embedder of bags of words.
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

/// The name that the passage with this number is about; no two are equal below four million.
pub fn name(number: usize) -> String {
    // An odd factor permutes the pairs.
    let pair = number.wrapping_mul(2_654_435_761) % (WORDS * WORDS);
    format!("{} {}", word(pair / WORDS), word(pair % WORDS))
}

/// A pronounceable word for each number below [`WORDS`].
fn word(number: usize) -> String {
    const STARTS: [&str; 16] = ["b", "br", "d", "dr", "f", "g", "gr", "k", "l", "m", "n", "p", "r", "s", "st", "v"];
    const MIDDLES: [&str; 8] = ["a", "e", "i", "o", "u", "ai", "ei", "ou"];
    const ENDS: [&str; 16] = [
        "ban", "den", "dor", "fal", "gan", "kor", "lan", "len", "mir", "nar", "ran", "sel", "tan", "tor", "van", "zan",
    ];
    format!("{}{}{}", STARTS[number % 16], MIDDLES[number / 16 % 8], ENDS[number / 128 % 16])
}

/// The triples of a passage among `passages`: three to other names, one to a year, one to a common word. As in real text
/// a few hundred phrases stand in a large share of the passages.
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

/// Writes the corpus as JSON lines, one passage after the other.
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

/// Questions about things that are stated, each two steps away from its answer.
pub fn questions(count: usize, passages: usize) -> Vec<String> {
    let mut random = Random(u64::MAX);
    let question = |number: usize, random: &mut Random| {
        let [subject, relation, _] = triples(number, passages).swap_remove(random.below(3));
        format!("What {} that {subject} {relation}?", RELATIONS[random.below(RELATIONS.len())])
    };
    (0..count).map(|_| question(random.below(passages), &mut random)).collect()
}
