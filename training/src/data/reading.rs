//! Search for the answer of a hop in an observation, as the policy sees it.

use std::collections::HashSet;

use crate::lessons::lesson::Hop;
use crate::lessons::rows::CorpusPassage;
use crate::lessons::text::{bare_title, find_words, overlap, quote, sentences, words};

/// Piece of evidence in an observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShownEvidence<'o> {
    /// A passage.
    Passage(ShownPassage<'o>),
    /// A fact in one sentence.
    Fact(ShownFact<'o>),
}

/// Passage in an observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShownPassage<'o> {
    /// Number of the passage.
    pub number: usize,
    /// Title and text, including the protocol's separator.
    text: &'o str,
}

/// Fact in an observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShownFact<'o> {
    /// Number of the fact.
    pub number: usize,
    /// Sentence of the fact.
    text: &'o str,
}

/// Answer of a hop and its place in an observation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HopFinding {
    /// Number of the passage or fact in the observation.
    pub number: usize,
    /// Name by which a thought refers to the evidence, for example `Doc 2`.
    pub source: String,
    /// Quotation that contains the answer.
    pub quote: String,
    /// Answer in the spelling of the evidence.
    pub answer: String,
}

/// Parses the passages of an observation: `Doc 1(Title: …) …`, one per line, until the last `close`.
pub fn parse_passages<'o>(observation: &'o str, close: &str) -> Vec<ShownEvidence<'o>> {
    let mut all = Vec::new();
    let mut rest = observation;
    for number in 1.. {
        // Numbers are counted along: a passage that quotes "Doc 1(Title: " does not start another one.
        let Some((_, after)) = rest.split_once(&format!("Doc {number}(Title: ")) else { break };
        // The last passage ends with the block, whose closing tag is the last one in the observation.
        let end = after.find(&format!("\nDoc {}(Title: ", number + 1)).or(after.rfind(close));
        let text = after[..end.unwrap_or(after.len())].trim_end();
        all.push(ShownEvidence::Passage(ShownPassage { number, text }));
        rest = after;
    }
    all
}

/// Parses the facts of an observation: `Fact 1: …`, one per line, until the last `close`.
pub fn parse_facts<'o>(observation: &'o str, close: &str) -> Vec<ShownEvidence<'o>> {
    let block = &observation[..observation.rfind(close).unwrap_or(observation.len())];
    let mut all = Vec::new();
    for line in block.lines() {
        let number = all.len() + 1;
        if let Some(text) = line.strip_prefix(&format!("Fact {number}: ")) {
            all.push(ShownEvidence::Fact(ShownFact { number, text: text.trim_end() }));
        }
    }
    all
}

impl<'o> ShownEvidence<'o> {
    /// Number of the passage or fact, from 1.
    pub fn number(&self) -> usize {
        match self {
            ShownEvidence::Passage(passage) => passage.number,
            ShownEvidence::Fact(fact) => fact.number,
        }
    }

    /// Returns `true` if the evidence contains these words in any meaning.
    pub fn has(&self, words: &str) -> bool {
        find_words(self.text(), words).is_some()
    }

    /// Title of a passage, up to the first `) `. Empty for a fact.
    pub fn title(&self) -> &'o str {
        match self {
            ShownEvidence::Passage(passage) => passage.text.split(") ").next().unwrap_or(passage.text),
            ShownEvidence::Fact(_) => "",
        }
    }

    fn text(&self) -> &'o str {
        match self {
            ShownEvidence::Passage(passage) => passage.text,
            ShownEvidence::Fact(fact) => fact.text,
        }
    }
}

impl<'o> ShownPassage<'o> {
    /// Visible part of the text of `source`, if this is that passage.
    fn body_of(&self, source: &CorpusPassage) -> Option<&'o str> {
        let body = self.text.strip_prefix(source.title.as_str())?.strip_prefix(')')?.trim_start();
        let begins = |text: &str| text.chars().take(40).collect::<String>();
        (!body.is_empty() && begins(&source.text).starts_with(&begins(body))).then_some(body)
    }
}

