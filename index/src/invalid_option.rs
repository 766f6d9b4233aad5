//! Error of a search option whose value is out of range.

use std::fmt::Display;

/// Search option whose value no search can use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` {}", self.reason())]
pub struct InvalidOption {
    /// Path of the option from the search options, such as `graph.damping`.
    pub name: &'static str,
    /// Offending value. Empty for conditions, which would be long.
    pub value: String,
    /// Expected value, phrased to follow the name.
    pub expected: &'static str,
}

impl InvalidOption {
    /// Refuses `value` of the option `name`. `expected` is phrased to follow the name.
    pub(crate) fn new(name: &'static str, value: impl Display, expected: &'static str) -> InvalidOption {
        InvalidOption { name, value: value.to_string(), expected }
    }

    /// Returns expectation and value, to follow a name: an interface may have its own name for the option.
    pub fn reason(&self) -> String {
        let InvalidOption { value, expected, .. } = self;
        if value.is_empty() { (*expected).to_owned() } else { format!("{expected}, not {value}") }
    }
}
