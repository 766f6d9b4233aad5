//! Word lists, and texts made of words.

pub(super) fn is_auxiliary(word: &str) -> bool {
    matches!(word, "is" | "are" | "was" | "were" | "be" | "been" | "being" | "has" | "have" | "had" | "having")
}

/// Recognizes adverbs that are part of a verb's meaning.
pub(super) fn is_particle(word: &str) -> bool {
    matches!(word, "up" | "down" | "out" | "away" | "back" | "not" | "off" | "over")
}

/// Removes quotation marks, and spaces, commas and semicolons at both ends.
pub(super) fn unquoted(text: &str) -> String {
    let text: String = text.chars().filter(|char| !matches!(char, '“' | '”' | '«' | '»')).collect();
    text.trim_matches([' ', ',', ';']).to_owned()
}

/// Returns `true` if `role` ends in a noun for a person: `singer`, `biologist`, `king`.
pub(super) fn is_person_noun(role: &str) -> bool {
    let last = role.rsplit(' ').next().unwrap_or(role);
    ["er", "or", "ist", "ress", "ian", "king", "queen", "man", "woman"].iter().any(|end| last.ends_with(end))
        || is_kin(last)
}

pub(super) fn is_kin(word: &str) -> bool {
    matches!(
        word,
        "son"
            | "daughter"
            | "child"
            | "brother"
            | "sister"
            | "wife"
            | "husband"
            | "widow"
            | "mother"
            | "father"
            | "nephew"
            | "niece"
            | "grandson"
            | "granddaughter"
            | "cousin"
            | "consort"
            | "spouse"
            | "sibling"
            | "descendant"
    )
}

pub(super) fn join(words: &[&str]) -> String {
    let words: Vec<&str> = words.iter().copied().filter(|word| !word.is_empty()).collect();
    words.join(" ")
}
