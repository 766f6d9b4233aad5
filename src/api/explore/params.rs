//! Query parameters.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use form_urlencoded::parse;

use crate::api::error::ApiError;

/// Calls `visit` with the name and the value of each query parameter except `index`, which was read before.
///
/// # Errors
/// The first error of `visit`.
pub(super) fn each(
    query: Option<&str>,
    mut visit: impl FnMut(&str, &str) -> Result<(), ApiError>,
) -> Result<(), ApiError> {
    let parameters = parse(query.unwrap_or_default().as_bytes()).filter(|(name, _)| name != "index");
    parameters.into_iter().try_for_each(|(name, value)| visit(&name, &value))
}

/// Parses a number in a range.
///
/// # Errors
/// 400 for anything else.
pub(super) fn number<T>(name: &str, value: &str, range: RangeInclusive<T>) -> Result<T, ApiError>
where
    T: FromStr + PartialOrd + Display,
{
    value.parse().ok().filter(|number| range.contains(number)).ok_or_else(|| {
        // Truncated, because the message repeats the value and a client may send any length.
        let shown: String = value.chars().take(40).collect();
        let message = format!("`{name}` must be from {} to {}, not `{shown}`", range.start(), range.end());
        ApiError::invalid(name, message)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn numbers_out_of_range_are_refused_by_name() {
        assert_eq!(number("limit", "7", 1..=9).unwrap(), 7);
        for value in ["0", "10", "-1", "", "7.5", "99999999999999999999999", "x"] {
            let error = number::<usize>("limit", value, 1..=9).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("limit"), "{value}");
        }
    }

    #[test]
    fn the_last_of_equal_names_counts_and_unknown_ones_stop() {
        let mut last = String::new();
        let mut visit = |name: &str, value: &str| match name {
            "q" => {
                last = value.to_owned();
                Ok(())
            }
            name => Err(ApiError::unknown(name)),
        };
        each(Some("q=a+b&q=c%20d"), &mut visit).unwrap();
        assert_eq!(each(Some("x=1"), &mut visit).unwrap_err().param.as_deref(), Some("x"));
        each(None, &mut visit).unwrap();
        assert_eq!(last, "c d");
    }
}
