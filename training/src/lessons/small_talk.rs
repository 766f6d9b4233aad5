//! Lessons without a question: greetings, thanks and the like, which are answered without a search.

use rand::Rng;
use rand::seq::{IndexedRandom, SliceRandom};

use super::lesson::{Conclusion, Lesson};

/// Kind of small talk: the user's statements, the reasons not to search, and the replies.
struct TalkForms {
    says: &'static [&'static str],
    why: &'static [&'static str],
    replies: &'static [&'static str],
}

#[rustfmt::skip]
const FORMS: &[TalkForms] = &[
    TalkForms {
        says: &["hello", "hi", "hey", "hi there", "hello there", "hey there", "good morning", "good afternoon", "good evening",
            "good day", "greetings", "hello again", "hi again", "hello everyone", "hey you", "howdy"],
        why: &["This is a greeting. There is nothing to search for.", "It is only a greeting, so I greet back."],
        replies: &["Hello! What would you like to know?", "Hello! Ask me a question about the documents."],
    },
    TalkForms {
        says: &["thanks", "thank you", "many thanks", "thanks a lot", "thank you very much", "thank you so much", "great, thanks",
            "ok, thank you", "perfect, thanks", "thanks for your help", "thank you for the answer", "that helped, thanks"],
        why: &["This is a thank-you and no question. I need no search.", "There is no question here, so I do not search."],
        replies: &["You are welcome!", "You are welcome! Ask me anything else."],
    },
    TalkForms {
        says: &["bye", "goodbye", "see you", "see you later", "good night", "that is all", "that is all for today",
            "ok, bye", "have a nice day", "talk to you later"],
        why: &["This ends the conversation. There is nothing to search for.", "It is a farewell and no question."],
        replies: &["Goodbye!", "Goodbye! Come back with any question."],
    },
    TalkForms {
        says: &["how are you", "how is it going", "are you there", "can you hear me", "is anyone there", "how do you do"],
        why: &["This is small talk. No document tells anything about it.", "No search can answer this."],
        replies: &["I am ready. What would you like to know?"],
    },
    TalkForms {
        says: &["who are you", "what are you", "what can you do", "what do you do", "can you help me", "how can you help me",
            "i need help", "i have a question", "can i ask you something", "what should i ask"],
        why: &["This asks about me and not about the documents.", "This is about what I do, which needs no search."],
        replies: &["I search the documents and answer questions about them.", "I answer questions from the documents. Ask me one."],
    },
];

/// Endings of a statement; the first adds nothing.
const ENDS: &[&str] = &["", "!", ".", "!!", " :)"];

/// Makes every lesson once, in a random order.
pub fn lessons(dataset: &str, rng: &mut impl Rng) -> Vec<Lesson> {
    let mut all = Vec::new();
    for forms in FORMS {
        for says in forms.says {
            for end in ENDS {
                for capital in [true, false] {
                    let question = format!("{}{end}", if capital { capitalized(says) } else { (*says).to_owned() });
                    let why = forms.why.choose(rng).copied().unwrap_or_default();
                    let reply = forms.replies.choose(rng).copied().unwrap_or_default();
                    all.push(Lesson {
                        question_id: String::new(),
                        question,
                        kind: None,
                        golds: vec![reply.to_owned()],
                        supporting: Vec::new(),
                        partly: false,
                        hops: Vec::new(),
                        conclusion: Conclusion::Because(why.to_owned()),
                    });
                }
            }
        }
    }
    all.shuffle(rng);
    all.iter_mut().enumerate().for_each(|(number, lesson)| lesson.question_id = format!("{dataset}-{number:05}"));
    all
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    #[test]
    fn everything_is_said_once_and_answered_without_hops() {
        let of = |seed| lessons("talk", &mut ChaCha8Rng::seed_from_u64(seed));
        let all = of(1);
        assert_eq!(all, of(1));
        assert!(all.len() > 400, "{}", all.len());
        let said: HashSet<&str> = all.iter().map(|lesson| lesson.question.as_str()).collect();
        assert_eq!(said.len(), all.len());
        assert!(all.iter().all(|lesson| lesson.hops.is_empty() && lesson.golds.len() == 1));
        // Statements that nothing was found belong to lessons that searched.
        assert!(all.iter().all(|lesson| !lesson.golds[0].contains("find")));
    }
}
