//! Splits a text into sentences.

use super::lexicon::{self, WordTag};
use super::token::WordToken;

/// Number of tokens after which an unclosed bracket no longer keeps a sentence together.
const LONGEST_ASIDE: usize = 60;

/// Splits tokens into non-empty sentences without their end marks.
pub(super) fn sentences<'t, 'a>(tokens: &'t [WordToken<'a>]) -> impl Iterator<Item = &'t [WordToken<'a>]> {
    let mut rest = tokens;
    std::iter::from_fn(move || {
        while !rest.is_empty() {
            let (length, skipped) = first(rest);
            let sentence = &rest[..length];
            rest = &rest[length + skipped..];
            if !sentence.is_empty() {
                return Some(sentence);
            }
        }
        None
    })
}

/// Returns the number of tokens in the first sentence, and of the tokens that end it.
fn first(tokens: &[WordToken<'_>]) -> (usize, usize) {
    // `run` is the end of the last run of marks, so that each run is scanned only once.
    let mut opened = None;
    let mut run = 0;
    for (at, token) in tokens.iter().enumerate() {
        match token.tag {
            WordTag::Open => opened = Some(at),
            WordTag::Close => opened = None,
            WordTag::Stop if opened.is_none_or(|open| at - open > LONGEST_ASIDE) => {
                if at >= run {
                    let ends = |token: &&WordToken<'_>| matches!(token.tag, WordTag::Stop | WordTag::Unquote);
                    run = at + tokens[at..].iter().take_while(ends).count();
                }
                let marks = run - at;
                let next = tokens.get(at + marks);
                // The sentence goes on after `Are You Being Served? was`, and after a title that ends in a mark.
                if next.is_none_or(|next| begins(next) || next.tag == WordTag::Quote || token.text == ".") {
                    let closing = usize::from(tokens.get(at + 1).is_some_and(|next| next.tag == WordTag::Unquote));
                    return if closing == 1 { (at + 2, marks.saturating_sub(2)) } else { (at, marks) };
                }
            }
            _ if ends_by_itself(token) && tokens.get(at + 1).is_some_and(is_opening) => return (at + 1, 0),
            _ => {}
        }
    }
    (tokens.len(), 0)
}

fn begins(token: &WordToken<'_>) -> bool {
    token.text.starts_with(|first: char| !first.is_lowercase())
}

/// Recognizes abbreviations that often end a sentence.
fn ends_by_itself(token: &WordToken<'_>) -> bool {
    // `World War I.`
    matches!(
        token.text,
        "I." | "Jr." | "Sr." | "Inc." | "Ltd." | "Co." | "Corp." | "Bros." | "etc." | "U.S." | "U.K." | "D.C."
    )
}

/// Recognizes a capitalized word of a closed class, which occurs only at the start of a sentence.
fn is_opening(token: &WordToken<'_>) -> bool {
    token.text.starts_with(char::is_uppercase) && lexicon::closed(token.text).is_some()
}

#[cfg(test)]
mod tests {
    use super::super::clean::clean;
    use super::super::token::tokens;
    use super::*;

    fn ends(text: &str) -> Vec<String> {
        let text = clean(text);
        let tokens = tokens(&text);
        sentences(&tokens).filter_map(|sentence| sentence.last()).map(|token| token.text.to_owned()).collect()
    }

    #[test]
    fn only_ends_of_sentences_end_them() {
        assert_eq!(ends("J. R. Smith of St. Louis, Jr. paid $1.5 to Dr. Who. He left."), ["Who", "left"]);
        assert_eq!(ends("He moved to the U.S. The end."), ["U.S.", "end"]);
        assert_eq!(
            ends("It (a. b. c.) ended. And \"Who?\" was sung. \"Get This.\" Then"),
            ["ended", "sung", "”", "Then"]
        );
        assert_eq!(ends("... ! "), [""; 0]);
    }
}
