//! How Python writes values and reads them back. The reference systems are Python programs whose files, prompts and
//! replies hold values in that form, so being exact against them means being exact in this.

mod difflib;
mod format;
mod literal;

pub(crate) use difflib::closest;
pub(crate) use format::{show, tuple};
pub(crate) use literal::literal;
