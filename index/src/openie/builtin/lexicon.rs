//! Parts of speech: closed classes by list, other words by form.

use std::collections::HashMap;
use std::sync::LazyLock;

/// Part of speech of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WordTag {
    /// Word that begins with a capital, or with a letter of a script without case.
    Name,
    /// Noun or adjective: the default for unknown words.
    Noun,
    /// Token that begins with a digit or a currency sign.
    Number,
    /// Finite verb or past participle.
    Verb,
    /// Word that is a verb only between a subject and its complement, otherwise a noun: `stars`, `plays`.
    Present,
    /// Form in `-ing`.
    Gerund,
    /// `is`, `was`, `been`.
    Be,
    /// `has`, `did`, `would`.
    Auxiliary,
    Adverb,
    Preposition,
    /// `to`, as a preposition or before an infinitive.
    To,
    Article,
    /// `this`, `several`, `first`.
    Determiner,
    /// `'s`.
    Possessive,
    /// `his`, `its`.
    Owner,
    /// `he`, `it`.
    Pronoun,
    /// `who`, `which`.
    Relative,
    /// `and`, `or`.
    And,
    /// `but`, `because`: word that begins a clause.
    Subordinator,
    Comma,
    Open,
    Close,
    /// Dash, colon or semicolon.
    Break,
    /// Mark that ends a sentence.
    Stop,
    Quote,
    Unquote,
    Other,
}

type Words = &'static [(WordTag, &'static str)];

/// Words of closed classes, in lower case. The first entry of a word counts.
const CLOSED: Words = &[
    (WordTag::Article, "a an the"),
    (
        WordTag::Determiner,
        "this that these those some any each every no another both either neither all several many much most few such \
         other first second third fourth fifth sixth seventh eighth ninth tenth one two three four five six seven \
         eight nine ten eleven twelve twenty thirty forty fifty hundred thousand million billion",
    ),
    (WordTag::Owner, "his her its their my our your whose"),
    (WordTag::Pronoun, "he she it they him them himself herself itself themselves i we you us me there"),
    (WordTag::Relative, "who which whom where when while whereas"),
    (WordTag::Be, "is was are were be been being am"),
    (
        WordTag::Auxiliary,
        "has have had having do does did done will would can could may might must shall should not cannot",
    ),
    (
        WordTag::Preposition,
        "of in on at by for from with as into onto near between among amongst under over through throughout during \
         after before since until till against about above across along around behind below beneath beside besides \
         beyond despite except inside outside off toward towards upon via within without per alongside opposite than \
         like unlike including regarding concerning due",
    ),
    (WordTag::To, "to"),
    (WordTag::And, "and or & nor"),
    (WordTag::Subordinator, "but because although though if unless so yet however whether whilst once"),
    (
        WordTag::Adverb,
        "also then now later often never always still already soon ever just only even very too again together thus \
         therefore instead perhaps quite rather here away back almost nearly about approximately currently \
         originally formerly recently best well more less far up down out once twice firstly secondly finally",
    ),
    (WordTag::Comma, ","),
    (WordTag::Open, "( ["),
    (WordTag::Close, ") ]"),
    (WordTag::Break, "; : – — - …"),
    (WordTag::Stop, ". ! ? 。"),
    (WordTag::Quote, "“ «"),
    (WordTag::Unquote, "” »"),
    (WordTag::Possessive, "'s"),
];

/// Words with a misleading form: irregular verbs, verbs of the present tense, nouns in `-ed`, `-ing` and `-ly`.
const OPEN: Words = &[
    (
        WordTag::Verb,
        "became become wrote written made won led held took taken gave given went gone ran fought left built sang sung \
         began begun met got saw seen said told came knew known grew grown fell fallen felt kept lost sold bought \
         brought taught thought caught sent spent stood sat set put cut hit shot read rose risen drew drawn drove \
         driven broke broken chose chosen spoke spoken stole stolen wore worn bore born borne flew flown froze frozen \
         forgot hid hidden rode ridden shook shone slept struck swore swam threw thrown woke paid laid lay lain dealt \
         meant sought found bred fed shown sworn overtook overthrew overthrown underwent withdrew undertook spread \
         split cast beat beaten understood arose fled bound dubbed co-wrote co-written rebuilt based bears becomes \
         begins belongs comprises consists contains depicts describes destroys develops directs earns \
         encompasses enters establishes follows gives goes grows happens helps holds includes involves \
         lies lives makes manages meets occupies occurs offers operates owns portrays possesses \
         produces provides publishes receives refers remains represents resides \
         runs seeks sells separates serves shows sings speaks specializes speciali\u{7a}es specialises stands starts takes \
         teaches tells tries turns uses wants wins writes attends appears adopts allows connects covers \
         deals discovers employs enables explores explains falls finds gets has houses hosts keeps knows leads leaves \
         loses means moves joins kills marries passes plans premieres releases returns reveals sends situates stars \
         tries travels traces governs prohibits forbids grants presides reflects requires suggests \
         became contain include consist comprise provide remain belong exist occur",
    ),
    (
        WordTag::Present,
        "plays features works forms borders flows calls comes ends focuses ranks rises names plants states claims \
         marks makes drains feeds airs stems",
    ),
    (
        WordTag::Noun,
        "hundred speed need seed breed bed red weed feed deed sacred wicked naked king ring wing spring string thing \
         nothing something anything everything morning evening building painting ceiling wedding sibling offspring \
         being meaning family assembly supply reply ally july monopoly butterfly early daily weekly monthly yearly \
         friendly lovely lonely elderly holy ugly only united aged beloved limited unlimited so-called talented \
         gifted mixed advanced animated retired short-lived long-lived self-titled untitled peer-reviewed \
         left-handed right-handed computer-animated critically-acclaimed award-winning english-speaking recording \
         recordings trading banking engineering acting singing writing publishing manufacturing \
         filmmaking training shipping housing mining boxing wrestling racing skiing swimming cycling fencing rowing \
         opening closing beginning ending setting supporting leading living",
    ),
];

