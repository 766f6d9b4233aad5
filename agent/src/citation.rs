//! Citations: passages that support an answer, by a rule that a reader can verify.
//!
//! **Words.** Answers, titles and texts are compared as words in the form of [`normalize`]: lower case, without ASCII
//! punctuation and English articles.
//!
//! **Claims.** If a passage states the whole answer, the answer is one claim. Otherwise each of its sentences is a
//! claim; sentences end at line breaks and after `.`, `!`, `?` and their full-width variants ([`sentences`] has the
//! details).
//!
//! **Support.** A passage *states* a claim if its title or its text contains the words of the claim consecutively. It
//! *covers* a claim if one of its sentences, together with its title, contains every word of the claim except function
//! words ([`FUNCTION_WORDS`]), in any order, and the claim has at least two different words that are not function
//! words. Passages that state a claim are cited for it; passages that cover it are cited only if none states it. A
//! claim that consists only of `yes`, `no`, `true` or `false` is supported by no passage: these words occur in many
//! passages and mean nothing alone.
//!
//! **Order.** By claim in the order of the answer, then by passage in the order of retrieval. A passage is cited at
//! most once per claim, even if it was retrieved repeatedly.
//!
//! The rule compares words, not meanings: a cited passage contains the words of the claim, which a reader can verify at
//! a glance.

use std::collections::HashSet;
use std::ops::Range;

use tokio::task::spawn_blocking;
use tracing::Span;
use waymark_index::Passage;

use super::AgentError;
use super::event::Cited;
use crate::metric::normalize;

/// Words that carry little of a sentence's content. Negations are not among them.
pub const FUNCTION_WORDS: &[&str] = &[
    "about", "also", "and", "are", "as", "at", "be", "been", "being", "but", "by", "did", "do", "does", "for", "from",
    "had", "has", "have", "he", "her", "his", "in", "into", "is", "it", "its", "of", "on", "or", "she", "so", "that",
    "their", "then", "there", "these", "they", "this", "those", "to", "was", "were", "which", "who", "whom", "whose",
    "with",
];

/// Answers without content of their own.
const BARE: &[&str] = &["yes", "no", "true", "false"];

/// A passage that supports a claim of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Citation {
    /// Range of the claim in the answer, in characters (Unicode scalar values).
    pub claim: Range<usize>,
    /// Index of the passage among the given ones.
    pub passage: usize,
    /// If `true`, the passage states the claim; otherwise it covers the claim.
    pub stated: bool,
}

/// Returns the citations of `answer` among `passages`, which are in the order of retrieval. The module describes the
/// rule.
pub fn cite(answer: &str, passages: &[Passage]) -> Vec<Citation> {
    let read: Vec<PassageWords> = passages.iter().map(PassageWords::new).collect();
    let whole = Claim::new(answer, trim(answer, 0..answer.len()));
    let claims = if read.iter().any(|passage| passage.states(&whole)) {
        vec![whole]
    } else {
        sentences(answer).into_iter().map(|range| Claim::new(answer, range)).collect()
    };
    claims.iter().flat_map(|claim| claim.supported(answer, &read, passages)).collect()
}

/// Returns the citations of `answer` for an episode's events. Runs on a blocking thread, as there may be hundreds of
/// passages to read.
///
/// # Errors
/// [`AgentError::Panicked`] when the computation panicked.
pub(super) async fn cited(answer: String, passages: Vec<Passage>) -> Result<Vec<Cited>, AgentError> {
    if passages.is_empty() {
        return Ok(Vec::new());
    }
    let tell = |Citation { claim, passage, stated }: Citation, passages: &[Passage]| {
        let Passage { id, title, .. } = &passages[passage];
        Cited { start: claim.start, end: claim.end, passage: id.clone(), title: title.clone(), stated }
    };
    let read = move || cite(&answer, &passages).into_iter().map(|found| tell(found, &passages)).collect();
    let span = Span::current();
    spawn_blocking(move || span.in_scope(read)).await.map_err(|_| AgentError::Panicked)
}

/// A segment of an answer.
#[derive(Debug)]
struct Claim {
    /// Byte range in the answer.
    range: Range<usize>,
    words: Vec<String>,
}

