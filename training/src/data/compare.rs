//! How the answer of a comparison follows from the two values compared.

use std::cmp::Ordering;
use std::fmt;

use super::text::plain;

/// One of two things that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Side<'a> {
    /// What the question calls it.
    pub name: &'a str,
    /// What it led to, where its value is of that.
    pub through: Option<&'a str>,
    /// What is compared.
    pub value: &'a str,
}

impl fmt::Display for Side<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.through {
            Some(through) => write!(f, "{}, {through}: {}", self.name, self.value),
            None => write!(f, "{}: {}", self.name, self.value),
        }
    }
}

/// The reasoning from two sides to `gold`, where it holds; `None` where it would not convince, as where two dates do not tell
/// which is earlier. Both are named again with what was found of them, for what is compared stands far apart.
pub fn because(question: &str, sides: [Side<'_>; 2], gold: &str) -> Option<String> {
    let question = question.to_lowercase();
    let [first, second] = sides;
    if matches!(gold, "yes" | "no") {
        let same = plain(first.value) == plain(second.value);
        let word = if same { "the same" } else { "not the same" };
        return ((gold == "yes") == same)
            .then(|| format!("{first}. {second}. They are {word}, so the answer is {gold}."));
    }
    let (a, b) = (moment(first.value)?, moment(second.value)?);
    let early = ["older", "first", "earlier"].iter().any(|word| question.contains(word));
    let late = ["younger", "later", "recent", "latter", "last"].iter().any(|word| question.contains(word));
    let order = order(a, b)?;
    if early == late {
        return None;
    }
    let chosen = usize::from(order.is_lt() != early);
    let told = if a.0 == b.0 { sides.map(|side| side.value.to_owned()) } else { [a.0.to_string(), b.0.to_string()] };
    let word = if early { "earlier" } else { "later" };
    let (own, other) = (&told[chosen], &told[1 - chosen]);
    (plain(sides[chosen].name) == plain(gold))
        .then(|| format!("{first}. {second}. {own} is {word} than {other}, so the answer is {gold}."))
}

const MONTHS: &[&str] = &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];

/// Year, month and day, as far as a date tells them.
type Moment = (u32, Option<usize>, Option<u32>);

/// Which of two moments is earlier, where both tell what decides it: "1973" is neither before nor after a day of that year.
fn order(a: Moment, b: Moment) -> Option<Ordering> {
    if a.0 != b.0 {
        return Some(a.0.cmp(&b.0));
    }
    let months = a.1?.cmp(&b.1?);
    let order = if months.is_eq() { a.2?.cmp(&b.2?) } else { months };
    Some(order).filter(|order| order.is_ne())
}

fn moment(date: &str) -> Option<Moment> {
    let (mut year, mut month, mut day) = (None, None, None);
    for word in plain(date).split(' ') {
        match word.parse::<u32>() {
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

    fn sides<'a>(values: [&'a str; 2]) -> [Side<'a>; 2] {
        let side = |name, value| Side { name, through: None, value };
        [side("A", values[0]), side("B", values[1])]
    }

    #[test]
    fn dates_decide_as_the_question_has_it() {
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
    fn within_a_year_the_whole_dates_are_told() {
        let told = because("Who was born first?", sides(["3 May 1950", "2 May 1950"]), "B").unwrap();
        assert!(told.ends_with(". 2 May 1950 is earlier than 3 May 1950, so the answer is B."), "{told}");
    }

    #[test]
    fn dates_that_do_not_tell_which_is_earlier_decide_nothing() {
        let first = |values| because("Who was born first?", sides(values), "A").map(|_| ());
        for (one, other) in [("1973", "3 May 1973"), ("May 1973", "3 May 1973"), ("May 1973", "1973"), ("1973", "1973")]
        {
            assert_eq!((first([one, other]), first([other, one])), (None, None), "{one}, {other}");
        }
        assert_eq!(first(["April 1973", "3 May 1973"]), Some(()));
        assert_eq!(first(["1972", "3 May 1973"]), Some(()));
    }

    #[test]
    fn what_films_lead_to_is_named() {
        let side = |name, through, value| Side { name, through: Some(through), value };
        let sides = [side("Low Tide", "Ann Lee", "1950"), side("High Tide", "Bob Ray", "1901")];
        let told = because("Which film has the younger director?", sides, "Low Tide").unwrap();
        assert!(told.starts_with("Low Tide, Ann Lee: 1950. High Tide, Bob Ray: 1901. "), "{told}");
    }

    #[test]
    fn sameness_is_said_where_it_is() {
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