/// Finds the answer of a hop. Passages about its subject precede others, and then the sentence wins that shares the
/// most words with the first query.
pub fn find_answer(hop: &Hop, shown: &[ShownEvidence<'_>]) -> Option<HopFinding> {
    let mut best: Option<(usize, HopFinding)> = None;
    let mut consider = |score: usize, finding: HopFinding| {
        if best.as_ref().is_none_or(|(other, _)| score > *other) {
            best = Some((score, finding));
        }
    };
    for evidence in shown {
        match evidence {
            ShownEvidence::Passage(passage) => read_passage(hop, passage, &mut consider),
            ShownEvidence::Fact(fact) => read_fact(hop, fact, &mut consider),
        }
    }
    best.map(|(_, finding)| finding)
}

/// Considers the sentences of a passage that state the answer of a hop.
fn read_passage(hop: &Hop, passage: &ShownPassage<'_>, consider: &mut impl FnMut(usize, HopFinding)) {
    let subject = bare_title(&hop.subject);
    let about = |source: &CorpusPassage| {
        find_words(&source.title, subject).is_some() || find_words(subject, bare_title(&source.title)).is_some()
    };
    // If the subject has a passage of its own, remarks about it in other passages are too easily misread.
    let own = !hop.is_question() && hop.sources.iter().any(about);
    let wanted = hop.queries.first().map_or("", String::as_str);
    for (source, body) in hop.sources.iter().filter_map(|source| Some((source, passage.body_of(source)?))) {
        let titled = about(source);
        if !titled && (own || find_words(body, subject).is_none() && !hop.is_question()) {
            continue;
        }
        for sentence in sentences(body) {
            let Some(span) = find_words(sentence, &hop.answer).filter(|_| cued(sentence, hop.cues)) else {
                continue;
            };
            // A hundred exceeds any overlap of words, so that the title decides first.
            let score = 100 * usize::from(titled) + overlap(sentence, wanted);
            let answer = sentence[span.clone()].to_owned();
            let source = format!("Doc {}", passage.number);
            consider(score, HopFinding { number: passage.number, source, quote: quote(sentence, span), answer });
        }
    }
}

/// Considers a fact that states the answer of a hop. It must be about the hop's subject, and most of its words must be
/// those of a source: facts do not name the passage that states them.
fn read_fact(hop: &Hop, fact: &ShownFact<'_>, consider: &mut impl FnMut(usize, HopFinding)) {
    let wanted = hop.queries.first().map_or("", String::as_str);
    let about = hop.is_question() || find_words(fact.text, bare_title(&hop.subject)).is_some();
    let Some(span) = find_words(fact.text, &hop.answer).filter(|_| about && cued(fact.text, hop.cues)) else { return };
    let own: HashSet<String> = words(fact.text).into_iter().collect();
    let stated = |source: &CorpusPassage| {
        let known: HashSet<String> = words(&source.title).into_iter().chain(words(&source.text)).collect();
        // An extractor may add words of its own, such as "was born on" for a date in brackets.
        own.iter().filter(|word| known.contains(*word)).count() * 10 >= own.len() * 6
    };
    let score = overlap(fact.text, wanted);
    // A question names its subject anywhere, so a fact must share words with it besides the answer.
    let related = !hop.is_question() || score > overlap(&hop.answer, wanted);
    if related && hop.sources.iter().any(stated) {
        let answer = fact.text[span.clone()].to_owned();
        let source = format!("Fact {}", fact.number);
        consider(score, HopFinding { number: fact.number, source, quote: quote(fact.text, span), answer });
    }
}

/// Returns `true` if a word of the sentence starts with one of the cues, or if there are none.
fn cued(sentence: &str, cues: &[&str]) -> bool {
    cues.is_empty() || words(sentence).iter().any(|word| cues.iter().any(|cue| word.starts_with(cue)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::lessons::lesson::FindingForm;

    const CLOSE: &str = "</information>";

    fn hop() -> Hop {
        let source =
            |id: &str, title: &str, text: &str| CorpusPassage { id: id.into(), title: title.into(), text: text.into() };
        Hop {
            need: "the birthplace of Ann Lee".into(),
            subject: "Ann Lee".into(),
            queries: vec!["Ann Lee born".into()],
            answer: "leeds".into(),
            cues: &["born"],
            sources: vec![source("1", "Ann Lee (actress)", "Ann Lee acts in Leeds. She was born in Leeds, England.")],
            finding_form: FindingForm::Value,
        }
    }

    #[test]
    fn the_sentence_with_the_answer_is_quoted() {
        let observation = "\n\n<information>Doc 1(Title: Leeds) Leeds is a city.\nDoc 2(Title: Ann Lee (actress)) Ann Lee acts \
                           in Leeds. She was born in Leeds, England.\n</information>\n\n";
        let passages = parse_passages(observation, CLOSE);
        assert_eq!(passages.len(), 2);
        let finding = find_answer(&hop(), &passages).unwrap();
        assert_eq!((finding.number, finding.answer.as_str()), (2, "Leeds"));
        assert_eq!(finding.quote, "She was born in Leeds");
    }

    #[test]
    fn truncated_or_foreign_passages_are_not_read() {
        let cut = "<information>Doc 1(Title: Ann Lee (actress)) Ann Lee acts in</information>";
        assert_eq!(find_answer(&hop(), &parse_passages(cut, CLOSE)), None);
        let other = "<information>Doc 1(Title: Ann Lee) Ann Lee was a nun born in Leeds.\n</information>";
        assert_eq!(find_answer(&hop(), &parse_passages(other, CLOSE)), None);
        assert_eq!(parse_passages("", CLOSE), []);
    }

    #[test]
    fn facts_are_read_if_a_source_states_them_about_the_subject() {
        let read = |facts: &str| {
            let text = format!("user\n<knowledge>\n{facts}\n</knowledge>\nassistant\n<think>\n");
            find_answer(&hop(), &parse_facts(&text, "\n</knowledge>"))
        };
        let found = read("Fact 1: Ann Lee acts in Leeds\nFact 2: Ann Lee was born in Leeds").unwrap();
        assert_eq!((found.source.as_str(), found.answer.as_str()), ("Fact 2", "Leeds"));
        assert_eq!(found.quote, "Ann Lee was born in Leeds");
        for other in
            ["Bob Ray was born in Leeds", "Ann Lee, born Briton, rebuilt and sold 12 Leeds", "Ann Lee lives in Leeds"]
        {
            assert_eq!(read(&format!("Fact 1: {other}")), None, "{other}");
        }
    }
}
