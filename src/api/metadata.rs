//! Validation of `metadata`: pairs that clients attach to objects.

use std::collections::BTreeMap;

use super::error::ApiError;

/// Checks the limits of OpenAI's interface.
///
/// # Errors
/// If there are too many pairs, or a name or a value is too long.
pub(super) fn check_metadata(metadata: Option<&BTreeMap<String, String>>) -> Result<(), ApiError> {
    let metadata = metadata.into_iter().flatten();
    // OpenAI states the limits in characters, not in bytes.
    for (count, (name, value)) in metadata.enumerate() {
        if count >= 16 || name.chars().count() > 64 || value.chars().count() > 512 {
            let message = "`metadata` holds at most 16 pairs: names of 64 characters, values of 512";
            return Err(ApiError::invalid("metadata", message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns `count` pairs with names of `name` characters and values of `value` characters.
    fn pairs(count: usize, name: usize, value: usize) -> BTreeMap<String, String> {
        (0..count).map(|index| (format!("{index:0>name$}"), "é".repeat(value))).collect()
    }

    #[test]
    fn limits_are_counted_in_characters() {
        assert!(check_metadata(None).is_ok());
        assert!(check_metadata(Some(&pairs(16, 64, 512))).is_ok());
        for refused in [pairs(17, 64, 512), pairs(1, 65, 512), pairs(1, 64, 513)] {
            assert!(check_metadata(Some(&refused)).is_err());
        }
    }
}
