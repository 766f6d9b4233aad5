//! Search for the answer of a hop in an observation, as the policy sees it.

use crate::lessons::lesson::Hop;
use crate::lessons::rows::CorpusPassage;
use crate::lessons::text::{bare_title, find_words, overlap, quote, sentences, words};

/// Passage in an observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShownPassage<'o> {
    /// Number of the passage.
    pub number: usize,
    /// Title and text, including the protocol's separator.
    text: &'o str,
}

/// Answer of a hop and its place in an observation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HopFinding {
    /// Number of the passage in the observation.
    pub number: usize,
    /// Quotation that contains the answer.
    pub quote: String,
    /// Answer in the passage's spelling.
    pub answer: String,
}

/// Parses the passages of an observation: `Doc 1(Title: …) …`, one per line.
pub fn parse_passages(observation: &str) -> Vec<ShownPassage<'_>> {
    let mut all = Vec::new();
    let mut rest = observation;
    for number in 1.. {
        // Numbers are counted along: a passage that quotes "Doc 1(Title: " does not start another one.
        let Some((_, after)) = rest.split_once(&format!("Doc {number}(Title: ")) else { break };
        // The last passage ends with the block, whose closing tag is the last one in the observation.
        let end = after.find(&format!("\nDoc {}(Title: ", number + 1)).or(after.rfind("</information>"));
        let text = after[..end.unwrap_or(after.len())].trim_end();
        all.push(ShownPassage { number, text });
        rest = after;
    }
    all
}

impl<'o> ShownPassage<'o> {
    /// Visible part of the text of `source`, if this is that passage.
    fn body_of(&self, source: &CorpusPassage) -> Option<&'o str> {
        let body = self.text.strip_prefix(source.title.as_str())?.strip_prefix(')')?.trim_start();
        let begins = |text: &str| text.chars().take(40).collect::<String>();
        (!body.is_empty() && begins(&source.text).starts_with(&begins(body))).then_some(body)
    }

    /// Returns `true` if title or text contain these words in any meaning.
    pub fn has(&self, words: &str) -> bool {
        find_words(self.text, words).is_some()
    }

    /// Title of the passage, up to the first `) `.
    pub fn title(&self) -> &'o str {
        self.text.split(") ").next().unwrap_or(self.text)
    }
}

/// Finds the answer of a hop. Passages about its subject precede others, and then the sentence wins that shares the
/// most words with the first query.
pub fn find_answer(hop: &Hop, passages: &[ShownPassage<'_>]) -> Option<HopFinding> {
    let mut best: Option<(usize, HopFinding)> = None;
    let subject = bare_title(&hop.subject);
    let about = |source: &CorpusPassage| {
        find_words(&source.title, subject).is_some() || find_words(subject, bare_title(&source.title)).is_some()
    };
    // If the subject has a passage of its own, remarks about it in other passages are too easily misread.
    let own = !hop.is_question() && hop.sources.iter().any(about);
    for passage in passages {
        for (source, body) in hop.sources.iter().filter_map(|source| Some((source, passage.body_of(source)?))) {
            let titled = about(source);
            if !titled && (own || find_words(body, subject).is_none() && !hop.is_question()) {
                continue;
            }
            let wanted = hop.queries.first().map_or("", String::as_str);
            for sentence in sentences(body) {
                let Some(span) = find_words(sentence, &hop.answer).filter(|_| cued(sentence, hop.cues)) else {
                    continue;
                };
                // A hundred exceeds any overlap of words, so that the title decides first.
                let score = 100 * usize::from(titled) + overlap(sentence, wanted);
                if best.as_ref().is_none_or(|(other, _)| score > *other) {
                    let answer = sentence[span.clone()].to_owned();
                    let finding = HopFinding { number: passage.number, quote: quote(sentence, span), answer };
                    best = Some((score, finding));
                }
            }
        }
    }
    best.map(|(_, finding)| finding)
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
        let passages = parse_passages(observation);
        assert_eq!(passages.len(), 2);
        let finding = find_answer(&hop(), &passages).unwrap();
        assert_eq!((finding.number, finding.answer.as_str()), (2, "Leeds"));
        assert_eq!(finding.quote, "She was born in Leeds");
    }

    #[test]
    fn truncated_or_foreign_passages_are_not_read() {
        let cut = "<information>Doc 1(Title: Ann Lee (actress)) Ann Lee acts in</information>";
        assert_eq!(find_answer(&hop(), &parse_passages(cut)), None);
        let other = "<information>Doc 1(Title: Ann Lee) Ann Lee was a nun born in Leeds.\n</information>";
        assert_eq!(find_answer(&hop(), &parse_passages(other)), None);
        assert_eq!(parse_passages(""), []);
    }
}
