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
    /// Word that stands before the number, for example `Doc`. `None` if passages are shown without numbers.
    label: Option<&'static str>,
    /// Title and text, including the protocol's separator.
    text: &'o str,
    /// Separator between title and text.
    separator: &'static str,
}

/// Fact in an observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShownFact<'o> {
    /// Number of the fact.
    pub number: usize,
    /// Word by which a thought refers to facts, for example `Fact`.
    label: &'static str,
    /// Sentence of the fact.
    text: &'o str,
}

/// Label of passages that are shown as documents.
const DOCUMENT: &str = "Doc";

/// Label of facts that are shown without passages.
const FACT: &str = "Fact";

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
        all.push(ShownEvidence::Passage(ShownPassage { number, label: Some(DOCUMENT), text, separator: ") " }));
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
            all.push(ShownEvidence::Fact(ShownFact { number, label: FACT, text: text.trim_end() }));
        }
    }
    all
}

/// Parses a common ranking of passages and facts: `Evidence 1: Title: "…" Text: …` and `Evidence 2: Triplet: …`, one
/// per line, until the last `close`. The first line may follow `open`.
pub fn parse_items<'o>(observation: &'o str, open: &str, close: &str) -> Vec<ShownEvidence<'o>> {
    const ITEM: &str = "Evidence";
    let block = &observation[..observation.rfind(close).unwrap_or(observation.len())];
    let mut all = Vec::new();
    for line in block.lines() {
        let number = all.len() + 1;
        let line = line.strip_prefix(open).unwrap_or(line);
        let Some(item) = line.strip_prefix(&format!("{ITEM} {number}: ")) else { continue };
        let item = item.trim_end();
        if let Some(text) = item.strip_prefix("Triplet: ") {
            all.push(ShownEvidence::Fact(ShownFact { number, label: ITEM, text }));
        } else if let Some(text) = item.strip_prefix("Title: \"") {
            let separator = "\" Text: ";
            all.push(ShownEvidence::Passage(ShownPassage { number, label: Some(ITEM), text, separator }));
        }
    }
    all
}

/// Parses triples, `(1) { … }` one per line, and the passages after them, each a line with its title and a line with
/// its text, between `open` and the last `close`.
pub fn parse_triples<'o>(observation: &'o str, open: &str, close: &str) -> Vec<ShownEvidence<'o>> {
    let Some((_, block)) = observation.split_once(open) else { return Vec::new() };
    let mut rest = &block[..block.rfind(close).unwrap_or(block.len())];
    let mut all = Vec::new();
    loop {
        let number = all.len() + 1;
        let (line, after) = rest.split_once('\n').unwrap_or((rest, ""));
        let Some(fact) = line.strip_prefix(&format!("({number}) {{ ")) else { break };
        let text = fact.trim_end_matches('}').trim_end();
        all.push(ShownEvidence::Fact(ShownFact { number, label: "Triple", text }));
        rest = after;
    }
    // Without triples, an empty line stands in their place.
    rest = rest.trim_start_matches('\n');
    while let Some((title, after)) = rest.split_once('\n') {
        let end = title.len() + 1 + after.find('\n').unwrap_or(after.len());
        let number = all.len() + 1;
        let text = rest[..end].trim_end();
        all.push(ShownEvidence::Passage(ShownPassage { number, label: None, text, separator: "\n" }));
        rest = rest[end..].trim_start_matches('\n');
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

    /// Title of a passage, up to the first separator that is not within parentheses of the title. Empty for a fact.
    pub fn title(&self) -> &'o str {
        let ShownEvidence::Passage(ShownPassage { text, separator, .. }) = self else { return "" };
        let titles = text.match_indices(separator).map(|(at, _)| &text[..at]);
        let mut whole = titles.filter(|title| title.matches('(').count() == title.matches(')').count());
        whole.next().or_else(|| text.split(separator).next()).unwrap_or(text)
    }

    /// Returns `true` if it is shown as a numbered document.
    pub fn is_document(&self) -> bool {
        matches!(self, ShownEvidence::Passage(passage) if passage.label == Some(DOCUMENT))
    }

    /// Returns `true` if it is shown as a fact among facts.
    pub fn is_plain_fact(&self) -> bool {
        matches!(self, ShownEvidence::Fact(fact) if fact.label == FACT)
    }

    fn text(&self) -> &'o str {
        match self {
            ShownEvidence::Passage(passage) => passage.text,
            ShownEvidence::Fact(fact) => fact.text,
        }
    }
}

