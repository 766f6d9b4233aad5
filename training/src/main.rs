//! The `train` program.

fn main() {}
