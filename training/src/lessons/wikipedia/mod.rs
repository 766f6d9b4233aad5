//! Facts from the first sentences of Wikipedia-style articles, extracted with simple patterns.

pub mod families;
pub mod people;
pub mod works;