impl Claim {
    fn new(answer: &str, range: Range<usize>) -> Claim {
        Claim { words: words(&answer[range.clone()]), range }
    }

    fn says_something(&self) -> bool {
        self.words.iter().any(|word| !BARE.contains(&word.as_str()))
    }

    fn telling(&self) -> impl Iterator<Item = &str> {
        self.words.iter().map(String::as_str).filter(|word| !FUNCTION_WORDS.contains(word))
    }

    fn supported(&self, answer: &str, read: &[PassageWords], passages: &[Passage]) -> Vec<Citation> {
        let find = |supports: fn(&PassageWords, &Claim) -> bool| {
            let mut cited = HashSet::new();
            // A passage that several searches found is in the list several times.
            let supports = |at: &usize| supports(&read[*at], self) && cited.insert(passages[*at].id.as_str());
            (0..read.len()).filter(supports).collect::<Vec<usize>>()
        };
        // Covering passages are weaker evidence and would only dilute stating ones.
        let stating = find(PassageWords::states);
        let stated = !stating.is_empty();
        let passages = if stated { stating } else { find(PassageWords::covers) };
        // Clients count characters; a byte offset would mean something else to them in any text outside ASCII.
        let place = |byte| answer[..byte].chars().count();
        let claim = place(self.range.start)..place(self.range.end);
        passages.into_iter().map(|passage| Citation { claim: claim.clone(), passage, stated }).collect()
    }
}

/// A passage as words.
#[derive(Debug)]
struct PassageWords {
    title: Vec<String>,
    text: Vec<String>,
    /// Words of the title, once for all sentences, of which there may be thousands.
    title_words: HashSet<String>,
    /// Words of each sentence.
    sentences: Vec<HashSet<String>>,
}

impl PassageWords {
    fn new(passage: &Passage) -> PassageWords {
        let title = words(&passage.title);
        let sentence = |range: Range<usize>| words(&passage.text[range]).into_iter().collect();
        let sentences = sentences(&passage.text).into_iter().map(sentence).collect();
        PassageWords { text: words(&passage.text), title_words: title.iter().cloned().collect(), sentences, title }
    }

    fn states(&self, claim: &Claim) -> bool {
        let holds = |words: &[String]| words.windows(claim.words.len()).any(|window| window == claim.words);
        claim.says_something() && (holds(&self.title) || holds(&self.text))
    }

    fn covers(&self, claim: &Claim) -> bool {
        let telling: HashSet<&str> = claim.telling().collect();
        // A single word occurs in too many sentences to support a claim.
        if telling.len() < 2 || !claim.says_something() {
            return false;
        }
        // Words that the title has are not looked for in every sentence.
        let missing: Vec<&str> = telling.into_iter().filter(|word| !self.title_words.contains(*word)).collect();
        self.sentences.iter().any(|sentence| missing.iter().all(|word| sentence.contains(*word)))
    }
}

