//! Progress bars on standard error: downloads and index builds.

use indicatif::{ProgressBar, ProgressStyle};

/// Template of a bar that counts bytes.
const BYTES: &str = "{msg:28!} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
/// Template of a bar that counts items.
const THINGS: &str = "{msg:28!} {bar:30} {pos}/{len} {per_sec} {eta}";

/// Creates a bar that counts bytes.
pub fn bytes() -> ProgressBar {
    bar(BYTES)
}

/// Creates a bar that counts passages, tensors or other items.
pub fn things() -> ProgressBar {
    bar(THINGS)
}

fn bar(look: &str) -> ProgressBar {
    // The templates are constants; the fallback only stands in for a panic.
    let style = ProgressStyle::with_template(look).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style)
}
