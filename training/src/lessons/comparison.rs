//! Reasoning for comparison questions: the answer derived from two values.

use std::cmp::Ordering;
use std::fmt;

use super::text::normalized;

/// One of two compared entities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ComparedItem<'a> {
    /// Name of the entity in the question.
    pub name: &'a str,
    /// Intermediate entity, if the value belongs to that, such as the director of a film.
    pub through: Option<&'a str>,
    /// Value of the compared relation, such as a date.
    pub value: &'a str,
}

impl fmt::Display for ComparedItem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.through {
            Some(through) => write!(f, "{}, {through}: {}", self.name, self.value),
            None => write!(f, "{}: {}", self.name, self.value),
        }
    }
}

/// Explains how `gold` follows from the two values, or returns `None` if the values do not support it, for example if
/// two dates do not tell which is earlier. The explanation repeats both names and values, because they were found far
/// apart in the episode.
pub fn because(question: &str, sides: [ComparedItem<'_>; 2], gold: &str) -> Option<String> {
    let question = question.to_lowercase();
    let [first, second] = sides;
    if matches!(gold, "yes" | "no") {
        let same = normalized(first.value) == normalized(second.value);
        let word = if same { "the same" } else { "not the same" };
        return ((gold == "yes") == same)
            .then(|| format!("{first}. {second}. They are {word}, so the answer is {gold}."));
    }
    let a = partial_date(first.value)?;
    let b = partial_date(second.value)?;
    // An older person was born earlier, so that "older" asks for the earlier date.
    let early = ["older", "first", "earlier"].iter().any(|word| question.contains(word));
    let late = ["younger", "later", "recent", "latter", "last"].iter().any(|word| question.contains(word));
    let order = order(a, b)?;
    // Neither word, or both, as in "released first, later or earlier": the question does not tell the direction.
    if early == late {
        return None;
    }
    let chosen = usize::from(order.is_lt() != early);
    let told = if a.0 == b.0 { sides.map(|side| side.value.to_owned()) } else { [a.0.to_string(), b.0.to_string()] };
    let word = if early { "earlier" } else { "later" };
    let own = &told[chosen];
    let other = &told[1 - chosen];
    (normalized(sides[chosen].name) == normalized(gold))
        .then(|| format!("{first}. {second}. {own} is {word} than {other}, so the answer is {gold}."))
}

const MONTHS: &[&str] = &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];

/// Year, and month and day if the date has them.
type PartialDate = (u32, Option<usize>, Option<u32>);

/// Compares two dates. `None` if they are equal or the deciding part is missing: "1973" is neither before nor after a
/// day of that year.
fn order(a: PartialDate, b: PartialDate) -> Option<Ordering> {
    if a.0 != b.0 {
        return Some(a.0.cmp(&b.0));
    }
    let months = a.1?.cmp(&b.1?);
    let order = if months.is_eq() { a.2?.cmp(&b.2?) } else { months };
    Some(order).filter(|order| order.is_ne())
}

fn partial_date(date: &str) -> Option<PartialDate> {
    let mut year = None;
    let mut month = None;
    let mut day = None;
    for word in normalized(date).split(' ') {
        match word.parse::<u32>() {
            // Days end at 31, so that a larger number must be the year.
            Ok(number) if number > 31 => year = Some(number),
            Ok(number) => day = Some(number),
            Err(_) => month = MONTHS.iter().position(|name| word.starts_with(name)).or(month),
        }
    }
    year.map(|year| (year, month, day))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn sides<'a>(values: [&'a str; 2]) -> [ComparedItem<'a>; 2] {
        let side = |name, value| ComparedItem { name, through: None, value };
        [side("A", values[0]), side("B", values[1])]
    }

    #[test]
    fn dates_are_compared_in_the_direction_of_the_question() {
        let because = |question, gold| because(question, sides(["May 3, 1950", "4 June 1901"]), gold);
        assert_eq!(
            because("Who is older, A or B?", "B").unwrap(),
            "A: May 3, 1950. B: 4 June 1901. 1901 is earlier than 1950, so the answer is B."
        );
        let told = because("Which came out more recently?", "A").unwrap();
        assert!(told.ends_with(". 1950 is later than 1901, so the answer is A."), "{told}");
        assert_eq!(because("Who is older?", "A"), None);
        assert_eq!(because("Who lived longer?", "A"), None);
    }

    #[test]
    fn full_dates_are_stated_within_a_year() {
        let told = because("Who was born first?", sides(["3 May 1950", "2 May 1950"]), "B").unwrap();
        assert!(told.ends_with(". 2 May 1950 is earlier than 3 May 1950, so the answer is B."), "{told}");
    }

    #[test]
    fn ambiguous_dates_decide_nothing() {
        let first = |values| because("Who was born first?", sides(values), "A").map(|_| ());
        for (one, other) in [("1973", "3 May 1973"), ("May 1973", "3 May 1973"), ("May 1973", "1973"), ("1973", "1973")]
        {
            assert_eq!((first([one, other]), first([other, one])), (None, None), "{one}, {other}");
        }
        assert_eq!(first(["April 1973", "3 May 1973"]), Some(()));
        assert_eq!(first(["1972", "3 May 1973"]), Some(()));
    }

    #[test]
    fn directors_of_compared_films_are_named() {
        let side = |name, through, value| ComparedItem { name, through: Some(through), value };
        let sides = [side("Low Tide", "Ann Lee", "1950"), side("High Tide", "Bob Ray", "1901")];
        let told = because("Which film has the younger director?", sides, "Low Tide").unwrap();
        assert!(told.starts_with("Low Tide, Ann Lee: 1950. High Tide, Bob Ray: 1901. "), "{told}");
    }

    #[test]
    fn equal_values_are_stated() {
        let because = |values, gold| because("Are both from one country?", sides(values), gold);
        assert_eq!(
            because(["French", "french"], "yes").unwrap(),
            "A: French. B: french. They are the same, so the answer is yes."
        );
        assert_eq!(
            because(["French", "Dutch"], "no").unwrap(),
            "A: French. B: Dutch. They are not the same, so the answer is no."
        );
        assert_eq!(because(["French", "French"], "no"), None);
        assert_eq!(because(["French", "Dutch"], "yes"), None);
    }
}
