//! Recognizes dates and years in running text.

use super::lexicon::{WordTag, is_month};
use super::token::WordToken;

/// Returns the number of leading tokens that form a date: `24 May 1953`, `May 24, 1953`, `May 1953`, `24 May`, `1953`,
/// `1940s`. `None` if there is no date.
pub(super) fn date(tokens: &[WordToken<'_>]) -> Option<usize> {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text);
    if is_month(text(0)) && tokens[0].tag != WordTag::Auxiliary {
        let day = usize::from(is_day(text(1)));
        let comma = usize::from(text(1 + day) == ",");
        if is_year(text(1 + day + comma)) {
            return Some(2 + day + comma);
        }
        return (day == 1).then_some(2);
    }
    if is_day(text(0)) {
        let of = usize::from(text(1) == "of");
        if is_month(text(1 + of)) {
            let comma = usize::from(text(2 + of) == ",");
            return Some(if is_year(text(2 + of + comma)) { 3 + of + comma } else { 2 + of });
        }
    }
    // In `the 1947 film` the year dates the film, and is not a mention of the year itself.
    let modifies = tokens
        .get(1)
        .is_some_and(|next| matches!(next.tag, WordTag::Noun | WordTag::Name | WordTag::Present | WordTag::Gerund));
    let era = usize::from(matches!(text(1), "BC" | "AD" | "BCE" | "CE" | "B.C." | "A.D."));
    if era == 1 && is_number(text(0)) {
        return Some(2);
    }
    (is_year(text(0)) && !modifies).then_some(1)
}

fn is_day(word: &str) -> bool {
    let digits = word.trim_end_matches(|last: char| last.is_ascii_lowercase());
    let suffix = &word[digits.len()..];
    matches!(suffix, "" | "st" | "nd" | "rd" | "th") && digits.parse().is_ok_and(|day: u8| (1..=31).contains(&day))
}

/// Recognizes a year, a span of years, or a decade.
pub(super) fn is_year(word: &str) -> bool {
    let word = word.strip_suffix('s').or_else(|| word.strip_suffix("'s")).unwrap_or(word);
    let mut years = word.split(['–', '-', '/']);
    let first = years.next().unwrap_or_default();
    first.len() >= 3 && first.len() <= 4 && is_number(first) && years.all(|year| year.len() <= 4 && is_number(year))
}

fn is_number(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::super::token::tokens;
    use super::*;

    #[test]
    fn dates_are_known_in_their_common_forms() {
        let cases = [
            ("24 May 1953, he", Some(3)),
            ("May 24, 1953, he", Some(4)),
            ("May 1953", Some(2)),
            ("May 24 he", Some(2)),
            ("1st of May", Some(3)),
            ("1953 and", Some(1)),
            ("1953–54 season", None),
            ("1940s", Some(1)),
            ("1953 film", None),
            ("323 BC he", Some(2)),
            ("May be", None),
            ("32 May", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(date(&tokens(text)), expected, "{text}");
        }
    }
}
