//! Sizes with units and durations in seconds, as flags take them.

use std::str::FromStr;

/// Number of bytes, written as `512`, `64KiB`, `512MiB` or `2GiB` (`KB`, `MB`, `GB` are powers of ten).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(pub usize);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let scale: usize = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            // Bare letters are powers of two, as in `docker` and the JVM.
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            _ => return Err(format!("unknown unit `{unit}`: use KiB, MiB or GiB")),
        };
        let number: usize =
            number.parse().map_err(|_| "a size begins with a whole number, such as `512MiB`".to_owned())?;
        number
            .checked_mul(scale)
            .map(Size)
            .ok_or_else(|| "the size does not fit this machine's address space".to_owned())
    }
}

/// Parses a number of seconds from 0 to a day.
///
/// # Errors
/// If `text` is not such a number.
pub fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected a number of seconds from 0 to 86400".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in
            [("512", 512), ("64KiB", 65_536), ("2MiB", 2 << 20), ("1 gib", 1 << 30), ("3MB", 3_000_000)]
        {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "MiB", "1TiBx", "-1", "99999999999999999999", "9999999999999GiB"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }
}