impl<'o> ShownPassage<'o> {
    /// Visible part of the text of `source`, if this is that passage. Some protocols join words by single spaces.
    fn body_of(&self, source: &CorpusPassage) -> Option<&'o str> {
        let titled = |title: &str| self.text.strip_prefix(title)?.strip_prefix(self.separator);
        let body = titled(&source.title).or_else(|| titled(&joined(source.title.split_whitespace())))?.trim_start();
        // A word has at least one character, so forty words hold the first forty characters.
        let begins = |text: &str| joined(text.split_whitespace().take(40)).chars().take(40).collect::<String>();
        (!body.is_empty() && begins(&source.text).starts_with(&begins(body))).then_some(body)
    }
}

/// Joins words by single spaces.
fn joined<'w>(words: impl Iterator<Item = &'w str>) -> String {
    words.collect::<Vec<_>>().join(" ")
}

/// Finds the answer of a hop. Prefers passages about the hop's subject, then the sentence that shares the most words
/// with the hop's first query.
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
            let source = match passage.label {
                Some(label) => format!("{label} {}", passage.number),
                None => format!("Passage \"{}\"", source.title),
            };
            consider(score, HopFinding { number: passage.number, source, quote: quote(sentence, span), answer });
        }
    }
}

/// Considers a fact that states the answer of a hop. The fact must be about the hop's subject, and most of its words
/// must occur in one source, because facts do not name the passage that states them.
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
        // Graphs keep names in lower case; an answer is written as the lesson spells it.
        let spelled = fact.text.chars().any(char::is_uppercase);
        let answer = if spelled { fact.text[span.clone()].to_owned() } else { hop.answer.clone() };
        let source = format!("{} {}", fact.label, fact.number);
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

    #[test]
    fn items_of_a_common_ranking_are_passages_and_facts() {
        let text = "<Reference> Evidence 1: Title: \"Leeds\" Text: Evidence 2: Leeds is a city.\nEvidence 2: Title: \
                    \"Ann Lee (actress)\" Text: Ann Lee acts in Leeds. She was born in Leeds, England.\nEvidence 3: \
                    Triplet: ann lee was born in leeds </Reference>";
        let shown = parse_items(text, "<Reference> ", " </Reference>");
        assert_eq!(shown.iter().map(ShownEvidence::number).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!((shown[1].title(), shown[2].title()), ("Ann Lee (actress)", ""));
        let found = find_answer(&hop(), &shown).unwrap();
        assert_eq!((found.source.as_str(), found.answer.as_str()), ("Evidence 2", "Leeds"));
        let found = find_answer(&Hop { answer: "Leeds".into(), ..hop() }, &shown[2..]).unwrap();
        assert_eq!((found.source.as_str(), found.answer.as_str()), ("Evidence 3", "Leeds"), "the lesson's spelling");
    }

    #[test]
    fn passages_are_known_by_their_words_whatever_their_white_space() {
        let mut hop = hop();
        hop.sources[0].title = "Ann Lee\u{a0} (actress)".into();
        hop.sources[0].text = "Ann  Lee acts\nin Leeds.\n\nShe was born in Leeds, England.".into();
        let text = "<Reference> Evidence 1: Title: \"Ann Lee (actress)\" Text: Ann Lee acts in Leeds. She was born in \
                    Leeds, England. </Reference>";
        let found = find_answer(&hop, &parse_items(text, "<Reference> ", " </Reference>")).unwrap();
        assert_eq!((found.quote.as_str(), found.answer.as_str()), ("She was born in Leeds", "Leeds"));
        hop.sources[0].text = "Ann Lee acts in Hull. She was born in Leeds, England.".into();
        assert_eq!(find_answer(&hop, &parse_items(text, "<Reference> ", " </Reference>")), None, "another text");
    }

    #[test]
    fn triples_precede_passages_of_two_lines() {
        let passages = "Leeds\nLeeds is a city.\nAnn Lee (actress)\nAnn Lee acts in Leeds. She was born in Leeds, Engl";
        for (triples, facts) in [("(1) { ann lee acts in leeds }\n(2) { leeds is city }\n", 2), ("\n", 0), ("", 0)] {
            let text = format!("<docs>\n{triples}{passages}</docs>\n\n");
            let shown = parse_triples(&text, "<docs>\n", "</docs>");
            assert_eq!(shown.len(), facts + 2, "{shown:?}");
            assert_eq!(shown[facts + 1].title(), "Ann Lee (actress)");
            let found = find_answer(&hop(), &shown).unwrap();
            assert_eq!(found.source, "Passage \"Ann Lee (actress)\"");
            assert_eq!((found.number, found.answer.as_str()), (facts + 2, "Leeds"));
        }
        // The cut fell within a title.
        assert_eq!(parse_triples("<docs>\n(1) { a b c }\nAnn Le</docs>", "<docs>\n", "</docs>").len(), 1);
        assert_eq!(parse_triples("", "<docs>\n", "</docs>"), []);
    }
}
