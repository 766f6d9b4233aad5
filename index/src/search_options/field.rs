//! Facts about a search option: its name, the modes that use it, and the scopes that may set it.

use std::fmt;

use super::SearchOptions;
use crate::mode::Mode;

/// Option of a search, as a field of [`SearchOptions`].
#[derive(Clone, Copy)]
pub struct SearchField {
    /// Name in JSON and TOML.
    pub name: &'static str,
    /// Modes whose searches use the option.
    pub modes: &'static [Mode],
    /// Scopes in which the option may be set.
    pub scopes: &'static [SearchScope],
    pub(super) given: fn(&SearchOptions) -> bool,
    pub(super) clear: fn(&mut SearchOptions),
}

/// Group of search options that are set in one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SearchScope {
    /// Request for one search.
    Search,
    /// Request for an episode: options of all its searches.
    Episode,
    /// Record of an episode's request, which holds every option, with `null` where the policy's option applied.
    Recorded,
    /// `[retrieval]` of a policy.
    Policy,
    /// Tool of a language model, which is offered few options.
    Tool,
}

impl SearchScope {
    /// Iterates over the options that may be set in this scope.
    pub fn fields(self) -> impl Iterator<Item = SearchField> {
        SearchOptions::FIELDS.into_iter().filter(move |field| field.scopes.contains(&self))
    }

    /// Returns `true` if `graph` sets the variant alone here. Only requests for one search may tune its numbers, too.
    pub(super) fn names_variant(self) -> bool {
        self != SearchScope::Search
    }
}

impl SearchField {
    /// Returns an error message, to follow the option's name, if a search in `mode` ignores the option.
    pub fn unused_reason(&self, mode: Mode) -> Option<String> {
        let names = || self.modes.iter().map(Mode::to_string).collect::<Vec<_>>().join(", ");
        (!self.modes.contains(&mode)).then(|| format!("is not used in the mode {mode}, only in: {}", names()))
    }
}

impl fmt::Debug for SearchField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SearchField")
            .field("name", &self.name)
            .field("modes", &self.modes)
            .field("scopes", &self.scopes)
            .finish_non_exhaustive()
    }
}
