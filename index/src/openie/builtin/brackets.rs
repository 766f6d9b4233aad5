//! Reads brackets after a name: dates of birth and death, other names.

use super::date::date;
use super::lexicon::{WordTag, is_month};
use super::token::WordToken;

/// Returns the statements in brackets whose content is `tokens`, as pairs of relation and object. Dates without a word
/// such as `born` are dates of a life only if the name is that of a `person`.
pub(super) fn read(text: &str, tokens: &[WordToken<'_>], person: bool) -> Vec<(&'static str, String)> {
    let mut statements = Vec::new();
    let mut life = if person { Life::Birth } else { Life::Unknown };
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match token.text {
            "born" | "b." | "Born" => life = Life::Birth,
            "died" | "d." | "Died" => life = Life::Death,
            "–" | "—" | "-" | "until" if person => life = Life::Death,
            _ => {
                if let Some(length) = date(&tokens[at..]) {
                    let written = slice(text, &tokens[at..at + length]);
                    life.date(written, person, &mut statements);
                    at += length;
                    continue;
                }
                if token.tag == WordTag::Name && !is_month(token.text) {
                    let length = tokens[at..]
                        .iter()
                        .take_while(|token| token.tag == WordTag::Name || token.text == "of")
                        .count();
                    let known = statements.iter().any(|&(relation, _)| relation == life.place());
                    if life != Life::Unknown && !known && is_place(tokens, at, length, life) {
                        statements.push((life.place(), slice(text, &tokens[at..at + length]).to_owned()));
                    }
                    at += length;
                    continue;
                }
            }
        }
        at += 1;
    }
    statements
}

/// Birth or death, to which a date refers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Birth,
    Death,
    Unknown,
}

impl Life {
    fn place(self) -> &'static str {
        if self == Life::Death { "died in" } else { "born in" }
    }

    fn date(self, written: &str, person: bool, statements: &mut Vec<(&'static str, String)>) {
        let whole = written.contains(' ');
        match self {
            Life::Birth if !whole && person => {
                // `957–960` is one token.
                let mut years = written.split('–');
                statements.extend(years.next().map(|year| ("born in", year.to_owned())));
                statements.extend(years.next().map(|year| ("died in", year.to_owned())));
            }
            Life::Birth => statements.push((if whole { "born on" } else { "born in" }, written.to_owned())),
            Life::Death => statements.push((if whole { "died on" } else { "died in" }, written.to_owned())),
            Life::Unknown => {}
        }
    }
}

/// Returns `true` if a name at `at` is a place beside a date of birth or death. Other names in such brackets are
/// translations and nicknames.
fn is_place(tokens: &[WordToken<'_>], at: usize, length: usize, life: Life) -> bool {
    let after = &tokens[at + length..];
    let dated = after.first().is_some_and(|next| next.tag == WordTag::Comma) && date(&after[1..]).is_some();
    let before = at.checked_sub(1).map_or("", |before| tokens[before].text);
    let follows = before == "in" || (before == "," && at >= 2 && tokens[at - 2].tag == WordTag::Number);
    let spoken = tokens[..at].iter().any(|token| token.text == "born" || token.text == "died");
    dated || (follows && (spoken || life == Life::Death || at > 2))
}

fn slice<'a>(text: &'a str, tokens: &[WordToken<'_>]) -> &'a str {
    match (tokens.first(), tokens.last()) {
        (Some(first), Some(last)) => &text[first.start..last.end()],
        _ => "",
    }
}
