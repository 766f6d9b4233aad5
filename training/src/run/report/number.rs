//! Number formats of the report.

/// Unit of a figure's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NumberUnit {
    /// Plain number.
    Plain,
    /// Share, shown in percent.
    Share,
    /// Duration in seconds.
    Seconds,
}

impl NumberUnit {
    /// Formats a value. Plain numbers have three significant digits, or all digits before the decimal point.
    pub(super) fn show(self, value: f64) -> String {
        match self {
            _ if !value.is_finite() => value.to_string(),
            NumberUnit::Plain => plain(value),
            NumberUnit::Share => format!("{:.1} %", 100.0 * value),
            NumberUnit::Seconds if value.abs() < 1.0 => format!("{} ms", plain(1e3 * value)),
            NumberUnit::Seconds if value.abs() < 120.0 => format!("{} s", plain(value)),
            NumberUnit::Seconds => duration(value),
        }
    }

    /// Formats a value for a table column, where digits align.
    pub(super) fn cell(self, value: f64) -> String {
        match self {
            NumberUnit::Plain if value.fract() != 0.0 && value.abs() < 100.0 => format!("{value:.2}").replace('-', "−"),
            _ => self.show(value),
        }
    }

    /// Formats an axis label for ticks `step` apart, with enough digits to tell them apart.
    pub(super) fn tick(self, value: f64, step: f64) -> String {
        match self {
            _ if value == 0.0 => "0".into(),
            NumberUnit::Share => format!("{} %", fixed(100.0 * value, 100.0 * step)),
            NumberUnit::Plain | NumberUnit::Seconds => {
                let suffix = if self == NumberUnit::Seconds { " s" } else { "" };
                let size = value.abs().max(step);
                if size >= 1e6 {
                    format!("{} M{suffix}", fixed(value / 1e6, step / 1e6))
                } else if size >= 1e4 {
                    format!("{} k{suffix}", fixed(value / 1e3, step / 1e3))
                } else if size < 1e-3 {
                    format!("{}{suffix}", short_exponent(value))
                } else if size >= 1e3 && step >= 1.0 {
                    format!("{}{suffix}", plain(value))
                } else {
                    format!("{}{suffix}", fixed(value, step))
                }
            }
        }
    }
}

/// Formats a duration: `1 h 02 min`, `3 min 20 s`, `45 s`.
pub(super) fn duration(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    match (whole / 3600, whole / 60 % 60, whole % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds:02} s"),
        (hours, minutes, _) => format!("{hours} h {minutes:02} min"),
    }
}

/// Formats an integer with groups of three digits: `12,345`.
pub(super) fn whole(value: u64) -> String {
    let digits = value.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

fn plain(value: f64) -> String {
    let size = value.abs();
    let sign = if value < 0.0 { "−" } else { "" };
    match size {
        0.0 => "0".into(),
        1000.0.. if size < 1e15 => format!("{sign}{}", whole(size.round() as u64)),
        1e-3..1e15 => {
            // 0.00123 needs five decimals for three digits, 123.4 none.
            let decimals = (2.0 - size.log10().floor()).clamp(0.0, 5.0) as usize;
            let text = format!("{size:.decimals$}");
            let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
            format!("{sign}{text}")
        }
        _ => format!("{sign}{}", short_exponent(size)),
    }
}

fn fixed(value: f64, step: f64) -> String {
    let decimals = (-step.log10()).ceil().clamp(0.0, 6.0) as usize;
    // A step of 2.5 or 0.25 needs one more digit than its magnitude suggests.
    let digit = 10f64.powi(decimals as i32);
    let decimals = decimals + usize::from((step * digit - (step * digit).round()).abs() > 1e-6);
    format!("{value:.decimals$}").replace('-', "−")
}

fn short_exponent(value: f64) -> String {
    let text = format!("{value:.2e}");
    match text.split_once('e') {
        Some((digits, exponent)) if digits.contains('.') => {
            format!("{}e{exponent}", digits.trim_end_matches('0').trim_end_matches('.')).replace('-', "−")
        }
        _ => text.replace('-', "−"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_matter() {
        let show = |value| NumberUnit::Plain.show(value);
        assert_eq!(
            [show(0.0), show(0.4375), show(12.34), show(123.4), show(0.5)],
            ["0", "0.438", "12.3", "123", "0.5"]
        );
        assert_eq!([show(1234.0), show(1234567.2), show(-0.25), show(2e-6)], ["1,234", "1,234,567", "−0.25", "2e−6"]);
        assert_eq!([show(999.7), show(0.00123), show(1e300), show(f64::NAN)], ["1000", "0.00123", "1e300", "NaN"]);
        assert_eq!(NumberUnit::Share.show(0.4375), "43.8 %");
        assert_eq!([NumberUnit::Seconds.show(0.0123), NumberUnit::Seconds.show(5.0)], ["12.3 ms", "5 s"]);
        assert_eq!([duration(3725.0), duration(200.4), duration(-1.0)], ["1 h 02 min", "3 min 20 s", "0 s"]);
    }

    #[test]
    fn ticks_can_be_told_apart() {
        let tick = |value, step| NumberUnit::Plain.tick(value, step);
        assert_eq!([tick(0.0, 0.2), tick(0.4, 0.2), tick(0.25, 0.25), tick(2.5, 2.5)], ["0", "0.4", "0.25", "2.5"]);
        assert_eq!([tick(20_000.0, 5_000.0), tick(2e-5, 1e-5), tick(-4.0, 2.0)], ["20 k", "2e−5", "−4"]);
        assert_eq!(NumberUnit::Share.tick(0.025, 0.025), "2.5 %");
        assert_eq!(NumberUnit::Share.tick(0.4, 0.2), "40 %");
    }
}
