//! Repairs artifacts of tokenization in published corpora, so that the extractor needs to handle only one notation.

/// Normalizes LaTeX quotes, double dashes, repeated spaces, and spaces inside quotes, brackets and hyphenated words:
/// `self - titled`, `( born 1950)`, ``` ``Pilot '' ```.
pub(super) fn clean(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut quoted = false;
    let mut at = 0;
    while let Some(&char) = chars.get(at) {
        let next = chars.get(at + 1).copied();
        match char {
            '`' | '\'' if next == Some(char) => {
                quote(&mut out, &mut quoted);
                at += 1;
            }
            '"' | '“' | '”' => quote(&mut out, &mut quoted),
            '’' | '‘' | '`' => out.push('\''),
            '-' if next == Some('-') => {
                space(&mut out);
                out.push('–');
                at += 1;
            }
            '-' => at += hyphen(&mut out, &chars, at),
            '(' | '[' => {
                space(&mut out);
                out.push(char);
            }
            _ if char.is_whitespace() || char.is_control() => {
                // A line break ends a sentence that has no end mark.
                if char == '\n' && out.ends_with(|last: char| last.is_alphanumeric()) {
                    out.push('.');
                }
                if !out.ends_with([' ', '(', '[']) && !out.ends_with(OPEN) {
                    out.push(' ');
                }
            }
            ',' | ')' | ']' | ';' => {
                out.truncate(out.trim_end_matches(' ').len());
                out.push(char);
            }
            _ => out.push(char),
        }
        at += 1;
    }
    out
}

/// Opening quotation mark in cleaned text.
pub(super) const OPEN: char = '“';
/// Closing quotation mark in cleaned text.
pub(super) const CLOSE: char = '”';

/// Writes a quotation mark. Counting tells opening from closing marks, because corpora put spaces on either side of
/// them.
fn quote(out: &mut String, quoted: &mut bool) {
    if *quoted {
        out.truncate(out.trim_end_matches(' ').len());
        out.push(CLOSE);
        // Without the space, a name and the word after its quotation mark would merge.
        out.push(' ');
    } else {
        space(out);
        out.push(OPEN);
    }
    *quoted = !*quoted;
}

fn space(out: &mut String) {
    if !out.is_empty() && !out.ends_with([' ', '(', '[']) {
        out.push(' ');
    }
}

/// Writes the hyphen at `at`, and returns the number of further characters consumed.
///
/// `self- titled` and `self - titled` are one word; `a - b` between other words stays a dash.
fn hyphen(out: &mut String, chars: &[char], at: usize) -> usize {
    let spaced_before = out.ends_with(' ');
    let spaced_after = chars.get(at + 1) == Some(&' ');
    let before = out.trim_end_matches(' ').chars().next_back();
    let after = chars.get(at + if spaced_after { 2 } else { 1 });
    let letters = before.is_some_and(char::is_alphabetic) && after.is_some_and(|char| char.is_alphabetic());
    let digits = before.is_some_and(|char| char.is_ascii_digit()) && after.is_some_and(char::is_ascii_digit);
    if digits && spaced_after && !spaced_before {
        out.push('–');
        return 1;
    }
    let joins = letters && spaced_after && (!spaced_before || after.is_some_and(|char| char.is_lowercase()));
    if !joins {
        out.push(if spaced_before && spaced_after { '–' } else { '-' });
        return 0;
    }
    out.truncate(out.trim_end_matches(' ').len());
    out.push('-');
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tokenisers_left_is_undone() {
        let cases = [
            ("Teutberga( died 875) was", "Teutberga (died 875) was"),
            ("a self - titled lay- abbot of Nassau- Dietz", "a self-titled lay-abbot of Nassau-Dietz"),
            ("``Pilot ''Last appearance`` One Last Ride''", "“Pilot” Last appearance “One Last Ride” "),
            ("\" Distant Lover\" is on\" Let's Get It On\".", "“Distant Lover” is on “Let's Get It On” ."),
            ("1998 -- 2014 , and", "1998 – 2014, and"),
            ("Duran Duran - Rio", "Duran Duran – Rio"),
            ("a head\nand a line", "a head. and a line"),
        ];
        for (text, expected) in cases {
            assert_eq!(clean(text), expected);
        }
    }
}