fn words(text: &str) -> Vec<String> {
    normalize(text).split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// Returns the sentences of `text` as byte ranges, without surrounding white space.
///
/// A sentence ends at a line break; after `。`, `！` and `？`; and after `.`, `!` and `?` with any closing quotation marks
/// and brackets, if the text ends there, or if white space follows and the next character is not a lower-case letter. A
/// `.` after a single letter (an initial) ends no sentence.
pub fn sentences(text: &str) -> Vec<Range<usize>> {
    let mut sentences = Vec::new();
    let mut start = 0;
    let mut push = |start: usize, end: usize| {
        let range = trim(text, start..end);
        if !range.is_empty() {
            sentences.push(range);
        }
    };
    for (at, c) in text.char_indices() {
        // Quotation marks and brackets after the punctuation belong to the sentence that has ended.
        if at < start {
            continue;
        }
        let after = at + c.len_utf8();
        let end = match c {
            '\n' | '。' | '！' | '？' => Some(after),
            '.' | '!' | '?' => ends(text, at),
            _ => None,
        };
        if let Some(end) = end {
            push(start, end);
            start = end;
        }
    }
    push(start, text.len());
    sentences
}

/// Returns the end of the sentence, if the punctuation mark at `at` ends one.
fn ends(text: &str, at: usize) -> Option<usize> {
    let rest = &text[at + 1..];
    let after = rest.trim_start_matches(['"', '\'', ')', ']', '}', '»', '”', '’']);
    let next = after.trim_start();
    if next.len() == after.len() && !after.is_empty() {
        return None;
    }
    let mut before = text[..at].chars().rev();
    let initial = text[at..].starts_with('.')
        && before.next().is_some_and(char::is_alphabetic)
        && !before.next().is_some_and(char::is_alphanumeric);
    (!initial && !next.starts_with(char::is_lowercase)).then_some(text.len() - after.len())
}

fn trim(text: &str, range: Range<usize>) -> Range<usize> {
    let part = &text[range.clone()];
    let start = range.start + part.len() - part.trim_start().len();
    start..(start + part.trim().len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn passage(id: &str, title: &str, text: &str) -> Passage {
        Passage { id: id.into(), title: title.into(), text: text.into() }
    }

    /// Returns the cited passage of each segment of the answer.
    fn cited(answer: &str, passages: &[Passage]) -> Vec<(String, usize, bool)> {
        let part = |range: Range<usize>| answer.chars().skip(range.start).take(range.len()).collect();
        cite(answer, passages).into_iter().map(|it| (part(it.claim), it.passage, it.stated)).collect()
    }

    fn library() -> Vec<Passage> {
        vec![
            passage("p1", "Faust", "Goethe wrote it. Schiller was his friend."),
            passage("p2", "Louvre", "The museum in Paris shows the Mona Lisa."),
            passage("p1", "Faust", "Goethe wrote it. Schiller was his friend."),
            passage("p3", "Goethe", "He was born in Frankfurt in 1749."),
        ]
    }

    #[test]
    fn a_short_answer_is_one_claim() {
        let one = |text: &str, at| vec![(text.to_owned(), at, true)];
        assert_eq!(cited("the Mona Lisa", &library()), one("the Mona Lisa", 1));
        assert_eq!(cited(" 1749.\n", &library()), one("1749.", 3));
        assert_eq!(cited("Goethe", &library()), [one("Goethe", 0), one("Goethe", 3)].concat());
        assert_eq!(cited("Lisa Mona", &library()), [("Lisa Mona".to_owned(), 1, false)]);
        for nothing in ["", " ", "the", "Rome", "yes", "No.", "Lisa Paris Rome"] {
            assert_eq!(cited(nothing, &library()), [], "{nothing:?}");
        }
    }

    #[test]
    fn sentences_are_claims_of_their_own() {
        let answer = "Goethe wrote Faust. The Mona Lisa is in Paris! Schiller wrote nothing.";
        let covered = |text: &str, at| (text.to_owned(), at, false);
        assert_eq!(
            cited(answer, &library()),
            [covered("Goethe wrote Faust.", 0), covered("The Mona Lisa is in Paris!", 1)]
        );
    }

    #[test]
    fn words_of_different_sentences_cover_nothing() {
        assert_eq!(cited("Schiller wrote it.", &library()), []);
        assert_eq!(cited("Goethe did not write Faust.", &library()), []);
    }

    #[test]
    fn the_words_of_a_title_are_stored_once() {
        let title = (0..100).map(|at| format!("word{at}")).collect::<Vec<_>>().join(" ");
        let passage = passage("a", &title, &"zz\n".repeat(100));
        let read = PassageWords::new(&passage);
        assert_eq!((read.sentences.len(), read.title_words.len()), (100, 100));
        assert_eq!(read.sentences.iter().map(HashSet::len).sum::<usize>(), 100);
        // The title still belongs to each of the sentences.
        assert_eq!(cited("zz word7", &[passage]), [("zz word7".to_owned(), 0, false)]);
    }

    #[test]
    fn a_run_does_not_cross_from_title_to_text() {
        assert_eq!(cited("Faust Goethe", &[passage("a", "Faust", "Goethe")]), [("Faust Goethe".into(), 0, false)]);
        assert_eq!(cited("in Paris. The", &[passage("a", "in", "Paris the")]), []);
    }

    #[test]
    fn places_are_counted_in_characters() {
        let found = cite("\u{1f600} Größe", &[passage("a", "", "von \u{1f600} größe!")]);
        assert_eq!(found, [Citation { claim: 0..7, passage: 0, stated: true }]);
    }

    #[test]
    fn sentences_end_where_the_rule_says() {
        let parts =
            |text: &str| -> Vec<String> { sentences(text).into_iter().map(|range| text[range].into()).collect() };
        assert_eq!(parts("J. W. Goethe wrote. He (yes!) did."), ["J. W. Goethe wrote.", "He (yes!) did."]);
        assert_eq!(
            parts("About ca. two. \"Three.\" Four\n5.5 six。七"),
            ["About ca. two.", "\"Three.\"", "Four", "5.5 six。", "七"]
        );
        assert_eq!(parts(" \n\n. "), ["."]);
    }

    /// Generates sentences from few letters, so that passages and answers often match.
    fn prose() -> impl Strategy<Value = String> {
        prop::collection::vec("(the )?[ab]{1,2}(é|ß|😀)?[.!?,\n]? ?", 0..12).prop_map(|words| words.concat())
    }

    fn passages() -> impl Strategy<Value = Vec<Passage>> {
        let passage = ("[pq]", prose(), prose()).prop_map(|(id, title, text)| Passage { id, title, text });
        prop::collection::vec(passage, 0..5)
    }

    proptest! {
        /// Sentences cover everything but white space, in order and without overlap.
        #[test]
        fn sentences_hold_the_text(text in "[aB .!?\n\"é。]{0,30}") {
            let mut at = 0;
            for range in sentences(&text) {
                prop_assert!(range.start >= at && !range.is_empty());
                prop_assert!(text[at..range.start].trim().is_empty());
                prop_assert_eq!(text[range.clone()].trim(), &text[range.clone()]);
                at = range.end;
            }
            prop_assert!(text[at..].trim().is_empty());
        }

        /// Every citation can be verified from its claim and its passage alone, and the order is the documented one.
        #[test]
        fn citations_hold_what_they_promise(answer in prose(), passages in passages()) {
            let citations = cite(&answer, &passages);
            let mut seen = HashSet::new();
            for citation in &citations {
                let claim: String = answer.chars().skip(citation.claim.start).take(citation.claim.len()).collect();
                prop_assert_eq!(claim.trim(), claim.as_str());
                let passage = &passages[citation.passage];
                prop_assert!(seen.insert((citation.claim.clone(), passage.id.clone())), "cited twice");
                let [title, text] = [&passage.title, &passage.text].map(|text| format!(" {} ", normalize(text)));
                let wanted = format!(" {} ", normalize(&claim));
                let known = |word: &str| [&title, &text].iter().any(|all| all.contains(&format!(" {word} ")));
                prop_assert_eq!(citation.stated, title.contains(&wanted) || text.contains(&wanted));
                prop_assert!(citation.stated || claim_words(&claim).iter().all(|word| known(word)));
            }
            let order: Vec<_> = citations.iter().map(|it| (it.claim.start, it.passage)).collect();
            prop_assert!(order.is_sorted());
            prop_assert_eq!(&cite(&answer, &passages), &citations);
        }

        /// A passage states every text that it contains between two words.
        #[test]
        fn what_is_copied_is_cited(passages in passages(), which: prop::sample::Index, from: prop::sample::Index, to: prop::sample::Index) {
            prop_assume!(!passages.is_empty());
            let passage = which.get(&passages);
            let words: Vec<&str> = passage.text.split_whitespace().collect();
            prop_assume!(!words.is_empty());
            let from = from.index(words.len());
            let to = to.index(words.len());
            let answer = words[from.min(to)..=from.max(to)].join(" ");
            prop_assume!(!normalize(&answer).is_empty());
            let citations = cite(&answer, &passages);
            prop_assert!(citations.iter().any(|it| it.stated && passages[it.passage].id == passage.id));
            prop_assert!(citations.iter().all(|it| it.claim == (0..answer.chars().count())));
        }
    }

    fn claim_words(claim: &str) -> Vec<String> {
        words(claim).into_iter().filter(|word| !FUNCTION_WORDS.contains(&word.as_str())).collect()
    }
}
