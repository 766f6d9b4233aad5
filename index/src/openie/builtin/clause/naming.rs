//! Names that the phrases of a sentence stand for.

use super::Clauses;
use super::words::{is_person_noun, unquoted};
use crate::openie::builtin::lexicon::WordTag;
use crate::openie::builtin::phrase::{Phrase, PhraseKind};

/// Maximum bytes of a resolved name; longer phrases name nothing.
const LONGEST_NAME: usize = 1024;

impl Clauses<'_, '_> {
    /// Emits statements from a name's role and owner: `his son Henry`, `singer Marvin Gaye`.
    pub(super) fn relate_role(&mut self, phrase: Phrase) {
        let (Some((start, end)), Some(name)) = (phrase.role(), self.resolve(phrase)) else { return };
        let role = self.slice(start, end).to_owned();
        match phrase.owner.and_then(|owner| self.owner(owner)) {
            Some(owner) => self.emit(&owner, &role, &name),
            None if role.starts_with(char::is_lowercase) && is_person_noun(&role) => self.emit(&name, "is", &role),
            None => {}
        }
    }

    pub(super) fn owner(&mut self, (start, end): (usize, usize)) -> Option<String> {
        let text = self.slice(start, end);
        if text.len() > LONGEST_NAME {
            return None;
        }
        if self.tokens[start].tag != WordTag::Owner {
            let name = unquoted(text);
            if self.referents.is_class(&self.tokens[end - 1].text.to_lowercase()) {
                return Some(self.referents.title().to_owned());
            }
            let full = self.referents.full(&name).map_or_else(|| name.clone(), str::to_owned);
            self.referents.see(&full);
            return Some(full);
        }
        if text == "whose" {
            return self.state.object.clone().or_else(|| self.state.subjects.first().cloned());
        }
        self.referents.pronoun(text)
    }

    /// Returns the name that a phrase stands for in triples.
    pub(super) fn resolve(&mut self, phrase: Phrase) -> Option<String> {
        if self.slice(phrase.start, phrase.end).len() > LONGEST_NAME {
            return None;
        }
        match phrase.kind {
            PhraseKind::Pronoun => self.referents.pronoun(self.slice(phrase.start, phrase.end)),
            PhraseKind::Name => {
                let name = unquoted(self.slice(phrase.name, phrase.end));
                let opens = self.first && self.state.subjects.is_empty() && self.state.preposition.is_none();
                if opens && self.referents.resembles(&name) {
                    let title = self.referents.title().to_owned();
                    if name.contains(' ') && !self.referents.is_variant(&name) {
                        self.emit(&title, "also known as", &name);
                    }
                    return Some(title);
                }
                let full = self.referents.full(&name).map_or(name, str::to_owned);
                if self.tokens[phrase.name].tag != WordTag::Quote {
                    self.referents.see(&full);
                }
                Some(full)
            }
            PhraseKind::Thing
                if phrase.definite
                    && phrase.owner.is_none()
                    && phrase.end - phrase.start == 1
                    && !(self.state.copula && self.state.preposition.is_none())
                    && self.referents.is_class(&self.head(phrase)) =>
            {
                Some(self.referents.title().to_owned())
            }
            _ => Some(unquoted(self.slice(phrase.start, phrase.end))),
        }
    }
}
