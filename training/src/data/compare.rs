//! How the answer of a comparison follows from the two values compared.

use super::text::plain;

/// The reasoning from two named values to `gold`, where it holds; `None` where it would not convince.
pub fn because(question: &str, names: [&str; 2], values: [&str; 2], gold: &str) -> Option<String> {
    let question = question.to_lowercase();
    let (first, second) = (plain(values[0]), plain(values[1]));
    if matches!(gold, "yes" | "no") {
        let same = first == second;
        return match (gold == "yes", same) {
            (true, true) => Some(format!("Both are {}, so the answer is yes.", values[0])),
            (true, false) => Some(format!("{} and {} are the same, so the answer is yes.", values[0], values[1])),
            (false, false) => Some(format!("{} and {} are not the same, so the answer is no.", values[0], values[1])),
            (false, true) => None,
        };
    }
    let (a, b) = (moment(values[0])?, moment(values[1])?);
    let early = ["older", "first", "earlier"].iter().any(|word| question.contains(word));
    let late = ["younger", "later", "recent", "latter", "last"].iter().any(|word| question.contains(word));
    if a == b || early == late {
        return None;
    }
    let chosen = usize::from((a < b) != early);
    let told =
        if a.0 == b.0 { [values[0].to_owned(), values[1].to_owned()] } else { [a.0.to_string(), b.0.to_string()] };
    let word = if early { "earlier" } else { "later" };
    let (own, other) = (&told[chosen], &told[1 - chosen]);
    (plain(names[chosen]) == plain(gold)).then(|| format!("{own} is {word} than {other}, so the answer is {gold}."))
}

const MONTHS: &[&str] = &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];

/// Year, month and day of a date, those that it does not tell as 0.
fn moment(date: &str) -> Option<(u32, usize, u32)> {
    let (mut year, mut month, mut day) = (None, 0, 0);
    for word in plain(date).split(' ') {
        match word.parse::<u32>() {
            Ok(number) if number > 31 => year = Some(number),
            Ok(number) => day = number,
            Err(_) => month = MONTHS.iter().position(|name| word.starts_with(name)).map_or(month, |at| at + 1),
        }
    }
    year.map(|year| (year, month, day))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn dates_decide_as_the_question_has_it() {
        let because = |question, gold| because(question, ["A", "B"], ["May 3, 1950", "4 June 1901"], gold);
        assert_eq!(because("Who is older, A or B?", "B").unwrap(), "1901 is earlier than 1950, so the answer is B.");
        assert_eq!(
            because("Which came out more recently?", "A").unwrap(),
            "1950 is later than 1901, so the answer is A."
        );
        assert_eq!(because("Who is older?", "A"), None);
        assert_eq!(because("Who lived longer?", "A"), None);
    }

    #[test]
    fn within_a_year_the_whole_dates_are_told() {
        let told = because("Who was born first?", ["A", "B"], ["3 May 1950", "2 May 1950"], "B").unwrap();
        assert_eq!(told, "2 May 1950 is earlier than 3 May 1950, so the answer is B.");
    }

    #[test]
    fn sameness_is_said_where_it_is() {
        let because = |values, gold| because("Are both from one country?", ["A", "B"], values, gold);
        assert_eq!(because(["French", "french"], "yes").unwrap(), "Both are French, so the answer is yes.");
        assert_eq!(
            because(["French", "Dutch"], "no").unwrap(),
            "French and Dutch are not the same, so the answer is no."
        );
        assert_eq!(because(["French", "French"], "no"), None);
    }
}
