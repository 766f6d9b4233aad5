//! Finds in an observation, as the policy sees it, what a hop looks for.

use super::lesson::Hop;
use super::question::Document;
use super::text::{bare, find, overlap, quote, sentences, words};

/// A passage in an observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shown<'o> {
    /// Its number.
    pub number: usize,
    /// Title and text, with what the protocol writes between them.
    text: &'o str,
}

/// Where a hop's answer was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The passage's number in the observation.
    pub number: usize,
    /// The words that say it.
    pub quote: String,
    /// The answer as it stands there.
    pub answer: String,
}

/// The passages of an observation: `Doc 1(Title: …) …`, one per line.
pub fn shown(observation: &str) -> Vec<Shown<'_>> {
    let mut all = Vec::new();
    let mut rest = observation;
    for number in 1.. {
        let Some((_, after)) = rest.split_once(&format!("Doc {number}(Title: ")) else { break };
        let end = after.find(&format!("\nDoc {}(Title: ", number + 1)).or(after.rfind("</information>"));
        let text = after[..end.unwrap_or(after.len())].trim_end();
        all.push(Shown { number, text });
        rest = after;
    }
    all
}

impl<'o> Shown<'o> {
    /// The part of a passage's text that is shown, where it is this passage.
    fn body_of(&self, source: &Document) -> Option<&'o str> {
        let body = self.text.strip_prefix(source.title.as_str())?.strip_prefix(')')?.trim_start();
        let begins = |text: &str| text.chars().take(40).collect::<String>();
        (!body.is_empty() && begins(&source.text).starts_with(&begins(body))).then_some(body)
    }

    /// Whether words stand in it, title included, whatever they say there.
    pub fn has(&self, words: &str) -> bool {
        find(self.text, words).is_some()
    }

    /// The title, as far as it can be told from the text.
    pub fn title(&self) -> &'o str {
        self.text.split(") ").next().unwrap_or(self.text)
    }
}

/// Where the answer of a hop stands: in the passage about its subject before others, and in the sentence that shares
/// the most words with the first query.
pub fn read(hop: &Hop, passages: &[Shown<'_>]) -> Option<Finding> {
    let mut best: Option<(usize, Finding)> = None;
    let subject = bare(&hop.subject);
    let about =
        |source: &Document| find(&source.title, subject).is_some() || find(subject, bare(&source.title)).is_some();
    // What another passage says in passing of a subject that has one of its own is too easily misread.
    let own = !hop.is_question() && hop.sources.iter().any(about);
    for passage in passages {
        for (source, body) in hop.sources.iter().filter_map(|source| Some((source, passage.body_of(source)?))) {
            let titled = about(source);
            if !titled && (own || find(body, subject).is_none() && !hop.is_question()) {
                continue;
            }
            let wanted = hop.queries.first().map_or("", String::as_str);
            for sentence in sentences(body) {
                let Some(span) = find(sentence, &hop.answer).filter(|_| cued(sentence, hop.cues)) else { continue };
                let score = 100 * usize::from(titled) + overlap(sentence, wanted);
                if best.as_ref().is_none_or(|(other, _)| score > *other) {
                    let answer = sentence[span.clone()].to_owned();
                    let finding = Finding { number: passage.number, quote: quote(sentence, span), answer };
                    best = Some((score, finding));
                }
            }
        }
    }
    best.map(|(_, finding)| finding)
}

/// Whether a word of the sentence begins with one of the cues.
fn cued(sentence: &str, cues: &[&str]) -> bool {
    cues.is_empty() || words(sentence).iter().any(|word| cues.iter().any(|cue| word.starts_with(cue)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::data::lesson::Tells;

    fn hop() -> Hop {
        let source =
            |id: &str, title: &str, text: &str| Document { id: id.into(), title: title.into(), text: text.into() };
        Hop {
            need: "the birthplace of Ann Lee".into(),
            subject: "Ann Lee".into(),
            queries: vec!["Ann Lee born".into()],
            answer: "leeds".into(),
            cues: &["born"],
            sources: vec![source("1", "Ann Lee (actress)", "Ann Lee acts in Leeds. She was born in Leeds, England.")],
            tells: Tells::Value,
        }
    }

    #[test]
    fn the_right_sentence_of_the_right_passage_is_quoted() {
        let observation = "\n\n<information>Doc 1(Title: Leeds) Leeds is a city.\nDoc 2(Title: Ann Lee (actress)) Ann Lee acts \
                           in Leeds. She was born in Leeds, England.\n</information>\n\n";
        let passages = shown(observation);
        assert_eq!(passages.len(), 2);
        let finding = read(&hop(), &passages).unwrap();
        assert_eq!((finding.number, finding.answer.as_str()), (2, "Leeds"));
        assert_eq!(finding.quote, "She was born in Leeds");
    }

    #[test]
    fn what_was_cut_off_or_is_of_another_is_not_read() {
        let cut = "<information>Doc 1(Title: Ann Lee (actress)) Ann Lee acts in</information>";
        assert_eq!(read(&hop(), &shown(cut)), None);
        let other = "<information>Doc 1(Title: Ann Lee) Ann Lee was a nun born in Leeds.\n</information>";
        assert_eq!(read(&hop(), &shown(other)), None);
        assert_eq!(shown(""), []);
    }
}