fn table(words: Words) -> HashMap<&'static str, WordTag> {
    let mut table = HashMap::new();
    for &(tag, list) in words {
        for word in list.split_ascii_whitespace() {
            table.entry(word).or_insert(tag);
        }
    }
    table
}

static CLOSED_WORDS: LazyLock<HashMap<&'static str, WordTag>> = LazyLock::new(|| table(CLOSED));
static OPEN_WORDS: LazyLock<HashMap<&'static str, WordTag>> = LazyLock::new(|| table(OPEN));

/// Returns the closed class of `word`, ignoring an initial capital.
pub(super) fn closed(word: &str) -> Option<WordTag> {
    if word.len() > 16 {
        return None;
    }
    if let Some(&tag) = CLOSED_WORDS.get(word) {
        return Some(tag);
    }
    let first = *word.as_bytes().first()?;
    if !first.is_ascii_uppercase() || word == "US" || word == "IT" {
        return None;
    }
    let tag = CLOSED_WORDS.get(word.to_ascii_lowercase().as_str()).copied();
    // With a capital, these words are more often names or parts of names.
    tag.filter(|_| !matches!(word, "Will" | "May" | "I" | "A." | "An." | "Like" | "Best" | "Down" | "Far" | "Yet"))
}

/// Guesses the part of speech of a lower-case word outside the closed classes.
pub(super) fn open(word: &str) -> WordTag {
    if let Some(&tag) = OPEN_WORDS.get(word) {
        return tag;
    }
    if word.len() > 4 && word.ends_with("ly") {
        WordTag::Adverb
    } else if word.len() > 3 && word.ends_with("ed") && !word.ends_with("eed") {
        WordTag::Verb
    } else if word.len() > 4 && word.ends_with("ing") {
        WordTag::Gerund
    } else {
        WordTag::Noun
    }
}

/// Returns `true` if a period after `word` belongs to the word.
pub(super) fn is_abbreviation(word: &str) -> bool {
    matches!(
        word,
        "Mr" | "Mrs"
            | "Ms"
            | "Dr"
            | "St"
            | "Sr"
            | "Jr"
            | "Prof"
            | "Rev"
            | "Hon"
            | "Gen"
            | "Col"
            | "Lt"
            | "Capt"
            | "Sgt"
            | "Maj"
            | "Gov"
            | "Sen"
            | "Rep"
            | "Pres"
            | "Mt"
            | "Ft"
            | "No"
            | "Nos"
            | "vs"
            | "etc"
            | "Inc"
            | "Ltd"
            | "Co"
            | "Corp"
            | "Bros"
            | "ca"
            | "approx"
            | "lit"
            | "e.g"
            | "i.e"
            | "cf"
            | "al"
            | "Vol"
            | "vol"
            | "Op"
            | "op"
            | "Jan"
            | "Feb"
            | "Apr"
            | "Aug"
            | "Sept"
            | "Oct"
            | "Nov"
            | "Dec"
            | "Univ"
            | "Dept"
            | "est"
            | "b"
            | "d"
            | "c"
            | "r"
            | "fl"
            | "pop"
            | "feat"
            | "ft"
            | "Messrs"
            | "Ste"
            | "Fr"
            | "Msgr"
            | "Adm"
            | "Cmdr"
    )
}

/// Recognizes months, in full or abbreviated.
pub(super) fn is_month(word: &str) -> bool {
    let word = word.strip_suffix('.').unwrap_or(word);
    matches!(
        word,
        "January"
            | "February"
            | "March"
            | "April"
            | "May"
            | "June"
            | "July"
            | "August"
            | "September"
            | "October"
            | "November"
            | "December"
            | "Jan"
            | "Feb"
            | "Mar"
            | "Apr"
            | "Jun"
            | "Jul"
            | "Aug"
            | "Sep"
            | "Sept"
            | "Oct"
            | "Nov"
            | "Dec"
    )
}

/// Recognizes lower-case words that belong to the name after them: `von`, `de la`.
pub(super) fn is_particle(word: &str) -> bool {
    matches!(
        word,
        "de" | "la"
            | "le"
            | "du"
            | "des"
            | "del"
            | "della"
            | "di"
            | "da"
            | "dos"
            | "das"
            | "von"
            | "van"
            | "der"
            | "den"
            | "zu"
            | "zur"
            | "und"
            | "et"
            | "y"
            | "e"
            | "al"
            | "el"
            | "bin"
            | "ibn"
            | "bint"
            | "ben"
            | "av"
            | "af"
            | "ter"
            | "ten"
            | "i"
            | "no"
            | "wa"
            | "ng"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_told_by_list_and_by_form() {
        assert_eq!(closed("The"), Some(WordTag::Article));
        assert_eq!(closed("US"), None);
        assert_eq!(closed("Paris"), None);
        assert_eq!(open("wrote"), WordTag::Verb);
        assert_eq!(open("directed"), WordTag::Verb);
        assert_eq!(open("building"), WordTag::Noun);
        assert_eq!(open("quickly"), WordTag::Adverb);
        assert_eq!(open("starring"), WordTag::Gerund);
        assert_eq!(open("city"), WordTag::Noun);
    }
}
