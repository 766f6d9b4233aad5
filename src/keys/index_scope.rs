//! Indexes that an API key may use.

use std::sync::Arc;

use super::scope::Scope;

/// Maximum number of indexes that a key names.
const MAX_INDEXES: usize = 64;

/// Maximum length of a name, in bytes.
const MAX_NAME: usize = 64;

/// Indexes that an API key may use: all by default, or those with these names. A key may always use the vector stores
/// that it created.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IndexScope(Option<Arc<[String]>>);

/// Error returned for names of indexes that a key cannot be limited to. It quotes none of them, because a key may stand
/// in their place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IndexScopeError {
    /// No name, or too many.
    #[error("a key is limited to 1 to {MAX_INDEXES} indexes: leave them out for all")]
    Count,
    /// A name that no index has.
    #[error("the name of an index has 1 to {MAX_NAME} letters, digits and `._-`")]
    Name,
    /// The key can create keys without limits.
    #[error("a key with the scope admin cannot be limited to indexes: it can create keys that are not")]
    Admin,
}

impl IndexScope {
    /// Limits a key with these scopes to the indexes `names`. `None` allows all.
    ///
    /// # Errors
    /// If there are no names or too many, if a name has characters that names of indexes cannot have, or if the key has
    /// the scope `admin`.
    pub fn new(names: Option<Vec<String>>, scopes: &[Scope]) -> Result<Self, IndexScopeError> {
        let Some(names) = names else { return Ok(Self::default()) };
        let valid = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        match names.as_slice() {
            names if !(1..=MAX_INDEXES).contains(&names.len()) => Err(IndexScopeError::Count),
            names if !names.iter().all(|name| (1..=MAX_NAME).contains(&name.len()) && name.chars().all(valid)) => {
                Err(IndexScopeError::Name)
            }
            _ if scopes.contains(&Scope::Admin) => Err(IndexScopeError::Admin),
            _ => Ok(Self(Some(names.into()))),
        }
    }

    /// Returns the names of the indexes that the key is limited to. `None` for all.
    pub fn names(&self) -> Option<&[String]> {
        self.0.as_deref()
    }

    /// Returns `true` if the key may use the index `name`.
    pub fn allows(&self, name: &str) -> bool {
        self.0.as_ref().is_none_or(|names| names.iter().any(|other| other == name))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_key_is_limited_by_names_or_not_at_all() {
        let scope = |names: &[&str], scopes: &[Scope]| {
            IndexScope::new(Some(names.iter().map(|name| (*name).to_owned()).collect()), scopes)
        };
        let all = IndexScope::new(None, &Scope::ALL).unwrap();
        assert!(all.allows("law") && all.names().is_none());
        let law = scope(&["law", "default"], &[Scope::Infer, Scope::Index]).unwrap();
        assert!(law.allows("law") && law.allows("default") && !law.allows("laws"));
        assert_eq!(scope(&[], &[Scope::Infer]), Err(IndexScopeError::Count));
        assert_eq!(scope(&["x"; 65], &[Scope::Infer]), Err(IndexScopeError::Count));
        for name in ["", "a b", "a\"b", &"x".repeat(65)] {
            assert_eq!(scope(&[name], &[Scope::Infer]), Err(IndexScopeError::Name), "{name}");
        }
        assert_eq!(scope(&["law"], &Scope::ALL), Err(IndexScopeError::Admin));
    }
}
