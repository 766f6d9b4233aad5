//! Waymark.
fn main() {}
